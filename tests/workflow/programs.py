"""Programs of this project in processes that begin with its imports done: those take longer than most verbs."""

import multiprocessing
import os
import sys

# A process of its own, without threads, of which each program is a copy.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch", "matplotlib.figure", "snakemake.cli", "parascale.cli", "parascale.plan.planner"])


def call(words, folder, output, environment=None, answers=""):
    """(exit code, what it printed) of `parascale …` or `snakemake …` in a folder.

    output: a file to print into. environment: changes of the environment. answers: what the user types.
    """
    output.with_suffix(".in").write_text(answers)
    process = FORKS.Process(target=_work, args=(words, folder, output, {**os.environ, **(environment or {})}))
    process.start()
    process.join()
    return process.exitcode, output.read_text()


def _work(words, folder, output, environment):
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = list(words)
    with output.with_suffix(".in").open() as answers, output.open("w") as printed:
        for file, stream in ((answers, 0), (printed, 1), (printed, 2)):
            os.dup2(file.fileno(), stream)
    sys.stdin = os.fdopen(0)  # multiprocessing gave this process an empty one
    if words[0] == "snakemake":
        from snakemake.cli import main

        main(list(words[1:]))
    else:
        from parascale.cli import main

        main()

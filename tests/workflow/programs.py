"""Programs of this project in processes that begin with its imports done: those take longer than most verbs."""

import gc
import os
import signal
import sys

from tests.forks import FORKS


def call(words, folder, output, environment=None, answers="", scripts=None):
    """(exit code, what it printed) of `parascale …` or `snakemake …` in a folder.

    output: a file to print into. environment: changes of the environment. answers: what the user types. scripts: the folder of the
    package, if it is not the repository's.
    """
    output.with_suffix(".in").write_text(answers)
    process = FORKS.Process(target=_work, args=(words, folder, output, {**os.environ, **(environment or {})}, scripts))
    process.start()
    try:
        process.join()
    finally:
        if process.is_alive():  # pytest's time limit: its jobs would go on beside the other tests
            os.killpg(process.pid, signal.SIGKILL)
    return process.exitcode, output.read_text()


def _work(words, folder, output, environment, scripts):
    os.setpgid(0, 0)
    gc.freeze()  # what the server had loaded
    if scripts:
        sys.path.insert(0, str(scripts))
        for name in [name for name in sys.modules if name.partition(".")[0] == "parascale"]:
            del sys.modules[name]
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

"""Would the tests notice? Random mutants of the modules that decide numbers, plans, verdicts, recovery and formats.

    python tests/benchmarks/mutants.py WORK measure    # once: which test runs which line, and in how many seconds
    python tests/benchmarks/mutants.py WORK run        # the mutants; again: those without an answer yet (--again: also those that lived)
    python tests/benchmarks/mutants.py WORK table      # what came of them

`measure` needs the package coverage, which is not among the pinned ones. `--part 0/2` and `--part 1/2` share the work between two processes.

A mutant is one change of one expression or statement. It meets only its module's own test files: those in tests/unit that import the module,
or take names from its package (`from parascale.settings import Run`), themselves or by a helper beside them. Of these run the tests that
execute the changed line, the quickest first; where none does, the tests of those files that start processes, into which `measure` cannot see.
"""

import contextlib
import hashlib
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from comparison import parser_of
from mutations import PACKAGE, ROOT, chosen, own_files

BUDGET = 60.0  # seconds of tests a mutant may meet, as measured without coverage's share
STARTS_PROCESSES = re.compile(r"multiprocessing|subprocess|ProcessPool|tests\.command|\.\.command")
PRELOADED = ("torch", "numpy", "hypothesis", "pytest")  # imported once; each mutant is a fork


class Measured:
    """Pytest's plugin of `measure`: coverage's context is the running test, or its file at import and while fixtures are set up."""

    def __init__(self, coverage, file):
        self.coverage, self.file, self.seconds, self.failed = coverage, file, Counter(), set()

    def pytest_runtest_logstart(self):
        self.coverage.switch_context(self.file)

    def pytest_runtest_call(self, item):
        self.coverage.switch_context(item.nodeid)

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] += report.duration
        if report.outcome != "passed":
            self.failed.add(report.nodeid)


class Chosen:
    """Pytest's plugin of `run`: runs these tests in this order and writes down which failed first."""

    def __init__(self, tests, answer):
        self.order, self.answer = {test: place for place, test in enumerate(tests)}, answer

    def pytest_collection_modifyitems(self, items):
        items[:] = sorted(
            (item for item in items if item.nodeid in self.order), key=lambda item: self.order[item.nodeid]
        )

    def pytest_runtest_logreport(self, report):
        if report.failed and not self.answer.exists():
            self.answer.write_text(report.nodeid)

    pytest_collectreport = pytest_runtest_logreport


def forked(work, limit):
    """Runs `work` in a process of its own with its own group. Returns whether it ended within `limit` seconds."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1), os.dup2(nowhere.fileno(), 2)
        try:
            work()
        finally:
            os._exit(0)
    end, done = time.monotonic() + limit, 0
    while not done and time.monotonic() < end:
        time.sleep(0.02)
        done = os.waitpid(pid, os.WNOHANG)[0]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # also what tests left behind
    if not done:
        os.waitpid(pid, 0)
    return bool(done)


def copied():
    """Makes a copy of the tree and goes there, for this process and those that it starts."""
    copy = Path(tempfile.mkdtemp(prefix="mutants-")) / "tree"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in listed.splitlines():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    os.environ.update(PYTHONPATH=f"{copy / 'scripts'}:{os.environ.get('PYTHONPATH', '')}", OMP_NUM_THREADS="1")
    sys.path[:0] = [str(copy), str(copy / "scripts")]
    os.chdir(copy)
    for name in PRELOADED:
        importlib.import_module(name)
    return copy


def pytested(copy, files, *plugins):
    import pytest

    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow and not gpu and not slurm",
        f"--basetemp={copy.parent}/base",
    ]
    pytest.main([*options, *files], plugins=[*plugins])


def measure(work, part):
    """Writes, for each test file that is new or was edited, which test runs which line (coverage's data) and the tests' seconds."""
    copy = copied()
    for path in sorted((copy / "tests/unit").glob("test_*.py"))[part[0] :: part[1]]:
        file, text = str(path.relative_to(copy)), hashlib.sha256(path.read_bytes()).hexdigest()
        summary = work / f"{path.stem}.json"
        if summary.exists() and json.loads(summary.read_text())["text"] == text:
            continue

        def one(file=file, text=text, summary=summary):
            import coverage

            measured = coverage.Coverage(
                data_file=str(summary.with_suffix(".coverage")), config_file=False, source=[str(copy / PACKAGE)]
            )
            measured.set_option("run:relative_files", True)
            measured.erase()
            measured.start()
            measured.switch_context(file)
            plugin = Measured(measured, file)
            pytested(copy, [file], plugin)
            measured.stop()
            measured.save()
            seconds = {test: round(taken, 2) for test, taken in plugin.seconds.items() if test not in plugin.failed}
            summary.write_text(json.dumps({"text": text, "seconds": seconds, "failed": sorted(plugin.failed)}))

        began = time.monotonic()
        print(file, "" if forked(one, 900) else "took too long", f"{time.monotonic() - began:.0f} s", flush=True)
    shutil.rmtree(copy.parent)


class Tests:
    """Which tests meet a mutant, by what `measure` wrote."""

    def __init__(self, work):
        self.own, self.work, self.read = own_files(), work, {}
        self.seconds = {}
        for summary in work.glob("test_*.json"):
            self.seconds["tests/unit/" + summary.stem + ".py"] = json.loads(summary.read_text())["seconds"]

    def of(self, mutant):
        """(tests to run, their seconds, how many there are): those of the file that has the module's name first, then by seconds."""
        own, tests = self.own[mutant["path"]], {}
        for file in own:
            contexts, seconds = self._lines(file, mutant["path"]), self.seconds.get(file, {})
            running = {*contexts.get(mutant["line"], ()), *contexts.get(mutant["statement"], ())}
            tests |= {test: seconds[test] for test in (seconds if file in running else running) if test in seconds}
        for file in () if tests else own:
            if STARTS_PROCESSES.search((ROOT / file).read_text()):
                tests |= self.seconds.get(file, {})
        stem, total, kept = Path(mutant["path"]).stem, 0.0, []
        for test in sorted(tests, key=lambda test: (stem not in test.split("::")[0], tests[test])):
            if (total := total + tests[test]) < BUDGET or not kept:
                kept.append(test)
        return kept, sum(tests[test] for test in kept), len(tests)

    def _lines(self, file, path):
        from coverage import CoverageData

        if file not in self.read:
            self.read[file] = CoverageData(str(self.work / (Path(file).stem + ".coverage")))
            self.read[file].read()
        return self.read[file].contexts_by_lineno(path)


def run(work, part, mutants, again):
    """Tries each mutant without an answer and appends what came of it to `answers.jsonl`."""
    copy, tests = copied(), Tests(work)
    answers = read_answers(work)
    for mutant in mutants[part[0] :: part[1]]:
        if mutant["key"] in answers and not (again and not answers[mutant["key"]]["killed_by"]):
            continue
        kept, seconds, count = tests.of(mutant)
        target, failed = copy / mutant["path"], copy.parent / "failed"
        text = target.read_bytes()
        failed.unlink(missing_ok=True)
        began, ended = time.monotonic(), True
        try:
            target.write_bytes(text[: mutant["start"]] + mutant["new"].encode() + text[mutant["end"] :])
            forget(target)
            files = sorted({test.split("::")[0] for test in kept})
            if kept:
                ended = forked(lambda: pytested(copy, ["-x", *files], Chosen(kept, failed)), 45 + 3 * seconds)  # noqa: B023 (runs at once)
        finally:
            target.write_bytes(text)
            forget(target)
        killed = failed.read_text() if failed.exists() else "" if ended else "time limit"
        answer = {"key": mutant["key"], "killed_by": killed, "tests": len(kept), "of": count}
        answer["seconds"] = round(time.monotonic() - began, 1)
        with open(work / "answers.jsonl", "a") as handle:
            handle.write(json.dumps(answer) + "\n")
        print(shown(mutant), "|", killed or f"LIVES ({len(kept)} of {count} tests)", "|", answer["seconds"], flush=True)
    shutil.rmtree(copy.parent)


def forget(module):
    """A change of the same length within the same second would not make Python compile the module again."""
    for compiled in (module.parent / "__pycache__").glob(module.stem + ".*"):
        compiled.unlink()


def read_answers(work):
    path = work / "answers.jsonl"
    return {answer["key"]: answer for answer in map(json.loads, path.read_text().splitlines())} if path.exists() else {}


def shown(mutant):
    change = " → ".join(" ".join(mutant[side].split())[:70] for side in ("old", "new"))
    return f"{mutant['key'][:6]} {Path(mutant['path']).relative_to(PACKAGE)}:{mutant['line']} | {mutant['kind']} | {change}"


def table(work, mutants):
    answers = read_answers(work)
    met = [(mutant, answers[mutant["key"]]) for mutant in mutants if mutant["key"] in answers]
    for mutant, answer in sorted(met, key=lambda pair: (bool(pair[1]["killed_by"]), pair[0]["path"], pair[0]["line"])):
        print("|", shown(mutant), "|", answer["killed_by"] or "lives", "|", answer["seconds"], "|")
    killed = sum(bool(answer["killed_by"]) for _, answer in met)
    print(
        f"{killed} of {len(met)} killed, {killed / max(1, len(met)):.1%}; {sum(answer['seconds'] for _, answer in met) / 60:.0f} min"
    )


def main():
    parser = parser_of(__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("what", choices=["measure", "run", "table"])
    parser.add_argument("--seed", type=int, default=22)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--part", default="0/1", type=lambda text: [int(each) for each in text.split("/")])
    parser.add_argument("--again", action="store_true", help="try those that lived once more")
    chosen_by = parser.parse_args()
    work = chosen_by.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    if chosen_by.what == "measure":
        measure(work, chosen_by.part)
    elif chosen_by.what == "run":
        run(work, chosen_by.part, chosen(chosen_by.count, chosen_by.seed), chosen_by.again)
    else:
        table(work, chosen(chosen_by.count, chosen_by.seed))


if __name__ == "__main__":
    main()

"""A hundred planted hangs: is the rank named that is at fault, and the axis of the mesh? Run by hand; it takes most of an hour:

python -m pytest -s tests/distributed/planted_hangs.py
"""

import json
import os
import re
import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ..command import COMMAND
from .cases import pp

PROGRAM = Path(__file__).with_name("hangs.py")
TIMEOUT = 12.0
LAYOUTS = {
    "ddp 2": {"dp": 2},
    "ddp 4": {"dp": 4},
    "fsdp 2": {"fsdp": 2},
    "fsdp 4": {"fsdp": 4},
    "hsdp 2x2": {"dp": 2, "fsdp": 2},
    "tp 2": {"tp": 2},
    "tp 4": {"tp": 4},
    "pp 2": pp(2, 4, "1F1B"),
    "pp 4": pp(4, 4, "1F1B"),
    "dp x tp": {"dp": 2, "tp": 2},
    "fsdp x tp": {"fsdp": 2, "tp": 2},
    "dp x pp": {"dp": 2, **pp(2, 2, "1F1B")},
    "tp x pp": {"tp": 2, **pp(2, 2, "1F1B")},
}
KINDS = ("stop", "kill", "reader", "endless", "lock", "pipe", "keeps_pythons_lock", "skip_own", "skip", "order")
LINE = re.compile(r"^hang: (perhaps )?(.*)$", re.MULTILINE)


def cases():
    """(layout, fault) of each planted hang: every kind in every layout that has it, in another rank each."""
    for place, (name, layout) in enumerate(LAYOUTS.items()):
        axes = [axis for axis in ("dp", "fsdp", "tp", "pp") if layout.get(axis, 1) > 1]
        ranks = 1
        for axis in axes:
            ranks *= layout[axis]
        for number, kind in enumerate(KINDS):
            if kind in ("skip", "order") and "pp" in axes:  # stages have several micro-batches under way
                continue
            if kind == "keeps_pythons_lock" and place % 3:
                continue
            # Swapped sums over two axes need not wait for each other.
            sums = {"skip": [axes[0], axes[-1]], "order": [axes[-1], axes[-1]]}.get(kind, [])
            yield name, {"kind": kind, "rank": (place + number) % ranks, "step": 4, "axes": sums}


def hang(make, folder, name, fault):
    """(seconds until it was said, certain, text) of one planted hang. make: as `settings_below` gives it."""
    settings = make(folder, "run", LAYOUTS[name], training={"steps": 10**6}, timeout=TIMEOUT)
    folder.mkdir(parents=True)
    (folder / "site.yaml").write_text(json.dumps(settings["site"]))
    processes = settings["run"]["layout"]["gpus_per_node"]
    command = ["launch", "--processes", processes, "--site", folder / "site.yaml", "--timeout", 60]
    command += ["--logs", folder / "logs", "--", PROGRAM, json.dumps(settings), json.dumps(fault)]
    started = time.monotonic()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run([*COMMAND, *map(str, command)], **streams, timeout=600, env=environment)
    (folder / "output").write_text(done.stdout)
    assert done.returncode == 1, done.stdout
    lines = LINE.findall(done.stdout.splitlines()[-1])
    perhaps, text = lines[0] if lines else ("perhaps", "")
    return time.monotonic() - started, not perhaps, text


def judged(fault, text):
    """(whether the right rank is named, whether the axis is)."""
    ranks = {int(rank) for rank in re.findall(r"rank (\d+)", text.partition(" did not join ")[0])}
    over = re.search(r" over (.+?), where", text)
    wanted = fault["axes"][:1] if fault["kind"] == "skip" else fault["axes"] or None
    return ranks == {fault["rank"]}, bool(over) and (wanted is None or over[1] in wanted)


@pytest.mark.timeout(0)
def test_a_hundred_planted_hangs(settings_below, tmp_path):
    planted = list(cases())

    def run(number):
        name, fault = planted[number]
        seconds, certain, text = hang(settings_below, tmp_path / str(number), name, fault)
        rank, axis = judged(fault, text)
        print(f"{name}\t{fault['kind']}\t{fault['rank']}\t{rank}\t{axis}\t{certain}\t{seconds:.0f}\t{text}", flush=True)
        return rank, axis, certain, seconds

    with ThreadPoolExecutor(int(os.environ.get("PLANTED_AT_ONCE", 1))) as pool:
        results = list(pool.map(run, range(len(planted))))
    counts = Counter()
    for rank, axis, certain, _ in results:
        counts.update({"rank": rank, "axis": axis, "both": rank and axis, "certain": certain})
        counts["wrong and certain"] += certain and not rank
    print(len(results), dict(counts), sorted(seconds for *_, seconds in results))
    assert counts["wrong and certain"] == 0
    assert counts["both"] >= 0.95 * len(results)

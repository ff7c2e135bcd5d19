"""`parascale check gpu`: ten minutes on this machine's GPUs, what tells most first, and a page to send back.

Needs torch, NumPy, PyYAML and pydantic, a plain clone and no network. The launcher of all runs starts each part's processes: one that
fails, hangs or runs out of memory ends alone. Without a GPU the same is done at tiny sizes, which tries the check itself.
"""

import argparse
import json
import os
import pickle
import platform
import shutil
import socket
import subprocess
import sys
import time
from html import escape
from pathlib import Path

from parascale.check.processes import GRACE_SECONDS, TIMEOUT_SECONDS, Here, stand_in
from parascale.files import write_json, write_text

FACTS = """
import json, torch

gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
print(json.dumps([torch.__version__, torch.version.cuda, [[gpu.name, gpu.total_memory] for gpu in gpus]]))
"""
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>parascale check gpu</title></head><body><pre>{}</pre></body></html>
"""


def main(words):
    """The verb. Returns the exit code: 1 where a part failed."""
    missing = stand_in()
    from parascale.check.parts import PARTS  # which needs them

    parser = argparse.ArgumentParser(prog="parascale check gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("check-gpu"), help="folder of check.json and check.html")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be given several times")
    parser.add_argument("--seconds", type=float, default=600.0, help="end after so long (default: %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, as on a machine without GPUs")
    for hidden in ("--task", "--rank"):  # of a process of a part
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options, deadline = parser.parse_args(words), time.monotonic()
    if options.task:
        return _work(Path(options.task), options.rank)
    deadline += options.seconds
    # In a process of its own, so that this one holds nothing of a GPU.
    told = subprocess.run([sys.executable, "-c", FACTS], stdout=subprocess.PIPE, text=True, check=True).stdout
    torch, cuda, gpus = json.loads(told)
    here = Here(options.output.absolute(), gpus, options.tiny or not gpus, missing)
    machine = {"host": socket.gethostname(), "date": time.strftime("%FT%TZ", time.gmtime()), "tiny": here.tiny}
    machine |= {"gpus": [name for name, _ in gpus], "torch": torch, "cuda": cuda}
    machine |= {"processor": platform.machine(), "python": platform.python_version(), "not installed": missing}
    parts, said = {}, [f"{name}: {value}" for name, value in machine.items()]
    for name in options.part or PARTS:
        title, seconds, rows = PARTS[name]
        here.begin(name, deadline if here.tiny else min(deadline, time.monotonic() + seconds))
        said.append(f"\n{name}: {title}")
        print(said[-1], flush=True)
        parts[name] = []
        for row in _rows(rows, here, deadline):
            value = f"{row['value']:.4g}" if isinstance(row["value"], float) else row["value"]
            said.append(f"{row['verdict']:13}{row['what']}: {value} {row['limit']}")
            print(said[-1], flush=True)
            parts[name].append(row)
            write_json(here.output / "check.json", {"machine": machine, "parts": parts})
            write_text(here.output / "check.html", PAGE.format(escape("\n".join(said))))
    shutil.rmtree(here.root, ignore_errors=True)
    print(f"\nplease send back: {here.output / 'check.json'} and {here.output / 'check.html'}")
    return int(any(row["verdict"] == "failed" for rows in parts.values() for row in rows))


def _work(folder, rank):
    """What a process of a part does: the launcher, or one that it started."""
    function, ranks, site, tiny, values = pickle.loads((folder / "task.pickle").read_bytes())
    if not rank:
        from parascale.launch.node import Launch, Place, run_node

        command, cores = ("-m", "parascale", *sys.argv[1:], "--rank", "own"), len(os.sched_getaffinity(0))
        return run_node(Launch(command, 1, ranks, site, TIMEOUT_SECONDS, GRACE_SECONDS, str(folder), cores), Place())
    from torch.distributed.elastic.multiprocessing.errors import record

    from parascale.check import ranks as functions

    if tiny:
        functions.make_tiny()
    found = record(getattr(functions, function))(**values)  # leaves an exception where the launcher finds it
    write_json(folder / f"found{os.environ['RANK']}.json", found)
    return 0


def _rows(rows, here, deadline):
    """Those of a part, and what ended it before its end."""
    try:
        yield from rows(here)
    except subprocess.TimeoutExpired:
        verdict = "not reached" if here.until == deadline else "failed"
        yield {"what": "the rest", "value": "the time was over", "limit": "", "verdict": verdict}
    except Exception as error:  # costs no other part
        yield {"what": "the rest", "value": f"{type(error).__name__}: {error}", "limit": "", "verdict": "failed"}

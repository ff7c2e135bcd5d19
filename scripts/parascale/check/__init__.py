"""`parascale check gpu`: check this machine's GPUs in ten minutes and write a file to send back.

Needs torch, NumPy, PyYAML and pydantic and a clone of the repository, but no network. The normal launcher starts the processes of each part, so
that a part that fails, hangs or runs out of memory does not end the others. Without a GPU, tiny sizes test the check itself.
"""

import argparse
import itertools
import json
import os
import pickle
import platform
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from parascale.check.processes import GRACE_SECONDS, TIMEOUT_SECONDS, Here, power_limit, stand_in
from parascale.files import write_json

FACTS = """
import json, torch
gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
print(json.dumps([torch.__version__, torch.version.cuda, [[gpu.name, gpu.total_memory, str(gpu.uuid)] for gpu in gpus]]))
"""


def main(words):
    """Run the command. Returns the exit code: 1 if a part failed."""
    missing = stand_in()
    from parascale.check.parts import PARTS  # imports the packages that `stand_in` may replace

    parser = argparse.ArgumentParser(prog="parascale check gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("check-gpu"), help="folder of check.json and of logs")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be given several times")
    parser.add_argument("--seconds", type=float, default=600.0, help="time limit (default: %(default)s)")
    parser.add_argument("--task", type=Path, help=argparse.SUPPRESS)  # passed to the processes of a part
    parser.add_argument("--started", action="store_true", help=argparse.SUPPRESS)
    options, started = parser.parse_args(words), time.monotonic()
    if options.task:
        return _work(options.task, options.started)
    # In a separate process, so that this one uses no GPU memory.
    output = subprocess.run([sys.executable, "-c", FACTS], stdout=subprocess.PIPE, text=True, check=True).stdout
    torch, cuda, gpus = json.loads(output)
    gpus = [(name, size, power_limit(uuid)) for name, size, uuid in gpus]
    here = Here(options.output.absolute(), gpus, missing, started + options.seconds)
    machine = {"host": socket.gethostname(), "date": time.strftime("%FT%TZ", time.gmtime()), "tiny": not gpus}
    machine |= {"gpus": [name for name, *_ in gpus], "watts": [watts for *_, watts in gpus], "not installed": missing}
    machine |= {"torch": torch, "cuda": cuda, "processor": platform.machine(), "python": platform.python_version()}
    print("\n".join(f"{name}: {value}" for name, value in machine.items()))
    shutil.rmtree(here.root, ignore_errors=True)
    parts, seconds = {name: [] for name in options.part or PARTS}, {}
    for name, rows in parts.items():
        begun, seconds[name] = time.monotonic(), 0.0
        print(f"\n{name}: {PARTS[name].__doc__}", flush=True)
        for row in itertools.chain([None], _rows(PARTS[name], here)):
            if row:
                value = f"{row['value']:.4g}" if isinstance(row["value"], float) else row["value"]
                print(f"{row['verdict']:13}{row['what']}: {value} {row['limit']}", flush=True)
                rows.append(row)
            seconds[name] = round(time.monotonic() - begun, 1)
            write_json(here.output / "check.json", {"machine": machine, "seconds": seconds, "parts": parts})
        print(f"{seconds[name]:.0f} s", flush=True)
    shutil.rmtree(here.root, ignore_errors=True)
    print(f"\nplease send back: {here.output / 'check.json'}")
    return int(any(row["verdict"] == "failed" for rows in parts.values() for row in rows))


def _work(folder, started):
    """Entry point for processes of `launched`: the launcher, or a rank that it `started`. Returns the exit code."""
    function, ranks, site, values, tiny = pickle.loads((folder / "task.pickle").read_bytes())
    if not started:
        from parascale.launch.node import Launch, Place, run_node

        command, cores = ("-m", "parascale", *sys.argv[1:], "--started"), len(os.sched_getaffinity(0))
        return run_node(Launch(command, 1, ranks, site, TIMEOUT_SECONDS, GRACE_SECONDS, str(folder), cores), Place())
    if site.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # otherwise an optimizer step initializes the first GPU
    from parascale.check import ranks as functions

    if tiny:
        functions.make_tiny()
    write_json(folder / f"found{os.environ['RANK']}.json", getattr(functions, function)(**values))
    return 0


def _rows(part, here):
    """Yield the rows of a part, and a last one if an error or the time limit ended it early."""
    try:
        yield from part(here)
    except subprocess.TimeoutExpired:
        yield {"what": "the rest", "value": "out of time", "limit": "", "verdict": "not reached"}
    except Exception as error:  # the other parts still run
        yield {"what": "the rest", "value": f"{type(error).__name__}: {error}", "limit": "", "verdict": "failed"}

"""`parascale check gpu`: tries this machine's GPUs part by part, in about ten minutes by estimate, and writes a page to send back.

Needs torch, NumPy, PyYAML and pydantic, a plain clone and no network. Each part has processes of its own: one that fails, hangs or
runs out of memory ends alone. Without a GPU the same is done at tiny sizes, which shows that the check itself works.
"""

import argparse
import os
import platform
import socket
import subprocess
import sys
import time
from pathlib import Path

from parascale.check.page import page
from parascale.files import read_json, write_json, write_text
from parascale.launch.environment import of_allocator

PART_SECONDS = 300  # of a part, and of a layout among `layouts`
TICK_SECONDS = 0.1
PROCESSES = {"layouts": 4}  # without a GPU; of other parts 2
# Part → (what it shows, whether it takes all GPUs).
PARTS = {
    "devices": ("each GPU computes what the CPU does", False),
    "collectives": ("NCCL's collectives give right sums; their rates", True),
    "precision": ("errors of matrix products, and of a step, in each precision", False),
    "compile": ("a compiled step against the same step without compiling", False),
    "resume": ("a step after a resumed checkpoint, saved in step and in the background", True),
    "batch-norm": ("batch norm over all ranks against one process in fp64", True),
    "sampler": ("what NVML tells of a busy GPU", False),
    "layouts": (
        "every layout that fits, hybrids too: the same training as its baseline, and the memory of the plan",
        True,
    ),
    "bare": ("our step against a bare PyTorch loop of the same model", False),
    "tests": ("the tests that are marked `gpu`", False),
}


def main(words):
    """The verb. Returns the exit code: 1 where a part failed."""
    options = _options(words)
    if options.worker:
        from parascale.check.worker import work

        return work(options)
    import torch

    devices = torch.cuda.device_count()
    options.tiny = options.tiny or not devices
    chosen = options.part or list(PARTS)
    found = {"machine": _machine(torch, devices), "tiny": options.tiny, "parts": {}}
    options.output.mkdir(parents=True, exist_ok=True)
    for name in chosen:
        title, everywhere = PARTS[name]
        started = time.monotonic()
        ranks = (devices or PROCESSES.get(name, 2)) if everywhere else 1
        outcome = _layouts(options, ranks) if name == "layouts" else _run(name, ranks, options)
        outcome |= {"title": title, "ranks": ranks, "seconds": time.monotonic() - started}
        found["parts"][name] = outcome
        print(f"{name:12}{outcome['status']:9}{outcome['seconds']:6.0f} s  {outcome.get('message', '')}", flush=True)
        write_json(options.output / "check.json", found)
        write_text(options.output / "check.html", page(found))
    print(f"please send back: {options.output / 'check.json'} and {options.output / 'check.html'}")
    return int(any(outcome["status"] == "failed" for outcome in found["parts"].values()))


def _options(words):
    parser = argparse.ArgumentParser(prog="parascale check gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("check-gpu"), help="folder of check.json and check.html")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be given several times")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, as on a machine without GPUs")
    parser.add_argument("--worker", help=argparse.SUPPRESS)  # a process of a part
    parser.add_argument("--names", nargs="*", default=[], help=argparse.SUPPRESS)
    return parser.parse_args(words)


def _machine(torch, devices):
    return {
        "host": socket.gethostname(),
        "date": time.strftime("%FT%TZ", time.gmtime()),
        "processor": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "gpus": [torch.cuda.get_device_name(number) for number in range(devices)],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if devices else None,
    }


def _run(name, ranks, options, names=()):
    """The outcome of a part that `ranks` processes of their own compute: of the first that failed, else of rank 0."""
    folder = options.output / name
    folder.mkdir(exist_ok=True)
    files = [folder / f"rank{rank}.json" for rank in range(ranks)]
    for file in files:
        file.unlink(missing_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    tiny = ["--tiny"] if options.tiny else []
    command = [sys.executable, "-m", "parascale", "check", "gpu", "--worker", name, "--output", folder, *tiny]
    place = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = []
    for rank in range(ranks):
        own = place | {"RANK": rank, "LOCAL_RANK": rank} | of_allocator(os.environ)
        environment = os.environ | {key: str(value) for key, value in own.items()}
        with open(folder / f"rank{rank}.log", "wb") as log:
            processes.append(
                subprocess.Popen([*command, "--names", *names], env=environment, stdout=log, stderr=subprocess.STDOUT)
            )
    late = _wait(processes, files)
    outcomes = [read_json(file) for file in files if file.exists()]
    failed = next((outcome for outcome in outcomes if outcome["status"] == "failed"), None)
    if failed:
        return failed
    if late or any(process.returncode for process in processes) or len(outcomes) < ranks:
        codes = ", ".join(str(process.returncode) for process in processes)
        why = f"no end within {PART_SECONDS} s" if late else f"ended with {codes}"
        return {"status": "failed", "message": f"{why}; see {folder}", "rows": outcomes[0]["rows"] if outcomes else []}
    return outcomes[0]


def _wait(processes, files):
    """Until all have ended, or one has failed; whether neither came in time. A file that is rewritten is a sign of life."""
    seen = time.time()
    while any(process.poll() is None for process in processes):
        seen = max([seen, *(file.stat().st_mtime for file in files if file.exists())])
        if any(process.poll() for process in processes) or time.time() > seen + PART_SECONDS:
            break
        time.sleep(TICK_SECONDS)
    late = not any(process.poll() is not None for process in processes)
    for process in processes:
        process.kill()
        process.wait()
    return late


def _layouts(options, ranks):
    """Rows of some steps each, several in a process: after one that fails, new processes do the rest."""
    from parascale.check.layouts import layouts, verdicts

    done, failed = [], 0
    for processes, names in layouts(options.tiny, ranks).items():
        while names:
            outcome = _run("layouts", processes, options, names)
            done += outcome["rows"]
            names = names[len(outcome["rows"]) :]
            if outcome["status"] == "failed" and names:
                done.append({"run": names[0], "failed": outcome["message"]})
                failed, names = failed + 1, names[1:]
    wrong = verdicts(done, options.tiny, ranks)
    message = "; ".join([f"{len(done)} layouts", *wrong])
    return {"status": "failed" if failed or wrong else "passed", "message": message, "rows": done}

"""Runs a function on several gloo processes, forked from a server that has torch and pytest loaded already."""

import gc
import json
import os
import sys
import time
import traceback
from pathlib import Path

from tests.forks import FORKS
from tests.ports import free_port


def run_on_ranks(function, ranks, folder, *arguments, seconds=240):
    """Call `function(*arguments)` on `ranks` processes; returns what each returned (JSON values), by rank.

    Raises AssertionError with the first rank's traceback where one fails, after ending the others.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    processes = [
        FORKS.Process(target=_worker, args=(function, rank, ranks, port, folder, arguments), daemon=True)
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    deadline = time.monotonic() + seconds
    try:
        while any(process.is_alive() for process in processes):
            if any(process.exitcode not in (None, 0) for process in processes):
                time.sleep(1.0)  # the first to fail writes why
                break
            assert time.monotonic() < deadline, f"no end within {seconds} s"
            time.sleep(0.01)
    finally:
        for process in processes:
            process.kill()
            process.join()
    errors = sorted(folder.glob("error-*.txt"), key=lambda path: path.stat().st_mtime)
    assert not errors, errors[0].read_text()
    assert all(process.exitcode == 0 for process in processes), [process.exitcode for process in processes]
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(ranks)]


def _worker(function, rank, ranks, port, folder, arguments):
    os.environ |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
    os.environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(ranks))
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    import torch

    gc.freeze()  # what the server had loaded: the loop's collection would walk through it, 0.3 s each time
    torch.set_num_threads(1)
    sys.stdout = sys.stderr = open(folder / f"log-{rank}.txt", "w", buffering=1)  # noqa: SIM115 (until the process ends)
    try:
        result = function(*arguments)
        (folder / f"result-{rank}.json").write_text(json.dumps(result))
    except BaseException:
        (folder / f"error-{rank}.txt").write_text(f"rank {rank}:\n{traceback.format_exc()}")
        os._exit(1)
    os._exit(0)

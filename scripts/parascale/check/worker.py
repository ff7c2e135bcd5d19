"""One process of a part: computes it and writes down how it went."""

import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch

from parascale.check.parts import FUNCTIONS, Skip
from parascale.files import write_json
from parascale.parallel import start_processes, stop_processes

TIMEOUT_SECONDS = 120.0  # of a collective


@dataclass(frozen=True)
class Place:
    """Where a part computes, and what it is asked for. report: function that writes down the rows that there are so far."""

    device: torch.device
    rank: int
    ranks: int
    tiny: bool
    folder: Path
    names: list
    report: object

    def synchronize(self):
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def work(options):
    """Compute this process's share of a part. Returns the exit code; the file says more."""
    rank, ranks = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    file = options.output / f"rank{rank}.json"

    def report(status, rows, message=""):
        write_json(file, {"status": status, "message": message, "rows": rows})

    if options.tiny:
        torch.compiler.set_stance("force_eager")  # a compiler takes longer than all the rest
        torch.set_num_threads(1)
    rows = []
    try:
        device = start_processes("cuda" if torch.cuda.is_available() else "cpu", TIMEOUT_SECONDS)

        def so_far(row):
            rows.append(row)
            report("passed", rows)

        place = Place(device, rank, ranks, options.tiny, options.output, options.names, so_far)
        message = FUNCTIONS[options.worker](place)
        report("passed", rows, message or "")
        stop_processes()
    except Skip as reason:
        report("skipped", rows, str(reason))
    except Exception as error:
        traceback.print_exc()
        report("failed", rows, f"rank {rank}: {type(error).__name__}: {str(error).strip()[:1000]}")
        sys.stderr.flush()
        os._exit(1)  # peers that wait must not keep it
    return 0

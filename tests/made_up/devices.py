"""Made-up samples of devices, in the sampler's format."""

import csv
import io
import math
import random

from parascale.files import write_text
from parascale.telemetry import COLUMNS

GIB = 1 << 30
START = 1_767_323_045.0  # 2026-01-02T03:04:05Z, when the made-up attempts start


def gpu_lines(
    gpus=4, ranks=None, use=0.9, seconds=600.0, interval=10.0, start=START, nodes=1, memory=20 * GIB, throttled=None
):
    """Lines for a job's GPUs and nodes. use: mean use of all GPUs, or a list with one value each. ranks: used GPUs per node."""
    ranks = gpus if ranks is None else ranks
    uses = use if isinstance(use, list) else [use if index < ranks else 0.004 for index in range(gpus)]
    noise, lines = random.Random(1), []
    for number in range(math.ceil(seconds / interval) + 1):
        for node in range(nodes):
            common = {"time": f"{start + number * interval + 0.01 * node:.3f}", "node": node, "host": f"node{node}"}
            for index in range(gpus):
                busy = min(1.0, max(0.0, uses[index] * (1 + 0.05 * noise.gauss(0, 1))))
                used = index < ranks
                gpu = {"kind": "gpu", "index": index, "rank": node * ranks + index if used else ""}
                gpu |= {"utilisation": f"{busy:.4f}", "memory_bytes": memory if used else GIB // 2}
                gpu |= {"memory_total_bytes": 40 * GIB, "power_watts": f"{50 + 300 * busy:.1f}"}
                gpu |= {"energy_joules": f"{(50 + 300 * uses[index]) * number * interval:.1f}"}
                gpu |= {"temperature_celsius": 40 + round(30 * busy), "clock_mhz": 1335, "memory_clock_mhz": 1215}
                gpu |= {"throttled": (throttled or {}).get(index, "") if number % 2 else ""}
                lines.append(common | gpu)
            host = {"kind": "host", "index": 0, "utilisation": 0.2, "cores_busy": 25.6, "memory_bytes": 64 * GIB}
            host |= {"memory_total_bytes": 512 * GIB, "read_bytes": 1000 * number * (number + node)}
            host |= {"written_bytes": 50_000 * number, "monitor_seconds": f"{0.001 * number:.4f}"}
            lines.append(common | host)
    return lines


def write_devices(folder, lines, name="device.csv"):
    """Write a file of samples into a run's folder."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    write_text(folder / name, text.getvalue())

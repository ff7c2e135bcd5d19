"""Conversion of a checkpoint of more than 4 GB beside a plain copy and torch's own converter.

Every row is a process of its own, flushed to disk; memory is the peak above that of the same process before its work. Copies
and conversions take turns, so that another load on the machine disturbs them alike, and the ratio is the median of the turns'.

Example: python tests/benchmarks/checkpoints.py --work /tmp/checkpoints
"""

import argparse
import multiprocessing
import os
import shutil
import socket
import statistics
import sys
import time
from functools import partial
from pathlib import Path

from comparison import answer, machine, parser_of, tell

DIM, HIDDEN, LAYERS, VOCABULARY = 2048, 8192, 20, 50_257  # 1.11 × 10⁹ parameters, 4.4 GB in fp32
RANKS = 4


def shapes():
    """Name → shape of a language model's weights."""
    found = {"model.embedding.tokens.weight": (VOCABULARY, DIM)}
    for layer in range(LAYERS):
        block = f"model.blocks.{layer}"
        found |= {f"{block}.attention.{name}.weight": (DIM, DIM) for name in "qkvo"}
        found[f"{block}.feed_forward.up.weight"] = (HIDDEN, DIM)
        found[f"{block}.feed_forward.down.weight"] = (DIM, HIDDEN)
        found[f"{block}.attention_norm.weight"] = (DIM,)
    return found


def make_checkpoint(folder):
    """A checkpoint as FSDP over RANKS ranks saves it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=_save_shards, args=(rank, port, folder)) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    if any(rank.exitcode for rank in ranks):
        raise SystemExit("the checkpoint could not be made")
    from parascale.checkpoint.manifest import describe_files, write_manifest

    names = [path.name for path in folder.iterdir()]
    write_manifest(folder, {"run": "large", "step": 1}, describe_files(folder, names))


def _save_shards(rank, port, folder):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    noise = torch.randn(1 << 20, generator=torch.Generator().manual_seed(rank))
    state = {}
    for name, shape in shapes().items():
        size = -(-shape[0] // RANKS)
        rows = max(0, min(size, shape[0] - rank * size))
        local = torch.empty(rows, *shape[1:])
        flat = local.reshape(-1)
        for start in range(0, flat.numel(), noise.numel()):
            part = flat[start : start + noise.numel()]
            part.copy_(noise[: part.numel()])
        stride = torch.empty(shape, device="meta").stride()
        state[name] = DTensor.from_local(
            local, mesh, [Shard(0)], run_check=False, shape=torch.Size(shape), stride=stride
        )
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder))
    dist.destroy_process_group()


def copy(source, target):
    """File to file, as `cp` does."""
    target.mkdir()
    for path in source.iterdir():
        shutil.copyfile(path, target / path.name)


def ours(source, target, form):
    """A conversion by parascale, with its default settings: source and target checked by checksums."""
    from parascale.checkpoint.convert import convert
    from parascale.settings.config import Checkpoints

    convert(source, target, Checkpoints(), [form])


def torch_to_pt(source, target):
    """torch's own converter into one file."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    target.mkdir()
    dcp_to_torch_save(source, target / "model.pt")


def torch_to_sharded(source, target):
    """torch's own converter back."""
    from torch.distributed.checkpoint.format_utils import torch_save_to_dcp

    torch_save_to_dcp(source / "model.pt", target)


WORKS = {
    "copy": copy,
    "safetensors": partial(ours, form="safetensors"),
    "pt": partial(ours, form="pt"),
    "torch pt": torch_to_pt,
    "sharded": partial(ours, form="sharded"),
    "torch sharded": torch_to_sharded,
}


def measured(name, source, target):
    """{seconds, bytes, memory} of one work in this process."""
    import torch

    import parascale.checkpoint.convert  # noqa: F401 (loaded before, so that memory counts the work alone)
    from parascale.checkpoint.convert import peak_growth
    from parascale.files import sync_tree, tree_bytes

    torch.set_num_threads(1)
    started = time.perf_counter()
    with peak_growth() as memory:
        WORKS[name](source, target)
        sync_tree(target)
    return {"seconds": time.perf_counter() - started, "bytes": tree_bytes(target), "memory": memory["bytes"]}


def settle(folder):
    """The same start for every work: the disk idle, and what will be read in the page cache."""
    os.sync()
    for path in folder.iterdir():
        with open(path, "rb") as handle:
            while handle.read(1 << 24):
                pass


def in_a_process(name, source, target, keep=False):
    """`measured` in a fresh process; the target is removed unless kept."""
    shutil.rmtree(target, ignore_errors=True)
    settle(source)
    found = answer(sys.executable, __file__, "--one", name, source, target)
    if not keep:
        shutil.rmtree(target)
    rate = found["bytes"] / found["seconds"] / 1e9
    print(f"{name:14} {found['seconds']:7.1f} s {rate:6.3f} GB/s, peak +{found['memory'] / 2**20:,.0f} MiB", flush=True)
    return found | {"rate": rate}


def main():
    """Convert and copy in turns, and print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--work", type=Path, help="a folder with 20 GB of room, on the disk that is to be measured")
    parser.add_argument("--turns", type=int, default=3, help="how often each is measured (default: %(default)s)")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        name, source, target = arguments.one
        tell(measured(name, Path(source), Path(target)))
        return
    source, found = arguments.work / "sharded", {}
    if not (source / "checkpoint.json").is_file():
        shutil.rmtree(source, ignore_errors=True)
        make_checkpoint(source)
    for _ in range(arguments.turns):
        for name in WORKS:
            # The way back begins from what `pt` of the same turn made.
            begin = arguments.work / "to-pt" if name.endswith("sharded") else source
            target = arguments.work / f"to-{name.replace(' ', '-')}"
            found.setdefault(name, []).append(in_a_process(name, begin, target, keep=name == "pt"))
        shutil.rmtree(arguments.work / "to-pt")
    print("\n| work | seconds | GB/s | rate over copying | peak memory, MiB |\n| --- | ---: | ---: | ---: | ---: |")
    for name, runs in found.items():
        ratio = statistics.median(run["rate"] / base["rate"] for run, base in zip(runs, found["copy"], strict=True))
        seconds, rate = (statistics.median(run[key] for run in runs) for key in ("seconds", "rate"))
        memory = max(run["memory"] for run in runs) / 2**20
        print(f"| {name} | {seconds:.1f} | {rate:.2f} | {ratio:.2f} | {memory:,.0f} |")
    print(f"\n{machine()}")


if __name__ == "__main__":
    main()

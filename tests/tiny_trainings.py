"""Tiny runs of every family in every kind of layout: write their project, and train them with the version of the package that is imported.

PYTHONPATH=<scripts of a version> python tests/tiny_trainings.py <folder of the project> <root of the results>
"""

import hashlib
import json
import math
import multiprocessing
import os
import random
import socket
import sys
import time

# Run → its row in the run table: workload, and columns that differ from the default.
TP = {"tp": 2}
LLAMA = {"workload": "llama"}
CASES = {
    "lm": {},
    "lm-bf16": {"precision": "bf16"},
    "lm-fp16": {"precision": "fp16"},
    "lm-fp64": {"precision": "fp64"},
    "lm-later": {"workload": "longer", "init_from": "lm"},
    "lm-recompute": {"activation_checkpointing": "selective"},
    "lm-lightning": {"engine": "lightning", "dp": 2},
    "lm-ddp": {"dp": 2},
    "lm-ddp-bf16": {"dp": 2, "precision": "bf16"},
    "lm-ddp-sums": {"dp": 2, "precision": "bf16", "reduce_precision": "bf16"},
    "lm-ddp-later": {"workload": "longer", "init_from": "lm", "dp": 2},
    "lm-weak": {"dp": 2, "scaling": "weak"},
    "lm-local-sgd": {"dp": 2, "average_every": 2},
    "lm-gossip": {"dp": 4, "average_every": 1, "averaging": "neighbour"},
    "lm-server": {"dp": 2, "average_every": 1, "averaging": "server"},
    "lm-ddp-fp16": {"dp": 2, "compression": "fp16"},
    "lm-powersgd": {"dp": 2, "compression": "powersgd"},
    "lm-fsdp": {"fsdp": 2},
    "lm-fsdp-bf16": {"fsdp": 2, "precision": "bf16", "reshard_after_forward": "false"},
    "lm-fsdp-sums": {"fsdp": 2, "reduce_precision": "bf16"},
    "lm-fsdp-float8": {"fsdp": 2, "precision": "float8"},
    "lm-hsdp": {"dp": 2, "fsdp": 2, "activation_checkpointing": "true"},
    "lm-tp": {**TP},
    "lm-tp-later": {"workload": "longer", "init_from": "lm-ddp", **TP},
    "lm-pp": {"pp": 2, "micro_batches": 4},
    "lm-pp-later": {"workload": "longer", "init_from": "lm-hsdp", "pp": 2, "micro_batches": 4},
    "lm-gpipe": {"pp": 2, "micro_batches": 3, "schedule": "GPipe"},
    "lm-naive": {"pp": 2},
    "lm-interleaved": {"pp": 2, "micro_batches": 4, "schedule": "Interleaved1F1B"},
    "lm-looped": {"pp": 2, "micro_batches": 4, "schedule": "LoopedBFS"},
    "lm-zero-bubble": {"pp": 2, "micro_batches": 4, "schedule": "InterleavedZeroBubble"},
    "lm-v": {"pp": 2, "micro_batches": 4, "schedule": "ZBVZeroBubble"},
    "lm-dp-pp": {"dp": 2, "pp": 2, "micro_batches": 2},
    "lm-fsdp-tp": {"fsdp": 2, **TP},
    "lm-3d": {"dp": 2, **TP, "pp": 2, "micro_batches": 2},
    "lm-cp": {"cp": 2},
    "lm-separate-cp": {"workload": "separate", "cp": 2},
    "lm-fsdp-3d-bf16": {"fsdp": 2, **TP, "pp": 2, "micro_batches": 2, "precision": "bf16"},
    "llama": {**LLAMA},
    "llama-tp": {**LLAMA, **TP, "activation_checkpointing": "selective"},
    "llama-fsdp": {**LLAMA, "fsdp": 2},
    "llama-fsdp-cp": {**LLAMA, "fsdp": 2, "cp": 2},
    "folder-fsdp": {"workload": "folder", "fsdp": 2},
    "folder-cp": {"workload": "folder", "cp": 2},
    "published-tp-whole": {"workload": "published", **TP, "sequence_parallel": "false", "loss_parallel": "false"},
    "published-pp": {"workload": "published", "pp": 2, "micro_batches": 2},
    "summary": {"workload": "summary"},
    "summary-ddp": {"workload": "summary", "dp": 2},
    "summary-fsdp": {"workload": "summary", "fsdp": 2, "activation_checkpointing": "true"},
    "summary-tp": {"workload": "summary", **TP},
    "summary-fsdp-tp-bf16": {"workload": "summary", "fsdp": 2, **TP, "precision": "bf16"},
    "t5": {"workload": "t5"},
    "t5-ddp": {"workload": "t5", "dp": 2},
    "bart-fsdp": {"workload": "bart", "fsdp": 2},
    "images": {"workload": "images"},
    "images-bf16": {"workload": "images", "precision": "bf16"},
    "images-ddp": {"workload": "images", "dp": 2},
    "images-own-norm": {"workload": "images", "dp": 2, "sync_batch_norm": "false"},
    "images-fsdp": {"workload": "images", "fsdp": 2},
    "images-hsdp": {"workload": "images", "dp": 2, "fsdp": 2},
    "images-lightning": {"workload": "images", "engine": "lightning"},
    "group-fsdp": {"workload": "group", "fsdp": 2, "activation_checkpointing": "true"},
    "own-ddp": {"workload": "own", "dp": 2},
}
# Modules that a training imports lazily.
LOADED = ("torch._dynamo", "tensorboard.compat.proto.event_pb2", "tensorboard.summary.writer.record_writer")

MODEL = "dim: 16, heads: 4, layers: 4, hidden: 32"
TRAINING = "global_batch: 12, steps: 4, evaluate_every: 2, checkpoint_minutes: null"
TEXT = "data: {dataset: words, source: {kind: files, location: @/text, files: {train: a.txt, validation: b.txt, test: c.txt}}}\n"
PAIRS = "source: {kind: files, location: @/text, files: {train: a.jsonl, validation: b.jsonl, test: c.jsonl}}"
LM = TEXT + "optim: {lr: 3.0e-3, warmup_steps: 2, clip_norm: 0.5}\n"
IMAGES = f"""task: classification
data: {{dataset: shapes, source: {{kind: builtin, name: shapes}}, format: hdf5, images: {{train: 45, validation: 10, test: 10, size: 32}}}}
optim: {{lr: 6.0e-3, schedule: one_cycle, weight_decay: 0.01}}
training: {{image_size: 32, label_smoothing: 0.1, {TRAINING}}}
"""
WORKLOADS = {
    "lm": f"{LM}model: {{{MODEL}, dropout: 0.1}}\ntraining: {{window: 8, accumulate: 1, {TRAINING}}}\n",
    "longer": f"{LM}model: {{{MODEL}, dropout: 0.1}}\ntraining: {{window: 8, {TRAINING.replace('steps: 4', 'steps: 6')}}}\n",
    "separate": f"{LM}model: {{{MODEL}}}\ntraining: {{window: 8, documents: separate, {TRAINING}}}\n",
    "llama": f"{LM}model: {{{MODEL}, norm: rms, position: rotary, activation: swiglu, bias: false, kv_heads: 2, tied: true}}\n"
    f"training: {{window: 8, accumulate: 2, {TRAINING.replace('12', '13')}}}\n",
    "folder": f'{LM}model: {{kind: transformers, folder: "@/folder"}}\ntraining: {{window: 8, {TRAINING}}}\n',
    "published": f"{TEXT}optim: {{name: sgd, lr: 0.1}}\n"
    f"model: {{{MODEL}, pre_norm: false, position: sinusoidal, activation: relu}}\ntraining: {{window: 8, {TRAINING}}}\n",
    "summary": f"task: summarisation\ndata: {{dataset: pairs, {PAIRS}}}\n"
    f"model: {{kind: encoder_decoder, {MODEL}, dropout: 0.1}}\ntraining: {{window: 12, summary_window: 8, {TRAINING}}}\n",
    **{
        name: f'task: summarisation\ndata: {{dataset: {name}, {PAIRS}, text: {{tokenizer: pretrained, pretrained: "@/{name}"}}}}\n'
        f"model: {{kind: pretrained}}\ntraining: {{window: 40, summary_window: 24, {TRAINING}}}\n"
        for name in ("t5", "bart")
    },
    "images": f"{IMAGES}model: {{kind: xresnet, dim: 8, depths: [1, 1], norm: batch}}\n",
    "group": f"{IMAGES}model: {{kind: xresnet, dim: 8, depths: [1, 1], norm: group}}\n",
    "own": f'{LM}model: {{kind: "@/own.py:Own", dim: 8, dropout: 0.2}}\ntraining: {{window: 8, {TRAINING}}}\n',
}
OWN = """
from torch import nn


class Own(nn.Sequential):
    def __init__(self, settings, vocabulary, window):
        width = settings.dim
        super().__init__(nn.Embedding(vocabulary, width), nn.Dropout(settings.dropout), nn.Linear(width, vocabulary))
"""
PREPARATION = [("download", each) for each in ("words", "pairs", "t5", "bart", "shapes")]
PREPARATION += [("prepare", each) for each in ("words", "pairs", "t5", "bart")]
PREPARATION += [("index", "shapes"), ("convert", "shapes", "--format", "hdf5")]


def write_project(folder):
    """A project with all cases and their data in `folder`."""
    from tests.unit.folder_models import make_folder
    from tests.unit.pretrained_folders import MAKERS

    words, config = random.Random(0), folder / "config"
    for place in (folder / "text", config / "sites", config / "workloads"):
        place.mkdir(parents=True)
    (folder / "Snakefile").touch()  # marks the project's folder for any version of the package
    for name, lines in (("a", 60), ("b", 12), ("c", 12)):
        texts = [[f"w{words.randrange(50)}" for _ in range(words.randrange(4, 14))] for _ in range(lines)]
        (folder / f"text/{name}.txt").write_text("".join(" ".join(line) + "\n" for line in texts))
        rows = [{"document": " ".join(line), "summary": " ".join(line[::2])} for line in texts]
        (folder / f"text/{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, make in MAKERS.items():
        make(folder / name)
    make_folder(folder / "folder", "Llama")
    (folder / "own.py").write_text(OWN)
    for name, text in WORKLOADS.items():
        (config / f"workloads/{name}.yaml").write_text(text.replace("@", str(folder)))
    (config / "sites/here.yaml").write_text("device: cpu\ncores_per_node: 8\nthreads_per_process: 1\n")
    (config / "config.yaml").write_text("site: here\nruns: runs.tsv\n")
    columns = list(dict.fromkeys(column for row in CASES.values() for column in row if column != "workload"))
    rows = [["run", "workload", "gpus_per_node", "deterministic", *columns]]
    for name, row in CASES.items():
        cells = [str(row.get(column, "-")) for column in columns]
        rows.append([name, row.get("workload", "lm"), str(ranks_of(row)), "true", *cells])
    (config / "runs.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))


def ranks_of(row):
    """Number of processes of a case."""
    from parascale.settings.layout import DEGREES

    return math.prod(row.get(degree, 1) for degree in DEGREES)


def train_all(folder, root):
    """Train all cases with the code that this process imports; results go below `root`."""
    server = multiprocessing.get_context("forkserver")  # with torch preloaded, a rank starts in 0.1 s
    server.set_forkserver_preload([*LOADED, "parascale.commands.train", "parascale.train.lightning"])
    for name, row in CASES.items():
        started, port = time.monotonic(), _free_port()
        rank = [
            server.Process(target=_rank, args=(folder, root, name, each, ranks_of(row), port))
            for each in range(ranks_of(row))
        ]
        for process in rank:
            process.start()
        for process in rank:
            process.join()
        done = "done" if not any(process.exitcode for process in rank) else "FAILED"
        print(f"  {name}: {done}, {time.monotonic() - started:.1f} s", flush=True)


def _rank(folder, root, name, rank, ranks, port):
    """Run one process of `parascale train`, with its output in a file."""
    os.chdir(folder)
    log = os.open(f"{root}/{name}-{rank}.log", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    local = {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks, "GLOO_SOCKET_IFNAME": "lo"}
    local |= {"RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {key: str(value) for key, value in local.items()} if ranks > 1 else {}
    import torch

    from parascale.cli import main

    torch.set_num_threads(1)
    sys.argv = ["parascale", "train", "--run", name, "--root", str(root)]
    main()


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def numbers_of(root, name):
    """A trained case's numbers: loss, norm and learning rate of each step, evaluation losses, a digest of each saved tensor."""
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    folder = root / "results/runs" / name
    if not folder.is_dir():
        return None
    lines = (folder / "steps.jsonl").read_text().splitlines()
    found = {
        "steps": [
            [(key, line[key]) for key in line if not key.endswith(("seconds", "bytes"))]
            for line in map(json.loads, lines)
        ]
    }
    summary = json.loads((folder / "summary.json").read_text())
    found["summary"] = {key: summary.get(key) for key in ("train_loss", "validation_loss", "test_loss")}
    for kind in ("checkpoint", "best"):
        dcp_to_torch_save(folder / kind, root / "state.pt")
        for tensor, value in _tensors(torch.load(root / "state.pt", weights_only=False)):
            content = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            found[f"{kind} {tensor}"] = (str(value.dtype), list(value.shape), hashlib.sha256(content).hexdigest())
    return found


def _tensors(state, name=""):
    """(dotted name, tensor) of all tensors in nested mappings."""
    import torch

    if isinstance(state, dict):
        for key, value in sorted(state.items()):
            yield from _tensors(value, f"{name}.{key}")
    elif isinstance(state, torch.Tensor):
        yield name, state


if __name__ == "__main__":
    train_all(*sys.argv[1:])

"""What the training loop costs beside a bare PyTorch loop: same model, same batches, same optimizer, one process.

Both loops take turns of a few steps, so that another load on the machine disturbs them alike; a turn's ratio compares
neighbours, and the median over turns counts. The loop under test does all it does in a run (data, counting targets, gradient
norm, phases, record), the bare one what every tutorial does (data, forward, loss, backward, clip, update). The sampler of
devices is off: a thread of the process, it would slow both loops alike.

The variables of the example are those that the launcher sets on CPUs: without the two of malloc, page faults of whichever loop's
memory happens to lie worse are measured. `gpt2` is for a GPU: GPT-2's smallest size in bf16, compiled where there is one. `parascale check
gpu` runs it.

Example: OMP_NUM_THREADS=1 MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184 python tests/benchmarks/loop_overhead.py
"""

import dataclasses
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from comparison import machine, parser_of

from parascale.data.sampler import Sampler
from parascale.data.text import Tokens, Windows
from parascale.families.build import build_model
from parascale.files import sha256, write_json
from parascale.settings import Layout, Model, Optim, Run, Site, Text, Workload, load_workload, make
from parascale.settings.workload import LanguageTraining
from parascale.train import loop
from parascale.train.job import Job
from parascale.train.optim import make_optimizers

SIZES = {  # model, window, batch, precision
    "small": (make(Model, dim=128, heads=4, layers=4, hidden=512), 32, 32, "fp32"),  # lm-small of the default matrix
    "tiny": (make(Model, dim=64, heads=4, layers=2, hidden=256), 32, 8, "fp32"),  # a real run has fewer steps a second
    "gpt2": (load_workload(Path(__file__).parents[2] / "config/workloads", "gpt2-124m").model, 1024, 16, "bf16"),
}
VOCABULARY = 4000
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOKENS = 100_000
WARM_UP = 5


def make_tokens(folder, vocabulary):
    """A dataset of random tokens, as `prepare` would leave it."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for split in ("train", "validation", "test"):
        generator.integers(0, vocabulary, TOKENS).astype("<u2").tofile(folder / f"{split}.bin")
    write_json(folder / "vocabulary.json", ["<unk>", "<eos>", *(f"w{number}" for number in range(vocabulary - 2))])
    files = {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in folder.iterdir()}
    counts = {"tokens": TOKENS, "words": TOKENS, "documents": 1, "unknown": 0}
    manifest = {"schema_version": 1, "dtype": "<u2", "vocabulary": vocabulary, "source": "random", "files": files}
    settings = dataclasses.asdict(Text())
    write_json(
        folder / "manifest.json",
        {**manifest, "splits": dict.fromkeys(("train", "validation", "test"), counts), "settings": settings},
    )


def job_of(folder, run):
    """The job of the loop under test."""
    places = {name: folder / name for name in ("data", "work", "output", "results", "store")}
    site = Site("benchmark", cores_per_node=1, device=DEVICE)
    return Job(run=run, site=site, timeout_seconds=3600.0, code_digest="", **places)


def our_steps(session):
    """A function that makes some steps of the loop under test."""
    numbers = iter(range(1, session.steps + 1))

    def steps(count):
        for _ in range(count):
            number = next(numbers)
            session.begin_step(number)
            session.end_step(number, session.stepper.step(session.batches(number), *session.requests()))

    return steps


def bare_steps(folder, run, weights):
    """A function that makes some steps of a bare loop."""
    training, optim = run.workload.training, run.workload.optim
    tokens = Tokens(folder / "data")
    windows = Windows(tokens.split("train"), training.window)
    sampler = Sampler(len(windows), training.global_batch, run.seed)
    model = build_model(run.workload.model, tokens.vocabulary_size, training.window).to(DEVICE)
    model.load_state_dict(weights)
    for block in model.blocks.values() if run.layout.compile else ():
        block.compile()
    (optimizer,) = make_optimizers(SimpleNamespace(parts=[model]), optim)  # no decay of norms and biases either
    numbers = iter(range(training.steps))

    def steps(count):
        for _ in range(count):
            batch = windows.batch(sampler.indices(next(numbers)))
            inputs, labels = (torch.from_numpy(part).to(DEVICE) for part in batch)
            with torch.autocast(DEVICE, torch.bfloat16, enabled=run.precision == "bf16"):
                loss = F.cross_entropy(model(inputs).flatten(0, 1).float(), labels.flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), optim.clip_norm)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            loss.item()

    return steps


def timed(steps, count):
    """(seconds, CPU seconds) of a step."""
    finish = torch.cuda.synchronize if DEVICE == "cuda" else lambda: None
    finish()
    wall, cpu = time.perf_counter(), time.process_time()
    steps(count)
    finish()
    return (time.perf_counter() - wall) / count, (time.process_time() - cpu) / count


def compared(name, turns, steps):
    """Let both loops take turns of so many steps. Returns of each turn what `timed` says of ours, and of the bare one."""
    model, window, batch, precision = SIZES[name]
    training = LanguageTraining(window=window, global_batch=batch, steps=WARM_UP + turns * steps + 1, evaluate=False)
    workload = make(Workload, name="overhead", model=model, optim=Optim(), training=training)
    run = Run("overhead", workload, Layout(compile=precision == "bf16" and DEVICE == "cuda"), precision)
    with tempfile.TemporaryDirectory() as place:
        folder, taken = Path(place), []
        make_tokens(folder / "data", 50257 if name == "gpt2" else VOCABULARY)

        def take_turns(session):
            ours = our_steps(session)
            bare = bare_steps(folder, run, session.stepper.model.parts[0].state_dict())
            timed(ours, WARM_UP), timed(bare, WARM_UP)
            taken.extend((timed(ours, steps), timed(bare, steps)) for _ in range(turns))
            ours(1)  # the last step, which leaves a checkpoint: without one nothing is published

        loop.train(job_of(folder, run), take_turns)
    return taken


def main():
    """Print medians and ratios."""
    parser = parser_of(__doc__)
    parser.add_argument("--turns", type=int, default=30, help="turns of each loop (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="steps a turn (default: %(default)s)")
    parser.add_argument(
        "--sizes", nargs="+", choices=SIZES, default=["small", "tiny"], help="models (default: those of CPUs)"
    )
    arguments = parser.parse_args()
    for name in arguments.sizes:
        turns = compared(name, arguments.turns, arguments.steps)
        for what, column in (("seconds", 0), ("CPU seconds", 1)):
            pairs = [(our[column], other[column]) for our, other in turns]
            ratio = statistics.median(our / other for our, other in pairs)
            mine, theirs = (1e3 * statistics.median(column) for column in zip(*pairs, strict=True))
            print(f"{name}, {what} a step: ours {mine:.2f} ms, bare {theirs:.2f} ms, ratio {ratio:.3f}", flush=True)
    print(machine())


if __name__ == "__main__":
    main()

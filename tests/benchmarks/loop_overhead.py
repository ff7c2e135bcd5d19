"""What the training loop costs beside a bare PyTorch loop: same model, same batches, same optimizer, one process.

Both loops take turns of a few steps, so that another load on the machine disturbs them alike; a turn's ratio compares
neighbours, and the median over turns counts. The loop under test does all it does in a run (data, counting targets, gradient
norm, phases, record), the bare one what every tutorial does (data, forward, loss, backward, clip, update). The sampler of
devices is off: a thread of the process, it would slow both loops alike.

The variables of the example are those that the launcher sets on CPUs: without the two of malloc, page faults of whichever loop's
memory happens to lie worse are measured.

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
from parascale.settings import Layout, Model, Optim, Run, Site, Text, Workload, make
from parascale.settings.workload import LanguageTraining
from parascale.train import loop
from parascale.train.job import Job
from parascale.train.optim import make_optimizers

SIZES = {
    "small": (make(Model, dim=128, heads=4, layers=4, hidden=512), 32, 32),  # lm-small of the default matrix
    "tiny": (make(Model, dim=64, heads=4, layers=2, hidden=256), 32, 8),  # a real run has fewer steps a second
}
VOCABULARY = 4000
TOKENS = 100_000
WARM_UP = 5


def make_tokens(folder):
    """A dataset of random tokens, as `prepare` would leave it."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for split in ("train", "validation", "test"):
        generator.integers(0, VOCABULARY, TOKENS).astype("<u2").tofile(folder / f"{split}.bin")
    write_json(folder / "vocabulary.json", ["<unk>", "<eos>", *(f"w{number}" for number in range(VOCABULARY - 2))])
    files = {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in folder.iterdir()}
    counts = {"tokens": TOKENS, "words": TOKENS, "documents": 1, "unknown": 0}
    manifest = {"schema_version": 1, "dtype": "<u2", "vocabulary": VOCABULARY, "source": "random", "files": files}
    settings = dataclasses.asdict(Text())
    write_json(
        folder / "manifest.json",
        {**manifest, "splits": dict.fromkeys(("train", "validation", "test"), counts), "settings": settings},
    )


def job_of(folder, run):
    """The job of the loop under test."""
    places = {name: folder / name for name in ("data", "work", "output", "results", "store")}
    site = Site("benchmark", cores_per_node=1)
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
    model = build_model(run.workload.model, tokens.vocabulary_size, training.window)
    model.load_state_dict(weights)
    (optimizer,) = make_optimizers(SimpleNamespace(parts=[model]), optim)  # no decay of norms and biases either
    numbers = iter(range(training.steps))

    def steps(count):
        for _ in range(count):
            inputs, labels = map(torch.from_numpy, windows.batch(sampler.indices(next(numbers))))
            loss = F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), optim.clip_norm)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            loss.item()

    return steps


def timed(steps, count):
    """(seconds, CPU seconds) of a step."""
    wall, cpu = time.perf_counter(), time.process_time()
    steps(count)
    return (time.perf_counter() - wall) / count, (time.process_time() - cpu) / count


def main():
    """Let both loops take turns, and print medians and ratios."""
    parser = parser_of(__doc__)
    parser.add_argument("--turns", type=int, default=30, help="turns of each loop (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="steps a turn (default: %(default)s)")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="models (default: all)")
    arguments = parser.parse_args()
    for name, (model, window, batch) in ((name, SIZES[name]) for name in arguments.sizes):
        steps = WARM_UP + arguments.turns * arguments.steps + 1
        training = LanguageTraining(window=window, global_batch=batch, steps=steps, evaluate=False)
        run = Run("overhead", make(Workload, name="overhead", model=model, optim=Optim(), training=training), Layout())
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            make_tokens(folder / "data")
            turns = []

            def take_turns(session, folder=folder, run=run, turns=turns, name=name):
                ours = our_steps(session)
                bare = bare_steps(folder, run, session.stepper.model.parts[0].state_dict())
                timed(ours, WARM_UP), timed(bare, WARM_UP)
                turns += [(timed(ours, arguments.steps), timed(bare, arguments.steps)) for _ in range(arguments.turns)]
                ours(1)  # the last step, which leaves a checkpoint: without one nothing is published

            loop.train(job_of(folder, run), take_turns)
        for what, column in (("seconds", 0), ("CPU seconds", 1)):
            pairs = [(our[column], other[column]) for our, other in turns]
            ratio = statistics.median(our / other for our, other in pairs)
            mine, theirs = (1e3 * statistics.median(column) for column in zip(*pairs, strict=True))
            print(f"{name}, {what} a step: ours {mine:.2f} ms, bare {theirs:.2f} ms, ratio {ratio:.3f}", flush=True)
    print(machine())


if __name__ == "__main__":
    main()

"""A tiny workload whose sizes do not divide: 101 words, uneven blocks, targets that do not count."""

import dataclasses

import numpy as np
import pytest

from parascale.config import Site, Workload, strict
from parascale.config.run import Run
from parascale.files import sha256, write_json
from parascale.train.job import Job, training_digest

VOCABULARY = 101


@pytest.fixture(scope="session")
def tokens(tmp_path_factory):
    """A folder of tokens: a noisy repeating sequence that a small model begins to learn in 20 steps."""
    folder = tmp_path_factory.mktemp("data") / "flat"
    folder.mkdir()
    generator = np.random.default_rng(0)
    splits = {}
    for split, count in (("train", 4001), ("validation", 517), ("test", 501)):
        sequence = (np.arange(count) * 7) % VOCABULARY
        noise = generator.integers(0, VOCABULARY, count)
        values = np.where(generator.random(count) < 0.2, noise, sequence).astype("<u2")
        values.tofile(folder / f"{split}.bin")
        splits[split] = {"tokens": count, "words": count, "documents": 1, "unknown": 0}
    write_json(folder / "vocabulary.json", ["<unk>", "<eos>", *(f"w{i}" for i in range(VOCABULARY - 2))])
    files = {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in sorted(folder.iterdir())}
    settings = dataclasses.asdict(strict.load(Workload, {"name": "x"}, "test").data.text)
    manifest = {"schema_version": 1, "dtype": "<u2", "vocabulary": VOCABULARY, "splits": splits, "settings": settings}
    write_json(folder / "manifest.json", {**manifest, "source": "test", "files": files})
    return folder


@pytest.fixture(scope="session")
def code_digest():
    return training_digest("transformer_lm")


@pytest.fixture
def make_settings(tokens, code_digest, tmp_path):
    """A function that describes a job of the tiny workload as a rule would: layout, run and workload keys by name."""

    def make(name, layout=None, model=None, optim=None, training=None, parity=False, **run_keys):
        workload = {
            "name": "tiny",
            "model": {"dim": 32, "heads": 4, "layers": 4, "hidden": 64, **(model or {})},
            "optim": {"lr": 3e-3, "warmup_steps": 3, "clip_norm": 0.5, **(optim or {})},
            "training": {"window": 16, "global_batch": 12, "steps": 20, "checkpoint_minutes": None, **(training or {})},
        }
        values = {"run": name, "workload": workload, "layout": layout or {}, "baseline": "single", "deterministic": True, **run_keys}
        run = strict.load(Run, values, "test")
        run.check()
        if parity:
            run = run.parity(20, run.precision)
        job = Job(
            run=run,
            site=Site(name="test", cores_per_node=2),
            data=str(tokens),
            work=str(tmp_path / "work" / name),
            output=str(tmp_path / "results" / name),
            timeout_seconds=60.0,
            code_digest=code_digest,
        )
        return dataclasses.asdict(job)

    return make

"""A tiny workload whose sizes do not divide: 101 words, 17 windows of which the last is padded, uneven blocks."""

import dataclasses
import functools
import json
from pathlib import Path

import numpy as np
import pytest

from parascale.files import sha256, write_json
from parascale.settings import Site, Workload, strict
from parascale.settings.run import Run
from parascale.store.keys import code_of_run
from parascale.train.job import Job
from tests.made_up.project import changed

from . import tasks
from .cases import ranks_of
from .examine import train_settings
from .harness import run_on_ranks
from .jobs import plain

VOCABULARY = 101
WINDOW = 16
STEPS = 20
COMPARED = 12  # steps after which the tables of layouts are compared; so many find each fault of `test_faults.py`
SIZES = {"dim": 32, "heads": 4, "layers": 4, "hidden": 64}
TRANSFORMERS = ("transformer_lm", "encoder_decoder")
# 17 training windows, the last with 6 targets and 10 places that do not count: most batches of 12 hold it, and then the
# ranks' shares have different numbers of targets.
TOKENS = {"train": 16 * WINDOW + 7, "validation": 217, "test": 201}


@pytest.fixture(scope="session")
def tokens(tmp_path_factory):
    """A folder of tokens: a noisy repeating sequence that a small model begins to learn in 20 steps."""
    folder = tmp_path_factory.mktemp("data") / "flat"
    folder.mkdir()
    generator = np.random.default_rng(0)
    splits = {}
    for split, count in TOKENS.items():
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
def pairs(tmp_path_factory):
    return tasks.make_pairs(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory):
    """A function from `t5` or `bart` to (folder of the model, folder of its pairs)."""
    return functools.cache(lambda name: tasks.make_pretrained(tmp_path_factory.mktemp(name), name))


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    return tasks.make_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def settings_below(tokens):
    """A function that describes a job of the tiny workload as a rule would: folder, name, layout, workload keys by name.

    parity: steps of a parity run. task, data: another task than the language model's, and the folder of its data. text: how that became tokens.
    """

    def make(
        folder,
        name,
        layout=None,
        model=None,
        optim=None,
        training=None,
        parity=0,
        timeout=200.0,
        task="language_model",
        data=None,
        text=None,
        device="cpu",
        **run_keys,
    ):
        layout = layout or {}
        world = ranks_of(layout)
        workload = {
            "name": "tiny",
            "task": task,
            "data": {"text": text or {}} if task != "classification" else {},
            "model": (SIZES if "kind" not in (model or {}) or model["kind"] in TRANSFORMERS else {}) | (model or {}),
            "optim": {"lr": 3e-3, "warmup_steps": 3, "clip_norm": 0.5, **(optim or {})},
            "training": (
                ({"window": WINDOW} if task != "classification" else {})
                | {"global_batch": 12, "steps": STEPS, "checkpoint_minutes": None, **(training or {})}
            ),
        }
        values = {"run": name, "workload": workload, "layout": {"gpus_per_node": world, **layout}}
        run = strict.load(Run, values | {"baseline": "single", "deterministic": True, **run_keys}, "test")
        run.check()
        if parity:
            run = with_evaluation(run.parity(parity, run.precision))
        job = Job(
            run=run,
            site=Site(name="test", cores_per_node=2, device=device),
            data=Path(data or tokens),
            work=folder / "work" / name,
            output=folder / "results" / name,
            results=folder / "results",
            store=folder / "store" / name,  # of its own: tests train the same settings under several names
            timeout_seconds=timeout,
            code_digest=code_of_run(run),
            kind="parity" if parity else "run",
        )
        return plain(job)

    return make


def with_evaluation(run):
    """A parity run that is evaluated at its end as well."""
    return changed(run, workload={"training": {"evaluate": True}})


@pytest.fixture
def make_settings(settings_below, tmp_path):
    """`settings_below` the folder of one test."""

    def make(name, *arguments, **keywords):
        return settings_below(tmp_path, name, *arguments, **keywords)

    return make


@pytest.fixture(scope="session")
def single(settings_below, tmp_path_factory):
    """A function that gives the settings of the finished single process with these keys; each is trained once a session."""
    trained = {}

    def train(**keywords):
        key = json.dumps(keywords, sort_keys=True)
        if key not in trained:
            folder = tmp_path_factory.mktemp("single")
            settings = settings_below(folder, "single", **keywords)
            run_on_ranks(train_settings, 1, folder / "ranks", settings)
            trained[key] = settings
        return trained[key]

    return train

"""A checkpoint goes anywhere: any layout → one file → any layout, to the bit, with the state of the optimizer."""

import functools
import shutil

import pytest

from parascale.checkpoint import metadata
from parascale.checkpoint.convert import convert
from parascale.checkpoint.manifest import read_manifest, write_manifest
from parascale.checkpoint.verify import same_bits
from parascale.files import read_json, read_json_lines, sha256, write_json
from parascale.settings.config import Checkpoints

from .cases import ZERO_1, but_slow
from .examine import train_settings
from .harness import run_on_ranks
from .jobs import job_from_settings
from .tasks import CLASSIFICATION

LAYOUTS = {
    "single": {},
    "ddp": {"dp": 2},
    "fsdp": {"fsdp": 2},
    "hsdp": {"dp": 2, "fsdp": 2},
    "ZeRO-1": {"fsdp": 2, **ZERO_1},
    "tp": {"tp": 2},
    "pp": {"pp": 2, "micro_batches": 2},
    "cp": {"cp": 2},
    "fsdp x cp": {"fsdp": 2, "cp": 2},
    "3d": {"dp": 2, "tp": 2, "pp": 2, "micro_batches": 2},
}
FORMS = ("safetensors", "pt")
QUICK = ("fsdp", "tp", "pp")  # one of each kind of parts: shards of rows, of columns, and stages; all others are slow
MODEL = {"layers": 2, "tied": True}
TRAINING = {"steps": 4, "evaluate": False}


def ranks_of(settings):
    """Processes that a job needs."""
    return job_from_settings(settings).run.layout.world_size


def load_and_save_again(settings, pairs):
    """Load each first folder of `pairs` into a new model and optimizer of a layout, and save them into the second."""
    from parascale.checkpoint import store
    from parascale.families.build import build_model
    from parascale.parallel import make_mesh, parallelize, start_processes, stop_processes
    from parascale.train.clock import Clock
    from parascale.train.loss import GlobalLoss
    from parascale.train.optim import make_optimizers

    run = job_from_settings(settings).run
    device = start_processes("cpu", 60)
    mesh = make_mesh(run.layout, device, 60)
    saver = store.Saver(mesh, False)
    for source, target in pairs:
        model = parallelize(
            lambda: build_model(run.workload.model, 101, 16), run, mesh, GlobalLoss(), Clock(device), 60
        )
        optimizers = make_optimizers(model, run.workload.optim)
        facts = store.load(source, model, optimizers)
        saver.save(target, model, optimizers, facts)
    stop_processes()


def differing(ours, theirs):
    """Names whose tensors are not the same to the bit; the sets of names must be the same."""
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    return [name for name in ours if not same_bits(ours[name], theirs[name])]


@pytest.fixture(scope="module")
def trained(settings_below, tmp_path_factory):
    """A function from a layout to (job settings, folder of the published checkpoint); each is trained once, for a few steps."""
    root = tmp_path_factory.mktemp("resharding")

    def make(name):
        settings = settings_below(root, name, LAYOUTS[name], MODEL, training=TRAINING)
        run_on_ranks(train_settings, ranks_of(settings), root / f"ranks-{name}", settings)
        return settings, root / "results" / name / "checkpoint"

    return functools.cache(make)


@pytest.fixture(scope="module")
def travelled(trained, tmp_path_factory):
    """A function from a layout to {form: folder of its sharded checkpoint that came back from a single file}."""
    root = tmp_path_factory.mktemp("travelled")
    settings = Checkpoints(memory_mb=1, file_mb=1)

    def travel(name):
        convert(trained(name)[1], root / name, settings, FORMS)
        for form in FORMS:
            convert(root / name, root / f"{name}-{form}", settings, ["sharded"], form)
        return {form: root / f"{name}-{form}" for form in FORMS}

    return functools.cache(travel)


@pytest.mark.parametrize("name", but_slow(LAYOUTS, {*LAYOUTS} - {*QUICK}))
def test_checkpoints_are_worth_moving(name, trained):
    """What the matrix below moves was really trained, and really sharded."""
    from parascale.checkpoint.metadata import read_index

    _, folder = trained(name)
    held = metadata.read(folder)
    moments = [tensor for key, tensor in held.items() if key.endswith(("exp_avg", "exp_avg_sq"))]
    assert len(moments) == 2 * sum(key.startswith("model.") for key in held)
    assert all(tensor.count_nonzero() > 0 for tensor in moments)
    assert all(tensor.item() == 4 for key, tensor in held.items() if key.endswith(".step"))
    shards = max(len(entry.chunks) for entry in read_index(folder).state_dict_metadata.values())
    assert (shards > 1) == (name in ("fsdp", "hsdp", "ZeRO-1", "tp", "fsdp x cp", "3d"))


@pytest.mark.parametrize(
    ("target", "sources"),
    [("pp", QUICK), *(pytest.param(target, tuple(LAYOUTS), marks=pytest.mark.slow) for target in LAYOUTS)],
)
def test_any_layout_loads_what_any_other_saved_and_a_file_carried(target, sources, trained, travelled, tmp_path):
    """All of {layout} → {safetensors, pt} → this layout: weights and optimizer state equal the source's to the bit."""
    settings, _ = trained(target)
    folders = {(name, form): folder for name in sources for form, folder in travelled(name).items()}
    pairs = [(str(folder), str(tmp_path / f"{name}-{form}")) for (name, form), folder in folders.items()]
    run_on_ranks(load_and_save_again, ranks_of(settings), tmp_path / "ranks", settings, pairs, seconds=240)
    for name, form in folders:
        found = differing(metadata.read(tmp_path / f"{name}-{form}"), metadata.read(trained(name)[1]))
        assert not found, f"{name} → {form} → {target}: {found}"


@pytest.mark.parametrize(
    "first, second",
    [
        ("fsdp", "pp"),
        pytest.param("tp", "single", marks=pytest.mark.slow),
        pytest.param("fsdp x cp", "tp", marks=pytest.mark.slow),
        pytest.param("pp", "cp", marks=pytest.mark.slow),
        pytest.param("pp", "hsdp", marks=pytest.mark.slow),
        pytest.param("single", "3d", marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_from_another_in_another_layout(first, second, make_settings, tmp_path):
    """init_from: the steps after are those of the one training that never stopped; the schedule goes on too."""
    constant = {"optim": {"schedule": "constant"}}
    jobs = {
        "whole": make_settings("whole", training={"steps": 12, "evaluate": False}, **constant),
        "first": make_settings("first", LAYOUTS[first], training={"steps": 6, "evaluate": False}, **constant),
        "second": make_settings("second", LAYOUTS[second], training={"steps": 12}, init_from="first", **constant),
    }
    jobs["second"]["start"] = str(tmp_path / "results/first/checkpoint")
    for name, settings in jobs.items():
        run_on_ranks(train_settings, ranks_of(settings), tmp_path / f"ranks-{name}", settings)
    whole, second = (read_json_lines(tmp_path / f"results/{name}/steps.jsonl") for name in ("whole", "second"))
    assert [line["step"] for line in second] == list(range(7, 13))
    for line, expected in zip(second, whole[6:], strict=True):
        assert line["loss"] == pytest.approx(expected["loss"], abs=5e-6)
        assert line["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)
        assert line["lr"] == expected["lr"]
    summary = read_json(tmp_path / "results/second/summary.json")
    assert (summary["steps"], summary["best_step"]) == (6, 12)


def test_a_start_that_does_not_fit_is_refused(make_settings, tmp_path):
    """A run cannot begin where it ends, nor from weights of another shape; the message names the tensor."""
    first = make_settings("first", training={"steps": 4, "evaluate": False})
    run_on_ranks(train_settings, 1, tmp_path / "ranks-first", first)
    start = {"start": str(tmp_path / "results/first/checkpoint")}
    short = make_settings("short", training={"steps": 4}, init_from="first") | start
    with pytest.raises(AssertionError, match="starts after step 4 of run first, but ends with step 4"):
        run_on_ranks(train_settings, 1, tmp_path / "ranks-short", short)
    shape = r"model\.blocks\.0\.feed_forward\.up\.weight has shape \[64, 32\] instead of \[96, 32\]"
    for name, model, message in (
        ("wide", {"hidden": 96}, shape),
        ("deep", {"layers": 6}, r"missing model\.blocks\.4\."),
        ("flat", {"layers": 2}, r"unexpected model\.blocks\.2\."),
    ):
        other = make_settings(name, LAYOUTS["fsdp"], model, training={"steps": 8}, init_from="first") | start
        with pytest.raises(AssertionError, match=message):
            run_on_ranks(train_settings, 2, tmp_path / f"ranks-{name}", other)


def of_other_words(tokens, folder):
    """The same numbers, of which two stand for each other's words."""
    shutil.copytree(tokens, folder)
    words = read_json(folder / "vocabulary.json")
    write_json(folder / "vocabulary.json", [*words[:-2], words[-1], words[-2]])
    manifest = read_json(folder / "manifest.json")
    manifest["files"]["vocabulary.json"]["sha256"] = sha256(folder / "vocabulary.json")
    write_json(folder / "manifest.json", manifest)
    return folder


def of_other_classes(images, folder):
    """The same pictures, whose labels have each other's names."""
    shutil.copytree(images, folder)
    manifest = read_json(folder / "manifest.json")
    write_json(folder / "manifest.json", manifest | {"classes": manifest["classes"][::-1]})
    return folder


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("language_model", "trained on other classes or tokens: its vocabulary has other entries"),
        ("classification", "class 0 is `.+` here and `.+` there"),
    ],
)
def test_a_start_whose_numbers_mean_something_else_is_refused(task, message, tokens, images, make_settings, tmp_path):
    """In the same sizes nothing else would say it; a checkpoint of an earlier version holds no meaning, and starts a run."""
    of_images = task == "classification"
    keys = {"task": task, **(CLASSIFICATION if of_images else {})}
    data = images if of_images else tokens
    steps = {**keys.pop("training", {}), "evaluate": False, "steps": 4}
    first = make_settings("first", training=steps, data=data, **keys)
    run_on_ranks(train_settings, 1, tmp_path / "ranks-first", first)
    start = {"start": str(tmp_path / "results/first/checkpoint")}
    other = (of_other_classes if of_images else of_other_words)(data, tmp_path / "other")
    keys |= {"training": steps | {"steps": 5}, "init_from": "first"}
    with pytest.raises(AssertionError, match=message):
        run_on_ranks(train_settings, 1, tmp_path / "ranks-other", make_settings("other", data=other, **keys) | start)
    run_on_ranks(train_settings, 1, tmp_path / "ranks-same", make_settings("same", data=data, **keys) | start)
    manifest = read_manifest(start["start"])
    del manifest["facts"]["meaning"]
    write_manifest(start["start"], manifest["facts"], manifest["files"])
    run_on_ranks(train_settings, 1, tmp_path / "ranks-old", make_settings("old", data=other, **keys) | start)


@pytest.mark.parametrize("name", but_slow(["single", "fsdp", "pp"], {"single", "fsdp"}))
def test_saving_behind_the_training_changes_nothing(name, make_settings, tmp_path):
    """Asynchronous checkpoints hold the state of their own step, though the training went on while they were written."""
    saving = {"steps": 6, "checkpoint_every": 2, "keep": 9, "evaluate_every": 2}
    jobs = {
        kind: make_settings(kind, LAYOUTS[name], training={**saving, "checkpoint_async": kind == "behind"})
        for kind in ("behind", "waiting")
    }
    for kind, settings in jobs.items():
        run_on_ranks(run_and_keep_checkpoints, ranks_of(settings), tmp_path / f"ranks-{kind}", settings)
    folders = sorted((tmp_path / "kept-behind").iterdir())
    assert [folder.name for folder in folders] == [f"step-{step:09d}" for step in (2, 4, 6)]
    for folder in folders:
        assert not differing(metadata.read(folder), metadata.read(tmp_path / "kept-waiting" / folder.name)), folder.name
    lines = read_json_lines(tmp_path / "results/behind/steps.jsonl")
    assert ["checkpoint_seconds" in line for line in lines] == [False, True] * 3


def run_and_keep_checkpoints(settings):
    """Train, and keep copies of the resumable checkpoints that publishing drops."""
    from parascale.train.state import RunState

    publish = RunState.publish

    def keep_then_publish(state):
        state.saver.wait()
        if state.lead:
            work = state.job.work
            shutil.copytree(work / "checkpoints", work.parents[1] / f"kept-{state.job.run.run}")
        publish(state)

    RunState.publish = keep_then_publish
    train_settings(settings)

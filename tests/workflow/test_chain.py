"""The chain as a user meets it: it runs from text to report, does nothing twice, and survives being killed."""

import csv
import html
import json
import os
import signal
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from parascale.telemetry import read_samples
from tests.command import call

from .small_project import SmallProject, readings

CONVERSION = {"convert_checkpoint", "verify_checkpoint", "comparison_report", "all"}
TRAINING = {"train_single", "train_ddp", "parity_run", "parity_verdict", "job_report", *CONVERSION}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A project whose whole chain has run."""
    project = SmallProject(tmp_path_factory.mktemp("chain"))
    project.output = project.program()
    return project


def test_the_chain_ends_with_a_report_of_every_run(finished):
    results = finished.folder / "results"
    assert "http" not in (results / "report/index.html").read_text().replace("http://www.w3.org/", "")
    rows = list(csv.DictReader((results / "report/summary.csv").open()))
    found = [(row["run"], row["strategy"], row["status"], row["parity"]) for row in rows]
    assert found == [("single", "single", "done", "baseline"), ("ddp", "ddp", "done", "same")]
    assert all(float(row["test_loss"]) > 0 and int(row["work"]) == 30 * 8 * 8 for row in rows)
    assert json.loads((results / "runs/ddp/run.json").read_text())["prediction"]["seconds"] > 0
    assert not list((finished.folder / "work/runs").iterdir())


def test_text_is_measured_in_each_format_and_advice_is_given(finished):
    rows, advice = readings(finished, "tiny")
    assert {row["format"] for row in rows} == {"flat", "arrow"}
    assert all(float(row["samples_per_second"]) > 0 for row in rows) and advice.startswith("Take ")


def test_the_report_has_a_converted_checkpoint(finished):
    rows = list(csv.DictReader((finished.folder / "results/report/checkpoints.csv").open()))
    found = [(row["run"], row["form"], row["identical"]) for row in rows]
    assert found == [("single", "safetensors", "True"), ("single", "pt", "True")]
    test_loss = json.loads((finished.folder / "results/runs/single/summary.json").read_text())["test_loss"]
    assert all(float(row["test_loss"]) == pytest.approx(test_loss, abs=1e-6) for row in rows)
    page = (finished.folder / "results/report/index.html").read_text()
    assert page.count('class="tag same">identical') == 2


def test_each_run_was_sampled_and_has_a_report_of_its_own(finished):
    results = finished.folder / "results"
    for name, ranks in (("single", 1), ("ddp", 2)):
        devices = read_samples([results / "runs" / name / "device.csv"])
        assert [device.kind for device in devices] == ["rank"] * ranks + ["host"]
        assert all(max(device.known("memory_bytes")) > 1e7 for device in devices)
        page = (results / f"report/jobs/{name}.html").read_text()
        assert "What stands out" in page and "http://" not in page.replace("http://www.w3.org/", "")
        assert f'href="jobs/{name}.html"' in (results / "report/index.html").read_text()
        found = EventAccumulator(str(results / "runs" / name))
        found.Reload()
        assert [event.step for event in found.Scalars("loss")] == list(range(1, 31))


@pytest.fixture
def generate(finished, monkeypatch, capsys):
    """A function: what `parascale generate` prints and says about the run `single`, where the project is."""
    monkeypatch.chdir(finished.folder)

    def continued(*words):
        call("generate", "--run", "single", "--tokens", "6", *words)
        return capsys.readouterr()

    return continued


def test_a_trained_model_continues_texts(generate, tmp_path):
    """The prompt comes first, then words of the text; a file of prompts, in batches, from the converted checkpoint, gives the same."""
    (tmp_path / "prompts.txt").write_text("w1 w2\n\nw3\n")
    words = generate("--prompt", "w1 w2").out.split()
    assert words[:2] == ["w1", "w2"] and 2 < len(words) <= 8  # ends of lines are among the six that were added
    assert set(words) <= {f"w{number}" for number in range(50)}
    said = generate("--prompts", tmp_path / "prompts.txt", "--batch", 2, "--checkpoint", "results/checkpoints/single")
    first, second = map(json.loads, said.out.splitlines())
    assert "2 texts" in said.err and "tokens/s" in said.err
    assert first["prompt"] == "w1 w2" and first["text"].split() == words and second["text"].startswith("w3")


@pytest.mark.parametrize(
    "form", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("sharded", "safetensors", "pt")), "transformers"]
)
def test_every_form_of_a_checkpoint_continues_texts_by_the_same_command(form, finished, generate, tmp_path):
    call("checkpoint", "convert", "results/runs/single/best", tmp_path / form, "--to", form)
    place = tmp_path / form / ("transformers" if form == "transformers" else "")
    assert "without a tokenizer" not in generate("--prompt", "w1 w2").out  # which has what `convert` said, too
    first, second = (generate("--prompt", "w1 w2", *more).out for more in ([], ["--checkpoint", place]))
    assert first == second and first.startswith("w1 w2")
    if form == "transformers":
        from transformers import pipeline

        (theirs,) = pipeline("text-generation", str(place))("w1 w2", max_new_tokens=6, do_sample=False)
        assert theirs["generated_text"].replace("<eos>", "").split() == first.split("\n")[0].split()


def test_only_what_a_change_touches_runs_again(finished):
    """What `test_reruns.py` shows over all settings and code holds for results that were really made."""
    from_data = TRAINING | {"download", "prepare", "convert_tokens", "verify_format", "benchmark_loaders"}
    cases = [
        ("config/config.yaml", "title: Tiny", "title: Other", {"comparison_report", "all"}),
        ("scripts/parascale/train/optim.py", "return peak\n", "return 2 * peak\n", set()),  # numerics.json tells
        ("text/test.txt", "w1 ", "w2 ", from_data),  # the user's own text is an input like any other
    ]
    for name, old, new, expected in cases:
        finished.edit(name, old, new)
        try:
            planned = set(finished.planned())
        finally:
            finished.edit(name, new, old)
        assert planned == expected, (name, new)


@pytest.mark.slow
def test_a_run_without_evaluation_in_folders_with_blanks_quotes_and_umlauts(tmp_path):
    """Such a run has no best weights, and its rules do not ask for them: the last are converted. Folders and titles may be called
    what they like: no rule puts a path into a command without quoting it."""
    folder = tmp_path / "Anna's Übung 1"
    folder.mkdir()
    project = SmallProject(folder)
    project.edit("config/workloads/tiny.yaml", "evaluate_every: 15", "evaluate: false")
    project.edit("config/tiny.tsv", "ddp\ttiny\t2\t2\n", "")
    project.edit("config/config.yaml", "title: Tiny", """title: A "title" {of} mine\nroot: ../it's all & more'""")
    project.snakemake()
    (page,) = folder.glob("*/results/report/index.html")
    results = page.parents[1]
    assert results.parent.name == "it's all & more'"
    assert 'A "title" {of} mine' in html.unescape(page.read_text())
    assert (page.parent / "jobs/single.html").exists()
    assert not (results / "runs/single/best").exists()
    proof = json.loads((results / "checkpoints/single/verify.json").read_text())
    assert proof["step"] == 30
    assert all(form["identical"] and form["optimizer"] for form in proof["forms"].values())
    assert "Nothing to be done" in project.snakemake()


@pytest.mark.slow
def test_killed_at_any_moment_it_finishes_when_started_again(tmp_path):
    """kill -9 of everything, and of Snakemake alone, at several moments; a training that had begun goes on from a step above 0.

    Where Snakemake alone is killed, what it started goes on, and the next start waits for it.
    """
    project = SmallProject(tmp_path)
    project.edit("config/workloads/tiny.yaml", "steps: 30", "steps: 300")
    for seconds, kill in ((4, os.killpg), (8, os.kill), (10, os.killpg), (12, os.kill)):
        process = project.start()
        time.sleep(seconds)
        kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    project.snakemake()
    rows = list(csv.DictReader((tmp_path / "results/report/summary.csv").open()))
    assert [row["status"] for row in rows] == ["done", "done"]
    for name in ("single", "ddp"):
        steps = [json.loads(line)["step"] for line in (tmp_path / f"results/runs/{name}/steps.jsonl").open()]
        assert steps == list(range(1, 301))


@pytest.mark.slow
def test_failed_runs_are_rows_of_the_report(tmp_path):
    """The same target builds it of what there is, and the exit code says that not everything finished."""
    project = SmallProject(tmp_path)
    tiny = (tmp_path / "config/workloads/tiny.yaml").read_text()
    (tmp_path / "config/workloads/wild.yaml").write_text(tiny.replace("5.0e-3", "1.0e+30"))
    project.edit("config/tiny.tsv", "ddp\ttiny\t2\t2\n", "wild\twild\t1\t1\n")
    project.snakemake(fails=True)
    rows = list(csv.DictReader((tmp_path / "results/report/summary.csv").open()))
    assert [(row["run"], row["status"]) for row in rows] == [("single", "done"), ("wild", "failed")]
    assert "loss nan" in (tmp_path / "logs/train/wild.log").read_text()
    # Started again, it goes on with what is missing, although there is a page.
    assert {"train_single", "comparison_report"} <= set(project.planned())

"""Another workflow may import ours as a module, and a checkout that nobody may write serves many: results lie with whoever runs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .small_project import SmallProject

# As `snakedeploy deploy-workflow` writes it, beside a copy of our config/; of a path where it writes `github(...)`.
DEPLOYED = Path(__file__).with_name("deployed.smk").read_text()
# A workflow with a configuration, a prefix of its commands and rules of its own.
OTHER = Path(__file__).with_name("other.smk").read_text()
OTHER_CONFIG = """
colour: blue
runs: samples.tsv
parascale:
  runs: config/mine.tsv
  title: "It's {a} part"
  parity: {steps: 5}
"""
LOCAL = ("download", "download_images", "gather_shards", "parity_verdict", "job_report", "comparison_report", "all")
# Root may write anything, unless it has laid down its capabilities.
AS_ANYONE = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
needs_setpriv = pytest.mark.skipif(
    bool(AS_ANYONE) and not shutil.which("setpriv"), reason="as root only setpriv makes files read-only"
)


@pytest.fixture
def checkout(tmp_path):
    """A small project to be used from elsewhere."""
    (tmp_path / "checkout").mkdir()
    return SmallProject(tmp_path / "checkout")


def run(checkout, cwd, *arguments, before=()):
    """What Snakemake printed, called in a folder."""
    cwd.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(checkout.folder / "scripts"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [*before, sys.executable, "-m", "snakemake", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-4000:]
    return output


def counted(output):
    """Rule → jobs of the table of a dry run."""
    table = output.partition("Job stats:")[2].split("\n\n")[0]
    return {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", table, re.MULTILINE)}


def written(folder):
    """The files below a folder, Snakemake's own apart."""
    names = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return {name for name in names if not name.startswith(".snakemake/")}


def other_workflow(folder, checkout, text):
    (folder / "workflow").mkdir(parents=True)
    (folder / "workflow/Snakefile").write_text(text.replace("SNAKEFILE", str(checkout.folder / "Snakefile")))
    (folder / "workflow/other.rst").write_text("Theirs.")
    return "--snakefile", folder / "workflow/Snakefile", "--directory", folder, "--cores", 2, "--logger", "parascale"


@pytest.mark.slow
def test_a_deployed_workflow_has_a_configuration_of_its_own(checkout, tmp_path):
    folder, elsewhere = tmp_path / "my workflow", tmp_path / "elsewhere"
    call = other_workflow(folder, checkout, DEPLOYED)
    shutil.copytree(checkout.folder / "config", folder / "config")
    shutil.copytree(checkout.folder / "text", folder / "text")
    shutil.rmtree(checkout.folder / "config")  # nothing is read there
    jobs = counted(run(checkout, elsewhere, *call, "-np"))
    assert (jobs["all"], jobs["train_single"], jobs["train_ddp"], jobs["parity_verdict"]) == (1, 1, 1, 2)
    before = written(checkout.folder)
    run(checkout, elsewhere, *call, "--", "data")
    assert (folder / "results/data/tiny/flat/manifest.json").is_file()
    assert not written(elsewhere) and written(checkout.folder) == before


@pytest.mark.slow
def test_a_workflow_has_ours_as_a_part_under_names_of_its_own(checkout, tmp_path):
    """Its configuration has ours as a part, which leaves workloads and sites at our defaults."""
    folder, elsewhere = tmp_path / "other", tmp_path / "elsewhere"
    call = other_workflow(folder, checkout, OTHER)
    (folder / "config").mkdir()
    (folder / "config/config.yaml").write_text(OTHER_CONFIG)
    runs = "run\tworkload\nsingle\t{}\n"
    (folder / "config/mine.tsv").write_text(runs.format("lm-small"))  # whose size a plan knows before its data is there
    whole = run(checkout, elsewhere, *call, "-np", "--", "parascale_all")
    jobs = counted(whole)
    assert [jobs[f"parascale_{name}"] for name in ("train_single", "parity_verdict", "comparison_report")] == [1, 1, 1]
    plan = dict(re.findall(r"^(\w+|local jobs)  +(.*)$", whole.partition("Plan for local")[2], re.MULTILINE))
    assert plan["parascale_train_single"].startswith("single ") and "?" not in plan["parascale_train_single"]
    assert plan["local jobs"].split()[0] == str(sum(jobs.get(f"parascale_{name}", 0) for name in LOCAL))
    (folder / "config/mine.tsv").write_text(runs.format("tiny"))
    output = run(checkout, elsewhere, *call)
    assert (folder / "verdict.txt").read_text() == "blue\n"
    assert (folder / "results/runs/single/summary.json").is_file()
    assert "core-h used" in output, "what the first job asks for was checked, and is counted"
    assert not written(elsewhere)


@pytest.mark.slow
@needs_setpriv
def test_a_checkout_that_is_read_only_serves_many(checkout, tmp_path):
    """Neither the profile nor the configuration needs the checkout to be the current folder."""
    place, elsewhere = tmp_path / "my place", tmp_path / "elsewhere"
    place.mkdir()
    folders = [checkout.folder, *(path for path in checkout.folder.rglob("*") if path.is_dir())]
    for path in (*folders, *(path for path in checkout.folder.rglob("*") if path.is_file())):
        path.chmod(path.stat().st_mode & ~0o222)
    call = "--snakefile", checkout.folder / "Snakefile", "--directory", place
    call += "--profile", checkout.folder / "profiles/local"
    try:
        jobs = counted(run(checkout, elsewhere, *call, "-np", before=AS_ANYONE))
        assert (jobs["all"], jobs["train_single"], jobs["train_ddp"]) == (1, 1, 1)
        run(checkout, elsewhere, *call, "--", "data", before=AS_ANYONE)
    finally:
        for path in folders:
            path.chmod(0o755)
    assert (place / "results/data/tiny/flat/manifest.json").is_file()
    assert not written(elsewhere)

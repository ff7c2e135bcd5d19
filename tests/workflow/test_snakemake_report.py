"""The rules of reports on made-up results: a page for each job, linked, and all figures with captions in Snakemake's own."""

import base64
import csv
import os
import re
import shutil
import subprocess
import sys

import pytest

from parascale.data.benchmark import write_rows
from parascale.files import write_json
from parascale.report.figures import FIGURES
from tests.made_up.devices import gpu_lines, write_devices
from tests.made_up.everything import LOADERS, READINGS, proof, write_transfers
from tests.made_up.project import REPOSITORY
from tests.made_up.results import ddp, fake, write_results

from .small_project import SmallProject

ONLY = ("--allowed-rules", "job_report", "comparison_report", "report", "all")
PAGE = "results/report/index.html"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project whose trainings are made up and whose reports are built."""
    project = SmallProject(tmp_path_factory.mktemp("project"))
    fakes = [fake("single", verdict="baseline"), ddp()]
    results, _ = write_results(project.folder, fakes)
    for name in ("single", "ddp"):
        write_devices(results / "runs" / name, gpu_lines(1))
        (results / "runs" / name / "events.out.tfevents.parascale").touch()
        (results / "runs" / name / "checkpoint").mkdir(exist_ok=True)
    write_json(results / "checkpoints/single/verify.json", proof("single"))
    write_rows(results / "loaders/tiny.csv", [row | {"dataset": "tiny"} for row in READINGS])
    write_json(results / "loaders/tiny.json", LOADERS | {"dataset": "tiny"})
    write_transfers(results, "ddp")
    project.snakemake(*ONLY, "--", PAGE)
    return project


def test_snakemakes_report_holds_the_same_figures_with_captions_and_categories(project):
    project.snakemake(*ONLY, "--report", "out.html", "--", PAGE)
    told = (project.folder / "out.html").read_text()
    for name in FIGURES:
        assert f"{name}.svg" in told
        figure = (project.folder / f"results/report/figures/{name}.svg").read_bytes()
        assert base64.b64encode(figure[:300]).decode() in told, f"{name}.svg is not what the report holds"
        caption = (REPOSITORY / f"rules/captions/{name}.rst").read_text()
        first = re.split(r"[.:(]", caption)[0].split("\n")[0].strip()
        assert first in told, f"{name} has no caption"
    assert all(f'"{category}"' in told for category in ("Comparison", "Figures", "Jobs"))


def test_the_report_takes_up_what_was_measured_between_processes_and_waits_for_none_of_it(project):
    """Built with the file of a measurement, it is built again without: a changed input, and no measurement to be made."""
    assert "communication/ddp.csv" in (project.folder / PAGE).read_text()
    (project.folder / "results/communication/ddp.csv").unlink()
    assert project.planned(PAGE, *ONLY) == {"comparison_report": 1}


@pytest.mark.slow
def test_a_workflow_that_fails_builds_the_report_of_what_there_is(project):
    """The rule of the page waits in vain for the page of a job. Started again, that one is made, although the page of all runs is there.
    The last test, since it breaks the project."""
    for name in (PAGE, "results/report/jobs/single.html"):
        (project.folder / name).unlink()
    broken = 'raise SystemExit("broken")\nimport math'
    project.edit("scripts/parascale/report/job.py", "import math", broken)
    told = project.snakemake(*ONLY, "--retries", "0", "--", PAGE, fails=True)
    assert "This covers the results so far" in told
    rows = csv.DictReader((project.folder / "results/report/summary.csv").open())
    assert [(row["run"], row["status"]) for row in rows] == [("single", "done"), ("ddp", "done")]
    assert "<title>Tiny</title>" in (project.folder / PAGE).read_text()
    project.edit("scripts/parascale/report/job.py", broken, "import math")
    # As after a first start: Snakemake knows of no whole page before this one.
    shutil.rmtree(project.folder / ".snakemake/metadata")
    for target in ("report", "all"):
        assert project.planned(target, *ONLY) == {"job_report": 2, "comparison_report": 1, target: 1}
    # A failed run is a row beside the finished one.
    shutil.rmtree(project.folder / "results/runs/ddp")
    write_results(project.folder, [ddp(status="failed", steps=9)])
    environment = {**os.environ, "PYTHONPATH": str(project.folder / "scripts")}
    command = [sys.executable, "-m", "parascale", "report"]
    subprocess.run(command, cwd=project.folder, env=environment, check=True, capture_output=True)
    rows = csv.DictReader((project.folder / "results/report/summary.csv").open())
    assert [(row["run"], row["status"]) for row in rows] == [("single", "done"), ("ddp", "failed")]

"""The made-up pages that tests of the report look at, and the browser that shows them."""

import pytest

from parascale.files import write_text
from parascale.report import render_page
from parascale.report.job import load_job, render_job
from tests.made_up.devices import START, gpu_lines, write_devices
from tests.made_up.everything import TEXT, build_report, finished, unfinished, write_everything
from tests.made_up.results import edited, fake, report_of
from tests.workflow.browser import Browser, find_programs


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A browser."""
    programs = find_programs()
    if None in programs:
        pytest.skip("chromium and chromedriver are not installed")
    opened = Browser(*programs, tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """The report with every kind of row (finished, failed, running, missing, different, weak, repeated seeds) and every
    section, as its command builds it, and the page of a job with every kind of section."""
    root, fakes = tmp_path_factory.mktemp("report"), [*finished(), *unfinished()]
    results, work = write_everything(root, fakes)
    job = results / "report/jobs/ddp.html"
    write_text(job, render_job(_job(results, work)))
    runs = [*(entry.run.run for entry in fakes[:-1]), "not-started"]  # the last one is left out, which is said
    only = [word for run in runs for word in ("--only", run)]
    report = build_report(root, "--config", "title=A report with everything", *only)
    return {"report": report / "index.html", "job": job}


def _job(results, work):
    """A job on GPUs with idle ones, several attempts, a time limit and a profile."""
    folder = results / "runs/ddp"
    write_devices(folder, gpu_lines(4, 2, nodes=2, throttled={0: "power_cap"}))
    times = {"started": START, "seconds": 3550.0, "submitted": START - 900, "allocated": START, "limit_seconds": 3600.0}
    first = {"start": "2026-01-02T03:04:05+00:00", "outcome": "stopped", "job_id": "1"}
    first |= {"first_step": 1, "last_step": 30}
    last = {"start": "2026-01-02T04:34:05+00:00", "started": START + 5400, "outcome": "finished", "job_id": "2"}
    edited(folder / "run.json", attempts=[{**first, **times}, {**first, **last, "seconds": 700.0}])
    return load_job(results, work, "ddp")


@pytest.fixture(scope="session", params=["report", "job"])
def page(request, pages):
    """Each of the pages in turn."""
    return pages[request.param]


@pytest.fixture(scope="session")
def many(tmp_path_factory):
    """The report of many runs of one kind."""
    shape = {"pp": 2, "gpus_per_node": 2, "train": TEXT}
    fakes = [fake("single", verdict="baseline", train=TEXT)]
    fakes += [fake(f"a-pipeline-of-{number}", micro_batches=number, **shape) for number in range(2, 33)]
    folder = tmp_path_factory.mktemp("many")
    page = folder / "index.html"
    write_text(page, render_page(report_of(folder, *fakes)))
    return page

"""The report of one job says in plain words what is wrong with it, leads back to raw samples, and is there for unfinished runs too."""

import csv
import dataclasses
import math
import re
from array import array

import pytest

from parascale.errors import ParascaleError
from parascale.report import numbers
from parascale.report.job import PARTS, load_job, over_time, render_job, usage_table
from parascale.telemetry import COLUMNS, read_samples
from tests.made_up.devices import GIB, START, gpu_lines, write_devices
from tests.made_up.results import CLUSTER, SHARES, edited, fake, write_lines, write_results
from tests.unit.page_cells import Cells

LIMIT = {"submitted": START - 600, "allocated": START - 30, "limit_seconds": 3600.0}


def attempt(number, outcome, seconds, start=START, **more):
    """An attempt as the record has it."""
    attempt = {"start": "2026-01-02T03:04:05+00:00", "started": start, "seconds": seconds, "outcome": outcome}
    attempt |= {"first_step": 10 * number - 9, "last_step": 10 * number, "job_id": str(100 + number)}
    return attempt | {"hosts": ["node0"], **more}


def job_of(root, devices=None, attempts=None, **options):
    """The JobReport of a made-up run on GPUs."""
    options = {"site": CLUSTER, "baseline": "run", "verdict": "baseline", "gpus_per_node": 4, "dp": 4} | options
    results, work = write_results(root, [fake("run", **options)])
    folder = (results if options.get("status", "done") == "done" else work) / "runs/run"
    if devices:
        write_devices(folder, devices)
    if attempts:
        if (folder / "attempts.jsonl").exists():
            write_lines(folder / "attempts.jsonl", attempts)
        edited(folder / "run.json", attempts=attempts)
    return load_job(results, work, "run")


WELL = gpu_lines(memory=30 * GIB)
ONE_LIMIT = [attempt(1, "stopped", 3520, **LIMIT), attempt(2, "finished", 600)]
CAPPED, WAITS = gpu_lines(4, 1, throttled={0: "power_cap"}), {**SHARES, "data": 0.635}
HANG = attempt(1, None, 5, cause="rank 3 on node0 did not join …: stopped")
PLANTED = {
    "nothing": {},
    "several, the worst first": {"devices": CAPPED, "attempts": ONE_LIMIT, "dp": 1, "idle_gpus": 3, "shares": WAITS},
    "an idle GPU": {"devices": gpu_lines(4, use=[0.9, 0.9, 0.9, 0.01])},
    "GPUs nobody uses": {"devices": gpu_lines(4, 1), "dp": 1, "idle_gpus": 3},
    "idle by layout, without samples": {"dp": 1, "idle_gpus": 3},
    "a slow loader": {"shares": WAITS},
    "communication": {"shares": {**SHARES, "communication": 0.64}},
    "a bubble": {"shares": {**SHARES, "bubble": 0.66}},
    "the time limit": {"attempts": ONE_LIMIT},
    "the time limit, unfinished": {"attempts": ONE_LIMIT[:1], "status": "stopped", "steps": 10},
    "a stop that was no time limit": {"attempts": [attempt(1, "stopped", 300, **LIMIT), attempt(2, "finished", 600)]},
    "killed": {"attempts": [attempt(1, "killed", 300), attempt(2, "killed", 300), attempt(3, "finished", 600)]},
    "failed": {"attempts": [attempt(1, "failed", 5)], "status": "failed", "steps": 10},
    "a limit far too long": {"attempts": [attempt(1, "finished", 500, **LIMIT)]},
    "heat": {"devices": gpu_lines(throttled={2: "hardware_thermal"})},
    "low use": {"devices": gpu_lines(use=0.3)},
    "a GPU that idles while others wait": {"devices": gpu_lines(4, use=[0.9, 0.9, 0.9, 0.5])},
    "a hang": {"attempts": [HANG], "status": "running", "steps": 10},
    "full memory": {"devices": gpu_lines(memory=39 * GIB)},
    "empty memory": {"devices": gpu_lines(memory=2 * GIB)},
    "one micro-batch": {"pp": 4, "dp": 1},
    "one micro-batch, replicated": {"pp": 2, "dp": 2},
}


@pytest.mark.parametrize("case", PLANTED)
def test_what_was_planted_is_found_and_nothing_else(tmp_path, case, golden):
    job = job_of(tmp_path, **({} if "without samples" in case else {"devices": WELL}) | PLANTED[case])
    golden("\n".join(finding.text for finding in job.findings))


def test_figures_of_the_page_lead_back_to_raw_samples(tmp_path):
    job = job_of(tmp_path, gpu_lines(4, 1, nodes=2), dp=1, idle_gpus=3)
    rows = list(csv.DictReader((tmp_path / "results/runs/run/device.csv").open()))
    gpus, shown = [row for row in rows if row["kind"] == "gpu"], usage_table(job.devices).frame.set_index("metric")
    for title, column, write in (
        ("GPU use", "utilisation", numbers.percent),
        ("GPU memory", "memory_bytes", numbers.memory),
        ("GPU temperature", "temperature_celsius", "{:.0f} °C".format),
    ):
        values = [float(row[column]) for row in gpus]
        expected = [write(value) for value in (min(values), math.fsum(values) / len(values), max(values))]
        assert shown.loc[title, ["min", "mean", "max"]].tolist() == expected
    counted = {}
    for row in gpus:
        counted.setdefault((row["node"], row["index"]), []).append(float(row["energy_joules"]))
    joules = sum(map(max, counted.values()))
    assert shown["total"]["GPU energy"] == numbers.energy(joules)
    assert f">{shown['max']['GPU use']}</td>" in render_job(job)
    energy = Cells(render_job(job)).found["job-table", "Energy of the GPUs", "energy_joules_value"]
    assert float(energy) == pytest.approx(joules)


def test_a_total_is_unknown_if_that_of_one_device_is(tmp_path):
    lines = gpu_lines(2)
    write_devices(tmp_path, [line | ({"energy_joules": ""} if line["index"] else {}) for line in lines])
    rows = usage_table(read_samples([tmp_path / "device.csv"])).frame.set_index("metric")
    assert rows["min"]["GPU use"] and "GPU energy" in rows.index and not rows["total"].notna().any()


@pytest.mark.parametrize("address", ["", "https://llview.example/job?id={job}&form=page"])
def test_each_attempt_leads_to_the_sites_own_page_of_its_job(tmp_path, address):
    site = dataclasses.replace(CLUSTER, job_page=address)
    page = render_job(job_of(tmp_path, attempts=ONE_LIMIT, site=site))
    linked = re.findall(r'href="https://llview.example/job\?id=(\d+)&amp;form=page">job (\d+),', page)
    assert linked == ([("101", "101"), ("102", "102")] if address else [])


def test_means_over_time_cut_out_the_pause_between_attempts(tmp_path):
    lines = gpu_lines(2, seconds=6000) + gpu_lines(2, seconds=6000, start=START + 90_000, use=0.5)
    write_devices(tmp_path, lines)
    devices = [device for device in read_samples([tmp_path / "device.csv"]) if device.kind == "gpu"]
    means = over_time(devices, "utilisation")
    assert 11_800 <= means.index[-1] <= 12_100 and means.shape[1] == 2 and len(means) <= PARTS
    for first, last, use in ((0, 5900, 0.9), (6200, 12_100, 0.5)):
        assert means.loc[first:last].to_numpy() == pytest.approx(use, rel=0.1)
    devices[0].values["utilisation"][10:1000] = array("d", [math.nan] * 990)
    known = over_time(devices, "utilisation")[0].dropna()
    assert known.loc[200:9500].empty and known.min() > 0.4, "what is not known is no 0"


@pytest.mark.parametrize("status", ["done", "failed", "running"])
def test_a_page_is_there_for_every_kind_of_run(tmp_path, status):
    job = job_of(tmp_path, WELL, status=status, steps=None if status == "done" else 12)
    page = render_job(job)
    assert f'data-figure="status_value">{status}<' in page
    drawn = ["attempts", *(["phases"] if status == "done" else []), "loss", "usage"]
    assert re.findall('<figure id="figure-(.*?)"', page) == drawn
    assert not re.search(r"(src=|url\([^#]|@import|<link rel=.stylesheet)", page)


def test_a_run_without_samples_has_a_report(tmp_path):
    job = job_of(tmp_path)
    assert 'id="usage"' not in render_job(job) and "usage" not in [chart.name for chart in job.charts]
    assert "no samples of its devices" in job.findings[0].source


def test_a_run_that_left_nothing_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(ParascaleError, match="parascale launch --run"):
        load_job(tmp_path / "results", tmp_path / "work", "gone")


def test_a_damaged_line_of_samples_is_passed_over(tmp_path):
    write_devices(tmp_path, WELL)
    path = tmp_path / "device.csv"
    whole = read_samples([path])
    with path.open("a") as handle:
        handle.write(",".join(["1"] * (len(COLUMNS) - 3)))
    assert [len(device.times) for device in read_samples([path])] == [len(device.times) for device in whole]

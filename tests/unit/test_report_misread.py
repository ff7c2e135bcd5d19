"""What people misread in pictures of the page, in planted cases: the page says it so that they read it right."""

import csv
import re

import pytest

from parascale.files import write_json
from parascale.report import render_page
from parascale.report.curves import loss
from parascale.report.derived import Spread
from parascale.report.figures import scaling
from parascale.report.findings import findings
from parascale.report.plots import Point, scaling_panel
from parascale.report.provenance import provenance_section
from parascale.report.summary import runs_table
from tests.command import parascale
from tests.unit.fake_results import SHARES, fake, workload, write_results
from tests.unit.test_report_claims import BASE, ddp, report_of, said_of


def test_no_difference_is_said_of_core_hours_too(tmp_path):
    """Two layouts alike in time are alike in cost: nobody is told that one of them is the cheapest."""
    fsdp = fake("fsdp", fsdp=2, gpus_per_node=2, step_seconds=0.0605)
    said = said_of(report_of(tmp_path, fake("single", **BASE), ddp(step_seconds=0.06), fsdp))
    assert said.count("no measurable difference from `fsdp`") == 2


def test_the_best_for_two_aims_is_named_once(tmp_path):
    said = said_of(report_of(tmp_path, fake("single", **BASE), ddp(step_seconds=0.04, memory=200 << 20)))
    assert re.search(r"`ddp` costs the fewest core-hours \([^)]*\) and needs the least memory", said)


def test_what_is_not_ranked_looks_so_in_the_figure(tmp_path):
    busy = {"ddp": {"cores_busy": 4.0, "other_cores_busy": 4.0}}
    fakes = fake("single", **BASE), ddp(step_seconds=0.06), ddp("four", 4, step_seconds=0.05)
    figure = scaling(report_of(tmp_path, *fakes, summaries=busy))
    hollow = re.compile(r"<title>([^<]*)</title><circle[^>]*fill: var\(--paper\)")
    assert "Hollow dots are not ranked" in figure.caption
    marks = figure.panels[1].marks
    assert [note.split(" on ")[0] for note in hollow.findall(marks)] == ["ddp"]
    assert "not ranked</title>" in figure.panels[0].marks + marks and marks.count("not ranked") == 1


def test_ranges_on_as_many_gpus_stand_side_by_side():
    """One over the other, nobody can tell whose range is whose."""
    points = [Point(2, Spread((mean,), mean, mean / 2, mean * 2), "c1", str(mean)) for mean in (1.2, 1.3, 1.4)]
    origin = Point(1, Spread((1.0,), 1.0, 1.0, 1.0), "c0", "baseline")
    panel = scaling_panel("Title", "words", "GPUs", "speed-up", [(point.note, [point]) for point in points], origin)
    places = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', panel.marks)]
    assert all(abs(one - other) > 4 for index, one in enumerate(places) for other in places[:index])


def test_a_validation_loss_far_above_the_curves_does_not_press_them_flat(tmp_path):
    """An epoch whose running statistics are not there yet: 30 nats above a curve from 9 to 4."""
    spike = {"single": lambda lines: lines[19].update(validation_loss=34.5)}
    figure = loss(report_of(tmp_path, fake("single", **BASE), steps=spike))
    assert "A number with an arrow is a validation loss above the plot" in figure.caption
    assert all("↑ 34.5" in panel.marks for panel in figure.panels)
    assert "↑" not in loss(report_of(tmp_path / "calm", fake("single", **BASE))).panels[0].marks


def test_a_finding_says_the_bubble_that_the_table_says(tmp_path):
    """Rank 0 waits less or longer than the mean rank: one figure is shown."""
    shares = SHARES | {"bubble": 0.9}
    piped = fake("pp", pp=2, micro_batches=4, gpus_per_node=2, shares=shares)
    report = report_of(tmp_path, fake("single", **BASE), piped, summaries={"pp": {"bubble_measured": 0.31}})
    said = {finding.short: finding.source for finding in findings(report.records[0], (), report.comparisons["pp"])}
    assert said["bubble 31 % of a step"] == "bubble_measured in summary.json"


@pytest.mark.parametrize(("step_seconds", "said"), [(0.055, False), (0.075, True)])
def test_cores_that_slow_each_other_down_are_said(step_seconds, said, tmp_path):
    """Half of the samples in three quarters of the time, without communication: where the efficiency went."""
    report = report_of(tmp_path, fake("single", **BASE), ddp(step_seconds=step_seconds))
    texts = [cell.text for row in runs_table(report).rows for cell in row.cells]
    assert any("a sample computes 1.5 × as long" in text for text in texts) == said


def test_runs_of_one_origin_share_a_row(tmp_path):
    """A digest of code a workload, not one a run."""
    runs = fake("single", **BASE), ddp(), fake("tp", tp=2, gpus_per_node=2, seed=2)
    table = provenance_section(report_of(tmp_path, *runs)).values["table"]
    assert [row.run for row in table.rows] == ["ddp, single", "tp"]


@pytest.mark.parametrize(("ranks", "there"), [(4, True), (16, False)])
def test_no_layout_is_advised_for_more_processes_than_cores(ranks, there, tmp_path):
    """A machine of 8 cores: what is not ranked is no size to advise for; and processes are not called GPUs."""
    text = workload(data={"dataset": "prose"})
    wide = fake("wide", dp=ranks, gpus_per_node=ranks, train=text)
    write_results(tmp_path, [fake("single", train=text, **BASE), ddp(train=text), wide])
    splits = {name: {"tokens": 50_000} for name in ("train", "validation", "test")}
    write_json(tmp_path / "results/data/prose/flat/manifest.json", {"vocabulary": 4000, "splits": splits})
    only = [word for run in ("single", "ddp", "wide") for word in ("--only", run)]
    parascale("report", "--root", tmp_path, *only, check=True)
    advised = list(csv.DictReader((tmp_path / "results/report/advice.csv").open()))
    assert {row["gpus"] for row in advised} == {"4 processes" if there else "2 processes"}
    assert not [row["reason"] for row in advised if "GPU" in row["reason"]]


def test_without_advice_there_is_no_section_that_is_empty(tmp_path):
    """Models without formulas have none, and a heading without a table says nothing."""
    page = render_page(report_of(tmp_path, fake("single", **BASE), ddp(step_seconds=0.06)))
    assert "Which layout next" not in page

"""What people misread in plots, in planted cases: each is drawn so that they read it right."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from parascale.report.chart import Chart
from parascale.report.figures import FIGURES, MOST, cost, loss, memory, phases, scaling, spent
from tests.made_up.results import BASE, SHARES, ddp, fake, report_of, workload

SVG = "{http://www.w3.org/2000/svg}"
BUSY = {"ddp": {"cores_busy": 4.0, "other_cores_busy": 4.0}}


def axes_of(chart):
    """The Axes of a drawn Chart."""
    with chart.drawn() as figure:
        return figure.axes


def labels(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_what_is_not_ranked_or_different_looks_so(tmp_path):
    wrong = fake("wrong", tp=2, gpus_per_node=2, verdict="different", loss_shift=1e-2)
    report = report_of(tmp_path, fake("single", **BASE), ddp(), ddp("four", 4), wrong, summaries=BUSY)
    (axes,) = axes_of(scaling(report))
    points = [line for line in axes.lines if line.get_marker() == "o"]
    hollow = [list(line.get_xdata()) for line in points if line.get_markerfacecolor() != line.get_color()]
    assert hollow == [[2]]
    assert "Hollow" in scaling(report).caption
    assert not [label for label in labels(axes) if "wrong" in label]
    for chart in (phases(report), memory(report)):
        for word in ("not ranked", "different"):
            assert len(re.findall(f", {word}</text>", chart.svg)) == 1, (chart.name, word)


@pytest.mark.parametrize(("sizes", "lines"), [((2,), []), ((2, 4), [[2, 4]])])
def test_a_line_spans_only_what_was_measured(sizes, lines, tmp_path):
    """Not from the baseline on; and two points of different strategies are no curve."""
    fakes = [ddp(f"ddp-{ranks}", ranks, step_seconds=0.1 / ranks) for ranks in sizes]
    fsdp = fake("fsdp", fsdp=2, gpus_per_node=2, step_seconds=0.04)
    (axes,) = axes_of(scaling(report_of(tmp_path, fake("single", **BASE), fsdp, *fakes)))
    curves = [list(line.get_xdata()) for line in axes.lines if line.get_linestyle() == "-"]
    assert [places for places in curves if len(places) > 1] == lines
    assert len([line for line in axes.lines if line.get_marker() == "o"]) == 2 + len(sizes)
    assert labels(axes)[0].startswith("fsdp" if sizes == (2,) else "ddp"), "the fastest on top"


def test_strong_and_weak_scaling_have_a_plot_each(tmp_path):
    report = report_of(tmp_path, fake("single", **BASE), ddp(), ddp("weak", scaling="weak", step_seconds=0.125))
    titles = [axes.get_title("left") for axes in axes_of(scaling(report))]
    assert titles == ["Times as fast as single", "Rate per process against single"]


def test_one_process_talks_to_nobody_and_bars_are_as_long_as_steps(tmp_path):
    short = ddp(step_seconds=0.001, shares=SHARES | {"communication": 2.0})
    report = report_of(tmp_path, fake("single", **BASE), short)
    (axes,) = axes_of(phases(report))
    widths = {}
    for bar in axes.patches:
        widths[round(bar.get_y(), 1)] = widths.get(round(bar.get_y(), 1), 0) + bar.get_width()
    assert list(widths.values()) == pytest.approx([0.001, 0.1], rel=0.05)
    talked = {record.name: bool(spent(record)["communication"]) for record in report.records}
    assert talked == {"single": False, "ddp": True}
    assert "communication" in phases(report).svg and re.search(r"69 % communication</text>", phases(report).svg)


def test_many_runs_keep_a_figure_small_and_those_that_matter_named(tmp_path):
    runs = [ddp(f"ddp-{number}", seed=number, step_seconds=0.05 + number / 1000) for number in range(1, 30)]
    wrong = fake("wrong", tp=2, gpus_per_node=2, verdict="different", loss_shift=1e-2)
    report = report_of(tmp_path, *runs, fake("single", **BASE), wrong, ddp("stuck", status="failed", steps=9))
    (axes,) = axes_of(loss(report))
    assert {"single", "wrong (different)", "stuck (failed)"} <= set(labels(axes)) and len(labels(axes)) == 10
    assert "Of 10 runs." in loss(report).caption
    told = [(line.get_color(), line.get_linestyle()) for line in axes.lines if not line.get_label().startswith("_")]
    assert len(set(told)) >= len(told) - 4
    for chart in (phases(report), cost(report)):
        assert len(axes_of(chart)[0].get_yticks()) <= MOST and chart.height < 8
    assert f"The {MOST} quickest" in phases(report).caption


def test_a_validation_loss_far_above_the_curves_does_not_press_them_flat(tmp_path):
    """An epoch whose running statistics are not there yet: 30 nats above a curve from 9 to 4."""
    spike = {"single": lambda lines: lines[19].update(validation_loss=34.5)}
    (axes,) = axes_of(loss(report_of(tmp_path, fake("single", **BASE), steps=spike)))
    assert axes.get_ylim()[1] < 12


def test_the_factor_of_the_plans_is_in_the_title_of_the_cost(tmp_path):
    runs = fake("single", **BASE), ddp(step_seconds=0.06)
    prices = {name: {"prediction": {"core_hours": hours}} for name, hours in (("single", 1.0), ("ddp", 1.0))}
    charged = {name: {"core_hours": hours} for name, hours in (("single", 2.0), ("ddp", 0.25))}
    chart = cost(report_of(tmp_path, *runs, runs=prices, summaries=charged))
    assert chart.title == "Jobs cost 12 % more than planned, at worst 75 % less than planned"
    assert "core-hours" in axes_of(chart)[0].get_xlabel()


def test_a_chart_is_the_same_bytes_again_has_the_colours_of_the_theme_and_no_formulas(tmp_path):
    name, other = "a$_b$<c>", fake("other", "other", train=workload("second"))
    report = report_of(tmp_path, fake(name, baseline=name, verdict="baseline"), other)
    for make in FIGURES.values():
        if chart := make(report):
            assert make(report).file == chart.file
            assert not re.findall("#[0-9a-f]{6}", chart.svg) and "font-family" not in chart.svg
            assert "var(--" in chart.svg and 'aria-label="' in chart.svg
            root = ElementTree.fromstring(chart.file)
            assert root.tag == f"{SVG}svg"
            assert len(root.get("aria-label")) > 30
            assert "--paper" in root.find(f"{SVG}style").text
    assert ">a$_b$&lt;c&gt;</text>" in phases(report).svg
    ids = re.findall(' id="(.*?)"', phases(report).svg)
    assert len(ids) == len(set(ids)) and all(each.startswith("phases-") for each in ids)


def test_values_are_written_whole_and_places_short():
    """Digits are cut from where things stand, not from what is said."""
    chart = Chart("x", "Title", "", lambda figure: figure.text(1 / 3, 1 / 3, "1.23456 s"))
    assert ">1.23456 s</text>" in chart.svg
    assert not re.search(r"\d\.\d\d", re.sub(">[^<]*<", "><", chart.svg).split("aria-label")[1])

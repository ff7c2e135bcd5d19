"""What people misread in plots, in planted cases: each is drawn so that they read it right."""

import dataclasses
import re

import pytest

from parascale.report.curves import MOST, loss
from parascale.report.derived import Spread
from parascale.report.drawing import COLOURS, WIDTH, canvas
from parascale.report.figures import memory, phases, scaling, throughput
from parascale.report.memories import COLUMNS
from parascale.report.plots import Bar, Point, bars_panels, scaling_panel
from tests.unit.fake_results import BASE, CLUSTER, SHARES, ddp, fake, report_of, workload


def test_what_is_not_ranked_looks_so_in_the_figure(tmp_path):
    busy = {"ddp": {"cores_busy": 4.0, "other_cores_busy": 4.0}}
    fakes = fake("single", **BASE), ddp(step_seconds=0.06), ddp("four", 4, step_seconds=0.05)
    figure = scaling(report_of(tmp_path, *fakes, summaries=busy))
    hollow = re.compile(r"<title>([^<]*)</title><circle[^>]*fill: var\(--paper\)")
    assert "Hollow dots are not ranked" in figure.caption
    (panel,) = figure.panels
    marks = panel.marks
    assert [note.split(" on ")[0] for note in hollow.findall(marks)] == ["ddp"]
    assert marks.count("not ranked</title>") == 1


def test_what_is_different_or_not_ranked_says_so_beside_each_bar(tmp_path):
    wrong = fake("wrong", tp=2, gpus_per_node=2, verdict="different", loss_shift=1e-2)
    report = report_of(tmp_path, fake("single", **BASE), ddp(), ddp("wide", ranks=16), wrong)
    assert "wrong" not in "".join(panel.marks for panel in scaling(report).panels)
    for figure in (phases(report), memory(report), throughput(report)):
        for word in ("not ranked", "different"):
            marks = [len(re.findall(f"<text[^>]*>[^<]*, {word}</text>", panel.marks)) for panel in figure.panels]
            assert marks == [1] * len(figure.panels), (figure.name, word)


def test_a_limit_far_beyond_all_bars_stands_in_the_title(tmp_path):
    """Beside 40 GB no bar of 300 MB would be seen."""
    fakes = fake("single", verdict="baseline", site=CLUSTER), ddp("dp", site=CLUSTER)
    assert "39.5 GiB" in memory(report_of(tmp_path, *fakes)).panels[0].title


def listed(panel):
    """What stands beside a scaling plot, from the top."""
    texts = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)</text>', panel.marks)
    right = max(float(x) for x, _, text in texts if re.fullmatch("[0-9,]+", text))
    return [text for _, text in sorted((float(y), text) for x, y, text in texts if float(x) > right)]


def test_names_beside_a_scaling_plot_are_a_ranking_of_what_is_ranked(tmp_path):
    """In another order than their dots they looked like the reverse ranking, and what led to them like curves."""
    fakes = ddp(step_seconds=0.06), fake("fsdp", fsdp=2, gpus_per_node=2, step_seconds=0.05)
    busy = {"tp": {"cores_busy": 4.0, "other_cores_busy": 4.0}}
    fastest = fake("tp", tp=2, gpus_per_node=2, step_seconds=0.04)
    figure = scaling(report_of(tmp_path, fake("single", **BASE), fastest, *fakes, summaries=busy))
    for panel in figure.panels[1:]:
        assert [entry.split()[0] for entry in listed(panel)] == ["fsdp", "ddp", "not", "tp"]
        assert ">ideal</text>" in panel.marks
        values = re.findall(r"<title>(\w+) on \d \w+: ([^<,]*)[^<]*</title><circle", panel.marks)
        assert {*listed(panel)} == {"not ranked:", *(" ".join(entry) for entry in values if entry[0] != "single")}


def test_points_stand_at_their_gpus():
    """Moved aside, a run on two GPUs seems to be on fewer, and above the ideal line."""
    points = [Point(2, Spread((mean,), mean, mean / 2, mean * 2), 1, str(mean)) for mean in (1.2, 1.3, 1.4)]
    origin = Point(1, Spread((1.0,), 1.0, 1.0, 1.0), 0, "baseline")
    panel = scaling_panel("Title", "words", "GPUs", "speed-up", [(point.note, [point]) for point in points], origin)
    places = re.findall(r'</title><circle cx="([\d.]+)"', panel.marks)
    assert len(places) == 4 and len(set(places)) == 2


@pytest.mark.parametrize(("sizes", "lines"), [((2,), 0), ((2, 4), 1)])
def test_a_strategy_of_one_size_is_a_dot_and_no_line(sizes, lines, tmp_path):
    """Two points of different strategies are no curve, and one point is none either."""
    fakes = [ddp(f"ddp-{ranks}", ranks, step_seconds=0.1 / ranks) for ranks in sizes]
    fsdp = fake("fsdp", fsdp=2, gpus_per_node=2, step_seconds=0.05)
    _, *panels = scaling(report_of(tmp_path, fake("single", **BASE), fsdp, *fakes)).panels
    for panel in panels:
        marks = {kind: panel.marks.count(f'<g class="{kind}">') for kind in ("line", "dot", "ideal")}
        assert marks == {"line": lines, "dot": 2 + len(sizes), "ideal": 1}


def test_kinds_beyond_the_colours_have_marks_of_their_own():
    """Their colours come again."""
    spread = Spread((1.2,), 1.2, 1.2, 1.2)
    series = [(str(number), [Point(2, spread, number, f"kind {number}", "1.20 ×")]) for number in range(1, COLOURS + 2)]
    origin = Point(1, Spread((1.0,), 1.0, 1.0, 1.0), 0, "baseline")
    marks = scaling_panel("Title", "words", "GPUs", "speed-up", series, origin).marks
    drawn = re.findall(r'<g class="dot"><title>(.*?)</title><(\w+) .*?fill: var\(--(c\d)\)', marks)
    assert len(drawn) == len({(shape, colour) for _, shape, colour in drawn}) == COLOURS + 2


def test_long_names_leave_room_for_the_plot_and_differ(tmp_path):
    names = [f"a-training-of-many-words-with-mmmmmmmmmm-{end}" for end in ("first", "second")]
    drawn = bars_panels("Title", "Bars", [Bar(name, (("c0", 1.0, ""),), "1 s") for name in names])[0].marks
    shown = re.findall(r'<g class="name"><title>(.*?)</title><text x="([\d.]+)"[^>]*>(.*?)</text>', drawn)
    assert [name for name, _, _ in shown] == names and len({text for _, _, text in shown}) == 2
    assert max(float(end) for _, end, _ in shown) < WIDTH / 2


def many(root, count):
    """A Report of a baseline and so many other runs of its workload: one is different, one failed."""
    runs = [ddp(f"ddp-{number}", seed=number, step_seconds=0.05 + number / 1000) for number in range(1, count - 1)]
    odd = (
        fake("wrong", tp=2, gpus_per_node=2, verdict="different", loss_shift=1e-2),
        ddp("stuck", status="failed", steps=9),
    )
    return report_of(root, fake("single", **BASE), *runs, *odd)


@pytest.mark.parametrize("count", [MOST - 1, 2 * MOST])
def test_every_line_of_a_loss_panel_that_is_named_has_an_ink_of_its_own(count, tmp_path):
    """However many runs there are, the baseline, the best and those that went wrong are told from the others."""
    figure = loss(many(tmp_path, count))
    legend = figure.panels[0].legend
    labels, inks = [entry.label for entry in legend], {(entry.colour, entry.dashes) for entry in legend}
    assert len(inks) == len(legend) <= MOST + 1
    assert {colour for colour, _ in inks} - {"other"} == {"c0", "c1", "c2"}, "a kind has one colour"
    assert {"single", "wrong (different)", "stuck (failed)"} <= set(labels)
    assert (f"{2 * MOST - 3} other runs" in labels) == (count > MOST)


def test_a_prediction_beyond_the_bar_is_drawn_and_in_the_legend(tmp_path):
    """As a tick across the bar it looked like an axis, or like what was measured."""
    report = report_of(tmp_path, fake("single", **BASE), ddp())
    records = [dataclasses.replace(record, prediction={"memory_bytes": 900 << 20}) for record in report.records]
    figure = memory(dataclasses.replace(report, records=tuple(records)))
    (panel,) = figure.panels
    assert "<title>ddp: predicted 900 MiB</title><path" in panel.marks and panel.marks.count("MiB</text>") == 2
    assert figure.legend[-1].label == "predicted before the run" in figure.caption
    assert {"Predicted before the run", "Process besides"} <= {column.title for column in COLUMNS}


def test_runs_of_two_workloads_have_a_legend_each(tmp_path):
    """One below all panels holds entries that most panels do not have."""
    other = fake("alone", baseline="alone", verdict="baseline", train=workload("large"))
    figure = loss(report_of(tmp_path, fake("single", **BASE), other))
    assert [[entry.label for entry in row[0].legend] for row in figure.rows] == [
        ["alone"],
        ["single"],
    ] and not figure.legend


def test_the_share_of_communication_is_read_from_the_axis(tmp_path):
    """Bars of a step's length hide it where steps are short; it begins at 0, in bars that are as long as each other."""
    short = ddp(step_seconds=0.001, shares=SHARES | {"communication": 2.0})
    marks = phases(report_of(tmp_path, fake("single", **BASE), short)).panels[0].marks
    bars = re.findall(r"<title>(\w+): (\w+) [^<]*</title><path d=\"M ([\d.]+) [\d.]+ L ([\d.]+) ", marks)
    starts = {(run, phase): float(low) for run, phase, low, _ in bars}
    ends = [max(float(high) for run, _, _, high in bars if run == name) for name in ("single", "ddp")]
    assert starts["ddp", "communication"] == min(starts.values())
    assert ("single", "communication") not in starts, "one process talks to nobody"
    assert ends[0] == pytest.approx(ends[1], abs=0.2)


def test_a_validation_loss_far_above_the_curves_does_not_press_them_flat(tmp_path):
    """An epoch whose running statistics are not there yet: 30 nats above a curve from 9 to 4."""
    spike = {"single": lambda lines: lines[19].update(validation_loss=34.5)}
    figure = loss(report_of(tmp_path, fake("single", **BASE), steps=spike))
    assert "A number with an arrow is a validation loss above the plot" in figure.caption
    assert all("↑ 34.5" in panel.marks for panel in figure.panels)
    assert "↑" not in loss(report_of(tmp_path / "calm", fake("single", **BASE))).panels[0].marks


@pytest.mark.parametrize(("count", "panels"), [(24, 1), (25, 3), (100, 3), (103, 6)])
def test_many_bars_stand_beside_each_other_on_one_scale(count, panels):
    """A hundred in one column are longer than a sheet of paper, with two thirds of the page empty beside them."""
    bars = [Bar(f"run-{number}", (("c0", float(number + 1), ""),), "1 s") for number in range(count)]
    drawn = bars_panels("Title", "Bars", bars)
    assert len(drawn) == panels and len({panel.row for panel in drawn}) == 1
    widths = []
    for panel in drawn:
        with canvas(WIDTH, panel.height) as figure:
            axes = figure.add_axes((0, 0, 1, 1))
            panel.draw(axes)
            widths += [patch.get_width() for patch in axes.patches]
            assert axes.get_xlim() == (0, count)
    assert widths == [number + 1 for number in range(count)]


def test_bars_of_one_value_are_equally_long_in_all_panels():
    """Names and words of other lengths left each panel another room."""
    words = [
        (f"run-{number}" * (1 + number // 20), "1 s, not ranked" if number == 29 else "1 s") for number in range(30)
    ]
    drawn = bars_panels("Title", "Bars", [Bar(name, (("c0", 1.0, ""),), text) for name, text in words])
    corners = [re.findall(r'<g class="bar"><path d="M ([\d.]+) [\d.]+ L ([\d.]+)', panel.marks) for panel in drawn]
    lengths = [abs(float(end) - float(start)) for panel in corners for start, end in panel]
    assert len(lengths) == 30 and max(lengths) - min(lengths) < 0.5, lengths
    assert all(panel.marks.count("run-0") <= 1 and "opacity: 0;" not in panel.marks for panel in drawn)


def test_a_line_of_a_scaling_plot_spans_only_what_was_measured():
    """From the baseline on 1 GPU to the first run on 8 it would show values on 2 and 4 that nobody knows."""

    def point(gpus):
        return Point(gpus, Spread((1.0,), 1.0, 1.0, 1.0), 1, "")

    panel = scaling_panel("Title", "Words", "GPUs", "speed-up", [("mixed", [point(8), point(16)])], point(1))
    with canvas(WIDTH, panel.height) as figure:
        axes = figure.add_axes((0, 0, 1, 1))
        panel.draw(axes)
        lines = [line.get_xdata() for line in axes.lines if (line.get_gid() or "").startswith("line")]
    assert [list(line) for line in lines] == [[8, 16]]

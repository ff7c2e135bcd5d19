"""The page: it needs nothing but itself, is the same when it is built again, and is right about what is not there."""

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from parascale.report import build_report, load_records, render_page, write_report
from parascale.report.figures import FIGURES
from parascale.report.measured import Readings
from parascale.report.page import warnings
from parascale.report.plans import next_steps
from parascale.report.verdict import verdicts
from tests.command import call
from tests.made_up.results import BASE, CLUSTER, ddp, fake, matrix, report_of, workload, write_results
from tests.pace import processor_seconds, starts


def test_rebuilding_gives_the_same_bytes(matrix_report):
    before = {path: path.read_bytes() for path in (matrix_report / "report").rglob("*") if path.is_file()}
    names = [*(entry.run.run for entry in matrix()), "zero-bubble"]
    words = ["--root", matrix_report, "--output", matrix_report / "report", "--config", "title=A title & more"]
    call("report", *words, *(word for name in names for word in ("--only", name)))
    assert len(before) == 5 + len(FIGURES)
    assert {path: path.read_bytes() for path in before} == before


def test_the_page_is_one_file_that_asks_for_nothing(matrix_page):
    for word in ("http://", "https://", '<link rel="stylesheet', "@import", "src="):
        assert word not in matrix_page.replace("http://www.w3.org/", ""), word
    assert not re.findall(r"url\([^#]", matrix_page)


def test_every_figure_has_a_text_alternative_and_ids_are_unique(matrix_page):
    charts = re.findall('<svg class="chart" role="img" aria-label="([^"]+)"', matrix_page)
    assert len(charts) >= 5 and all(len(text) > 60 for text in charts)
    ids = re.findall(' id="(.*?)"', matrix_page)
    assert len(ids) == len(set(ids))


def test_what_went_wrong_is_a_warning_at_the_very_top_and_grey_in_the_table(tmp_path, matrix_page):
    """Its cost is in no comparison; runs that are ranked come first, then what is not, then what is not finished."""
    wrong = fake("wrong", tp=2, gpus_per_node=2, verdict="different", loss_shift=1e-2, step_seconds=0.01)
    runs = fake("single", **BASE), ddp(step_seconds=0.06), wrong, ddp("stuck", status="failed", steps=3)
    page = render_page(report_of(tmp_path, *runs))
    assert page.index('role="alert"') < page.index('<section id="workload-lm-small"')
    table = page.split('id="runs-lm-small"')[1].split("</table>")[0]
    rows = re.findall(r'<tr data-run="(.*?)"( class="faded")?', table)
    assert [run for run, _ in rows] == ["ddp", "single", "wrong", "stuck"]
    assert [run for run, faded in rows if faded] == ["wrong", "stuck"]
    assert 'role="alert"' not in matrix_page


def test_what_a_baseline_of_several_processes_cannot_tell_is_not_promised(tmp_path):
    wrong = fake("wrong", tp=2, gpus_per_node=2, verdict="different", baseline="two")
    said = warnings(report_of(tmp_path, ddp("two", verdict="baseline"), wrong))
    assert said[-1].endswith("Do not compare its cost.")


def test_machines_without_a_common_baseline_are_not_beside_one_another(tmp_path):
    """A faster machine's baseline does not come between the runs of a slower one."""
    there = [
        fake("there", "there", site=CLUSTER, verdict="baseline", step_seconds=0.08),
        ddp("ddp-there", baseline="there", site=CLUSTER, step_seconds=0.07),
    ]
    report = report_of(tmp_path, fake("single", **BASE), ddp(step_seconds=0.06), *there)
    (verdict,) = verdicts(report)
    rows = verdict.table.frame
    assert list(rows["run"]) in (["ddp", "single", "ddp-there", "there"], ["ddp-there", "there", "ddp", "single"])
    assert len(verdict.sentences) == 2


def test_a_terminal_gets_a_table_with_the_fastest_first_and_what_is_not_ranked_last(matrix_report, golden):
    golden((matrix_report / "report/verdict.txt").read_text())


NEXT = {
    "a failed run": ([ddp("stuck", status="failed", steps=3)], {}),
    "a pipeline that waits": ([fake("pp", pp=2, micro_batches=4, gpus_per_node=2)], {"pp": {"bubble_measured": 0.49}}),
    "nothing": ([ddp()], {}),
}


@pytest.mark.parametrize("case", NEXT)
def test_what_to_do_next_is_said_with_a_command(case, tmp_path, golden):
    runs, measured = NEXT[case]
    steps = next_steps(report_of(tmp_path, fake("single", **BASE), *runs, summaries=measured))
    golden("\n".join(map(" ".join, steps)))
    assert all(command.startswith("parascale ") for _, command in steps)


@pytest.mark.parametrize("names", [None, ["single", "ddp"]])
def test_a_report_of_nothing_says_how_to_get_something(tmp_path, names):
    report = build_report(load_records(tmp_path / "results", tmp_path / "work", names), "Title")
    write_report(report, tmp_path / "report")
    page = (tmp_path / "report/index.html").read_text()
    assert "make run" in page and "<svg" not in page
    assert len((tmp_path / "report/summary.csv").read_text().splitlines()) == 1 + len(names or ())
    for name in FIGURES:
        assert "Nothing to draw yet" in (tmp_path / f"report/figures/{name}.svg").read_text()


def test_runs_that_are_not_in_the_table_are_named(tmp_path):
    write_results(tmp_path, [fake("single"), fake("old")])
    call("report", "--root", tmp_path, "--output", tmp_path, "--only", "single")
    page = (tmp_path / "index.html").read_text()
    assert "left out: <code>old</code>" in page and "old" not in (tmp_path / "summary.csv").read_text()


def test_every_caption_that_a_rule_names_is_there():
    """Snakemake looks for it when its report is made, not before."""
    rules = Path(__file__).parents[2] / "rules"
    named = {name for path in rules.glob("*.smk") for name in re.findall(r'caption=f?"(.+?)"', path.read_text())}
    assert len(named) > 5
    for place in {each.format(name=name) for each in named for name in FIGURES}:
        assert len((rules / place).read_text().split()) > 8, place


def test_names_and_titles_cannot_break_the_page(tmp_path):
    train = workload('<script>alert("x")</script>')
    fakes = fake("single", verdict="baseline", train=train), ddp(train=train)
    readings = Readings("shapes", note='<script>alert("x")</script>')
    records = report_of(tmp_path, *fakes).records
    write_report(build_report(records, "<script>", readings=(readings,)), tmp_path / "report")
    page = (tmp_path / "report/index.html").read_text()
    assert "<script>alert" not in page and "<title>&lt;script&gt;</title>" in page and "&lt;script&gt;alert" in page
    for name in FIGURES:
        ElementTree.parse(tmp_path / f"report/figures/{name}.svg")


# Calls the command and prints its peak memory. What a parent learns of its child begins with the parent's own, taken over at
# the fork.
WITH_PEAK = """
from pathlib import Path
from parascale.cli import main
try:
    main()
finally:
    print(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")))
"""


@pytest.mark.slow
def test_many_long_runs_are_quick_and_small(tmp_path):
    """Fifty runs of 2,000 steps: under 30 s of processor time, 1 GB and 5 MB, in a process of its own."""
    runs, train = 50, workload(steps=2000, evaluate_every=100)
    fakes = [fake("run-0", baseline="run-0", verdict="baseline", train=train, site=CLUSTER)]
    for number in range(1, runs):
        kind = ("dp", "fsdp", "tp", "pp")[number % 4]
        options = {"gpus_per_node": 4, kind: 4, "train": train, "site": CLUSTER}
        fakes.append(fake(f"run-{number}", baseline="run-0", seed=number // 4, **options))
    write_results(tmp_path, fakes)
    words = ["report", "--everything", "--root", tmp_path, "--output", tmp_path / "report"]
    command = [sys.executable, "-c", WITH_PEAK, *words]
    seconds, done = processor_seconds(command, check=True)
    assert starts(seconds) < 25 and int(done.stdout.split()[-2]) * 1024 < 1e9
    assert (tmp_path / "report/index.html").stat().st_size < 5e6

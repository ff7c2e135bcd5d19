"""What people misread in pictures of the page, in planted cases: the page says it so that they read it right."""

import csv
import dataclasses
import re

import pytest

from parascale.files import write_json
from parascale.report import render_page
from parascale.report.comparing import RULE
from parascale.report.curves import MOST
from parascale.report.figures import memory, phases, scaling, throughput
from parascale.report.findings import findings
from parascale.report.job import load_job
from parascale.report.plans import plan_section
from parascale.report.provenance import provenance_section
from parascale.report.summary import runs_table
from parascale.report.verdict import verdicts
from tests.command import parascale
from tests.unit.fake_results import CLUSTER, SHARES, SITE, fake, workload, write_results
from tests.unit.test_report_claims import BASE, ddp, report_of, said_of
from tests.unit.test_report_plots import many


def test_no_difference_is_said_of_core_hours_too(tmp_path):
    """Two layouts alike in time are alike in cost: nobody is told that one of them is the cheapest."""
    fsdp = fake("fsdp", fsdp=2, gpus_per_node=2, step_seconds=0.0605)
    said = said_of(report_of(tmp_path, fake("single", **BASE), ddp(step_seconds=0.06), fsdp))
    assert said.count("no measurable difference from `fsdp`") == 2


def test_the_best_for_two_aims_is_named_once(tmp_path):
    said = said_of(report_of(tmp_path, fake("single", **BASE), ddp(step_seconds=0.04, memory=200 << 20)))
    assert re.search(r"`ddp` costs the fewest core-hours \([^)]*\) and needs the least memory", said)


def test_the_rule_of_a_measured_difference_is_the_printed_one(tmp_path):
    """Ranges that do not overlap are not enough, which readers must be told where they read the verdict; findings agree with it."""

    def even(seconds):
        return lambda lines: [line["seconds"].update(total=seconds) for line in lines]

    steps = {"single": even(0.1), "ddp": even(0.1015)}
    report = report_of(tmp_path, fake("single", **BASE), ddp(), steps=steps)
    compared = report.comparisons["ddp"]
    assert compared.high < 1 < 1.02 * compared.speedup, "the ranges are apart, by less than the margin"
    assert "no measurable difference from `ddp`" in said_of(report)
    assert not [found for found in findings(report.records[0], (), compared) if "slower" in found.text]
    page = render_page(report)
    assert RULE in page.split('id="verdict"')[1].split("</section>")[0]


def test_a_different_run_is_left_out_of_comparisons_and_marked_elsewhere(tmp_path):
    """Its cost is not to be compared; and it is the first row of the tables, as what failed is."""
    wrong = fake("wrong", tp=2, gpus_per_node=2, verdict="different", loss_shift=1e-2)
    report = report_of(tmp_path, fake("single", **BASE), ddp(), wrong, ddp("stuck", status="failed", steps=3))
    assert "wrong" not in "".join(panel.marks for panel in scaling(report).panels)
    for figure in (throughput(report), memory(report), phases(report)):
        assert re.search(", different</(text|title)>", figure.panels[0].marks), figure.name
    page = render_page(report)
    left_out = page.split("Left out of these figures")[1].split("</ul>")[0]
    assert (
        "<code>wrong</code>: the result is different" in left_out
        and "<code>stuck</code>: not finished (failed)" in left_out
    )
    rows = re.findall(r'<tr data-run="(.*?)"', page.split('id="runs-table"')[1].split("</table>")[0])
    assert rows == ["stuck", "wrong", "ddp", "single"]


def test_a_different_run_is_marked_in_every_table(tmp_path):
    """Beside its name, once, whatever the table shows of it."""
    wrong = fake("wrong", tp=2, gpus_per_node=2, verdict="different", loss_shift=1e-2)
    page = render_page(report_of(tmp_path, fake("single", **BASE), ddp(), wrong))
    rows = re.findall(r'<tr data-run="wrong".*?</th>', page, re.DOTALL)
    assert len(rows) > 5 and all(row.count("different") == 2 and "tag different" in row for row in rows), rows
    assert not re.search(r'<tr data-run="ddp"[^>]*>\s*<th[^>]*>[^/]*tag different', page)


def test_one_value_is_neither_a_median_nor_the_worst(tmp_path):
    """A plan of one run, or of runs that were all as far off, is off by one factor."""
    for runs in ([fake("single", **BASE)], [fake("single", **BASE), ddp(step_seconds=BASE["step_seconds"])]):
        said = " ".join(plan_section(report_of(tmp_path / str(len(runs)), *runs)).values["judged"])
        assert said.count("off by a factor of") == 3 and not re.search("median|worst", said), said


def test_tables_say_what_their_numbers_are(tmp_path):
    """Absolute or relative, a sum or of one GPU, a mean of what, and why `same` runs end apart."""
    page = " ".join(render_page(report_of(tmp_path, fake("single", **BASE), ddp())).split())
    assert "Training loss, mean of last 10 steps" in page and "Loss difference, nats" in page
    assert "of losses absolute, in nats" in page and "final losses and accuracies may end slightly apart" in page
    assert "Energy" not in page[page.index('id="throughput"') :].split("</section>")[0], "nothing of it is known"
    measured = {"ddp": {"energy_joules": 5e4}}
    page = render_page(report_of(tmp_path / "measured", fake("single", **BASE), ddp(), summaries=measured))
    assert "Energy: the sum over all GPUs of the run" in page and "Energy of all GPUs, whole run" in page
    assert "there is none where fewer than two steps are known" in page


def test_the_page_of_a_job_has_the_colour_that_all_runs_give_its_kind(tmp_path):
    """Alone on its page, each run was drawn as the baseline is."""
    fakes = fake("single", **BASE), ddp(), fake("tp", tp=2, gpus_per_node=2)
    everything = report_of(tmp_path, *fakes)
    table = tuple(record.run for record in everything.records)
    for record in everything.records:
        alone = load_job(tmp_path / "results", tmp_path / "work", record.name, table).report
        assert alone.series(record) == everything.series(record)
    assert len({everything.series(record) for record in everything.records}) == 3


def test_a_table_that_scrolls_says_how_many_rows_it_has(tmp_path):
    """On a telephone it ends like a table that is whole."""
    assert f"Every run, finished or not: {2 * MOST + 1} rows" in render_page(many(tmp_path, 2 * MOST))


def test_a_finding_says_the_bubble_that_the_table_says(tmp_path):
    """Rank 0 waits less or longer than the mean rank: one figure is shown."""
    shares = SHARES | {"bubble": 0.9}
    piped = fake("pp", pp=2, micro_batches=4, gpus_per_node=2, shares=shares)
    report = report_of(tmp_path, fake("single", **BASE), piped, summaries={"pp": {"bubble_measured": 0.31}})
    said = {finding.short: finding.source for finding in findings(report.records[0], (), report.comparisons["pp"])}
    assert said["bubble 31 % of a step"] == "bubble_measured in summary.json"


@pytest.mark.parametrize(("ranks", "found"), [(1, False), (2, True)])
def test_a_finding_says_that_one_process_talks_to_nobody_either(tmp_path, ranks, found):
    talks = SHARES | {"communication": 0.9}
    report = report_of(tmp_path, fake("one", dp=ranks, gpus_per_node=ranks, shares=talks, baseline="one"))
    said = [finding.short for finding in findings(report.records[0], (), None) if finding.short]
    assert any("communication" in short for short in said) is found, said


@pytest.mark.parametrize(("step_seconds", "said"), [(0.055, False), (0.075, True)])
def test_cores_that_slow_each_other_down_are_said(step_seconds, said, tmp_path):
    """Half of the samples in three quarters of the time, without communication: where the efficiency went."""
    report = report_of(tmp_path, fake("single", **BASE), ddp(step_seconds=step_seconds))
    texts = [cell.text for row in runs_table(report).rows for cell in row.cells]
    assert any("computing a sample takes 1.5 × as long" in text for text in texts) == said


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


def test_the_baselines_card_counts_what_is_worse(tmp_path):
    """ "2 no different" alone reads as if that were all."""
    runs = [ddp(name, ranks, step_seconds=BASE["step_seconds"]) for name, ranks in (("two", 2), ("four", 4))]
    slow = fake("tp", tp=2, gpus_per_node=2, step_seconds=2 * BASE["step_seconds"])
    cards = [winner.beside for winner in verdicts(report_of(tmp_path, fake("single", **BASE), *runs, slow))[0].winners]
    assert cards[0] == "the baseline; nothing is measurably better, 2 no different, 1 measurably worse"


def test_what_is_not_ranked_says_so_beside_each_bar(tmp_path):
    report = report_of(tmp_path, fake("single", **BASE), ddp(), ddp("wide", ranks=16))
    for figure in (phases(report), memory(report), throughput(report)):
        marks = "".join(panel.marks for panel in figure.panels)
        assert len(re.findall(r"<text[^>]*>[^<]*, not ranked</text>", marks)) == len(figure.panels)


def test_without_advice_there_is_no_section_that_is_empty(tmp_path):
    """Models without formulas have none, and a heading without a table says nothing."""
    page = render_page(report_of(tmp_path, fake("single", **BASE), ddp(step_seconds=0.06)))
    assert "Which layout next" not in page


def test_busy_cores_are_counted_of_those_that_are_there(tmp_path):
    """Four processes of four threads on a machine of 8 cores cannot keep 16 busy."""
    busy = {"four": {"cores_busy": 2.1}}
    report = report_of(tmp_path, fake("single", **BASE), ddp("four", 4), summaries=busy)
    (row,) = (row for row in runs_table(report).rows if row.run == "four")
    assert any("2.1 of 8 cores busy" in cell.text for cell in row.cells)


def test_who_pays_for_idle_cores_is_said(tmp_path):
    """Less core-hours at less than full efficiency are a riddle without it."""
    site = dataclasses.replace(SITE, threads_per_process=1)
    report = report_of(tmp_path, fake("single", site=site, **BASE), ddp(site=site, step_seconds=0.06))
    said = said_of(report)
    cards = {winner.aim.key: winner.beside for winner in verdicts(report)[0].winners}
    assert cards["training_core_hours"] == "40 % less than `single`, which pays for cores that it does not use"
    assert "pays" not in cards["seconds"] + cards["peak_memory_bytes"]
    assert "`single` uses 1 of the 8 cores of a node and pays for all" in said
    assert re.search(r"efficiency for [\d.]+ core-hours of training", said)


def test_a_limit_far_beyond_all_bars_is_told_in_words(tmp_path):
    """Beside 40 GB no bar of 300 MB would be seen."""
    fakes = [fake("single", verdict="baseline", site=CLUSTER), fake("dp", dp=2, gpus_per_node=2, site=CLUSTER)]
    page = render_page(report_of(tmp_path, *fakes))
    assert "Peak memory: lm-small (memory of a GPU: 39.5 GiB)" in page

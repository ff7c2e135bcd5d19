"""What the report claims, each claim in a planted case: chance, load, start-up, more processes than cores, repeats."""

import dataclasses
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parascale.report import build_report, figures, load_records, render_page
from parascale.report.job import load_job, render_job
from parascale.report.machines import contradictions
from parascale.report.records import Curve, Summary
from parascale.report.summary import runs_table
from parascale.report.timing import timing_of, unranked
from parascale.report.verdict import verdicts
from tests.unit.fake_results import CLUSTER, fake, workload, write_results

BASE = {"verdict": "baseline", "step_seconds": 0.1}


def ddp(name="ddp", ranks=2, **options):
    """A data-parallel Fake."""
    return fake(name, dp=ranks, gpus_per_node=ranks, **options)


def edited(path, change):
    """Change the mapping in a JSON file."""
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def report_of(root, *fakes, steps=None, summaries=None):
    """The Report of the fakes. steps: run → function of its lines; summaries: run → what its summary has besides."""
    folders = write_results(root, fakes)
    for name, change in (steps or {}).items():
        path = root / "results/runs" / name / "steps.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        change(lines)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        seconds = sum(line["seconds"]["total"] for line in lines)
        edited(path.with_name("summary.json"), lambda values, seconds=seconds: values.update(seconds=seconds))
    for name, more in (summaries or {}).items():
        edited(root / "results/runs" / name / "summary.json", lambda values, more=more: values.update(more))
    return build_report(load_records(*folders), "Title")


def said_of(report):
    """The only verdict's words."""
    (verdict,) = verdicts(report)
    return " ".join((*verdict.sentences, *verdict.basis))


def slow_part(factor, first, last):
    """A function of lines that makes some steps slower."""

    def change(lines):
        for line in lines[first:last]:
            line["seconds"]["total"] *= factor

    return change


def test_a_difference_inside_of_the_blocks_spread_is_none(tmp_path):
    """The same means; only one of the baselines was disturbed for a fifth of its steps."""
    steady = report_of(tmp_path / "steady", fake("single", **BASE), ddp(step_seconds=0.09))
    assert "`ddp` on 2 processes is the fastest" in said_of(steady)
    uneven = report_of(
        tmp_path / "uneven", fake("single", **BASE), ddp(step_seconds=0.08), steps={"ddp": slow_part(2, 20, 26)}
    )
    said = said_of(uneven)
    assert (
        "nothing is measurably faster than the baseline `single`" in said
        and "no measurable difference from `ddp`" in said
    )
    assert "One run each: a range is the spread of blocks of steps within the run." in said


def test_each_workload_says_what_its_ranges_span(tmp_path):
    fakes = [
        fake(f"{name}-{kind}", f"{name}-single", train=workload(name), **shape)
        for name in ("small", "large")
        for kind, shape in (("single", BASE), ("ddp", {"dp": 2, "gpus_per_node": 2}))
    ]
    page = render_page(report_of(tmp_path, *fakes))
    assert page.count("One run each: a range is the spread of blocks of steps within the run.") == 2


def test_runs_that_are_alike_share_the_first_place(tmp_path):
    report = report_of(
        tmp_path,
        fake("single", **BASE),
        ddp(step_seconds=0.05),
        fake("fsdp", fsdp=2, gpus_per_node=2, step_seconds=0.0502),
    )
    assert "no measurable difference from `fsdp`" in said_of(report)


def test_a_disturbed_run_does_not_hide_a_steady_one(tmp_path):
    """The lowest mean is no different from the baseline; the next one is, and is no different from the lowest either."""
    measured = {"single": (9.9, 10.1), "wild": (5, 5.5, 10.5), "steady": (7.4, 7.6)}
    fakes = []
    for name, values in measured.items():
        shape = {"fsdp": 2, "gpus_per_node": 2} if name == "wild" else {"dp": 2, "gpus_per_node": 2}
        for number, value in enumerate(values, 1):
            options = {"step_seconds": value / 100, "memory": int(value * 1e8)} | (
                shape if name != "single" else {"verdict": "baseline"}
            )
            fakes.append(fake(name if number == 1 else f"{name}-{number}", **options))
    said = said_of(report_of(tmp_path, *fakes))
    assert "`steady (2 runs)` on 2 processes is the fastest" in said
    assert "no measurable difference from `wild (3 runs)`" in said
    assert re.search(
        r"`steady \(2 runs\)` costs the fewest core-hours \(.*\) and needs the least memory per process \(", said
    )


def test_repeats_replace_the_blocks(tmp_path):
    """Runs that repeat each other well are told apart, though each was uneven; those that do not are not."""
    base = [fake("single", **BASE), fake("single-2", **BASE | {"step_seconds": 0.101})]
    uneven = {name: slow_part(2, 20, 26) for name in ("ddp", "ddp-2")}
    alike = [*base, ddp(step_seconds=0.07), ddp("ddp-2", step_seconds=0.071)]
    report = report_of(tmp_path / "alike", *alike, steps=uneven)
    assert "`ddp (2 runs)` on 2 processes is the fastest" in said_of(
        report
    ) and "Ranges span repeated runs." in said_of(report)
    apart = [*base, ddp(step_seconds=0.05), ddp("ddp-2", step_seconds=0.12)]
    assert "nothing is measurably faster than the baseline" in said_of(report_of(tmp_path / "apart", *apart))


def test_start_up_and_compilation_are_no_training(tmp_path):
    """Both take 30 s in a run of 6 s: its speed-up does not change by them, its core-hours do."""
    compiling = {"ddp": lambda lines: lines[0]["seconds"].update(total=30.0)}
    plain = report_of(tmp_path / "plain", fake("single", **BASE), ddp(step_seconds=0.06))
    wall = {"ddp": {"wall_seconds": 80.0, "core_hours": 80.0 * 8 / 3600}}
    report = report_of(
        tmp_path / "slow", fake("single", **BASE), ddp(step_seconds=0.06), steps=compiling, summaries=wall
    )
    assert report.comparisons["ddp"].speedup == pytest.approx(plain.comparisons["ddp"].speedup, rel=0.01)
    row = next(row for row in runs_table(report).frame.to_dict("records") if row["run"] == "ddp")
    assert row["compilation_seconds"] == pytest.approx(30, abs=0.1) and row["evaluation_seconds"] == 1.5
    assert row["startup_seconds"] == pytest.approx(80 - row["seconds"] - 1.5)
    assert (
        row["training_core_hours"] == pytest.approx(row["training_seconds"] * 8 / 3600)
        and row["core_hours"] > 5 * row["training_core_hours"]
    )
    training, whole = f"{row['training_core_hours']:.3g} for training", f"{row['core_hours']:.3f} for the whole job"
    assert re.search(rf"\({training}, 40 % less than `single`; {whole}, [\d,]+ % more than `single`\)", said_of(report))


def test_more_processes_than_cores_are_shown_and_not_ranked(tmp_path):
    report = report_of(
        tmp_path, fake("single", **BASE), ddp(step_seconds=0.06), ddp("wide", ranks=16, step_seconds=0.01)
    )
    said = said_of(report)
    assert "`ddp` on 2 processes is the fastest" in said
    assert "Shown but not ranked: `wide` (16 processes on 8 cores)" in said
    assert report.comparisons["wide"].speedup > 5 and "wide" in render_page(report)


@pytest.mark.parametrize(
    ("hosts", "reason"), [(["box"] * 16, "16 processes on 8 cores"), (["n1"] * 8 + ["n2"] * 8, ""), ([], "")]
)
def test_nodes_on_one_machine_share_its_cores(hosts, reason, tmp_path):
    """Two nodes of 8 processes each: a machine has 8 cores, and as many of them are free as it has machines."""
    results, work = write_results(tmp_path, [fake("nodes", nodes=2, dp=16, gpus_per_node=8)])
    edited(results / "runs/nodes/run.json", lambda values: values.update(hosts=hosts))
    (record,) = load_records(results, work)
    assert unranked(record) == reason


@pytest.mark.parametrize(
    ("loaded", "expected"),
    [
        ("ddp", "Shown but not ranked: `ddp` (other programs took 4.0 of its 8 cores)"),
        (
            "single",
            "no layout is ranked: of the baseline `single`, other programs took 4.0 of its 8 cores. Measure it again.",
        ),
    ],
)
def test_a_run_that_shared_its_cores_is_not_ranked(loaded, expected, tmp_path):
    """On a machine under load the same runs end in the opposite verdict: better none, and a reason."""
    busy = {loaded: {"cores_busy": 4.0, "other_cores_busy": 4.0}}
    assert expected in said_of(report_of(tmp_path, fake("single", **BASE), ddp(step_seconds=0.06), summaries=busy))


@pytest.mark.parametrize(
    ("options", "others", "taken"),
    [
        ({}, 0.5, False),  # a shell beside it
        ({}, 3.0, True),
        ({"site": CLUSTER}, 60.0, False),  # GPUs compute there
    ],
)
def test_cores_are_shared_where_others_took_more_than_a_trifle(options, others, taken, tmp_path):
    report = report_of(tmp_path, fake("single", **BASE, **options), summaries={"single": {"other_cores_busy": others}})
    assert bool(unranked(report.records[0])) == taken


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=300), st.floats(0.0, 5.0))
def test_a_range_holds_its_run_and_grows_with_its_time(seconds, beside):
    """Whatever the steps: low ≤ training ≤ high, nothing is lost between the parts, and even steps have no range."""
    total = sum(seconds)
    elapsed, steps = [], range(1, len(seconds) + 1)
    for each in seconds:
        elapsed.append((elapsed[-1] if elapsed else 0.0) + each)
    summary = Summary(1, "tokens", len(seconds), total, 1.0, wall_seconds=total + beside)
    timing = timing_of(summary, Curve(steps, elapsed, elapsed, ()), [{"first_step": 1}])
    assert timing.low <= timing.training * (1 + 1e-9) and timing.high >= timing.training * (1 - 1e-9)
    assert timing.training + timing.compilation + timing.startup == pytest.approx(total + beside)


FOUND = {
    "cores shared": (
        {"cores_busy": 4.0, "other_cores_busy": 4.0},
        {},
        "Other programs took 4.0 of the 8 cores that it computes with",
        "not ranked: other programs took 4.0 of its 8 cores",
    ),
    "busy cores below what was held": (
        {"cores_busy": 2.1},
        {},
        "Its processes kept 2.1 of 8 cores busy",
        "2.1 of 8 cores busy",
    ),
    "slower than the baseline": (
        {},
        {"step_seconds": 0.16},
        "It is slower than its baseline `single`: 0.6",
        "slower than single",
    ),
    "longer than planned": (
        {},
        {"step_seconds": 5.2},
        "Its steps took 3.2 × the planned time",
        "3.2 × the planned time",
    ),
}


@pytest.mark.parametrize("case", FOUND)
def test_what_is_off_stands_on_the_page_of_the_job_and_beside_its_row(case, tmp_path):
    measured, options, sentence, short = FOUND[case]
    report = report_of(tmp_path, fake("single", **BASE), ddp(**options), summaries={"ddp": measured})
    rows = {row.run: {cell.text for cell in row.cells} for row in runs_table(report).rows}
    beside = {name: any(short in text for text in texts) for name, texts in rows.items()}
    assert beside == {"single": False, "ddp": True}
    page = re.sub("<[^>]+>", "", render_job(load_job(tmp_path / "results", tmp_path / "work", "ddp"))).replace("`", "")
    assert sentence.replace("`", "") in page and "Nothing stands out" not in page


def test_a_run_that_went_as_planned_has_nothing_that_stands_out(tmp_path):
    report = report_of(tmp_path, fake("single", **BASE), ddp(step_seconds=0.06))
    _, *cells = (cell.text for row in runs_table(report).rows for cell in row.cells)
    assert not [text for text in cells if "slower" in text or "planned" in text or "busy" in text]
    assert "Nothing stands out" in render_job(load_job(tmp_path / "results", tmp_path / "work", "ddp"))


ELSEWHERE = {
    "another GPU": ({"gpu": "NVIDIA H200"}, "its GPUs are NVIDIA H200, not <code>gpu: A100</code>"),
    "more GPUs": ({"gpus": 8}, "a node has 8 GPUs, not <code>gpus_per_node: 4</code>"),
    "another memory": ({"gpu_memory_bytes": 80 * 10**9}, "it has 80 GB, not <code>gpu_memory_gb: 40</code>"),
    "another memory of a node": ({"memory_bytes": 256 << 30}, "it has 275 GB, not <code>host_memory_gb: 512</code>"),
    "other cores": ({"cores": 32, "hardware_threads": 64}, "a node has 32 cores, not <code>cores_per_node: 128</code>"),
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_a_machine_that_the_sites_file_does_not_describe_is_a_warning(case, tmp_path):
    """At the top of the page, on the job's own page, and beside the row; the machine that was read stands in the provenance."""
    read, said = ELSEWHERE[case]
    results, work = write_results(tmp_path, [fake("single", site=CLUSTER, **BASE), ddp(site=CLUSTER)])
    edited(results / "runs/ddp/run.json", lambda values: values["machines"][0].update(read))
    page = render_page(build_report(load_records(results, work), "Title"))
    warning, rest = page.split('role="alert"')[1].split("</div>", 1)
    assert "<code>ddp</code> did not compute on" in warning and said in warning and "single" not in warning
    assert "another machine than the site" in rest
    assert said in render_job(load_job(results, work, "ddp"))
    assert render_page(build_report(load_records(results, work, ["single"]), "Title")).count('role="alert"') == 0


def test_a_job_may_see_fewer_gpus_than_its_node_has(tmp_path):
    """Slurm shows a job those that it asked for."""
    results, work = write_results(tmp_path, [fake("single", site=CLUSTER)])
    edited(results / "runs/single/run.json", lambda values: values["machines"][0].update(gpus=1))
    assert contradictions(load_records(results, work)[0]) == ""


def test_drivers_call_the_gh200_by_another_size_than_that_of_its_memory(tmp_path):
    gpu = {"gpu": "NVIDIA GH200 120GB", "gpu_memory_bytes": 102_000_000_000}
    jupiter = dataclasses.replace(CLUSTER, gpu="NVIDIA GH200 96GB", gpu_memory_gb=96)
    results, work = write_results(tmp_path, [fake("single", site=jupiter)])
    for read, said in ((gpu, ""), ({"gpu": "NVIDIA H200"}, "its GPUs are NVIDIA H200")):
        edited(results / "runs/single/run.json", lambda values, read=read: values["machines"][0].update(read))
        text = contradictions(load_records(results, work)[0])
        assert said in text and bool(said) == bool(text)


def test_what_all_runs_share_is_said_once(tmp_path):
    results, work = write_results(tmp_path, [fake("single", **BASE), ddp(), ddp("other", seed=7)])
    section = render_page(build_report(load_records(results, work), "Title")).split('id="provenance"')[1]
    assert section.count("AMD EPYC 7742, 8 cores, 512 GiB") == section.count("0123456789ab</dd>") == 1
    heads = re.findall(r'<th scope="col"[^>]*>([^<]+)', section.split('id="provenance-table"')[1].split("</thead>")[0])
    assert heads == ["Runs", "Seed"]


def test_memory_is_apart_in_what_the_model_holds_and_the_process_besides(tmp_path):
    """FSDP shares the model's state: its row shows that, whatever libraries take."""
    report = report_of(tmp_path, fake("single", **BASE), fake("fsdp", fsdp=2, gpus_per_node=2))
    rows = {row.run: {cell.figure: cell.value for cell in row.cells} for row in figures.memory(report).table.rows}
    for part in ("weights", "gradients", "optimizer"):
        assert rows["fsdp"][f"{part}_memory_bytes"] == rows["single"][f"{part}_memory_bytes"] / 2
    assert rows["fsdp"]["process_memory_bytes"] == rows["single"]["process_memory_bytes"] > 0
    page = render_page(report)
    assert (
        re.search(r"<title>fsdp: optimizer state 40.0 MiB</title>", page)
        and "<title>fsdp: predicted 954 MiB</title>" in page
    )


@pytest.mark.parametrize(("seconds", "wins"), [(0.0985, False), (0.0975, True)])
def test_two_percent_less_are_no_win(tmp_path, seconds, wins):
    """Even of runs without any spread: less than that a second look would not find again."""
    said = said_of(report_of(tmp_path, fake("single", **BASE), ddp(step_seconds=seconds)))
    assert ("`ddp` on 2 processes is the fastest" in said) == wins
    assert ("nothing is measurably faster than the baseline `single`" in said) != wins

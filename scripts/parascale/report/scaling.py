"""Rows for the tables of a scaling study, from records of its points or, for points without one, from predictions."""

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from parascale.files import read_json_lines
from parascale.paths import RunFolder
from parascale.report.comparing import Experiment, Member, compare, grouped
from parascale.report.findings import Finding, findings
from parascale.report.layouts import degrees_text
from parascale.report.measured import read_record
from parascale.report.numbers import plural
from parascale.report.records import Curve, RunRecord
from parascale.report.summary import figures_of
from parascale.report.timing import held_cores, phases_of, step_seconds
from parascale.settings import Site
from parascale.settings.study import Ladders, Point
from parascale.telemetry import read_samples, sample_files

ENOUGH = 0.75  # efficiency that application forms require
# Column → phases of the record; together they cover the whole step.
SHARES: dict[str, tuple[str, ...]] = {"compute": ("forward", "backward")}
SHARES |= {name: (name,) for name in ("communication", "data", "bubble", "optimizer", "other")}
# Basis of a plan, or source of a charge → plain words.
RESTS = {"formula": "formulas alone", "fit": "other runs on this machine", "probe": "runs of this workload"}
RESTS |= {"history": "finished runs like it", "record": "the run's record", "sacct": "Slurm's accounting"}
OF_JOBS = (
    "wall_seconds",
    "startup_seconds",
    "evaluation_seconds",
    "saving_seconds",
    "peak_memory_bytes",
    "gpu_utilisation",
    "energy_joules",
)
STEP = ("step_seconds_mean", "step_seconds_low", "step_seconds_high")
Row = dict[str, Any]


@dataclass(frozen=True)
class Cost:
    """Core-hours of all repeats of a point; None is unknown. planned: before it started; 80 of 100 such points cost between low and high.
    basis: of the plan. charged: total over its jobs, according to source."""

    point: Point
    planned: float | None
    low: float | None
    high: float | None
    charged: float | None
    basis: str
    source: str


@dataclass(frozen=True)
class StudyReport:
    """A scaling study. rows: of each kind of scaling, smallest size first; `points.csv` has some of their columns. notes: remarks for the
    reader. records: run name → record. costs: of each trained point. facts: title → text that is in no record. results: folder of
    finished runs. longest: time limit of a job in hours; None: no limit."""

    ladders: Ladders
    site: Site
    rows: list[Row]
    notes: list[str]
    records: dict[str, RunRecord]
    costs: list[Cost]
    facts: dict[str, str]
    results: Path
    longest: float | None = None

    @property
    def done(self) -> list[RunRecord]:
        return [record for record in self.records.values() if record.done]

    def of(self, word: str) -> str:
        """Title suffix that says how repeats are combined. word: `mean` or `sum`."""
        repeats = self.ladders.study.repeats
        return f"{word} of {repeats} repeats" if repeats > 1 else "one run a point"


def costs_of(ladders: Ladders, plans: Mapping[str, Row], charges: Mapping[str, Row]) -> list[Cost]:
    """Costs for a StudyReport. plans: run name → prediction; charges: run name → row of `plan.ledger.compare`."""
    found = []
    for points in grouped(ladders.points, lambda point: point.runs[0].run).values():
        names = [run.run for run in points[0].runs]
        said, known = [plans[name] for name in names], [charges.get(name, {}) for name in names]
        planned, low, high = (total(_price(plan, f"wall_{end}") for plan in said) for end in ("seconds", "low", "high"))
        charged = total(each.get("core_hours_charged") for each in known)
        words = [each.get("basis") for each in said], [each.get("source") for each in known]
        basis, source = (", ".join(dict.fromkeys(RESTS[word] for word in each if word)) for each in words)
        found.append(Cost(points[0], planned, low, high, charged, basis, source))
    return found


def placed(charged: float | None, low: float | None, high: float | None) -> str | None:
    """Position of a charge relative to the plan's range, or None if unknown."""
    if charged is None or low is None or high is None:
        return None
    return "below" if charged < low else "above" if charged > high else "within"


def _price(plan: Row, end: str) -> float | None:
    """Core-hours of a prediction. end: `wall_seconds`, or `wall_low` or `wall_high` for an end of the range."""
    return plan["core_hours"] * plan[end] / plan["wall_seconds"] if plan.get("wall_seconds") else None


def total(values: Iterable[float | None]) -> float | None:
    """Sum of the values; None if one of them is None."""
    listed = [*values]
    return None if None in listed else sum(listed)  # type: ignore[arg-type]


def rows_of(
    ladders: Ladders, records: dict[str, RunRecord], results: Path, forecasts: Mapping[str, Row]
) -> tuple[list[Row], list[str]]:
    """(rows, notes) for a StudyReport. records: by run name. forecasts: run name → predicted STEP, `work` of a sample, `flops_per_token` and
    further columns."""
    rows: list[Row] = []
    found_of = {name: _findings(record, results) for name, record in records.items()}
    disturbed = {name for name, said in found_of.items() if any(each.disturbs for each in said)}
    notes = [f"`{name}`: {each.text}" for name, said in found_of.items() for each in said]
    for kind, points in grouped(ladders.asked, lambda point: point.kind).items():
        named, measured = {point.runs[0].run: point for point in points}, {}
        for name, point in named.items():
            if done := [records[run.run] for run in point.runs if run.run in records and records[run.run].done]:
                counted = (_counted(record, ladders.study.warmup, results) for record in done)
                measured[name] = point, Member(tuple(counted))
        if any(member.first.curve is None for _, member in measured.values()):  # then compare whole jobs
            for name, (point, member) in measured.items():
                whole = (replace(records[each.name], curve=None) for each in member.records)
                measured[name] = point, Member(tuple(whole))
        if measured and not kind:
            kind, said = _kind_of_script([member.first for _, member in measured.values()])
            notes.append(said)
        found = _ladder(kind, [*measured.values()], records, notes) if measured else []
        for row, (_, member) in zip(found, measured.values(), strict=True):
            row["disturbed"] = not disturbed.isdisjoint(record.name for record in member.records)
            row["rests_on"] += "; disturbed" * row["disturbed"]
        for name in sorted(named.keys() - measured.keys(), key=lambda name: named[name].gpus):
            if name in forecasts:
                found.append(_predicted(named[name], forecasts[name], found[0] if found else {}))
        found.sort(key=lambda row: row["gpus"])
        rows += [{"study": ladders.name, "kind": kind or None} | row for row in found]
    return rows, list(dict.fromkeys(notes))


def _findings(record: RunRecord, results: Path) -> list[Finding]:
    """The Findings of a run that matter for a study: it did not finish, or something cost it time."""
    if not record.done:
        return [Finding("failed", f"{'; '.join((record.status, *record.notes))}.", "")]
    found = findings(record, read_samples(sample_files(results / record.name)))
    return [each for each in found if each.kind == "bad" or each.disturbs]


def _counted(record: RunRecord, warmup: int, results: Path) -> RunRecord:
    """A record without its first `warmup` steps; without a curve if a script recorded no later ones."""
    lines = read_record(RunFolder(results / record.name).steps, read_json_lines)[warmup:]
    unit = record.run.workload.unit
    if not lines:
        return replace(record, curve=None)
    phases: Counter[str] = Counter()
    for line in lines:
        phases.update(line["seconds"])
    seconds = phases.pop("total")
    work = sum(line[unit] for line in lines) if all(unit in line for line in lines) else None
    ends = [*itertools.accumulate(line["seconds"]["total"] for line in lines)]
    columns: Any = {"steps": [line["step"] for line in lines], "losses": [], "seconds": ends}
    curve = Curve(**columns, evaluations=(), phases=dict(phases))
    counted = {"steps": len(lines), "seconds": seconds, "work": work, "phases": dict(phases)}
    return replace(record, curve=curve, summary=replace(record.summary, rate=work and work / seconds, **counted))


def _placed(point: Point) -> Row:
    """Columns that name a point: run, size and layout."""
    run = point.runs[0]
    words = degrees_text(replace(run, scaling="strong"))  # the table says the kind
    return {"run": run.run, "nodes": point.layout.nodes, "gpus": point.gpus, "layout": words, "spread": point.layout}


def _predicted(point: Point, said: Row, base: Row) -> Row:
    """The row of a point that has only a forecast. base: row of the smallest point; empty if this is it."""
    batch, work = point.runs[0].global_batch, said["work"]
    if "step_seconds_median" in base:  # measured: use its work per sample
        work = base["rate"] * base["step_seconds_mean"] / base["samples_per_step"]
    rate, *ends = (work * batch / said[name] for name in (STEP[0], STEP[2], STEP[1]))
    first, growth = base.get("rate", rate), point.gpus / base.get("gpus", point.gpus)
    return (
        _placed(point)
        | {
            "basis": "predicted",
            "rate": rate,
            "samples_per_step": batch,
            "flops_per_step": said["flops_per_token"] and said["flops_per_token"] * work * batch,
            "work_unit": point.runs[0].workload.unit,
        }
        | _gains([each / first for each in (rate, *ends)], growth)
        | said
    )


def _gains(gains: list[float], growth: float) -> Row:
    """Columns of speed-up and efficiency with their ranges. gains: speed-up, its lowest and its highest value."""
    named = dict(zip(("", "_low", "_high"), gains, strict=True))
    found = {f"speedup{end}": gain for end, gain in named.items()}
    return found | {f"efficiency{end}": gain / growth for end, gain in named.items()} | {"growth": growth}


def _kind_of_script(records: list[RunRecord]) -> tuple[str, str]:
    """(kind of scaling of a script's points, empty if neither; a sentence that says why)."""
    if any(record.curve is None for record in records):
        return (
            "strong",
            "The script records no step after the warm-up: whole jobs are compared, including start and end.",
        )
    if any(record.summary.work is None for record in records):
        return "strong", "The script records no `samples`: times are compared as if each point did the same work."
    steps = [record.summary.work / record.summary.steps for record in records]
    shares = [each / record.run.layout.world_size for each, record in zip(steps, records, strict=True)]
    for kind, values, same in (("strong", steps, "step"), ("weak", shares, "process")):
        if max(values) <= 1.001 * min(values):
            return (
                kind,
                f"The script does not use `{{scaling}}`, but records the same samples per {same}: its scaling is {kind}.",
            )
    return "", "The script records neither the same samples per step nor per process: there is no efficiency."


def _as_kind(kind: str, record: RunRecord) -> RunRecord:
    """A record whose run names the kind of scaling and, for weak scaling, the batch per rank, as comparisons need it."""
    run: Any = replace(record.run, scaling="weak" if kind == "weak" else "strong")
    if kind == "weak" and not run.workload.is_script:
        training = run.workload.training
        training = replace(training, global_batch=training.global_batch // run.layout.data_parallel)
        run = replace(run, workload=replace(run.workload, training=training))
    return replace(record, run=run)


def _ladder(
    kind: str, placed: list[tuple[Point, Member]], records: dict[str, RunRecord], notes: list[str]
) -> list[Row]:
    """Rows of the measured points, smallest first; the others are compared with the smallest."""
    rows: list[Row] = []
    members = [replace(each, records=tuple(_as_kind(kind, record) for record in each.records)) for _, each in placed]
    experiment, head = Experiment(kind, tuple(members)), members[0].first
    for (point, _), member in zip(placed, members, strict=True):
        row, reason = _row(point, member, records), compare(member.first, head).reason
        notes += [f"`{row['run']}`: {reason}."] * bool(reason)
        if kind and not reason:
            growth = point.gpus / placed[0][0].gpus
            gains = [gain * (growth if kind == "weak" else 1.0) for gain in experiment.gain(member)]
            row |= _gains(gains, growth)
            if rows and row["speedup_low"] <= rows[-1].get("speedup_high", 0.0):
                sizes = f"{rows[-1]['gpus']} and {plural(point.gpus, head.gpu_word)}"
                notes.append(f"{kind}, {sizes}: the ranges of the speed-up overlap, so no gain is measured.")
        rows.append(row)
    gpus, cores = [member.first.gpus for member in members], [held_cores(member.first) for member in members]
    if head.site.device == "cpu" and any(c * gpus[0] < n * cores[0] for n, c in zip(gpus, cores, strict=True)):
        said = (", ".join(map(str, each)) for each in (gpus, cores))
        notes.append("{} processes use {} cores: efficiency counts processes.".format(*said))
    return rows


def _row(point: Point, member: Member, records: dict[str, RunRecord]) -> Row:
    """The row of a measured point. Step times exclude warm-up; memory, utilisation, energy and core-hours cover whole jobs."""
    first, run = member.first, point.runs[0]
    summary, time, flops = first.summary, member.time, first.prediction.get("flops_per_token")
    row = _placed(point) | {"work_unit": summary.work_unit}
    row["rate"] = summary.work and summary.work / time.mean
    row["samples_per_step"] = (
        summary.work and summary.work / summary.steps if run.workload.is_script else run.global_batch
    )
    row["flops_per_step"] = flops and summary.work and flops * summary.work / summary.steps
    row |= {"basis": "measured", "rests_on": f"measured, {plural(summary.steps, 'step')}"}
    if first.curve is None:
        row["job_seconds"] = time.mean
    else:
        steps = [
            each for record in member.records if record.curve for each in step_seconds(record.curve, record.attempts)[0]
        ]
        row |= {"step_seconds_median": statistics.median(steps), "step_seconds_95": float(np.percentile(steps, 95))}
        row |= {name: each / summary.steps for name, each in zip(STEP, (time.mean, time.low, time.high), strict=True)}
        row["flops_rate"] = row["flops_per_step"] and row["flops_per_step"] / row[STEP[0]] / run.layout.world_size
    phases = sum((Counter(phases_of(record)) for record in member.records), Counter())
    for name, parts in SHARES.items() if phases else ():
        row[name] = sum(phases[part] for part in parts) / phases.total() or None
    whole, curve = [figures_of(records[each.name]) for each in member.records], records[first.name].curve
    for name in OF_JOBS:
        known = [figures[name] for figures in whole if figures[name] is not None]
        row[name] = statistics.mean(known) if known else None
    row["start_share"] = row["startup_seconds"] and row["startup_seconds"] / row["wall_seconds"]
    if curve and not run.workload.is_script:  # a script evaluates and saves within its steps
        row |= {"evaluations": len(curve.evaluations), "saves": curve.saves}
    if peak := row.get("flops_rate") and records[first.name].site.peak_tflops.get(run.precision):
        row["mfu"] = row["flops_rate"] / (1e12 * peak)
    row["core_hours"] = sum(figures["core_hours"] or 0.0 for figures in whole)
    return row

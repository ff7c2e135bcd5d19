"""Cost, memory and storage of a scaling study's production runs, from its points."""

import math
from dataclasses import replace
from typing import Any

from parascale.paths import RunFolder
from parascale.report import numbers
from parascale.report.measured import read_record
from parascale.report.records import RunRecord
from parascale.report.scaling import STEP, Row, StudyReport, total
from parascale.report.scaling_tables import SIZE, headed
from parascale.report.tables import Column, Table, columns, make_table
from parascale.report.timing import phases_of
from parascale.settings.study import Production
from parascale.telemetry import read_samples, sample_files
from parascale.telemetry import total as total_of

Part = tuple[str, int, float]  # name, count in a run, seconds each
ENDS = ("", "_low", "_high")
HOURS = {"hours": "Hours a run", "node_hours": "Node-h", "gpu_hours": "GPU-h", "core_hours": "Core-h"}
RUNS = (Column("name", "Run"), *columns(numbers.whole, runs="Runs"), *SIZE, *columns(layout="Layout"))
RUNS += (*columns(numbers.significant, samples_per_step="Samples a step"), *columns(numbers.whole, steps="Steps"))
RUNS += (
    Column("work", "Work of a run"),
    *(Column(name, HOURS[name], numbers.significant, f"{name}_text") for name in HOURS),
)
RUNS += (*columns(numbers.significant, eflop_run="EFLOP a run", eflop="EFLOP"),)
RUNS += (Column("efficiency", "Efficiency", numbers.percent), Column("rests_on", "Basis"))
PARTS = (Column("name", "Run"), Column("part", "What"), *columns(numbers.whole, number="Number"))
PARTS += (*columns(numbers.duration, each="Each", seconds="Together"), Column("share", "Share", numbers.percent))
NEEDS = (Column("name", "Run"), *columns(numbers.memory, peak_memory_bytes="Memory of a process", node="Of a node"))
NEEDS += (*columns(numbers.whole, files="Files of a checkpoint"), *columns(numbers.memory, bytes="Checkpoint"))
NEEDS += (
    *columns(numbers.memory, written="Written by a run", held="Held at once", left="Left", left_all="Left by all"),
)
FILES = (Column("run", "Point"), *columns(numbers.memory, node="Memory of a node"))
FILES += (Column("files", "Files of its checkpoint", numbers.whole),)
FILES += (*columns(numbers.memory, bytes="Bytes", read_bytes="Read by processes", written_bytes="Written"),)
FILES += (*columns(numbers.duration, saving="Saving", startup="A start"), *columns(numbers.whole, starts="Starts"))


def priced(study: StudyReport) -> list[Row]:
    """A row for each production run and for each smaller size that would do the same work faster, then their sum. A run whose size has no
    point gets no costs."""
    found, by_run = [], {row["run"]: row for row in reversed(study.rows)}
    for asked, point in study.ladders.production:
        row = by_run.get(point.runs[0].run, {})
        why = "its steps were not recorded" if row else "no point of this size"
        unknown = vars(asked) | {"gpus": point.gpus, "rests_on": f"unknown: {why}"}
        found.append(_priced(study, asked, row) if STEP[0] in row else unknown)
        for other in study.rows if STEP[0] in row else ():
            less = other["kind"] == row["kind"] and other["gpus"] < row["gpus"] and STEP[0] in other
            steps = [each["samples_per_step"] or (row["kind"] == "strong") for each in (other, row)] if less else [0, 1]
            share = steps[0] / (steps[1] or 1)  # unknown for a script that records no samples, except in strong scaling
            if less and other[STEP[0]] < share * row[STEP[0]]:
                sooner = replace(
                    asked, name=f"{asked.name}, on {other['gpus']:,}", steps=math.ceil(asked.steps / share)
                )
                found.append(_priced(study, sooner, other) | {"instead": True})
    if len(study.ladders.production) > 1:
        summed = (*(f"{name}{end}" for name in [*HOURS][1:] for end in ENDS), "eflop", "left_all")
        known = [row for row in found if "instead" not in row]
        found.append({"name": "all"} | {name: total(row.get(name) for row in known) for name in summed})
    for row in found:
        for name in HOURS:
            said, low, high = (numbers.significant(row.get(f"{name}{end}")) for end in ENDS)
            row[f"{name}_text"] = said and f"{said} ({low} to {high})"
    return found


def _priced(study: StudyReport, asked: Production, row: Row) -> Row:
    """The row of a production run whose size has the point `row`. The range of hours covers only the steps."""
    parts, runs, workload = parts_of(study, asked.steps, row), asked.runs, study.ladders.row.workload
    beside, often = sum(number * each for _, number, each in parts[1:]), {name: number for name, number, _ in parts}
    each = row | vars(asked) | {"nodes": row["nodes"], "parts": parts}
    units = {"hours": 1, "node_hours": runs * row["nodes"], "gpu_hours": runs * row["gpus"]}
    units["core_hours"] = runs * study.site.cores_charged(row["nodes"])
    for end, step in zip(ENDS, STEP, strict=True):
        each |= {f"{name}{end}": unit * (asked.steps * row[step] + beside) / 3600 for name, unit in units.items()}
    each["eflop_run"] = row["flops_per_step"] and asked.steps * row["flops_per_step"] / 1e18
    each["eflop"] = each["eflop_run"] and runs * each["eflop_run"]
    work = row["rate"] and asked.steps * row["rate"] * row[STEP[0]]
    each["work"] = work and f"{numbers.short(work)} {row['work_unit']}"
    each["node"] = _of_node(study, row["gpus"], row["nodes"], row.get("peak_memory_bytes"))
    record = max(study.done, key=lambda done: (done.name == row["run"], done.gpus), default=None)
    kept, best = _saved(study, record) if record else ([], 0)
    size = sum(kept) or row.get("state_bytes")
    if record and kept:  # our trainings write one file per process
        more = row["spread"].world_size - record.run.layout.world_size
        each["files"] = len(kept) + (0 if workload.is_script else more)
    else:
        best = row.get("best_bytes") or 0
    if size:
        each |= {"bytes": size, "held": size + best, "left": size + best, "left_all": runs * (size + best)}
    if size and not workload.is_script:  # while saving, it holds one checkpoint more than it keeps
        each["held"] += workload.training.keep * size
        each["written"] = often["saves"] * size + often.get("evaluations", 0) * best
    return each


def parts_of(study: StudyReport, steps: int, row: Row) -> list[Part]:
    """The Parts of a run, steps first. A job ends at the partition's time limit and the run restarts."""
    evaluations, saves = _on_the_way(study.ladders.row.workload, steps, steps * row[STEP[0]])
    once = {name: (row.get(f"{name}_seconds") or 0.0) for name in ("startup", "evaluation", "saving")}
    found = [("steps", steps, row[STEP[0]])]
    found += [("evaluations", evaluations, once["evaluation"] / (row.get("evaluations") or 1))]
    found += [("saves", saves, once["saving"] / (row.get("saves") or 1))]
    again = restarted(study)[1] or once["startup"]
    room, needed = 3600 * (study.longest or math.inf) - again, sum(number * each for _, number, each in found)
    found += [("start", 1, once["startup"]), ("restarts", math.ceil(needed / room) - 1 if room > 0 else 0, again)]
    return [each for each in found if each[1] > 0]


def tables(study: StudyReport) -> tuple[Table, Table, Table]:
    """Tables of the production runs: cost and its basis, parts of the time of a run, memory and storage."""
    rows, title = priced(study), f"{study.ladders.name}: production runs"
    found = []
    for row in (row for row in rows if "parts" in row):
        whole = sum(number * each for _, number, each in row["parts"])
        for part, number, each in [*row["parts"], ("a run", None, whole)]:
            seconds = each * (1 if number is None else number)
            known = {"number": number, "each": number and each, "share": seconds / whole}
            found.append({"name": row["name"], "part": part, "seconds": seconds} | known)
    costs, needs = (make_table(title, headed(study, each), rows).known() for each in (RUNS, NEEDS))
    return costs, make_table("", PARTS, found), needs


def files_of(study: StudyReport) -> Table:
    """Table of files, traffic and memory of a node for each point."""
    found = []
    for record in study.done:
        timing, starts, (kept, _) = record.timing, max(1, len(record.attempts)), _saved(study, record)
        devices = read_samples(sample_files(study.results / record.name))
        row = {"run": record.name, "files": len(kept) or None, "bytes": sum(kept) or None, "starts": starts}
        row["node"] = _of_node(study, record.gpus, record.run.layout.nodes, record.summary.peak_memory_bytes)
        row |= {"saving": timing.saving or None, "startup": timing.startup and timing.startup / starts}
        row |= {name: total_of(devices, "rank", name) for name in ("read_bytes", "written_bytes")}
        found.append(row)
    return make_table("", FILES, found).known()


def input_shares(study: StudyReport) -> list[float]:
    """Fraction of each job spent waiting for data or saving, sorted, for points that recorded it."""
    told = [(record, phases_of(record).get("data")) for record in study.done if record.summary.wall_seconds]
    return sorted((read + (of.timing.saving or 0.0)) / of.summary.wall_seconds for of, read in told if read is not None)


def restarted(study: StudyReport) -> tuple[int, float | None]:
    """(number of restarts of all points, mean seconds of a start of restarted points or None)."""
    again = [record for record in study.done if len(record.attempts) > 1 and record.timing.startup]
    starts = sum(len(record.attempts) for record in again)
    return starts - len(again), sum(record.timing.startup for record in again) / starts if again else None


def _of_node(study: StudyReport, gpus: int, nodes: int, process: int | None) -> int | None:
    """Upper bound of the bytes that the processes of a node need; one machine may play all nodes."""
    return process and process * (gpus if study.site.plays_nodes else gpus // nodes)


def _saved(study: StudyReport, record: RunRecord) -> tuple[list[int], int]:
    """(bytes of each file of a finished run's checkpoint, total bytes of its best weights)."""
    files = RunFolder(study.results / record.name)
    manifests = (folder / "checkpoint.json" for folder in (files.checkpoint, files.folder / "best"))
    found = (read_record(path)["files"].values() if path.is_file() else () for path in manifests)
    kept, best = ([each["bytes"] for each in every] for every in found)
    return kept, sum(best)


def _on_the_way(workload: Any, steps: int, seconds: float) -> tuple[int, int]:
    """(evaluations, saves) of a training, including those at its end. For scripts (0, 0), as their steps include them."""
    if workload.is_script:
        return 0, 0
    training = workload.training
    evaluations = math.ceil(steps / (training.evaluate_every or steps)) if training.evaluate else 0
    return evaluations, training.saves(steps, seconds)

"""What the production runs of a scaling study cost, need and write, from its points: each table once, for the page, `study.md` and `study.tex`."""

import math
from collections.abc import Iterator
from typing import Any

from parascale.paths import RunFolder
from parascale.report import numbers
from parascale.report.measured import read_record
from parascale.report.scaling import STEP, Row, StudyReport, total
from parascale.report.scaling_tables import SIZE, headed
from parascale.report.tables import Column, Table, columns, make_table
from parascale.report.timing import phases_of
from parascale.settings.study import Point, Production
from parascale.telemetry import read_samples, sample_files
from parascale.telemetry import total as total_of

HOURS = {"node_hours": "Node-h", "gpu_hours": "GPU-h", "core_hours": "Core-h"}
RANGED = {"hours": "Hours a run", **HOURS}  # each with its range
RUNS = (Column("name", "Run"), *columns(numbers.whole, runs="Runs"), *SIZE, *columns(layout="Layout"))
RUNS += (*columns(numbers.significant, samples_per_step="Samples a step"), *columns(numbers.whole, steps="Steps"))
RUNS += (
    *columns(work="Work of a run"),
    *(Column(key, title, numbers.significant, f"{key}_text") for key, title in RANGED.items()),
)
RUNS += (*columns(numbers.significant, eflop_run="EFLOP a run", eflop="EFLOP"),)
RUNS += (Column("efficiency", "Efficiency", numbers.percent), Column("rests_on", "Rests on"))
PARTS = (Column("name", "Run"), Column("part", "What"), *columns(numbers.whole, number="Number"))
PARTS += (*columns(numbers.duration, each="Each"), Column("hours", "Hours", numbers.significant))
PARTS += (Column("share", "Share", numbers.percent),)
MEMORY = (Column("kind", "Ladder"), *SIZE, *columns(numbers.memory, process="A process", node="All of a node"))
MEMORY += (Column("share", "Of what there is", numbers.percent), Column("basis", "Basis"))
STORED = (Column("name", "Run"), *columns(numbers.whole, files="Files of a checkpoint"))
STORED += (*columns(numbers.memory, bytes="Checkpoint", best="Best weights", written="Written, at most"),)
STORED += (*columns(numbers.memory, held="Held at once, at most", left="Left", left_all="Left by all such runs"),)
FILES = (Column("run", "Point"), Column("files", "Files of its checkpoint", numbers.whole))
FILES += (*columns(numbers.memory, bytes="Bytes", read_bytes="Read by processes", written_bytes="Written"),)
FILES += (*columns(numbers.duration, saving="Saving", startup="A start"), *columns(numbers.whole, starts="Starts"))


def priced(study: StudyReport) -> Iterator[tuple[Production, Point, Row]]:
    """Each production run with its point and the row that tells of that; an empty one where none does."""
    by_run = {row["run"]: row for row in reversed(study.rows)}
    for asked, point in study.ladders.production:
        row = by_run.get(point.runs[0].run, {})
        yield asked, point, row if STEP[0] in row else {}


def parts_of(study: StudyReport, steps: int, row: Row) -> list[tuple[str, int, float]]:
    """(what, how often, seconds of one) of a run of so many steps where `row` tells of the size, its steps first. A job that has reached the
    limit of its partition starts again."""
    evaluations, saves = _on_the_way(study.ladders.row.workload, steps, steps * row[STEP[0]])
    start, found = row.get("startup_seconds") or 0.0, [("steps", steps, row[STEP[0]])]
    for name, seconds, number in (("evaluation", "evaluations", evaluations), ("saving", "saves", saves)):
        found.append((seconds, number, (row.get(f"{name}_seconds") or 0.0) / (row.get(seconds) or 1)))
    again = _restarted(study)[1] or start
    room, needed = 3600 * (study.longest or math.inf) - again, sum(number * each for _, number, each in found)
    restarts = math.ceil(needed / room) - 1 if room > 0 else 0
    return [each for each in (*found, ("start", 1, start), ("restarts", restarts, again)) if each[1] > 0]


def hours_of(parts: list[tuple[str, int, float]], row: Row) -> list[float]:
    """Hours of a run of such parts, and the ends of their range, which is that of its steps."""
    (_, steps, _), *others = parts
    beside = sum(number * each for _, number, each in others)
    return [(steps * row[name] + beside) / 3600 for name in STEP]


def milestones(study: StudyReport) -> Table:
    """A row for each production run: its cost, and what that rests on; of a size that nothing tells of, its size alone."""
    found = []
    for asked, point, row in priced(study):
        each = vars(asked) | {"gpus": point.gpus, "rests_on": row.get("rests_on", "unknown: no point of this size")}
        if row:
            hours = hours_of(parts_of(study, asked.steps, row), row)
            units = {"node_hours": asked.nodes, "gpu_hours": point.gpus}
            units |= {"core_hours": study.site.cores_charged(asked.nodes)}
            for name, factor in {"hours": 1, **{name: asked.runs * unit for name, unit in units.items()}}.items():
                each |= {
                    f"{name}{end}": factor * value for end, value in zip(("", "_low", "_high"), hours, strict=True)
                }
            each["eflop_run"] = row["flops_per_step"] and asked.steps * row["flops_per_step"] / 1e18
            each["eflop"] = each["eflop_run"] and asked.runs * each["eflop_run"]
            each |= {name: row.get(name) for name in ("layout", "samples_per_step", "efficiency")}
            work = row["rate"] and asked.steps * row["rate"] * row[STEP[0]]
            each["work"] = work and f"{numbers.short(work)} {row['work_unit']}"
        found.append(each)
    if len(found) > 1:
        sums = (*(f"{name}{end}" for name in HOURS for end in ("", "_low", "_high")), "eflop")
        found.append({"name": "all"} | {name: total(each.get(name) for each in found) for name in sums})
    for each in found:
        for name in RANGED:
            said, low, high = (numbers.significant(each.get(f"{name}{end}")) for end in ("", "_low", "_high"))
            each[f"{name}_text"] = said and f"{said} ({low} to {high})"
    return make_table(f"{study.ladders.name}: production runs", headed(study, RUNS), found).known()


def sums(study: StudyReport) -> Table:
    """How the hours of a run of each production run add up."""
    found = []
    for asked, _, row in priced(study):
        parts = parts_of(study, asked.steps, row) if row else []
        whole = sum(number * each for _, number, each in parts)
        for part, number, each in [*parts, ("a run", None, whole)] * bool(parts):
            seconds = each if number is None else number * each
            known = {"number": number, "each": each if number else None}
            found.append({"name": asked.name, "part": part, "hours": seconds / 3600, "share": seconds / whole} | known)
    return make_table("", PARTS, found)


def alternatives(study: StudyReport) -> list[str]:
    """A sentence for each production run that a smaller size would finish sooner, with its price there, of the same work."""
    found, unit = [], "GPU" if study.site.device == "cuda" else "process"
    for asked, _, row in priced(study):
        said = []
        for other in study.rows if row else ():
            if (other["kind"], other["gpus"] < row["gpus"], STEP[0] in other) == (row["kind"], True, True):
                share = (other["samples_per_step"] or 1) / (row["samples_per_step"] or 1)
                if other[STEP[0]] < share * row[STEP[0]]:
                    steps = math.ceil(asked.steps / share)
                    hours = hours_of(parts_of(study, steps, other), other)[0]
                    cores = numbers.significant(asked.runs * study.site.cores_charged(other["nodes"]) * hours)
                    where = f"at {numbers.plural(other['gpus'], unit)}"
                    said.append(f"{where}: {cores} core-h, {numbers.significant(hours)} hours a run")
        if said:
            found.append(f"`{asked.name}` would end sooner on less: {'; '.join(said)}.")
    return found


def memory(study: StudyReport) -> Table:
    """What each point needs of memory, measured or predicted."""
    asked = (*study.ladders.points, *(point for _, point in study.ladders.production))
    layouts, site = {point.runs[0].run: point.layout for point in asked}, study.site
    found = []
    for row in study.rows:
        if process := row.get("peak_memory_bytes"):
            node = process * site.processes_together(layouts[row["run"]])
            there = site.gpu_memory_gb if site.device == "cuda" else site.host_memory_gb
            share = there and (process if site.device == "cuda" else node) / 1e9 / there
            found.append(row | {"process": process, "node": node, "share": share})
    return make_table("", headed(study, MEMORY), found).known()


def stored(study: StudyReport) -> Table:
    """What each production run writes: from the point of its size, else the largest that is done, else by formula."""
    done, workload, found = study.done, study.ladders.row.workload, []
    for asked, point, row in priced(study):
        record = max(done, key=lambda each: (each.name == point.runs[0].run, each.run.layout.world_size), default=None)
        kept, best = _checkpoints(study, record.name) if record else ([], [])
        each = {"name": asked.name, "bytes": sum(kept) or row.get("state_bytes"), "best": sum(best) or None}
        if record and kept:  # each process of ours writes a file
            more = 0 if workload.is_script else point.layout.world_size - record.run.layout.world_size
            each["files"] = len(kept) + more
        if each["bytes"]:
            each["left"] = each["held"] = each["bytes"] + sum(best)
            each["left_all"] = asked.runs * each["left"]
            if not workload.is_script:
                often = {name: number for name, number, _ in parts_of(study, asked.steps, row)} if row else {}
                each["held"] += workload.training.keep * each["bytes"]  # one more while it saves
                written = often.get("saves", 0) * each["bytes"] + often.get("evaluations", 0) * sum(best)
                each["written"] = written or None
        found.append(each)
    if len(found) > 1:
        found.append({"name": "all", "left_all": total(each.get("left_all") for each in found)})
    return make_table("", STORED, found).known()


def files_of(study: StudyReport) -> Table:
    """What each point read and wrote."""
    found = []
    for record in study.done:
        timing, starts, (kept, _) = record.timing, max(1, len(record.attempts)), _checkpoints(study, record.name)
        devices = read_samples(sample_files(study.results / record.name))
        row = {"run": record.name, "files": len(kept) or None, "bytes": sum(kept) or None, "starts": starts}
        row |= {"saving": timing.saving or None, "startup": timing.startup and timing.startup / starts}
        row |= {name: total_of(devices, "rank", name) for name in ("read_bytes", "written_bytes")}
        found.append(row)
    return make_table("", FILES, found).known()


def restarts_text(study: StudyReport) -> str:
    """What a restart costs, and how that is known."""
    count, seconds = _restarted(study)
    if seconds is not None:
        again = "with steps that were done again"
        return f"A restart took {numbers.duration(seconds)}, {again}: measured at points that started again, {count} times."
    return "No point had to start again: a restart is priced as a start. It adds reading a checkpoint and, after a failure, the steps since."


def input_text(study: StudyReport) -> str:
    """Which part of the points' jobs was reading data and saving."""
    found = []
    for record in study.done:
        read, wall = phases_of(record).get("data"), record.summary.wall_seconds
        if read is not None and wall:
            found.append((read + (record.timing.saving or 0.0)) / wall)
    if not found:
        return "What is read and written is part of the steps, and not told apart."
    ends = " to ".join(dict.fromkeys(map(numbers.percent, (min(found), max(found)))))
    return (
        f"All times are with input and output: waiting for data and saving took {ends} of the time of the points' jobs."
    )


def _checkpoints(study: StudyReport, name: str) -> tuple[list[int], list[int]]:
    """Bytes of each file of a finished run's checkpoint, and of its best weights."""
    files = RunFolder(study.results / name)
    manifests = (folder / "checkpoint.json" for folder in (files.checkpoint, files.folder / "best"))
    kept, best = (
        [each["bytes"] for each in read_record(path)["files"].values()] if path.is_file() else [] for path in manifests
    )
    return kept, best


def _restarted(study: StudyReport) -> tuple[int, float | None]:
    """(restarts of the points that started again, the mean seconds of their starts); None without such points."""
    again = [record for record in study.done if len(record.attempts) > 1 and record.timing.startup]
    starts = sum(len(record.attempts) for record in again)
    return starts - len(again), sum(record.timing.startup for record in again) / starts if again else None


def _on_the_way(workload: Any, steps: int, seconds: float) -> tuple[int, int]:
    """(evaluations, saves) of a training of so many steps, the last of both at its end; a script's are in its steps."""
    if workload.is_script:
        return 0, 0
    training = workload.training
    evaluations = math.ceil(steps / (training.evaluate_every or steps)) if training.evaluate else 0
    saves = math.ceil(steps / (training.checkpoint_every or steps))
    if training.checkpoint_minutes:
        saves = max(saves, 1 + math.floor(seconds / 60 / training.checkpoint_minutes))
    return evaluations, saves

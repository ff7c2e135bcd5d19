"""What stands out about a run, in plain words: what was paid for and not used, what it waited for, why it stopped.

The thresholds are choices, made so that what they name is worth a look; the figures behind each finding stand beside it.
"""

from dataclasses import dataclass

from parascale.report import numbers
from parascale.report.comparing import is_less
from parascale.report.derived import idle_fraction
from parascale.report.machines import contradictions
from parascale.report.stragglers import IDLE_USE, stragglers
from parascale.report.timing import cores_taken, cores_there, of_mean_rank, wanted_cores
from parascale.telemetry import figures

LOW_USE = 0.5
UNEVEN_USE = 0.2
DATA_WAIT = 0.1
COMMUNICATION = 0.25
BUBBLE = 0.2
NOT_TRAINING = 0.3
FULL_MEMORY = 0.92
LITTLE_MEMORY = 0.25
THROTTLED = 0.05
BUSY = 0.7
OVER_PLAN = 1.5
COMPUTING = 1.25  # times as long for a sample as the baseline
LIMIT_SECONDS = 180.0  # profiles let Slurm warn 120 s before the limit; saving takes some of them
LONG_LIMIT = 0.25
LONG_LIMIT_SECONDS = 3600.0  # a scheduler fits shorter jobs in anyhow
SHORT_RUN_SECONDS = 60.0  # of shorter ones, start-up is always the larger part
STANDS_OUT = (
    f"A run stands out where its steps took more than {OVER_PLAN:g} × the planned time, where more than {numbers.percent(COMMUNICATION)} "
    f"of a step is communication, {numbers.percent(BUBBLE)} a pipeline's bubble or {numbers.percent(DATA_WAIT)} waiting for data, where it is "
    f"measurably slower than its baseline or, as DDP, needs {COMPUTING:g} × as long to compute a sample, and where its processes left "
    "cores or GPUs idle or shared them; its own report says more."
)


@dataclass(frozen=True)
class Finding:
    """One sentence and what it rests on. kind: bad (costs), note (worth knowing) or good. short: the same beside a row of a table, if
    it stands there."""

    kind: str
    text: str
    source: str
    short: str = ""


def findings(record, devices=(), comparison=None):
    """The Findings of a run, worst first; one that says so where nothing stands out. comparison: with its baseline."""
    slower = [Finding("bad", *said) for said in stragglers(record, devices)]
    found = [
        *_ends(record),
        *_slow(record, comparison),
        *_shared(record, devices),
        *slower,
        *_idle(record, devices),
        *_waiting(record),
        *_use(devices, slower),
        *_memory(devices),
        *_limits(record),
    ]
    found.sort(key=lambda finding: ("bad", "note", "good").index(finding.kind))
    if not found:
        known = (
            "its record and the samples of its devices"
            if devices
            else "its record; no samples of its devices are there"
        )
        found.append(Finding("good", "Nothing stands out.", f"Looked at: {known}"))
    return found


# --- why it ended


def time_used(attempt):
    """(seconds that an attempt had of its job's time, the job's time limit); None where either is not known."""
    limit, since, seconds = (attempt.get(name) for name in ("limit_seconds", "allocated", "seconds"))
    if not limit or since is None or seconds is None:
        return None
    return attempt["started"] + seconds - since, limit


def hit_limit(attempt):
    """The time limit in seconds that ended an attempt, or None."""
    used, limit = time_used(attempt) or (0.0, None)
    if limit is None or attempt.get("outcome") not in ("stopped", "killed"):
        return None
    return limit if used > limit - LIMIT_SECONDS else None


def _ends(record):
    attempts, count = record.attempts, len(record.attempts)
    limits = [limit for attempt in attempts if (limit := hit_limit(attempt))]
    after = (
        "it continued from its checkpoint" if record.done else "start it again, and it continues from its checkpoint"
    )
    if limits:
        often = "" if count == 1 else f" in {len(limits)} of {count} attempts"
        text = f"Stopped by the time limit of {numbers.duration(limits[-1])}{often}; {after}."
        yield Finding("note" if record.done else "bad", text, "attempts in run.json")
    others = [attempt for attempt in attempts if not hit_limit(attempt)]
    for outcome, words in (
        ("stopped", "asked to stop and saved its state"),
        ("killed", "killed without warning"),
        ("failed", "failed"),
    ):
        ended = sum(attempt.get("outcome") == outcome for attempt in others)
        if ended:
            often = "It was" if count == 1 else f"{ended} of {count} attempts {'was' if ended == 1 else 'were'}"
            if outcome == "failed":
                often = "It" if count == 1 else f"{ended} of {count} attempts"
            kind = "bad" if outcome == "failed" or not record.done else "note"
            yield Finding(kind, f"{often} {words}; {after}.", "attempts in run.json")
    for cause in filter(None, (attempt.get("cause") for attempt in attempts)):
        yield Finding(
            "note" if record.done else "bad", f"Ranks waited in vain: {cause}.", "cause of the attempts in run.json"
        )
    if record.status == "missing":
        yield Finding("bad", "There is no readable record of this run.", "; ".join(record.notes))


def _limits(record):
    if not record.done or len(record.attempts) != 1:
        return
    limit, seconds = (record.attempts[0].get(name) for name in ("limit_seconds", "seconds"))
    if limit and seconds and limit >= LONG_LIMIT_SECONDS and seconds < LONG_LIMIT * limit:
        used = numbers.duration(seconds)
        text = f"Asked for {numbers.duration(limit)} and took {used}: with a shorter time limit it may start earlier."
        yield Finding("note", text, "attempts in run.json")


# --- slower than it should be


def _slow(record, comparison):
    """Beside its baseline, its plan and the machine that it was planned for."""
    if not record.done:
        return
    if text := contradictions(record):
        yield Finding("bad", f"It {text}", "machines in run.json", "another machine than the site's file")
    if comparison is not None and comparison.high and is_less(comparison.speedup, comparison.high, 1, 1):
        held, baseline = numbers.plural(record.gpus, record.gpu_word), record.run.baseline
        text = f"It is slower than its baseline `{baseline}`: {comparison.speedup:.2f} times as fast, on {held}."
        yield Finding("bad", text, "training_seconds of both in summary.csv", f"slower than {baseline}")
    if comparison is not None and (comparison.computing or 0) > COMPUTING:
        longer = f"{numbers.significant(comparison.computing, 2)} ×"
        text = (
            f"A sample takes each process {longer} as long to compute as the baseline `{record.run.baseline}`, "
            "communication apart. Processes that share memory, caches or clocks do that, and so do small parts of a batch."
        )
        yield Finding(
            "note", text, "forward and backward in summary.json", f"computing a sample takes {longer} as long"
        )
    planned, took = record.prediction.get("seconds"), record.summary.seconds
    if planned and took > OVER_PLAN * planned:
        ratio = f"{numbers.significant(took / planned, 2)} ×"
        text = (
            f"Its steps took {ratio} the planned time: {numbers.duration(took)} instead of {numbers.duration(planned)}."
        )
        yield Finding("bad", text, "prediction in run.json", f"{ratio} the planned time")


def _shared(record, devices):
    """Cores that others took, or that its processes did not use."""
    if record.run is None or record.site.device != "cpu":
        return
    if record.summary is not None and record.summary.cores_busy is not None:
        busy, taken = record.summary.cores_busy, cores_taken(record)
    else:
        busy, taken = figures(devices)["cores_busy"], None
    wanted = wanted_cores(record)
    if taken:
        text = (
            f"Other programs took {numbers.significant(taken, 2)} of the {wanted} cores that it computes with: "
            "its time says little, and it is not ranked."
        )
        yield Finding("bad", text, "busy cores of the node and of the processes in device.csv")
    held = min(wanted, cores_there(record))
    if busy is not None and busy < BUSY * held:
        said = f"{numbers.significant(busy, 2)} of {numbers.plural(held, 'core')}"
        text = f"Its processes kept {said} busy: the rest of the time they waited, or other programs computed."
        yield Finding("bad" if taken else "note", text, "busy cores of the processes in device.csv", f"{said} busy")


# --- what was paid for and not used


def _idle(record, devices):
    gpus = [device for device in devices if device.kind == "gpu" and device.mean("utilisation") is not None]
    idle = [device for device in gpus if device.mean("utilisation") < IDLE_USE]
    if idle:
        unused = sum(device.rank is None for device in idle)
        many = "" if unused == len(idle) else f"{unused} of them "
        why = f"; {many}asked for and used by no process" if unused else ""
        short = f"{len(idle)} of {numbers.plural(len(gpus), 'GPU')} idle"
        text = f"{short}{_paid(record, len(idle) / len(gpus))}{why}."
        yield Finding("bad", text, f"mean utilisation below {numbers.percent(IDLE_USE)} in device.csv", short)
    elif record.run is not None and not gpus and record.run.layout.idle_gpus:
        layout = record.run.layout
        count = layout.idle_gpus * layout.nodes
        short = f"{count} of {numbers.plural(record.gpus, record.gpu_word)} idle"
        text = f"{short}{_paid(record, count / record.gpus)}: asked for and never used."
        yield Finding("bad", text, "the layout in run.json", short)
    if record.run is not None and record.run.layout.one_stage_at_a_time:
        text = (
            f"With one micro-batch only one of {record.run.layout.pp} pipeline stages works at a time: "
            f"{numbers.percent(idle_fraction(record))} of the held time is idle. Give it more micro-batches."
        )
        yield Finding("bad", text, "the layout in run.json", "one stage at a time")


def _paid(record, fraction):
    hours = record.summary.core_hours if record.summary is not None else None
    return f", {numbers.significant(hours * fraction)} of {numbers.significant(hours)} core-hours" if hours else ""


def _use(devices, slower):
    working = [
        (device.mean("utilisation"), device)
        for device in devices
        if device.kind == "gpu" and (device.mean("utilisation") or 0) >= IDLE_USE
    ]
    if working:
        low, high = min(use for use, _ in working), max(use for use, _ in working)
        mean = sum(use for use, _ in working) / len(working)
        if mean < LOW_USE:
            text = f"The GPUs that work are busy {numbers.percent(mean)} of the time."
            yield Finding("bad", text, "mean utilisation in device.csv")
        if high - low > UNEVEN_USE and not slower:
            text = f"GPUs are unevenly busy, {numbers.percent(low)} to {numbers.percent(high)}: some wait for others."
            yield Finding("note", text, "mean utilisation in device.csv")
    yield from _throttled([device for device in devices if device.kind == "gpu"])


def _throttled(gpus):
    slowed = {}
    for gpu in gpus:
        for reason, samples in gpu.throttled.items():
            if samples / len(gpu.times) > THROTTLED:
                slowed.setdefault(reason, []).append(samples / len(gpu.times))
    for reason, parts in slowed.items():
        text = (
            f"{len(parts)} of {numbers.plural(len(gpus), 'GPU')} slowed down ({reason.replace('_', ' ')}), in up to "
            f"{numbers.percent(max(parts))} of the samples."
        )
        yield Finding("note", text, "throttled in device.csv")


# --- what it waited for


def _waiting(record):
    waited = record.summary.bubble_measured if record.summary is not None else None
    ranks = record.run.layout.world_size if record.run is not None else None
    phases = of_mean_rank(record.curve.phases, waited, ranks) if record.curve is not None else {}
    total = sum(phases.values())
    if total > 0:
        shares = {name: seconds / total for name, seconds in phases.items()}
        words = (
            (
                "data",
                DATA_WAIT,
                "Waits for data {} of the time: try faster storage, another format or more `training.workers`.",
            ),
            ("communication", COMMUNICATION, "Spends {} of the time in communication that no computation hides."),
            ("bubble", BUBBLE, "A pipeline rank waits for the others {} of the time: more micro-batches shrink that."),
        )
        for phase, least, text in words:
            if shares.get(phase, 0.0) >= least:
                of_all = phase == "bubble" and waited is not None
                source = "bubble_measured in summary.json" if of_all else f"seconds.{phase} in steps.jsonl"
                share = numbers.percent(shares[phase])
                yield Finding("bad", text.format(share), source, f"{phase} {share} of a step")
    summary = record.summary
    if summary is not None and summary.wall_seconds and summary.wall_seconds > SHORT_RUN_SECONDS:
        part = 1 - summary.seconds / summary.wall_seconds
        if part > NOT_TRAINING:
            text = f"{numbers.percent(part)} of the wall time was not training: starts, evaluation, saving."
            yield Finding("note", text, "seconds and wall_seconds in summary.json")


def _memory(devices):
    parts = [
        max(device.known("memory_bytes")) / max(device.known("memory_total_bytes"))
        for device in devices
        if device.kind == "gpu" and device.rank is not None and device.known("memory_total_bytes")
    ]
    if not parts:
        return
    if max(parts) > FULL_MEMORY:
        text = f"GPU memory was {numbers.percent(max(parts))} full at its peak: a little more and it fails."
        yield Finding("note", text, "memory_bytes in device.csv")
    elif max(parts) < LITTLE_MEMORY:
        text = f"GPU memory was at most {numbers.percent(max(parts))} full: a larger batch would fit."
        yield Finding("note", text, "memory_bytes in device.csv")

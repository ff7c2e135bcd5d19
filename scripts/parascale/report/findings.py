"""Findings about a run in plain words: unused resources, waiting, reasons why it stopped.

A rule is (true if it applies, *fields of a Finding). Thresholds are chosen so that a finding is worth a look. Unknown values trigger no rule.

All ranks wait for the slowest one in each step. The slow rank's GPU has a lower clock, or idles while the other GPUs wait in a kernel (which
counts as use). On CPUs waiting ranks sleep, so the slow rank's cores are busy for longer.
"""

from collections import Counter
from dataclasses import dataclass

from parascale.report.comparing import Comparison, is_less
from parascale.report.machines import contradictions
from parascale.report.numbers import duration, percent, plural, significant
from parascale.report.timing import cores_taken, held_cores, phases_of, unranked, wants_too_much
from parascale.telemetry import figures

IDLE_USE = 0.05  # a GPU below this is idle: the driver alone causes 1 or 2 %
LOW_USE = 0.5
NOT_TRAINING = 0.3
FULL_MEMORY = 0.92
LITTLE_MEMORY = 0.25
THROTTLED = 0.05
BUSY = 0.7
OVER_PLAN = 1.5
LIMIT_SECONDS = 180.0  # in our profiles Slurm warns 120 s before the limit, and saving takes time
LONG_LIMIT = 0.25
LONG_LIMIT_SECONDS = 3600.0  # schedulers backfill shorter jobs anyway
SHORT_RUN_SECONDS = 60.0  # start-up always dominates shorter runs
ENDINGS = {"stopped": "stopped when asked to", "killed": "killed without warning", "failed": "failed"}
WAITS = (  # phase, smallest fraction of a step to report, text
    ("data", 0.1, "Waits for data {} of the time: try faster storage, another format, more `training.workers`."),
    ("communication", 0.25, "Spends {} of the time in communication that no computation hides."),
    ("bubble", 0.2, "A pipeline rank waits for the others {} of the time: more micro-batches shrink that."),
)
APART = 0.05  # relative difference from the others that is worth a look
CAUSE = 0.05  # fraction of samples that were throttled, or of a step spent waiting for data
CORES = 0.5  # cores that other programs took on this node beyond those on any other node
# Kind of device, column, 1 if larger is faster (else -1), text.
MEASURES = (
    ("gpu", "clock_mhz", 1, "{:,.0f} MHz".format),
    ("gpu", "utilisation", 1, lambda value: f"{percent(value)} busy"),
    ("rank", "cores_busy", -1, lambda value: f"{significant(value, 2)} cores busy"),
)
KINDS = ("failed", "bad", "note", "good")


@dataclass(frozen=True)
class Finding:
    """A sentence and its source. kind: failed, bad (costs something), note (worth knowing) or good. short: words for a table row; empty: not
    shown there. disturbs: something other than its layout slowed the run down."""

    kind: str
    text: str
    source: str
    short: str = ""
    disturbs: bool = False


def findings(record, devices=(), comparison=None):
    """The Findings of a run, worst first; a single good one if nothing stands out. comparison: with its baseline."""
    gpus = [device for device in devices if device.kind == "gpu"]
    known, done = record.run is not None, record.done
    rules = (
        *_ends(record),
        *(_beside_others(record, comparison or Comparison()) if done else ()),
        *(_cores(record, devices) if known else ()),
        *_surroundings(record),
        *stragglers(record, devices),
        *(_idle(record, gpus) if known else ()),
        *_waiting(record),
        *_use(gpus),
        *(_time(record) if done else ()),
        *(_unsaid(record) if done and record.run.workload.is_script else ()),
    )
    found = [Finding(*said) for holds, *said in rules if holds]
    looked = "the samples of its devices" if devices else "no samples of its devices"
    well = Finding("good", "Nothing stands out.", f"Checked: its record; {looked}")
    return sorted(found, key=lambda finding: KINDS.index(finding.kind)) or [well]


def time_used(attempt):
    """(seconds of its job that an attempt used, time limit of the job), or None if either is unknown."""
    limit, since, seconds = (attempt.get(name) for name in ("limit_seconds", "allocated", "seconds"))
    if not limit or since is None or seconds is None:
        return None
    return attempt["started"] + seconds - since, limit


def ending(attempt):
    """Describe how an unfinished attempt ended; empty if it finished or still runs."""
    outcome, (used, limit) = attempt.get("outcome"), time_used(attempt) or (0.0, None)
    if limit and outcome in ("stopped", "killed") and used > limit - LIMIT_SECONDS:
        return f"stopped by the time limit of {duration(limit)}"
    return ENDINGS.get(outcome, "")


def _ends(record):
    again = "it continued" if record.done else "start it again, and it continues"
    worse, source = "note" if record.done else "bad", "attempts in run.json"
    for words, count in Counter(map(ending, record.attempts)).items():
        often = f" in {count} of {len(record.attempts)} attempts" if len(record.attempts) > 1 else ""
        text = f"{words[:1].upper()}{words[1:]}{often}; {again} from its checkpoint."
        yield words, "failed" if words == "failed" else worse, text, source
    for attempt in record.attempts:
        yield attempt.get("cause"), worse, f"Cause: {attempt.get('cause')}.", f"cause of the {source}"
    yield record.status == "missing", "failed", "There is no readable record of this run.", "; ".join(record.notes)


def _time(record):
    """Time limit and wall time of a finished run compared with the time it used."""
    limit, seconds = ((*record.attempts, {})[0].get(name) or 0 for name in ("limit_seconds", "seconds"))
    long = len(record.attempts) == 1 and limit >= LONG_LIMIT_SECONDS and 0 < seconds < LONG_LIMIT * limit
    text = f"Requested {duration(limit)} and took {duration(seconds)}: with a shorter time limit it may start earlier."
    yield long, "note", text, "attempts in run.json"
    trained, wall = record.summary.seconds, record.summary.wall_seconds or 0
    rest = 1 - trained / wall if wall > SHORT_RUN_SECONDS else 0
    text = f"{percent(rest)} of the wall time was not training: starts, evaluation, saving."
    yield rest > NOT_TRAINING, "note", text, "seconds and wall_seconds in summary.json"


def _unsaid(record):
    """Values that a user's script does not record."""
    summary = record.summary
    known = {"steps": summary.steps or None, "loss": summary.train_loss, "samples": summary.work}
    names = ", ".join(name for name, value in known.items() if value is None)
    said = f"records no {names}" + ("" if summary.steps else ": time of the whole job")
    yield names, "note", f"The script {said}; `parascale.record` changes that.", "steps.jsonl", said


def _beside_others(record, compared):
    """A different machine than the site file says; slower than the baseline or the plan."""
    elsewhere, baseline = contradictions(record), record.run.baseline
    yield elsewhere, "bad", f"It {elsewhere}", "machines in run.json", "another machine than the site's file"
    slower = compared.high and is_less(compared.speedup, compared.high, 1, 1)
    held, times = plural(record.gpus, record.gpu_word), significant(compared.speedup)
    text = f"It is slower than its baseline `{baseline}`: {times} times as fast, on {held}."
    yield slower, "bad", text, "training_seconds in summary.csv", f"slower than {baseline}"
    planned, took = record.prediction.get("seconds"), record.timing.training
    ratio = took / planned if planned else 0
    over = f"{significant(ratio, 2)} × the planned time"
    text = f"Its steps took {over}: {duration(took)} instead of {duration(planned)}."
    yield ratio > OVER_PLAN, "bad", text, "prediction in run.json", over


def _cores(record, devices):
    """On CPUs: cores that are missing, taken by other programs or not used."""
    if record.site.device != "cpu":
        return
    taken, held = cores_taken(record), held_cores(record)
    busy = record.summary.cores_busy if record.summary else None
    busy = figures(devices)["cores_busy"] if busy is None else busy
    text = f"It runs {unranked(record)}, which share them: its time is not meaningful."
    yield wants_too_much(record), "bad", text, "the layout in run.json", "", True
    text = f"Other programs took {significant(taken, 2)} of the {plural(held, 'core')} that it uses: its time is not meaningful."
    yield taken, "bad", text, "busy cores of the node and of the processes in device.csv", "", True
    said = f"{significant(busy, 2)} of {plural(held, 'core')}"
    text = f"Its processes kept {said} busy: the rest of the time they waited, or other programs computed."
    few = busy is not None and busy < BUSY * held
    yield few, "bad" if taken else "note", text, "busy cores of the processes in device.csv", f"{said} busy"


def _surroundings(record):
    """Problems of the environment that attempts noticed when they started."""
    found = {each["text"]: each for attempt in record.attempts for each in attempt.get("surroundings") or ()}
    for text, each in found.items():
        slows, source = each["costs"] == "speed", f"surroundings of the attempts in run.json; {each['source']}"
        said = f"{text}; it may cost {each['costs']}."
        yield True, "bad" if slows else "note", said, source, text.partition(":")[0] if slows else "", slows


def _idle(record, gpus):
    """Resources paid for but not used, from samples or, without them, from the layout."""
    layout, hours = record.run.layout, record.summary and record.summary.core_hours
    uses = [use for gpu in gpus if (use := gpu.mean("utilisation")) is not None]
    count = sum(use < IDLE_USE for use in uses) if uses else layout.idle_gpus * layout.nodes
    source = f"mean utilisation below {percent(IDLE_USE)} in device.csv" if uses else "the layout in run.json"
    short = f"{count} of {plural(held := len(uses) or record.gpus, record.gpu_word)} idle"
    paid = f", {significant(hours * count / held)} of {significant(hours)} core-hours" if hours else ""
    yield count, "bad", f"{short}{paid}.", source, short
    text = f"With one micro-batch only one of {layout.pp} pipeline stages works at a time: give it more micro-batches."
    yield layout.one_stage_at_a_time, "bad", text, "the layout in run.json", "one stage at a time"


def _use(gpus):
    """Utilisation, throttling and memory of GPUs."""
    uses = [use for gpu in gpus if (use := gpu.mean("utilisation") or 0.0) >= IDLE_USE]
    mean = sum(uses) / len(uses) if uses else 1.0
    text = f"The GPUs that work are busy {percent(mean)} of the time."
    yield mean < LOW_USE, "bad", text, "mean utilisation in device.csv"
    parts = [(reason, count / len(gpu.times)) for gpu in gpus for reason, count in gpu.throttled.items()]
    for reason in sorted({reason for reason, _ in parts}):
        shares = [part for each, part in parts if each == reason and part > THROTTLED]
        often = f"{len(shares)} of {plural(len(gpus), 'GPU')} slowed down ({reason.replace('_', ' ')})"
        text = f"{often}, in up to {percent(max(shares, default=0))} of the samples."
        yield shares, "note", text, "throttled in device.csv", "", True
    columns = [(gpu.known("memory_bytes"), gpu.known("memory_total_bytes")) for gpu in gpus if gpu.rank is not None]
    full = max((max(used) / max(total) for used, total in columns if used and total), default=LITTLE_MEMORY)
    source = "memory_bytes in device.csv"
    most = f"GPU memory was at most {percent(full)} full"
    yield full > FULL_MEMORY, "note", f"{most}: a little more and it fails.", source
    yield full < LITTLE_MEMORY, "note", f"{most}: a larger batch would fit.", source


def _waiting(record):
    """Phases of a step that compute nothing and take long."""
    waited, phases = record.summary and record.summary.bubble_measured, phases_of(record)
    total = sum(phases.values()) or 1.0
    for phase, least, text in WAITS:
        of_all = phase == "bubble" and waited is not None
        source = "bubble_measured in summary.json" if of_all else f"seconds.{phase} in steps.jsonl"
        share = phases.get(phase, 0.0) / total
        yield share >= least, "bad", text.format(percent(share)), source, f"{phase} {percent(share)} of a step"


# --- ranks that are slower than the others, by more than those differ


def stragglers(record, devices):
    """A rule for each measure in which some ranks or a node are slower, with the likely cause."""
    for kind, column, sign, said in MEASURES:
        stages = record.run is None or record.run.layout.pp > 1  # stages do different work
        if (stages and column != "clock_mhz") or (kind == "rank" and record.site.device != "cpu"):
            continue
        means = [(each.mean(column), each) for each in devices if each.kind == kind and _works(each)]
        speeds = sorted(((sign * mean, each) for mean, each in means if mean is not None), key=lambda pair: pair[0])
        cut = _gap([speed for speed, _ in speeds])
        slow, others = ([device for _, device in part] for part in (speeds[:cut], speeds[cut:]))
        hosts = {device.host for device in slow}
        node = len(hosts) == 1 and not hosts & {device.host for device in others}  # one whole node is slow
        if slow and (node or len(slow) < len(others)):
            worst, lowest, highest = (said(abs(speeds[place][0])) for place in (0, cut, -1))
            places = sorted((each.rank, each.host) for each in slow)
            ranks = " and ".join(f"Rank {rank} on {host}" for rank, host in places)
            named = f"Node {slow[0].host}" if node and cut > 1 else ranks
            why = "; ".join(_why(record, slow, others, devices)) or "the samples do not show why"
            text = f"{named} is slower than the others: {worst}, the others {lowest} to {highest}; {why}."
            yield True, "bad", text, f"{column} in device.csv", "", True


def _works(device):
    return device.rank is not None and (device.kind == "rank" or (device.mean("utilisation") or 0.0) >= IDLE_USE)


def _gap(speeds):
    """Count of sorted numbers below the widest gap if the gap is wider than the range of the numbers above it, else 0."""
    cuts = range(1, len(speeds) - 1)  # leaves at least two above, so that they have a range
    cut = max(cuts, key=lambda cut: speeds[cut] - speeds[cut - 1], default=0)
    wide = cut and speeds[cut] - speeds[cut - 1] > max(speeds[-1] - speeds[cut], APART * abs(speeds[cut]))
    return cut if wide else 0


def _why(record, slow, others, devices):
    """Likely causes: other differences between the slow devices and the others."""
    for reason in sorted({reason for device in slow for reason in device.throttled}):
        slowed, at_most = ([each.throttled[reason] / len(each.times) for each in part] for part in (slow, others))
        if min(slowed) > CAUSE + max(at_most):
            yield f"it was throttled ({reason.replace('_', ' ')}) in {percent(min(slowed))} of the samples"
    here, elsewhere = [], []  # cores of each node that other programs kept busy
    for host in (each for each in devices if each.kind == "host" and each.mean("cores_busy")):
        ranks = (each.mean("cores_busy") or 0.0 for each in devices if each.kind == "rank" and each.host == host.host)
        of = here if any(device.host == host.host for device in slow) else elsewhere
        of.append(max(0.0, host.mean("cores_busy") - sum(ranks)))
    if here and elsewhere and min(here) > max(elsewhere) + CORES:
        taken, most = significant(min(here), 2), significant(max(elsewhere), 2)
        yield f"other programs took {taken} cores there, on other nodes {most} at most"
    phases = record.curve.phases if record.curve is not None else {}
    share = phases.get("data", 0.0) / (sum(phases.values()) or 1.0)
    if share > CAUSE and any(device.rank == 0 for device in slow):
        yield f"rank 0 waited for data {percent(share)} of the time"

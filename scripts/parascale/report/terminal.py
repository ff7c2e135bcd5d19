"""Runs under way, and finished ones beside each other, as lines of text for a terminal."""

from parascale.report import layouts, numbers

BAR = 24
MOST_ROWS = 8  # of a workload
PER_LINE = 34  # characters that a device takes


def shown(run, now, width=100):
    """The lines of one Live run at the time `now` (seconds since 1970), none longer than `width`."""
    lines = [_head(run, now), _progress(run), _figures(run), _costs(run, now), *_devices(run, width - 4)]
    return [line[:width] for line in lines if line]


def _head(run, now):
    words = [run.name]
    if run.run is not None:
        words += [run.run.workload.name, run.run.strategy, layouts.degrees_text(run.run)]
    state = run.state(now)
    if state == "silent":
        state = "no sign of life: killed, or its node hangs"
    job = (run.attempts[-1].get("job_id") if run.attempts else None) or ""
    count = f"attempt {len(run.attempts)}" if len(run.attempts) > 1 else ""
    return " · ".join(word for word in (*dict.fromkeys(words), state, count, job and f"job {job}") if word)


def _progress(run):
    if not run.steps:
        return f"    step {run.step:,}"
    part = run.step / run.steps
    bar = "█" * round(part * BAR) + "░" * (BAR - round(part * BAR))
    left = f"  about {numbers.duration(run.seconds_left)} of training left" if run.seconds_left else ""
    return f"    {bar} step {run.step:,} of {run.steps:,} ({numbers.percent(part)}){left}"


def _figures(run):
    if not run.last:
        return ""
    words = [f"loss {run.last['loss']:.4f}"]
    if run.validation:
        words.append(f"validation {run.validation[1]:.4f} (step {run.validation[0]:,})")
    if run.rate:
        words.append(f"{numbers.significant(run.rate[0])} {run.rate[1]}/s")
    waits = sum(line["seconds"].get("data", 0.0) for line in run.recent)
    total = sum(line["seconds"]["total"] for line in run.recent)
    if total:
        words.append(f"waits for data {numbers.percent(waits / total)}")
    return "    " + "   ".join(words)


def _costs(run, now):
    words = [f"running for {numbers.duration(run.seconds(now))}"] if run.attempts else []
    if limit := run.limit(now):
        words.append(f"{numbers.percent(limit[0])} of the time limit of {numbers.duration(limit[1])}")
    if (hours := run.core_hours(now)) is not None:
        predicted = (run.described.get("prediction") or {}).get("core_hours")
        planned = f" of {numbers.significant(predicted)} planned" if predicted else ""
        words.append(f"{numbers.significant(hours)} core-hours{planned}")
    return "    " + "   ".join(words) if words else ""


def _devices(run, width):
    """Use and memory of each GPU, or of each process where there are no GPUs."""
    kind = "gpu" if any(key[0] == "gpu" for key in run.devices) else "rank"
    texts = [_device(line) for key, line in sorted(run.devices.items()) if key[0] == kind]
    columns = max(1, width // PER_LINE)
    for start in range(0, len(texts), columns):
        yield "    " + "".join(text.ljust(PER_LINE) for text in texts[start : start + columns]).rstrip()


def _device(line):
    value = {name: float(cell) for name, cell in line.items() if cell and name not in ("kind", "host", "throttled")}
    whose = f"rank {line['rank']}" if line["rank"] else f"GPU {line['index']} unused"
    if line["kind"] == "gpu":
        whose = f"node {line['node']} {whose}"
        use = f"{numbers.percent(value['utilisation'])}" if "utilisation" in value else ""
    else:
        use = f"{value['cores_busy']:.1f} cores" if "cores_busy" in value else ""
    slow = "slowed" if line["throttled"] else ""
    return " ".join(word for word in (whose, use, numbers.memory(value.get("memory_bytes")), slow) if word)


def compared(verdict):
    """The lines of a Verdict: its configurations, the fastest first."""
    heads = [column.title for column in verdict.table.columns[1:]]
    rows = [(verdict.title, "", *heads), *map(_compared, list(verdict.table.rows)[:MOST_ROWS])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    more = len(verdict.table) - MOST_ROWS
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return lines + ([f"and {more} more, on the page"] if more > 0 else [])


def _compared(row):
    label, time, faster, *others = row.cells
    between = f" ({faster.small.text})" if faster.small.text else ""
    return (
        f"  {label.text}",
        label.small.text,
        time.text,
        faster.text + between,
        *(cell.text or cell.kind for cell in others),
    )

"""Ranks or nodes that are slower than the others by more than the others differ, and why, where samples of the devices show it.

All wait for the slowest rank of a step. Its GPU runs at a lower clock, or idles while the others' wait in a kernel, which counts as
use; on CPUs, where ranks that wait sleep, it keeps its cores busy for longer.
"""

from parascale.report import numbers

IDLE_USE = 0.05  # a GPU that is used less did nothing: the driver alone makes 1 or 2 %
LEAST = 0.05  # of the others' mean: a smaller difference is not worth a look
SHARE = 0.05  # of a device's samples with a reason of throttling; of a step spent waiting for data
CORES = 0.5
# Kind of device, column, sign of what is fast, how it is said.
MEASURES = (
    ("gpu", "clock_mhz", 1, lambda value: f"{value:,.0f} MHz"),
    ("gpu", "utilisation", 1, lambda value: f"{numbers.percent(value)} busy"),
    ("rank", "cores_busy", -1, lambda value: f"{numbers.significant(value, 2)} cores busy"),
)


def stragglers(record, devices):
    """(text, source) of each measure by which some are slower. record: a RunRecord. devices: of its samples."""
    for kind, column, sign, said in MEASURES:
        stages = record.run is None or record.run.layout.pp > 1  # they do different work
        if (stages and column != "clock_mhz") or (kind == "rank" and record.site.device != "cpu"):
            continue
        ranks = [each for each in devices if each.kind == kind and each.rank is not None]
        working = [each for each in ranks if kind == "rank" or (each.mean("utilisation") or 0.0) >= IDLE_USE]
        means = [(each.mean(column), each) for each in working]
        slow, others = _apart([(sign * mean, each) for mean, each in means if mean is not None])
        if slow:
            worst, lowest, highest = (said(abs(value)) for value in (slow[0][0], others[0][0], others[-1][0]))
            slow, others = ([device for _, device in part] for part in (slow, others))
            text = f"{_named(slow, others)} is slower than the others: {worst}, the others {lowest} to {highest}"
            yield f"{text}; {_why(record, slow, others, devices)}.", f"{column} in device.csv"


def _apart(speeds):
    """The slow and the other ones of (speed, device): below and above the widest gap, if it is wider than what the others span."""
    speeds = sorted(speeds, key=lambda entry: entry[0])
    cuts = range(1, len(speeds) - 1)  # at least two others, which have a spread
    cut = max(cuts, key=lambda cut: speeds[cut][0] - speeds[cut - 1][0], default=None)
    if cut is None:
        return [], []
    slow, others = speeds[:cut], speeds[cut:]
    gap, span = others[0][0] - slow[-1][0], others[-1][0] - others[0][0]
    few = len(slow) < len(others) or _is_node([each for _, each in slow], [each for _, each in others])
    return (slow, others) if few and gap > max(span, LEAST * abs(others[0][0])) else ([], [])


def _is_node(slow, others):
    """Whether these devices are all those of one of several nodes."""
    hosts = {device.host for device in slow}
    return len(hosts) == 1 and not hosts & {device.host for device in others}


def _named(slow, others):
    if len(slow) > 1 and _is_node(slow, others):
        return f"Node {slow[0].host}"
    return " and ".join(f"Rank {rank} on {host}" for rank, host in sorted((each.rank, each.host) for each in slow))


def _why(record, slow, others, devices):
    """What else sets the slow ones apart."""
    reasons, hosts = [], {device.host for device in slow}
    for reason in sorted({reason for device in slow for reason in device.throttled}):
        share = min(device.throttled[reason] / len(device.times) for device in slow)
        if share > SHARE + max(device.throttled[reason] / len(device.times) for device in others):
            reasons.append(f"it was throttled ({reason.replace('_', ' ')}) in {numbers.percent(share)} of the samples")
    taken = {host.host: _taken(host, devices) for host in devices if host.kind == "host" and host.mean("cores_busy")}
    here, elsewhere = ([cores for host, cores in taken.items() if (host in hosts) == where] for where in (True, False))
    if here and elsewhere and min(here) > max(elsewhere) + CORES:
        here, elsewhere = (numbers.significant(value, 2) for value in (min(here), max(elsewhere)))
        reasons.append(f"other programs took {here} cores there, on other nodes {elsewhere} at most")
    phases = record.curve.phases if record.curve is not None else {}
    share = phases.get("data", 0.0) / (sum(phases.values()) or 1.0)
    if share > SHARE and any(device.rank == 0 for device in slow):
        reasons.append(f"rank 0 waited for data {numbers.percent(share)} of the time")
    return "; ".join(reasons) or "the samples do not show why"


def _taken(host, devices):
    """Cores of a node that others kept busy than its ranks."""
    ranks = (
        device.mean("cores_busy") or 0.0 for device in devices if device.kind == "rank" and device.host == host.host
    )
    return max(0.0, host.mean("cores_busy") - sum(ranks))

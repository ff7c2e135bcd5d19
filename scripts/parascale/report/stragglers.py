"""Ranks or nodes that are slower than the others by more than the others differ, and why, where samples of the devices show it.

All wait for the slowest rank of a step. Its GPU runs at a lower clock, or idles while the others' wait in a kernel, which counts as
use; on CPUs, where ranks that wait sleep, it keeps its cores busy for longer.
"""

from parascale.report.numbers import percent, significant

IDLE_USE = 0.05  # a GPU that is used less did nothing: the driver alone makes 1 or 2 %
LEAST = 0.05  # of the others' mean: a smaller difference is not worth a look
SHARE = 0.05  # of a device's samples with a reason of throttling; of a step spent waiting for data
CORES = 0.5
# Kind of device, column, sign of what is fast, how it is said.
MEASURES = (
    ("gpu", "clock_mhz", 1, "{:,.0f} MHz".format),
    ("gpu", "utilisation", 1, lambda value: f"{percent(value)} busy"),
    ("rank", "cores_busy", -1, lambda value: f"{significant(value, 2)} cores busy"),
)


def stragglers(record, devices):
    """(text, source) of each measure by which some are slower. record: a RunRecord. devices: of its samples."""
    for kind, column, sign, said in MEASURES:
        stages = record.run is None or record.run.layout.pp > 1  # they do different work
        if (stages and column != "clock_mhz") or (kind == "rank" and record.site.device != "cpu"):
            continue
        means = [(each.mean(column), each) for each in devices if each.kind == kind and _works(each)]
        speeds = [(sign * mean, each) for mean, each in means if mean is not None]
        slow, others = _apart(sorted(speeds, key=lambda entry: entry[0]))
        if slow:
            worst, lowest, highest = (said(abs(value)) for value, _ in (slow[0], others[0], others[-1]))
            slow, others = ([device for _, device in part] for part in (slow, others))
            where = sorted((device.rank, device.host) for device in slow)
            ranks = " and ".join(f"Rank {rank} on {host}" for rank, host in where)
            named = f"Node {slow[0].host}" if len(slow) > 1 and _is_node(slow, others) else ranks
            why = "; ".join(_why(record, slow, others, devices)) or "the samples do not show why"
            text = f"{named} is slower than the others: {worst}, the others {lowest} to {highest}; {why}."
            yield text, f"{column} in device.csv"


def _works(device):
    return device.rank is not None and (device.kind == "rank" or (device.mean("utilisation") or 0.0) >= IDLE_USE)


def _apart(speeds):
    """The slow and the other ones of (speed, device): below and above the widest gap, if it is wider than what the others span."""
    cuts = range(1, len(speeds) - 1)  # at least two others, which have a spread
    cut = max(cuts, key=lambda cut: speeds[cut][0] - speeds[cut - 1][0], default=0)
    slow, others = speeds[:cut], speeds[cut:]
    if not slow or not (
        len(slow) < len(others) or _is_node(*([device for _, device in part] for part in (slow, others)))
    ):
        return [], []
    gap, span = others[0][0] - slow[-1][0], others[-1][0] - others[0][0]
    return (slow, others) if gap > max(span, LEAST * abs(others[0][0])) else ([], [])


def _is_node(slow, others):
    """Whether these devices are all those of one of several nodes."""
    hosts = {device.host for device in slow}
    return len(hosts) == 1 and not hosts & {device.host for device in others}


def _why(record, slow, others, devices):
    """What else sets the slow ones apart."""
    for reason in sorted({reason for device in slow for reason in device.throttled}):
        slowed, at_most = ([each.throttled[reason] / len(each.times) for each in part] for part in (slow, others))
        if min(slowed) > SHARE + max(at_most):
            yield f"it was throttled ({reason.replace('_', ' ')}) in {percent(min(slowed))} of the samples"
    here, elsewhere = [], []  # cores that others than its ranks kept busy of a node
    for host in (each for each in devices if each.kind == "host" and each.mean("cores_busy")):
        ranks = (each.mean("cores_busy") or 0.0 for each in devices if each.kind == "rank" and each.host == host.host)
        of = here if any(device.host == host.host for device in slow) else elsewhere
        of.append(max(0.0, host.mean("cores_busy") - sum(ranks)))
    if here and elsewhere and min(here) > max(elsewhere) + CORES:
        taken, most = significant(min(here), 2), significant(max(elsewhere), 2)
        yield f"other programs took {taken} cores there, on other nodes {most} at most"
    phases = record.curve.phases if record.curve is not None else {}
    share = phases.get("data", 0.0) / (sum(phases.values()) or 1.0)
    if share > SHARE and any(device.rank == 0 for device in slow):
        yield f"rank 0 waited for data {percent(share)} of the time"

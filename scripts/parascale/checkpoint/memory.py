"""The largest memory that a piece of work took, as the kernel counts it."""

from contextlib import contextmanager
from pathlib import Path

STATUS = Path("/proc/self/status")
RESET_PEAK = Path("/proc/self/clear_refs")  # writing 5 sets the peak to the present, proc(5)


@contextmanager
def peak_growth():
    """Yield a dict that holds `bytes` afterwards: the peak resident memory above that at the start; None where unknown."""
    found = {"bytes": None}
    try:
        RESET_PEAK.write_text("5")
    except OSError:
        yield found
        return
    before = _kibibytes("VmRSS")
    yield found
    found["bytes"] = 1024 * max(0, _kibibytes("VmHWM") - before)


def _kibibytes(key):
    return int(STATUS.read_text().partition(f"{key}:")[2].split()[0])

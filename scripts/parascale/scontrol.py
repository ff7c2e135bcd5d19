"""What `scontrol show … --oneliner` prints: a line for each record, of words `Key=value`."""

import re

FIELD = re.compile(r"(\w+)=(\S*)")
DURATION = re.compile(r"(?:(\d+)-)?(\d+):(\d+):(\d+)")


def fields(line):
    """Key → value, as text, of one record."""
    return dict(FIELD.findall(line))


def seconds(text):
    """Seconds of a duration `[days-]hours:minutes:seconds`; None for all else, such as `UNLIMITED`."""
    match = DURATION.fullmatch(text or "")
    if match is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)

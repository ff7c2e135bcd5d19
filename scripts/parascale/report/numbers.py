"""Formats numbers for people. None becomes an empty string: an unknown value is never shown as 0."""

TIME_UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
SIZES = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k"))
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def significant(value, digits=3):
    """`digits` significant digits with thousands separators and no exponent: 12,300 and 0.0123."""
    if value is None:
        return ""
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".split("e")[1])  # after rounding
    decimals = max(0, digits - 1 - exponent)
    return f"{value:,.{decimals}f}"


def loss(value):
    """A loss in nats."""
    return "" if value is None else f"{value:,.4f}"


def whole(value):
    return "" if value is None else f"{value:,}"


def short(value):
    """A large number with an SI prefix: `5.24 M`, `48.9 k`, `812`."""
    if value is None:
        return ""
    if abs(value) < 10_000:
        return significant(value)
    size, letter = next(entry for entry in SIZES if abs(value) >= entry[0])
    return f"{significant(value / size)}{letter}"


def duration(seconds):
    """Seconds as `420 ms`, `12.3 s`, `4 min 12 s` or `1 h 32 min`."""
    if seconds is None:
        return ""
    if 0 < seconds < 1:
        return f"{significant(1000 * seconds)} ms"
    if seconds < 100:
        return f"{significant(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes:02d} min"


def time_unit(seconds):
    """(seconds, name) of the time unit for an axis of length `seconds`."""
    return next(entry for entry in TIME_UNITS if seconds >= 2 * entry[0] or entry[0] == 1.0)


def memory(count):
    """Bytes in binary units."""
    if count is None:
        return ""
    for unit in ("B", "KiB", "MiB"):
        if count < 1000:
            return f"{significant(count)} {unit}"
        count /= 1024
    return f"{significant(count)} GiB"


def core_hours(hours):
    """Core-hours, or core-seconds below 0.1 core-h: `12.3 core-h`, `92 core-s`."""
    if hours is None:
        return ""
    return f"{significant(hours)} core-h" if hours >= 0.1 else f"{significant(3600 * hours, 2)} core-s"


def price(predicted):
    """Core-hours of a prediction and the range that contains 80 of 100 runs: `12.3 core-h (9.81 to 15.2)`."""
    hours = predicted.core_hours
    if hours is None:
        return ""
    factor, digits = (1, 3) if hours >= 0.1 else (3600, 2)
    ends = (
        significant(factor * hours * each / predicted.wall_seconds, digits)
        for each in (predicted.wall_low, predicted.wall_high)
    )
    return f"{core_hours(hours)} ({' to '.join(ends)})"


def energy(joules):
    """Joules, or kilowatt-hours from 36 kJ: `532 J`, `1.24 kWh`."""
    if joules is None:
        return ""
    return f"{significant(joules)} J" if joules < 36_000 else f"{significant(joules / 3.6e6)} kWh"


def percent(fraction):
    return "" if fraction is None else f"{100 * fraction:.0f} %"


def share(fraction):
    """A fraction as a percentage with three significant digits."""
    return "" if fraction is None else f"{significant(100 * fraction)} %"


def tiny(value):
    """A small difference: `4.8 × 10⁻⁷`, or 0."""
    if value is None:
        return ""
    if value == 0:
        return "0"
    digits, power = f"{value:.1e}".split("e")
    return f"{digits} × 10{str(int(power)).translate(SUPERSCRIPTS)}"


def plural(count, word):
    """`1 GPU`, `4 GPUs`, `2 processes`."""
    ending = "" if count == 1 else "es" if word.endswith(("s", "ch")) else "s"
    return f"{count:,} {word}{ending}"


def aligned(rows):
    """Rows of strings as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]

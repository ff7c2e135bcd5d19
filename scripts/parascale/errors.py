"""Errors that a user can fix. Their messages say what is wrong, where, and what to do."""

from collections.abc import Iterable

FAILED = 1
# EX_CONFIG of sysexits.h: another start would fail in the same way until somebody changes something.
PERMANENT_FAILURE = 78


class ParascaleError(Exception):
    """Base of all errors that we raise on purpose; the command prints them without a traceback and exits with `exit_code`."""

    exit_code = FAILED


class ConfigError(ParascaleError):
    """A key, value or table of the configuration is wrong."""

    exit_code = PERMANENT_FAILURE


class DataError(ParascaleError):
    """Input data is missing, empty, corrupt or of the wrong kind."""

    exit_code = PERMANENT_FAILURE


class DamagedError(ParascaleError, ValueError):
    """A JSON file is empty, truncated or otherwise damaged."""


class DownloadError(DataError):
    """A source could not be downloaded; the folder of raw data is unchanged."""

    exit_code = FAILED


class RequirementError(ParascaleError):
    """The machine lacks what a run needs: a version, a driver, a distributed API, disk space."""


class NoAnswerError(ParascaleError):
    """Slurm does not answer now, but may later."""


class FullDiskError(RequirementError):
    """The disk or its quota is full."""

    exit_code = PERMANENT_FAILURE


class InterpreterError(RequirementError):
    """A script cannot start in its user's own environment."""

    exit_code = PERMANENT_FAILURE


class CheckpointError(ParascaleError):
    """A checkpoint is missing, incomplete, damaged or belongs to another model."""


class TrainingError(ParascaleError):
    """A training cannot continue: a rank failed, or another process writes its files."""


class DivergedError(TrainingError):
    """A loss or gradient is not finite; a retry would compute the same."""

    exit_code = PERMANENT_FAILURE


class Interrupted(ParascaleError):
    """A run was asked to stop. It saved its state, and the next start continues from there."""


def shorten_list(values: Iterable[object], most: int = 10, between: str = ", ") -> str:
    """Join values for a message: the first `most` of them, and how many more there are."""
    shown = [f"{value:,}" if isinstance(value, int) else str(value) for value in values]
    more = [f"… and {len(shown) - most:,} more"] if len(shown) > most else []
    return between.join(shown[:most] + more)

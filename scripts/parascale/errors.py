"""Errors that a user can act on. Their message says what is wrong, where, and what to do."""

from collections.abc import Iterable

FAILED = 1
# "Configuration error" of sysexits.h: the same start would fail in the same way until somebody changes something.
PERMANENT_FAILURE = 78


class ParascaleError(Exception):
    """Base of every error raised on purpose; the command prints it without a traceback and exits with `exit_code`."""

    exit_code = FAILED


class ConfigError(ParascaleError):
    """A key, value or table of the configuration is wrong."""

    exit_code = PERMANENT_FAILURE


class DataError(ParascaleError):
    """Input data is missing, empty, corrupt or of the wrong kind."""

    exit_code = PERMANENT_FAILURE


class DamagedError(ParascaleError, ValueError):
    """A file of JSON is empty, cut short or otherwise not what was written."""


class DownloadError(DataError):
    """A source could not be fetched; the folder of raw data is as it was before."""

    exit_code = FAILED


class RequirementError(ParascaleError):
    """The machine lacks what a run needs: a version, a driver, a distributed API, disk space."""


class NoAnswerError(ParascaleError):
    """Slurm does not answer now; it may later."""


class FullDiskError(RequirementError):
    """The disk, or the quota on it, has no room."""

    exit_code = PERMANENT_FAILURE


class InterpreterError(RequirementError):
    """A user's own environment cannot start its script."""

    exit_code = PERMANENT_FAILURE


class CheckpointError(ParascaleError):
    """A checkpoint is missing, incomplete, damaged or of another model."""


class TrainingError(ParascaleError):
    """A training cannot go on: a rank that failed, another that writes its files."""


class DivergedError(TrainingError):
    """A loss or gradient that is not finite: a retry would compute the same."""

    exit_code = PERMANENT_FAILURE


class Interrupted(ParascaleError):
    """A run was asked to stop; it saved its state and continues where it stopped when started again."""


def shorten_list(values: Iterable[object], most: int = 10, between: str = ", ") -> str:
    """The first of some values for a message, and how many more there are. most: values that it shows."""
    shown = [f"{value:,}" if isinstance(value, int) else str(value) for value in values]
    more = [f"… and {len(shown) - most:,} more"] if len(shown) > most else []
    return between.join(shown[:most] + more)

"""Errors that a user can act on. Their message says what is wrong, where, and what to do."""


class ParascaleError(Exception):
    """Base of every error raised on purpose; the command prints it without a traceback and exits with 1."""


class ConfigError(ParascaleError):
    """A key, value or table of the configuration is wrong."""


class DataError(ParascaleError):
    """Input data is missing, empty, corrupt or of the wrong kind."""


class DamagedError(ParascaleError, ValueError):
    """A file of JSON is empty, cut short or otherwise not what was written."""


class DownloadError(DataError):
    """A source could not be fetched; nothing half-written was left behind."""


class RequirementError(ParascaleError):
    """The machine lacks what a run needs: a version, a driver, a distributed API, disk space."""


class CheckpointError(ParascaleError):
    """A checkpoint is missing, incomplete, damaged or of another model."""


class TrainingError(ParascaleError):
    """A training cannot go on: a loss that is not finite, a rank that failed."""


class Interrupted(ParascaleError):
    """A run was asked to stop; it saved its state and continues where it stopped when started again."""


def few(values, most=10, between=", "):
    """The first of some values for a message, and how many more there are. most: values that it shows."""
    shown = [f"{value:,}" if isinstance(value, int) else str(value) for value in values]
    more = [f"… and {len(shown) - most:,} more"] if len(shown) > most else []
    return between.join(shown[:most] + more)

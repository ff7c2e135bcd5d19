"""A full disk, said in a sentence."""

import errno
from contextlib import contextmanager

from parascale.errors import RequirementError


@contextmanager
def full_disk_is_an_error(target):
    """Turn the system's errors of a full disk or quota, met while `target` is written, into a RequirementError."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise RequirementError(
            f"{target}: the disk or its quota is full ({error.strerror}). Nothing half-written was left there. Free some "
            "space or set another `root` in the configuration, then run again."
        ) from error

"""Made-up inputs for tests, one module each: a project, a cluster, results, samples of devices; and here, failures."""

FULL_DISK = OSError(28, "No space left on device")


def failing(error):
    """A function that raises `error`, to replace another in a test."""

    def fails(*_, **__):
        raise error

    return fails

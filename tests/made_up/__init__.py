"""What tests make up, each kind in one place: a project, a cluster, results, samples of devices; and here, what fails."""

FULL_DISK = OSError(28, "No space left on device")


def failing(error):
    """A function that raises, to stand in for another."""

    def fails(*_, **__):
        raise error

    return fails

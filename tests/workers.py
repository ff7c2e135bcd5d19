"""What `pytest --numprocesses` starts as workers: copies of one process that has loaded what all of them need. Alone, each would take half a
minute of a processor for that, twice: the server that a worker's tests fork from (`forks`) is such a copy too."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

# Beside what `forks` names: what tests import in many files.
LOADED = (
    *("datasets", "functorch.compile", "jsonschema", "snakemake_executor_plugin_slurm", "torch.distributed.pipelining"),
    *("parascale.checkpoint.convert", "parascale.data.sources", "parascale.evaluation.summaries"),
    "tensorboard.backend.event_processing.event_accumulator",
)


def start_copying(specs, root):
    """Start that process, for as many workers as there are `specs` of execnet, which are changed to ask it for a copy."""
    folder = Path(tempfile.mkdtemp())  # nobody else may ask
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen()
        command = [sys.executable, "-m", "tests.workers", str(listener.fileno()), str(len(specs)), str(folder)]
        subprocess.Popen(command, cwd=root, pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL)
    for spec in specs:
        spec.python = f"{sys.executable} -I -S {__file__} {folder / 'socket'}"


def ask(address):
    """Let a copy have the standard streams of this process, and go."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [b"x"], [0, 1, 2])


def copy_for_each(listener, workers, folder):
    """Returns in each copy, whose standard streams are those of who asked for it; ends in the process that is copied."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    listener.settimeout(300.0)
    for _ in range(workers):
        connection, _ = listener.accept()
        _, streams, *_ = socket.recv_fds(connection, 1, 3)
        connection.close()
        if not os.fork():
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            listener.detach()
            _close_others()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            return
        for stream in streams:
            os.close(stream)
    shutil.rmtree(folder)
    for _ in range(workers):
        os.wait()
    sys.exit()


def fork_server():
    """Start the server of `forks`, and multiprocessing's own, as copies of this process, whose output nobody reads."""
    from multiprocessing import forkserver, util
    from unittest import mock

    def copied(program, arguments, files):
        if copy := os.fork():
            return copy
        for stream in (1, 2):  # the end of a worker is that of its standard output
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        _close_others(*files)
        try:
            exec(arguments[-1], {})
        finally:
            os._exit(0)

    with mock.patch.object(util, "spawnv_passfds", copied):
        forkserver.ensure_running()


def _close_others(*kept):
    """Close all files but the standard streams and some."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in kept:
            with contextlib.suppress(OSError):
                os.close(number)


def main():
    """Python's `-c`, whose code is what execnet writes to standard input."""
    if len(sys.argv) < 4 or not sys.argv[1].isdigit():
        return ask(sys.argv[1])
    import gc
    import importlib
    import types

    from tests import forks

    for name in (*forks.LOADED, *LOADED):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    copy_for_each(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3])
    fork_server()
    sys.stdin, sys.stdout, sys.argv = open(0, closefd=False), open(1, "w", closefd=False), ["-c"]  # noqa: SIM115
    sys.modules["__main__"] = types.ModuleType("__main__")
    exec(eval(sys.stdin.readline()), vars(sys.modules["__main__"]))


if __name__ == "__main__":
    main()

"""A user's own environment with the oldest supported torch, and a substitute for a container around it."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

OLDEST = "2.4.0"  # torch
# Runs a command in its own process namespace and root.
CONTAINER = """#!/bin/sh
exec unshare --mount --pid --fork sh -c '
root=$1; shift
mount -t tmpfs box "$root"
for each in {seen}; do
    [ -L "$each" ] && cp -P "$each" "$root$each" && continue
    mkdir -p "$root$each" && mount --rbind "$each" "$root$each"
done
exec chroot "$root" sh -c "cd \\"\\$0\\" && exec \\"\\$@\\"" "$PWD" "$@"' sh {root} "$@"
"""
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc", "/proc", "/dev", sys.base_prefix)


def oldest_environment(config):
    """A virtual environment with the oldest torch, safetensors and NumPy, without our packages, made once; skips if pip fails."""
    folder = config.cache.mkdir("own-environment") / f"torch-{OLDEST}-{sys.version_info[0]}.{sys.version_info[1]}"
    if not (folder / "whole").exists():
        venv.create(folder, clear=True, with_pip=True)
        install = [folder / "bin/pip", "install", f"torch=={OLDEST}", "safetensors", "numpy<2"]
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no torch {OLDEST} for this Python: {done.stderr.strip().splitlines()[-1]}")
        (folder / "whole").touch()
    return folder


def container(folder, *seen):
    """A program that runs a command in a separate root with the system and the folders `seen`; skips if that is impossible."""
    if os.getuid() or subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"]).returncode:
        pytest.skip("needs root, and namespaces")
    root, program = folder / "root", folder / "box"
    root.mkdir()
    places = " ".join(str(each) for each in (*SYSTEM, *seen) if Path(each).exists())
    program.write_text(CONTAINER.format(seen=places, root=root))
    program.chmod(0o755)
    return program

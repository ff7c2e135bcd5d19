"""Every shipped profile plans on a computer that has no Slurm and no account: a laptop shows what a cluster would run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .small_project import REPOSITORY, link_project

PROFILES = sorted(path.name for path in (REPOSITORY / "profiles").iterdir() if path.is_dir() and path.name != "local")
SLURM = ("sbatch", "srun", "squeue", "sacct", "sacctmgr", "scancel", "scontrol", "sinfo", "sshare")


@pytest.mark.parametrize("profile", PROFILES)
def test_a_dry_run_needs_neither_slurm_nor_an_account(profile, tmp_path):
    link_project(tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    for program in Path("/usr/bin").iterdir():
        if program.name not in SLURM:
            (tools / program.name).symlink_to(program)
    assert not shutil.which("sbatch", path=str(tools))
    environment = {name: value for name, value in os.environ.items() if name not in ("SCRATCH", "PROJECT", "DATA")}
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--profile", f"profiles/{profile}", "-n"],
        cwd=tmp_path,
        env={**environment, "PATH": str(tools)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert "train_fsdp" in output and "dry-run" in output
    left = {path.name for path in tmp_path.glob("**/results/**/*") if path.is_file()}
    assert left == {"plan.json", "plan.html"}, "a dry run leaves its plan and nothing else"
    assert "core-h at worst" in output

"""Nsight Systems around the processes of a run, on clusters that have it: a timeline of the steps that the run profiles."""

import shutil

from parascale.errors import RequirementError


def nsight_command(logs):
    """What stands before a process's command, so that Nsight Systems watches it; its reports go to the folder `logs`.

    Collection begins and ends where the training says so (`cudaProfilerStart` and `Stop` around the steps of `profile`), and
    the training goes on after it. Raises RequirementError where there is no `nsys`.
    """
    program = shutil.which("nsys")
    if program is None:
        raise RequirementError(
            "`profiler: nsight` needs Nsight Systems, and `nsys` is not on the path: load its module "
            "(JSC: `module load Nsight-Systems`), or use `profiler: torch`"
        )
    return [
        program,
        "profile",
        f"--output={logs}/nsight-%h-%p",  # host and process
        "--trace=cuda,nvtx,cublas,cudnn,osrt",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "--force-overwrite=true",
    ]

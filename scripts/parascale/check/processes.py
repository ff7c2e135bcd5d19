"""Starts the processes of a part with the normal launcher, and replaces missing packages with stand-ins."""

import importlib.util
import pickle
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from importlib.machinery import ModuleSpec
from pathlib import Path
from unittest.mock import MagicMock

from parascale.errors import TrainingError
from parascale.files import read_json
from parascale.plan.survey import data_sheet
from parascale.settings import load_project_file, load_site
from parascale.settings.site import Link

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "tests/benchmarks"))  # `loop_overhead` has the bare loop and makes synthetic data
TIMEOUT_SECONDS, GRACE_SECONDS = 120.0, 5.0  # for steps and collectives; for processes to end


@dataclass
class Here:
    """Where a check runs. gpus: (name, bytes, watts) of each; if empty, sizes are tiny. missing: packages. deadline: on the monotonic clock."""

    output: Path
    gpus: list
    missing: list
    deadline: float
    launches: int = 0

    def __post_init__(self):
        self.root, self.ranks = self.output / "trainings", len(self.gpus) or 2

    @cached_property
    def project(self):
        """A project with a run for each strategy, on a site that describes this machine with the data sheet of its GPUs."""
        file, root = ROOT / "config/strategies.yaml", {"root": str(self.root)}
        project = load_project_file(file, bases=[ROOT / "config"], overrides=root)
        if not self.gpus:
            return project
        name, size = self.gpus[0][0], self.gpus[0][1] / 1e9
        facts: dict = {"peak_tflops": {}}
        if sheet := self.sheet:
            facts = {"peak_tflops": sheet["peak_tflops"], "memory_gigabytes_per_second": sheet["memory"]}
            facts["node_link"] = Link(gigabytes_per_second=sheet["link"])
        facts |= {"device": "cuda", "gpu": name, "gpu_memory_gb": size, "gpus_per_node": len(self.gpus)}
        return replace(project, site=replace(load_site(project.config, "slurm"), **facts))

    @cached_property
    def sheet(self):
        """Data sheet of the GPUs, or None."""
        name, size, watts = self.gpus[0]
        return data_sheet(f"{name} {size / 1e9:.0f}GB", watts)

    @property
    def power(self):
        """Fraction of the data sheet's power that a GPU may draw; 1 if unknown."""
        return min(1.0, self.gpus[0][2] / self.sheet["watts"]) if self.gpus and self.sheet and self.gpus[0][2] else 1.0


def power_limit(uuid):
    """Current power limit of a board in watts, from nvidia-smi; None if unknown."""
    command = ["nvidia-smi", f"--id=GPU-{uuid.removeprefix('GPU-')}", "--format=csv,noheader,nounits"]
    try:
        return float(subprocess.check_output([*command, "--query-gpu=enforced.power.limit"], text=True, timeout=10))
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def launched(here, function, ranks, **values):
    """Start `ranks` processes that each call a function of `parascale.check.ranks` with `values`, and return their results.

    Raises TrainingError with the launcher's last messages if one failed, subprocess.TimeoutExpired if the check ran out of time.
    """
    here.launches += 1
    folder = here.output / "logs" / f"{here.launches}-{function}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    site = values["job"].site if "job" in values else here.project.site
    (folder / "task.pickle").write_bytes(pickle.dumps((function, ranks, site, values, not here.gpus)))
    command = [sys.executable, "-m", "parascale", "check", "gpu", "--task", str(folder)]
    with open(folder / "launch.log", "w+") as log:
        code = subprocess.run(command, stdout=log, stderr=log, timeout=here.deadline - time.monotonic()).returncode
        log.seek(0)
        said = " ".join(re.findall(r"^(?:error|hang): .*", log.read(), re.MULTILINE))
    if code:
        raise TrainingError(f"{folder.name}: {said[:1000] or f'exit code {code}'}")
    return [read_json(folder / f"found{rank}.json") for rank in range(ranks)]


def stand_in():
    """Replace missing packages, which only record trainings, with mocks. Returns their names."""
    psutil = MagicMock(NoSuchProcess=ProcessLookupError, Error=OSError)
    psutil.cpu_count.return_value, psutil.virtual_memory().total = None, 0
    psutil.Process().create_time.return_value, psutil.Process().memory_info().rss = time.time(), 0
    psutil.Process().status.return_value = None
    others = ("safetensors", "tqdm", "tensorboard.compat.proto.event_pb2", "tensorboard.summary.writer.record_writer")
    stand_ins = {
        "psutil": psutil,
        "pynvml": MagicMock(NVMLError=LookupError, nvmlInit=MagicMock(side_effect=LookupError)),
        "xxhash": MagicMock(xxh3_128=sha256, xxh3_128_hexdigest=lambda data: sha256(data).hexdigest()),
        **{name: MagicMock() for name in others},
    }
    missing = [name for name in stand_ins if importlib.util.find_spec(name.partition(".")[0]) is None]
    for name in missing:
        sys.modules[name], stand_ins[name].__spec__ = stand_ins[name], ModuleSpec(name, None)
    return sorted({name.partition(".")[0] for name in missing})

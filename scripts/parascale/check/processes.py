"""The processes of a part, started by the launcher of all runs, and what stands in for packages that are not there."""

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
from types import SimpleNamespace
from unittest.mock import MagicMock

from parascale.files import read_json
from parascale.plan.survey import data_sheet
from parascale.settings import load_project_file, load_site
from parascale.settings.site import Link

ROOT = Path(__file__).parents[3]
BENCHMARKS = ROOT / "tests/benchmarks"
TIMEOUT_SECONDS, GRACE_SECONDS = 120.0, 5.0  # of steps and collectives; to end in


class FailedError(Exception):
    """Processes of a part failed; says why."""


@dataclass
class Here:
    """Where a check runs. gpus: name and bytes of each. missing: packages. judges: whether rates have limits."""

    output: Path
    gpus: list
    tiny: bool
    missing: list
    judges: bool = False

    def begin(self, part, until):
        """A part begins, which ends at the second `until` of the monotonic clock. What it trains lies below `root` until the next."""
        self.part, self.until, self.launches = part, until, 0
        self.root, self.ranks = self.output / "trainings", len(self.gpus) or 2
        shutil.rmtree(self.root, ignore_errors=True)

    @property
    def left(self):
        """Seconds until the part's end."""
        return max(0.0, self.until - time.monotonic())

    @cached_property
    def project(self):
        """Runs of JURECA, or tiny ones, at a site that stands for this machine, by the data sheet of its GPUs as a site's file is."""
        file, root = "config.yaml" if self.tiny else "jureca.yaml", {"root": str(self.root)}
        project = load_project_file(ROOT / "config" / file, bases=[ROOT / "config"], overrides=root)
        if not self.gpus:
            return project
        name, size, facts = self.gpus[0][0], self.gpus[0][1] / 1e9, {"peak_tflops": {}}
        if (sheet := data_sheet(f"{name} {size:.0f}GB")) and not self.tiny:
            self.judges, facts["node_link"] = True, Link(sheet["link"])
            facts |= {"peak_tflops": sheet["peak_tflops"], "memory_gigabytes_per_second": sheet["memory"]}
        facts |= {"device": "cuda", "gpu": name, "gpu_memory_gb": size, "gpus_per_node": len(self.gpus)}
        return replace(project, site=replace(load_site(project.config, "slurm"), **facts))


def launched(here, function, ranks, **values):
    """What so many processes returned that each call a function of `parascale.check.ranks` with these values.

    FailedError with the launcher's last words where one failed, subprocess.TimeoutExpired where the part's time was over.
    """
    here.launches += 1
    folder = here.output / here.part / f"{here.launches}-{function}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "task.pickle").write_bytes(pickle.dumps((function, ranks, here.project.site, here.tiny, values)))
    command = [sys.executable, "-m", "parascale", "check", "gpu", "--task", str(folder)]
    with open(folder / "launch.log", "w+") as log:
        code = subprocess.run(command, stdout=log, stderr=log, timeout=here.left).returncode
        log.seek(0)
        said = " ".join(re.findall(r"^(?:error|hang): .*", log.read(), re.MULTILINE))
    if code:
        raise FailedError(f"{folder.name}: {said[:1000] or f'exit code {code}'}")
    return [read_json(folder / f"found{rank}.json") for rank in range(ranks)]


def stand_in():
    """Put something in the place of packages that record trainings, where they are not here; returns their names."""
    started, zero = time.time(), SimpleNamespace(rss=0, total=0)
    process = SimpleNamespace(create_time=lambda: started, status=lambda: None, memory_info=lambda: zero)
    psutil = MagicMock(Process=lambda *_: process, NoSuchProcess=ProcessLookupError, Error=OSError)
    psutil.cpu_count, psutil.virtual_memory = (lambda **_: None), (lambda: zero)
    stand_ins = {
        "psutil": psutil,
        "pynvml": MagicMock(NVMLError=LookupError, nvmlInit=MagicMock(side_effect=LookupError)),
        "xxhash": SimpleNamespace(xxh3_128=sha256, xxh3_128_hexdigest=lambda data: sha256(data).hexdigest()),
        **{f"tensorboard.{name}": MagicMock() for name in ("compat.proto.event_pb2", "summary.writer.record_writer")},
        "tqdm": MagicMock(),
    }
    missing = [name for name in stand_ins if importlib.util.find_spec(name.partition(".")[0]) is None]
    for name in missing:
        sys.modules[name], stand_ins[name].__spec__ = stand_ins[name], ModuleSpec(name, None)
    return sorted({name.partition(".")[0] for name in missing})

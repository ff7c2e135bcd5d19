"""Check that this machine has what a run needs: package versions, driver, distributed interfaces.

The check imports none of these packages, so it is fast on a login node. Any torch passes that has the interfaces that the runs use,
whether it is the pinned version, another one or a site's own build.
"""

import ast
import ctypes
import importlib.util
import re
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from parascale.errors import RequirementError
from parascale.settings import Run, Site
from parascale.settings.layout import AXES
from parascale.settings.workload import usable_decoders

NOT_OURS = {"tests and style", "what these need"}  # sections of the pins that runs do not import
PYTHON = (3, 11)
TORCH = (2, 11)  # the oldest that trainings were tested with
PACKAGE = Path(__file__).parents[1]
PINS = (PACKAGE / "constraints.txt").resolve()  # envs/constraints.txt of a checkout
DRIVER = Path("/proc/driver/nvidia/version")
KFD = Path("/dev/kfd")  # AMD's driver
# CUDA's major version → oldest driver branch that runs all its minor versions.
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
OLDEST_DRIVERS = {11: 450, 12: 525, 13: 580}
# Environment variables from which torch 2.11 to 2.13 read settings of the memory allocator; those of CUDA come before the general one.
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
# Way of training → modules whose imports from torch must exist,
MODULES = {
    "every run": ["parallel/mesh.py", "parallel/tying.py", "families/shards.py", "train/optim.py", "checkpoint/*.py"],
    **{axis.name: [f"parallel/{axis.module}.py"] for axis in AXES},
    "lightning": ["train/lightning.py"],
}
# and further interfaces that they use.
INTERFACES = {
    "fsdp": [
        "torch.distributed.fsdp._fully_shard._fully_shard:FSDPModule.set_gradient_divide_factor",
        "torch.distributed.fsdp._fully_shard._fully_shard:FSDPModule.set_force_sum_reduction_for_comms",
    ],
}


def of_allocator(environment: Container[str]) -> dict[str, str]:
    """Variables to set before CUDA starts: expandable segments lose less memory to fragmentation when tensor sizes change. Empty if
    `environment` configures the allocator.
    """
    return {} if any(name in environment for name in ALLOCATOR) else {ALLOCATOR[-1]: "expandable_segments:True"}


def read_pins(path: str | Path) -> dict[str, str]:
    """Package → pinned version of the packages that a run imports, from the list of pins."""
    pins, section = dict[str, str](), ""
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        if line.startswith("# ---"):
            section = line.strip("# -")
        elif (match := re.match(r"([\w.-]+)==([\w.!+-]+)", line)) and section not in NOT_OURS:
            pins[match[1]] = match[2]
    return pins


def problems(pins: Mapping[str, str], site: Site, runs: Sequence[Run] = (), in_job: bool = False) -> list[str]:
    """Problems, one sentence each. runs: check also that the installed torch and Lightning have the interfaces that these need.

    in_job: this is a compute node, which must have a driver.
    """
    found = _wrong_versions(pins)
    ours = [run for run in runs if not run.workload.in_own_environment]
    if site.device == "cuda" and (ours or not runs):
        found += _wrong_driver(in_job)
    if ours and not any(problem.startswith("torch ") for problem in found):
        found += _missing(ours)
    return found


def check_environment(site: Site, runs: Sequence[Run] = (), in_job: bool = False, pins_path: str | Path = PINS) -> None:
    """Raise RequirementError if there are problems; it lists each with its remedy."""
    found = problems(read_pins(pins_path), site, runs, in_job)
    if found:
        raise RequirementError(
            "this environment is not the one that was tested:\n  "
            + "\n  ".join(found)
            + f"\nInstall the pinned versions: {Path(sys.executable).name} -m pip install 'parascale[train,workflow]' -c {pins_path}"
        )


def check_node(site: Site) -> None:
    """Raise RequirementError if this compute node has no driver for the installed torch. Login nodes need none."""
    if site.device == "cuda" and (found := _wrong_driver(in_job=True)):
        raise RequirementError("\n  ".join(found))


def _wrong_versions(pins: Mapping[str, str]) -> list[str]:
    found = []
    if sys.version_info[:2] < PYTHON:
        found.append(f"Python {sys.version.split()[0]} is too old: at least {PYTHON[0]}.{PYTHON[1]} is needed")
    for name, pinned in pins.items():
        try:
            version = of_torch("__version__") if name == "torch" else metadata.version(name)
        except metadata.PackageNotFoundError:
            version = None
        if version is None:
            found.append("torch is not installed" if name == "torch" else f"{name} {pinned} is not installed")
        elif name == "torch" and tuple(map(int, re.findall(r"\d+", version)[:2])) < TORCH:
            found.append(f"torch {version} is too old: at least {TORCH[0]}.{TORCH[1]} is needed")
        # The part after `+` names a build (`2.13.0+cpu`), not another version.
        elif name != "torch" and version.split("+")[0] != pinned:
            found.append(f"{name} {version} is installed, {pinned} is pinned")
    return found


def _wrong_driver(in_job: bool) -> list[str]:
    """Mismatches between torch's CUDA and this machine's driver."""
    if of_torch("hip"):  # AMD's GPUs, which torch calls `cuda`
        return ["this node has no AMD GPU driver, but torch was built for ROCm"] if in_job and not KFD.exists() else []
    cuda = of_torch("cuda")
    if cuda is None:
        return ["torch was built without CUDA, but the site's device is cuda: install the default build from PyPI"]
    major, newest = int(cuda.split(".")[0]), cuda_of_driver()
    if newest is not None and newest >= major:
        return []
    if not DRIVER.exists():
        return ["this node has no NVIDIA driver, but the site's device is cuda"] if in_job else []
    driver = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d+)(?:\.\d+)+", DRIVER.read_text())
    if driver and int(driver[1]) < (oldest := OLDEST_DRIVERS.get(major, 0)):
        return [
            f"torch was built for CUDA {cuda}, which needs driver {oldest} or newer; "
            f"this node has {driver[0].split()[-1]}: install a torch for an older CUDA"
        ]
    return []


def of_torch(name: str) -> str | None:
    """`cuda`, `hip` (ROCm) or `__version__` from torch's `version.py`, or None. Torch built from source may have no package metadata."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    match = re.search(
        rf"^{name}\b[^=]*= '([^']+)'", Path(spec.origin).with_name("version.py").read_text(), re.MULTILINE
    )
    return match[1] if match else None


def cuda_of_driver() -> int | None:
    """The newest major version of CUDA that libcuda supports, or None. libcuda also covers compatibility packages and WSL."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    return version.value // 1000 if library.cuDriverGetVersion(ctypes.byref(version)) == 0 else None


def _missing(runs: Sequence[Run]) -> Iterator[str]:
    """One sentence per interface that the runs need and the installed packages lack."""
    layouts = [run.layout for run in runs]
    used = {
        "every run": True,
        **{axis.name: any(axis.name in layout.dimensions for layout in layouts) for axis in AXES},
        "dp": any(layout.dp > 1 and not layout.uses_fsdp for layout in layouts),
        "fsdp": any(layout.uses_fsdp for layout in layouts),
        "lightning": any(run.engine == "lightning" for run in runs),
    }
    for need, interface in ((user, entry) for user in MODULES if used[user] for entry in interfaces(user)):
        module, _, name = interface.partition(":")
        package, *parts = module.split(".")
        found = importlib.util.find_spec(package)  # for a submodule, this would import the package
        place = Path(found.origin).parent.joinpath(*parts) if found and found.origin else Path(module)
        source = next((file for file in (place / "__init__.py", place.with_suffix(".py")) if file.is_file()), None)
        if source is None:
            yield f"there is no module {module} (needed for {need})"
        elif not re.search(rf"\b{name.rpartition('.')[2]}\b", source.read_text(encoding="utf-8")):
            yield f"{module} has no {name} (needed for {need})"
    if any(layout.splits_backward for layout in layouts) and re.match(r"2\.1[12]\.", of_torch("__version__") or ""):
        yield "zero-bubble and V schedules need torch 2.13 or newer; or choose another `schedule`, such as Interleaved1F1B"
    decoders = {getattr(run.workload.training, "decoder", None) for run in runs}
    if "dali" in decoders - set(usable_decoders()):
        yield "NVIDIA DALI is not installed (needed for `training.decoder: dali`): pip install -r envs/requirements-dali.txt"


def interfaces(user: str) -> list[str]:
    """`module:name` of everything that a way of training (a key of `MODULES`) imports from submodules of torch and Lightning."""
    found = dict[str, None]()  # in order
    for source in (file for pattern in MODULES[user] for file in sorted(PACKAGE.glob(pattern))):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("torch.", "lightning.")):
                found |= {f"{node.module}:{alias.name}": None for alias in node.names}
    return [*found, *INTERFACES.get(user, ())]

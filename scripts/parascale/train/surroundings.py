"""Check the environment of a training for things that cost speed, change results, or cause failures; once per rank, at the start.

`ROWS` lists the checks. In an ordinary environment none of them reports anything. Variables that our launcher sets for every process,
such as OMP_NUM_THREADS, are not included.
"""

import os
import re
import resource
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from parascale.data.formats.storage import REMOTE, SHARED_MEMORY, filesystem
from parascale.errors import shorten_list
from parascale.train.gauges import place

CUDA = "https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html"
NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
TROUBLE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
TORCH = "https://docs.pytorch.org/docs/stable/"
CACHES = "https://docs.pytorch.org/tutorials/recipes/torch_compile_caching_tutorial.html"
OPENMP = "https://gcc.gnu.org/onlinedocs/libgomp/Environment-Variables.html"
MALLOC = "https://man7.org/linux/man-pages/man3/mallopt.3.html"
LIMITS = "https://man7.org/linux/man-pages/man2/getrlimit.2.html"
PYTHON = "https://docs.python.org/3/using/cmdline.html"
CGROUP = Path("/sys/fs/cgroup")  # version 2
ON = r"(?!(0|false|off|no)$).+"
FREE_BYTES = 1 << 30


@dataclass(frozen=True)
class Seen:
    """Facts for the checks. cores: per process, from the run table. local: processes on this node. own: our processes on this GPU."""

    environment: dict
    device: str
    nodes: int
    cores: int
    rank: int = 0
    local: int = 1
    own: int = 1
    compiles: bool = True


def unbound(seen):
    """True if several ranks share all cores of the node."""
    return seen.local > 1 and len(os.sched_getaffinity(0)) == os.cpu_count()


def few_cores(seen):
    """Too few cores because of binding, or of a cgroup's quota, which applies to all processes of the node together."""
    bound, allowed = len(os.sched_getaffinity(0)), quota()
    if bound < seen.cores:
        return f"{bound} of {seen.cores}, by binding"
    return f"{allowed:g} of {seen.cores * seen.local}, by a cgroup" if allowed < seen.cores * seen.local else ""


def quota():
    """Number of CPUs that the cgroups of this process allow."""
    path = re.search(r"(?m)^0::/(.*)$", Path("/proc/self/cgroup").read_text())
    found = CGROUP / (path[1] if path else "")
    files = [each / "cpu.max" for each in (found, *found.parents) if each.is_relative_to(CGROUP)]
    limits = [each.read_text().split() for each in files if each.is_file()]
    return min((int(most) / int(period) for most, period in limits if most != "max"), default=float("inf"))


def shared_gpu(seen):
    """Other processes on this rank's GPU. In many containers only their number is visible."""
    import pynvml  # only with GPUs

    with suppress(pynvml.NVMLError, IndexError):
        pynvml.nvmlInit()
        visible = (seen.environment.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(64)))).split(",")
        name = visible[seen.rank % seen.local]
        by = pynvml.nvmlDeviceGetHandleByIndex if name.isdigit() else pynvml.nvmlDeviceGetHandleByUUID
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(by(int(name) if name.isdigit() else name))
        others = len(running) - seen.own
        return f"{others} of others" if others > 0 else ""
    return ""


def full(folder, needed=FREE_BYTES):
    free = shutil.disk_usage(folder).free
    return f"{free >> 20} MiB free" if free < needed else ""


def slow(folder):
    kind = filesystem(folder)
    return kind if kind in REMOTE or kind.startswith("fuse") else ""


def limited(name, least):
    """The soft limit if it is below `least`, or if `least` is None and a limit exists."""
    soft, _ = resource.getrlimit(name)
    return "" if soft == resource.RLIM_INFINITY or (least is not None and soft >= least) else f"{soft:,}"


@dataclass(frozen=True)
class Check:
    """holds: a pattern for the whole value of the variable `name` (case-insensitive), or a function of `Seen` that returns the value, or ""
    if all is well. costs: speed, results or failure. device, when: conditions under which it matters."""

    name: str
    holds: str | Callable
    costs: str
    consequence: str
    source: str
    device: str = ""
    when: Callable | None = None

    def value(self, seen):
        if self.device not in ("", seen.device) or not (self.when is None or self.when(seen)):
            return ""
        if callable(self.holds):
            try:
                return self.holds(seen)
            except Exception:  # a failing check must not end the training
                return ""
        value = seen.environment.get(self.name, "")
        return value if re.fullmatch(self.holds, value, re.IGNORECASE) else ""


# fmt: off
ROWS = (
    Check("CUDA_LAUNCH_BLOCKING", ON, "speed", "the CPU waits for each kernel, and nothing overlaps", CUDA, "cuda"),
    Check("CUDA_DEVICE_MAX_CONNECTIONS", "1", "speed", "communication and computation share one queue: FSDP's no longer overlap", CUDA, "cuda"),
    Check("CUDA_CACHE_DISABLE", ON, "speed", "each start compiles kernels for this GPU again", CUDA, "cuda"),
    Check("NCCL_P2P_DISABLE", "[1-9].*", "speed", "GPUs of a node do not use NVLink", NCCL, "cuda"),
    Check("NCCL_P2P_LEVEL", "LOC|0", "speed", "GPUs of a node do not use NVLink", NCCL, "cuda"),
    Check("NCCL_SHM_DISABLE", "[1-9].*", "speed", "processes of a node without peer-to-peer communicate over the network", NCCL, "cuda"),
    Check("NCCL_IB_DISABLE", "[1-9].*", "speed", "nodes use IP sockets instead of InfiniBand", NCCL, "cuda"),
    Check("NCCL_NET", "socket", "speed", "nodes use IP sockets instead of the fast network", NCCL, "cuda"),
    Check("NCCL_ALGO", ".+", "speed", "NCCL does not choose the fastest algorithm for each size", NCCL, "cuda"),
    Check("NCCL_PROTO", ".+", "speed", "NCCL does not choose the fastest protocol for each size", NCCL, "cuda"),
    Check("NCCL_MAX_NCHANNELS", "[1-7]", "speed", "few channels do not fill NVLink", NCCL, "cuda"),
    Check("NCCL_DEBUG", "TRACE", "speed", "NCCL writes a line for each call", NCCL, "cuda"),
    Check("TORCH_NCCL_BLOCKING_WAIT", ON, "speed", "each process waits for each collective: nothing overlaps", f"{TORCH}torch_nccl_environment_variables.html", "cuda"),
    Check("TORCH_DISTRIBUTED_DEBUG", "DETAIL", "speed", "all ranks compare what they call before each collective", f"{TORCH}distributed.html"),
    Check("TORCHDYNAMO_DISABLE", ON, "speed", "`compile` compiles nothing", f"{TORCH}torch.compiler_troubleshooting.html", when=lambda seen: seen.compiles),
    Check("TORCH_COMPILE_DISABLE", ON, "speed", "`compile` compiles nothing", f"{TORCH}torch.compiler_troubleshooting.html", when=lambda seen: seen.compiles),
    Check("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", ON, "results", "products of fp32 are computed in TF32", f"{TORCH}cuda_environment_variables.html", "cuda"),
    Check("NVIDIA_TF32_OVERRIDE", "0|1", "results", "it overrides the run's choice between fp32 and TF32", f"{TORCH}cuda_environment_variables.html", "cuda"),
    Check("ONEDNN_DEFAULT_FPMATH_MODE", "(?!strict).+", "results", "products of fp32 are computed in half precision", "https://uxlfoundation.github.io/oneDNN/dev_guide_attributes_fpmath_mode.html", "cpu"),
    Check("ATEN_CPU_CAPABILITY", "default", "speed", "operations do not use the widest instructions of the processor", "https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/cpu/README.md", "cpu"),
    Check("OMP_PROC_BIND", "(?!(false|0|none|disabled)$).+", "speed", "threads of all ranks are bound to the same cores", OPENMP, when=unbound),
    Check("GOMP_CPU_AFFINITY", "(?!(false|0|none|disabled)$).+", "speed", "threads of all ranks are bound to the same cores", OPENMP, when=unbound),
    Check("KMP_AFFINITY", "(?!(false|0|none|disabled)$).+", "speed", "threads of all ranks are bound to the same cores", "https://openmp.llvm.org/design/Runtimes.html", when=unbound),
    Check("OMP_WAIT_POLICY", "active", "speed", "threads that wait take a core from those that compute or read data", OPENMP),
    Check("PYTORCH_NO_CUDA_MEMORY_CACHING", ON, "speed", "each tensor asks the driver for memory", f"{TORCH}cuda_environment_variables.html", "cuda"),
    *(Check(name, "(?!.*expandable_segments:True).+", "failure", "memory is lost between tensors of changing sizes: it may run out sooner", f"{TORCH}notes/cuda.html", "cuda") for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")),
    Check("MALLOC_CHECK_", "[1-9].*", "speed", "glibc checks each allocation", MALLOC),
    Check("MALLOC_PERTURB_", "[1-9].*", "speed", "glibc overwrites memory when it is given back", MALLOC),
    Check("PYTHONMALLOC", r"(\w+_)?debug|malloc", "speed", "Python's objects are allocated slowly", PYTHON),
    Check("PYTHONTRACEMALLOC", ON, "speed", "Python notes where each object was allocated", PYTHON),
    Check("PYTHONDEVMODE", ON, "speed", "Python checks itself", PYTHON),
    Check("cores", few_cores, "speed", "fewer cores than the run table says", "https://docs.kernel.org/admin-guide/cgroup-v2.html"),
    Check("processes on this GPU", shared_gpu, "speed", "other processes compute on it too", "https://docs.nvidia.com/deploy/nvml-api/", "cuda"),
    Check("temporary folder", lambda seen: slow(tempfile.gettempdir()), "speed", "it is on a network filesystem, and so are compiled code and sockets", CACHES),
    Check("temporary folder", lambda seen: full(tempfile.gettempdir()), "failure", "`compile` keeps its code there, and libraries their files", CACHES),
    Check("/dev/shm", lambda seen: full(SHARED_MEMORY) if seen.local > 1 else "", "failure", "NCCL's processes of a node meet there", TROUBLE, "cuda"),
    Check("ulimit -n", lambda seen: limited(resource.RLIMIT_NOFILE, 1024), "failure", "files, sockets and workers of the data need descriptors", LIMITS),
    Check("ulimit -u", lambda seen: limited(resource.RLIMIT_NPROC, 1024), "failure", "each rank starts many threads", LIMITS),
    Check("ulimit -l", lambda seen: limited(resource.RLIMIT_MEMLOCK, FREE_BYTES) if seen.nodes > 1 else "", "failure", "InfiniBand locks its buffers in memory", TROUBLE, "cuda"),
    Check("ulimit -v", lambda seen: limited(resource.RLIMIT_AS, None), "failure", "torch reserves many more addresses than it has memory", LIMITS),
    Check("ulimit -t", lambda seen: limited(resource.RLIMIT_CPU, None), "failure", "the kernel kills a process after this many seconds of CPU time", LIMITS),
    Check("ulimit -f", lambda seen: limited(resource.RLIMIT_FSIZE, None), "failure", "larger files, such as checkpoints, cannot be written", LIMITS),
)
# fmt: on


def look(job, own=1, environment=os.environ, local=None):
    """Findings about this process, as mappings: name, costs, text, source. own: our processes on its GPU so far. environment, local: for a
    launcher, the environment of the processes that it will start, and their number on this node."""
    rank, _, here = place()
    run, layout, site = job.run, job.run.layout, job.site
    compiles = run.workload.is_script or run.layout.compile
    return matches(
        Seen(dict(environment), site.device, layout.nodes, site.threads_of(layout), rank, local or here, own, compiles)
    )


def matches(seen):
    found = ((row, row.value(seen)) for row in ROWS)
    return [
        {"name": row.name, "costs": row.costs, "text": f"{row.name} = {value}: {row.consequence}", "source": row.source}
        for row, value in found
        if value
    ]


def noted(looks):
    """Log each finding and return them for the attempt's record: {"surroundings": findings, each once, in its first rank's words, with its
    ranks}, or {} if there are none. looks: the result of `look` on each rank."""
    found = {}
    for rank, each in ((rank, each) for rank, seen in enumerate(looks) for each in seen):
        found.setdefault((each["name"], each["costs"]), each | {"ranks": []})["ranks"].append(rank)
    for each in found.values():
        some = "" if len(each["ranks"]) == len(looks) else f" (ranks {shorten_list(map(str, each['ranks']))})"
        with suppress(OSError):  # a full disk
            print(f"{each['text']}{some}; it may cost {each['costs']}: {each['source']}", flush=True)
    return {"surroundings": [*found.values()]} if found else {}

"""The facts of a machine that planning, launching and charging need."""

import dataclasses
import math
from typing import Literal

from parascale.errors import ConfigError
from parascale.settings.layout import Layout
from parascale.settings.options import CONDUCT, LAYOUT, SITE, Number, option, required, section, settings
from parascale.settings.run import Precision, Run

# Published for an environment on Isambard-AI: 79 s on 100 nodes, 1,000 s on 500; `startup_seconds` 30 and `startup_nodes` 80 give 75, 920.
STARTUP_POWER = 1.85


@settings(SITE)
class Link:
    """A network between processes, in the alpha-beta model."""

    gigabytes_per_second: Number = option("bandwidth in one direction, per GPU", default=5.0, above=0.0)
    microseconds: Number = option("latency of a message", default=10.0, above=0.0)


@settings(SITE)
class Partition:
    """A partition (queue) of the machine."""

    name: str = required("its name in Slurm")
    max_hours: Number = option("hours of the longest job", default=24.0, above=0.0)
    max_nodes: int | None = option("nodes of the largest job; unknown: not checked", default=None, low=1)
    cores_per_node: int | None = option("cores of its nodes; default: the site's", default=None, low=1)


@settings(SITE)
class Network:
    """How the processes of one run find each other."""

    interface: str | None = option(
        "network interface for NCCL and gloo (`ib0`); default: the libraries choose", default=None
    )
    host_suffix: str = option("suffix of a node's name on that network (JSC: `i`)", default="")
    host_template: str = option(
        "address of a node there (`{host}-interconnect-1.jupiter.internal`)", default="{host}{suffix}"
    )


@settings(SITE)
class QuotaCommand:
    """How to ask this machine for an account's remaining quota: a command that prints JSON, one record or a list of records to add up."""

    command: str = option("the command, with `{account}`; plans use it if `budget.quota` is not set", default="")
    granted: str = option("field of a record: core-hours granted", default="quota")
    used: str = option("field of a record: core-hours used", default="used")


@settings(SITE)
class ScriptDefaults:
    """How users' own scripts are started on this machine, unless their workload sets it."""

    python: str | list[str] | None = option(
        "word or list of words that starts Python; default: the workflow's Python", default=None
    )
    setup: str | None = option("shell lines to run before it (`module load PyTorch`)", default=None)


@settings(SITE, expert=True)
class Assumed:
    """What a plan assumes about a machine until a calibration has measured it."""

    core_gigaflops: Number = option("rate of one core, in runs on CPUs", default=90.0, above=0.0)
    core_gigabytes_per_second: Number = option("memory bandwidth of one core", default=22.0, above=0.0)
    kernel_microseconds: Number = option("time to start an operation, in runs on CPUs", default=12.0, above=0.0)
    split_pass_microseconds: Number = option(
        "additional time of a pass through a block with tensor parallelism, on CPUs", default=7000.0, above=0.0
    )
    shard_pass_microseconds: Number = option(
        "additional time of a block's pass with FSDP, on CPUs", default=4000.0, above=0.0
    )
    contention: Number = option("slowdown of a core while all cores of its CPU node compute", default=0.1, above=0.0)
    sample_microseconds: Number = option("time to read and hand over a sample", default=20.0, above=0.0)
    decode_megabytes_per_second: Number = option(
        "rate at which a core decodes and resizes JPEGs, or converts them and checks each", default=32.0, above=0.0
    )
    data_megabytes_per_second: Number = option("rate of preparing texts", default=5.0, above=0.0)
    failures_per_node_day: Number = option(
        "failures of a node in a day, for a plan's worst case", default=0.01, low=0.0
    )
    step_milliseconds: Number = option("time of a step outside its phases, in runs on CPUs", default=3.0, above=0.0)
    startup_seconds: Number = option("time from the start of a job to its first step", default=30.0, above=0.0)
    startup_nodes: Number = option(
        "nodes on which a job takes twice as long to start, as all read the same files", default=80.0, above=0.0
    )
    save_gigabytes_per_second: Number = option(
        "rate at which a node saves or checks a checkpoint, compares images or copies tokens", default=0.5, above=0.0
    )
    most_save_gigabytes_per_second: Number = option(
        "maximum rate at which all nodes of a job save together", default=50.0, above=0.0
    )
    library_gigabytes: Number = option(
        "memory of a process's libraries; probes measure it on CPUs", default=0.5, above=0.0
    )
    communicator_gigabytes: Number = option(
        "memory of a process group on GPUs; no probe measures it", default=0.3, above=0.0
    )
    unknown_hours: Number = option(
        "time limit of a job of unknown length, if no partition limits it", default=4.0, above=0.0
    )


@settings(SITE)
class Site:
    """One machine: `config/sites/<name>.yaml`."""

    name: str = required("the file's name without `.yaml`; set by the loader")
    title: str = option("title in reports", default="")
    device: Literal["cpu", "cuda"] = option("device that computes", default="cpu")
    cores_per_node: int | None = option(
        "cores of a node, as charged; default: those of this machine", default=None, low=1
    )
    plays_nodes: bool | None = option(
        "on CPUs, let the nodes of a run share this machine's cores; default: true if neither `cores_per_node` nor `partitions` is given",
        default=None,
    )
    threads_per_process: int | None = option("cores per process; default: an even share", LAYOUT, default=None, low=1)
    threads_per_core: int = option(
        "hardware threads per core that Slurm counts; jobs request one per core", default=1, low=1
    )
    gpus_per_node: int | None = option("GPUs per node; default: no limit (processes on CPUs)", default=None, low=1)
    gpu: str = option("name of the GPU", default="")
    gpu_memory_gb: Number | None = option("memory of one GPU, in 10⁹ bytes", default=None, above=0.0)
    gpu_watts: Number | None = option("power limit of one GPU, for its energy and speed", default=None, above=0.0)
    cpu_watts: Number = option("part of `gpu_watts` for a CPU on the same module", default=0.0, low=0.0)
    co2_grams_per_kwh: Number | None = option(
        "CO₂ of the machine's electricity and cooling, per kWh used by its GPUs", default=None, low=0.0
    )
    host_memory_gb: Number | None = option(
        "memory of a node, 10⁹ bytes; without `cores_per_node`: this machine's", default=None, above=0.0
    )
    peak_tflops: dict[Precision, Number] = option(
        "precision → dense peak rate of a GPU, in 10¹² operations per second", default={}
    )
    memory_gigabytes_per_second: Number | None = option("memory bandwidth of one GPU", default=None, above=0.0)
    node_link: Link = section("between the GPUs of a node", default_factory=Link)
    node_pairs: bool = option("no switch: each pair of GPUs of a node has an equal part of `node_link`", default=False)
    network_link: Link = section("between nodes", default_factory=Link)
    network: Network = section("how processes find each other", default_factory=Network)
    environment: dict[str, object] = option(
        "environment variables for each process (`{NCCL_IB_TIMEOUT: 50}`)", CONDUCT, default={}
    )
    script: ScriptDefaults = section("the environment of scripts of your own", default_factory=ScriptDefaults)
    assumed: Assumed = section("what a plan assumes until a calibration has measured it", default_factory=Assumed)
    charges: Literal["whole_nodes", "cores"] = option(
        "core-hours are charged for all cores of a job's nodes, or for the cores that it requests",
        default="whole_nodes",
    )
    partitions: list[Partition] = option("partitions; the first is the default", default=[])
    data_partition: str | None = option("partition for jobs without GPU; default: that of the runs", default=None)
    demands_gpus: bool = option("partitions refuse jobs without GPUs: jobs that need none request one", default=False)
    needs_account: bool = option("Slurm accepts only jobs with an account", default=False)
    max_hours: Number | None = option("hours of the longest job, if there are no partitions", default=None, above=0.0)
    quota: QuotaCommand = section("how to ask for an account's remaining quota", default_factory=QuotaCommand)
    job_page: str = option(
        "address of the site's web page of a job, such as LLview's, with `{job}` for its number", default=""
    )
    purge_days: int | None = option(
        "days after which the filesystem deletes unused files; the workflow warns before", default=None, low=1
    )
    inode_limit: int | None = option(
        "maximum of files and folders of a project; the workflow warns before", default=None, low=1
    )

    @property
    def gpus_charged_whole(self) -> int | None:
        """GPUs per node if jobs are charged for all of them, used or not; else None."""
        return self.gpus_per_node if self.device == "cuda" and self.charges == "whole_nodes" else None

    def partition_or_first(self, name: str | None = None) -> str | None:
        """The partition that jobs go to: `name`, else the site's first; None if the site lists none."""
        return name or (self.partitions[0].name if self.partitions else None)

    def cores(self, partition: str | None = None) -> int | None:
        """Cores per node of a partition, by name."""
        own = [each.cores_per_node for each in self.partitions if each.name == partition and each.cores_per_node]
        return own[0] if own else self.cores_per_node

    def cores_charged(self, nodes: int, cores: int | None = None, partition: str | None = None) -> int:
        """Cores charged for a job on `nodes` nodes; JSC charges whole nodes. cores: those that the job requests."""
        if self.charges == "cores" and cores is not None:
            return cores
        return nodes * (self.cores(partition) or 1)

    def core_hours(self, nodes: int, seconds: float, cores: int | None = None) -> float:
        """Core-hours charged for a job of `seconds`; other arguments: see `cores_charged`."""
        return self.cores_charged(nodes, cores) * seconds / 3600

    def threads(self, processes: int) -> int:
        """Cores per process if a machine has `processes` of them."""
        return self.threads_per_process or max(1, (self.cores_per_node or 1) // processes)

    def effective_layout(self, layout: Layout) -> Layout:
        """The Layout on real machines: a CPU machine may simulate all nodes, which then share its cores and its loopback."""
        if layout.nodes == 1 or self.device != "cpu" or not self.plays_nodes:
            return layout
        return dataclasses.replace(layout, nodes=1, gpus_per_node=layout.world_size, idle_gpus=0)

    def processes_together(self, layout: Layout) -> int:
        """Processes of a run that share one machine's cores."""
        return self.effective_layout(layout).processes_per_node

    def threads_of(self, layout: Layout) -> int:
        """Cores per process of a run."""
        return self.threads(self.processes_together(layout))

    def crowding(self, processes: int) -> float:
        """Computing threads per core if a machine has `processes` of a run; 1 if each has its own core or GPU."""
        if self.device != "cpu":
            return 1.0
        return max(1.0, processes * self.threads(processes) / (self.cores_per_node or 1))

    def startup_factor(self, layout: Layout) -> float:
        """Start-up time of a run relative to that of one process."""
        shared = self.effective_layout(layout)
        slower = 1 + ((shared.nodes - 1) / self.assumed.startup_nodes) ** STARTUP_POWER
        return slower * self.crowding(shared.processes_per_node)

    def save_bytes_per_second(self, layout: Layout) -> float:
        """Rate at which a run saves; each rank writes its own files."""
        together = self.effective_layout(layout).nodes * self.assumed.save_gigabytes_per_second
        return 1e9 * min(together, self.assumed.most_save_gigabytes_per_second)

    def check_run(self, run: Run) -> None:
        """Raise ConfigError if a run needs more than this machine has."""
        layout = run.layout
        if run.profile and run.profiler == "nsight" and self.device == "cpu":
            raise ConfigError(f"profiler = nsight needs GPUs, and {self.name} has none: take torch")
        if self.gpus_per_node and layout.gpus_per_node > self.gpus_per_node:
            raise ConfigError(
                f"gpus_per_node = {layout.gpus_per_node}, but a node of {self.name} has {self.gpus_per_node}"
            )
        if run.precision == "float8" and self.peak_tflops and "float8" not in self.peak_tflops:
            raise ConfigError(
                f"precision float8 needs GPUs that have it: `peak_tflops` of {self.name} ({self.gpu}) names no float8; take bf16"
            )
        if (
            self.device == "cuda"
            and layout.splits_backward
            and getattr(run.workload.training, "documents", "") == "separate"
        ):
            raise ConfigError(
                f"schedule {layout.schedule} has two backward passes, but with documents = separate, attention on GPUs is a compiled "
                "kernel with only one; choose another schedule"
            )
        most = max((partition.max_nodes or math.inf for partition in self.partitions), default=math.inf)
        if layout.nodes > most:
            raise ConfigError(f"nodes = {layout.nodes}, but the largest partition of {self.name} takes {most}")

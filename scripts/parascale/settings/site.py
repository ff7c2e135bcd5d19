"""The facts of a machine: what planning, launching and charging need to know."""

import dataclasses
from typing import Literal

from parascale.errors import ConfigError
from parascale.settings.options import CONDUCT, LAYOUT, SITE, Number, option, required, section, settings
from parascale.settings.run import Precision


@settings(SITE)
class Link:
    """A network between processes, in the alpha-beta model."""

    gigabytes_per_second: Number = option(5.0, "bandwidth in one direction, per GPU", above=0.0)
    microseconds: Number = option(10.0, "latency of a message", above=0.0)


@settings(SITE)
class Partition:
    """A partition (queue) of the machine."""

    name: str = required("its name in Slurm")
    max_hours: Number = option(24.0, "hours of the longest job", above=0.0)
    max_nodes: int | None = option(None, "nodes of the largest job; unknown: not checked", low=1)
    cores_per_node: int | None = option(None, "cores of its nodes; default: the site's", low=1)


@settings(SITE)
class Network:
    """How the processes of one run find each other."""

    interface: str | None = option(None, "network interface for NCCL and gloo (`ib0`); default: the libraries choose")
    host_suffix: str = option("", "suffix of a node's name on that network (JSC: `i`)")
    host_template: str = option("{host}{suffix}", "address of a node there (`{host}-interconnect-1.jupiter.internal`)")


@settings(SITE)
class QuotaCommand:
    """How this machine tells what an account has left: a command that prints JSON, a record or a list of records that add up."""

    command: str = option("", "the command, with `{account}`; plans without `budget.quota` show its answer")
    granted: str = option("quota", "field of a record: core-hours granted")
    used: str = option("used", "field of a record: core-hours used")


@settings(SITE, expert=True)
class Assumed:
    """What a plan takes for granted of a machine until a calibration has measured it."""

    core_gigaflops: Number = option(90.0, "rate of one core, in runs on CPUs", above=0.0)
    core_gigabytes_per_second: Number = option(22.0, "memory bandwidth of one core", above=0.0)
    kernel_microseconds: Number = option(12.0, "time to start an operation, in runs on CPUs", above=0.0)
    split_pass_microseconds: Number = option(
        7000.0, "additional time of a pass through a block with tensor parallelism, on CPUs", above=0.0
    )
    shard_pass_microseconds: Number = option(4000.0, "additional time of a block's pass with FSDP, on CPUs", above=0.0)
    contention: Number = option(0.1, "slowdown of a core while all cores of its CPU node compute", above=0.0)
    sample_microseconds: Number = option(20.0, "time to read and hand over a sample", above=0.0)
    decode_megabytes_per_second: Number = option(32.0, "rate at which a core decodes and resizes JPEGs", above=0.0)
    data_megabytes_per_second: Number = option(
        5.0, "rate of preparing texts, and of preparing, converting or checking images", above=0.0
    )
    failures_per_node_day: Number = option(0.01, "failures of a node in a day, for a plan's worst case", low=0.0)
    step_milliseconds: Number = option(3.0, "time of a step beside its phases, in runs on CPUs", above=0.0)
    startup_seconds: Number = option(30.0, "time from the start of a job to its first step", above=0.0)
    save_gigabytes_per_second: Number = option(
        0.5, "rate of saving and of checking a checkpoint, and of copying tokens", above=0.0
    )
    library_gigabytes: Number = option(0.5, "memory of a process's libraries; probes measure it on CPUs", above=0.0)
    communicator_gigabytes: Number = option(0.3, "memory of a process group on GPUs; no probe measures it", above=0.0)
    unknown_hours: Number = option(4.0, "time limit of a job of unknown length, if no partition limits it", above=0.0)


@settings(SITE)
class Site:
    """One machine: `config/sites/<name>.yaml`."""

    name: str = required("the file's name without `.yaml`; set by the loader")
    title: str = option("", "title in reports")
    device: Literal["cpu", "cuda"] = option("cpu", "device that computes")
    cores_per_node: int | None = option(None, "cores of a node, as charged; default: those of this machine", low=1)
    plays_nodes: bool | None = option(
        None,
        "on CPUs, the nodes of a run share this machine's cores; default: true if neither `cores_per_node` nor `partitions` are given",
    )
    threads_per_process: int | None = option(None, "cores per process; default: an even share", LAYOUT, low=1)
    threads_per_core: int = option(
        1, "hardware threads of a core that Slurm counts; jobs ask for one of each core", low=1
    )
    gpus_per_node: int | None = option(None, "GPUs per node; default: no limit (processes on CPUs)", low=1)
    gpu: str = option("", "name of the GPU")
    gpu_memory_gb: Number | None = option(None, "memory of one GPU, in 10⁹ bytes", above=0.0)
    gpu_watts: Number | None = option(None, "power of one GPU at work, for the energy of a plan", above=0.0)
    co2_grams_per_kwh: Number | None = option(
        None, "CO₂ of the machine's electricity and cooling, for each kWh that its GPUs take", low=0.0
    )
    host_memory_gb: Number | None = option(
        None, "memory of a node, 10⁹ bytes; without `cores_per_node`: this machine's", above=0.0
    )
    peak_tflops: dict[Precision, Number] = option({}, "precision → dense peak rate of a GPU, 10¹² operations a second")
    memory_gigabytes_per_second: Number | None = option(None, "memory bandwidth of one GPU", above=0.0)
    node_link: Link = section(Link, "between the GPUs of a node")
    network_link: Link = section(Link, "between nodes")
    network: Network = section(Network, "how processes find each other")
    environment: dict[str, object] = option(
        {}, "environment variables for each process (`{NCCL_IB_TIMEOUT: 50}`)", CONDUCT
    )
    assumed: Assumed = section(Assumed, "what a plan assumes until a calibration has measured it")
    charges: Literal["whole_nodes", "cores"] = option(
        "whole_nodes", "core-hours are charged for all cores of the nodes of a job, or for the cores that it requests"
    )
    partitions: list[Partition] = option([], "partitions; the first is the default")
    data_partition: str | None = option(None, "partition for jobs without GPU; default: that of the runs")
    demands_gpus: bool = option(False, "partitions refuse jobs without GPUs: jobs that need none ask for one")
    needs_account: bool = option(False, "Slurm accepts only jobs that name an account")
    max_hours: Number | None = option(None, "hours of the longest job, if there are no partitions", above=0.0)
    quota: QuotaCommand = section(QuotaCommand, "how the machine tells what an account has left")
    job_page: str = option("", "address of the site's own page of a job, such as LLview's, with `{job}` for its number")
    purge_days: int | None = option(
        None, "days after which the filesystem deletes unused files; the workflow warns before", low=1
    )
    inode_limit: int | None = option(
        None, "files and folders that a project may have; the workflow warns before", low=1
    )

    @property
    def gpus_charged_whole(self):
        """GPUs of a node, all of which are charged, whatever of them a job uses; None where that is not so."""
        return self.gpus_per_node if self.device == "cuda" and self.charges == "whole_nodes" else None

    def partition_or_first(self, name=None):
        """The name of the partition that jobs go to: the one asked for, else the site's first; None where it names none."""
        return name or (self.partitions[0].name if self.partitions else None)

    def cores(self, partition=None):
        """Cores of a node of a partition, by its name."""
        own = [each.cores_per_node for each in self.partitions if each.name == partition and each.cores_per_node]
        return own[0] if own else self.cores_per_node

    def threads(self, processes):
        """Cores that each of `processes` processes of a machine computes with."""
        return self.threads_per_process or max(1, (self.cores_per_node or 1) // processes)

    def effective_layout(self, layout):
        """A Layout as machines see it: one machine of CPUs may play all nodes, which share its cores and its loopback."""
        if layout.nodes == 1 or self.device != "cpu" or not self.plays_nodes:
            return layout
        return dataclasses.replace(layout, nodes=1, gpus_per_node=layout.world_size, idle_gpus=0)

    def processes_together(self, layout):
        """Processes of a run that share the cores of a machine."""
        return self.effective_layout(layout).processes_per_node

    def threads_of(self, layout):
        """Cores that each process of a run computes with."""
        return self.threads(self.processes_together(layout))

    def crowding(self, processes):
        """Computing threads for each core where a machine has `processes` of a run; 1 where each has a core, or a GPU."""
        if self.device != "cpu":
            return 1.0
        return max(1.0, processes * self.threads(processes) / (self.cores_per_node or 1))

    def check_run(self, run):
        """Raise ConfigError where a run asks for more than this machine has."""
        layout = run.layout
        if run.profile and run.profiler == "nsight" and self.device == "cpu":
            raise ConfigError(f"profiler = nsight needs GPUs, and {self.name} has none: take torch")
        if self.gpus_per_node and layout.gpus_per_node > self.gpus_per_node:
            raise ConfigError(
                f"gpus_per_node = {layout.gpus_per_node}, but a node of {self.name} has {self.gpus_per_node}"
            )
        limits = [partition.max_nodes for partition in self.partitions]
        if limits and None not in limits and layout.nodes > max(limits):
            raise ConfigError(f"nodes = {layout.nodes}, but the largest partition of {self.name} takes {max(limits)}")

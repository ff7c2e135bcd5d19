"""The facts of a machine: what planning, launching and charging need to know."""

from dataclasses import dataclass

from parascale.config.options import option, required, section
from parascale.errors import ConfigError


@dataclass(frozen=True)
class Link:
    """A network between processes, in the alpha-beta model."""

    gigabytes_per_second: float = option(5.0, "bandwidth of one direction, for each GPU", above=0.0)
    microseconds: float = option(10.0, "latency of a message", above=0.0)


@dataclass(frozen=True)
class Partition:
    """A partition (queue) of the machine."""

    name: str = required("Slurm's name for it")
    max_hours: float = option(24.0, "longest job", above=0.0)
    max_nodes: int | None = option(None, "largest job; unknown: no limit is checked", low=1)


@dataclass(frozen=True)
class Network:
    """How the processes of one run find each other."""

    interface: str | None = option(None, "network interface for NCCL and gloo (`ib0`); default: found by the libraries")
    host_suffix: str = option("", "appended to a node's name for its address on that network (JSC: `i`)")
    host_template: str = option(
        "{host}{suffix}", "how name and suffix make an address (`{host}-interconnect-1.jupiter.internal`)"
    )


@dataclass(frozen=True)
class Site:
    """One machine: `config/sites/<name>.yaml`."""

    name: str = required("the file's name without `.yaml`; set by the loader")
    title: str = option("", "a line for reports")
    device: str = option("cpu", "what computes", choices=("cpu", "cuda"))
    cores_per_node: int | None = option(
        None, "cores of a node, as they are charged; default: counted on this machine", low=1
    )
    gpus_per_node: int | None = option(None, "GPUs of a node; default: no limit (processes on CPUs)", low=1)
    gpu: str = option("", "name of the GPU")
    gpu_memory_gb: float | None = option(None, "memory of one GPU, in 10⁹ bytes", above=0.0)
    host_memory_gb: float | None = option(None, "memory of a node, in 10⁹ bytes", above=0.0)
    peak_tflops: dict = option({}, "precision → peak rate of one GPU in 10¹² operations a second, dense")
    memory_gigabytes_per_second: float | None = option(None, "memory bandwidth of one GPU", above=0.0)
    node_link: Link = section(Link, "between the GPUs of a node")
    network_link: Link = section(Link, "between nodes")
    network: Network = section(Network, "how processes find each other")
    partitions: list[Partition] = option([], "partitions of the machine; the first is the default")
    max_hours: float | None = option(None, "longest job where there are no partitions", above=0.0)

    def check_layout(self, layout):
        """Raise ConfigError where a layout asks for more than a node of this machine has."""
        if self.gpus_per_node and layout.gpus_per_node > self.gpus_per_node:
            raise ConfigError(
                f"gpus_per_node = {layout.gpus_per_node}, but a node of {self.name} has {self.gpus_per_node} GPUs"
            )

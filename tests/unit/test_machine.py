"""The machine and the memory that a training tells of: read, exact where tensors are counted, and of this rank's share alone."""

import warnings
from types import SimpleNamespace

import psutil
import pynvml
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from parascale.train.gauges import distinct
from parascale.train.machine import Memory, read_machine

CPU = torch.device("cpu")


def test_this_machine_is_read():
    machine = read_machine(CPU)
    assert machine["hardware_threads"] == psutil.cpu_count()
    assert machine["memory_bytes"] == round(psutil.virtual_memory().total / 2**30) * 2**30
    assert machine["cpu"] and machine["host"] and "gpu" not in machine


@pytest.mark.parametrize("driver", ["580.95.05", None])
def test_the_gpu_and_its_driver_are_read(driver, monkeypatch):
    """Of the device that computes; a driver that tells nothing is unknown."""
    names = {0: "NVIDIA A100-SXM4-40GB", 1: "NVIDIA H100"}
    told = {number: SimpleNamespace(name=name, total_memory=(number + 1) << 35) for number, name in names.items()}
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: told[device.index])

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    def answer():
        if driver is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        return driver

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", answer)
    machine = read_machine(torch.device("cuda", 1))
    read = {"gpu": "NVIDIA H100", "gpus": 2, "gpu_memory_bytes": 2 << 35, "driver": driver}
    assert machine == read_machine(CPU) | read


@pytest.mark.parametrize(
    ("told", "clock"), [((2100.4, 800, 3387.6), 3400), ((2100.0, 0, 0), 2100), ((2249.9, 0, 0), 2200), (None, None)]
)
def test_the_clock_is_the_highest_else_the_one_that_a_guest_is_told(told, clock, monkeypatch):
    """In steps of 100 MHz: ranks that look at different moments are on equal nodes."""
    answer = told and SimpleNamespace(current=told[0], min=told[1], max=told[2])
    monkeypatch.setattr(psutil, "cpu_freq", lambda: answer)
    assert read_machine(CPU)["clock_mhz"] == clock


def test_nodes_whose_memory_differs_by_some_kilobytes_are_one_kind(monkeypatch):
    """As the kernel of each keeps a little more or less for itself."""
    machines = []
    for host, total in (("n1", 540_000_000_000), ("n2", 540_000_008_192)):
        monkeypatch.setattr(psutil, "virtual_memory", lambda total=total: SimpleNamespace(total=total))
        machines.append(read_machine(CPU) | {"host": host})
    [told] = distinct(machines)
    assert told["hosts"] == ["n1", "n2"]


def test_each_kind_of_machine_is_told_once_with_its_hosts():
    one, other = {"cpu": "a", "cores": 4}, {"cpu": "b", "cores": 4}
    told = distinct([one | {"host": "n1"}, one | {"host": "n1"}, other | {"host": "n2"}, one | {"host": "n3"}])
    assert told == [one | {"hosts": ["n1", "n3"]}, other | {"hosts": ["n2"]}]


def test_tensors_that_share_a_storage_are_each_counted():
    """As parts of one product's weights; tensors without data have no place, and are counted as they are."""
    whole = torch.zeros(3, 100)
    model = torch.nn.Module()
    for number, part in enumerate(whole):
        model.register_parameter(f"part{number}", torch.nn.Parameter(part))
    assert Memory([model], CPU).weights == 4 * 300
    assert Memory([model.to_empty(device="meta")], CPU).weights == 4 * 300
    with FakeTensorMode(), warnings.catch_warnings(action="error"):
        assert Memory([torch.nn.Linear(10, 10)], CPU).weights == 4 * 110


def test_memory_is_counted_by_its_parts():
    """Weights and buffers, tied ones once; gradients of what is trained; two moments and a count of each parameter."""
    model = torch.nn.Sequential(torch.nn.Linear(100, 50), torch.nn.BatchNorm1d(50), torch.nn.Linear(50, 50, bias=False))
    model.append(torch.nn.Linear(50, 50, bias=False))
    model[3].weight = model[2].weight
    model[2].weight.requires_grad_(False)
    memory = Memory([model], CPU)
    trained = 100 * 50 + 50 + 2 * 50
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
    model(torch.ones(4, 100)).sum().backward()
    optimizer.step()
    parts = memory.parts([optimizer], peak=memory.process + 1_000_000)
    statistics = 2 * 50 * 4 + 8
    assert parts["weights"] == 4 * (trained + 50 * 50) + statistics and parts["gradients"] == 4 * trained
    assert parts["optimizer"] == 2 * parts["gradients"] + 4 * 4
    assert parts["process"] > 10**7 and sum(parts.values()) == memory.process + 1_000_000

"""The machine and the memory that a training tells of: read, exact where tensors are counted, and of this rank's share alone."""

import psutil
import torch

from parascale.train.machine import Memory, distinct, read_machine

CPU = torch.device("cpu")


def test_this_machine_is_read():
    machine = read_machine(CPU)
    assert (
        machine["hardware_threads"] == psutil.cpu_count() and machine["memory_bytes"] == psutil.virtual_memory().total
    )
    assert machine["cpu"] and machine["host"] and "gpu" not in machine


def test_each_kind_of_machine_is_told_once_with_its_hosts():
    one, other = {"cpu": "a", "cores": 4}, {"cpu": "b", "cores": 4}
    told = distinct([one | {"host": "n1"}, one | {"host": "n1"}, other | {"host": "n2"}, one | {"host": "n3"}])
    assert told == [one | {"hosts": ["n1", "n3"]}, other | {"hosts": ["n2"]}]


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

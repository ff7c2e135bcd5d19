"""Samples of the devices: what NVML and psutil say arrives in the file, counters add up over attempts, and it costs next to nothing."""

import csv
import math
import os
import threading
import time
from types import SimpleNamespace

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parascale.files import write_text
from parascale.slurm import fields, parse_job
from parascale.telemetry import COLUMNS, Device, figures, read_samples, total
from parascale.train.gauges import Gpus, NodeGauges
from parascale.train.monitor import DeviceMonitor, monitored, publish
from tests.made_up.results import CLUSTER, SITE
from tests.pace import starts, wait_for
from tests.unit.nvml_answers import GIB, GPUS, RECORDED, RecordedNvml


def sample(path, gauges, seconds=0.01, times=3):
    """Let a DeviceMonitor take some samples; the Devices it saw."""
    with DeviceMonitor(path, 0, gauges, seconds):
        time.sleep(seconds * (times - 1))
    return read_samples([path])


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_answers_of_nvml_arrive_in_the_file(name, tmp_path):
    """Answers of real devices; what one does not tell is unknown, and only what slows a GPU down counts as throttling."""
    answers = RECORDED[name]
    (gpu,) = sample(tmp_path / "device-00000.csv", [Gpus(RecordedNvml([answers]), None, 1, range(1))])
    rates, memory = answers.get("nvmlDeviceGetUtilizationRates"), answers["nvmlDeviceGetMemoryInfo"]
    assert gpu.mean("utilisation") == (None if rates is None else rates.gpu / 100)
    assert gpu.mean("memory_bytes") == pytest.approx(memory.used, rel=1e-5)
    assert gpu.mean("power_watts") == pytest.approx(answers["nvmlDeviceGetPowerUsage"] / 1000)
    assert gpu.mean("temperature_celsius") == answers["nvmlDeviceGetTemperature"]
    clocks = answers["nvmlDeviceGetClockInfo"]
    assert (gpu.mean("clock_mhz"), gpu.mean("memory_clock_mhz")) == (clocks[1], clocks[2])
    assert set(gpu.throttled) == ({"power_cap"} if name == "RTX 3090" else set())
    assert gpu.mean("energy_joules") is None and total([gpu], "gpu", "energy_joules") is None


def test_a_node_of_four_of_which_one_trains_arrives_in_the_file(tmp_path):
    """Answers written by hand, no GPU seen: three of four GPUs idle."""
    found = sample(tmp_path / "device-00000.csv", [Gpus(RecordedNvml(GPUS), None, 4, range(1))])
    ranks = enumerate((0, None, None, None))
    assert [(gpu.kind, gpu.index, gpu.rank) for gpu in found] == [("gpu", index, rank) for index, rank in ranks]
    busy, idle = found[0], found[3]
    assert (busy.mean("utilisation"), idle.mean("utilisation")) == (0.96, 0)
    assert busy.mean("memory_bytes") == pytest.approx(29 * GIB, rel=1e-5)
    assert (busy.mean("power_watts"), busy.mean("temperature_celsius")) == (312.48, 71)
    assert (busy.mean("clock_mhz"), busy.mean("memory_clock_mhz")) == (1335, 1215)
    assert set(busy.throttled) == {"power_cap", "software_thermal"} and not idle.throttled
    assert busy.increase("energy_joules") == pytest.approx(624.96)
    assert total(found, "gpu", "energy_joules") == pytest.approx(624.96 + 3 * 104)


@pytest.mark.parametrize(
    ("visible", "held", "handles"),
    [(None, 4, [0, 1, 2, 3]), (None, 2, [0, 1]), ("2,3", 2, [2, 3]), ("GPU-3,GPU-1", 2, [3, 1]), ("1,2,3", 1, [1])],
)
def test_the_gpus_that_the_job_holds_are_sampled(visible, held, handles):
    assert [handle for _, handle, _ in Gpus(RecordedNvml(GPUS), visible, held, range(1)).devices] == handles


def test_a_node_without_gpus_is_sampled(tmp_path):
    path = tmp_path / "device-00000.csv"
    with DeviceMonitor(path, 0, [NodeGauges({0: os.getpid()})], 0.1):
        begun, before = time.monotonic(), time.process_time()
        while (seconds := time.monotonic() - begun) < 0.5 or (len(path.read_text().splitlines()) < 9 and seconds < 60):
            pass  # until there are four samples of both
        used = time.process_time() - before
        write_text(tmp_path / "some", "x" * 100_000)
    process, host = read_samples([path])
    assert (process.kind, process.rank, host.kind) == ("rank", 0, "host")
    assert max(process.known("cores_busy")) > 0.5 * used / seconds, "it took all of a core that others left it"
    assert process.mean("memory_bytes") > 1e6 and process.increase("written_bytes") >= 100_000
    assert 0 <= host.mean("utilisation") <= 1 and host.mean("memory_total_bytes") > host.mean("memory_bytes") > 1e6
    assert len(process.times) >= 4 and math.isnan(process.values["cores_busy"][0]), "nothing to compare the first with"


def test_the_interval_is_fixed_and_a_sample_cheap(tmp_path):
    """What the sampling thread takes of the processor for a sample of a node with four processes: half a percent
    of the default interval at most."""
    path, interval, began = tmp_path / "device-00000.csv", 0.05, time.monotonic()
    with DeviceMonitor(path, 0, [NodeGauges(dict.fromkeys(range(4), os.getpid()))], interval):
        wait_for(lambda: path.exists() and path.read_text().count(",host,") >= 20)
    host = read_samples([path])[-1]
    samples = len(host.times)
    assert samples <= (time.monotonic() - began) / interval + 2
    assert 0 < starts(host.increase("monitor_seconds")) < samples / 120


def test_a_second_attempt_goes_on_in_the_same_file(tmp_path):
    path = tmp_path / "device-00000.csv"
    sample(path, [Gpus(RecordedNvml(GPUS), None, 1, range(1))])
    with open(path, "a") as handle:
        handle.write("1763731000.1,0,host,gpu,0,0,0.9")  # the machine died here
    found = sample(path, [Gpus(RecordedNvml(GPUS), None, 1, range(1))])
    rows = list(csv.reader(path.open()))
    assert rows[0] == list(COLUMNS) and all(len(row) == len(COLUMNS) for row in rows)
    assert sum(row[0] == "time" for row in rows) == 1
    assert total(found, "gpu", "energy_joules") == pytest.approx(2 * 624.96), "a counter begins anew with each attempt"


@given(st.lists(st.lists(st.floats(0, 1e6), min_size=1, max_size=6), min_size=1, max_size=4))
def test_counters_add_up_over_attempts(attempts):
    """Each attempt counts from 0; the increase is the sum of what the attempts ended with."""
    device = Device("gpu", 0, "host", 0, 0)
    for attempt in attempts:
        device.values["energy_joules"].extend([0.0, *sorted(attempt)])
    expected = math.fsum(max(attempt) for attempt in attempts)
    assert device.increase("energy_joules") == pytest.approx(expected, abs=1e-6)


def test_samples_of_all_nodes_become_one_file(tmp_path):
    for node in (0, 1):
        gauges = [Gpus(RecordedNvml(GPUS), None, 2, range(2))]
        with DeviceMonitor(tmp_path / f"device-{node:05d}.csv", node, gauges, 0.01):
            pass
    kept = publish(tmp_path, tmp_path / "out/device.csv")
    assert kept["energy_joules"] > 0 and kept["gpu_utilisation"] == pytest.approx(0.48)
    found = read_samples([tmp_path / "out/device.csv"])
    assert [(device.node, device.index) for device in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    none = publish(tmp_path / "empty", tmp_path / "none/device.csv")
    assert set(none.values()) == {None}, "a run that was not sampled"


@pytest.mark.parametrize(("second", "others"), [("box", 0.5), ("other", 3.0)])
def test_a_host_of_several_nodes_counts_once(second, others):
    """Two nodes with one process each that keeps a core busy: 2.5 cores of each host are busy."""
    devices = [Device("rank", node, host, 0, node) for node, host in enumerate(("box", second))]
    devices += [Device("host", node, host, 0, None) for node, host in enumerate(("box", second))]
    for device in devices:
        device.values["cores_busy"].append(1.0 if device.kind == "rank" else 2.5)
    assert figures(devices)["other_cores_busy"] == others


def test_the_answer_of_slurm_about_a_job():
    line = (
        "JobId=7 JobName=x TimeLimit=1-02:03:04 SubmitTime=2026-01-02T03:04:05 StartTime=2026-01-02T03:05:05 "
        "EndTime=2026-01-03T05:08:09 Partition=dc-gpu AllocNode:Sid=login:1"
    )
    told = parse_job(fields(line))
    assert told["limit_seconds"] == 26 * 3600 + 3 * 60 + 4 and told["partition"] == "dc-gpu"
    assert told["allocated"] - told["submitted"] == 60
    unknown = dict.fromkeys(("submitted", "allocated", "limit_seconds", "partition"))
    assert parse_job(fields("TimeLimit=UNLIMITED StartTime=Unknown")) == unknown


def has_driver():
    """Whether this machine has a GPU's driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return True


def place(monkeypatch, rank, local_rank, local_size):
    """The environment of one process of a run."""
    for name, value in (("RANK", rank), ("LOCAL_RANK", local_rank), ("LOCAL_WORLD_SIZE", local_size)):
        monkeypatch.setenv(name, str(value))


def job(folder, site=SITE, seconds=0.05):
    """What `monitored` reads of a job."""
    run = SimpleNamespace(layout=SimpleNamespace(gpus_per_node=4))
    return SimpleNamespace(work=folder, site=site, run=run, monitor=SimpleNamespace(interval_seconds=seconds))


@pytest.mark.parametrize(
    ("rank", "local_rank", "file"), [(0, 0, "device-00000.csv"), (1, 1, None), (2, 0, "device-00001.csv"), (3, 1, None)]
)
def test_the_first_process_of_each_node_samples_the_processes_of_its_node(
    tmp_path, monkeypatch, rank, local_rank, file
):
    """Two nodes of two processes."""
    place(monkeypatch, rank, local_rank, 2)
    with monitored(job(tmp_path), [os.getpid()] * 4):
        time.sleep(0.1)
    assert [path.name for path in tmp_path.iterdir()] == ([file] if file else [])
    found = read_samples(tmp_path.iterdir())
    assert [device.rank for device in found if device.kind == "rank"] == ([rank, rank + 1] if file else [])
    assert not [thread for thread in threading.enumerate() if thread.name == "monitor"], "it ends with the training"


def test_without_a_driver_the_node_is_sampled_and_it_is_said(tmp_path, monkeypatch, capsys):
    place(monkeypatch, 0, 0, 1)
    if has_driver():
        pytest.skip("there is a GPU here")
    with monitored(job(tmp_path, CLUSTER), [os.getpid()]):
        pass
    assert [device.kind for device in read_samples(tmp_path.iterdir())] == ["rank", "host"]
    assert "GPUs are not sampled" in capsys.readouterr().err


def test_a_training_that_fails_is_sampled_to_its_end(tmp_path, monkeypatch):
    place(monkeypatch, 0, 0, 1)
    with pytest.raises(ValueError), monitored(job(tmp_path), [os.getpid()]):
        raise ValueError
    assert len(read_samples(tmp_path.iterdir())[0].times) == 2


def test_a_disk_that_is_full_stops_the_samples_and_nothing_else(tmp_path, monkeypatch, capsys):
    place(monkeypatch, 0, 0, 1)
    with monitored(job(tmp_path / "gone"), [os.getpid()]):
        pass
    assert "no more samples of the devices" in capsys.readouterr().err

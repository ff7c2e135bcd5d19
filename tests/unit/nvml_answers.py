"""NVML's answers. No GPU was seen when these tests were made.

RECORDED holds what real devices answered; a node of four A100 of which one trains (GPUS) is written down by hand in the
shape of the documentation (NVML API reference, v12). Two calls of a function give two answers, a list's in turn.
"""

from types import SimpleNamespace

GIB, MIB = 1 << 30, 1 << 20


def recorded(rates, total, used, watts, celsius, clock, memory_clock, reasons):
    """The answers behind one log of `nvidia-smi -q -x`, which prints what NVML says. rates: of GPU and memory, in percent,
    or None where the log says `N/A`, as for a GPU in several instances. total, used: MiB. Such logs hold no energy counter."""
    answers = {
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=total * MIB, used=used * MIB, free=(total - used) * MIB),
        "nvmlDeviceGetPowerUsage": round(watts * 1000),
        "nvmlDeviceGetTemperature": celsius,
        "nvmlDeviceGetClockInfo": {1: clock, 2: memory_clock},
        "nvmlDeviceGetCurrentClocksThrottleReasons": reasons,
    }
    if rates is not None:
        answers["nvmlDeviceGetUtilizationRates"] = SimpleNamespace(gpu=rates[0], memory=rates[1])
    return answers


# Figures of the logs that the tests of Telegraf's nvidia_smi input keep (github.com/influxdata/telegraf,
# plugins/inputs/nvidia_smi/testdata), taken on real devices with drivers 515.105, 535.54, 536.40 and 590.44.
RECORDED = {
    "A100-SXM4-80GB in instances": recorded(None, 81920, 50, 67.03, 27, 1275, 1593, 0x0),
    "A10G": recorded((0, 0), 23028, 22, 25.58, 17, 210, 405, 0x1),
    "T4": recorded((0, 0), 15360, 1032, 26.78, 40, 585, 5000, 0x0),
    "RTX 3080": recorded((0, 37), 10240, 1128, 22.78, 31, 210, 405, 0x1),
    "RTX 3090": recorded((0, 1), 24576, 7, 35.06, 32, 210, 405, 0x4),
    "RTX A5000": recorded((0, 0), 24564, 22437, 6.41, 13, 210, 405, 0x1),
    "RTX PRO 6000": recorded((0, 0), 97887, 65720, 3.97, 24, 180, 405, 0x0),
}
GPUS = [
    # index 0 trains: 96 % busy, 29 GiB, 312 W, hot enough to be slowed down
    {
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=96, memory=61),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=40 * GIB, used=29 * GIB, free=11 * GIB),
        "nvmlDeviceGetPowerUsage": 312_480,
        "nvmlDeviceGetTotalEnergyConsumption": [7_000_000_000, 7_000_624_960],
        "nvmlDeviceGetTemperature": 71,
        "nvmlDeviceGetClockInfo": {1: 1335, 2: 1215},
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x04 | 0x20,
    },
    # the others hold their context and idle: bit 0x1 is nvmlClocksThrottleReasonGpuIdle
    *(
        {
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0, memory=0),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=40 * GIB, used=GIB // 2, free=79 * GIB // 2),
            "nvmlDeviceGetPowerUsage": 52_000,
            "nvmlDeviceGetTotalEnergyConsumption": [5_000_000, 5_104_000],
            "nvmlDeviceGetTemperature": 33,
            "nvmlDeviceGetClockInfo": {1: 210, 2: 1215},
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x01,
        }
        for _ in range(3)
    ),
]


class RecordedNvml:
    """Stands for the module `pynvml`."""

    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    class NVMLError(Exception):
        """As raised for what a device does not support."""

    def __init__(self, gpus):
        self.gpus, self.asked = gpus, {}

    def nvmlDeviceGetCount(self):  # noqa: N802 (NVML's name)
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        return int(uuid.removeprefix("GPU-"))

    def __getattr__(self, name):
        def answer(handle, *arguments):
            if name not in self.gpus[handle]:
                raise self.NVMLError("Not Supported")
            recorded = self.gpus[handle][name]
            if isinstance(recorded, dict):
                return recorded[arguments[0]]
            if isinstance(recorded, list):
                turn = self.asked[handle, name] = self.asked.get((handle, name), -1) + 1
                return recorded[min(turn, len(recorded) - 1)]
            return recorded

        return answer

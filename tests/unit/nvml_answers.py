"""NVML's answers for a node of four A100 of which one trains, in the shape of its documentation (NVML API reference, v12).

Written down by hand: no GPU was seen when these tests were made. Two calls of a function give two answers, a list's in turn.
"""

from types import SimpleNamespace

GIB = 1 << 30
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
# A card for games: no energy counter, no throttling reasons
SMALL = {
    name: answer
    for name, answer in GPUS[0].items()
    if name not in ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetCurrentClocksThrottleReasons")
}


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

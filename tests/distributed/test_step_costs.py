"""What a training step costs beside its arithmetic, counted: waits of the host for the device."""

import pytest

from .cases import pp, ranks_of
from .examine import train_and_count_waits
from .harness import run_on_ranks

LAYOUTS = {"single": {}, "ddp": {"dp": 2}, "fsdp": {"fsdp": 2}, "tp": {"tp": 2}, "pp": pp(2, 4, "1F1B")}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_host_waits_for_numbers_once_a_step_at_most(layout, make_settings, tmp_path):
    """For what the ranks have agreed on; a process alone waits for nothing within a step. The numbers of the step before are read
    once, after the step has been started."""
    settings = make_settings("run", LAYOUTS[layout], training={"steps": 6, "evaluate": False})
    ranks = run_on_ranks(train_and_count_waits, ranks_of(LAYOUTS[layout]), tmp_path / "ranks", settings)
    for within, after in ranks:
        # Stages tell each other in the first step what they will send.
        assert within[1:] == [0 if layout == "single" else 1] * 5
        assert after == [0, 1, 1, 1, 1, 2]  # the last step's own numbers are due at once

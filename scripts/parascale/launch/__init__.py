"""Starting the processes of a run, one place for every machine: who is where, and how they end. Imports no torch.

`torchrun` is not used, although its environment is kept (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`,
`MASTER_ADDR`, `MASTER_PORT`, error files for `@record`): it imports torch once more on every node before anything
starts, waits for missing nodes without naming them, and forgets whether its workers had saved their state when it was
told to stop.
"""

from parascale.launch.process import FAILED, STOPPED, TERMINATED, die_with_parent

__all__ = ["FAILED", "STOPPED", "TERMINATED", "die_with_parent"]

"""Starting the processes of a run, one place for every machine: who is where, and how they end. Imports no torch.

Ranks find the environment that torchrun would give them (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, error files for `@record`),
but neither torchrun nor one srun task a rank starts them. Both were put in the launcher's place under its own tests:
torchrun of torch 2.13.0 with a static rendezvous, its errors reworded as the tests have them, its ranks tied to the agent by
`die_with_parent` (without it they train on when the agent is killed), and srun of Slurm 22.05 with `--kill-on-bad-exit`.
What failed (tests/distributed/test_launch.py and test_failures.py; tests/slurm/test_launch_slurm.py):

| test | torchrun | srun, a task a rank |
| --- | --- | --- |
| a rank of node 1 fails or is killed | node 0 runs on until a collective fails, and blames its rank 0 | ends: `task 3: Killed`, no log named |
| the launcher of node 1 is killed | the same | has none |
| power cut | not tried: one machine | nothing said within 30 s |
| SIGTERM, state saved | exit 143, as if nothing were saved; the other node is not told | passes |
| Ctrl-C | ranks get SIGINT and end unsaved, exit 130 | not tried |
| a rank ignores the stop | exit 143, as if it had stopped | not tried |
| a rank outlasts the others | never ended | not tried |
| a rank hangs (SIGSTOP) | still there 15 s after the timeout: the agent waits 30 s (read), whatever its options | not tried |
| node 0 is not there | no word within 60 s, with a timeout of 50 s | srun starts all or none |
| a node never comes | "1/3 clients joined", not which | srun starts all or none |
| who is where | not said | not said |

Besides, torchrun imports torch once more on every node before anything starts, and a task a rank needs Slurm.
"""

from parascale.launch.process import STOPPED, die_with_parent

__all__ = ["STOPPED", "die_with_parent"]

"""Detect hangs of a user's script, from outside, since only the script knows its steps.

A script that has recorded a step is silent when no step has come for `timeout_seconds` and for ten times its slowest step. Steps longer
than ten times the median do not count here, because they contain an evaluation or a save. Every rank of a silent script writes its stack,
and again every `timeout_seconds` until a step comes. A script that has recorded no step is examined when a rank has used no CPU and no GPU
for `timeout_seconds`; it is never ended. Node 0 requests each look with a number in its file (`peers`): odd numbers request the ranks' use
of CPU and GPU, even ones also their stacks. Each launcher writes the looks of its own ranks, and node 0 decides.

Node 0 ends the run if all stacks are the same as at the look before, and all ranks that do not wait for others were idle in between. So C
code that computes is not ended, nor is an evaluation, whose batches wake the process. If a function's name suggests an evaluation or a
save, it takes four equal looks instead of two; and the silence must be twice as long as the longest pause between steps so far.
"""

import re
import statistics
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from parascale import slurm
from parascale.errors import ParascaleError
from parascale.files import read_json_lines, write_json
from parascale.launch.hang import UNKNOWN, note_cause, read_note, who_is_idle, who_waits
from parascale.launch.peers import TICK_SECONDS, Peers
from parascale.launch.workers import STATUS_STOPPED, WAS_STOPPED, Worker, Workers
from parascale.notes import WAITING, frames_in, operation_of, state_of
from parascale.paths import RunFolder
from parascale.recording import by_step
from parascale.telemetry import read_samples

SLOW_STEPS = 10
PAUSES = re.compile(r"eval|valid|test|predict|generat|sav|checkpoint|export", re.IGNORECASE)
ALIKE = {False: 1, True: 3}  # looks that must equal the one before; True: in a function that matches PAUSES
IDLE = 0.05  # of a core or of a GPU
WAKES_A_SECOND = 1.0  # of the main thread: while it waits for a child process, it wakes now and then to check it
STACK_SECONDS = 5.0
WHOLE = ("in <module>\n", "in _run_module_as_main\n", "in _shutdown\n", "  ...\n")  # last lines of a complete stack


class Silence:
    """Watches this node's ranks. launch: a Launch."""

    def __init__(self, launch: Any, node: int, workers: Workers, peers: Peers) -> None:
        self._launch, self._node, self._workers, self._peers = launch, node, workers, peers
        self._steps = RunFolder(launch.work).steps
        self._size, self._recorded, self._since = self._size_of_steps(), False, 0.0
        self._stepped: float | None = None  # seconds since 1970
        self._number, self._asked, self._stacks_next, self._due, self._next = 0, False, False, 0.0, 0.0
        self._enough = self._pause = 0.0
        self._used: dict[
            int, tuple[float, dict, bool]
        ] = {}  # rank → (when measured, `_used_by`, idle since the measurement before)
        self._before: list[Any] = []  # frames of the look before
        self._alike = 0
        self.reported: str | None = None  # the cause reported last: which ranks keep others waiting, or are idle

    def tick(self, now: float) -> str | None:
        """Take the next step that is due. now: time of a SuspendAwareClock. Returns the reason to end the run, or None."""
        if now < self._next:
            return None
        self._next = now + self._launch.timeout / 20
        if self._node:
            if self._peers.look != self._number:
                self._look(self._peers.look)
        elif (size := self._size_of_steps()) != self._size:
            self._size, self._recorded, self._since, self._stepped = size, True, now, time.time()
            self._asked, self._stacks_next, self._due, self._before, self._alike = False, False, 0.0, [], 0
            self._tell(None, "the script continues")
        elif self._asked:
            notes = self._read_looks()
            if now >= self._due or all(note["look"] for note in notes):
                self._asked = False
                return self._judge(now, notes)
        elif now >= self._due:
            self._ask(now)
        return None

    def _ask(self, now: float) -> None:
        """Ask all launchers for a look. In a silence, the first look comes halfway: the use before it still belongs to the last step."""
        if self._recorded and not self._stacks_next:
            if not self._due:
                self._enough, self._pause = self._patience()
                self._due = self._since + self._enough / 2
            if now < self._due:
                return
        self._number += 1 if self._number % 2 == self._stacks_next else 2
        self._asked, self._due = True, now + self._launch.timeout
        self._peers.send(look=self._number)
        self._look(self._number)

    def _patience(self) -> tuple[float, float]:
        """(seconds without a step after which this script is silent, longest pause between two steps), from its steps so far."""
        with suppress(OSError, ParascaleError):
            lines = by_step(read_json_lines(self._steps, readable=True))
            later = [line for line in lines if "first" not in line] or lines  # the first step includes the start-up
            seconds = [line["seconds"]["total"] for line in later]
            longest = SLOW_STEPS * statistics.median(seconds)
            slowest = max(each for each in seconds if each <= longest)
            return max(self._launch.timeout, SLOW_STEPS * slowest), max(seconds)
        return self._launch.timeout, 0.0

    def _look(self, number: int) -> None:
        """Write a look file for each rank of this node."""
        self._number, busy, running = number, self._busy_gpus(), self._workers.running
        still = {worker.rank: self._is_still(worker) and worker.rank not in busy for worker in running}
        stacks = self._stacks(running) if number % 2 == 0 else {}
        for worker in running:
            frames, stopped = stacks.get(worker.rank, []), worker.status() in STATUS_STOPPED
            doing, where = state_of(frames, still[worker.rank])
            doing = "idle" if still[worker.rank] and doing == "computing" else doing
            gpu = worker.rank % self._launch.processes if self._launch.site.device == "cuda" else None
            note = {
                "look": number,
                "host": slurm.node_name(),
                "gpu": gpu,
                "still": still[worker.rank],
                "decisive": stopped,
            }
            note |= {"doing": WAS_STOPPED if stopped else doing, "where": where, "operation": operation_of(frames)}
            write_json(worker.look_file, note | {"frames": frames})
            if stacks:  # leaves out what the look itself used
                self._used[worker.rank] = time.monotonic(), _used_by(worker), self._used[worker.rank][2]

    def _is_still(self, worker: Worker) -> bool:
        """True if a rank and its children were idle since the last measurement; if that is very recent, its result counts."""
        since, before, still = self._used.get(worker.rank, (0.0, {}, False))
        seconds = time.monotonic() - since
        if not before or seconds > self._launch.timeout / 4:
            used = _used_by(worker)
            rises = [(used[pid][0] - before[pid][0], used[pid][1] - before[pid][1]) for pid in used if pid in before]
            still = bool(before) and used.keys() == before.keys()
            still = still and sum(cpu for cpu, _ in rises) < IDLE * seconds
            still = still and max(wakes for _, wakes in rises) < WAKES_A_SECOND * seconds
            self._used[worker.rank] = time.monotonic(), used, still
        return still

    def _busy_gpus(self) -> set[int | None]:
        """Ranks whose GPU was busy in the last sample."""
        path = self._steps.with_name(f"device-{self._node:05d}.csv")
        devices = read_samples([path]) if self._launch.site.device == "cuda" and path.exists() else []
        return {each.rank for each in devices if each.kind == "gpu" and not each.values["utilisation"][-1] < IDLE}

    def _stacks(self, running: list[Worker]) -> dict[int, list]:
        """Rank → stack frames of its main thread, innermost first."""
        asked = [worker for worker in running if worker.ask_for_stack()]
        texts, deadline = [""], time.monotonic() + STACK_SECONDS
        while not all(text.endswith(WHOLE) for text in texts) and time.monotonic() < deadline:
            time.sleep(TICK_SECONDS)
            texts = [worker.stack_file.read_text(errors="replace") for worker in asked]
        return {worker.rank: frames_in(text) for worker, text in zip(asked, texts, strict=True)}

    def _read_looks(self) -> list[dict]:
        """The notes of all ranks for the current look."""
        missing = UNKNOWN | {"look": 0, "still": False, "decisive": False, "frames": []}
        ranks = range(self._launch.nodes * self._launch.processes)
        notes = [read_note(Path(self._launch.logs, f"rank{rank}.look.json")) for rank in ranks]
        since = {"since": self._stepped} if self._recorded else {}
        return [(note if note.get("look") == self._number else missing) | since for note in notes]

    def _judge(self, now: float, notes: list[dict]) -> str | None:
        """Evaluate and report a look. Returns the reason to end the run, or None."""
        timeout, silent = self._launch.timeout, now - self._since
        idle = [note["still"] or note["decisive"] for note in notes]
        if self._number % 2:
            self._stacks_next = self._recorded or any(idle)
            self._due = self._since + self._enough if self._recorded else now + timeout * (not self._stacks_next)
            if not self._stacks_next:
                self._tell(None, "no rank is idle any more")
            return None
        self._due, self._stacks_next = now + timeout, self._recorded
        absent = [rank for rank, note in enumerate(notes) if note["doing"] != WAITING]
        frames = [note["decisive"] or note["frames"] for note in notes]
        alike = frames == self._before and all(frames) and all(idle[rank] for rank in absent)
        self._before, self._alike = frames, self._alike + 1 if alike else 0
        warns = all(idle) or any(idle[rank] for rank in absent)
        said = f"no step for {silent:.0f} s" if self._recorded else f"nothing was computed for {timeout:.0f} s"
        if self._recorded or warns:
            self._tell(who_waits(notes) or who_is_idle(notes), f"{'warning: ' if warns else ''}{said}")
        paused = any(PAUSES.search(name) for rank in absent for *_, name in notes[rank]["frames"])
        if self._recorded and self._launch.ends_silent:
            return f"{said}: ended, as `monitor.silent` asks"
        if self._recorded and self._alike >= ALIKE[paused] and silent > 2 * self._pause:
            return f"{said}, and no rank moved any more: ended; if it was at work, set a larger `timeout_seconds`"
        return None

    def _tell(self, text: str | None, said: str) -> None:
        """Write the cause to the log and to the run's record, if it has changed. None: nothing is wrong any more."""
        if text != self.reported:
            print(f"{said}: {text}" if text else said, file=sys.stderr, flush=True)
            note_cause(self._launch.work, text)
        self.reported = text

    def _size_of_steps(self) -> tuple[int, int] | None:
        with suppress(OSError):
            found = self._steps.stat()
            return found.st_ino, found.st_size
        return None


def _used_by(worker: Worker) -> dict[int, tuple[float, int]]:
    """Process id → (CPU seconds, context switches) of a rank and its children; empty if the rank is running right now."""
    with suppress(psutil.Error):
        first = psutil.Process(worker.python_pid())
        tree = [first, *first.children(recursive=True)] if first.status() != psutil.STATUS_RUNNING else []
        return {each.pid: (sum(each.cpu_times()[:2]), sum(each.num_ctx_switches())) for each in tree}
    return {}

"""When the last job ends: the longest chain of jobs, or a simulated queue where only so many run at once."""

import graphlib
import heapq
import math


def wall_hours(jobs, capacity=None):
    """Hours until the last of `jobs` (with id, hours_expected, slots, after, together) ends; jobs of unknown length count as 0.

    capacity: slots that running jobs may take together (jobs of a queue, cores of a machine); None: no limit, and the
    answer is the longest chain. With one, jobs start as soon as they can in their order (list scheduling: Graham 1969,
    doi:10.1137/0117039, at most twice the optimum).
    """
    jobs = list(jobs)
    numbers = {job.id: number for number, job in enumerate(jobs)}
    graph = graphlib.TopologicalSorter(
        {numbers[job.id]: {numbers[i] for i in (*job.after, *_turn_before(job)) if i in numbers} for job in jobs}
    )
    graph.prepare()
    slots = [job.slots if capacity is None else min(job.slots, capacity) for job in jobs]
    ready, running, now, free = [], [], 0.0, math.inf if capacity is None else capacity
    while graph.is_active():
        for number in graph.get_ready():
            heapq.heappush(ready, number)
        while ready and slots[ready[0]] <= free:
            started = heapq.heappop(ready)
            free -= slots[started]
            heapq.heappush(running, (now + (jobs[started].hours_expected or 0.0), started))
        now, ended = heapq.heappop(running)
        free += slots[ended]
        graph.done(ended)
    return now


def _turn_before(job):
    """Ids of the jobs that share a job of the scheduler with this one and have their turn before it."""
    return job.together[: job.together.index(job.id)] if job.together else ()

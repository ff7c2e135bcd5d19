"""When the last job ends: the longest chain of jobs, or a simulated queue where only so many run at once."""

import heapq


def wall_hours(jobs, capacity=None):
    """Hours until the last of `jobs` (with id, hours_expected, slots, after) ends; jobs of unknown length count as 0.

    capacity: slots that running jobs may take together (jobs of a queue, cores of a machine); None: no limit, and the
    answer is the longest chain. With one, jobs start as soon as they can in their order (list scheduling: Graham 1969,
    doi:10.1137/0117039, at most twice the optimum).
    """
    by_id = {job.id: job for job in jobs}
    waiting_for = {job.id: {other for other in job.after if other in by_id} for job in jobs}
    followers = {job.id: [] for job in jobs}
    for job in jobs:
        for other in waiting_for[job.id]:
            followers[other].append(job.id)
    order = {job.id: number for number, job in enumerate(jobs)}
    ready = [(order[job.id], job.id) for job in jobs if not waiting_for[job.id]]
    heapq.heapify(ready)
    running, now, free = [], 0.0, float("inf") if capacity is None else capacity

    def slots(identity):
        return by_id[identity].slots if capacity is None else min(by_id[identity].slots, capacity)

    while ready or running:
        while ready and slots(ready[0][1]) <= free:
            number, started = heapq.heappop(ready)
            free -= slots(started)
            heapq.heappush(running, (now + (by_id[started].hours_expected or 0.0), number, started))
        now, _, ended = heapq.heappop(running)
        free += slots(ended)
        for follower in followers[ended]:
            waiting_for[follower].discard(ended)
            if not waiting_for[follower]:
                heapq.heappush(ready, (order[follower], follower))
    return now

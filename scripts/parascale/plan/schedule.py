"""When the last job ends: the longest chain of jobs, or a simulated queue where only so many run at once."""

import heapq


def wall_hours(jobs, limit=None):
    """Hours until the last of `jobs` (with id, hours_expected, after) ends; jobs of unknown length count as 0.

    limit: jobs at once; None: no limit, and the answer is the longest chain. With a limit, jobs start as soon as they can
    in their order (list scheduling: Graham 1969, doi:10.1137/0117039, at most twice the optimum).
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
    running, now = [], 0.0
    while ready or running:
        while ready and (limit is None or len(running) < limit):
            _, started = heapq.heappop(ready)
            heapq.heappush(running, (now + (by_id[started].hours_expected or 0.0), order[started], started))
        now, _, ended = heapq.heappop(running)
        for follower in followers[ended]:
            waiting_for[follower].discard(ended)
            if not waiting_for[follower]:
                heapq.heappush(ready, (order[follower], follower))
    return now

"""A quick guess at a schedule, for a solver to start from: near a good guess, few models have cycles."""

import heapq

import numpy as np

from components.scheduling.problem import ScheduleProblem


def guess(problem: ScheduleProblem, rank: np.ndarray | None = None, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """One job after the other: of those whose way is free the one whose token will stand in the way of the fewest waiting jobs;
    if no way is free, the one with the fewest things in its way, as if they were not there.

    Args:
        rank: (n,) ties go to the smaller one; by index by default.
        seed: shuffles ties if it is not 0 and there is no rank.

    Returns (position, choice), both (n,) int64: when each job runs, and its option, -1 where it has none.
    """
    n = problem.n_jobs
    if rank is None:
        rank = np.random.default_rng(seed).permutation(n) if seed else np.arange(n)
    tie = rank.tolist()
    locations = problem.locations
    occupied = [place.arrives is None for place in locations]
    enters: list[list[int]] = [[] for _ in range(n)]
    leaves: list[list[int]] = [[] for _ in range(n)]
    blocks: list[list[tuple[int, int]]] = [[] for _ in locations]
    missing = [0] * n  # tokens that are not there yet
    for index, place in enumerate(locations):
        if place.arrives is not None:
            enters[place.arrives].append(index)
        if place.departs is not None:
            leaves[place.departs].append(index)
            missing[place.departs] += place.arrives is not None
    # in_way[job][k]: how many locations that block option k are occupied; nuisance[job]: options that its target will block.
    in_way = [[sum(occupied[index] for index in option.blocked_by) for option in options] for options in problem.options]
    nuisance = [0] * n
    for job, options in enumerate(problem.options):
        for k, option in enumerate(options):
            for index in option.blocked_by:
                blocks[index].append((job, k))
                if locations[index].arrives is not None:
                    nuisance[locations[index].arrives] += 1
    done = [False] * n
    position = np.zeros(n, dtype=np.int64)
    choice = np.full(n, -1, dtype=np.int64)

    def ready(job: int) -> bool:
        return not done[job] and not missing[job] and 0 in in_way[job]

    queue = [(nuisance[job], tie[job], job) for job in range(n) if ready(job)]
    heapq.heapify(queue)
    for step in range(n):
        job = -1
        while queue and job < 0:
            _, _, job = heapq.heappop(queue)
            if not ready(job):
                job = -1
        if job < 0:
            waiting = (job for job in range(n) if not done[job])
            job = min(waiting, key=lambda j: (missing[j], min(in_way[j], default=0), nuisance[j], tie[j]))
        done[job] = True
        position[job] = step
        if in_way[job]:
            choice[job] = min(range(len(in_way[job])), key=lambda k: (in_way[job][k], problem.options[job][k].cost))
        touched = set()
        for index in leaves[job]:
            if occupied[index]:
                occupied[index] = False
                for other, k in blocks[index]:
                    in_way[other][k] -= 1
                    touched.add(other)
        for index in enters[job]:
            departs = locations[index].departs
            if departs is not None:
                missing[departs] -= 1
                touched.add(departs)
            if departs is None or not done[departs]:
                occupied[index] = True
                for other, k in blocks[index]:
                    in_way[other][k] += 1
        for option in problem.options[job]:
            for index in option.blocked_by:
                arrives = locations[index].arrives
                if arrives is not None:
                    nuisance[arrives] -= 1
                    touched.add(arrives)
        for other in touched:
            if ready(other):
                heapq.heappush(queue, (nuisance[other], tie[other], other))
    return position, choice

"""Random problems, and the answers by trying every order: what the schedulers are compared with."""

import itertools

import numpy as np

from components.scheduling.problem import Location, Option, ScheduleProblem

START, TARGET = 0, 1


def problem_of(n: int, blocked: dict[int, list[tuple[int, list[tuple[int, int]]]]]) -> ScheduleProblem:
    """n jobs with a start and a target each; `blocked[job]` lists (cost, [(START or TARGET, job), ...]); others are free."""
    locations = [Location(None, j) for j in range(n)] + [Location(j, None) for j in range(n)]
    options = [
        [Option(cost, frozenset(kind * n + j for kind, j in where)) for cost, where in blocked.get(job, [(0, [])])]
        for job in range(n)
    ]
    return ScheduleProblem(options, locations)


def random_problem(rng: np.random.Generator, n: int, density: float = 0.2) -> ScheduleProblem:
    """Jobs with one to three options; sometimes an obstacle, sometimes a stop between two jobs."""
    locations = [Location(None, j) for j in range(n)] + [Location(j, None) for j in range(n)]
    if n >= 3 and rng.random() < 0.5:
        first, second = rng.permutation(n)[:2]
        locations.append(Location(int(first), int(second)))
    if rng.random() < 0.3:
        locations.append(Location())
    options = []
    for job in range(n):
        allowed = [k for k, place in enumerate(locations) if job not in (place.arrives, place.departs)]
        options.append(
            [
                Option(
                    int(rng.integers(0, 6)), frozenset(k for k in allowed if rng.random() < density * rng.choice([0.5, 1, 2]))
                )
                for _ in range(rng.integers(1, 4))
            ]
        )
    return ScheduleProblem(options, locations)


def brute_force(problem: ScheduleProblem) -> tuple[int | None, int | None]:
    """(least cost, fewest layers) over all orders; None where there is no schedule.

    Layers: over all ways to put jobs into layers such that every order within the layers works."""
    n = problem.n_jobs
    totals = [_cost(problem, {job: k for k, job in enumerate(order)}) for order in itertools.permutations(range(n))]
    feasible = [total for total in totals if total is not None]
    if not feasible:
        return None, None
    for most in range(1, n + 1):
        if any(_cost(problem, dict(enumerate(times))) is not None for times in itertools.product(range(most), repeat=n)):
            return min(feasible), most
    raise AssertionError("an order is an assignment to n layers")


def _cost(problem: ScheduleProblem, time: dict[int, int]) -> int | None:
    """The least cost if jobs run at these times; jobs at the same time must not depend on each other."""
    if any(
        place.arrives is not None and place.departs is not None and time[place.arrives] >= time[place.departs]
        for place in problem.locations
    ):
        return None
    total = 0
    for job, options in enumerate(problem.options):
        free = [o.cost for o in options if all(_is_free(problem.locations[k], time, job) for k in o.blocked_by)]
        if not free:
            return None
        total += min(free)
    return total


def _is_free(place: Location, time: dict[int, int], job: int) -> bool:
    before_arrival = place.arrives is not None and time[job] < time[place.arrives]
    after_departure = place.departs is not None and time[job] > time[place.departs]
    return before_arrival or after_departure

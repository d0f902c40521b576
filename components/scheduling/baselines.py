"""What a schedule is compared with: the obvious order, greedy orders, and a constraint solver.

The first two may leave jobs undone: they return a `PartialSchedule`. CP-SAT (OR-tools) answers like `SatScheduler`, from a model of
its own: integer positions instead of a relation between pairs.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from components.scheduling.problem import Infeasible, Schedule, ScheduleProblem, Unknown

RULES = ("random", "shortest", "inner-first", "least-blocking")
OBJECTIVES = (None, "cost", "layers")


@dataclass(frozen=True, eq=False)
class PartialSchedule:
    """How far a rule came.

    Attributes:
        order: the jobs that were done, in that order.
        choice: (n,) int64, the option of each, -1 for jobs left undone.
        cost: of the options chosen.
    """

    order: np.ndarray
    choice: np.ndarray
    cost: int

    @property
    def placed(self) -> int:
        """How many jobs were done."""
        return len(self.order)

    @property
    def complete(self) -> bool:
        """Whether all jobs were done."""
        return self.placed == len(self.choice)


class _Occupancy:
    """Which locations are occupied, job after job."""

    def __init__(self, problem: ScheduleProblem) -> None:
        self.problem = problem
        self.occupied = np.array([location.arrives is None for location in problem.locations], dtype=bool)
        self.entered = self.occupied.copy()
        self.leaves: list[list[int]] = [[] for _ in range(problem.n_jobs)]
        self.enters: list[list[int]] = [[] for _ in range(problem.n_jobs)]
        for index, location in enumerate(problem.locations):
            if location.departs is not None:
                self.leaves[location.departs].append(index)
            if location.arrives is not None:
                self.enters[location.arrives].append(index)

    def free_options(self, job: int) -> list[int]:
        if not all(self.entered[index] for index in self.leaves[job]):
            return []  # its token is not there yet
        return [
            k
            for k, option in enumerate(self.problem.options[job])
            if not any(self.occupied[index] for index in option.blocked_by)
        ]

    def run(self, job: int) -> None:
        self.occupied[self.leaves[job]] = False
        self.occupied[self.enters[job]] = True
        self.entered[self.enters[job]] = True


def topological(problem: ScheduleProblem) -> PartialSchedule:
    """The cheapest option of each job, in an order that respects what it needs (Kahn's algorithm), as far as there is one.

    Where an option may run before a location is entered or after it is left, it takes what comes first. Jobs without an
    option, on a cycle, or that wait for one are left undone."""
    _check(problem)
    cheapest = [min(range(len(options)), key=lambda k: options[k].cost) if options else -1 for options in problem.options]
    state = _Occupancy(problem)
    order: list[int] = []
    choice = np.full(problem.n_jobs, -1, dtype=np.int64)
    # A target must stay empty until every job whose cheapest option passes over it has run.
    waiting = list(range(problem.n_jobs))
    while True:
        passes = [0] * len(problem.locations)
        for job in waiting:
            if cheapest[job] >= 0:
                for index in problem.options[job][cheapest[job]].blocked_by:
                    passes[index] += 1
        ready = [
            job
            for job in waiting
            if cheapest[job] in state.free_options(job) and not any(passes[index] for index in state.enters[job])
        ]
        if not ready:
            break
        for job in ready:
            if cheapest[job] in state.free_options(job):
                state.run(job)
                order.append(job)
                choice[job] = cheapest[job]
        done = set(order)
        waiting = [job for job in waiting if job not in done]
    return _partial(problem, order, choice)


def greedy(
    problem: ScheduleProblem,
    rule: Literal["random", "shortest", "inner-first", "least-blocking"] = "random",
    rng: np.random.Generator | None = None,
    inwardness: np.ndarray | None = None,
) -> PartialSchedule:
    """Again and again one of the jobs that could run now, by its cheapest free option, until none can.

    Args:
        rule: which one: any (`random`); the one whose option costs least (`shortest`); the one with the least `inwardness`
            (`inner-first`); the one that leaves and enters the locations with the fewest waiting options to be blocked by
            its token (`least-blocking`). Ties are broken by index.
        rng: for `random`; seeded with 0 by default.
        inwardness: (n,) numbers, for `inner-first`: how far from the middle each job's target is.

    Raises ValueError for an unknown rule, and `inner-first` without as many numbers as jobs.
    """
    _check(problem)
    if rule not in RULES:
        raise ValueError(f"unknown rule {rule!r}; there are: {', '.join(RULES)}")
    n = problem.n_jobs
    if rule == "inner-first" and (inwardness is None or np.shape(inwardness) != (n,)):
        raise ValueError(f"inner-first needs inwardness, {n} numbers, one a job")
    rng = np.random.default_rng(0) if rng is None else rng
    state = _Occupancy(problem)
    # How many jobs still waiting have an option that a location blocks.
    meets: list[set[int]] = [set() for _ in problem.locations]
    for job, options in enumerate(problem.options):
        for option in options:
            for index in option.blocked_by:
                meets[index].add(job)
    waiting = set(range(n))
    free = {job: state.free_options(job) for job in range(n)}
    order: list[int] = []
    choice = np.full(n, -1, dtype=np.int64)
    while True:
        ready = sorted(job for job in waiting if free[job])
        if not ready:
            break
        best = {job: min(free[job], key=lambda k, job=job: problem.options[job][k].cost) for job in ready}
        if rule == "random":
            job = ready[int(rng.integers(len(ready)))]
        elif rule == "shortest":
            job = min(ready, key=lambda j: problem.options[j][best[j]].cost)
        elif rule == "inner-first":
            job = min(ready, key=lambda j: inwardness[j])
        else:
            job = min(ready, key=lambda j: sum(len(meets[i] & waiting) for i in state.enters[j]))
        choice[job] = best[job]
        order.append(job)
        waiting.discard(job)
        state.run(job)
        touched = {*state.leaves[job], *state.enters[job]}
        affected = set().union(*(meets[index] for index in touched)) if touched else set()
        for index in state.enters[job]:
            departs = problem.locations[index].departs
            affected |= set() if departs is None else {departs}
        for other in affected & waiting:
            free[other] = state.free_options(other)
    return _partial(problem, order, choice)


def cpsat(
    problem: ScheduleProblem,
    objective: Literal["cost", "layers"] | None = None,
    time_limit: float | None = None,
    workers: int = 1,
) -> Schedule | Infeasible | Unknown:
    """The same question put to CP-SAT: each job has a position 0..n-1, exactly one option, and along each arc that its option
    implies positions increase.

    Args:
        objective: None (any schedule), "cost", or "layers" (positions are layers; the last one is minimised).
        time_limit: seconds.  workers: threads; 1 is deterministic.

    Raises ImportError without OR-tools, ValueError for another objective.
    """
    _check(problem)
    if objective not in OBJECTIVES:
        raise ValueError(f"objective must be None, 'cost' or 'layers', got {objective!r}")
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise ImportError("cpsat needs OR-tools: pip install 'paperflows[benchmarks]'") from error
    n = problem.n_jobs
    model = cp_model.CpModel()
    position = [model.new_int_var(0, n - 1, f"t{job}") for job in range(n)]
    taken = [[model.new_bool_var(f"x{job},{k}") for k in range(len(options))] for job, options in enumerate(problem.options)]
    for location in problem.locations:
        if location.arrives is not None and location.departs is not None:
            model.add(position[location.arrives] + 1 <= position[location.departs])
    for job, options in enumerate(problem.options):
        model.add_exactly_one(taken[job])
        for k, option in enumerate(options):
            for index in sorted(option.blocked_by):
                location = problem.locations[index]
                ways = []
                if location.arrives is not None:
                    ways.append((position[job], position[location.arrives]))
                if location.departs is not None:
                    ways.append((position[location.departs], position[job]))
                if not ways:
                    model.add(taken[job][k] == 0)
                elif len(ways) == 1:
                    model.add(ways[0][0] + 1 <= ways[0][1]).only_enforce_if(taken[job][k])
                else:
                    first = model.new_bool_var("")
                    model.add(ways[0][0] + 1 <= ways[0][1]).only_enforce_if([taken[job][k], first])
                    model.add(ways[1][0] + 1 <= ways[1][1]).only_enforce_if([taken[job][k], ~first])
    if objective == "cost":
        model.minimize(
            sum(option.cost * taken[job][k] for job, options in enumerate(problem.options) for k, option in enumerate(options))
        )
    elif objective == "layers":
        last = model.new_int_var(0, n - 1, "last")
        model.add_max_equality(last, position)
        model.minimize(last)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = 0
    if time_limit is not None:
        if not time_limit > 0:
            raise ValueError(f"time_limit must be a positive number of seconds, got {time_limit!r}")
        solver.parameters.max_time_in_seconds = float(time_limit)
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return Infeasible(tuple(range(n)))
    bound = None if objective is None else int(np.ceil(solver.best_objective_bound - 1e-6)) + (objective == "layers")
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Unknown(None, bound)
    choice = np.array([next(k for k, x in enumerate(of_job) if solver.value(x)) for of_job in taken], dtype=np.int64)
    times = np.array([solver.value(t) for t in position], dtype=np.int64)
    _, layer = np.unique(times, return_inverse=True)
    cost = sum(problem.options[job][k].cost for job, k in enumerate(choice))
    optimal = status == cp_model.OPTIMAL and objective is not None
    schedule = Schedule(np.lexsort((np.arange(n), layer)), layer.astype(np.int64), choice, cost, optimal)
    if objective is not None and not optimal:
        return Unknown(schedule, bound)
    return schedule


def _check(problem: ScheduleProblem) -> None:
    if not isinstance(problem, ScheduleProblem):
        raise TypeError(f"problem must be a ScheduleProblem, got {type(problem).__name__}")


def _partial(problem: ScheduleProblem, order: list[int], choice: np.ndarray) -> PartialSchedule:
    cost = sum(problem.options[job][choice[job]].cost for job in order)
    return PartialSchedule(np.array(order, dtype=np.int64), choice, cost)

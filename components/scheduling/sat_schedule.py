"""Schedules by satisfiability: an order of all jobs, and an option for each, such that no job finds its way blocked.

One solver object is kept alive: what it learns, and the cuts against cycles that are found, serve every later question about
subsets of jobs, forbidden options, or options that are added. Minimal cost is weighted partial MaxSAT (RC2) with the same cuts;
the fewest layers come from an order encoding of layers. The formula is in `encodings.py`.

The answer is exact over the options given: `Schedule` if and only if there is one.
"""

import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from threading import Timer

import numpy as np
from pysat.examples.rc2 import RC2
from pysat.formula import WCNF
from pysat.solvers import Solver, SolverNames

from components.scheduling.core import Core
from components.scheduling.decode import Decoder, truth_of
from components.scheduling.encodings import ENCODINGS, Encoding, Layered
from components.scheduling.graph import layers_of, short_cycles
from components.scheduling.guess import guess
from components.scheduling.problem import Infeasible, Option, Schedule, ScheduleProblem, Unknown
from components.scheduling.symmetry import interchangeable

SOLVERS = {
    name for kind, names in vars(SolverNames).items() if not kind.startswith("_") and isinstance(names, tuple) for name in names
}
INTERRUPTIBLE = "glucose4"
"""Solves instead of a solver that cannot be interrupted (CaDiCaL and others) when there is a time limit."""
_INTERRUPTIBLE_KINDS = ("glucose", "minisat", "maple", "gluecard", "minicard", "mergesat")
CUTS_PER_ROUND = 400
SYMMETRY = ("S1", "S2", "S3")


@dataclass
class Statistics:
    """What the work so far came to: size of the formula, cuts against cycles and rounds of them, conflicts, seconds of solving."""

    variables: int = 0
    clauses: int = 0
    cuts: int = 0
    rounds: int = 0
    conflicts: int = 0
    seconds: float = 0.0


class SatScheduler:
    """Finds schedules of a problem, and keeps what it learnt.

    Args:
        problem: jobs, options, locations.
        encoding: how orders are encoded: "lazy", "layered", "binary" or "transitive" (see `encodings`).
        solver: any SAT solver of PySAT that takes assumptions, by name.
        symmetry: which symmetry breakers to use. "S1": only left-justified layers ("layered" and `minimise_layers`).
            "S2": interchangeable jobs run in the order of their index. "S3": the solver's first guesses follow `hint`, or a
            quick greedy order (see `guess`). None changes any optimum.
        seed: shuffles ties of the greedy order, if it is not 0.
        hint: (n,) numbers: jobs with a smaller one are tried earlier, for instance those with inner targets. None: no hint.

    Raises ValueError for an unknown encoding, solver or breaker, and a hint of another length.
    """

    def __init__(
        self,
        problem: ScheduleProblem,
        encoding: str = "lazy",
        solver: str = "cadical153",
        symmetry: Sequence[str] = SYMMETRY,
        seed: int = 0,
        hint: Sequence[float] | None = None,
    ) -> None:
        if not isinstance(problem, ScheduleProblem):
            raise TypeError(f"problem must be a ScheduleProblem, got {type(problem).__name__}")
        if encoding not in ENCODINGS:
            raise ValueError(f"unknown encoding {encoding!r}; there are: {', '.join(ENCODINGS)}")
        if solver not in SOLVERS:
            raise ValueError(f"unknown solver {solver!r}; PySAT's SolverNames are: {', '.join(sorted(SOLVERS))}")
        if isinstance(symmetry, str) or set(symmetry) - set(SYMMETRY):
            raise ValueError(f"symmetry must be some of {', '.join(SYMMETRY)}, got {symmetry!r}")
        if hint is not None and (len(hint) != problem.n_jobs or not np.isfinite(hint).all()):
            raise ValueError(f"hint must be {problem.n_jobs} finite numbers, one a job")
        if solver in {*SolverNames.kissat404, *SolverNames.cryptosat}:
            raise ValueError(
                f"solver {solver!r} cannot be used here: it takes neither assumptions nor first guesses; try cadical153"
            )
        self.problem = problem
        self.solver_name = solver
        self.symmetry = tuple(symmetry)
        self.seed, self._hint = seed, None if hint is None else np.asarray(hint, dtype=np.float64)
        kind = ENCODINGS[encoding]
        if kind is Layered:
            self._formula: Encoding = Layered(problem, left_justified="S1" in self.symmetry)
        else:
            self._formula = kind(problem)
        self._decoder = Decoder(self._formula)
        self._forbidden: set[tuple[int, int]] = set()
        self._swaps: list[tuple[int, int]] = []
        self._swap_guard = 0
        self._break_symmetry()
        self._solvers: dict[str, Solver] = {}
        self._stats = Statistics()

    def close(self) -> None:
        """Free the solvers' memory; the scheduler may be used on, and then builds them anew."""
        for solver in self._solvers.values():
            solver.delete()
        self._solvers.clear()
        self._formula.sink = None

    def __enter__(self) -> "SatScheduler":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def stats(self) -> Statistics:
        """See `Statistics`. `conflicts` are those of solvers still alive."""
        self._stats.variables, self._stats.clauses = self._formula.n_variables, len(self._formula.clauses)
        self._stats.conflicts = sum((s.accum_stats() or {}).get("conflicts", 0) for s in self._solvers.values())
        return self._stats

    # Questions

    def solve(self, jobs: Iterable[int] | None = None, time_limit: float | None = None) -> Schedule | Infeasible | Unknown:
        """A schedule, of least effort rather than of least cost.

        Args:
            jobs: which jobs have to find their way free; all by default. The others are in the order all the same, at any
                time and without regard to what blocks them, with choice -1.
            time_limit: seconds; None: none.
        """
        deadline = _deadline(time_limit)
        chosen = self._jobs(jobs)
        assumptions = [self._formula.selected[job] for job in chosen] + self._assumed(everyone=jobs is None)
        model = self._model(assumptions, deadline)
        if model is None:
            failed = set(self._solvers[self._name(deadline)].get_core() or ())
            return Infeasible(tuple(job for job in chosen if self._formula.selected[job] in failed))
        if isinstance(model, Unknown):
            return model
        required = np.zeros(self.problem.n_jobs, dtype=bool)
        required[chosen] = True
        return self._decoder.schedule(model, required)

    def minimise_cost(self, time_limit: float | None = None) -> Schedule | Infeasible | Unknown:
        """A schedule of all jobs of least total cost.

        Without acyclicity the optimum is a lower bound; each optimum with a cycle is cut off, so the first one without is it.
        With a time limit, half of it goes into a good schedule first. When the time runs out: the best schedule found by then and
        the lower bound reached."""
        deadline = _deadline(time_limit)
        first = self.solve(time_limit=time_limit)
        if not isinstance(first, Schedule):
            return first
        if deadline < inf:
            now = time.perf_counter()
            first = self._cheaper(first, now + (deadline - now) / 2)
        formula = self._formula
        base, wcnf = 0, WCNF()
        for clause in formula.clauses:
            wcnf.append(clause)
        for literal in (*formula.selected, *self._assumed(everyone=True)):
            wcnf.append([literal])
        for job in range(formula.n_jobs):
            allowed = [k for k in range(len(formula.x[job])) if (job, k) not in self._forbidden]
            least = min(formula.options[job][k].cost for k in allowed)
            base += least
            for k in allowed:
                if formula.options[job][k].cost > least:
                    wcnf.append([-formula.x[job][k]], weight=formula.options[job][k].cost - least)
        if not wcnf.soft:
            return Schedule(first.order, first.layer, first.choice, first.cost, optimal=True)
        begin = time.perf_counter()
        try:
            with RC2(wcnf, solver="glucose3", adapt=True, exhaust=True, minz=True) as rc2:
                while True:
                    with _alarm(deadline, rc2) as rang:
                        model = rc2.compute(expect_interrupt=deadline < inf)
                    if rang or time.perf_counter() > deadline:
                        return Unknown(first, base + rc2.cost)
                    truth = truth_of(model, formula.n_variables)
                    cuts = self._cut(truth)
                    if not cuts:
                        found = self._decoder.schedule(truth)
                        return Schedule(found.order, found.layer, found.choice, found.cost, optimal=True)
                    for clause in cuts:
                        rc2.add_clause(clause)
        finally:
            self._stats.seconds += time.perf_counter() - begin

    def minimise_layers(
        self,
        upper: int | None = None,
        choice: Sequence[int] | None = None,
        time_limit: float | None = None,
    ) -> Schedule | Infeasible | Unknown:
        """A schedule of all jobs with the fewest layers, whatever it costs.

        Args:
            upper: how many layers there may be at most; fewer than the longest forced chain: Infeasible. None: as many as needed.
            choice: (n,) the option of each job, fixed; None: any.
            time_limit: seconds; when they run out: the best so far, and how many layers there are at least.
        """
        deadline = _deadline(time_limit)
        n = self.problem.n_jobs
        if upper is not None and (not isinstance(upper, int | np.integer) or upper < 1):
            raise ValueError(f"upper must be a whole number >= 1, got {upper!r}")
        fixed = [] if choice is None else self._fixed(choice)
        assumptions = [*self._formula.selected, *self._assumed(everyone=True), *fixed]
        model = self._model(assumptions, deadline)
        if isinstance(model, Unknown):
            return model
        if model is None:
            return Infeasible(tuple(range(n)))
        best = self._decoder.schedule(model)
        # Small formulas first: the number of layers that a formula allows doubles until one has a schedule.
        problem = self._present_problem(choice)
        limit = n if upper is None else int(upper)
        low = bound = _forced_layers(problem)
        proven = True  # that there are at least `low` layers
        begin = time.perf_counter()
        while low < best.n_layers and low <= limit:
            top = min(limit, max(4, 2 * low), best.n_layers - 1)
            found, fewest = self._within(problem, low, top, choice, deadline)
            bound = fewest if proven else bound
            if found is not None:
                best = found
                proven = proven and fewest == found.n_layers
                break
            proven = proven and fewest > top
            if time.perf_counter() > deadline:
                proven = False
                break
            low = top + 1
        self._stats.seconds += time.perf_counter() - begin
        if best.n_layers > limit:
            return Infeasible(tuple(range(n))) if proven else Unknown(None, bound)
        return Schedule(best.order, best.layer, best.choice, best.cost, optimal=True) if proven else Unknown(best, bound)

    def _within(
        self, problem: ScheduleProblem, low: int, top: int, choice: Sequence[int] | None, deadline: float
    ) -> tuple[Schedule | None, int]:
        """(a schedule with as few of low..top layers as could be found, how few there may be: top + 1 if more are needed).

        One formula with `top` layers; with a deadline, a third of the time left goes into it."""
        if deadline < inf:
            now = time.perf_counter()
            deadline = now + (deadline - now) / 3
        layered = Layered(problem, top, left_justified="S1" in self.symmetry)
        if self._swap_guard and choice is None and not self._forbidden:
            for i, j in self._swaps:
                for earlier, later in zip(layered.at[i], layered.at[j], strict=True):
                    layered.add([-later, earlier])
        decoder, best, high, middle = Decoder(layered), None, top + 1, top
        with Solver(name=self._name(deadline), bootstrap_with=layered.clauses) as solver:
            while low < high:
                answer = _solve(solver, [*layered.selected, *layered.closed(), *layered.within(middle)], deadline)
                if answer is None:
                    break
                if answer:
                    best = self._translate(decoder.schedule(truth_of(solver.get_model(), layered.n_variables)), choice)
                    high = min(middle, best.n_layers)
                else:
                    low = middle + 1
                middle = (low + high) // 2
        return best, low

    def minimise_cost_then_layers(self, time_limit: float | None = None) -> Schedule | Infeasible | Unknown:
        """Least cost first, and then the fewest layers with the options chosen by it."""
        deadline = _deadline(time_limit)
        cheapest = self.minimise_cost(time_limit)
        if not isinstance(cheapest, Schedule):
            return cheapest
        rest = None if deadline == inf else max(1e-3, deadline - time.perf_counter())
        layered = self.minimise_layers(choice=cheapest.choice, time_limit=rest)
        return Unknown(layered.best or cheapest, layered.bound) if isinstance(layered, Unknown) else layered

    def explain(self, jobs: Iterable[int] | None = None) -> Core:
        """A minimal core: jobs that cannot all be done, though all but any one of them can.

        Found by deletion: each job is left out in turn, and stays out if the rest still cannot be done.
        Raises ValueError if the jobs can be done."""
        found = self.solve(self._jobs(jobs))
        if not isinstance(found, Infeasible):
            raise ValueError("there is a schedule of these jobs, so there is nothing to explain")
        needed: list[int] = []
        candidates = list(found.jobs)
        while candidates:
            job = candidates.pop()
            without = self.solve(needed + candidates)
            if isinstance(without, Infeasible):
                left = set(without.jobs)
                candidates = [j for j in candidates if j in left]
            else:
                needed.append(job)
        return Core(tuple(sorted(needed)), self._present_problem())

    # Changes

    def add_options(self, job: int, options: Sequence[Option]) -> None:
        """More ways to do a job; they count from now on. Raises ValueError as `ScheduleProblem` does."""
        self._check_job(job)
        options = tuple(options)
        for option in options:
            self.problem.check_option(job, option)
        if not options:
            return
        self._formula.extend(job, options)
        self._break_symmetry()

    def forbid(self, job: int, option: int) -> None:
        """Option `option` of job `job` may not be chosen from now on."""
        self._check_job(job)
        if not 0 <= option < len(self._formula.x[job]):
            raise ValueError(f"job {job} has options 0..{len(self._formula.x[job]) - 1}, got {option}")
        self._forbidden.add((job, option))

    # How it is done

    def _check_job(self, job: int) -> None:
        if not isinstance(job, int | np.integer) or not 0 <= job < self.problem.n_jobs:
            raise ValueError(f"the jobs are 0..{self.problem.n_jobs - 1}, got {job!r}")

    def _jobs(self, jobs: Iterable[int] | None) -> list[int]:
        if jobs is None:
            return list(range(self.problem.n_jobs))
        chosen = sorted({int(job) for job in jobs})
        for job in chosen:
            self._check_job(job)
        return chosen

    def _fixed(self, choice: Sequence[int]) -> list[int]:
        if len(choice) != self.problem.n_jobs:
            raise ValueError(f"choice must name an option for each of {self.problem.n_jobs} jobs, got {len(choice)}")
        literals = []
        for job, option in enumerate(choice):
            if not 0 <= option < len(self._formula.x[job]):
                raise ValueError(f"job {job} has options 0..{len(self._formula.x[job]) - 1}, got {option}")
            literals += [x if k == option else -x for k, x in enumerate(self._formula.x[job])]
        return literals

    def _present_problem(self, choice: Sequence[int] | None = None) -> ScheduleProblem:
        """The problem with added options and without forbidden ones, or with the chosen ones alone."""
        options = [
            [
                option
                for k, option in enumerate(of_job)
                if ((job, k) not in self._forbidden if choice is None else k == choice[job])
            ]
            for job, of_job in enumerate(self._formula.options)
        ]
        return ScheduleProblem(options, self.problem.locations)

    def _translate(self, found: Schedule, choice: Sequence[int] | None) -> Schedule:
        """Options counted as in `_present_problem` -> as in this scheduler."""
        if choice is not None:
            return Schedule(found.order, found.layer, np.asarray(choice, dtype=np.int64), found.cost)
        kept = [[k for k in range(len(x)) if (job, k) not in self._forbidden] for job, x in enumerate(self._formula.x)]
        mine = np.array([kept[job][k] for job, k in enumerate(found.choice)], dtype=np.int64)
        return Schedule(found.order, found.layer, mine, found.cost)

    def _break_symmetry(self) -> None:
        """Order interchangeable jobs. Holds only for all jobs with all options: a literal to assume switches it on."""
        if "S2" not in self.symmetry:
            return
        problem = ScheduleProblem(self._formula.options, self.problem.locations)
        self._swaps = [pair for group in interchangeable(problem) for pair in itertools.pairwise(group)]
        self._swap_guard = self._formula.variable() if self._swaps else 0
        for i, j in self._swaps:
            if isinstance(self._formula, Layered):
                for earlier, later in zip(self._formula.at[i], self._formula.at[j], strict=True):
                    self._formula.add([-self._swap_guard, -later, earlier])
            else:
                self._formula.add([-self._swap_guard, self._formula.arc(i, j)])

    def _symmetric(self, everyone: bool) -> bool:
        return bool(self._swap_guard) and everyone and not self._forbidden

    def _assumed(self, everyone: bool) -> list[int]:
        literals = self._formula.closed()
        literals += [-self._formula.x[job][k] for job, k in sorted(self._forbidden)]
        if self._symmetric(everyone):
            literals.append(self._swap_guard)
        return literals

    def _name(self, deadline: float) -> str:
        return self.solver_name if deadline == inf or self.solver_name.startswith(_INTERRUPTIBLE_KINDS) else INTERRUPTIBLE

    def _solver(self, name: str) -> Solver:
        if name not in self._solvers:
            solver = Solver(name=name, bootstrap_with=self._formula.clauses)
            phases = self._phases()
            if phases:
                solver.set_phases(phases)
            self._solvers[name] = solver
            # Every solver alive hears of new clauses.
            self._formula.sink = lambda clause: [s.add_clause(clause) for s in self._solvers.values()]
        return self._solvers[name]

    def _phases(self) -> list[int]:
        if "S3" not in self.symmetry:
            return []
        known = ScheduleProblem(self._formula.options, self.problem.locations)
        rank, choice = guess(known, self._hint, self.seed)
        if self._hint is not None:
            rank = self._hint
        orders = [literal for (u, v), literal in self._formula.arc_literals.items() if rank[u] < rank[v]]
        return orders + [x for job, k in enumerate(choice.tolist()) for x in self._formula.x[job][k : k + 1] if k >= 0]

    def _model(self, assumptions: list[int], deadline: float) -> np.ndarray | Unknown | None:
        """The truth of each variable in a model without cycles; None if there is none."""
        solver = self._solver(self._name(deadline))
        begin = time.perf_counter()
        try:
            while True:
                self._stats.rounds += 1
                answer = _solve(solver, assumptions, deadline)
                if answer is None:
                    return Unknown()
                if not answer:
                    return None
                truth = truth_of(solver.get_model(), self._formula.n_variables)
                if not self._cut(truth):
                    return truth
        finally:
            self._stats.seconds += time.perf_counter() - begin

    def _cheaper(self, schedule: Schedule, deadline: float) -> Schedule:
        """Improve a schedule job by job: one gets a cheaper option, none a dearer one. Stops at the deadline, or where that is
        possible for no job."""
        formula = self._formula
        base = [*formula.selected, *self._assumed(everyone=True)]
        costs = [[option.cost for option in options] for options in formula.options]
        waiting = list(range(formula.n_jobs))
        while waiting:
            now = [costs[job][k] for job, k in enumerate(schedule.choice.tolist())]
            job = max(waiting, key=lambda j: now[j] - min(costs[j]))
            if now[job] == min(costs[job]):
                break
            dearer = [
                -x
                for j, (literals, prices) in enumerate(zip(formula.x, costs, strict=True))
                for x, price in zip(literals, prices, strict=True)
                if price > now[j] or (j == job and price == now[j])
            ]
            model = self._model(base + dearer, deadline)
            if isinstance(model, Unknown):
                break
            if model is None:  # nor will it be possible when the others are cheaper
                waiting.remove(job)
            else:
                schedule = self._decoder.schedule(model)
        return schedule

    def _cut(self, truth: np.ndarray) -> list[list[int]]:
        """Forbid the cycles of a model; returns the new clauses."""
        formula = self._formula
        known = len(formula.clauses)
        arcs = self._decoder.arcs(truth, self._decoder.choice(truth))
        if self._swap_guard and truth[self._swap_guard] and not isinstance(formula, Layered):
            arcs = np.concatenate([arcs, np.array(self._swaps, dtype=np.int64)])
        for cycle in short_cycles(formula.n_jobs, arcs, CUTS_PER_ROUND):
            formula.forbid_cycle(formula.arc_literals[u, v] for u, v in zip(cycle, cycle[1:] + cycle[:1], strict=True))
        new = formula.clauses[known:]
        self._stats.cuts += len(new)
        return new


def _forced_layers(problem: ScheduleProblem) -> int:
    """A lower bound on the layers: the longest chain of arcs that whatever option is chosen implies."""
    arcs = {(place.arrives, place.departs) for place in problem.locations if None not in (place.arrives, place.departs)}
    for job, options in enumerate(problem.options):
        forced = [set() for _ in options]
        for mine, option in zip(forced, options, strict=True):
            for index in option.blocked_by:
                place = problem.locations[index]
                if place.departs is None and place.arrives is not None:
                    mine.add((job, place.arrives))
                elif place.arrives is None and place.departs is not None:
                    mine.add((place.departs, job))
        arcs.update(set.intersection(*forced) if forced else ())
    layers = layers_of(problem.n_jobs, arcs)
    return 1 if layers is None else int(layers.max()) + 1


def _deadline(time_limit: float | None) -> float:
    if time_limit is None:
        return inf
    if not time_limit > 0:
        raise ValueError(f"time_limit must be a positive number of seconds, got {time_limit!r}")
    return time.perf_counter() + time_limit


@contextlib.contextmanager
def _alarm(deadline: float, solver: Solver | RC2) -> Iterator[list[bool]]:
    """Interrupts `solver` at the deadline; the list is not empty then."""
    rang: list[bool] = []
    if deadline == inf:
        yield rang
        return

    def ring() -> None:
        rang.append(True)
        solver.interrupt()

    timer = Timer(max(0.0, deadline - time.perf_counter()), ring)
    timer.start()
    try:
        yield rang
    finally:
        timer.cancel()
        timer.join()
        solver.clear_interrupt()


def _solve(solver: Solver, assumptions: list[int], deadline: float) -> bool | None:
    """Whether there is a model; None if the time ran out."""
    if deadline == inf:
        return solver.solve(assumptions=assumptions)
    if time.perf_counter() > deadline:
        return None
    with _alarm(deadline, solver):
        return solver.solve_limited(assumptions=assumptions, expect_interrupt=True)

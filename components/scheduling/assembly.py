"""Plans of whole assemblies: who goes to which target, along which corridor, in which order, without a collision.

Assign, generate corridors, order the moves by SAT. If no order exists, a minimal set of moves that block each other is
repaired: first by new corridors around each other, then by an exchange of two targets (the least longer one, made dearer each
time it is repeated) or by clearing a surplus molecule out of the way; after `max_repairs` exchanges by moving a molecule in
two steps over a parking site. Once an order exists, the total length is minimised over all corridors by MaxSAT. A schedule
tells what is occupied when a move runs, so moves that still make a detour get a shorter corridor past just that, and the
length is minimised again, until nothing is gained. Last comes the number of layers, batches of moves that do not depend on
each other's order, with the corridors chosen. The straight lines of the assignment are a lower
bound; the minimum is one over the corridors found, not over all paths.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import ArrayLike

from components.scheduling.assembly_plan import AssemblyPlan, Move, Repair
from components.scheduling.assignment import assign
from components.scheduling.corridors import LAMBDAS, Candidate, CorridorPlanner
from components.scheduling.problem import Schedule, ScheduleProblem, Unknown
from components.scheduling.sat_schedule import SatScheduler

__all__ = ["AssemblyPlan", "AssemblyPlanner", "Move", "PlanNotFound", "Repair", "problem_of"]

REPEAT_PENALTY = 5.0
"""nm by which an exchange of targets looks longer for each time that the same two molecules exchanged theirs already."""
OUTSIDE_HANDICAP = 3.0
"""nm by which an exchange with a molecule outside the set that blocks itself looks longer."""
WORTH_A_DETOUR = 0.005
"""nm by which a move has to be longer than a straight one to be worth a further corridor."""
OUTSIDE_TARGETS = 6
"""How many of the nearest targets' owners may take part in an exchange though they are not in that set."""


class PlanNotFound(RuntimeError):
    """No plan was found within the repairs allowed; the message says which molecules block each other."""


def problem_of(plan: AssemblyPlan) -> ScheduleProblem:
    """The scheduling problem of a plan: its moves, all their corridors (cost in pm) and the sites. ValueError if none moves."""
    if plan.problem is None:
        raise ValueError("every molecule of this plan is on its target already; there is nothing to schedule")
    return plan.problem


class AssemblyPlanner:
    """Plans an assembly.

    Args:
        starts: (M, 2) positions of the molecules, nm.
        targets: (N, 2) positions to fill, N <= M.
        w, c: clearance and contact distance of moving and resting molecules, nm.
        grid, lambdas, penalise: spacing (nm) and penalties of the grid for detours, see `CorridorPlanner`.
        refinements: rounds of refinement at most, after the length was minimised: each adds shorter corridors that are free in
            the schedule found, and minimises again. 0: none.
        max_repairs: exchanges of targets and clearings before molecules are moved in two steps.
        encoding, solver, seed: of `SatScheduler`.
        box: side of the square about the origin that nothing may leave, nm; None: unbounded.
        assignment: (M,) target of each molecule to begin with, -1 for none, instead of the one of least total distance.
        time_limit: seconds for each minimisation; when it runs out the best schedule so far is taken. None: no limit.

    Raises ValueError for positions that are not finite or closer than c, N > M, w < c, and sites outside the box.
    """

    def __init__(
        self,
        starts: ArrayLike,
        targets: ArrayLike,
        w: float = 1.2,
        c: float = 0.9,
        grid: float = 0.867,
        lambdas: Sequence[Sequence[float]] = LAMBDAS,
        max_repairs: int = 600,
        encoding: str = "lazy",
        solver: str = "cadical153",
        seed: int = 0,
        box: float | None = None,
        assignment: ArrayLike | None = None,
        refinements: int = 5,
        penalise: str = "nodes",
        time_limit: float | None = None,
    ) -> None:
        for name, value in (("max_repairs", max_repairs), ("refinements", refinements)):
            if not isinstance(value, int | np.integer) or value < 0:
                raise ValueError(f"{name} must be a whole number >= 0, got {value!r}")
        self._clock = time.perf_counter()
        self._seconds: Counter[str] = Counter()
        self.max_repairs, self.refinements, self.time_limit = int(max_repairs), int(refinements), time_limit
        self._scheduler_options = {"encoding": encoding, "solver": solver, "seed": seed}
        with self._timed("assignment"):
            self.assignment = assign(starts, targets, c)
        with self._timed("corridors"):
            first = self.assignment.target if assignment is None else assignment
            self.corridors = CorridorPlanner(starts, targets, w, c, grid, lambdas, first, box, penalise)
        self._repairs: list[Repair] = []
        self._swapped: Counter[frozenset[int]] = Counter()
        self._enriched: set[tuple[tuple[int, int], ...]] = set()
        self._report: Callable[[Repair], None] | None = None
        self._plan: AssemblyPlan | None = None

    def problem(self) -> ScheduleProblem:
        """The scheduling problem of the present assignment; jobs without an option make it infeasible."""
        return self.corridors.problem()

    def plan(self, on_repair: Callable[[Repair], None] | None = None) -> AssemblyPlan:
        """Find a plan, once; `on_repair` is called after each repair. Raises PlanNotFound."""
        if self._plan is None:
            self._report = on_repair
            self._plan = self._find()
        return self._plan

    def _find(self) -> AssemblyPlan:
        corridors = self.corridors
        n = corridors.n_molecules
        targets = corridors.sites[n : n + corridors.n_targets]
        for m in range(n):
            if len(corridors.route(m)) == 1 and (np.hypot(*(targets - corridors.sites[m]).T) < corridors.c).any():
                self._clear(m)
        if not corridors.jobs:
            nothing = np.zeros(0, dtype=np.int64)
            return self._finish([], Schedule(nothing, nothing, nothing, 0, optimal=True), (0.0, 0.0), None)
        first = self._feasible()
        candidates = [corridors.candidates(*job) for job in corridors.jobs]
        first_length = sum(candidates[k][o].length for k, o in enumerate(first.choice))
        problem = corridors.problem()
        schedule = self._cheapest(problem, first)
        lengths = first_length, sum(candidates[k][o].length for k, o in enumerate(schedule.choice))
        for _ in range(self.refinements):
            if not self._refine(problem, schedule):
                break
            problem, schedule = corridors.problem(), self._carry(candidates, schedule)
            candidates = [corridors.candidates(*job) for job in corridors.jobs]
            schedule = self._cheapest(problem, schedule)
        return self._finish(candidates, self._fewest_layers(problem, schedule), lengths, problem)

    # Repairs

    def _feasible(self) -> Schedule:
        """Repair until there is a schedule."""
        while True:
            stuck = next((job for job in self.corridors.jobs if not self.corridors.candidates(*job)), None)
            if stuck is not None:
                self._free(stuck)
                continue
            with self._timed("sat"), self._scheduler(self.corridors.problem()) as scheduler:
                found = scheduler.solve()
                if isinstance(found, Schedule):
                    return found
                core = scheduler.explain().jobs
            self._untangle(sorted({self.corridors.jobs[k][0] for k in core}))

    def _free(self, job: tuple[int, int]) -> None:
        """Repair a move all of whose paths are always blocked."""
        molecule = job[0]
        rejected = self.corridors.rejected(*job)
        always = sorted(frozenset().union(*rejected))
        if self._enrich((molecule,), (molecule, *always)):
            return
        static = {m for m in always if len(self.corridors.route(m)) == 1}
        pairs = [(self._gain(molecule, m), "swap", (molecule, m)) for m in always if m not in static]
        clear = [(self._distance_to_clear(m), "clear", (m,)) for m in static]
        self._change(pairs + clear, [molecule, *always])

    def _untangle(self, core: list[int]) -> None:
        """Repair molecules whose moves have no common order."""
        if self._enrich(tuple(core), tuple(core)):
            return
        corridors = self.corridors
        actions = [(self._gain(i, j), "swap", (i, j)) for a, i in enumerate(core) for j in core[a + 1 :]]
        n = corridors.n_molecules
        targets = corridors.sites[n : n + corridors.n_targets]
        for i in core:
            end = corridors.sites[corridors.route(i)[-1]]
            near = np.argsort(np.hypot(*(targets - end).T), kind="stable")[: OUTSIDE_TARGETS + 1]
            outside = [corridors.molecule_of(int(t)) for t in near if corridors.molecule_of(int(t)) not in core]
            actions += [(self._gain(i, j) + OUTSIDE_HANDICAP, "swap", (i, j)) for j in outside[:OUTSIDE_TARGETS]]
        static = {
            m
            for i, leg in corridors.jobs
            if i in core
            for always in corridors.rejected(i, leg)
            for m in always
            if len(corridors.route(m)) == 1
        }
        actions += [(self._distance_to_clear(m), "clear", (m,)) for m in static]
        self._change(actions, core)

    def _enrich(self, ids: tuple[int, ...], around: tuple[int, ...]) -> bool:
        """New corridors for a set of molecules, once for each way it can be assigned; whether there were any."""
        key = tuple((m, self.corridors.route(m)[-1]) for m in (*ids, *around))
        if key in self._enriched:
            return False
        self._enriched.add(key)
        with self._timed("corridors"):
            added = self.corridors.enrich(ids, around)
        if added:
            self._log(Repair("enrich", ids))
        return added > 0

    def _change(self, actions: list[tuple[float, str, tuple[int, ...]]], blocked: list[int]) -> None:
        """Do the least costly of the exchanges and clearings, or once there were too many move a molecule in two steps."""
        if actions and sum(repair.kind in ("swap", "clear") for repair in self._repairs) < self.max_repairs:
            _, kind, molecules = min(actions)
            if kind == "clear":
                self._clear(molecules[0])
                return
            i, j = molecules
            change = self._longer(i, j)
            with self._timed("corridors"):
                self.corridors.swap(i, j)
            self._swapped[frozenset(molecules)] += 1
            self._log(Repair("swap", molecules, change))
            return
        for m in sorted(blocked, key=lambda m: (-self._entangled(m), m)):
            route = self.corridors.route(m)
            if len(route) == 2 and route[1] < self.corridors.n_molecules + self.corridors.n_targets and self._park(m, "split"):
                return
            if len(route) == 1 and self._park(m, "clear"):
                return
        raise PlanNotFound(
            f"no plan after {len(self._repairs)} repairs: the molecules {', '.join(map(str, blocked))} block each other and "
            f"none of them can be parked; allow more repairs, a larger box, or a smaller clearance w"
        )

    def _clear(self, molecule: int) -> None:
        if not self._park(molecule, "clear"):
            raise PlanNotFound(f"surplus molecule {molecule} is in the way and there is no free site in the box to move it to")

    def _park(self, molecule: int, kind: str) -> bool:
        with self._timed("corridors"):
            parked = self.corridors.park(molecule)
        if parked:
            stops = self.corridors.sites[list(self.corridors.route(molecule))]
            direct = float(np.hypot(*(stops[-1] - stops[0]))) if kind == "split" else 0.0
            self._log(Repair(kind, (molecule,), float(np.hypot(*np.diff(stops, axis=0).T).sum()) - direct))
        return parked

    def _longer(self, i: int, j: int) -> float:
        """nm by which the straight lines become longer when i and j exchange their targets."""
        sites, routes = self.corridors.sites, (self.corridors.route(i), self.corridors.route(j))
        (start_i, *via_i), (start_j, *via_j) = routes
        before = _through(sites, routes[0]) + _through(sites, routes[1])
        return _through(sites, (start_i, *via_j)) + _through(sites, (start_j, *via_i)) - before

    def _gain(self, i: int, j: int) -> float:
        return self._longer(i, j) + REPEAT_PENALTY * self._swapped[frozenset((i, j))]

    def _distance_to_clear(self, molecule: int) -> float:
        place = self.corridors.free_site(molecule)
        return np.inf if place is None else float(np.hypot(*(place - self.corridors.sites[molecule])))

    def _entangled(self, molecule: int) -> int:
        """How many molecules a molecule's candidates have to wait for or to precede."""
        corridors = self.corridors
        found: list[Candidate] = [x for m, leg in corridors.jobs if m == molecule for x in corridors.candidates(m, leg)]
        return len(frozenset().union(*(x.pre | x.post for x in found)))

    def _log(self, repair: Repair) -> None:
        self._repairs.append(repair)
        if self._report is not None:
            self._report(repair)

    # Minimisation

    def _refine(self, problem: ScheduleProblem, schedule: Schedule) -> int:
        """More candidates for the moves that make a detour, past only what is occupied when the schedule runs them.

        Returns how many were added. The schedule stays one of the problem with them, so a minimum over more candidates is
        never longer."""
        n, corridors = problem.n_jobs, self.corridors
        position = np.empty(n, dtype=np.int64)
        position[schedule.order] = np.arange(n)
        since = np.array([-1 if x.arrives is None else position[x.arrives] for x in problem.locations])
        until = np.array([n if x.departs is None else position[x.departs] for x in problem.locations])
        added = 0
        with self._timed("corridors"):
            for k, (m, leg) in enumerate(corridors.jobs):
                route = corridors.route(m)
                straight = _through(corridors.sites, route[leg : leg + 2])
                if problem.options[k][schedule.choice[k]].cost > 1000 * (straight + WORTH_A_DETOUR):
                    occupied = np.flatnonzero((since < position[k]) & (position[k] < until))
                    added += corridors.pass_by(m, leg, [int(site) for site in occupied if site not in route])
        return added

    def _cheapest(self, problem: ScheduleProblem, known: Schedule) -> Schedule:
        """The cheapest schedule; `known` if the time ran out before a cheaper one was found."""
        with self._timed("sat"), self._scheduler(problem) as scheduler:
            found = scheduler.minimise_cost(time_limit=self.time_limit)
        if isinstance(found, Schedule):
            return found
        best = found.best if isinstance(found, Unknown) else None
        if best is not None and best.cost < known.cost:
            return best
        return Schedule(known.order, known.layer, known.choice, known.cost)

    def _carry(self, old: list[tuple[Candidate, ...]], schedule: Schedule) -> Schedule:
        """A schedule over candidates `old` as one over the present ones: a dominated candidate becomes one as good."""
        choice = np.empty_like(schedule.choice)
        for k, (job, o) in enumerate(zip(self.corridors.jobs, schedule.choice)):
            was, now = old[k][o], self.corridors.candidates(*job)
            as_good = (i for i, x in enumerate(now) if x.length_pm <= was.length_pm and x.blocked_by <= was.blocked_by)
            choice[k] = next(as_good)
        cost = sum(self.corridors.candidates(*job)[o].length_pm for job, o in zip(self.corridors.jobs, choice))
        return Schedule(schedule.order, schedule.layer, choice, cost)

    def _fewest_layers(self, problem: ScheduleProblem, schedule: Schedule) -> Schedule:
        """The fewest layers with the corridors of `schedule`."""
        with self._timed("sat"), self._scheduler(problem) as scheduler:
            layered = scheduler.minimise_layers(choice=schedule.choice, time_limit=self.time_limit)
        if not isinstance(layered, Schedule):
            layered = layered.best if isinstance(layered, Unknown) and layered.best is not None else schedule
        return Schedule(layered.order, layered.layer, schedule.choice, schedule.cost, schedule.optimal)

    def _scheduler(self, problem: ScheduleProblem) -> SatScheduler:
        return SatScheduler(problem, **self._scheduler_options)

    def _finish(
        self,
        candidates: list[tuple[Candidate, ...]],
        schedule: Schedule,
        lengths: tuple[float, float],
        problem: ScheduleProblem | None,
    ) -> AssemblyPlan:
        corridors = self.corridors
        n = corridors.n_molecules
        chosen = [candidates[k][o] for k, o in enumerate(schedule.choice)]
        self._seconds["total"] = time.perf_counter() - self._clock
        return AssemblyPlan(
            starts=corridors.sites[:n],
            targets=corridors.sites[n : n + corridors.n_targets],
            assignment=np.array([corridors.target(m) for m in range(n)], dtype=np.int64),
            moves=tuple(Move(m, x.path) for (m, _), x in zip(corridors.jobs, chosen)),
            schedule=schedule,
            corridors=tuple(tuple(x.path for x in options) for options in candidates),
            problem=problem,
            sites=corridors.sites,
            length=sum(x.length for x in chosen),
            lower_bound=self.assignment.lower_bound,
            first_length=lengths[0],
            minimised_length=lengths[1],
            repairs=tuple(self._repairs),
            seconds=dict(self._seconds),
        )

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self._seconds[what] += time.perf_counter() - begin


def _through(sites: np.ndarray, route: Sequence[int]) -> float:
    return float(np.hypot(*np.diff(sites[list(route)], axis=0).T).sum()) if len(route) > 1 else 0.0

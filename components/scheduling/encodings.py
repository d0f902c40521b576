"""Schedules as propositional formulas: when may job u be said to run before job v, and what makes that an order.

Common to all encodings: x[i, k], "job i is done by option k", and arcs, literals that say "u before v". An option that a
location blocks implies an arc: its job runs before the location is entered, or after it is left. Only arcs that chosen options
imply have to be free of cycles; any topological order of them is a schedule. The encodings differ in how they forbid cycles:

lazy         nothing at first; the caller finds cycles in a model and adds a clause against each, `forbid_cycle`.
layered      ladder variables "layer of i <= t" (order encoding); an arc puts its head into a later layer.
binary       a time stamp of ceil(log2 n) bits for each job, compared bit by bit along each arc.
transitive   "u before v" for all pairs, with a clause for each triple; n^3 / 3 clauses, an oracle for small n.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from math import ceil, log2

from components.scheduling.problem import Option, ScheduleProblem

LARGEST_TRANSITIVE = 60

Clause = list[int]


class Encoding:
    """A growing formula. New clauses go to `clauses` and to `sink`, where a solver listens.

    Attributes:
        x: x[i][k], the variable of option k of job i.
        selected: selected[i], the variable "job i has to be done", to be assumed.
        arcs_of: arcs_of[i][k], for each location that blocks the option the arcs (literal, before, after) of which one holds.
    """

    name = ""

    def __init__(self, problem: ScheduleProblem) -> None:
        self.problem = problem
        self.n_jobs = problem.n_jobs
        self.n_variables = 0
        self.clauses: list[Clause] = []
        self.sink: Callable[[Clause], None] | None = None
        self.x: list[list[int]] = [[] for _ in range(self.n_jobs)]
        self.options: list[list[Option]] = [[] for _ in range(self.n_jobs)]
        self.arcs_of: list[list[list[list[tuple[int, int, int]]]]] = [[] for _ in range(self.n_jobs)]
        # A token cannot leave a location before it is there.
        self.always: list[tuple[int, int, int]] = []
        self.arc_literals: dict[tuple[int, int], int] = {}
        self.selected = [self.variable() for _ in range(self.n_jobs)]
        self._open = [self.variable() for _ in range(self.n_jobs)]
        self.prepare()
        for location in problem.locations:
            if location.arrives is not None and location.departs is not None:
                literal = self.arc(location.arrives, location.departs)
                self.always.append((literal, location.arrives, location.departs))
                self.add([literal])
        for job, options in enumerate(problem.options):
            self.add([-self.selected[job], *self._new_options(job, options), self._open[job]])

    def variable(self) -> int:
        self.n_variables += 1
        return self.n_variables

    def add(self, clause: Clause) -> None:
        self.clauses.append(clause)
        if self.sink is not None:
            self.sink(clause)

    def extend(self, job: int, options: Sequence[Option]) -> None:
        """More ways to do a job. The clause "one of its options" was left open for them."""
        before, self._open[job] = self._open[job], self.variable()
        self.add([-before, *self._new_options(job, options), self._open[job]])

    def closed(self) -> list[int]:
        """Literals to assume: no job has options that are not there."""
        return [-literal for literal in self._open]

    def arc(self, before: int, after: int) -> int:
        """The literal "`before` runs before `after`"."""
        literal = self.arc_literals.get((before, after))
        if literal is None:
            literal = self.new_arc(before, after)
        return literal

    # What an encoding decides

    def prepare(self) -> None:
        """Variables and clauses that the encoding needs whatever the arcs are."""

    def new_arc(self, before: int, after: int) -> int:
        """The literal of an arc that had none: one variable for the unordered pair, unless the encoding says otherwise."""
        literal = self.variable()
        self.arc_literals[before, after], self.arc_literals[after, before] = literal, -literal
        return literal

    def forbid_cycle(self, arcs: Iterable[int]) -> None:
        """These arcs, a cycle, do not all hold: true in every schedule."""
        self.add([-literal for literal in arcs])

    def _new_options(self, job: int, options: Sequence[Option]) -> list[int]:
        """x of each new option, and what choosing it implies."""
        literals = []
        for option in options:
            x = self.variable()
            literals.append(x)
            waits = []
            for index in sorted(option.blocked_by):
                location = self.problem.locations[index]
                arcs = []
                if location.arrives is not None:
                    arcs.append((self.arc(job, location.arrives), job, location.arrives))
                if location.departs is not None:
                    arcs.append((self.arc(location.departs, job), location.departs, job))
                self.add([-x, *(literal for literal, _, _ in arcs)])
                if arcs:
                    waits.append(arcs)
            self.x[job].append(x)
            self.options[job].append(option)
            self.arcs_of[job].append(waits)
        return literals


class Lazy(Encoding):
    """One variable for each unordered pair that occurs; cycles are forbidden as they are found."""

    name = "lazy"


class Transitive(Encoding):
    """One variable for each pair, and for each triple that its three arcs do not close a cycle."""

    name = "transitive"

    def prepare(self) -> None:
        n, y = self.n_jobs, self.arc_literals
        if n > LARGEST_TRANSITIVE:
            raise ValueError(f"the transitive encoding is for at most {LARGEST_TRANSITIVE} jobs, got {n}: take another one")
        for u in range(n):
            for v in range(u + 1, n):
                self.new_arc(u, v)
        for u in range(n):
            for v in range(u + 1, n):
                for w in range(v + 1, n):
                    self.add([-y[u, v], -y[v, w], y[u, w]])
                    self.add([y[u, v], y[v, w], -y[u, w]])


class Binary(Encoding):
    """A time stamp of ceil(log2 n) bits a job; an arc says that one stamp is less than the other."""

    name = "binary"

    def prepare(self) -> None:
        width = max(1, ceil(log2(self.n_jobs)))
        self._bits = [[self.variable() for _ in range(width)] for _ in range(self.n_jobs)]  # highest first

    def new_arc(self, before: int, after: int) -> int:
        literal = equal = self.variable()
        self.arc_literals[before, after] = literal
        # `equal`: the arc holds and the bits so far agree.
        for u, v in zip(self._bits[before], self._bits[after], strict=True):
            still = self.variable()
            self.add([-equal, -u, v])
            self.add([-equal, u, v, still])
            self.add([-equal, -u, -v, still])
            equal = still
        self.add([-equal])
        return literal


class Layered(Encoding):
    """Order encoding of layers 1..`n_layers`: at[i][t - 1] is "layer of i <= t", and it is true for the last layer.

    With `left_justified` (symmetry breaker S1) a job is in a later layer than the first only if one that it has to follow is in
    the layer before."""

    name = "layered"

    def __init__(self, problem: ScheduleProblem, n_layers: int | None = None, left_justified: bool = False) -> None:
        self.n_layers = problem.n_jobs if n_layers is None else n_layers
        self.left_justified = left_justified
        self._guard = 0
        super().__init__(problem)
        self._justify()

    def prepare(self) -> None:
        self.at = [[self.variable() for _ in range(self.n_layers - 1)] for _ in range(self.n_jobs)]
        for ladder in self.at:
            for lower, higher in itertools.pairwise(ladder):
                self.add([-lower, higher])

    def new_arc(self, before: int, after: int) -> int:
        literal = self.variable()
        self.arc_literals[before, after] = literal
        u, v = self.at[before], self.at[after]
        # layer(v) <= t implies layer(u) <= t - 1; nothing is <= 0, everything <= n_layers.
        for t in range(1, self.n_layers + 1):
            not_v = [-v[t - 1]] if t < self.n_layers else []
            self.add([-literal, *not_v, *([u[t - 2]] if t > 1 else [])])
        return literal

    def within(self, layers: int) -> list[int]:
        """Literals to assume: every job is in one of the first `layers` layers."""
        return [] if layers >= self.n_layers else [ladder[layers - 1] for ladder in self.at]

    def extend(self, job: int, options: Sequence[Option]) -> None:
        known = len(self.arc_literals)
        super().extend(job, options)
        if len(self.arc_literals) > known:
            self._justify()

    def closed(self) -> list[int]:
        return [*super().closed(), *([self._guard] if self._guard else [])]

    def _justify(self) -> None:
        if not self.left_justified:
            return
        # New arcs are new reasons to be late: the clauses are put anew, and a literal to assume says which ones hold.
        self._guard = self.variable()
        reasons: list[list[tuple[int, int]]] = [[] for _ in range(self.n_jobs)]
        for (before, after), literal in self.arc_literals.items():
            reasons[after].append((literal, before))
        for job, ladder in enumerate(self.at):
            for t in range(2, self.n_layers + 1):  # in layer t
                late = [-self._guard, ladder[t - 2]]
                if t < self.n_layers:
                    late.append(-ladder[t - 1])
                for literal, before in reasons[job]:
                    ladder_before = self.at[before]
                    why = self.variable()
                    self.add([-why, literal])
                    self.add([-why, ladder_before[t - 2]])
                    if t > 2:
                        self.add([-why, -ladder_before[t - 3]])
                    late.append(why)
                self.add(late)


ENCODINGS: dict[str, type[Encoding]] = {kind.name: kind for kind in (Lazy, Layered, Binary, Transitive)}

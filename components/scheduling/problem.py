"""What there is to schedule, and what a schedule is: plain data, shared by every solver and by the verifier.

Jobs 0..n-1 move one token each, once. A job has one or more options (ways to do it), each with a cost and a set of locations
that must be empty while it runs. A location is occupied between the job that brings its token and the job that takes it
away; so a start is occupied until its job has run, a target from then on, an obstacle always.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np


@dataclass(frozen=True)
class Option:
    """One way to do a job.

    Args:
        cost: what it costs, a whole number of any unit, >= 0.
        blocked_by: indices of the locations that must be empty while the job runs this way.
    """

    cost: int
    blocked_by: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if not isinstance(self.cost, Integral) or isinstance(self.cost, bool) or self.cost < 0:
            raise ValueError(f"the cost of an option must be a whole number >= 0, got {self.cost!r}")
        object.__setattr__(self, "cost", int(self.cost))
        object.__setattr__(self, "blocked_by", frozenset(int(location) for location in self.blocked_by))


@dataclass(frozen=True)
class Location:
    """A place that holds at most one token, from job `arrives` (None: from the beginning) to job `departs` (None: for ever).

    The default is an obstacle that never moves.
    """

    arrives: int | None = None
    departs: int | None = None


@dataclass(frozen=True)
class ScheduleProblem:
    """Jobs, their options and the locations that block them.

    Args:
        options: options[i] are the ways to do job i; an empty one makes the problem infeasible, not wrong.
        locations: what `Option.blocked_by` and the jobs refer to.

    Raises ValueError for no jobs, an option that names an unknown location or one that its own job leaves or enters, and a
    location that names an unknown job or that the same job enters and leaves.
    """

    options: tuple[tuple[Option, ...], ...]
    locations: tuple[Location, ...]

    def __init__(self, options: Sequence[Sequence[Option]], locations: Sequence[Location]) -> None:
        object.__setattr__(self, "options", tuple(tuple(choices) for choices in options))
        object.__setattr__(self, "locations", tuple(locations))
        if not self.options:
            raise ValueError("a problem needs at least one job, got none")
        for index, location in enumerate(self.locations):
            for job in (location.arrives, location.departs):
                if job is not None and not 0 <= job < self.n_jobs:
                    raise ValueError(f"location {index} names job {job}; the jobs are 0..{self.n_jobs - 1}")
            if location.arrives is not None and location.arrives == location.departs:
                raise ValueError(f"location {index} is entered and left by the same job {location.arrives}")
        for job, choices in enumerate(self.options):
            for option in choices:
                self.check_option(job, option)

    @property
    def n_jobs(self) -> int:
        return len(self.options)

    def check_option(self, job: int, option: Option) -> None:
        """Raise ValueError unless `option` may be one of job `job`'s."""
        for index in option.blocked_by:
            if not 0 <= index < len(self.locations):
                raise ValueError(f"an option of job {job} names location {index}; there are {len(self.locations)}")
            location = self.locations[index]
            if job in (location.arrives, location.departs):
                raise ValueError(f"an option of job {job} is blocked by location {index}, which that job itself uses")


@dataclass(frozen=True, eq=False)
class Schedule:
    """An order in which every job finds its way free.

    Attributes:
        order: (n,) int64, the jobs in the order in which they run.
        layer: (n,) int64, the layer of each job, from 0: jobs of one layer do not depend on each other's order.
        choice: (n,) int64, the option of each job.
        cost: the sum of the chosen options' costs.
        optimal: whether what was minimised (cost or layers) is proven to be minimal; False where nothing was minimised.

    If only a subset of jobs was asked for, the others are in the order all the same: their tokens move then, whatever blocks
    them, and their choice is -1.
    """

    order: np.ndarray
    layer: np.ndarray
    choice: np.ndarray
    cost: int
    optimal: bool = False

    @property
    def n_layers(self) -> int:
        return int(self.layer.max()) + 1


@dataclass(frozen=True)
class Infeasible:
    """There is no schedule. `jobs` cannot all be done: a set that suffices for the contradiction, not necessarily minimal."""

    jobs: tuple[int, ...]


@dataclass(frozen=True)
class Unknown:
    """The time ran out. `best` is the best schedule so far, if any; `bound` a lower bound on what was minimised, if known."""

    best: Schedule | None = None
    bound: int | None = None

"""Why there is no schedule: a smallest-possible set of jobs that block each other, and the same in words."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from components.scheduling.graph import short_cycles
from components.scheduling.problem import ScheduleProblem

SHOWN_CYCLES = 3


@dataclass(frozen=True)
class Core:
    """Jobs that cannot all be done, though all but any one of them can.

    Attributes:
        jobs: the set, sorted.
        problem: the problem, with all options that the scheduler knew.
    """

    jobs: tuple[int, ...]
    problem: ScheduleProblem

    def text(
        self,
        job_name: Callable[[int], str] = "job {}".format,
        location_name: Callable[[int], str] | None = None,
    ) -> str:
        """The core for a reader: who blocks whom, each job's options with what is in their way, circles that this closes.

        Args:
            job_name, location_name: how to call a job and a location; by default "job 3", "the start of job 3".
        """
        place = location_name or (lambda index: self._place(index, job_name))
        names = [job_name(job) for job in self.jobs]
        if len(names) == 1:
            lines = [f"{names[0]} can never run:" if self.problem.options[self.jobs[0]] else f"{names[0]} has no option."]
        else:
            lines = [f"{', '.join(names[:-1])} and {names[-1]} block each other:"]
        # Tokens that are handed over order jobs, whether these belong to the core or not; and a job that could always be done
        # ties the others together if one has to run before it and one after it.
        stops = [spot for spot in self.problem.locations if spot.arrives is not None and spot.departs is not None]
        involved = {*self.jobs, *(job for spot in stops for job in (spot.arrives, spot.departs)), *self._between()}
        arcs = {(spot.arrives, spot.departs) for spot in stops}
        mentioned: set[int] = set()
        for job in self.jobs:
            options = self.problem.options[job]
            for number, option in enumerate(options, 1):
                which = f"the only option of {job_name(job)}" if len(options) == 1 else f"option {number} of {job_name(job)}"
                reasons = []
                for index in sorted(option.blocked_by):
                    spot = self.problem.locations[index]
                    waits = [(job, spot.arrives, "before")] if spot.arrives in involved else []
                    waits += [(spot.departs, job, "after")] if spot.departs in involved else []
                    arcs.update((u, v) for u, v, _ in waits)
                    mentioned.update(u + v - job for u, v, _ in waits)
                    if spot.arrives is None and spot.departs is None:
                        reasons.append(f"passes over {place(index)}, which is never free")
                    elif waits:
                        when = " or ".join(f"{word} {job_name(u + v - job)}" for u, v, word in waits)
                        reasons.append(f"passes over {place(index)}, so it must run {when}")
                lines.append(f"- {which} {'; it '.join(reasons) if reasons else 'is blocked by none of these'}")
        for spot in stops:
            if {spot.arrives, spot.departs} & {*self.jobs, *mentioned}:
                lines.append(f"- {job_name(spot.arrives)} must run before {job_name(spot.departs)}, which takes its token on")
        for cycle in short_cycles(self.problem.n_jobs, np.array(sorted(arcs), dtype=np.int64).reshape(-1, 2), SHOWN_CYCLES):
            lines.append(f"- closed circle: {', before '.join(job_name(job) for job in [*cycle, cycle[0]])}")
        return "\n".join(lines)

    def _between(self) -> set[int]:
        """Jobs that some option of the core has to precede and some option has to follow."""
        spots = [
            self.problem.locations[i] for job in self.jobs for option in self.problem.options[job] for i in option.blocked_by
        ]
        return ({spot.arrives for spot in spots} & {spot.departs for spot in spots}) - {None}

    def _place(self, index: int, job_name) -> str:
        location = self.problem.locations[index]
        if location.arrives is None and location.departs is None:
            return f"the obstacle {index}"
        if location.arrives is None:
            return f"the start of {job_name(location.departs)}"
        if location.departs is None:
            return f"the target of {job_name(location.arrives)}"
        return f"the stop between {job_name(location.arrives)} and {job_name(location.departs)}"

"""Why there is no schedule: a smallest-possible set of jobs that block each other, and the same in words."""

from collections.abc import Callable
from dataclasses import dataclass

from components.scheduling.problem import Option, ScheduleProblem


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
        """The core for a reader: who blocks whom, then each job's options with what is in their way.

        Args:
            job_name, location_name: how to call a job and a location; by default "job 3", "the start of job 3".
        """
        place = location_name or (lambda index: self._place(index, job_name))
        names = [job_name(job) for job in self.jobs]
        if len(names) == 1:
            lines = [f"{names[0]} can never run:" if self.problem.options[self.jobs[0]] else f"{names[0]} has no option."]
        else:
            lines = [f"{', '.join(names[:-1])} and {names[-1]} block each other:"]
        involved = {*self.jobs, *self._between()}
        for job in self.jobs:
            options = self.problem.options[job]
            for number, option in enumerate(options, 1):
                which = f"the only option of {job_name(job)}" if len(options) == 1 else f"option {number} of {job_name(job)}"
                lines.append(f"- {which} {self._reasons(option, involved, place, job_name)}")
        return "\n".join(lines)

    def _between(self) -> set[int]:
        """Jobs that could always be done, but tie the others together: one has to run before them and one after them."""
        earlier, later = set(), set()
        for job in self.jobs:
            for option in self.problem.options[job]:
                for index in option.blocked_by:
                    later.add(self.problem.locations[index].arrives)
                    earlier.add(self.problem.locations[index].departs)
        return (earlier & later) - {None}

    def _reasons(self, option: Option, involved: set[int], place, job_name) -> str:
        reasons = []
        for index in sorted(option.blocked_by):
            location = self.problem.locations[index]
            waits = [f"before {job_name(location.arrives)}"] if location.arrives in involved else []
            waits += [f"after {job_name(location.departs)}"] if location.departs in involved else []
            if location.arrives is None and location.departs is None:
                reasons.append(f"passes over {place(index)}, which is never free")
            elif waits:
                reasons.append(f"passes over {place(index)}, so it must run {' or '.join(waits)}")
        return "; it ".join(reasons) if reasons else "is blocked by none of these"

    def _place(self, index: int, job_name) -> str:
        location = self.problem.locations[index]
        if location.arrives is None and location.departs is None:
            return f"the obstacle {index}"
        if location.arrives is None:
            return f"the start of {job_name(location.departs)}"
        if location.departs is None:
            return f"the target of {job_name(location.arrives)}"
        return f"the stop between {job_name(location.arrives)} and {job_name(location.departs)}"

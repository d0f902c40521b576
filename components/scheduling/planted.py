"""Random scheduling problems that have a schedule, of any size: for tests, benchmarks and scaling studies."""

import numpy as np

from components.scheduling.problem import Location, Option, ScheduleProblem


def planted_problem(n: int, options: int = 3, blockers: float = 3.0, seed: int = 0) -> ScheduleProblem:
    """n jobs from n starts to n targets. One option of each is free in a hidden order; the others are as they come.

    Args:
        n: jobs.  options: ways to do each.  blockers: mean number of locations (Poisson) that block an option.
        seed: of the draw; costs are uniform in 0..999.

    Raises ValueError for n < 1, options < 1 or blockers < 0.
    """
    if n < 1 or options < 1 or not blockers >= 0:
        raise ValueError(f"needs n >= 1, options >= 1 and blockers >= 0, got {n}, {options}, {blockers}")
    rng = np.random.default_rng(seed)
    position = rng.permutation(n)
    locations = [Location(None, job) for job in range(n)] + [Location(job, None) for job in range(n)]
    jobs = []
    for job in range(n):
        mine = []
        for k in range(options):
            where = set()
            for other in rng.integers(0, n, rng.poisson(blockers)).tolist():
                if other != job:
                    passes_start = position[other] < position[job] if k == 0 else rng.random() < 0.5
                    where.add(other if passes_start else n + other)
            mine.append(Option(int(rng.integers(0, 1000)), frozenset(where)))
        jobs.append([mine[k] for k in rng.permutation(options)])
    return ScheduleProblem(jobs, locations)

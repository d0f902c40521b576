"""Schedulers side by side: `python -m benchmarks.scheduling` writes its section of RESULTS.md (`--quick`: a minute, writes nothing).

CPU seconds, building included, one thread, mean over the instances of a size. Every schedule is replayed by the verifier. Families:
planted    random problems with 3 options, Poisson(3) blockers each, and a hidden schedule
hall       boxes on a square floor, moved through corridors of cells
parking    cars that change from lanes open at both ends to other such lanes
A family is a function (n, seed) -> ScheduleProblem in `FAMILIES`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import mean

import numpy as np

from benchmarks.results import write_section
from components.scheduling.baselines import RULES, PartialSchedule, cpsat, greedy, topological
from components.scheduling.layouts import hall, parking
from components.scheduling.moves import moves_on_cells
from components.scheduling.planted import planted_problem
from components.scheduling.problem import Infeasible, Schedule, ScheduleProblem, Unknown
from components.scheduling.sat_schedule import SatScheduler
from components.scheduling.verify import check_schedule

Answer = Schedule | Infeasible | Unknown | PartialSchedule

FAMILIES: dict[str, Callable[[int, int], ScheduleProblem]] = {
    "planted": lambda n, seed: planted_problem(n, seed=seed),
    "hall": lambda n, seed: moves_on_cells(hall(n, seed)),
    "parking": lambda n, seed: moves_on_cells(parking(n, seed=seed)),
}
SIZES = (50, 200, 420, 1000, 2000)
LIMIT = 15.0
"""Seconds for one answer of a solver that can be interrupted."""
LARGEST = {"transitive": 50, "layered": 200, "binary": 1000, "cost": 420, "layers": 420}
COLUMNS = ("family", "n", "scheduler", "solved", "placed", "CPU s", "layers", "cost")


def sat(encoding: str, limit: float | None = LIMIT) -> Callable[[ScheduleProblem], Answer]:
    def run(problem: ScheduleProblem) -> Answer:
        with SatScheduler(problem, encoding) as scheduler:
            return scheduler.solve(time_limit=limit)

    return run


def least(objective: str) -> Callable[[ScheduleProblem], Answer]:
    def run(problem: ScheduleProblem) -> Answer:
        with SatScheduler(problem) as scheduler:
            if objective == "cost":
                return scheduler.minimise_cost(time_limit=LIMIT / 2)
            return scheduler.minimise_layers(time_limit=LIMIT / 2)

    return run


def schedulers(n: int) -> dict[str, Callable[[ScheduleProblem], Answer]]:
    table: dict[str, Callable[[ScheduleProblem], Answer]] = {"SAT, lazy": sat("lazy", None)}
    for encoding in ("layered", "binary", "transitive"):
        if n <= LARGEST[encoding]:
            table[f"SAT, {encoding}"] = sat(encoding)
    table["CP-SAT"] = lambda problem: cpsat(problem, time_limit=LIMIT)
    table["topological"] = topological
    for rule in RULES:
        if rule != "inner-first":  # these layouts have no middle
            table[f"greedy, {rule}"] = lambda problem, rule=rule: greedy(problem, rule, np.random.default_rng(0))
    for objective in ("cost", "layers"):
        if n <= LARGEST[objective]:
            table[f"SAT, least {objective}"] = least(objective)
            table[f"CP-SAT, least {objective}"] = lambda problem, objective=objective: cpsat(problem, objective, LIMIT / 2)
    return table


def layers_of(problem: ScheduleProblem, answer: Schedule) -> int:
    """Layers of an answer as it stands; CP-SAT without an objective spreads its positions, so they are packed again."""
    fixed = ScheduleProblem([[problem.options[job][k]] for job, k in enumerate(answer.choice)], problem.locations)
    with SatScheduler(fixed) as scheduler:
        packed = scheduler.solve()
    return packed.n_layers if isinstance(packed, Schedule) else answer.n_layers


def measure(family: str, n: int, seeds: int) -> list[tuple[str, ...]]:
    problems = [FAMILIES[family](n, seed) for seed in range(seeds)]
    rows = []
    for name, run in schedulers(n).items():
        seconds, solved, placed, layers, costs = [], 0, [], [], []
        mark = ""
        for problem in problems:
            start = time.process_time()
            answer = run(problem)
            seconds.append(time.process_time() - start)
            if isinstance(answer, Unknown):
                mark = " (time limit)"
                answer = answer.best
            if isinstance(answer, PartialSchedule):
                placed.append(answer.placed / n)
                solved += answer.complete
            else:
                placed.append(float(isinstance(answer, Schedule)))
                solved += isinstance(answer, Schedule)
            if isinstance(answer, Schedule):
                check_schedule(problem, answer)
                layers.append(min(answer.n_layers, layers_of(problem, answer)))
                costs.append(answer.cost)
        row = (
            family,
            str(n),
            name + mark,
            f"{solved}/{seeds}",
            f"{100 * mean(placed):.0f}%",
            f"{mean(seconds):.3g}",
            f"{mean(layers):.4g}" if layers else "",
            f"{mean(costs):.0f}" if costs else "",
        )
        print(" | ".join(row), flush=True)
        rows.append(row)
    return rows


def main() -> None:
    quick = "--quick" in sys.argv[1:]
    sat("lazy")(planted_problem(20))  # compiles
    cpsat(planted_problem(20))  # imports
    rows = []
    for family in FAMILIES:
        for n in SIZES[:2] if quick else SIZES:
            rows += measure(family, n, 1 if quick or n > 420 else 2)
    if quick:
        return
    times = {(family, n, name): float(seconds) for family, n, name, _, _, seconds, _, _ in rows}
    lazy = times["planted", "1000", "SAT, lazy"]
    for name, goal in (("SAT, binary", 5), ("CP-SAT", 2)):
        found = [t for (family, n, key), t in times.items() if (family, n) == ("planted", "1000") and key.startswith(name)]
        rows.append(("planted", "1000", f"{name} / SAT, lazy: {found[0] / lazy:.1f} times, goal {goal}", "", "", "", "", ""))
    write_section("Scheduling", "python -m benchmarks.scheduling", COLUMNS, rows)


if __name__ == "__main__":
    main()

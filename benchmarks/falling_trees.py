"""The search for falling trees beside slower ways: `python -m benchmarks.falling_trees` writes its section of RESULTS.md.

CPU time, one thread, on COMPAS (6,172 rows, 15 conditions) and German credit (1,000 rows, 16): the numba search over its twin in
Python, no bounds and all bounds over the usual ones (all for lists, two with branchings), and listing the near-optimal trees. Every pair must find the same optimum.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.results import write_section
from components.datasets import tabular
from components.trees.binarise import QuantileBinarizer, screen
from components.trees.solver import ALL_BOUNDS, FallingTreeSolver

DATA = Path(__file__).resolve().parents[1] / "data"


def problems() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    people = tabular.compas(DATA / "compas")
    age, priors = people["age"], people["priors_count"]
    columns = [*(age < x for x in (21, 23, 26, 31, 46)), *(priors >= x for x in (1, 2, 4, 7, 13))]
    columns += [people["sex"] == "Male", people["c_charge_degree"] == "F"]
    columns += [people[f"juv_{key}_count"] > 0 for key in ("fel", "misd", "other")]
    credit = tabular.german(DATA / "german")
    bad = credit["good"].to_numpy() == 0
    X = QuantileBinarizer().fit_transform(credit.drop(columns=["good", "over_25", "male"]))
    return {
        "COMPAS": (np.column_stack(columns), people["two_year_recid"].to_numpy() == 1),
        "German credit": (X[:, screen(X, bad, 16)], bad),
    }


def seconds(function: Callable[[], object], rounds: int = 3) -> float:
    times = []
    for _ in range(rounds):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return statistics.median(times)


def main() -> None:
    rows = []
    for name, (X, y) in problems().items():
        for deep, budget in ((4, 1), (5, 0)):
            least = round(0.01 * len(y))

            def made(
                backend: str = "numba", bounds: frozenset[str] | None = None, at: tuple = (X, y, deep, budget, least)
            ) -> FallingTreeSolver:
                return FallingTreeSolver(at[0], at[1], at[2], at[3], min_leaf=at[4], backend=backend, bounds=bounds)

            ways = (made(), made("python"), made(bounds=frozenset()), made(bounds=ALL_BOUNDS))
            optima = {solver.optimum() for solver in ways}
            if max(optima) - min(optima) > 1e-12:
                raise AssertionError(f"{name}, depth {deep}: the searches found {sorted(optima)}")
            fast = seconds(lambda m=made: m().optimum())
            slow = seconds(lambda m=made: m("python").optimum(), 1)
            none, every = (seconds(lambda m=made, b=b: m(bounds=b).optimum()) for b in (frozenset(), ALL_BOUNDS))
            solver = made()
            theta = solver.threshold(0.02)
            listing = seconds(lambda s=solver, t=theta: sum(1 for _ in s.enumerate(t)), 1)
            count = solver.count(theta)
            words = "rule lists" if budget == 0 else f"{budget} branching"
            rows.append(
                (
                    f"{name}, depth {deep}, {words}",
                    f"{1e3 * fast:.0f}",
                    f"{slow / fast:.1f}",
                    f"{none / fast:.2f}",
                    f"{every / fast:.2f}",
                    f"{count:,}",
                    f"{count / listing:,.0f}",
                )
            )
    columns = (
        "optimum of",
        "numba, ms",
        "Python / numba",
        "no bounds / usual ones",
        "all bounds / usual ones",
        "trees within 2%",
        "trees listed per second",
    )
    write_section("Falling trees", "python -m benchmarks.falling_trees", columns, rows)


if __name__ == "__main__":
    main()

"""The exact solver beside slower ways to the same optimum: `python -m benchmarks.sufficiency` writes its section of RESULTS.md.

CPU time, one thread, on FICO's credit scores (four groups, 786 scores) and COMPAS. The loop lists the same candidates interval by
interval in Python, with `numpy.roots`; it is independent of the solver, and both must agree. The grid decides each pair by linear
programmes: its time is that of a few pairs, scaled up.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import numpy as np
from scipy.optimize import linprog

from benchmarks.results import write_section
from components.datasets import tabular
from components.fairness.calibration import GroupBinCalibrator
from components.fairness.group_scores import GroupScores
from components.fairness.sufficiency import decision_loss, solve_sufficient

DATA = Path(__file__).resolve().parents[1] / "data"
GRID = (150, 60)


def arc_at(group: GroupScores, p: float) -> tuple[float, float, float]:
    """A, B, C of the group's arc q = (A p + B) / (p + C) at p, from the definition."""
    positives = people = 0.0
    mu = group.base_rate
    if p <= mu + 1e-12:
        return float(group.scores[-1]), 0.0, 0.0
    for k, (s, mass) in enumerate(zip(group.scores, group.pmf, strict=True)):
        after = (positives + mass * s) / (people + mass)
        # The first score alone is a ray, on which no arc begins.
        if 0 < k < len(group.scores) - 1 and after <= p <= positives / people + 1e-13:
            c = positives - people * s
            return mu - c, -mu * s, -(s + c)
        positives, people = positives + mass * s, people + mass
    return float(group.scores[-1]), 0.0, 0.0


def looped_optimum(groups: list[GroupScores], cost_fp: float = 1.0, cost_fn: float = 1.0) -> float:
    """The least loss under sufficiency by a list of candidates in Python loops: breakpoints, crossings, stationary points.

    Raises ValueError where no candidate is feasible."""
    low, high = max(g.base_rate for g in groups), min(float(g.scores[0]) for g in groups)
    top = min(g.base_rate for g in groups)
    mu = sum(g.weight * g.base_rate for g in groups) / sum(g.weight for g in groups)
    ends = {low, high}
    for g in groups:
        ratios = np.cumsum(g.pmf * g.scores) / np.cumsum(g.pmf)
        ends |= {float(x) for x in ratios if low < x < high}
    points = sorted(ends)
    candidates = set(points)
    for a, b in itertools.pairwise(points):
        arcs = [arc_at(g, (a + b) / 2) for g in groups]
        found: list[float] = []
        for i, (A, B, C) in enumerate(arcs):
            if A != top:
                found.append((top * C - B) / (A - top))
            n = np.polymul([-(mu - A), -(mu * C - B)], [cost_fp + cost_fn, -cost_fp])
            d = [1.0, C - A, -B]
            derivative = np.polysub(np.polymul(np.polyder(n), d), np.polymul(n, np.polyder(d)))
            found += [x.real for x in np.roots(derivative) if abs(x.imag) < 1e-12]
            for A2, B2, C2 in arcs[i + 1 :]:
                crossing = [A - A2, A * C2 + B - A2 * C - B2, B * C2 - B2 * C]
                found += [x.real for x in np.roots(crossing) if abs(x.imag) < 1e-12]
        candidates |= {x for x in found if a < x < b}
    value, best = decision_loss(groups, cost_fp, cost_fn), float("inf")
    for p in candidates:
        least = max((A * p + B) / (p + C) for A, B, C in (arc_at(g, p) for g in groups))
        if least > top + 1e-12:
            continue
        for q in (min(least, top), top):
            if p - q > 1e-10:
                best = min(best, float(value(np.array([p]), np.array([q]))[0]))
    if best == float("inf"):
        raise ValueError("no candidate is feasible")
    return best


def seconds(function: object, least: int = 1) -> float:
    times = []
    for _ in range(least):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return float(np.median(times))


def grid_seconds(groups: list[GroupScores], pairs: int = 12) -> float:
    """The time of GRID pairs by linear programmes, from a few of them."""
    rng = np.random.default_rng(0)
    low, high = max(g.base_rate for g in groups), min(float(g.scores[0]) for g in groups)
    top = min(g.base_rate for g in groups)

    def some() -> None:
        for _ in range(pairs):
            p, q = rng.uniform(low, high), rng.uniform(0, top)
            for g in groups:
                rows = np.array([g.pmf * (g.scores - p), g.pmf * (g.scores - q)])
                linprog(np.zeros(g.scores.size), A_eq=rows, b_eq=[0.0, rows[1].sum()], bounds=(0, 1), method="highs")

    return seconds(some) / pairs * GRID[0] * GRID[1]


def problems() -> dict[str, list[GroupScores]]:
    credit = tabular.fico(DATA / "fico")
    four = [GroupScores(credit.repaid[:, i], credit.pmf[:, i], float(credit.sizes[i])) for i in range(4)]
    people = tabular.compas(DATA / "compas")
    people = people[people["race"].isin(["African-American", "Caucasian"])]
    fitted = GroupBinCalibrator(min_count=1, method="identity").fit(
        people["decile_score"], people["two_year_recid"], people["race"]
    )
    return {"FICO, 4 groups": four, "FICO, 2 groups": four[:2], "COMPAS, 2 groups": fitted.group_scores()}


def main() -> None:
    rows = []
    for name, groups in problems().items():
        solve_sufficient(groups)
        ours = seconds(lambda g=groups: solve_sufficient(_fresh(g)), 25)
        found: list[float] = []
        loop = seconds(lambda g=groups, f=found: f.append(looped_optimum(g)))
        if abs(found[0] - solve_sufficient(groups).value) > 1e-11:
            raise AssertionError(f"{name}: the loop found {found[0]}, the solver {solve_sufficient(groups).value}")
        grid = grid_seconds(groups)
        levels = sum(g.scores.size for g in groups)
        rows.append(
            (
                name,
                str(levels),
                f"{1e3 * ours:.2f}",
                f"{1e3 * loop:.0f}",
                f"{loop / ours:,.0f}",
                f"{grid:.0f}",
                f"{grid / ours:,.0f}",
            )
        )
    columns = (
        "problem",
        "scores",
        "solver, ms",
        "loop, ms",
        "times faster",
        f"grid of {GRID[0]} x {GRID[1]}, s",
        "times faster",
    )
    write_section("Optimal decisions under sufficiency", "python -m benchmarks.sufficiency", columns, rows)


def _fresh(groups: list[GroupScores]) -> list[GroupScores]:
    """Without what a group remembers of an earlier call."""
    return [GroupScores(g.scores, g.pmf, g.weight) for g in groups]


if __name__ == "__main__":
    main()

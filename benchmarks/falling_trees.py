"""Falling trees beside slower searches and other libraries: `python -m benchmarks.falling_trees` writes its sections of RESULTS.md.

CPU time, one thread, on COMPAS (6,172 rows, 15 conditions) and German credit (1,000 rows, 16): the numba search over its twin in
Python, no bounds and all bounds over the usual ones (all for lists, two with branchings), and listing the near-optimal trees. Every pair must find the same optimum. Then rule lists of imodels, where it is installed, on one
split into training and test rows; and arborenum's count of all ordinary trees beside ours, which must agree.
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
from components.trees.falling_tree import FallingRuleListClassifier, FallingTreeClassifier
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


def peer_rows() -> list[tuple[str, ...]]:
    """Test AUC and CPU time of fitting, ours and imodels'."""
    import warnings

    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import train_test_split

    try:
        from imodels import BayesianRuleListClassifier, GreedyRuleListClassifier
    except ImportError:
        print("imodels is not installed: its rule lists are not measured")
        return []
    rows = []
    for name, (X, y) in problems().items():
        train, test = train_test_split(np.arange(len(y)), test_size=0.3, random_state=0, stratify=y)
        fitted, asked, wanted = X[train].astype(float), X[test].astype(float), y[train].astype(int)
        models = {
            "falling tree, 1 branching": FallingTreeClassifier(depth=4),
            "falling rule list": FallingRuleListClassifier(depth=4),
            "imodels GreedyRuleListClassifier": GreedyRuleListClassifier(max_depth=4),
            "imodels BayesianRuleListClassifier, 2000 steps": BayesianRuleListClassifier(max_iter=2000, random_state=0),
        }
        for words, model in models.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                took = seconds(lambda m=model, X=fitted, y=wanted: m.fit(X, y), 1)
                risk = model.predict_proba(asked)[:, 1]
            rows.append((name, words, f"{roc_auc_score(y[test], risk):.3f}", f"{took:.2f}"))
    return rows


def counting_rows() -> list[tuple[str, ...]]:
    """All ordinary trees within 3% of the optimum, zero-one loss: our table of them beside arborenum's graph, which holds label flips too."""
    try:
        from arborenum import ArborEnum
    except ImportError:
        print("arborenum is not installed: its search is not measured")
        return []
    rows = []
    for name, (X, y) in problems().items():
        for deep in (3, 4):
            options = {"depth": deep, "branching": None, "lam": 0.01, "loss": "zero_one", "min_leaf": 1, "order": None}
            found: list[FallingTreeSolver] = []

            def ours(options: dict = options, X: np.ndarray = X, y: np.ndarray = y, found: list = found) -> None:
                found.append(FallingTreeSolver(X, y, **options))
                found[-1].rashomon(found[-1].threshold(0.03))

            def theirs(deep: int = deep, X: np.ndarray = X, y: np.ndarray = y) -> ArborEnum:
                peer = ArborEnum()
                exact = {"proxy_mode": "continuous", "lookahead_k": deep - 1, "key_mode": "exact"}
                peer.fit(X.astype(int), y.astype(int), lambda_reg=0.01, depth_budget=deep, rashomon_mult=0.03, **exact)
                return peer

            fast, slow = seconds(ours), seconds(theirs)
            least, count = round(len(y) * found[-1].optimum()), found[-1].count(found[-1].threshold(0.03))
            if abs(least - theirs().get_min_objective()) > 1:
                raise AssertionError(
                    f"{name}, depth {deep}: the optimum is {least}, arborenum finds {theirs().get_min_objective()}"
                )
            rows.append((f"{name}, depth {deep}", f"{1e3 * fast:.0f}", f"{1e3 * slow:.0f}", f"{slow / fast:.1f}", f"{count:,}"))
    return rows


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
    command = "python -m benchmarks.falling_trees"
    write_section("Falling trees", command, columns, rows)
    if peers := peer_rows():
        write_section(
            "Falling trees beside rule lists of imodels", command, ("data set", "model", "test AUC", "s of CPU to fit"), peers
        )
    if counted := counting_rows():
        columns = ("all ordinary trees within 3%", "ours, ms", "arborenum, ms", "times faster", "trees")
        write_section("All near-optimal ordinary trees beside arborenum", command, columns, counted)


if __name__ == "__main__":
    main()

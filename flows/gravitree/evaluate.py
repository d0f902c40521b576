"""Means over splits, differences paired by split, optima by budget, subproblems by bound, and the search against plain enumeration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from pydantic import Field

from components.stats import Metrics, paired_difference, summarise
from components.trees.brute_force import all_trees, objective
from components.trees.solver import FallingTreeSolver
from components.trees.tree import branchings, is_falling
from flows.gravitree.arms import METHODS
from tasks.params import StageParams

QUALITIES = ("auc", "brier", "balanced accuracy", "top sparsity", "conditions", "leaves", "members", "objective")


class Params(StageParams):
    problems: int = Field(40, ge=1, description="random problems on which the search is compared with plain enumeration")
    price: float = Field(
        0.005, ge=0, description="AUC that a condition more for those at the highest risk is worth, in a sweep"
    )


def random_problem(seed: int) -> tuple[np.ndarray, np.ndarray, dict]:
    """Small rows and options of every kind."""
    rng = np.random.default_rng((61, seed))
    n, (p, deep) = int(rng.integers(20, 61)), ((3, 3), (4, 2), (3, 2))[int(rng.integers(3))]
    X = rng.random((n, p)) < rng.uniform(0.2, 0.8, p)
    y = rng.random(n) < 0.2 + 0.6 * X[:, 0] * rng.random()
    y[:2] = True, False
    options = {
        "depth": deep,
        "lam": float(rng.choice([0.0, 0.01, 0.03])),
        "loss": str(rng.choice(["brier", "zero_one"])),
        "omega": float(rng.choice([1.0, 2.0])),
        "min_leaf": int(rng.integers(1, 4)),
        "order": ("path", "depth", None)[int(rng.integers(3))],
    }
    return X, y, options


def same_sets(seed: int, branching: int | None) -> bool:
    """Whether the search's set is that of plain enumeration; trees within rounding of the threshold may be in either."""
    X, y, options = random_problem(seed)
    costs = {
        tree: objective(tree, X, y, loss=options["loss"], omega=options["omega"], lam=options["lam"])
        for tree in all_trees(X, y, options["depth"], options["min_leaf"])
        if is_falling(tree, options["order"]) and (branching is None or branchings(tree) <= branching)
    }
    best = min(costs.values())
    theta = 1.2 * best + 0.01
    solver = FallingTreeSolver(X, y, branching=branching, **options)
    if abs(solver.optimum() - best) > 1e-9:
        return False
    found = [tree for _, tree in solver.enumerate(theta)]
    near = {tree for tree, cost in costs.items() if abs(cost - theta) < 1e-9}
    wanted = {tree for tree, cost in costs.items() if cost <= theta}
    return len(found) == len(set(found)) and set(found) - near == wanted - near


def by_split(facts: pd.DataFrame, dataset: str, method: str, quality: str) -> list[float]:
    rows = facts[(facts["dataset"] == dataset) & (facts["method"] == method)].sort_values("split")
    return [float(x) for x in rows[quality]] if quality in rows and rows[quality].notna().all() else []


def compare(metrics: Metrics, facts: pd.DataFrame, first: str, second: str, name: str, quality: str) -> None:
    """Differences paired by split: per data set, over all, and the data sets' means."""
    cells, pooled, means = metrics.setdefault(name, {}), ([], []), []
    for dataset in dict.fromkeys(facts["dataset"]):
        pair = [by_split(facts, dataset, method, quality) for method in (first, second)]
        cells[f"{dataset}/{quality}"] = paired_difference(*pair)
        means.append(float(np.mean(pair[0]) - np.mean(pair[1])))
        for whole, part in zip(pooled, pair, strict=True):
            whole += part
    cells[f"all/{quality}"] = paired_difference(*pooled)
    cells[f"all/{quality} by data set"] = summarise(means)


def search_metrics(metrics: Metrics, search: pd.DataFrame) -> None:
    """Optima by budget, and subproblems under bounds over those without any."""
    optima = search[search["what"] == "optimum"]
    rises = []
    for _, rows in optima.groupby(["dataset", "split", "depth"]):
        rises += np.diff(rows.sort_values("branching")["value"]).tolist()
    if rises:
        metrics.setdefault("falling", {})["all/rise of the optimum"] = summarise([float(max(rises))])
    for (deep, budget), rows in optima.groupby(["depth", "branching"]):
        cells = metrics.setdefault(f"depth {deep}, branching {budget}", {})
        for dataset, part in rows.groupby("dataset"):
            cells[f"{dataset}/objective"] = summarise(part.sort_values("split")["value"].tolist())
            cells[f"{dataset}/auc"] = summarise(part.sort_values("split")["auc"].tolist())
    counted = search[search["what"] != "optimum"]
    for (budget, words), rows in counted.groupby(["branching", "what"]):
        base = counted[(counted["branching"] == budget) & (counted["what"] == "none")].set_index(["dataset", "split"])
        rows = rows.set_index(["dataset", "split"]).loc[base.index]
        name, where = f"{words} / none", "lists" if budget == 0 else "one branching"
        cells = metrics.setdefault(name, {})
        cells[f"{where}/subproblems"] = summarise((rows["subproblems"] / base["subproblems"]).tolist())
        cells[f"{where}/optimum changed"] = summarise((rows["value"] - base["value"]).tolist())


def evaluate(p: Params, train: Path, out: Path) -> Metrics:
    """Writes by_split.parquet and returns the metrics."""
    facts, search = (pd.read_parquet(train / f"{name}.parquet") for name in ("facts", "search"))
    metrics: Metrics = {}
    for method in [method for method in METHODS if method in set(facts["method"])]:
        cells = metrics.setdefault(method, {})
        for dataset in dict.fromkeys(facts["dataset"]):
            for quality in QUALITIES:
                if values := by_split(facts, dataset, method, quality):
                    cells[f"{dataset}/{quality}"] = summarise(values)
    for other in (
        "rule list",
        "rule list, same depth",
        "greedy list",
        "ordinary",
        "CART",
        "CART, 7 leaves",
        "logistic",
        "boosting",
    ):
        compare(metrics, facts, "falling", other, f"falling - {other}", "auc")
    for other in ("rule list", "ordinary", "CART", "CART, 7 leaves"):
        compare(metrics, facts, "falling", other, f"falling - {other}", "top sparsity")
    compare(metrics, facts, "sparsest falling", "ordinary", "sparsest falling - ordinary", "top sparsity")
    compare(metrics, facts, "sparsest falling", "falling", "sparsest falling - falling", "auc")
    fewer = metrics["sparsest falling - ordinary"]["all/top sparsity by data set"]["values"]
    metrics["sparsest falling - ordinary"]["all/fewer conditions"] = summarise([100.0 * (x < -1e-9) for x in fewer])
    search_metrics(metrics, search)
    seeds = range(p.problems)
    equal = [100.0 * same_sets(seed, (None, 1, 2)[seed % 3]) for seed in seeds]
    lists = [100.0 * same_sets(seed, 0) for seed in seeds]
    metrics["search - enumeration"] = {"small/sets equal": summarise(equal), "small/lists equal": summarise(lists)}
    ours = facts[facts["method"] == "falling"]
    metrics["falling"]["sweep/objective"] = summarise([float((ours["auc"] - p.price * ours["top sparsity"]).mean())])
    facts.to_parquet(out / "by_split.parquet", index=False)
    return metrics

"""Optimality against linear programmes on a grid, gaps on populations and on held-out people, and the price of sufficiency."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field
from scipy.optimize import linprog

from components.fairness.feasible_region import NoSufficientClassifier, feasible_region
from components.fairness.group_scores import GroupScores
from components.fairness.sufficiency import decision_loss, separation_deviation, solve_sufficient
from components.stats import Metrics, paired_difference, summarise
from flows.sufficiency.arms import METHODS, OURS
from flows.sufficiency.store import groups_of
from flows.sufficiency.train import Params as TrainParams
from flows.sufficiency.train import costs_of
from tasks.fanout import fanout
from tasks.params import StageParams, Strict


class Grid(Strict):
    p: int = Field(60, ge=2, description="precisions of the grid")
    q: int = Field(25, ge=2, description="false omission rates of the grid")


class Params(StageParams):
    grid_check: Grid = Field(Grid(), description="pairs whose feasibility a linear programme decides")
    random_problems: int = Field(60, ge=0, description="random problems that are checked in the same way")
    random_grid: Grid = Field(Grid(p=20, q=10), description="grid of the random problems")
    violation: float = Field(0.01, gt=0, description="gap of PPV and of FOR above which predictive parity is violated")
    close: float = Field(0.01, gt=0, description="loss of accuracy that still is comparable")


class Job(NamedTuple):
    groups: list[GroupScores]
    grid: Grid


def feasible(groups: list[GroupScores], p: float, q: float) -> bool:
    """Whether rules with PPV p and FOR q exist in all groups: a linear programme per group."""
    for group in groups:
        rows = np.array([group.pmf * (group.scores - p), group.pmf * (group.scores - q)])
        found = linprog(np.zeros(group.scores.size), A_eq=rows, b_eq=[0.0, rows[1].sum()], bounds=(0, 1), method="highs")
        if found.status not in (0, 2):
            raise RuntimeError(f"the linear programme at ({p}, {q}) was not decided: {found.message}")
        if not found.success:
            return False
    return True


def run_job(job: Job) -> np.ndarray:
    """The feasible pairs (n, 2) of a grid that spans more than can be feasible."""
    rates = [g.base_rate for g in job.groups]
    # Beyond the bounds in which a solution must lie, so that they are tested too; corners left out, where p = q or rates end.
    ps = np.linspace(max(rates), max(g.scores[0] for g in job.groups), job.grid.p + 1)[1:]
    qs = np.linspace(0, min(rates), job.grid.q + 1)[:-1]
    return np.array([(p, q) for p in ps for q in qs if feasible(job.groups, p, q)]).reshape(-1, 2)


def random_problem(seed: int) -> list[GroupScores]:
    """Two to four groups of two to eight scores that reach high and low."""
    rng = np.random.default_rng((41, seed))
    made = []
    for _ in range(int(rng.integers(2, 5))):
        m = int(rng.integers(2, 9))
        scores = np.concatenate([[rng.uniform(0.7, 1), rng.uniform(0, 0.3)], rng.random(m - 2)])
        made.append(GroupScores(scores, rng.dirichlet(2 * np.ones(m)), rng.uniform(0.2, 2)))
    return made


def excesses(groups: list[GroupScores], pairs: np.ndarray, costs: list[tuple[float, float]]) -> list[float]:
    """Loss of the solution minus the least of the feasible pairs, per cost; a solution that misses feasible pairs counts as 1."""
    found = []
    for cost in costs:
        try:
            ours = solve_sufficient(groups, *cost).value
        except NoSufficientClassifier:
            found += [1.0] if len(pairs) else []
            continue
        if len(pairs):
            found.append(ours - float(decision_loss(groups, *cost)(*pairs.T).min()))
    return found


def evaluate(p: Params, data: Path, train: Path, out: Path) -> Metrics:
    """Writes regions.json and returns the metrics."""
    trained = TrainParams.model_validate_json((train / "parameters.json").read_text(encoding="utf-8"))
    costs = costs_of(trained)
    table = pd.read_parquet(data / "groups.parquet")
    datasets = list(dict.fromkeys(table["dataset"]))
    populations = {name: groups_of(table, name) for name in datasets}
    problems = [random_problem(seed) for seed in range(p.random_problems)]
    jobs = [Job(groups, p.grid_check) for groups, _ in populations.values()] + [
        Job(groups, p.random_grid) for groups in problems
    ]
    grids: list[np.ndarray] = []
    fanout(
        run_job,
        jobs,
        label="linear programmes",
        threads=p.threads,
        seed=p.seed,
        on_result=lambda job, pairs: grids.append(pairs),
    )
    values = [x for job, pairs in zip(jobs, grids, strict=True) for x in excesses(job.groups, pairs, costs)]
    metrics: Metrics = {"sufficient - grid": {"population/loss": summarise([max(values)])}}
    metrics["sufficient - grid"]["population/problems"] = summarise([float(len(values))])
    metrics["sufficient - grid"]["population/pairs"] = summarise([float(sum(len(pairs) for pairs in grids))])
    population = pd.read_parquet(train / "population.parquet")
    population_metrics(metrics, p, population, populations, costs)
    heldout_metrics(metrics, pd.read_parquet(train / "heldout.parquet"), costs)
    regions = {name: region_of(groups, names) for name, (groups, names) in populations.items()}
    (out / "regions.json").write_text(json.dumps(regions, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return metrics


def named(cost: tuple[float, float]) -> str:
    return f"{cost[0]:g}:{cost[1]:g}"


def population_metrics(
    metrics: Metrics, p: Params, facts: pd.DataFrame, populations: dict[str, Any], costs: list[tuple[float, float]]
) -> None:
    """Facts of each population and cost, and over them the shares and extremes that the claims are about."""
    rows = facts[facts["feasible"]]
    for row in rows.to_dict("records"):
        where = f"{row['dataset']} {named((row['cost_fp'], row['cost_fn']))}"
        cells = metrics.setdefault(row["method"], {})
        for name in ("loss", "accuracy", "gap of PPV", "gap of FOR", "gap of TPR", "gap of FPR"):
            cells[f"{where}/{name}"] = summarise([row[name]])
    single = rows[rows["method"] == "single threshold"]
    violated = (single[["gap of PPV", "gap of FOR"]] > p.violation).all(axis=1)
    metrics["single threshold"]["population/violates"] = summarise([100.0 * x for x in violated])
    ours = rows[rows["method"].isin([OURS, "separation"])]
    if ours.empty:
        return
    metrics[OURS]["population/gap"] = summarise(ours[["gap of PPV", "gap of FOR"]].max(axis=1).tolist())
    differences, least, close = [], [], []
    for dataset, (groups, _) in populations.items():
        deviation = separation_deviation(groups)
        for cost in costs:
            found = {}
            for method, objective in ((OURS, "loss"), ("separation", "separation")):
                try:
                    found[method] = solve_sufficient(groups, *cost, objective)
                except NoSufficientClassifier:
                    break
            if len(found) < 2:
                continue
            far = {method: float(deviation(np.array([s.p]), np.array([s.q]))[0]) for method, s in found.items()}
            differences.append(far[OURS] - far["separation"])
            least.append(far["separation"])
            if cost[0] == cost[1]:
                pair = [
                    rows[
                        (rows["dataset"] == dataset)
                        & (rows["method"] == m)
                        & (rows["cost_fp"] == cost[0])
                        & (rows["cost_fn"] == cost[1])
                    ]
                    for m in found
                ]
                lost = float(pair[0]["accuracy"].iloc[0] - pair[1]["accuracy"].iloc[0])
                metrics.setdefault("sufficient - separation", {})[f"{dataset}/accuracy"] = summarise([lost])
                close.append(100.0 * (lost <= p.close))
    metrics.setdefault("sufficient - separation", {})["population/deviation"] = summarise(differences)
    metrics["separation"]["population/deviation"] = summarise(least)
    if close:
        metrics["separation"]["population/close in accuracy"] = summarise(close)


def heldout_metrics(metrics: Metrics, held: pd.DataFrame, costs: list[tuple[float, float]]) -> None:
    """Means over resplits, and differences paired by resplit at the middle of the costs (equal ones, where they are among them)."""
    shown = next((cost for cost in costs if cost[0] == cost[1]), costs[0])
    part = held[(held["cost_fp"] == shown[0]) & (held["cost_fn"] == shown[1])]
    objective = []
    for dataset, rows in part.groupby("dataset"):
        good = rows[rows["feasible"].astype(bool)]
        # Splits in which every method found a decision, so that differences are paired.
        whole = good.groupby("split")["method"].nunique()
        splits = whole.index[whole == len(METHODS)]
        metrics.setdefault(OURS, {})[f"{dataset}/infeasible resplits"] = summarise(
            [100.0 * (1 - len(splits) / rows["split"].nunique())]
        )
        if not len(splits):
            continue
        table = good[good["split"].isin(splits)]
        for method, found in table.groupby("method"):
            cells = metrics.setdefault(method, {})
            found = found.sort_values("split")
            for name in ("loss", "accuracy", "gap of PPV", "gap of FOR", "gap of TPR", "gap of FPR"):
                cells[f"{dataset}/held-out {name}"] = summarise(found[name].astype(float).tolist())
        for method in METHODS:
            if method in (OURS, "separation"):
                continue
            cells = metrics.setdefault(f"{method} - {OURS}", {})
            one, two = (table[table["method"] == m].sort_values("split") for m in (method, OURS))
            for name in ("loss", "accuracy", "gap of PPV", "gap of FOR"):
                cells[f"{dataset}/held-out {name}"] = paired_difference(
                    one[name].astype(float).tolist(), two[name].astype(float).tolist()
                )
        ours = table[table["method"] == OURS]
        objective.append(float((ours["loss"] + 5 * ours[["gap of PPV", "gap of FOR"]].max(axis=1)).astype(float).mean()))
    if objective:
        metrics[OURS]["sweep/objective"] = summarise([float(np.mean(objective))])


def region_of(groups: list[GroupScores], names: list[str]) -> dict[str, Any]:
    """What the report draws."""
    curves = {}
    for group, name in zip(groups, names, strict=True):
        p = np.linspace(group.base_rate, group.scores[0], 120)
        curves[name] = {"p": p.tolist(), "q": group.q_min(p).tolist(), "base_rate": group.base_rate}
    try:
        region = feasible_region(groups)
    except NoSufficientClassifier as error:
        return {"curves": curves, "why": str(error)}
    return {
        "curves": curves,
        "vertices": region.vertices.tolist(),
        "active": [names[i] for i in region.active_group],
        "p_low": region.p_low,
        "q_top": region.q_top,
    }

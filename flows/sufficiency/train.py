"""Every method on every population, and on resplits of the people: fitted on one half, judged on the other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field

from components.fairness.decision_rules import group_rates, rate_gap, rates
from components.fairness.feasible_region import NoSufficientClassifier
from components.fairness.group_baselines import (
    NoThreshold,
    Rules,
    demographic_parity,
    equalised_odds,
    expected_loss,
    matched_thresholds,
    single_threshold,
)
from components.fairness.group_scores import GroupScores
from components.fairness.sufficiency import SufficientSolution, solve_sufficient
from flows.sufficiency.arms import METHODS, OURS
from flows.sufficiency.store import calibrator_for, groups_of, sampled
from tasks import track
from tasks.fanout import fanout
from tasks.params import StageParams


class Params(StageParams):
    costs: list[tuple[float, float]] = Field(
        [(1.0, 1.0)], min_length=1, description="costs of a false positive and a false negative"
    )
    cost_ratio: float | None = Field(
        None, gt=0, description="this cost of a false positive alone, over that of a false negative; null: the list"
    )
    degenerate: Literal["closure", "allow"] = Field("closure", description="groups that are selected whole or not at all")
    style: Literal["mixture", "band"] = Field("mixture", description="how a group's rule randomises")
    bins: int | None = Field(None, ge=2, description="cells of a learned score in resplits; null: as for the populations")
    calibrator: Literal["quantile", "isotonic"] | None = Field(None, description="the same, how cells are made")
    splits: int = Field(50, ge=1, description="resplits of the people")
    parts: int = Field(5, ge=1, description="jobs that a data set's resplits are divided into")


class Job(NamedTuple):
    p: Params
    data: Path
    dataset: str
    splits: range


BASELINES: dict[str, Callable[..., Rules]] = {
    "single threshold": single_threshold,
    "PPV matched": lambda groups, a, b: matched_thresholds(groups, a, b, "ppv"),
    "PPV and FOR matched": matched_thresholds,
    "demographic parity": demographic_parity,
    "equalised odds": equalised_odds,
}


def costs_of(p: Params) -> list[tuple[float, float]]:
    return list(p.costs) if p.cost_ratio is None else [(p.cost_ratio, 1.0)]


def decide(
    groups: list[GroupScores], method: str, cost: tuple[float, float], p: Params
) -> tuple[Rules, SufficientSolution | None]:
    """The rules of a method. Raises NoSufficientClassifier or NoThreshold."""
    if method in BASELINES:
        return BASELINES[method](groups, *cost), None
    found = solve_sufficient(groups, *cost, "loss" if method == OURS else "separation", p.degenerate)
    return found.rules(p.style), found


def gaps_of(table: pd.DataFrame) -> dict[str, float]:
    """How far groups are apart in each rate."""
    return {f"gap of {name.upper()}": rate_gap(table[name]) for name in ("ppv", "for", "tpr", "fpr")}


def on_others(
    counts: list[np.ndarray], positives: list[np.ndarray], rules: list[np.ndarray], cost: tuple[float, float]
) -> dict[str, float]:
    """Loss, accuracy and gaps on people in cells; `rules` per cell."""
    table = pd.DataFrame([rates(c, y, r) for c, y, r in zip(counts, positives, rules, strict=True)])
    total = sum(c.sum() for c in counts)
    false_positive = sum(float((c - y) @ r) for c, y, r in zip(counts, positives, rules, strict=True)) / total
    false_negative = sum(float(y @ (1 - r)) for y, r in zip(positives, rules, strict=True)) / total
    loss = cost[0] * false_positive + cost[1] * false_negative
    return {"loss": loss, "accuracy": 1 - false_positive - false_negative} | gaps_of(table)


def run_job(job: Job) -> list[dict[str, Any]]:
    """Rows of resplits: fitted on a random half of the people, judged on the other."""
    p, sheet = job.p, json.loads((job.data / "datasheet.json").read_text(encoding="utf-8"))["parameters"]
    people = pd.read_parquet(job.data / "samples.parquet")
    people = people[people["dataset"] == job.dataset].reset_index(drop=True)
    rows = []
    for split in job.splits:
        order = np.random.default_rng((31, p.seed, split)).permutation(len(people))
        fitted, others = (people.iloc[part] for part in np.array_split(order, 2))
        cells_by = p.calibrator or sheet["calibrator"], p.bins or sheet["bins"]
        calibrator = calibrator_for(job.dataset, *cells_by, sheet["min_count"])
        calibrator.fit(fitted["raw_score"], fitted["y"], fitted["group"])
        groups, labels = calibrator.group_scores(), [str(x) for x in calibrator.groups_]
        cells = calibrator.cells(others["raw_score"], others["group"])
        counts, positives = [], []
        for label in labels:
            chosen = (others["group"] == label).to_numpy()
            size = len(calibrator.levels_[label])
            counts.append(np.bincount(cells[chosen], minlength=size).astype(float))
            positives.append(np.bincount(cells[chosen], weights=others["y"].to_numpy()[chosen], minlength=size))
        for cost in costs_of(p):
            for method in METHODS:
                row = {"dataset": job.dataset, "split": split, "cost_fp": cost[0], "cost_fn": cost[1], "method": method}
                try:
                    rules, _ = decide(groups, method, cost, p)
                except (NoSufficientClassifier, NoThreshold):
                    rows.append(row | {"feasible": False})
                    continue
                # A rule is per calibrated score; cells of one score share it.
                by_cell = [
                    rule[np.searchsorted(-group.scores, -calibrator.levels_[label])]
                    for rule, group, label in zip(rules, groups, labels, strict=True)
                ]
                rows.append(row | {"feasible": True} | on_others(counts, positives, by_cell, cost))
    return rows


def population_rows(p: Params, table: pd.DataFrame, dataset: str) -> tuple[list[dict], list[pd.DataFrame], list[dict]]:
    """Facts, rules and solutions of every method on a population."""
    groups, names = groups_of(table, dataset)
    facts, rules_tables, solutions = [], [], []
    for cost in costs_of(p):
        for method in METHODS:
            row = {"dataset": dataset, "cost_fp": cost[0], "cost_fn": cost[1], "method": method}
            try:
                rules, found = decide(groups, method, cost, p)
            except (NoSufficientClassifier, NoThreshold) as error:
                facts.append(row | {"feasible": False, "why": str(error)})
                continue
            rates_table = group_rates(groups, rules, names)
            facts.append(
                row
                | {
                    "feasible": True,
                    "why": "",
                    "loss": expected_loss(groups, rules, *cost),
                    "accuracy": 1 - expected_loss(groups, rules, 1, 1),
                }
                | gaps_of(rates_table)
            )
            for name, group, rule in zip(names, groups, rules, strict=True):
                rules_tables.append(
                    pd.DataFrame(row | {"group": name, "score": group.scores, "pmf": group.pmf, "accept": rule})
                )
            if found is not None:
                solutions.append(
                    row
                    | {
                        "p": found.p,
                        "q": found.q,
                        "value": found.value,
                        "alpha": found.alpha.tolist(),
                        "lam": found.lam.tolist(),
                    }
                    | {"degenerate": found.degenerate, "active": [names[i] for i in found.active], "groups": names}
                )
    return facts, rules_tables, solutions


def train(p: Params, data: Path, out: Path) -> None:
    """Writes population.parquet, rules.parquet, solutions.json, heldout.parquet and parameters.json."""
    table = pd.read_parquet(data / "groups.parquet")
    datasets = list(dict.fromkeys(table["dataset"]))
    facts, rules, solutions = [], [], []
    for dataset in track.progress(datasets, "populations"):
        found = population_rows(p, table, dataset)
        facts += found[0]
        rules += found[1]
        solutions += found[2]
    pd.DataFrame(facts).to_parquet(out / "population.parquet", index=False)
    pd.concat(rules, ignore_index=True).to_parquet(out / "rules.parquet", index=False)
    jobs = [
        Job(p, data, dataset, range(part, p.splits, p.parts))
        for dataset in sampled(datasets)
        for part in range(min(p.parts, p.splits))
    ]
    rows: list[dict[str, Any]] = []
    fanout(run_job, jobs, label="resplits", threads=p.threads, seed=p.seed, on_result=lambda job, found: rows.extend(found))
    columns = ["dataset", "split", "cost_fp", "cost_fn", "method", "feasible", "loss", "accuracy"]
    held = pd.DataFrame(rows, columns=[*columns, *(f"gap of {name}" for name in ("PPV", "FOR", "TPR", "FPR"))])
    held = held.sort_values(["dataset", "split", "cost_fp", "cost_fn"], kind="stable").reset_index(drop=True)
    held.to_parquet(out / "heldout.parquet", index=False)
    for (dataset, method), part in held[held["feasible"].astype(bool)].groupby(["dataset", "method"]):
        means = part[["loss", "accuracy", "gap of PPV", "gap of FOR"]].astype(float).mean()
        track.run(
            f"{dataset} {method}",
            params={"dataset": dataset, "method": method},
            metrics={k: float(v) for k, v in means.items()},
        )
    for name, content in (("solutions", solutions), ("parameters", p.model_dump())):
        (out / f"{name}.json").write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")

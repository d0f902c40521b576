"""Figures, tables and text of the report; every number in the text is computed from the metrics."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pydantic import Field

from components.stats import Metrics
from flows.sufficiency import paper
from flows.sufficiency.arms import DATASETS, METHODS, OURS
from flows.sufficiency.evaluate import named
from tasks.params import StageParams
from tasks.report import COLOURS, Report, interval, style

PALETTE = ("blue", "orange", "green", "purple", "sky", "yellow")
BAR_COLOURS = dict(zip(METHODS, ("black", "sky", "blue", "orange", "green", "vermillion", "purple"), strict=True))


class Params(StageParams):
    shown: list[str] = Field(["compas2", "fico4"], min_length=1, description="data sets whose regions and rules are drawn")


def region_figure(region: dict, solutions: dict[str, dict], rules: pd.DataFrame) -> Figure:
    """Each group's possible pairs, what all can have, both optima, and where a single threshold leaves each group."""
    fig, axis = plt.subplots(figsize=(7.4, 4.8))
    colours = dict(zip(region["curves"], PALETTE, strict=False))
    for name, curve in region["curves"].items():
        axis.plot(curve["p"], curve["q"], color=COLOURS[colours[name]], lw=1.2, label=name)
        axis.fill_between(curve["p"], curve["q"], curve["base_rate"], color=COLOURS[colours[name]], alpha=0.08, lw=0)
        rows = rules[(rules["method"] == "single threshold") & (rules["group"] == name)]
        chosen, hit = rows["pmf"] * rows["accept"], rows["pmf"] * rows["accept"] * rows["score"]
        left, missed = rows["pmf"] * (1 - rows["accept"]), rows["pmf"] * (1 - rows["accept"]) * rows["score"]
        if chosen.sum() > 0 and left.sum() > 0:
            axis.plot(hit.sum() / chosen.sum(), missed.sum() / left.sum(), "s", color=COLOURS[colours[name]], ms=7, mec="black")
    if "vertices" in region:
        p, q = np.array(region["vertices"]).T
        axis.fill_between(
            p, q, region["q_top"], facecolor="none", edgecolor="0.35", hatch="///", lw=0, label="possible for all"
        )
        for a, b, name in zip(region["vertices"][:-1], region["vertices"][1:], region["active"], strict=True):
            axis.plot([a[0], b[0]], [a[1], b[1]], color=COLOURS[colours[name]], lw=3.2, solid_capstyle="butt")
    for method, marker in ((OURS, "*"), ("separation", "P")):
        if method in solutions:
            found = solutions[method]
            axis.plot(
                found["p"],
                found["q"],
                marker,
                color="black",
                ms=13 if marker == "*" else 9,
                mfc=COLOURS["vermillion"],
                label=method,
            )
    axis.plot([], [], "s", color="0.6", mec="black", label="single threshold, per group")
    axis.set_xlabel("precision (PPV)")
    axis.set_ylabel("false omission rate (FOR)")
    fig.legend(loc="outside lower center", ncol=4)
    return fig


def price_figure(facts: pd.DataFrame) -> Figure:
    """Loss above that of a single threshold, per data set and cost."""
    datasets = list(dict.fromkeys(facts["dataset"]))
    costs = list(dict.fromkeys(zip(facts["cost_fp"], facts["cost_fn"], strict=True)))
    fig, axes = plt.subplots(1, len(costs), figsize=(4.2 * len(costs), 4.0), sharey=True, squeeze=False)
    shown = [method for method in METHODS if method != "single threshold"]
    for axis, cost in zip(axes[0], costs, strict=True):
        part = facts[(facts["cost_fp"] == cost[0]) & (facts["cost_fn"] == cost[1])].set_index(["dataset", "method"])["loss"]
        for place, method in enumerate(shown):
            heights = [
                100 * (part.get((d, method), np.nan) / part[d, "single threshold"] - 1)
                if (d, "single threshold") in part
                else np.nan
                for d in datasets
            ]
            axis.bar(
                np.arange(len(datasets)) + 0.13 * (place - 2.5), heights, 0.12, color=COLOURS[BAR_COLOURS[method]], label=method
            )
        axis.set_xticks(range(len(datasets)), datasets, rotation=30, ha="right")
        axis.set_title(f"costs {named(cost)}")
    axes[0, 0].set_ylabel("loss above a single threshold's (%)")
    axes[0, 0].set_yscale("symlog", linthresh=10)
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncol=6)
    return fig


def rules_figure(rules: pd.DataFrame, dataset: str) -> Figure:
    """Probability of acceptance by score, group by group, of both sufficient decisions and of the single threshold."""
    groups = list(dict.fromkeys(rules["group"]))
    fig, axes = plt.subplots(1, len(groups), figsize=(3.2 * len(groups) + 1, 3.2), sharey=True, squeeze=False)
    for axis, group in zip(axes[0], groups, strict=True):
        for method, dashes in (("single threshold", ":"), (OURS, "-"), ("separation", "--")):
            rows = rules[(rules["group"] == group) & (rules["method"] == method)].sort_values("score")
            axis.step(rows["score"], rows["accept"], where="mid", color=COLOURS[BAR_COLOURS[method]], ls=dashes, label=method)
        axis.set_title(group)
        axis.set_xlabel("calibrated score")
    axes[0, 0].set_ylabel("probability of acceptance")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncol=3)
    return fig


def heldout_figure(held: pd.DataFrame) -> Figure:
    """Gaps of both rates over the resplits."""
    datasets = list(dict.fromkeys(held["dataset"]))
    fig, axes = plt.subplots(2, len(datasets), figsize=(3.0 * len(datasets) + 1, 5.4), sharey="row", squeeze=False)
    for column, dataset in enumerate(datasets):
        for row, name in enumerate(("gap of PPV", "gap of FOR")):
            axis = axes[row, column]
            values = [held[(held["dataset"] == dataset) & (held["method"] == m)][name].dropna().astype(float) for m in METHODS]
            boxes = axis.boxplot(values, patch_artist=True, widths=0.65, showfliers=False, medianprops={"color": "black"})
            for box, method in zip(boxes["boxes"], METHODS, strict=True):
                box.set_facecolor(COLOURS[BAR_COLOURS[method]])
                box.set_alpha(0.55)
            axis.set_xticks(
                range(1, len(METHODS) + 1), list(METHODS) if row else [""] * len(METHODS), rotation=60, ha="right", fontsize=8
            )
            if not row:
                axis.set_title(f"{dataset} (n = {held[held['dataset'] == dataset]['split'].nunique()} resplits)")
    axes[0, 0].set_ylabel("gap of PPV")
    axes[1, 0].set_ylabel("gap of FOR")
    return fig


def percent(x: float) -> str:
    return f"{100 * x:.2f}"


def population_table(facts: pd.DataFrame, cost: tuple[float, float]) -> list[list[str]]:
    rows = facts[(facts["cost_fp"] == cost[0]) & (facts["cost_fn"] == cost[1])]
    body = []
    for row in rows.to_dict("records"):
        if not row["feasible"]:
            body.append([row["dataset"], row["method"], *["–"] * 6])
            continue
        gaps = [percent(row[f"gap of {name}"]) for name in ("PPV", "FOR", "TPR", "FPR")]
        body.append([row["dataset"], row["method"], f"{row['loss']:.4f}", percent(row["accuracy"]), *gaps])
    return body


def price_table(facts: pd.DataFrame, costs: list[tuple[float, float]]) -> list[list[str]]:
    """Per data set and costs: loss above a single threshold's, of the sufficient decision and of the one aimed at separation."""
    good = facts[facts["feasible"]].set_index(["dataset", "cost_fp", "cost_fn", "method"])["loss"]
    body = []
    for dataset in dict.fromkeys(facts["dataset"]):
        cells = []
        for a, b in costs:
            single, *losses = (good.get((dataset, a, b, m)) for m in ("single threshold", OURS, "separation"))
            cells.append(" / ".join("–" if x is None or single is None else f"{100 * (x / single - 1):+.1f}" for x in losses))
        body.append([DATASETS[dataset], *cells])
    return body


def report(p: Params, metrics: Metrics, data: Path, train: Path, evaluate: Path, out: Path) -> None:
    """Writes the page, the same as Markdown, the figures and the verdicts."""
    facts, rules, held = (pd.read_parquet(train / f"{name}.parquet") for name in ("population", "rules", "heldout"))
    solutions = json.loads((train / "solutions.json").read_text(encoding="utf-8"))
    trained = json.loads((train / "parameters.json").read_text(encoding="utf-8"))
    regions = json.loads((evaluate / "regions.json").read_text(encoding="utf-8"))
    sheet = json.loads((data / "datasheet.json").read_text(encoding="utf-8"))
    costs = list(dict.fromkeys(zip(facts["cost_fp"], facts["cost_fn"], strict=True)))
    middle = next((cost for cost in costs if cost[0] == cost[1]), costs[0])
    at = (facts["cost_fp"] == middle[0]) & (facts["cost_fn"] == middle[1])
    with style():
        r = Report(paper, metrics, out)
        r.section("What is possible")
        r.text(
            "A decision has precision p and false omission rate q in a group if p lies between the group's base rate and its highest score, and q "
            "between a curve, that of its threshold rules, and the base rate. All groups can have the pairs that lie in all of these regions. A "
            "single threshold puts each group on its own curve, in different places."
        )
        for dataset in [name for name in p.shown if name in regions]:
            chosen = {s["method"]: s for s in solutions if s["dataset"] == dataset and (s["cost_fp"], s["cost_fn"]) == middle}
            part = rules[(rules["dataset"] == dataset) & (rules["cost_fp"] == middle[0]) & (rules["cost_fn"] == middle[1])]
            r.figure(
                region_figure(regions[dataset], chosen, part),
                f"region_{dataset}",
                caption=f"{DATASETS[dataset]}, costs {named(middle)}. Thick: the boundary's arcs, in the colour of the group whose rule is a threshold there.",
                alt="Regions of precision and false omission rate by group, their intersection, both optima and the single threshold's points.",
            )
            r.figure(
                rules_figure(part, dataset),
                f"rules_{dataset}",
                caption=f"{DATASETS[dataset]}: who is accepted. Between 0 and 1 the decision is drawn.",
                alt="Probability of acceptance against the calibrated score, one panel per group.",
            )
        grid = metrics["sufficient - grid"]
        r.text(
            f"Optimality was checked on {grid['population/problems']['mean']:.0f} problems, data sets and random ones, against "
            f"{grid['population/pairs']['mean']:,.0f} pairs that linear programmes found feasible: the solution's loss is at most "
            f"{grid['population/loss']['mean']:.1e} above the least of theirs (it is below it where this is negative)."
        )
        r.section("The price of sufficiency")
        r.figure(
            price_figure(facts),
            "price",
            caption="On the populations that the scores are calibrated on. Linear up to 10 %, logarithmic above. A missing bar: no such decision.",
            alt="Bars of loss above a single threshold's, by data set, method and cost.",
        )
        r.table(
            ["data set", *(f"costs {named(cost)}" for cost in costs)],
            price_table(facts, costs),
            caption="Loss above a single threshold's, %: the sufficient decision / the one that is aimed at separation, whatever the costs.",
        )
        whole = [
            f"{s['dataset']} at {named((s['cost_fp'], s['cost_fn']))} ({s['method']})" for s in solutions if s["degenerate"]
        ]
        if whole:
            r.text("Degenerate optima, with a group selected whole or not at all: " + ", ".join(whole) + ".")
        names = ["data set", "method", "loss", "accuracy (%)", "PPV gap", "FOR gap", "TPR gap", "FPR gap"]
        r.table(
            names,
            population_table(facts[at], middle),
            caption=f"Costs {named(middle)}; gaps in percentage points, largest minus least over the groups.",
        )
        missing = facts[~facts["feasible"]].drop_duplicates(["dataset", "why"])
        if len(missing):
            r.text(
                "No sufficient decision: " + "; ".join(f"{DATASETS[x.dataset]}: {x.why}" for x in missing.itertuples()) + "."
            )
        if len(held):
            part = held[(held["cost_fp"] == middle[0]) & (held["cost_fn"] == middle[1])]
            r.section("On other people")
            r.text(
                f"Fitted on a random half of the people and judged on the other, {trained['splits']} times, costs {named(middle)}. Intervals are over "
                "resplits, which share people: they say how much a resplit matters, not how much another sample would."
            )
            r.figure(
                heldout_figure(part),
                "heldout",
                caption="Boxes: quartiles over resplits; whiskers: 1.5 times their distance.",
                alt="Box plots of the gaps of precision and false omission rate by method and data set.",
            )
            lines = []
            for method in METHODS:
                cells = metrics.get(f"{method} - {OURS}", {})
                for dataset in dict.fromkeys(part["dataset"]):
                    if f"{dataset}/held-out gap of FOR" in cells:
                        ppv, omitted, accuracy = (
                            cells[f"{dataset}/held-out {x}"] for x in ("gap of PPV", "gap of FOR", "accuracy")
                        )
                        lines.append(
                            [
                                dataset,
                                method,
                                interval(ppv, 4, signed=True),
                                interval(omitted, 4, signed=True),
                                interval(accuracy, 4, signed=True),
                            ]
                        )
            r.table(
                ["data set", "method", "PPV gap", "FOR gap", "accuracy"],
                lines,
                caption="Each method minus the sufficient decision, paired by resplit: above 0 its gap is larger, or it is more accurate.",
            )
        r.section("Data")
        r.table(
            ["source", "rows", "of what", "outcome", "licence"],
            [[name, f"{s['rows']:,}", s["unit"], s["outcome"], s["licence"]] for name, s in sheet["sources"].items()],
        )
        r.parameters(sheet["parameters"], label="stage data")
        r.parameters(trained, label="stage train")
        r.write()

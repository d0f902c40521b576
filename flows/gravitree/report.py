"""Figures, tables and text of the report; every number in the text is computed from the metrics."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import Field

from components.stats import Metrics
from components.trees.tree import Leaf, Tree, from_dict, leaves
from flows.gravitree import paper
from flows.gravitree.arms import DATASETS, LADDER, METHODS
from tasks.params import StageParams
from tasks.report import COLOURS, Report, interval, plus_minus, style

MARKS = {
    "rule list": ("s", "blue"),
    "rule list, same depth": ("s", "sky"),
    "greedy list": ("v", "purple"),
    "falling": ("o", "vermillion"),
    "sparsest falling": ("*", "vermillion"),
    "ordinary": ("D", "green"),
    "CART": ("^", "black"),
    "CART, 7 leaves": ("^", "orange"),
}


class Params(StageParams):
    shown: str = Field("compas", description="data set whose trees are drawn")
    shown_split: int = Field(0, ge=0, description="split whose trees are drawn")


def draw_tree(axis: Axes, tree: Tree, names: list[str]) -> None:
    """Conditions at the splits, risk and support at the leaves; a leaf's colour is its risk."""
    order = [0]
    deepest = max(at for _, at in leaves(tree))

    def place(node: Tree, level: int) -> float:
        y = -level
        if isinstance(node, Leaf):
            x = float(order[0])
            order[0] += 1
            shade = plt.get_cmap("cividis")(node.risk)
            dark = sum(shade[:3]) < 1.4
            axis.text(x, y, f"{node.risk:.2f}\n{node.n}", ha="center", va="center", fontsize=7.5, color="white" if dark else "black",
                      bbox={"boxstyle": "round,pad=0.3", "fc": shade, "ec": "0.3", "lw": 0.6})  # fmt: skip
            return x
        # The side where the condition holds is on the left.
        children = [place(node.one, level + 1), place(node.zero, level + 1)]
        x = sum(children) / 2
        for child, word in zip(children, ("yes", "no"), strict=True):
            axis.plot([x, child], [y - 0.12, y - 0.88], color="0.55", lw=0.9, zorder=0)
            axis.text((x + child) / 2, y - 0.5, word, fontsize=6, color="0.4", ha="center", va="center",
                      bbox={"fc": "white", "ec": "none", "pad": 0.4})  # fmt: skip
        axis.text(
            x,
            y,
            names[node.feature],
            ha="center",
            va="center",
            fontsize=7.5,
            bbox={"boxstyle": "round,pad=0.25", "fc": "white", "ec": "0.5", "lw": 0.6},
        )
        return x

    place(tree, 0)
    axis.set_xlim(-0.8, order[0] - 0.2)
    axis.set_ylim(-deepest - 0.6, 0.5)
    axis.set_axis_off()


def trees_figure(drawn: dict, names: list[str]) -> Figure:
    shown = {
        "rule list, same depth": "optimal rule list",
        "falling": "optimal falling tree",
        "sparsest falling": "sparsest member of its set",
        "ordinary": "optimal ordinary tree",
    }
    fig, axes = plt.subplots(2, 2, figsize=(12, 8.4))
    for axis, (method, words) in zip(axes.flat, shown.items(), strict=True):
        draw_tree(axis, from_dict(drawn[method]), names)
        axis.set_title(words)
    return fig


def members_figure(members: pd.DataFrame, metrics: Metrics, datasets: list[str], split: int) -> Figure:
    """Test AUC against conditions for those at the highest risk: members of one split, methods as means over splits."""
    fig, axes = plt.subplots(1, len(datasets), figsize=(3.4 * len(datasets) + 0.6, 4.0), squeeze=False)
    for axis, dataset in zip(axes[0], datasets, strict=True):
        rows = members[(members["dataset"] == dataset) & (members["split"] == split)]
        axis.scatter(rows["top sparsity"], rows["auc"], s=8, color="0.7", lw=0, label=f"near-optimal trees, split {split}")
        for method, (marker, colour) in MARKS.items():
            cells = metrics.get(method, {})
            if f"{dataset}/top sparsity" in cells:
                at = cells[f"{dataset}/top sparsity"]["mean"], cells[f"{dataset}/auc"]["mean"]
                axis.plot(*at, marker, color=COLOURS[colour], ms=12 if marker == "*" else 7, mec="black", mew=0.5, label=method)
        axis.set_title(f"{dataset} ({len(rows)} trees)")
        axis.set_xlabel("conditions for the tenth\nat the highest risk")
    axes[0, 0].set_ylabel("test AUC")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncol=5)
    return fig


def budget_figure(metrics: Metrics, datasets: list[str], depths: list[int], budgets: list[int]) -> Figure:
    """Objective and AUC by branchings, a line per depth."""
    fig, axes = plt.subplots(2, len(datasets), figsize=(3.2 * len(datasets) + 0.6, 5.4), squeeze=False, sharex=True)
    palette = ("sky", "blue", "vermillion", "green", "purple")
    for column, dataset in enumerate(datasets):
        for row, quality in enumerate(("objective", "auc")):
            axis = axes[row, column]
            for deep, colour in zip(depths, palette, strict=False):
                cells = [metrics[f"depth {deep}, branching {b}"][f"{dataset}/{quality}"] for b in budgets]
                means = [cell["mean"] for cell in cells]
                axis.plot(budgets, means, "o-", color=COLOURS[colour], label=f"depth {deep}")
                if all(cell["ci95"] for cell in cells):
                    axis.fill_between(
                        budgets, *np.array([cell["ci95"] for cell in cells]).T, color=COLOURS[colour], alpha=0.12, lw=0
                    )
            axis.set_xticks(budgets)
        axes[0, column].set_title(dataset)
        axes[1, column].set_xlabel("branchings allowed")
    axes[0, 0].set_ylabel("optimal objective")
    axes[1, 0].set_ylabel("test AUC")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncol=len(depths))
    return fig


def bounds_figure(metrics: Metrics) -> Figure:
    """Subproblems under each set of bounds, over those without any."""
    fig, axis = plt.subplots(figsize=(8.4, 3.6))
    steps = [words for words, _ in LADDER]
    for offset, (where, colour) in enumerate((("lists", "blue"), ("one branching", "orange"))):
        cells = [metrics.get(f"{words} / none", {}).get(f"{where}/subproblems") for words in steps]
        heights = [np.nan if cell is None else cell["mean"] for cell in cells]
        axis.bar(np.arange(len(steps)) + 0.38 * (offset - 0.5), heights, 0.36, color=COLOURS[colour], label=where)
    axis.axhline(1, color="0.4", lw=0.8)
    axis.set_yscale("log")
    axis.set_xticks(range(len(steps)), steps)
    axis.set_ylabel("subproblems over\nthose without bounds")
    axis.legend()
    return fig


def quality_rows(metrics: Metrics, datasets: list[str]) -> list[list[str]]:
    rows = []
    for dataset in datasets:
        for method in METHODS:
            cells = metrics.get(method, {})
            if f"{dataset}/auc" in cells:
                columns = [
                    ("auc", 3),
                    ("brier", 3),
                    ("balanced accuracy", 3),
                    ("top sparsity", 2),
                    ("conditions", 2),
                    ("leaves", 1),
                ]
                rows.append(
                    [dataset, method, *(plus_minus(cells.get(f"{dataset}/{name}"), digits) for name, digits in columns)]
                )
    return rows


def verdict_line(name: str, cells: dict, quality: str, unit: str, digits: int) -> str:
    cell = cells[f"all/{quality}"]
    parts = ", ".join(
        f"{k.split('/')[0]} {v['mean']:+.{digits}f}"
        for k, v in cells.items()
        if k.endswith(f"/{quality}") and not k.startswith("all/")
    )
    return f"- {name}: {interval(cell, digits, signed=True)} {unit} ({parts})"


def report(p: Params, metrics: Metrics, data: Path, train: Path, out: Path) -> None:
    """Writes the page, the same as Markdown, the figures and the verdicts."""
    members = pd.read_parquet(train / "members.parquet")
    trees = json.loads((train / "trees.json").read_text(encoding="utf-8"))
    trained = json.loads((train / "parameters.json").read_text(encoding="utf-8"))
    columns = json.loads((data / "columns.json").read_text(encoding="utf-8"))
    sheet = json.loads((data / "datasheet.json").read_text(encoding="utf-8"))
    datasets = list(dict.fromkeys(members["dataset"]))
    place = f"{p.shown}-{p.shown_split}"
    if place not in trees:
        place = next(iter(trees))
    splits = metrics["falling"][f"{datasets[0]}/auc"]["n"]
    with style():
        r = Report(paper, metrics, out)
        r.section("Trees to read")
        r.text(
            f"Risk on the leaves, with the number of training rows below it; {DATASETS.get(place.rsplit('-', 1)[0], place)}, split "
            f"{place.rsplit('-', 1)[1]}. In a falling tree a leaf beside a further condition is at least as risky as everything behind that condition."
        )
        r.figure(
            trees_figure(trees[place], columns[place]),
            "trees",
            caption=f"Depth {trained['depth']} at most, {trained['chosen_branching']} branching in the falling trees, a leaf costs {trained['lam']:g}.",
            alt="Four trees: rule list, falling tree, the sparsest member of its set, ordinary tree.",
        )
        r.section("What they are worth")
        r.table(
            ["data set", "method", "AUC", "Brier", "balanced accuracy", "top sparsity", "conditions", "leaves"],
            quality_rows(metrics, datasets),
            caption=f"Test rows, n = {splits} splits, mean and half the width of the 95% interval. Top sparsity: conditions for the tenth at the highest risk.",
        )
        r.text("; ".join(f"{name}: {words}" for name, words in METHODS.items()) + ".")
        auc = [verdict_line(name, metrics[name], "auc", "AUC", 4) for name in metrics if name.startswith("falling - ")]
        sparse = [
            verdict_line(name, cells, "top sparsity", "conditions", 2)
            for name, cells in metrics.items()
            if "all/top sparsity" in cells and " - " in name
        ]
        r.text(
            "Differences paired by split, over all data sets, with each data set's mean. Intervals pool splits of the same rows: they say how much a "
            "split matters. By AUC:\n\n"
            + "\n".join(auc)
            + "\n\nBy conditions for those at the highest risk (below 0: fewer):\n\n"
            + "\n".join(sparse)
        )
        r.section("All near-optimal trees")
        r.figure(
            members_figure(members, metrics, datasets, p.shown_split),
            "members",
            caption=f"Grey: the cheapest {trained['judged']} trees within {100 * trained['epsilon']:g} % of the optimum; methods are means over splits.",
            alt="Scatter of AUC against conditions, one panel per data set, baselines marked.",
        )
        sizes = ", ".join(f"{d} {plus_minus(metrics['falling'][f'{d}/members'], 0)}" for d in datasets)
        r.text(f"Trees in the set, counted without a limit: {sizes}.")
        search = [name for name in metrics if name.startswith("depth ")]
        if search:
            depths = sorted({int(name.split(",")[0].split()[1]) for name in search})
            budgets = sorted({int(name.rsplit(" ", 1)[1]) for name in search})
            r.section("From lists to trees")
            r.figure(
                budget_figure(metrics, datasets, depths, budgets),
                "budgets",
                caption=f"No branching: rule lists. Bands are 95% intervals over {splits} splits.",
                alt="Optimal objective and test AUC against the number of branchings, one line per depth.",
            )
            r.section("What bounds save")
            r.figure(
                bounds_figure(metrics),
                "bounds",
                caption=f"Rule lists of depth {trained['search_depths'][0]} and trees with one branching of depth {trained['search_depths'][1]}; bounds are added from left to right.",
                alt="Bars of the subproblems under each set of bounds over those without bounds, logarithmic.",
            )
            lists, one = (metrics["all / none"][f"{where}/subproblems"] for where in ("lists", "one branching"))
            words = "fewer" if one["mean"] < 1 else "**more**"
            r.text(
                f"With all bounds the search for lists expands {plus_minus(lists, 3)} of the subproblems. With one branching it expands {words}, "
                f"{plus_minus(one, 2)} times as many: caps and budgets differ from parent to parent, and a row set that was solved under one of them "
                "is expanded again when more is asked of it; the search as it is used leaves them out there. `python -m benchmarks.falling_trees` measures what either costs in time."
            )
        r.section("Data")
        r.table(
            ["data set", "rows", "outcome (%)", "of what", "source", "licence"],
            [
                [n, f"{s['rows']:,}", f"{100 * s['share']:.1f}", s.get("unit", ""), s.get("source", ""), s.get("licence", "")]
                for n, s in sheet.items()
            ],
        )
        r.parameters(trained, label="stage train")
        r.write()

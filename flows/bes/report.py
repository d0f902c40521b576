"""Figures, table and text of the report; every number in the text is computed from the metrics."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pydantic import Field
from safetensors.numpy import load_file

from components.stats import Metrics
from flows.bes import paper
from flows.bes.arms import ABLATIONS, LINK_ARMS, METHODS
from flows.bes.store import read_graph, read_parameters, read_parts
from tasks.params import StageParams
from tasks.report import COLOURS, Report, interval, style

NAMES = {"cora": "Cora", "csbm": "planted graphs", "citeseer": "CiteSeer", "pubmed": "PubMed", "wikics": "WikiCS"}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
LINES = {"GCN": ("orange", "s", "--"), "frozen": ("blue", "^", "-."), "BES": ("vermillion", "o", "-")}


class Params(StageParams):
    shown_split: int = Field(0, ge=0, description="split whose embeddings are drawn")


def embedding_figure(p: Params, data: Path, train: Path, dataset: str) -> Figure:
    """Training embeddings on the two main axes of the unshaped ones: both panels share the projection."""
    seed = p.shown_split
    checkpoint = load_file(train / "checkpoints" / f"{dataset}-{seed}.safetensors")
    y, part = read_graph(data, dataset, seed).y, read_parts(data)[dataset, seed]
    rows = np.flatnonzero(part == 0)
    before = checkpoint["frozen/z"].astype(np.float64)
    centre = before[rows].mean(0)
    axes_of = np.linalg.svd(before[rows] - centre, full_matrices=False)
    directions, share = axes_of.Vh[:2], axes_of.S[:2] ** 2 / (axes_of.S**2).sum()
    fig, panels = plt.subplots(1, 2, figsize=(9.5, 4.6), sharex=True, sharey=True)
    palette = list(COLOURS.values())
    for axis, method, title in zip(panels, ("frozen", "BES"), ("shaping off", "after BES"), strict=True):
        points = (checkpoint[f"{method}/z"] - centre) @ directions.T
        hard = checkpoint[f"{method}/hard"]
        for label in np.unique(y[rows]):
            members = rows[y[rows] == label]
            colour, marker = palette[label % 7], MARKERS[label % len(MARKERS)]
            axis.scatter(*points[members].T, s=9, color=colour, marker=marker, alpha=0.5, lw=0, label=f"class {label}")
        axis.scatter(*points[hard].T, s=22, facecolor="none", edgecolor="black", lw=0.5, label="hard node (B*)")
        axis.set_title(f"{title}: {hard.size} hard nodes")
        # A few nodes lie so far out that they would leave the boundary a blot; the frame holds 99% on each axis.
        if method == "frozen":
            low, high = np.quantile(points[rows], [0.005, 0.995], axis=0)
            axis.set_xlim(low[0] - 1, high[0] + 1)
            axis.set_ylim(low[1] - 1, high[1] + 1)
        axis.set_xlabel(f"principal axis 1 ({share[0]:.0%} of variance)")
    panels[0].set_ylabel(f"principal axis 2 ({share[1]:.0%} of variance)")
    fig.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncol=5, markerscale=1.3)
    return fig


def difference_figure(metrics: Metrics, datasets: list[str]) -> Figure:
    """Paired differences per split, with the mean and its 95% interval."""
    pairs = ["BES - GCN", "BES - frozen", "BES - all", "BES - random", "BES - best baseline"]
    fig, panels = plt.subplots(1, len(datasets), figsize=(4.4 * len(datasets) + 1, 3.6), sharey=True, squeeze=False)
    for axis, dataset in zip(panels[0], datasets, strict=True):
        for position, pair in enumerate(pairs):
            cell = metrics[pair][f"{dataset}/accuracy"]
            # Splits side by side rather than on top of each other.
            offsets = np.linspace(-0.18, 0.18, cell["n"]) if cell["n"] > 1 else [0.0]
            axis.scatter(
                cell["values"],
                position + np.asarray(offsets),
                s=16,
                color=COLOURS["sky"],
                label="one split" if not position else None,
            )
            if cell["ci95"] is not None:
                axis.plot(
                    cell["ci95"],
                    [position] * 2,
                    color="black",
                    lw=1.6,
                    label="95% interval of the mean" if not position else None,
                )
            axis.scatter(
                [cell["mean"]],
                [position],
                s=42,
                marker="D",
                color=COLOURS["vermillion"],
                zorder=3,
                label="mean" if not position else None,
            )
        axis.axvline(0, color="#565e68", lw=1)
        axis.set_title(f"{NAMES[dataset]} (n = {cell['n']} splits)")
        axis.set_xlabel("difference in test accuracy (percentage points)")
        axis.set_yticks(range(len(pairs)), pairs)
    panels[0][0].invert_yaxis()
    fig.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncol=3)
    return fig


def shift_figure(predictions: pd.DataFrame, datasets: list[str]) -> Figure:
    """Accuracy by the share of foreign training neighbours before shaping; bars of one standard error over splits."""
    fig, panels = plt.subplots(1, len(datasets), figsize=(4.6 * len(datasets) + 0.6, 3.9), sharey=True, squeeze=False)
    for axis, dataset in zip(panels[0], datasets, strict=True):
        for shift, method in enumerate(LINES):
            colour, marker, dashes = LINES[method]
            rows = predictions[(predictions["dataset"] == dataset) & (predictions["method"] == method)]
            by_split = 100 * rows.pivot_table(index="shift_before", columns="seed", values="correct", aggfunc="mean")
            error = by_split.std(axis=1, ddof=1) / np.sqrt(by_split.count(axis=1))
            x = by_split.index.to_numpy() + 0.012 * (shift - 1)
            axis.errorbar(
                x,
                by_split.mean(axis=1),
                error.fillna(0),
                color=COLOURS[colour],
                marker=marker,
                ls=dashes,
                capsize=2,
                label=method,
            )
        rows = predictions[(predictions["dataset"] == dataset) & (predictions["method"] == "BES")]
        share = rows["shift_before"].value_counts(normalize=True).sort_index()
        axis.set_xticks(share.index, [f"{value:.1f}\n{part:.0%}" for value, part in share.items()])
        axis.set_title(f"{NAMES[dataset]} (n = {rows['seed'].nunique()} splits)")
        axis.set_xlabel("shift score of the test node on frozen embeddings\n(below: share of test nodes)")
    panels[0][0].set_ylabel("test accuracy (%)")
    panels[0][0].set_ylim(0, 102)
    panels[0][0].legend(loc="lower left")
    return fig


def epoch_figure(boundary: pd.DataFrame, datasets: list[str]) -> Figure:
    """Hard nodes, displacement and gravity loss over epochs, mean and range over splits."""
    quantities = {
        "n_hard": "hard nodes |B*|",
        "displacement": "mean displacement\n(% of mean norm)",
        "gravity": "gravity loss (nats)",
    }
    boundary = boundary[(boundary["task"] == "nodes") & (boundary["method"] == "BES")]
    boundary = boundary.assign(displacement=100 * boundary["displacement"])
    fig, panels = plt.subplots(1, 3, figsize=(10, 3.5))
    for axis, (column, label) in zip(panels, quantities.items(), strict=True):
        for position, dataset in enumerate(datasets):
            colour = (COLOURS["blue"], COLOURS["vermillion"], COLOURS["green"], COLOURS["purple"], COLOURS["orange"])[position]
            runs = boundary[boundary["dataset"] == dataset].pivot_table(index="epoch", columns="seed", values=column)
            axis.plot(
                runs.index,
                runs.mean(axis=1),
                color=colour,
                ls=("-", "--", "-.", ":", "-")[position],
                label=f"{NAMES[dataset]}, n = {runs.shape[1]}",
            )
            axis.fill_between(runs.index, runs.min(axis=1), runs.max(axis=1), color=colour, alpha=0.15, lw=0)
        axis.set_xlabel("epoch")
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
    fig.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncol=len(datasets))
    return fig


def findings(metrics: Metrics, dataset: str) -> str:
    """What comes from the two views and the decoder, and what from shaping."""

    def cell(method: str, metric: str = "accuracy"):
        return metrics.get(method, {}).get(f"{dataset}/{metric}")

    total, pipeline, shaping = cell("BES - GCN"), cell("frozen - GCN"), cell("BES - frozen")
    boundary, centroid = cell("BES - frozen", "boundary_accuracy"), cell("BES - frozen", "centroid_accuracy")
    lines = [
        f"**{NAMES[dataset]}**, n = {total['n']} splits, percentage points of test accuracy, mean and 95% interval:",
        "",
        f"- BES against the tuned GCN: {interval(total, signed=True)}.",
        f"- BES against a GCN of 16 hidden units, without a choice of width: {interval(cell('BES - GCN, 16 hidden'), signed=True)}.",
        f"- In the difference to the tuned GCN, the two-view encoder and the decoder, without any shaping (frozen - GCN): {interval(pipeline, signed=True)}.",
        f"- In both, shaping (BES - frozen): {interval(shaping, signed=True)}.",
        f"- Against pulling all training nodes: {interval(cell('BES - all'), signed=True)}; as many random ones: {interval(cell('BES - random'), signed=True)}.",
    ]
    if boundary is not None:
        lines.append(f"- At the boundary alone (BES - frozen): {interval(boundary, signed=True)}.")
    if centroid is not None:
        lines.append(
            f"- Judged without the decoder, by the nearest class centroid (BES - frozen): {interval(centroid, signed=True)}."
        )
    return "\n".join(lines)


def movement(boundary: pd.DataFrame, runs: pd.DataFrame, datasets: list[str]) -> str:
    """How far shaping moves embeddings, whether its limit is felt, and when validation stops it."""
    lines = ["How much shaping does:", ""]
    for dataset in datasets:
        chosen = (boundary["task"] == "nodes") & (boundary["method"] == "BES") & (boundary["dataset"] == dataset)
        steps = boundary[chosen]
        epochs = runs[(runs["task"] == "nodes") & (runs["method"] == "BES") & (runs["dataset"] == dataset)]["epoch"]
        first, last = (steps[steps["epoch"] == end] for end in (steps["epoch"].min(), steps["epoch"].max()))
        lines.append(
            f"- {NAMES[dataset]}: a step moves an embedding by {100 * steps['displacement'].mean():.2f}% of the mean norm; the limit "
            f"shortened {100 * (steps['shrink'] < 1).mean():.0f}% of the steps. Hard nodes: {first['n_hard'].mean():.0f} at the first "
            f"epoch, {last['n_hard'].mean():.0f} at the last. Validation chose epoch {epochs.median():.0f} (median)."
        )
    return "\n".join(lines)


def negatives(metrics: Metrics, datasets: list[str]) -> str:
    """The settings known to fail, as measured here."""
    texts = {
        "BES Adam 0.01": "Adam at 0.01 without a limit on the step inflates the embeddings",
        "BES SGD alpha=1": "plain SGD with the gradient scaled to a total displacement of 1 hardly moves anything",
        "BES scale=none": "no limit on the step at the default rate",
        "BES scale=grad": "the released form of the limit, which Adam is nearly invariant to",
        "BES tokens=views": "the two views as tokens that attend to each other",
        "BES slab=centred": "the slab on the decision hyperplane",
        "BES rival": "the loss of the read-me, with rival nodes and negatives alone in the denominator",
    }
    lines = []
    for method, text in texts.items():
        found = [(dataset, metrics.get(f"{method} - frozen", {}).get(f"{dataset}/accuracy")) for dataset in datasets]
        parts = [
            f"{NAMES[dataset]} {interval(cell, signed=True)} (n = {cell['n']})" for dataset, cell in found if cell is not None
        ]
        if parts:
            lines.append(f"- {method}: {text}. Against frozen: {', '.join(parts)}.")
    return "\n".join(lines)


def report(p: Params, metrics: Metrics, data: Path, train: Path, evaluate: Path, out: Path) -> None:
    """Writes the page, the same as Markdown, the figures and the verdicts."""
    predictions = pd.read_parquet(evaluate / "predictions.parquet")
    datasets = list(dict.fromkeys(dataset for dataset, _ in read_parts(data)))
    with style():
        r = Report(paper, metrics, out)
        r.section("What the gain is made of")
        r.text(
            "Epochs and the baselines' widths are chosen on validation nodes; labels of test nodes are blanked before training. *frozen* "
            "is the identical pipeline with shaping off and the same decoder seed, so BES - frozen is what shaping does, and "
            "frozen - GCN what the two views and the decoder do."
        )
        for dataset in datasets:
            r.text(findings(metrics, dataset))
        caption = "Paired differences: methods share split, encoders and decoder seed, so that only these say something; one split's own error is over a point."
        r.figure(
            difference_figure(metrics, datasets),
            "differences",
            caption=caption,
            alt="Dot plot of accuracy differences per split, with means and 95% intervals, for BES against GCN, frozen, all, random and the best baseline.",
        )
        r.section("The boundary")
        caption = "Test accuracy by the share of a node's five nearest training nodes, on frozen embeddings, that carry another label. Bars: one standard error over splits."
        r.figure(
            shift_figure(predictions, datasets),
            "shift",
            caption=caption,
            alt="Lines of test accuracy against the shift score, for GCN, frozen and BES.",
        )
        for dataset in datasets:
            caption = f"{NAMES[dataset]}, split {p.shown_split}: training embeddings, with the hard nodes that shaping pulls. Both panels share the axes of the left one, which frame 99% of its nodes each."
            r.figure(
                embedding_figure(p, data, train, dataset),
                f"embeddings-{dataset}",
                caption=caption,
                alt="Two scatter plots of training embeddings by class, hard nodes circled where classes meet.",
            )
        boundary = pd.read_parquet(train / "boundary.parquet")
        r.text(movement(boundary, pd.read_parquet(train / "runs.parquet"), datasets))
        caption = "Shaping over epochs: mean and range over splits."
        r.figure(
            epoch_figure(boundary, datasets),
            "epochs",
            caption=caption,
            alt="Three line plots over epochs: number of hard nodes, mean displacement and gravity loss.",
        )
        r.section("All methods")
        columns = ["method", *(f"{NAMES[d]}, {kind}" for d in datasets for kind in ("all", "boundary"))]
        rows = [
            [m, *(interval(metrics[m].get(f"{d}/{k}")) for d in datasets for k in ("accuracy", "boundary_accuracy"))]
            for m in METHODS
            if m in metrics
        ]
        counts = {m: metrics[m][f"{datasets[0]}/accuracy"]["n"] for m in ("BES", *ABLATIONS) if m in metrics}
        caption = (
            f"Test accuracy in percent, mean and 95% interval over n = {counts['BES']} splits (variants of BES: n = {min(counts.values())}). Boundary: planted "
            "boundary nodes, or on real graphs test nodes whose shift score exceeds 0.5."
        )
        r.table(columns, rows, caption=caption)
        linked = [d for d in NAMES if f"{d}/link_accuracy" in metrics.get("BES", {})]
        if linked:
            rows = [
                [m, *(interval(metrics[m].get(f"{d}/{k}")) for d in linked for k in ("link_accuracy", "link_auc"))]
                for m in LINK_ARMS
            ]
            columns = ["method", *(f"{NAMES[d]}, {kind}" for d in linked for kind in ("accuracy", "AUC"))]
            n = metrics["BES"][f"{linked[0]}/link_accuracy"]["n"]
            r.table(
                columns,
                rows,
                caption=f"Link prediction in percent, n = {n} splits of the edges. Encoders trained for links, or (label encoders) for labels.",
            )
        if text := negatives(metrics, datasets):
            r.section("Variants and what does not work")
            r.text(
                "Differences to the frozen control in percentage points, on the splits on which the variants run:\n\n" + text
            )
        for stage, folder in (("data", data), ("train", train)):
            r.parameters(read_parameters(folder), label=f"stage {stage}")
        r.parameters(p, label="stage report")
        r.write()

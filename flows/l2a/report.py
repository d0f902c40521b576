"""Figures, tables and text of the report; every number in the text is computed from the metrics."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from pydantic import Field

from components.stats import Metrics, summarise
from flows.l2a import paper
from flows.l2a.arms import DENSE, METHODS, OURS, TASKS
from tasks.params import StageParams
from tasks.report import COLOURS, Report, interval, plus_minus, style

LINES = {
    "full": ("black", "x", ":"),
    "swa": ("orange", "s", "--"),
    "interleave": ("purple", "v", "--"),
    "random_router": ("sky", "^", "-."),
    "head_router": ("blue", "D", "--"),
    "l2a": ("vermillion", "o", "-"),
}
# Which layers chose a token: none, the first alone, the second alone, both; more than two layers count as these.
FIRED = ("#eceef1", COLOURS["sky"], COLOURS["orange"], COLOURS["green"])


class Params(StageParams):
    shown: int = Field(192, ge=8, description="tokens of the text that is drawn")
    per_line: int = Field(48, ge=8, description="of them in a line")


def strip_figure(p: Params, data: Path, active: np.ndarray, names: list[str]) -> Figure:
    """One text, each token coloured by the layers whose router chose it."""
    with np.load(data / "recall_report.npz", allow_pickle=False) as stored:
        tokens = stored["tokens"][0, : min(p.shown, active.shape[2])]
    lines = -(-len(tokens) // p.per_line)
    fig, axis = plt.subplots(figsize=(11, 0.62 * lines + 0.6))
    axis.set_axis_off()
    for place, token in enumerate(tokens):
        row, column = divmod(place, p.per_line)
        a = active[:, 0, place].astype(bool)
        fired = int(a[0]) + 2 * int(a[1:].any())
        axis.add_patch(plt.Rectangle((column, -row), 0.94, 0.8, facecolor=FIRED[fired], edgecolor="none"))
        name = names[int(token)]
        planted = not name.startswith("b")
        axis.text(
            column + 0.47, -row + 0.4, name if planted else "·", ha="center", va="center", fontsize=6.5 if planted else 9,
            fontweight="bold" if planted else "normal",
        )  # fmt: skip
    axis.set_xlim(0, p.per_line)
    axis.set_ylim(-lines + 0.9, 0.9)
    handles = [Patch(facecolor=c, label=x) for c, x in zip(FIRED, ("skips", "layer 1", "layer 2", "both layers"), strict=True)]
    fig.legend(handles=handles, loc="outside lower center", ncol=4)
    return fig


def distance_figure(rows: pd.DataFrame) -> Figure:
    """Recall accuracy by the distance to the definition."""
    fig, axis = plt.subplots()
    for method, (colour, marker, dashes) in LINES.items():
        found = rows[rows["method"] == method]
        if found.empty:
            continue
        centres, cells = [], []
        for _, group in found[found["n"] > 0].groupby("bin"):
            centres.append((group["from"].iloc[0] + group["to"].iloc[0]) / 2)
            cells.append(summarise((100 * group["hits"] / group["n"]).to_numpy()))
        axis.plot(centres, [cell["mean"] for cell in cells], color=COLOURS[colour], marker=marker, ls=dashes, label=method)
        if all(cell["ci95"] is not None for cell in cells):
            low, high = np.asarray([cell["ci95"] for cell in cells]).T
            axis.fill_between(centres, low, high, color=COLOURS[colour], alpha=0.12, lw=0)
    axis.set_title(f"Recalled values, T = {int(rows['to'].max())} (n = {rows['seed'].nunique()} seeds)")
    axis.set_xlabel("tokens back to the definition")
    axis.set_ylabel("accuracy (%)")
    axis.set_ylim(-3, 103)
    fig.legend(loc="outside lower center", ncol=6)
    return fig


def tradeoff_figure(metrics: Metrics, default: float) -> Figure:
    """Skip rate, loss and recall against the pressure on the router; and without leaks."""
    found = {
        float(name.split("=")[1]): cells
        for name, cells in metrics.items()
        if name.startswith(f"{OURS} lambda=") and "pruned" not in name
    }
    found[default] = metrics[OURS]
    lambdas = sorted(found)
    panels = (("skip rate", "tokens that skip (%)"), ("nll", "loss (nats per symbol)"), ("accuracy", "recall accuracy (%)"))
    fig, axes = plt.subplots(1, 3, figsize=(11, 3.6))
    for axis, (metric, label) in zip(axes, panels, strict=True):
        cells = [found[x][f"recall/{metric}"] for x in lambdas]
        mean = np.asarray([cell["mean"] for cell in cells])
        spread = np.asarray(
            [[0, 0] if c["ci95"] is None else [c["mean"] - c["ci95"][0], c["ci95"][1] - c["mean"]] for c in cells]
        )
        axis.errorbar(lambdas, mean, spread.T, color=COLOURS["vermillion"], marker="o", capsize=3, label="leak as set")
        if without := metrics.get(f"{OURS} leak=0"):
            axis.plot(
                [default], [without[f"recall/{metric}"]["mean"]], "D", color=COLOURS["blue"], ms=7, mfc="none", label="no leak"
            )
        axis.set_xscale("log")
        axis.set_xlabel("full weight of the penalty")
        axis.set_ylabel(label)
    n = sorted({cells["recall/nll"]["n"] for cells in found.values()})
    axes[0].set_title(f"n = {' to '.join(map(str, dict.fromkeys((n[0], n[-1]))))} seeds")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncol=2)
    return fig


def cost_figure(metrics: Metrics, window: int, length: int, layers: int) -> Figure:
    """Operations and cache bytes over those of dense attention, by length: formula as lines, counted as points."""
    lengths = np.geomspace(2 * window, 131072, 60)
    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4.0))
    share = metrics[OURS]["recall/active share"]["mean"] / 100
    near = np.minimum(2 * window / lengths, 1)
    for method, extra in ((OURS, share), ("swa", 0.0), ("interleave", None), (DENSE, 1.0)):
        if method not in metrics or (method in (DENSE, "interleave") and "recall/operations" not in metrics[method]):
            continue
        colour, marker, dashes = LINES[method]
        formula = np.ones_like(lengths) if method == DENSE else 0.5 + 0.5 * near if extra is None else extra + near
        left.plot(lengths, 100 * formula, color=COLOURS[colour], ls=dashes, label=method)
        left.plot([length], [metrics[method]["recall/operations"]["mean"]], marker, color=COLOURS[colour], ms=7)
    left.set_ylabel("operations of attention (% of dense)")
    one = np.minimum(window / lengths, 1)
    cut = metrics[f"{OURS} pruned"]["recall/layers cut"]["mean"]
    lines = [
        (DENSE, np.ones_like(lengths), DENSE, metrics.get(DENSE)),
        (f"{OURS}, not pruned", 1 + one, "interleave", metrics[OURS]),
        (f"{OURS}, {cut:g} of {layers} layers pruned", 1 - cut / layers + one, OURS, metrics[f"{OURS} pruned"]),
        ("swa", one, "swa", metrics.get("swa")),
    ]
    for label, formula, like, cells in lines:
        colour, marker, dashes = LINES[like]
        right.plot(lengths, 100 * formula, color=COLOURS[colour], ls=dashes, label=label)
        if cells:
            right.plot([length], [cells["recall/cache"]["mean"]], marker, color=COLOURS[colour], ms=7)
    right.set_ylabel("key/value cache (% of dense)")
    for axis in (left, right):
        axis.set_xscale("log")
        axis.set_xlabel("tokens of the text")
        axis.legend()
        axis.set_ylim(bottom=0)
    left.set_title(f"W = {window}")
    return fig


def rows_of(metrics: Metrics, task: str) -> list[list[str]]:
    rows = []
    for method in (*METHODS, f"{OURS} pruned"):
        cells = metrics.get(method, {})
        if f"{task}/nll" not in cells:
            continue
        columns = [
            ("nll", 4),
            ("nll recall", 3),
            ("accuracy", 1),
            ("accuracy far", 1),
            ("active share", 1),
            ("operations", 1),
            ("cache", 1),
        ]
        if task != "recall":
            columns = [column for column in columns if "recall" not in column[0] and "accuracy" not in column[0]]
        rows.append([method, *(plus_minus(cells.get(f"{task}/{name}"), digits) for name, digits in columns)])
    return rows


def against(metrics: Metrics, other: str) -> str | None:
    """L2A beside one other method, in a sentence that says who is ahead."""
    cells = metrics.get(f"{OURS} - {other}", {})
    loss = cells.get("recall/relative nll")
    if loss is None:
        return None
    low, high = loss["ci95"] or (loss["mean"], loss["mean"])
    ahead = "L2A is ahead" if high < 0 else f"**{other} is ahead**" if low > 0 else "level within chance"
    shares = (metrics[name]["recall/active share"]["mean"] for name in (OURS, other))
    return (
        f"- {other} ({METHODS[other]}): loss {interval(loss, 2, signed=True)} %, recall {interval(cells['recall/accuracy'], 1, signed=True)} "
        "percentage points, active share {:.1f} against {:.1f} %. By loss {}.".format(*shares, ahead)
    )


def report(p: Params, metrics: Metrics, data: Path, train: Path, evaluate: Path, out: Path) -> None:
    """Writes the page, the same as Markdown, the figures and the verdicts."""
    trained = json.loads((train / "parameters.json").read_text(encoding="utf-8"))
    sheet = json.loads((data / "datasheet.json").read_text(encoding="utf-8"))
    distance = pd.read_parquet(evaluate / "distance.parquet")
    with np.load(evaluate / "decisions.npz", allow_pickle=False) as stored:
        active = stored["recall-0"]
    model, ours = trained["recall"]["model"], metrics[OURS]
    n, length = ours["recall/nll"]["n"], sheet["recall"]["long"]
    extend = trained["recall"]["extend"]
    with style():
        r = Report(paper, metrics, out)
        r.section("What was compared")
        r.text(
            f"A dense model of {model['layers']} layers learns the planted language on texts of {sheet['recall']['short']} tokens "
            f"({trained['recall']['base']['steps']} steps). From there every method extends it to {length} tokens with the same "
            f"{extend['steps']} steps of {extend['batch']} texts, the same batches and the same learning rates ({extend['lr']:g} at most), "
            f"window W = {model['window']}. Nothing was tuned for a method. L2A and the random router carry twice the attention weights of "
            "the others, since both branches have their own. L2A pays the bump that comes from attending twice at its first step within "
            "the same steps."
            + (
                f" Untouched, the base recalls {plus_minus(metrics['base']['recall/accuracy'], 1)} % at {length} tokens, loss "
                f"{plus_minus(metrics['base']['recall/nll'], 3)}."
                if "base" in metrics
                else ""
            )
        )
        names = [
            "method",
            "loss (nats)",
            "loss on recalls",
            "recall (%)",
            "recall, far (%)",
            "active (%)",
            "operations (%)",
            "cache (%)",
        ]
        caption = (
            f"Planted recall, T = {length}, n = {n} seeds, mean and half the width of the 95% interval. Far: no symbol within the window tells "
            "the value. Active: share of tokens and layers (per head where heads are routed) that see the whole past. Operations of "
            "attention and bytes of the key/value cache are over those of dense attention."
        )
        r.table(names, rows_of(metrics, "recall"), caption=caption)
        lines = [line for other in METHODS if other != OURS and (line := against(metrics, other))]
        r.text("L2A minus each other method, paired by seed, mean and 95% interval:\n\n" + "\n".join(lines))
        r.section("Where the router fires")
        r.figure(
            strip_figure(p, data, active, sheet["recall"]["names"]),
            "strip",
            caption="One reported text, seed 0. D key:value defines, Q key asks, A value answers, a dot is background. The answer is predicted at Q.",
            alt="Rows of cells, one per token, coloured by the layers whose router chose the token.",
        )
        layers = [
            f"{plus_minus(ours[f'recall/skip rate layer {layer}'], 1)} % in layer {layer + 1}"
            for layer in range(model["layers"])
        ]
        r.text(
            f"Tokens that skip: {', '.join(layers)}. In the layer that catches most questions the router fires on "
            f"{plus_minus(ours['recall/firing on Q'], 1)} % of the tokens Q and on {plus_minus(ours['recall/firing elsewhere'], 2)} % of the "
            f"others; {plus_minus(ours['recall/router precision'], 1)} % of what it fires on is a Q. That layer is, by seed: "
            f"{', '.join(str(int(layer) + 1) for layer in ours['recall/selective layer']['values'])}."
        )
        r.section("Recall by distance")
        r.figure(
            distance_figure(distance[distance["task"] == "recall"]),
            "distance",
            caption="Bands are 95% intervals over seeds. A window alone finds answers that an earlier recall within it has told.",
            alt="Accuracy against the distance to the definition, one line per method.",
        )
        r.section("Pressure on the router, and leaks")
        r.figure(
            tradeoff_figure(metrics, trained["router"]["lambda_bar"]),
            "tradeoff",
            caption="L2A with other weights of the penalty; bars are 95% intervals. Without leaks a token that is off has no gradient.",
            alt="Three panels against the weight of the penalty: skip rate, loss and recall accuracy.",
        )
        if without := metrics.get(f"{OURS} leak=0"):
            r.text(
                f"Without leaks: loss {plus_minus(without['recall/nll'], 4)}, recall {plus_minus(without['recall/accuracy'], 1)} %, "
                f"{plus_minus(without['recall/skip rate'], 1)} % skipped; with them {plus_minus(ours['recall/nll'], 4)}, "
                f"{plus_minus(ours['recall/accuracy'], 1)} % and {plus_minus(ours['recall/skip rate'], 1)} %."
            )
        r.section("What it costs")
        r.figure(
            cost_figure(metrics, model["window"], length, model["layers"]),
            "cost",
            caption="Lines: the formulas, with the measured active share at every length. Points: counted here, from masks and from the cache's tensors.",
            alt="Operations and cache bytes over those of dense attention against the length of the text.",
        )
        cut = metrics[f"{OURS} pruned"]
        r.text(
            f"Before pruning L2A needs more cache than a dense model, {plus_minus(ours['recall/cache'], 1)} % of it at {length} tokens, by a window "
            f"per layer. Layers cut, by seed: {', '.join(str(int(x)) for x in cut['recall/layers cut']['values'])}; after that "
            f"{plus_minus(cut['recall/cache'], 1)} %. Time on a GPU is not measured here: `benchmarks/kernels.py` does that."
        )
        if rows := rows_of(metrics, "text"):
            r.section("Natural text")
            words = "Shakespeare's characters" if sheet["text"]["source"] == "shakespeare" else "The given documents"
            r.table(
                ["method", "loss (nats)", "active (%)", "operations (% of dense)", "cache (% of dense)"],
                rows,
                caption=f"{words}, T = {sheet['text']['long']}, W = {trained['text']['model']['window']}, n = {metrics[OURS]['text/nll']['n']} seeds.",
            )
            parts = [
                f"L2A - {other}: {interval(cells['text/relative nll'], 2, signed=True)} % loss"
                for other in METHODS
                if "text/relative nll" in (cells := metrics.get(f"{OURS} - {other}", {}))
            ]
            r.text("; ".join(parts) + ".")
        for task in TASKS:
            r.parameters(trained[task], label=f"stage train, {task}")
        r.parameters({k: v for k, v in trained.items() if k not in TASKS}, label="stage train, the rest")
        r.parameters(p, label="stage report")
        r.write()

"""Figures, tables and text of the report; every number in the text is computed from what was measured."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pydantic import Field

from components.lowprec.formats import FORMATS
from components.stats import Metrics
from flows.mplus_adam import EXTRA, GAIN, paper
from flows.mplus_adam.arms import FORMAT_NAMES, NAMES, readable, short
from flows.mplus_adam.evaluate import table
from flows.mplus_adam.store import read_json
from tasks.params import StageParams
from tasks.report import COLOURS, Report, interval, style

LOOKS = {  # colour, marker, dashes
    "adam": ("orange", "s", "--"),
    "adam_kahan": ("green", "^", ":"),
    "madam": ("blue", "v", "-."),
    "mplus_adam": ("vermillion", "o", "-"),
}
GROUP_NAMES = {"L": "large weights (L)", "S": "small weights (S)", "X": "sign changes (X)"}


class Params(StageParams):
    shown_seed: int = Field(0, ge=0, description="seed of the quadratics whose frozen shares are drawn")


def draw(axis, x, y, method: str, **options) -> None:
    colour, marker, dashes = LOOKS[method]
    axis.plot(x, y, color=COLOURS[colour], marker=marker, ls=dashes, label=NAMES[method], **options)


def frozen_figure(bins: pd.DataFrame, p: Params, lr: float) -> Figure:
    """Share of updates that rounding undid, by magnitude; the binade from which an additive step of size lr is always lost."""
    bins = bins[(bins["seed"] == p.shown_seed) & bins["tag"].str.endswith(" rne")]
    names = list(dict.fromkeys(bins["tag"]))
    fig, panels = plt.subplots(1, len(names), figsize=(4.6 * len(names) + 0.6, 3.7), sharey=True, squeeze=False)
    for axis, name in zip(panels[0], names, strict=True):
        fmt = FORMATS[name.split()[0]]
        for method, rows in bins[bins["tag"] == name].groupby("method", sort=False):
            rows = rows[rows["active"] >= 200]
            draw(axis, rows["log2"] + 0.5, rows["frozen"] / rows["active"], method)
        limit = np.ceil(np.log2(lr * 2 ** (fmt.man_bits + 1)))
        axis.axvline(limit, color="#565e68", lw=1, ls="--")
        axis.annotate(
            "an additive step\nis lost from here", (limit, 0.04), xytext=(4, 0), textcoords="offset points", fontsize=8
        )
        axis.set_title(f"{readable(name)}, seed {p.shown_seed}")
        axis.set_xlabel("|w|")
        ticks = np.arange(-12, 10, 4)
        axis.set_xticks(ticks, [f"$2^{{{t}}}$" for t in ticks])
    panels[0][0].set_ylabel("share of updates that change nothing")
    panels[0][0].set_ylim(-0.03, 1.05)
    fig.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncol=4)
    return fig


def bench_figure(bench: pd.DataFrame, names: list[str]) -> Figure:
    """Final error per group, every seed and the median of seeds; where the start was."""
    methods = [m for m in NAMES if m in set(bench["method"])]
    fig, panels = plt.subplots(1, len(names), figsize=(3.1 * len(names) + 1, 3.9), sharey=True, squeeze=False)
    start = {"L": 0.25, "X": 2.0}
    for axis, name in zip(panels[0], names, strict=True):
        for place, group in enumerate(GROUP_NAMES):
            rows = bench[(bench["tag"] == name) & (bench["group"] == group)]
            for shift, method in enumerate(methods):
                colour, marker, _ = LOOKS[method]
                values = rows[rows["method"] == method]["error"].clip(lower=1e-5)
                x = place + 0.22 * (shift - (len(methods) - 1) / 2)
                axis.scatter(
                    [x] * len(values),
                    values,
                    s=26,
                    color=COLOURS[colour],
                    marker=marker,
                    lw=0,
                    label=None if place else NAMES[method],
                )
            if group in start:
                axis.plot(
                    [place - 0.4, place + 0.4],
                    [start[group]] * 2,
                    color="#565e68",
                    lw=1,
                    ls=":",
                    label=None if place else "at the start",
                )
        axis.set_yscale("log")
        axis.set_xticks(range(3), list(GROUP_NAMES))
        axis.set_title(readable(name), fontsize=10)
    panels[0][0].set_ylabel("median relative error at the end")
    fig.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncol=4)
    return fig


def grid_of(count: int, height: float = 3.3) -> tuple[Figure, np.ndarray]:
    columns = min(3, count)
    rows = -(-count // columns)
    fig, panels = plt.subplots(rows, columns, figsize=(3.4 * columns + 0.8, height * rows), sharey=True, squeeze=False)
    for axis in panels.flat[count:]:
        axis.set_visible(False)
    return fig, panels


def curve_figure(history: pd.DataFrame, names: list[str]) -> Figure:
    """Loss on the text to choose with, mean and range over seeds, with FP32 AdamW in every panel."""
    history = history[(history["kind"] == "lm") & history["choice_nll"].notna()]
    reference = history[(history["tag"] == "fp32") & (history["method"] == "adam")]
    fig, panels = grid_of(len(names))
    for axis, name in zip(panels.flat, names, strict=False):
        for method, rows in history[history["tag"] == name].groupby("method", sort=False):
            wide = rows.pivot_table(index="step", columns="seed", values="choice_nll")
            draw(axis, wide.index, wide.mean(axis=1), method, markevery=2)
            axis.fill_between(wide.index, wide.min(axis=1), wide.max(axis=1), color=COLOURS[LOOKS[method][0]], alpha=0.15, lw=0)
        if name != "fp32" and len(reference):
            line = reference.groupby("step")["choice_nll"].mean()
            axis.plot(line.index, line, color="black", lw=1.2, label="FP32 AdamW")
        axis.set_title(f"{readable(name)} (n = {history[history['tag'] == name]['seed'].nunique()})", fontsize=10)
        axis.set_xlabel("step")
    for axis in panels[:, 0]:
        axis.set_ylabel("loss (nats per character)")
    handles = {label: handle for axis in panels.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    fig.legend(list(handles.values()), list(handles), loc="outside lower center", ncol=5)
    return fig


def tuning_figure(lm: pd.DataFrame, names: list[str]) -> Figure:
    """Loss against the factor on the given step, on the seed that step sizes were chosen with."""
    tried = lm[lm["kind"] == "tune"]
    fig, panels = grid_of(len(names))
    for axis, name in zip(panels.flat, names, strict=False):
        for method, rows in tried[tried["tag"] == name].groupby("method", sort=False):
            draw(axis, rows["factor"], rows["choice_nll"], method)
        axis.set_xscale("log")
        factors = sorted(tried["factor"].unique())
        axis.set_xticks(factors, [f"{f:g}" for f in factors])
        axis.minorticks_off()
        axis.set_title(f"{readable(name)} (n = 1)", fontsize=10)
        axis.set_xlabel("factor on the given step")
    for axis in panels[:, 0]:
        axis.set_ylabel("loss (nats per character)")
    handles = {label: handle for axis in panels.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    fig.legend(list(handles.values()), list(handles), loc="outside lower center", ncol=5)
    return fig


def decile_figure(deciles: pd.DataFrame, names: list[str]) -> Figure:
    """Frozen share by decile of |w| in the language model, mean over steps and seeds."""
    rows = deciles[(deciles["kind"] == "lm") & (deciles["tag"] != "fp32")]
    names = [name for name in names if name != "fp32"]
    fig, panels = grid_of(len(names), 3.0)
    for axis, name in zip(panels.flat, names, strict=False):
        for method, part in rows[rows["tag"] == name].groupby("method", sort=False):
            mean = part.groupby("decile")["frozen"].mean()
            draw(axis, mean.index, mean, method)
        axis.set_title(f"{readable(name)} (n = {rows[rows['tag'] == name]['seed'].nunique()})", fontsize=10)
        axis.set_xlabel("decile of |w|")
        axis.set_xticks([1, 5, 10])
    for axis in panels[:, 0]:
        axis.set_ylabel("share of unchanged weights")
    panels.flat[0].set_ylim(-0.03, 1.03)
    handles = {label: handle for axis in panels.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    fig.legend(list(handles.values()), list(handles), loc="outside lower center", ncol=4)
    return fig


def comparison(metrics: Metrics, names: list[str]) -> str:
    """M+Adam against each baseline per format; who wins is said as it was measured."""
    lines = [
        "Loss of a baseline minus that of M+Adam (above zero: M+Adam is better), nats per character, mean and 95% interval:",
        "",
    ]
    for name in names:
        parts = []
        for method in ("adam", "adam_kahan", "madam"):
            cell = metrics.get(f"{NAMES[method]} - M+Adam", {}).get(f"lm/{name}/nll")
            if cell is not None:
                rival = "FP32 AdamW" if name == "fp32" and method == "adam" else NAMES[method]
                parts.append(f"{rival} {interval(cell, 3, signed=True)}")
        lines.append(f"- {readable(name)}: {'; '.join(parts)}.")
    ranked = []
    for name in names:
        losses = {NAMES[m]: metrics.get(NAMES[m], {}).get(f"lm/{name}/nll") for m in NAMES}
        losses = {m: cell["mean"] for m, cell in losses.items() if cell is not None}
        best = min(losses, key=losses.get)
        ranked.append(f"{readable(name)}: {best} ({losses[best]:.3f})")
    return "\n".join([*lines, "", "Lowest mean loss: " + "; ".join(ranked) + "."])


def specific(metrics: Metrics, names: list[str]) -> str:
    """What of the gain is one of low precision."""
    lines = []
    for name in names:
        gain, extra = metrics.get(GAIN, {}).get(f"lm/{name}/nll"), metrics.get(EXTRA, {}).get(f"lm/{name}/nll")
        if gain is not None:
            text = f"- {readable(name)}: gain over Adam {interval(gain, 3, signed=True)}"
            lines.append(text + (f", beyond the gain in FP32 {interval(extra, 3, signed=True)}." if extra is not None else "."))
    for fmt in ("e4m3", "e2m1"):
        cell = metrics.get("Adam-LP stochastic - M+Adam nearest", {}).get(f"lm/{fmt}/nll")
        if cell is not None:
            better = "Adam-LP with stochastic rounding" if cell["mean"] < 0 else "M+Adam rounded to nearest"
            lines.append(
                f"- {FORMAT_NAMES[fmt]}, Adam-LP with stochastic rounding minus M+Adam rounded to nearest: "
                f"{interval(cell, 3, signed=True)}; {better} is ahead."
            )
    return "\n".join(lines)


def step_sizes(lm: pd.DataFrame, names: list[str]) -> str:
    """How much of Adam's distance to M+Adam is its step size: at the given step, and with each at its best of those tried."""
    tried = lm[(lm["kind"] == "tune") & (lm["seed"] == lm[lm["kind"] == "tune"]["seed"].iloc[0])]
    lines = [
        "Rounded to nearest, a larger additive step passes the grid, so a comparison at one step flatters one side. Loss of Adam-LP "
        "minus that of M+Adam on the text and the seed that step sizes were chosen with, nats per character:",
        "",
    ]
    for name in names:
        found = {m: rows.set_index("factor")["choice_nll"] for m, rows in tried[tried["tag"] == name].groupby("method")}
        if not {"adam", "mplus_adam"} <= set(found):
            continue
        best = found["adam"].min() - found["mplus_adam"].min()
        text = f"- {readable(name)}: each at its best {best:+.3f} (factors {found['adam'].idxmin():g} and {found['mplus_adam'].idxmin():g})"
        if 1.0 in found["adam"].index:
            text += f"; both at the given step {found['adam'][1.0] - found['mplus_adam'][1.0]:+.3f}"
        lines.append(text + ".")
    return "\n".join(lines)


def losses(metrics: Metrics, names: list[str]) -> list[list[object]]:
    rows = []
    for name in names:
        for method, label in NAMES.items():
            cells = metrics.get(label, {})
            if f"lm/{name}/nll" not in cells:
                continue
            value = {k: cells[f"lm/{name}/{k}"] for k in ("nll", "perplexity", "frozen", "bytes", "factor")}
            shown = "FP32 AdamW" if name == "fp32" and method == "adam" else label
            rows.append(
                [
                    short(name),
                    shown,
                    interval(value["nll"], 3),
                    f"{value['perplexity']['mean']:.2f}",
                    interval(metrics.get(f"{label} - FP32 AdamW", {}).get(f"lm/{name}/nll"), 3, signed=True),
                    f"{value['frozen']['mean']:.4f}",
                    f"{value['bytes']['mean']:.2f}",
                    f"{value['factor']['mean']:g}",
                ]
            )
    return rows


def report(p: Params, metrics: Metrics, train: Path, evaluate: Path, data: Path, out: Path) -> None:
    """Writes the page, the same as Markdown, the figures and the verdicts."""
    settings = read_json(train / "parameters.json")
    lm, history = table(train, "lm"), table(train, "history")
    names = list(dict.fromkeys(lm[lm["kind"] == "lm"]["tag"]))
    with style():
        r = Report(paper, metrics, out)
        r.section("Each failure by itself")
        r.text(
            "Scalar quadratics whose minimisers lie at very different magnitudes: L, large weights that start a quarter too large; S, "
            "weights around 0.01; X, weights that start with the wrong sign. Formats are used without shared scales. Every method "
            f"takes the same steps: additive {settings['bench']['lr']:g}, multiplicative by format."
        )
        bench, bins = table(train, "bench"), table(train, "bins")
        if bins is not None:
            r.figure(
                frozen_figure(bins, p, settings["bench"]["lr"]),
                "frozen",
                caption="Share of updates with a gradient that leave the stored weight as it was, by |w|, over the half with a constant step. "
                "The line: from this binade on an additive step of this size is lost whatever the weight.",
                alt="Lines of frozen share against the magnitude of the weight for Adam-LP, Madam and M+Adam, one panel per format.",
            )
        if bench is not None:
            shown = list(dict.fromkeys(bench["tag"]))
            r.figure(
                bench_figure(bench, shown),
                "bench",
                caption=f"Median relative error at the end, one point a seed (n = {bench['seed'].nunique()}); below 1e-5 drawn at 1e-5. "
                "Dotted: at the start.",
                alt="Dots of error per group and method, one panel per format and rounding, logarithmic scale.",
            )
        counted = metrics.get("M+Adam", {}).get("descent/fp32/steps counted")
        if counted is not None:
            rounded = metrics["M+Adam"]["descent/e4m3/steps counted"]
            r.text(
                "**Descent.** On a quadratic with exact gradients and no momentum, the step satisfied the smoothness bound in every "
                f"coordinate in {counted['mean']:.0f} of {settings['descent']['steps']} steps (mean over {counted['n']} problems); in E4M3 the loss was above the grid's floor in "
                f"{rounded['mean']:.0f} steps. The shares of these that descended are in the table of claims."
            )
        r.section("A language model with few bits")
        r.text(
            f"A LLaMA of {settings['lm']['layers']} blocks of width {settings['lm']['d']} learns Shakespeare's characters for {settings['lm']['steps']} steps. "
            "The weights exist as codes alone between steps; gains are kept in BF16 where matrices are FP8 or FP4. In each format every "
            f"method tries {len(settings['tuning']['factors'])} settings of its step on a seed of its own, and text that is neither trained nor reported on chooses."
        )
        r.text(comparison(metrics, names))
        caption = (
            f"Loss (nats per character) on the reported text after {settings['lm']['steps']} steps, mean and 95% interval over n = {settings['lm']['seeds']} seeds; bytes per weight kept "
            f"between steps (codes, scales, moments); frozen: share of updates without effect; factor on the given step ({settings['lm']['lr']:g}, or Madam's lr_mult)."
        )
        columns = (
            "weights",
            "method",
            "loss, nats per character",
            "perplexity",
            "minus FP32 AdamW",
            "frozen",
            "bytes per weight",
            "factor",
        )
        r.table(columns, losses(metrics, names), caption=caption)
        r.figure(
            curve_figure(history, names),
            "curves",
            caption="Loss on the text to choose with, mean and range over seeds, each method at the step size chosen for it.",
            alt="Curves of loss over training steps per format for the four methods, with the FP32 AdamW line.",
        )
        deciles = table(train, "deciles")
        if deciles is not None:
            r.figure(
                decile_figure(deciles, names),
                "deciles",
                caption="Share of weights with a gradient that a step left unchanged, by decile of |w|; mean over the counted steps and seeds.",
                alt="Lines of frozen share by decile of weight magnitude, one panel per format and rounding.",
            )
        r.section("What of the gain is one of low precision")
        r.text(
            "M+Adam also takes larger steps than Adam, so a gain that appears in FP32 as well is none of low precision:\n\n"
            + specific(metrics, names)
        )
        holm = read_json(evaluate / "holm.json")
        if holm:
            rows = [
                [readable(row["tag"]), f"{row['p']:.2g}", f"{row['adjusted']:.2g}", "yes" if row["rejected"] else "no"]
                for row in holm
            ]
            r.table(
                ("weights", "p", "p, adjusted", "differs at 5%"),
                rows,
                caption="Adam-LP against M+Adam: paired t tests over seeds, two-sided, adjusted over formats by Holm's method.",
            )
        if (lm["kind"] == "tune").any():
            r.section("Step sizes")
            r.text(step_sizes(lm, names))
            r.figure(
                tuning_figure(lm, names),
                "tuning",
                caption="Loss on the text to choose with against the factor on the given step; the smallest was used. Adam and M+Adam: the "
                "additive step; Madam: the multiplicative one.",
                alt="Lines of loss against the step factor for each method, one panel per format and rounding.",
            )
        for stage, folder in (("data", data), ("train", train)):
            r.parameters(read_json(folder / "parameters.json"), label=f"stage {stage}")
        r.parameters(p, label="stage report")
        r.write()

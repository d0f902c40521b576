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
from flows.gradient_stabilizer import paper
from flows.gradient_stabilizer.arms import CLIPS, METHODS, OURS
from tasks.claims import number
from tasks.params import StageParams
from tasks.report import COLOURS, Report, interval, plus_minus, style

LINES = {
    "none": ("black", "x", ":"),
    "NormClip": ("orange", "s", "--"),
    "ValueClip": ("purple", "v", "--"),
    "AGC": ("green", "^", "-."),
    "ZClip": ("blue", "D", "--"),
    "Stable-SPAM": ("sky", "P", "-."),
    "GS": ("vermillion", "o", "-"),
}


class Params(StageParams):
    before: int = Field(40, ge=1, description="steps that are drawn before the single spike")


def at_values(metrics: Metrics, method: str, prefix: str) -> tuple[np.ndarray, list[dict]]:
    """Numbers behind the @ of a method's metrics, sorted, and their cells."""
    found = {}
    for metric, cell in metrics.get(method, {}).items():
        if metric.startswith(prefix + "@") and not metric.endswith("strongest"):
            found[float(metric.split("@")[1])] = cell
    order = sorted(found)
    return np.asarray(order), [found[x] for x in order]


def draw(axis: plt.Axes, metrics: Metrics, prefix: str, x_of) -> int:
    """One line per method, with the interval as a band; returns n."""
    n = 0
    for method in METHODS:
        x, cells = at_values(metrics, method, prefix)
        if not cells:
            continue
        colour, marker, dashes = LINES[method]
        mean = np.asarray([cell["mean"] for cell in cells])
        n = cells[0]["n"]
        axis.plot(x_of(x), mean, color=COLOURS[colour], marker=marker, ls=dashes, label=method)
        if all(cell["ci95"] is not None for cell in cells):
            low, high = np.asarray([cell["ci95"] for cell in cells]).T
            axis.fill_between(x_of(x), low, high, color=COLOURS[colour], alpha=0.12, lw=0)
    return n


def spike_figure(p: Params, runs: pd.DataFrame, history: pd.DataFrame, spike: int) -> Figure:
    """Raw norm, stabilised norm and value around a single spike, without and with momentum behind."""
    traces = runs[runs["task"] == "trace"]
    optimizers = list(dict.fromkeys(traces["optimizer"]))
    fig, panels = plt.subplots(3, len(optimizers), figsize=(5.0 * len(optimizers), 7.4), sharex=True, squeeze=False)
    for column, optimizer in enumerate(optimizers):
        for run in traces[traces["optimizer"] == optimizer].itertuples():
            rows = history[history["run"] == run.run]
            x = rows["step"] - spike
            shown = x >= -p.before
            colour, _, dashes = LINES[run.method]
            for axis, name in zip(panels[:, column], ("raw_norm", "max_rho", "loss"), strict=True):
                axis.plot(x[shown], rows[name][shown], color=COLOURS[colour], ls=dashes, lw=1.3, label=run.method)
        for axis, label in zip(
            panels[:, column], ("gradient norm, raw", "gradient norm that the\noptimiser sees", "f(x)"), strict=True
        ):
            axis.set_yscale("log")
            axis.set_xscale("symlog", linthresh=10)
            if column == 0:
                axis.set_ylabel(label)
        panels[0, column].set_title({"sgd": "SGD", "adam": "Adam"}[optimizer])
        panels[-1, column].set_xlabel("steps after the spike (log beyond 10)")
    fig.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncol=4)
    return fig


def rate_figure(metrics: Metrics) -> Figure:
    fig, panels = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True)
    for axis, kind, title in zip(panels, ("full", "fp4"), ("full precision", "FP4"), strict=True):
        n = draw(axis, metrics, f"language/{kind}/loss", lambda x: x)
        axis.set_xscale("log")
        axis.set_title(f"{title} (n = {n} seeds)")
        axis.set_xlabel("learning rate of AdamW")
    panels[0].set_ylabel("validation loss (nats per symbol)")
    fig.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncol=7)
    return fig


def decay_figure(metrics: Metrics) -> Figure:
    fig, axis = plt.subplots(figsize=(7.5, 4.2))
    values, _ = at_values(metrics, OURS, "digits/accuracy")
    place = {value: position for position, value in enumerate(values)}
    n = draw(axis, metrics, "digits/accuracy", lambda x: [place[value] for value in x])
    axis.set_xticks(range(len(values)), [f"{value:g}" for value in values])
    axis.set_title(f"Digits, Adam with coupled decay (n = {n} seeds)")
    axis.set_xlabel("weight decay")
    axis.set_ylabel("test accuracy (%)")
    fig.legend(loc="outside lower center", ncol=6)
    return fig


def bound_figure(gamma1: float, gamma2: float) -> Figure:
    """The bound over both decay rates; hatched where there is none."""
    one, log_two = np.linspace(0, 0.99, 150), np.linspace(0.3, 5, 150)
    two = 1 - 10.0**-log_two
    first, second = np.meshgrid(one, two)
    q = first**2 / second
    with np.errstate(invalid="ignore", divide="ignore"):
        bound = np.where(q < 1, (1 - first) / np.sqrt(1 - second) / np.sqrt(1 - q), np.nan)
    fig, axis = plt.subplots(figsize=(7.2, 4.4))
    axis.grid(False)
    mesh = axis.pcolormesh(one, log_two, np.log10(bound), cmap="cividis", shading="auto", rasterized=True)
    axis.contourf(one, log_two, (q >= 1).astype(float), levels=[0.5, 1.5], colors="none", hatches=["///"])
    axis.scatter([gamma1], [-np.log10(1 - gamma2)], marker="o", s=60, facecolor="white", edgecolor="black", label="here")
    ticks = [0.9, 0.99, 0.999, 0.9999, 0.99999]
    axis.set_yticks([-np.log10(1 - x) for x in ticks], [f"{x:g}" for x in ticks])
    axis.set_xlabel("gamma1")
    axis.set_ylabel("gamma2")
    fig.colorbar(mesh, label="log10 of the largest stabilised norm")
    fig.legend(loc="outside upper right")
    return fig


def price(runs: pd.DataFrame, history: pd.DataFrame, spike: int) -> str:
    """What one spike does to the stabilised norm before, on and after it."""
    chosen = runs[(runs["task"] == "trace") & (runs["method"] == OURS) & (runs["optimizer"] == "sgd")]
    if chosen.empty:
        return ""
    rho = history[history["run"] == chosen["run"].iloc[0]].set_index("step")["max_rho"]
    parts = [f"{rho.loc[spike - 10 : spike - 1].mean():.2f} before (mean of ten steps)", f"{rho.loc[spike]:.2f} on the spike"]
    parts += [
        f"{rho.loc[spike + k]:.3g} after {k} step{'s' if k > 1 else ''}" for k in (1, 10, 500, 1000) if spike + k in rho.index
    ]
    return (
        f"The stabilised norm under SGD: {', '.join(parts)}. So the step after a spike is enlarged too, and then all steps are "
        "shortened for about 1 / (1 - gamma2) steps, until the second moment has forgotten the spike. Adam behind it makes "
        "up for a part of that. This is the price of the method; a clip that forgets at once does not pay it."
    )


def standing(metrics: Metrics, metric: str, label: str, unit: str, higher: bool = False, digits: int = 3) -> str | None:
    """Who is best at a metric, and GS against no clipping and against the best clip, in one sentence."""
    found = {method: metrics[method][metric]["mean"] for method in METHODS if metric in metrics.get(method, {})}
    if OURS not in found:
        return None
    best = (max if higher else min)(found, key=found.get)
    clips = {method: value for method, value in found.items() if method in CLIPS}
    clip = (max if higher else min)(clips, key=clips.get)
    against = metrics[f"{OURS} - none"][metric], metrics[f"{OURS} - best clip"][metric]
    cell = against[1]
    behind = cell["mean"] != 0 and (cell["mean"] > 0) != higher
    by_chance = cell["ci95"] is None or cell["ci95"][0] <= 0 <= cell["ci95"][1]
    verdict = f": **the clip {'is ahead, within chance' if by_chance else 'wins'}**" if behind else ""
    return (
        f"- {label} ({unit}): best is {best} at {found[best]:.{digits}f}. GS - none {interval(against[0], digits, signed=True)}; GS - {clip}, the best "
        f"clip, {interval(against[1], digits, signed=True)}{verdict}."
    )


def report(p: Params, metrics: Metrics, train: Path, evaluate: Path, out: Path) -> None:
    """Writes the page, the same as Markdown, the figures and the verdicts."""
    runs, history = pd.read_parquet(train / "runs.parquet"), pd.read_parquet(train / "history.parquet")
    trained = json.loads((train / "parameters.json").read_text(encoding="utf-8"))
    tests = json.loads((evaluate / "tests.json").read_text(encoding="utf-8"))
    spike = trained["spikes"]["traced"]
    levels = [f"{x:g}" for x in at_values(metrics, OURS, "weather/mse")[0]]
    asked = [
        ("language/full/best loss", "Language model, full precision", "nats", False, 3),
        ("language/fp4/best loss", "Language model, FP4", "nats", False, 3),
        *((f"weather/mse@{x}", f"Weather, noise level {x}", "MSE", False, 4) for x in levels),
        ("digits/accuracy@strongest", "Digits, strongest weight decay", "% accuracy", True, 2),
        *(
            (f"spikes/{k}/value", f"Spiking quadratic, {name}", "f(x)", False, 3)
            for k, name in (("sgd", "SGD"), ("adam", "Adam"))
        ),
    ]
    with style():
        r = Report(paper, metrics, out)
        r.section("Where it wins and where a clip does")
        r.text(
            "Every method has the same grid of learning rates and the same seeds; thresholds are those of the paper, tuned for no task. "
            "Learning rates of the language model are chosen on other validation windows than those reported; on the quadratic they are "
            "chosen on the value reported, for every method alike. Mean and 95% interval of paired differences:\n\n"
            + "\n".join(
                line for metric, *words in asked if (line := standing(metrics, metric, words[0], words[1], words[2], words[3]))
            )
        )
        rows = [
            [f"{label} ({unit})", *(plus_minus(metrics.get(method, {}).get(metric), digits) for method in METHODS)]
            for metric, label, unit, _, digits in asked
        ]
        caption = "Tasks by methods, mean and half the width of the 95% interval. Stable-SPAM runs on the language model and the quadratic alone."
        r.table(["task", *METHODS], rows, caption=caption)
        rows = [[metric, *(tests[metric].get(method) for method in METHODS if method != OURS)] for metric in sorted(tests)]
        if rows:
            caption = (
                "p-values of GS against each method, paired t tests, two-sided, adjusted by Holm over the methods of a row."
            )
            r.table(["metric", *(method for method in METHODS if method != OURS)], rows, caption=caption)
        r.section("Around one spike")
        r.figure(
            spike_figure(p, runs, history, spike),
            "spike",
            caption="A noisy quadratic with one gradient of 1000 times the running norm at step 0; one seed, the first learning rate of each optimiser.",
            alt="Lines over steps: raw gradient norm, norm after the transform, and function value, for four methods under SGD and Adam.",
        )
        if text := price(runs, history, spike):
            r.text(text)
        r.section("Learning rates and precision")
        r.figure(
            rate_figure(metrics),
            "rates",
            caption="Final validation loss of the character LLaMA by learning rate; bands are 95% intervals over seeds.",
            alt="Two panels of validation loss against learning rate, one line per method, full precision and FP4.",
        )
        rows = []
        for method in METHODS:
            found = metrics.get(method, {})
            row = [method]
            for kind in ("full", "fp4"):
                row += [
                    found.get(f"language/{kind}/{name}", {}).get("mean")
                    for name in ("best lr", "stable width", "area", "spike ratio")
                ]
            if any(cell is not None for cell in row[1:]):
                rows.append(row)
        names = ("best rate", "stable decades", "mean loss over log rate", "largest / median norm")
        r.table(
            ["method", *(f"{kind}: {name}" for kind in ("full", "FP4") for name in names)],
            rows,
            caption="Per precision: chosen learning rate; decades within the tolerance of the method's best loss; mean loss over the grid; and how far raw gradient norms spike at the chosen rate.",
        )
        r.section("Weight decay")
        r.figure(
            decay_figure(metrics),
            "decay",
            caption="Coupled weight decay adds lambda w to the gradient after the transform. Bands: 95% intervals over seeds.",
            alt="Lines of test accuracy against weight decay, one per method.",
        )
        drops = [
            f"- {method}: {interval(metrics[method]['digits/drop'])}"
            for method in METHODS
            if "digits/drop" in metrics.get(method, {})
        ]
        r.text("Accuracy lost from no decay to the strongest, percentage points:\n\n" + "\n".join(drops))
        r.section("The bound")
        ours = metrics[OURS]
        r.text(
            f"For the rates used here the bound is {trained['bound']:.3f}. The largest stabilised norm of all runs is "
            f"{ours['bound/largest norm']['mean'] * trained['bound']:.2f} on average over seeds; projected gradient ascent on norm "
            f"sequences reaches {number(ours['bound/adversary']['mean'])} of the bound. Behind it the largest |m| of Adam is "
            f"{number(ours['bound/Adam m']['mean'])} of its bound and the largest v {number(ours['bound/Adam v']['mean'])} of its own."
        )
        r.figure(
            bound_figure(trained["gs"]["gamma1"], trained["gs"]["gamma2"]),
            "bound",
            caption="The largest stabilised norm by decay rates; hatched: gamma1 squared is at least gamma2, no bound exists.",
            alt="Heat map of the bound over gamma1 and gamma2 with the infeasible region hatched.",
        )
        grid = sorted((k, c) for k, c in ours.items() if k.startswith("sensitivity/loss@"))
        rows = [[*name.split("@")[1].split(","), interval(cell, 3)] for name, cell in grid]
        if rows:
            caption = (
                f"Validation loss by decay rates, learning rate {trained['sensitivity']['lr']:g}, n = {grid[0][1]['n']} seeds."
            )
            r.table(["gamma1", "gamma2", "loss (nats per symbol)"], rows, caption=caption)
        r.parameters({k: v for k, v in trained.items() if k != "bound"}, label="stage train")
        r.parameters(p, label="stage report")
        r.write()

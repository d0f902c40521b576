"""Figures, tables and text of the report; every number in the text is computed from the metrics."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from components.stats import Metrics, summarise
from flows.quaternion_attention import paper
from flows.quaternion_attention.arms import METHODS, NOISY
from tasks.params import StageParams
from tasks.report import COLOURS, Report, interval, plus_minus, style

LINES = {
    "shared": ("vermillion", "o", "-"),
    "component": ("blue", "s", "--"),
    "none": ("orange", "^", "-."),
    "real": ("green", "D", ":"),
}
EDGES = (-2.5, 1.25, 5.0, 8.75, 12.5)


class Params(StageParams):
    """Nothing to choose."""


def count_figure(counts: dict) -> Figure:
    """Multiplications of scores, and of whole networks."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
    shapes = [f"L = {length}, h = {h}" for _, _, length, h in counts["shapes"]]
    places, forms = np.arange(len(shapes)), ("shared", "component", "component, fused")
    for offset, (form, colour) in enumerate(zip(forms, ("vermillion", "blue", "sky"), strict=True)):
        heights = [row["products"] / 1e6 for row in counts["scores"][form]]
        left.bar(places + 0.27 * (offset - 1), heights, 0.25, color=COLOURS[colour], label=form)
    left.set_xticks(places, shapes)
    left.set_ylabel("multiplications of scores (millions)")
    left.legend()
    names = [name for name in METHODS if name in counts["networks"]]
    right.bar(
        range(len(names)),
        [counts["networks"][name]["products"] / 1e6 for name in names],
        color=[COLOURS[LINES[name][0]] for name in names],
    )
    right.set_xticks(range(len(names)), names)
    right.set_ylabel("matrix products of the enhancer\nfor one mixture (millions)")
    return fig


def snr_figure(rows: pd.DataFrame) -> Figure:
    """Improvement by the noise in the mixture, and by the kind of noise."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4.0), sharey=True)
    kinds = sorted(rows["kind"].unique())
    known = rows["snr"].notna().all()
    for shift, (method, (colour, marker, dashes)) in enumerate(LINES.items()):
        found = rows[rows["method"] == method]
        if found.empty:
            continue
        means = found.groupby(["mixture", "snr", "kind"], dropna=False)["improvement"].mean().reset_index()
        if known:
            bins = pd.cut(means["snr"], EDGES, include_lowest=True)
            cells = [
                (part["snr"].mean(), summarise(part["improvement"].tolist())) for _, part in means.groupby(bins, observed=True)
            ]
            centres = [x for x, _ in cells]
            left.plot(centres, [c["mean"] for _, c in cells], color=COLOURS[colour], marker=marker, ls=dashes, label=method)
            if all(c["ci95"] for _, c in cells):
                low, high = np.array([c["ci95"] for _, c in cells]).T
                left.fill_between(centres, low, high, color=COLOURS[colour], alpha=0.12, lw=0)
        for place, kind in enumerate(kinds):
            cell = summarise(means.loc[means["kind"] == kind, "improvement"].tolist())
            spread = (
                [[0], [0]] if cell["ci95"] is None else [[cell["mean"] - cell["ci95"][0]], [cell["ci95"][1] - cell["mean"]]]
            )
            label = method if place == 0 and not known else None
            right.errorbar(
                place + 0.15 * (shift - 1.5), cell["mean"], spread, fmt=marker, color=COLOURS[colour], capsize=3, label=label
            )
    left.set_xlabel("signal-to-noise ratio of the mixture (dB)")
    left.set_ylabel("SI-SDR gained (dB)")
    right.set_xticks(range(len(kinds)), kinds)
    right.set_xlabel("kind of noise")
    left.set_title(f"n = {rows['mixture'].nunique()} mixtures")
    handles = left.get_legend_handles_labels() if known else right.get_legend_handles_labels()
    fig.legend(*handles, loc="outside lower center", ncol=4)
    return fig


def maps_figure(maps: dict[str, np.ndarray]) -> Figure:
    """The shared map and the four component maps of one head along time."""
    shown = {"shared": maps["shared"][0]} | {f"component {c}": x for c, x in zip("rxyz", maps["component"], strict=True)}
    fig, axes = plt.subplots(1, len(shown), figsize=(12, 2.9), sharey=True)
    top = max(float(np.quantile(x, 0.995)) for x in shown.values())
    for axis, (name, weights) in zip(axes, shown.items(), strict=True):
        image = axis.imshow(weights, cmap="cividis", vmin=0, vmax=top, aspect="auto", interpolation="nearest")
        axis.set_title(name)
        axis.set_xlabel("key (frame)")
        axis.grid(visible=False)
    axes[0].set_ylabel("query (frame)")
    fig.colorbar(image, ax=axes, label="attention weight")
    return fig


def title(words: str) -> str:
    return words[0].upper() + words[1:]


def ahead(cell: dict) -> str:
    """Who is ahead, by the interval of a difference shared minus other."""
    if cell["ci95"] is None:
        return "one seed says nothing of chance"
    low, high = cell["ci95"]
    return "shared is ahead" if low > 0 else "**shared is behind**" if high < 0 else "level within chance"


def differences(metrics: Metrics, metric: str, unit: str, digits: int) -> str:
    lines = []
    for other in METHODS:
        cell = metrics.get(f"shared - {other}", {}).get(metric)
        if cell is not None:
            lines.append(
                f"- shared minus {other} ({METHODS[other]}): {interval(cell, digits, signed=True)} {unit}, {ahead(cell)}."
            )
    return "\n".join(lines)


def speech_section(r: Report, metrics: Metrics, trained: dict, rows: pd.DataFrame, source: str) -> None:
    t = trained["speech"]
    words = {"prompts": "recorded telephone prompts of one speaker", "synthetic": "speech-like sound"}
    r.section("Speech enhancement")
    r.text(
        f"Noise is removed from {words.get(source, 'VoiceBank+DEMAND')}: {t['steps']} steps of {t['batch']} mixtures, the same for every method, as is "
        f"the learning rate ({t['lr']:g} at most); {t['seeds']} seeds. Nothing was tuned for a method. {rows['mixture'].nunique()} fixed mixtures "
        "are reported; intervals are over mixtures, each the mean over seeds, so they do not hold the spread between seeds, which is listed."
    )
    body = []
    for method in (NOISY, *METHODS):
        cells = metrics.get(method, {})
        if "speech/si_sdr" not in cells:
            continue
        seeds = cells["speech/improvement by seed"]["values"]
        body.append(
            [
                method,
                f"{cells['speech/parameters']['mean']:,.0f}" if "speech/parameters" in cells else "",
                plus_minus(cells["speech/si_sdr"], 2),
                "" if method == NOISY else plus_minus(cells["speech/improvement"], 2),
                "" if method == NOISY else ", ".join(f"{x:.2f}" for x in seeds),
                plus_minus(cells["speech/stoi"], 3),
            ]
        )
    r.table(
        ["method", "parameters", "SI-SDR (dB)", "gained (dB)", "gained, by seed", "STOI"],
        body,
        caption=f"{rows['mixture'].nunique()} mixtures, mean and half the width of the 95% interval.",
    )
    r.text(differences(metrics, "speech/improvement", "dB", 2))
    if bursts := differences(metrics, "speech/improvement in bursts", "dB", 2):
        r.text("In bursts, which only their other copies foretell:\n\n" + bursts)
    r.figure(
        snr_figure(rows[rows["method"] != NOISY]),
        "snr",
        caption="Each mixture is the mean over seeds; bands and bars are 95% intervals over mixtures.",
        alt="SI-SDR gained against the ratio in the mixture and by kind of noise, one line per method.",
    )


def classes_section(r: Report, metrics: Metrics, trained: dict, sheet: dict) -> None:
    names = {"digits": "scikit-learn's digits", "cifar100": "CIFAR-100", "poets": "Shakespeare or Milton", "sst2": "SST-2"}
    r.section("Digits and text")
    body = []
    for task in ("digits", "text"):
        for method in METHODS:
            cell = metrics.get(method, {}).get(f"{task}/accuracy")
            if cell is not None:
                count = f"{metrics[method][f'{task}/parameters']['mean']:,.0f}"
                body.append([names[sheet[task]["source"]], method, count, plus_minus(cell, 2), f"{min(cell['values']):.1f}"])
    if not body:
        return
    r.table(
        ["task", "method", "parameters", "accuracy (%)", "worst seed (%)"],
        body,
        caption=f"n = {trained['digits']['seeds']} and {trained['text']['seeds']} seeds, mean and half the width of the 95% interval.",
    )
    for task in ("digits", "text"):
        if lines := differences(metrics, f"{task}/accuracy", "percentage points", 2):
            r.text(f"{title(names[sheet[task]['source']])}, paired by seed:\n\n{lines}")


def report(p: Params, metrics: Metrics, data: Path, train: Path, evaluate: Path, out: Path) -> None:
    """Writes the page, the same as Markdown, the figures and the verdicts."""
    trained = json.loads((train / "parameters.json").read_text(encoding="utf-8"))
    sheet = json.loads((data / "datasheet.json").read_text(encoding="utf-8"))
    counts = json.loads((evaluate / "counts.json").read_text(encoding="utf-8"))
    rows = pd.read_parquet(evaluate / "per_mixture.parquet")
    with np.load(evaluate / "maps.npz", allow_pickle=False) as stored:
        maps = {name: stored[name] for name in stored.files}
    with style():
        r = Report(paper, metrics, out)
        r.section("What a score costs")
        forms = [name for name in ("shared", "component", "component, fused") if "scores/softmaxes" in metrics.get(name, {})]
        r.table(
            ["form", "multiplications per pair and feature", "softmaxes"],
            [
                [f, f"{metrics[f]['scores/products per pair']['mean']:g}", f"{metrics[f]['scores/softmaxes']['mean']:g}"]
                for f in forms
            ],
            caption="Counted while torch performs them. Component scores are written as 16 products, or as four wide ones (fused).",
        )
        r.figure(
            count_figure(counts),
            "counts",
            caption="Matrix products alone: convolutions, which all networks share, are not in the right panel.",
            alt="Bars of the multiplications of scores by shape and form, and of networks by method.",
        )
        r.text(
            "Time is not in this report, which must be the same whenever it is made: `python -m benchmarks.quaternion_attention` measures the "
            "attention and the real-time factor of the whole network side by side."
        )
        r.section("What scores can express")
        r.table(
            ["product", "shared score", "each component", "all together"],
            [
                [
                    name,
                    f"{metrics['shared']['ranks/score']['mean']:g}",
                    f"{metrics[name]['ranks/least component']['mean']:g} to {metrics[name]['ranks/largest component']['mean']:g}",
                    f"{metrics[name]['ranks/union']['mean']:g}",
                ]
                for name in ("q conj(k)", "q k")
            ],
            caption="Dimensions of the bilinear forms of one pair of features, of 16, over random quaternion weights.",
        )
        if not rows.empty:
            speech_section(r, metrics, trained, rows, sheet["speech"]["source"])
        if len(maps) == 2:
            r.section("Maps of attention")
            r.figure(
                maps_figure(maps),
                "maps",
                caption="First block, first head, seed 0, along time, at the frequency whose input varies most; one mixture.",
                alt="Five maps of attention weights over frames: the shared one and one per component.",
            )
            cells = metrics["maps"]
            listed = ", ".join(f"{name.removeprefix('maps/')} {cell['mean']:.3f}" for name, cell in cells.items())
            r.text(
                f"How far maps are apart, mean Jensen-Shannon divergence of their rows in bits (0: the same, 1: disjoint): {listed}."
            )
        classes_section(r, metrics, trained, sheet)
        for task in ("speech", "digits", "text"):
            r.parameters(trained[task], label=f"stage train, {task}")
        r.write()

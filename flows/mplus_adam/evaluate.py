"""Summaries over seeds and paired differences; the language model's numbers are of text that nothing was chosen on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import Field
from scipy.stats import ttest_rel

from components.stats import Metrics, paired_difference, summarise
from flows.mplus_adam import EXTRA
from flows.mplus_adam.arms import NAMES
from tasks.params import StageParams

RIVALS = ("adam", "adam_kahan", "madam")


class Params(StageParams):
    level: float = Field(0.05, gt=0, lt=1, description="family-wise error rate of the step-down test over formats")


def table(train: Path, name: str) -> pd.DataFrame | None:
    """A table of the stage train; None where the parameters asked for none of its rows."""
    path = train / f"{name}.parquet"
    return pd.read_parquet(path) if path.exists() else None


def put(metrics: dict[str, dict[str, Any]], method: str, metric: str, summary: Any) -> None:
    metrics.setdefault(method, {})[metric] = summary


def bench(metrics: Metrics, frame: pd.DataFrame) -> None:
    """Median relative errors and frozen shares per group, worst groups, and ratios of worst groups, paired by seed."""
    worst: dict[tuple[str, str], pd.Series] = {}
    for (name, method), rows in frame.groupby(["tag", "method"], sort=False):
        for group, part in rows.groupby("group", sort=False):
            put(metrics, NAMES[method], f"bench/{name}/{group} error", summarise(part["error"]))
            put(metrics, NAMES[method], f"bench/{name}/{group} frozen", summarise(part["frozen"]))
        worst[name, method] = rows.groupby("seed")["error"].max()
        put(metrics, NAMES[method], f"bench/{name}/worst error", summarise(worst[name, method]))
    for (name, method), series in worst.items():
        if method in RIVALS and (name, "mplus_adam") in worst:
            ratio = worst[name, "mplus_adam"] / series
            put(metrics, f"M+Adam / {NAMES[method]}", f"bench/{name}/worst error", summarise(ratio))


def descent(metrics: Metrics, frame: pd.DataFrame) -> None:
    """Shares of steps that lower the loss: FP32, among steps under the bound; E4M3, before the loss meets the grid's floor."""
    for (name, _), rows in frame.groupby(["tag", "seed"], sort=False):
        falls = rows["after"] < rows["before"]
        if name == "fp32":
            values = {"decreasing": (falls, rows["bounded"])}
        else:
            values = {"not rising": (rows["after"] <= rows["before"], rows["before"] >= rows["floor"])}
        for metric, (happened, counted) in values.items():
            cell = metrics.setdefault("M+Adam", {}).setdefault(f"descent/{name.split()[0]}/{metric}", [])
            cell.append(float(happened[counted].mean()) if counted.any() else 0.0)
            counts = metrics["M+Adam"].setdefault(f"descent/{name.split()[0]}/steps counted", [])
            counts.append(float(counted.sum()))
    for metric in [m for m in metrics.get("M+Adam", {}) if m.startswith("descent/")]:
        metrics["M+Adam"][metric] = summarise(metrics["M+Adam"][metric])


def language(metrics: Metrics, frame: pd.DataFrame) -> dict[tuple[str, str], np.ndarray]:
    """Losses, frozen shares, bytes; differences to M+Adam paired by seed. Returns the losses per (tag, method)."""
    found: dict[tuple[str, str], np.ndarray] = {}
    final = frame[frame["kind"] == "lm"]
    for (name, method), rows in final.groupby(["tag", "method"], sort=False):
        rows = rows.sort_values("seed")
        for metric in ("nll", "choice_nll", "frozen", "bytes", "factor"):
            put(metrics, NAMES[method], f"lm/{name}/{metric}", summarise(rows[metric]))
        put(metrics, NAMES[method], f"lm/{name}/perplexity", summarise(np.exp(rows["nll"])))
        found[name, method] = rows["nll"].to_numpy()
    for method in final["method"].unique():
        by_seed = final[final["method"] == method].groupby("seed")["choice_nll"].mean()
        put(metrics, NAMES[method], "lm/choice_nll", summarise(by_seed))
    gains = {name: found[name, "adam"] - v for (name, m), v in found.items() if m == "mplus_adam" and (name, "adam") in found}
    for (name, method), values in found.items():
        if method != "mplus_adam" and (name, "mplus_adam") in found:
            put(
                metrics,
                f"{NAMES[method]} - M+Adam",
                f"lm/{name}/nll",
                paired_difference(values, found[name, "mplus_adam"]),
            )
        if name != "fp32" and ("fp32", "adam") in found:
            loss = paired_difference(values, found["fp32", "adam"])
            put(metrics, f"{NAMES[method]} - FP32 AdamW", f"lm/{name}/nll", loss)
        if method == "adam" and name.endswith(" sr") and (name[:-3] + " rne", "mplus_adam") in found:
            other = found[name[:-3] + " rne", "mplus_adam"]
            put(metrics, "Adam-LP stochastic - M+Adam nearest", f"lm/{name[:-3]}/nll", paired_difference(values, other))
    for name, gain in gains.items():
        if name != "fp32" and "fp32" in gains:
            put(metrics, EXTRA, f"lm/{name}/nll", paired_difference(gain, gains["fp32"]))
    return found


def holm(found: dict[tuple[str, str], np.ndarray], level: float) -> list[dict[str, Any]]:
    """Two-sided paired t tests of Adam-LP against M+Adam per format and rounding, with Holm's adjusted p-values."""
    names = [name for name, method in found if method == "mplus_adam" and (name, "adam") in found and name != "fp32"]
    tests = [
        (name, ttest_rel(found[name, "adam"], found[name, "mplus_adam"]).pvalue)
        for name in names
        if len(found[name, "adam"]) > 1
    ]
    rows, largest = [], 0.0
    for rank, (name, p) in enumerate(sorted(tests, key=lambda pair: pair[1])):
        largest = max(largest, min(1.0, float(p) * (len(tests) - rank)))
        rows.append({"tag": name, "p": float(p), "adjusted": largest, "rejected": largest < level})
    return rows


def evaluate(p: Params, data: Path, train: Path, out: Path) -> Metrics:
    """Writes holm.json and returns the metrics."""
    metrics: dict[str, dict[str, Any]] = {}
    for name, summary in (("bench", bench), ("descent", descent)):
        frame = table(train, name)
        if frame is not None:
            summary(metrics, frame)
    found = language(metrics, table(train, "lm"))
    rows = holm(found, p.level)
    (out / "holm.json").write_text(json.dumps(rows, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return metrics

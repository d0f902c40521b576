"""Metrics per seed, paired differences, the best learning rate of each method, and the bounds put to the test."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from pydantic import Field
from scipy.stats import ttest_rel

from components.optim.gradient_transforms import GradientStabilizer
from components.stats import Metrics, paired_difference, summarise
from flows.gradient_stabilizer.arms import CLIPS, METHODS, OURS
from tasks.params import StageParams, Strict


class Adversary(Strict):
    """Search for norm sequences that come near the bound."""

    steps: int = Field(6000, ge=100, description="steps of a sequence")
    free: int = Field(60, ge=2, description="last steps whose norms are searched; those before have norm 1")
    range: float = Field(1e8, gt=1, description="largest norm")
    iterations: int = Field(400, ge=1, description="projected gradient steps")
    seeds: int = Field(3, ge=1, description="random starts")


class Law(Strict):
    """Log-normal norms."""

    burn_in: int = Field(5000, ge=1, description="steps before the average")
    steps: int = Field(500, ge=1, description="steps that are averaged")
    seeds: int = Field(20, ge=1, description="independent sequences")


class Params(StageParams):
    adversary: Adversary = Field(Adversary(), description="adversarial sequences")
    law: Law = Field(Law(), description="stationary norms")
    tolerance: float = Field(0.2, gt=0, description="nats above a method's best loss that still count as stable")


def norms_through(transform: GradientStabilizer, norms: np.ndarray) -> np.ndarray:
    """The stabilised norms (steps, sequences) of gradients with the given norms (steps, sequences), by the transform itself."""
    parameters = [torch.nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(norms.shape[1])]
    found = np.empty_like(norms)
    for step, row in enumerate(torch.from_numpy(norms)):
        for p, r in zip(parameters, row.unbind(), strict=True):
            p.grad = r[None].clone()
        transform(parameters)
        found[step] = [p.grad.item() for p in parameters]
    return found


def adversarial_norms(p: Adversary, gamma1: float, gamma2: float, seed: int) -> np.ndarray:
    """(steps,) norms that make the last stabilised norm large, found by projected gradient ascent on their logarithms."""
    generator = torch.Generator().manual_seed(seed)
    top = math.log(p.range)
    x = (torch.rand(p.free, generator=generator, dtype=torch.float64) * top).requires_grad_()
    age = torch.arange(p.free - 1, -1, -1, dtype=torch.float64)
    first, second = (1 - gamma1) * gamma1**age, (1 - gamma2) * gamma2**age
    # The steps before, of norm 1: weights gamma^free - gamma^steps, without the correction, which is the same for all x.
    before = [gamma**p.free - gamma**p.steps for gamma in (gamma1, gamma2)]
    optimizer = torch.optim.Adam([x], lr=0.3)
    for _ in range(p.iterations):
        optimizer.zero_grad()
        m = torch.logsumexp(torch.cat([first.log() + x, torch.tensor([math.log(before[0] + 1e-300)])]), 0)
        v = torch.logsumexp(torch.cat([second.log() + 2 * x, torch.tensor([math.log(before[1] + 1e-300)])]), 0)
        (v / 2 - m).backward()
        optimizer.step()
        with torch.no_grad():
            x.clamp_(0, top)
    return np.concatenate([np.ones(p.steps - p.free), x.detach().exp().numpy()])


def bounds(p: Params, trained: dict[str, Any]) -> dict[tuple[str, str], dict[int, float]]:
    """Adversarial sequences and log-normal norms through the transform."""
    gs = trained["gs"]
    gamma1, gamma2, values = gs["gamma1"], gs["gamma2"], {}
    norms = np.stack([adversarial_norms(p.adversary, gamma1, gamma2, seed) for seed in range(p.adversary.seeds)], axis=1)
    for name, correct in (("adversary", True), ("adversary, no correction", False)):
        found = norms_through(GradientStabilizer(gamma1, gamma2, gs["eps"], correct), norms).max(axis=0)
        values[OURS, f"bound/{name}"] = dict(enumerate((found / trained["bound"]).tolist()))
    q = p.law
    for sigma in (0.25, 0.5):
        drawn = np.exp(sigma * np.random.default_rng(0).standard_normal((q.burn_in + q.steps, q.seeds)))
        rho = norms_through(GradientStabilizer(gamma1, gamma2, gs["eps"]), drawn)[q.burn_in :].mean(axis=0)
        values[OURS, f"law/sigma={sigma:g}"] = dict(enumerate((rho / math.exp(-(sigma**2) / 2)).tolist()))
    return values


def by_seed(runs: pd.DataFrame, column: str) -> dict[int, float]:
    return {int(seed): float(value) for seed, value in zip(runs["seed"], runs[column], strict=True)}


def area(lrs: np.ndarray, losses: np.ndarray) -> float:
    """Mean of the loss over log lr, by the trapezoid rule; the loss itself for one learning rate."""
    if lrs.size == 1:
        return float(losses[0])
    x = np.log10(lrs)
    return float(np.trapezoid(losses, x) / (x[-1] - x[0]))


def width(lrs: np.ndarray, losses: np.ndarray, best: float, tolerance: float) -> float:
    """Decades between the lowest and the highest learning rate whose loss is within `tolerance` of `best`; 0 for none."""
    stable = lrs[losses <= best + tolerance]
    return float(np.log10(stable.max() / stable.min())) if stable.size else 0.0


def measured(p: Params, runs: pd.DataFrame, trained: dict[str, Any]) -> dict[tuple[str, str], dict[int, float]]:
    """(method, metric) -> seed -> value."""
    values: dict[tuple[str, str], dict[int, float]] = {}
    bound = trained["bound"]
    language = runs[runs["task"] == "language"]
    for (precision, method), group in language.groupby(["precision", "method"], sort=False):
        kind = "fp4" if precision.startswith("fp4") else "full"
        by_lr = group.groupby("lr")
        # The learning rate is chosen on other windows than those reported.
        chosen = by_lr["selection_loss"].mean().idxmin()
        least = by_lr["loss"].mean().min()
        at = group[group["lr"] == chosen]
        values[method, f"language/{kind}/best loss"] = by_seed(at, "loss")
        values[method, f"language/{kind}/selection loss"] = by_seed(at, "selection_loss")
        values[method, f"language/{kind}/best lr"] = {seed: float(chosen) for seed in by_seed(at, "loss")}
        values[method, f"language/{kind}/spike ratio"] = by_seed(
            at.assign(spike_ratio=at["spike_ratio"].fillna(1.0)), "spike_ratio"
        )
        for lr, one in by_lr:
            values[method, f"language/{kind}/loss@{lr:g}"] = by_seed(one, "loss")
        for seed, one in group.groupby("seed"):
            one = one.sort_values("lr")
            lrs, losses = one["lr"].to_numpy(), one["loss"].to_numpy()
            values.setdefault((method, f"language/{kind}/area"), {})[int(seed)] = area(lrs, losses)
            values.setdefault((method, f"language/{kind}/stable width"), {})[int(seed)] = width(lrs, losses, least, p.tolerance)
    digits = runs[runs["task"] == "digits"]
    for (method, decay), group in digits.groupby(["method", "weight_decay"], sort=False):
        values[method, f"digits/accuracy@{decay:g}"] = by_seed(group, "accuracy")
    if len(digits):
        least, strongest = (f"digits/accuracy@{digits['weight_decay'].agg(end):g}" for end in ("min", "max"))
        for method in digits["method"].unique():
            values[method, "digits/accuracy@strongest"] = dict(values[method, strongest])
            pairs = values[method, least], values[method, strongest]
            values[method, "digits/drop"] = {seed: pairs[0][seed] - pairs[1][seed] for seed in pairs[0]}
    for (method, level), group in runs[runs["task"] == "weather"].groupby(["method", "level"], sort=False):
        values[method, f"weather/mse@{level}"] = by_seed(group, "mse")
    for (method, optimizer), group in runs[runs["task"] == "spikes"].groupby(["method", "optimizer"], sort=False):
        chosen = group.groupby("lr")["value"].mean().idxmin()
        values[method, f"spikes/{optimizer}/value"] = by_seed(group[group["lr"] == chosen], "value")
        values[method, f"spikes/{optimizer}/best lr"] = {seed: float(chosen) for seed in group["seed"].unique().tolist()}
        if optimizer == "adam" and method == OURS:
            top = group.groupby("seed")[["max_m", "max_v"]].max()
            values[OURS, "bound/Adam m"] = {int(seed): float(row.max_m / bound) for seed, row in top.iterrows()}
            values[OURS, "bound/Adam v"] = {int(seed): float(row.max_v / bound**2) for seed, row in top.iterrows()}
    grid = runs[runs["task"] == "sensitivity"]
    for (one, two), group in grid.groupby(["gamma1", "gamma2"], sort=False):
        values[OURS, f"sensitivity/loss@{one:g},{two:g}"] = by_seed(group, "loss")
    if len(grid):
        losses = grid.groupby("seed")["loss"]
        values[OURS, "sensitivity/range"] = {int(seed): float(x) for seed, x in (losses.max() - losses.min()).items()}
    ours = runs[(runs["method"] == OURS) & runs["gamma1"].isna()]
    if len(ours):
        values[OURS, "bound/largest norm"] = {
            int(seed): float(x) / bound for seed, x in ours.groupby("seed")["max_rho"].max().items()
        }
    return values


def higher_is_better(metric: str) -> bool:
    return "accuracy" in metric or "width" in metric


def summaries(values: dict[tuple[str, str], dict[int, float]]) -> dict[str, dict[str, Any]]:
    """Means over seeds, differences to GS paired by seed, and to the best clip."""
    metrics: dict[str, dict[str, Any]] = {}
    for (method, metric), found in values.items():
        metrics.setdefault(method, {})[metric] = summarise(list(found.values()))

    def compare(name: str, first: dict[int, float], second: dict[int, float], metric: str) -> None:
        common = [seed for seed in first if seed in second]
        if common:
            metrics.setdefault(name, {})[metric] = paired_difference([first[s] for s in common], [second[s] for s in common])

    for metric in sorted({metric for method, metric in values if method == OURS and "best lr" not in metric}):
        ours = values[OURS, metric]
        for other in METHODS:
            if other != OURS and (other, metric) in values:
                compare(f"{OURS} - {other}", ours, values[other, metric], metric)
        clips = [clip for clip in CLIPS if (clip, metric) in values]
        if clips:
            # Picked by what is reported itself: this favours the clips.
            pick = max if higher_is_better(metric) else min
            best = pick(clips, key=lambda clip: metrics[clip][metric]["mean"])
            compare(f"{OURS} - best clip", ours, values[best, metric], metric)
    for other in METHODS:
        if other != OURS and (other, "digits/drop") in values and (OURS, "digits/drop") in values:
            half = {seed: drop / 2 for seed, drop in values[other, "digits/drop"].items()}
            compare(f"half the drop of {other} - drop of {OURS}", half, values[OURS, "digits/drop"], "digits/accuracy")
    return metrics


def holm(p_values: dict[str, float]) -> dict[str, float]:
    """Holm's adjusted p-values of one family of tests."""
    adjusted, running = {}, 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        running = max(running, min(1.0, (len(p_values) - rank) * p))
        adjusted[name] = running
    return adjusted


def tests(values: dict[tuple[str, str], dict[int, float]]) -> dict[str, dict[str, float]]:
    """Per metric: paired t tests of GS against every other method, two-sided, adjusted by Holm over the methods."""
    found = {}
    for metric in sorted({metric for _, metric in values}):
        if not (metric.endswith(("best loss", "/value", "@strongest")) or metric.startswith("weather/mse")):
            continue
        ours, p_values = values.get((OURS, metric), {}), {}
        for other in METHODS:
            theirs = values.get((other, metric), {})
            common = [seed for seed in ours if seed in theirs]
            differences = [ours[seed] - theirs[seed] for seed in common]
            if other == OURS or len(set(differences)) < 2:
                continue
            p_values[other] = float(ttest_rel([ours[seed] for seed in common], [theirs[seed] for seed in common]).pvalue)
        if p_values:
            found[metric] = holm(p_values)
    return found


def evaluate(p: Params, data: Path, train: Path, out: Path) -> Metrics:
    """Writes tests.json (Holm's p-values) and returns the metrics."""
    trained = json.loads((train / "parameters.json").read_text(encoding="utf-8"))
    runs = pd.read_parquet(train / "runs.parquet")
    values = measured(p, runs, trained) | bounds(p, trained)
    (out / "tests.json").write_text(json.dumps(tests(values), indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return summaries(values)

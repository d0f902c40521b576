"""Kernel errors against their laws, the one-step formula, lengths of estimates, and how trajectories deviate.

Relative error of a pair:  eps = sqrt(mean over draws of ||K_U - K||_F^2) / ||K||_F.  A job is one network of one seed.
Slopes are ordinary least squares in log-log, one per seed, with a bootstrap interval over seeds.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from pydantic import Field
from safetensors.torch import load_file
from scipy.stats import spearmanr
from torch import Tensor

from components.optim.entk import (
    cka,
    entk,
    expected_sq_error,
    jacobian,
    jl_budget,
    kernel_alignment,
    one_step_prediction,
    project,
    spectral_wasserstein,
    worst_case_sq_error,
)
from components.optim.perturbations import Distribution, directions
from components.optim.zeroth_order import ZOGradient, expected_square_norm
from components.stats.intervals import Metrics, paired_difference, summarise
from components.stats.slopes import log_log_slope
from flows.zo_entk.language import VerbaliserModel, encode, kernel_error, load_causal_lm, verbaliser_ids
from flows.zo_entk.nets import batches, first_order, lenet, mlp
from flows.zo_entk.store import KINDS, read_inputs, read_pairs, seed_of, weights_file, write_parameters
from tasks import track
from tasks.fanout import fanout
from tasks.params import StageParams, Strict

FAITHFUL = ("gaussian", "rademacher", "sphere")


class OneStep(Strict):
    """The one-step formula, in float64 at the middle width's first weights."""

    etas: list[float] = Field([1e-1, 3e-2, 1e-2, 3e-3, 1e-3], min_length=2, description="learning rates")
    fit_up_to: float = Field(3e-2, gt=0, description="largest learning rate of the fitted exponent")
    mu: float = Field(1e-5, gt=0, description="smoothing radius")
    perturbations: int = Field(16, ge=1, description="P")
    batch: int = Field(64, ge=1, description="examples of the step")
    probes: int = Field(40, ge=1, description="observed inputs")


class LeNet(Strict):
    perturbations: list[int] = Field([5, 25, 125], min_length=1, description="P of LeNet's kernels")


class Language(Strict):
    """Kernels of language models; the models and their setting are those of the stage train."""

    models: list[str] = Field([], description="hub names; none, nothing is done")
    perturbations: list[int] = Field([5, 25, 125], min_length=1, description="P")
    pairs: int = Field(8, ge=1, description="pairs of validation sentences of one label, and as many of two")
    mu: float = Field(1e-3, gt=0, description="smoothing radius")
    length: int = Field(64, ge=8, description="tokens per prompt at most")
    dtype: str = Field("float32", pattern="^(float32|bfloat16)$", description="of the weights; differences need the digits")
    device: str = Field("cuda", description="torch device")


class Params(StageParams):
    dists: list[Distribution] = Field(["gaussian", "rademacher", "sphere"], min_length=1, description="distributions")
    baseline: list[Distribution] = Field(["coordinate"], description="distributions that are no JL projection, for comparison")
    perturbations: list[int] = Field([1, 4, 16, 64, 256], min_length=2, description="P")
    kernel_reps: int = Field(8, ge=1, description="independent U per pair, P and distribution, at least")
    least_columns: int = Field(512, ge=1, description="more U at small P, until P times their number is this")
    focus: int = Field(64, ge=1, description="P at which pairs are ranked and outputs are varied")
    v_scan: list[int] = Field([2, 5, 10, 30, 100], min_length=2, description="outputs of networks with random heads")
    fit_v_from: int = Field(10, ge=1, description="least number of outputs of the fitted exponent")
    length_draws: int = Field(400, ge=2, description="estimates with P = 1 whose length is measured")
    delta: float = Field(0.05, gt=0, lt=1, description="failure probability of the Johnson-Lindenstrauss budget")
    one_step: OneStep = Field(OneStep(), description="one-step formula")
    lenet: LeNet = Field(LeNet(), description="LeNet")
    language: Language = Field(Language(), description="language models")
    budget_only: bool = Field(False, description="for sweeps: only the loss at equal forward passes")


class Job(NamedTuple):
    p: Params
    data: Path
    train: Path
    seed: int
    net: str  # a width or "lenet"
    middle: bool  # whether this width also takes the one-step formula and the scan of outputs
    gain: float


def draws_of(p: Params, P: int) -> int:
    return max(p.kernel_reps, math.ceil(p.least_columns / P))


def projections(J: Tensor, P: int, draws: int, dist: str, seed: int) -> Tensor:
    """J U for `draws` independent U: (..., draws, P). All their directions are drawn in one pass over J."""
    S = project(J, P * draws, dist, seed, chunk=2048) * math.sqrt(draws)
    return S.reshape(*J.shape[:-1], draws, P)


def pair_errors(Jo: Tensor, Ju: Tensor, So: Tensor, Su: Tensor) -> tuple[np.ndarray, Tensor]:
    """||K_U - K||_F^2 of each draw, and K; J (V, d), S (V, draws, P)."""
    K = entk(Jo.double(), Ju.double())
    projected = torch.einsum("vrp,wrp->rvw", So.double(), Su.double())
    return (projected - K).square().sum((1, 2)).numpy(), K


def kernel_study(job: Job) -> dict[str, pd.DataFrame]:
    """Errors of all pairs at the first-order weights; CKA and spectra over the tangent vectors of the `self` inputs."""
    name = "mnist" if job.net == "lenet" else "digits"
    inputs, pairs = read_inputs(job.data, name), read_pairs(job.data, name)
    net = lenet(job.gain, job.seed) if job.net == "lenet" else mlp(int(job.net), job.gain, job.seed)
    net.load_flat(load_file(weights_file(job.train, job.net, job.seed))["FO"])
    rows = sorted({*pairs["idx_o"], *pairs["idx_u"]})
    at = {row: position for position, row in enumerate(rows)}
    J = jacobian(net, torch.from_numpy(inputs.x[rows]))
    alike = [at[row] for row in pairs[pairs["kind"] == "self"]["idx_o"]]
    gram = J[alike].flatten(0, 1).double()
    gram = gram @ gram.T
    budgets = job.p.lenet.perturbations if job.net == "lenet" else job.p.perturbations
    known = {"net": job.net, "d": net.d, "seed": job.seed}
    errors, likeness = [], []
    for dist in (*job.p.dists, *job.p.baseline):
        for P in budgets:
            draws = draws_of(job.p, P)
            S = projections(J, P, draws, dist, seed_of("kernel", job.net, job.seed, dist, P))
            for pair in pairs.itertuples():
                o, u = at[pair.idx_o], at[pair.idx_u]
                squares, K = pair_errors(J[o], J[u], S[o], S[u])
                law = expected_sq_error(J[o], J[u], P, dist)
                # The deviation that the budget formula allows with this P and these tangent vectors.
                eps = math.sqrt(jl_budget(2 * net.shapes[-1][0], 1.0, job.p.delta) / P)
                facts = {"pair_id": pair.pair_id, "kind": pair.kind, "dist": dist, "P": P, "law": law}
                facts |= {"square_norm": float(K.square().sum()), "kappa": kernel_alignment(J[o].double(), J[u].double())}
                facts |= {
                    "norms": float(J[o].double().norm() * J[u].double().norm()),
                    "bound": worst_case_sq_error(J[o], J[u], eps),
                }
                errors.append(pd.DataFrame({"rep": np.arange(draws), "square_error": squares}).assign(**known, **facts))
            if dist in job.p.baseline:
                continue  # a coordinate that no tangent vector uses gives a kernel of zeros, which has no alignment
            tangent = S[alike].flatten(0, 1).double()
            found = [tangent[:, r] @ tangent[:, r].T for r in range(min(draws, job.p.kernel_reps))]
            likeness.append(
                known
                | {"dist": dist, "P": P, "cka": float(np.mean([cka(gram, K) for K in found]))}
                | {
                    "wasserstein": float(
                        np.mean([spectral_wasserstein(gram, K) for K in found]) / torch.linalg.svdvals(gram).mean()
                    )
                }
            )
    return {"kernel": pd.concat(errors, ignore_index=True), "likeness": pd.DataFrame(likeness)}


def output_scan(job: Job) -> pd.DataFrame:
    """Errors of `self` pairs on networks with V random heads."""
    inputs, pairs = read_inputs(job.data, "digits"), read_pairs(job.data, "digits")
    x = torch.from_numpy(inputs.x[pairs[pairs["kind"] == "self"]["idx_o"].to_numpy()])
    P, rows = job.p.focus, []
    draws = draws_of(job.p, P)
    for V in job.p.v_scan:
        net = mlp(int(job.net), job.gain, job.seed, V)
        J = jacobian(net, x)
        S = projections(J, P, draws, "gaussian", seed_of("outputs", V, job.seed))
        for tangents, projected in zip(J, S, strict=True):
            squares, K = pair_errors(tangents, tangents, projected, projected)
            facts = {"V": V, "square_error": squares.mean(), "law": expected_sq_error(tangents, tangents, P)}
            rows.append(facts | {"square_norm": float(K.square().sum()), "seed": job.seed})
    return pd.DataFrame(rows)


def one_step(job: Job) -> dict[str, Any]:
    """Largest difference between changes of log-probabilities and their prediction, per learning rate, and the kernel's own check."""
    q = job.p.one_step
    inputs = read_inputs(job.data, "digits")
    net = mlp(int(job.net), job.gain, job.seed).double()
    theta = net.flat()
    probes = torch.from_numpy(inputs.x[: min(q.probes, inputs.probes)]).double()
    x, y = next(batches(inputs, q.batch, 1, job.seed))
    x = x.double()
    Jo, Ju = jacobian(net, probes), jacobian(net, x)
    with torch.no_grad():
        before, pi_u = net.functional(theta, probes).log_softmax(-1), net.functional(theta, x).softmax(-1)
    zo = ZOGradient(q.perturbations, q.mu, "gaussian", seed_of("one step", job.seed))
    U = torch.stack(list(directions(net.d, q.perturbations, "gaussian", zo.seed, 0, torch.float64))).T / math.sqrt(
        q.perturbations
    )
    estimate = zo.estimate_batched(lambda many: net.batched_loss(many, x, y), theta, step=0, chunk=4)
    steps = {"FO": (first_order(net, theta, x, y)[0], None), "ZO": (estimate, U)}
    rows = []
    for method, (gradient, basis) in steps.items():
        unit = torch.stack(
            [one_step_prediction(J, Ju, pi, pi_u, y, 1.0, basis) for J, pi in zip(Jo, before.exp(), strict=True)]
        )
        for eta in q.etas:
            with torch.no_grad():
                change = net.functional(theta - eta * gradient, probes).log_softmax(-1) - before
            residual = (change - eta * unit).abs().max().item()
            rows.append(
                {"method": method, "eta": eta, "residual": residual, "change": change.abs().max().item(), "seed": job.seed}
            )
    G = pi_u - torch.nn.functional.one_hot(y, pi_u.shape[1])
    kernel = torch.einsum("ovp,bwp,bw->ov", Jo @ U, Ju @ U, G) / len(y)
    difference = float((Jo @ estimate - kernel).norm() / kernel.norm())
    return {"one_step": pd.DataFrame(rows), "kernel_difference": difference}


def lengths(job: Job) -> pd.DataFrame:
    """||g||^2 / ||grad||^2 of single-perturbation estimates at the first weights."""
    inputs = read_inputs(job.data, "digits")
    net = mlp(int(job.net), job.gain, job.seed)
    theta = net.flat()
    x, y = next(batches(inputs, job.p.one_step.batch, 1, job.seed))
    square, rows = first_order(net, theta, x, y)[0].square().sum(), []
    for dist in ("gaussian", "rademacher"):
        zo = ZOGradient(1, 1e-3, dist, seed_of("length", dist, job.net, job.seed))
        found = [
            float(zo.estimate_batched(lambda many: net.batched_loss(many, x, y), theta).square().sum() / square)
            for _ in range(job.p.length_draws)
        ]
        law = expected_square_norm(net.d, 1, dist)
        rows.append({"dist": dist, "d": net.d, "seed": job.seed, "ratio": float(np.mean(found)), "law": law})
    return pd.DataFrame(rows)


def run_job(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = kernel_study(job)
    if job.net != "lenet":
        found["lengths"] = lengths(job)
    if job.middle:
        found |= one_step(job) | {"outputs": output_scan(job)}
    return found


def run_language(name: str, q: Language, sentences: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Kernel errors of one language model on pairs of validation sentences of one label (same) and of two (different)."""
    model, tokenizer = load_causal_lm(name, q.dtype, q.device)
    net = VerbaliserModel(model, verbaliser_ids(tokenizer)).eval()
    chosen = sentences[sentences["split"] == "validation"]
    good, bad = (chosen[chosen["label"] == label]["text"].tolist() for label in (1, 0))
    pairs = [("same", good[2 * k], good[2 * k + 1]) for k in range(q.pairs)] + [
        ("different", good[k], bad[k]) for k in range(q.pairs)
    ]
    rows = []
    for position, (kind, *texts) in enumerate(track.progress(pairs, name)):
        first, second = (encode(tokenizer, [text], q.length).to(q.device) for text in texts)
        for P in q.perturbations:
            facts = kernel_error(net, first, second, perturbations=P, mu=q.mu, seed=seed, step=position)
            rows.append({"model": name, "pair_id": position, "kind": kind, "P": P} | facts)
    return pd.DataFrame(rows)


# --- from tables to metrics -----------------------------------------------------------------------------------------


def rms(frame: pd.DataFrame, by: list[str], *, over: str) -> pd.Series:
    """sqrt(mean of square_error / over^2) by group."""
    return np.sqrt((frame["square_error"] / frame[over] ** 2).groupby([frame[column] for column in by]).mean())


def wide(series: pd.Series) -> pd.DataFrame:
    """A table with a row per first and a column per second level of the index."""
    return series.unstack()  # noqa: PD010


def per_pair(kernel: pd.DataFrame) -> pd.DataFrame:
    """One row per network, seed, distribution, P and pair: relative error, its law and the alignment."""
    keys = ["net", "d", "seed", "dist", "P", "pair_id", "kind"]
    found = kernel.groupby(keys, as_index=False)[["square_error", "law", "square_norm", "kappa", "norms"]].mean()
    found["error"] = np.sqrt(found["square_error"] / found["square_norm"])
    found["law_error"] = np.sqrt(found["law"] / found["square_norm"])
    return found


def kernel_metrics(p: Params, kernel: pd.DataFrame) -> dict[str, dict[str, Any]]:
    kernel = kernel.assign(norm=np.sqrt(kernel["square_norm"]), law_root=np.sqrt(kernel["law"]))
    pairs, found = per_pair(kernel), {}
    for dist in kernel["dist"].unique():
        mine = kernel[kernel["dist"] == dist]
        cell = found.setdefault(dist, {})
        over_P = wide(rms(mine, ["seed", "P"], over="norm"))
        if over_P.shape[1] > 1:
            cell["error/slope_P"] = log_log_slope(over_P.columns, over_P)
        cell["error/over_law"] = summarise(rms(mine, ["kind", "P"], over="law_root"))
        # E||Delta K||^2 P / (||J_o|| ||J_u||)^2 is the same at every P, so all of them count alike.
        scaled = mine.assign(square_error=mine["square_error"] * mine["P"])
        over_d = wide(rms(scaled, ["seed", "d"], over="norms"))
        if over_d.shape[1] > 1:
            cell["error/slope_d"] = log_log_slope(over_d.columns, over_d)
        for d in over_d.columns:
            cell[f"error/normalised/d={d}"] = summarise(over_d[d])
        for P, kind in [(P, kind) for P in over_P.columns for kind in KINDS]:
            chosen = mine[(mine["P"] == P) & (mine["kind"] == kind)]
            cell[f"error/P={P}/{kind}"] = summarise(rms(chosen, ["seed"], over="norm"))
        within = (mine["square_error"] <= mine["bound"]).groupby(mine["seed"]).mean()
        cell["error/share_within_bound"] = summarise(within)
        ranked = pairs[(pairs["dist"] == dist) & (pairs["P"] == p.focus)]
        if len(ranked):
            correlation = [spearmanr(run["error"], 1 / run["kappa"]).statistic for _, run in ranked.groupby("seed")]
            cell["error/spearman_inverse_alignment"] = summarise(correlation)
    by_dist = pairs.pivot_table(index=["seed", "net", "P", "pair_id"], columns="dist", values="error")
    for dist in ("rademacher", "sphere"):
        if {dist, "gaussian"} <= set(by_dist):
            ratio = (by_dist[dist] / by_dist["gaussian"]).groupby("seed").mean()
            found.setdefault(f"{dist} / gaussian", {})["error"] = summarise(ratio)
    focus = pairs[(pairs["dist"] == "gaussian") & (pairs["P"] == (p.focus if p.focus in set(pairs["P"]) else pairs["P"].max()))]
    logs = wide(np.log(focus["error"]).groupby([focus["seed"], focus["kind"]]).mean())
    for low, high in itertools.pairwise(KINDS):
        found.setdefault(f"{high} - {low}", {})["error"] = paired_difference(logs[high], logs[low])
    return found


def trajectory_metrics(train: Path, metrics: dict[str, dict[str, Any]]) -> None:
    """Deviations at the last step; divided by the one-step error r of each width, averaged over seeds."""
    history, facts = pd.read_parquet(train / "history.parquet"), pd.read_parquet(train / "facts.parquet")
    noise = facts.groupby("d")["noise"].mean()
    last = history[history["step"] == history["step"].max()]
    drop = last.merge(facts[["d", "seed", "start_loss"]], on=["d", "seed"])
    drop = drop.assign(drop=drop["start_loss"] - drop["probe_loss"])
    runs = drop[drop["method"] != "FO"].assign(r=lambda f: f["d"].map(noise) / np.sqrt(f["P"]))
    for (dist, P), group in runs.groupby(["dist", "P"]):
        cell = metrics.setdefault(f"ZO {dist} P={P}", {})
        for d, run in group.groupby("d"):
            cell[f"trajectory/dev/d={d}"] = summarise(run["dev"])
            cell[f"trajectory/cos/d={d}"] = summarise(run["cos"])
            cell[f"trajectory/normalised_dev/d={d}"] = summarise(run["dev"] / run["r"])
            cell[f"trajectory/probe_loss/d={d}"] = summarise(run["probe_loss"])
            cell[f"trajectory/loss_drop/d={d}"] = summarise(run["drop"])
        by_d = wide((group["dev"] / group["r"]).groupby([group["seed"], group["d"]]).mean())
        if by_d.shape[1] > 1:
            cell["trajectory/slope_d"] = log_log_slope(by_d.columns, by_d)
    largest = runs[runs["dist"] == "gaussian"]["P"].max()
    metrics.setdefault("gaussian", {})["trajectory/slope_d"] = metrics[f"ZO gaussian P={largest}"]["trajectory/slope_d"]
    exact = drop[drop["method"] == "FO"]
    for d, run in exact.groupby("d"):
        metrics.setdefault("FO", {})[f"trajectory/probe_loss/d={d}"] = summarise(run["probe_loss"])
        metrics["FO"][f"trajectory/loss_drop/d={d}"] = summarise(run["drop"])
    for d, run in facts.groupby("d"):
        metrics["FO"][f"trajectory/step_error/d={d}"] = summarise(run["noise"])


def step_metrics(p: Params, tables: dict[str, Any], metrics: dict[str, dict[str, Any]]) -> None:
    for method, run in tables["one_step"].groupby("method"):
        fitted = run[run["eta"] <= p.one_step.fit_up_to].pivot_table(index="seed", columns="eta", values="residual")
        cell = metrics.setdefault(method, {})
        cell["one_step/slope"] = log_log_slope(fitted.columns, fitted)
        for eta, group in run.groupby("eta"):
            cell[f"one_step/residual/eta={eta:g}"] = summarise(group["residual"])
    metrics["ZO"]["one_step/kernel_difference"] = summarise(tables["kernel_difference"])
    outputs = tables["outputs"]
    outputs = outputs.assign(
        relative=outputs["square_error"] / outputs["square_norm"], law_relative=outputs["law"] / outputs["square_norm"]
    )
    by_V = np.sqrt(outputs.groupby(["seed", "V"])[["relative", "law_relative"]].mean())
    measured, law = wide(by_V["relative"]), wide(by_V["law_relative"])
    for V in measured.columns:
        metrics["gaussian"][f"error/V={V}"] = summarise(measured[V])
        metrics["gaussian"][f"law/V={V}"] = summarise(law[V])
    fitted = measured[[V for V in measured.columns if p.fit_v_from <= V]]
    if fitted.shape[1] < 2:
        fitted = measured  # a scan too short for the fit's range, as in tests
    metrics["gaussian"]["error/slope_V"] = log_log_slope(fitted.columns, fitted)
    for dist, run in tables["lengths"].groupby("dist"):
        by_d = run.pivot_table(index="seed", columns="d", values="ratio")
        if by_d.shape[1] > 1:
            metrics[dist]["length/slope_d"] = log_log_slope(by_d.columns, by_d)
        for d in by_d.columns:
            metrics[dist][f"length/d={d}"] = summarise(by_d[d])


def budget_metrics(train: Path) -> Metrics:
    history = pd.read_parquet(train / "history.parquet")
    loss = [value if math.isfinite(value) else 1e9 for value in history["probe_loss"]]  # a rate too high for the method
    return {"ZO at equal passes": {"probe_loss": summarise(loss)}}


def evaluate(p: Params, data: Path, train: Path, out: Path) -> Metrics:
    """Writes kernel.parquet, likeness.parquet, one_step.parquet, outputs.parquet, lengths.parquet; returns the metrics."""
    if p.budget_only:
        return budget_metrics(train)
    facts = pd.read_parquet(train / "facts.parquet")
    settings = pd.read_json(train / "parameters.json", typ="series")
    widths = sorted(facts["width"].unique(), reverse=True)
    middle = sorted(facts["width"].unique())[len(widths) // 2]
    seeds = sorted(facts["seed"].unique())
    jobs = [Job(p, data, train, int(s), str(w), bool(w == middle), float(settings["gain"])) for w in widths for s in seeds]
    small = pd.read_parquet(train / "lenet_facts.parquet")
    jobs += [Job(p, data, train, int(s), "lenet", False, float(settings["gain"])) for s in small["seed"]]
    results = fanout(run_job, jobs, label="kernels", threads=p.threads, seed=p.seed)
    tables: dict[str, list[Any]] = {}
    for result in results:
        for name, value in result.items():
            tables.setdefault(name, []).append(value)
    joined = {
        name: values if name == "kernel_difference" else pd.concat(values, ignore_index=True) for name, values in tables.items()
    }
    for name, table in joined.items():
        if name != "kernel_difference":
            table.to_parquet(out / f"{name}.parquet", index=False)
    kernel = joined["kernel"]
    metrics = kernel_metrics(p, kernel[kernel["net"] != "lenet"])
    for method, cell in kernel_metrics(p, kernel[kernel["net"] == "lenet"]).items():
        kept = {name: value for name, value in cell.items() if "spearman" not in name and "slope_d" not in name}
        metrics.setdefault(method, {}).update({f"lenet/{name}": value for name, value in kept.items()})
    for (net, dist, P), run in joined["likeness"].groupby(["net", "dist", "P"]):
        prefix = "lenet/" if net == "lenet" else f"width={net}/"
        metrics[dist][f"{prefix}cka/P={P}"] = summarise(run["cka"])
        metrics[dist][f"{prefix}wasserstein/P={P}"] = summarise(run["wasserstein"])
    metrics.setdefault("FO", {})["lenet/probe_accuracy"] = summarise(small["probe_accuracy"])
    trajectory_metrics(train, metrics)
    step_metrics(p, joined, metrics)
    if p.language.models:
        language_metrics(p, data, train, out, metrics)
    write_parameters(out, p)
    return metrics


def language_metrics(p: Params, data: Path, train: Path, out: Path, metrics: dict[str, dict[str, Any]]) -> None:
    sentences = pd.read_parquet(data / "sst2.parquet")
    found = pd.concat([run_language(name, p.language, sentences, p.seed) for name in p.language.models], ignore_index=True)
    found.to_parquet(out / "language.parquet", index=False)
    for (model, P), run in found.groupby(["model", "P"]):
        ratio = np.sqrt(run["square_error"] / run["law"])
        metrics.setdefault(f"{model} P={P}", {})["language/error_over_law"] = summarise(ratio)
    history = pd.read_parquet(train / "language.parquet")
    last = history[(history["step"] == history["step"].max()) & (history["P"] > 0)]
    for row in last.itertuples():
        cell = metrics.setdefault(f"{row.model} P={row.P}", {})
        cell["language/dev"], cell["language/cos"] = summarise([row.dev]), summarise([row.cos])

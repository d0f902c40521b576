"""Trajectories: first-order SGD and zeroth-order SGD from the same weights, on the same batches, with the same learning rate.

A job is one (seed, width), one LeNet, or one language model. What is recorded is the function: logits of probes that are never trained on.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from pydantic import Field
from safetensors.torch import save_file
from torch import Tensor

from components.optim.entk import jacobian
from components.optim.perturbations import Distribution
from components.optim.zeroth_order import ZOGradient
from flows.zo_entk.language import VerbaliserModel, encode, load_causal_lm, trajectory, verbaliser_ids
from flows.zo_entk.nets import batches, first_order, lenet, mlp
from flows.zo_entk.store import Inputs, read_inputs, seed_of, weights_file, write_parameters
from tasks import track
from tasks.errors import UserError
from tasks.fanout import fanout
from tasks.params import StageParams, Strict

SWEEP_REPORTS = 33  # looks at the probes in each seed's run of a sweep


class Trajectory(Strict):
    """Deviation of zeroth-order from first-order training."""

    eta: float = Field(0.3, gt=0, description="learning rate of every method")
    steps: int = Field(60, ge=1, description="steps")
    batch: int = Field(64, ge=1, description="examples per step")
    perturbations: list[int] = Field([1, 4, 16, 64], min_length=1, description="P with Gaussian perturbations")
    others: list[Distribution] = Field(
        ["rademacher", "sphere", "coordinate"], description="other distributions, at the P of `compared_at` alone"
    )
    compared_at: list[int] = Field([16], description="P at which the distributions are compared")
    mu: float = Field(1e-3, gt=0, description="smoothing radius (float32 weights of size 1)")
    seeds: int = Field(3, ge=1, description="seeds with zeroth-order runs; the other seeds train first-order alone")
    forward_passes: int | None = Field(
        None, ge=2, description="for sweeps: spend 2 P T = this on one zeroth-order run per seed, and nothing else"
    )
    sweep_perturbations: int = Field(16, ge=1, description="P of that run")
    sweep_dist: Distribution = Field("gaussian", description="distribution of that run")


class LeNet(Strict):
    """LeNet on 28 x 28 digits, first-order; its kernels are measured after it."""

    train_steps: int = Field(200, ge=1, description="steps")
    seeds: int = Field(3, ge=1, description="seeds")
    eta: float = Field(0.3, gt=0, description="learning rate")
    batch: int = Field(64, ge=1, description="examples per step")


class Language(Strict):
    """Language models on SST-2; no model, nothing is done."""

    models: list[str] = Field([], description="hub names")
    perturbations: list[int] = Field([1, 5, 25, 125], min_length=1, description="P")
    eta: float = Field(1e-6, gt=0, description="learning rate")
    mu: float = Field(1e-3, gt=0, description="smoothing radius")
    steps: int = Field(2000, ge=1, description="steps")
    batch: int = Field(16, ge=1, description="sentences per step")
    probes: int = Field(64, ge=1, description="validation sentences whose logits are followed")
    length: int = Field(64, ge=8, description="tokens per prompt at most")
    dtype: str = Field("bfloat16", pattern="^(float32|float16|bfloat16)$", description="of the weights")
    device: str = Field("cuda", description="torch device")


class Params(StageParams):
    widths: list[int] = Field([48, 144, 432], min_length=1, description="hidden units of the two layers of 64-w-w-10")
    gain: float = Field(1.5, gt=0, description="factor of each layer's output")
    seeds: int = Field(5, ge=1, description="seeds of weights and batches")
    trajectory: Trajectory = Field(Trajectory(), description="trajectories")
    lenet: LeNet = Field(LeNet(), description="LeNet")
    language: Language = Field(Language(), description="language models")


class Job(NamedTuple):
    p: Params
    data: Path
    seed: int
    net: str  # a width, "lenet", or the name of a language model


def arms(t: Trajectory) -> list[tuple[str, int]]:
    """(distribution, P) of every zeroth-order run of a seed."""
    return [("gaussian", P) for P in t.perturbations] + [(dist, P) for dist in t.others for P in t.compared_at]


def deviation(z: Tensor, first: Tensor, start: Tensor) -> tuple[float, float]:
    """dev = ||z - z_FO|| / ||D_FO|| and the cosine of the two displacements D from `start`; nan before anything moved."""
    D, E = (z - start).flatten().double(), (first - start).flatten().double()
    if not E.norm() or not D.norm():
        return math.nan, math.nan
    return float((D - E).norm() / E.norm()), float(D @ E / D.norm() / E.norm())


def step_noise(net: Any, theta: Tensor, inputs: Inputs, gradient: Tensor) -> float:
    """r sqrt(P): relative error of one step's logits, sqrt(1 + ||J_o||^2 ||g||^2 / ||J_o g||^2), mean over the probes."""
    net.load_flat(theta)
    found = []
    for row in torch.from_numpy(inputs.x[: inputs.probes]).split(1):
        J = jacobian(net, row)[0]
        found.append(float((1 + J.square().sum() * gradient.square().sum() / (J @ gradient).square().sum()).sqrt()))
    return float(np.mean(found))


def run_mlp(job: Job) -> dict[str, Any]:
    """First-order SGD, then each zeroth-order arm beside it."""
    p, t = job.p, job.p.trajectory
    inputs, width = read_inputs(job.data, "digits"), int(job.net)
    net = mlp(width, p.gain, job.seed)
    x, y = (torch.from_numpy(part[: inputs.probes]) for part in (inputs.x, inputs.y))
    start = net.flat()
    with torch.no_grad():
        z0 = net.functional(start, x)
    theta, followed, rows = start.clone(), [z0], []
    known = {"width": width, "d": net.d, "seed": job.seed}
    for step, (bx, by) in enumerate(batches(inputs, t.batch, t.steps, job.seed), start=1):
        gradient, loss = first_order(net, theta, bx, by)
        if step == 1:
            noise = step_noise(net, start, inputs, gradient)
            first_gradient = gradient
        theta = theta - t.eta * gradient
        with torch.no_grad():
            z = net.functional(theta, x)
        followed.append(z)
        rows.append(
            {"method": "FO", "dist": "exact", "P": 0, "step": step, "loss": loss, "norm": gradient.norm().item()}
            | {"dev": 0.0, "cos": 1.0, "probe_loss": torch.nn.functional.cross_entropy(z, y).item()}
        )
    tensors = {"start": start, "FO": theta}
    for dist, P in arms(t) if job.seed < t.seeds else []:
        name = f"ZO {dist} P={P}"
        zo = ZOGradient(P, t.mu, dist, seed_of("trajectory", dist, P, width, job.seed))
        theta = start.clone()
        for step, (bx, by) in enumerate(batches(inputs, t.batch, t.steps, job.seed), start=1):
            with torch.no_grad():
                loss = torch.nn.functional.cross_entropy(net.functional(theta, bx), by).item()
                gradient = zo.estimate_batched(lambda many, bx=bx, by=by: net.batched_loss(many, bx, by), theta)
                theta = theta - t.eta * gradient
                z = net.functional(theta, x)
            dev, cos = deviation(z, followed[step], z0)
            rows.append(
                {"method": name, "dist": dist, "P": P, "step": step, "loss": loss, "norm": gradient.norm().item()}
                | {"dev": dev, "cos": cos, "probe_loss": torch.nn.functional.cross_entropy(z, y).item()}
            )
        tensors[name] = theta
    facts = known | {
        "noise": noise,
        "gradient": first_gradient.norm().item(),
        "start_loss": torch.nn.functional.cross_entropy(z0, y).item(),
    }
    return {"history": pd.DataFrame(rows).assign(**known), "facts": facts, "tensors": tensors}


def run_budget(job: Job) -> dict[str, Any]:
    """One zeroth-order run whose forward passes are counted out, for sweeps."""
    p, t = job.p, job.p.trajectory
    inputs = read_inputs(job.data, "digits")
    net = mlp(int(job.net), p.gain, job.seed)
    x, y = (torch.from_numpy(part[: inputs.probes]) for part in (inputs.x, inputs.y))
    theta, steps = net.flat(), max(1, t.forward_passes // (2 * t.sweep_perturbations))
    zo = ZOGradient(t.sweep_perturbations, t.mu, t.sweep_dist, seed_of("budget", job.seed))
    looks = set(np.unique(np.linspace(1, steps, SWEEP_REPORTS).round().astype(int)).tolist())
    loss, reported = math.nan, 0
    for step, (bx, by) in enumerate(batches(inputs, t.batch, steps, job.seed), start=1):
        with torch.no_grad():
            theta = theta - t.eta * zo.estimate_batched(lambda many, bx=bx, by=by: net.batched_loss(many, bx, by), theta)
            if step in looks:
                loss, reported = torch.nn.functional.cross_entropy(net.functional(theta, x), y).item(), reported + 1
                track.step(reported, probe_loss=loss)
    known = {"width": int(job.net), "d": net.d, "seed": job.seed, "method": "budget", "dist": t.sweep_dist}
    row = known | {
        "P": t.sweep_perturbations,
        "step": steps,
        "loss": loss,
        "norm": 0.0,
        "dev": 0.0,
        "cos": 0.0,
        "probe_loss": loss,
    }
    return {"history": pd.DataFrame([row]), "facts": {}, "tensors": {"budget": theta}}


def run_lenet(job: Job) -> dict[str, Any]:
    q = job.p.lenet
    inputs = read_inputs(job.data, "mnist")
    net = lenet(job.p.gain, job.seed)
    x, y = (torch.from_numpy(part[: inputs.probes]) for part in (inputs.x, inputs.y))
    theta, rows = net.flat(), []
    tensors = {"start": theta}
    for step, (bx, by) in enumerate(batches(inputs, q.batch, q.train_steps, job.seed), start=1):
        gradient, loss = first_order(net, theta, bx, by)
        theta = theta - q.eta * gradient
        rows.append({"step": step, "loss": loss, "norm": gradient.norm().item()})
    with torch.no_grad():
        z = net.functional(theta, x)
    facts = {
        "seed": job.seed,
        "d": net.d,
        "probe_loss": torch.nn.functional.cross_entropy(z, y).item(),
        "probe_accuracy": 100 * (z.argmax(1) == y).double().mean().item(),
    }
    return {"history": pd.DataFrame(rows).assign(seed=job.seed), "facts": facts, "tensors": tensors | {"FO": theta}}


def run_language(job: Job) -> dict[str, Any]:
    """The same comparison on a language model: probes' verbaliser logits under SGD and ZOSGD. Weights are not stored."""
    q, sentences = job.p.language, pd.read_parquet(job.data / "sst2.parquet")
    train, validation = (sentences[sentences["split"] == split] for split in ("train", "validation"))
    rows, reference = [], None
    for P in (0, *q.perturbations):
        model, tokenizer = load_causal_lm(job.net, q.dtype, q.device)  # fresh weights for each run
        net = VerbaliserModel(model, verbaliser_ids(tokenizer)).eval()
        tokens, labels = encode(tokenizer, train["text"].tolist(), q.length), torch.tensor(train["label"].to_numpy())
        probes = encode(tokenizer, validation["text"].tolist()[: q.probes], q.length).to(q.device)
        options = {"n_perturbations": P, "mu": q.mu} if P else {}
        found = trajectory(net, tokens, labels, probes, eta=q.eta, steps=q.steps, batch=q.batch, seed=job.seed, **options)
        logits = torch.tensor(found["logits"].tolist(), dtype=torch.float64)
        reference = logits if reference is None else reference
        compared = [deviation(z, first, logits[0]) for z, first in zip(logits, reference, strict=True)]
        d = sum(parameter.numel() for parameter in net.parameters())
        rows.append(
            pd.DataFrame(
                {"step": found["step"], "loss": found["loss"], "dev": [a for a, _ in compared], "cos": [b for _, b in compared]}
            ).assign(model=job.net, P=P, d=d)
        )
    return {"history": pd.concat(rows, ignore_index=True), "facts": {}, "tensors": {}}


def run_job(job: Job) -> dict[str, Any]:
    if job.net == "lenet":
        return run_lenet(job)
    if not job.net.isdecimal():
        return run_language(job)
    return run_mlp(job) if job.p.trajectory.forward_passes is None else run_budget(job)


def jobs_of(p: Params, data: Path) -> list[Job]:
    """All jobs. UserError for language models without sentences."""
    if p.trajectory.forward_passes is not None:
        width = p.widths[len(p.widths) // 2]
        return [Job(p, data, seed, str(width)) for seed in range(p.trajectory.seeds)]
    if p.language.models and not (data / "sst2.parquet").is_file():
        raise UserError(
            "zo_entk.train.language.models names models, but zo_entk.data.sst2 is false: there is nothing to train on"
        )
    # Large first, so that the last job to end is a short one.
    jobs = [Job(p, data, seed, str(width)) for width in sorted(p.widths, reverse=True) for seed in range(p.seeds)]
    jobs += [Job(p, data, seed, "lenet") for seed in range(p.lenet.seeds)]
    return jobs + [Job(p, data, 0, model) for model in p.language.models]


def log_runs(job: Job, result: dict[str, Any]) -> None:
    history = result["history"]
    key = "method" if "method" in history else "P" if "P" in history else None
    for name, run in history.groupby(key, sort=False) if key else [("FO", history)]:
        curves = {column: run[column].tolist() for column in ("loss", "norm", "dev", "cos", "probe_loss") if column in run}
        curves = {column: values for column, values in curves.items() if np.isfinite(values).all()}
        track.run(
            f"{job.net} {name} seed {job.seed}",
            params={"net": job.net, "seed": job.seed},
            curves=curves,
            steps=run["step"].tolist(),
        )


def train(p: Params, data: Path, out: Path) -> None:
    """Writes weights/<net>-<seed>.safetensors, history.parquet, facts.parquet, and lenet.parquet, language.parquet with what they tell."""
    jobs = jobs_of(p, data)
    results = fanout(run_job, jobs, label="networks", threads=p.threads, seed=p.seed, on_result=log_runs)
    (out / "weights").mkdir()
    tables: dict[str, list[pd.DataFrame]] = {}
    for job, result in zip(jobs, results, strict=True):
        kind = "lenet" if job.net == "lenet" else "history" if job.net.isdecimal() else "language"
        tables.setdefault(kind, []).append(result["history"])
        if result["facts"]:
            tables.setdefault("lenet_facts" if kind == "lenet" else "facts", []).append(pd.DataFrame([result["facts"]]))
        if result["tensors"]:
            save_file(result["tensors"], weights_file(out, job.net, job.seed))
    for name, frames in tables.items():
        pd.concat(frames, ignore_index=True).to_parquet(out / f"{name}.parquet", index=False)
    write_parameters(out, p)

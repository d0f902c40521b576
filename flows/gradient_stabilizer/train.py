"""The grids: weight decay, learning rates in two precisions, corrupted weather, spikes, decay rates, and one spike looked at closely."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from pydantic import Field, model_validator
from safetensors.torch import save_file

from components.optim.clipping import AGC, Identity, NormClip, ValueClip, ZClip
from components.optim.gradient_transforms import GradientStabilizer, GradientTransform, stabilizer_bound
from components.optim.lion import Lion
from components.optim.stable_spam import stable_spam_transform
from components.optim.wrap import TransformedOptimizer
from flows.gradient_stabilizer import problems
from flows.gradient_stabilizer.arms import ABLATIONS, METHODS, OURS
from tasks import track
from tasks.fanout import fanout
from tasks.params import StageParams, Strict

SETTLED = 20  # steps after which a run's raw norms count for its spike ratio


class Stabilizer(Strict):
    """GradientStabilizer."""

    gamma1: float = Field(0.6, ge=0, lt=1, description="decay rate of the norm's first moment")
    gamma2: float = Field(0.999, ge=0, lt=1, description="decay rate of its second moment")
    eps: float = Field(1e-12, gt=0, description="added to the root of the second moment")
    bias_correction: bool = Field(True, description="divide the moments by 1 - gamma^t")
    scope: Literal["tensor", "global"] = Field("tensor", description="a norm per tensor, or one for all")

    @model_validator(mode="after")
    def bounded(self) -> Stabilizer:
        if self.gamma1 and self.gamma1**2 >= self.gamma2:
            raise ValueError(f"no uniform bound exists for gamma1^2 >= gamma2, got {self.gamma1} and {self.gamma2}")
        return self


class NormOptions(Strict):
    max_norm: float = Field(1.0, gt=0, description="largest norm of all gradients together")


class ValueOptions(Strict):
    v: float = Field(0.1, gt=0, description="largest magnitude of an entry")


class AGCOptions(Strict):
    factor: float = Field(0.01, gt=0, description="largest ratio of gradient to weight norm, per unit")
    eps: float = Field(1e-3, gt=0, description="smallest weight norm")


class ZClipOptions(Strict):
    alpha: float = Field(0.97, ge=0, lt=1, description="decay rate of the moments")
    z: float = Field(2.5, gt=0, description="z-score that is clipped")
    warmup: int = Field(25, ge=1, description="steps before the first clipping")


class SpamOptions(Strict):
    gamma1: float = Field(0.7, ge=0, lt=1, description="decay rate of the norm's first moment")
    gamma2: float = Field(0.9, ge=0, lt=1, description="decay rate of its second moment")
    gamma3: float = Field(0.999, ge=0, lt=1, description="decay rate of the largest entry")


class Transforms(Strict):
    """Thresholds of the rivals, the same everywhere, as in the paper."""

    norm: NormOptions = Field(NormOptions(), description="NormClip")
    value: ValueOptions = Field(ValueOptions(), description="ValueClip")
    agc: AGCOptions = Field(AGCOptions(), description="AGC")
    zclip: ZClipOptions = Field(ZClipOptions(), description="ZClip")
    stable_spam: SpamOptions = Field(SpamOptions(), description="Stable-SPAM, without its reset of Adam's moments")


class WeightDecay(Strict):
    """Coupled weight decay."""

    task: Literal["digits_mlp", "vit_b_imagenet"] = Field("digits_mlp", description="what is trained")
    folder: str | None = Field(None, description="ImageNet in folders train and val, for vit_b_imagenet")
    widths: list[int] = Field([128, 128], min_length=1, description="hidden units of the perceptron")
    optimizer: Literal["adam", "adamw"] = Field("adam", description="adam couples the decay, adamw does not")
    lr: float = Field(3e-3, gt=0, description="learning rate")
    steps: int = Field(250, ge=1, description="steps")
    batch: int = Field(64, ge=1, description="images in a batch")
    values: list[float] = Field(min_length=2, description="weight decays, from none to the strongest")
    seeds: int = Field(5, ge=0, description="seeds from 0")


class LearningRates(Strict):
    """A language model over learning rates and precisions."""

    task: Literal["char_llama", "llama_60m", "llama_130m", "llama_350m"] = Field("char_llama", description="model")
    d: int = Field(32, ge=2, description="width of char_llama")
    layers: int = Field(2, ge=1, description="its blocks")
    heads: int = Field(2, ge=1, description="its heads")
    seq: int = Field(48, ge=1, description="symbols in a window")
    batch: int = Field(8, ge=1, description="windows in a batch")
    steps: int = Field(150, ge=1, description="steps")
    warmup: int = Field(0, ge=0, description="steps over which the learning rate rises")
    optimizer: Literal["adamw", "adam", "lion", "sgd"] = Field("adamw", description="base optimiser")
    weight_decay: float = Field(0.01, ge=0, description="of the base optimiser")
    lrs: list[float] = Field(min_length=1, description="learning rates, the same for every method")
    lr: float | None = Field(None, gt=0, description="if given, the only learning rate")
    precisions: list[Literal["fp32", "fp16", "fp4_e1m2", "fp4_e2m1"]] = Field(
        min_length=1, description="of weights and activations; fp16 is autocast behind a scaler"
    )
    windows: int = Field(64, ge=1, description="validation windows to select the learning rate with, and as many to report")
    seeds: int = Field(3, ge=0, description="seeds from 0")


class Corrupted(Strict):
    """Forecasts from corrupted inputs."""

    task: Literal["weather_patchtst"] = Field("weather_patchtst", description="what is trained")
    lr: float = Field(1e-3, gt=0, description="learning rate of AdamW")
    steps: int = Field(200, ge=1, description="steps")
    batch: int = Field(16, ge=1, description="windows in a batch")
    patch: int = Field(12, ge=1, description="hours in a patch")
    d: int = Field(32, ge=1, description="width of PatchTST")
    heads: int = Field(4, ge=1, description="its heads")
    layers: int = Field(2, ge=1, description="its layers")
    prob: float = Field(0.05, ge=0, le=1, description="share of the training inputs that get noise")
    levels: list[int] = Field(min_length=1, description="standard deviation of the noise over the largest input")
    max_from: Literal["clean", "raw"] = Field("clean", description="series whose largest value sets the noise")
    seeds: int = Field(5, ge=0, description="seeds from 0")


class Spikes(Strict):
    """A quadratic whose gradients spike."""

    dim: int = Field(64, ge=1, description="dimensions")
    cond: float = Field(100, ge=1, description="condition number")
    noise: float = Field(0.1, ge=0, description="standard deviation of the gradient's noise, per entry")
    steps: int = Field(4000, ge=10, description="steps")
    prob: float = Field(0.005, ge=0, le=1, description="probability of a spike at a step")
    factor: float = Field(1000, gt=0, description="norm of a spike over the running norm")
    optimizers: list[Literal["sgd", "adam"]] = Field(["sgd", "adam"], min_length=1, description="base optimisers")
    sgd_lrs: list[float] = Field([0.01, 0.1], min_length=1, description="learning rates of SGD, the same for every method")
    adam_lrs: list[float] = Field([0.001, 0.01], min_length=1, description="learning rates of Adam, the same for every method")
    traced: int = Field(2000, ge=1, description="step of the single spike that is looked at closely; half as many follow it")
    seeds: int = Field(5, ge=0, description="seeds from 0")


class Sensitivity(Strict):
    """Decay rates of GradientStabilizer, on the language model in its first precision."""

    gamma1: list[float] = Field(min_length=1, description="decay rates of the first moment")
    gamma2: list[float] = Field(min_length=1, description="decay rates of the second moment")
    lr: float = Field(1e-2, gt=0, description="learning rate")
    seeds: int = Field(3, ge=0, description="seeds from 0")


class Params(StageParams):
    methods: list[str] | None = Field(None, description="methods to train; null: all")
    device: Literal["cpu", "cuda"] = Field("cpu", description="where language and vision models are trained")
    history_every: int = Field(5, ge=1, description="steps between two rows of the history")
    gs: Stabilizer = Field(Stabilizer(), description="GradientStabilizer")
    transforms: Transforms = Field(Transforms(), description="rivals")
    weight_decay: WeightDecay = Field(description="weight decay")
    lr_sweep: LearningRates = Field(description="learning rates")
    corrupted: Corrupted = Field(description="corrupted inputs")
    spikes: Spikes = Field(Spikes(), description="spikes")
    sensitivity: Sensitivity = Field(description="decay rates")


class Job(NamedTuple):
    """One run."""

    p: Params
    data: Path
    task: Literal["digits", "language", "weather", "spikes", "trace", "sensitivity"]
    method: str
    seed: int
    optimizer: str
    lr: float
    weight_decay: float = 0.0
    precision: str = "fp32"
    level: int = 0
    gamma1: float | None = None  # of GS, where it is not the default
    gamma2: float | None = None

    @property
    def key(self) -> dict[str, Any]:
        names = ("task", "method", "seed", "optimizer", "lr", "weight_decay", "precision", "level", "gamma1", "gamma2")
        return {name: getattr(self, name) for name in names}


def transform_of(job: Job) -> GradientTransform:
    p, rivals = job.p, job.p.transforms
    if job.method == OURS:
        changes = {name: value for name in ("gamma1", "gamma2") if (value := getattr(job, name)) is not None}
        return GradientStabilizer(**(p.gs.model_dump() | changes))
    if job.method == "Stable-SPAM":
        return stable_spam_transform(**rivals.stable_spam.model_dump())
    classes = {"NormClip": NormClip, "ValueClip": ValueClip, "AGC": AGC, "ZClip": ZClip}
    if job.method == "none":
        return Identity()
    return classes[job.method](**getattr(rivals, METHODS[job.method]).model_dump())


def optimizer_of(job: Job, parameters: list[torch.nn.Parameter]) -> TransformedOptimizer:
    options = {"lr": job.lr, "weight_decay": job.weight_decay}
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "lion": Lion}
    if job.optimizer in ("adam", "adamw"):
        options["fused"] = True
    return TransformedOptimizer(kinds[job.optimizer](parameters, **options), transform_of(job))


class Curve:
    """What is seen of a run: every step for the extremes, every few for the history."""

    COLUMNS = ("step", "loss", "raw_norm", "mean_rho", "max_rho", "skipped")

    def __init__(self, every: int) -> None:
        self.every, self.rows, self.norms = every, [], []
        self.max_rho, self.skipped = 0.0, 0

    def add(self, step: int, loss: float, report: Any) -> None:
        before, after = report.norm_before.double(), report.norm_after
        raw, mean, top, skipped = torch.stack(
            [before.square().sum().sqrt(), after.double().mean(), after.double().max(), report.skipped.sum().double()]
        ).tolist()
        self.norms.append(raw)
        self.max_rho, self.skipped = max(self.max_rho, top), self.skipped + int(skipped)
        if step % self.every == 0:
            self.rows.append((step, loss, raw, mean, top, int(skipped)))

    def frame(self) -> pd.DataFrame:
        return pd.DataFrame(self.rows, columns=list(self.COLUMNS))

    def facts(self) -> dict[str, float]:
        settled = np.asarray(self.norms[SETTLED:] or self.norms)
        ratio = float(settled.max() / np.median(settled)) if np.isfinite(settled).all() and np.median(settled) > 0 else math.nan
        return {"max_rho": self.max_rho, "skipped": self.skipped, "spike_ratio": ratio}


def run_problem(job: Job, problem: problems.Problem, steps: int, warmup: int = 0) -> dict[str, Any]:
    """Train, and what was seen. A loss that is not finite ends the run as diverged."""
    optimizer = optimizer_of(job, problem.parameters)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / (warmup + 1)))
    scaler = torch.amp.GradScaler(problem.parameters[0].device.type, enabled=job.precision == "fp16")
    curve, first, value = Curve(job.p.history_every), None, math.nan
    for step in range(steps):
        optimizer.zero_grad()
        loss = problem.loss(step)
        value = loss.item()
        first = value if first is None else first
        if not math.isfinite(value):
            break
        scaler.scale(loss).backward()
        optimizer.report = None
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        if optimizer.report is not None:  # the scaler leaves out steps that overflowed
            curve.add(step, value, optimizer.report)
        if job.task == "language" and job.method == OURS and step % 10 == 9:
            track.step(step, loss=value)
    measured = problem.measure()
    bad = {name for name, x in measured.items() if not math.isfinite(x)}
    # A model that fell to pieces is judged as one that never learned.
    measured = {name: first if name in bad else x for name, x in measured.items()}
    diverged = bool(bad) or not math.isfinite(value) or ("loss" in measured and measured["loss"] > first)
    weights = {str(i): p.detach().cpu().contiguous() for i, p in enumerate(problem.parameters)}
    return {"facts": measured | curve.facts() | {"diverged": diverged}, "history": curve.frame(), "weights": weights}


def run_quadratic(job: Job) -> dict[str, Any]:
    """The quadratic: mean value over the last tenth of the steps, and the largest moments of Adam."""
    q = job.p.spikes
    single = job.task == "trace"
    steps = q.traced + max(q.traced // 2, 1) if single else q.steps
    problem = problems.Quadratic(q, job.seed, frozenset({q.traced}) if single else None)
    optimizer = optimizer_of(job, [problem.x])
    curve, values, largest = Curve(1 if single else 20 * job.p.history_every), [], torch.zeros(2)
    for step in range(steps):
        values.append(problem.value())
        problem.set_gradient(step)
        optimizer.step()
        curve.add(step, values[-1], optimizer.report)
        if job.optimizer == "adam":
            state = optimizer.state[problem.x]
            largest = torch.maximum(largest, torch.stack([state["exp_avg"].abs().max(), state["exp_avg_sq"].max()]))
    first, tail = values[0], np.asarray(values[-max(steps // 10, 1) :])
    good = bool(np.isfinite(tail).all())
    final = float(tail.mean()) if good else math.inf
    # Beyond its start a run is lost; how far is a matter of when one looks.
    facts = {"value": min(final, first), "worst": min(float(np.nanmax(np.asarray(values))), 1e30), "diverged": final > first}
    if job.optimizer == "adam":
        facts |= {"max_m": float(largest[0]), "max_v": float(largest[1])}
    return {"facts": facts | curve.facts(), "history": curve.frame(), "weights": {}}


def run_job(job: Job) -> dict[str, Any]:
    p = job.p
    if job.task in ("spikes", "trace"):
        return run_quadratic(job)
    if job.task == "digits":
        q = p.weight_decay
        problem = (
            problems.digits(q, job.data, job.seed)
            if q.task == "digits_mlp"
            else problems.vision_transformer(q, job.seed, p.device)
        )
        return run_problem(job, problem, q.steps)
    if job.task == "weather":
        return run_problem(job, problems.weather(p.corrupted, job.data, job.level, job.seed), p.corrupted.steps)
    q = p.lr_sweep
    return run_problem(job, problems.language(q, job.data, job.precision, job.seed, p.device), q.steps, q.warmup)


def jobs_of(p: Params, data: Path) -> list[Job]:
    """Every run, those of one problem and seed together. ValueError for a method that does not exist."""
    for method in p.methods or []:
        if method not in METHODS:
            raise ValueError(f"train.methods names {method!r}; the methods are {', '.join(METHODS)}")
    every = [method for method in METHODS if p.methods is None or method in p.methods]
    methods = [method for method in every if method not in ABLATIONS]
    jobs: list[Job] = []
    q = p.lr_sweep
    lrs = q.lrs if q.lr is None else [q.lr]
    options = {"optimizer": q.optimizer, "weight_decay": q.weight_decay}
    jobs += [
        Job(p, data, "language", method, seed, lr=lr, precision=precision, **options)
        for precision in q.precisions for seed in range(q.seeds) for lr in lrs for method in every
    ]  # fmt: skip
    s = p.sensitivity
    if OURS in methods:
        jobs += [
            Job(p, data, "sensitivity", OURS, seed, lr=s.lr, precision=q.precisions[0], gamma1=one, gamma2=two, **options)
            for seed in range(s.seeds) for one in s.gamma1 for two in s.gamma2
        ]  # fmt: skip
    c = p.corrupted
    jobs += [
        Job(p, data, "weather", method, seed, "adamw", c.lr, level=level)
        for seed in range(c.seeds) for level in c.levels for method in methods
    ]  # fmt: skip
    w = p.weight_decay
    jobs += [
        Job(p, data, "digits", method, seed, w.optimizer, w.lr, weight_decay=value)
        for seed in range(w.seeds) for value in w.values for method in methods
    ]  # fmt: skip
    k = p.spikes
    rates = {"sgd": k.sgd_lrs, "adam": k.adam_lrs}
    jobs += [
        Job(p, data, "spikes", method, seed, optimizer, lr)
        for seed in range(k.seeds) for optimizer in k.optimizers for lr in rates[optimizer] for method in every
    ]  # fmt: skip
    if k.seeds:
        jobs += [
            Job(p, data, "trace", method, 0, optimizer, rates[optimizer][0])
            for optimizer in k.optimizers for method in methods if method in ("none", "NormClip", "ZClip", OURS)
        ]  # fmt: skip
    return jobs


def log(job: Job, result: dict[str, Any]) -> None:
    """One nested run per run."""
    history = result["history"]
    name = f"{job.task} {job.method} {job.optimizer} lr={job.lr:g} {job.precision} decay={job.weight_decay:g} level={job.level}"
    rates = "" if job.gamma1 is None else f" gamma1={job.gamma1:g} gamma2={job.gamma2:g}"
    metrics = {key: float(value) for key, value in result["facts"].items() if math.isfinite(value)}
    shown = history[np.isfinite(history["loss"])].iloc[:: max(1, len(history) // 100)]
    track.run(
        f"{name}{rates} seed {job.seed}",
        params={key: value for key, value in job.key.items() if value is not None},
        metrics=metrics,
        curves={column: shown[column].tolist() for column in ("loss", "raw_norm", "max_rho")},
        steps=shown["step"].tolist(),
    )


def train(p: Params, data: Path, out: Path) -> None:
    """Writes runs.parquet, history.parquet, weights-<precision>.safetensors (each method's best learning rate) and parameters.json."""
    rows, histories = [], []
    best: dict[tuple[str, str], tuple[float, dict[str, torch.Tensor]]] = {}

    def keep(job: Job, result: dict[str, Any]) -> None:
        rows.append(job.key | result["facts"] | {"run": len(rows)})
        histories.append(result["history"].assign(run=len(rows) - 1))
        if job.task == "language" and job.seed == 0:
            place, loss = (job.precision, job.method), result["facts"]["selection_loss"]
            if place not in best or loss < best[place][0]:
                best[place] = (loss, result["weights"])
        log(job, result)

    fanout(run_job, jobs_of(p, data), label="runs", threads=p.threads, seed=p.seed, on_result=keep)
    pd.DataFrame(rows).to_parquet(out / "runs.parquet", index=False)
    pd.concat(histories, ignore_index=True).to_parquet(out / "history.parquet", index=False)
    for precision in sorted({precision for precision, _ in best}):
        tensors = {f"{m}/{name}": x for (at, m), (_, kept) in best.items() if at == precision for name, x in kept.items()}
        save_file(tensors, out / f"weights-{precision}.safetensors")
    bound = stabilizer_bound(p.gs.gamma1, p.gs.gamma2)
    (out / "parameters.json").write_text(
        json.dumps(p.model_dump() | {"bound": bound}, indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )

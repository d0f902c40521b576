"""Trains every method in every format: on planted quadratics, and a small LLaMA on text.

Step sizes of the language model are chosen first: every method gets the same number of settings in every format, the given
step times each factor, on a seed of its own, judged on text that is neither trained nor reported on. M+Adam's and Adam's
setting is the additive lr (M+Adam keeps the format's lr_mult), Madam's is lr_mult. Seeds share their start and their batches.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from pydantic import Field
from safetensors.torch import save_file

from components.language.corpus import even_windows, random_windows
from components.language.tiny_llama import LLAMA_SHAPES, TinyLlama
from components.optim.low_precision import LowPrecisionOptimizer
from components.optim.mplus_adam import AdamLP, MadamLP, MPlusAdam
from components.optim.quadratics import GROUPS
from flows.mplus_adam.arms import NAMES, Method, runs_method, tag
from flows.mplus_adam.store import read_problem, read_text
from tasks import track
from tasks.fanout import fanout
from tasks.params import StageParams, Strict

Format = Literal["fp32", "bf16", "e4m3", "e5m2", "e2m1"]
Scale = Literal["none", "tensor", "mx", "mx_up", "nvfp4"]
Rounding = Literal["rne", "sr"]
BINS = np.arange(-12, 10)  # floor(log2 |w|), what lies beyond joins the ends
DECILES = 10


class Bench(Strict):
    """The quadratics: gradients with noise, a constant step and from half-way a cosine to zero."""

    steps: int = Field(800, ge=10, description="steps")
    lr: float = Field(1e-3, gt=0, description="additive step")
    lr_mult: dict[Format, float] = Field(
        {"fp32": 1e-2, "bf16": 1e-2, "e4m3": 1e-1}, description="multiplicative step per format"
    )
    noise: float = Field(0.1, ge=0, description="relative standard deviation of a gradient")
    formats: list[Format] = Field(["fp32", "bf16", "e4m3"], min_length=1, description="formats, without shared scales")
    rounding: list[Rounding] = Field(["rne", "sr"], min_length=1, description="roundings")
    methods: list[Method] = Field(["adam", "madam", "mplus_adam"], min_length=1, description="optimisers")
    seeds: int = Field(5, ge=0, description="draws of the problems")


class Descent(Strict):
    """Exact gradients, no momentum, steps under the smoothness bound."""

    steps: int = Field(300, ge=10, description="steps")
    lr: float = Field(1e-3, gt=0, description="additive step")
    lr_mult: dict[Format, float] = Field({"fp32": 1e-3, "e4m3": 1e-1}, description="multiplicative step per format")
    seeds: int = Field(5, ge=0, description="draws of the problem")


class LanguageModel(Strict):
    """The LLaMA and its training."""

    model: str | None = Field(None, description="a named shape (llama_60m, ...) in place of d, layers and heads")
    d: int = Field(64, ge=4, description="width")
    layers: int = Field(2, ge=1, description="blocks")
    heads: int = Field(4, ge=1, description="attention heads")
    seq: int = Field(64, ge=2, description="symbols in a window")
    batch: int = Field(16, ge=1, description="windows in a step")
    micro_batch: int | None = Field(None, ge=1, description="windows at once; gradients add up to a batch. null: all")
    steps: int = Field(200, ge=2, description="steps")
    warmup: int = Field(20, ge=0, description="steps over which the step size grows from 0")
    final_lr_frac: float = Field(0.1, ge=0, le=1, description="last step size, as a share of the largest; a cosine between")
    lr: float = Field(3e-3, gt=0, description="additive step, before the factor that is chosen")
    lr_mult: float | None = Field(None, ge=0, description="multiplicative step in place of each run's own; null: the run's")
    rounding: Rounding | None = Field(None, description="rounding in place of each run's own; null: the run's")
    seeds: int = Field(3, ge=1, description="initialisations, from seed 0")
    eval_every: int = Field(20, ge=1, description="steps between two looks at the text to choose with")
    eval_windows: int = Field(64, ge=1, description="windows in such a look")
    final_windows: int = Field(512, ge=1, description="windows of the last look, and of the report")
    decile_every: int = Field(50, ge=1, description="steps between two counts of frozen weights by decile of |w|")


class Tuning(Strict):
    """The same number of settings for every method in every format."""

    factors: list[float] = Field([0.3, 1.0, 3.0], min_length=1, description="what the given step is multiplied with")
    seed: int = Field(1000, ge=100, description="initialisation and batches that the settings are tried on")


class Params(StageParams):
    methods: list[Method] = Field(list(NAMES), min_length=1, description="optimisers of the language model")
    runs: list[tuple[Format, Scale, Rounding, float]] = Field(
        min_length=1, description="format, scales, rounding and lr_mult of the language model's runs"
    )
    state_dtype: Literal["float32", "bfloat16"] = Field("float32", description="of the moments")
    checkpoints: int = Field(1, ge=0, description="seeds whose final codes, scales and moments are kept")
    device: Literal["cpu", "cuda"] = Field("cpu", description="where the language model trains")
    bench: Bench = Field(Bench(), description="planted quadratics")
    descent: Descent = Field(Descent(), description="the descent check")
    lm: LanguageModel = Field(LanguageModel(), description="language model")
    tuning: Tuning = Field(Tuning(), description="choice of step sizes")


class Job(NamedTuple):
    """One run. `kind`: bench, descent, tune or lm; `factor` multiplies the step that is chosen."""

    p: Params
    data: Path
    kind: str
    method: str
    fmt: str
    scale: str
    rounding: str
    lr: float
    lr_mult: float
    seed: int
    factor: float = 1.0

    @property
    def tag(self) -> str:
        return tag(self.fmt, self.rounding)


def optimiser(job: Job, params, betas: tuple[float, float] = (0.9, 0.999), **options) -> torch.optim.Optimizer:
    """The job's method; Adam without rounding is torch's own."""
    common = {"betas": betas, "fmt": job.fmt, "scale": job.scale, "rounding": job.rounding, "seed": job.seed, **options}
    if job.method == "madam":
        return MadamLP(params, job.lr_mult * job.factor, **common)
    if job.method == "mplus_adam":
        return MPlusAdam(params, job.lr * job.factor, job.lr_mult, **common)
    if job.fmt == "fp32":
        return torch.optim.AdamW(params, job.lr * job.factor, betas=betas, weight_decay=0.0)
    return AdamLP(params, job.lr * job.factor, kahan=job.method == "adam_kahan", **common)


class Schedule:
    """Multiplies both step sizes of an optimiser with a common factor."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.base = [{k: group[k] for k in ("lr", "lr_mult") if k in group} for group in optimizer.param_groups]

    def set(self, factor: float) -> dict[str, float]:
        """Returns the steps of the first group."""
        for group, base in zip(self.optimizer.param_groups, self.base, strict=True):
            group.update({name: value * factor for name, value in base.items()})
        return {name: value * factor for name, value in self.base[0].items()}


# --- planted quadratics ---------------------------------------------------------------------------------------------


def run_bench(job: Job) -> dict[str, Any]:
    """Final relative error of each problem, frozen shares by group over all steps, and by |w| over the constant half."""
    q, b = read_problem(job.data, "bench", job.seed), job.p.bench
    w_star, h = torch.from_numpy(q.w_star), torch.from_numpy(q.h)
    w = torch.nn.Parameter(torch.from_numpy(q.w0.copy()))
    optimizer = optimiser(job, [w])
    schedule = Schedule(optimizer)
    generator = torch.Generator().manual_seed(job.seed)
    counts = np.zeros((2, len(BINS)), dtype=np.int64)
    by_group = torch.zeros(2, len(GROUPS), dtype=torch.int64)
    for step in range(b.steps):
        half = max(step - b.steps // 2, 0) / (b.steps - b.steps // 2)
        schedule.set(0.5 * (1 + math.cos(math.pi * half)))
        before = w.detach().clone()
        w.grad = h * (before - w_star) * (1 + b.noise * torch.randn(h.shape, generator=generator))
        optimizer.step()
        active = w.grad != 0
        frozen = active & (w.detach() == before)
        by_group += torch.stack([frozen.sum(1), active.sum(1)])
        if step < b.steps // 2:
            counts += count_by_bin(before, frozen, active)
    error = ((w.detach() - w_star).abs() / w_star.abs()).double()
    median = error.median(dim=1).values.tolist()
    rows = [
        {"group": group, "error": median[i], "frozen": int(by_group[0, i]) / max(int(by_group[1, i]), 1)}
        for i, group in enumerate(GROUPS)
    ]
    bins = pd.DataFrame({"log2": BINS, "frozen": counts[0], "active": counts[1]})
    return {"bench": pd.DataFrame(rows), "bins": bins}


def count_by_bin(w: torch.Tensor, frozen: torch.Tensor, active: torch.Tensor) -> np.ndarray:
    """Frozen and active coordinates by floor(log2 |w|), (2, bins)."""
    exponent = torch.frexp(w).exponent - 1
    place = torch.where(w == 0, BINS[0], exponent).clamp(int(BINS[0]), int(BINS[-1])) - int(BINS[0])
    return np.stack([torch.bincount(place[mask], minlength=len(BINS)).numpy() for mask in (frozen, active)])


def run_descent(job: Job) -> dict[str, Any]:
    """The loss over steps, whether the smoothness bound held, and the floor of the format's grid."""
    q, d = read_problem(job.data, "descent", job.seed), job.p.descent
    w_star, h = (torch.from_numpy(part).double() for part in (q.w_star, q.h))
    w = torch.nn.Parameter(torch.from_numpy(q.w0.copy()))
    optimizer = MPlusAdam([w], d.lr, job.lr_mult, betas=(0.0, 0.999), fmt=job.fmt, scale="none")
    rows = []
    for step in range(d.steps):
        before = w.detach().double()
        gradient = h * (before - w_star)
        w.grad = gradient.float()
        optimizer.step()
        after = w.detach().double()
        f = [(0.5 * h * (x - w_star) ** 2).sum().item() for x in (before, after)]
        half = optimizer.quantized(w).half_ulp().double()
        rows.append(
            {
                "step": step,
                "before": f[0],
                "after": f[1],
                # the bound with the smoothness of the whole, its largest curvature
                "bounded": bool(((after - before).abs() <= 2 * gradient.abs() / h.max()).all()),
                "floor": (0.5 * h * half**2).sum().item(),
                # coordinates that went so far past their own minimiser that their part of the loss rose
                "overshot": int((h * (after - w_star) ** 2 > h * (before - w_star) ** 2).sum()),
            }
        )
    return {"descent": pd.DataFrame(rows)}


# --- language model -------------------------------------------------------------------------------------------------


def build(p: Params, symbols: int, seed: int) -> TinyLlama:
    torch.manual_seed(seed)
    if p.lm.model is not None:
        if p.lm.model not in LLAMA_SHAPES:
            raise ValueError(f"mplus_adam.train.lm.model is {p.lm.model!r}; the shapes are {', '.join(LLAMA_SHAPES)}")
        shape = LLAMA_SHAPES[p.lm.model]
        return TinyLlama(symbols, shape.d, shape.layers, shape.heads, shape.ff)
    return TinyLlama(symbols, p.lm.d, p.lm.layers, p.lm.heads)


def step_factor(q: LanguageModel, step: int) -> float:
    """Linear growth, then a cosine from 1 to final_lr_frac; `step` from 0."""
    if step < q.warmup:
        return (step + 1) / q.warmup
    share = (step - q.warmup) / max(q.steps - 1 - q.warmup, 1)
    return q.final_lr_frac + (1 - q.final_lr_frac) * 0.5 * (1 + math.cos(math.pi * share))


@torch.no_grad()
def nll(net: TinyLlama, tokens: np.ndarray, q: LanguageModel, windows: int, device: str) -> float:
    """Nats per symbol over evenly spread windows."""
    inputs, targets = even_windows(tokens, seq=q.seq, count=windows)
    total = 0.0
    for start in range(0, len(inputs), 64):
        part = slice(start, start + 64)
        total += net.loss(inputs[part].to(device), targets[part].to(device)).item() * len(inputs[part])
    return total / len(inputs)


def frozen_by_decile(before: list[torch.Tensor], params: list[torch.nn.Parameter]) -> list[float]:
    """Share of unchanged weights among those with a gradient, by decile of |w|, from the smallest."""
    w = torch.cat([part.flatten() for part in before]).abs()
    active = torch.cat([(p.grad != 0).flatten() for p in params])
    still = torch.cat([(p.detach() == part).flatten() for p, part in zip(params, before, strict=True)])
    order = w[active].argsort(stable=True)
    return [part.float().mean().item() for part in still[active][order].tensor_split(DECILES)]


def run_lm(job: Job) -> dict[str, Any]:
    """One training run; curves, final losses on both held-out parts, bytes, and the checkpoint."""
    q, text, device = job.p.lm, read_text(job.data), job.p.device
    net = build(job.p, text.symbols, job.seed).to(device)
    params = list(net.parameters())
    options = {"state_dtype": getattr(torch, job.p.state_dtype)}
    optimizer = optimiser(job, params, **options)
    schedule = Schedule(optimizer)
    batches = random_windows(text.train, seq=q.seq, batch=q.batch, generator=torch.Generator().manual_seed(job.seed))
    history, deciles = [], []
    small = q.micro_batch or q.batch
    for step in range(q.steps):
        steps = schedule.set(step_factor(q, step))
        inputs, targets = next(batches)
        optimizer.zero_grad()
        loss = 0.0
        for start in range(0, q.batch, small):
            part = slice(start, start + small)
            piece = net.loss(inputs[part].to(device), targets[part].to(device)) * (len(inputs[part]) / q.batch)
            piece.backward()
            loss += piece.item()
        if not math.isfinite(loss):
            raise FloatingPointError(f"the loss of {NAMES[job.method]} in {job.tag} is {loss} at step {step}")
        before = [p.detach().clone() for p in params]
        optimizer.step()
        counted = [(p.grad != 0, p.detach() == part) for p, part in zip(params, before, strict=True)]
        active = sum(int(a.sum()) for a, _ in counted)
        row = {"step": step + 1, "train_nll": loss, "frozen": sum(int((a & s).sum()) for a, s in counted) / max(active, 1)}
        row |= {"lr": steps.get("lr", 0.0), "lr_mult": steps.get("lr_mult", 0.0), "choice_nll": math.nan}
        if (step + 1) % q.eval_every == 0 or step + 1 == q.steps:
            row["choice_nll"] = nll(net, text.choice, q, q.eval_windows, device)
            if job.kind == "lm":
                track.step(step + 1, choice_nll=row["choice_nll"])
        if (step + 1) % q.decile_every == 0:
            shares = frozen_by_decile(before, params)
            deciles += [{"step": step + 1, "decile": i + 1, "frozen": share} for i, share in enumerate(shares)]
        history.append(row)
    final = {
        "choice_nll": nll(net, text.choice, q, q.final_windows, device),
        "nll": nll(net, text.report, q, q.final_windows, device),
        "bytes": bytes_of(optimizer, params) / sum(p.numel() for p in params),
        "frozen": float(np.mean([row["frozen"] for row in history])),
    }
    tables = {"lm": pd.DataFrame([final]), "history": pd.DataFrame(history), "deciles": pd.DataFrame(deciles)}
    return {**tables, "tensors": tensors_of(optimizer, net)}


def bytes_of(optimizer: torch.optim.Optimizer, params: list[torch.nn.Parameter]) -> int:
    """Weights and optimiser states that have to be kept; gradients and the decoded view of the weights come and go."""
    if isinstance(optimizer, LowPrecisionOptimizer):
        return optimizer.nbytes()
    states = (v for state in optimizer.state.values() for k, v in state.items() if k != "step")
    return sum(x.numel() * x.element_size() for x in [*states, *params])


def tensors_of(optimizer: torch.optim.Optimizer, net: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All that a checkpoint holds: for each parameter codes, scales and moments (FP32 AdamW: weights and moments)."""
    found = {}
    for name, p in net.named_parameters():
        state = optimizer.state[p]
        if "codes" not in state:
            found[f"{name}/weight"] = p.detach()
        found |= {f"{name}/{key}": value for key, value in state.items()}
    return {key: value.detach().cpu().contiguous().clone() for key, value in found.items()}


RUNNERS = {"bench": run_bench, "descent": run_descent, "tune": run_lm, "lm": run_lm}


def run_job(job: Job) -> dict[str, Any]:
    return RUNNERS[job.kind](job)


# --- the grid -------------------------------------------------------------------------------------------------------


def bench_jobs(p: Params, data: Path) -> list[Job]:
    """ValueError for a format without a multiplicative step."""
    jobs = []
    for fmt in p.bench.formats:
        if fmt not in p.bench.lr_mult:
            raise ValueError(f"mplus_adam.train.bench.lr_mult has no step for {fmt}")
        for rounding in p.bench.rounding if fmt != "fp32" else ["rne"]:
            for method in p.bench.methods:
                if runs_method(method, fmt, rounding):
                    for seed in range(p.bench.seeds):
                        jobs.append(
                            Job(p, data, "bench", method, fmt, "none", rounding, p.bench.lr, p.bench.lr_mult[fmt], seed)
                        )
    for fmt, lr_mult in p.descent.lr_mult.items():
        for seed in range(p.descent.seeds):
            jobs.append(Job(p, data, "descent", "mplus_adam", fmt, "none", "rne", p.descent.lr, lr_mult, seed))
    return jobs


def lm_arms(p: Params, data: Path) -> list[Job]:
    """Every method of every run, at seed 0 and factor 1; ValueError for two runs of one format and rounding."""
    arms = []
    for fmt, scale, rounding, lr_mult in p.runs:
        rounding = p.lm.rounding or rounding
        lr_mult = lr_mult if p.lm.lr_mult is None else p.lm.lr_mult
        for method in p.methods:
            if runs_method(method, fmt, rounding):
                arms.append(Job(p, data, "lm", method, fmt, scale, rounding, p.lm.lr, lr_mult, 0))
    names = [(arm.tag, arm.method) for arm in arms]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"mplus_adam.train.runs names {twice[0]} twice; one run per format and rounding")
    return arms


def choose(p: Params, arms: list[Job], keep) -> dict[tuple[str, str], float]:
    """The factor with the lowest loss on the text to choose with, per format, rounding and method; ties to the first."""
    if len(p.tuning.factors) == 1:
        return {(arm.tag, arm.method): p.tuning.factors[0] for arm in arms}
    jobs = [arm._replace(kind="tune", seed=p.tuning.seed, factor=factor) for arm in arms for factor in p.tuning.factors]
    results = fanout(run_job, jobs, label="step sizes", threads=p.threads, seed=p.seed, on_result=keep)
    best: dict[tuple[str, str], tuple[float, float]] = {}
    for job, result in zip(jobs, results, strict=True):
        found = float(result["lm"]["choice_nll"].iloc[0])
        if (job.tag, job.method) not in best or found < best[job.tag, job.method][0]:
            best[job.tag, job.method] = found, job.factor
    return {arm: factor for arm, (_, factor) in best.items()}


def log(job: Job, result: dict[str, Any]) -> None:
    """One nested run per method and seed of the language model."""
    history, final = result["history"], result["lm"].iloc[0]
    looks = history.dropna(subset=["choice_nll"])
    track.run(
        f"{job.kind} {job.tag} {NAMES[job.method]} seed {job.seed} x{job.factor:g}",
        params={k: getattr(job, k) for k in ("kind", "method", "fmt", "scale", "rounding", "seed", "factor", "lr", "lr_mult")},
        metrics={k: float(final[k]) for k in ("choice_nll", "nll", "frozen")},
        curves={k: looks[k].tolist() for k in ("train_nll", "choice_nll", "frozen")},
        steps=looks["step"].tolist(),
    )


def train(p: Params, data: Path, out: Path) -> None:
    """Writes bench, bins, descent, lm, history and deciles (.parquet), checkpoints/*.safetensors, chosen.json, parameters.json."""
    (out / "checkpoints").mkdir()
    tables: dict[str, list[pd.DataFrame]] = {}

    def keep(job: Job, result: dict[str, Any]) -> None:
        for name, frame in result.items():
            if name == "tensors" or frame.empty:
                continue
            about = {"kind": job.kind, "tag": job.tag, "method": job.method, "seed": job.seed, "factor": job.factor}
            for position, (column, value) in enumerate(about.items()):
                frame.insert(position, column, value)
            tables.setdefault(name, []).append(frame)
        if "lm" in result:
            log(job, result)
        if job.kind == "lm" and job.seed < p.checkpoints:
            save_file(
                result["tensors"], out / "checkpoints" / f"{job.tag.replace(' ', '-')}-{job.method}-{job.seed}.safetensors"
            )

    options = {"threads": p.threads, "seed": p.seed, "on_result": keep}
    fanout(run_job, bench_jobs(p, data), label="quadratics", **options)
    arms = lm_arms(p, data)
    chosen = choose(p, arms, keep)
    jobs = [arm._replace(seed=seed, factor=chosen[arm.tag, arm.method]) for arm in arms for seed in range(p.lm.seeds)]
    fanout(run_job, jobs, label="language models", **options)
    for name, frames in sorted(tables.items()):
        pd.concat(frames, ignore_index=True).to_parquet(out / f"{name}.parquet", index=False)
    factors = {name: {method: factor for (t, method), factor in chosen.items() if t == name} for name, _ in chosen}
    for name, content in (("chosen", factors), ("parameters", p.model_dump())):
        (out / f"{name}.json").write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")

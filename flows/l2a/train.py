"""A dense base per task and seed, then every method from that base with one budget, one schedule and the same batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from pydantic import Field
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from components.attention.l2a import l2a_layers, set_leaks
from components.attention.pruning import skip_rates
from components.attention.router import router_loss
from components.attention.schedule import L2AConfig
from components.optim.schedules import warmup_cosine
from flows.l2a.arms import METHODS, OURS, TASKS, Arm
from flows.l2a.models import Model, RouterParams, adapt, pretrained_base, routed, small_base
from flows.l2a.store import datasheet, held_texts, training_batches
from tasks import track
from tasks.fanout import fanout
from tasks.params import StageParams, Strict


class Phase(Strict):
    """One training."""

    batch: int = Field(ge=1, description="texts in a step")
    micro_batch: int | None = Field(None, ge=1, description="texts that are computed at once; null: all")
    steps: int = Field(ge=1, description="steps")
    lr: float = Field(gt=0, description="highest learning rate of AdamW")
    warmup: int = Field(20, ge=0, description="steps of linear warm-up; the router is not pressed during them")


class Task(Strict):
    """A data set, a model, and what is compared on them."""

    model: Model = Field(Model(), description="model")
    base: Phase = Field(description="training of the base on short texts")
    extend: Phase = Field(description="extension to long texts, the same for every method")
    methods: list[str] = Field(min_length=1, description="methods")
    offsets: list[int] = Field([0], min_length=1, description="interleave: placements of the first dense layer that are tried")
    choice_windows: int = Field(40, ge=1, description="windows of natural text to choose with")
    seeds: int = Field(3, ge=0, description="seeds from 0")


class Tradeoff(Strict):
    """L2A on planted recall with other pressure on the router."""

    lambdas: list[float] = Field([], description="full weights of the penalty beside the default")
    leaks: list[float] = Field([], description="leak probabilities beside the default")
    seeds: int = Field(2, ge=0, description="seeds from 0, at most those of recall")


class Params(StageParams):
    device: str = Field("cpu", description="where models are trained")
    clip: float = Field(1.0, gt=0, description="largest gradient norm")
    final: float = Field(0.1, ge=0, le=1, description="last learning rate over the highest; a cosine leads there")
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay")
    betas: tuple[float, float] = Field((0.9, 0.95), description="decay rates of AdamW")
    history_every: int = Field(1, ge=1, description="steps between two rows of the history")
    router: RouterParams = Field(RouterParams(), description="router")
    recall: Task = Field(description="planted recall")
    text: Task = Field(description="natural text")
    tradeoff: Tradeoff = Field(Tradeoff(), description="trade-off")


class Job(NamedTuple):
    p: Params
    data: Path
    out: Path
    task: str
    seed: int
    arm: Arm | None  # None: the base
    rates: list[float] | None = None  # of a random router, per layer

    @property
    def settings(self) -> Task:
        return getattr(self.p, self.task)

    @property
    def name(self) -> str:
        return "base" if self.arm is None else self.arm.name

    @property
    def weights(self) -> Path:
        return self.out / self.task / f"{'base' if self.arm is None else self.arm.file}-{self.seed}.safetensors"


def base_model(job: Job) -> nn.Module:
    """The dense model before the extension: the small one as trained, or the pretrained one."""
    t = job.settings
    if t.model.base_model is not None:
        return pretrained_base(t.model, datasheet(job.data)[job.task]["long"])
    model = small_base(t.model, job.data, job.task)
    model.load_state_dict(load_file(job._replace(arm=None).weights))
    return model


def penalised(model: nn.Module) -> tuple[Tensor, list[float]]:
    """The routers' penalty of the last pass and the active share per layer: squares for L2A, plain probabilities per head."""
    layers = routed(model)
    power = 2 if l2a_layers(model) else 1
    loss = router_loss([layer.routing.p for layer in layers], power=power)
    return loss, [layer.routing.a.float().mean().item() for layer in layers]


def run_job(job: Job) -> dict[str, Any]:
    """Train one model: its weights, history, and the active share per layer on the choice texts."""
    p, t, arm = job.p, job.settings, job.arm
    phase = t.base if arm is None else t.extend
    torch.manual_seed(job.seed)
    model = (
        small_base(t.model, job.data, job.task)
        if arm is None
        else adapt(base_model(job), arm, t.model, p.router, job.rates, job.seed)
    )
    model.to(p.device).train()
    config = L2AConfig(
        p.router.lambda_bar if arm is None or arm.lam is None else arm.lam,
        phase.warmup,
        max(phase.steps, phase.warmup + 1),
        p.router.leak if arm is None or arm.leak is None else arm.leak,
        p.router.schedule,
    )
    generator = torch.Generator().manual_seed(1_000_003 * (job.seed + 1) + (arm is not None))
    batches = training_batches(job.data, job.task, "short" if arm is None else "long", phase.batch, generator)
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=phase.lr, betas=p.betas, weight_decay=p.weight_decay)
    learns, leaking, rows = bool(routed(model)), l2a_layers(model), []
    watched = job.task == "recall" and arm == Arm(OURS)
    for step in range(phase.steps):
        for group in optimizer.param_groups:
            group["lr"] = warmup_cosine(step, phase.steps, phase.warmup, phase.lr, p.final)
        leaks = config.leaks(len(leaking), step, job.seed) if learns else [False] * len(leaking)
        set_leaks(leaking, leaks)
        inputs, targets = next(batches)
        micro = phase.micro_batch or phase.batch
        nll = penalty = 0.0
        shares: list[list[float]] = []
        for x, y in zip(inputs.split(micro), targets.split(micro), strict=True):
            weight = len(x) / len(inputs)
            loss = cross_entropy(model(x.to(p.device)).flatten(0, 1).float(), y.to(p.device).flatten())
            nll += weight * loss.item()
            if learns:
                extra, share = penalised(model)
                penalty += weight * extra.item()
                shares.append(share)
                loss = loss + config.weight(step) * extra
            (weight * loss).backward()
        torch.nn.utils.clip_grad_norm_(weights, p.clip)
        optimizer.step()
        optimizer.zero_grad()
        if step % p.history_every == 0 or step == phase.steps - 1:
            row = {"step": step, "nll": nll, "penalty": penalty, "lambda": config.weight(step) if learns else 0.0}
            for layer in range(len(shares[0]) if shares else 0):
                row[f"skip_{layer}"] = 1 - sum(share[layer] for share in shares) / len(shares)
            rows.append(row | {f"leak_{layer}": leak for layer, leak in enumerate(leaks)})
        if watched and step % 10 == 9:
            track.step(step, nll=nll)
    set_leaks(leaking, [False] * len(leaking))
    active = None
    if leaking and learns:
        texts = held_texts(job.data, job.task, "choice", t.choice_windows).tokens
        active = [1 - rate for rate in skip_rates(model, [part.to(p.device) for part in texts.split(phase.micro_batch or 50)])]
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    return {"weights": stored, "history": pd.DataFrame(rows), "active": active}


def arms_of(t: Task) -> list[Arm]:
    """The arms that need no other's result. ValueError for a method that does not exist, or one without L2A that it copies."""
    for method in t.methods:
        if method not in METHODS:
            raise ValueError(f"l2a.train: there is no method {method!r}; the methods are {', '.join(METHODS)}")
    if "random_router" in t.methods and OURS not in t.methods:
        raise ValueError("l2a.train: random_router takes its share from l2a, which must be among the methods")
    arms: list[Arm] = []
    for method in t.methods:
        if method == "interleave":
            arms += [Arm(method, offset) for offset in t.offsets]
        elif method != "random_router":
            arms.append(Arm(method))
    return arms


def log(job: Job, result: dict[str, Any]) -> None:
    """One nested run per training."""
    history = result["history"]
    shown = history.iloc[:: max(1, len(history) // 100)]
    columns = [column for column in history if column in ("nll", "penalty") or column.startswith("skip_")]
    track.run(
        f"{job.task} {job.name} seed {job.seed}",
        params={"task": job.task, "method": job.name, "seed": job.seed},
        metrics={"nll": float(history["nll"].iloc[-1])},
        curves={column: shown[column].tolist() for column in columns},
        steps=shown["step"].tolist(),
    )


def train(p: Params, data: Path, out: Path) -> None:
    """Writes <task>/<method>-<seed>.safetensors, history.parquet, runs.json and parameters.json."""
    histories: list[pd.DataFrame] = []
    runs: list[dict[str, Any]] = []
    active: dict[tuple[str, int], list[float]] = {}

    def keep(job: Job, result: dict[str, Any]) -> None:
        job.weights.parent.mkdir(exist_ok=True)
        save_file(result["weights"], job.weights)
        histories.append(result["history"].assign(task=job.task, method=job.name, seed=job.seed))
        fields = None if job.arm is None else dict(job.arm._asdict())
        runs.append({"task": job.task, "seed": job.seed, "arm": fields, "rates": job.rates, "active": result["active"]})
        if job.arm == Arm(OURS):
            active[job.task, job.seed] = result["active"]
        log(job, result)

    def fan(jobs: list[Job], label: str) -> None:
        fanout(run_job, jobs, label=label, threads=p.threads, seed=p.seed, on_result=keep)

    places = [(task, seed) for task in TASKS for seed in range(getattr(p, task).seeds)]
    fan([Job(p, data, out, task, seed, None) for task, seed in places if getattr(p, task).model.base_model is None], "bases")
    jobs = [Job(p, data, out, task, seed, arm) for task, seed in places for arm in arms_of(getattr(p, task))]
    others = [Arm(OURS, lam=lam) for lam in p.tradeoff.lambdas] + [Arm(OURS, leak=leak) for leak in p.tradeoff.leaks]
    jobs += [Job(p, data, out, "recall", seed, arm) for seed in range(min(p.tradeoff.seeds, p.recall.seeds)) for arm in others]
    fan(jobs, "extensions")
    fan(
        [
            Job(p, data, out, task, seed, Arm("random_router"), active[task, seed])
            for task, seed in places
            if "random_router" in getattr(p, task).methods
        ],
        "random routers",
    )
    pd.concat(histories, ignore_index=True).to_parquet(out / "history.parquet", index=False)
    for name, content in (("runs", runs), ("parameters", p.model_dump())):
        (out / f"{name}.json").write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")

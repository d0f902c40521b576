"""Every method on every task, each with one budget, one schedule, and for a seed the same data in the same order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from pydantic import Field
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from components.optim.schedules import warmup_cosine
from components.speech.enhancer import enhancement_loss
from components.speech.noise import segment
from flows.quaternion_attention import data as data_stage
from flows.quaternion_attention.arms import METHODS, TASKS
from flows.quaternion_attention.models import Attention, Speech, classifier, enhancer
from flows.quaternion_attention.store import Table, floats, load_table, load_waves
from tasks import track
from tasks.fanout import fanout
from tasks.params import StageParams, Strict


class Loss(Strict):
    """Weights of the terms of the enhancer's loss."""

    si_sdr: float = Field(0.1, ge=0, description="minus the scale-invariant ratio, decibels")
    complex: float = Field(2.0, ge=0, description="mean distance of spectra")
    magnitude: float = Field(2.0, ge=0, description="mean distance of magnitudes")
    rms: float = Field(0.0, ge=0, description="root mean square distance of waves")
    multi_resolution: float = Field(0.0, ge=0, description="spectra of three frame sizes")


class Training(Strict):
    methods: list[str] = Field(list(METHODS)[:4], min_length=1, description="methods")
    steps: int = Field(ge=1, description="optimiser steps")
    batch: int = Field(ge=1, description="examples in a step")
    lr: float = Field(gt=0, description="highest learning rate, for every method")
    warmup: int = Field(20, ge=0, description="steps of linear warm-up; a cosine follows")
    min_lr_frac: float = Field(0.05, ge=0, le=1, description="last learning rate over the highest")
    clip: float = Field(1.0, gt=0, description="largest gradient norm")
    betas: tuple[float, float] = Field((0.9, 0.999), description="decay rates of Adam")
    seeds: int = Field(3, ge=0, description="seeds from 0")


class SpeechTask(Training):
    model: Speech = Field(Speech(), description="network")
    loss: Loss = Field(Loss(), description="loss")


class ClassTask(Training):
    model: Attention = Field(Attention(), description="network")


class Params(StageParams):
    device: str = Field("cpu", description="where networks are trained")
    speech: SpeechTask = Field(description="speech enhancement")
    digits: ClassTask = Field(description="digits")
    text: ClassTask = Field(description="text")


class Job(NamedTuple):
    p: Params
    data: Path
    task: str
    method: str
    seed: int

    @property
    def settings(self) -> Training:
        return getattr(self.p, self.task)

    @property
    def weights(self) -> str:
        return f"{self.task}/{self.method}-{self.seed}.safetensors"


def speech_params(folder: Path) -> data_stage.Speech:
    sheet = json.loads((folder / "datasheet.json").read_text(encoding="utf-8"))
    return data_stage.Speech.model_validate(sheet["parameters"]["speech"])


def speech_batches(folder: Path, batch: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (noisy, clean) waves [batch, segment]: new mixtures each time, or random parts of recorded pairs."""
    p, waves, rng = speech_params(folder), load_waves(folder / "speech_train.npz"), np.random.default_rng((7, seed))
    while True:
        if "speech" in waves:
            speech = waves["speech"]
            drawn = [data_stage.draw_mixture(speech, speech, p, rng)[:2] for _ in range(batch)]
        else:
            drawn = [paired_segment(waves["clean"], waves["noisy"], p.segment, rng) for _ in range(batch)]
        clean, noisy = (torch.from_numpy(np.stack(part).astype(np.float32)) for part in zip(*drawn, strict=True))
        yield noisy, clean


def paired_segment(
    clean: list[np.ndarray], noisy: list[np.ndarray], length: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The same random part of a recording and of its noisy version; parts without any sound are drawn again."""
    while True:
        place = int(rng.integers(len(clean)))
        state = rng.bit_generator.state
        first = segment(clean[place], length, rng)
        rng.bit_generator.state = state
        second = segment(noisy[place], length, rng)
        if first.any():
            return floats(first), floats(second)


def class_tables(folder: Path, task: str, seed: int) -> tuple[Table, Table]:
    """What is trained on and what is reported; digits are split anew for each seed, where they have no split of their own."""
    if (folder / f"{task}_train.npz").is_file():
        return load_table(folder / f"{task}_train.npz"), load_table(folder / f"{task}_test.npz")
    sheet = json.loads((folder / "datasheet.json").read_text(encoding="utf-8"))
    table = load_table(folder / f"{task}.npz")
    order = np.random.default_rng((8, seed)).permutation(len(table.y))
    cut = round(sheet["parameters"][task]["test_share"] * len(order))
    return Table(table.x[order[cut:]], table.y[order[cut:]]), Table(table.x[order[:cut]], table.y[order[:cut]])


def as_inputs(x: np.ndarray) -> Tensor:
    """Symbols as int64, patches as float32."""
    return torch.from_numpy(x.astype(np.int64) if x.ndim == 2 else x.astype(np.float32))


def class_batches(table: Table, batch: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (inputs, classes), in a new order each time round."""
    x, y, generator = as_inputs(table.x), torch.from_numpy(table.y), torch.Generator().manual_seed(9000 + seed)
    batch = min(batch, len(y))
    while True:
        order = torch.randperm(len(y), generator=generator)
        for start in range(0, len(y) - batch + 1, batch):
            chosen = order[start : start + batch]
            yield x[chosen], y[chosen]


def run_job(job: Job) -> dict[str, Any]:
    """Train one network: its weights, history and number of parameters."""
    p, t = job.p, job.settings
    torch.manual_seed(job.seed)
    if job.task == "speech":
        model: nn.Module = enhancer(t.model, job.method)
        batches = speech_batches(job.data, t.batch, job.seed)
        weights = {name: weight for name, weight in t.loss.model_dump().items() if weight}

        def loss_of(noisy: Tensor, clean: Tensor) -> Tensor:
            return enhancement_loss(model, noisy, clean, weights)
    else:
        table = class_tables(job.data, job.task, job.seed)[0]
        model = classifier(t.model, job.method, table.x, int(table.y.max()) + 1)
        batches = class_batches(table, t.batch, job.seed)

        def loss_of(x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(model(x), y)

    model.to(p.device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=t.lr, betas=t.betas)
    rows = []
    for step in range(t.steps):
        for group in optimizer.param_groups:
            group["lr"] = warmup_cosine(step, t.steps, t.warmup, t.lr, t.min_lr_frac)
        loss = loss_of(*(x.to(p.device) for x in next(batches)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), t.clip)
        optimizer.step()
        rows.append({"step": step, "loss": loss.item()})
        if job.task == "speech" and job.method == "shared" and step % 10 == 9:
            track.step(step, loss=loss.item())
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    return {"weights": stored, "history": pd.DataFrame(rows), "parameters": sum(x.numel() for x in model.parameters())}


def jobs_of(p: Params, data: Path) -> list[Job]:
    """All trainings, the longest first. ValueError for a method that does not exist."""
    jobs = []
    for task in TASKS:
        t = getattr(p, task)
        for method in t.methods:
            if method not in METHODS:
                raise ValueError(
                    f"quaternion_attention.train: there is no method {method!r}; the methods are {', '.join(METHODS)}"
                )
        jobs += [Job(p, data, task, method, seed) for method in t.methods for seed in range(t.seeds)]
    return sorted(jobs, key=lambda job: (TASKS.index(job.task), job.method != "component"))


def train(p: Params, data: Path, out: Path) -> None:
    """Writes <task>/<method>-<seed>.safetensors, history.parquet, runs.json and parameters.json."""
    histories: list[pd.DataFrame] = []
    runs: list[dict[str, Any]] = []

    def keep(job: Job, result: dict[str, Any]) -> None:
        path = out / job.weights
        path.parent.mkdir(exist_ok=True)
        save_file(result["weights"], path)
        history = result["history"]
        histories.append(history.assign(task=job.task, method=job.method, seed=job.seed))
        runs.append({"task": job.task, "method": job.method, "seed": job.seed, "parameters": result["parameters"]})
        shown = history.iloc[:: max(1, len(history) // 100)]
        track.run(
            f"{job.task} {job.method} seed {job.seed}",
            params={"task": job.task, "method": job.method, "seed": job.seed},
            metrics={"loss": float(history["loss"].iloc[-10:].mean()), "parameters": float(result["parameters"])},
            curves={"loss": shown["loss"].tolist()},
            steps=shown["step"].tolist(),
        )

    fanout(run_job, jobs_of(p, data), label="networks", threads=p.threads, seed=p.seed, on_result=keep)
    pd.concat(histories, ignore_index=True).to_parquet(out / "history.parquet", index=False)
    for name, content in (("runs", runs), ("parameters", p.model_dump())):
        (out / f"{name}.json").write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")

"""Loss, recall, routing, counted operations and cache bytes of every model, and differences paired by seed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from pydantic import Field
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from components.attention.costs import dense_cache_bytes, dense_pairs, share_of_dense
from components.attention.decode import cache_for
from components.attention.head_router import HeadRoutedAttention
from components.attention.l2a import L2AAttention, l2a_layers
from components.attention.pruning import prune_layers
from components.attention.router import RandomRouter
from components.attention.static import StaticAttention
from components.stats import Metrics, paired_difference, summarise
from flows.l2a import train as training
from flows.l2a.arms import DENSE, OURS, TASKS, Arm
from flows.l2a.models import Pretrained, adapt
from flows.l2a.store import Held, datasheet, held_texts
from kernels.l2a_attention import flops, gathered_pairs, window_pairs
from tasks.fanout import fanout
from tasks.params import StageParams, Strict


class Prune(Strict):
    threshold: float = Field(0.95, ge=0, le=1, description="skip rate from which a layer's global branch is cut")


class Params(StageParams):
    device: str = Field("cpu", description="where models are run")
    batch: int = Field(50, ge=1, description="texts that are computed at once")
    windows: int = Field(100, ge=1, description="windows of natural text that are reported")
    bins: int = Field(8, ge=1, description="bins of the distance to the definition")
    skip: float = Field(0.75, ge=0, le=1, description="skip rate below which a sweep's objective is charged")
    prune: Prune = Field(Prune(), description="pruning")


class Seen(NamedTuple):
    """One pass over texts."""

    nll: np.ndarray  # [N, T] float32
    correct: np.ndarray  # [N, T] bool
    active: np.ndarray  # [layers, N, T] float32, share of the heads that saw the whole past
    pairs: int  # of query and key and head, all layers


class Job(NamedTuple):
    p: Params
    trained: training.Job
    arm: Arm


def one_layer(layer: nn.Module, batch: int, length: int, heads: int) -> tuple[Tensor, int]:
    """What the last pass through a layer attended to: active share [batch, time], and pairs over heads."""
    if isinstance(layer, HeadRoutedAttention):
        a = layer.routing.a.cpu()
        near = torch.arange(1, length + 1).clamp(max=layer.window)
        off = int(((~a).sum(-1) * near).sum())
        return a.float().mean(-1), sum(gathered_pairs(a[..., head]) for head in range(heads)) + off
    if isinstance(layer, L2AAttention):
        a = torch.zeros(batch, length, dtype=torch.bool) if layer.routing is None else layer.routing.a.cpu()
        return a.float(), heads * (window_pairs(batch, length, layer.window) + gathered_pairs(a))
    window = layer.window if isinstance(layer, StaticAttention) else None  # None: a dense layer of a pretrained model
    share = torch.full((batch, length), float(window is None))
    return share, heads * (batch * dense_pairs(length) if window is None else window_pairs(batch, length, window))


def attention_layers(model: nn.Module) -> list[nn.Module]:
    """The attention of each layer."""
    if isinstance(model, Pretrained):
        return [getattr(layer.self_attn, "l2a", layer.self_attn) for layer in model.model.model.layers]
    return [block.attention for block in model.layers]


def heads_and_width(model: nn.Module) -> tuple[int, int]:
    if isinstance(model, Pretrained):
        config = model.model.config
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return config.num_attention_heads, width
    layer = model.layers[0].attention
    branch = layer.local if isinstance(layer, L2AAttention) else layer.branch
    return branch.heads, branch.width


@torch.no_grad()
def look(model: nn.Module, held: Held, heads: int, batch: int, device: str) -> Seen:
    """Loss, hits, decisions and counted pairs of a model on texts."""
    for layer in l2a_layers(model):
        if isinstance(layer.router, RandomRouter):
            layer.router.reseed(layer.layer)
    model.eval()
    nlls, hits, shares, pairs = [], [], [], 0
    for x, y in zip(held.tokens.split(batch), held.targets.split(batch), strict=True):
        logits = model(x.to(device)).float().cpu()
        nlls.append(cross_entropy(logits.transpose(1, 2), y, reduction="none"))
        hits.append(logits.argmax(-1) == y)
        found = [one_layer(layer, *x.shape, heads) for layer in attention_layers(model)]
        shares.append(torch.stack([share for share, _ in found]))
        pairs += sum(count for _, count in found)
    return Seen(torch.cat(nlls).numpy(), torch.cat(hits).numpy(), torch.cat(shares, 1).numpy(), pairs)


def selectivity(active: np.ndarray, recall: np.ndarray) -> dict[str, float]:
    """How a router fires [layers, N, T] at the tokens whose next one is recalled, in the layer that catches most of them.

    Ties go to the layer that is more precise. The ratio is a power of ten; no firing at all counts as one, so that it is finite."""
    at, elsewhere = active[:, recall].mean(1), active[:, ~recall].mean(1)
    fired = active.mean((1, 2))
    precision = np.divide(active[:, recall].sum(1), active.sum((1, 2)), out=np.zeros_like(at), where=fired > 0)
    once = 1 / int((~recall).sum())
    best = max(range(len(at)), key=lambda layer: (at[layer], precision[layer]))
    return {
        "firing on Q": 100 * float(at[best]),
        "firing elsewhere": 100 * float(elsewhere[best]),
        "firing ratio": math.log10(max(float(at[best]), once) / max(float(elsewhere[best]), once)),
        "router precision": 100 * float(precision[best]),
        "selective layer": float(best),
    }


def cache_share(model: nn.Module, length: int) -> float:
    """Bytes of the key/value cache of one text over those of a dense model; L2A's are counted in a real cache."""
    layers, converted = attention_layers(model), l2a_layers(model)
    if len(converted) == len(layers):
        local = converted[0].local
        dense = dense_cache_bytes(length, len(layers), local.kv_heads, local.width, local.k.weight.element_size())
        return cache_for(model, 1, length).nbytes() / dense
    kept = 0
    for layer in layers:
        window = layer.window if isinstance(layer, StaticAttention | L2AAttention) else None
        kept += length if window is None else min(window, length)
    return kept / (len(layers) * length)


def facts_of(seen: Seen, held: Held, window: int, heads: int, width: int) -> dict[str, float]:
    """Metrics of one model on one set of texts; shares in percent."""
    (texts, length), layers = seen.nll.shape, len(seen.active)
    share = float(seen.active.mean())
    dense = layers * heads * texts * dense_pairs(length)
    operations = seen.pairs / dense
    facts = {
        "nll": float(seen.nll.mean(dtype=np.float64)),
        "active share": 100 * share,
        "skip rate": 100 * (1 - share),
        "operations": 100 * operations,
        "gigaflops per text": flops(seen.pairs, 1, width) / texts / 1e9,
    }
    facts |= {f"skip rate layer {i}": 100 * float(1 - layer.mean()) for i, layer in enumerate(seen.active)}
    if held.recall is not None:
        far = held.recall & (held.nearest > window)
        facts["nll recall"] = float(seen.nll[held.recall].mean(dtype=np.float64))
        facts["nll background"] = float(seen.nll[~held.recall].mean(dtype=np.float64))
        facts["accuracy"] = 100 * float(seen.correct[held.recall].mean())
        facts["accuracy far"] = 100 * float(seen.correct[far].mean())
        facts["accuracy near"] = 100 * float(seen.correct[held.recall & ~far].mean())
        facts |= selectivity(seen.active, held.recall)
    return facts


def by_distance(seen: Seen, held: Held, bins: int) -> list[dict[str, Any]]:
    """Hits among recalls by the distance to the definition, in bins of equal width."""
    length = held.tokens.shape[1]
    distance, hit = held.distance[held.recall], seen.correct[held.recall]
    place = np.minimum((distance.astype(np.int64) - 1) * bins // length, bins - 1)
    return [
        {"bin": i, "from": i * length // bins + 1, "to": (i + 1) * length // bins, "n": int((place == i).sum()), "hits": int(hit[place == i].sum())}
        for i in range(bins)
    ]  # fmt: skip


def run_job(job: Job) -> dict[str, Any]:
    """Everything about one trained model; of L2A also after pruning."""
    p, trained, arm = job.p, job.trained, job.arm
    t = trained.settings
    model = adapt(training.base_model(trained), arm, t.model, trained.p.router, trained.rates, trained.seed)
    model.load_state_dict(load_file(trained.weights))
    model.to(p.device)
    heads, width = heads_and_width(model)
    report, choice = (held_texts(trained.data, trained.task, part, p.windows) for part in ("report", "choice"))
    length, window = report.tokens.shape[1], t.model.window
    seen, chosen = (look(model, texts, heads, p.batch, p.device) for texts in (report, choice))
    facts = {arm.name: facts_of(seen, report, window, heads, width)}
    skipped = 1 - float(chosen.active.mean())
    choice_nll = float(chosen.nll.mean(dtype=np.float64))
    facts[arm.name] |= {"choice nll": choice_nll, "selection": choice_nll + 0.5 * max(0.0, p.skip - skipped)}
    found: dict[str, Any] = {"facts": facts, "distance": {}, "active": None}
    if report.recall is not None:
        found["distance"] = {arm.name: by_distance(seen, report, p.bins)}
    facts[arm.name]["cache"] = 100 * cache_share(model, length)
    if arm.method == OURS:
        facts[arm.name]["operations beyond formula"] = facts[arm.name]["operations"] - 100 * share_of_dense(
            facts[arm.name]["active share"] / 100, window, length
        )
        found["active"] = (seen.active > 0.5).astype(np.uint8)
        prune_layers(model, [part.to(p.device) for part in choice.tokens.split(p.batch)], threshold=p.prune.threshold)
        after, name = look(model, report, heads, p.batch, p.device), f"{arm.name} pruned"
        facts[name] = facts_of(after, report, window, heads, width)
        cache = 100 * cache_share(model, length)
        facts[name] |= {
            "cache": cache,
            "cache saving": 100 - cache,
            "layers cut": float(sum(x.pruned for x in l2a_layers(model))),
        }
    return found


Values = dict[tuple[str, str], dict[int, float]]  # (method, metric) -> seed -> value


def pick_interleave(values: Values, task: str) -> dict[int, str]:
    """`interleave`: for each seed the placement of dense layers with the lower loss on the choice texts, which is returned."""
    names = sorted({method for method, metric in values if method.startswith("interleave ") and metric.startswith(f"{task}/")})
    if not names:
        return {}
    at = f"{task}/choice nll"
    best = {seed: min(names, key=lambda name: values[name, at][seed]) for seed in values[names[0], at]}
    for metric in [metric for method, metric in values if method == names[0] and metric.startswith(f"{task}/")]:
        values["interleave", metric] = {seed: values[name, metric][seed] for seed, name in best.items()}
    return best


def pair(values: Values, first: str, second: str, metric: str, combine: Callable[[float, float], float]) -> list[float] | None:
    one, two = values.get((first, metric), {}), values.get((second, metric), {})
    found = [combine(one[seed], two[seed]) for seed in sorted(one) if seed in two]
    return found or None


def summaries(values: Values) -> Metrics:
    """Means over seeds, and L2A against the others, paired by seed."""
    metrics: Metrics = {}
    for (method, metric), found in values.items():
        metrics.setdefault(method, {})[metric] = summarise([found[seed] for seed in sorted(found)])

    def percent(a: float, b: float) -> float:
        return 100 * (a / b - 1)

    for task in TASKS:
        others = [
            name for name in (DENSE, "swa", "interleave", "random_router", "head_router") if (name, f"{task}/nll") in values
        ]
        for other in others:
            name = f"{OURS} - {other}"
            if excess := pair(values, OURS, other, f"{task}/nll", percent):
                metrics.setdefault(name, {})[f"{task}/relative nll"] = summarise(excess)
            one, two = (values.get((method, f"{task}/accuracy"), {}) for method in (OURS, other))
            if common := [seed for seed in sorted(one) if seed in two]:
                metrics.setdefault(name, {})[f"{task}/accuracy"] = paired_difference(
                    [one[seed] for seed in common], [two[seed] for seed in common]
                )
        if ratio := pair(values, OURS, "interleave", f"{task}/active share", lambda a, b: a / b):
            metrics.setdefault(f"{OURS} / interleave", {})[f"{task}/active share"] = summarise(ratio)
        if cost := pair(values, f"{OURS} pruned", OURS, f"{task}/nll", percent):
            metrics.setdefault(f"{OURS} pruned - {OURS}", {})[f"{task}/relative nll"] = summarise(cost)
        rivals = [values[name, f"{task}/accuracy"] for name in ("random_router", "swa") if (name, f"{task}/accuracy") in values]
        if rivals and (OURS, f"{task}/accuracy") in values:
            ours = values[OURS, f"{task}/accuracy"]
            seeds = sorted(ours)
            best = [max(rival[seed] for rival in rivals) for seed in seeds]
            metrics.setdefault(f"{OURS} - best of random_router, swa", {})[f"{task}/accuracy"] = paired_difference(
                [ours[seed] for seed in seeds], best
            )
    return metrics


def evaluate(p: Params, data: Path, train: Path, out: Path) -> Metrics:
    """Writes decisions.npz, distance.parquet and flops.json, and returns the metrics."""
    trained = training.Params.model_validate_json((train / "parameters.json").read_text(encoding="utf-8"))
    runs = json.loads((train / "runs.json").read_text(encoding="utf-8"))
    jobs = [
        Job(p, training.Job(trained, data, train, run["task"], run["seed"], Arm(**run["arm"]), run["rates"]), Arm(**run["arm"]))
        for run in runs if run["arm"] is not None
    ]  # fmt: skip
    values: Values = {}
    distances: list[dict[str, Any]] = []
    decided: dict[str, np.ndarray] = {}

    def keep(job: Job, result: dict[str, Any]) -> None:
        task, seed = job.trained.task, job.trained.seed
        for name, facts in result["facts"].items():
            for metric, value in facts.items():
                if math.isfinite(value):
                    values.setdefault((name, f"{task}/{metric}"), {})[seed] = value
        for name, rows in result["distance"].items():
            distances.extend({"task": task, "method": name, "seed": seed} | row for row in rows)
        if job.arm == Arm(OURS):
            decided[f"{task}-{seed}"] = result["active"]

    fanout(run_job, jobs, label="models", threads=p.threads, seed=p.seed, on_result=keep)
    # How the base does on the long texts, untouched.
    bases = [run for run in runs if run["arm"] is None]
    for run in bases:
        job = training.Job(trained, data, train, run["task"], run["seed"], None)
        model = training.base_model(job)
        held = held_texts(data, run["task"], "report", p.windows)
        heads, width = heads_and_width(model)
        facts = facts_of(look(model, held, heads, p.batch, "cpu"), held, job.settings.model.window, heads, width)
        for metric in ("nll", "accuracy"):
            if metric in facts:
                values.setdefault(("base", f"{run['task']}/{metric}"), {})[run["seed"]] = facts[metric]
    if "recall" in {job.trained.task for job in jobs}:
        decided["recall-truth"] = held_texts(data, "recall", "report", 1).recall.astype(np.uint8)
    for task in TASKS:
        picked = pick_interleave(values, task)
        distances += [
            row | {"method": "interleave"}
            for row in distances
            if row["task"] == task and picked.get(row["seed"]) == row["method"]
        ]
    np.savez_compressed(out / "decisions.npz", **decided)
    pd.DataFrame(distances).to_parquet(out / "distance.parquet", index=False)
    costs = {
        f"{method} {metric}": {str(seed): value for seed, value in found.items()}
        for (method, metric), found in values.items()
        if metric.endswith(("operations", "gigaflops per text", "cache", "active share"))
    }
    sheet = datasheet(data)
    lengths = {task: sheet[task]["long"] for task in TASKS}
    windows = {task: getattr(trained, task).model.window for task in TASKS}
    (out / "flops.json").write_text(
        json.dumps({"length": lengths, "window": windows, "counted": costs}, indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )
    return summaries(values)

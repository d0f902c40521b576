"""Quality of every network on held-out data, paired; multiplications and softmaxes as they run; ranks of the interactions; maps."""

from __future__ import annotations

import itertools
import json
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from pydantic import Field
from safetensors.torch import load_file
from torch import Tensor, nn

from components.quaternion.attention import QuaternionSelfAttention
from components.quaternion.counting import ProductCounter
from components.quaternion.ops import component_scores, shared_scores
from components.quaternion.subspace import interaction_ranks
from components.speech.enhancer import Enhancer
from components.speech.metrics import si_sdr, stoi
from components.stats import Metrics, paired_difference, summarise
from flows.quaternion_attention import train as training
from flows.quaternion_attention.arms import METHODS, NOISY, TASKS
from flows.quaternion_attention.models import classifier, enhancer
from flows.quaternion_attention.store import Mixtures, load_mixtures
from tasks.fanout import fanout
from tasks.params import StageParams


class Params(StageParams):
    device: str = Field("cpu", description="where networks are run")
    batch: int = Field(8, ge=1, description="mixtures that are enhanced at once, where they have one length")
    shapes: list[tuple[int, int, int, int]] = Field(
        [(8, 4, 128, 4), (4, 4, 256, 8), (1, 4, 512, 16)],
        description="batch, heads, length, features per head: where products are counted",
    )
    pairs: int = Field(200, ge=16, description="random weights whose interactions span the spaces")
    shown: int = Field(0, ge=0, description="mixture whose attention maps are kept")


class Job(NamedTuple):
    p: Params
    trained: training.Job
    folder: Path  # of the weights


def enhanced(model: Enhancer, waves: list[np.ndarray], batch: int, device: str) -> list[Tensor]:
    """Enhanced waves; neighbours of one length go through together."""
    found: list[Tensor] = []
    for _, group in itertools.groupby(waves, key=len):
        together = list(group)
        for start in range(0, len(together), batch):
            part = together[start : start + batch]
            found += list(model(torch.from_numpy(np.stack(part)).to(device)).cpu())
    return found


@torch.no_grad()
def speech_rows(model: Enhancer | None, mixtures: Mixtures, p: Params, rate: int, with_stoi: bool) -> list[dict[str, Any]]:
    """Measures of every mixture, enhanced or, without a model, as it is."""
    waves = (
        [torch.from_numpy(x) for x in mixtures.noisy] if model is None else enhanced(model, mixtures.noisy, p.batch, p.device)
    )
    rows = []
    for place, (wave, clean, noisy) in enumerate(zip(waves, mixtures.clean, mixtures.noisy, strict=True)):
        reference = torch.from_numpy(clean)[None]
        after, before = (si_sdr(x[None], reference).item() for x in (wave, torch.from_numpy(noisy)))
        row = {
            "mixture": place,
            "snr": mixtures.snr[place],
            "kind": str(mixtures.kind[place]),
            "si_sdr": after,
            "improvement": after - before,
        }
        if with_stoi:
            row["stoi"] = stoi(wave.numpy().astype(np.float64), clean.astype(np.float64), rate)
        rows.append(row)
    return rows


def run_job(job: Job) -> dict[str, Any]:
    """Everything about one trained network."""
    p, trained = job.p, job.trained
    t = trained.settings
    weights = load_file(job.folder / trained.weights)
    if trained.task == "speech":
        model: nn.Module = enhancer(t.model, trained.method)
        model.load_state_dict(weights)
        model.to(p.device).eval()
        rate = training.speech_params(trained.data).rate
        test, choice = (load_mixtures(trained.data / f"mixtures_{name}.npz") for name in ("test", "choice"))
        rows = speech_rows(model, test, p, rate, with_stoi=True)
        chosen = speech_rows(model, choice, p, rate, with_stoi=False)
        return {
            "rows": rows,
            "facts": {"choice improvement": float(np.mean([row["improvement"] for row in chosen]))},
            "products": network_products(model, test.noisy[0], p.device),
        }
    table = training.class_tables(trained.data, trained.task, trained.seed)
    model = classifier(t.model, trained.method, table[0].x, int(table[0].y.max()) + 1)
    model.load_state_dict(weights)
    model.to(p.device).eval()
    x, y = training.as_inputs(table[1].x), torch.from_numpy(table[1].y)
    with torch.no_grad():
        guesses = torch.cat([model(part.to(p.device)).argmax(-1).cpu() for part in x.split(256)])
    return {"rows": [], "facts": {"accuracy": 100 * (guesses == y).double().mean().item()}, "products": None}


@torch.no_grad()
def network_products(model: nn.Module, wave: np.ndarray, device: str) -> dict[str, float]:
    """Multiplications of matrix products, and softmaxes, of one pass over one wave."""
    with ProductCounter() as counter:
        model(torch.from_numpy(wave)[None].to(device))
    return {"products": float(counter.products), "softmaxes": float(counter.softmax_calls)}


FORMS = {
    "shared": (shared_scores, {}),
    "component": (partial(component_scores, fused=False), {"score": "component", "fused": False}),
    "component, fused": (component_scores, {"score": "component"}),
}


def score_counts(shapes: list[tuple[int, int, int, int]]) -> dict[str, list[dict[str, float]]]:
    """Counted multiplications of scores, and softmaxes of an attention layer, for each shape and form."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in FORMS}
    for batch, heads, length, h in shapes:
        q, k = torch.zeros(2, batch, heads, length, 4, h)
        for name, (scores, options) in FORMS.items():
            layer = QuaternionSelfAttention(heads * h, heads, **options)
            with ProductCounter() as counter:
                scores(q, k)
            with ProductCounter() as whole, torch.no_grad():
                layer(torch.zeros(1, length, 4, heads * h))
            pairs = batch * heads * length * length * h
            found[name].append(
                {"products": counter.products, "per pair": counter.products / pairs, "softmaxes": float(whole.softmax_calls)}
            )
    return found


def count_metrics(p: Params) -> Metrics:
    counts = score_counts(p.shapes)
    metrics: Metrics = {
        name: {
            "scores/products per pair": summarise([row["per pair"] for row in rows]),
            "scores/softmaxes": summarise([row["softmaxes"] for row in rows]),
        }
        for name, rows in counts.items()
    }
    for other in ("component", "component, fused"):
        ratios = [a["products"] / b["products"] for a, b in zip(counts["shared"], counts[other], strict=True)]
        metrics[f"shared / {other}"] = {"scores/products": summarise(ratios)}
    return metrics


def rank_metrics(p: Params) -> Metrics:
    """Dimensions of the interactions that scores range over."""
    metrics: Metrics = {}
    for name, conjugate in (("q conj(k)", True), ("q k", False)):
        ranks = interaction_ranks(p.pairs, conjugate, p.seed)
        metrics[name] = {
            "ranks/least component": summarise([float(min(ranks.components))]),
            "ranks/largest component": summarise([float(max(ranks.components))]),
            "ranks/union": summarise([float(ranks.union)]),
        }
        metrics.setdefault("shared", {})["ranks/score"] = summarise([float(ranks.shared)])
    return metrics


@torch.no_grad()
def attention_maps(model: Enhancer, wave: np.ndarray) -> np.ndarray:
    """Weights along time of the first block's first head, for the frequency whose input varies most: (maps, T, T)."""
    seen: list[Tensor] = []
    attention = model.along_time[0].attention
    handle = attention.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    model(torch.from_numpy(wave)[None])
    handle.remove()
    chosen = seen[0].flatten(1).var(1).argmax()
    _, weights = attention(seen[0][chosen][None], need_weights=True)
    return weights[0, 0].reshape(-1, *weights.shape[-2:]).numpy()


def divergence(first: np.ndarray, second: np.ndarray) -> float:
    """Mean Jensen-Shannon divergence of the rows of two maps, bits."""
    middle = (first + second) / 2

    def relative(a: np.ndarray) -> np.ndarray:
        return np.where(a > 0, a * np.log2(np.maximum(a, 1e-30) / np.maximum(middle, 1e-30)), 0.0).sum(-1)

    return float(((relative(first) + relative(second)) / 2).mean())


def by_mixture(rows: pd.DataFrame, method: str, metric: str) -> pd.Series:
    """Means over seeds, per mixture."""
    return rows[rows["method"] == method].groupby("mixture")[metric].mean().sort_index()


def speech_metrics(rows: pd.DataFrame) -> Metrics:
    """Means over mixtures, each the mean over seeds; differences paired by mixture; the burst stratum; means by seed."""
    metrics: Metrics = {}
    for method in rows["method"].unique():
        cells = metrics.setdefault(method, {})
        for metric in ("si_sdr", "improvement", "stoi"):
            cells[f"speech/{metric}"] = summarise(by_mixture(rows, method, metric).tolist())
        cells["speech/improvement by seed"] = summarise(
            rows[rows["method"] == method].groupby("seed")["improvement"].mean().tolist()
        )
        burst = rows[rows["kind"] == "burst"]
        if not burst.empty:
            cells["speech/improvement in bursts"] = summarise(by_mixture(burst, method, "improvement").tolist())
    for other in ("component", "none", "real"):
        if other not in metrics or "shared" not in metrics:
            continue
        cells = metrics.setdefault(f"shared - {other}", {})
        strata = {"": rows, " in bursts": rows[rows["kind"] == "burst"]}
        for words, part in strata.items():
            pair = [by_mixture(part, method, "improvement").tolist() for method in ("shared", other)]
            if pair[0]:
                cells[f"speech/improvement{words}"] = paired_difference(*pair)
        cells["speech/stoi"] = paired_difference(*(by_mixture(rows, method, "stoi").tolist() for method in ("shared", other)))
    return metrics


def evaluate(p: Params, data: Path, train: Path, out: Path) -> Metrics:
    """Writes per_mixture.parquet, counts.json and maps.npz, and returns the metrics."""
    trained = training.Params.model_validate_json((train / "parameters.json").read_text(encoding="utf-8"))
    runs = json.loads((train / "runs.json").read_text(encoding="utf-8"))
    jobs = [Job(p, training.Job(trained, data, run["task"], run["method"], run["seed"]), train) for run in runs]
    rows: list[dict[str, Any]] = []
    facts: dict[tuple[str, str], dict[int, float]] = {}
    products: dict[str, dict[str, float]] = {}

    def keep(job: Job, result: dict[str, Any]) -> None:
        method, task, seed = job.trained.method, job.trained.task, job.trained.seed
        rows.extend({"method": method, "seed": seed} | row for row in result["rows"])
        for name, value in result["facts"].items():
            facts.setdefault((method, f"{task}/{name}"), {})[seed] = value
        if result["products"] is not None:
            products[method] = result["products"]

    fanout(run_job, jobs, label="networks", threads=p.threads, seed=p.seed, on_result=keep)
    metrics = merged(count_metrics(p), rank_metrics(p))
    if rows:
        test, rate = load_mixtures(data / "mixtures_test.npz"), training.speech_params(data).rate
        rows += [{"method": NOISY, "seed": 0} | row for row in speech_rows(None, test, p, rate, with_stoi=True)]
        metrics = merged(metrics, speech_metrics(pd.DataFrame(rows)))
    for run in runs:
        metrics.setdefault(run["method"], {})[f"{run['task']}/parameters"] = summarise([float(run["parameters"])])
    for method, counted in products.items():
        for name, value in counted.items():
            metrics[method][f"speech/{name}"] = summarise([value])
    for (method, metric), found in facts.items():
        metrics.setdefault(method, {})[metric] = summarise([found[seed] for seed in sorted(found)])
    for task in TASKS[1:]:
        for other in METHODS:
            pair = [facts.get((method, f"{task}/accuracy"), {}) for method in ("shared", other)]
            if other != "shared" and (seeds := sorted(set(pair[0]) & set(pair[1]))):
                difference = paired_difference(*([one[seed] for seed in seeds] for one in pair))
                metrics.setdefault(f"shared - {other}", {})[f"{task}/accuracy"] = difference
    maps = kept_maps(p, trained, data, train) if rows else {}
    for name, (first, second) in pairs_of(maps).items():
        metrics.setdefault("maps", {})[f"maps/{name}"] = summarise([divergence(first, second)])
    pd.DataFrame(rows).to_parquet(out / "per_mixture.parquet", index=False)
    np.savez_compressed(out / "maps.npz", **maps)
    counts = {"scores": score_counts(p.shapes), "networks": products, "shapes": p.shapes}
    (out / "counts.json").write_text(json.dumps(counts, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return metrics


def merged(first: Metrics, second: Metrics) -> Metrics:
    return {method: first.get(method, {}) | second.get(method, {}) for method in (*first, *second)}


def kept_maps(p: Params, trained: training.Params, data: Path, train: Path) -> dict[str, np.ndarray]:
    """Attention maps of one reported mixture, of the networks with seed 0."""
    wave = load_mixtures(data / "mixtures_test.npz").noisy[p.shown]
    found = {}
    for method in ("shared", "component"):
        if method in trained.speech.methods:
            model = enhancer(trained.speech.model, method)
            model.load_state_dict(load_file(train / training.Job(trained, data, "speech", method, 0).weights))
            found[method] = attention_maps(model.eval(), wave).astype(np.float32)
    return found


def pairs_of(maps: dict[str, np.ndarray]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Component maps against one another, and each against the shared one."""
    if len(maps) < 2:
        return {}
    components = dict(zip("rxyz", maps["component"], strict=True))
    pairs = {f"{a} and {b}": (components[a], components[b]) for a, b in itertools.combinations("rxyz", 2)}
    return pairs | {f"{a} and shared": (components[a], maps["shared"][0]) for a in "rxyz"}

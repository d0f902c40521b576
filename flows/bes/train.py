"""Trains every method on every split: encoders once, then all arms from the same frozen embeddings.

A job is one (data set, split), for node classification or for link prediction. Every choice - epoch, a baseline's width -
is made on validation nodes; the labels of test nodes are blanked before anything is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from pydantic import Field
from safetensors.torch import save_file

from components.graphs.bes import Shaper, rescale
from components.graphs.decoders import ChebDecoder, InnerProduct, LinkMLP, LinkNet
from components.graphs.links import split_links
from components.graphs.propagation import SparseGraph
from components.graphs.training import Fit, fit_links, fit_nodes
from components.graphs.two_view import OneLayerNet, TwoLayerNet, TwoViewEncoder
from flows.bes.arms import ABLATIONS, ARMS, BASELINES, LINK_ARMS, METHODS, UNTUNED, VIEWS
from flows.bes.store import read_graph, read_parts, write_parameters
from tasks import track
from tasks.fanout import fanout
from tasks.params import StageParams, Strict


class Encoder(Strict):
    """The two-view encoder: each view is the first layer of its own two-layer classifier."""

    hidden: int = Field(16, ge=1, description="outputs of each view")
    epochs: int = Field(120, ge=1, description="epochs of each view's classifier")
    lr: float = Field(0.01, gt=0, description="Adam's learning rate")
    weight_decay: float = Field(5e-4, ge=0, description="L2 penalty")
    dropout: float = Field(0.5, ge=0, lt=1, description="on inputs and hidden units")


class Shape(Strict):
    """The shaping step."""

    lr: float = Field(1e-4, gt=0, description="learning rate")
    optimizer: Literal["adam", "sgd"] = Field("adam", description="of the shaping map")
    weight_decay: float = Field(5e-4, ge=0, description="L2 penalty")
    tau: float = Field(1.0, gt=0, description="temperature of the gravity loss, in squared embedding units")
    contrast_tau: float = Field(0.1, gt=0, description="temperature of the supervised contrastive control")
    delta: float = Field(5.0, ge=0, description="half width of the slab, in units of the discriminant margin")
    quantile: float = Field(0.5, ge=0, le=1, description="share of training nodes in the slab, for slab=centred")
    knn: int = Field(5, ge=1, description="neighbours of the shift score")
    threshold: float = Field(0.5, ge=0, lt=1, description="share of foreign neighbours above which a node is hard")
    batch: int = Field(256, ge=1, description="hard nodes per step")
    slab: Literal["paper", "centred"] = Field("paper", description="uncentred as in the paper, or on the decision hyperplane")
    scale: Literal["none", "grad", "update"] = Field("update", description="what limits the step")
    alpha: float = Field(1.0, gt=0, description="total displacement aimed at, for scale=grad")
    max_shift: float = Field(0.01, gt=0, description="largest mean displacement relative to the mean norm, for scale=update")
    tokens: Literal["single", "views"] = Field("single", description="one token per node, or one per view")
    heads: int = Field(2, ge=1, description="attention heads")


class Decoder(Strict):
    """The Chebyshev decoder."""

    hidden: int = Field(64, ge=1, description="hidden units")
    lr: float = Field(0.01, gt=0, description="Adam's learning rate")
    weight_decay: float = Field(5e-4, ge=0, description="L2 penalty")
    dropout: float = Field(0.5, ge=0, lt=1, description="on hidden units")
    epochs: int = Field(100, ge=1, description="epochs, each with one shaping step")
    decay_every: int = Field(100, ge=1, description="epochs after which the learning rate drops tenfold")
    eval_every: int = Field(3, ge=1, description="epochs between two looks at the validation nodes")
    legacy_head: bool = Field(False, description="batch norm, ReLU and dropout after the last layer, as released")


class Baselines(Strict):
    """Every baseline is tried with each width, and the better on validation nodes is kept, split by split."""

    epochs: int = Field(200, ge=1, description="epochs")
    hidden: list[int] = Field(
        [16, 64], min_length=1, description="widths tried; SGC, which has none, tries as many weight decays"
    )
    lr: float = Field(0.01, gt=0, description="Adam's learning rate")
    weight_decay: float = Field(5e-4, ge=0, description="L2 penalty")
    dropout: float = Field(0.5, ge=0, lt=1, description="on inputs and hidden units")
    eval_every: int = Field(3, ge=1, description="epochs between two looks at the validation nodes")


class Links(Strict):
    """Link prediction: edges 85/5/10, message passing on training edges only."""

    datasets: list[str] = Field(["cora"], description="graphs")
    splits: int = Field(3, ge=0, description="splits, from seed 0")
    epochs: int = Field(100, ge=1, description="epochs of encoders, of decoders and of the GCN")
    dim: int = Field(32, ge=1, description="outputs per node of the decoder")
    hidden: int = Field(64, ge=1, description="hidden units of the decoder and of the pair scorer")
    eval_every: int = Field(5, ge=1, description="epochs between two looks at the validation edges")


class Params(StageParams):
    datasets: list[str] | None = Field(None, description="graphs to train on; null: all that the stage data prepared")
    splits: int | None = Field(None, ge=1, description="splits to train on; null: all that the stage data prepared")
    methods: list[str] | None = Field(None, description="methods to train; null: all")
    ablation_splits: int = Field(3, ge=0, description="splits on which the ablations run, from seed 0")
    norm_target: float = Field(5.66, gt=0, description="mean row norm that the frozen embeddings are scaled to")
    encoder: Encoder = Field(Encoder(), description="two-view encoder")
    shape: Shape = Field(Shape(), description="shaping")
    decoder: Decoder = Field(Decoder(), description="decoder")
    baselines: Baselines = Field(Baselines(), description="baselines")
    link_prediction: Links = Field(Links(), description="link prediction")


class Job(NamedTuple):
    """All methods of one split."""

    p: Params
    data: Path
    dataset: str
    seed: int
    task: Literal["nodes", "links"]
    methods: tuple[str, ...]


class Problem(NamedTuple):
    """A graph with the labels that training may see; those of test nodes are blanked to -1."""

    x: torch.Tensor
    y: torch.Tensor
    graph: SparseGraph
    train: torch.Tensor
    val: torch.Tensor
    test: torch.Tensor
    classes: int


def problem_of(job: Job) -> Problem:
    stored = read_graph(job.data, job.dataset, job.seed)
    part = torch.from_numpy(read_parts(job.data)[job.dataset, job.seed].astype(np.int64))
    y = torch.from_numpy(stored.y).clone()
    classes = int(y[part == 0].max()) + 1
    y[part == 2] = -1
    graph = SparseGraph(torch.from_numpy(stored.edge_index), y.numel())
    return Problem(torch.from_numpy(stored.x), y, graph, part == 0, part == 1, part == 2, classes)


def train_encoder(job: Job, problem: Problem) -> tuple[TwoViewEncoder, torch.Tensor, float]:
    """Frozen encoder, its scaled embeddings (N, V * hidden) and the scale."""
    e, nets = job.p.encoder, []
    for kind in VIEWS[job.dataset]:
        torch.manual_seed(job.seed)
        heads = TwoViewEncoder.heads(e.hidden)
        net = TwoLayerNet(kind, problem.x.shape[1], e.hidden, problem.classes, e.dropout, heads)
        options = {"epochs": e.epochs, "lr": e.lr, "weight_decay": e.weight_decay}
        fit_nodes(net, problem.x, problem.graph, problem.y, problem.train, problem.val, **options)
        nets.append(net)
    return cut(job, nets, problem.x, problem.graph)


def cut(
    job: Job, nets: list[torch.nn.Module], x: torch.Tensor, graph: SparseGraph
) -> tuple[TwoViewEncoder, torch.Tensor, float]:
    encoder = TwoViewEncoder.cut_from(nets)
    with torch.no_grad():
        h, scale = rescale(encoder(x, graph), job.p.norm_target)
    return encoder, h, scale


def train_baseline(job: Job, problem: Problem, kind: str, widths: list[int]) -> tuple[Fit, str]:
    """The best of the settings by validation accuracy, and which it was."""
    b, best = job.p.baselines, None
    for position, hidden in enumerate(widths):
        torch.manual_seed(job.seed)
        decay = b.weight_decay / 10**position if kind == "sgc" else b.weight_decay
        features, classes = problem.x.shape[1], problem.classes
        if kind == "sgc":
            net, setting = OneLayerNet(kind, features, classes), f"weight_decay={decay:g}"
        else:
            net, setting = TwoLayerNet(kind, features, hidden, classes, b.dropout), f"hidden={hidden}"
        options = {"epochs": b.epochs, "lr": b.lr, "weight_decay": decay, "eval_every": b.eval_every}
        fit = fit_nodes(net, problem.x, problem.graph, problem.y, problem.train, problem.val, **options)
        if best is None or fit.val_accuracy > best[0].val_accuracy:
            best = fit, setting
    return best


def shaper_of(job: Job, h: torch.Tensor, problem: Problem, changes: dict[str, Any]) -> Shaper:
    options = job.p.shape.model_dump() | changes
    views = len(VIEWS[job.dataset])
    return Shaper(h, problem.y, problem.train, problem.classes, n_views=views, seed=job.seed, **options)


def train_arm(
    job: Job,
    problem: Problem,
    h: torch.Tensor,
    changes: dict[str, Any],
    on_evaluation: Callable[[int, float], None] | None = None,
) -> tuple[Fit, torch.Tensor]:
    """Shaping and decoder, the same decoder seed for every arm of a split; and the hard nodes at the chosen epoch."""
    d = job.p.decoder
    shaper = shaper_of(job, h, problem, changes)
    torch.manual_seed(job.seed)
    decoder = ChebDecoder(h.shape[1], problem.classes, d.hidden, dropout=d.dropout, legacy_head=d.legacy_head)
    options = d.model_dump(include={"epochs", "lr", "weight_decay", "decay_every", "eval_every"})
    fit = fit_nodes(
        decoder, h, problem.graph, problem.y, problem.train, problem.val, shaper=shaper, on_evaluation=on_evaluation, **options
    )
    shaper.z = fit.z
    return fit, shaper.detect().nodes


def tell_sweep(epoch: int, accuracy: float) -> None:
    """A sweep compares the latest validation accuracy of each split, and may end the trial here."""
    track.step(epoch, validation_accuracy=100 * accuracy)


def run_nodes(job: Job) -> dict[str, Any]:
    """Every method on one split; the tables' rows and the checkpoint's tensors."""
    problem = problem_of(job)
    encoder, h, scale = train_encoder(job, problem)
    tensors = {f"encoder/{name}": value for name, value in encoder.state_dict().items()} | {
        "h": h,
        "scale": torch.tensor(scale),
    }
    tables: dict[str, list[pd.DataFrame]] = {"runs": [], "history": [], "boundary": [], "probabilities": []}
    nodes = problem.test.nonzero().flatten()
    for method in job.methods:
        if method in BASELINES:
            fit, setting = train_baseline(job, problem, BASELINES[method], job.p.baselines.hidden)
        elif method in UNTUNED:
            kind, width = UNTUNED[method]
            fit, setting = train_baseline(job, problem, kind, [width])
        else:
            changes = ARMS.get(method, ABLATIONS.get(method))
            fit, hard = train_arm(job, problem, h, changes, tell_sweep if method == "BES" else None)
            setting = " ".join(f"{key}={value}" for key, value in sorted(changes.items()))
            tensors |= {f"{method}/phi/{name}": value for name, value in fit.phi.items()}
            if method in ARMS:
                tensors |= {f"{method}/z": fit.z, f"{method}/hard": hard}
        tensors |= {f"{method}/net/{name}": value for name, value in fit.state.items()}
        probabilities = torch.softmax(fit.scores[nodes], dim=1).numpy()
        tables["probabilities"].append(
            pd.DataFrame({"method": method, "node": nodes.numpy(), "probabilities": list(probabilities)})
        )
        add_run(tables, method, fit, setting)
    return {
        "tables": {name: pd.concat(frames, ignore_index=True) for name, frames in tables.items() if frames},
        "tensors": tensors,
    }


def add_run(tables: dict[str, list[pd.DataFrame]], method: str, fit: Fit, setting: str) -> None:
    row = {"method": method, "setting": setting, "epoch": fit.epoch, "validation_accuracy": fit.val_accuracy}
    tables["runs"].append(pd.DataFrame([row]))
    history = pd.DataFrame(fit.curve, columns=["epoch", "validation_accuracy", "loss"])
    tables["history"].append(history.assign(method=method))
    if fit.records:
        records = pd.DataFrame(fit.records).rename(columns={"loss": "gravity"})
        tables["boundary"].append(records.assign(epoch=np.arange(1, len(records) + 1), method=method))


def run_links(job: Job) -> dict[str, Any]:
    """Link prediction on one split of the edges; node labels come from the training nodes of the same seed."""
    whole, q = problem_of(job), job.p.link_prediction
    split = split_links(whole.graph.edge_index, whole.y.numel(), seed=job.seed)
    problem = whole._replace(graph=SparseGraph(torch.cat([split.train, split.train.flip(0)], dim=1), whole.y.numel()))
    options = {"epochs": q.epochs, "seed": job.seed, "eval_every": q.eval_every}
    tables: dict[str, list[pd.DataFrame]] = {"runs": [], "history": [], "boundary": [], "links": []}
    tensors, embeddings = {}, {}
    pairs = torch.cat([split.test, split.test_negative], dim=1).numpy()
    is_edge = np.arange(pairs.shape[1]) < split.test.shape[1]
    for method in job.methods:
        arm, task = LINK_ARMS[method]
        if arm is None:
            fit, setting = train_link_gcn(job, problem, split, options)
        else:
            if task not in embeddings:
                embeddings[task] = link_embeddings(job, problem, split, task, options)
            h, d = embeddings[task], job.p.decoder
            shaper = shaper_of(job, h, problem, ARMS[arm])
            torch.manual_seed(job.seed)
            net = LinkNet(ChebDecoder(h.shape[1], q.dim, q.hidden, dropout=d.dropout), LinkMLP(q.dim, q.hidden))
            fit = fit_links(net, h, problem.graph, split, lr=d.lr, weight_decay=d.weight_decay, shaper=shaper, **options)
            setting = f"encoders trained for {task}"
            tensors |= {f"{method}/phi/{name}": value for name, value in fit.phi.items()}
        tensors |= {f"{method}/net/{name}": value for name, value in fit.state.items()}
        columns = {"u": pairs[0], "v": pairs[1], "is_edge": is_edge, "probability": torch.sigmoid(fit.scores).numpy()}
        tables["links"].append(pd.DataFrame({"method": method, **columns}))
        add_run(tables, method, fit, setting)
    return {
        "tables": {name: pd.concat(frames, ignore_index=True) for name, frames in tables.items() if frames},
        "tensors": tensors,
    }


def link_embeddings(job: Job, problem: Problem, split, task: str, options: dict[str, int]) -> torch.Tensor:
    """Frozen embeddings of encoders trained for "labels" or for "links" (two layers, inner product), on training edges."""
    if task == "labels":
        return train_encoder(job, problem)[1]
    e, nets = job.p.encoder, []
    for kind in VIEWS[job.dataset]:
        torch.manual_seed(job.seed)
        net = TwoLayerNet(kind, problem.x.shape[1], e.hidden, e.hidden, e.dropout, TwoViewEncoder.heads(e.hidden))
        fit_links(
            LinkNet(net, InnerProduct()), problem.x, problem.graph, split, lr=e.lr, weight_decay=e.weight_decay, **options
        )
        nets.append(net)
    return cut(job, nets, problem.x, problem.graph)[1]


def train_link_gcn(job: Job, problem: Problem, split, options: dict[str, int]) -> tuple[Fit, str]:
    """A GCN end to end, scored by inner product or by the methods' own MLP: the better on validation edges."""
    b, q, best = job.p.baselines, job.p.link_prediction, None
    for name, scorer in (("inner product", InnerProduct), ("MLP", lambda: LinkMLP(q.dim, q.hidden))):
        torch.manual_seed(job.seed)
        net = LinkNet(TwoLayerNet("gcn", problem.x.shape[1], q.hidden, q.dim, b.dropout), scorer())
        fit = fit_links(net, problem.x, problem.graph, split, lr=b.lr, weight_decay=b.weight_decay, **options)
        if best is None or fit.val_accuracy > best[0].val_accuracy:
            best = fit, name
    return best


def run_job(job: Job) -> dict[str, Any]:
    return run_nodes(job) if job.task == "nodes" else run_links(job)


def jobs_of(p: Params, data: Path) -> list[Job]:
    """One job per data set and split; ValueError for a data set, split or method that does not exist."""
    prepared = list(read_parts(data))
    datasets = list(dict.fromkeys(dataset for dataset, _ in prepared)) if p.datasets is None else p.datasets
    for dataset in [*datasets, *(p.link_prediction.datasets if p.link_prediction.splits else [])]:
        if dataset not in {name for name, _ in prepared}:
            raise ValueError(f"train.datasets names {dataset!r}, which the stage data did not prepare")
    for method in p.methods or []:
        if method not in METHODS:
            raise ValueError(f"train.methods names {method!r}; the methods are {', '.join(METHODS)}")
    seeds = [seed for name, seed in prepared if name == datasets[0]]
    wanted = max(p.splits or 0, p.link_prediction.splits)
    if wanted > len(seeds):
        raise ValueError(f"{wanted} splits are wanted, but the stage data prepared {len(seeds)}")
    chosen = [method for method in METHODS if p.methods is None or method in p.methods]
    jobs = []
    for dataset in datasets:
        for seed in seeds[: p.splits]:
            methods = tuple(method for method in chosen if method not in ABLATIONS or seed < p.ablation_splits)
            jobs.append(Job(p, data, dataset, seed, "nodes", methods))
    for dataset in p.link_prediction.datasets:
        jobs += [Job(p, data, dataset, seed, "links", tuple(LINK_ARMS)) for seed in seeds[: p.link_prediction.splits]]
    return jobs


def log(job: Job, result: dict[str, Any]) -> None:
    """One nested run per method and split."""
    runs, history = result["tables"]["runs"], result["tables"]["history"]
    for row in runs.itertuples():
        curve = history[history["method"] == row.method]
        track.run(
            f"{job.dataset} {row.method} seed {job.seed}" + (" links" if job.task == "links" else ""),
            params={"dataset": job.dataset, "method": row.method, "seed": job.seed, "task": job.task, "setting": row.setting},
            metrics={"validation_accuracy": 100 * row.validation_accuracy, "best_epoch": row.epoch},
            curves={name: curve[name].tolist() for name in ("validation_accuracy", "loss")},
            steps=curve["epoch"].tolist(),
        )


def train(p: Params, data: Path, out: Path) -> None:
    """Writes checkpoints/*.safetensors and the tables runs, history, boundary, probabilities and links (.parquet), parameters.json."""
    (out / "checkpoints").mkdir()
    write_parameters(out, p)
    tables: dict[str, list[pd.DataFrame]] = {}

    def keep(job: Job, result: dict[str, Any]) -> None:
        name = f"{job.dataset}-{job.seed}" + ("-links" if job.task == "links" else "")
        tensors = {key: value.detach().contiguous().clone() for key, value in result["tensors"].items()}
        save_file(tensors, out / "checkpoints" / f"{name}.safetensors")
        for table, frame in result["tables"].items():
            frame.insert(0, "dataset", job.dataset)
            frame.insert(1, "seed", job.seed)
            frame.insert(2, "task", job.task)
            tables.setdefault(table, []).append(frame)
        log(job, result)

    fanout(run_job, jobs_of(p, data), label="splits", threads=p.threads, seed=p.seed, on_result=keep)
    for name, frames in sorted(tables.items()):
        pd.concat(frames, ignore_index=True).to_parquet(out / f"{name}.parquet", index=False)

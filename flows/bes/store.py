"""What the stage `data` leaves for the others: graphs and splits, one reader and one writer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from pydantic import BaseModel


class StoredGraph(NamedTuple):
    """Arrays of one graph: x (N, F) float32, y (N,) int64, edge_index (2, E) int64, is_boundary (N,) bool or None."""

    x: np.ndarray
    y: np.ndarray
    edge_index: np.ndarray
    is_boundary: np.ndarray | None


def graph_path(folder: Path, dataset: str, seed: int) -> Path:
    """The planted graph is drawn anew for each seed, a real one is what it is."""
    return folder / dataset / (f"graph-{seed}.npz" if dataset == "csbm" else "graph.npz")


def write_graph(path: Path, graph: StoredGraph) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **{name: value for name, value in graph._asdict().items() if value is not None})


def read_graph(folder: Path, dataset: str, seed: int) -> StoredGraph:
    with np.load(graph_path(folder, dataset, seed), allow_pickle=False) as stored:
        return StoredGraph(stored["x"], stored["y"], stored["edge_index"], stored.get("is_boundary"))


def write_splits(folder: Path, frame: pd.DataFrame) -> None:
    """Columns dataset, seed, node, part (0 train, 1 val, 2 test)."""
    frame.to_parquet(folder / "splits.parquet", index=False)


def read_parts(folder: Path) -> dict[tuple[str, int], np.ndarray]:
    """(data set, seed) -> part of each node, (N,) int8, in the order of data sets and seeds."""
    frame = pd.read_parquet(folder / "splits.parquet")
    return {
        (str(dataset), int(seed)): group.sort_values("node")["part"].to_numpy()
        for (dataset, seed), group in frame.groupby(["dataset", "seed"], sort=False)
    }


def write_parameters(folder: Path, p: BaseModel) -> None:
    """What the stage ran with, for the report."""
    (folder / "parameters.json").write_text(json.dumps(p.model_dump(), indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read_parameters(folder: Path) -> dict[str, object]:
    return json.loads((folder / "parameters.json").read_text(encoding="utf-8"))

"""Real graphs: Cora as a wheel ships it, Planetoid and WikiCS through PyTorch Geometric; features reduced if wanted.

Each loader returns `torch_geometric.data.Data` with x (N, F) float32, y (N,) int64, edge_index (2, E) int64, both directions.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.decomposition import TruncatedSVD
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.datasets import Planetoid, WikiCS

from components.graphs.checks import undirected

CORA_FILES = {
    "cora_nodes.parquet.gzip": "c54c0625af98570287dcb25e9f29e0b229948352a8de1dbf202fa39f36bfe591",
    "cora_rels.parquet.gzip": "e0059f81e607c0262e93fbe3c77950b06098dab167f0071cba97a82c9440ca01",
}


def cora_from_wheel(path: Path, checksums: dict[str, str] = CORA_FILES) -> Data:
    """Cora out of the two parquet files of the `graphdatascience` wheel (Apache-2.0).

    Parameters
    ----------
    path : folder with cora_nodes.parquet.gzip (nodeId, subject 0..6, features of 1433 zeros and ones) and
        cora_rels.parquet.gzip (sourceNodeId, targetNodeId).
    checksums : SHA-256 by file name; default those of the wheel 2.2.

    Returns
    -------
    2708 nodes, 1433 binary features, 5278 undirected edges; nodes in the file's order.

    Raises
    ------
    FileNotFoundError : a file is missing.   RuntimeError : a file's checksum differs (names both).
    """
    for name, expected in checksums.items():
        file = Path(path) / name
        if not file.is_file():
            raise FileNotFoundError(f"Cora needs {name} in {path}, there is no such file")
        found = hashlib.sha256(file.read_bytes()).hexdigest()
        if found != expected:
            raise RuntimeError(f"{name} has SHA-256 {found}, expected {expected}: it is not the file of the wheel")
    nodes_file, links_file = checksums
    nodes = pd.read_parquet(Path(path) / nodes_file)
    links = pd.read_parquet(Path(path) / links_file)
    position = pd.Series(np.arange(len(nodes)), index=nodes["nodeId"])
    cited = np.stack([position[links[column]].to_numpy() for column in ("sourceNodeId", "targetNodeId")])
    # A citation has a direction; its graph is taken as undirected, as in every benchmark on Cora.
    edges = torch.from_numpy(np.concatenate([cited, cited[::-1]], axis=1))
    return Data(
        x=torch.from_numpy(np.stack(nodes["features"].to_list()).astype(np.float32)),
        y=torch.from_numpy(nodes["subject"].to_numpy(dtype=np.int64, copy=True)),
        edge_index=undirected(edges, len(nodes)),
    )


def planetoid(name: str, root: Path) -> Data:
    """Cora, CiteSeer or PubMed through PyG's loader, which downloads into `root`. ValueError for another name."""
    if name not in ("Cora", "CiteSeer", "PubMed"):
        raise ValueError(f"Planetoid has Cora, CiteSeer and PubMed, got {name!r}")
    return _plain(Planetoid(str(root), name)[0])


def wikics(root: Path) -> Data:
    """WikiCS through PyG's loader; keeps its 20 official splits as train_mask and val_mask (N, 20), test_mask (N,)."""
    full = WikiCS(str(root), is_undirected=True)[0]
    data = _plain(full)
    data.train_mask, data.val_mask, data.test_mask = full.train_mask, full.val_mask, full.test_mask
    return data


def _plain(data: Data) -> Data:
    return Data(x=data.x.float(), y=data.y.long(), edge_index=undirected(data.edge_index, data.num_nodes))


def reduce_features(x: Tensor, components: int | None = 128, seed: int = 0) -> Tensor:
    """Rows scaled to sum 1, projected on the leading singular vectors, divided by the global standard deviation.

    Parameters
    ----------
    x : (N, F) non-negative.   components : at most F; default 128; None keeps all features (rows scaled to sum 1 only).
    seed : of the randomised decomposition.

    Returns
    -------
    (N, components) float32.

    Raises
    ------
    ValueError : negative features, or components not in [1, F].
    """
    if (x < 0).any():
        raise ValueError("features must not be negative to be scaled to row sum 1")
    scaled = x / x.sum(1, keepdim=True).clamp(min=1e-12)  # a node without any word stays zero
    if components is None:
        return scaled.float()
    if not 1 <= components <= x.shape[1]:
        raise ValueError(f"components must lie in [1, {x.shape[1]}], got {components}")
    reduced = TruncatedSVD(components, random_state=seed).fit_transform(scaled.double().numpy())
    return torch.from_numpy(reduced / reduced.std()).float()


def edge_homophily(edge_index: Tensor, y: Tensor) -> float:
    """Share of edges whose ends have the same label."""
    if not edge_index.shape[1]:
        raise ValueError("homophily of a graph without edges is undefined")
    return (y[edge_index[0]] == y[edge_index[1]]).double().mean().item()

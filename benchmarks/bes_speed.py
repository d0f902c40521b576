"""Same-run ratios for boundary embedding shaping: `python -m benchmarks.bes_speed` writes its section of RESULTS.md.

CPU time per call, median over repetitions, one thread; sizes are Cora's (2708 nodes, 10556 directed edges).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch_geometric.nn import ChebConv, GCNConv

from benchmarks.results import write_section
from components.graphs.bes import class_centroids, slab_margins
from components.graphs.layers import ChebLayer, Dropout, GCNLayer
from components.graphs.propagation import SparseGraph
from kernels.boundary_knn import boundary_knn, boundary_knn_reference

NODES, EDGES, CLASSES, WIDTH = 2708, 5278, 7, 32


def milliseconds(function: Callable[[], object], repetitions: int = 15) -> float:
    function()
    times = []
    for _ in range(repetitions):
        start = time.process_time()
        function()
        times.append(1e3 * (time.process_time() - start))
    return statistics.median(times)


def train_step(layer: torch.nn.Module, x: torch.Tensor, graph) -> Callable[[], None]:
    def step() -> None:
        layer.zero_grad(set_to_none=True)
        layer(x, graph).sum().backward()

    return step


def slab_by_node(z: torch.Tensor, y: torch.Tensor, centroids: torch.Tensor, delta: float) -> list[int]:
    """The slab test as it reads: for each node, for each other class, with the inverse covariance made once."""
    precision = torch.linalg.inv(torch.cov(z.T) + 1e-4 * torch.eye(z.shape[1], dtype=z.dtype))
    inside = []
    for i in range(z.shape[0]):
        for n in range(centroids.shape[0]):
            if n != y[i] and abs((centroids[y[i]] - centroids[n]) @ precision @ z[i]) <= delta:
                inside.append(i)
                break
    return inside


def slab_at_once(z: torch.Tensor, y: torch.Tensor, centroids: torch.Tensor, delta: float) -> list[int]:
    return (slab_margins(z, y, centroids).abs().min(1).values <= delta).nonzero().flatten().tolist()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    edges = torch.randint(0, NODES, (2, EDGES))
    graph = SparseGraph(torch.cat([edges, edges.flip(0)], dim=1), NODES)
    y = torch.arange(1600) % CLASSES
    z = 2 * torch.randn(CLASSES, WIDTH)[y] + torch.randn(1600, WIDTH)
    centroids = class_centroids(z, y, CLASSES)
    if slab_at_once(z, y, centroids, 5.0) != slab_by_node(z.double(), y, centroids.double(), 5.0):
        raise AssertionError("the two slab tests disagree")

    rows = []
    for features, outputs in ((128, 128), (128, 16)):
        x = torch.randn(NODES, features, requires_grad=True)
        rows.append(
            (
                f"GCN layer {features} -> {outputs}, forward and backward: edge scatter / CSR",
                milliseconds(train_step(GCNConv(features, outputs), x, graph.edge_index)),
                milliseconds(train_step(GCNLayer(features, outputs), x, graph)),
            )
        )
    x = torch.randn(NODES, 128)
    rows.append(
        (
            "Cheb layer 128 -> 16, forward and backward: edge scatter / CSR",
            milliseconds(train_step(ChebConv(128, 16, K=3), x, graph.edge_index)),
            milliseconds(train_step(ChebLayer(128, 16), x, graph)),
        )
    )
    source, target = graph.edge_index
    rows.append(
        (
            "propagation alone, F = 128: gather and scatter / CSR",
            milliseconds(lambda: torch.zeros_like(x).index_add_(0, target, x[source])),
            milliseconds(lambda: graph.adjacency(x)),
        )
    )
    rows.append(
        (
            "slab test, 1600 nodes, 7 classes: loop over nodes / all pairs at once",
            milliseconds(lambda: slab_by_node(z, y, centroids, 5.0), 3),
            milliseconds(lambda: slab_at_once(z, y, centroids, 5.0)),
        )
    )
    rows.append(
        (
            "5 nearest of 1600 candidates: cdist and topk / behind a matrix product",
            milliseconds(lambda: boundary_knn_reference(z, y)),
            milliseconds(lambda: boundary_knn(z, y)),
        )
    )
    rows.append(
        (
            "dropout on 2708 x 128: torch.nn.Dropout / ours",
            milliseconds(lambda: torch.nn.functional.dropout(x)),
            milliseconds(lambda: Dropout().train()(x)),
        )
    )
    table = [(name, f"{first:.2f}", f"{second:.2f}", f"{first / second:.1f}") for name, first, second in rows]
    columns = ("first / second", "first, ms of CPU", "second, ms of CPU", "times faster")
    write_section("Boundary embedding shaping", "python -m benchmarks.bes_speed", columns, table)


if __name__ == "__main__":
    main()

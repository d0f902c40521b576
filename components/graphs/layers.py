"""Graph layers over a `SparseGraph`: GCN, SGC, SSGC, Chebyshev, GraphSAGE, GraphConv, GAT, GATv2, and none (MLP).

Each maps (N, F_in), graph -> (N, F_out). A propagation P and a projection W commute, P (X W) = (P X) W, so every layer
propagates on the narrower side. Weights are Glorot uniform, biases zero, as in the cited works.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv

from components.graphs.propagation import Propagator, SparseGraph


class Dropout(nn.Module):
    """x m / (1 - p), the mask m Bernoulli(1 - p) per entry; the identity in eval mode.

    As `torch.nn.Dropout`, but the mask is a comparison of uniform numbers: on the CPU torch's Bernoulli sampler takes four times
    as long, more than the layer behind it. p in [0, 1), default 0.5; ValueError otherwise.
    """

    def __init__(self, p: float = 0.5):
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {p}")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return x * (torch.rand_like(x) >= self.p) * (1 / (1 - self.p))

    def extra_repr(self) -> str:
        return f"p={self.p}"


class _Linear(nn.Module):
    """X W + b with Glorot weights (F_in, F_out)."""

    def __init__(self, in_dim: int, out_dim: int, bias: bool = True):
        super().__init__()
        if in_dim < 1 or out_dim < 1:
            raise ValueError(f"a layer needs at least 1 input and 1 output, got {in_dim} and {out_dim}")
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(in_dim, out_dim)))
        self.bias = nn.Parameter(torch.zeros(out_dim)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight if self.bias is None else torch.addmm(self.bias, x, self.weight)

    def extra_repr(self) -> str:
        return "{}, {}".format(*self.weight.shape)


def _propagate_and_project(propagate: Callable[[Tensor], Tensor], project: _Linear, x: Tensor) -> Tensor:
    """P X W, propagating on the narrower of input and output; the bias comes last either way."""
    narrow_output = project.weight.shape[1] < project.weight.shape[0]
    result = propagate(x @ project.weight) if narrow_output else propagate(x) @ project.weight
    return result if project.bias is None else result + project.bias


class DenseLayer(nn.Module):
    """X W + b: the layer of an MLP, which does not look at the graph."""

    def __init__(self, in_dim: int, out_dim: int):
        super().__init__()
        self.project = _Linear(in_dim, out_dim)

    def forward(self, x: Tensor, graph: SparseGraph) -> Tensor:
        return self.project(x)


class GCNLayer(nn.Module):
    """P X W + b with the renormalised adjacency P (Kipf & Welling, "Semi-supervised classification with graph convolutional networks")."""

    def __init__(self, in_dim: int, out_dim: int):
        super().__init__()
        self.project = _Linear(in_dim, out_dim)

    def forward(self, x: Tensor, graph: SparseGraph) -> Tensor:
        return _propagate_and_project(graph.renormalised, self.project, x)


class SGCLayer(nn.Module):
    """P^K X W + b (Wu et al., "Simplifying graph convolutional networks"); K = `hops`, default 2."""

    def __init__(self, in_dim: int, out_dim: int, hops: int = 2):
        super().__init__()
        if hops < 1:
            raise ValueError(f"hops must be at least 1, got {hops}")
        self.project, self.hops = _Linear(in_dim, out_dim), hops

    def forward(self, x: Tensor, graph: SparseGraph) -> Tensor:
        def propagate(signal: Tensor) -> Tensor:
            for _ in range(self.hops):
                signal = graph.renormalised(signal)
            return signal

        return _propagate_and_project(propagate, self.project, x)


class SSGCLayer(nn.Module):
    """(1/K) sum_{k=1..K} ((1 - alpha) P^k X + alpha X) W + b (Zhu & Koniusz, "Simple spectral graph convolution").

    alpha (default 0.1) keeps the node's own features, K = `hops` (default 16).
    """

    def __init__(self, in_dim: int, out_dim: int, alpha: float = 0.1, hops: int = 16):
        super().__init__()
        if hops < 1 or not 0 <= alpha <= 1:
            raise ValueError(f"hops must be at least 1 and alpha in [0, 1], got {hops} and {alpha}")
        self.project, self.alpha, self.hops = _Linear(in_dim, out_dim), alpha, hops

    def forward(self, x: Tensor, graph: SparseGraph) -> Tensor:
        def propagate(signal: Tensor) -> Tensor:
            smoothed, total = signal, torch.zeros_like(signal)
            for _ in range(self.hops):
                smoothed = graph.renormalised(smoothed)
                total = total + smoothed
            return (1 - self.alpha) / self.hops * total + self.alpha * signal

        return _propagate_and_project(propagate, self.project, x)


class ChebLayer(nn.Module):
    """sum_{k<K} T_k(L~) X W_k + b, T_k the Chebyshev polynomials (Defferrard et al., "Convolutional neural networks on graphs
    with fast localized spectral filtering"); `order` K, default 3."""

    def __init__(self, in_dim: int, out_dim: int, order: int = 3):
        super().__init__()
        if order < 1:
            raise ValueError(f"order must be at least 1, got {order}")
        self.projections = nn.ModuleList(_Linear(in_dim, out_dim, bias=False) for _ in range(order))
        self.bias = nn.Parameter(torch.zeros(out_dim))

    def forward(self, x: Tensor, graph: SparseGraph) -> Tensor:
        weights = [layer.weight for layer in self.projections]
        if weights[0].shape[0] <= weights[0].shape[1]:
            return _chebyshev_of_input(graph.chebyshev, x, weights) + self.bias
        return _clenshaw([x @ weight for weight in weights], graph.chebyshev) + self.bias


def _chebyshev_of_input(laplacian: Propagator, x: Tensor, weights: list[Tensor]) -> Tensor:
    """Recurrence T_k = 2 L T_{k-1} - T_{k-2} on the inputs."""
    previous, current, result = x, None, x @ weights[0]
    for weight in weights[1:]:
        following = laplacian(x) if current is None else 2 * laplacian(current) - previous
        if current is not None:
            previous = current
        current = following
        result = result + current @ weight
    return result


def _clenshaw(coefficients: list[Tensor], laplacian: Propagator) -> Tensor:
    """sum_k T_k(L) c_k by Clenshaw's backward recurrence b_k = c_k + 2 L b_{k+1} - b_{k+2}: products with c's width only."""
    ahead, further = None, None
    for coefficient in reversed(coefficients[1:]):
        here = coefficient if ahead is None else coefficient + 2 * laplacian(ahead)
        here = here if further is None else here - further
        ahead, further = here, ahead
    if ahead is None:
        return coefficients[0]
    result = coefficients[0] + laplacian(ahead)
    return result if further is None else result - further


class SAGELayer(nn.Module):
    """mean of the neighbours W_1 + X W_2 + b (Hamilton et al., "Inductive representation learning on large graphs")."""

    def __init__(self, in_dim: int, out_dim: int):
        super().__init__()
        self.neighbours, self.own = _Linear(in_dim, out_dim, bias=False), _Linear(in_dim, out_dim)

    def forward(self, x: Tensor, graph: SparseGraph) -> Tensor:
        return _propagate_and_project(graph.mean, self.neighbours, x) + self.own(x)


class GraphConvLayer(nn.Module):
    """sum of the neighbours W_1 + X W_2 + b (Morris et al., "Weisfeiler and Leman go neural")."""

    def __init__(self, in_dim: int, out_dim: int):
        super().__init__()
        self.neighbours, self.own = _Linear(in_dim, out_dim, bias=False), _Linear(in_dim, out_dim)

    def forward(self, x: Tensor, graph: SparseGraph) -> Tensor:
        return _propagate_and_project(graph.adjacency, self.neighbours, x) + self.own(x)


class AttentionLayer(nn.Module):
    """PyG's GAT (Velickovic et al.) or GATv2 (Brody et al.) with `heads` concatenated; out_dim % heads must be 0."""

    def __init__(self, in_dim: int, out_dim: int, heads: int, dropout: float = 0.0, v2: bool = False):
        super().__init__()
        if heads < 1 or out_dim % heads:
            raise ValueError(f"out_dim must be a multiple of heads, got {out_dim} and {heads}")
        convolution = GATv2Conv if v2 else GATConv
        self.attention = convolution(in_dim, out_dim // heads, heads=heads, dropout=dropout)

    def forward(self, x: Tensor, graph: SparseGraph) -> Tensor:
        return self.attention(x, graph.edge_index)


KINDS = ("gcn", "gat", "gatv2", "sage", "sgc", "ssgc", "cheb", "graphconv", "mlp")


def graph_layer(kind: str, in_dim: int, out_dim: int, *, heads: int = 1, dropout: float = 0.0) -> nn.Module:
    """The layer of that kind, (N, in_dim), graph -> (N, out_dim).

    `kind` is one of KINDS; `heads` and `dropout` (of attention weights) are used by "gat" and "gatv2" alone.
    Raises ValueError for another kind, naming the known ones.
    """
    plain = {
        "gcn": GCNLayer,
        "sage": SAGELayer,
        "sgc": SGCLayer,
        "ssgc": SSGCLayer,
        "cheb": ChebLayer,
        "graphconv": GraphConvLayer,
        "mlp": DenseLayer,
    }
    if kind in plain:
        return plain[kind](in_dim, out_dim)
    if kind in ("gat", "gatv2"):
        return AttentionLayer(in_dim, out_dim, heads, dropout, v2=kind == "gatv2")
    raise ValueError(f"unknown layer kind {kind!r}; known are {', '.join(KINDS)}")

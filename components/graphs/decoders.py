"""Decoders over (shaped) embeddings: a Chebyshev network for nodes, and a scorer of node pairs for links.

Source: Chen et al., "Boundary Embedding Shaping with Adaptive Contrastive Learning for Graph Structural Disentanglement".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from components.graphs.layers import ChebLayer, Dropout
from components.graphs.propagation import SparseGraph


class ChebDecoder(nn.Module):
    """Cheb, batch norm, ReLU, dropout, Cheb.

    Parameters
    ----------
    in_dim, out_dim : widths.   hidden : default 64.   order : Chebyshev K, default 3.   dropout : in [0, 1), default 0.5.
    legacy_head : also batch norm, ReLU and dropout after the last layer, as released; ReLU bounds the logits from below by
        zero, so the default is False.

    Shapes: (N, in_dim), graph -> (N, out_dim). Evaluate in eval mode: batch norm.
    """

    def __init__(
        self, in_dim: int, out_dim: int, hidden: int = 64, order: int = 3, dropout: float = 0.5, legacy_head: bool = False
    ):
        super().__init__()
        self.first, self.norm = ChebLayer(in_dim, hidden, order), nn.BatchNorm1d(hidden)
        self.second, self.dropout = ChebLayer(hidden, out_dim, order), Dropout(dropout)
        self.head = nn.Sequential(nn.BatchNorm1d(out_dim), nn.ReLU(), Dropout(dropout)) if legacy_head else nn.Identity()

    def forward(self, z: Tensor, graph: SparseGraph) -> Tensor:
        hidden = self.dropout(torch.relu(self.norm(self.first(z, graph))))
        return self.head(self.second(hidden, graph))


class InnerProduct(nn.Module):
    """Score of a pair: q_u . q_v. Shapes: q (N, D), pairs (2, M) int64 -> (M,) logits."""

    def forward(self, q: Tensor, pairs: Tensor) -> Tensor:
        return (q[pairs[0]] * q[pairs[1]]).sum(1)


class LinkMLP(nn.Module):
    """Score of a pair: MLP(q_u * q_v), symmetric in u and v.

    Parameters
    ----------
    dim : D.   hidden : default 64.   Shapes: q (N, D), pairs (2, M) int64 -> (M,) logits.
    """

    def __init__(self, dim: int, hidden: int = 64):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, q: Tensor, pairs: Tensor) -> Tensor:
        return self.layers(q[pairs[0]] * q[pairs[1]]).squeeze(1)


class LinkNet(nn.Module):
    """A node network followed by a pair scorer. Shapes: x (N, F), graph, pairs (2, M) -> (M,) logits."""

    def __init__(self, nodes: nn.Module, scorer: nn.Module):
        super().__init__()
        self.nodes, self.scorer = nodes, scorer

    def forward(self, x: Tensor, graph: SparseGraph, pairs: Tensor) -> Tensor:
        return self.scorer(self.nodes(x, graph), pairs)

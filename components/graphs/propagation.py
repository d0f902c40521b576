"""Sparse propagation matrices of a graph, built once and multiplied as CSR.

With A the adjacency matrix and D its degrees:
    renormalised  (D + I)^-1/2 (A + I) (D + I)^-1/2        Kipf & Welling 2017
    chebyshev     2 L / lambda_max - I  with L = I - D^-1/2 A D^-1/2 and lambda_max = 2, i.e. - D^-1/2 A D^-1/2
    mean          D^-1 A, rows of isolated nodes zero       Hamilton et al. 2017
    adjacency     A

A message passing layer over a fixed graph multiplies by the same matrix in every epoch. Gathering and scattering edges
would move E F numbers twice; the CSR product reads each row once and also makes the order of summation, hence the last
bit, deterministic.
"""

from __future__ import annotations

import warnings
from functools import cached_property

import torch
from torch import Tensor

from components.graphs.checks import undirected


class _SparseProduct(torch.autograd.Function):
    """P x with gradient P^T g; autograd's own transposes the CSR matrix in every step."""

    @staticmethod
    def forward(ctx, matrix: Tensor, transposed: Tensor, x: Tensor) -> Tensor:
        ctx.transposed = transposed
        return torch.sparse.mm(matrix, x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[None, None, Tensor]:
        return None, None, torch.sparse.mm(ctx.transposed, gradient.contiguous())


class Propagator:
    """Multiplication by a fixed sparse matrix, differentiable in the dense factor.

    Shapes: matrix (N, N), x (N, F) -> (N, F), of the matrix's dtype.
    """

    def __init__(self, index: Tensor, weight: Tensor, nodes: int):
        with warnings.catch_warnings():  # PyTorch calls its CSR layout beta and its unchecked invariants a risk, each once
            warnings.simplefilter("ignore", UserWarning)
            with torch.sparse.check_sparse_tensor_invariants():
                self.matrix = torch.sparse_coo_tensor(index, weight, (nodes, nodes)).coalesce().to_sparse_csr()
                self.transposed = torch.sparse_coo_tensor(index.flip(0), weight, (nodes, nodes)).coalesce().to_sparse_csr()

    def __call__(self, x: Tensor) -> Tensor:
        return _SparseProduct.apply(self.matrix, self.transposed, x)


class SparseGraph:
    """An undirected graph and its propagation matrices, each built on first use.

    Parameters
    ----------
    edge_index : (2, E) int64; self loops are removed, missing reverses are added with a warning.
    nodes : N; isolated nodes are allowed.
    dtype : of the matrices, default float32.

    Attributes
    ----------
    edge_index : (2, E') int64, both directions, sorted, without duplicates.
    renormalised, chebyshev, mean, adjacency : `Propagator`, as the module's docstring defines them.

    Raises
    ------
    ValueError : an edge_index of another shape or dtype, or a node number out of range.
    """

    def __init__(self, edge_index: Tensor, nodes: int, dtype: torch.dtype = torch.float32):
        self.nodes = nodes
        self.edge_index = undirected(edge_index, nodes)
        self.dtype = dtype

    def __repr__(self) -> str:
        return f"SparseGraph(nodes={self.nodes}, edges={self.edge_index.shape[1] // 2})"

    @cached_property
    def degree(self) -> Tensor:
        """(N,) number of neighbours, of the graph's dtype."""
        return torch.bincount(self.edge_index[1], minlength=self.nodes).to(self.dtype)

    @cached_property
    def renormalised(self) -> Propagator:
        own = torch.arange(self.nodes, device=self.edge_index.device).expand(2, -1)
        index = torch.cat([self.edge_index, own], dim=1)
        scale = (self.degree + 1).rsqrt()
        return Propagator(index, scale[index[0]] * scale[index[1]], self.nodes)

    @cached_property
    def chebyshev(self) -> Propagator:
        scale = self.degree.clamp(min=1).rsqrt()  # isolated nodes are in no edge, their scale is never used
        return Propagator(self.edge_index, -scale[self.edge_index[0]] * scale[self.edge_index[1]], self.nodes)

    @cached_property
    def mean(self) -> Propagator:
        return Propagator(self.edge_index, 1 / self.degree[self.edge_index[0]], self.nodes)

    @cached_property
    def adjacency(self) -> Propagator:
        return Propagator(self.edge_index, torch.ones_like(self.edge_index[0], dtype=self.dtype), self.nodes)

"""What a node classification problem must satisfy, in one place; each check is one sentence."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor


def check_embeddings(z: Tensor, name: str = "H") -> None:
    """Raise ValueError unless `z` is a finite floating point matrix (N, D)."""
    if z.ndim != 2 or not z.is_floating_point():
        raise ValueError(f"{name} must be a floating point tensor of shape (N, D), got {z.dtype} of shape {tuple(z.shape)}")
    finite = torch.isfinite(z)
    if not finite.all():
        row = (~finite).any(1).nonzero()[0].item()
        raise ValueError(f"{name} must be finite, but row {row} holds NaN or infinity")


def check_labels(y: Tensor, nodes: int, name: str = "y") -> None:
    """Raise TypeError unless `y` holds integers, ValueError unless it has shape (nodes,)."""
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise TypeError(f"{name} must hold integer labels, got {y.dtype}")
    if y.shape != (nodes,):
        raise ValueError(f"{name} must have shape ({nodes},), one label per node, got {tuple(y.shape)}")


def check_mask(mask: Tensor, nodes: int, name: str) -> None:
    """Raise ValueError unless `mask` is a boolean vector (nodes,) with at least one True."""
    if mask.dtype != torch.bool or mask.shape != (nodes,):
        raise ValueError(f"{name} must be a boolean tensor of shape ({nodes},), got {mask.dtype} of shape {tuple(mask.shape)}")
    if not mask.any():
        raise ValueError(f"{name} selects no node, at least one is needed")


def check_disjoint(**masks: Tensor) -> None:
    """Raise ValueError where two of the named boolean masks share a node."""
    names = sorted(masks)
    for position, first in enumerate(names):
        for second in names[position + 1 :]:
            shared = int((masks[first] & masks[second]).sum())
            if shared:
                raise ValueError(f"{first} and {second} must not overlap, but they share {shared} nodes")


def check_classes(train_labels: Tensor, num_classes: int) -> None:
    """Raise ValueError unless `train_labels` lie in [0, C), C >= 2, and every class is among them."""
    if num_classes < 2:
        raise ValueError(f"at least 2 classes are needed to have a boundary, got {num_classes}")
    low, high = int(train_labels.min()), int(train_labels.max())
    if low < 0 or high >= num_classes:
        raise ValueError(f"labels must lie in [0, {num_classes}), got labels from {low} to {high}")
    missing = (torch.bincount(train_labels, minlength=num_classes) == 0).nonzero().flatten().tolist()
    if missing:
        raise ValueError(f"every class needs a training node, but class {missing[0]} has none")


def undirected(edge_index: Tensor, nodes: int) -> Tensor:
    """Both directions of every edge, once, without self loops, sorted by (source, target).

    Parameters
    ----------
    edge_index : (2, E) int64, node numbers in [0, nodes).
    nodes : number of nodes; isolated ones are allowed.

    Returns
    -------
    (2, E') int64. Warns (UserWarning) where an edge lacked its reverse.

    Raises
    ------
    ValueError : another shape or dtype, or a node number out of range.
    """
    if edge_index.ndim != 2 or edge_index.shape[0] != 2 or edge_index.dtype != torch.int64:
        raise ValueError(
            f"edge_index must be an int64 tensor of shape (2, E), got {edge_index.dtype} of shape {tuple(edge_index.shape)}"
        )
    if edge_index.numel() and (edge_index.min() < 0 or edge_index.max() >= nodes):
        raise ValueError(
            f"edge_index must hold node numbers in [0, {nodes}), got {int(edge_index.min())} to {int(edge_index.max())}"
        )
    source, target = edge_index[:, edge_index[0] != edge_index[1]]
    given = torch.unique(source * nodes + target)
    both = torch.unique(torch.cat([given, given % nodes * nodes + given // nodes]))
    if both.numel() != given.numel():
        warnings.warn(
            f"edge_index holds {both.numel() - given.numel()} edges in one direction only; their reverses are added",
            stacklevel=2,
        )
    return torch.stack([both // nodes, both % nodes])

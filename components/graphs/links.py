"""Link prediction without leaks: edges split three ways, message passing on training edges, non-edges as negatives."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from components.graphs.checks import undirected


class LinkSplit(NamedTuple):
    """Pairs (2, M) int64 with u < v; `train` are the edges of message passing, negatives are true non-edges."""

    train: Tensor
    val: Tensor
    val_negative: Tensor
    test: Tensor
    test_negative: Tensor


def _sample_pairs(count: int, nodes: int, forbidden: Tensor, generator: torch.Generator) -> Tensor:
    """`count` distinct pairs u < v whose code u N + v is not among `forbidden`, uniformly, by rejection."""
    total = nodes * (nodes - 1) // 2
    if count > total - forbidden.numel():
        raise ValueError(f"{count} non-edges are wanted, but only {total - forbidden.numel()} exist")
    codes = forbidden.new_empty(0)
    while codes.numel() < count:
        drawn = torch.randint(nodes, (2, 2 * (count - codes.numel()) + 16), generator=generator)
        low, high = drawn.min(0).values, drawn.max(0).values
        drawn = (low * nodes + high)[low != high]
        codes = torch.cat([codes, drawn[~torch.isin(drawn, forbidden)]])
        # Distinct, in the order drawn: unique() sorts, and cutting a sorted list would favour small node numbers.
        values, inverse = torch.unique(codes, return_inverse=True)
        first = torch.full((values.numel(),), codes.numel()).scatter_reduce_(
            0, inverse, torch.arange(codes.numel()), reduce="amin"
        )
        codes = codes[first.sort().values]
    codes = codes[:count]
    return torch.stack([codes // nodes, codes % nodes])


def split_links(edge_index: Tensor, nodes: int, *, val: float = 0.05, test: float = 0.1, seed: int = 0) -> LinkSplit:
    """Random split of the undirected edges, with as many non-edges of the whole graph for validation and test.

    Parameters
    ----------
    edge_index : (2, E) int64.   nodes : N.   val, test : shares of the edges, positive, together below 1; default 5 and 10%.
    seed : of the split.

    Raises
    ------
    ValueError : bad shares or edges, or a part that would be empty.
    """
    if not (0 < val and 0 < test and val + test < 1):
        raise ValueError(f"val and test must be positive and together below 1, got {val} and {test}")
    both = undirected(edge_index, nodes)
    pairs = both[:, both[0] < both[1]]
    generator = torch.Generator().manual_seed(seed)
    pairs = pairs[:, torch.randperm(pairs.shape[1], generator=generator)]
    n_val, n_test = round(val * pairs.shape[1]), round(test * pairs.shape[1])
    if not n_val or not n_test or pairs.shape[1] <= n_val + n_test:
        raise ValueError(f"{pairs.shape[1]} edges are too few for shares of {val} and {test}")
    known = pairs[0] * nodes + pairs[1]
    negative = _sample_pairs(n_val + n_test, nodes, known, generator)
    return LinkSplit(
        pairs[:, n_val + n_test :],
        pairs[:, :n_val],
        negative[:, :n_val],
        pairs[:, n_val : n_val + n_test],
        negative[:, n_val:],
    )


def sample_negatives(train: Tensor, nodes: int, generator: torch.Generator) -> Tensor:
    """As many pairs as `train` (2, M), none of which is a training edge, (2, M) int64.

    Held-out edges may be among them: a method that never draws one would have been told where they are.
    """
    return _sample_pairs(train.shape[1], nodes, train[0] * nodes + train[1], generator)

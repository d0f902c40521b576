"""A small causal language model whose layers are given to it, and whose symbols may be sums of factors.

    x = sum over factors of table[factor(symbol)],   layers,   logits = W norm(x)

Factors are what symbols have in common (a type, a key, a value): a model of 100,000 weights finds the relation of Q(k) to D(k, v)
within hundreds of steps when both hold the same vector for k. One factor with as many values as symbols is a plain embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from components.attention.branch import rope_of
from components.language.tiny_llama import RMSNorm


class FactoredEmbedding(nn.Module):
    """Sum of one learned vector per factor.

    factors : integers [symbols, factors], at least 0; a table has as many rows as its factor has values.   d : width.
    Raises ValueError for another shape or negative factors.
    """

    def __init__(self, factors: np.ndarray, d: int) -> None:
        super().__init__()
        table = torch.as_tensor(np.asarray(factors), dtype=torch.int64)
        if table.ndim != 2 or not table.numel() or (table < 0).any():
            raise ValueError(f"factors must be integers of at least 0, [symbols, factors], got shape {tuple(table.shape)}")
        sizes = table.max(0).values + 1
        # All tables in one, each behind the one before.
        self.register_buffer(
            "rows", table + torch.cat((torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)[:-1])), persistent=False
        )
        self.weight = nn.Parameter(torch.randn(int(sizes.sum()), d) / table.shape[1] ** 0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.weight[self.rows].sum(1)[tokens]


class SmallLM(nn.Module):
    """The model; weights come from torch's global generator.

    Parameters
    ----------
    embedding : tokens [batch, time] int64 to [batch, time, d].
    layers : modules that take (x, rope, cache) and return x' of the same shape, such as `components.attention.l2a.L2ABlock`.
    d, vocab : width and number of symbols.   head : width of an attention head.   rope_base : of the rotary angles.
    max_position : longest text.
    """

    def __init__(
        self,
        embedding: nn.Module,
        layers: Sequence[nn.Module],
        d: int,
        vocab: int,
        head: int,
        rope_base: float = 1e4,
        max_position: int = 1 << 20,
    ) -> None:
        super().__init__()
        if not layers:
            raise ValueError("layers must hold at least one module")
        self.embedding, self.layers, self.norm = embedding, nn.ModuleList(layers), RMSNorm(d)
        self.out = nn.Linear(d, vocab, bias=False)
        self.head, self.rope_base, self.max_position = head, rope_base, max_position

    def forward(self, tokens: Tensor, cache: Any = None) -> Tensor:
        """Logits of the next symbol [batch, time, vocab]; with a cache, `tokens` go behind those that it has seen.

        Raises ValueError for tokens that are not [batch, time] or a text beyond `max_position`."""
        if tokens.ndim != 2 or tokens.shape[1] == 0:
            raise ValueError(f"tokens must have shape [batch, time] with at least one of time, got {list(tokens.shape)}")
        start = 0 if cache is None else cache.length
        if start + tokens.shape[1] > self.max_position:
            raise ValueError(f"the text has {start + tokens.shape[1]} tokens, the model's positions end at {self.max_position}")
        x = self.embedding(tokens)
        rope = rope_of(start, tokens.shape[1], self.head, self.rope_base, x)
        for layer in self.layers:
            x = layer(x, rope, cache)
        return self.out(self.norm(x))

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean negative log-likelihood of the targets [batch, time], nats per symbol."""
        return cross_entropy(self(tokens).flatten(0, 1), targets.flatten())

"""A router per head: each head of each token sees either the whole past or a window. One set of projections serves both.

    y_h = m_h Dense_h + (1 - m_h) Window_h,    m_h the straight-through bit of head h,    penalty lambda mean p

Unlike L2A no token attends twice, and keys and values of all tokens stay in the cache whatever is decided, unless a head of a
layer is never on. In training both kinds of attention are computed, so that every bit has its gradient.

Source: "All-or-Here Attention" (arXiv 2512.22562), the nearest relative of L2A.
"""

from __future__ import annotations

import copy

from torch import Tensor, nn

from components.attention.backends import backend_named
from components.attention.branch import Branch, Rope, rope_of
from components.attention.router import Router, Routing
from kernels.reference_attention import check_window


class HeadRoutedAttention(nn.Module):
    """The attention half of a layer with a router per head, made from a base layer's norm and branch (copied).

    window : tokens that a head sees when it is off.   tau, theta : of the router.   layer : for messages.
    """

    def __init__(
        self,
        norm: nn.Module,
        branch: Branch,
        window: int,
        rope_base: float = 1e4,
        *,
        tau: float = 0.1,
        theta: float = 0.5,
        backend: str = "sdpa",
        layer: int = 0,
    ) -> None:
        super().__init__()
        self.window, self.rope_base = check_window(window), rope_base
        self.norm, self.branch = copy.deepcopy(norm), copy.deepcopy(branch)
        self.router = Router(branch.q.in_features, tau, theta, branch.heads, layer)
        self.backend = backend_named(backend, branch.width)
        self.routing: Routing | None = None  # [batch, time, heads]

    def forward(self, x: Tensor, rope: Rope | None = None, cache: None = None) -> Tensor:
        if cache is not None:
            raise ValueError("attention with a router per head keeps no cache here: run it without one")
        rope = rope_of(0, x.shape[1], self.branch.width, self.rope_base, x) if rope is None else rope
        h = self.norm(x)
        routing = self.routing = self.router(h)
        q, (k, v) = self.branch.queries(h, rope), self.branch.keys_values(h, rope)
        m = routing.m[..., None]
        near, far = self.backend.window(q, k, v, self.window), self.backend.dense(q, k, v)
        return self.branch.back(m * far + (1 - m) * near)

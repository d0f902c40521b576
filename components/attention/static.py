"""Attention that is the same for every token: dense, or a sliding window. The base of an L2A layer, and the static baselines."""

from __future__ import annotations

from torch import Tensor, nn

from components.attention.backends import backend_named
from components.attention.branch import Branch, Rope, rope_of
from components.language.tiny_llama import RMSNorm


class StaticAttention(nn.Module):
    """W_o Attention(norm(x)), the update of the residual stream.

    Parameters
    ----------
    d, heads, kv_heads, width, qk_norm : as for `Branch`.
    window : tokens that a query sees, the own one included; None (default) for all.
    rope_base : of the rotary angles.   backend : "sdpa" (default), "reference" or "triton".

    Keeps no cache: `forward` raises ValueError where it is given one.
    """

    def __init__(
        self,
        d: int,
        heads: int,
        kv_heads: int,
        window: int | None = None,
        rope_base: float = 1e4,
        *,
        width: int | None = None,
        qk_norm: bool = False,
        backend: str = "sdpa",
    ) -> None:
        super().__init__()
        if window is not None and window < 1:
            raise ValueError(f"window must be at least 1, the query's own token, or None for all, got {window}")
        self.window, self.rope_base = window, rope_base
        self.norm = RMSNorm(d)
        self.branch = Branch(d, heads, kv_heads, width, qk_norm=qk_norm)
        self.backend = backend_named(backend, self.branch.width)

    def forward(self, x: Tensor, rope: Rope | None = None, cache: None = None) -> Tensor:
        if cache is not None:
            raise ValueError("static attention keeps no cache: convert the model to L2A, or run it without one")
        rope = rope_of(0, x.shape[1], self.branch.width, self.rope_base, x) if rope is None else rope
        h = self.norm(x)
        q, (k, v) = self.branch.queries(h, rope), self.branch.keys_values(h, rope)
        if self.window is None:
            return self.branch.back(self.backend.dense(q, k, v))
        return self.branch.back(self.backend.window(q, k, v, self.window))

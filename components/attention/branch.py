"""Projections of one attention branch: queries, keys and values with rotary positions, and the way back.

x [batch, time, d] becomes q [batch, time, Hq, D] and k, v [batch, time, Hk, D]; positions are those of the tokens in the text,
whichever of them are computed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from components.language.tiny_llama import RMSNorm, rotary_angles, rotate


class Rope(NamedTuple):
    """Cosines and sines of the rotary angles, [time or batch x time, D / 2]."""

    cos: Tensor
    sin: Tensor


def rope_of(start: int, length: int, width: int, base: float, like: Tensor) -> Rope:
    """Angles of positions start .. start + length - 1, on the device and in the dtype of `like`."""
    cos, sin = rotary_angles(start + length, width, base, device=like.device)
    return Rope(cos[start:].to(like.dtype), sin[start:].to(like.dtype))


class Branch(nn.Module):
    """One attention branch.

    Parameters
    ----------
    d : width of the model.   heads, kv_heads : query heads, and key/value heads, which divide them.
    width : of a head, even; default d / heads.   qk_norm : RMS norm over the head of queries and keys.   bias : of q, k and v.

    Raises ValueError for sizes below 1 or that do not fit.
    """

    def __init__(
        self, d: int, heads: int, kv_heads: int, width: int | None = None, *, qk_norm: bool = False, bias: bool = False
    ) -> None:
        super().__init__()
        for name, value in {"d": d, "heads": heads, "kv_heads": kv_heads}.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        if heads % kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, got {heads} and {kv_heads}")
        if width is None and d % heads:
            raise ValueError(f"d must be a multiple of heads where no width is given, got {d} and {heads}")
        width = d // heads if width is None else width
        if width < 2 or width % 2:
            raise ValueError(f"the width of a head must be even (rotary positions turn pairs), got {width}")
        self.heads, self.kv_heads, self.width = heads, kv_heads, width
        self.q = nn.Linear(d, heads * width, bias=bias)
        self.k = nn.Linear(d, kv_heads * width, bias=bias)
        self.v = nn.Linear(d, kv_heads * width, bias=bias)
        self.o = nn.Linear(heads * width, d, bias=False)
        self.q_norm: nn.Module = RMSNorm(width) if qk_norm else nn.Identity()
        self.k_norm: nn.Module = RMSNorm(width) if qk_norm else nn.Identity()

    def queries(self, x: Tensor, rope: Rope) -> Tensor:
        """[batch, time, Hq, D]"""
        return _turned(self.q_norm(self.q(x).unflatten(-1, (self.heads, self.width))), rope)

    def keys_values(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """[batch, time, Hk, D] each"""
        k = self.k_norm(self.k(x).unflatten(-1, (self.kv_heads, self.width)))
        return _turned(k, rope), self.v(x).unflatten(-1, (self.kv_heads, self.width))

    def back(self, y: Tensor, m: Tensor | None = None, a: Tensor | None = None) -> Tensor:
        """y [batch, time, Hq, D] to [batch, time, d]: W_o (m y), and a bias, where there is one, at the tokens of `a` alone."""
        if m is not None:
            y = y * m[..., None, None].to(y.dtype)
        if self.o.bias is None or a is None:
            return self.o(y.flatten(2))
        return linear(y.flatten(2), self.o.weight) + a[..., None] * self.o.bias


def _turned(x: Tensor, rope: Rope) -> Tensor:
    return rotate(x, rope.cos.unsqueeze(-2), rope.sin.unsqueeze(-2))


def later_mask(start: int, first: int, queries: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """[queries, keys] bool: which keys at positions first, first + 1, ... the queries at start, start + 1, ... may see."""
    query = torch.arange(start, start + queries, device=device)[:, None]
    key = torch.arange(first, first + keys, device=device)
    seen = key <= query
    return seen if window is None else seen & (key > query - window)

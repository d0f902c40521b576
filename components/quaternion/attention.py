"""Self-attention over quaternion features with one shared real score, or with a score per component.

Queries, keys and values are quaternion linear maps of x (B, L, 4, n), split into H heads of h = n / H quaternion features.
  shared      S = Re(q conj(k)) / sqrt(4 h), A = softmax(S), out_c = A v_c for all four components: one map;
  component   S_c = (q k)_c / sqrt(h), A_c = softmax(S_c), out_c = A_c v_c: four maps.
The shared form is scaled dot-product attention with heads of 4 h real features, so every flash kernel serves it.

Sources: Yamauchi et al., "Quaternion Self-Attention with Shared Scores"; Tay et al., "Lightweight and Efficient Neural Natural
Language Processing with Quaternion Networks" (the score per component).
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from components.quaternion.layers import QuaternionLinear, QuaternionRMSNorm, check_features, check_whole
from components.quaternion.ops import component_scores, shared_scores
from kernels.quaternion_attention import component_score_attention, shared_score_attention

Score = Literal["shared", "component"]
Backend = Literal["sdpa", "triton", "reference"]


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, L, 4, n) to (B, H, L, 4, n / H): the quaternion features are split, never the components."""
    return x.unflatten(-1, (heads, -1)).permute(0, 3, 1, 2, 4)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, L, 4, h) to (B, L, 4, H h), the inverse of `split_heads`."""
    return x.permute(0, 2, 3, 1, 4).flatten(-2)


def check_mask(mask: Tensor, batch: int, length: int) -> None:
    """Raise TypeError unless the mask is boolean, ValueError unless it is (L, L) or (B, 1, L, L)."""
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean, True where a query may see a key, got {mask.dtype}")
    if mask.shape not in ((length, length), (batch, 1, length, length)):
        raise ValueError(
            f"mask must have shape ({length}, {length}) or ({batch}, 1, {length}, {length}), got {tuple(mask.shape)}"
        )


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the last axis where the boolean mask is True; every row must have such a place."""
    return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1)


def _dropped(weights: Tensor, dropout: float) -> Tensor:
    return F.dropout(weights, dropout) if dropout else weights


def shared_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    fused: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Outputs (B, H, L, 4, h) and weights (B, H, L, L) of attention with the shared score; q, k, v (B, H, L, 4, h).

    fused : by `scaled_dot_product_attention` (default; weights None), otherwise step by step, as the definition reads.
    dropout : of the weights, applied whenever it is above 0. The mask's rows must not be empty."""
    h = q.shape[-1]
    if fused:
        parts = (x.flatten(-2) for x in (q, k, v))
        if causal and mask is not None:
            mask, causal = mask & _causal(q), False
        y = F.scaled_dot_product_attention(*parts, attn_mask=mask, dropout_p=dropout, is_causal=causal)
        return y.unflatten(-1, (4, h)), None
    mask = _with_causal(mask, q, causal)
    weights = masked_softmax(shared_scores(q, k) / math.sqrt(4 * h), mask)
    return (_dropped(weights, dropout) @ v.flatten(-2)).unflatten(-1, (4, h)), weights


def component_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    fused: bool = True,
    conjugate: bool = False,
) -> tuple[Tensor, Tensor]:
    """Outputs (B, H, L, 4, h) and weights (B, H, 4, L, L) of attention with a score per component; q, k, v (B, H, L, 4, h).

    fused, conjugate : see `component_scores`. dropout, mask : as in `shared_attention`."""
    mask = _with_causal(mask, q, causal)
    scale = 1 / math.sqrt(q.shape[-1])
    scores = component_scores(q * scale, k, conjugate=conjugate, fused=fused)
    weights = [masked_softmax(score, mask) for score in scores]
    outputs = [_dropped(a, dropout) @ part for a, part in zip(weights, v.unbind(-2), strict=True)]
    return torch.stack(outputs, -2), torch.stack(weights, 2)


def _causal(q: Tensor) -> Tensor:
    length = q.shape[2]
    return torch.ones(length, length, dtype=torch.bool, device=q.device).tril()


def _with_causal(mask: Tensor | None, q: Tensor, causal: bool) -> Tensor | None:
    if not causal:
        return mask
    return _causal(q) if mask is None else mask & _causal(q)


class QuaternionSelfAttention(nn.Module):
    """Multi-head self-attention on x (B, L, 4, n); the scores and sources are in the module's text.

    Parameters
    ----------
    n, heads : quaternion features and heads; n must be a multiple of heads.
    score : "shared" (default), one map per head, or "component", four.
    conjugate, fused : of the component scores: q conj(k) for q k (default False); each map by one matmul (default True).
    qk_norm : quaternion RMS norm of queries and keys, per quaternion (default True).
    dropout : of the attention weights in training, in [0, 1), default 0.
    backend : "sdpa" (default) is torch's `scaled_dot_product_attention` for the shared score; "reference" computes the weights.
        The component score is computed in the same way by both: no library kernel serves it. "triton" is the fused kernel for
        either score, norm included; it takes causal but no mask and no dropout, and with `need_weights` "reference" stands in.
    allow_empty_rows : a query that sees no key gets weights 0 instead of a ValueError (default False).

    float16 and bfloat16 on the CPU are computed in float32 and returned as they came.

    Raises ValueError for sizes, names, shapes or masks that do not fit, TypeError for a mask or x of a wrong dtype.
    """

    def __init__(
        self,
        n: int,
        heads: int,
        score: Score = "shared",
        conjugate: bool = False,
        fused: bool = True,
        qk_norm: bool = True,
        dropout: float = 0.0,
        backend: Backend = "sdpa",
        allow_empty_rows: bool = False,
    ) -> None:
        super().__init__()
        check_attention(n, heads, dropout)
        if score not in ("shared", "component"):
            raise ValueError(f"score must be 'shared' or 'component', got {score!r}")
        if backend not in ("sdpa", "triton", "reference"):
            raise ValueError(f"backend must be 'sdpa', 'triton' or 'reference', got {backend!r}")
        if backend == "triton" and dropout:
            raise ValueError(f"the backend triton has no dropout of weights, got dropout = {dropout}")
        self.n, self.heads, self.score, self.conjugate, self.fused = n, heads, score, conjugate, fused
        self.dropout, self.backend, self.allow_empty_rows = dropout, backend, allow_empty_rows
        self.qkv = QuaternionLinear(n, 3 * n)
        self.query_norm = QuaternionRMSNorm(n) if qk_norm else None
        self.key_norm = QuaternionRMSNorm(n) if qk_norm else None
        self.out = QuaternionLinear(n, n, init="glorot")

    def forward(
        self, x: Tensor, mask: Tensor | None = None, need_weights: bool = False, *, causal: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Outputs (B, L, 4, n), and with `need_weights` also the weights, (B, H, L, L) or (B, H, 4, L, L).

        mask : boolean (L, L) or (B, 1, L, L), True where query i may see key j. causal : see keys up to i alone."""
        check_features(x, self.n)
        if x.ndim != 4:
            raise ValueError(f"x must have shape (B, L, 4, {self.n}), got {tuple(x.shape)}")
        if self.backend == "triton" and not need_weights:
            return self._fused(x, mask, causal)
        mask, empty = usable_mask(mask, x, causal, self.allow_empty_rows)
        q, k, v = self._projected(x)
        dropout = self.dropout if self.training else 0.0
        q, k, v = (split_heads(part, self.heads) for part in (q, k, v))
        if self.score == "component":
            y, weights = component_attention(
                q, k, v, mask, causal=causal, dropout=dropout, fused=self.fused, conjugate=self.conjugate
            )
        else:
            library = self.backend == "sdpa" and not need_weights
            y, weights = shared_attention(q, k, v, mask, causal=causal, dropout=dropout, fused=library)
        if empty is not None:
            y = y.masked_fill(empty[..., None, None], 0)
        y = self.out(merge_heads(y).to(self.out.weight.dtype)).to(x.dtype)
        if not need_weights:
            return y
        if empty is not None:
            weights = weights.masked_fill((empty if self.score == "shared" else empty[:, :, None])[..., None], 0)
        return y, weights.to(x.dtype)

    def _fused(self, x: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """The kernel: heads, norm and scores in one pass over q, k and v where the projection left them."""
        if mask is not None:
            raise ValueError("the backend triton takes causal=True but no mask: choose 'sdpa' or 'reference'")
        q, k, v = self.qkv(x.to(self.qkv.weight.dtype) if _upcast(x) else x).chunk(3, -1)
        options: dict[str, Any] = {"heads": self.heads, "causal": causal, "backend": "triton"}
        if self.query_norm is not None:
            options |= {"q_gain": self.query_norm.gain, "k_gain": self.key_norm.gain, "eps": self.query_norm.eps}
        if self.score == "shared":
            y = shared_score_attention(q, k, v, **options)
        else:
            y = component_score_attention(q, k, v, conjugate=self.conjugate, **options)
        return self.out(y).to(x.dtype)

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = x.to(self.qkv.weight.dtype) if _upcast(x) else x
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.query_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        return q, k, v

    def extra_repr(self) -> str:
        return f"{self.n}, heads={self.heads}, score={self.score!r}, backend={self.backend!r}"


def _upcast(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype in (torch.float16, torch.bfloat16)


def check_attention(n: int, heads: int, dropout: float) -> None:
    """Raise ValueError unless n is a multiple of heads, both at least 1, and dropout lies in [0, 1)."""
    check_whole(n=n, heads=heads)
    if n % heads:
        raise ValueError(f"n must be a multiple of heads = {heads}, got {n}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must lie in [0, 1), got {dropout}")


def usable_mask(mask: Tensor | None, x: Tensor, causal: bool, allow_empty_rows: bool) -> tuple[Tensor | None, Tensor | None]:
    """The mask without empty rows, and where those were, (B or 1, 1, L), or None; x (B, L, ...).

    Raises the errors of `check_mask`, and ValueError where a row is empty and not allowed to be; under a compiler, which cannot
    look at values, such rows pass as if allowed."""
    if mask is None:
        return None, None
    check_mask(mask, x.shape[0], x.shape[1])
    mask = mask.view(-1, 1, x.shape[1], x.shape[1])
    seen = mask.tril() if causal else mask
    empty = ~seen.any(-1)
    if not allow_empty_rows and not torch.compiler.is_compiling() and empty.any():
        batch, _, row = empty.nonzero()[0].tolist()
        raise ValueError(f"mask lets query {row} of batch row {batch} see no key; allow_empty_rows=True gives it weights of 0")
    return seen | empty[..., None], empty

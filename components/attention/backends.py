"""Three ways to compute the two kinds of attention that a layer needs; they agree to rounding.

  reference  plain torch, the definitions
  sdpa       torch's fused attention on gathered queries and chunks
  triton     the kernels; on a CPU in the interpreter alone

All take q [batch, time, heads, width] and k, v [batch, time, kv heads, width], positions already in them, and return q's shape.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from kernels.l2a_attention import WIDTHS, sliding_window_attention, token_gathered_attention
from kernels.l2a_decode import decode_attention
from kernels.reference_attention import check_active, check_heads, check_window, masked_attention


class Backend(ABC):
    """Causal attention: over a window, everywhere, or at chosen tokens. `widths` are the head widths that it knows; None: any."""

    widths: tuple[int, ...] | None = None

    @abstractmethod
    def window(self, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        """Keys t - window + 1 .. t of query t."""

    @abstractmethod
    def gathered(self, q: Tensor, k: Tensor, v: Tensor, active: Tensor) -> Tensor:
        """All keys up to the query's own, at the tokens of active [batch, time] bool; zeros elsewhere."""

    def dense(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """All keys up to the query's own, at every token."""
        check_heads(q, k, v)
        return _sdpa(q, k, v, causal=True)

    def later(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Queries behind a cached prefix: k and v hold more tokens than q, mask [queries, keys] is None for a single query."""
        return masked_attention(q, k, v, mask)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, causal: bool = False) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    grouped = q.shape[1] != k.shape[1]
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=grouped).transpose(1, 2)


class ReferenceBackend(Backend):
    """Plain torch."""

    def window(self, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        return sliding_window_attention(q, k, v, window, backend="reference")

    def gathered(self, q: Tensor, k: Tensor, v: Tensor, active: Tensor) -> Tensor:
        return token_gathered_attention(q, k, v, active, backend="reference")


class SDPABackend(Backend):
    """torch.nn.functional.scaled_dot_product_attention with explicit masks."""

    def window(self, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        check_heads(q, k, v)
        check_window(window)
        batch, length = q.shape[:2]
        if length <= window:
            return _sdpa(q, k, v, causal=True)
        # Queries of chunk c look at chunks c - 1 and c of `window` tokens, which is exact and never builds a T x T mask.
        count = -(-length // window)
        spare = count * window - length
        rows = pad(q, (0, 0, 0, 0, 0, spare)).unflatten(1, (count, window)).flatten(0, 1)
        query = torch.arange(window, device=q.device)[:, None]
        key = torch.arange(-window, window, device=q.device)
        near = (key <= query) & (key > query - window)
        chunks = torch.arange(count, device=q.device)[:, None, None]
        mask = (near & ((chunks > 0) | (key >= 0))).repeat(batch, 1, 1)[:, None]
        keys, values = (
            pad(x, (0, 0, 0, 0, window, spare)).unfold(1, 2 * window, window).permute(0, 1, 4, 2, 3).flatten(0, 1)
            for x in (k, v)
        )
        return _sdpa(rows, keys, values, mask).reshape(batch, count * window, *q.shape[2:])[:, :length]

    def gathered(self, q: Tensor, k: Tensor, v: Tensor, active: Tensor) -> Tensor:
        check_heads(q, k, v)
        active = check_active(active, q)
        most = int(active.sum(1).max()) if active.numel() else 0
        if most == 0:
            return torch.zeros_like(q) + 0.0 * (q[:0].sum() + k[:0].sum() + v[:0].sum())
        # Active positions first, in order of time; sequences with fewer are filled up with tokens whose result is dropped.
        time = (~active).int().argsort(dim=1, stable=True)[:, :most]
        sequence = torch.arange(q.shape[0], device=q.device)[:, None]
        mask = torch.arange(k.shape[1], device=q.device) <= time[:, :, None]
        found = _sdpa(q[sequence, time], k, v, mask[:, None])
        kept = active[sequence, time]
        place = sequence.expand_as(time)[kept], time[kept]
        return torch.zeros_like(q).index_put(place, found[kept])


class TritonBackend(Backend):
    """The kernels. RuntimeError for tensors on a CPU outside Triton's interpreter."""

    widths = WIDTHS

    def window(self, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        return sliding_window_attention(q, k, v, window, backend="triton")

    def gathered(self, q: Tensor, k: Tensor, v: Tensor, active: Tensor) -> Tensor:
        return token_gathered_attention(q, k, v, active, backend="triton")

    def later(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None or q.shape[1] != 1:
            return super().later(q, k, v, mask)
        lengths = torch.full((q.shape[0],), k.shape[1], dtype=torch.int32, device=q.device)
        return decode_attention(q[:, 0], k, v, lengths, backend="triton")[:, None]


BACKENDS: dict[str, type[Backend]] = {"reference": ReferenceBackend, "sdpa": SDPABackend, "triton": TritonBackend}


def backend_named(name: str, width: int) -> Backend:
    """The backend for heads of a width. Raises ValueError for an unknown name, or a width that the backend does not know."""
    if name not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {name!r}")
    backend = BACKENDS[name]()
    if backend.widths is not None and width not in backend.widths:
        raise ValueError(f"the backend {name} knows heads of width {', '.join(map(str, backend.widths))}, got {width}")
    return backend

"""Quaternion algebra on real tensors: products, conjugates, inner products, and the attention scores made of them.

A quaternion a + bi + cj + dk is four real numbers on an axis of length 4, in the order r, x, y, z. Feature tensors have
shape (..., 4, n): the components come before the n quaternion features.

Scores of queries and keys (..., L, 4, h), both unscaled:
  shared      Re(q conj(k)) = sum_c q_c k_c, one real map;
  component   the four components of q k (or q conj(k)), four real maps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from components.quaternion.counting import ProductCounter

# e_a e_b = SIGNS[a][b] e_(a xor b) for the units 1, i, j, k
SIGNS = ((1, 1, 1, 1), (1, -1, 1, -1), (1, -1, -1, 1), (1, 1, -1, -1))
SCORES = ("shared", "component", "component_fused")


def check_components(name: str, x: Tensor, dim: int = -2) -> None:
    """Raise TypeError unless `x` is real floating point, ValueError unless axis `dim` holds the four components."""
    if not x.is_floating_point():
        raise TypeError(f"{name} must be a real floating point tensor, got {x.dtype}")
    if not -x.ndim <= dim < x.ndim or x.shape[dim] != 4:
        raise ValueError(f"{name} must have four components on axis {dim}, got shape {tuple(x.shape)}")


def hamilton(p: Tensor, q: Tensor, dim: int = -2) -> Tensor:
    """The Hamilton product p q, components on axis `dim` of both (default -2); the other axes broadcast.

    Raises TypeError for integers, ValueError where the axis is not of length 4 or p and q count it differently."""
    check_components("p", p, dim)
    check_components("q", q, dim)
    if dim >= 0 and p.ndim != q.ndim:
        raise ValueError(f"axis {dim} means two things in shapes {tuple(p.shape)} and {tuple(q.shape)}: count it from the end")
    a, b, c, d = p.unbind(dim)
    e, f, g, h = q.unbind(dim)
    parts = (
        a * e - b * f - c * g - d * h,
        a * f + b * e + c * h - d * g,
        a * g - b * h + c * e + d * f,
        a * h + b * g - c * f + d * e,
    )
    return torch.stack(parts, dim)


def conj(q: Tensor, dim: int = -2) -> Tensor:
    """The conjugate a - bi - cj - dk, components on axis `dim`; errors as for `hamilton`."""
    check_components("q", q, dim)
    r, x, y, z = q.unbind(dim)
    return torch.stack((r, -x, -y, -z), dim)


def qinner(p: Tensor, q: Tensor, dim: int = -2) -> Tensor:
    """The inner product Re(p conj(q)) = sum_c p_c q_c, without axis `dim`; errors as for `hamilton`."""
    check_components("p", p, dim)
    check_components("q", q, dim)
    return (p * q).sum(dim)


def left_matrix(q: Tensor) -> Tensor:
    """L(q) of shape (..., 4, 4) with q p = L(q) p, for q of shape (..., 4)."""
    check_components("q", q, -1)
    a, b, c, d = q.unbind(-1)
    rows = (a, -b, -c, -d), (b, a, -d, c), (c, d, a, -b), (d, -c, b, a)
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def _check_pair(q: Tensor, k: Tensor) -> None:
    check_components("q", q)
    check_components("k", k)
    if q.ndim < 3 or q.shape[:-3] != k.shape[:-3] or q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q and k must have shapes (..., L, 4, h) that fit, got {tuple(q.shape)} and {tuple(k.shape)}")


def shared_scores(q: Tensor, k: Tensor) -> Tensor:
    """sum_c q_c k_c^T, (..., L, L'), of q (..., L, 4, h) and k (..., L', 4, h); not scaled.

    Source: Yamauchi et al., "Quaternion Self-Attention with Shared Scores": the real part of q conj(k)."""
    _check_pair(q, k)
    return q.flatten(-2) @ k.flatten(-2).transpose(-1, -2)


def component_scores(q: Tensor, k: Tensor, *, conjugate: bool = False, fused: bool = True) -> tuple[Tensor, ...]:
    """The components r, x, y, z of q k, or of q conj(k), four maps (..., L, L') of q (..., L, 4, h), k (..., L', 4, h); not scaled.

    fused : each map by one matmul of q with k permuted and signed (default), or by four matmuls, as the product is written.

    Source: Tay et al., "Lightweight and Efficient Neural Natural Language Processing with Quaternion Networks"."""
    _check_pair(q, k)
    ks = list(k.unbind(-2))
    if conjugate:
        ks = [ks[0], *(-part for part in ks[1:])]
    if fused:
        flat, both = q.flatten(-2), {1: ks, -1: [-part for part in ks]}
        keys = (torch.cat([both[SIGNS[a][a ^ c]][a ^ c] for a in range(4)], -1) for c in range(4))
        return tuple(flat @ key.transpose(-1, -2) for key in keys)
    q0, q1, q2, q3 = q.unbind(-2)
    k0, k1, k2, k3 = (part.transpose(-1, -2) for part in ks)
    return (
        q0 @ k0 - q1 @ k1 - q2 @ k2 - q3 @ k3,
        q0 @ k1 + q1 @ k0 + q2 @ k3 - q3 @ k2,
        q0 @ k2 - q1 @ k3 + q2 @ k0 + q3 @ k1,
        q0 @ k3 + q1 @ k2 - q2 @ k1 + q3 @ k0,
    )


def score_mults(kind: str, L: int, h: int) -> int:
    """Real multiplications that the scores of one head take, L queries and L keys of h quaternion features.

    kind : "shared", "component" (16 matmuls) or "component_fused" (4 wide ones). The number is counted: the scores are
    computed once, on zeros, under a `ProductCounter`. Raises ValueError for another kind, or L or h below 1."""
    if kind not in SCORES:
        raise ValueError(f"kind must be one of {', '.join(SCORES)}, got {kind!r}")
    if L < 1 or h < 1:
        raise ValueError(f"L and h must be at least 1, got {L} and {h}")
    q, k = torch.zeros(2, L, 4, h)
    with ProductCounter() as counter:
        if kind == "shared":
            shared_scores(q, k)
        else:
            component_scores(q, k, fused=kind == "component_fused")
    return counter.products

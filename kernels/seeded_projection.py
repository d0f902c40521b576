"""Projection on random directions that are generated in registers: S = J U without U in memory.

J is (V, d), U = P^{-1/2} [u_1 ... u_P] is (d, P) with entries N(0, 1) or signs, S is (V, P). Reading U would move 4 d P bytes;
here each entry is computed from its position by the counter-based generator Philox4x32-10 where it is needed:
2 V d P + about 60 integer operations per entry, 4 V d bytes read, so about P / 2 operations per byte.

Entry (k, p) uses the counter (offset mod 2^32, offset div 2^32, 0, 0) with offset = k P + p, and the key (low, high word of the seed).
rademacher: 1 - 2 (lowest bit of the first output word), so bit 0 means +1. gaussian: Box-Muller on the first two words.
`seeded_axpy_` adds one such direction to a vector, one read and one write of it: the step of zeroth-order SGD.

`seeded_project` and `seeded_axpy_` are the public entries: the kernels on CUDA tensors, the torch reference on the CPU.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.philox import philox_block

REFERENCE_ROWS = 4096  # rows of U that the reference keeps at a time


def _uniform(word: Tensor) -> Tensor:
    """A 32-bit word to [0, 1) as triton does it: read as a signed number x, then x or -x - 1, scaled in float32."""
    word = torch.where(word >= 2**31, 2**32 - 1 - word, word)
    return word.to(torch.float32) * 4.6566127342e-10


def seeded_directions_reference(
    rows: int, columns: int, seed: int, dist: str = "gaussian", *, first_row: int = 0, device: torch.device | str = "cpu"
) -> Tensor:
    """Rows first_row .. first_row + rows - 1 of [u_1 ... u_P], (rows, P) float32, not divided by sqrt(P)."""
    _check(dist, seed, columns)
    row = torch.arange(first_row, first_row + rows, device=device)[:, None]
    return _numbers(row * columns + torch.arange(columns, device=device), seed, dist)


def _numbers(offset: Tensor, seed: int, dist: str) -> Tensor:
    first, second, _, _ = philox_block(offset, seed)
    if dist == "rademacher":
        return (1 - 2 * (first & 1)).to(torch.float32)
    radius = torch.sqrt(-2 * torch.log(_uniform(first).clamp_min(1e-7)))
    return radius * torch.cos(6.283185307179586 * _uniform(second))


def _check(dist: str, seed: int, columns: int) -> None:
    if dist not in ("gaussian", "rademacher"):
        raise ValueError(f"dist must be 'gaussian' or 'rademacher', got {dist!r}")
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed must lie in [0, 2^63), got {seed}")
    if columns < 1:
        raise ValueError(f"the number of directions must be at least 1, got {columns}")


def _check_project(J: Tensor, P: int, dist: str, seed: int) -> None:
    _check(dist, seed, P)
    if J.ndim != 2 or J.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(
            f"J must be a float32, float16 or bfloat16 tensor of shape (V, d), got {J.dtype} of shape {tuple(J.shape)}"
        )
    if J.shape[1] < 1:
        raise ValueError("J must have at least one column, got d = 0")


@triton.jit
def _direction(row, column, P, seed, GAUSSIAN: tl.constexpr):
    offset = row.to(tl.int64) * P + column
    low = (offset & 0xFFFFFFFF).to(tl.uint32)
    high = (offset >> 32).to(tl.uint32)
    first, second, _, _ = tl.philox(seed, low, high, low * 0, low * 0)
    if GAUSSIAN:
        a = tl.maximum(tl.uint_to_uniform_float(first), 1.0e-7)
        b = tl.uint_to_uniform_float(second)
        u = tl.sqrt(-2.0 * tl.log(a)) * tl.cos(6.283185307179586 * b)
    else:
        u = 1.0 - 2.0 * (first & 1).to(tl.float32)
    return u


@triton.jit
def _project_kernel(
    j_ptr,
    partial_ptr,
    V,
    d,
    P,
    seed,
    stride_v,
    stride_d,
    rows_per_split,
    GAUSSIAN: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    v = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    p = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    split = tl.program_id(2).to(tl.int64)
    begin = split * rows_per_split
    end = tl.minimum(begin + rows_per_split, d)
    total = tl.zeros((BLOCK_V, BLOCK_P), dtype=tl.float32)
    for start in range(begin, end, BLOCK_D):
        row = start + tl.arange(0, BLOCK_D)
        inside = row < end
        j = tl.load(
            j_ptr + v.to(tl.int64)[:, None] * stride_v + row[None, :] * stride_d,
            mask=(v < V)[:, None] & inside[None, :],
            other=0.0,
        ).to(tl.float32)
        u = _direction(row[:, None], p[None, :], P, seed, GAUSSIAN)
        total += tl.dot(j, u, input_precision="ieee")
    where = partial_ptr + (split * V + v[:, None]) * P + p[None, :]
    tl.store(where, total, mask=(v < V)[:, None] & (p < P)[None, :])


@triton.jit
def _axpy_kernel(theta_ptr, alpha, n, first_row, column, P, seed, GAUSSIAN: tl.constexpr, BLOCK: tl.constexpr):
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    theta = tl.load(theta_ptr + position, mask=position < n, other=0.0)
    u = _direction(position + first_row, column, P, seed, GAUSSIAN)
    tl.store(theta_ptr + position, (theta.to(tl.float32) + alpha * u).to(theta_ptr.dtype.element_ty), mask=position < n)


def seeded_project_triton(
    J: Tensor, P: int, dist: str = "gaussian", seed: int = 0, *, block_d: int = 64, block_p: int = 32, splits: int = 64
) -> Tensor:
    """The kernel; same arguments, results and errors as `seeded_project`.

    block_d, block_p (powers of two from 16): the tile of U in registers. splits: parts of d that are summed side by side."""
    _check_project(J, P, dist, seed)
    V, d = J.shape
    block_v = max(16, min(64, triton.next_power_of_2(max(V, 1))))
    rows = triton.cdiv(triton.cdiv(d, splits), block_d) * block_d
    splits = triton.cdiv(d, rows)
    partial = torch.empty((splits, V, P), dtype=torch.float32, device=J.device)
    if V:
        _project_kernel[(triton.cdiv(V, block_v), triton.cdiv(P, block_p), splits)](
            J,
            partial,
            V,
            d,
            P,
            seed,
            J.stride(0),
            J.stride(1),
            rows,
            GAUSSIAN=dist == "gaussian",
            BLOCK_V=block_v,
            BLOCK_P=block_p,
            BLOCK_D=block_d,
        )
    # Partial sums instead of atomic additions: the same bits every time.
    return partial.sum(0) / math.sqrt(P)


def seeded_project_reference(J: Tensor, P: int, dist: str = "gaussian", seed: int = 0) -> Tensor:
    """The definition in plain torch, a block of rows of U at a time; same arguments, results and errors as `seeded_project`."""
    _check_project(J, P, dist, seed)
    total = torch.zeros((J.shape[0], P), dtype=torch.float32, device=J.device)
    for start in range(0, J.shape[1], REFERENCE_ROWS):
        rows = min(REFERENCE_ROWS, J.shape[1] - start)
        u = seeded_directions_reference(rows, P, seed, dist, first_row=start, device=J.device)
        total += J[:, start : start + rows].to(torch.float32) @ u
    return total / math.sqrt(P)


def seeded_project(J: Tensor, P: int, dist: str = "gaussian", seed: int = 0) -> Tensor:
    """S = J U with U = P^{-1/2} [u_1 ... u_P] generated from the seed.

    Parameters
    ----------
    J : (V, d) float32, float16 or bfloat16, any strides.
    P : number of directions, at least 1.
    dist : "gaussian" or "rademacher".
    seed : in [0, 2^63).

    Returns
    -------
    (V, P) float32; S S^T estimates J J^T without bias.

    Raises
    ------
    ValueError : wrong shape or dtype, P < 1, unknown dist, seed out of range.

    References
    ----------
    Li et al., "Learning Dynamics of Zeroth-Order Optimization: A Kernel Perspective": K_U = (J_o U)(J_u U)^T.
    """
    return seeded_project_triton(J, P, dist, seed) if J.is_cuda else seeded_project_reference(J, P, dist, seed)


def seeded_axpy_triton_(
    theta: Tensor,
    alpha: float,
    seed: int,
    dist: str = "gaussian",
    *,
    column: int = 0,
    columns: int = 1,
    first_row: int = 0,
    block: int = 1024,
) -> Tensor:
    """The kernel; same arguments, results and errors as `seeded_axpy_`."""
    _check_axpy(theta, seed, dist, column, columns, first_row)
    if theta.numel():
        _axpy_kernel[(triton.cdiv(theta.numel(), block),)](
            theta, float(alpha), theta.numel(), first_row, column, columns, seed, GAUSSIAN=dist == "gaussian", BLOCK=block
        )
    return theta


def _check_axpy(theta: Tensor, seed: int, dist: str, column: int, columns: int, first_row: int) -> None:
    _check(dist, seed, columns)
    if theta.ndim != 1 or not theta.is_contiguous() or theta.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(
            f"theta must be a contiguous float32, float16 or bfloat16 vector, got {theta.dtype} of shape {tuple(theta.shape)}"
        )
    if not 0 <= column < columns:
        raise ValueError(f"column must lie in [0, {columns}), got {column}")
    if first_row < 0:
        raise ValueError(f"first_row must be at least 0, got {first_row}")


def seeded_axpy_(
    theta: Tensor, alpha: float, seed: int, dist: str = "gaussian", *, column: int = 0, columns: int = 1, first_row: int = 0
) -> Tensor:
    """theta += alpha u in place, with u the rows first_row .. of column `column` of the (d, `columns`) directions of `seed`.

    Parameters
    ----------
    theta : (n,) float32, float16 or bfloat16, contiguous; a part of the weights that begins at row `first_row`.
    alpha : factor; sums are made in float32.
    seed, dist : as for `seeded_project`, whose U has the same columns, divided by sqrt(`columns`).

    Returns
    -------
    theta itself.

    Raises
    ------
    ValueError : wrong shape, layout or dtype, column outside [0, columns), a bad seed or dist.
    """
    if theta.is_cuda:
        return seeded_axpy_triton_(theta, alpha, seed, dist, column=column, columns=columns, first_row=first_row)
    _check_axpy(theta, seed, dist, column, columns, first_row)
    for start in range(0, theta.numel(), REFERENCE_ROWS):
        part = theta[start : start + REFERENCE_ROWS]
        row = torch.arange(first_row + start, first_row + start + part.numel())
        part.copy_((part.float() + alpha * _numbers(row * columns + column, seed, dist)).to(theta.dtype))
    return theta


def seeded_norm(d: int, seed: int, *, column: int = 0, columns: int = 1, device: torch.device | str = "cpu") -> float:
    """Euclidean norm of a Gaussian direction of length d, a block at a time; what turns it into a point of the sphere."""
    total = 0.0
    for start in range(0, d, 2**20):
        rows = min(2**20, d - start)
        block = torch.zeros(rows, dtype=torch.float32, device=device)
        seeded_axpy_(block, 1.0, seed, "gaussian", column=column, columns=columns, first_row=start)
        total += float(block.double().square().sum())
    return math.sqrt(total)

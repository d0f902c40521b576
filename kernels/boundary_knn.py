"""Fraction of a point's k nearest neighbours that carry another label, without the B x B distance matrix.

For each of B points:  score_i = |{j in kNN(i): y_j != y_i}| / k,  kNN over squared Euclidean distance, i itself excluded,
ties by smaller index. The Triton kernel walks over blocks of columns, keeps a running list of the k best per row in
registers and reads the labels of the survivors: 3 B^2 D operations, and per block of rows 4 B D bytes, instead of the
4 B^2 bytes of a distance matrix that is written, read and partially sorted.

`boundary_knn` is the public entry: the kernel on CUDA tensors; on the CPU the reference (`torch.cdist`, `topk`), which
for larger B is preceded by a matrix product that leaves few pairs to measure exactly.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

NO_INDEX = 2**31 - 1  # sorts behind every real index


def _checked(z: Tensor, y: Tensor, k: int) -> int:
    """Validate the arguments; returns how many neighbours each point can have, min(k, B - 1)."""
    if z.ndim != 2 or not z.is_floating_point():
        raise ValueError(f"z must be a floating point tensor of shape (B, D), got {z.dtype} of shape {tuple(z.shape)}")
    if y.shape != z.shape[:1]:
        raise ValueError(f"y must have shape ({z.shape[0]},), one label per row of z, got {tuple(y.shape)}")
    if y.is_floating_point() or y.is_complex():
        raise TypeError(f"y must hold integer labels, got {y.dtype}")
    if y.device != z.device:
        raise ValueError(f"z and y must be on one device, got {z.device} and {y.device}")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if not torch.isfinite(z).all():
        raise ValueError("z must be finite, but it holds NaN or infinity")
    return max(min(k, z.shape[0] - 1), 0)


def _empty(z: Tensor, k: int) -> tuple[Tensor, Tensor]:
    return z.new_zeros(z.shape[0]), z.new_zeros((z.shape[0], k), dtype=torch.int64)


def boundary_knn_reference(z: Tensor, y: Tensor, k: int = 5) -> tuple[Tensor, Tensor]:
    """The definition in plain torch; same arguments, results and errors as `boundary_knn`."""
    k = _checked(z, y, k)
    if k == 0:
        return _empty(z, k)
    dtype = z.dtype
    if z.element_size() < 4:
        z = z.float()  # as the kernel does; `cdist` has no half precision on the CPU
    # Differences, not the expansion |a|^2 + |b|^2 - 2ab: duplicates must be at distance exactly zero, and ties exact.
    distance = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist")
    distance.fill_diagonal_(torch.inf)
    nearest = distance.topk(k, largest=False, sorted=True)
    neighbours, bound = nearest.indices, nearest.values[:, -1:]
    # topk promises no order among ties: only rows with more than k points within the k-th distance, or with equal
    # distances among the k, need a second look, and those are few.
    repeated = (nearest.values[:, 1:] == nearest.values[:, :-1]).any(1)
    tied = (repeated | ((distance <= bound).sum(1) > k)).nonzero().flatten()
    if tied.numel():
        neighbours[tied] = distance[tied].sort(dim=1, stable=True).indices[:, :k]
    score = (y[neighbours] != y[:, None]).sum(1).to(dtype) / k
    return score, neighbours


def boundary_knn_filtered(z: Tensor, y: Tensor, k: int = 5) -> tuple[Tensor, Tensor]:
    """The reference behind a filter; same arguments, results and errors as `boundary_knn`. About 3 times faster at B = 1600.

    A matrix product gives all squared distances up to a rounding error that is bounded by e. The nearest few by that
    measure are measured exactly; where the next one might, within e, still belong among the k, the row goes to `cdist`.
    """
    _checked(z, y, k)
    kept = 2 * k + 2
    if z.shape[0] <= max(kept + 1, 64) or z.dtype not in (torch.float32, torch.float64):
        return boundary_knn_reference(z, y, k)
    centred = z - z.mean(0)
    norm = centred.square().sum(1)
    # |z_j|^2 - 2 z_i . z_j: the row's own |z_i|^2 does not change its order and is added to the few that matter.
    rough = torch.addmm(norm[None, :], centred, centred.T, alpha=-2.0)
    rough.fill_diagonal_(torch.inf)
    nearest = rough.topk(kept, largest=False, sorted=False)
    # By increasing index first, then stably by exact distance: ties by smaller index.
    columns = nearest.indices.sort(dim=1).values
    exact = (z[columns] - z[:, None]).square().sum(2)
    ordered = exact.sort(dim=1, stable=True)
    neighbours = columns.gather(1, ordered.indices[:, :k])
    error = 8 * (z.shape[1] + 4) * torch.finfo(z.dtype).eps * norm.max()
    doubtful = (nearest.values.max(1).values + norm - error <= ordered.values[:, k - 1]).nonzero().flatten()
    if doubtful.numel():
        distance = torch.cdist(z[doubtful], z, compute_mode="donot_use_mm_for_euclid_dist")
        distance[torch.arange(doubtful.numel(), device=z.device), doubtful] = torch.inf
        neighbours[doubtful] = distance.sort(dim=1, stable=True).indices[:, :k]
    score = (y[neighbours] != y[:, None]).sum(1).to(z.dtype) / k
    return score, neighbours


@triton.jit
def _boundary_knn_kernel(
    z_ptr,
    y_ptr,
    score_ptr,
    neighbours_ptr,
    rows,
    dim,
    stride_row,
    stride_dim,
    stride_label,
    K: tl.constexpr,
    SLOTS: tl.constexpr,  # K rounded up to a power of two
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    LAST: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    row_exists = row < rows
    row_start = z_ptr + row.to(tl.int64) * stride_row

    # The running list: K slots at infinity, to be filled; the padding at minus infinity, never the worst.
    slot = tl.arange(0, SLOTS)
    open_slot = tl.where(slot < K, float("inf"), float("-inf"))
    best = tl.zeros((BLOCK_ROWS, SLOTS), dtype=tl.float32) + open_slot[None, :]
    best_index = tl.zeros((BLOCK_ROWS, SLOTS), dtype=tl.int32) + (LAST - SLOTS) + slot[None, :]

    for start in range(0, rows, BLOCK_COLUMNS):
        column = start + tl.arange(0, BLOCK_COLUMNS)
        column_exists = column < rows
        column_start = z_ptr + column.to(tl.int64) * stride_row
        distance = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), dtype=tl.float32)
        for d in range(0, dim):
            a = tl.load(row_start + d * stride_dim, mask=row_exists, other=0.0).to(tl.float32)
            b = tl.load(column_start + d * stride_dim, mask=column_exists, other=0.0).to(tl.float32)
            difference = a[:, None] - b[None, :]
            distance += difference * difference
        admissible = column_exists[None, :] & (row[:, None] != column[None, :])
        distance = tl.where(admissible, distance, float("inf"))

        # The K best of the block in order of (distance, index); each takes the place of the worst so far if it is
        # strictly nearer. Columns come in increasing order, so an equal distance in the list has the smaller index.
        for _ in tl.static_range(K):
            nearest = tl.min(distance, axis=1)
            index = tl.min(tl.where(distance == nearest[:, None], column[None, :], LAST), axis=1)
            worst = tl.max(best, axis=1)
            worst_index = tl.max(tl.where(best == worst[:, None], best_index, -1), axis=1)
            replace = (best_index == worst_index[:, None]) & (nearest < worst)[:, None]
            best = tl.where(replace, nearest[:, None], best)
            best_index = tl.where(replace, index[:, None], best_index)
            distance = tl.where(column[None, :] == index[:, None], float("inf"), distance)

    # Write the list in order and count the foreign labels.
    best = tl.where(slot[None, :] < K, best, float("inf"))
    own = tl.load(y_ptr + row.to(tl.int64) * stride_label, mask=row_exists, other=0)
    foreign = tl.zeros((BLOCK_ROWS,), dtype=tl.float32)
    for rank in tl.static_range(K):
        nearest = tl.min(best, axis=1)
        index = tl.min(tl.where(best == nearest[:, None], best_index, LAST), axis=1)
        found = row_exists & (index < rows)
        label = tl.load(y_ptr + index.to(tl.int64) * stride_label, mask=found, other=0)
        foreign += tl.where(found & (label != own), 1.0, 0.0)
        tl.store(neighbours_ptr + row.to(tl.int64) * K + rank, index.to(tl.int64), mask=row_exists)
        best = tl.where(best_index == index[:, None], float("inf"), best)
        best_index = tl.where(best_index == index[:, None], LAST, best_index)
    tl.store(score_ptr + row, foreign / K, mask=row_exists)


def boundary_knn_triton(
    z: Tensor, y: Tensor, k: int = 5, *, block_rows: int = 32, block_columns: int = 64
) -> tuple[Tensor, Tensor]:
    """The fused kernel; same arguments, results and errors as `boundary_knn`. Distances accumulate in float32.

    `block_rows` and `block_columns` (powers of two) are the tile of distances held in registers.
    """
    k = _checked(z, y, k)
    if k == 0:
        return _empty(z, k)
    rows, dim = z.shape
    score = torch.empty(rows, dtype=torch.float32, device=z.device)
    neighbours = torch.empty((rows, k), dtype=torch.int64, device=z.device)
    _boundary_knn_kernel[(triton.cdiv(rows, block_rows),)](
        z,
        y,
        score,
        neighbours,
        rows,
        dim,
        z.stride(0),
        z.stride(1),
        y.stride(0),
        K=k,
        SLOTS=triton.next_power_of_2(k),
        BLOCK_ROWS=block_rows,
        BLOCK_COLUMNS=block_columns,
        LAST=NO_INDEX,
    )
    return score.to(z.dtype), neighbours


def boundary_knn(z: Tensor, y: Tensor, k: int = 5) -> tuple[Tensor, Tensor]:
    """Shift score of each point: the fraction of its k nearest neighbours that carry another label.

    Parameters
    ----------
    z : (B, D) floating point embeddings, finite, any strides. B may be 0.
    y : (B,) integer labels on the same device.
    k : neighbours, default 5; reduced to B - 1 where there are fewer others.

    Returns
    -------
    score : (B,) of z's dtype, in [0, 1]; 0 for a lone point, which has no neighbour.
    neighbours : (B, min(k, B - 1)) int64, by increasing distance, ties by smaller index.

    Raises
    ------
    ValueError : wrong shapes, devices that differ, k < 1, values that are not finite.
    TypeError : labels that are not integers.

    References
    ----------
    Chen et al., "Boundary Embedding Shaping with Adaptive Contrastive Learning for Graph Structural Disentanglement":
    the local shift score that singles out hard nodes among the boundary candidates.
    """
    return boundary_knn_triton(z, y, k) if z.is_cuda else boundary_knn_filtered(z, y, k)

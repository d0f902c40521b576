"""The fused kernel and its reference against brute force in float64."""

from __future__ import annotations

import pytest
import torch

from kernels.boundary_knn import boundary_knn, boundary_knn_filtered, boundary_knn_reference, boundary_knn_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
both = pytest.mark.parametrize("function", [boundary_knn_reference, boundary_knn_filtered, boundary_knn_triton])


def brute_force(z, y, k):
    """Loops, float64, sort by (distance, index)."""
    z = z.double()
    scores, neighbours = [], []
    for i in range(len(z)):
        order = sorted((((z[i] - z[j]) ** 2).sum().item(), j) for j in range(len(z)) if j != i)[:k]
        neighbours.append([j for _, j in order])
        scores.append(sum(int(y[j] != y[i]) for _, j in order) / max(len(order), 1))
    return torch.tensor(scores, dtype=torch.float64), torch.tensor(neighbours).reshape(len(z), -1)


def points(rows, dim, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(rows, dim, generator=generator).to(dtype)
    return z.to(DEVICE), torch.randint(0, 3, (rows,), generator=generator).to(DEVICE)


@both
@pytest.mark.parametrize(("rows", "dim", "k"), [(2, 1, 5), (3, 7, 1), (5, 3, 5), (33, 5, 5), (70, 32, 3), (97, 2, 8)])
def test_equals_brute_force_on_awkward_sizes(function, rows, dim, k):
    z, y = points(rows, dim)
    score, neighbours = function(z, y, k)
    expected_score, expected = brute_force(z.cpu(), y.cpu(), k)
    assert torch.equal(neighbours.cpu(), expected)
    torch.testing.assert_close(score.cpu().double(), expected_score, atol=1e-6, rtol=0)


@both
def test_duplicates_tie_by_smaller_index(function):
    """Small whole coordinates: many exact ties, within a block of columns and across blocks."""
    generator = torch.Generator().manual_seed(1)
    z = torch.randint(0, 2, (90, 3), generator=generator).float().to(DEVICE)
    y = torch.randint(0, 4, (90,), generator=generator).to(DEVICE)
    score, neighbours = function(z, y, 5)
    expected_score, expected = brute_force(z.cpu(), y.cpu(), 5)
    assert torch.equal(neighbours.cpu(), expected)
    torch.testing.assert_close(score.cpu().double(), expected_score, atol=1e-6, rtol=0)


@both
def test_all_points_equal(function):
    z, y = torch.ones(7, 4, device=DEVICE), torch.arange(7, device=DEVICE) % 2
    _, neighbours = function(z, y, 3)
    assert neighbours.tolist() == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1, 2]]


@both
def test_strided_input_is_not_copied_wrongly(function):
    z, y = points(40, 12)
    wide = torch.full((12, 80), 9.0, device=DEVICE)
    wide[:, ::2] = z.T
    labels = torch.full((80,), 7, device=DEVICE)
    labels[::2] = y
    strided, strided_y = wide[:, ::2].T, labels[::2]
    assert not strided.is_contiguous() and not strided_y.is_contiguous()
    for got, wanted in zip(function(strided, strided_y, 4), function(z, y, 4), strict=True):
        assert torch.equal(got, wanted)


@both
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(function, dtype):
    z = torch.arange(20, device=DEVICE).to(dtype)[:, None] ** 2 / 64  # distinct distances, exact in every dtype
    y = torch.arange(20, device=DEVICE) % 3
    score, neighbours = function(z, y, 5)
    expected_score, expected = brute_force(z.cpu(), y.cpu(), 5)
    assert torch.equal(neighbours.cpu(), expected) and score.dtype == dtype
    torch.testing.assert_close(score.cpu().double(), expected_score, atol=1e-2, rtol=0)


@both
def test_empty_and_lone(function):
    score, neighbours = function(torch.zeros(0, 3, device=DEVICE), torch.zeros(0, dtype=torch.int64, device=DEVICE), 5)
    assert score.shape == (0,) and neighbours.shape == (0, 0)
    score, neighbours = function(torch.zeros(1, 3, device=DEVICE), torch.zeros(1, dtype=torch.int64, device=DEVICE), 5)
    assert score.tolist() == [0.0] and neighbours.shape == (1, 0)


def test_far_from_the_origin_differences_keep_their_digits():
    """The expansion |a|^2 + |b|^2 - 2ab would lose all digits here."""
    z, y = points(80, 4)
    z = torch.round(z * 256) / 256
    for function in (boundary_knn_reference, boundary_knn_filtered, boundary_knn_triton):
        assert torch.equal(function(z, y, 5)[1], function(z + 4096, y, 5)[1])


@pytest.mark.parametrize("rows", [50, 700])
def test_dispatcher_equals_the_reference_on_the_cpu(rows):
    z, y = (tensor.cpu() for tensor in points(rows, 6))
    for got, wanted in zip(boundary_knn(z, y), boundary_knn_reference(z, y), strict=True):
        assert torch.equal(got, wanted)


def test_the_filter_measures_doubtful_rows_again():
    """Clusters far apart: the product's rounding error exceeds the distances within a cluster, every row is doubtful."""
    z, y = points(200, 3)
    z = torch.round(z.cpu() * 64) / 64 + 2048 * torch.arange(2).repeat(100)[:, None]
    for got, wanted in zip(boundary_knn_filtered(z, y.cpu()), boundary_knn_reference(z, y.cpu()), strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("function", [boundary_knn, boundary_knn_reference, boundary_knn_triton])
def test_bad_input_is_named(function):
    z, y = points(4, 2)
    with pytest.raises(ValueError, match=r"shape \(B, D\)"):
        function(z[0], y)
    with pytest.raises(ValueError, match=r"shape \(4,\), one label per row"):
        function(z, y[:3])
    with pytest.raises(TypeError, match=r"integer labels, got torch\.float32"):
        function(z, y.float())
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        function(z, y, 0)
    z[1, 1] = torch.nan
    with pytest.raises(ValueError, match="NaN or infinity"):
        function(z, y)

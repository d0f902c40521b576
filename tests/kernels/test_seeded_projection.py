"""Triton kernels and torch reference against an independent Philox4x32-10 in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.philox import philox_block
from kernels.seeded_projection import (
    seeded_axpy_,
    seeded_axpy_triton_,
    seeded_directions_reference,
    seeded_norm,
    seeded_project,
    seeded_project_reference,
    seeded_project_triton,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SEED = 0x1234_5678_9ABC_DEF0
projections = pytest.mark.parametrize("project", [seeded_project_reference, seeded_project_triton])


def philox(offsets, seed):
    """All four words with uint64 products; the round as in the authors' paper."""
    c = [np.asarray(offsets, dtype=np.uint64) & np.uint64(0xFFFFFFFF), np.asarray(offsets, dtype=np.uint64) >> np.uint64(32)]
    c += [np.zeros_like(c[0]), np.zeros_like(c[0])]
    key = [seed % 2**32, seed // 2**32]
    for r in range(10):
        k = [np.uint64((key[0] + r * 0x9E3779B9) % 2**32), np.uint64((key[1] + r * 0xBB67AE85) % 2**32)]
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        low = np.uint64(0xFFFFFFFF)
        c = [(b >> np.uint64(32)) ^ c[1] ^ k[0], b & low, (a >> np.uint64(32)) ^ c[3] ^ k[1], a & low]
    return c


def directions(d, P, dist, seed, first_row=0):
    words = philox((np.arange(first_row, first_row + d)[:, None] * P + np.arange(P)), seed)
    if dist == "rademacher":
        return np.where(words[0] & np.uint64(1), -1.0, 1.0)
    uniform = []
    for word in words[:2]:
        signed = word.astype(np.uint32).view(np.int32).astype(np.int64)
        uniform.append(np.where(signed < 0, -signed - 1, signed) * 4.6566127342e-10)
    return np.sqrt(-2 * np.log(np.maximum(uniform[0], 1e-7))) * np.cos(2 * np.pi * uniform[1])


def test_known_answers_of_the_generator():
    """The authors' test vectors for Philox4x32-10 with counter and key zero."""
    words = philox(np.array([0]), 0)
    assert [int(w[0]) for w in words] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert [w.item() for w in philox_block(torch.tensor([0]), 0)] == [int(w[0]) for w in words]


@pytest.mark.parametrize("start", [0, 2**32 - 3, 2**40 + 17])
def test_reference_words_equal_numpy(start):
    offsets = np.arange(start, start + 500)
    for ours, theirs in zip(philox_block(torch.from_numpy(offsets), SEED), philox(offsets, SEED), strict=True):
        assert np.array_equal(ours.numpy(), theirs.astype(np.int64))


@pytest.mark.parametrize("dist", ["gaussian", "rademacher"])
@pytest.mark.parametrize(("d", "P"), [(1, 1), (5, 16), (1000, 16), (1025, 64)])
def test_kernel_draws_the_directions_of_numpy(d, P, dist):
    """A column of U at a time: axpy on a zero vector gives u itself."""
    wanted = directions(d, P, dist, SEED)
    reference = seeded_directions_reference(d, P, SEED, dist).numpy()
    for column in {0, P // 2, P - 1}:
        u = torch.zeros(d, device=DEVICE)
        seeded_axpy_triton_(u, 1.0, SEED, dist, column=column, columns=P)
        if dist == "rademacher":
            assert np.array_equal(u.cpu().numpy(), wanted[:, column]) and np.array_equal(
                reference[:, column], wanted[:, column]
            )
        else:
            # float32 logarithms: the radius is up to 5.7, and steep where it is near 0.
            np.testing.assert_allclose(u.cpu().numpy(), wanted[:, column], atol=5e-6)
            np.testing.assert_allclose(reference[:, column], wanted[:, column], atol=5e-6)


@projections
@pytest.mark.parametrize("dist", ["gaussian", "rademacher"])
@pytest.mark.parametrize(("V", "d", "P"), [(1, 1, 1), (3, 5, 16), (10, 1000, 16), (3, 1025, 64), (10, 1025, 1), (70, 33, 40)])
def test_projection_equals_numpy(project, V, d, P, dist):
    J = torch.randn(V, d, generator=torch.Generator().manual_seed(d))
    wanted = J.double().numpy() @ directions(d, P, dist, SEED) / np.sqrt(P)
    found = project(J.to(DEVICE), P, dist, SEED)
    assert found.shape == (V, P) and found.dtype == torch.float32
    np.testing.assert_allclose(found.cpu().numpy(), wanted, atol=1e-4)


@projections
def test_strides_and_half_precision(project):
    J = torch.randn(40, 7, generator=torch.Generator().manual_seed(0)).to(DEVICE).T[:, ::2]
    assert not J.is_contiguous()
    torch.testing.assert_close(project(J, 8, "rademacher", 3), project(J.contiguous(), 8, "rademacher", 3))
    half = J.to(torch.bfloat16)
    torch.testing.assert_close(project(half, 8, "gaussian", 3), project(half.float(), 8, "gaussian", 3), atol=1e-5, rtol=0)
    assert project(J[:0], 8, "gaussian", 3).shape == (0, 8)


def test_offsets_beyond_32_bits():
    """d P above 2^32: the counter's second word carries on."""
    row = 2**30
    wanted = directions(100, 16, "rademacher", 7, first_row=row)[:, 5]
    for axpy in (seeded_axpy_, seeded_axpy_triton_):
        u = torch.zeros(100, device=DEVICE)
        axpy(u, 1.0, 7, "rademacher", column=5, columns=16, first_row=row)
        assert np.array_equal(u.cpu().numpy(), wanted)


@pytest.mark.parametrize("axpy", [seeded_axpy_, seeded_axpy_triton_])
@pytest.mark.parametrize("dist", ["gaussian", "rademacher"])
def test_axpy_adds_the_columns_of_the_projection(axpy, dist):
    d, P = 1025, 4
    U = torch.from_numpy(directions(d, P, dist, 11)).float()
    theta = torch.randn(d, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    before = theta.clone()
    same = axpy(theta[:600], 0.5, 11, dist, column=2, columns=P)
    axpy(theta[600:], 0.5, 11, dist, column=2, columns=P, first_row=600)
    assert same.data_ptr() == theta.data_ptr()
    torch.testing.assert_close(theta.cpu(), before.cpu() + 0.5 * U[:, 2], atol=5e-6, rtol=0)
    S = seeded_project(torch.eye(d, device=DEVICE)[:5], P, dist, 11)
    torch.testing.assert_close(S.cpu(), U[:5] / 2, atol=5e-6, rtol=0)


def test_moments_of_the_directions():
    U = seeded_directions_reference(20_000, 3, 5, "gaussian").double()
    assert abs(U.mean().item()) < 4 / np.sqrt(60_000)
    assert abs(U.var().item() - 1) < 4 * np.sqrt(2 / 60_000) and abs((U**4).mean().item() - 3) < 4 * np.sqrt(96 / 60_000)
    signs = seeded_directions_reference(20_000, 3, 5, "rademacher").double()
    assert abs(signs.mean().item()) < 4 / np.sqrt(60_000) and signs.abs().eq(1).all()
    correlation = torch.corrcoef(U.T) - torch.eye(3)
    assert correlation.abs().max() < 4 / np.sqrt(20_000)


def test_norm_is_that_of_the_direction():
    u = torch.zeros(1500)
    seeded_axpy_(u, 1.0, 9, "gaussian", column=1, columns=2)
    assert seeded_norm(1500, 9, column=1, columns=2) == pytest.approx(u.double().norm().item(), rel=1e-6)


@pytest.mark.parametrize("project", [seeded_project, seeded_project_reference, seeded_project_triton])
def test_bad_input_is_named(project):
    J = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"shape \(V, d\)"):
        project(J[0], 1)
    with pytest.raises(ValueError, match=r"got torch\.int64"):
        project(J.long(), 1)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        project(J, 0)
    with pytest.raises(ValueError, match="'gaussian' or 'rademacher', got 'sphere'"):
        project(J, 1, "sphere")
    with pytest.raises(ValueError, match="seed must lie"):
        project(J, 1, "gaussian", -1)
    with pytest.raises(ValueError, match="d = 0"):
        project(J[:, :0], 1)


@pytest.mark.parametrize("axpy", [seeded_axpy_, seeded_axpy_triton_])
def test_bad_axpy_is_named(axpy):
    with pytest.raises(ValueError, match="contiguous"):
        axpy(torch.zeros(4, 4)[:, 0], 1.0, 0)
    with pytest.raises(ValueError, match=r"column must lie in \[0, 2\), got 2"):
        axpy(torch.zeros(4), 1.0, 0, column=2, columns=2)
    with pytest.raises(ValueError, match="first_row"):
        axpy(torch.zeros(4), 1.0, 0, first_row=-1)

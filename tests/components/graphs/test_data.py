"""Planted graphs, loaders, splits and measures."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from components.graphs.csbm import boundary_csbm
from components.graphs.loaders import CORA_FILES, cora_from_wheel, edge_homophily, planetoid, reduce_features
from components.graphs.measures import expected_calibration_error, shift_score
from components.graphs.splits import stratified_split

CORA = Path("data/cora")


def test_planted_graph_has_its_measured_statistics():
    data = boundary_csbm()
    edges = data.edge_index.shape[1] // 2
    near = data.is_boundary[data.edge_index[0]]
    assert 5600 < edges < 6200
    assert edge_homophily(data.edge_index, data.y) == pytest.approx(0.62, abs=0.03)
    assert edge_homophily(data.edge_index[:, near], data.y) == pytest.approx(0.48, abs=0.03)
    assert data.is_boundary.sum() == 600 and data.y.bincount().tolist() == [400] * 5
    assert data.x.shape == (2000, 50) and data.x.dtype == torch.float32


def test_planted_features_have_unit_noise_and_the_given_signal():
    data = boundary_csbm(n=20000, classes=2, dim=50, boundary=0.0, seed=1)
    mean = torch.stack([data.x[data.y == c].mean(0) for c in range(2)])
    assert mean.norm(dim=1).tolist() == pytest.approx([50**0.5 / 4] * 2, abs=0.05)
    assert (data.x - mean[data.y]).std().item() == pytest.approx(1, abs=0.01)
    lean = boundary_csbm(n=20000, classes=2, dim=50, boundary=1.0, shift=1.0, seed=1)
    # lambda ~ U(0, 1): the mean of a class lies halfway between the two
    between = torch.stack([lean.x[lean.y == c].mean(0) for c in range(2)])
    assert (between[0] - between[1]).norm() < 0.15  # of 2.5; noise alone gives 0.1


def test_planted_partners_follow_the_weights_and_the_classes():
    data = boundary_csbm(n=3000, boundary=0.0, hom=1.0, seed=2)
    assert edge_homophily(data.edge_index, data.y) == 1.0
    degree = data.edge_index[0].bincount(minlength=3000).double()
    assert degree.mean().item() == pytest.approx(6, abs=0.3) and degree.max() > 4 * degree.mean()
    assert torch.equal(boundary_csbm(seed=5, n=50).x, boundary_csbm(seed=5, n=50).x)
    assert not torch.equal(boundary_csbm(seed=5, n=50).x, boundary_csbm(seed=6, n=50).x)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"classes": 1}, "at least 2 classes"),
        ({"n": 9}, "2 nodes per class"),
        ({"hom": 1.5}, r"hom must lie in \[0, 1\], got 1.5"),
        ({"degree": 0.0}, "degree must be positive"),
        ({"tail": 1.0}, "tail above 1"),
    ],
)
def test_planted_graph_rejects(options, says):
    with pytest.raises(ValueError, match=says):
        boundary_csbm(**options)


@pytest.fixture
def wheel(tmp_path):
    """Two files of the wheel's layout: 4 papers, one self citation, one citation in both directions."""
    words = np.eye(4, 6, dtype=np.int64)
    nodes = pd.DataFrame({"nodeId": [40, 10, 30, 20], "labels": "Paper", "subject": [0, 1, 0, 1], "features": list(words)})
    links = pd.DataFrame({"sourceNodeId": [40, 10, 30, 30], "targetNodeId": [10, 40, 30, 20], "relationshipType": "CITES"})
    nodes.to_parquet(tmp_path / "cora_nodes.parquet.gzip")
    links.to_parquet(tmp_path / "cora_rels.parquet.gzip")
    sums = {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in CORA_FILES}
    return tmp_path, sums


def test_wheel_is_read_in_its_own_order(wheel):
    path, sums = wheel
    data = cora_from_wheel(path, sums)
    assert data.edge_index.tolist() == [[0, 1, 2, 3], [1, 0, 3, 2]]
    assert data.y.tolist() == [0, 1, 0, 1] and torch.equal(data.x, torch.eye(4, 6))


def test_wheel_with_another_checksum_or_missing_is_refused(wheel):
    path, _ = wheel
    with pytest.raises(RuntimeError, match=f"has SHA-256 [0-9a-f]{{64}}, expected {CORA_FILES['cora_nodes.parquet.gzip']}"):
        cora_from_wheel(path)
    (path / "cora_nodes.parquet.gzip").unlink()
    with pytest.raises(FileNotFoundError, match=r"Cora needs cora_nodes\.parquet\.gzip"):
        cora_from_wheel(path)


@pytest.mark.skipif(not CORA.is_dir(), reason="the asset is not fetched")
def test_cora_golds():
    data = cora_from_wheel(CORA)
    assert data.x.shape == (2708, 1433) and data.edge_index.shape == (2, 10556)
    assert edge_homophily(data.edge_index, data.y) == pytest.approx(0.80997, abs=5e-6)
    assert data.y.bincount().tolist() == [818, 180, 217, 426, 351, 418, 298]
    assert data.x.sum(1).mean().item() == pytest.approx(18.174, abs=5e-4)


def test_unknown_planetoid_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has Cora, CiteSeer and PubMed, got 'Reddit'"):
        planetoid("Reddit", tmp_path)


def test_reduced_features_keep_the_geometry_of_scaled_rows():
    x = torch.rand(40, 12, generator=torch.Generator().manual_seed(0))
    x[3] = 0
    scaled = x / x.sum(1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(reduce_features(x, None), scaled)
    full = reduce_features(x, 12)
    ratio = torch.cdist(full, full) / torch.cdist(scaled, scaled).fill_diagonal_(torch.inf)
    off = ~torch.eye(40, dtype=torch.bool)
    torch.testing.assert_close(ratio[off], ratio[off].mean().expand(off.sum()), atol=1e-3, rtol=1e-3)
    assert full.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    assert torch.equal(reduce_features(x, 5), reduce_features(x, 5))
    with pytest.raises(ValueError, match=r"components must lie in \[1, 12\], got 13"):
        reduce_features(x, 13)
    with pytest.raises(ValueError, match="must not be negative"):
        reduce_features(-x)


@given(st.lists(st.integers(6, 40), min_size=2, max_size=5), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_split_is_stratified(sizes, seed):
    y = np.repeat(np.arange(len(sizes)), sizes)
    part = stratified_split(y, seed=seed)
    for label, size in enumerate(sizes):
        counts = np.bincount(part[y == label], minlength=3)
        assert counts.sum() == size and counts[0] == round(0.6 * size) and (counts > 0).all()
    assert np.array_equal(part, stratified_split(y, seed=seed))


def test_split_rejects():
    with pytest.raises(ValueError, match="class 1 has 2 nodes, too few"):
        stratified_split([0] * 9 + [1] * 2)
    with pytest.raises(ValueError, match="together below 1"):
        stratified_split([0, 1], train=0.9, val=0.1)
    with pytest.raises(TypeError, match="integer labels"):
        stratified_split([0.5, 1.0])


def test_shift_score_by_brute_force_without_itself():
    generator = torch.Generator().manual_seed(0)
    z, y = torch.randint(0, 3, (30, 2), generator=generator).float(), torch.arange(30) % 3
    reference = torch.arange(30) < 20
    score = shift_score(z, y, reference, k=4)
    for i in range(30):
        order = sorted((j for j in range(20) if j != i), key=lambda j: ((z[i] - z[j]).square().sum().item(), j))[:4]
        assert score[i].item() == np.mean([int(y[j] != y[i]) for j in order])
    with pytest.raises(ValueError, match=r"k must lie in \[1, 20\)"):
        shift_score(z, y, reference, k=20)


def test_calibration_golds():
    assert expected_calibration_error([0.5, 0.5], [True, False]) == 0
    assert expected_calibration_error([1.0, 1.0], [True, False]) == 0.5
    assert expected_calibration_error([0.95, 0.05], [True, True], bins=10) == pytest.approx((0.05 + 0.95) / 2)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        expected_calibration_error([1.5], [True])
    with pytest.raises(ValueError, match="one length"):
        expected_calibration_error([], [])

"""Fake quantisation: grids by brute force, straight-through gradients, scales per group and token."""

from __future__ import annotations

import pytest
import torch

from components.lowprec.fake_quant import FP4_LINEARS, FP4Linear, fake_quantize, quantize_groups

GRIDS = {"e1m2": [k / 4 for k in range(8)], "e2m1": [0, 0.5, 1, 1.5, 2, 3, 4, 6]}


@pytest.mark.parametrize("grid", GRIDS)
def test_values_are_the_nearest_of_the_grid(grid):
    values = torch.tensor(sorted({s * v for v in GRIDS[grid] for s in (-1, 1)}))
    x = torch.linspace(-float(values.max()), float(values.max()), 1001)
    found = fake_quantize(x, torch.tensor(1.0), grid)
    assert found.unique().numel() == 15 and torch.equal(found.unique(), values)
    distance = (x[:, None] - values).abs()
    torch.testing.assert_close((found - x).abs(), distance.min(1).values)


def test_gradients_pass_inside_the_range_and_stop_outside():
    x = torch.tensor([-1.8, -1.75, -0.3, 0.0, 1.1, 1.75, 2.0], requires_grad=True)
    (fake_quantize(x, torch.tensor(1.0)) * torch.arange(1.0, 8)).sum().backward()
    assert x.grad.tolist() == [0, 2, 3, 4, 5, 6, 0]
    y = torch.tensor([3.5, 3.6], requires_grad=True)
    fake_quantize(y, torch.tensor(2.0)).sum().backward()
    assert y.grad.tolist() == [1, 0]


@pytest.mark.parametrize("length", [1, 7, 8, 9, 24])
def test_groups_have_scales_of_their_own(length):
    x = torch.randn(3, length, generator=torch.Generator().manual_seed(0))
    found = quantize_groups(x, "e1m2", 8)
    for start in range(0, length, 8):
        part = x[:, start : start + 8]
        scale = part.abs().amax(1, keepdim=True) / 1.75
        wanted = (part / scale * 4).round() / 4 * scale
        torch.testing.assert_close(found[:, start : start + 8], wanted)
        # The largest of a group is on the grid.
        torch.testing.assert_close(found[:, start : start + 8].abs().amax(1), part.abs().amax(1))


def test_with_scales_from_the_largest_every_gradient_passes():
    x = torch.randn(50, 33, generator=torch.Generator().manual_seed(1), requires_grad=True)
    quantize_groups(x, "e1m2", 16).sum().backward()
    assert (x.grad == 1).all()


def test_zeros_stay_zeros():
    x = torch.zeros(2, 5, requires_grad=True)
    found = quantize_groups(x, "e1m2", 4)
    found.sum().backward()
    assert not found.any() and torch.isfinite(x.grad).all()


def test_layer_multiplies_rounded_values():
    torch.manual_seed(0)
    layer = FP4Linear(300, 4, grid="e2m1", group=256)
    x = torch.randn(2, 3, 300)

    def rounded(v):
        scale = v.abs().max() / 6
        grid = torch.tensor(sorted({s * g for g in GRIDS["e2m1"] for s in (-1, 1)}))
        return grid[(v[:, None] / scale - grid).abs().argmin(1)] * scale

    weight = torch.stack([torch.cat([rounded(row[:256]), rounded(row[256:])]) for row in layer.weight.detach()])
    tokens = torch.stack([rounded(token) for token in x.flatten(0, 1)])
    wanted = (tokens @ weight.T + layer.bias).reshape(2, 3, 4)
    torch.testing.assert_close(layer(x), wanted, rtol=1e-4, atol=1e-5)
    layer(x).square().sum().backward()
    assert layer.weight.grad.shape == (4, 300) and torch.isfinite(layer.weight.grad).all()
    assert "grid=e2m1, group=256" in repr(layer)


def test_layer_classes_for_models():
    assert FP4_LINEARS["e1m2"](8, 2, bias=False).grid == "e1m2"
    from components.language.tiny_llama import TinyLlama

    model = TinyLlama(11, 8, 1, 2, linear=FP4_LINEARS["e2m1"])
    assert sum(isinstance(layer, FP4Linear) for layer in model.modules()) == 7
    model.loss(torch.zeros(1, 4, dtype=torch.int64), torch.ones(1, 4, dtype=torch.int64)).backward()


def test_bad_input():
    with pytest.raises(ValueError, match="grid must be 'e1m2' or 'e2m1', got 'fp32'"):
        FP4Linear(2, 2, grid="fp32")
    with pytest.raises(ValueError, match="group must be a whole number"):
        FP4Linear(2, 2, group=0)
    with pytest.raises(ValueError, match="group must be at least 1"):
        quantize_groups(torch.ones(2), "e1m2", 0)
    with pytest.raises(TypeError, match="float32"):
        fake_quantize(torch.ones(2, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))
    with pytest.raises(ValueError, match="no number format 'int4'"):
        fake_quantize(torch.ones(2), torch.tensor(1.0), "int4")

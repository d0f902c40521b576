"""Clipping against torch's own functions, closed forms of the unit-wise rule, and gold values of the z-score rule."""

from __future__ import annotations

import math

import pytest
import torch

from components.optim.clipping import AGC, Chain, Identity, NormClip, ValueClip, ZClip
from components.optim.gradient_transforms import GradientStabilizer
from components.optim.stable_spam import AdaptiveSpikeClip, stable_spam_transform

SHAPES = ((3, 4), (5,), (2, 3, 2), ())


def filled(scale=1.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]
    for p in params:
        p.grad = (scale * torch.randn(p.shape, generator=generator)).to(dtype)
    return params


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_norm_clip_is_torchs(scale):
    ours, theirs = filled(scale), filled(scale)
    report = NormClip(1.0)(ours)
    total = torch.nn.utils.clip_grad_norm_(theirs, 1.0)
    assert report.norm_before.square().sum().sqrt().item() == pytest.approx(total.item(), rel=1e-6)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-6, atol=0)
    assert report.norm_after.tolist() == pytest.approx([p.grad.norm().item() for p in ours], rel=1e-5)


def test_value_clip_is_torchs():
    ours, theirs = filled(), filled()
    report = ValueClip(0.3)(ours)
    torch.nn.utils.clip_grad_value_(theirs, 0.3)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))
    assert report.norm_after.tolist() == pytest.approx([p.grad.norm().item() for p in ours])


def test_identity_changes_nothing():
    ours, before = filled(), filled()
    report = Identity()(ours)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours, before, strict=True))
    assert report.scale.tolist() == [1] * 4


def test_agc_limits_each_unit_by_its_weights():
    weight = torch.nn.Parameter(torch.tensor([[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]]))
    bias = torch.nn.Parameter(torch.tensor([0.3, 0.4]))
    weight.grad, bias.grad = torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.03, 0.04]]), torch.tensor([3.0, 4.0])
    AGC(0.01, eps=1e-3)([weight, bias])
    # Row norms 5, 0, 10: limits 0.05, 0.01 * eps, 0.1; the third row, of norm 0.05, is below its limit. A vector is one unit.
    torch.testing.assert_close(weight.grad, torch.tensor([[0.03, 0.04], [6e-6, 8e-6], [0.03, 0.04]]))
    torch.testing.assert_close(bias.grad, torch.tensor([0.003, 0.004]))


def test_agc_sees_a_convolution_by_output_channel():
    kernel = torch.nn.Parameter(torch.ones(2, 3, 2, 2))
    kernel.grad = torch.ones(2, 3, 2, 2) * torch.tensor([1.0, 1e-4]).reshape(2, 1, 1, 1)
    AGC(0.01)([kernel])
    torch.testing.assert_close(kernel.grad[0], torch.full((3, 2, 2), 0.01))
    torch.testing.assert_close(kernel.grad[1], torch.full((3, 2, 2), 1e-4))


def z_norms(transform, norms):
    p, found = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64)), []
    for r in norms:
        p.grad = torch.tensor([float(r)], dtype=torch.float64)
        transform([p])
        found.append(p.grad.item())
    return found


def test_zclip_by_its_documented_rule():
    """Warm-up norms 1 and 3: mu 2, sigma 1. Norm 12: z = 10, clipped to 2 + 4 / 10 = 2.4. Then mu = 2.2, variance
    0.5 + 0.5 * 0.2^2 = 0.52; norm 2.5 has z = 0.42 and stays: mu = 2.35, variance 0.26 + 0.5 * 0.15^2."""
    transform = ZClip(alpha=0.5, z=2.0, warmup=2)
    assert z_norms(transform, [1, 3, 12, 2.5]) == pytest.approx([1, 3, 2.4, 2.5], rel=1e-5)
    count, _, _, mean, variance = transform.state_dict()["zclip"].tolist()
    assert count == 4 and mean == pytest.approx(2.35, abs=1e-5) and variance == pytest.approx(0.27125, abs=1e-5)


def test_zclip_state_and_bad_steps():
    norms = [1, 2, 1.5, 30, 1, 40, 2, 1]
    whole = z_norms(ZClip(0.9, 2.0, 3), norms)
    first, second = ZClip(0.9, 2.0, 3), ZClip(0.9, 2.0, 3)
    start = z_norms(first, norms[:4])
    second.load_state_dict(first.state_dict())
    assert start + z_norms(second, norms[4:]) == whole
    kept = second.state_dict()["zclip"]
    z_norms(second, [math.nan])
    assert torch.equal(second.state_dict()["zclip"], kept)
    second.reset()
    assert second.state_dict() == {}
    with pytest.raises(ValueError, match="one tensor 'zclip' of 5 numbers"):
        second.load_state_dict({"zclip": torch.zeros(2)})


def test_spike_clip_by_hand():
    """gamma3 = 0.5; largest entries 4, then 8: A = 2, then 5; A_hat = 4, then 5 / 0.75 = 20 / 3."""
    (p,), transform = [torch.nn.Parameter(torch.zeros(3))], AdaptiveSpikeClip(0.5)
    p.grad = torch.tensor([4.0, -2.0, 1.0])
    transform([p])
    assert p.grad.tolist() == [4, -2, 1]
    p.grad = torch.tensor([-8.0, 7.0, 1.0])
    transform([p])
    factor = (20 / 3) / 8
    assert p.grad.tolist() == pytest.approx([-8 * factor, 7 * factor, 1])
    twin = AdaptiveSpikeClip(0.5)
    twin.load_state_dict(transform.state_dict())
    p.grad = torch.tensor([torch.nan, 0.0, 0.0])
    twin([p])
    assert torch.equal(twin.state_dict()["a"], transform.state_dict()["a"])
    with pytest.raises(ValueError, match="two tensors"):
        twin.load_state_dict({"b": 1})


def test_stable_spam_is_its_two_steps():
    params, twins = filled(), filled()
    chain, clip, norm = stable_spam_transform(), AdaptiveSpikeClip(0.999), GradientStabilizer(0.7, 0.9)
    for step in range(3):
        for p, q in zip(params, twins, strict=True):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(step)) * (100.0 if step == 2 else 1.0)
            q.grad = p.grad.clone()
        chain(params)
        clip(twins)
        norm(twins)
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(params, twins, strict=True))


def test_chain_reports_both_ends_and_keeps_states_apart():
    params = filled(100.0)
    before = [p.grad.norm().item() for p in params]
    chain = Chain(NormClip(1.0), ZClip(), GradientStabilizer())
    report = chain(params)
    assert report.norm_before.tolist() == pytest.approx(before) and report.norm_after.tolist() == pytest.approx([1] * 4)
    twin = Chain(NormClip(1.0), ZClip(), GradientStabilizer())
    twin.load_state_dict(chain.state_dict())
    assert torch.equal(twin.transforms[2].state["m"], chain.transforms[2].state["m"])
    chain.reset()
    assert chain.transforms[2].state == {}
    with pytest.raises(ValueError, match="this chain has 3 parts, got 1"):
        twin.load_state_dict({"0": {}})


@pytest.mark.parametrize("transform", [NormClip(), ValueClip(), AGC(), ZClip(), Identity(), AdaptiveSpikeClip()])
def test_nothing_dense_is_an_empty_report(transform):
    assert transform([torch.nn.Parameter(torch.zeros(2))]).positions == ()
    with pytest.raises(ValueError, match="params is empty"):
        transform([])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: NormClip(0), "max_norm"),
        (lambda: NormClip(-1.0), "max_norm"),
        (lambda: ValueClip(-0.1), "v must"),
        (lambda: AGC(0), "factor"),
        (lambda: AGC(0.1, -1), "eps"),
        (lambda: ZClip(alpha=1.0), "alpha"),
        (lambda: ZClip(z=0), "z must"),
        (lambda: ZClip(warmup=0), "warmup"),
        (lambda: AdaptiveSpikeClip(1.0), "gamma3"),
        (lambda: Chain(), "at least one"),
    ],
)
def test_bad_values(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def test_bad_types():
    with pytest.raises(TypeError, match="max_norm must be a number"):
        NormClip("1")
    with pytest.raises(TypeError, match="gradient transforms"):
        Chain(torch.nn.ReLU())
    with pytest.raises(ValueError, match="NormClip has no state"):
        NormClip().load_state_dict({"m": 1})

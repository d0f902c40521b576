"""GradientStabilizer: gold values, its bound on adversarial norm sequences, invariances, bad gradients, state."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from components.optim.gradient_transforms import GradientStabilizer, spike_step_bound, stabilizer_bound

GRID = [(0.6, 0.999), (0.4, 0.95), (0.8, 0.99999), (0.9, 0.82), (0.0, 0.5), (0.5, 0.3)]


def parameters(*shapes, dtype=torch.float64):
    return [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]


def feed(transform, norms):
    """The stabilised norms of one tensor whose gradients have the given norms, in varying directions."""
    (p,) = parameters((3,))
    generator, found = torch.Generator().manual_seed(0), []
    for r in norms:
        g = torch.randn(3, generator=generator, dtype=torch.float64)
        p.grad = g / g.norm() * r
        transform([p])
        found.append(p.grad.norm().item())
    return found


# --- values ---------------------------------------------------------------------------------------------------------


def test_gold_values():
    assert feed(GradientStabilizer(), [3.0, 4.0]) == pytest.approx([1, 1.025233], abs=1e-6)
    found = feed(GradientStabilizer(), [1, 1, 1, 1000, 1, 1])
    assert found == pytest.approx([1, 1, 1, 0.919507, 0.583267, 0.371975], abs=1e-6)


def test_first_step_has_norm_one_or_without_correction_twelve():
    assert feed(GradientStabilizer(), [123.0]) == pytest.approx([1])
    assert feed(GradientStabilizer(bias_correction=False), [123.0]) == pytest.approx([0.4 / math.sqrt(0.001)])


@pytest.mark.parametrize(("gamma1", "gamma2"), GRID)
def test_constant_norms_give_one_at_every_step(gamma1, gamma2):
    assert feed(GradientStabilizer(gamma1, gamma2), [7.5] * 60) == pytest.approx([1] * 60, abs=1e-9)


def test_without_memory_it_is_normalised_gradient():
    assert feed(GradientStabilizer(0.0, 0.0), [3, 1e-6, 1e6]) == pytest.approx([1, 1, 1], rel=1e-5)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_scale_of_the_whole_history_does_not_matter(scale):
    norms = np.exp(np.random.default_rng(0).normal(size=50))
    assert feed(GradientStabilizer(), norms * scale) == pytest.approx(feed(GradientStabilizer(), norms), rel=2e-6)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)]
)
def test_direction_is_kept_and_the_norm_is_rho(dtype, tolerance):
    params = parameters((5, 7), (1,), (2, 3, 4), (), dtype=dtype)
    transform, generator = GradientStabilizer(), torch.Generator().manual_seed(1)
    for _ in range(3):
        before = []
        for i, p in enumerate(params):
            p.grad = (10.0**i * torch.randn(p.shape, generator=generator)).to(dtype)
            before.append(p.grad.double().clone())
        report = transform(params)
        for i, (p, g) in enumerate(zip(params, before, strict=True)):
            after = p.grad.double()
            assert (after * g).sum().item() == pytest.approx((after.norm() * g.norm()).item(), rel=max(1e-6, tolerance**2))
            assert after.norm().item() == pytest.approx(report.norm_after[i].item(), rel=max(tolerance, 1e-6))
            assert report.norm_before[i].item() == pytest.approx(g.norm().item(), rel=1e-3)
            assert report.scale[i].item() == pytest.approx((report.norm_after[i] / report.norm_before[i]).item(), rel=1e-5)
    assert report.positions == (0, 1, 2, 3) and not report.skipped.any()


def test_half_precision_norms_do_not_overflow():
    (p,) = parameters((4096,), dtype=torch.float16)
    p.grad = torch.full((4096,), 60000.0, dtype=torch.float16)  # norm 3.84 million, beyond float16
    report = GradientStabilizer()([p])
    assert report.norm_before.item() == pytest.approx(60000 * 64, rel=1e-3)
    assert p.grad.float().norm().item() == pytest.approx(1, rel=1e-2)


def test_global_scope_is_one_norm_for_all():
    params, joined = parameters((3,), (2, 2)), parameters((7,))
    one, whole = GradientStabilizer(scope="global"), GradientStabilizer()
    for step in range(4):
        g = torch.randn(7, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        params[0].grad, params[1].grad, joined[0].grad = g[:3].clone(), g[3:].reshape(2, 2).clone(), g.clone()
        report = one(params)
        whole(joined)
        torch.testing.assert_close(torch.cat([p.grad.flatten() for p in params]), joined[0].grad)
    assert report.norm_after.square().sum().sqrt().item() == pytest.approx(joined[0].grad.norm().item(), rel=1e-6)
    assert one.state["t"].tolist() == [4]


# --- the bound ------------------------------------------------------------------------------------------------------


def test_bound_gold_values():
    assert stabilizer_bound() == pytest.approx(15.816, abs=5e-4)
    wanted = {1: 1.0, 2: 1.0307, 5: 1.2077, 10: 1.5876, 100: 4.88, 1000: 12.58}
    for t, value in wanted.items():
        assert stabilizer_bound(t=t) == pytest.approx(value, rel=5e-4)
    assert stabilizer_bound(t=10**6) == pytest.approx(stabilizer_bound(), rel=1e-9)
    assert stabilizer_bound(t=1, bias_correction=False) == pytest.approx(0.4 / math.sqrt(0.001))
    assert stabilizer_bound(0.9, 0.81) == math.inf and stabilizer_bound(0.9, 0.5) == math.inf
    assert spike_step_bound(0.6, 0.999, 1e12) == pytest.approx(12.649, abs=1e-3)
    assert spike_step_bound(0.6, 0.999, 10) - spike_step_bound(0.6, 0.999, 1e12) == pytest.approx(18.97 / 10, abs=1e-3)


@settings(max_examples=200, deadline=None)
@given(
    exponents=st.lists(st.floats(0, 8), min_size=1, max_size=40),
    rates=st.sampled_from(GRID),
    correct=st.booleans(),
)
def test_no_sequence_of_norms_exceeds_the_bound(exponents, rates, correct):
    transform = GradientStabilizer(*rates, bias_correction=correct)
    for t, rho in enumerate(feed(transform, [10.0**x for x in exponents]), 1):
        assert rho <= stabilizer_bound(*rates, t=t, bias_correction=correct) * (1 + 1e-6)
        assert t == 1 or rho <= stabilizer_bound(*rates, bias_correction=correct) * (1 + 1e-6)


@pytest.mark.parametrize("correct", [True, False])
def test_the_worst_sequence_attains_the_bound(correct):
    """Equality in Cauchy and Schwarz: norms in proportion to (gamma1 / gamma2)^age."""
    gamma1, gamma2, t = 0.6, 0.95, 60
    norms = [(gamma1 / gamma2) ** (t - k) * 1e8 for k in range(1, t + 1)]
    found = feed(GradientStabilizer(gamma1, gamma2, bias_correction=correct), norms)[-1]
    assert found == pytest.approx(stabilizer_bound(gamma1, gamma2, t=t, bias_correction=correct), rel=1e-9)


@settings(max_examples=100, deadline=None)
@given(history=st.lists(st.floats(0.1, 10), min_size=5, max_size=30), size=st.floats(1, 1e7))
def test_spike_steps_stay_below_their_own_bound(history, size):
    transform = GradientStabilizer(bias_correction=False)
    feed(transform, history)
    m = transform.state["m"].item()
    (p,) = parameters((1,))
    p.grad = torch.tensor([size * m], dtype=torch.float64)
    transform([p])
    assert p.grad.abs().item() <= spike_step_bound(0.6, 0.999, size) * (1 + 1e-6)


def test_moments_of_adam_behind_it_stay_below_the_bound():
    (p,) = parameters((1,))
    optimizer, transform, rng = torch.optim.Adam([p]), GradientStabilizer(0.4, 0.9), np.random.default_rng(0)
    bound = stabilizer_bound(0.4, 0.9)
    for t in range(1, 120):
        p.grad = torch.tensor([10.0 ** rng.uniform(0, 8) if rng.random() < 0.1 else 1.0], dtype=torch.float64)
        transform([p])
        optimizer.step()
        state = optimizer.state[p]
        assert state["exp_avg"].abs().item() <= bound * (1 - 0.9**t) * (1 + 1e-9)
        assert state["exp_avg_sq"].item() <= bound**2 * (1 - 0.999**t) * (1 + 1e-9)


# --- gradients that are bad, missing, sparse --------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("scope", ["tensor", "global"])
def test_a_gradient_that_is_not_finite_becomes_zero_and_does_not_count(bad, scope):
    params, transform = parameters((3,), (2,)), GradientStabilizer(scope=scope)
    for p in params:
        p.grad = torch.ones_like(p)
    transform(params)
    kept = {name: x.clone() for name, x in transform.state.items()}
    params[0].grad, params[1].grad = torch.tensor([1.0, bad, 2.0], dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    report = transform(params)
    assert params[0].grad.tolist() == [0, 0, 0]
    for name in ("m", "v", "t"):
        assert transform.state[name][0] == kept[name][0]
    if scope == "tensor":
        assert report.skipped.tolist() == [True, False] and transform.state["skipped"].tolist() == [1, 0]
        assert params[1].grad.norm().item() == pytest.approx(1) and transform.state["t"].tolist() == [1, 2]
    else:
        assert report.skipped.tolist() == [True, True] and params[1].grad.tolist() == [0, 0]
    assert torch.isfinite(report.norm_after).all() and report.scale[0] == 0


def test_zero_gradients_change_nothing_even_first():
    (p,), transform = parameters((4,)), GradientStabilizer()
    p.grad = torch.zeros(4, dtype=torch.float64)
    report = transform([p])
    assert p.grad.tolist() == [0] * 4 and report.scale.tolist() == [1] and not report.skipped.any()
    assert {name: x.tolist() for name, x in transform.state.items()} == {"m": [0], "v": [0], "t": [0], "skipped": [0]}
    assert feed(transform, [5.0]) == pytest.approx([1])


def test_missing_and_sparse_gradients_are_left_alone():
    params, transform = parameters((3,), (4, 2), (2,)), GradientStabilizer()
    table = torch.sparse_coo_tensor([[1]], [[3.0, 4.0]], (4, 2), dtype=torch.float64, check_invariants=True)
    params[1].grad, params[2].grad = table, torch.full((2,), 9.0, dtype=torch.float64)
    report = transform(params)
    assert report.positions == (2,) and params[0].grad is None
    assert torch.equal(params[1].grad.to_dense(), table.to_dense())
    assert transform.state["t"].tolist() == [0, 0, 1]
    params[2].grad = None
    assert transform(params).positions == ()
    # When a gradient comes later it starts at its own step one.
    params[0].grad, params[1].grad, params[2].grad = (
        torch.ones(3, dtype=torch.float64) * 5,
        None,
        torch.ones(2, dtype=torch.float64),
    )
    report = transform(params)
    assert report.positions == (0, 2) and report.norm_after[0].item() == pytest.approx(1)
    assert transform.state["t"].tolist() == [1, 0, 2]


def test_nothing_is_read_by_the_host():
    """On the meta device there is nothing to read: any look at a value raises."""
    params = [torch.nn.Parameter(torch.empty(4, 3, device="meta")) for _ in range(3)]
    for p in params[:2]:
        p.grad = torch.empty_like(p)
    for scope in ("tensor", "global"):
        transform = GradientStabilizer(scope=scope)
        for _ in range(2):
            assert transform(params).norm_after.shape == (2,)


def test_device_path_equals_host_path(monkeypatch):
    """The factors stay on a device that is not the CPU; here the same code runs on CPU tensors."""
    from components.optim import gradient_transforms as module

    tensors = [torch.randn(5, dtype=dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16)]
    tensors[1][2] = torch.nan
    factor, finite = torch.tensor([0.5, 0.0, 3.0], dtype=torch.float64), torch.tensor([True, False, True])
    host, device = ([x.clone() for x in tensors] for _ in range(2))
    module.scale_gradients(host, factor, finite)

    class Elsewhere:
        """A factor that says it is on another device."""

        type = "elsewhere"

    class Factor:
        device = Elsewhere()

        def unbind(self):
            return factor.unbind()

    module.scale_gradients(device, Factor(), finite)
    for a, b in zip(host, device, strict=True):
        torch.testing.assert_close(a, b)
    assert host[1].tolist() == [0] * 5


def test_replicas_agree_to_the_bit():
    """After an average over processes all see the same gradients, and the transform depends on nothing else."""
    results = []
    for _ in range(2):
        params, transform = parameters((64, 3), (5,), dtype=torch.float32), GradientStabilizer()
        for step in range(3):
            generator = torch.Generator().manual_seed(step)
            for p in params:
                p.grad = torch.randn(p.shape, generator=generator)
            transform(params)
        results.append([p.grad for p in params])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_triton_backend_equals_foreach():
    params, twins = parameters((33,), (7, 3), (1,), dtype=torch.float32), parameters((33,), (7, 3), (1,), dtype=torch.float32)
    fused, plain = GradientStabilizer(backend="triton"), GradientStabilizer()
    if torch.cuda.is_available():
        params = [torch.nn.Parameter(p.detach().cuda()) for p in params]
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        for i, (p, q) in enumerate(zip(params, twins, strict=True)):
            g = torch.randn(q.shape, generator=generator) if (step, i) != (2, 1) else torch.full(q.shape, torch.nan)
            p.grad, q.grad = g.clone().to(p.device), g.clone()
        if step == 3:
            params[0].grad = twins[0].grad = None
        first, second = fused(params), plain(twins)
        for a, b in zip(first[1:4], second[1:4], strict=True):
            torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=0, equal_nan=True)
        assert torch.equal(first.skipped.cpu(), second.skipped)
        for p, q in zip(params[step == 3 :], twins[step == 3 :], strict=True):
            torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-5, atol=0)
    for name, value in fused.state.items():
        torch.testing.assert_close(value.cpu(), plain.state[name], rtol=1e-6, atol=0)


# --- state ----------------------------------------------------------------------------------------------------------


def test_state_round_trip_continues_to_the_bit():
    norms = np.exp(np.random.default_rng(3).normal(size=20))
    whole = feed(GradientStabilizer(), norms)
    first = GradientStabilizer()
    params = parameters((3,))
    generator, found = torch.Generator().manual_seed(0), []
    transform = first
    for step, r in enumerate(norms):
        if step == 11:
            saved = copy.deepcopy(first.state_dict())
            transform = GradientStabilizer()
            transform.load_state_dict(saved)
        g = torch.randn(3, generator=generator, dtype=torch.float64)
        params[0].grad = g / g.norm() * r
        transform(params)
        found.append(params[0].grad.norm().item())
    assert found == whole


def test_state_dict_is_a_copy_and_reset_forgets():
    transform = GradientStabilizer()
    feed(transform, [1, 2, 3])
    saved = transform.state_dict()
    feed(transform, [4])
    assert saved["tensors"]["t"].tolist() == [3] and transform.state["t"].tolist() == [4]
    transform.reset()
    assert transform.state == {} and feed(transform, [9.0]) == pytest.approx([1])


def test_parameters_may_be_added_at_the_end_but_not_removed():
    params, transform = parameters((2,), (3,)), GradientStabilizer()
    for p in params:
        p.grad = torch.ones_like(p)
    transform(params[:1])
    transform(params)
    assert transform.state["t"].tolist() == [2, 1]
    with pytest.raises(ValueError, match="state is that of 2 parameters, but 1 are given"):
        transform(params[:1])


def test_loading_a_state_that_does_not_fit():
    transform = GradientStabilizer()
    feed(transform, [1, 2])
    saved = transform.state_dict()
    two = GradientStabilizer()
    params = parameters((2,), (3,))
    for p in params:
        p.grad = torch.ones_like(p)
    two(params)
    with pytest.raises(ValueError, match="state is that of 1 parameters, this transform has 2"):
        two.load_state_dict(saved)
    fresh = GradientStabilizer()
    fresh.load_state_dict(saved)
    with pytest.raises(ValueError, match="state is that of 1 parameters, but 2 are given"):
        fresh(params)
    with pytest.raises(ValueError, match="no state of GradientStabilizer"):
        fresh.load_state_dict({"m": 1})
    with pytest.raises(ValueError, match=r"state's v must be a tensor of shape \(1,\)"):
        fresh.load_state_dict(saved | {"tensors": saved["tensors"] | {"v": torch.zeros(2)}})
    with pytest.raises(ValueError, match="scope='tensor', this transform has 'global'"):
        GradientStabilizer(scope="global").load_state_dict(saved)
    other = GradientStabilizer(gamma1=0.5)
    with pytest.warns(UserWarning, match=r"kept are gamma1 = 0\.5 \(saved: 0\.6\)"):
        other.load_state_dict(saved)
    assert other.gamma1 == 0.5 and torch.equal(other.state["m"], saved["tensors"]["m"])


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"gamma1": 1.0}, ValueError, r"gamma1 must lie in \[0, 1\), got 1\.0"),
        ({"gamma1": -0.1}, ValueError, "gamma1"),
        ({"gamma2": 1.5}, ValueError, "gamma2"),
        ({"gamma2": math.nan}, ValueError, "gamma2"),
        ({"gamma1": 0.9, "gamma2": 0.81}, ValueError, "no uniform bound"),
        ({"gamma1": "0.6"}, TypeError, "gamma1 must be a number"),
        ({"eps": 0.0}, ValueError, "eps must lie in"),
        ({"eps": -1e-9}, ValueError, "eps"),
        ({"scope": "layer"}, ValueError, "scope must be"),
        ({"backend": "cuda"}, ValueError, "backend must be"),
        ({"backend": "triton", "scope": "global"}, ValueError, "one norm per tensor"),
    ],
)
def test_bad_hyperparameters(options, error, says):
    with pytest.raises(error, match=says):
        GradientStabilizer(**options)


def test_unbounded_rates_can_be_allowed():
    assert feed(GradientStabilizer(0.95, 0.5, allow_unbounded=True), [1, 1]) == pytest.approx([1, 1])


def test_bad_parameters_and_gradients():
    transform = GradientStabilizer()
    (p,) = parameters((2,))
    with pytest.raises(ValueError, match="params is empty"):
        transform([])
    with pytest.raises(TypeError, match="got one tensor"):
        transform(p)
    with pytest.raises(TypeError, match=r"params\[0\] is str"):
        transform(["weight"])
    with pytest.raises(ValueError, match="occurs twice"):
        transform([p, p])
    z = torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    z.grad = torch.ones(2, dtype=torch.complex64)
    with pytest.raises(TypeError, match=r"params\[1\] is torch\.complex64"):
        transform([p, z])
    whole = torch.zeros(2, dtype=torch.int64)
    whole.grad = torch.ones(2, dtype=torch.int64)
    with pytest.raises(TypeError, match="real floating point numbers"):
        transform([whole])


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(stabilizer_bound, (1.0, 0.9)), (stabilizer_bound, (0.5, 0.9, 0)), (spike_step_bound, (0.6, 0.999, 0))],
)
def test_bad_arguments_of_the_bounds(function, arguments):
    with pytest.raises(ValueError, match="must"):
        function(*arguments)

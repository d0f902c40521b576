"""Directions that replay, estimates with known expectations, an optimiser that restores and resumes to the bit."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from components.optim.perturbations import BLOCK, DISTRIBUTIONS, Stream, blocks, directions, kernel_seed, orthogonal_directions
from components.optim.zeroth_order import ZOSGD, ZOGradient, expected_square_norm
from kernels.seeded_projection import seeded_directions_reference

EVERY = pytest.mark.parametrize("dist", DISTRIBUTIONS)


def stacked(d, P, dist, seed=0, step=0, dtype=torch.float64):
    return torch.stack(list(directions(d, P, dist, seed, step, dtype)))


# --- directions -----------------------------------------------------------------------------------------------------


@EVERY
def test_directions_replay_to_the_bit_and_differ_between_names(dist):
    first = stacked(70, 3, dist, seed=5, step=2)
    assert torch.equal(first, stacked(70, 3, dist, seed=5, step=2))
    others = [stacked(70, 3, dist, seed=6, step=2), stacked(70, 3, dist, seed=5, step=3), first.roll(1, 0)]
    assert not any(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("dist", ["gaussian", "rademacher", "sphere", "coordinate"])
@pytest.mark.parametrize("chunk", [1, 64, 100, 4096])
def test_blocks_are_the_directions_whatever_their_size(dist, chunk):
    d = 1000
    whole = np.concatenate([block.copy() for _, block in blocks(d, 3, dist, 7, 1, chunk)], axis=1)
    scales = np.array([Stream(d, dist, 7, 1, index).scale() for index in range(3)])
    np.testing.assert_array_equal(
        (whole * scales[:, None].astype(np.float32)), stacked(d, 3, dist, 7, 1, torch.float32).numpy()
    )


def test_supports_of_the_distributions():
    assert stacked(500, 4, "rademacher").abs().eq(1).all()
    torch.testing.assert_close(stacked(500, 4, "sphere").norm(dim=1), torch.full((4,), math.sqrt(500), dtype=torch.float64))
    U = stacked(50, 50, "orthogonal") / math.sqrt(50)
    torch.testing.assert_close(U @ U.T, torch.eye(50, dtype=torch.float64), atol=1e-10, rtol=0)
    coordinate = stacked(50, 4, "coordinate")
    assert coordinate.ne(0).sum(1).eq(1).all() and coordinate.max().item() == pytest.approx(math.sqrt(50))


@EVERY
def test_second_moment_is_the_identity(dist):
    """Mean of u u^T over 4000 draws; the largest standard deviation of an entry is that of sqrt(d) e_i: sqrt(d - 1)."""
    d, draws = 4, 4000
    if dist == "orthogonal":
        u = torch.cat([orthogonal_directions(d, 2, 3, step) for step in range(draws // 2)])
    else:
        u = stacked(d, draws, dist, seed=3)
    error = (u.T @ u / draws - torch.eye(d)).abs().max()
    assert error < 4.5 * math.sqrt(d - 1) / math.sqrt(draws)
    assert u.mean(0).abs().max() < (0.6 if dist == "coordinate" else 4.5 / math.sqrt(draws))


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.integers(0, 2**63), st.sampled_from(["gaussian", "rademacher", "sphere"]), st.integers(2, 9))
def test_projection_is_unbiased(seed, dist, d):
    """Mean of u u^T x over 2000 draws within 4.5 standard errors of x, coordinate by coordinate."""
    x = torch.linspace(-1, 2, d, dtype=torch.float64)
    u = stacked(d, 2000, dist, seed)
    draws = u * (u @ x)[:, None]
    standard_error = draws.std(0) / math.sqrt(2000)
    assert ((draws.mean(0) - x).abs() <= 4.5 * standard_error + 1e-12).all()


def test_kernel_seeds_do_not_collide():
    seeds = {kernel_seed(seed, step) for seed in range(50) for step in range(50)}
    assert len(seeds) == 2500 and all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("dist", ["gaussian", "rademacher", "sphere"])
def test_the_kernels_path_is_one_set_of_directions(dist, monkeypatch):
    """As on CUDA, with the kernels' reference: optimiser, estimate and projection share the kernels' directions."""
    from components.optim import entk, perturbations, zeroth_order

    for module in (entk, perturbations, zeroth_order):
        monkeypatch.setattr(module, "kernels_draw", lambda tensors, dist: True)
    d, P = 300, 3
    p, q = torch.nn.Parameter(torch.zeros(120)), torch.nn.Parameter(torch.zeros(12, 15))
    g = torch.linspace(-1, 1, d)
    optimizer = ZOSGD([p, q], 1.0, P, mu=0.5, dist=dist, seed=3)
    optimizer.step(lambda: torch.cat([p, q.reshape(-1)]) @ g)
    zo = ZOGradient(P, 0.5, dist, seed=3)
    estimate = zo.estimate(lambda t: t @ g, torch.zeros(d))
    torch.testing.assert_close(torch.cat([p.detach(), q.detach().reshape(-1)]), -estimate, atol=1e-3, rtol=1e-4)
    U = entk.project(torch.eye(d), P, dist, 3)
    torch.testing.assert_close(U @ (U.T @ g), estimate, atol=1e-3, rtol=1e-4)
    drawn = torch.stack(list(zo.directions(0)))
    torch.testing.assert_close(drawn.T / math.sqrt(P), U, atol=1e-5, rtol=0)
    wanted = seeded_directions_reference(d, P, kernel_seed(3, 0), "rademacher" if dist == "rademacher" else "gaussian").T
    if dist == "sphere":
        wanted = wanted * (math.sqrt(d) / wanted.norm(dim=1, keepdim=True))
    torch.testing.assert_close(drawn, wanted, atol=1e-5, rtol=0)


# --- the estimate ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [1e-5, 1e-2, 3.0])
@EVERY
def test_quadratic_loss_has_no_bias_in_mu(dist, mu):
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(12, 12, generator=generator, dtype=torch.float64)
    theta = torch.randn(12, generator=generator, dtype=torch.float64)
    A = A + A.T
    zo = ZOGradient(5, mu, dist, seed=4)
    found = zo.estimate(lambda t: t @ A @ t / 2, theta, step=3)
    U = torch.stack(list(zo.directions(3, dtype=torch.float64))).T / math.sqrt(5)
    torch.testing.assert_close(found, U @ U.T @ (A @ theta), atol=1e-9 * max(1, 1e-5 / mu) * 100, rtol=1e-6)


def test_cubic_loss_has_a_bias_of_second_order_in_mu():
    theta = torch.linspace(-1, 1, 6, dtype=torch.float64)
    radii = [0.4, 0.2, 0.1, 0.05]
    biases = []
    for mu in radii:
        zo = ZOGradient(3, mu, "gaussian", seed=1)
        U = torch.stack(list(zo.directions(0, 6, torch.float64))).T / math.sqrt(3)
        biases.append((zo.estimate(lambda t: (t**3).sum(), theta, step=0) - U @ U.T @ (3 * theta**2)).norm().item())
    slopes = np.diff(np.log(biases)) / np.diff(np.log(radii))
    np.testing.assert_allclose(slopes, 2, atol=1e-6)


def test_all_orthogonal_directions_give_the_gradient():
    theta = torch.linspace(-1, 1, 9, dtype=torch.float64)
    found = ZOGradient(9, 1e-5, "orthogonal").estimate(lambda t: torch.sin(t).sum(), theta)
    torch.testing.assert_close(found, torch.cos(theta), atol=1e-8, rtol=0)


@EVERY
def test_estimate_lies_in_the_span_and_never_points_away(dist):
    theta = torch.linspace(-1, 1, 9, dtype=torch.float64)
    zo = ZOGradient(3, 1e-5, dist, seed=2)
    for step in range(5):
        found = zo.estimate(lambda t: torch.sin(t).sum(), theta)
        U = torch.stack(list(zo.directions(step, dtype=torch.float64))).T
        rest = found - U @ torch.linalg.lstsq(U, found[:, None], driver="gelsd").solution[:, 0]
        assert rest.norm() < 1e-8 * max(1, found.norm()) and found @ torch.cos(theta) >= -1e-9
    assert zo.step == 5


@pytest.mark.parametrize("dist", ["gaussian", "rademacher", "sphere", "orthogonal"])
@pytest.mark.parametrize("P", [1, 4])
def test_length_of_the_estimate(dist, P):
    """Over 3000 steps, against 1 + (d+1)/P and its siblings; a linear loss makes each estimate exactly U U^T g."""
    d, steps = 20, 1500
    g = torch.linspace(-1, 1, d, dtype=torch.float64)
    zo = ZOGradient(P, 1.0, dist, seed=8)
    squares = torch.stack(
        [zo.estimate(lambda t: t @ g, torch.zeros(d, dtype=torch.float64)).square().sum() for _ in range(steps)]
    )
    ratio, law = squares / g.square().sum(), expected_square_norm(d, P, dist)
    assert abs(ratio.mean() - law) < 4.5 * ratio.std() / math.sqrt(steps)


@EVERY
def test_batched_estimate_is_the_estimate(dist):
    theta = torch.linspace(-1, 1, 40)
    zo = ZOGradient(7, 1e-2, dist, seed=3)
    one = zo.estimate(lambda t: torch.sin(t).sum(), theta, step=4)
    for chunk in (1, 3, 16):
        many = zo.estimate_batched(lambda t: torch.sin(t).sum(-1), theta, step=4, chunk=chunk)
        torch.testing.assert_close(many, one, atol=1e-3, rtol=1e-3)


def test_bad_arguments_of_the_estimate():
    for arguments, says in (
        ({"n_perturbations": 0}, "at least 1, got 0"),
        ({"n_perturbations": 1, "mu": 0.0}, "mu must be"),
        ({"n_perturbations": 1, "mu": math.nan}, "mu must be"),
        ({"n_perturbations": 1, "dist": "cauchy"}, "dist must be one of gaussian"),
        ({"n_perturbations": 1, "seed": -1}, "seed must lie"),
    ):
        with pytest.raises(ValueError, match=says):
            ZOGradient(**arguments)
    with pytest.raises(TypeError, match="whole number"):
        ZOGradient(1.5)
    theta, zo = torch.zeros(4), ZOGradient(5, dist="orthogonal")
    with pytest.raises(ValueError, match="at most d = 4"):
        zo.estimate(lambda t: t.sum(), theta)
    zo = ZOGradient(2)
    with pytest.raises(TypeError, match=r"scalar, got a tensor of shape \(4,\)"):
        zo.estimate(lambda t: t, theta)
    with pytest.raises(TypeError, match="scalar tensor or a number, got str"):
        zo.estimate(lambda t: "low", theta)
    with pytest.raises(ValueError, match=r"shape \(d,\)"):
        zo.estimate(lambda t: t.sum(), theta.view(2, 2))
    with pytest.raises(FloatingPointError, match="perturbation 0"):
        zo.estimate(lambda t: t.sum() / 0 * 0, theta)
    with pytest.raises(ValueError, match="deterministic between"):
        zo.estimate(lambda t: torch.nn.functional.dropout(t).sum(), theta)
    with pytest.raises(TypeError, match="one number per row"):
        zo.estimate_batched(lambda t: t.sum(), theta)
    with pytest.raises(FloatingPointError, match=r"perturbation 1 \(\+μ\)"):
        zo.estimate_batched(lambda t: torch.tensor([0.0, math.inf, 0.0, 0.0]), theta)
    with pytest.raises(ValueError, match="give d"):
        next(ZOGradient(1).directions(0))


# --- the optimiser --------------------------------------------------------------------------------------------------


def network(dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3)).to(dtype)


def problem(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(20, 6, generator=generator).to(dtype), torch.arange(20) % 3


def closure_of(net, x, y):
    return lambda: torch.nn.functional.cross_entropy(net(x), y)


def weights(net):
    return torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_weights_come_back_to_the_bit(dist, dtype):
    net, (x, y) = network(dtype), problem(dtype)
    with torch.no_grad():
        net[0].weight[0, 0] = -0.0
    before = weights(net)
    optimizer = ZOSGD(net.parameters(), lr=0.0, n_perturbations=4, mu=0.1, dist=dist)
    optimizer.step(closure_of(net, x, y))
    after = weights(net)
    assert torch.equal(before.view(torch.uint8), after.view(torch.uint8)) and optimizer.param_groups[0]["step"] == 1


def test_arithmetic_restore_keeps_nothing_and_drifts_by_rounding():
    net, (x, y) = network(), problem()
    before = weights(net)
    ZOSGD(net.parameters(), lr=0.0, n_perturbations=8, restore="arithmetic").step(closure_of(net, x, y))
    torch.testing.assert_close(weights(net), before, atol=1e-6, rtol=0)
    assert not torch.equal(weights(net), before)


@EVERY
@pytest.mark.parametrize("restore", ["copy", "arithmetic"])
def test_step_follows_the_estimate_of_the_flattened_weights(dist, restore):
    net, (x, y) = network(torch.float64), problem(torch.float64)
    theta = weights(net)
    ghost = network(torch.float64)

    def loss(t):
        torch.nn.utils.vector_to_parameters(t, ghost.parameters())
        return torch.nn.functional.cross_entropy(ghost(x), y)

    zo = ZOGradient(3, 1e-4, dist, seed=9)
    optimizer = ZOSGD(net.parameters(), 0.1, 3, 1e-4, dist, weight_decay=0.01, seed=9, restore=restore)
    for _ in range(3):
        wanted_loss = loss(theta)
        theta = theta - 0.1 * (zo.estimate(loss, theta) + 0.01 * theta)
        assert optimizer.step(closure_of(net, x, y)) == pytest.approx(wanted_loss.item(), abs=1e-4)
    torch.testing.assert_close(weights(net), theta, atol=1e-9, rtol=0)


def test_weights_longer_than_a_block_and_strides():
    """A parameter that spans blocks, one that is a transposed view."""
    d = BLOCK + 1234
    p, q = torch.nn.Parameter(torch.zeros(d)), torch.nn.Parameter(torch.zeros(7, 5).T)
    g, h = torch.linspace(-1, 1, d), torch.ones(5, 7)
    optimizer = ZOSGD([p, q], 1.0, 2, mu=1.0, seed=3)
    optimizer.step(lambda: p @ g + (q * h).sum())
    zo = ZOGradient(2, 1.0, seed=3)
    wanted = zo.estimate(lambda t: t[:d] @ g + t[d:].sum(), torch.zeros(d + 35))
    torch.testing.assert_close(torch.cat([p.detach(), q.detach().reshape(-1)]), -wanted, atol=2e-3, rtol=1e-4)


def test_state_dict_continues_to_the_bit():
    x, y = problem()
    first = network()
    optimizer = ZOSGD(first.parameters(), 0.5, 4, dist="sphere", weight_decay=0.01, seed=2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for _ in range(3):
        optimizer.step(closure_of(first, x, y))
        scheduler.step()
    file = io.BytesIO()
    torch.save({"net": first.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    stored = torch.load(file, weights_only=True)
    assert stored["optimizer"]["state"] == {} and stored["optimizer"]["param_groups"][0]["step"] == 3
    second = network(seed=5)
    resumed = ZOSGD(second.parameters(), 0.1, 1)
    second.load_state_dict(stored["net"])
    resumed.load_state_dict(stored["optimizer"])
    for _ in range(3):
        assert optimizer.step(closure_of(first, x, y)) == resumed.step(closure_of(second, x, y))
    assert torch.equal(weights(first), weights(second))


def test_groups_have_their_own_rates():
    net, (x, y) = network(), problem()
    before = [p.detach().clone() for p in net.parameters()]
    optimizer = ZOSGD([{"params": net[0].parameters(), "lr": 0.0}, {"params": net[2].parameters()}], lr=0.5, n_perturbations=2)
    optimizer.step(closure_of(net, x, y))
    same = [torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True)]
    assert same == [True, True, False, False] and [group["step"] for group in optimizer.param_groups] == [1, 1]
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
    assert optimizer.param_groups[2]["step"] == 1
    with pytest.raises(ValueError, match="all groups share mu"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))], "mu": 0.5})


def test_it_trains():
    net, (x, y) = network(), problem()
    closure = closure_of(net, x, y)
    optimizer = ZOSGD(net.parameters(), 0.3, 8, seed=1)
    before = closure().item()
    for _ in range(60):
        optimizer.step(closure)
    assert closure().item() < 0.8 * before


def test_a_loss_that_fails_leaves_the_weights():
    net, (x, _) = network(), problem()
    before = weights(net)
    calls = iter([0.5, 0.5, 0.5, math.nan])
    optimizer = ZOSGD(net.parameters(), 0.1, 3)
    with pytest.raises(FloatingPointError, match=r"nan at perturbation 1 \(−μ\); the weights are restored"):
        optimizer.step(lambda: next(calls))
    assert torch.equal(weights(net), before) and optimizer.param_groups[0]["step"] == 0
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    assert torch.equal(weights(net), before)
    with pytest.raises(TypeError, match="scalar"):
        optimizer.step(lambda: net(x))
    with pytest.raises(TypeError, match="needs a closure"):
        optimizer.step(None)


def test_dropout_is_refused_unless_the_loss_fixes_its_seed():
    net, (x, y) = torch.nn.Sequential(network(), torch.nn.Dropout(0.5)), problem()
    optimizer = ZOSGD(net.parameters(), 0.1)
    with pytest.raises(ValueError, match="loss must be deterministic between"):
        optimizer.step(closure_of(net, x, y))

    def seeded():
        torch.manual_seed(0)
        return closure_of(net, x, y)()

    optimizer.step(seeded)
    net.eval()
    optimizer.step(closure_of(net, x, y))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"lr": -1}, "lr must be a finite number of at least 0, got -1"),
        ({"lr": math.inf}, "lr must be"),
        ({"lr": 1, "weight_decay": -0.1}, "weight_decay must be"),
        ({"lr": 1, "n_perturbations": 0}, "at least 1"),
        ({"lr": 1, "mu": -1e-3}, "mu must be"),
        ({"lr": 1, "dist": "normal"}, "dist must be one of"),
        ({"lr": 1, "restore": "guess"}, "restore must be"),
    ],
)
def test_bad_arguments_of_the_optimiser(arguments, says):
    with pytest.raises(ValueError, match=says):
        ZOSGD([torch.nn.Parameter(torch.zeros(3))], **arguments)


def test_orthogonal_needs_room_and_parameters_floats():
    optimizer = ZOSGD([torch.nn.Parameter(torch.zeros(3))], 0.1, 4, dist="orthogonal")
    with pytest.raises(ValueError, match="at most d = 3"):
        optimizer.step(lambda: 0.0)
    with pytest.raises(ValueError, match="floating point"):
        ZOSGD([torch.zeros(3, dtype=torch.int64)], 0.1)

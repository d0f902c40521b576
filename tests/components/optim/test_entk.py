"""Kernel, projection and laws against gold values, enumeration, finite differences and torch.func."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import wasserstein_distance

from components.optim.entk import (
    cka,
    entk,
    expected_sq_error,
    jacobian,
    jl_budget,
    kernel_alignment,
    one_step_prediction,
    project,
    relative_error,
    required_perturbations,
    spectral_wasserstein,
    worst_case_sq_error,
    zo_entk,
)
from components.optim.ntk_nets import NTKMLP, NTKLeNet
from components.optim.perturbations import DISTRIBUTIONS, directions

JO = torch.tensor([[1.0, 2, 0], [0, 1, 1]], dtype=torch.float64)
JU = torch.tensor([[1.0, 0, 1], [2, 1, 0]], dtype=torch.float64)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- gold values and laws -------------------------------------------------------------------------------------------


def test_gold_values():
    assert entk(JO, JU).tolist() == [[1, 4], [1, 1]]
    found = {dist: expected_sq_error(JO, JU, 1, dist) for dist in DISTRIBUTIONS}
    # Coordinate: three equally likely u u^T / 3 = e_k e_k^T, from the definition. One orthogonal direction is one of the sphere.
    K, errors = JO @ JU.T, []
    for k in range(3):
        errors.append(float((3 * torch.outer(JO[:, k], JU[:, k]) - K).square().sum()))
    assert found == pytest.approx(
        {"gaussian": 68, "rademacher": 46, "sphere": 33.2, "orthogonal": 33.2, "coordinate": np.mean(errors)}
    )
    assert expected_sq_error(JO, JU, 4) == pytest.approx(17)


def test_rademacher_law_by_enumeration():
    K, errors = JO @ JU.T, []
    for signs in itertools.product([-1.0, 1.0], repeat=3):
        u = torch.tensor(signs, dtype=torch.float64)
        errors.append(float((torch.outer(JO @ u, JU @ u) - K).square().sum()))
    assert np.mean(errors) == pytest.approx(46, rel=1e-12)


@pytest.mark.parametrize("dist", DISTRIBUTIONS)
@pytest.mark.parametrize("P", [1, 3])
def test_kernel_is_unbiased_and_its_error_follows_the_law(dist, P):
    Jo, Ju, draws = randn(2, 6, seed=1), randn(3, 6, seed=2), 3000
    difference = torch.stack([zo_entk(Jo, Ju, P, dist, seed=3, step=step) - entk(Jo, Ju) for step in range(draws)])
    standard_error = difference.std(0) / math.sqrt(draws)
    assert (difference.mean(0).abs() < 4.5 * standard_error).all()
    squares, law = difference.square().sum((1, 2)), expected_sq_error(Jo, Ju, P, dist)
    assert abs(squares.mean() - law) < 4.5 * squares.std() / math.sqrt(draws)


def test_orthogonal_law_in_between_and_at_the_ends():
    errors = [expected_sq_error(JO, JU, P, "orthogonal") for P in (1, 2, 3)]
    assert errors[0] > errors[1] > errors[2] == 0
    K = zo_entk(JO, JU, 3, "orthogonal", seed=1)
    torch.testing.assert_close(K, entk(JO, JU), atol=1e-10, rtol=0)


def test_dimension_does_not_enter_the_gaussian_law():
    """Zero columns add weights that the outputs do not use."""
    wide = [torch.cat([J, torch.zeros(J.shape[0], 1000)], dim=1) for J in (JO, JU)]
    for dist in ("gaussian", "rademacher"):
        assert expected_sq_error(*wide, 4, dist) == pytest.approx(expected_sq_error(JO, JU, 4, dist))
    assert expected_sq_error(*wide, 4, "coordinate") > 100 * expected_sq_error(JO, JU, 4, "coordinate")


def test_relative_error_and_its_inverse():
    kappa = kernel_alignment(JO, JU)
    assert kappa == pytest.approx(math.sqrt(19) / 7)
    assert relative_error(kappa, 9) == pytest.approx(math.sqrt(expected_sq_error(JO, JU, 9) / 19))
    assert required_perturbations(1.0, 0.1) == 200 and required_perturbations(0.5, 1.0) == 5
    P = required_perturbations(kappa, 0.2)
    assert relative_error(kappa, P) <= 0.2 < relative_error(kappa, P - 1)
    # Same input: the trace bounds the alignment from below.
    assert kernel_alignment(JO, JO) >= 1 / math.sqrt(2)
    # The limit of wide networks, K = k I: sqrt((V + 1) / P).
    assert relative_error(kernel_alignment(torch.eye(10), torch.eye(10)), 64) == pytest.approx(math.sqrt(11 / 64))


def test_budget_keeps_its_promise():
    assert jl_budget(20, 0.5, 0.05) == math.ceil((2 * math.log(20) + math.log(20)) / (0.25 * 0.25))
    Jo, Ju, eps = randn(10, 300, seed=3), randn(10, 300, seed=4), 0.5
    bound = worst_case_sq_error(Jo, Ju, eps)
    P = jl_budget(20, eps, 0.05)
    kept = [(zo_entk(Jo, Ju, P, seed=seed) - entk(Jo, Ju)).square().sum() <= bound for seed in range(40)]
    assert sum(kept) >= 36
    # One vector each: eps^2 / 4 (7 + 5)^2 with the squared norms written out.
    assert worst_case_sq_error(torch.tensor([[2.0, 1, 1, 1]]), torch.tensor([[1.0, 2, 0, 0]]), 0.5) == pytest.approx(9)


# --- projection -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dist", DISTRIBUTIONS)
def test_projection_is_the_product_with_the_replayed_directions(dist):
    J = randn(2, 3, 500)
    U = torch.stack(list(directions(500, 4, dist, 6, 2, torch.float64))).T / 2
    for chunk in (1, 64, 200, 2**16):
        found = project(J, 4, dist, 6, chunk, step=2)
        assert found.shape == (2, 3, 4)
        torch.testing.assert_close(found, J @ U, atol=1e-6, rtol=0)


def test_bad_projection_is_named():
    for arguments, says in (
        ({"n_perturbations": 0}, "at least 1"),
        ({"n_perturbations": 1, "dist": "levy"}, "dist must be one of"),
        ({"n_perturbations": 4, "dist": "orthogonal"}, "at most d = 3"),
        ({"n_perturbations": 1, "chunk": 0}, "chunk must be"),
        ({"n_perturbations": 1, "seed": 2**64}, "seed must lie"),
    ):
        with pytest.raises(ValueError, match=says):
            project(JO, **arguments)
    with pytest.raises(ValueError, match=r"got torch\.int64"):
        project(JO.long(), 1)


# --- Jacobian and one step ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("net", "size"), [(NTKMLP(7, [5, 4], 3, seed=1), 7), (NTKLeNet(3, seed=1), 784)])
def test_jacobian_against_torch_func_and_differences(net, size):
    net, x = net.double(), randn(2, size, seed=5)
    J = jacobian(net, x)
    assert J.shape == (2, 3, net.d)
    wanted = torch.func.jacrev(lambda theta: net.functional(theta, x))(net.flat())
    torch.testing.assert_close(J, wanted, atol=1e-12, rtol=1e-9)
    direction = randn(net.d, seed=6)
    theta, h = net.flat(), 1e-5
    difference = (net.functional(theta + h * direction, x) - net.functional(theta - h * direction, x)) / (2 * h)
    torch.testing.assert_close(J @ direction, difference.detach(), atol=1e-7, rtol=1e-6)
    assert torch.equal(jacobian(net, x, outputs=[2, 0]), J[:, [2, 0]])


def test_jacobian_of_a_foreign_module_with_an_unused_weight():
    net = torch.nn.Sequential(torch.nn.Linear(2, 3))
    net.register_parameter("unused", torch.nn.Parameter(torch.zeros(4)))
    x = torch.tensor([[1.0, 2]])
    J = jacobian(net, x)
    assert J.shape == (1, 3, 13) and J[0, 0].tolist() == [0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 1, 0, 0]  # its own weight comes first
    with pytest.raises(ValueError, match="outputs must name some of the 3"):
        jacobian(net, x, outputs=[3])
    with pytest.raises(ValueError, match="no weights that require gradients"):
        jacobian(net.requires_grad_(False), x)
    with pytest.raises(ValueError, match="x holds no input"):
        jacobian(torch.nn.Linear(2, 3), x[:0])


def test_one_step_prediction_is_the_derivative_of_the_log_probabilities():
    net = NTKMLP(7, [5], 4, seed=2).double()
    x, y, probe = randn(6, 7, seed=7), torch.arange(6) % 4, randn(1, 7, seed=8)
    Jo, Ju = jacobian(net, probe)[0], jacobian(net, x)
    pi_o, pi_u = net(probe).softmax(-1)[0].detach(), net(x).softmax(-1).detach()
    loss = torch.nn.functional.cross_entropy(net(x), y)
    g = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, list(net.parameters()))])
    for U in (None, torch.stack(list(directions(net.d, 3, "gaussian", 1, 0, torch.float64))).T / math.sqrt(3)):
        step = g if U is None else U @ (U.T @ g)
        errors = []
        for eta in (1e-3, 1e-4):
            moved = net.functional(net.flat() - eta * step, probe).log_softmax(-1)[0]
            change = (moved - net(probe).log_softmax(-1)[0]).detach()
            predicted = one_step_prediction(Jo, Ju, pi_o, pi_u, y, eta, U)
            errors.append((change - predicted).abs().max().item())
            assert abs(pi_o @ predicted) < 1e-12
            # Adding one direction to the tangent vectors of all logits changes no probability.
            shifted = one_step_prediction(Jo + randn(net.d, seed=9), Ju, pi_o, pi_u, y, eta, U)
            torch.testing.assert_close(shifted, predicted, atol=1e-12, rtol=1e-9)
        assert errors[0] / errors[1] == pytest.approx(100, rel=0.1)
    single = one_step_prediction(Jo, Ju[0], pi_o, pi_u[0], 2, 0.1)
    torch.testing.assert_close(single, one_step_prediction(Jo, Ju[:1], pi_o, pi_u[:1], torch.tensor([2]), 0.1))


def test_one_step_matches_the_formula_written_out():
    pi_o, pi_u = torch.tensor([0.25, 0.75], dtype=torch.float64), torch.tensor([0.5, 0.5], dtype=torch.float64)
    A = torch.eye(2, dtype=torch.float64) - torch.outer(torch.ones(2, dtype=torch.float64), pi_o)
    torch.testing.assert_close(A @ torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64))
    wanted = -0.1 * A @ (JO @ JU.T) @ (pi_u - torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(one_step_prediction(JO, JU, pi_o, pi_u, 1, 0.1), wanted)


# --- measures of likeness -------------------------------------------------------------------------------------------


def test_cka():
    X, Y = randn(12, 5, seed=1), randn(12, 4, seed=2)
    K = X @ X.T
    Q = torch.linalg.qr(randn(5, 5, seed=3)).Q
    assert cka(K, 3 * K) == pytest.approx(1) and cka(K, (X @ Q) @ (X @ Q).T) == pytest.approx(1)
    # The definition with the centring matrix and traces.
    H = torch.eye(12, dtype=torch.float64) - 1 / 12
    L = Y @ Y.T
    wanted = torch.trace(K @ H @ L @ H) / (torch.trace(K @ H @ K @ H) * torch.trace(L @ H @ L @ H)).sqrt()
    assert cka(K, L) == pytest.approx(wanted.item())
    with pytest.raises(ValueError, match="constant"):
        cka(torch.ones(3, 3), torch.eye(3))


def test_spectral_wasserstein_is_scipys():
    K1, K2 = randn(7, 7, seed=4), randn(7, 7, seed=5)
    wanted = wasserstein_distance(np.linalg.svd(K1.numpy())[1], np.linalg.svd(K2.numpy())[1])
    assert spectral_wasserstein(K1, K2) == pytest.approx(wanted) and spectral_wasserstein(K1, K1.T) == pytest.approx(
        0, abs=1e-12
    )
    with pytest.raises(ValueError, match="one shape"):
        spectral_wasserstein(K1, K2[:3])


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="same weights, got d = 3 and 2"):
        entk(JO, JU[:, :2])
    with pytest.raises(ValueError, match=r"32 bytes, more than max_bytes = 31"):
        entk(JO, JU, max_bytes=31)
    with pytest.raises(ValueError, match=r"Ju must be a floating point tensor of shape \(V, d\)"):
        entk(JO, JU[0])
    with pytest.raises(ValueError, match="all zero"):
        kernel_alignment(JO, 0 * JU)
    with pytest.raises(ValueError, match=r"kappa must lie in \(0, 1\]"):
        relative_error(0.0, 4)
    with pytest.raises(ValueError, match="eps must be"):
        required_perturbations(0.5, 0)
    with pytest.raises(ValueError, match="jl_budget needs"):
        jl_budget(10, 0.1, 1.0)
    with pytest.raises(ValueError, match="U must have shape"):
        one_step_prediction(JO, JU, torch.ones(2) / 2, torch.ones(2) / 2, 0, 0.1, torch.ones(2, 1))
    with pytest.raises(ValueError, match="must match the tangent vectors"):
        one_step_prediction(JO, JU, torch.ones(3) / 3, torch.ones(2) / 2, 0, 0.1)

"""The empirical neural tangent kernel, its copy on random directions, and the exact laws of the difference.

J(x) = dz/dtheta, (V, d), has the tangent vectors of the V outputs as rows. The first-order kernel of an observed input o and an updated
one u is K = J_o J_u^T; a zeroth-order step acts through K_U = J_o U U^T J_u^T with U = P^{-1/2} [u_1 ... u_P] instead. Because
E[U U^T] = I it is unbiased, and E||K_U - K||_F^2 depends on the two tangent matrices and on P, never on d by itself (`expected_sq_error`).

Source: Li, Ying, Liu, Yang, "Learning Dynamics of Zeroth-Order Optimization: A Kernel Perspective": the kernel view, the budget P of
the Johnson-Lindenstrauss lemma and the worst-case bound. The laws are second moments of u^T a b^T u, worked out per distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from components.optim.perturbations import (
    BLOCK,
    Distribution,
    Stream,
    blocks,
    check_count,
    check_distribution,
    check_seed,
    kernel_distribution,
    kernel_scale,
    kernel_seed,
    kernels_draw,
    orthogonal_directions,
)
from kernels.seeded_projection import seeded_project

MAX_BYTES = 2 * 2**30


def jacobian(model: nn.Module, x: Tensor, outputs: Sequence[int] | None = None) -> Tensor:
    """Tangent vectors of a model's outputs, by one backward pass per input and output.

    Parameters
    ----------
    model : maps (N, ...) to (N, V), each row from its own input; in eval() mode where modes matter.
    x : (N, ...) inputs.
    outputs : which of the V outputs, default all.

    Returns
    -------
    (N, V or len(outputs), d), weights flattened in `parameters()` order, those that require gradients.

    Raises
    ------
    ValueError : a model without such weights, outputs of another shape, an output that does not exist.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError("the model has no weights that require gradients")
    if not x.shape[0]:
        raise ValueError("x holds no input")
    rows = []
    for example in x.split(1):
        z = model(example)
        if z.ndim != 2 or z.shape[0] != 1:
            raise ValueError(f"the model must map (N, ...) to (N, V), but gave shape {tuple(z.shape)} for one input")
        chosen = list(range(z.shape[1])) if outputs is None else [int(v) for v in outputs]
        if not chosen or min(chosen) < 0 or max(chosen) >= z.shape[1]:
            raise ValueError(f"outputs must name some of the {z.shape[1]} outputs, from 0, got {chosen}")
        basis = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)[chosen][:, None]
        gradients = torch.autograd.grad(z, parameters, basis, is_grads_batched=True, allow_unused=True)
        zero = z.new_zeros(len(chosen), 1)  # the gradient of a weight that the output does not use
        rows.append(
            torch.cat(
                [
                    zero.expand(-1, parameter.numel()) if gradient is None else gradient.reshape(len(chosen), -1)
                    for gradient, parameter in zip(gradients, parameters, strict=True)
                ],
                dim=1,
            )
        )
    return torch.stack(rows)


def _tangents(Jo: Tensor, Ju: Tensor) -> None:
    for name, J in (("Jo", Jo), ("Ju", Ju)):
        if not isinstance(J, Tensor) or J.ndim != 2 or not J.is_floating_point():
            found = f"{J.dtype} of shape {tuple(J.shape)}" if isinstance(J, Tensor) else type(J).__name__
            raise ValueError(f"{name} must be a floating point tensor of shape (V, d), got {found}")
    if Jo.shape[1] != Ju.shape[1]:
        raise ValueError(f"Jo and Ju must be tangent vectors of the same weights, got d = {Jo.shape[1]} and {Ju.shape[1]}")


def entk(Jo: Tensor, Ju: Tensor, *, max_bytes: int = MAX_BYTES) -> Tensor:
    """K = J_o J_u^T, (V_o, V_u), of tangent vectors (V_o, d) and (V_u, d).

    Raises ValueError for shapes that do not fit, and for a kernel that would take more than `max_bytes` (default 2 GiB) at eight bytes
    per entry: a vocabulary of 50,000 has a kernel of 20 GB, so take a subset of the outputs."""
    _tangents(Jo, Ju)
    size = Jo.shape[0] * Ju.shape[0] * 8
    if size > max_bytes:
        raise ValueError(
            f"the kernel of {Jo.shape[0]} x {Ju.shape[0]} outputs takes {size:,} bytes, more than max_bytes = {max_bytes:,}; "
            "take a subset of the outputs"
        )
    return Jo @ Ju.T


def project(
    J: Tensor, n_perturbations: int, dist: Distribution = "gaussian", seed: int = 0, chunk: int = BLOCK, *, step: int = 0
) -> Tensor:
    """J U, with U = P^{-1/2} [u_1 ... u_P] read block by block and never kept.

    Parameters
    ----------
    J : (..., d) floating point tangent vectors or gradients.
    n_perturbations : P.
    dist, seed, step : name the directions, the same ones as `components.optim.zeroth_order` draws for them.
    chunk : rows of U in memory at a time, rounded up to a multiple of 64; changes no more than the rounding of sums. Orthogonal
        directions are kept whole.

    Returns
    -------
    (..., P) of J's dtype.

    Raises
    ------
    ValueError, TypeError : unknown dist, P < 1, orthogonal with P > d, bad seed, J that is not floating point, chunk < 1.
    """
    check_distribution(dist)
    check_seed(seed)
    if not J.is_floating_point() or J.ndim < 1 or J.shape[-1] < 1:
        raise ValueError(f"J must be a floating point tensor of shape (..., d), got {J.dtype} of shape {tuple(J.shape)}")
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    d = J.shape[-1]
    P = check_count(n_perturbations, dist, d)
    flat = J.reshape(-1, d)
    if dist == "orthogonal":
        total = flat @ orthogonal_directions(d, P, seed, step).to(flat).T
    elif dist == "coordinate":
        chosen = torch.tensor([Stream(d, dist, seed, step, index).coordinate for index in range(P)], device=flat.device)
        total = flat[:, chosen] * math.sqrt(d)
    elif kernels_draw([flat], dist):
        name = kernel_seed(seed, step)
        total = seeded_project(flat, P, kernel_distribution(dist), name).to(flat.dtype) * math.sqrt(P)
        if dist == "sphere":
            total = total * total.new_tensor([kernel_scale(d, P, dist, name, index, flat.device) for index in range(P)])
    else:
        total, square = flat.new_zeros(flat.shape[0], P), np.zeros(P)
        for start, u in blocks(d, P, dist, seed, step, chunk):
            total += flat[:, start : start + u.shape[1]] @ torch.from_numpy(u).to(flat).T
            if dist == "sphere":
                square += np.einsum("pk,pk->p", u, u, dtype=np.float64)
        if dist == "sphere":
            total = total * torch.from_numpy(np.sqrt(d / square)).to(flat)
    return (total / math.sqrt(P)).reshape(*J.shape[:-1], P)


def zo_entk(
    Jo: Tensor,
    Ju: Tensor,
    n_perturbations: int,
    dist: Distribution = "gaussian",
    seed: int = 0,
    *,
    step: int = 0,
    chunk: int = BLOCK,
) -> Tensor:
    """K_U = (J_o U)(J_u U)^T, (V_o, V_u); arguments and errors as for `entk` and `project`. Both sides share U."""
    _tangents(Jo, Ju)
    both = project(torch.cat([Jo, Ju]), n_perturbations, dist, seed, chunk, step=step)
    return entk(both[: Jo.shape[0]], both[Jo.shape[0] :])


def kernel_alignment(Jo: Tensor, Ju: Tensor) -> float:
    """kappa = ||J_o J_u^T||_F / (||J_o||_F ||J_u||_F), in [0, 1]. ValueError where one of the two is zero."""
    K = entk(Jo, Ju)
    norms = Jo.norm() * Ju.norm()
    if norms == 0:
        raise ValueError("the alignment of tangent vectors that are all zero is not defined")
    return float(K.norm() / norms)


def expected_sq_error(Jo: Tensor, Ju: Tensor, n_perturbations: int, dist: Distribution = "gaussian") -> float:
    """E ||K_U - K||_F^2, exactly. With N = ||J_o||_F^2 ||J_u||_F^2, k = ||K||_F^2, s = sum_k (sum_i J_o,ik^2)(sum_j J_u,jk^2):

    gaussian (N + k) / P;  rademacher (N + k - 2 s) / P;  sphere (d/(d+2) (N + 2k) - k) / P;  coordinate (d s - k) / P;
    orthogonal: second moments of a projection on a uniform P-dimensional subspace, which vanish at P = d.
    Arguments and errors as for `entk` and `project`."""
    _tangents(Jo, Ju)
    check_distribution(dist)
    d = Jo.shape[1]
    P = check_count(n_perturbations, dist, d)
    Jo, Ju = Jo.double(), Ju.double()
    k = float(entk(Jo, Ju).square().sum())
    N = float(Jo.square().sum() * Ju.square().sum())
    if dist == "gaussian":
        return (N + k) / P
    if dist == "sphere":
        return (d / (d + 2) * (N + 2 * k) - k) / P
    if dist == "orthogonal":
        if P == d:
            return 0.0
        # E[Pi_ij Pi_kl] = a d_ij d_kl + b (d_ik d_jl + d_il d_jk), with a and b from tr Pi = P and Pi^2 = Pi.
        a = (P * P * (d + 1) - 2 * P) / (d * (d + 2) * (d - 1))
        b = (P - a * d) / (d * (d + 1))
        return (d / P) ** 2 * (a * k + b * (N + k)) - k
    s = float(Jo.square().sum(0) @ Ju.square().sum(0))
    return (N + k - 2 * s) / P if dist == "rademacher" else (d * s - k) / P


def relative_error(kappa: float, n_perturbations: int) -> float:
    """Root mean square of ||K_U - K||_F / ||K||_F for Gaussian directions: sqrt((1 + kappa^-2) / P)."""
    return math.sqrt((1 + _kappa(kappa) ** -2) / check_count(n_perturbations, "gaussian"))


def required_perturbations(kappa: float, eps: float) -> int:
    """Least P whose relative error is at most eps: (1 + kappa^-2) / eps^2, rounded up. ValueError unless 0 < kappa <= 1, eps > 0."""
    if not (math.isfinite(eps) and eps > 0):
        raise ValueError(f"eps must be a finite positive number, got {eps!r}")
    return max(1, math.ceil((1 + _kappa(kappa) ** -2) / eps**2 * (1 - 1e-12)))


def _kappa(kappa: float) -> float:
    if not 0 < kappa <= 1 + 1e-6:
        raise ValueError(f"kappa must lie in (0, 1], got {kappa!r}")
    return kappa


def jl_budget(n: int, eps: float, delta: float, c: float = 0.25) -> int:
    """The paper's sufficient P for n tangent vectors: ceil((2 ln n + ln(1/delta)) / (c eps^2)).

    With it, all inner products are within eps (|a|^2 + |b|^2) / 2 with probability 1 - delta; c is about 1/4 for Gaussian and sign
    projections. ValueError for n < 1, eps or c that is not positive, delta outside (0, 1)."""
    if n < 1 or not eps > 0 or not 0 < delta < 1 or not c > 0:
        raise ValueError(f"jl_budget needs n >= 1, eps > 0, 0 < delta < 1 and c > 0, got {n}, {eps}, {delta}, {c}")
    return math.ceil((2 * math.log(n) + math.log(1 / delta)) / (c * eps**2))


def worst_case_sq_error(Jo: Tensor, Ju: Tensor, eps: float) -> float:
    """Bound on ||K_U - K||_F^2 where all norms of sums and differences of tangent vectors are kept within eps.

    sum_ij eps^2/4 (|a_i|^2 + |b_j|^2)^2, by the polarisation identity."""
    _tangents(Jo, Ju)
    a, b = Jo.double().square().sum(1), Ju.double().square().sum(1)
    return float(eps**2 / 4 * (a[:, None] + b[None, :]).square().sum())


def one_step_prediction(
    Jo: Tensor, Ju: Tensor, pi_o: Tensor, pi_u: Tensor, y_u: Tensor | int, eta: float, U: Tensor | None = None
) -> Tensor:
    """First-order change of log pi(. | x_o) by one SGD step on softmax cross-entropy: -eta A(x_o) K_U G, (V_o,).

    A = I - 1 pi_o^T, G = pi_u - e_y. For a batch, the mean over its examples.

    Parameters
    ----------
    Jo : (V, d). Ju : (V, d), or (B, V, d) for a batch.
    pi_o : (V,) probabilities. pi_u : (V,) or (B, V). y_u : class, or (B,) int64.
    eta : learning rate.
    U : (d, P), P^{-1/2} times the directions; None for first-order SGD, U U^T = I.

    Raises
    ------
    ValueError : shapes that do not fit.
    """
    Ju, pi_u = (Ju, pi_u) if Ju.ndim == 3 else (Ju[None], pi_u[None])
    y_u = torch.as_tensor(y_u, device=Ju.device).reshape(-1)
    _tangents(Jo, Ju[0])
    if pi_o.shape != Jo.shape[:1] or pi_u.shape != Ju.shape[:2] or y_u.shape != Ju.shape[:1]:
        raise ValueError(
            f"probabilities and classes must match the tangent vectors, got pi_o {tuple(pi_o.shape)}, pi_u {tuple(pi_u.shape)}, "
            f"y_u {tuple(y_u.shape)} for Jo {tuple(Jo.shape)}, Ju {tuple(Ju.shape)}"
        )
    if U is not None and (U.ndim != 2 or U.shape[0] != Jo.shape[1]):
        raise ValueError(f"U must have shape (d, P) with d = {Jo.shape[1]}, got {tuple(U.shape)}")
    G = pi_u.clone()
    G[torch.arange(G.shape[0]), y_u] -= 1
    gradient = torch.einsum("bvd,bv->d", Ju, G) / Ju.shape[0]
    if U is not None:
        gradient = U @ (U.T @ gradient)
    dz = -eta * (Jo @ gradient)
    return dz - pi_o @ dz


def _square(K1: Tensor, K2: Tensor) -> None:
    if K1.ndim != 2 or K1.shape != K2.shape:
        raise ValueError(f"the two kernels must be matrices of one shape, got {tuple(K1.shape)} and {tuple(K2.shape)}")


def cka(K1: Tensor, K2: Tensor) -> float:
    """Centred kernel alignment of two kernel matrices over the same vectors: the cosine of H K1 H and H K2 H, H = I - 1 1^T / n.

    1 for K2 = c K1 with c > 0. ValueError for shapes that differ or a kernel that is constant.
    Source: Kornblith et al., "Similarity of Neural Network Representations Revisited"."""
    _square(K1, K2)
    first, second = (K.double() - K.double().mean(0) - K.double().mean(1, keepdim=True) + K.double().mean() for K in (K1, K2))
    norms = first.norm() * second.norm()
    if norms <= 1e-300:
        raise ValueError("the alignment of a kernel that is constant is not defined")
    return float((first * second).sum() / norms)


def spectral_wasserstein(K1: Tensor, K2: Tensor) -> float:
    """1-Wasserstein distance between the singular values of two kernels: mean absolute difference of the sorted values.

    In the kernels' unit. ValueError for shapes that differ."""
    _square(K1, K2)
    first, second = (torch.linalg.svdvals(K.double()) for K in (K1, K2))
    return float((first - second).abs().mean())

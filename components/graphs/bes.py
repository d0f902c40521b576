"""Boundary embedding shaping: move the embeddings of nodes where classes meet, and little else.

The encoder is frozen, H = encoder(X, A). One step of shaping the map Phi, Z = Phi(H):
    1. detect    training nodes in a slab around a class-to-class hyperplane whose nearest neighbours mostly carry another label
    2. pull      contrastive "gravity" loss of those nodes towards their class centroid and away from the others
    3. limit     scale the step by how far it would move the embeddings of ALL nodes

Source: Chen et al., "Boundary Embedding Shaping with Adaptive Contrastive Learning for Graph Structural Disentanglement".
Departures, each an option beside the paper's form: `tokens="views"`, `slab="centred"`, `scale="update"`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from components.graphs.checks import check_classes, check_disjoint, check_embeddings, check_labels, check_mask
from components.graphs.contrastive import supervised_contrastive
from kernels.boundary_knn import boundary_knn

Scale = Literal["none", "grad", "update"]
Slab = Literal["paper", "centred"]
Nodes = Literal["boundary", "random", "all", "none"]


class BoundaryAttention(nn.Module):
    """The shaping map Phi: Z = A(A(H) + H) with one shared residual attention block A(z) = W_o MHA_v(z) + z.

    Parameters
    ----------
    dim : D, width of the embeddings.
    heads : attention heads, default 2.
    tokens : "single" (default; as released): the sequence has length 1, so the attention weights are identically 1 and A is
        the affine map z + W_o (W_v z + b_v) + b_o; query and key have zero gradient. "views": the embeddings of the V encoders are
        V tokens of D / V numbers, which attend to each other; the outputs are concatenated.
    n_views : V, default 2; used by "views" alone.

    Shapes: (N, D) -> (N, D).

    Raises
    ------
    ValueError : D not divisible by heads (single) or by n_views * heads (views); unknown tokens.
    """

    def __init__(self, dim: int, heads: int = 2, tokens: Literal["single", "views"] = "single", n_views: int = 2):
        super().__init__()
        if tokens not in ("single", "views"):
            raise ValueError(f"tokens must be 'single' or 'views', got {tokens!r}")
        self.views = n_views if tokens == "views" else 1
        if heads < 1 or self.views < 1 or dim < 1 or dim % (self.views * heads):
            raise ValueError(f"dim must be a positive multiple of views x heads = {self.views} x {heads}, got {dim}")
        self.dim, self.heads, self.tokens = dim, heads, tokens
        width = dim // self.views
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        # As torch.nn.MultiheadAttention, which the released code uses: Glorot over the three projections stacked (3 d outputs,
        # d inputs), hence the gain, and zero biases. The size of this random part decides how far Phi starts from 2 H.
        for layer in (self.query, self.key, self.value):
            nn.init.xavier_uniform_(layer.weight, gain=0.5**0.5)
            nn.init.zeros_(layer.bias)
        nn.init.zeros_(self.out.bias)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, heads={self.heads}, tokens={self.tokens!r}"

    def block(self, z: Tensor) -> Tensor:
        """A(z), (N, D) -> (N, D)."""
        tokens = z.view(z.shape[0], self.views, -1)  # (N, V, d)

        def per_head(projected: Tensor) -> Tensor:  # (N, heads, V, d / heads)
            return projected.view(z.shape[0], self.views, self.heads, -1).transpose(1, 2)

        query, key, value = (per_head(layer(tokens)) for layer in (self.query, self.key, self.value))
        weights = torch.softmax(query @ key.transpose(2, 3) / math.sqrt(query.shape[-1]), dim=-1)
        mixed = (weights @ value).transpose(1, 2).reshape(tokens.shape)
        return (self.out(mixed) + tokens).reshape(z.shape)

    def forward(self, h: Tensor) -> Tensor:
        if h.ndim != 2 or h.shape[1] != self.dim:
            raise ValueError(f"H must have shape (N, {self.dim}), got {tuple(h.shape)}")
        return self.block(self.block(h) + h)


class BoundaryState(NamedTuple):
    """What `detect_boundary` found; node numbers refer to the rows of Z."""

    nodes: Tensor  # (M,) int64, the hard set B*
    candidates: Tensor  # (B,) int64, training nodes in a slab
    score: Tensor  # (B,) shift score of each candidate, in [0, 1]
    centroids: Tensor  # (C, D) mean embedding of each class's training nodes
    neighbours_used: int  # k, reduced where there were fewer candidates


def class_centroids(z: Tensor, y: Tensor, num_classes: int) -> Tensor:
    """(C, D) mean of the rows of z (n, D) per label y (n,) in [0, C); every class must occur."""
    totals = z.new_zeros(num_classes, z.shape[1]).index_add_(0, y, z)
    return totals / torch.bincount(y, minlength=num_classes)[:, None]


def slab_margins(z: Tensor, y: Tensor, centroids: Tensor, *, slab: Slab = "paper", reg: float = 1e-4) -> Tensor:
    """Margin of each node against each other class's hyperplane: (mu_m - mu_n)^T Sigma^-1 (Z_i - c), m = y_i.

    c = 0 for slab "paper"; (mu_m + mu_n) / 2 for "centred", the decision hyperplane of linear discriminant analysis.
    Sigma is the covariance of z (denominator n - 1) plus reg times the identity.

    Shapes: z (n, D), y (n,), centroids (C, D) -> (n, C) float64; the column of the own class is infinite.

    Raises
    ------
    ValueError : fewer than 2 rows, or Sigma not positive definite in spite of reg (names its range of eigenvalues).
    """
    if z.shape[0] < 2:
        raise ValueError(f"a covariance needs at least 2 training nodes, got {z.shape[0]}")
    # Float64: dead units make Sigma's condition number reg^-1 times its largest eigenvalue.
    z, centroids = z.double(), centroids.double()
    centred = z - z.mean(0)
    sigma = centred.T @ centred / (z.shape[0] - 1)
    sigma.diagonal().add_(reg)
    factor, failed = torch.linalg.cholesky_ex(sigma)
    if failed:
        eigenvalues = torch.linalg.eigvalsh(sigma)
        raise ValueError(
            f"the covariance of the training embeddings plus reg = {reg} is singular: eigenvalues range from "
            f"{eigenvalues[0]:.3e} to {eigenvalues[-1]:.3e}; a larger reg is needed"
        )
    directions = torch.cholesky_solve(centroids.T, factor)  # Sigma^-1 mu_c as columns, (D, C)
    projected = z @ directions  # mu_c^T Sigma^-1 Z_i: all pairs (m, n) are differences of its columns
    margins = projected.gather(1, y[:, None]) - projected
    if slab == "centred":
        halves = (centroids.T * directions).sum(0) / 2  # mu_c^T Sigma^-1 mu_c / 2
        margins -= halves[y][:, None] - halves
    return margins.scatter(1, y[:, None], torch.inf)


@torch.no_grad()
def detect_boundary(
    z: Tensor,
    y: Tensor,
    train_mask: Tensor,
    *,
    delta: float = 5.0,
    k: int = 5,
    threshold: float = 0.5,
    slab: Slab = "paper",
    reg: float = 1e-4,
    q: float = 0.5,
    num_classes: int | None = None,
) -> BoundaryState:
    """Hard nodes where classes meet, from training nodes alone.

    A training node of class m is a candidate if for some n != m its slab margin (see `slab_margins`) is at most delta in
    absolute value. A candidate is hard if more than `threshold` of its k nearest candidates carry another label.

    Parameters
    ----------
    z : (N, D) floating point embeddings; only rows of training nodes are read.
    y : (N,) integer labels; only those of training nodes are read.
    train_mask : (N,) bool.
    delta : half width of the slab, >= 0, default 5, in units of the margin (not scale-free: fix the norm of H). For
        slab "centred" the width is instead the q-quantile of the nodes' smallest absolute margin.
    k : neighbours, default 5. With fewer other candidates it is reduced, and `neighbours_used` says to what.
    threshold : share of foreign neighbours above which a node is hard, default 0.5.
    slab : "paper" (default) or "centred".
    reg : added to the covariance's diagonal, default 1e-4.
    q : share of training nodes in the slab, for "centred", in [0, 1], default 0.5.
    num_classes : C; default: the largest training label plus one.

    Returns
    -------
    BoundaryState. Fewer than 2 candidates give an empty hard set, which is not an error.

    Raises
    ------
    ValueError : malformed or non-finite z, an empty mask, labels outside [0, C), a class without training node, C < 2,
        delta < 0, k < 1, q outside [0, 1], unknown slab, a singular covariance.
    TypeError : labels that are not integers.

    References
    ----------
    Chen et al., the slab test on the class hyperplanes and the local shift score of candidates.
    """
    check_embeddings(z[train_mask] if z.ndim == 2 and train_mask.shape == z.shape[:1] else z, "Z")
    check_mask(train_mask, z.shape[0], "train_mask")
    check_labels(y, z.shape[0])
    if delta < 0:
        raise ValueError(f"delta must not be negative, got {delta}")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if not 0 <= q <= 1:
        raise ValueError(f"q must lie in [0, 1], got {q}")
    if slab not in ("paper", "centred"):
        raise ValueError(f"slab must be 'paper' or 'centred', got {slab!r}")
    train = train_mask.nonzero().flatten()
    points, labels = z[train], y[train]
    classes = int(labels.max()) + 1 if num_classes is None else num_classes
    check_classes(labels, classes)
    centroids = class_centroids(points, labels, classes)
    nearest = slab_margins(points, labels, centroids, slab=slab, reg=reg).abs().min(1).values
    width = delta if slab == "paper" else torch.quantile(nearest, q).item()
    inside = (nearest <= width).nonzero().flatten()
    used = max(min(k, inside.numel() - 1), 0)
    if inside.numel() < 2:
        return BoundaryState(train[:0], train[inside], points.new_zeros(inside.numel()), centroids, used)
    score, _ = boundary_knn(points[inside], labels[inside], used)
    return BoundaryState(train[inside[score > threshold]], train[inside], score, centroids, used)


def gravity_loss(
    z: Tensor,
    y: Tensor,
    centroids: Tensor,
    tau: float = 1.0,
    mode: Literal["centroid", "rival"] = "centroid",
    denominator: Literal["both", "neg_only"] = "both",
    rivals: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Contrastive pull of boundary nodes towards their class centroid, off where they are already on the right side.

    With d+ = ||z_b - mu_{y_b}|| and d-_c = ||z_b - mu_c|| for c != y_b:
        sim+ = - max(0, d+ - r)^2,  sim-_c = - (d-_c)^2,
        L_b  = - log( exp(sim+ / tau) / (exp(sim+ / tau) + sum_c exp(sim-_c / tau)) ),  averaged over b,
    where r = min_c d-_c (mode "centroid") or the distance of the nearest foreign boundary node to the own centroid ("rival").

    Parameters
    ----------
    z : (M, D) shaped boundary embeddings, M >= 1.   y : (M,) integer labels in [0, C).
    centroids : (C, D); no gradient flows into them.
    tau : temperature > 0, default 1.
    denominator : "both" (default) or "neg_only", which leaves exp(sim+ / tau) out.
    rivals : (R, D) embeddings and (R,) labels for mode "rival"; default z and y themselves. A class without foreign rival
        is not pulled.

    Returns
    -------
    scalar tensor of z's dtype.

    Raises
    ------
    ValueError : shapes that do not match, an empty batch, labels outside [0, C), tau <= 0, unknown mode or denominator.
    TypeError : labels that are not integers.

    References
    ----------
    Chen et al., the gravity loss (released form); "rival" and "neg_only" are the forms of the authors' read-me.
    """
    if not tau > 0:
        raise ValueError(f"tau must be positive, got {tau}")
    if mode not in ("centroid", "rival") or denominator not in ("both", "neg_only"):
        raise ValueError(
            f"mode must be 'centroid' or 'rival' and denominator 'both' or 'neg_only', got {mode!r} and {denominator!r}"
        )
    if z.ndim != 2 or not z.shape[0] or centroids.ndim != 2 or centroids.shape[1] != z.shape[1]:
        raise ValueError(
            f"z (M, D) and centroids (C, D) must match and M >= 1, got {tuple(z.shape)} and {tuple(centroids.shape)}"
        )
    check_labels(y, z.shape[0])
    if centroids.shape[0] < 2 or y.min() < 0 or y.max() >= centroids.shape[0]:
        raise ValueError(
            f"labels must lie in [0, C) with C = {centroids.shape[0]} >= 2 centroids, got {int(y.min())} to {int(y.max())}"
        )
    centroids = centroids.detach()
    squared = (z[:, None] - centroids).square().sum(2)  # (M, C)
    own = torch.nn.functional.one_hot(y, centroids.shape[0]).bool()
    attract = _root(squared[own])
    if mode == "centroid":
        rival_distance = _root(squared.masked_fill(own, torch.inf).min(1).values)
    else:
        rival_z, rival_y = (z, y) if rivals is None else rivals
        to_centroids = (rival_z[:, None] - centroids).square().sum(2)  # (R, C)
        foreign = torch.arange(centroids.shape[0], device=z.device) != rival_y[:, None]
        rival_distance = _root(to_centroids.masked_fill(~foreign, torch.inf).min(0).values)[y]
    positive = -torch.relu(attract - rival_distance).square() / tau
    negative = torch.logsumexp((-squared / tau).masked_fill(own, -torch.inf), dim=1)
    # exp underflows at raw embedding norms (squared distances near 100), hence logarithms throughout.
    normaliser = torch.logaddexp(positive, negative) if denominator == "both" else negative
    return (normaliser - positive).mean()


def _root(squared: Tensor) -> Tensor:
    """Square root with gradient zero, not NaN, at zero: a node that sits on its centroid is not pulled."""
    usable = (squared > 0) & torch.isfinite(squared)
    return torch.where(usable, torch.where(usable, squared, 1.0).sqrt(), squared.detach())


def _largest_within(
    attempt: Callable[[float], tuple[Tensor, float]], limit: float, delta: float
) -> tuple[Tensor, float, float]:
    """A factor in (0, 1) whose displacement is at most `limit`, and close to it; (outputs, displacement, factor).

    `delta` > limit is the displacement at factor 1. The map is a polynomial in its parameters, so in the usual case of a
    small step the first proportional guess is right to first order and the only one; a wild step is bisected.
    """
    low, high = 0.0, 1.0
    factor = 0.999 * limit / delta
    best = None
    for _ in range(60):
        outputs, moved = attempt(factor)
        if moved <= limit:
            best, low = (outputs, moved, factor), factor
            if moved > 0.9 * limit:
                break
        else:
            high = factor
        # Bisect the logarithm once there is a factor that fits; before, go on proportionally.
        factor = math.sqrt(low * high) if low else factor * 0.999 * limit / moved
    if best is None:
        raise FloatingPointError(f"no part of the step moves the embeddings by less than {limit}")
    attempt(best[2])  # the last attempt may have been a longer one
    return best


class StepInfo(NamedTuple):
    """What `displacement_step` did; displacements are sums over all N nodes, in units of the embedding."""

    loss: float  # at the parameters before the step
    proposed: float  # displacement of the step before scaling
    delta: float  # displacement of the committed step
    shrink: float  # factor applied to the gradient ("grad") or the update ("update"); 1 for "none"
    outputs: Tensor  # (N, D) the map's outputs after the step


def _displacement(after: Tensor, before: Tensor) -> float:
    return torch.linalg.vector_norm(after - before, dim=1).sum().item()


def displacement_step(
    module: nn.Module,
    loss_fn: Callable[[nn.Module], Tensor],
    inputs: Tensor,
    optimizer: torch.optim.Optimizer,
    *,
    scale: Scale = "update",
    alpha: float = 1.0,
    max_shift: float = 0.01,
    before: Tensor | None = None,
) -> StepInfo:
    """One optimiser step of `module`, scaled by how far it would move the embeddings of all nodes.

    With g the gradient of the loss and eta the learning rate, Delta = sum_i ||Phi_{theta - eta g}(H_i) - Phi_theta(H_i)||.
        "grad"    g is multiplied by alpha / Delta before the optimiser steps, so that plain SGD moves all embeddings by a
                  total of alpha to first order; Adam is invariant to a constant factor, and hardly notices.
        "update"  the optimiser's own step is shrunk, never enlarged, until the mean displacement is at most max_shift
                  times the mean embedding norm. The optimiser's moments stay those of the proposed step.
        "none"    the step is taken as it is, and measured.

    Parameters
    ----------
    module : maps (N, D) -> (N, D'); all its trainable parameters belong to `optimizer`.
    loss_fn : loss of the module, called once with gradient.
    inputs : (N, D), all nodes; no gradient is needed.
    alpha : total displacement aimed at, > 0, default 1 ("grad").
    max_shift : largest mean displacement relative to the mean norm, > 0, default 0.01 ("update").
    before : (N, D') the module's outputs at the present parameters, if known; saves one pass.

    Returns
    -------
    StepInfo.

    Raises
    ------
    ValueError : unknown scale, alpha or max_shift not positive.
    FloatingPointError : a loss or displacement that is not finite. Parameters and optimiser are then, as after any exception,
        bit for bit what they were.

    References
    ----------
    Chen et al., the displacement-scaled step ("grad"); "update" is our reading of its intent, a trust region in embedding space.
    """
    if scale not in ("none", "grad", "update"):
        raise ValueError(f"scale must be 'none', 'grad' or 'update', got {scale!r}")
    if not alpha > 0 or not max_shift > 0:
        raise ValueError(f"alpha and max_shift must be positive, got {alpha} and {max_shift}")
    groups = [(group["lr"], parameter) for group in optimizer.param_groups for parameter in group["params"]]
    saved = [parameter.detach().clone() for _, parameter in groups]
    saved_state = {
        parameter: {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}
        for parameter, state in optimizer.state.items()
    }

    def restore() -> None:
        with torch.no_grad():
            for (_, parameter), value in zip(groups, saved, strict=True):
                parameter.copy_(value)

    try:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_fn(module)
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the shaping loss is {loss.item()}, a step is impossible")
        loss.backward()
        with torch.no_grad():
            before = module(inputs) if before is None else before
            if scale == "grad":
                for lr, parameter in groups:
                    if parameter.grad is not None:
                        parameter.sub_(lr * parameter.grad)
                proposed = _displacement(module(inputs), before)
                restore()
                shrink = alpha / proposed if proposed > 0 else 0.0
                for _, parameter in groups:
                    if parameter.grad is not None:
                        parameter.grad.mul_(shrink)
        optimizer.step()
        with torch.no_grad():
            after = module(inputs)
            delta = _displacement(after, before)
            if scale != "grad":
                proposed, shrink = delta, 1.0
            if not math.isfinite(delta + proposed):
                raise FloatingPointError(
                    f"the step would move the embeddings by {proposed}, {delta} after scaling, which is not finite"
                )
            if scale == "update":
                limit = max_shift * torch.linalg.vector_norm(before, dim=1).sum().item()
                if delta > limit:
                    moved = [parameter.detach().clone() for _, parameter in groups]

                    def attempt(factor: float) -> tuple[Tensor, float]:
                        for (_, parameter), old, new in zip(groups, saved, moved, strict=True):
                            parameter.copy_(torch.lerp(old, new, factor))
                        outputs = module(inputs)
                        return outputs, _displacement(outputs, before)

                    after, delta, shrink = _largest_within(attempt, limit, delta)
    except BaseException:
        restore()
        optimizer.state.clear()
        optimizer.state.update(saved_state)
        raise
    return StepInfo(loss.item(), proposed, delta, shrink, after)


class ShapingRecord(NamedTuple):
    """One epoch of `Shaper`; displacement is the mean over nodes, relative to the mean embedding norm."""

    n_candidates: int
    n_hard: int
    n_pulled: int
    loss: float  # NaN where no step was taken
    displacement: float
    shrink: float
    mean_norm: float


class Shaper:
    """Shapes a `BoundaryAttention` over frozen embeddings, one step a call: detect, pull, limit.

    Parameters
    ----------
    h : (N, D) frozen embeddings.   y : (N,) integer labels, read at training nodes alone.   train_mask : (N,) bool.
    num_classes : C.
    nodes : whom the loss pulls: "boundary" (the method), or a control: "random" (as many random training nodes as are hard),
        "all" (all training nodes), "none" (Phi stays as initialised).
    loss : "gravity" (the method) or "supcon" (supervised contrastive, a control; temperature `contrast_tau`).
    lr, weight_decay, optimizer : of the step, "adam" (default, 1e-4, 5e-4) or "sgd".
    batch : at most so many nodes a step, a random subset, default 256.
    tau, mode, denominator : of `gravity_loss`.   delta, knn, threshold, slab, quantile : of `detect_boundary`.
    scale, alpha, max_shift : of `displacement_step`.   tokens, heads, n_views : of `BoundaryAttention`.
    seed : of the subsets and of Phi's initial weights; the global generator is left alone.

    Attributes
    ----------
    phi : the map.   z : (N, D) its present outputs, without gradient.

    Raises
    ------
    ValueError, TypeError : as the parts do; unknown nodes, loss or optimizer.
    """

    def __init__(
        self,
        h: Tensor,
        y: Tensor,
        train_mask: Tensor,
        num_classes: int,
        *,
        nodes: Nodes = "boundary",
        loss: Literal["gravity", "supcon"] = "gravity",
        lr: float = 1e-4,
        weight_decay: float = 5e-4,
        optimizer: Literal["adam", "sgd"] = "adam",
        batch: int = 256,
        tau: float = 1.0,
        contrast_tau: float = 0.1,
        mode: Literal["centroid", "rival"] = "centroid",
        denominator: Literal["both", "neg_only"] = "both",
        delta: float = 5.0,
        knn: int = 5,
        threshold: float = 0.5,
        slab: Slab = "paper",
        quantile: float = 0.5,
        scale: Scale = "update",
        alpha: float = 1.0,
        max_shift: float = 0.01,
        tokens: Literal["single", "views"] = "single",
        heads: int = 2,
        n_views: int = 2,
        seed: int = 0,
    ):
        check_embeddings(h)
        check_labels(y, h.shape[0])
        check_mask(train_mask, h.shape[0], "train_mask")
        check_classes(y[train_mask], num_classes)
        for name, value, known in (
            ("nodes", nodes, ("boundary", "random", "all", "none")),
            ("loss", loss, ("gravity", "supcon")),
            ("optimizer", optimizer, ("adam", "sgd")),
        ):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        if batch < 1:
            raise ValueError(f"batch must be at least 1, got {batch}")
        if not contrast_tau > 0:
            raise ValueError(f"contrast_tau must be positive, got {contrast_tau}")
        self.h, self.y, self.train_mask, self.num_classes = h.detach(), y, train_mask, num_classes
        self.train = train_mask.nonzero().flatten()
        self.nodes, self.loss, self.batch = nodes, loss, batch
        self.gravity = {"tau": tau, "mode": mode, "denominator": denominator}
        self.contrast_tau = contrast_tau
        self.detection = {"delta": delta, "k": knn, "threshold": threshold, "slab": slab, "q": quantile}
        self.step_options = {"scale": scale, "alpha": alpha, "max_shift": max_shift}
        self.generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.phi = BoundaryAttention(h.shape[1], heads, tokens, n_views).to(device=h.device, dtype=h.dtype)
        kind = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
        self.optimizer = kind(self.phi.parameters(), lr=lr, weight_decay=weight_decay)
        with torch.no_grad():
            self.z = self.phi(self.h)
        self._state: BoundaryState | None = None

    def detect(self) -> BoundaryState:
        """The boundary of the present embeddings."""
        if self.nodes == "none" and self._state is not None:
            return self._state  # Phi never moves, nor does its boundary
        self._state = detect_boundary(self.z, self.y, self.train_mask, num_classes=self.num_classes, **self.detection)
        return self._state

    def _sample(self, pool: Tensor, size: int) -> Tensor:
        return pool[torch.randperm(pool.numel(), generator=self.generator)[:size].to(pool.device)]

    def step(self) -> ShapingRecord:
        """Detect and take one step; `phi` and `z` change unless nobody is to be pulled."""
        state = self.detect()
        hard = state.nodes
        pools = {"boundary": hard, "random": self._sample(self.train, hard.numel()), "all": self.train, "none": hard[:0]}
        pulled = self._sample(pools[self.nodes], self.batch)
        norm = torch.linalg.vector_norm(self.z, dim=1).mean().item()
        if pulled.numel() == 0:
            return ShapingRecord(state.candidates.numel(), hard.numel(), 0, math.nan, 0.0, 1.0, norm)
        inputs, labels = self.h[pulled], self.y[pulled]

        def loss_fn(phi: nn.Module) -> Tensor:
            if self.loss == "supcon":
                return supervised_contrastive(phi(inputs), labels, self.contrast_tau)
            if self.gravity["mode"] == "rival":
                return gravity_loss(phi(inputs), labels, state.centroids, rivals=(self.z[hard], self.y[hard]), **self.gravity)
            return gravity_loss(phi(inputs), labels, state.centroids, **self.gravity)

        info = displacement_step(self.phi, loss_fn, self.h, self.optimizer, before=self.z, **self.step_options)
        self.z = info.outputs
        return ShapingRecord(
            state.candidates.numel(),
            hard.numel(),
            pulled.numel(),
            info.loss,
            info.delta / self.h.shape[0] / norm if norm > 0 else 0.0,
            info.shrink,
            norm,
        )


def rescale(h: Tensor, target: float) -> tuple[Tensor, float]:
    """h divided by its mean row norm and multiplied by `target`; returns it and the factor.

    tau and delta are not scale-free, so the scale is fixed once. Raises ValueError for target <= 0 or an all-zero h.
    """
    if not target > 0:
        raise ValueError(f"target must be positive, got {target}")
    norm = torch.linalg.vector_norm(h, dim=1).mean().item()
    if norm == 0:
        raise ValueError("H is zero everywhere: its encoder is dead, there is nothing to scale")
    return h * (target / norm), target / norm


class BESPlugin:
    """Boundary embedding shaping behind any frozen encoder.

    Parameters
    ----------
    encoder_or_h : a PyG-style module, called as encoder(x, edge_index) in eval mode without gradient, or embeddings (N, D).
    num_classes : C.
    epochs : shaping steps, default 100.
    norm_target : mean row norm that embeddings are scaled to, default sqrt(32); None keeps them.
    options : of `Shaper`.

    Attributes
    ----------
    shaper : the fitted `Shaper`.   records : list of `ShapingRecord`, one an epoch.   factor : the scale applied to H.

    Example
    -------
    >>> from torch_geometric.nn import GCN
    >>> shaped = BESPlugin(GCN(64, 32, 1), num_classes=7).fit(data).transform(data)  # doctest: +SKIP
    """

    def __init__(
        self,
        encoder_or_h: nn.Module | Tensor,
        num_classes: int,
        *,
        epochs: int = 100,
        norm_target: float | None = 32**0.5,
        **options,
    ):
        if not isinstance(encoder_or_h, (nn.Module, Tensor)):
            raise TypeError(f"encoder_or_H must be a module or a tensor (N, D), got {type(encoder_or_h).__name__}")
        if epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {epochs}")
        self.source, self.num_classes, self.epochs = encoder_or_h, num_classes, epochs
        self.norm_target, self.options = norm_target, options

    @torch.no_grad()
    def _embed(self, data) -> Tensor:
        if isinstance(self.source, Tensor):
            return self.source.detach()
        training = self.source.training
        self.source.eval()
        try:
            return self.source(data.x, data.edge_index).detach()
        finally:
            self.source.train(training)

    def fit(self, data) -> BESPlugin:
        """Shape the map on data.y (N,) and data.train_mask (N,), and data.x, data.edge_index if there is an encoder."""
        h = self._embed(data)
        check_embeddings(h)
        masks = {name: data[name] for name in ("train_mask", "val_mask", "test_mask") if name in data}
        check_disjoint(**masks)
        self.factor = 1.0
        if self.norm_target is not None:
            h, self.factor = rescale(h, self.norm_target)
        self.shaper = Shaper(h, data.y, data.train_mask, self.num_classes, **self.options)
        self.records = [self.shaper.step() for _ in range(self.epochs)]
        return self

    @torch.no_grad()
    def transform(self, data) -> Tensor:
        """Shaped embeddings (N, D) of `data`. Raises RuntimeError before `fit`."""
        if not hasattr(self, "shaper"):
            raise RuntimeError("BESPlugin.transform needs a fitted plugin; call fit(data) first")
        return self.shaper.phi(self._embed(data) * self.factor)

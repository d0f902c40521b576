"""Zeroth-order gradients and SGD: two losses per random direction, no backward pass, no direction kept in memory.

    g = (1/P) sum_p [(L(theta + mu u_p) - L(theta - mu u_p)) / (2 mu)] u_p = U U^T grad L + O(mu^2)

with U = P^{-1/2} [u_1 ... u_P]. The directions are regenerated from a seed (`components.optim.perturbations`): once to perturb,
once to update. Sources: Li, Ying, Liu, Yang, "Learning Dynamics of Zeroth-Order Optimization: A Kernel Perspective" (the estimator);
Malladi et al., "Fine-Tuning Language Models with Just Forward Passes" (seeded perturbation in place).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from components.optim.perturbations import (
    BLOCK,
    Distribution,
    Stream,
    check_count,
    check_distribution,
    check_seed,
    directions,
    kernel_distribution,
    kernel_scale,
    kernel_seed,
    kernels_draw,
    orthogonal_directions,
)
from kernels.seeded_projection import seeded_axpy_

RANDOM_LOSS = "loss must be deterministic between +μ and −μ"


def check_mu(mu: float) -> float:
    if not (isinstance(mu, int | float) and math.isfinite(mu) and mu > 0):
        raise ValueError(f"mu must be a finite positive number, got {mu!r}")
    return float(mu)


def expected_square_norm(d: int, n_perturbations: int, dist: Distribution) -> float:
    """E||U U^T g||^2 / ||g||^2 for a gradient in R^d and P directions: how much longer the estimate is than the gradient.

    1 + (d+1)/P gaussian; 1 + (d-1)/P rademacher, sphere and coordinate; d/P orthogonal."""
    check_distribution(dist)
    check_count(n_perturbations, dist, d)
    if dist == "orthogonal":
        return d / n_perturbations
    return 1 + (d + (1 if dist == "gaussian" else -1)) / n_perturbations


class _RandomnessCheck:
    """Notices a loss that draws from torch's generators anew at each call, as dropout in training mode does.

    A loss that fixes its own generator leaves the same state behind each time, and a deterministic one leaves it alone."""

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._cuda = sorted({str(device) for device in devices if device.type == "cuda"})

    def state(self) -> list[Tensor]:
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in self._cuda)]

    def compare(self, first: list[Tensor], second: list[Tensor]) -> None:
        if not all(torch.equal(a, b) for a, b in zip(first, second, strict=True)):
            raise ValueError(
                f"{RANDOM_LOSS}: it draws random numbers (dropout in train() mode?); call model.eval(), or seed inside the loss"
            )


def _scalar(loss: Any, index: int, sign: str) -> float:
    if isinstance(loss, Tensor):
        if loss.numel() != 1 or loss.ndim > 1:
            raise TypeError(f"the loss must be a scalar, got a tensor of shape {tuple(loss.shape)}")
        loss = loss.item()
    if isinstance(loss, bool) or not isinstance(loss, int | float):
        raise TypeError(f"the loss must be a scalar tensor or a number, got {type(loss).__name__}")
    if not math.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss} at perturbation {index} ({sign}μ); the weights are restored")
    return float(loss)


class ZOGradient:
    """Two-point estimate of a gradient from losses at perturbed weights.

    Parameters
    ----------
    n_perturbations : P, directions per estimate.
    mu : smoothing radius, in units of the weights; default 1e-3 (float32). In float64 1e-5 is safe.
    dist : law of the directions, default "gaussian"; see `components.optim.perturbations`.
    seed : of the directions, in [0, 2^64).

    Attributes
    ----------
    step : number of the next estimate; each step has its own directions.

    Raises
    ------
    ValueError, TypeError : P < 1, mu <= 0, unknown dist, bad seed.
    """

    def __init__(self, n_perturbations: int, mu: float = 1e-3, dist: Distribution = "gaussian", seed: int = 0) -> None:
        self.dist = check_distribution(dist)
        self.n_perturbations = check_count(n_perturbations, dist)
        self.mu = check_mu(mu)
        self.seed = check_seed(seed)
        self.step = 0
        self._d: int | None = None

    def directions(
        self, step: int, d: int | None = None, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> Iterator[Tensor]:
        """The P directions of a step, each (d,); the same bits on every call.

        d : dimension, default that of the last estimate. ValueError where there was none."""
        d = self._d if d is None else d
        if d is None:
            raise ValueError("the dimension is not known before the first estimate: give d")
        return directions(d, self.n_perturbations, self.dist, self.seed, step, dtype, device)

    def estimate(self, loss_fn: Callable[[Tensor], Tensor], theta: Tensor, step: int | None = None) -> Tensor:
        """The estimate at `theta`.

        Parameters
        ----------
        loss_fn : weights (d,) -> scalar loss, deterministic.
        theta : (d,) floating point weights, left as they are.
        step : whose directions to use; default the next one, which also moves the counter on.

        Returns
        -------
        (d,) of theta's dtype.

        Raises
        ------
        TypeError : a loss that is no scalar. ValueError : theta that is not one-dimensional and floating point, orthogonal
        directions with P > d, a loss that draws random numbers. FloatingPointError : a loss that is not finite.
        """
        step = self._begin(theta, step)
        check, total = _RandomnessCheck([theta.device]), torch.zeros_like(theta)
        with torch.no_grad():
            for index, u in enumerate(self.directions(step, dtype=theta.dtype, device=theta.device)):
                plus = loss_fn(theta + self.mu * u)
                state = check.state()
                minus = loss_fn(theta - self.mu * u)
                check.compare(state, check.state())
                difference = _scalar(plus, index, "+") - _scalar(minus, index, "−")
                total.add_(u, alpha=difference / (2 * self.mu))
        return total.div_(self.n_perturbations)

    def estimate_batched(
        self, loss_fn: Callable[[Tensor], Tensor], theta: Tensor, step: int | None = None, chunk: int = 16
    ) -> Tensor:
        """`estimate` with a loss that takes many weights at once: (B, d) -> (B,), with B at most 2 `chunk`.

        Faster for small networks; keeps 3 chunk d numbers. Arguments, results and errors as for `estimate`."""
        if chunk < 1:
            raise ValueError(f"chunk must be at least 1, got {chunk}")
        step = self._begin(theta, step)
        total, index = torch.zeros_like(theta), 0
        source = self.directions(step, dtype=theta.dtype, device=theta.device)
        with torch.no_grad():
            while index < self.n_perturbations:
                count = min(chunk, self.n_perturbations - index)
                u = torch.stack([next(source) for _ in range(count)])
                losses = loss_fn(torch.cat([theta + self.mu * u, theta - self.mu * u]))
                if not isinstance(losses, Tensor) or losses.shape != (2 * count,):
                    found = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
                    raise TypeError(f"the loss must give one number per row of weights, shape ({2 * count},), got {found}")
                bad = (~torch.isfinite(losses)).nonzero().flatten()
                if bad.numel():
                    at = int(bad[0])
                    _scalar(losses[at], index + at % count, "+" if at < count else "−")
                total += ((losses[:count] - losses[count:]) / (2 * self.mu)).to(theta.dtype) @ u
                index += count
        return total.div_(self.n_perturbations)

    def _begin(self, theta: Tensor, step: int | None) -> int:
        if not isinstance(theta, Tensor) or theta.ndim != 1 or not theta.is_floating_point():
            found = f"{theta.dtype} of shape {tuple(theta.shape)}" if isinstance(theta, Tensor) else type(theta).__name__
            raise ValueError(f"theta must be a floating point tensor of shape (d,), got {found}")
        check_count(self.n_perturbations, self.dist, theta.numel())
        self._d = theta.numel()
        if step is None:
            step, self.step = self.step, self.step + 1
        return step


class ZOSGD(torch.optim.Optimizer):
    """SGD on two-point gradient estimates, with the weights perturbed in place.

    `step(closure)` calls the closure 2 P times, without gradients; it returns the loss at the present weights and calls no
    backward. All parameters of all groups are perturbed together, in the order of the groups, whether they require gradients or
    not. The update is  theta <- theta - lr (g + weight_decay theta).

    Parameters
    ----------
    params : parameters or groups; lr and weight_decay may differ between groups, the rest may not.
    lr : learning rate, at least 0.
    n_perturbations, mu, dist, seed : as for `ZOGradient`; the same directions as `ZOGradient` draws for the flattened weights.
    weight_decay : L2 penalty, at least 0; default 0.
    restore : "copy" (default) keeps one copy of the weights while a step runs, d numbers however many perturbations there are:
        the weights come back bit for bit, and are perturbed symmetrically. "arithmetic" adds +mu u, -2 mu u, +mu u in place and
        keeps nothing; rounding then moves the weights by about one unit in the last place per perturbation, in half
        precision by more.

    The state is the step counter and the seed, which stand in every group: `state_dict` restores a run to the bit.

    Raises
    ------
    ValueError, TypeError : as for `ZOGradient`; lr or weight_decay < 0 or not finite; groups that differ in what they must share;
        from `step`: a loss that draws random numbers, is no scalar or (FloatingPointError) not finite. The weights are restored
        before any error of the closure is raised.
    """

    SHARED = ("n_perturbations", "mu", "dist", "seed", "restore", "step")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        n_perturbations: int = 1,
        mu: float = 1e-3,
        dist: Distribution = "gaussian",
        weight_decay: float = 0.0,
        seed: int = 0,
        restore: Literal["copy", "arithmetic"] = "copy",
    ) -> None:
        check_distribution(dist)
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "n_perturbations": check_count(n_perturbations, dist),
            "mu": check_mu(mu),
            "dist": dist,
            "seed": check_seed(seed),
            "restore": restore,
            "step": 0,
        }
        if restore not in ("copy", "arithmetic"):
            raise ValueError(f"restore must be 'copy' or 'arithmetic', got {restore!r}")
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        first, new = self.param_groups[0], self.param_groups[-1]
        try:
            for name in ("lr", "weight_decay"):
                if not (math.isfinite(new[name]) and new[name] >= 0):
                    raise ValueError(f"{name} must be a finite number of at least 0, got {new[name]}")
            if "step" not in param_group or new is not first:
                new["step"] = first["step"]
            for name in self.SHARED:
                if new[name] != first[name]:
                    raise ValueError(f"all groups share {name}, got {first[name]!r} and {new[name]!r}")
            for parameter in new["params"]:
                if not parameter.is_floating_point():
                    raise ValueError(f"parameters must be floating point, got {parameter.dtype}")
        except ValueError:
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor | float]) -> float:
        """One step. Returns the mean of the 2 P losses, an estimate of the loss before the step."""
        if not callable(closure):
            raise TypeError("step needs a closure that returns the loss; it is called 2 n_perturbations times")
        group = self.param_groups[0]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        d, count, mu = sum(p.numel() for p in parameters), group["n_perturbations"], group["mu"]
        check_count(count, group["dist"], d)
        source = _Directions(parameters, d, group)
        check = _RandomnessCheck(parameter.device for parameter in parameters)
        kept = [parameter.clone() for parameter in parameters] if group["restore"] == "copy" else None
        slopes, losses = [], []
        for index in range(count):
            moved = 0.0

            def move(to: float, index: int = index) -> None:
                nonlocal moved
                if kept is not None:
                    for parameter, copy in zip(parameters, kept, strict=True):
                        parameter.copy_(copy)
                    if to:
                        source.add(index, to)
                else:
                    source.add(index, to - moved)
                moved = to

            try:
                move(mu)
                plus = closure()
                state = check.state()
                move(-mu)
                minus = closure()
                check.compare(state, check.state())
            finally:
                move(0.0)
            pair = _scalar(plus, index, "+"), _scalar(minus, index, "−")
            losses += pair
            slopes.append((pair[0] - pair[1]) / (2 * mu * count))
        rates = []
        for group in self.param_groups:
            rates += [group["lr"]] * len(group["params"])
            if group["lr"] and group["weight_decay"]:
                for parameter in group["params"]:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
            group["step"] += 1
        source.update([-rate for rate in rates], slopes)
        return math.fsum(losses) / len(losses)


class _Directions:
    """The directions of one step, laid over a list of parameters in `parameters()` order."""

    def __init__(self, parameters: list[Tensor], d: int, group: dict[str, Any]) -> None:
        self.parameters, self.d = parameters, d
        self.dist, self.name, self.count = group["dist"], (group["seed"], group["step"]), group["n_perturbations"]
        self.cuda = kernels_draw(parameters, self.dist)
        self._kept = orthogonal_directions(d, self.count, *self.name) if self.dist == "orthogonal" else None
        self._scales: dict[int, float] = {}  # a number per direction, for the sphere

    def scale(self, index: int) -> float:
        if self.dist != "sphere":
            return 1.0
        if index not in self._scales:
            if self.cuda:
                device = self.parameters[0].device
                self._scales[index] = kernel_scale(self.d, self.count, self.dist, kernel_seed(*self.name), index, device)
            else:
                self._scales[index] = Stream(self.d, self.dist, *self.name, index).scale()
        return self._scales[index]

    def add(self, index: int, factor: float) -> None:
        """theta += factor u_index."""
        self._axpy([factor] * len(self.parameters), {index: 1.0})

    def update(self, factors: list[float], weights: list[float]) -> None:
        """Each parameter += its factor times sum_p weights_p u_p, summed in float32 (or wider) before it is added."""
        if any(factors):
            self._axpy(factors, dict(enumerate(weights)))

    def _axpy(self, factors: list[float], weights: dict[int, float]) -> None:
        if self.cuda:
            row = 0
            for parameter, factor in zip(self.parameters, factors, strict=True):
                flat = _flat(parameter)
                for index, weight in weights.items() if factor else ():
                    alpha = factor * weight * self.scale(index)
                    dist = kernel_distribution(self.dist)
                    seeded_axpy_(flat, alpha, kernel_seed(*self.name), dist, column=index, columns=self.count, first_row=row)
                if flat.data_ptr() != parameter.data_ptr():
                    parameter.copy_(flat.view_as(parameter))
                row += parameter.numel()
            return
        # Block by block over all weights: blocks begin at multiples of BLOCK of the flattened vector, parameters where they begin.
        streams = {} if self._kept is not None else {i: Stream(self.d, self.dist, *self.name, i) for i in weights}
        pieces = _pieces([parameter.numel() for parameter in self.parameters])
        flats = [_flat(parameter) for parameter in self.parameters]
        for start in range(0, self.d, BLOCK):
            rows = min(BLOCK, self.d - start)
            wide = torch.float64 if any(flat.dtype == torch.float64 for flat in flats) else torch.float32
            total = torch.zeros(rows, dtype=wide)
            for index, weight in weights.items():
                u = (
                    self._kept[index, start : start + rows]
                    if self._kept is not None
                    else torch.from_numpy(streams[index].take(rows))
                )
                total.add_(u.to(wide), alpha=weight * self.scale(index))
            for position, first, last in pieces(start, start + rows):
                if not factors[position]:
                    continue
                begin = pieces.starts[position]
                target = flats[position][first - begin : last - begin]
                change = total[first - start : last - start] * factors[position]
                target.copy_((target.to(wide) + change.to(target.device)).to(target.dtype))
        for flat, parameter in zip(flats, self.parameters, strict=True):
            if flat.data_ptr() != parameter.data_ptr():
                parameter.copy_(flat.view_as(parameter))


class _pieces:
    """Which parameters a range of the flattened vector touches, and where."""

    def __init__(self, sizes: list[int]) -> None:
        self.starts = [0]
        for size in sizes:
            self.starts.append(self.starts[-1] + size)

    def __call__(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        for position, (first, last) in enumerate(zip(self.starts[:-1], self.starts[1:], strict=True)):
            if first < stop and last > start:
                yield position, max(first, start), min(last, stop)


def _flat(parameter: Tensor) -> Tensor:
    """The parameter as a vector: a view where its strides allow it, else a copy that is written back."""
    return parameter.view(-1) if parameter.is_contiguous() else parameter.contiguous().view(-1)

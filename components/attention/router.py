"""Which tokens consult the whole past: one bit per token, hard in the forward pass, soft in the backward pass.

    r = w . z,   p = sigmoid(r / tau),   a = 1[p >= theta],   m = a + p - stopgrad(p)

The bit is decided on the logit, r >= tau ln(theta / (1 - theta)), so that training and inference agree to the last bit.
m equals a exactly and has the gradient of p. w starts at zero: with theta <= 1/2 every token is on at step 0.

Source: "Learning When to Attend: Conditional Memory Access for Long-Context LLMs", the router and its straight-through estimator.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Routing(NamedTuple):
    """What a router decided, [batch, time] each (a router per head: [batch, time, heads])."""

    m: Tensor  # 0 or 1, floating point, with the gradient of p
    p: Tensor  # probability that the token is on
    a: Tensor  # bool, the decision


class TokenRouter(nn.Module, ABC):
    """Decides for z [batch, time, width]; `layer` is named in errors."""

    layer: int = 0

    @abstractmethod
    def forward(self, z: Tensor) -> Routing: ...


def check_probability(name: str, value: float, *, open_interval: bool = False) -> float:
    """Raises ValueError unless `value` lies in [0, 1], or strictly between with `open_interval`."""
    inside = 0 < value < 1 if open_interval else 0 <= value <= 1
    if not inside:
        raise ValueError(f"{name} must lie {'strictly between 0 and 1' if open_interval else 'in [0, 1]'}, got {value}")
    return float(value)


def check_finite(p: Tensor, layer: int) -> None:
    """Raises FloatingPointError, naming the layer, for a probability that is NaN."""
    if torch.isnan(p).any():
        raise FloatingPointError(f"the router of layer {layer} has logits that are NaN")


class Router(TokenRouter):
    """The learned router.

    Parameters
    ----------
    d : width of z.
    tau : temperature, above 0; default 0.1.
    theta : threshold of p, strictly between 0 and 1; default 0.5.
    outputs : None (default) for one bit per token; a number for so many bits per token, one per head.
    layer : number of the layer, for messages.

    `forward(z)` raises FloatingPointError for NaN logits; on a GPU, where looking would wait for the device, `router_loss` does.
    """

    def __init__(self, d: int, tau: float = 0.1, theta: float = 0.5, outputs: int | None = None, layer: int = 0) -> None:
        super().__init__()
        if d < 1 or (outputs is not None and outputs < 1):
            raise ValueError(f"d and outputs must be at least 1, got {d} and {outputs}")
        if not 0 < tau < math.inf:
            raise ValueError(f"tau must be positive and finite, got {tau}")
        check_probability("theta", theta, open_interval=True)
        self.tau, self.theta, self.layer = float(tau), float(theta), layer
        self.threshold = tau * math.log(theta / (1 - theta))
        self.weight = nn.Parameter(torch.zeros(d) if outputs is None else torch.zeros(outputs, d))

    def forward(self, z: Tensor) -> Routing:
        r = z @ self.weight.t() if self.weight.ndim == 2 else z @ self.weight
        p = torch.sigmoid(r / self.tau)
        if not p.is_cuda:
            check_finite(p, self.layer)
        a = r >= self.threshold
        return Routing(a + (p - p.detach()), p, a)


class ConstantRouter(TokenRouter):
    """All tokens on, or all off."""

    def __init__(self, on: bool) -> None:
        super().__init__()
        self.on = bool(on)

    def forward(self, z: Tensor) -> Routing:
        a = torch.full(z.shape[:-1], self.on, dtype=torch.bool, device=z.device)
        return Routing(a.to(z.dtype), a.to(z.dtype), a)


class RandomRouter(TokenRouter):
    """Each token on with a fixed probability, whatever it is: the baseline of a learned router with equal share.

    Decisions come from an own generator on the CPU, so that they do not depend on anything else that is drawn; `reseed`
    starts them anew. Raises ValueError for a rate outside [0, 1].
    """

    def __init__(self, rate: float, seed: int = 0) -> None:
        super().__init__()
        self.rate = check_probability("rate", rate)
        self.generator = torch.Generator()
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        self.generator.manual_seed(seed)

    def forward(self, z: Tensor) -> Routing:
        a = (torch.rand(z.shape[:-1], generator=self.generator) < self.rate).to(z.device)
        return Routing(a.to(z.dtype), torch.full_like(a, self.rate, dtype=z.dtype), a)


def router_loss(probabilities: Iterable[Tensor], *, power: int = 2) -> Tensor:
    """Mean over layers of the mean over batch and time of p ** power; times lambda_bar it is added to the loss.

    Parameters
    ----------
    probabilities : one tensor p per layer, [batch, time] or [batch, time, heads].
    power : 2 (default, L2A) or 1 (the penalty of routers per head).

    The paper sums p^2 over the T tokens of a sequence; its lambda is lambda_bar / T. Raises ValueError without layers or for a
    power below 1, FloatingPointError naming the layer where p is NaN.
    """
    layers = list(probabilities)
    if not layers:
        raise ValueError("router_loss needs the probabilities of at least one layer")
    if power < 1:
        raise ValueError(f"power must be at least 1, got {power}")
    means = torch.stack([p.float().pow(power).mean() if p.dtype != torch.float64 else p.pow(power).mean() for p in layers])
    bad = torch.isnan(means).nonzero().flatten().tolist()
    if bad:
        raise FloatingPointError(f"the router of layer {bad[0]} has logits that are NaN")
    return means.mean()

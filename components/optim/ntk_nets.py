"""Networks in the tangent-kernel parameterisation, whose kernel keeps its size whatever the width.

Weights are N(0, 1) and a layer's output is scaled by gain / sqrt(fan in); there are no biases, since a bias of the last layer adds
a constant to every kernel entry. Then one learning rate moves the function equally fast at all widths.
Source: Jacot, Gabriel, Hongler, "Neural Tangent Kernel".
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": torch.relu, "gelu": F.gelu}


class FlatNet(nn.Module, ABC):
    """A network that is a pure function of its weights, so that many weight vectors can be tried at once.

    Subclasses give `compute(weights, x)`, with the weights as a list of tensors. `theta` vectors hold all weights flattened in `parameters()`
    order; d is their number."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], seed: int | None) -> None:
        super().__init__()
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes)
        self.shapes = [tuple(shape) for shape in shapes]
        self.d = sum(math.prod(shape) for shape in shapes)

    @abstractmethod
    def compute(self, weights: Sequence[Tensor], x: Tensor) -> Tensor:
        """Logits (N, V) at these weights, which have the shapes given to the constructor."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, V)."""
        return self.compute(list(self.weights), x)

    def flat(self) -> Tensor:
        """A copy of the weights, (d,)."""
        return torch.cat([weight.detach().reshape(-1) for weight in self.weights])

    def load_flat(self, theta: Tensor) -> None:
        """Set the weights from (d,). ValueError for another shape."""
        if theta.shape != (self.d,):
            raise ValueError(f"theta must have shape ({self.d},), got {tuple(theta.shape)}")
        with torch.no_grad():
            for weight, part in zip(self.weights, self.split(theta), strict=True):
                weight.copy_(part)

    def split(self, theta: Tensor) -> list[Tensor]:
        """Views of (..., d) as the weights, each (..., *shape)."""
        parts = theta.split([math.prod(shape) for shape in self.shapes], dim=-1)
        return [part.reshape(*theta.shape[:-1], *shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def functional(self, theta: Tensor, x: Tensor) -> Tensor:
        """Logits (N, V) at the weights theta, (d,)."""
        return self.compute(self.split(theta), x)

    def batched_logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """Logits (B, N, V) at B weight vectors, (B, d)."""
        return torch.func.vmap(self.functional, in_dims=(0, None))(theta, x)

    def batched_loss(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy, (B,), of classes y (N,) at B weight vectors, (B, d)."""
        log_pi = torch.log_softmax(self.batched_logits(theta, x), dim=-1)
        return -log_pi[:, torch.arange(y.numel()), y].mean(1)


class NTKMLP(FlatNet):
    """Fully connected network: d_in -> widths -> V.

    Parameters
    ----------
    d_in, widths, V : inputs, units of each hidden layer, outputs; all at least 1.
    gain : factor of every layer's output besides 1 / sqrt(fan in); default 1.5.
    act : "tanh" (default), "relu" or "gelu".
    seed : of the weights; None draws from torch's global generator.

    Raises
    ------
    ValueError : sizes below 1, a gain that is not positive, an unknown activation.
    """

    def __init__(
        self, d_in: int, widths: Sequence[int], V: int, gain: float = 1.5, act: str = "tanh", seed: int | None = None
    ) -> None:
        sizes = [d_in, *widths, V]
        if any(size < 1 for size in sizes):
            raise ValueError(f"all layers need at least one unit, got {sizes}")
        _check_net(gain, act)
        super().__init__(list(zip(sizes[1:], sizes[:-1], strict=True)), seed)
        self.gain, self.act = gain, act

    def compute(self, weights: Sequence[Tensor], x: Tensor) -> Tensor:
        h = x
        for position, weight in enumerate(weights):
            h = (h if position == 0 else ACTIVATIONS[self.act](h)) @ weight.mT * (self.gain / math.sqrt(weight.shape[-1]))
        return h


class NTKLeNet(FlatNet):
    """LeNet without biases on 28 x 28 images: 6 and 16 maps of 5 x 5, each averaged over 2 x 2, then 84 units and V outputs.

    24,054 + 84 V weights; x is (N, 784) or (N, 1, 28, 28). Other arguments and errors as for `NTKMLP`."""

    def __init__(self, V: int = 10, gain: float = 1.5, act: str = "tanh", seed: int | None = None) -> None:
        if V < 1:
            raise ValueError(f"all layers need at least one unit, got V = {V}")
        _check_net(gain, act)
        super().__init__([(6, 1, 5, 5), (16, 6, 5, 5), (84, 256), (V, 84)], seed)
        self.gain, self.act = gain, act

    def compute(self, weights: Sequence[Tensor], x: Tensor) -> Tensor:
        act, h = ACTIVATIONS[self.act], x.reshape(-1, 1, 28, 28)
        for weight in weights[:2]:
            scale = self.gain / math.sqrt(math.prod(weight.shape[-3:]))
            h = F.avg_pool2d(act(F.conv2d(h, weight) * scale), 2)
        h = act(h.flatten(1) @ weights[2].mT * (self.gain / 16))
        return h @ weights[3].mT * (self.gain / math.sqrt(84))


def _check_net(gain: float, act: str) -> None:
    if not (math.isfinite(gain) and gain > 0):
        raise ValueError(f"gain must be a finite positive number, got {gain!r}")
    if act not in ACTIVATIONS:
        raise ValueError(f"act must be one of {', '.join(ACTIVATIONS)}, got {act!r}")

"""The networks of the study and one step of their training, shared by the stages train and evaluate."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from components.optim.ntk_nets import NTKMLP, FlatNet, NTKLeNet
from flows.zo_entk.store import Inputs, seed_of


def mlp(width: int, gain: float, seed: int, outputs: int = 10) -> NTKMLP:
    """64 -> width -> width -> outputs; the seed counts for the width too, so that sizes do not share weights."""
    return NTKMLP(64, [width, width], outputs, gain=gain, seed=seed_of("weights", width, seed) >> 1)


def lenet(gain: float, seed: int) -> NTKLeNet:
    return NTKLeNet(10, gain=gain, seed=seed_of("weights", "lenet", seed) >> 1)


def batches(inputs: Inputs, batch: int, steps: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The training batches of a seed: the same for every width and method, from a generator of their own."""
    generator = np.random.default_rng(seed_of("batches", seed))
    train = np.arange(inputs.probes, inputs.y.size)
    for _ in range(steps):
        rows = generator.choice(train, min(batch, train.size), replace=False)
        yield torch.from_numpy(inputs.x[rows]), torch.from_numpy(inputs.y[rows])


def first_order(net: FlatNet, theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
    """Gradient (d,) of the mean cross-entropy and the loss."""
    theta = theta.detach().requires_grad_(True)
    loss = torch.nn.functional.cross_entropy(net.functional(theta, x), y)
    return torch.autograd.grad(loss, theta)[0], loss.item()

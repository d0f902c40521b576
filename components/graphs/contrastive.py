"""Supervised contrastive loss: every node of a batch towards all others of its class.

L_i = - 1/|P(i)| sum_{p in P(i)} log( exp(z_i . z_p / tau) / sum_{a != i} exp(z_i . z_a / tau) ), z normalised, P(i) the
other members of i's class; nodes alone in their class are left out of the mean.
Source: Khosla et al., "Supervised contrastive learning" (the form with the sum outside the logarithm).
"""

from __future__ import annotations

import torch
from torch import Tensor

from components.graphs.checks import check_labels


def supervised_contrastive(z: Tensor, y: Tensor, tau: float = 0.1) -> Tensor:
    """Scalar loss of a batch.

    Parameters
    ----------
    z : (M, D) embeddings, any norm.   y : (M,) integer labels.   tau : temperature > 0, default 0.1.

    Raises
    ------
    ValueError : z not a matrix, y of another length, tau <= 0.   TypeError : labels that are not integers.

    A batch without any pair of one class has loss 0.
    """
    if z.ndim != 2:
        raise ValueError(f"z must have shape (M, D), got {tuple(z.shape)}")
    check_labels(y, z.shape[0])
    if not tau > 0:
        raise ValueError(f"tau must be positive, got {tau}")
    unit = torch.nn.functional.normalize(z, dim=1)
    own = torch.eye(z.shape[0], dtype=torch.bool, device=z.device)
    similarity = (unit @ unit.T / tau).masked_fill(own, -torch.inf)
    log_share = similarity - torch.logsumexp(similarity, dim=1, keepdim=True)
    positive = (y[:, None] == y) & ~own
    count = positive.sum(1)
    if not count.any():
        return (z * 0).sum()
    total = -torch.where(positive, log_share, 0.0).sum(1)
    return (total[count > 0] / count[count > 0]).mean()

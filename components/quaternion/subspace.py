"""Which interactions a score of quaternion projections can express: ranks of the bilinear forms that it ranges over.

With q = p x and k = s y for one pair of input features x, y, every score is a bilinear form sum_ab F_ab x_a y_b, a point F of
R^16. Over all weights (p, s) the shared score, and each component of q conj(k), range over {L(w)}, the same 4 dimensions:
<p x, s y> = x^T L(conj(p) s) y and (q conj(k))_c = x^T L(conj(p) e_c s) y. So four score maps add no interaction to one.
The components of the product without a conjugate, q k, span all 16.

Source: the claim is of Yamauchi et al., "Quaternion Self-Attention with Shared Scores"; the argument is this module's own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from components.quaternion.ops import conj, hamilton, left_matrix, qinner


class InteractionRanks(NamedTuple):
    """Ranks of the forms of the shared score, of each component r, x, y, z, and of all five families together."""

    shared: int
    components: tuple[int, int, int, int]
    union: int


def score_forms(p: Tensor, s: Tensor, conjugate: bool = True) -> tuple[Tensor, Tensor]:
    """Forms of the shared score (N, 4, 4) and of the components (N, 4, 4, 4), component first, for weights p, s (N, 4).

    Entry a, b is the score of the units x = e_a and y = e_b, computed by the products themselves. conjugate : of q conj(k)."""
    q = left_matrix(p).transpose(-1, -2)[:, :, None]  # (N, a, 1, 4): p e_a
    k = left_matrix(s).transpose(-1, -2)[:, None]  # (N, 1, b, 4): s e_b
    product = hamilton(q, conj(k, -1) if conjugate else k, -1)
    return qinner(q, k, -1), product.movedim(-1, 1)


def interaction_ranks(pairs: int = 200, conjugate: bool = True, seed: int = 0, rtol: float = 1e-9) -> InteractionRanks:
    """Ranks over `pairs` random weights (p, s), normal, by singular values above `rtol` times the largest; float64.

    conjugate : components of q conj(k) (default) or of q k. At least 16 pairs are needed to see a full span: ValueError below."""
    if pairs < 16:
        raise ValueError(f"pairs must be at least 16, the dimension of the bilinear forms, got {pairs}")
    weights = torch.randn(2, pairs, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    shared, components = score_forms(*weights, conjugate)
    families = [shared.flatten(1), *components.flatten(2).unbind(1)]

    def rank(forms: Tensor) -> int:
        return int(torch.linalg.matrix_rank(forms, rtol=rtol))

    each = [rank(family) for family in families]
    return InteractionRanks(each[0], (each[1], each[2], each[3], each[4]), rank(torch.cat(families)))

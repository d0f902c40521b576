"""How sparse the layers are, and cutting the global branch of those that are.

The skip rate of a layer is 1 - mean a over calibration text. Layers are cut where it reaches a threshold, or, sparsest first,
until the cache is small enough.

Source: "Learning When to Attend: Conditional Memory Access for Long-Context LLMs", post-training pruning.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from components.attention.costs import cache_saving
from components.attention.l2a import decisions, l2a_layers
from components.attention.router import check_probability


class SparsityTracker:
    """Counts decisions [layers, batch, time] bool, of texts of one length."""

    def __init__(self) -> None:
        self.active: np.ndarray | None = None  # [layers, time] int64, active tokens by position
        self.texts = 0

    def update(self, a: Tensor) -> None:
        """Raises TypeError for decisions that are not bool [layers, batch, time], ValueError for other layers or times than before."""
        if a.dtype != torch.bool or a.ndim != 3:
            raise TypeError(f"decisions must be bool [layers, batch, time], got {a.dtype} of shape {list(a.shape)}")
        found = a.sum(1).cpu().numpy()
        if self.active is not None and found.shape != self.active.shape:
            raise ValueError(f"decisions are of {found.shape} layers and tokens, those before of {self.active.shape}")
        self.active = found if self.active is None else self.active + found
        self.texts += a.shape[1]

    def _counted(self) -> np.ndarray:
        if self.active is None or not self.texts:
            raise ValueError("nothing was counted yet: call update")
        return self.active

    def skip_rates(self) -> list[float]:
        """Per layer, in [0, 1]. Raises ValueError where nothing was counted."""
        return (1 - self._counted().mean(1) / self.texts).tolist()

    def by_position(self) -> np.ndarray:
        """[layers, time], the share of texts whose token there is active."""
        return self._counted() / self.texts


@dataclass(frozen=True)
class PruneReport:
    """What was cut. `saving` is the cache's saving over a dense model's, at `length` tokens, before and after."""

    skip_rates: tuple[float, ...]
    pruned: tuple[bool, ...]
    length: int
    saving_before: float
    saving_after: float


def skip_rates(model: nn.Module, texts: Iterable[Tensor]) -> list[float]:
    """Skip rate per layer over batches of tokens that `model` takes, without gradients and in evaluation mode."""
    tracker, was_training = SparsityTracker(), model.training
    model.eval()
    with torch.no_grad():
        for tokens in texts:
            model(tokens)
            tracker.update(decisions(model))
    model.train(was_training)
    return tracker.skip_rates()


def prune_layers(
    model: nn.Module,
    texts: Iterable[Tensor],
    *,
    threshold: float | None = None,
    target_saving: float | None = None,
    length: int | None = None,
) -> PruneReport:
    """Cut the global branch of sparse layers, in place.

    Parameters
    ----------
    model : with L2A layers; is called with each batch of tokens.
    texts : calibration batches [batch, time] of one length.
    threshold : cut layers whose skip rate is at least this, in [0, 1].   target_saving : or cut the sparsest, one after the
        other, until the cache saves so much of a dense model's, below 1. Exactly one of the two.
    length : context length that savings are stated for; default that of the texts.

    Cutting all layers is allowed, with a warning. Raises ValueError for no L2A layer, no texts, wrong thresholds, or a target
    that the windows alone exceed.
    """
    layers = l2a_layers(model)
    if not layers:
        raise ValueError("the model has no L2A layer to prune")
    if (threshold is None) == (target_saving is None):
        raise ValueError("give either a threshold of the skip rate or a target_saving")
    if threshold is not None:
        check_probability("threshold", threshold)
    elif not target_saving < 1:
        raise ValueError(f"target_saving must be below 1, got {target_saving}")
    batches = list(texts)
    if not batches:
        raise ValueError("texts must hold at least one batch")
    rates = skip_rates(model, batches)
    length = batches[0].shape[1] if length is None else length
    window = layers[0].window
    gone = [layer.pruned for layer in layers]
    before = cache_saving(length, window, gone)
    if threshold is not None:
        gone = [was or rate >= threshold for was, rate in zip(gone, rates, strict=True)]
    else:
        for place in sorted(range(len(layers)), key=lambda i: -rates[i]):
            if cache_saving(length, window, gone) >= target_saving:
                break
            gone[place] = True
        if cache_saving(length, window, gone) < target_saving:
            raise ValueError(
                f"a saving of {target_saving} is out of reach: windows alone leave {cache_saving(length, window, gone):.3g}"
            )
    if all(gone):
        warnings.warn("every layer is pruned: the model sees its window alone", stacklevel=2)
    for layer, cut in zip(layers, gone, strict=True):
        if cut and not layer.pruned:
            layer.prune()
    return PruneReport(tuple(rates), tuple(gone), length, before, cache_saving(length, window, gone))

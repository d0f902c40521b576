"""Training loops that choose their epoch on validation data, never on test data.

Each returns the state of the best validation epoch (the first among equals). Labels are read at the training and the
validation nodes only; test nodes take part as unlabelled features and edges (transductive learning).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from components.graphs.bes import Shaper, ShapingRecord
from components.graphs.checks import check_disjoint, check_mask
from components.graphs.links import LinkSplit, sample_negatives
from components.graphs.propagation import SparseGraph


class Fit(NamedTuple):
    """The best validation epoch of a run, and its curves."""

    val_accuracy: float  # in [0, 1], at `epoch`
    epoch: int  # 1 is after the first update
    scores: Tensor  # (N, C) logits of all nodes, or (M,) logits of test positives then negatives, at `epoch`
    state: dict[str, Tensor]  # of the network
    curve: list[tuple[int, float, float]]  # (epoch, validation accuracy, training loss) where evaluated
    z: Tensor | None = None  # (N, D) shaped embeddings at `epoch`
    phi: dict[str, Tensor] | None = None  # state of the shaping map at `epoch`
    records: list[ShapingRecord] | None = None  # one an epoch


def _copy(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def _optimizer(net: nn.Module, lr: float, weight_decay: float, decay_every: int | None):
    optimizer = torch.optim.Adam(net.parameters(), lr=lr, weight_decay=weight_decay, fused=True)  # one pass over memory
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, decay_every, 0.1) if decay_every else None
    return optimizer, schedule


def fit_nodes(
    net: nn.Module,
    x: Tensor,
    graph: SparseGraph,
    y: Tensor,
    train_mask: Tensor,
    val_mask: Tensor,
    *,
    epochs: int,
    lr: float = 0.01,
    weight_decay: float = 5e-4,
    decay_every: int | None = None,
    eval_every: int = 1,
    shaper: Shaper | None = None,
    on_evaluation: Callable[[int, float], None] | None = None,
) -> Fit:
    """Train a node classifier with cross-entropy and Adam; with a `shaper`, on embeddings that are shaped as it learns.

    Parameters
    ----------
    net : maps x (N, F), graph to logits (N, C).
    x : (N, F) inputs; ignored (the shaper's embeddings are the input) where there is a `shaper`.
    y : (N,) integer labels.   train_mask, val_mask : (N,) bool, disjoint, not empty.
    epochs, eval_every : validation accuracy is measured every so many epochs and after the last.
    decay_every : epochs after which the learning rate drops tenfold, default never.
    shaper : takes one shaping step before each step of the net; no gradient flows from the net into it.
    on_evaluation : called with the epoch and its validation accuracy in [0, 1] whenever that is measured; an exception that it
        raises ends the training.

    Raises
    ------
    ValueError : empty or overlapping masks, epochs or eval_every below 1.
    FloatingPointError : a training loss that is not finite.
    """
    check_mask(train_mask, y.shape[0], "train_mask")
    check_mask(val_mask, y.shape[0], "val_mask")
    check_disjoint(train_mask=train_mask, val_mask=val_mask)
    if epochs < 1 or eval_every < 1:
        raise ValueError(f"epochs and eval_every must be at least 1, got {epochs} and {eval_every}")
    train, val = train_mask.nonzero().flatten(), val_mask.nonzero().flatten()
    train_labels, val_labels = y[train], y[val]
    optimizer, schedule = _optimizer(net, lr, weight_decay, decay_every)
    best, curve, records = None, [], []
    for epoch in range(1, epochs + 1):
        if shaper is not None:
            records.append(shaper.step())
            x = shaper.z
        net.train()
        optimizer.zero_grad(set_to_none=True)
        loss = cross_entropy(net(x, graph)[train], train_labels)
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the training loss is {loss.item()} in epoch {epoch}")
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        if epoch % eval_every and epoch != epochs:
            continue
        net.eval()
        with torch.no_grad():
            logits = net(x, graph)
        accuracy = (logits[val].argmax(1) == val_labels).double().mean().item()
        curve.append((epoch, accuracy, loss.item()))
        if on_evaluation is not None:
            on_evaluation(epoch, accuracy)
        if best is None or accuracy > best.val_accuracy:
            shaped = {} if shaper is None else {"z": shaper.z.clone(), "phi": _copy(shaper.phi)}
            best = Fit(accuracy, epoch, logits, _copy(net), curve, records=records or None, **shaped)
    net.load_state_dict(best.state)
    net.eval()
    return best


def fit_links(
    net: nn.Module,
    x: Tensor,
    graph: SparseGraph,
    split: LinkSplit,
    *,
    epochs: int,
    seed: int,
    lr: float = 0.01,
    weight_decay: float = 5e-4,
    decay_every: int | None = None,
    eval_every: int = 1,
    shaper: Shaper | None = None,
) -> Fit:
    """Train a link predictor with binary cross-entropy on the training edges and as many fresh negatives an epoch.

    Parameters
    ----------
    net : maps x (N, F), graph, pairs (2, M) to logits (M,).
    graph : of the training edges alone; ValueError where it holds a held-out edge.
    split : of `links.split_links`; the epoch is chosen by validation accuracy at probability 0.5.
    seed : of the negatives. Other parameters as `fit_nodes`; `Fit.scores` holds the test logits, positives first.

    Raises
    ------
    ValueError : a validation or test edge among the edges of message passing; epochs or eval_every below 1.
    FloatingPointError : a training loss that is not finite.
    """
    if epochs < 1 or eval_every < 1:
        raise ValueError(f"epochs and eval_every must be at least 1, got {epochs} and {eval_every}")
    codes = graph.edge_index[0] * graph.nodes + graph.edge_index[1]
    held_out = torch.cat([split.val, split.test], dim=1)
    leaked = int(torch.isin(held_out[0] * graph.nodes + held_out[1], codes).sum())
    if leaked:
        raise ValueError(f"the graph must hold training edges only, but {leaked} validation or test edges are in it")
    generator = torch.Generator().manual_seed(seed)
    count = split.train.shape[1]
    target = torch.cat([x.new_ones(count), x.new_zeros(count)])
    val_pairs = torch.cat([split.val, split.val_negative], dim=1)
    val_target = torch.arange(val_pairs.shape[1], device=x.device) < split.val.shape[1]
    test_pairs = torch.cat([split.test, split.test_negative], dim=1)
    optimizer, schedule = _optimizer(net, lr, weight_decay, decay_every)
    best, curve, records = None, [], []
    for epoch in range(1, epochs + 1):
        if shaper is not None:
            records.append(shaper.step())
            x = shaper.z
        net.train()
        pairs = torch.cat([split.train, sample_negatives(split.train, graph.nodes, generator)], dim=1)
        optimizer.zero_grad(set_to_none=True)
        loss = binary_cross_entropy_with_logits(net(x, graph, pairs), target)
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the training loss is {loss.item()} in epoch {epoch}")
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        if epoch % eval_every and epoch != epochs:
            continue
        net.eval()
        with torch.no_grad():
            scores = net(x, graph, torch.cat([val_pairs, test_pairs], dim=1))
        accuracy = ((scores[: val_pairs.shape[1]] > 0) == val_target).double().mean().item()
        curve.append((epoch, accuracy, loss.item()))
        if best is None or accuracy > best.val_accuracy:
            shaped = {} if shaper is None else {"z": shaper.z.clone(), "phi": _copy(shaper.phi)}
            best = Fit(accuracy, epoch, scores[val_pairs.shape[1] :], _copy(net), curve, records=records or None, **shaped)
    net.load_state_dict(best.state)
    net.eval()
    return best

"""Generate with an L2A cache: a prefill of the prompt, then one token at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from components.attention.kv_cache import L2ACache
from components.attention.l2a import l2a_layers

Step = Callable[[Tensor, L2ACache], Tensor]  # tokens [batch, n], cache -> logits [batch, n, vocab]


def cache_for(model: nn.Module, batch: int, max_len: int) -> L2ACache:
    """An empty cache for `batch` texts of up to `max_len` tokens, without global parts for pruned layers.

    Raises ValueError for a model without L2A layers, or whose layers differ in window, heads or width."""
    layers = l2a_layers(model)
    if not layers:
        raise ValueError("the model has no L2A layer: convert it first")
    shapes = {(layer.window, layer.local.kv_heads, layer.local.width) for layer in layers}
    if len(shapes) > 1 or [layer.layer for layer in layers] != list(range(len(layers))):
        raise ValueError(f"a cache needs layers 0, 1, ... of one window, number of heads and width, got {sorted(shapes)}")
    window, heads, width = shapes.pop()
    weight = layers[0].local.k.weight
    gone = tuple(layer.layer for layer in layers if layer.pruned)
    return L2ACache(len(layers), window, max_len, heads, width, weight.dtype, batch=batch, device=weight.device, pruned=gone)


@torch.no_grad()
def greedy_decode(model: nn.Module, prompt: Tensor, new_tokens: int, step: Step | None = None) -> Tensor:
    """Continue each prompt by its most likely tokens.

    Parameters
    ----------
    model : with L2A layers, in evaluation mode.   prompt : [batch, time] integers.   new_tokens : how many, at least 0.
    step : calls the model with new tokens and the cache; default `model(tokens, cache)`. For models of `transformers`:
        `components.attention.convert.cached_step(model)`.

    Returns [batch, time + new_tokens]. Raises ValueError for new_tokens below 0, and what `cache_for` raises.
    """
    if new_tokens < 0:
        raise ValueError(f"new_tokens must be at least 0, got {new_tokens}")
    cache = cache_for(model, prompt.shape[0], prompt.shape[1] + max(new_tokens, 1))
    call = model if step is None else step
    text, new = prompt, prompt
    for _ in range(new_tokens):
        new = call(new, cache)[:, -1].argmax(-1, keepdim=True).to(prompt.dtype)
        text = torch.cat((text, new), 1)
    return text

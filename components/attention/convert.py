"""Turn a causal language model of `transformers` (Llama, Qwen2, Qwen3) into L2A, in place.

Each decoder layer keeps its MLP and its norm. Its attention becomes the two branches, both copies of the base's projections and
norms of queries and keys; the input norm moves into the attention, once for each branch. Rotary angles are those of the model.

    model = convert_to_l2a(AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B"), window=4095)
    logits = model(input_ids=tokens, use_cache=False).logits
    text = greedy_decode(model, prompt, 20, cached_step(model))

`model.generate` works too, without a cache. Texts are not padded: pack them, or give them one length.

Source: "Learning When to Attend: Conditional Memory Access for Long-Context LLMs", conversion from a base model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from components.attention.branch import Branch, Rope
from components.attention.kv_cache import L2ACache
from components.attention.l2a import L2AAttention, l2a_layers

FAMILIES = ("llama", "qwen2", "qwen3")


class ConvertedAttention(nn.Module):
    """What a decoder layer calls in place of its attention, with the residual stream itself (its input norm is gone)."""

    def __init__(self, l2a: L2AAttention) -> None:
        super().__init__()
        self.l2a = l2a

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        cache: Any = None,
        l2a_cache: L2ACache | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        if attention_mask is not None:
            raise ValueError("L2A takes no padding and no mask: pack the texts, or give them one length")
        if cache is not None:
            raise ValueError("L2A has its own cache: call the model with use_cache=False and l2a_cache=L2ACache(...)")
        half = self.l2a.local.width // 2
        cos, sin = (angles[..., :half] for angles in position_embeddings)
        return self.l2a(hidden_states, Rope(cos, sin), l2a_cache), None


def _branch_of(attention: nn.Module, config: Any) -> Branch:
    """A copy of a base attention's projections as a branch."""
    width = attention.head_dim
    # Made without weights: the copies take their place.
    with torch.device("meta"):
        branch = Branch(config.hidden_size, config.num_attention_heads, config.num_key_value_heads, width)
    for ours, theirs in (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("o", "o_proj")):
        setattr(branch, ours, copy.deepcopy(getattr(attention, theirs)))
    for name in ("q_norm", "k_norm"):
        if hasattr(attention, name):
            setattr(branch, name, copy.deepcopy(getattr(attention, name)))
    return branch


def convert_to_l2a(
    model: nn.Module,
    window: int,
    *,
    tau: float = 0.1,
    theta: float = 0.5,
    backend: str = "sdpa",
    layers: Iterable[int] | None = None,
    train_all: bool = False,
) -> nn.Module:
    """Convert `model` in place, and return it.

    Parameters
    ----------
    model : LlamaForCausalLM, Qwen2ForCausalLM or Qwen3ForCausalLM, with full attention in every layer.
    window : tokens of the window, the own one included.
    tau, theta, backend : as for `L2AAttention`.
    layers : which decoder layers; default all. A cache needs all.
    train_all : False (default) freezes all but attention branches, norms and routers, as the paper does.

    Sets `config.use_cache` to False. Raises TypeError for another family, ValueError for a model with sliding layers, one that
    is converted already, or layers that do not exist, and what `L2AAttention` raises.
    """
    config = getattr(model, "config", None)
    if getattr(config, "model_type", None) not in FAMILIES:
        raise TypeError(f"model must be a causal language model of {', '.join(FAMILIES)}, got {type(model).__name__}")
    if l2a_layers(model):
        raise ValueError("the model is converted already")
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        raise ValueError("the base must have full attention in every layer: config.layer_types names others")
    decoder = model.model.layers
    chosen = range(len(decoder)) if layers is None else list(layers)
    for place in chosen:
        if not 0 <= place < len(decoder):
            raise ValueError(f"layers must lie in [0, {len(decoder)}), got {place}")
    # The mask is asked for only where there is padding; and a cache of another kind must not be made.
    model.set_attn_implementation("sdpa")
    config.use_cache = False
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.use_cache = False
    for place in chosen:
        layer = decoder[place]
        l2a = L2AAttention.from_base(
            layer.input_layernorm,
            _branch_of(layer.self_attn, config),
            window,
            tau=tau,
            theta=theta,
            backend=backend,
            layer=place,
            max_position=config.max_position_embeddings,
        )
        layer.self_attn, layer.input_layernorm = ConvertedAttention(l2a), nn.Identity()
    if not train_all:
        freeze_but_attention(model)
    return model


def freeze_but_attention(model: nn.Module) -> None:
    """Leave only attention branches, norms and routers trainable: MLPs, embeddings and the output layer are frozen."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".self_attn." in name or "norm" in name)


def cached_step(model: nn.Module) -> Callable[[Tensor, L2ACache], Tensor]:
    """A function (tokens [batch, n], cache) -> logits of a converted model, for `greedy_decode`."""

    def step(tokens: Tensor, cache: L2ACache) -> Tensor:
        start = cache.length
        positions = torch.arange(start, start + tokens.shape[1], device=tokens.device)[None]
        return model(input_ids=tokens, position_ids=positions, use_cache=False, l2a_cache=cache).logits

    return step

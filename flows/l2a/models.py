"""The models of both worlds, small ones trained here and pretrained ones, and how each method changes them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from components.attention.convert import convert_to_l2a, freeze_but_attention
from components.attention.head_router import HeadRoutedAttention
from components.attention.l2a import L2AAttention, L2ABlock, l2a_layers
from components.attention.router import RandomRouter
from components.attention.static import StaticAttention
from components.language.small_lm import FactoredEmbedding, SmallLM
from flows.l2a.arms import Arm
from flows.l2a.store import datasheet, factors_of
from tasks.errors import UserError
from tasks.params import Strict


class Model(Strict):
    """The model: small and trained from scratch, or pretrained."""

    base_model: str | None = Field(None, description="hub name or folder of a Llama, Qwen2 or Qwen3 model; null: the small one")
    rope_theta: float | None = Field(
        None, gt=1, description="rotary base of the pretrained model in the extension; null: its own"
    )
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="of the pretrained model's weights")
    d: int = Field(48, ge=2, description="width")
    layers: int = Field(2, ge=1, description="layers")
    heads: int = Field(2, ge=1, description="query heads")
    kv_heads: int = Field(2, ge=1, description="key/value heads")
    mlp_mult: int = Field(3, ge=1, description="hidden width of the MLP over d")
    window: int = Field(16, ge=1, description="tokens of the window, the own one included")
    rope_base: float = Field(1e4, gt=1, description="rotary base of the small model")
    backend: Literal["reference", "sdpa", "triton"] = Field("sdpa", description="how attention is computed")
    train_all: bool = Field(True, description="train all weights; false: attention, norms and routers alone")
    every: int = Field(2, ge=1, description="interleave: one dense layer in so many")


class RouterParams(Strict):
    tau: float = Field(0.1, gt=0, description="temperature of the router")
    theta: float = Field(0.5, gt=0, lt=1, description="threshold of its probability")
    leak: float = Field(0.1, ge=0, le=1, description="probability per layer and step that all tokens are computed")
    lambda_bar: float = Field(0.1, ge=0, description="full weight of the mean squared probability")
    schedule: Literal["linear", "constant"] = Field("linear", description="of that weight, after the warm-up")


def small_base(p: Model, data: Path, task: str) -> SmallLM:
    """The dense small model, its weights from torch's global generator."""
    symbols = datasheet(data)[task]["symbols"]
    blocks = [
        L2ABlock(StaticAttention(p.d, p.heads, p.kv_heads, None, p.rope_base, backend=p.backend), p.d, p.mlp_mult * p.d)
        for _ in range(p.layers)
    ]
    return SmallLM(FactoredEmbedding(factors_of(data, task), p.d), blocks, p.d, symbols, p.d // p.heads, p.rope_base)


class Pretrained(nn.Module):
    """A model of `transformers` that is called like the small one: tokens to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(input_ids=tokens, use_cache=False).logits


def pretrained_base(p: Model, length: int) -> Pretrained:
    """The pretrained model with room for `length` tokens. UserError where it cannot be had."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(p.base_model)
        if p.rope_theta is not None:
            config.rope_parameters["rope_theta"] = p.rope_theta
        config.max_position_embeddings = max(config.max_position_embeddings, length)
        model = AutoModelForCausalLM.from_pretrained(
            p.base_model, config=config, dtype=getattr(torch, p.dtype), attn_implementation="sdpa"
        )
    except OSError as error:
        raise UserError(
            f"l2a: the model {p.base_model} could not be loaded ({error}); a hub name needs the internet"
        ) from error
    return Pretrained(model)


def layers_of(model: nn.Module) -> int:
    return len(model.model.model.layers if isinstance(model, Pretrained) else model.layers)


def adapt(
    model: nn.Module, arm: Arm, p: Model, router: RouterParams, rates: list[float] | None = None, seed: int = 0
) -> nn.Module:
    """Change a dense base as the arm wants, in place. `rates` are the active shares per layer of a random router."""
    count = layers_of(model)
    static = {"swa": range(count), "interleave": [i for i in range(count) if i % p.every != arm.offset]}
    options = {"tau": router.tau, "theta": router.theta, "backend": p.backend}
    if isinstance(model, Pretrained):
        inner = model.model
        if arm.method == "head_router":
            raise ValueError("l2a.train: the method head_router is for small models alone")
        if arm.method == "full":
            if not p.train_all:
                freeze_but_attention(inner)
            return model
        convert_to_l2a(inner, p.window, layers=static.get(arm.method), train_all=p.train_all, **options)
        if arm.method in static:
            for layer in l2a_layers(inner):  # a pruned layer is a window layer
                layer.prune()
    else:
        for place, block in enumerate(model.layers):
            base: StaticAttention = block.attention
            if arm.method in static:
                base.window = p.window if place in static[arm.method] else None
            elif arm.method == "head_router":
                block.attention = HeadRoutedAttention(base.norm, base.branch, p.window, p.rope_base, layer=place, **options)
            elif arm.method != "full":
                block.attention = L2AAttention.from_base(
                    base.norm, base.branch, p.window, rope_base=p.rope_base, layer=place, **options
                )
        if not p.train_all:
            for name, parameter in model.named_parameters():
                parameter.requires_grad_("attention" in name or "norm" in name)
    if arm.method == "random_router":
        for place, (layer, rate) in enumerate(zip(l2a_layers(model), rates, strict=True)):
            layer.router = RandomRouter(rate, 1000 * seed + place)
    return model


def routed(model: nn.Module) -> list[L2AAttention | HeadRoutedAttention]:
    """Layers whose routers learn."""
    return [
        m for m in model.modules()
        if isinstance(m, L2AAttention | HeadRoutedAttention) and m.router is not None and not isinstance(m.router, RandomRouter)
    ]  # fmt: skip

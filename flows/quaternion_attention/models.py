"""The networks that are compared: an enhancer of speech, and classifiers of digits and of text."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field
from torch import nn

from components.quaternion.blocks import ByteEmbedding, SequenceClassifier
from components.quaternion.layers import QuaternionLinear
from components.quaternion.real import RealLinear
from components.speech.enhancer import Enhancer
from flows.quaternion_attention.data import SYMBOLS
from tasks.params import Strict


class Attention(Strict):
    n: int = Field(6, ge=1, description="quaternion features, 4 n channels")
    heads: int = Field(2, ge=1, description="attention heads, which divide n")
    layers: int = Field(1, ge=1, description="blocks")
    qk_norm: bool = Field(True, description="RMS norm of queries and keys")
    fused: bool = Field(True, description="component scores by one product each; false: by four")
    dropout: float = Field(0.0, ge=0, lt=1, description="of attention weights and feed-forward layers")


class Speech(Attention):
    """The enhancer; a layer is a block along time and one along frequency."""

    block: Literal["transformer", "conformer"] = Field("transformer", description="form of a block")
    conv_kernel: int = Field(31, ge=1, description="taps of a conformer's convolution, odd")
    dilations: list[int] = Field([], description="dense layers of the encoder")
    growth: int = Field(0, ge=0, description="quaternion features of a dense layer")
    n_fft: int = Field(160, ge=2, description="samples of a frame")
    hop: int = Field(80, ge=1, description="samples between frames")


def kind_of(method: str) -> str:
    """shared, component, none or real."""
    return method.split(",")[0]


def heads_of(p: Attention, method: str) -> int:
    return 4 * p.heads if method == "shared, 4 times the heads" else p.heads


def attention_options(p: Attention, method: str) -> dict[str, object]:
    """What the attention of a method takes."""
    if method == "none":
        return {}
    own = {"fused": p.fused, "conjugate": method == "component, conjugated"} if kind_of(method) == "component" else {}
    return {"qk_norm": p.qk_norm} | own


def enhancer(p: Speech, method: str) -> Enhancer:
    return Enhancer(
        p.n,
        heads_of(p, method),
        p.layers,
        kind_of(method),
        p.block,
        p.n_fft,
        p.hop,
        p.dilations,
        p.growth,
        kernel=p.conv_kernel,
        dropout=p.dropout,
        **attention_options(p, method),
    )


class Patches(nn.Module):
    """Patches (B, L, 4, features) to (B, L, 4, n), by Hamilton products or free weights."""

    def __init__(self, features: int, n: int, real: bool) -> None:
        super().__init__()
        self.linear = (RealLinear if real else QuaternionLinear)(features, n)

    @property
    def weight(self) -> nn.Parameter:
        return next(self.linear.parameters())

    def forward(self, x):
        return self.linear(x)


def classifier(p: Attention, method: str, x: np.ndarray, classes: int) -> SequenceClassifier:
    """For inputs like x: patches (N, L, 4, features) or symbols (N, L)."""
    embedding = ByteEmbedding(len(SYMBOLS), p.n) if x.ndim == 2 else Patches(x.shape[3], p.n, method == "real")
    options = {"dropout": p.dropout} | attention_options(p, method)
    heads, kind = heads_of(p, method), kind_of(method)
    return SequenceClassifier(embedding, x.shape[1], p.n, heads, p.layers, classes, kind, **options)

"""Blocks of attention and feed-forward layers on quaternion features, and their real-valued counterparts.

    transformer   x = LN(x + attention(x)),  x = LN(x + feed-forward(x))
    conformer     x = LN(x + feed-forward(x) / 2),  attention,  convolution module,  x = LN(x + feed-forward(x) / 2)

Kinds of a block: "shared" and "component" scores, "none" (no attention at all), "real" (4 n free channels, four times the weights).
x is (B, L, 4, n). LN normalises the 4 n numbers of a token.
"""

from __future__ import annotations

from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from components.quaternion.layers import QuaternionConv1d, QuaternionFeedForward, QuaternionLinear, check_whole
from components.quaternion.real import RealFeedForward, RealLinear, self_attention

Kind = Literal["shared", "component", "none", "real"]
KINDS = ("shared", "component", "none", "real")


def check_kind(kind: str) -> None:
    """Raise ValueError unless `kind` is one of KINDS."""
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")


class TokenNorm(nn.LayerNorm):
    """Layer norm over the 4 n numbers of a token, on (..., 4, n)."""

    def __init__(self, n: int) -> None:
        super().__init__((4, n))


class ConvolutionModule(nn.Module):
    """Pointwise map and gate, depthwise convolution along time, norm, SiLU, pointwise map; on (B, L, 4, n).

    kernel : taps of the depthwise convolution, odd. Source: Gulati et al., "Conformer", with Hamilton products."""

    def __init__(self, n: int, kernel: int, real: bool = False) -> None:
        super().__init__()
        check_whole(n=n, kernel=kernel)
        if kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, so that the length stays, got {kernel}")
        linear = RealLinear if real else QuaternionLinear
        self.expand, self.reduce, self.norm = linear(n, 2 * n), linear(n, n), TokenNorm(n)
        if real:
            self.depthwise: nn.Module = nn.Conv1d(4 * n, 4 * n, kernel, padding=kernel // 2, groups=4 * n)
        else:
            self.depthwise = QuaternionConv1d(n, n, kernel, padding=kernel // 2, groups=n)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.expand(x).chunk(2, -1)
        y = (value * gate.sigmoid()).flatten(-2).transpose(1, 2)
        y = self.depthwise(y).transpose(1, 2).unflatten(-1, (4, -1))
        return self.reduce(F.silu(self.norm(y)))


class Block(nn.Module):
    """One block on (B, L, 4, n).

    Parameters
    ----------
    n, heads : quaternion features and heads.   kind : see the module.   form : "transformer" (default) or "conformer".
    mult : hidden features of the feed-forward layer over n, default 2.   kernel : of the conformer's convolution, default 31.
    dropout : of feed-forward layers and attention weights.   options : of the attention, such as qk_norm, fused, backend.

    Raises ValueError for names or sizes that do not fit.
    """

    def __init__(
        self,
        n: int,
        heads: int,
        kind: Kind = "shared",
        form: Literal["transformer", "conformer"] = "transformer",
        mult: int = 2,
        kernel: int = 31,
        dropout: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__()
        check_kind(kind)
        if form not in ("transformer", "conformer"):
            raise ValueError(f"form must be 'transformer' or 'conformer', got {form!r}")
        feed = RealFeedForward if kind == "real" else QuaternionFeedForward
        self.attention = None if kind == "none" else self_attention(kind, n, heads, dropout=dropout, **options)
        self.attention_norm = None if kind == "none" else TokenNorm(n)
        self.before = feed(n, mult, dropout) if form == "conformer" else None
        self.before_norm = TokenNorm(n) if form == "conformer" else None
        self.convolution = ConvolutionModule(n, kernel, kind == "real") if form == "conformer" else None
        self.convolution_norm = TokenNorm(n) if form == "conformer" else None
        self.feed, self.feed_norm = feed(n, mult, dropout), TokenNorm(n)

    def forward(self, x: Tensor) -> Tensor:
        half = 1.0
        if self.before is not None:
            half = 0.5
            x = self.before_norm(x + half * self.before(x))
        if self.attention is not None:
            x = self.attention_norm(x + self.attention(x))
        if self.convolution is not None:
            x = self.convolution_norm(x + self.convolution(x))
        return self.feed_norm(x + half * self.feed(x))


class SequenceClassifier(nn.Module):
    """Tokens to classes: an embedding, learned positions, blocks, the mean over tokens, a real linear layer.

    Parameters
    ----------
    embedding : what makes (B, L, 4, n) of the input.   length, n, heads, layers, classes : sizes.   kind, options : of the blocks.
    """

    def __init__(
        self, embedding: nn.Module, length: int, n: int, heads: int, layers: int, classes: int, kind: Kind, **options: Any
    ) -> None:
        super().__init__()
        check_whole(length=length, layers=layers, classes=classes)
        self.embedding = embedding
        self.positions = nn.Parameter(0.02 * embedding.weight.new_empty(length, 4, n).normal_())
        self.blocks = nn.Sequential(*(Block(n, heads, kind, **options) for _ in range(layers)))
        self.out = nn.Linear(4 * n, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes)."""
        return self.out(self.blocks(self.embedding(x) + self.positions).mean(1).flatten(-2))


class ByteEmbedding(nn.Module):
    """Symbols (B, L) to quaternion features (B, L, 4, n)."""

    def __init__(self, symbols: int, n: int) -> None:
        super().__init__()
        check_whole(symbols=symbols, n=n)
        self.n, self.weight = n, nn.Parameter(0.5 * nn.Embedding(symbols, 4 * n).weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        return F.embedding(x, self.weight).unflatten(-1, (4, self.n))

"""A LLaMA-style causal language model of any size: RMS norm before each part, rotary positions, SwiGLU, no biases.

One block is  x + attention(norm(x))  followed by  x + mlp(norm(x)),  with

    norm(x) = g * x / sqrt(mean(x^2) + eps)
    rotary: the pair (x_i, x_{i + h/2}) of a head of size h at position t is turned by the angle t * base^(-2 i / h)
    mlp(x) = W_down (silu(W_gate x) * W_up x)

Source: Touvron et al., "LLaMA: Open and Efficient Foundation Language Models". LLAMA_SHAPES holds the shapes that low-precision
training papers use.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu


class LlamaShape(NamedTuple):
    """Width, width of the feed-forward part, blocks and heads."""

    d: int
    ff: int
    layers: int
    heads: int


LLAMA_SHAPES: dict[str, LlamaShape] = {
    "llama_60m": LlamaShape(512, 1376, 8, 8),
    "llama_130m": LlamaShape(768, 2048, 12, 12),
    "llama_350m": LlamaShape(1024, 2736, 24, 16),
    "llama_1b": LlamaShape(2048, 5461, 24, 32),
}


class RMSNorm(nn.Module):
    """Divide by the root mean square over the last dimension, times a learned gain (d,)."""

    def __init__(self, d: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.gain


def rotary_angles(length: int, head: int, base: float = 1e4, *, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """cos and sin of the angles, (length, head / 2) float32 each."""
    frequency = base ** (-torch.arange(0, head, 2, device=device, dtype=torch.float32) / head)
    angle = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequency)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x_i, x_{i + h/2}) of x (..., length, h) by its position's angle; norms and relative positions are kept."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


class _Block(nn.Module):
    def __init__(self, d: int, ff: int, heads: int, linear: type[nn.Module]) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = RMSNorm(d), RMSNorm(d)
        self.q, self.k, self.v, self.o = (linear(d, d, bias=False) for _ in range(4))
        self.gate, self.up, self.down = linear(d, ff, bias=False), linear(d, ff, bias=False), linear(ff, d, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y = self.attention_norm(x)
        q, k, v = (part(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.mlp_norm(x)
        return x + self.down(silu(self.gate(y)) * self.up(y))


class TinyLlama(nn.Module):
    """The model; weights are drawn from torch's global generator.

    Parameters
    ----------
    vocab : symbols.
    d : width, a multiple of 2 * heads.   layers, heads : blocks, and attention heads of each.
    ff : width of the feed-forward part; default 8 d / 3, rounded up to a multiple of 16.
    rope_base : of the rotary angles.
    linear : class of the blocks' linear layers, called as linear(n_in, n_out, bias=False); default nn.Linear. A class that
        rounds its weights makes the model one of quantisation-aware training. The output layer is always nn.Linear.

    Matrices start at N(0, 0.02^2), those that write into the residual stream (o, down) at 0.02 / sqrt(2 layers); the
    embedding and the output layer are not tied. Raises ValueError for sizes below 1 or a width that does not fit the heads.
    """

    def __init__(
        self,
        vocab: int,
        d: int,
        layers: int,
        heads: int,
        ff: int | None = None,
        rope_base: float = 1e4,
        *,
        linear: type[nn.Module] = nn.Linear,
    ) -> None:
        super().__init__()
        ff = math.ceil(8 * d / 48) * 16 if ff is None else ff
        for name, value in {"vocab": vocab, "d": d, "layers": layers, "heads": heads, "ff": ff}.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        if d % (2 * heads):
            raise ValueError(f"d must be a multiple of 2 * heads = {2 * heads} (rotary positions turn pairs), got {d}")
        if not rope_base > 1:
            raise ValueError(f"rope_base must be above 1, got {rope_base}")
        self.vocab, self.head, self.rope_base = vocab, d // heads, rope_base
        self.embedding = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(_Block(d, ff, heads, linear) for _ in range(layers))
        self.norm = RMSNorm(d)
        self.out = nn.Linear(d, vocab, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                writes = name.endswith((".o.weight", ".down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if writes else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next symbol, (batch, length, vocab), for tokens (batch, length) int64 in [0, vocab).

        Raises ValueError for another shape, TypeError for tokens that are not integers."""
        if tokens.ndim != 2 or tokens.shape[1] == 0:
            raise ValueError(f"tokens must have shape (batch, length) with length at least 1, got {tuple(tokens.shape)}")
        if tokens.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"tokens must be int64 or int32, got {tokens.dtype}")
        cos, sin = rotary_angles(tokens.shape[1], self.head, self.rope_base, device=tokens.device)
        x = self.embedding(tokens)
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.out(self.norm(x))

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean negative log-likelihood of the targets (batch, length), in nats per symbol."""
        return cross_entropy(self(tokens).flatten(0, 1), targets.flatten())

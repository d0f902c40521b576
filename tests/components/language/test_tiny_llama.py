"""The model against the definition written out, and against what a causal model with rotary positions must satisfy."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from components.language.tiny_llama import LLAMA_SHAPES, RMSNorm, TinyLlama, rotary_angles, rotate


def model(**changes):
    torch.manual_seed(0)
    return TinyLlama(**{"vocab": 11, "d": 16, "layers": 2, "heads": 2} | changes)


def test_norm_has_unit_root_mean_square():
    x = torch.randn(3, 5, 8) * 7
    torch.testing.assert_close(RMSNorm(8)(x).square().mean(-1), torch.ones(3, 5), rtol=1e-5, atol=1e-5)


def test_rotation_is_complex_multiplication():
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    cos, sin = (part.double() for part in rotary_angles(9, 6, 100.0))
    frequency = torch.tensor([100.0 ** (-2 * i / 6) for i in range(3)], dtype=torch.float64)
    turn = torch.exp(1j * torch.arange(9)[:, None] * frequency)
    wanted = torch.complex(x[..., :3], x[..., 3:]) * turn
    torch.testing.assert_close(rotate(x, cos, sin), torch.cat([wanted.real, wanted.imag], -1), atol=1e-5, rtol=0)


def test_scores_depend_on_relative_positions_alone():
    q, k = torch.randn(2, 8)
    cos, sin = rotary_angles(20, 8)
    score = lambda i, j: (rotate(q, cos[i], sin[i]) * rotate(k, cos[j], sin[j])).sum()  # noqa: E731
    torch.testing.assert_close(score(3, 1), score(19, 17), atol=1e-4, rtol=1e-4)
    assert abs(score(3, 1) - score(5, 1)) > 1e-3


def test_forward_equals_the_definition_in_loops():
    """One block of one head, attention as a sum over the past."""
    net = model(layers=1, heads=1, d=4, ff=6).double()
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.7)
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    block, (cos, sin) = net.blocks[0], (part.double() for part in rotary_angles(5, 4))
    norm = lambda x, layer: layer.gain * x / (x.pow(2).mean() + 1e-6).sqrt()  # noqa: E731
    x = net.embedding(tokens)[0]
    rows = []
    for t in range(5):
        q = rotate(block.q(norm(x[t], block.attention_norm)), cos[t], sin[t])
        past = range(t + 1)
        weights = torch.stack(
            [q @ rotate(block.k(norm(x[s], block.attention_norm)), cos[s], sin[s]) / 2 for s in past]
        ).softmax(0)
        mixed = sum(weights[s] * block.v(norm(x[s], block.attention_norm)) for s in past)
        y = x[t] + block.o(mixed)
        z = norm(y, block.mlp_norm)
        gate = block.gate(z)
        y = y + block.down(gate / (1 + torch.exp(-gate)) * block.up(z))
        rows.append(net.out(norm(y, net.norm)))
    torch.testing.assert_close(net(tokens)[0], torch.stack(rows), atol=1e-6, rtol=1e-6)


def test_the_future_does_not_change_the_past():
    net = model()
    a = torch.randint(0, 11, (3, 12))
    b = a.clone()
    b[:, 7:] = (b[:, 7:] + 1) % 11
    torch.testing.assert_close(net(a)[:, :7], net(b)[:, :7])
    assert not torch.allclose(net(a)[:, 7:], net(b)[:, 7:])


def test_loss_starts_at_the_logarithm_of_the_vocabulary_and_can_be_learned():
    net = model()
    tokens = torch.arange(12).repeat(4, 1) % 11
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    assert net.loss(inputs, targets).item() == pytest.approx(math.log(11), abs=0.05)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        net.loss(inputs, targets).backward()
        optimizer.step()
    assert net.loss(inputs, targets).item() < 0.1


def test_shapes_of_the_papers_have_about_their_names_parameters():
    """Counted on the meta device with the LLaMA vocabulary of 32,000."""
    for name, low, high in (("llama_60m", 57e6, 60e6), ("llama_130m", 130e6, 136e6), ("llama_350m", 364e6, 370e6)):
        shape = LLAMA_SHAPES[name]
        with torch.device("meta"):
            net = TinyLlama(32_000, shape.d, shape.layers, shape.heads, shape.ff)
        count = sum(p.numel() for p in net.parameters())
        block = 4 * shape.d**2 + 3 * shape.d * shape.ff + 2 * shape.d
        assert count == 2 * 32_000 * shape.d + shape.layers * block + shape.d
        assert low < count < high
    assert TinyLlama(5, 512, 1, 8).blocks[0].up.out_features == LLAMA_SHAPES["llama_60m"].ff


def test_another_linear_layer_is_used_in_the_blocks():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    net = model(linear=Doubled)
    assert sum(isinstance(part, Doubled) for part in net.modules()) == 14 and type(net.out) is nn.Linear


def test_bad_input_is_one_clear_sentence():
    with pytest.raises(ValueError, match=r"d must be a multiple of 2 \* heads = 6"):
        model(heads=3)
    with pytest.raises(ValueError, match="layers must be a whole number of at least 1, got 0"):
        model(layers=0)
    with pytest.raises(ValueError, match="rope_base must be above 1"):
        model(rope_base=1.0)
    net = model()
    with pytest.raises(ValueError, match="tokens must have shape"):
        net(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(TypeError, match="tokens must be int64"):
        net(torch.zeros(2, 3))

"""The small language model with layers that are given to it."""

import numpy as np
import pytest
import torch
from torch import nn

from components.attention.l2a import L2ABlock
from components.attention.static import StaticAttention
from components.language.small_lm import FactoredEmbedding, SmallLM


def test_symbols_are_sums_of_their_factors():
    factors = np.array([[0, 1], [1, 0], [1, 2]])
    embedding = FactoredEmbedding(factors, 5)
    tables = embedding.weight[:2], embedding.weight[2:]
    assert embedding.weight.shape == (5, 5)
    for symbol, (first, second) in enumerate(factors):
        torch.testing.assert_close(embedding(torch.tensor([[symbol]]))[0, 0], tables[0][first] + tables[1][second])
    plain = FactoredEmbedding(np.arange(7)[:, None], 5)
    tokens = torch.randint(0, 7, (2, 9))
    torch.testing.assert_close(plain(tokens), nn.functional.embedding(tokens, plain.weight))
    for bad in (np.array([1, 2]), np.array([[-1]]), np.empty((0, 2))):
        with pytest.raises(ValueError, match="factors must be integers"):
            FactoredEmbedding(bad, 5)


def test_loss_is_that_of_its_logits_and_a_pattern_is_learnt():
    torch.manual_seed(0)
    layers = [L2ABlock(StaticAttention(16, 2, 2), 16, 32)]
    model = SmallLM(FactoredEmbedding(np.arange(6)[:, None], 16), layers, 16, 6, 8, max_position=40)
    tokens = torch.arange(33).repeat(4, 1).add(torch.arange(4)[:, None]) % 6
    x, y = tokens[:, :-1], tokens[:, 1:]
    log_p = model(x).log_softmax(-1).gather(-1, y[..., None])
    torch.testing.assert_close(model.loss(x, y), -log_p.mean())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        model.loss(x, y).backward()
        optimizer.step()
    assert model.loss(x, y).item() < 0.05
    with pytest.raises(ValueError, match="positions end at 40"):
        model(torch.zeros(1, 41, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"\[batch, time\]"):
        model(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="at least one module"):
        SmallLM(nn.Identity(), [], 16, 6, 8)

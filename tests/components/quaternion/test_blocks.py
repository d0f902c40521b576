"""Blocks: symmetries, limits and parts that are known."""

import pytest
import torch

from components.quaternion.blocks import KINDS, Block, ByteEmbedding, ConvolutionModule, SequenceClassifier, TokenNorm


def features(length=9):
    return torch.randn(2, length, 4, 6, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_do_not_know_the_order(kind):
    torch.manual_seed(0)
    block, x = Block(6, 2, kind), features()
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(block(x)[:, order], block(x[:, order]), atol=1e-5, rtol=1e-5)
    alone = block(x[:, :1])
    same = torch.allclose(block(x)[:, :1], alone, atol=1e-5)
    assert same == (kind == "none")  # without attention tokens do not see one another


def test_conformers_know_the_order_and_reach_half_a_kernel():
    torch.manual_seed(0)
    module, x = ConvolutionModule(6, 5), features()
    other = x.clone()
    other[:, 8] += 1
    changed = (module(x) - module(other)).abs().amin((0, 2, 3)) > 1e-7
    assert changed.tolist() == [False] * 6 + [True] * 3
    block = Block(6, 2, "shared", "conformer", kernel=5)
    assert (block(x).flip(1) - block(x.flip(1))).abs().max() > 1e-3


def test_norm_is_of_the_numbers_of_a_token():
    x = TokenNorm(6)(5 * features() + 3)
    torch.testing.assert_close(x.mean((2, 3)), torch.zeros(2, 9), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.var((2, 3), unbiased=False), torch.ones(2, 9), atol=1e-4, rtol=0)


def test_a_block_of_zero_weights_is_its_norms():
    block, x = Block(6, 2, "shared"), features()
    for layer in (block.attention.out, block.feed.reduce):
        torch.nn.init.zeros_(layer.weight)
    norm = TokenNorm(6)
    torch.testing.assert_close(block(x), norm(norm(x)), atol=1e-5, rtol=1e-5)


def test_a_classifier_learns_which_symbol_comes_first():
    torch.manual_seed(0)
    model = SequenceClassifier(ByteEmbedding(2, 4), 6, 4, 2, 1, 2, "shared")
    x = torch.randint(0, 2, (64, 6))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), x[:, 0]).backward()
        optimizer.step()
    assert (model(x).argmax(-1) == x[:, 0]).float().mean() == 1


def test_bad_input_is_named():
    for call, words in (
        (lambda: Block(6, 2, "tensor"), "kind must be one of"),
        (lambda: Block(6, 2, form="rnn"), "form must be"),
        (lambda: Block(6, 4), "multiple of heads"),
        (lambda: ConvolutionModule(6, 4), "kernel must be odd"),
        (lambda: ByteEmbedding(0, 4), "symbols must be a whole number"),
    ):
        with pytest.raises(ValueError, match=words):
            call()

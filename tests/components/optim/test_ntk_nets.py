"""Sizes, batched evaluation, and a kernel that does not grow with width."""

import pytest
import torch

from components.optim.entk import jacobian
from components.optim.ntk_nets import NTKMLP, NTKLeNet


def test_numbers_of_weights():
    assert [NTKMLP(64, [w, w], 10).d for w in (48, 144, 432)] == [5856, 31392, 218592]
    assert NTKLeNet(10).d == 24894


@pytest.mark.parametrize(("net", "size"), [(NTKMLP(6, [5, 4], 3, seed=0), 6), (NTKLeNet(4, seed=0), 784)])
def test_batched_losses_are_those_of_each_weight_vector(net, size):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(7, size, generator=generator), torch.arange(7) % 3
    theta = torch.randn(5, net.d, generator=generator)
    found = net.batched_loss(theta, x, y)
    for row, loss in zip(theta, found, strict=True):
        net.load_flat(row)
        assert torch.equal(net.flat(), row)
        torch.testing.assert_close(torch.nn.functional.cross_entropy(net(x), y), loss, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(net.functional(row, x), net(x), atol=1e-5, rtol=1e-5)


def test_forward_is_the_formula():
    net = NTKMLP(3, [4], 2, gain=2.0, seed=3)
    x = torch.tensor([[1.0, -1, 0.5]])
    first, second = net.weights
    torch.testing.assert_close(net(x), torch.tanh(x @ first.T * 2 / 3**0.5) @ second.T * 2 / 4**0.5)


def test_kernel_keeps_its_size_at_all_widths():
    """Mean squared norm of tangent vectors over four inits, width 32 against 512; under default inits it grows sixteenfold."""
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    sizes = [
        torch.stack([jacobian(NTKMLP(8, [w, w], 2, seed=s), x).square().sum(2).mean() for s in range(4)]).mean()
        for w in (32, 512)
    ]
    assert 0.7 < sizes[1] / sizes[0] < 1.4


def test_seeds_give_the_same_and_other_weights():
    assert torch.equal(NTKMLP(3, [4], 2, seed=1).flat(), NTKMLP(3, [4], 2, seed=1).flat())
    assert not torch.equal(NTKMLP(3, [4], 2, seed=1).flat(), NTKMLP(3, [4], 2, seed=2).flat())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: NTKMLP(0, [3], 2), "at least one unit"),
        (lambda: NTKMLP(3, [3], 2, gain=0), "gain must be"),
        (lambda: NTKMLP(3, [3], 2, act="step"), "act must be one of"),
        (lambda: NTKLeNet(0), "at least one unit"),
        (lambda: NTKLeNet(act="step"), "act must be one of"),
        (lambda: NTKMLP(3, [3], 2).load_flat(torch.zeros(2)), r"theta must have shape \(15,\)"),
    ],
)
def test_bad_input_is_named(make, says):
    with pytest.raises(ValueError, match=says):
        make()

"""Lion against its equations, written out for single numbers."""

import pytest
import torch

from components.optim.lion import Lion


def test_equals_the_equations():
    lr, (one, two), decay = 0.1, (0.9, 0.5), 0.2
    p = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))
    optimizer = Lion([p], lr=lr, betas=(one, two), weight_decay=decay)
    wanted, momentum = p.detach().tolist(), [0.0] * 3
    for gradient in ([1.0, -1.0, 0.0], [-20.0, -1.0, 0.0], [1.0, 5.0, 2.0]):
        p.grad = torch.tensor(gradient)
        optimizer.step()
        for i, g in enumerate(gradient):
            u = one * momentum[i] + (1 - one) * g
            wanted[i] -= lr * ((u > 0) - (u < 0) + decay * wanted[i])
            momentum[i] = two * momentum[i] + (1 - two) * g
    torch.testing.assert_close(p.detach(), torch.tensor(wanted))
    torch.testing.assert_close(optimizer.state[p]["momentum"], torch.tensor(momentum))


def test_only_the_sign_of_the_first_gradient_matters():
    results = []
    for scale in (1e-8, 1e8):
        p = torch.nn.Parameter(torch.zeros(4))
        p.grad = scale * torch.tensor([1.0, -2.0, 3.0, 0.0])
        Lion([p], lr=0.01).step()
        results.append(p.detach())
    assert torch.equal(*results)
    torch.testing.assert_close(results[0], torch.tensor([-0.01, 0.01, -0.01, 0.0]))


def test_closure_and_missing_gradients():
    p, q = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    optimizer = Lion([p, q], lr=0.5)

    def closure():
        optimizer.zero_grad()
        loss = (3 * p).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3 and p.item() == 0.5 and q.item() == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lr": 0.0}, "lr"),
        ({"lr": -1.0}, "lr"),
        ({"betas": (1.0, 0.9)}, r"betas\[0\]"),
        ({"weight_decay": -0.1}, "weight_decay"),
    ],
)
def test_bad_values(options, says):
    with pytest.raises(ValueError, match=says):
        Lion([torch.nn.Parameter(torch.zeros(1))], **options)


def test_sparse_and_complex_gradients_are_refused():
    p = torch.nn.Parameter(torch.zeros(3))
    p.grad = torch.sparse_coo_tensor([[1]], [1.0], (3,))
    with pytest.raises(TypeError, match="dense real gradients"):
        Lion([p]).step()

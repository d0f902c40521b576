"""The optimiser facade: equal to the base under the identity, one closure call, schedulers, scaler, hooks, checkpoints."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

from components.optim.clipping import Chain, Identity, NormClip, ZClip
from components.optim.gradient_transforms import GradientStabilizer
from components.optim.lion import Lion
from components.optim.stable_spam import StableSPAM
from components.optim.wrap import TransformedOptimizer

BASES = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01, weight_decay=0.1),
    "adamw fused": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
    "amsgrad": lambda params: torch.optim.Adam(params, lr=0.01, amsgrad=True, foreach=True),
    "lion": lambda params: Lion(params, lr=0.01, weight_decay=0.1),
}
TRANSFORMS = {
    "stabiliser": GradientStabilizer,
    "global": lambda: GradientStabilizer(scope="global", bias_correction=False),
    "chain": lambda: Chain(ZClip(warmup=2), GradientStabilizer()),
}


def model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def backward(net, step):
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(16, 4, generator=generator), torch.randn(16, 2, generator=generator)
    loss = (net(x) - y).square().mean() * (1000.0 if step == 3 else 1.0)
    loss.backward()
    return loss


def train(net, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        backward(net, step)
        optimizer.step()
    return [p.detach().clone() for p in net.parameters()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("base", BASES)
def test_the_identity_is_the_base_to_the_bit(base):
    plain, wrapped = model(), model()
    optimizer = TransformedOptimizer(BASES[base](wrapped.parameters()), Identity())
    assert same(train(plain, BASES[base](plain.parameters()), range(6)), train(wrapped, optimizer, range(6)))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_checkpoint_continues_to_the_bit(base, transform):
    whole = model()
    wanted = train(whole, TransformedOptimizer(BASES[base](whole.parameters()), TRANSFORMS[transform]()), range(9))
    first = model()
    optimizer = TransformedOptimizer(BASES[base](first.parameters()), TRANSFORMS[transform]())
    train(first, optimizer, range(4))
    stream = io.BytesIO()
    torch.save({"model": first.state_dict(), "optimizer": optimizer.state_dict()}, stream)
    stream.seek(0)
    stored = torch.load(stream, weights_only=True)
    second = model(seed=1)
    second.load_state_dict(stored["model"])
    resumed = TransformedOptimizer(BASES[base](second.parameters()), TRANSFORMS[transform]())
    resumed.load_state_dict(stored["optimizer"])
    assert same(train(second, resumed, range(4, 9)), wanted)


def test_pickle_and_deepcopy_keep_the_state():
    net = model()
    optimizer = TransformedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), GradientStabilizer())
    train(net, optimizer, range(3))
    for twin in (pickle.loads(pickle.dumps(optimizer)), copy.deepcopy(optimizer)):
        assert twin.transform.state["t"].tolist() == [3] * 4 and twin.param_groups[0]["lr"] == 0.1
        assert twin.parameters()[0] is not optimizer.parameters()[0]
        for p in twin.parameters():
            p.grad = torch.ones_like(p)
        twin.step()


def test_closure_is_called_once_with_gradients_and_its_loss_returned():
    net, calls = model(), []
    optimizer = TransformedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), GradientStabilizer())

    def closure():
        assert torch.is_grad_enabled()
        calls.append(1)
        optimizer.zero_grad()
        return backward(net, 0)

    before = backward(model(), 0).item()
    assert optimizer.step(closure).item() == pytest.approx(before) and calls == [1]
    assert optimizer.report.norm_after.tolist() == pytest.approx([1] * 4)


def test_step_is_the_base_on_transformed_gradients():
    net, twin = model(), model()
    optimizer = TransformedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), GradientStabilizer())
    start = [p.detach().clone() for p in net.parameters()]
    backward(net, 0)
    optimizer.step()
    backward(twin, 0)
    for p, q, s in zip(net.parameters(), twin.parameters(), start, strict=True):
        torch.testing.assert_close(p.detach(), s - 0.1 * q.grad / q.grad.norm())  # the first stabilised norm is 1


def test_schedulers_and_hooks_see_an_ordinary_optimizer():
    net, seen = model(), []
    optimizer = TransformedOptimizer(torch.optim.SGD(net.parameters(), lr=0.8), GradientStabilizer())
    optimizer.register_step_pre_hook(lambda *_: seen.append("pre"))
    optimizer.register_step_post_hook(lambda *_: seen.append("post"))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for step in range(3):
        backward(net, step)
        optimizer.step()
        schedule.step()
    assert optimizer.base.param_groups[0]["lr"] == pytest.approx(0.1) and seen == ["pre", "post"] * 3
    assert isinstance(optimizer, torch.optim.Optimizer) and "GradientStabilizer before SGD" in repr(optimizer)


def test_scaler_unscales_first_and_overflow_steps_do_not_count():
    net, plain = model(), model()
    optimizer = TransformedOptimizer(torch.optim.AdamW(net.parameters(), lr=0.01, fused=True), GradientStabilizer())
    twin = TransformedOptimizer(torch.optim.AdamW(plain.parameters(), lr=0.01, fused=True), GradientStabilizer())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)

    def scaled(step, factor=1.0):
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(16, 4, generator=generator), torch.randn(16, 2, generator=generator)
        loss = (net(x) - y).square().mean() * factor
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    scaled(0)
    norms = optimizer.report.norm_before.clone()
    before = [p.detach().clone() for p in net.parameters()]
    scaled(1, torch.inf)
    assert optimizer.transform.state["t"].tolist() == [1] * 4 and same(before, net.parameters())
    scaled(2)
    assert optimizer.transform.state["t"].tolist() == [2] * 4
    train(plain, twin, [0])
    assert norms.tolist() == pytest.approx(twin.report.norm_before.tolist(), rel=1e-4)
    train(plain, twin, [2])
    for p, q in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_accumulated_gradients_are_transformed_once():
    net, twin = model(), model()
    optimizer = TransformedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), GradientStabilizer())
    for step in range(2):
        backward(net, step)
        backward(twin, step)
    optimizer.step()
    assert optimizer.report.norm_before.tolist() == pytest.approx([p.grad.norm().item() for p in twin.parameters()])
    assert optimizer.transform.state["t"].tolist() == [1] * 4


def test_a_group_can_be_added():
    net, more = model(), torch.nn.Parameter(torch.ones(3))
    optimizer = TransformedOptimizer(torch.optim.Adam(net.parameters(), lr=0.01), GradientStabilizer())
    train(net, optimizer, range(2))
    optimizer.add_param_group({"params": [more], "lr": 0.5})
    more.grad = torch.tensor([3.0, 0.0, 4.0])
    backward(net, 2)
    optimizer.step()
    assert optimizer.transform.state["t"].tolist() == [3, 3, 3, 3, 1] and optimizer.param_groups[1]["lr"] == 0.5
    assert more[0].item() == pytest.approx(0.5, abs=1e-5) and more[1].item() == 1


def test_states_that_do_not_fit_change_nothing():
    net = model()
    optimizer = TransformedOptimizer(torch.optim.Adam(net.parameters(), lr=0.01), GradientStabilizer())
    train(net, optimizer, range(2))
    kept = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match="has no 'transform'"):
        optimizer.load_state_dict(torch.optim.Adam(model().parameters()).state_dict())
    train_small = torch.nn.Linear(4, 2)
    small = TransformedOptimizer(torch.optim.Adam(train_small.parameters()), GradientStabilizer())
    train(train_small, small, range(1))
    with pytest.raises(ValueError, match="that of 2 parameters, this optimiser has 4"):
        optimizer.load_state_dict(small.state_dict())
    with pytest.raises(ValueError, match="parameter group"):
        optimizer.load_state_dict(kept | {"param_groups": []})
    now = optimizer.state_dict()
    for name, value in kept["transform"]["tensors"].items():
        assert torch.equal(now["transform"]["tensors"][name], value)


def test_wrong_parts_are_refused():
    params = list(model().parameters())
    with pytest.raises(TypeError, match="LBFGS"):
        TransformedOptimizer(torch.optim.LBFGS(params), Identity())
    with pytest.raises(TypeError, match="base must be a torch optimiser, got list"):
        TransformedOptimizer(params, Identity())
    with pytest.raises(TypeError, match="transform must be a GradientTransform, got function"):
        TransformedOptimizer(torch.optim.SGD(params, lr=0.1), lambda params: None)


def test_stable_spam_forgets_its_moments():
    net = model()
    optimizer = StableSPAM(net.parameters(), lr=0.01, reset_every=3)
    first = next(net.parameters())
    ages = []
    for step in range(7):
        optimizer.zero_grad()
        backward(net, step)
        optimizer.step()
        ages.append(int(optimizer.state[first]["step"]))
    assert ages == [1, 2, 3, 1, 2, 3, 1]
    # Right after a reset the moments are those of one gradient.
    torch.testing.assert_close(optimizer.state[first]["exp_avg"], 0.1 * first.grad)
    twin = StableSPAM(net.parameters(), lr=0.01, reset_every=3)
    twin.load_state_dict(optimizer.state_dict())
    assert twin.steps == 7
    with pytest.raises(ValueError, match="no 'steps'"):
        twin.load_state_dict({"transform": {}})
    with pytest.raises(ValueError, match="reset_every"):
        StableSPAM(net.parameters(), reset_every=0)


def test_clip_behind_a_stabiliser_sees_its_norms():
    net = model()
    chain = Chain(GradientStabilizer(), NormClip(0.5))
    optimizer = TransformedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), chain)
    backward(net, 0)
    optimizer.step()
    assert optimizer.report.norm_after.square().sum().sqrt().item() == pytest.approx(0.5, rel=1e-5)

"""The L2A layer against layers that are put together by hand from torch's own attention, and its limits."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from components.attention.backends import BACKENDS, backend_named
from components.attention.branch import Branch, rope_of
from components.attention.head_router import HeadRoutedAttention
from components.attention.kv_cache import L2ACache
from components.attention.l2a import L2AAttention, L2ABlock, decisions, l2a_layers, set_leaks
from components.attention.router import ConstantRouter, RandomRouter, Router, Routing, TokenRouter
from components.attention.static import StaticAttention
from components.language.tiny_llama import RMSNorm

D, HEADS, KV, T = 16, 4, 2, 23


class Fixed(TokenRouter):
    """Decisions that a test chose."""

    def __init__(self, a):
        super().__init__()
        self.a = a

    def forward(self, z):
        return Routing(self.a.to(z.dtype), self.a.to(z.dtype), self.a)


def layer_of(window=5, dtype=torch.float64, seed=0, **options):
    torch.manual_seed(seed)
    layer = L2AAttention(D, HEADS, KV, window, **options).to(dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
        layer.router.weight.zero_()
    return layer


def text(batch=2, length=T, dtype=torch.float64, seed=1):
    return torch.randn(batch, length, D, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def dense(branch, h, allowed):
    """A branch's attention by torch, with a mask [.., time, time]."""
    rope = rope_of(0, h.shape[1], branch.width, 1e4, h)
    q, (k, v) = branch.queries(h, rope), branch.keys_values(h, rope)
    y = scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), attn_mask=allowed, enable_gqa=True)
    return y.transpose(1, 2)


def masks(length, window):
    t, s = torch.arange(length)[:, None], torch.arange(length)
    return (s <= t) & (s > t - window), s <= t


def by_hand(layer, x, a):
    near, all_past = masks(x.shape[1], layer.window)
    local = layer.local.o(dense(layer.local, layer.norm(x), near).flatten(2))
    z = layer.global_norm(x + local)
    return local + a[..., None] * layer.distant.o(dense(layer.distant, z, all_past).flatten(2))


@pytest.mark.parametrize("window", [1, 5, T, 100])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_a_fresh_layer_attends_twice_at_every_token(window, qk_norm):
    """Zero-initialised router: p = 1/2 reaches the threshold."""
    layer, x = layer_of(window, qk_norm=qk_norm), text()
    torch.testing.assert_close(layer(x), by_hand(layer, x, torch.ones(2, T)), atol=1e-12, rtol=1e-12)
    assert layer.routing.a.all() and (layer.routing.p == 0.5).all()


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_decisions_equal_the_two_masked_layers(data):
    length, batch = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 3))
    bits = data.draw(st.lists(st.booleans(), min_size=batch * length, max_size=batch * length))
    a = torch.tensor(bits).view(batch, length)
    layer, x = (
        layer_of(data.draw(st.integers(1, 12)), backend=data.draw(st.sampled_from(["reference", "sdpa"]))),
        text(batch, length),
    )
    layer.router = Fixed(a)
    torch.testing.assert_close(layer(x), by_hand(layer, x, a), atol=1e-11, rtol=1e-11)


def test_router_that_is_off_leaves_a_window_layer():
    layer, x = layer_of(), text()
    window = StaticAttention(D, HEADS, KV, 5, backend="reference").double()
    window.norm, window.branch = layer.norm, layer.local
    layer.router = ConstantRouter(on=False)
    torch.testing.assert_close(layer(x), window(x), atol=0, rtol=0)
    layer.prune()
    torch.testing.assert_close(layer(x), window(x), atol=0, rtol=0)
    assert layer.pruned and not any("distant" in name or "router" in name for name in layer.state_dict())


def test_windows_over_everything_are_dense_layers():
    torch.manual_seed(0)
    wide, whole = StaticAttention(D, HEADS, KV, T).double(), StaticAttention(D, HEADS, KV).double()
    whole.load_state_dict(wide.state_dict())
    torch.testing.assert_close(wide(text()), whole(text()), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_future_is_not_seen(backend):
    dtype = torch.float32 if backend == "triton" else torch.float64
    torch.manual_seed(0)
    layer = L2AAttention(32, 2, 1, 5, backend=backend).to(dtype)
    torch.nn.init.normal_(layer.router.weight)
    x = torch.randn(2, T, 32, dtype=dtype)
    other = x.clone()
    other[:, 13:] += torch.randn(2, T - 13, 32, dtype=dtype)
    for leak in (False, True):
        set_leaks([layer], [leak])
        first, second = layer(x), layer(other)
        torch.testing.assert_close(first[:, :13], second[:, :13], atol=1e-6, rtol=1e-6)
        assert (first[:, 13:] - second[:, 13:]).abs().amin(-1).max() > 1e-6


def test_a_decision_changes_its_own_row_alone():
    layer, x = layer_of(), text()
    a = torch.rand(2, T, generator=torch.Generator().manual_seed(0)) < 0.5
    layer.router = Fixed(a)
    before = layer(x)
    flipped = a.clone()
    flipped[1, 7] = ~a[1, 7]
    layer.router = Fixed(flipped)
    changed = (layer(x) - before).abs().sum(-1) > 0
    assert changed.nonzero().tolist() == [[1, 7]]


def test_backends_agree_with_all_gradients():
    found = []
    for backend in BACKENDS:
        torch.manual_seed(0)
        layer = L2AAttention(64, 4, 2, 6, qk_norm=True, backend=backend)
        torch.nn.init.normal_(layer.router.weight, generator=torch.Generator().manual_seed(3))
        x = torch.randn(2, T, 64, generator=torch.Generator().manual_seed(2)).requires_grad_()
        y = layer(x)
        (y * torch.randn(y.shape, generator=torch.Generator().manual_seed(4))).sum().backward()
        found.append((y, x.grad, *(parameter.grad for parameter in layer.parameters())))
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            torch.testing.assert_close(one, two, atol=2e-4, rtol=1e-3)


def test_a_leak_has_the_same_value_and_tells_skipped_tokens():
    layer, x = layer_of(tau=0.5), text()
    torch.nn.init.normal_(layer.router.weight, generator=torch.Generator().manual_seed(3))
    grads, values = {}, {}
    for leak in (False, True):
        set_leaks([layer], [leak])
        y = values[leak] = layer(x)
        (grads[leak],) = torch.autograd.grad((y * torch.linspace(-1, 1, D)).sum(), layer.routing.p, retain_graph=True)
        a = layer.routing.a
    torch.testing.assert_close(values[False], values[True], atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(grads[False][a], grads[True][a], atol=1e-12, rtol=1e-12)
    assert (~a).any() and (grads[False][~a] == 0).all()
    assert (grads[True][~a] != 0).all()


def test_gradcheck():
    layer, x = layer_of(3, tau=1.0), text(1, 8).requires_grad_()
    layer.router = Fixed(torch.rand(1, 8, generator=torch.Generator().manual_seed(0)) < 0.6)
    assert torch.autograd.gradcheck(layer, (x,))


def test_straight_through():
    router = Router(D, tau=0.3).double()
    torch.nn.init.normal_(router.weight, generator=torch.Generator().manual_seed(0))
    z = text().requires_grad_()
    m, _, a = router(z)
    r = z @ router.weight
    assert set(m.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(m.bool(), a)
    torch.testing.assert_close(a, torch.sigmoid(r / 0.3) >= 0.5)
    (grad,) = torch.autograd.grad(m.sum(), z)
    s = torch.sigmoid(r / 0.3)
    torch.testing.assert_close(grad, (s * (1 - s) / 0.3)[..., None] * router.weight)


@pytest.mark.parametrize("theta", [0.1, 0.9])
def test_thresholds_by_logit(theta):
    router = Router(D, tau=0.2, theta=theta).double()
    torch.nn.init.normal_(router.weight, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        _, p, a = router(text())
    torch.testing.assert_close(a, p >= theta)
    assert router.threshold == pytest.approx(0.2 * math.log(theta / (1 - theta)))


def test_router_per_head_between_its_two_parents():
    torch.manual_seed(0)
    norm, branch = RMSNorm(D).double(), Branch(D, HEADS, KV).double()
    near, whole = StaticAttention(D, HEADS, KV, 5).double(), StaticAttention(D, HEADS, KV).double()
    for parent in (near, whole):
        parent.norm, parent.branch = norm, branch
    layer = HeadRoutedAttention(norm, branch, 5).double()
    x = text()
    torch.testing.assert_close(layer(x), whole(x), atol=1e-12, rtol=1e-12)
    layer.router.threshold = math.inf
    torch.testing.assert_close(layer(x), near(x), atol=1e-12, rtol=1e-12)
    assert layer.routing.a.shape == (2, T, HEADS)


def test_decoding_is_one_pass_and_skipped_tokens_are_seen_later():
    layer, x = layer_of(4), text()
    layer.router = Fixed(torch.zeros(2, T, dtype=torch.bool))
    layer.router.a[:, ::3] = True
    wanted, a = layer(x), layer.router.a
    cache = L2ACache(1, 4, T, KV, D // HEADS, torch.float64, batch=2)
    parts = []
    with torch.no_grad():
        for t in range(T):
            layer.router = Fixed(a[:, t : t + 1])
            parts.append(layer(x[:, t : t + 1], cache=cache))
    torch.testing.assert_close(torch.cat(parts, 1), wanted, atol=1e-11, rtol=1e-11)


def test_blocks_decisions_and_random_routers():
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(L2ABlock(L2AAttention(D, HEADS, KV, 5, layer=i), D, 24) for i in range(2)))
    layers = l2a_layers(model)
    layers[0].router = RandomRouter(0.25, seed=4)
    x = text(50, 40, torch.float32)
    model(x)
    first = decisions(model)
    share = first[0].float().mean().item()
    assert abs(share - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 2000) and first[1].all()
    layers[0].router.reseed(4)
    model(x)
    assert torch.equal(decisions(model), first)
    layers[0].prune()
    model(x)
    assert not decisions(model)[0].any()


def test_bad_input_is_named():
    for options, words in (
        ({"window": 0}, "window must be at least 1"),
        ({"tau": 0.0}, "tau must be positive"),
        ({"theta": 1.0}, "theta must lie strictly between 0 and 1"),
        ({"backend": "cuda"}, "backend must be one of"),
        ({"width": 3}, "must be even"),
    ):
        with pytest.raises(ValueError, match=words):
            L2AAttention(D, HEADS, KV, options.pop("window", 4), **options)
    with pytest.raises(ValueError, match="multiple of kv_heads"):
        L2AAttention(D, 4, 3, 4)
    with pytest.raises(ValueError, match="heads of width 16, 32, 64, 128, 256, got 4"):
        backend_named("triton", 4)
    layer = L2AAttention(D, HEADS, KV, 4, layer=3, max_position=8)
    with pytest.raises(ValueError, match="9 tokens, the model's positions end at 8"):
        layer(text(1, 9, torch.float32))
    with pytest.raises(ValueError, match=r"x must have shape \[batch, time, 16\]"):
        layer(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="window of 5 tokens, layer 3 of 4"):
        layer(text(1, 2, torch.float32), cache=L2ACache(4, 5, 8, KV, 4))
    with torch.no_grad():
        layer.router.weight.fill_(math.nan)
    with pytest.raises(FloatingPointError, match="layer 3"):
        layer(text(1, 4, torch.float32))
    with pytest.raises(ValueError, match="zip"):
        set_leaks([layer], [True, False])
    with pytest.raises(ValueError, match="no L2A layer"):
        decisions(torch.nn.Linear(2, 2))

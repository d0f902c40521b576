"""Shared and component scores as attention: against torch's own, their invariances, masks, counts."""

import pytest
import torch
import torch.nn.functional as F

from components.quaternion.attention import (
    QuaternionSelfAttention,
    component_attention,
    merge_heads,
    shared_attention,
    split_heads,
)
from components.quaternion.counting import ProductCounter
from components.quaternion.layers import QuaternionLinear
from components.quaternion.ops import hamilton
from components.quaternion.real import RealSelfAttention, self_attention


def close(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def qkv(length=7, h=3, seed=0):
    return torch.randn(3, 2, 2, length, 4, h, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def layer_of(score="shared", **options):
    torch.manual_seed(0)
    return QuaternionSelfAttention(6, 2, score, **options).double()


def features(length=7, seed=1):
    return torch.randn(2, length, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rotated(x, u, *, left=True):
    u = u[:, None].expand_as(x)
    return hamilton(u, x) if left else hamilton(x, u)


@pytest.mark.parametrize("causal", [False, True])
def test_shared_scores_are_plain_attention_of_concatenated_components(causal):
    q, k, v = qkv()
    wanted = F.scaled_dot_product_attention(*(x.flatten(-2) for x in (q, k, v)), is_causal=causal).unflatten(-1, (4, 3))
    close(shared_attention(q, k, v, causal=causal)[0], wanted)
    y, weights = shared_attention(q, k, v, causal=causal, fused=False)
    close(y, wanted)
    close(weights.sum(-1), torch.ones(2, 2, 7, dtype=torch.float64))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("conjugate", [False, True])
def test_component_scores_are_four_plain_attentions(fused, conjugate):
    """Each map by torch's attention of q with a key that is permuted and signed by the multiplication table of the units."""
    q, k, v = qkv()
    y, weights = component_attention(q, k, v, fused=fused, conjugate=conjugate)
    key = k * torch.tensor([1, -1, -1, -1], dtype=k.dtype)[:, None] if conjugate else k
    units = torch.eye(4, dtype=k.dtype)
    for c in range(4):
        # (q k)_c = <q, M_c k>, M_c the c-th components of e_a e_b.
        table = torch.stack([torch.stack([hamilton(units[a], units[b], -1)[c] for b in range(4)]) for a in range(4)])
        turned = torch.einsum("ab,...bh->...ah", table, key)
        wanted = F.scaled_dot_product_attention(q.flatten(-2), turned.flatten(-2), v[..., c, :], scale=3**-0.5)
        close(y[..., c, :], wanted)
    close(weights.sum(-1), torch.ones(2, 2, 4, 7, dtype=torch.float64))


def test_one_rotation_of_all_queries_and_keys_changes_shared_weights_not():
    q, k, v = qkv()
    u = F.normalize(torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(3)), dim=0)
    _, before = shared_attention(q, k, v, fused=False)
    _, apart = component_attention(q, k, v)
    for left in (True, False):
        turned = rotated(q, u, left=left), rotated(k, u, left=left)
        close(shared_attention(*turned, v, fused=False)[1], before)
        assert (component_attention(*turned, v)[1] - apart).abs().max() > 0.01


def test_values_turn_with_their_rotation():
    q, k, v = qkv()
    u = F.normalize(torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(3)), dim=0)
    close(shared_attention(q, k, rotated(v, u))[0], rotated(shared_attention(q, k, v)[0], u))


def test_the_real_component_of_the_conjugated_product_is_twice_the_shared_score():
    q, k, v = qkv()
    components = component_attention(q, k, v, conjugate=True)[1]
    shared = shared_attention(2 * q, k, v, fused=False)[1]
    close(components[:, :, 0], shared)  # 1 / sqrt(h) against 1 / sqrt(4 h)


def test_limits():
    q, k, v = qkv(length=1, h=1)
    for attend in (shared_attention, component_attention):
        close(attend(q, k, v)[0], v)
    q, k, v = qkv()
    same = k[:, :, :1].expand_as(k)
    close(shared_attention(q, same, v)[0], v.mean(2, keepdim=True).expand_as(v))
    close(component_attention(q, same, v)[0], v.mean(2, keepdim=True).expand_as(v))


@pytest.mark.parametrize(
    ("score", "backend"),
    [("real", "sdpa"), *((score, way) for score in ("shared", "component") for way in ("sdpa", "reference", "triton"))],
)
def test_the_future_is_not_seen(score, backend):
    torch.manual_seed(0)
    layer = self_attention(score, 6, 2, **({} if score == "real" else {"backend": backend}))
    x = torch.randn(2, 9, 4, 6)
    other = x.clone()
    other[:, 5:] = torch.randn(2, 4, 4, 6)
    first, second = layer(x, causal=True), layer(other, causal=True)
    close(first[:, :5], second[:, :5], 1e-6)
    assert (first[:, 5:] - second[:, 5:]).abs().amin(-1).amax() > 1e-3
    if backend != "triton":
        mask = torch.ones(9, 9, dtype=torch.bool).tril()
        close(layer(x, mask), first, 1e-6)


@pytest.mark.parametrize("score", ["shared", "component"])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_backends_agree_with_all_gradients(score, qk_norm):
    found = []
    for backend in ("sdpa", "reference", "triton"):
        torch.manual_seed(0)
        layer = QuaternionSelfAttention(6, 2, score, qk_norm=qk_norm, backend=backend)
        x = torch.randn(2, 9, 4, 6, generator=torch.Generator().manual_seed(2)).requires_grad_()
        y = layer(x)
        (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
        found.append((y, x.grad, *(parameter.grad for parameter in layer.parameters())))
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            close(one, two, 1e-4)


def test_heads_split_features_and_never_components():
    x = torch.arange(2 * 3 * 4 * 6.0).view(2, 3, 4, 6)
    heads = split_heads(x, 2)
    assert heads.shape == (2, 2, 3, 4, 3)
    close(heads[1, 1, 2], x[1, 2, :, 3:])
    close(merge_heads(heads), x)


def test_a_layer_by_hand():
    layer, x = layer_of(), features()
    q, k, v = layer.qkv(x).chunk(3, -1)
    q, k = layer.query_norm(q), layer.key_norm(k)
    y = shared_attention(*(split_heads(part, 2) for part in (q, k, v)), fused=False)[0]
    close(layer(x), layer.out(merge_heads(y)))
    got, weights = layer(x, need_weights=True)
    close(got, layer(x))
    assert weights.shape == (2, 2, 7, 7) and layer_of("component")(x, need_weights=True)[1].shape == (2, 2, 4, 7, 7)


@pytest.mark.parametrize("score", ["shared", "component"])
def test_counts_of_a_layer(score):
    """Multiplications of scores and values, and softmaxes: 4 + 4 per pair and feature against 16 + 4, one against four."""
    layer, x = layer_of(score), features()
    projections = layer.qkv.matrix().numel() * 14 + layer.out.matrix().numel() * 14
    for backend in ("sdpa", "reference"):
        layer.backend = backend
        with ProductCounter() as counter:
            layer(x)
        pairs = 2 * 7 * 7 * 6  # texts, pairs, quaternion features
        assert counter.products - projections == pairs * (8 if score == "shared" else 20)
        assert counter.softmax_calls == (1 if score == "shared" else 4)
        assert counter.softmax_rows == 2 * 2 * 7 * counter.softmax_calls


@pytest.mark.parametrize("score", ["shared", "component"])
def test_gradcheck(score):
    torch.manual_seed(0)
    layer = QuaternionSelfAttention(2, 1, score).double()
    x = torch.randn(1, 3, 4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))


def test_empty_rows_are_refused_or_zero():
    mask = torch.ones(7, 7, dtype=torch.bool)
    mask[3] = False
    for score in ("shared", "component", "real"):
        layer = self_attention(score, 6, 2).double()
        with pytest.raises(ValueError, match="lets query 3 of batch row 0 see no key"):
            layer(features(), mask)
        layer = self_attention(score, 6, 2, allow_empty_rows=True).double()
        y, weights = layer(features(), mask, need_weights=True)
        bias = layer.out.bias if score != "real" else layer.out.linear.bias.view(4, 6)
        close(y[:, 3], bias.expand(2, 4, 6))
        assert (weights[..., 3, :] == 0).all()
        close(layer(features(), mask), y)


def test_half_precision_on_the_cpu_is_computed_wide():
    layer = layer_of().float()
    x = features().float()
    for dtype in (torch.float16, torch.bfloat16):
        half = layer(x.to(dtype))
        assert half.dtype == dtype
        close(half.float(), layer(x.to(dtype).float()), 0.02)


def test_dropout_is_of_training_alone():
    layer, x = layer_of(dropout=0.5), features()
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_a_real_layer_is_torchs_attention_with_four_times_the_weights():
    torch.manual_seed(0)
    layer, x = RealSelfAttention(6, 2, qk_norm=False).double(), features()
    torchs = torch.nn.MultiheadAttention(24, 2, batch_first=True).double()
    torchs.in_proj_weight.data, torchs.in_proj_bias.data = layer.qkv.linear.weight.data, layer.qkv.linear.bias.data
    torchs.out_proj.weight.data, torchs.out_proj.bias.data = layer.out.linear.weight.data, layer.out.linear.bias.data
    flat = x.flatten(-2)
    close(layer(x).flatten(-2), torchs(flat, flat, flat, need_weights=False)[0])

    def weights(module):
        return sum(p.numel() for name, p in module.named_parameters() if "weight" in name)

    assert weights(layer) == 4 * weights(layer_of(qk_norm=False))
    assert isinstance(layer_of().qkv, QuaternionLinear)


def test_bad_input_is_named():
    for call, words in (
        (lambda: QuaternionSelfAttention(6, 4), "n must be a multiple of heads = 4, got 6"),
        (lambda: QuaternionSelfAttention(6, 0), "heads must be a whole number"),
        (lambda: QuaternionSelfAttention(6, 2, "fused"), "score must be 'shared' or 'component'"),
        (lambda: QuaternionSelfAttention(6, 2, backend="flash"), "backend must be"),
        (lambda: QuaternionSelfAttention(6, 2, backend="triton", dropout=0.1), "no dropout"),
        (lambda: layer_of()(torch.zeros(2, 7, 24)), r"x must have shape \(..., 4, 6\), got \(2, 7, 24\)"),
        (lambda: layer_of()(torch.zeros(7, 4, 6, dtype=torch.float64)), r"x must have shape \(B, L, 4, 6\)"),
        (lambda: layer_of()(features(), torch.ones(5, 7, dtype=torch.bool)), "mask must have shape"),
        (lambda: layer_of(backend="triton")(features(), torch.ones(7, 7, dtype=torch.bool)), "no mask"),
        (lambda: self_attention("complex", 6, 2), "kind must be"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(TypeError, match="mask must be boolean"):
        layer_of()(features(), torch.ones(7, 7))

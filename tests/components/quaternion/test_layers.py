"""Quaternion layers against loops of Hamilton products and real layers of the same block matrix."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from components.quaternion.layers import (
    QuaternionConv1d,
    QuaternionConv2d,
    QuaternionConvTranspose2d,
    QuaternionFeedForward,
    QuaternionLinear,
    QuaternionRMSNorm,
    from_channels,
    quaternion_init_,
    to_channels,
)
from components.quaternion.ops import hamilton, qinner


def close(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_linear_is_a_sum_of_products():
    torch.manual_seed(0)
    layer = QuaternionLinear(3, 5).double()
    nn.init.normal_(layer.bias)
    x = torch.randn(2, 6, 4, 3, dtype=torch.float64)
    wanted = layer.bias.expand(2, 6, 4, 5).clone()
    for out in range(5):
        for inner in range(3):
            wanted[..., out] += hamilton(layer.weight[:, out, inner].expand(2, 6, 4), x[..., inner], -1)
    close(layer(x), wanted)
    close(layer(x).flatten(-2), F.linear(x.flatten(-2), layer.matrix(), layer.bias.flatten()))


def test_a_quarter_of_the_parameters():
    assert count(QuaternionLinear(8, 12, bias=False)) * 4 == count(nn.Linear(32, 48, bias=False))
    assert count(QuaternionConv2d(8, 12, 3, bias=False)) * 4 == count(nn.Conv2d(32, 48, 3, bias=False))
    assert count(QuaternionConv1d(8, 8, 5, groups=8, bias=False)) == 4 * 8 * 5


@pytest.mark.parametrize("init", ["he", "glorot"])
def test_moduli_and_phases_of_the_initialisation(init):
    torch.manual_seed(0)
    weight = quaternion_init_(torch.empty(4, 300, 200), 200, 300, init)
    sigma = 1 / math.sqrt(2 * 200 if init == "he" else 2 * 500)
    modulus = weight.norm(dim=0)
    # chi with 4 degrees of freedom: mean sigma sqrt(pi / 2) * 3 / 2, second moment 4 sigma^2
    assert modulus.mean().item() == pytest.approx(sigma * math.sqrt(math.pi / 2) * 1.5, rel=0.01)
    assert modulus.square().mean().item() == pytest.approx(4 * sigma**2, rel=0.01)
    # A uniform phase: the real part holds half of the energy, and each imaginary one a sixth.
    energy = weight.square().sum((1, 2)) / weight.square().sum()
    torch.testing.assert_close(energy, torch.tensor([1 / 2, 1 / 6, 1 / 6, 1 / 6]), atol=0.01, rtol=0)
    with pytest.raises(ValueError, match="'he' or 'glorot'"):
        quaternion_init_(weight, 1, 1, "orthogonal")


def test_convolutions_are_linear_layers_per_tap():
    torch.manual_seed(0)
    x = torch.randn(2, 7, 5, 4, 3, dtype=torch.float64)
    one, linear = QuaternionConv2d(3, 6, 1).double(), QuaternionLinear(3, 6).double()
    linear.weight.data, linear.bias.data = one.weight.data[..., 0, 0], one.bias.data
    close(from_channels(one(to_channels(x))), linear(x))
    # Three taps along time: a sum of three linear layers of shifted inputs.
    conv = QuaternionConv1d(3, 6, 3, padding=1, dilation=1, bias=False).double()
    signal = x[:, :, 0]
    padded = F.pad(signal, (0, 0, 0, 0, 1, 1))
    wanted = 0
    for tap in range(3):
        linear = QuaternionLinear(3, 6, bias=False).double()
        linear.weight.data = conv.weight.data[..., tap]
        wanted = wanted + linear(padded[:, tap : tap + 7])
    close(from_channels(conv(to_channels(signal))), wanted)


def test_groups_convolve_alone():
    torch.manual_seed(0)
    conv = QuaternionConv1d(4, 6, 3, groups=2).double()
    x = torch.randn(2, 9, 4, 4, dtype=torch.float64)
    parts = []
    for group in range(2):
        alone = QuaternionConv1d(2, 3, 3).double()
        alone.weight.data = conv.weight.data[:, 3 * group : 3 * group + 3]
        alone.bias.data = conv.bias.data[:, 3 * group : 3 * group + 3]
        parts.append(from_channels(alone(to_channels(x[..., 2 * group : 2 * group + 2]))))
    close(from_channels(conv(to_channels(x))), torch.cat(parts, -1))


def test_transposed_convolution_scatters_products():
    torch.manual_seed(0)
    layer = QuaternionConvTranspose2d(2, 3, (1, 3), stride=(1, 2)).double()
    x = torch.randn(1, 2, 4, 4, 2, dtype=torch.float64)
    wanted = layer.bias.expand(1, 2, 9, 4, 3).clone()
    for f in range(4):
        for tap in range(3):
            for inner in range(2):
                for out in range(3):
                    w = layer.weight[:, inner, out, 0, tap].expand(1, 2, 4)
                    wanted[:, :, 2 * f + tap, :, out] += hamilton(w, x[:, :, f, :, inner], -1)
    close(from_channels(layer(to_channels(x))), wanted)
    larger = QuaternionConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1)
    assert larger(torch.zeros(1, 8, 5, 6)).shape == (1, 12, 10, 12)


def test_rms_norm_makes_unit_quaternions_and_commutes_with_rotations():
    norm = QuaternionRMSNorm(3).double()
    with torch.no_grad():
        norm.gain.copy_(torch.tensor([1.0, 2.0, 0.5]))
    x = torch.randn(5, 4, 3, dtype=torch.float64)
    close(qinner(norm(x), norm(x)), (4 * norm.gain**2).expand(5, 3), 1e-4)
    u = F.normalize(torch.randn(4, 1, dtype=torch.float64), dim=0)
    close(norm(hamilton(u.expand(5, 4, 1), x)), hamilton(u.expand(5, 4, 1), norm(x)))
    half = x.to(torch.bfloat16)
    torch.testing.assert_close(norm.float()(half).float(), norm(x.float()), atol=0.05, rtol=0.05)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (QuaternionLinear(2, 3), (2, 4, 2)),
        (QuaternionRMSNorm(3), (2, 4, 3)),
        (QuaternionConv2d(1, 2, 2), (1, 4, 3, 3)),
        (QuaternionConv1d(2, 2, 2, groups=2), (1, 8, 4)),
        (QuaternionConvTranspose2d(2, 1, 2, stride=2), (1, 8, 2, 2)),
        (QuaternionFeedForward(2), (3, 4, 2)),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else "",
)
def test_gradcheck(layer, shape):
    torch.manual_seed(0)
    layer = layer.double()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in layer.named_parameters()]
    weights = [parameter.detach().clone().requires_grad_() for parameter in layer.parameters()]

    def call(x, *weights):
        return torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), (x,))

    assert torch.autograd.gradcheck(call, (x, *weights))


def test_channels_are_component_major():
    x = torch.arange(8.0).view(1, 4, 2)
    assert to_channels(x[:, None]).flatten().tolist() == list(range(8))
    y = torch.randn(2, 5, 3, 4, 6)
    close(from_channels(to_channels(y)), y)
    assert to_channels(y).shape == (2, 24, 5, 3)


def test_bad_input_is_named():
    for call, words in (
        (lambda: QuaternionLinear(0, 2), "n_in must be a whole number"),
        (lambda: QuaternionLinear(2, 2)(torch.zeros(3, 2)), r"x must have shape \(..., 4, 2\), got \(3, 2\)"),
        (lambda: QuaternionConv2d(2, 3, 3, groups=2), "multiples of groups = 2"),
        (lambda: QuaternionConv2d(2, 2, 0), "kernel_size must be"),
        (lambda: QuaternionConv2d(2, 2, 3)(torch.zeros(1, 4, 5, 5)), r"x must have shape \(B, 8, T, F\)"),
        (lambda: QuaternionConvTranspose2d(2, 2, 3, output_padding=1), "below the stride"),
        (lambda: QuaternionRMSNorm(2, eps=0.0), "eps must be positive"),
        (lambda: QuaternionFeedForward(2, dropout=1.0), r"dropout must lie in \[0, 1\)"),
        (lambda: from_channels(torch.zeros(1, 6, 2)), "multiple of 4 channels"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(TypeError, match="real floating point"):
        QuaternionLinear(2, 2)(torch.zeros(3, 4, 2, dtype=torch.int64))

"""PatchTST: shapes, channels kept apart, instance norm, what a forecast may depend on."""

import pytest
import torch

from components.sequence.patchtst import PatchTST


def model(**options):
    torch.manual_seed(0)
    return PatchTST(24, 6, patch=4, d=8, heads=2, layers=1, **options).eval()


@pytest.mark.parametrize(("channels", "stride"), [(1, None), (5, None), (3, 2)])
def test_shapes(channels, stride):
    net = model(stride=stride)
    assert net(torch.randn(2, 24, channels)).shape == (2, 6, channels)
    assert net.position.shape[0] == (6 if stride is None else 11)


def test_channels_are_forecast_independently_by_one_network():
    net, x = model(), torch.randn(2, 24, 3)
    whole = net(x)
    for channel in range(3):
        torch.testing.assert_close(net(x[..., channel : channel + 1]), whole[..., channel : channel + 1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(net(x[..., [2, 0, 1]]), whole[..., [2, 0, 1]], rtol=1e-4, atol=1e-5)


def test_instance_norm_follows_scale_and_shift():
    x = torch.randn(2, 24, 2)
    net = model()
    torch.testing.assert_close(net(100 * x + 7), 100 * net(x) + 7, rtol=1e-3, atol=1e-2)
    plain = model(instance_norm=False)
    assert not torch.allclose(plain(100 * x + 7), 100 * plain(x) + 7, rtol=1e-2)


def test_constant_series_stay_constant():
    x = torch.full((1, 24, 1), 3.0)
    assert (model()(x) - 3).abs().max() < 0.1  # spread is the root of 1e-5 alone


def test_every_hour_and_every_weight_matters():
    net, x = model().train(), torch.randn(1, 24, 2, requires_grad=True)
    net(x).square().sum().backward()
    assert (x.grad.abs() > 0).all()
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0 for name, p in net.named_parameters() if "in_proj_bias" not in name
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"patch": 5}, "do not cover a context of 24 exactly"),
        ({"patch": 30}, "do not cover"),
        ({"d": 9, "heads": 2}, "multiple of heads"),
        ({"layers": 0}, "layers must be a whole number"),
        ({"stride": 0}, "stride must be"),
    ],
)
def test_bad_sizes(options, says):
    with pytest.raises(ValueError, match=says):
        PatchTST(24, 6, **({"patch": 4, "d": 8, "heads": 2} | options))


def test_bad_input():
    with pytest.raises(ValueError, match=r"shape \(batch, 24, channels\), got \(2, 23, 1\)"):
        model()(torch.zeros(2, 23, 1))

"""The enhancer: what it computes for masks that are known, its parts one by one, and that it learns."""

import pytest
import torch
from torch import nn

from components.quaternion.blocks import KINDS
from components.speech.enhancer import LIMIT, DenseEncoder, Enhancer, enhancement_loss, multi_resolution
from components.speech.metrics import si_sdr
from components.speech.stft import STFT


def waves(batch=2, length=1600, seed=0):
    return 0.1 * torch.randn(batch, length, generator=torch.Generator().manual_seed(seed))


def made(kind="shared", **options):
    torch.manual_seed(0)
    return Enhancer(4, 2, 1, kind, **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", ["transformer", "conformer"])
def test_lengths_and_limits_of_the_mask(kind, block):
    model = made(kind, block=block, kernel=5)
    for length in (1600, 1567):
        assert model(waves(length=length)).shape == (2, length)
    mask = model.mask(model.stft(waves()))
    assert mask.shape == (2, 21, 81) and max(mask.real.abs().max(), mask.imag.abs().max()) <= LIMIT


def test_a_mask_of_a_known_number_scales_the_wave():
    model, x = made(), waves()
    with torch.no_grad():
        model.out.weight.zero_()
        model.out.bias.copy_(torch.tensor([0.4 / LIMIT, 0.0]).atanh())
    torch.testing.assert_close(model(x), 0.4 * x, atol=1e-5, rtol=1e-5)


def test_weights_are_a_quarter_of_the_real_ones():
    """Convolutions and linear layers of quaternions have a quarter of the weights of the real network's."""

    def weights(model):
        counted = 0
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "norm" not in name and not name.startswith("out."):
                counted += parameter.numel() if not name.endswith("bias") else 0
        return counted

    assert weights(made("real")) == 4 * weights(made())
    assert weights(made("component")) == weights(made()) > weights(made("none"))


def test_batches_are_computed_apart():
    model, x = made().eval(), waves(3)
    together = model(x)
    for place in range(3):
        torch.testing.assert_close(model(x[place : place + 1])[0], together[place], atol=1e-5, rtol=1e-5)


def test_dense_layers_keep_components_together():
    """A dense encoder of quaternion convolutions commutes with right products: its channels never mix across components."""
    torch.manual_seed(0)
    encoder = DenseEncoder(2, 3, (1, 2), real=False)
    widths = [layer.weight.shape[:3] for layer in encoder.layers]
    assert widths == [(4, 6, 2), (4, 6, 5)] and encoder.reduce.weight.shape[:3] == (4, 2, 8)
    assert encoder(torch.randn(1, 8, 7, 5)).shape == (1, 8, 7, 5)
    model = made(dilations=(1, 2), growth=2)
    assert model(waves()).shape == (2, 1600)


def test_terms_of_the_loss():
    model, noisy, clean = made(), waves(), waves(seed=1)
    spectrum, wave = model.spectra(noisy)
    wanted = STFT(160, 80)(clean)
    terms = {
        "si_sdr": -si_sdr(wave, clean).mean(),
        "complex": (spectrum - wanted).abs().mean(),
        "magnitude": (spectrum.abs() - wanted.abs()).abs().mean(),
        "rms": (wave - clean).square().mean().sqrt(),
    }
    for name, value in terms.items():
        torch.testing.assert_close(enhancement_loss(model, noisy, clean, {name: 2.0}), 2 * value, atol=1e-5, rtol=1e-5)
    whole = enhancement_loss(model, noisy, clean, dict.fromkeys(terms, 1.0))
    torch.testing.assert_close(whole, sum(terms.values()), atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="a loss has the terms"):
        enhancement_loss(model, noisy, clean, {"pesq": 1.0})


def test_spectra_of_three_sizes_agree_for_the_same_wave_alone():
    x = waves(length=4096)
    assert multi_resolution(x, x).item() == 0
    # Twice the amplitude: spectral convergence 1, log magnitudes ln 2 apart.
    assert multi_resolution(2 * x, x).item() == pytest.approx(1 + torch.log(torch.tensor(2.0)).item(), rel=1e-3)


def test_it_learns_to_clean_tones_of_white_noise():
    model = made()
    t = torch.arange(1600) / 8000
    clean = torch.stack([0.1 * torch.sin(2 * torch.pi * f * t) for f in (300.0, 500.0)])
    noisy = clean + waves()
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    before = si_sdr(noisy, clean).mean().item()
    for _ in range(50):
        optimizer.zero_grad()
        enhancement_loss(model, noisy, clean, {"si_sdr": 0.1, "complex": 2.0}).backward()
        optimizer.step()
    with torch.no_grad():
        assert si_sdr(model(noisy), clean).mean().item() > before + 6


def test_bad_input_is_named():
    for call, words in (
        (lambda: Enhancer(5, 2), "n must be a multiple of heads"),
        (lambda: Enhancer(4, 2, kind="complex"), "kind must be one of"),
        (lambda: Enhancer(4, 2, block="mamba"), "form must be"),
        (lambda: made()(torch.zeros(2, 100)), "at least 160 samples"),
        (lambda: made(block="conformer", kernel=4), "kernel must be odd"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    assert isinstance(made("real").up, nn.ConvTranspose2d)

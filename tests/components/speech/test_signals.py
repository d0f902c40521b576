"""Spectra, measures, noises and the generator: against scipy, closed forms and what was asked for."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal

from components.speech.metrics import si_sdr, stoi
from components.speech.noise import KINDS, PATTERN_SECONDS, mix_at_snr, noise, segment
from components.speech.stft import STFT, compressed
from components.speech.synthetic import speech_like

RATE = 8000


def waves(batch=2, length=4000, seed=0):
    return torch.randn(batch, length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_spectra_are_scipys():
    x = waves(1)
    ours = STFT(160, 80)(x)[0]
    window = torch.hann_window(160, dtype=torch.float64).numpy()  # periodic
    padded = np.pad(x[0].numpy(), 80, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, 160)[::80] * window
    np.testing.assert_allclose(ours.numpy(), np.fft.rfft(frames, axis=1), atol=1e-4)


@settings(max_examples=20, deadline=None)
@given(st.integers(200, 3000), st.sampled_from([(160, 80), (64, 16), (100, 37)]))
def test_there_and_back(length, sizes):
    stft, x = STFT(*sizes).double(), waves(2, length)
    torch.testing.assert_close(stft.inverse(stft(x), length), x, atol=1e-8, rtol=0)
    assert stft(x).shape[2] == stft.bins


def test_compressed_features():
    spectrum = STFT(160, 80)(waves())
    magnitude, real, imaginary = compressed(spectrum).unbind(-1)
    torch.testing.assert_close(magnitude, spectrum.abs() ** 0.3)
    torch.testing.assert_close(torch.complex(real, imaginary), spectrum / spectrum.abs() ** 0.7)
    assert not compressed(torch.zeros(2, 3, dtype=torch.complex64)).any()
    torch.testing.assert_close(compressed(spectrum, 1.0)[..., 1], spectrum.real)


def test_si_sdr_by_hand():
    s = waves(3)
    s = s - s.mean(1, keepdim=True)
    n = waves(3, seed=1)
    n = n - n.mean(1, keepdim=True)
    n = n - (n * s).sum(1, keepdim=True) / s.square().sum(1, keepdim=True) * s  # orthogonal
    n = n * s.norm(dim=1, keepdim=True) / n.norm(dim=1, keepdim=True)
    torch.testing.assert_close(si_sdr(s + n, s), torch.zeros(3, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(si_sdr(s + 0.1 * n, s), torch.full((3,), 20.0, dtype=torch.float64), atol=1e-4, rtol=0)
    torch.testing.assert_close(si_sdr(-7 * (s + n) + 3, s), si_sdr(s + n, s), atol=1e-6, rtol=0)
    assert (si_sdr(s, s) > 75).all()


def test_intelligibility_is_that_of_the_library():
    rng = np.random.default_rng(0)
    clean = speech_like(2.0, RATE, rng)
    values = [stoi(clean + level * rng.standard_normal(len(clean)), clean, RATE) for level in (0.0, 0.05, 0.3)]
    assert values[0] == pytest.approx(1, abs=1e-6) and values[0] > values[1] > values[2] > 0
    with pytest.raises(ValueError, match="too little speech"):
        stoi(clean[:1500], clean[:1500], RATE)
    with pytest.raises(ValueError, match="one length"):
        stoi(clean, clean[1:], RATE)


@settings(max_examples=20, deadline=None)
@given(st.floats(-20, 40), st.integers(0, 100))
def test_mixing_reaches_the_ratio(snr, seed):
    rng = np.random.default_rng(seed)
    clean, other = rng.standard_normal(500), 7 * rng.standard_normal(500)
    added = mix_at_snr(clean, other, snr) - clean
    assert 10 * math.log10(np.mean(clean**2) / np.mean(added**2)) == pytest.approx(snr, abs=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_noises_have_unit_variance_and_follow_their_seed(kind):
    voices = [np.random.default_rng(9).standard_normal(5000), np.random.default_rng(8).standard_normal(300)]
    one, two, three = (noise(kind, 4001, RATE, np.random.default_rng(seed), voices) for seed in (0, 0, 1))
    assert one.shape == (4001,) and one.std() == pytest.approx(1) and abs(one.mean()) < 1e-9
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, three)


def test_what_the_noises_are():
    rng = np.random.default_rng(0)
    f, power = signal.welch(noise("pink", 1 << 16, RATE, rng), RATE, nperseg=1024)
    inside = (f > 50) & (f < 3500)
    slope = np.polyfit(np.log(f[inside]), np.log(power[inside]), 1)[0]
    assert slope == pytest.approx(-1, abs=0.1)  # power as 1 / f
    f, power = signal.welch(noise("white", 1 << 16, RATE, rng), RATE, nperseg=1024)
    assert abs(np.polyfit(np.log(f[5:]), np.log(power[5:]), 1)[0]) < 0.1
    f, power = signal.welch(noise("hum", 1 << 16, RATE, rng), RATE, nperseg=4096)
    for tone in (50, 100, 150, 250):
        place = np.argmin(np.abs(f - tone))
        assert power[place - 1 : place + 2].max() > 20 * np.median(power)


def test_bursts_are_copies_of_one_pattern():
    made = noise("burst", 8000, RATE, np.random.default_rng(3))
    pattern = round(PATTERN_SECONDS * RATE)
    energy = np.convolve(np.square(made), np.ones(pattern), "valid")
    copies = []
    for start in signal.find_peaks(energy, height=0.3 * energy.max(), distance=pattern // 2)[0]:
        part = made[start : start + pattern]
        match = np.correlate(made, part, "valid") / np.square(part).sum()
        copies.append(len(signal.find_peaks(match, height=0.8, distance=pattern // 2)[0]))
    # Where two overlap, neither is found; of the others each finds all.
    assert 3 <= max(copies) <= 8
    white = noise("white", 8000, RATE, np.random.default_rng(3))
    match = np.correlate(white, white[:pattern], "valid") / np.square(white[:pattern]).sum()
    assert (match > 0.8).sum() == 1


def test_segments():
    rng = np.random.default_rng(0)
    x = np.arange(10)
    for _ in range(20):
        part = segment(x, 4, rng)
        assert (np.diff(part) == 1).all()
    np.testing.assert_array_equal(segment(x[:3], 9, np.random.default_rng(0))[:1] % 1, [0])
    assert set(segment(x[:3], 9, rng)) == {0, 1, 2}
    with pytest.raises(ValueError, match="must not be empty"):
        segment(x[:0], 4, rng)


def test_speech_like_sound_has_pitch_formants_and_pauses():
    x = speech_like(20.0, RATE, np.random.default_rng(0))
    assert x.std() == pytest.approx(0.1) and len(x) == 20 * RATE
    f, power = signal.welch(x, RATE, nperseg=2048)
    low, high = power[(f > 100) & (f < 1000)].mean(), power[(f > 3300) & (f < 3900)].mean()
    assert low > 5 * high
    frames = x[: len(x) // 160 * 160].reshape(-1, 160).std(1)
    assert (frames < 0.005).mean() > 0.02  # silence
    voiced = x[np.argmax(frames) * 160 :][:1600]
    lag = np.correlate(voiced, voiced, "full")[1600:]
    pitch = RATE / (RATE // 300 + np.argmax(lag[RATE // 300 : RATE // 80]) + 1)
    assert 75 < pitch < 320
    np.testing.assert_array_equal(x, speech_like(20.0, RATE, np.random.default_rng(0)))


def test_bad_input_is_named():
    rng, x = np.random.default_rng(0), torch.zeros(1, 200)
    for call, words in (
        (lambda: STFT(160, 100), "hop in 1"),
        (lambda: STFT(160, 80)(x[:, :100]), "at least 160 samples, one frame, got 100"),
        (lambda: STFT(160, 80)(x[0]), r"shape \[batch, samples\]"),
        (lambda: STFT(160, 80)(x * math.nan), "not finite"),
        (lambda: compressed(torch.zeros(2, dtype=torch.complex64), 0.0), r"power must lie in \(0, 1\]"),
        (lambda: si_sdr(x + 1, x), "reference 0 is silent"),
        (lambda: si_sdr(x, torch.ones(1, 100)), "one shape"),
        (lambda: noise("brown", 1000, RATE, rng), "kind must be one of"),
        (lambda: noise("white", 100, RATE, rng), "length at least 640"),
        (lambda: noise("babble", 1000, RATE, rng), "at least one voice"),
        (lambda: mix_at_snr(np.zeros(5), np.ones(5), 0.0), "must not be silent"),
        (lambda: mix_at_snr(np.ones(5), np.ones(4), 0.0), "one length"),
        (lambda: mix_at_snr(np.ones(5), np.ones(5), math.inf), "snr finite"),
        (lambda: speech_like(0.1, RATE, rng), "at least 0.3"),
    ):
        with pytest.raises(ValueError, match=words):
            call()

"""Shared scores as a flow: rules, parameters, mixtures, counts and ranks in its tables, the paper's own data on a cut, same bytes twice."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError
from scipy.io import wavfile

from components.speech.metrics import si_sdr
from components.speech.noise import KINDS
from flows.quaternion_attention import paper
from flows.quaternion_attention.arms import METHODS
from flows.quaternion_attention.store import Mixtures, load_mixtures, load_table, load_waves, save_mixtures, save_waves
from tasks.assets import check
from tasks.claims import NOT_TESTABLE, verdicts
from tasks.errors import UserError
from tests.flows import stages
from tests.flows.stages import hashes, module
from tests.projects import ROOT

SLUG = "quaternion_attention"
ASSETS = {name: ROOT / "data" / name for name in ("shakespeare", "milton")}  # speech is synthetic in a smoke run


def stage(name):
    return module(SLUG, name)


def params(name, profile, **changes):
    return stages.params(SLUG, name, profile, **changes)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The stages twice, and what they returned."""
    for name in ASSETS:
        check(ROOT, name)  # says which command brings it
    folders = [tmp_path_factory.mktemp(SLUG) for _ in range(2)]
    return folders, [stages.run(SLUG, folder, assets=ASSETS) for folder in folders]


def test_the_same_bytes_twice(ran):
    (first, second), (one, two) = ran
    assert hashes(first) == hashes(second)
    assert one == two


def test_every_claim_has_its_number(ran):
    _, (metrics, _) = ran
    for claim in paper.claims:
        if claim.untestable is None:
            for method, metric in claim.cells:
                assert metric in metrics[method], (claim.id, method, metric)
    found = {v["id"]: v["verdict"] for v in verdicts(paper.claims, metrics)}
    assert found["C1"] == found["C2"] == found["C3"] == "holds"
    assert found["C4 operation"] == found["GPU time"] == NOT_TESTABLE


def test_counts_and_ranks(ran):
    _, (metrics, _) = ran
    assert metrics["shared"]["scores/products per pair"]["values"] == [4.0]
    for form in ("component", "component, fused"):
        assert metrics[form]["scores/products per pair"]["values"] == [16.0]
    assert metrics["q k"]["ranks/union"]["mean"] == 16 and metrics["q conj(k)"]["ranks/union"]["mean"] == 4
    # Of a network: two blocks of attention, one softmax each or four.
    assert metrics["shared"]["speech/softmaxes"]["mean"] == 2 and metrics["component"]["speech/softmaxes"]["mean"] == 8
    assert metrics["none"]["speech/softmaxes"]["mean"] == 0
    assert metrics["shared"]["speech/products"]["mean"] < metrics["component"]["speech/products"]["mean"]


def test_mixtures_and_measures_by_hand(ran):
    (folder, _), (metrics, _) = ran
    mixtures = load_mixtures(folder / "data/mixtures_test.npz")
    assert list(mixtures.kind) == list(KINDS)
    for clean, noisy, snr in zip(mixtures.clean, mixtures.noisy, mixtures.snr, strict=True):
        added = noisy.astype(np.float64) - clean
        assert 10 * np.log10(np.mean(clean.astype(np.float64) ** 2) / np.mean(added**2)) == pytest.approx(snr, abs=0.01)
        assert len(clean) == 8000 and np.abs(noisy).max() < 1
    rows = pd.read_parquet(folder / "evaluate/per_mixture.parquet")
    untouched = rows[rows["method"] == "noisy"]
    assert (untouched["improvement"] == 0).all()
    wanted = [
        si_sdr(torch.from_numpy(a)[None], torch.from_numpy(b)[None]).item()
        for a, b in zip(mixtures.noisy, mixtures.clean, strict=True)
    ]
    np.testing.assert_allclose(untouched["si_sdr"], wanted, atol=1e-5)
    ours = rows[rows["method"] == "shared"]
    np.testing.assert_allclose(ours["si_sdr"].to_numpy() - wanted, ours["improvement"], atol=1e-4)
    assert metrics["shared"]["speech/improvement"]["mean"] == pytest.approx(ours["improvement"].mean())
    difference = ours["improvement"].to_numpy() - rows[rows["method"] == "component"]["improvement"].to_numpy()
    assert metrics["shared - component"]["speech/improvement"]["mean"] == pytest.approx(difference.mean())


def test_nothing_of_the_test_is_trained_on(ran):
    (folder, _), _ = ran
    speech = load_waves(folder / "data/speech_train.npz")["speech"]
    assert len(speech) == 12 - 3 - 2
    train, test = (load_table(folder / f"data/text_{name}.npz") for name in ("train", "test"))
    assert (np.bincount(train.y) == 100).all() and (np.bincount(test.y) == 50).all()
    seen = {row.tobytes() for row in train.x}
    assert not any(row.tobytes() in seen for row in test.x)
    first, second = (stage("train").class_tables(folder / "data", "digits", seed) for seed in (0, 1))
    assert len(first[1].y) == 50 and len(first[0].y) == 150
    assert not np.array_equal(first[1].x, second[1].x)
    rows = {row.tobytes() for row in np.concatenate([first[0].x, first[1].x])}
    assert len(rows) == 200


def test_batches_are_those_of_the_seed_whatever_the_method(ran):
    (folder, _), _ = ran
    train = stage("train")
    one, two, other = (next(train.speech_batches(folder / "data", 2, seed)) for seed in (0, 0, 1))
    assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1]) and not torch.equal(one[0], other[0])
    assert one[0].shape == (2, 8000) and one[0].dtype == torch.float32


def test_symbols_and_patches():
    data = stage("data")
    text = "".join(data.SYMBOLS[i] for i in data.symbols_of("Of Mans\n\n  First--Disobedience, & th' FRUIT 1."))
    assert text == "of mans first disobedience th' fruit"
    image = np.arange(16.0).reshape(1, 4, 4, 1)
    assert data.patches_of(image, 2)[0, :, :, 0].tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    with pytest.raises(UserError, match="no patches of 3"):
        data.patches_of(image, 3)


def test_divergence_of_maps():
    divergence = stage("evaluate").divergence
    a, b = np.array([[1.0, 0], [0.5, 0.5]]), np.array([[0.0, 1], [0.5, 0.5]])
    assert divergence(a, a) == 0 and divergence(a[:1], b[:1]) == pytest.approx(1) and divergence(a, b) == pytest.approx(0.5)


def voicebank(folder, rate=16000, files=4):
    rng = np.random.default_rng(0)
    for part in ("trainset_28spk", "testset"):
        for place in range(files):
            clean = rng.integers(-3000, 3000, 17000 + 500 * place).astype(np.int16)
            for kind, wave in (("clean", clean), ("noisy", clean + rng.integers(-900, 900, len(clean)).astype(np.int16))):
                target = folder / f"{kind}_{part}_wav"
                target.mkdir(parents=True, exist_ok=True)
                wavfile.write(target / f"p{place}.wav", rate, wave)


def cifar(folder, rows=30):
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in ("train", "test"):
        made = rng.integers(0, 256, (rows, 3074)).astype(np.uint8)
        made[:, 1] = np.arange(rows) % 100
        made.tofile(folder / f"{name}.bin")
        yield made


def test_the_papers_data_on_a_cut(tmp_path):
    """VoiceBank+DEMAND, CIFAR-100 and SST-2 as they are shipped, through the paper's network in small."""
    voicebank(tmp_path / "speech")
    (train_rows, _) = list(cifar(tmp_path / "cifar"))
    (tmp_path / "sst2").mkdir()
    for name in ("train", "dev"):
        (tmp_path / f"sst2/{name}.tsv").write_text("sentence\tlabel\na gripping film \t1\ndull . \t0\n" * 1)
    changes = {
        "data": {
            "speech": {
                "source": "voicebank_demand",
                "path": str(tmp_path / "speech"),
                "rate": 16000,
                "choice": 1,
                "segment": 16000,
            },
            "digits": {"source": "cifar100", "path": str(tmp_path / "cifar"), "patch": 8},
            "text": {"source": "sst2", "path": str(tmp_path / "sst2"), "length": 20},
        },
        "train": {
            "speech": {
                "model": {"block": "conformer", "dilations": [1, 2], "growth": 2, "conv_kernel": 5, "n_fft": 400, "hop": 100},
                "loss": {"si_sdr": 2.0, "complex": 2.5, "magnitude": 0.0, "rms": 1.0, "multi_resolution": 3.5},
                "methods": ["shared", "component"],
                "steps": 2,
            },
            "digits": {"methods": ["shared"], "steps": 2},
            "text": {"methods": ["shared"], "steps": 2},
        },
        "evaluate": {"batch": 1},
    }
    metrics = stages.run(SLUG, tmp_path / "run", changes=changes, assets={})
    assert metrics["shared"]["speech/si_sdr"]["n"] == 4
    assert np.isfinite(metrics["shared - component"]["speech/improvement"]["mean"])
    table = load_table(tmp_path / "run/data/digits_train.npz")
    assert table.x.shape == (30, 16, 4, 64) and (table.x[:, :, 0] == 0).all()  # no real part
    colours = train_rows[:, 2:].reshape(-1, 3, 32, 32)
    np.testing.assert_allclose(table.x[0, 0, 1:, 0], colours[0, :, 0, 0] / 255 - 0.5, atol=1e-6)
    assert table.y.tolist() == train_rows[:, 1].tolist()
    lines = load_table(tmp_path / "run/data/text_train.npz")
    assert lines.y.tolist() == [1, 0] and lines.x.shape == (2, 20)


def test_data_that_is_not_there_is_named(tmp_path):
    data = stage("data")
    with pytest.raises(UserError, match="needs a path"):
        data.write_speech(data.Speech(source="voicebank_demand"), {}, tmp_path)
    with pytest.raises(UserError, match="files of the same names, got 0 and 0"):
        data.write_speech(data.Speech(source="voicebank_demand", path=str(tmp_path)), {}, tmp_path)
    voicebank(tmp_path, rate=8000)
    with pytest.raises(UserError, match="at 16000 Hz, as data.speech.rate says, got 8000"):
        data.write_speech(data.Speech(source="voicebank_demand", path=str(tmp_path), rate=16000), {}, tmp_path)
    with pytest.raises(UserError, match="leave nothing of 5 recordings"):
        data.write_speech(data.Speech(source="synthetic", recordings=5, test=3, choice=2), {}, tmp_path)
    with pytest.raises(UserError, match="prompts have 8000 samples"):
        data.write_speech(data.Speech(rate=16000), {}, tmp_path)
    with pytest.raises(UserError, match="binary version"):
        data.write_digits(data.Digits(source="cifar100", path=str(tmp_path)), tmp_path)
    with pytest.raises(UserError, match=r"dev|train.tsv is missing"):
        data.write_text(data.Text(source="sst2", path=str(tmp_path)), {}, tmp_path)


def test_waves_survive_their_file(tmp_path):
    waves = [np.arange(5, dtype=np.int16), np.array([-32768, 32767], dtype=np.int16)]
    save_waves(tmp_path / "w.npz", speech=waves, other=waves[1:])
    found = load_waves(tmp_path / "w.npz")
    assert [x.tolist() for x in found["speech"]] == [x.tolist() for x in waves] and len(found["other"]) == 1
    loud = Mixtures([np.array([0.5])], [np.array([1.5])], np.zeros(1), np.array(["white"]))
    with pytest.raises(ValueError, match="beyond full scale"):
        save_mixtures(tmp_path / "m.npz", loud)


@pytest.mark.parametrize("profile", ["cpu", "smoke", "paper"])
def test_parameters_of_every_profile(profile):
    p = params("train", profile)
    assert p.speech.methods == list(METHODS)[:4] and p.digits.methods == list(METHODS)
    if profile == "paper":
        assert p.speech.model.block == "conformer" and p.speech.model.growth * 4 == 64
        assert p.speech.betas == (0.5, 0.999) and p.speech.steps == 400 * (11_572 // 8)
        assert p.speech.lr * p.speech.min_lr_frac == pytest.approx(1e-4)
        assert stage("models").enhancer(p.speech.model, "shared").stft.bins == 201


def test_wrong_parameters_are_refused():
    for changes in ({"speech": {"lr": 0}}, {"speech": {"model": {"block": "mamba"}}}, {"digits": {"steps": 0}}, {"nothing": 1}):
        with pytest.raises((ValidationError, UserError)):
            params("train", "cpu", **changes)
    p = params("train", "smoke", text={"methods": ["octonion"]})
    with pytest.raises(ValueError, match="no method 'octonion'"):
        stage("train").jobs_of(p, ROOT)
    assert json.loads(json.dumps(p.model_dump()))["text"]["methods"] == ["octonion"]

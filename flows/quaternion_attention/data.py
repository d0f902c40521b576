"""Speech and fixed noisy mixtures of it, digits as patches of quaternions, lines of verse as symbols."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from components.datasets.asterisk_prompts import RATE, read_prompts
from components.datasets.digits import small_digits
from components.language.corpus import read_texts
from components.speech.noise import KINDS, mix_at_snr, noise, segment
from components.speech.synthetic import speech_like
from flows.quaternion_attention.store import Mixtures, Table, floats, quantised, save_mixtures, save_table, save_waves
from tasks import track
from tasks.errors import UserError
from tasks.params import StageParams, Strict

SYMBOLS = " 'abcdefghijklmnopqrstuvwxyz"


class Speech(Strict):
    """Speech and what is mixed with it."""

    source: Literal["prompts", "synthetic", "voicebank_demand"] = Field("prompts", description="where speech comes from")
    path: str | None = Field(None, description="folder with clean_trainset_28spk_wav and so on, for voicebank_demand")
    rate: int = Field(RATE, ge=1, description="samples per second; prompts and synthetic speech have 8000")
    test: int = Field(40, ge=1, description="recordings that mixtures to report are made of")
    choice: int = Field(20, ge=1, description="recordings that mixtures to choose with are made of")
    recordings: int = Field(363, ge=3, description="recordings of synthetic speech in all; the most of the others")
    mixtures: int = Field(80, ge=1, description="mixtures to report")
    choice_mixtures: int = Field(20, ge=1, description="mixtures to choose with")
    segment: int = Field(8000, ge=2000, description="samples of a mixture")
    snr: tuple[float, float] = Field((-2.5, 12.5), description="signal-to-noise ratios, uniform, decibels")
    level: float = Field(0.1, gt=0, lt=1, description="standard deviation of clean speech, of full scale")


class Digits(Strict):
    source: Literal["digits", "cifar100"] = Field("digits", description="scikit-learn's digits, or CIFAR-100's binary version")
    path: str | None = Field(None, description="folder with train.bin and test.bin, for cifar100")
    patch: int = Field(2, ge=1, description="pixels along a side of a patch; of digits the four are a quaternion")
    test_share: float = Field(0.25, gt=0, lt=1, description="share of the digits that is reported; another one for each seed")
    limit: int | None = Field(None, ge=20, description="only the first so many")


class Text(Strict):
    source: Literal["poets", "sst2"] = Field("poets", description="Shakespeare or Milton, or SST-2's sentences")
    path: str | None = Field(None, description="folder with train.tsv and dev.tsv, for sst2")
    length: int = Field(64, ge=4, description="symbols of a line")
    train: int = Field(8000, ge=2, description="lines to train on, half of each poet")
    test: int = Field(2000, ge=2, description="lines that are reported, half of each poet")


class Params(StageParams):
    speech: Speech = Field(Speech(), description="speech enhancement")
    digits: Digits = Field(Digits(), description="digits")
    text: Text = Field(Text(), description="text")


def levelled(wave: np.ndarray, level: float) -> np.ndarray:
    """A wave of standard deviation `level`, within full scale."""
    scaled = wave * (level / wave.std())
    return scaled / max(1.0, float(np.abs(scaled).max()) / 0.99)


def draw_mixture(
    speech: Sequence[np.ndarray], voices: Sequence[np.ndarray], p: Speech, rng: np.random.Generator, kind: str | None = None
) -> tuple[np.ndarray, np.ndarray, float, str]:
    """A clean segment, the same with noise, the ratio in decibels and the kind of noise, drawn unless given.

    `speech` and `voices` are int16; babble is made of `voices`. Segments that are nearly silent are drawn again."""
    while (clean := floats(segment(speech[int(rng.integers(len(speech)))], p.segment, rng)).astype(np.float64)).std() < 0.002:
        pass
    clean = levelled(clean, p.level)
    kind = KINDS[int(rng.integers(len(KINDS)))] if kind is None else kind
    snr = float(rng.uniform(*p.snr))
    noisy = mix_at_snr(clean, noise(kind, p.segment, p.rate, rng, voices), snr)
    # Louder than full scale: both are turned down.
    peak = max(1.0, float(np.abs(noisy).max()) / 0.99)
    return clean / peak, noisy / peak, snr, kind


def fixed_mixtures(speech: Sequence[np.ndarray], voices: Sequence[np.ndarray], count: int, p: Speech, seed: int) -> Mixtures:
    """`count` mixtures, the kinds of noise in turn."""
    rng = np.random.default_rng(seed)
    drawn = [draw_mixture(speech, voices, p, rng, KINDS[i % len(KINDS)]) for i in range(count)]
    clean, noisy, snr, kind = zip(*drawn, strict=True)
    return Mixtures(list(clean), list(noisy), np.array(snr), np.array(kind))


def recordings_of(p: Speech, assets: dict[str, Path]) -> list[np.ndarray]:
    """int16 waves in an order that is drawn once."""
    if p.source == "synthetic":
        rng = np.random.default_rng(1)
        return [quantised(levelled(speech_like(2.0, p.rate, rng), 0.1)) for _ in range(p.recordings)]
    if p.rate != RATE:
        raise UserError(f"quaternion_attention.data.speech.rate: prompts have {RATE} samples per second, got {p.rate}")
    waves = list(read_prompts(assets["asterisk_prompts"]).values())
    return [waves[i] for i in np.random.default_rng(0).permutation(len(waves))][: p.recordings]


def read_wave(path: Path, rate: int) -> np.ndarray:
    """int16 samples of a file of one channel. UserError for another rate or format."""
    from scipy.io import wavfile

    found, samples = wavfile.read(path)
    if found != rate or samples.dtype != np.int16 or samples.ndim != 1:
        raise UserError(f"{path} must be one channel of 16 bits at {rate} Hz, as data.speech.rate says, got {found} Hz")
    return samples


def paired_folders(p: Speech, part: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Clean and noisy waves of VoiceBank+DEMAND, by file name."""
    if p.path is None:
        raise UserError("quaternion_attention.data.speech: source voicebank_demand needs a path")
    folders = [Path(p.path) / f"{kind}_{part}_wav" for kind in ("clean", "noisy")]
    names = [sorted(file.name for file in folder.glob("*.wav")) for folder in folders]
    if not names[0] or names[0] != names[1]:
        raise UserError(
            f"{folders[0]} and {folders[1]} must hold *.wav files of the same names, got {len(names[0])} and {len(names[1])}"
        )
    clean, noisy = ([read_wave(folder / name, p.rate) for name in names[0]] for folder in folders)
    return clean, noisy


def write_speech(p: Speech, assets: dict[str, Path], out: Path) -> dict[str, Any]:
    if p.source == "voicebank_demand":
        clean, noisy = paired_folders(p, "trainset_28spk")
        held = p.choice
        if len(clean) <= held:
            raise UserError(f"quaternion_attention.data.speech.choice: {held} leaves nothing of {len(clean)} files to train on")
        save_waves(out / "speech_train.npz", clean=clean[held:], noisy=noisy[held:])
        parts = {"choice": (clean[:held], noisy[:held]), "test": paired_folders(p, "testset")}
        for name, (first, second) in parts.items():
            waves = [floats(x) for x in first], [floats(x) for x in second]
            unknown = np.full(len(first), np.nan), np.full(len(first), "demand")
            save_mixtures(out / f"mixtures_{name}.npz", Mixtures(*waves, *unknown))
        return {"recordings": {name: len(first) for name, (first, _) in parts.items()} | {"train": len(clean) - held}}
    waves = recordings_of(p, assets)
    if len(waves) <= p.test + p.choice:
        raise UserError(
            f"quaternion_attention.data.speech: test and choice leave nothing of {len(waves)} recordings to train on"
        )
    test, choice, train = waves[: p.test], waves[p.test : p.test + p.choice], waves[p.test + p.choice :]
    save_waves(out / "speech_train.npz", speech=train)
    # Voices of babble come from what is trained on, in every part.
    save_mixtures(out / "mixtures_test.npz", fixed_mixtures(test, train, p.mixtures, p, 2))
    save_mixtures(out / "mixtures_choice.npz", fixed_mixtures(choice, train, p.choice_mixtures, p, 3))
    seconds = {name: sum(map(len, part)) / p.rate for name, part in (("train", train), ("choice", choice), ("test", test))}
    return {"recordings": {"train": len(train), "choice": len(choice), "test": len(test)}, "seconds": seconds}


def patches_of(images: np.ndarray, side: int) -> np.ndarray:
    """(N, H, W, C) to patches (N, (H / side) (W / side), side side, C), row by row."""
    count, height, width, channels = images.shape
    if height % side or width % side:
        raise UserError(f"quaternion_attention.data.digits.patch: images of {height} x {width} have no patches of {side}")
    cut = images.reshape(count, height // side, side, width // side, side, channels).swapaxes(2, 3)
    return cut.reshape(count, -1, side * side, channels)


def write_digits(p: Digits, out: Path) -> dict[str, Any]:
    if p.source == "digits":
        if p.patch != 2:
            raise UserError("quaternion_attention.data.digits.patch: the four pixels of a patch of digits are a quaternion: 2")
        x, y = small_digits()
        x, y = x[: p.limit], y[: p.limit]
        save_table(out / "digits.npz", Table(patches_of(x.reshape(-1, 8, 8, 1), 2), y))
        return {"images": len(y), "classes": 10}
    if p.path is None:
        raise UserError("quaternion_attention.data.digits: source cifar100 needs a path")
    counts = {}
    for name in ("train", "test"):
        file = Path(p.path) / f"{name}.bin"
        if not file.is_file() or file.stat().st_size % 3074:
            raise UserError(f"{file} must be of CIFAR-100's binary version: rows of two classes and 3,072 bytes")
        rows = np.fromfile(file, dtype=np.uint8).reshape(-1, 3074)[: p.limit]
        images = rows[:, 2:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).astype(np.float32) / 255 - 0.5
        # Colours as the imaginary parts of a pure quaternion: (N, patches, 4, pixels).
        colours = np.concatenate([np.zeros_like(images[..., :1]), images], -1)
        save_table(out / f"digits_{name}.npz", Table(patches_of(colours, p.patch).swapaxes(2, 3), rows[:, 1].astype(np.int64)))
        counts[name] = len(rows)
    return {"images": counts, "classes": 100}


def symbols_of(text: str) -> np.ndarray:
    """Small letters, apostrophes and single spaces as numbers; layout, capitals and marks say too much about an edition."""
    kept = "".join(letter if letter in SYMBOLS else " " for letter in text.lower())
    return np.array([SYMBOLS.index(letter) for letter in " ".join(kept.split())], dtype=np.uint8)


def lines_at(tokens: np.ndarray, count: int, length: int, rng: np.random.Generator) -> np.ndarray:
    """`count` windows (count, length) from random places."""
    starts = rng.integers(0, len(tokens) - length + 1, count)
    return tokens[starts[:, None] + np.arange(length)]


def write_text(p: Text, assets: dict[str, Path], out: Path) -> dict[str, Any]:
    if p.source == "sst2":
        if p.path is None:
            raise UserError("quaternion_attention.data.text: source sst2 needs a path")
        counts = {}
        for name, file in (("train", "train.tsv"), ("test", "dev.tsv")):
            path = Path(p.path) / file
            if not path.is_file():
                raise UserError(f"{path} is missing: SST-2 as GLUE has it, lines of sentence, tab and class behind a header")
            rows = [row.split("\t") for row in path.read_text(encoding="utf-8").splitlines()[1:]]
            x = np.zeros((len(rows), p.length), dtype=np.uint8)
            for place, row in enumerate(rows):
                tokens = symbols_of(row[0])[: p.length]
                x[place, : len(tokens)] = tokens
            save_table(out / f"text_{name}.npz", Table(x, np.array([int(row[1]) for row in rows])))
            counts[name] = len(rows)
        return {"lines": counts, "symbols": len(SYMBOLS)}
    rng = np.random.default_rng(4)
    parts: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    characters = {}
    for poet in ("shakespeare", "milton"):
        tokens = symbols_of(read_texts(assets[poet]))
        # The last parts of each poet's works, which no training line touches.
        cut = int(0.85 * len(tokens))
        for name, part, count in (("train", tokens[:cut], p.train), ("test", tokens[cut:], p.test)):
            parts[name].append(lines_at(part, count // 2, p.length, rng))
        characters[poet] = len(tokens)
    for name, (first, second) in parts.items():
        table = Table(np.concatenate([first, second]), np.repeat(np.arange(2), [len(first), len(second)]))
        save_table(out / f"text_{name}.npz", table)
    return {
        "lines": {name: sum(map(len, both)) for name, both in parts.items()},
        "characters": characters,
        "symbols": len(SYMBOLS),
    }


def data(p: Params, assets: dict[str, Path], out: Path) -> None:
    """Writes speech_train.npz, mixtures_{choice,test}.npz, tables of digits and text, and datasheet.json."""
    sheet = {
        "speech": write_speech(p.speech, assets, out) | {"source": p.speech.source, "rate": p.speech.rate},
        "digits": write_digits(p.digits, out) | {"source": p.digits.source},
        "text": write_text(p.text, assets, out) | {"source": p.text.source, "length": p.text.length},
        "parameters": p.model_dump(),
    }
    for path in sorted(out.glob("*.npz")):
        track.dataset(
            path.stem,
            hashlib.sha256(path.read_bytes()).hexdigest(),
            str(sheet[path.stem.split("_")[0].replace("mixtures", "speech")]["source"]),
        )
    (out / "datasheet.json").write_text(json.dumps(sheet, indent=2, sort_keys=True) + "\n", encoding="utf-8")

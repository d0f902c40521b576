"""What the stages leave for one another: waves of different lengths, mixtures, tables for classifiers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

FULL_SCALE = 32768


class Mixtures(NamedTuple):
    """Fixed noisy waves with their truth. Waves are float32, full scale 1."""

    clean: list[np.ndarray]
    noisy: list[np.ndarray]
    snr: np.ndarray  # decibels, NaN where it is not known
    kind: np.ndarray  # of the noise


def quantised(wave: np.ndarray) -> np.ndarray:
    """float full scale 1 to int16. ValueError where it would clip."""
    scaled = np.round(wave * FULL_SCALE)
    if np.abs(scaled).max(initial=0) > FULL_SCALE - 1:
        raise ValueError("a wave is beyond full scale")
    return scaled.astype(np.int16)


def floats(wave: np.ndarray) -> np.ndarray:
    return wave.astype(np.float32) / FULL_SCALE


def pack(waves: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """int16 waves one behind the other, with where each begins and the last ends."""
    return {"samples": np.concatenate(waves), "offsets": np.cumsum([0, *map(len, waves)])}


def unpack(samples: np.ndarray, offsets: np.ndarray) -> list[np.ndarray]:
    return [samples[a:b] for a, b in itertools.pairwise(offsets)]


def save_waves(path: Path, **groups: Sequence[np.ndarray]) -> None:
    """Groups of int16 waves, such as speech, or clean and noisy, into one file."""
    np.savez_compressed(path, **{f"{name}_{part}": x for name, waves in groups.items() for part, x in pack(waves).items()})


def load_waves(path: Path) -> dict[str, list[np.ndarray]]:
    with np.load(path, allow_pickle=False) as stored:
        names = [key.removesuffix("_offsets") for key in stored.files if key.endswith("_offsets")]
        return {name: unpack(stored[f"{name}_samples"], stored[f"{name}_offsets"]) for name in names}


def save_mixtures(path: Path, mixtures: Mixtures) -> None:
    clean, noisy = (pack([quantised(wave) for wave in waves]) for waves in (mixtures.clean, mixtures.noisy))
    if not np.array_equal(clean["offsets"], noisy["offsets"]):
        raise ValueError("clean and noisy waves must be of the same lengths")
    waves = {"clean": clean["samples"], "noisy": noisy["samples"], "offsets": clean["offsets"]}
    np.savez_compressed(path, snr=mixtures.snr, kind=mixtures.kind, **waves)


def load_mixtures(path: Path) -> Mixtures:
    with np.load(path, allow_pickle=False) as stored:
        clean, noisy = ([floats(wave) for wave in unpack(stored[name], stored["offsets"])] for name in ("clean", "noisy"))
        return Mixtures(clean, noisy, stored["snr"], stored["kind"])


class Table(NamedTuple):
    """Inputs and classes: x (N, patches, 4, features) float32, or (N, length) uint8 symbols; y (N,) int64."""

    x: np.ndarray
    y: np.ndarray


def save_table(path: Path, table: Table) -> None:
    np.savez_compressed(path, **table._asdict())


def load_table(path: Path) -> Table:
    with np.load(path, allow_pickle=False) as stored:
        return Table(stored["x"], stored["y"])

"""What the stages leave for each other: the text's parts, the problems, the parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from components.language.corpus import contiguous_split
from components.optim.quadratics import Quadratics


class Text(NamedTuple):
    """Three parts of one text, in its order: to train on, to choose with, to report on."""

    train: np.ndarray
    choice: np.ndarray
    report: np.ndarray
    symbols: int


def read_json(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def read_text(data: Path) -> Text:
    tokens = np.load(data / "tokens.npy", mmap_mode="r")
    train, held_out = contiguous_split(tokens, read_json(data / "parameters.json")["train_share"])
    choice, report = contiguous_split(held_out, 0.5)
    return Text(train, choice, report, read_json(data / "vocab.json")["size"])


def read_problem(data: Path, name: str, seed: int) -> Quadratics:
    """The draw of that seed; ValueError where the stage data made fewer."""
    with np.load(data / f"{name}.npz", allow_pickle=False) as stored:
        if seed >= len(stored["h"]):
            raise ValueError(f"seed {seed} of {name} is wanted, but the stage data drew {len(stored['h'])}")
        return Quadratics(*(stored[field][seed] for field in Quadratics._fields))

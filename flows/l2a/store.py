"""What the stages leave for one another: texts, tokens, batches of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from components.language.corpus import even_windows, random_windows

SETS = ("train", "choice", "report")
Part = Literal["choice", "report"]


class Held(NamedTuple):
    """Texts that are not trained on. The planted truth is None for natural text."""

    tokens: Tensor  # [N, T] int64
    targets: Tensor  # [N, T] int64, the next ones
    recall: np.ndarray | None  # [N, T] bool, where the target is a recalled value
    distance: np.ndarray | None  # [N, T] from there to the definition
    nearest: np.ndarray | None  # [N, T] to the last symbol that tells the value


def texts_file(folder: Path, name: str) -> Path:
    return folder / f"recall_{name}.npz"


def save_tokens(folder: Path, name: str, tokens: np.ndarray) -> Path:
    path = folder / f"text_{name}.npy"
    np.save(path, tokens)
    return path


def datasheet(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "datasheet.json").read_text(encoding="utf-8"))


def training_batches(
    folder: Path, task: str, length: Literal["short", "long"], batch: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches (inputs, targets) [batch, T] int64: planted texts in a new order each time round, windows at random places."""
    if task == "text":
        tokens = np.load(folder / "text_train.npy", mmap_mode="r", allow_pickle=False)
        yield from random_windows(tokens, seq=datasheet(folder)["text"][length], batch=batch, generator=generator)
    with np.load(texts_file(folder, f"train_{length}"), allow_pickle=False) as stored:
        texts = torch.from_numpy(stored["tokens"].astype(np.int64))
    if batch > len(texts):
        raise ValueError(f"a batch of {batch} is more than the {len(texts)} texts of l2a.data.recall.train_{length}")
    while True:
        order = torch.randperm(len(texts), generator=generator)
        for start in range(0, len(texts) - batch + 1, batch):
            chosen = texts[order[start : start + batch]]
            yield chosen[:, :-1], chosen[:, 1:]


def held_texts(folder: Path, task: str, part: Part, windows: int) -> Held:
    """Long texts to choose with or to report; of natural text at most `windows`, evenly spread."""
    if task == "text":
        tokens = np.load(folder / f"text_{part}.npy", mmap_mode="r", allow_pickle=False)
        inputs, targets = even_windows(tokens, seq=datasheet(folder)["text"]["long"], count=windows)
        return Held(inputs, targets, None, None, None)
    with np.load(texts_file(folder, part), allow_pickle=False) as stored:
        tokens = torch.from_numpy(stored["tokens"].astype(np.int64))
        truth = (stored["recall"][:, 1:].astype(bool), stored["distance"][:, 1:], stored["nearest"][:, 1:])
    return Held(tokens[:, :-1], tokens[:, 1:], *truth)


def factors_of(folder: Path, task: str) -> np.ndarray:
    """[symbols, factors] for the embedding: the planted factors, or one per symbol of natural text."""
    if task == "recall":
        return np.load(folder / "recall_factors.npy", allow_pickle=False)
    return np.arange(datasheet(folder)["text"]["symbols"])[:, None]

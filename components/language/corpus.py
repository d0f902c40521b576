"""Text as a row of small integers: reading, a contiguous split, random training windows and fixed validation windows.

Symbols are characters, numbered in sorted order. The packaged corpus is Shakespeare's plays and poems (42 texts of Project
Gutenberg, sorted by name and joined by a newline; read as latin-1, every character beyond ASCII becomes a space).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

SHAKESPEARE_CHARACTERS, SHAKESPEARE_SYMBOLS = 5_057_239, 84


class Corpus(NamedTuple):
    """A text as numbers: `tokens[i]` is the position of its i-th character in `vocab`."""

    tokens: np.ndarray  # (N,) uint8
    vocab: str  # the symbols, sorted

    def text(self, tokens: np.ndarray | None = None) -> str:
        """The characters of `tokens`, default of the whole corpus."""
        return "".join(self.vocab[t] for t in (self.tokens if tokens is None else np.asarray(tokens)))


def read_texts(folder: str | Path) -> str:
    """All `*.txt` of a folder, sorted by file name, joined by a newline; beyond ASCII everything is a space.

    Raises FileNotFoundError where the folder holds no text.
    """
    files = sorted(Path(folder).glob("*.txt"), key=lambda file: file.name)
    if not files:
        raise FileNotFoundError(f"{folder} holds no *.txt file")
    codes = np.frombuffer(b"\n".join(file.read_bytes() for file in files), dtype=np.uint8)  # latin-1: a byte is a character
    return np.where(codes > 127, np.uint8(ord(" ")), codes).tobytes().decode("ascii")


def characters(text: str, vocab: str | None = None) -> Corpus:
    """Number the characters of `text`.

    Parameters
    ----------
    text : not empty.
    vocab : the symbols in order, at most 256; default those of `text`, sorted.

    Raises ValueError for an empty text, more than 256 symbols, or a character that `vocab` lacks.
    """
    if not text:
        raise ValueError("text must not be empty")
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    symbols = np.unique(codes) if vocab is None else np.array([ord(symbol) for symbol in vocab], dtype=np.uint32)
    if symbols.size > 256 or np.unique(symbols).size != symbols.size:
        raise ValueError(f"a vocabulary has at most 256 different symbols, got {symbols.size}")
    order = np.argsort(symbols)
    place = np.minimum(np.searchsorted(symbols[order], codes), symbols.size - 1)
    found = symbols[order][place] == codes
    if not found.all():
        raise ValueError(f"the text holds {chr(codes[~found][0])!r}, which the vocabulary lacks")
    return Corpus(order[place].astype(np.uint8), "".join(chr(symbol) for symbol in symbols))


def load_shakespeare(folder: str | Path, limit: int | None = None) -> Corpus:
    """The Shakespeare corpus of an asset folder.

    Parameters
    ----------
    folder : with the 42 texts.
    limit : only the first so many characters; the vocabulary stays that of the whole.

    Raises
    ------
    FileNotFoundError : no texts.   ValueError : texts that are not the known ones (5,057,239 characters, 84 symbols), or a
    limit below 1.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1 character, got {limit}")
    corpus = characters(read_texts(folder))
    found = (corpus.tokens.size, len(corpus.vocab))
    if found != (SHAKESPEARE_CHARACTERS, SHAKESPEARE_SYMBOLS):
        raise ValueError(
            f"{folder} holds {found[0]} characters of {found[1]} symbols, "
            f"expected {SHAKESPEARE_CHARACTERS} of {SHAKESPEARE_SYMBOLS}"
        )
    return corpus._replace(tokens=corpus.tokens[:limit])


def contiguous_split(tokens: np.ndarray, train_share: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """The first `train_share` of the tokens, and the rest. Raises ValueError where one of them would be empty."""
    cut = int(len(tokens) * train_share)
    if not 0 < cut < len(tokens):
        raise ValueError(f"a train_share of {train_share} leaves one part of {len(tokens)} tokens empty")
    return tokens[:cut], tokens[cut:]


def _check_window(tokens: np.ndarray, seq: int) -> None:
    if seq < 1 or len(tokens) < seq + 1:
        raise ValueError(f"windows of {seq} characters and the next need at least {max(seq, 1) + 1} tokens, got {len(tokens)}")


def random_windows(tokens: np.ndarray, *, seq: int, batch: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless training batches: windows at random places, drawn with replacement.

    Parameters
    ----------
    tokens : (N,) unsigned integers, also a memory map.   seq : length of a window.   batch : windows in a batch.   generator : of the places.

    Yields
    ------
    inputs, targets : (batch, seq) int64; targets are the next characters.

    Raises ValueError, when called, for fewer than seq + 1 tokens or a batch below 1.
    """
    _check_window(tokens, seq)
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    offsets = np.arange(seq + 1)

    def draw() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            start = torch.randint(0, len(tokens) - seq, (batch, 1), generator=generator).numpy()
            window = torch.from_numpy(tokens[start + offsets].astype(np.int64))
            yield window[:, :-1], window[:, 1:]

    return draw()


def even_windows(tokens: np.ndarray, *, seq: int, count: int) -> tuple[Tensor, Tensor]:
    """A fixed validation set: up to `count` windows of seq + 1 tokens, evenly spread, that do not overlap in their targets.

    Returns inputs, targets of shape (windows, seq), int64. Raises ValueError as `random_windows`.
    """
    _check_window(tokens, seq)
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    slots = (len(tokens) - 1) // seq
    start = np.linspace(0, slots - 1, min(count, slots)).astype(np.int64) * seq
    window = torch.from_numpy(tokens[start[:, None] + np.arange(seq + 1)].astype(np.int64))
    return window[:, :-1], window[:, 1:]

"""A planted language in which most symbols follow from the one before, and a few from a definition far back.

A text of T + 1 symbols is made in three layers.
  1. Background on all positions: the next symbol is f(previous) with probability `keep`, else uniform; f is a fixed random map.
  2. Definitions: `pairs` different keys, each with a uniform value, as one symbol D(k, v) at distinct positions below T / 6.
  3. Recalls: from T // 6 + 1 on, with probability `pq`, Q(k), A(v) for a defined key at t and t + 1, then on at t + 2; else t + 1.
The background goes on underneath. A is predictable from its definition alone, or from an earlier recall of the same key.

Symbols, in order: `nb` of background, `nk` Q, `nv` A, `nk * nv` D (D(k, v) at k * nv + v).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

MAP_SEED = 5


class RecallTexts(NamedTuple):
    """N texts of T + 1 symbols. `distance` and `nearest` are 0 where `recall` is."""

    tokens: np.ndarray  # [N, T + 1] uint8
    recall: np.ndarray  # [N, T + 1] uint8, 1 at the symbols A
    distance: np.ndarray  # [N, T + 1] int16, from A back to its definition
    nearest: (
        np.ndarray
    )  # [N, T + 1] int16, from A back to the last symbol that tells its value: definition or earlier A of the key


@dataclass(frozen=True)
class RecallLanguage:
    """The language.

    Parameters
    ----------
    nb, nk, nv : symbols of background, keys, values; at most 256 symbols in all.
    pairs : keys that a text defines, at most nk.   pq : probability of a recall where one may start.
    keep : probability that the background follows its map.

    Raises ValueError for sizes below 1, too many symbols or pairs, and probabilities outside [0, 1].
    """

    nb: int = 16
    nk: int = 4
    nv: int = 8
    pairs: int = 4
    pq: float = 0.2
    keep: float = 0.85

    def __post_init__(self) -> None:
        for name in ("nb", "nk", "nv", "pairs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.pairs > self.nk:
            raise ValueError(f"pairs must be at most nk = {self.nk}, since each key is defined once, got {self.pairs}")
        for name in ("pq", "keep"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}")
        if self.vocab > 256:
            raise ValueError(f"symbols are stored in 8 bits, but nb + nk + nv + nk nv = {self.vocab}")

    @property
    def vocab(self) -> int:
        return self.nb + self.nk + self.nv + self.nk * self.nv

    @property
    def first_q(self) -> int:
        return self.nb

    @property
    def first_a(self) -> int:
        return self.nb + self.nk

    @property
    def first_d(self) -> int:
        return self.nb + self.nk + self.nv

    def background_map(self) -> np.ndarray:
        """f, (nb,) int64; the same in every language of this size."""
        return np.random.default_rng(MAP_SEED).integers(0, self.nb, self.nb)

    def factors(self) -> np.ndarray:
        """What each symbol is made of, [symbols, 4] int64: type, background, key, value; 0 stands for none of the last three."""
        made = np.zeros((self.vocab, 4), dtype=np.int64)
        made[: self.nb, 1] = 1 + np.arange(self.nb)
        made[self.first_q : self.first_a, 0], made[self.first_q : self.first_a, 2] = 1, 1 + np.arange(self.nk)
        made[self.first_a : self.first_d, 0], made[self.first_a : self.first_d, 3] = 2, 1 + np.arange(self.nv)
        key, value = np.divmod(np.arange(self.nk * self.nv), self.nv)
        made[self.first_d :, 0], made[self.first_d :, 2], made[self.first_d :, 3] = 3, 1 + key, 1 + value
        return made

    def name(self, token: int) -> str:
        """A short name: b3, Q1, A7, D1:7. Raises ValueError for a number that is no symbol."""
        if not 0 <= token < self.vocab:
            raise ValueError(f"symbols are 0 to {self.vocab - 1}, got {token}")
        for letter, first in (("A", self.first_a), ("Q", self.first_q), ("b", 0)):
            if token < self.first_d and token >= first:
                return f"{letter}{token - first}"
        return "D{}:{}".format(*divmod(token - self.first_d, self.nv))

    def sample(self, count: int, length: int, seed: int) -> RecallTexts:
        """`count` texts of length + 1 symbols.

        Raises ValueError for a count below 1, or a length whose first sixth is too short for the definitions."""
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        places = -(-length // 6)  # positions below T / 6
        if places < self.pairs:
            raise ValueError(
                f"length must be above {6 * (self.pairs - 1)}: {self.pairs} definitions stand in the first sixth, got {length}"
            )
        rng = np.random.default_rng(seed)
        follow, rows = self.background_map(), np.arange(count)
        tokens = np.empty((count, length + 1), dtype=np.int64)
        tokens[:, 0] = rng.integers(0, self.nb, count)
        for t in range(1, length + 1):
            kept = rng.random(count) < self.keep
            tokens[:, t] = np.where(kept, follow[tokens[:, t - 1]], rng.integers(0, self.nb, count))
        keys = rng.permuted(np.tile(np.arange(self.nk), (count, 1)), axis=1)[:, : self.pairs]
        values = rng.integers(0, self.nv, (count, self.pairs))
        spots = rng.permuted(np.tile(np.arange(places), (count, 1)), axis=1)[:, : self.pairs]
        np.put_along_axis(tokens, spots, self.first_d + keys * self.nv + values, axis=1)
        recall = np.zeros((count, length + 1), dtype=np.uint8)
        distance, nearest = (np.zeros((count, length + 1), dtype=np.int16) for _ in range(2))
        told = spots.copy()  # where the value of each pair was told last
        free = np.zeros(count, dtype=np.int64)  # first position that is not taken
        for t in range(length // 6 + 1, length):
            asks = (free <= t) & (rng.random(count) < self.pq)
            pair = rng.integers(0, self.pairs, count)
            row, chosen = rows[asks], pair[asks]
            tokens[row, t] = self.first_q + keys[row, chosen]
            tokens[row, t + 1] = self.first_a + values[row, chosen]
            recall[row, t + 1] = 1
            distance[row, t + 1] = t + 1 - spots[row, chosen]
            nearest[row, t + 1] = t + 1 - told[row, chosen]
            told[row, chosen] = t + 1
            free[row] = t + 2
        return RecallTexts(tokens.astype(np.uint8), recall, distance, nearest)

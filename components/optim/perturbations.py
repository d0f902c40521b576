"""Random directions that are regenerated from a seed instead of being kept.

Each direction u in R^d has mean 0 and E[u u^T] = I. It is named by (seed, step, index) and read from front to back in blocks,
so that a direction of any length costs one block of memory; asking again gives the same bits, whatever the block size.

- gaussian: N(0, I)
- rademacher: independent signs
- sphere: sqrt(d) times a uniform point of the unit sphere
- orthogonal: sqrt(d) times a column of a Haar distributed orthogonal matrix; the P directions of one step are orthogonal.
  They depend on one another, so this is the one distribution whose P directions are kept, d x P numbers.
- coordinate: sqrt(d) times a uniformly chosen unit vector; no Johnson-Lindenstrauss projection, a baseline

On the CPU the numbers come from numpy's counter-based generator Philox4x64, with (index, step) in the counter and the seed in the
key; for CUDA tensors of at most 32 bits from the kernels of `kernels.seeded_projection` (Philox4x32), so that the two devices draw
different numbers; double weights, orthogonal and coordinate directions take those of the CPU on both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from kernels.seeded_projection import seeded_axpy_, seeded_norm

Distribution = Literal["gaussian", "rademacher", "sphere", "orthogonal", "coordinate"]
DISTRIBUTIONS: tuple[str, ...] = get_args(Distribution)
BLOCK = 2**14  # numbers; a multiple of WORD
WORD = 64  # signs per random word: blocks of signs begin at a word
_MASK = 2**64 - 1


def check_distribution(dist: str) -> str:
    """`dist` if it is one of DISTRIBUTIONS; ValueError otherwise."""
    if dist not in DISTRIBUTIONS:
        raise ValueError(f"dist must be one of {', '.join(DISTRIBUTIONS)}, got {dist!r}")
    return dist


def check_count(n_perturbations: int, dist: str, d: int | None = None) -> int:
    """`n_perturbations` if that many directions of R^d can be drawn; TypeError or ValueError otherwise."""
    if isinstance(n_perturbations, bool) or not isinstance(n_perturbations, int | np.integer):
        raise TypeError(f"n_perturbations must be a whole number, got {n_perturbations!r}")
    if n_perturbations < 1:
        raise ValueError(f"n_perturbations must be at least 1, got {n_perturbations}")
    if dist == "orthogonal" and d is not None and n_perturbations > d:
        raise ValueError(f"R^{d} has no {n_perturbations} orthogonal directions; n_perturbations must be at most d = {d}")
    return int(n_perturbations)


def check_seed(seed: int) -> int:
    """`seed` if it is a whole number in [0, 2^64); TypeError or ValueError otherwise."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise TypeError(f"seed must be a whole number, got {seed!r}")
    if not 0 <= seed <= _MASK:
        raise ValueError(f"seed must lie in [0, 2^64), got {seed}")
    return int(seed)


def kernel_seed(seed: int, step: int) -> int:
    """A 63-bit seed for the kernels, mixed (splitmix64) from a seed and a step."""
    x = (seed + 0x9E3779B97F4A7C15 * (step + 1)) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return (x ^ (x >> 31)) >> 1


class Stream:
    """One direction of R^d, read from front to back: `take(n)` gives its next n numbers, float32.

    For `sphere` the numbers are those of the Gaussian direction; `scale` is what they are to be multiplied by. Finding it takes
    a pass of its own. Reads of signs must begin at a multiple of 64, that is, all reads but the last have such a length.
    """

    def __init__(self, d: int, dist: str, seed: int, step: int, index: int) -> None:
        if d < 1:
            raise ValueError(f"a direction needs d >= 1, got {d}")
        if check_distribution(dist) == "orthogonal":
            raise ValueError("orthogonal directions depend on one another: draw them together with orthogonal_directions")
        self.d, self.dist, self._name = d, dist, (check_seed(seed), step, index)
        self.at = 0
        # numpy's Philox counts up in the first two words; the others tell the directions apart.
        self._bits = np.random.Philox(
            key=np.array([seed, 0], dtype=np.uint64), counter=np.array([0, 0, index, step], dtype=np.uint64)
        )
        self._generator = np.random.Generator(self._bits)
        if dist == "coordinate":
            self.coordinate = int(self._generator.integers(d))

    def scale(self) -> float:
        """Factor of the numbers that `take` gives: sqrt(d) / norm for `sphere`, else 1."""
        if self.dist != "sphere":
            return 1.0
        other, total = Stream(self.d, self.dist, *self._name), 0.0
        while other.at < self.d:
            part = other.take(min(BLOCK, self.d - other.at)).astype(np.float64)
            total += float(part @ part)
        return math.sqrt(self.d / total)

    def take(self, n: int) -> np.ndarray:
        start, self.at = self.at, self.at + n
        if self.at > self.d:
            raise ValueError(f"the direction has {self.d} numbers, {self.at} were asked for")
        if self.dist in ("gaussian", "sphere"):
            return self._generator.standard_normal(n, dtype=np.float32)
        if self.dist == "rademacher":
            if start % WORD:
                raise ValueError(f"signs are read from a multiple of {WORD}, not from {start}")
            words = self._bits.random_raw(-(-n // WORD)).astype("<u8", copy=False)
            signs = np.unpackbits(words.view(np.uint8), count=n, bitorder="little").astype(np.float32)
            signs *= 2
            signs -= 1
            return signs
        part = np.zeros(n, dtype=np.float32)
        if start <= self.coordinate < self.at:
            part[self.coordinate - start] = math.sqrt(self.d)
        return part


def orthogonal_directions(d: int, n_perturbations: int, seed: int, step: int) -> Tensor:
    """(P, d) float64: sqrt(d) times P rows of a Haar orthogonal matrix. ValueError for P > d."""
    check_count(n_perturbations, "orthogonal", d)
    draws = np.stack([Stream(d, "gaussian", seed, step, index).take(d) for index in range(n_perturbations)], axis=1)
    # The signs of R's diagonal make the factorisation unique, and with it Q's law Haar's.
    q, r = torch.linalg.qr(torch.from_numpy(draws).double())
    return math.sqrt(d) * (q * torch.sign(torch.diagonal(r))).T.contiguous()


def kernels_draw(tensors: Iterable[Tensor], dist: str) -> bool:
    """Whether directions for these tensors come from the kernels: all on CUDA, of at most 32 bits, a distribution they know."""
    known = dist in ("gaussian", "rademacher", "sphere")
    return known and all(tensor.is_cuda and tensor.dtype != torch.float64 for tensor in tensors)


def kernel_distribution(dist: str) -> str:
    """What the kernels draw for it: the sphere is a Gaussian direction, scaled."""
    return "rademacher" if dist == "rademacher" else "gaussian"


def kernel_scale(d: int, n_perturbations: int, dist: str, seed: int, index: int, device: torch.device) -> float:
    """`Stream.scale` for the kernels; `seed` is a `kernel_seed`."""
    if dist != "sphere":
        return 1.0
    return math.sqrt(d) / seeded_norm(d, seed, column=index, columns=n_perturbations, device=device)


def directions(
    d: int,
    n_perturbations: int,
    dist: Distribution,
    seed: int,
    step: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Iterator[Tensor]:
    """The P directions u_p in R^d of a step, one at a time, each of shape (d,). ValueError or TypeError for bad arguments.

    dtype, device : of the weights that they are for; see the module for what they change."""
    check_distribution(dist)
    check_count(n_perturbations, dist, d)
    check_seed(seed)
    if dist == "orthogonal":
        yield from orthogonal_directions(d, n_perturbations, seed, step).to(dtype).to(device)
        return
    on_device = kernels_draw([torch.empty(0, dtype=dtype, device=device)], dist)
    for index in range(n_perturbations):
        if on_device:
            name = kernel_seed(seed, step)
            u = torch.zeros(d, device=device)
            seeded_axpy_(u, 1.0, name, kernel_distribution(dist), column=index, columns=n_perturbations)
            yield (u * kernel_scale(d, n_perturbations, dist, name, index, u.device)).to(dtype)
        else:
            stream = Stream(d, dist, seed, step, index)
            yield (torch.from_numpy(stream.take(d)).to(dtype) * stream.scale()).to(device)


def blocks(
    d: int, n_perturbations: int, dist: Distribution, seed: int, step: int = 0, chunk: int = BLOCK
) -> Iterator[tuple[int, np.ndarray]]:
    """All P directions at once, block by block: (first row, (P, rows) float32). One block is in memory at a time.

    Sphere blocks are not yet scaled (see `Stream`). Not for `orthogonal`. `chunk` is rounded up to a multiple of 64."""
    streams = [Stream(d, dist, seed, step, index) for index in range(n_perturbations)]
    chunk = -(-chunk // WORD) * WORD
    buffer = np.empty((n_perturbations, min(chunk, d)), dtype=np.float32)
    for start in range(0, d, chunk):
        rows = min(chunk, d - start)
        for row, stream in zip(buffer, streams, strict=True):
            row[:rows] = stream.take(rows)
        yield start, buffer[:, :rows]

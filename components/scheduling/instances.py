"""Assembly tasks: structures to build and scattered molecules to build them from, and measured positions from a microscope.

All sites lie on the hexagonal adsorption lattice. Structures, pitch = distance of neighbouring targets, nm:
square, hex, honeycomb (artificial graphene), kagome; rings (concentric corrals of radii 2.4 + 4.4 m nm); bitmap(TEXT), the
pixels of a 5 x 7 font.
"""

import csv
import math
import re
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import numpy as np

from components.envs.hexagonal import snap, to_position
from components.scheduling.assignment import check_positions

SHAPES = ("square", "hex", "honeycomb", "rings", "kagome", "bitmap")
CONTACT = 0.9
DEFAULT_TEXT = "NANO"

_FONT = {
    "A": "01110 10001 10001 11111 10001 10001 10001",
    "B": "11110 10001 10001 11110 10001 10001 11110",
    "C": "01111 10000 10000 10000 10000 10000 01111",
    "D": "11110 10001 10001 10001 10001 10001 11110",
    "E": "11111 10000 10000 11110 10000 10000 11111",
    "F": "11111 10000 10000 11110 10000 10000 10000",
    "G": "01111 10000 10000 10011 10001 10001 01111",
    "H": "10001 10001 10001 11111 10001 10001 10001",
    "I": "01110 00100 00100 00100 00100 00100 01110",
    "J": "00111 00010 00010 00010 00010 10010 01100",
    "K": "10001 10010 10100 11000 10100 10010 10001",
    "L": "10000 10000 10000 10000 10000 10000 11111",
    "M": "10001 11011 10101 10101 10001 10001 10001",
    "N": "10001 11001 10101 10101 10011 10001 10001",
    "O": "01110 10001 10001 10001 10001 10001 01110",
    "P": "11110 10001 10001 11110 10000 10000 10000",
    "Q": "01110 10001 10001 10001 10101 10010 01101",
    "R": "11110 10001 10001 11110 10100 10010 10001",
    "S": "01111 10000 10000 01110 00001 00001 11110",
    "T": "11111 00100 00100 00100 00100 00100 00100",
    "U": "10001 10001 10001 10001 10001 10001 01110",
    "V": "10001 10001 10001 10001 10001 01010 00100",
    "W": "10001 10001 10001 10101 10101 11011 10001",
    "X": "10001 10001 01010 00100 01010 10001 10001",
    "Y": "10001 10001 01010 00100 00100 00100 00100",
    "Z": "11111 00001 00010 00100 01000 10000 11111",
    "0": "01110 10011 10101 10101 10101 11001 01110",
    "1": "00100 01100 00100 00100 00100 00100 01110",
    "2": "01110 10001 00001 00110 01000 10000 11111",
    "3": "11110 00001 00001 01110 00001 00001 11110",
    "4": "00010 00110 01010 10010 11111 00010 00010",
    "5": "11111 10000 11110 00001 00001 10001 01110",
    "6": "01110 10000 11110 10001 10001 10001 01110",
    "7": "11111 00001 00010 00100 00100 01000 01000",
    "8": "01110 10001 10001 01110 10001 10001 01110",
    "9": "01110 10001 10001 01111 00001 00001 01110",
    " ": "00000 00000 00000 00000 00000 00000 00000",
}


@dataclass(frozen=True, eq=False)
class Instance:
    """An assembly task.

    Attributes:
        name: the shape.
        start_sites: (M, 2) int64 axial coordinates of the molecules.
        target_sites: (N, 2) int64, N <= M.
        orientations: (M,) int64 in 0..2, in steps of 60 degrees.
        box: side of the square about the origin that holds everything, nm.
    """

    name: str
    start_sites: np.ndarray
    target_sites: np.ndarray
    orientations: np.ndarray
    box: float

    @property
    def starts(self) -> np.ndarray:
        """(M, 2) float64, nm."""
        return to_position(self.start_sites)

    @property
    def targets(self) -> np.ndarray:
        """(N, 2) float64, nm."""
        return to_position(self.target_sites)


@dataclass(frozen=True, eq=False)
class MeasuredPositions:
    """Attributes: positions (n, 2) nm as measured; orientations (n,) degrees as measured."""

    positions: np.ndarray
    orientations: np.ndarray

    @property
    def sites(self) -> np.ndarray:
        """(n, 2) int64: the nearest lattice sites."""
        return snap(self.positions)

    @property
    def orientation_index(self) -> np.ndarray:
        """(n,) int64 in 0..2: the nearest multiple of 60 degrees, modulo 180."""
        return np.rint(self.orientations / 60).astype(np.int64) % 3


def make_instance(
    shape: str, n: int, pitch: float, box: float, d_min: float = 2.0, seed: int = 0, surplus: float = 0.0
) -> Instance:
    """A structure of n targets about the origin, and scattered molecules.

    Args:
        shape: one of `SHAPES`; "bitmap(TEXT)" writes a text (bitmap alone: NANO) of letters, digits and spaces.
        n: number of targets.
        pitch: distance of neighbouring targets before snapping, nm; along the rings for rings, of the pixels for bitmap.
        box: side of the square for starts and targets, nm.
        d_min: least distance of two starts, nm.
        seed: of the starts and orientations.
        surplus: extra molecules as a share of n.

    Starts are drawn uniformly, snapped, and kept if they lie d_min from those before (Poisson disc by rejection). Raises
    ValueError for arguments out of range, two targets closer than the contact distance 0.9 nm after snapping, a structure
    larger than the box, and a box too full for the molecules.
    """
    if not isinstance(n, int | np.integer) or isinstance(n, bool) or n < 1:
        raise ValueError(f"n must be a whole number >= 1, got {n!r}")
    for name, value in (("pitch", pitch), ("box", box), ("d_min", d_min)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be a positive length in nm, got {value}")
    if not 0 <= surplus < math.inf:
        raise ValueError(f"surplus must be a share >= 0, got {surplus}")
    if d_min < CONTACT:
        raise ValueError(f"d_min must be at least the contact distance {CONTACT} nm, got {d_min}")
    points = target_positions(shape, int(n), float(pitch))
    sites = snap(points)
    check_positions(to_position(sites), "target", CONTACT)
    if (np.abs(to_position(sites)) > box / 2).any():
        size = 2 * np.abs(to_position(sites)).max()
        raise ValueError(f"{shape} with {n} targets needs a box of {size:.1f} nm, got {box} nm")
    rng = np.random.default_rng(seed)
    starts = _poisson_disc(int(n) + round(surplus * n), box, d_min, rng)
    return Instance(shape, starts, sites, rng.integers(0, 3, len(starts)), float(box))


def target_positions(shape: str, n: int, pitch: float) -> np.ndarray:
    """The n ideal targets of a shape, (n, 2) nm, centred on the origin, not snapped. Arguments as in `make_instance`."""
    text = re.fullmatch(r"bitmap(?:\((.*)\))?", shape)
    if text:
        points = pitch * _bitmap(DEFAULT_TEXT if text[1] is None else text[1], n)
    elif shape == "square":
        columns = math.ceil(math.sqrt(n))
        points = pitch * np.stack([np.arange(n) % columns, np.arange(n) // columns], axis=-1).astype(np.float64)
    elif shape == "rings":
        points = _rings(n, pitch)
    elif shape in ("hex", "honeycomb", "kagome"):
        points = pitch * _nearest(n, *_CELLS[shape])
    else:
        raise ValueError(f"unknown shape {shape!r}; the shapes are {', '.join(SHAPES)}")
    return points - (points.max(axis=0) + points.min(axis=0)) / 2


def _cell(length: float, basis: list[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Lattice vectors of a hexagonal cell (rows) and the positions of its atoms, in units of the neighbour distance."""
    vectors = length * np.array([(1.0, 0.0), (0.5, math.sqrt(3) / 2)])
    return vectors, np.array(basis) @ vectors


# Each centred on its point of sixfold symmetry.
_CELLS = {
    "hex": _cell(1.0, [(0, 0)]),
    "honeycomb": _cell(math.sqrt(3), [(1 / 3, 1 / 3), (2 / 3, 2 / 3)]),
    "kagome": _cell(2.0, [(0.5, 0), (0, 0.5), (0.5, 0.5)]),
}


def _nearest(n: int, vectors: np.ndarray, atoms: np.ndarray) -> np.ndarray:
    """The n atoms of a periodic structure that are nearest to the origin; equally near ones by direction."""
    reach = math.ceil(math.sqrt(n)) + 3
    axis = np.arange(-reach, reach + 1)
    cells = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2) @ vectors
    points = (cells[:, None] + atoms).reshape(-1, 2)
    angle = np.round(np.arctan2(points[:, 1], points[:, 0]), 9)
    return points[np.lexsort((angle, np.round(np.hypot(*points.T), 9)))[:n]]


def _rings(n: int, pitch: float) -> np.ndarray:
    """Rings from the inside out, each with as many sites as fit at `pitch`; the last one takes the rest, evenly spaced."""
    points, ring = [], 0
    while n > 0:
        radius = 2.4 + 4.4 * ring
        count = min(n, max(1, math.floor(2 * math.pi * radius / pitch)))
        angle = 2 * math.pi * np.arange(count) / count
        points.append(radius * np.stack([np.cos(angle), np.sin(angle)], axis=-1))
        n, ring = n - count, ring + 1
    return np.concatenate(points)


def _bitmap(text: str, n: int) -> np.ndarray:
    """n pixels of a text in units of a pixel: each pixel of the font becomes k x k, k the least that gives n or more, and of
    those n are kept, evenly spread in reading order."""
    letters = text.upper()
    unknown = sorted(set(letters) - set(_FONT))
    if unknown or not letters.strip():
        raise ValueError(f"a bitmap's text must hold letters, digits and spaces, at least one of them no space, got {text!r}")
    rows = [" ".join(_FONT[letter].split()[row] for letter in letters) for row in range(7)]
    image = np.array([[pixel == "1" for pixel in row.replace(" ", "0")] for row in rows])
    k = math.ceil(math.sqrt(n / image.sum()))
    y, x = np.nonzero(image.repeat(k, axis=0).repeat(k, axis=1))
    kept = np.floor(np.arange(n) * (len(x) / n)).astype(np.int64)
    return np.stack([x[kept], -y[kept]], axis=-1).astype(np.float64)


def _poisson_disc(count: int, box: float, d_min: float, rng: np.random.Generator) -> np.ndarray:
    """`count` lattice sites in the box, any two at least d_min apart, (count, 2) int64."""
    size = math.ceil(box / d_min) + 3
    cells: list[list[list[np.ndarray]]] = [[[] for _ in range(size)] for _ in range(size)]
    sites: list[np.ndarray] = []
    tries = 200 * count + 2000
    for site in snap(rng.uniform(-box / 2, box / 2, (tries, 2))):
        place = to_position(site)
        if (np.abs(place) > box / 2).any():
            continue
        a, b = (int(value) for value in (place + box / 2) // d_min + 1)
        near = [other for row in cells[a - 1 : a + 2] for cell in row[b - 1 : b + 2] for other in cell]
        if near and (np.hypot(*(np.array(near) - place).T) < d_min - 1e-9).any():
            continue
        cells[a][b].append(place)
        sites.append(site)
        if len(sites) == count:
            return np.array(sites)
    raise ValueError(
        f"only {len(sites)} of {count} molecules fit in a box of {box} nm at a distance of {d_min} nm; "
        f"use a larger box or a smaller d_min"
    )


def read_positions(path: str | Path, c: float = CONTACT) -> MeasuredPositions:
    """Measured positions from a CSV file with the columns x_nm, y_nm and orientation_deg, in any order, among others.

    Columns are separated by commas, semicolons or tabs; lines that start with # are comments. Raises ValueError, naming the
    file, for missing columns, no row, values that are no finite number, and molecules closer than c nm.
    """
    path = Path(path)
    lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip() and not line.startswith("#")]
    if not lines:
        raise ValueError(f"{path} is empty; expected the columns x_nm, y_nm, orientation_deg")
    separator = max(",;\t", key=lines[0].count)
    rows = csv.DictReader(StringIO("\n".join(lines)), delimiter=separator, skipinitialspace=True)
    names = [name.strip() for name in rows.fieldnames or ()]
    rows.fieldnames = names
    wanted = ("x_nm", "y_nm", "orientation_deg")
    missing = [name for name in wanted if name not in names]
    if missing:
        raise ValueError(f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; it has {', '.join(names)}")
    values = []
    for number, row in enumerate(rows, 1):
        try:
            found = [float(row[name]) for name in wanted]
        except (TypeError, ValueError):
            found = [math.nan]
        if not all(math.isfinite(value) for value in found):
            shown = ", ".join(f"{name}={row[name]}" for name in wanted)
            raise ValueError(f"{path}, molecule {number}: expected finite numbers, got {shown}")
        values.append(found)
    if not values:
        raise ValueError(f"{path} has no molecules below its header")
    table = np.array(values)
    try:
        positions = check_positions(table[:, :2], "molecule", c)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return MeasuredPositions(positions, table[:, 2])

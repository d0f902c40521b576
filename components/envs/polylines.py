"""Paths along which molecules are driven: polylines, many at once, measured by arc length.

Paths of different lengths share one array: the last vertex is repeated. Lengths are in nm.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class Projection(NamedTuple):
    """The nearest point of a path, for each of B points."""

    arc: np.ndarray  # (B,) its arc length from the start
    point: np.ndarray  # (B, 2)
    tangent: np.ndarray  # (B, 2) unit vector along the path there
    distance: np.ndarray  # (B,)


def check_path(path: ArrayLike, name: str = "path") -> np.ndarray:
    """A path as an array (m, 2) float64, m >= 2. Raises ValueError for another shape, NaN or infinity, or a path of no length."""
    path = np.asarray(path, dtype=np.float64)
    if path.ndim != 2 or path.shape[1] != 2 or len(path) < 2:
        raise ValueError(f"{name} must have shape (m, 2) with at least two vertices, got {path.shape}")
    if not np.isfinite(path).all():
        raise ValueError(f"{name} must be finite")
    if (path == path[0]).all():
        raise ValueError(f"{name} has no length: all its vertices are the same point")
    return path


class Polylines:
    """B paths.

    Args:
        paths: B arrays (m, 2), m >= 2, each of positive length; checked by `check_path`.
    """

    def __init__(self, paths: list[np.ndarray]) -> None:
        if not len(paths):
            raise ValueError("at least one path is needed, got none")
        paths = [check_path(path, f"path {row}") for row, path in enumerate(paths)]
        most = max(len(path) for path in paths)
        self.vertices = np.stack([np.concatenate([path, np.repeat(path[-1:], most - len(path), axis=0)]) for path in paths])
        self._measure()

    def __len__(self) -> int:
        return len(self.vertices)

    def replace(self, rows: np.ndarray, paths: np.ndarray) -> None:
        """Let the paths `rows` be `paths` (len(rows), m, 2)."""
        missing = paths.shape[1] - self.vertices.shape[1]
        if missing > 0:
            self.vertices = np.concatenate([self.vertices, np.repeat(self.vertices[:, -1:], missing, axis=1)], axis=1)
        elif missing < 0:
            paths = np.concatenate([paths, np.repeat(paths[:, -1:], -missing, axis=1)], axis=1)
        self.vertices[rows] = paths
        self._measure()

    def _measure(self) -> None:
        step = self.vertices[:, 1:] - self.vertices[:, :-1]
        self.steps = np.hypot(step[..., 0], step[..., 1])  # (B, S) lengths of the segments
        self.tangents = step / np.where(self.steps > 0, self.steps, 1.0)[..., None]
        ends = np.cumsum(self.steps, axis=1)
        self.arcs = ends - self.steps  # (B, S) arc length at the start of each segment
        self.length = ends[:, -1]

    def subset(self, rows: np.ndarray) -> "Polylines":
        """The paths `rows`, in that order."""
        part = object.__new__(Polylines)
        part.vertices = self.vertices[rows]
        part._measure()
        return part

    @property
    def ends(self) -> np.ndarray:
        """(B, 2): the last vertices."""
        return self.vertices[:, -1]

    def project(self, points: np.ndarray, limit: np.ndarray | None = None) -> Projection:
        """The nearest point of each path to each of `points` (B, 2), no further along than arc length `limit` (B,)."""
        offset = points[:, None, :] - self.vertices[:, :-1]
        along = offset[..., 0] * self.tangents[..., 0] + offset[..., 1] * self.tangents[..., 1]
        longest = self.steps if limit is None else np.clip(limit[:, None] - self.arcs, 0.0, self.steps)
        along = np.minimum(np.maximum(along, 0.0), longest)
        rest = offset - along[..., None] * self.tangents
        gap2 = rest[..., 0] * rest[..., 0] + rest[..., 1] * rest[..., 1]
        # The end of the last segment is as near as its repetitions, which have no tangent.
        gap2[self.steps == 0] = np.inf
        if limit is not None:
            gap2[:, 1:][self.arcs[:, 1:] > limit[:, None]] = np.inf
        rows, best = np.arange(len(points)), gap2.argmin(axis=1)
        along, tangent = along[rows, best], self.tangents[rows, best]
        start = self.vertices[rows, best]
        return Projection(self.arcs[rows, best] + along, start + along[:, None] * tangent, tangent, np.sqrt(gap2[rows, best]))

    def at(self, arc: np.ndarray) -> np.ndarray:
        """The points (B, 2) at arc lengths `arc` (B,), clipped to the paths."""
        segment = (self.arcs[:, 1:] < arc[:, None]).sum(axis=1)
        # Repeated last vertices have no tangent, but they are also nowhere else than where the path ends.
        rows = np.arange(len(arc))
        along = np.clip(arc - self.arcs[rows, segment], 0.0, self.steps[rows, segment])
        return self.vertices[rows, segment] + along[:, None] * self.tangents[rows, segment]

"""Pictures of the surface as a scanning tunnelling microscope shows it: molecules as bright blobs on a faint lattice."""

import numpy as np

from components.envs.hexagonal import A0

LONG, SHORT = 0.30, 0.22  # nm, standard deviations of a blob along and across the molecule's axis
HEIGHT, CORRUGATION = 0.9, 0.06  # of a molecule, and from the lattice's troughs to its tops
_COLOURS = np.array([[12, 8, 30], [96, 40, 20], [214, 130, 40], [255, 240, 200]], dtype=np.float64)


def pixel_centres(centre: np.ndarray, extent: float, pixels: int) -> tuple[np.ndarray, np.ndarray]:
    """x (B, pixels) from left to right and y (B, pixels) from top to bottom, nm, of square windows `extent` nm wide around
    `centre` (B, 2)."""
    ticks = ((np.arange(pixels) + 0.5) / pixels - 0.5) * extent
    return centre[:, :1] + ticks, centre[:, 1:] - ticks


def topograph(
    positions: np.ndarray,
    orientation: np.ndarray,
    present: np.ndarray,
    centre: np.ndarray,
    extent: float = 8.0,
    pixels: int = 64,
    a0: float = A0,
) -> np.ndarray:
    """Heights of B windows, (B, pixels, pixels) float64 in about [0, 1] where molecules keep apart; row 0 is the top (largest y).

    Args:
        positions: (B, K, 2) nm.  orientation: (B, K) int, in steps of 60 degrees.  present: (B, K) bool.
        centre: (B, 2) nm, of the windows.  extent: nm, their width.  a0: lattice constant, nm.
    """
    if extent <= 0 or pixels < 1:
        raise ValueError(f"a window needs a positive extent and at least one pixel, got {extent} nm and {pixels} pixels")
    x, y = pixel_centres(centre, extent, pixels)
    wave = 4.0 * np.pi / (np.sqrt(3.0) * a0)
    height = np.full((len(centre), pixels, pixels), 0.5)
    for angle in np.deg2rad([30.0, 90.0, 150.0]):  # the three shortest reciprocal vectors
        height += (np.cos(wave * (np.cos(angle) * x[:, None, :] + np.sin(angle) * y[:, :, None]))) / 6.0
    height *= CORRUGATION
    for molecule in range(positions.shape[1]):
        dx = x - positions[:, molecule, :1]
        dy = y - positions[:, molecule, 1:]
        c, s = np.cos((np.pi / 3) * orientation[:, molecule])[:, None], np.sin((np.pi / 3) * orientation[:, molecule])[:, None]
        along = (c * dx)[:, None, :] + (s * dy)[:, :, None]
        across = (c * dy)[:, :, None] - (s * dx)[:, None, :]
        blob = HEIGHT * np.exp(-0.5 * ((along / LONG) ** 2 + (across / SHORT) ** 2))
        height += np.where(present[:, molecule, None, None], blob, 0.0)
    return height


def colour(height: np.ndarray) -> np.ndarray:
    """Heights (...,) -> RGB (..., 3) uint8, dark to bright."""
    place = np.clip(height, 0.0, 1.0) * (len(_COLOURS) - 1)
    low = np.minimum(place.astype(np.int64), len(_COLOURS) - 2)
    share = (place - low)[..., None]
    return np.rint(_COLOURS[low] * (1 - share) + _COLOURS[low + 1] * share).astype(np.uint8)

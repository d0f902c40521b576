"""How a molecule is guided along its path: what the agent sees, and what its actions mean.

Everything is seen from the molecule, turned to the direction of a look-ahead point on the path, and actions are relative to
that direction too: what the agent learns for one direction holds for all. (With absolute directions the same agent does not
learn the task.)
"""

from typing import NamedTuple

import numpy as np

from components.envs.polylines import Polylines

AZIMUTHS = np.deg2rad([-60.0, -30.0, 0.0, 30.0, 60.0])
"""(5,) rad: directions of the tip, relative to the look-ahead point's."""

TIP_DISTANCES = np.array([0.25, 0.4, 0.6])
"""(3,) nm: lateral distances of the tip from the molecule."""

BIASES = np.array([2.2, 2.6, 3.0])
"""(3,) V."""

N_ACTIONS = len(AZIMUTHS) * len(TIP_DISTANCES) * len(BIASES)
"""45: action = (azimuth * 3 + distance) * 3 + bias."""

LOOK_AHEAD = 1.0  # nm along the path
SIGHT = 2.75  # nm along the path beyond what has been passed, as far as a pulse can throw a molecule
FAR = 2.0  # nm, a neighbour further away than this looks as if it were here

OBSERVATION_LOW = np.array([0, 0, -1, -1, -1, -1, -10, -10, -10, -1, -1, -10, -10], dtype=np.float32)
OBSERVATION_HIGH = np.array([1.5, 1, 1, 1, 1, 1, 10, 10, 10, 1, 1, 10, 10], dtype=np.float32)
"""(13,): bounds of `Guide.observation`. Those of 10 are never met on the way along a path."""

N_STATES = 6 * 3 * 4
"""Number of `manipulation_states`."""


def action_index(azimuth: int, distance: int, bias: int) -> int:
    """The action with the `azimuth`-th of AZIMUTHS, the `distance`-th of TIP_DISTANCES and the `bias`-th of BIASES."""
    for name, value, options in (("azimuth", azimuth, AZIMUTHS), ("distance", distance, TIP_DISTANCES), ("bias", bias, BIASES)):
        if not 0 <= value < len(options):
            raise ValueError(f"{name} must be in 0..{len(options) - 1}, got {value}")
    return (azimuth * len(TIP_DISTANCES) + distance) * len(BIASES) + bias


def actions_up_to(bias: float) -> np.ndarray:
    """(45,) bool: the actions with no more than `bias` V. Below the dissociation bias no molecule breaks. ValueError if none."""
    allowed = np.tile(bias >= BIASES, N_ACTIONS // len(BIASES))
    if not allowed.any():
        raise ValueError(f"the least bias is {BIASES.min()} V, got {bias} V")
    return allowed


def check_actions(actions: object, count: int) -> np.ndarray:
    """`count` actions as int64. Raises TypeError for other than whole numbers, ValueError for a shape or value out of range."""
    actions = np.asarray(actions)
    if not np.issubdtype(actions.dtype, np.integer):
        raise TypeError(f"actions must be whole numbers, got {actions.dtype}")
    if actions.shape != (count,):
        raise ValueError(f"actions must have shape ({count},), got {actions.shape}")
    wrong = (actions < 0) | (actions >= N_ACTIONS)
    if wrong.any():
        raise ValueError(f"actions must be in 0..{N_ACTIONS - 1}, got {actions[wrong][0]}")
    return actions.astype(np.int64)


_STATE = ("furthest", "last_move", "last_miss", "position", "ahead", "lateral", "distance")


class Aim(NamedTuple):
    """Where the tip goes, and its bias, for each of B molecules."""

    tip: np.ndarray  # (B, 2) nm, nominal
    bias: np.ndarray  # (B,) V


class Guide:
    """B molecules on their way along B paths.

    Args:
        paths: from where each molecule starts to its target, nm.

    Call `look` with the reported positions before `observation` and `aim`; call `record` after each pulse.
    """

    def __init__(self, paths: Polylines) -> None:
        count = len(paths)
        self.paths = paths
        self.furthest = np.zeros(count)  # nm along the path
        self.last_move = np.zeros((count, 2))  # nm, displacement by the last pulse
        self.last_miss = np.zeros((count, 2))  # nm, from the molecule to where the tip was in the last pulse
        self.position = paths.vertices[:, 0].copy()
        self.ahead = np.zeros((count, 2))  # unit vectors to the look-ahead points
        self.lateral = np.zeros(count)  # nm, to the left of the path
        self.distance = np.zeros(count)  # nm to the target

    def restart(self, rows: np.ndarray, paths: np.ndarray) -> None:
        """Give the molecules `rows` new paths (len(rows), m, 2)."""
        self.paths.replace(rows, paths)
        self.furthest[rows] = 0.0
        self.last_move[rows] = 0.0
        self.last_miss[rows] = 0.0

    def subset(self, rows: np.ndarray) -> "Guide":
        """The molecules `rows`, on their way as they are."""
        part = object.__new__(Guide)
        part.paths = self.paths.subset(rows)
        for name in _STATE:
            setattr(part, name, getattr(self, name)[rows])
        return part

    def update(self, rows: np.ndarray, part: "Guide") -> None:
        """Let the molecules `rows` be where those of `part` are on the same paths."""
        for name in _STATE:
            getattr(self, name)[rows] = getattr(part, name)

    def look(self, position: np.ndarray) -> None:
        """Take in the reported positions (B, 2), nm."""
        # The path may come near itself: only what has been passed, or is in sight, counts.
        near = self.paths.project(position, self.furthest + SIGHT)
        self.furthest = np.maximum(self.furthest, near.arc)
        goal = self.paths.at(self.furthest + LOOK_AHEAD) - position
        norm = np.sqrt(goal[:, 0] * goal[:, 0] + goal[:, 1] * goal[:, 1])
        forward = np.zeros_like(goal)
        forward[:, 0] = 1.0
        self.ahead = np.where(norm[:, None] > 1e-9, goal / np.maximum(norm, 1e-9)[:, None], forward)
        off = position - near.point
        self.lateral = near.tangent[:, 0] * off[:, 1] - near.tangent[:, 1] * off[:, 0]
        to_end = self.paths.ends - position
        self.distance = np.sqrt(to_end[:, 0] * to_end[:, 0] + to_end[:, 1] * to_end[:, 1])
        self.position = position

    def remaining(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How far molecules at `position` (B, 2) have to go, back to the path and along it, nm (B,); and their distance
        perpendicular to the path, nm (B,)."""
        near = self.paths.project(position, self.furthest + SIGHT)
        off = position - near.point
        lateral = np.abs(near.tangent[:, 0] * off[:, 1] - near.tangent[:, 1] * off[:, 0])
        return self.paths.length - near.arc + near.distance, lateral

    def _turned(self, vectors: np.ndarray) -> np.ndarray:
        """Vectors (B, 2) in the frame whose first axis points ahead."""
        c, s = self.ahead[:, 0], self.ahead[:, 1]
        return np.stack([c * vectors[:, 0] + s * vectors[:, 1], c * vectors[:, 1] - s * vectors[:, 0]], axis=1)

    def observation(self, orientation: np.ndarray, nearest: np.ndarray) -> np.ndarray:
        """What the agent sees -> (B, 13) float32, in the frame turned to the look-ahead direction theta.

        0 distance to the target, at most 1.5 nm; 1 whether it is below 0.5 nm; 2, 3 cosine and sine of 6 theta (where the
        lattice's axes are); 4, 5 cosine and sine of 2 (phi - theta) (where the molecule's is); 6 deviation to the left of the
        path, nm; 7, 8 last displacement / 0.3 nm; 9, 10 the nearest other molecule, its distance clipped to 2 nm, / 2 nm;
        11, 12 where the tip was relative to where the molecule now is, nm (which tells of the tip's hidden offset).

        Args:
            orientation: (B,) int, in steps of 60 degrees.
            nearest: (B, 2) nm, from the molecule to the nearest other one; infinite if there is none, which looks like one
                far behind.
        """
        theta = np.arctan2(self.ahead[:, 1], self.ahead[:, 0])
        twice = 2.0 * ((np.pi / 3) * orientation - theta)
        alone = ~np.isfinite(nearest[:, 0])
        other = self._turned(np.where(alone[:, None], 0.0, nearest))
        norm = np.sqrt(other[:, 0] * other[:, 0] + other[:, 1] * other[:, 1])
        other = other / np.maximum(norm, FAR)[:, None]
        other[alone] = (-1.0, 0.0)
        move, miss = self._turned(self.last_move), self._turned(self.last_miss)
        seen = np.stack(
            [
                np.minimum(self.distance, 1.5),
                self.distance < 0.5,
                np.cos(6.0 * theta),
                np.sin(6.0 * theta),
                np.cos(twice),
                np.sin(twice),
                self.lateral,
                move[:, 0] / 0.3,
                move[:, 1] / 0.3,
                other[:, 0],
                other[:, 1],
                miss[:, 0],
                miss[:, 1],
            ],
            axis=1,
        )
        return np.clip(seen.astype(np.float32), OBSERVATION_LOW, OBSERVATION_HIGH)

    def aim(self, actions: np.ndarray) -> Aim:
        """What the actions (B,) int ask for, from where the molecules are reported to be."""
        azimuth = AZIMUTHS[actions // (len(TIP_DISTANCES) * len(BIASES))]
        distance = TIP_DISTANCES[actions // len(BIASES) % len(TIP_DISTANCES)]
        c, s = np.cos(azimuth), np.sin(azimuth)
        ahead = self.ahead
        direction = np.stack([c * ahead[:, 0] - s * ahead[:, 1], c * ahead[:, 1] + s * ahead[:, 0]], axis=1)
        return Aim(self.position + distance[:, None] * direction, BIASES[actions % len(BIASES)])

    def record(self, tip: np.ndarray, position: np.ndarray) -> None:
        """Take in that a pulse at `tip` (B, 2) was followed by the reported `position` (B, 2)."""
        self.last_move = position - self.position
        self.last_miss = tip - position


def nearest_other(position: np.ndarray, others: np.ndarray, present: np.ndarray) -> np.ndarray:
    """From each `position` (B, 2) to the nearest of its `others` (B, K, 2) that is `present` (B, K) -> (B, 2), inf if none is."""
    if not others.shape[1]:
        return np.full(position.shape, np.inf)
    offset = others - position[:, None, :]
    gap2 = np.where(present, offset[..., 0] * offset[..., 0] + offset[..., 1] * offset[..., 1], np.inf)
    rows, best = np.arange(len(position)), gap2.argmin(axis=1)
    return np.where(np.isfinite(gap2[rows, best])[:, None], offset[rows, best], np.inf)


def manipulation_states(observation: np.ndarray) -> np.ndarray:
    """Observations (B, 13) -> coarse states (B,) int64 in [0, 72), for tabular methods: theta mod 60 degrees in 6 bins, the
    molecule's axis (3), the distance to the target in 4 bins with edges 0.3, 0.6 and 1.2 nm."""
    theta = np.arctan2(observation[:, 3], observation[:, 2]) / 6.0 % (np.pi / 3)
    axis = np.arctan2(observation[:, 5], observation[:, 4]) / 2.0 + theta
    bins = np.minimum((theta / (np.pi / 18)).astype(np.int64), 5)
    axes = np.rint(axis / (np.pi / 3)).astype(np.int64) % 3
    return (bins * 3 + axes) * 4 + np.digitize(observation[:, 0], (0.3, 0.6, 1.2))

"""What one voltage pulse of a scanning tunnelling microscope's tip does to the molecules near it.

A stochastic model of field- and excitation-driven manipulation on a hexagonal lattice ("NanoAssemblyGym"). A pulse lasts a few
sub-steps. In each, a molecule is excited with a probability that rises with the bias beyond a threshold and falls with its
distance from the tip; an excited molecule hops to one of six neighbouring sites, or stays, with Boltzmann weights: the tip
draws it in, its orientation makes some directions easier, the substrate's temperature does the rest. Afterwards it may have
turned or, at high bias, have broken apart. Molecules refuse to come closer to each other than the contact distance.

All of it is a pure function of the state and of uniform random numbers in arrays, for any number of separate scenes at once.
Lengths in nm, bias in V, energies in eV, orientations in steps of 60 degrees.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from components.envs.hexagonal import A0, NEIGHBOURS, to_position
from components.envs.streams import normal

STEP_ANGLES = np.arange(6) * (np.pi / 3)
"""(6,) rad: the directions of the six hops."""


@dataclass(frozen=True)
class Physics:
    """The parameters of the surface, the molecules and the tip."""

    a0: float = A0  # nm, lattice constant
    sub_steps: int = 6  # chances to hop in one pulse
    reach: float = 1.8  # nm from the tip, beyond which only the addressed molecule feels a pulse
    threshold: float = 2.4  # V, bias at which the excitation under the tip has probability 1/2
    softness: float = 0.2  # V, width of that threshold
    excitation_range: float = 0.35  # nm, standard deviation of the excitation around the tip
    attraction: float = 0.060  # eV per V, depth of the tip's potential well
    attraction_range: float = 0.5  # nm, standard deviation of that well
    anisotropy: float = 0.020  # eV, barrier to a hop across the molecule's axis
    temperature: float = 0.012  # eV, effective k T
    rotation: float = 0.10  # probability of a turn by +-60 degrees, under the tip at 2.5 V
    dissociation: float = 0.002  # probability of breaking, under the tip above `dissociation_bias`
    dissociation_bias: float = 2.8  # V
    near_field: float = 0.5  # nm, standard deviation of rotation and dissociation around the tip
    contact: float = 0.9  # nm, molecules come no closer
    tip_offset: float = 0.08  # nm, standard deviation of each component of the tip's hidden offset
    tip_change: float = 0.002  # probability that a pulse changes the tip
    scan_noise: float = 0.02  # nm, standard deviation of each component of a position read from a scan

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not np.isfinite(value):
                raise ValueError(f"{field.name} must be a finite number, got {value!r}")
            if value < 0:
                raise ValueError(f"{field.name} must not be negative, got {value!r}")
        if self.sub_steps < 1 or self.sub_steps != int(self.sub_steps):
            raise ValueError(f"sub_steps must be a whole number >= 1, got {self.sub_steps!r}")
        for name in ("a0", "softness", "excitation_range", "attraction_range", "temperature", "near_field"):
            if getattr(self, name) == 0:
                raise ValueError(f"{name} must be positive, got 0")
        for name in ("rotation", "dissociation", "tip_change"):
            if getattr(self, name) > 1:
                raise ValueError(f"{name} is a probability, got {getattr(self, name)!r}")

    @property
    def draws(self) -> int:
        """Uniform numbers that `pulse` needs a molecule: one a sub-step, one for turning, one for breaking."""
        return self.sub_steps + 2


DEFAULT_PHYSICS = Physics()


def _squared(vectors: np.ndarray) -> np.ndarray:
    return vectors[..., 0] * vectors[..., 0] + vectors[..., 1] * vectors[..., 1]


def excitation(distance2: np.ndarray, bias: np.ndarray, physics: Physics = DEFAULT_PHYSICS) -> np.ndarray:
    """Probability that a molecule at squared distance `distance2` (nm^2) from the tip is excited in one sub-step at `bias` V.

    sigma((V - V_th) / delta) * exp(-d^2 / (2 lambda^2)), shapes broadcast."""
    onset = 1.0 / (1.0 + np.exp((physics.threshold - bias) / physics.softness))
    return onset * np.exp(distance2 * (-0.5 / physics.excitation_range**2))


def potential(distance2: np.ndarray, bias: np.ndarray, physics: Physics = DEFAULT_PHYSICS) -> np.ndarray:
    """Energy in the tip's field, eV, at squared distance `distance2` (nm^2): -mu V exp(-d^2 / (2 sigma^2)), shapes broadcast."""
    return (-physics.attraction * bias) * np.exp(distance2 * (-0.5 / physics.attraction_range**2))


def hop_probabilities(
    sites: np.ndarray, orientation: np.ndarray, tip: np.ndarray, bias: np.ndarray, physics: Physics = DEFAULT_PHYSICS
) -> np.ndarray:
    """Probabilities of the six hops in one sub-step, if no other molecule is in the way.

    p_k = e w_k / (1 + sum w) with w_k = exp(-((U(p_k) - U(p)) / 2 + E_a sin^2(theta_k - phi)) / kT).

    Args:
        sites: (n, 2) int, axial coordinates.  orientation: (n,) int, in steps of 60 degrees.
        tip: (n, 2) float, where the tip really is, nm.  bias: (n,) float, V.

    Returns (n, 6) float64; the molecule stays with the remaining probability.
    """
    here = _squared(to_position(sites, physics.a0) - tip)
    there = _squared(to_position(sites[:, None, :] + NEIGHBOURS, physics.a0) - tip[:, None, :])
    climb = potential(there, bias[:, None], physics) - potential(here, bias, physics)[:, None]
    across = np.sin(STEP_ANGLES - (np.pi / 3) * orientation[:, None])
    weights = np.exp((0.5 * climb + physics.anisotropy * (across * across)) * (-1.0 / physics.temperature))
    total = np.cumsum(weights, axis=1)[:, -1]  # one order of addition, whatever the batch
    return weights * (excitation(here, bias, physics) / (1.0 + total))[:, None]


class Pulsed(NamedTuple):
    """What a pulse left behind in each of B scenes of K molecules."""

    sites: np.ndarray  # (B, K, 2) int64
    orientation: np.ndarray  # (B, K) int64, in {0, 1, 2}
    alive: np.ndarray  # (B, K) bool; False where there never was one, or where it broke
    contacts: np.ndarray  # (B,) int64, hops refused because another molecule was too close


def pulse(
    sites: np.ndarray,
    orientation: np.ndarray,
    alive: np.ndarray,
    tip: np.ndarray,
    bias: np.ndarray,
    uniforms: np.ndarray,
    physics: Physics = DEFAULT_PHYSICS,
) -> Pulsed:
    """One pulse in each of B separate scenes.

    It acts on molecule 0, the addressed one, and on every molecule within `physics.reach` of the tip when it begins. Molecules
    that would hop in the same sub-step do so in the order of their index, each seeing where the earlier ones went.

    Args:
        sites: (B, K, 2) int.  orientation: (B, K) int in {0, 1, 2}.  alive: (B, K) bool, False where a scene has fewer than K.
        tip: (B, 2) float, where the tip really is, nm: its nominal position plus its hidden offset.
        bias: (B,) float, V, not negative.
        uniforms: (B, K, physics.draws) float in [0, 1).

    Raises ValueError for shapes that do not fit, and for tip positions or biases that are not finite or a negative bias.
    The arguments are left as they are.
    """
    count, most = alive.shape
    for name, array, shape in (
        ("sites", sites, (count, most, 2)),
        ("orientation", orientation, (count, most)),
        ("tip", tip, (count, 2)),
        ("bias", bias, (count,)),
        ("uniforms", uniforms, (count, most, physics.draws)),
    ):
        if array.shape != shape:
            raise ValueError(f"{name} must have shape {shape} for {count} scenes of {most} molecules, got {array.shape}")
    if not np.isfinite(tip).all():
        raise ValueError("the tip's position must be finite")
    if not (np.isfinite(bias) & (bias >= 0)).all():
        raise ValueError("the bias must be finite and not negative")

    sites, orientation, alive = sites.copy(), orientation.copy(), alive.copy()
    contacts = np.zeros(count, dtype=np.int64)
    distance2 = _squared(to_position(sites, physics.a0) - tip[:, None, :])
    felt = distance2 <= physics.reach**2
    felt[:, 0] = True
    felt &= alive

    for step in range(physics.sub_steps):
        # No molecule hops more often than it is excited: the six weights are needed for the excited ones only.
        excited = felt & (uniforms[:, :, step] < excitation(distance2, bias[:, None], physics))
        rows, columns = np.nonzero(excited)
        if not len(rows):
            continue
        law = hop_probabilities(sites[rows, columns], orientation[rows, columns], tip[rows], bias[rows], physics)
        direction = (uniforms[rows, columns, step][:, None] >= np.cumsum(law, axis=1)).sum(axis=1)
        hops = direction < 6
        rows, columns, direction = rows[hops], columns[hops], direction[hops]
        for column in np.unique(columns):
            row = rows[columns == column]
            aim = sites[row, column] + NEIGHBOURS[direction[columns == column]]
            place = to_position(aim, physics.a0)
            gap2 = _squared(to_position(sites[row], physics.a0) - place[:, None, :])
            gap2[~alive[row]] = np.inf
            gap2[:, column] = np.inf
            free = (gap2 >= physics.contact**2).all(axis=1)
            contacts[row[~free]] += 1
            row, aim, place = row[free], aim[free], place[free]
            sites[row, column] = aim
            distance2[row, column] = _squared(place - tip[row])

    near = felt * np.exp(distance2 * (-0.5 / physics.near_field**2))
    turn = physics.rotation * near * (bias[:, None] / 2.5)
    draw = uniforms[:, :, physics.sub_steps]
    orientation = (orientation + (draw < 0.5 * turn) - ((draw >= 0.5 * turn) & (draw < turn))) % 3
    breaks = (bias > physics.dissociation_bias)[:, None] & (uniforms[:, :, -1] < physics.dissociation * near)
    return Pulsed(sites, orientation, alive & ~breaks, contacts)


def fresh_tip(uniforms: np.ndarray, physics: Physics = DEFAULT_PHYSICS) -> np.ndarray:
    """Uniform numbers (B, 2) -> hidden tip offsets (B, 2), nm."""
    return physics.tip_offset * normal(uniforms)


def change_tip(offset: np.ndarray, uniforms: np.ndarray, physics: Physics = DEFAULT_PHYSICS) -> np.ndarray:
    """The tips' hidden offsets (B, 2), nm, after a pulse; uniforms (B, 3). Now and then a pulse reshapes the tip."""
    changed = uniforms[:, 0] < physics.tip_change
    return np.where(changed[:, None], fresh_tip(uniforms[:, 1:], physics), offset)


def scan(sites: np.ndarray, uniforms: np.ndarray, physics: Physics = DEFAULT_PHYSICS) -> np.ndarray:
    """The positions that a scan reports for sites (B, K, 2), nm; uniforms (B, 2 K)."""
    noise = physics.scan_noise * normal(uniforms)
    return to_position(sites, physics.a0) + noise.reshape(sites.shape)

"""Driving a molecule to its target with voltage pulses of an STM tip: `NanoAssembly-v0`, one at a time or many at once.

An episode is a random segment of a path, with bystanders beside it that must not be dragged along. One action is one pulse: a
direction relative to the path, a lateral tip distance and a bias (Discrete(45), see `components.envs.guidance`). The physics is
`components.envs.stm`. Importing this module registers the environment:

    import components.envs.nano_assembly
    env = gymnasium.make("NanoAssembly-v0")
    envs = gymnasium.make_vec("NanoAssembly-v0", num_envs=256)  # NanoAssemblyVecEnv

Reward of a pulse: progress towards the target along the path (nm) - 0.05 - 0.3 * what the distance from the path exceeds
0.3 nm - 3 if a bystander moved - 5 if the molecule broke + 1 on the target's site. An episode terminates on the target or when
the molecule breaks, and is truncated after 60 pulses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from components.envs.guidance import (
    N_ACTIONS,
    OBSERVATION_HIGH,
    OBSERVATION_LOW,
    Guide,
    check_actions,
    nearest_other,
)
from components.envs.hexagonal import snap, to_position
from components.envs.polylines import Polylines, check_path
from components.envs.stm import DEFAULT_PHYSICS, Physics, change_tip, fresh_tip, pulse, scan
from components.envs.streams import Streams
from components.envs.topograph import colour, pixel_centres, topograph

PROPOSALS = 8  # sites drawn at once for a bystander; the first that will do is taken
IMAGE_PIXELS = 64
IMAGE_EXTENT = 8.0  # nm


@dataclass(frozen=True)
class Rewards:
    """What counts, and how much."""

    pulse: float = 0.05  # cost of a pulse
    lateral: float = 0.3  # cost per nm further from the path than `tolerance`
    tolerance: float = 0.3  # nm
    bystander: float = 3.0  # cost of a pulse that moves a bystander
    lost: float = 5.0  # cost of breaking the molecule
    goal: float = 1.0  # gain of reaching the target's site

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not np.isfinite(value) or value < 0:
                raise ValueError(f"{field.name} must be finite and not negative, got {value!r}")


@dataclass(frozen=True)
class Scenes:
    """What the random episodes look like."""

    shortest: float = 1.5  # nm, length of the segment
    longest: float = 4.0  # nm
    bystanders: int = 2  # other molecules
    clearance: float = 1.2  # nm, no bystander is closer to the segment
    margin: float = 0.5  # nm, nor further from it than clearance + margin
    max_pulses: int = 60  # after which an episode is truncated

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not np.isfinite(value) or value < 0:
                raise ValueError(f"{field.name} must be finite and not negative, got {value!r}")
        if not 0.5 <= self.shortest < self.longest:
            raise ValueError(f"segments need 0.5 nm <= shortest < longest, got {self.shortest} and {self.longest}")
        if self.margin < 0.3:
            raise ValueError(f"margin must leave room for lattice sites, at least 0.3 nm, got {self.margin}")
        for name, least in (("bystanders", 0), ("max_pulses", 1)):
            value = getattr(self, name)
            if int(value) != value or value < least:
                raise ValueError(f"{name} must be a whole number >= {least}, got {value!r}")


class Step(NamedTuple):
    """What one pulse in each of B scenes led to."""

    reward: np.ndarray  # (B,) float64
    terminated: np.ndarray  # (B,) bool
    truncated: np.ndarray  # (B,) bool
    info: dict[str, np.ndarray]  # (B,) each, see `Manipulation.step`


class Manipulation:
    """B scenes, one molecule to be driven in each, stepped together. Row b is what a batch of one with its key would be.

    Args:
        keys: (B,) integers, one random stream a scene.
        physics, rewards, scenes: parameters.

    Attributes: `sites` (B, K, 2), `orientation` (B, K), `alive` (B, K), the driven molecule first; `target` (B, 2) sites;
    `reported` (B, K, 2) positions read from the last scan, nm; `pulses` (B,) so far.
    """

    def __init__(
        self, keys: np.ndarray, physics: Physics = DEFAULT_PHYSICS, rewards: Rewards | None = None, scenes: Scenes | None = None
    ) -> None:
        self.streams = Streams(keys)
        self.physics, self.rewards, self.scenes = physics, rewards or Rewards(), scenes or Scenes()
        if self.scenes.clearance < physics.contact:
            raise ValueError(
                f"clearance {self.scenes.clearance} nm must not be below the contact distance {physics.contact} nm"
            )
        count, most = len(self.streams), 1 + self.scenes.bystanders
        self.sites = np.zeros((count, most, 2), dtype=np.int64)
        self.orientation = np.zeros((count, most), dtype=np.int64)
        self.alive = np.ones((count, most), dtype=bool)
        self.target = np.zeros((count, 2), dtype=np.int64)
        self.offset = np.zeros((count, 2))
        self.reported = np.zeros((count, most, 2))
        self.pulses = np.zeros(count, dtype=np.int64)
        self.guide = Guide(Polylines([np.array([[0.0, 0.0], [1.0, 0.0]])] * count))
        self.to_go = np.zeros(count)

    def __len__(self) -> int:
        return len(self.streams)

    def begin(self, rows: np.ndarray) -> None:
        """Start a random episode in the scenes `rows` (n,) int."""
        scenes, a0 = self.scenes, self.physics.a0
        self.sites[rows] = 0
        pending = rows
        while len(pending):
            u = self.streams.uniform(pending, 2)
            length = scenes.shortest + (scenes.longest - scenes.shortest) * u[:, 0]
            angle = 2.0 * np.pi * u[:, 1]
            target = snap(np.stack([length * np.cos(angle), length * np.sin(angle)], axis=1), a0)
            end = to_position(target, a0)
            length = np.sqrt(end[:, 0] ** 2 + end[:, 1] ** 2)
            good = (length >= scenes.shortest) & (length <= scenes.longest)
            self.target[pending[good]] = target[good]
            pending = pending[~good]
        path = np.zeros((len(rows), 2, 2))
        path[:, 1] = to_position(self.target[rows], a0)
        self.guide.restart(rows, path)
        for molecule in range(1, 1 + scenes.bystanders):
            self._place_bystander(rows, molecule)
        self.alive[rows] = True
        self._settle(rows)

    def _place_bystander(self, rows: np.ndarray, molecule: int) -> None:
        """A site between clearance and clearance + margin from the segment, evenly, in contact with no other bystander."""
        low, a0 = self.scenes.clearance, self.physics.a0
        high = low + self.scenes.margin
        paths, pending = self.guide.paths.subset(rows), np.arange(len(rows))
        while len(pending):
            row = rows[pending]
            along = paths.length[pending, None]
            ahead_x, ahead_y = paths.tangents[pending, 0, :1], paths.tangents[pending, 0, 1:]
            u = self.streams.uniform(row, 2 * PROPOSALS)
            x, y = u[:, :PROPOSALS] * (along + 2 * high) - high, (2 * u[:, PROPOSALS:] - 1) * high
            site = snap(np.stack([x * ahead_x - y * ahead_y, x * ahead_y + y * ahead_x], axis=2), a0)
            point = to_position(site, a0)
            # The segment begins at the origin.
            x, y = point[..., 0] * ahead_x + point[..., 1] * ahead_y, point[..., 1] * ahead_x - point[..., 0] * ahead_y
            beyond = x - np.minimum(np.maximum(x, 0.0), along)
            gap2 = beyond * beyond + y * y
            good = (gap2 >= low * low) & (gap2 <= high * high)
            for other in range(1, molecule):
                apart = point - to_position(self.sites[row, other], a0)[:, None, :]
                good &= apart[..., 0] ** 2 + apart[..., 1] ** 2 >= self.physics.contact**2
            first, found = good.argmax(axis=1), good.any(axis=1)
            self.sites[row[found], molecule] = site[np.nonzero(found)[0], first[found]]
            pending = pending[~found]

    def _settle(self, rows: np.ndarray) -> None:
        """Orientations, tip and first scan of new episodes."""
        most = self.alive.shape[1]
        u = self.streams.uniform(rows, 3 * most + 2)
        self.orientation[rows] = (3.0 * u[:, :most]).astype(np.int64)
        self.offset[rows] = fresh_tip(u[:, most : most + 2], self.physics)
        self.reported[rows] = scan(self.sites[rows], u[:, most + 2 :], self.physics)
        self.pulses[rows] = 0
        part = self.guide.subset(rows)
        part.look(self.reported[rows, 0])
        self.guide.update(rows, part)
        self.to_go[rows], _ = part.remaining(to_position(self.sites[rows, 0], self.physics.a0))

    def place(self, sites: np.ndarray, path: np.ndarray) -> None:
        """Start an episode of the only scene with given molecules.

        Args:
            sites: (k, 2) int, 1 <= k <= 1 + bystanders, the driven molecule first.
            path: (m, 2) nm, from that molecule's site to the target, which is the site nearest to its end.
        """
        if len(self) != 1:
            raise ValueError(f"a given scene needs a batch of one, this one has {len(self)}")
        path, sites = check_path(path), np.asarray(sites)
        most = self.alive.shape[1]
        if sites.ndim != 2 or sites.shape[1] != 2 or not 1 <= len(sites) <= most or not np.issubdtype(sites.dtype, np.integer):
            raise ValueError(f"sites must be whole numbers of shape (1..{most}, 2), got {sites.dtype} of shape {sites.shape}")
        where = to_position(sites, self.physics.a0)
        gap = np.hypot(*(where[:, None] - where[None]).T)
        np.fill_diagonal(gap, np.inf)
        if gap.min(initial=np.inf) < self.physics.contact:
            first, second = np.argwhere(gap < self.physics.contact)[0]
            raise ValueError(f"molecules {first} and {second} are closer than the contact distance {self.physics.contact} nm")
        if np.hypot(*(path[0] - where[0])) > self.physics.a0:
            raise ValueError(
                f"the path must start at molecule 0's site, {where[0].round(3).tolist()} nm, not at {path[0].tolist()}"
            )
        rows = np.zeros(1, dtype=np.int64)
        self.sites[0, : len(sites)] = sites
        self.alive[0] = np.arange(most) < len(sites)
        self.target[0] = snap(path[-1], self.physics.a0)
        self.guide.restart(rows, path[None])
        self._settle(rows)

    def observation(self) -> np.ndarray:
        """(B, 13) float32, see `Guide.observation`."""
        nearest = nearest_other(self.reported[:, 0], self.reported[:, 1:], self.alive[:, 1:])
        return self.guide.observation(self.orientation[:, 0], nearest)

    def step(self, actions: np.ndarray) -> Step:
        """One pulse in every scene; actions (B,) as `check_actions` returns them.

        `info`: is_success, lost (bool), bystanders_moved, contacts, pulses (int64), remaining (nm), tip (B, 2) nm, bias V."""
        physics, rewards, every = self.physics, self.rewards, slice(None)
        count, most = self.alive.shape
        u = self.streams.uniform(every, most * physics.draws + 3 + 2 * most)
        aim = self.guide.aim(actions)
        after = pulse(
            self.sites,
            self.orientation,
            self.alive,
            aim.tip + self.offset,
            aim.bias,
            u[:, : most * physics.draws].reshape(count, most, physics.draws),
            physics,
        )
        moved = ((after.sites != self.sites).any(axis=2) | (after.alive != self.alive))[:, 1:].sum(axis=1)
        self.sites, self.orientation, self.alive = after.sites, after.orientation, after.alive
        self.offset = change_tip(self.offset, u[:, most * physics.draws :][:, :3], physics)
        self.reported = scan(self.sites, u[:, -2 * most :], physics)
        self.pulses += 1

        lost = ~self.alive[:, 0]
        success = (self.sites[:, 0] == self.target).all(axis=1) & ~lost
        before = self.to_go
        self.guide.record(aim.tip, self.reported[:, 0])
        self.guide.look(self.reported[:, 0])
        self.to_go, lateral = self.guide.remaining(to_position(self.sites[:, 0], physics.a0))
        reward = (
            (before - self.to_go)
            - rewards.pulse
            - rewards.lateral * np.maximum(lateral - rewards.tolerance, 0.0)
            - rewards.bystander * (moved > 0)
            - rewards.lost * lost
            + rewards.goal * success
        )
        terminated = success | lost
        info = {
            "is_success": success,
            "lost": lost,
            "bystanders_moved": moved,
            "contacts": after.contacts,
            "pulses": self.pulses.copy(),
            "remaining": self.to_go.copy(),
            "tip": aim.tip,
            "bias": aim.bias,
        }
        return Step(reward, terminated, (self.pulses >= self.scenes.max_pulses) & ~terminated, info)

    def image(self) -> np.ndarray:
        """(B, 64, 64, 3) uint8, 8 nm wide around the driven molecule: the topograph, the target, the path."""
        centre = self.reported[:, 0]
        height = topograph(self.reported, self.orientation, self.alive, centre, IMAGE_EXTENT, IMAGE_PIXELS, self.physics.a0)
        x, y = pixel_centres(centre, IMAGE_EXTENT, IMAGE_PIXELS)
        goal = to_position(self.target, self.physics.a0)
        bump = (
            np.exp(-0.5 * ((x - goal[:, :1]) / 0.25) ** 2)[:, None, :]
            * np.exp(-0.5 * ((y - goal[:, 1:]) / 0.25) ** 2)[:, :, None]
        )
        way = np.zeros_like(bump)
        for k in range(self.guide.paths.steps.shape[1]):
            start, tangent = self.guide.paths.vertices[:, k], self.guide.paths.tangents[:, k]
            dx, dy = (x - start[:, :1])[:, None, :], (y - start[:, 1:])[:, :, None]
            tx, ty = tangent[:, :1, None], tangent[:, 1:, None]
            along = np.clip(dx * tx + dy * ty, 0.0, self.guide.paths.steps[:, k, None, None])
            way = np.maximum(way, np.exp(-0.5 * ((dx - along * tx) ** 2 + (dy - along * ty) ** 2) / 0.15**2))
        return np.rint(255 * np.clip(np.stack([height, bump, way], axis=3), 0.0, 1.0)).astype(np.uint8)


def observation_space(observation: str) -> gymnasium.spaces.Box:
    """The space of `vector` or `image` observations."""
    if observation == "vector":
        return gymnasium.spaces.Box(OBSERVATION_LOW, OBSERVATION_HIGH, dtype=np.float32)
    if observation == "image":
        return gymnasium.spaces.Box(0, 255, (IMAGE_PIXELS, IMAGE_PIXELS, 3), dtype=np.uint8)
    raise ValueError(f"observation must be 'vector' or 'image', got {observation!r}")


def _key(generator: np.random.Generator) -> int:
    return int(generator.integers(2**63))


def seed_key(seed: int) -> int:
    """The key of the random stream of an environment that is reset with `seed`."""
    return _key(seeding.np_random(seed)[0])


class NanoAssemblyEnv(gymnasium.Env):
    """`NanoAssembly-v0`: one molecule, its path and its bystanders.

    Args:
        observation: "vector", Box(13) float32 (see `Guide.observation`), or "image", (64, 64, 3) uint8: topograph, target and
            path in the lab frame, 8 nm around the molecule.
        render_mode: None or "rgb_array".
        physics, rewards, scenes: parameters.

    `reset(options={"sites": (k, 2) int, "path": (m, 2) nm})` starts a given scene instead of a random one. After `reset(seed=s)`
    everything that follows is determined, over later resets without a seed too.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - Gymnasium's own way

    def __init__(
        self,
        observation: Literal["vector", "image"] = "vector",
        render_mode: str | None = None,
        physics: Physics = DEFAULT_PHYSICS,
        rewards: Rewards | None = None,
        scenes: Scenes | None = None,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode must be None or 'rgb_array', got {render_mode!r}")
        self.observation_space = observation_space(observation)
        self.action_space = gymnasium.spaces.Discrete(N_ACTIONS)
        self.render_mode = render_mode
        self._image = observation == "image"
        self._parameters = (physics, rewards, scenes)
        self.state: Manipulation | None = None
        self._over = True

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None or self.state is None:
            self.state = Manipulation(np.array([_key(self.np_random)]), *self._parameters)
        if options:
            wrong = set(options) ^ {"sites", "path"}
            if wrong:
                raise ValueError(f"options must hold 'sites' and 'path', and nothing else; look at {sorted(wrong)}")
            self.state.place(options["sites"], options["path"])
        else:
            self.state.begin(np.zeros(1, dtype=np.int64))
        self._over = False
        return self._observe(), {"remaining": float(self.state.to_go[0])}

    def _observe(self) -> np.ndarray:
        return (self.state.image() if self._image else self.state.observation())[0]

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over, or has not begun: call reset first")
        reward, terminated, truncated, info = self.state.step(check_actions(np.reshape(action, -1), 1))
        self._over = bool(terminated[0] or truncated[0])
        info = {name: value[0] if value.ndim > 1 else value[0].item() for name, value in info.items()}
        return self._observe(), float(reward[0]), bool(terminated[0]), bool(truncated[0]), info

    def render(self) -> np.ndarray | None:
        """A topograph (256, 256, 3) uint8, 8 nm wide around the molecule's path; None without `render_mode`."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() needs gymnasium.make('NanoAssembly-v0', render_mode='rgb_array')")
            return None
        if self.state is None:
            raise gymnasium.error.ResetNeeded("there is nothing to draw before reset")
        state = self.state
        centre = state.guide.paths.at(0.5 * state.guide.paths.length)
        positions = to_position(state.sites, state.physics.a0)
        picture = colour(topograph(positions, state.orientation, state.alive, centre, 8.0, 256, state.physics.a0))[0]
        x, y = pixel_centres(centre, 8.0, 256)
        goal = to_position(state.target[0], state.physics.a0)
        radius = np.hypot(x[0] - goal[0], (y[0] - goal[1])[:, None])
        picture[np.abs(radius - 0.45) < 0.04] = (90, 220, 230)  # a ring around the target
        return picture


class NanoAssemblyVecEnv(VectorEnv):
    """B environments `NanoAssembly-v0` stepped as arrays; row b gives bit for bit what an environment of its own would give.

    Args:
        num_envs: B.
        observation, render_mode, physics, rewards, scenes: as `NanoAssemblyEnv`; render gives a tuple of B pictures.
        autoreset_mode: `AutoresetMode.SAME_STEP` (default): a step that ends an episode returns the next one's first
            observation; the last observation and infos are `infos["final_obs"]` (B, ...) and `infos["final_info"]`, valid where
            `infos["_final_obs"]`. `AutoresetMode.DISABLED`: call `reset(options={"reset_mask": (B,) bool})` yourself.

    `reset(seed=s)` seeds environment b with s + b, `reset(seed=[...])` one by one.
    """

    metadata = {"render_modes": ["rgb_array"], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(
        self,
        num_envs: int = 1,
        observation: Literal["vector", "image"] = "vector",
        render_mode: str | None = None,
        physics: Physics = DEFAULT_PHYSICS,
        rewards: Rewards | None = None,
        scenes: Scenes | None = None,
        autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"at least one environment is needed, got {num_envs}")
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode must be None or 'rgb_array', got {render_mode!r}")
        if autoreset_mode not in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED):
            raise ValueError(f"autoreset_mode must be SAME_STEP or DISABLED, got {autoreset_mode!r}")
        self.num_envs, self.render_mode = num_envs, render_mode
        self.metadata = self.metadata | {"autoreset_mode": autoreset_mode}
        self.single_observation_space = observation_space(observation)
        self.single_action_space = gymnasium.spaces.Discrete(N_ACTIONS)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._same_step = autoreset_mode is AutoresetMode.SAME_STEP
        self._image = observation == "image"
        self._parameters = (physics, rewards, scenes)
        self.state: Manipulation | None = None
        self._over = np.ones(num_envs, dtype=bool)

    def _observe(self) -> np.ndarray:
        return self.state.image() if self._image else self.state.observation()

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        rows = np.arange(self.num_envs)
        if options:
            if set(options) != {"reset_mask"} or seed is not None:
                raise ValueError(f"options may hold 'reset_mask' alone, without a seed, got {sorted(options)} and seed {seed}")
            mask = np.asarray(options["reset_mask"])
            if mask.shape != (self.num_envs,) or mask.dtype != bool or self.state is None:
                raise ValueError(f"reset_mask must be a boolean vector of {self.num_envs}, in environments reset before")
            rows = np.nonzero(mask)[0]
        elif seed is not None or self.state is None:
            if seed is None:
                seeds = [int(s) for s in self.np_random.integers(2**31, size=self.num_envs)]
            else:
                seeds = [seed + b for b in range(self.num_envs)] if isinstance(seed, (int, np.integer)) else list(seed)
            if len(seeds) != self.num_envs:
                raise ValueError(f"{self.num_envs} seeds are needed, one an environment, got {len(seeds)}")
            super().reset(seed=int(seeds[0]))
            keys = np.array([seed_key(int(s)) for s in seeds], dtype=np.uint64)
            self.state = Manipulation(keys, *self._parameters)
        if len(rows):
            self.state.begin(rows)
        self._over[rows] = False
        return self._observe(), {"remaining": self.state.to_go.copy()}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        if self.state is None or self._over.any():
            raise gymnasium.error.ResetNeeded("an episode is over, or has not begun: call reset first")
        reward, terminated, truncated, info = self.state.step(check_actions(actions, self.num_envs))
        seen, over = self._observe(), terminated | truncated
        infos = info | {f"_{name}": np.ones(self.num_envs, dtype=bool) for name in info}
        if over.any():
            if self._same_step:
                infos |= {"final_obs": seen, "_final_obs": over, "final_info": info, "_final_info": over}
                self.state.begin(np.nonzero(over)[0])
                seen = self._observe()
            else:
                self._over = over
        return seen, reward, terminated, truncated, infos

    def render(self) -> tuple[np.ndarray, ...] | None:
        """B topographs (64, 64, 3) uint8, 8 nm wide around the driven molecules; None without `render_mode`."""
        if self.render_mode is None:
            return None
        if self.state is None:
            raise gymnasium.error.ResetNeeded("there is nothing to draw before reset")
        state = self.state
        positions = to_position(state.sites, state.physics.a0)
        return tuple(colour(topograph(positions, state.orientation, state.alive, positions[:, 0], a0=state.physics.a0)))


if "NanoAssembly-v0" not in gymnasium.registry:
    gymnasium.register(
        "NanoAssembly-v0",
        entry_point="components.envs.nano_assembly:NanoAssemblyEnv",
        vector_entry_point="components.envs.nano_assembly:NanoAssemblyVecEnv",
    )

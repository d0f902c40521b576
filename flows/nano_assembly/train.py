"""Plans for every task, and agents that drive molecules: planning, scheduling and reinforcement learning, side by side.

A plan assigns molecules to targets, finds corridors, orders the moves by SAT and repairs what has no order, then minimises the
length and the number of layers. Agents learn on random segments beside bystanders; of each the checkpoint with the best return
on validation episodes is kept, and every method has as many steps and looks at them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field, field_validator
from safetensors.torch import save_file

from components.envs.evaluation import evaluate as rate
from components.envs.guidance import N_ACTIONS, N_STATES, OBSERVATION_LOW, actions_up_to, manipulation_states
from components.envs.nano_assembly import NanoAssemblyVecEnv, Rewards, Scenes
from components.envs.sb3 import Sb3Policy, train_sb3
from components.rl.dqn import DoubleDQN, DQNConfig
from components.rl.tabular import TabularQ
from components.rl.training import train as fit
from components.scheduling.assembly import AssemblyPlanner, PlanNotFound
from components.scheduling.assembly_plan import AssemblyPlan
from components.scheduling.sat_schedule import SOLVERS
from flows.nano_assembly.store import agent_path, read_instances
from tasks import track
from tasks.errors import UserError
from tasks.fanout import fanout
from tasks.params import StageParams, Strict

VALIDATION_SEEDS = 10_000
"""Seeds of validation episodes begin here; the stage `evaluate` uses smaller ones."""

METHODS = ("DQN", "DQN, safe bias", "tabular Q-learning", "PPO (stable-baselines3)")
"""A molecule that breaks is lost for the structure, and high bias breaks some: the second agent may not use it."""


class Plan(Strict):
    """The planner."""

    clearance: float = Field(1.2, gt=0, description="least distance to the inner part of a path, nm (w)")
    contact: float = Field(0.9, gt=0, description="least distance anywhere, nm (c)")
    grid: float = Field(0.867, gt=0, description="spacing of the grid for detours, nm")
    penalties: list[tuple[float, float]] = Field(
        [(2, 2), (8, 1), (1, 8), (30, 30)], description="what a detour pays for starts and targets near it, one detour a pair"
    )
    penalise: Literal["nodes", "edges"] = Field("nodes", description="what is near: a node of the grid, or all of an edge")
    refinements: int = Field(
        5, ge=0, description="rounds of new corridors past what is occupied at a move's turn, after MaxSAT"
    )
    max_repairs: int = Field(600, ge=0, description="exchanges of targets before molecules move in two steps")
    encoding: Literal["lazy", "layered", "binary"] = Field("lazy", description="how the order becomes a formula")
    solver: str = Field("cadical153", description="SAT solver, by PySAT's name")
    time_limit: float | None = Field(None, gt=0, description="seconds for each minimisation; none: results do not depend on it")

    @field_validator("solver")
    @classmethod
    def known(cls, solver: str) -> str:
        if solver not in SOLVERS:
            raise ValueError(f"unknown solver {solver!r}; PySAT has {', '.join(sorted(SOLVERS))}")
        return solver


class Agent(Strict):
    """The learning agents, all trained on as many steps of the environment."""

    methods: list[Literal["DQN", "DQN, safe bias", "tabular Q-learning", "PPO (stable-baselines3)"]] = Field(
        list(METHODS), description="which agents are trained"
    )
    safe_bias: float = Field(
        2.6, ge=2.2, description="highest bias of the agent DQN, safe bias, V; molecules break above 2.8 V"
    )
    iters: int = Field(6000, ge=1, description="steps of all environments")
    envs: int = Field(32, ge=1, description="environments side by side")
    gamma: float = Field(0.95, ge=0, le=1, description="discount")
    lr: float = Field(1e-3, gt=0, description="Adam's learning rate (DQN)")
    hidden: int = Field(128, ge=1, description="units of each of the two hidden layers (DQN)")
    batch: int = Field(256, ge=1, description="transitions an update (DQN)")
    explore: float = Field(0.4, gt=0, le=1, description="share of the steps over which random actions fall to 5% (Q-learning)")
    bystander_penalty: float = Field(3.0, ge=0, description="what a pulse that moves a bystander costs in training")
    seeds: list[int] = Field([0, 1, 2], min_length=1, description="agents of each method of our own")
    sb3_seeds: list[int] = Field([0], min_length=1, description="agents of stable-baselines3, three times as dear to train")
    eval_every: int = Field(1000, ge=1, description="steps of all environments between two looks at validation episodes")
    validation: int = Field(500, ge=1, description="validation episodes")


class Params(StageParams):
    plan: Plan = Plan()
    agent: Agent = Agent()


class Job(NamedTuple):
    p: Params
    data: Path
    kind: Literal["plan", "agent"]
    name: str  # of the task, or of the method
    seed: int


def make_plan(p: Plan, starts: np.ndarray, targets: np.ndarray, box: float, seed: int = 0) -> AssemblyPlan:
    """Plan an assembly. Raises UserError for parameters that the planner refuses, PlanNotFound."""
    try:
        planner = AssemblyPlanner(
            starts,
            targets,
            w=p.clearance,
            c=p.contact,
            grid=p.grid,
            lambdas=p.penalties,
            penalise=p.penalise,
            refinements=p.refinements,
            max_repairs=p.max_repairs,
            encoding=p.encoding,
            solver=p.solver,
            seed=seed,
            box=box,
            time_limit=p.time_limit,
        )
    except ValueError as error:
        raise UserError(f"nano_assembly.train.plan: {error}") from error
    return planner.plan()


def run_plan(job: Job) -> AssemblyPlan | PlanNotFound:
    task = read_instances(job.data)[job.name]
    try:
        return make_plan(job.p.plan, task.starts, task.targets, task.box)
    except PlanNotFound as error:
        return error


def run_agent(job: Job) -> dict[str, Any]:
    """Train one agent; its weights as tensors, and the curve of its validation."""
    a = job.p.agent
    envs = NanoAssemblyVecEnv(
        a.envs, rewards=Rewards(bystander=a.bystander_penalty), scenes=Scenes(clearance=job.p.plan.clearance)
    )
    scenes = Scenes(clearance=job.p.plan.clearance)

    def validate(policy: Callable[[np.ndarray], np.ndarray]) -> dict[str, float]:
        measures = rate(policy, [VALIDATION_SEEDS], a.validation, scenes=scenes)
        return {name: float(values[0]) for name, values in measures.items()}

    def tell(entry: dict[str, float]) -> None:
        track.step(int(entry["iteration"]), evaluation_return=entry["return"])

    steps = max(1, round(a.explore * a.iters))
    seed = 1 + job.seed  # of the environments; validation has its own
    if job.name == METHODS[3]:
        return run_sb3(job, envs, validate)
    if job.name in METHODS[:2]:
        config = DQNConfig(hidden=a.hidden, lr=a.lr, gamma=a.gamma, batch=a.batch, epsilon_steps=steps)
        allowed = actions_up_to(a.safe_bias) if job.name == METHODS[1] else None
        agent = DoubleDQN(len(OBSERVATION_LOW), N_ACTIONS, config, seed=job.seed, allowed=allowed)
    else:
        agent = TabularQ(N_STATES, N_ACTIONS, manipulation_states, gamma=a.gamma, epsilon_steps=steps, seed=job.seed)
    listener = tell if job.name == METHODS[0] else None
    training = fit(agent, envs, validate, iters=a.iters, eval_every=a.eval_every, seed=seed, on_evaluation=listener)
    return {"agent": agent, "curve": pd.DataFrame(training.curve)}


def run_sb3(job: Job, envs: NanoAssemblyVecEnv, validate: Callable[..., dict[str, float]]) -> dict[str, Any]:
    """PPO with the library's own settings, and the same choice of the best checkpoint."""
    a, curve, best = job.p.agent, [], None

    def look(steps: int, model: Any) -> None:
        nonlocal best
        measures = validate(Sb3Policy(model))
        curve.append(measures | {"iteration": steps // a.envs, "steps": steps})
        if best is None or measures["return"] > best[0]:
            best = measures["return"], {name: value.clone() for name, value in model.policy.state_dict().items()}

    # A rollout is as long as two episodes; PPO's default of 2048 steps for each of 32 environments would leave three updates.
    n_steps = min(128, a.iters)
    options = {"n_steps": n_steps, "batch_size": max(2, a.envs * n_steps // 16)}
    model = train_sb3("PPO", envs, a.iters * a.envs, 1 + job.seed, on_steps=look, every=a.eval_every * a.envs, **options)
    look(model.num_timesteps, model)
    return {"weights": best[1], "curve": pd.DataFrame(curve)}


def run_job(job: Job) -> Any:
    return run_plan(job) if job.kind == "plan" else run_agent(job)


def train(p: Params, data: Path, out: Path) -> None:
    """Writes plans/<task>/ (see AssemblyPlan.save), agents/*.safetensors, curves.parquet, plans.parquet and parameters.json."""
    (out / "agents").mkdir()
    (out / "parameters.json").write_text(json.dumps(p.model_dump(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    curves, plans = [], []

    def keep(job: Job, result: Any) -> None:
        if isinstance(result, PlanNotFound):
            # The claim that a schedule is found counts this task as one without.
            print(f"{job.name}: {result}", flush=True)
            plans.append({"instance": job.name, "found": False})
            return
        if job.kind == "plan":
            result.save(out / "plans" / job.name)
            row = {
                "instance": job.name,
                "found": True,
                "moves": len(result.moves),
                "length_nm": result.length,
                "first_length_nm": result.first_length,
                "minimised_length_nm": result.minimised_length,
                "lower_bound_nm": result.lower_bound,
                "layers": result.n_layers,
                "swaps": result.swaps,
                "repairs": len(result.repairs),
            }
            plans.append(row)
            seconds = {f"seconds/{name}": value for name, value in result.seconds.items()}
            numbers = {key: value for key, value in row.items() if key != "instance"}
            track.run(f"plan {job.name}", params={"instance": job.name}, metrics=numbers | seconds)
            return
        path = agent_path(out, job.name, job.seed)
        if "agent" in result:
            result["agent"].save(path)
        else:
            save_file(result["weights"], path)
        curve = result["curve"]
        curves.append(curve.assign(method=job.name, seed=job.seed))
        track.run(
            f"{job.name} seed {job.seed}",
            params={"method": job.name, "seed": job.seed},
            metrics={"validation_return": float(curve["return"].max())},
            curves={name: curve[name].tolist() for name in ("return", "success", "bystander_moved", "lost")},
            steps=curve["iteration"].tolist(),
        )

    agents = [
        Job(p, data, "agent", method, seed)
        for method in p.agent.methods
        for seed in (p.agent.sb3_seeds if method == METHODS[3] else p.agent.seeds)
    ]
    tasks = [Job(p, data, "plan", name, 0) for name in read_instances(data)]
    # The longest first, so that no worker ends long after the others.
    fanout(run_job, [*agents, *tasks], label="agents and plans", threads=p.threads, seed=p.seed, on_result=keep)
    pd.concat(curves, ignore_index=True).to_parquet(out / "curves.parquet", index=False)
    pd.DataFrame(plans).to_parquet(out / "plans.parquet", index=False)

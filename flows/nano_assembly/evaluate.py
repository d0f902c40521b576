"""Plans replayed, schedulers side by side, policies on the same episodes, and whole assemblies in the simulator.

Nothing here trusts what made a plan: collisions in a plan are looked for by replaying it, and collisions in execution by the
simulator.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
import pandas as pd
from gymnasium.utils.env_checker import check_env
from pydantic import Field
from safetensors.torch import load_file
from stable_baselines3.common.env_checker import check_env as check_env_sb3

from components.envs.assembly_runner import AssemblyRunner, Execution
from components.envs.evaluation import evaluate as rate
from components.envs.guidance import N_ACTIONS, N_STATES, manipulation_states
from components.envs.nano_assembly import NanoAssemblyVecEnv, Scenes
from components.envs.protocols import RandomPolicy, fixed_protocols
from components.envs.sb3 import Sb3Policy, load_sb3, train_sb3
from components.envs.stm import DEFAULT_PHYSICS
from components.rl.dqn import DoubleDQN
from components.rl.tabular import TabularQ
from components.scheduling.assembly import PlanNotFound
from components.scheduling.assembly_plan import AssemblyPlan
from components.scheduling.baselines import RULES, cpsat, greedy, topological
from components.scheduling.clearance import blockers
from components.scheduling.planted import planted_problem
from components.scheduling.problem import Location, Option, Schedule, ScheduleProblem
from components.scheduling.sat_schedule import SatScheduler
from components.scheduling.verify import check_schedule, geometry_violations
from components.stats import Metrics, paired_difference, summarise
from flows.nano_assembly.store import agent_path, read_instances, read_plan
from flows.nano_assembly.train import METHODS, make_plan
from flows.nano_assembly.train import Plan as PlanParams
from tasks import track
from tasks.errors import UserError
from tasks.fanout import fanout
from tasks.params import StageParams, Strict

TEST_SEEDS = 1_000
"""Seeds of test episodes begin here; validation in the stage `train` uses others."""

SCHEDULERS = ("topological", *(f"greedy, {rule}" for rule in RULES))


class Episodes(Strict):
    """Episodes on which policies are compared; the same for all."""

    seeds: int = Field(20, ge=1, description="seeds; results are paired over them")
    episodes: int = Field(100, ge=1, description="episodes a seed")


class Execute(Strict):
    """Whole assemblies."""

    shapes: list[str] = Field(["square"], description="structures that are assembled in the simulator")
    repair_rounds: int = Field(3, ge=0, description="rounds of short moves after each layer")
    max_pulses: int = Field(400, ge=1, description="pulses on one move")
    replans: int = Field(3, ge=0, description="new plans if moves stay blocked")


class Scaling(Strict):
    """Random problems with a hidden schedule, of growing size."""

    sizes: dict[str, list[int]] = Field(
        {
            "lazy": [60, 120, 250, 500, 1000],
            "binary": [60, 120, 250, 500],
            "layered": [30, 60, 120],
            "transitive": [15, 30, 60],
        },
        description="jobs, by encoding",
    )
    options: int = Field(3, ge=1, description="options of each job")
    blockers: float = Field(3.0, ge=0, description="mean number of locations that block an option")


class Params(StageParams):
    episodes: Episodes = Episodes()
    execute: Execute = Execute()
    scaling: Scaling = Scaling()


class Job(NamedTuple):
    p: Params
    plan: PlanParams  # as in the stage train, for new plans during execution and for the clearance
    data: Path
    train: Path
    kind: Literal["schedulers", "policy", "execution", "scaling", "gymnasium"]
    name: str  # of the task, the policy, or the encoding
    seed: int  # of the agent; the number of jobs for "scaling"
    policy: str = ""


def policy_of(train: Path, name: str, seed: int) -> Callable[[np.ndarray], np.ndarray]:
    """A trained agent, a pulling protocol or chance, by name."""
    if name in METHODS[:2]:
        return DoubleDQN.load(agent_path(train, name, seed))
    if name == METHODS[2]:
        agent = TabularQ(N_STATES, N_ACTIONS, manipulation_states)
        agent.load(agent_path(train, name, seed))
        return agent
    if name == METHODS[3]:
        return Sb3Policy(load_sb3("PPO", NanoAssemblyVecEnv(1), load_file(agent_path(train, name, seed))))
    if name == "random":
        return RandomPolicy(seed)
    return {str(protocol): protocol for protocol in fixed_protocols()}[name]


def violations(plan: AssemblyPlan, p: PlanParams) -> int:
    """How often molecules come too close when the plan is replayed."""
    check_schedule(plan.problem, plan.schedule)
    paths, movers = [move.path for move in plan.moves], [move.molecule for move in plan.moves]
    order = plan.schedule.order
    return len(
        geometry_violations(
            plan.starts, plan.targets, paths, order, p.clearance, p.contact, molecules=movers, assignment=plan.assignment
        )
    )


def placed_by_rules(plan: AssemblyPlan) -> dict[str, float]:
    """Share of the moves that each simple rule schedules on the plan's corridors."""
    inwardness = np.array([np.hypot(*move.path[-1]) for move in plan.moves])
    n = plan.problem.n_jobs
    placed = {SCHEDULERS[0]: topological(plan.problem).placed / n}
    for name, rule in zip(SCHEDULERS[1:], RULES, strict=True):
        placed[name] = greedy(plan.problem, rule, np.random.default_rng(0), inwardness).placed / n
    return placed


def run_schedulers(job: Job) -> dict[str, Any]:
    """One task: the plan replayed, every scheduler on the corridors of the plan, and the same with the other kind of detour."""
    plan, q = read_plan(job.train, job.name), job.plan
    problem = plan.problem
    placed, n = placed_by_rules(plan), problem.n_jobs
    task = read_instances(job.data)[job.name]
    other_kind = {"nodes": "edges", "edges": "nodes"}[q.penalise]
    other = make_plan(q.model_copy(update={"penalise": other_kind}), task.starts, task.targets, task.box)
    other_best = max(share for name, share in placed_by_rules(other).items() if name != SCHEDULERS[0])
    with SatScheduler(problem) as scheduler:
        first, cheapest = scheduler.solve(), scheduler.minimise_cost()
        fewest = scheduler.minimise_layers()
    try:
        peer, peer_layers = cpsat(problem, "cost"), cpsat(problem, "layers")
    except ImportError as error:
        raise UserError(f"nano_assembly.evaluate compares with CP-SAT: {error}") from error
    check_schedule(problem, first)
    check_schedule(problem, cheapest)
    check_schedule(problem, peer)
    lower = plan.lower_bound * 1000  # pm
    return {
        "violations": violations(plan, q),
        "placed": placed,
        "SAT, first model": {"length_ratio": first.cost / lower, "layers": first.n_layers},
        "SAT, cost minimised": {"length_ratio": plan.length / plan.lower_bound, "layers": plan.n_layers},
        "SAT, layers minimised": {"length_ratio": fewest.cost / lower, "layers": fewest.n_layers},
        "plan, first": {"length_ratio": plan.first_length / plan.lower_bound},
        "plan, minimised once": {"length_ratio": plan.minimised_length / plan.lower_bound},
        f"penalties by {other_kind}": {
            "length_ratio": other.length / other.lower_bound,
            "layers": other.n_layers,
            "swaps": other.swaps,
            "violations": violations(other, q),
            "best_greedy_placed": other_best,
        },
        "CP-SAT": {"length_ratio": peer.cost / lower, "layers": peer_layers.n_layers},
        "MaxSAT - CP-SAT": {"detour_pm": cheapest.cost - peer.cost, "layers": fewest.n_layers - peer_layers.n_layers},
        "plan": {"swaps": plan.swaps, "repairs": len(plan.repairs), "corridors": sum(map(len, problem.options)) / n},
    }


def straight_lines(plan: AssemblyPlan, clearance: float, contact: float) -> ScheduleProblem:
    """The scheduling problem if every molecule could only move straight to its target."""
    movers = np.flatnonzero(plan.assignment >= 0)
    starts, targets = plan.starts[movers], plan.targets[plan.assignment[movers]]
    n = len(movers)
    locations = [Location(None, job) for job in range(n)] + [Location(job, None) for job in range(n)]
    options = []
    for job, (start, target) in enumerate(zip(starts, targets, strict=True)):
        blocked = blockers(np.stack([start, target]), np.concatenate([starts, targets]), clearance, contact)
        blocked[[job, n + job]] = False
        length = round(1000 * float(np.hypot(*(target - start))))
        options.append([Option(length, frozenset(np.flatnonzero(blocked).tolist()))])
    return ScheduleProblem(options, locations)


def run_policy(job: Job) -> dict[str, np.ndarray]:
    scenes = Scenes(clearance=job.plan.clearance)
    e = job.p.episodes
    return rate(policy_of(job.train, job.name, job.seed), range(TEST_SEEDS, TEST_SEEDS + e.seeds), e.episodes, scenes=scenes)


def run_execution(job: Job) -> Execution:
    """One assembly in the simulator; a new plan from where the molecules are if moves stay blocked."""
    p = job.p
    task, plan = read_instances(job.data)[job.name], read_plan(job.train, job.name)

    def replan(here: np.ndarray, goals: np.ndarray) -> AssemblyPlan | None:
        try:
            return make_plan(job.plan, here, goals, task.box)
        except PlanNotFound:
            return None

    runner = AssemblyRunner(
        plan,
        policy_of(job.train, job.policy, job.seed),
        w=job.plan.clearance,
        orientation=task.orientations,
        seed=job.seed,
        max_pulses=p.execute.max_pulses,
        repair_rounds=p.execute.repair_rounds,
        replan=replan,
        max_replans=p.execute.replans,
    )
    return runner.run()


def run_scaling(job: Job) -> dict[str, Any]:
    """The work of one encoding on a problem of one size: counts, not seconds, so that it can be reproduced."""
    s = job.p.scaling
    problem = planted_problem(job.seed, s.options, s.blockers)
    with SatScheduler(problem, job.name) as scheduler:
        found = scheduler.solve()
        check_schedule(problem, found)
        stats = vars(scheduler.stats)
    return {"encoding": job.name, "n": job.seed} | {key: value for key, value in stats.items() if key != "seconds"}


def run_gymnasium(job: Job) -> list[float]:
    """Gymnasium's checker, stable-baselines3's, and 1000 steps of an agent of that library; 1 for each that passes."""

    def agent() -> None:
        envs = NanoAssemblyVecEnv(4)
        model = train_sb3("PPO", envs, 1000, seed=0, n_steps=125, batch_size=125)
        assert model.num_timesteps >= 1000, f"the agent took {model.num_timesteps} steps"
        actions = Sb3Policy(model)(envs.reset(seed=0)[0])
        assert all(envs.single_action_space.contains(action) for action in actions), f"not actions: {actions}"

    checks = (
        lambda: check_env(gymnasium.make("NanoAssembly-v0").unwrapped, skip_render_check=True),
        lambda: check_env_sb3(gymnasium.make("NanoAssembly-v0"), warn=False),
        agent,
    )
    return [passes(check) for check in checks]


def passes(check: Callable[[], object]) -> float:
    """1.0, or 0.0 where the checker objects; what it says goes to the run's log."""
    try:
        check()
    except AssertionError as error:
        print(f"NanoAssembly-v0: {error}", flush=True)
        return 0.0
    return 1.0


RUN = {
    "schedulers": run_schedulers,
    "policy": run_policy,
    "execution": run_execution,
    "scaling": run_scaling,
    "gymnasium": run_gymnasium,
}


def run_job(job: Job) -> Any:
    return RUN[job.kind](job)


def evaluate(p: Params, data: Path, train: Path, out: Path) -> Metrics:
    """Writes schedulers, policies, executions, scaling and pulses (.parquet), frames.npz and core.txt."""
    tasks = read_instances(data)
    plans = pd.read_parquet(train / "plans.parquet")
    planned = plans[plans["found"]]["instance"].tolist()
    if not planned:
        raise UserError("nano_assembly: the stage train found no plan for any task, so there is nothing to compare")
    plan = PlanParams(**json.loads((train / "parameters.json").read_text(encoding="utf-8"))["plan"])
    curves = pd.read_parquet(train / "curves.parquet")
    agents = {str(m): sorted(rows["seed"].unique().tolist()) for m, rows in curves.groupby("method", sort=False)}
    protocols = [str(protocol) for protocol in fixed_protocols()]
    jobs = [Job(p, plan, data, train, "policy", name, seed) for name, seeds in agents.items() for seed in seeds]
    jobs += [Job(p, plan, data, train, "policy", name, 0) for name in (*protocols, "random")]
    jobs += [Job(p, plan, data, train, "schedulers", name, 0) for name in planned]
    jobs += [Job(p, plan, data, train, "scaling", name, n) for name, sizes in p.scaling.sizes.items() for n in sorted(sizes)]
    jobs.append(Job(p, plan, data, train, "gymnasium", "NanoAssembly-v0", 0))
    results = list(
        zip(jobs, fanout(run_job, jobs, label="schedulers and policies", threads=p.threads, seed=p.seed), strict=True)
    )

    metrics: dict[str, dict[str, Any]] = {}
    best = policies(metrics, [(job, r) for job, r in results if job.kind == "policy"], protocols, out)
    schedulers(metrics, [(job.name, r) for job, r in results if job.kind == "schedulers"])
    metrics["SAT, first model"]["placed"] = summarise([float(name in planned) for name in tasks])
    [checks] = [r for job, r in results if job.kind == "gymnasium"]
    metrics["NanoAssemblyGym"] = {"checks": summarise(checks)}
    pd.DataFrame([r for job, r in results if job.kind == "scaling"]).to_parquet(out / "scaling.parquet", index=False)

    wanted = [name for name in planned if tasks[name].name in p.execute.shapes]
    drivers = {name: agents[name] for name in METHODS[:2] if name in agents} | {name: [0] for name in best.values()}
    jobs = [
        Job(p, plan, data, train, "execution", name, seeds[k % len(seeds)], driver)
        for driver, seeds in drivers.items()
        for k, name in enumerate(wanted)
    ]
    results = fanout(run_job, jobs, label="assemblies", threads=p.threads, seed=p.seed)
    executions(metrics, jobs, results, {name: role for role, name in best.items()}, train, out)
    write_core(plan, read_plan(train, planned[0]), out)
    return metrics


def policies(
    metrics: dict, results: list[tuple[Job, dict[str, np.ndarray]]], protocols: list[str], out: Path
) -> dict[str, str]:
    """Fill in every policy's measures; returns the pulling protocols with the best return, of all and of those that break
    nothing."""
    rows = []
    by_policy: dict[str, list[dict[str, np.ndarray]]] = {}
    for job, measures in results:
        by_policy.setdefault(job.name, []).append(measures)
        rows.append(pd.DataFrame(measures).assign(policy=job.name, agent=job.seed))
        track.run(
            f"{job.name} seed {job.seed}, episodes",
            params={"policy": job.name, "seed": job.seed},
            metrics={name: float(values.mean()) for name, values in measures.items()},
        )
    pd.concat(rows, ignore_index=True).to_parquet(out / "policies.parquet", index=False)
    # Agents of one method are averaged for each evaluation seed, so that seeds stay the unit that is resampled.
    means = {
        name: {measure: np.mean([one[measure] for one in runs], axis=0) for measure in runs[0]}
        for name, runs in by_policy.items()
    }
    for name, measures in means.items():
        metrics.setdefault(name, {}).update(
            {measure: summarise(values, method="bootstrap") for measure, values in measures.items() if measure != "contacts"}
        )

    def best_of(names: list[str]) -> str:
        return max(names, key=lambda name: means[name]["return"].mean())

    best = {"best protocol": best_of(protocols)}
    # Which protocols are safe is known from their bias, not from what the test episodes show.
    safe = [str(protocol) for protocol in fixed_protocols() if protocol.bias <= DEFAULT_PHYSICS.dissociation_bias]
    best["best safe protocol"] = best_of(safe)
    for role, name in best.items():
        metrics[role] = dict(metrics[name])
    theirs = means[best["best protocol"]]
    for name in (*METHODS, "random"):
        if name not in means:
            continue
        mine = means[name]
        metrics[f"{name} - best protocol"] = {
            measure: paired_difference(mine[measure], theirs[measure], method="bootstrap")
            for measure in ("return", "success", "pulses")
        }
        metrics[f"best protocol - {name}"] = {
            "bystander_rate": paired_difference(theirs["bystander_moved"], mine["bystander_moved"], method="bootstrap")
        }
        metrics[f"{name} / best protocol"] = {"success": summarise(mine["success"] / theirs["success"], method="bootstrap")}
    return best


def schedulers(metrics: dict, results: list[tuple[str, dict[str, Any]]]) -> None:
    """Over the tasks: collisions, lengths, layers, and how many molecules each scheduler places."""
    found = [result for _, result in results]
    for method in found[0]:
        if method in ("violations", "placed"):
            continue
        metrics.setdefault(method, {}).update(
            {name: summarise([float(result[method][name]) for result in found]) for name in found[0][method]}
        )
    metrics["plan"]["violations"] = summarise([float(result["violations"]) for result in found])
    for name in SCHEDULERS:
        metrics.setdefault(name, {})["placed"] = summarise([result["placed"][name] for result in found])
    best = [max(result["placed"][name] for name in SCHEDULERS[1:]) for result in found]
    metrics["best greedy"] = {"placed": summarise(best), "incomplete": summarise([float(share < 1) for share in best])}
    for name, result in results:
        numbers = {
            f"{m}/{k}".replace(",", ""): float(v) for m, row in result.items() if isinstance(row, dict) for k, v in row.items()
        }
        track.run(
            f"schedulers {name}", params={"instance": name}, metrics=numbers | {"violations": float(result["violations"])}
        )


def executions(metrics: dict, jobs: list[Job], results: list[Execution], roles: dict[str, str], train: Path, out: Path) -> None:
    """Whole assemblies: what ended up where, at which price; the log of every pulse and the frames of the first."""
    rows, logs, frames = [], [], {}
    for run, (job, done) in enumerate(zip(jobs, results, strict=True)):
        plan = read_plan(train, job.name)
        row = {
            "fidelity": done.fidelity,
            "pulses_per_nm": done.n_pulses / plan.length,
            "bystanders_per_molecule": done.bystanders_moved / len(plan.starts),
            "contacts": float(done.contacts),
            "lost": float(done.lost),
            "put_back": float(done.put_back),
            "detours": float(done.detours),
            "timeouts": float(done.timeouts),
            "replans": float(done.replans),
            "stranded": float(done.stranded),
        }
        row["quality"] = row["fidelity"] - 0.001 * row["pulses_per_nm"] - row["bystanders_per_molecule"]
        rows.append({"policy": job.policy, "instance": job.name, "agent": job.seed, "pulses": done.n_pulses} | row)
        logs.append(pd.DataFrame({**done.pulses, "run": run}))
        if run == 0:
            frames = {
                "pulses": np.array([frame.pulses for frame in done.frames] + [done.n_pulses]),
                "sites": np.stack([frame.sites for frame in done.frames] + [done.sites]),
                "alive": np.stack([frame.alive for frame in done.frames] + [done.alive]),
            }
        track.run(f"assembly {job.name}, {job.policy}", params={"policy": job.policy, "instance": job.name}, metrics=row)
    frame = pd.DataFrame(rows)
    frame.to_parquet(out / "executions.parquet", index=False)
    pd.concat(logs, ignore_index=True).to_parquet(out / "pulses.parquet", index=False)
    np.savez_compressed(out / "frames.npz", **frames)
    for policy, group in frame.groupby("policy", sort=False):
        measures = [name for name in frame.columns if name not in ("policy", "instance", "agent", "pulses")]
        summaries = {name: summarise(group[name].tolist()) for name in measures}
        # The assembly's own measures stand beside those of the episodes; `lost` is counted there.
        summaries["molecules_lost"] = summaries.pop("lost")
        metrics[roles.get(str(policy), str(policy))].update(summaries)


def write_core(p: PlanParams, plan: AssemblyPlan, out: Path) -> None:
    """In words: which molecules of the first task block each other if all of them have to move straight."""
    problem = straight_lines(plan, p.clearance, p.contact)
    with SatScheduler(problem) as scheduler:
        if isinstance(scheduler.solve(), Schedule):
            text = "Even with straight lines alone there is an order."
        else:
            text = scheduler.explain().text("molecule {}".format)
    (out / "core.txt").write_text(text + "\n", encoding="utf-8")

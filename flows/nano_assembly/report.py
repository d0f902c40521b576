"""Figures, tables and text of the report; every number in the text is computed from what the stages left."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from pydantic import Field

from components.envs.hexagonal import to_position
from components.stats import Metrics
from flows.nano_assembly import paper
from flows.nano_assembly.store import read_instances, read_plan
from tasks.params import StageParams
from tasks.report import COLOURS, Report, interval, style

SCHEDULERS = (
    "topological",
    "greedy, random",
    "greedy, shortest",
    "greedy, inner-first",
    "greedy, least-blocking",
    "SAT, first model",
)
AGENTS = {
    "DQN": ("vermillion", "o"),
    "DQN, safe bias": ("orange", "D"),
    "tabular Q-learning": ("blue", "s"),
    "PPO (stable-baselines3)": ("green", "^"),
}
ENCODINGS = {"lazy": ("vermillion", "o"), "binary": ("blue", "s"), "layered": ("green", "^"), "transitive": ("purple", "D")}


class Params(StageParams):
    shown: str = Field("square-0", description="task whose schedule is drawn; the first one if it does not exist")


def plan_figure(train: Path, names: list[str]) -> Figure:
    """Where molecules start, where they go, and along which corridors, coloured by layer."""
    fig, panels = plt.subplots(1, len(names), figsize=(5.0 * len(names) + 0.8, 4.9), squeeze=False)
    for axis, name in zip(panels[0], names, strict=True):
        plan = read_plan(train, name)
        lines = LineCollection([move.path for move in plan.moves], cmap="viridis", lw=0.8, zorder=1)
        lines.set_array(plan.schedule.layer + 1)
        axis.add_collection(lines)
        axis.scatter(*plan.starts.T, s=5, color="#8a929c", lw=0, label="start", zorder=2)
        axis.scatter(*plan.targets.T, s=7, color=COLOURS["vermillion"], marker="s", lw=0, label="target", zorder=3)
        axis.set_aspect("equal")
        axis.set_title(f"{name}: {len(plan.moves)} moves in {plan.n_layers} layers")
        axis.set_xlabel("x (nm)")
        fig.colorbar(lines, ax=axis, label="layer", shrink=0.8)
    panels[0][0].set_ylabel("y (nm)")
    fig.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncol=2, markerscale=2)
    return fig


def gantt_figure(train: Path, name: str) -> Figure:
    """Moves as bars along the distance travelled by the one tip; within a layer they may be exchanged freely."""
    plan = read_plan(train, name)
    lengths = np.array([np.hypot(*np.diff(move.path, axis=0).T).sum() for move in plan.moves])
    fig, axis = plt.subplots(figsize=(9.5, 3.6))
    end = 0.0
    for position, move in enumerate(plan.schedule.order):
        colour = (COLOURS["blue"], COLOURS["sky"])[position % 2]
        axis.barh(plan.schedule.layer[move] + 1, lengths[move], left=end, height=0.8, color=colour, lw=0)
        end += lengths[move]
    axis.invert_yaxis()
    axis.set_yticks(range(1, plan.n_layers + 1))
    axis.set_ylabel("layer")
    axis.set_xlabel("distance travelled, all molecules one after the other (nm)")
    axis.set_title(f"{name}: {len(lengths)} moves, {end:.0f} nm")
    return fig


def scheduler_figure(metrics: Metrics, scaling: pd.DataFrame) -> Figure:
    """Left: how much each scheduler places; right: how large the formula grows."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.9))
    for position, name in enumerate(SCHEDULERS):
        cell = metrics[name]["placed"]
        offsets = np.linspace(-0.2, 0.2, cell["n"]) if cell["n"] > 1 else [0.0]
        values = 100 * np.array(cell["values"])
        left.scatter(values, position + np.asarray(offsets), s=14, color=COLOURS["sky"], label=None if position else "one task")
        left.scatter(
            [100 * cell["mean"]], [position], s=40, marker="D", color=COLOURS["vermillion"], label=None if position else "mean"
        )
    left.set_yticks(range(len(SCHEDULERS)), SCHEDULERS)
    left.invert_yaxis()
    left.set_xlim(0, 104)
    left.set_xlabel("molecules scheduled (%)")
    left.set_title(f"same corridors, n = {cell['n']} tasks")
    left.legend(loc="lower left")
    for name, (colour, marker) in ENCODINGS.items():
        rows = scaling[scaling["encoding"] == name].sort_values("n")
        right.plot(rows["n"], rows["clauses"], color=COLOURS[colour], marker=marker, label=name)
    right.set_xscale("log")
    right.set_yscale("log")
    right.set_xlabel("jobs")
    right.set_ylabel("clauses, with all cuts")
    right.set_title("planted problems, one each")
    right.legend()
    return fig


def policy_figure(metrics: Metrics) -> Figure:
    """Return and bystanders of every policy on the same episodes."""
    names = [*(n for n in AGENTS if n in metrics), *sorted(n for n in metrics if n.startswith("pull ")), "random"]
    fig, panels = plt.subplots(1, 2, figsize=(10, 0.3 * len(names) + 1.4), sharey=True)
    for axis, measure, label, factor in zip(
        panels,
        ("return", "bystander_moved"),
        ("return of an episode (nm)", "episodes in which a bystander moved (%)"),
        (1, 100),
        strict=True,
    ):
        for position, name in enumerate(names):
            cell = metrics[name][measure]
            colour = COLOURS["vermillion"] if name in AGENTS else COLOURS["blue"] if name != "random" else "#565e68"
            if cell["ci95"] is not None:
                axis.plot(factor * np.array(cell["ci95"]), [position] * 2, color=colour, lw=1.6)
            axis.scatter([factor * cell["mean"]], [position], s=24, color=colour, zorder=3)
        axis.set_xlabel(label)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    return fig


def curve_figure(curves: pd.DataFrame, metrics: Metrics) -> Figure:
    """Validation while the agents learn, beside the best protocol on the test episodes."""
    fig, panels = plt.subplots(1, 2, figsize=(9.5, 3.6))
    for axis, column, label, factor in zip(
        panels,
        ("return", "bystander_moved"),
        ("validation return (nm)", "bystander moved (% of episodes)"),
        (1, 100),
        strict=True,
    ):
        for name, (colour, marker) in AGENTS.items():
            rows = curves[curves["method"] == name]
            if rows.empty:
                continue
            table = factor * rows.pivot_table(index="iteration", columns="seed", values=column)
            axis.plot(
                table.index,
                table.mean(axis=1),
                color=COLOURS[colour],
                marker=marker,
                ms=3,
                label=f"{name}, n = {table.shape[1]}",
            )
            axis.fill_between(table.index, table.min(axis=1), table.max(axis=1), color=COLOURS[colour], alpha=0.15, lw=0)
        axis.axhline(
            factor * metrics["best protocol"][column]["mean"],
            color="black",
            ls="--",
            lw=1,
            label="best protocol (test episodes)",
        )
        axis.set_xlabel("steps of all environments")
        axis.set_ylabel(label)
    panels[0].set_ylim(bottom=min(-1.0, panels[0].get_ylim()[0] if curves["return"].min() > -2 else -1.0))
    fig.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncol=2)
    return fig


def film_figure(data: Path, evaluate: Path, executions: pd.DataFrame) -> Figure:
    """The surface after about 0, 25, 50 and 100% of the pulses of the first assembly."""
    first = executions.iloc[0]
    task = read_instances(data)[first["instance"]]
    with np.load(evaluate / "frames.npz") as stored:
        pulses, sites, alive = stored["pulses"], stored["sites"], stored["alive"]
    shown = [int(np.abs(pulses - share * pulses[-1]).argmin()) for share in (0, 0.25, 0.5)] + [len(pulses) - 1]
    half = task.box / 2
    fig, panels = plt.subplots(1, 4, figsize=(11, 3.3), sharey=True)
    for axis, frame in zip(panels, shown, strict=True):
        axis.scatter(*task.targets.T, s=9, facecolor="none", edgecolor="#8a929c", lw=0.5, label="target")
        axis.scatter(*to_position(sites[frame][alive[frame]]).T, s=4, color=COLOURS["vermillion"], lw=0, label="molecule")
        axis.set_title(f"{pulses[frame]:,} pulses ({pulses[frame] / max(pulses[-1], 1):.0%})")
        axis.set_xlim(-half, half)
        axis.set_ylim(-half, half)
        axis.set_aspect("equal")
        axis.set_xlabel("x (nm)")
    panels[0].set_ylabel("y (nm)")
    fig.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncol=2, markerscale=2)
    return fig


def execution_rows(executions: pd.DataFrame) -> list[list[object]]:
    return [
        [
            row.policy,
            row.instance,
            f"{100 * row.fidelity:.1f}",
            f"{row.pulses:,}",
            f"{row.pulses_per_nm:.2f}",
            int(row.lost),
            f"{row.bystanders_per_molecule:.3f}",
            int(row.put_back),
            int(row.detours),
            int(row.stranded),
        ]
        for row in executions.itertuples()
    ]


def report(p: Params, metrics: Metrics, data: Path, train: Path, evaluate: Path, out: Path) -> None:
    """Writes the page, the same as Markdown, the figures and the verdicts."""
    names = list(read_instances(data))
    shapes = {name.rsplit("-", 1)[0]: name for name in reversed(names)}
    plans = pd.read_parquet(train / "plans.parquet")
    plans = plans[plans["found"]]
    names = [name for name in names if name in set(plans["instance"])]
    executions = pd.read_parquet(evaluate / "executions.parquet")
    core = (evaluate / "core.txt").read_text(encoding="utf-8").strip()
    with style():
        r = Report(paper, metrics, out)
        r.section("Plans")
        r.text(
            "A molecule goes to the target that the assignment of least total distance gives it, along a straight line or a detour; SAT "
            "finds an order in which every corridor is free, MaxSAT the shortest one, and a second search the fewest layers, batches of "
            "moves that do not depend on each other's order. Lengths are given as multiples of the lower bound, the total of the straight "
            "lines, which no plan can beat and few could reach."
        )
        r.figure(
            plan_figure(train, [shapes[shape] for shape in list(shapes)[::-1][:2]]),
            "plans",
            caption="Corridors coloured by the layer in which they are used.",
            alt="Maps of scattered molecules and the structures built from them, joined by paths coloured from early to late.",
        )
        r.table(
            ["task", "moves", "first plan", "minimised", "refined", "layers", "exchanges of targets", "repairs"],
            [
                [
                    row.instance,
                    int(row.moves),
                    f"{row.first_length_nm / row.lower_bound_nm:.4f}",
                    f"{row.minimised_length_nm / row.lower_bound_nm:.4f}",
                    f"{row.length_nm / row.lower_bound_nm:.4f}",
                    int(row.layers),
                    int(row.swaps),
                    int(row.repairs),
                ]
                for row in plans.itertuples()
            ],
            caption="Length of the plans over the lower bound: of the first schedule without a collision, after minimisation over the same "
            "corridors, and after rounds of new corridors past what is occupied at a move's turn.",
        )
        shown = p.shown if p.shown in names else names[0]
        r.figure(
            gantt_figure(train, shown),
            "gantt",
            caption="The schedule: each bar is a move, as wide as its path is long. The moves of a layer may be exchanged freely.",
            alt="Gantt chart of the moves, one row a layer, from the first layer at the top left to the last at the bottom right.",
        )
        r.section("Schedulers")
        r.figure(
            scheduler_figure(metrics, pd.read_parquet(evaluate / "scaling.parquet")),
            "schedulers",
            caption="Left: share of molecules that each scheduler places on the corridors of the final plans. Right: size of the formula on "
            "random problems with a hidden schedule (3 options a job, 3 blocking locations an option). Seconds are in benchmarks/RESULTS.md.",
            alt="Dot plot of scheduled molecules by scheduler, and a log-log plot of clauses against jobs by encoding.",
        )
        r.table(
            ["schedule", "length / lower bound", "layers"],
            [
                [name, interval(metrics[name].get("length_ratio"), 4), interval(metrics[name].get("layers"), 1)]
                for name in ("SAT, first model", "SAT, cost minimised", "SAT, layers minimised", "CP-SAT")
            ],
            caption=f"Mean and 95% interval over n = {metrics['CP-SAT']['layers']['n']} tasks. CP-SAT minimises the cost in the second and "
            "the layers in the third column; cost minimised has the fewest layers that its corridors allow.",
        )
        [kind] = [name for name in metrics if name.startswith("penalties by ")]
        other, best = metrics[kind], metrics["best greedy"]
        r.text(
            f"How hard the order is depends on the corridors. Here detours keep away from sites near the grid's nodes, and the best simple "
            f"rule schedules {100 * best['placed']['mean']:.1f}% of the molecules (mean over tasks). With {kind}, which see sites all "
            f"along a step of the grid, it schedules {100 * other['best_greedy_placed']['mean']:.1f}%, the plans are "
            f"{interval(other['length_ratio'], 4)} times the lower bound in {interval(other['layers'], 1)} layers, with "
            f"{other['swaps']['mean']:.1f} exchanges of targets on average."
        )
        r.text(
            f"What an explanation looks like: if every molecule of {names[0]} had to move straight to its target, there would be no order. "
            f"A minimal set of molecules that shows it:\n\n{core}"
        )
        r.section("Driving molecules")
        best = metrics["best protocol"]
        r.text(
            "Every policy drives the same molecules over the same segments, 1.5 to 4 nm long beside two bystanders, with the same chance. "
            f"The best pulling protocol by return earns {interval(best['return'], 3)} nm, reaches the target in "
            f"{100 * best['success']['mean']:.1f}% and moves a bystander in {100 * best['bystander_moved']['mean']:.1f}% of the episodes; "
            f"DQN {interval(metrics['DQN']['return'], 3)}, {100 * metrics['DQN']['success']['mean']:.1f}% and "
            f"{100 * metrics['DQN']['bystander_moved']['mean']:.1f}%. The protocol is chosen on the episodes that it is judged by, which "
            "favours it."
        )
        n = best["return"]["n"]
        r.figure(
            policy_figure(metrics),
            "policies",
            caption=f"Mean and 95% bootstrap interval over n = {n} evaluation seeds; agents of one method are averaged. Red: agents, blue: "
            "fixed protocols (lateral tip distance, bias).",
            alt="Dot plots of return and of the share of episodes with a moved bystander, for three agents, nine protocols and chance.",
        )
        r.figure(
            curve_figure(pd.read_parquet(train / "curves.parquet"), metrics),
            "learning",
            caption="Validation while learning, mean and range over agents; the checkpoint with the best validation return is kept. "
            "Returns below the frame belong to the first looks.",
            alt="Learning curves of return and moved bystanders for DQN, tabular Q-learning and PPO beside a line for the best protocol.",
        )
        r.section("Assemblies")
        r.figure(
            film_figure(data, evaluate, executions),
            "film",
            caption=f"{executions.iloc[0]['instance']}, driven by {executions.iloc[0]['policy']}: the surface in the simulator.",
            alt="Four maps of molecules gathering from all over the surface onto the target structure.",
        )
        columns = ["policy", "task", "filled (%)", "pulses", "per nm", "lost", "bystanders", "put back", "detours", "stuck"]
        r.table(
            columns,
            execution_rows(executions),
            caption="Whole assemblies in the simulator: targets filled; pulses, and pulses per nm of the plan; molecules that broke (their "
            "targets stay empty unless there is a surplus); moves of bystanders per molecule; short moves of displaced molecules; moves "
            "that had to take another way; moves that were never made.",
        )
        stages = {"train": json.loads((train / "parameters.json").read_text(encoding="utf-8"))}
        for stage, values in stages.items():
            r.parameters(values, label=f"stage {stage}")
        r.parameters(p, label="stage report")
        r.write()

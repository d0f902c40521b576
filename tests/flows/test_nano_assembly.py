"""Molecular assembly as a flow: rules, parameters, plans and executions that hold when checked again, same bytes twice."""

import json

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from components.envs.hexagonal import snap
from components.envs.protocols import fixed_protocols
from components.scheduling.verify import check_geometry, check_schedule
from flows.nano_assembly import paper
from flows.nano_assembly.store import instance_name, read_instances, read_plan
from tasks.errors import UserError
from tests.flows.stages import hashes, module, params, run

SLUG = "nano_assembly"
SMALL = {
    "data": {"n": 12, "default_box": 16.0, "seeds": [0, 1]},
    "train": {"agent": {"iters": 40, "envs": 8, "eval_every": 20, "validation": 10, "batch": 64}},
    "evaluate": {
        "episodes": {"seeds": 3, "episodes": 5},
        "execute": {"max_pulses": 80},
        "scaling": {"sizes": {"lazy": [10], "binary": [10], "layered": [10], "transitive": [10]}},
    },
}


@pytest.fixture(scope="module")
def flow(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("PAPERFLOWS_WORKERS", "1")
    folder = tmp_path_factory.mktemp(SLUG)
    metrics = run(SLUG, folder, changes=SMALL)
    yield folder, metrics
    patch.undo()


@pytest.mark.parametrize("profile", ["smoke", "cpu", "paper"])
def test_parameters_of_every_profile_are_valid(profile):
    for stage in ("data", "train", "evaluate", "report"):
        params(SLUG, stage, profile)
    shapes = params(SLUG, "data", profile).shapes
    assert set(params(SLUG, "evaluate", profile).execute.shapes) <= set(shapes)


def test_cpu_parameters_are_the_specified_ones():
    data, train = params(SLUG, "data", "cpu"), params(SLUG, "train", "cpu")
    assert (data.shapes, data.n, data.seeds, data.default_box, data.d_min) == (
        ["square", "honeycomb", "hex"],
        420,
        [0, 1, 2],
        80,
        2,
    )
    plan, agent = train.plan, train.agent
    assert (plan.clearance, plan.contact, plan.grid, plan.max_repairs, plan.solver) == (1.2, 0.9, 0.867, 600, "cadical153")
    assert plan.penalties == [(2, 2), (8, 1), (1, 8), (30, 30)]
    assert (agent.iters, agent.envs, agent.gamma, agent.lr, agent.hidden, agent.seeds) == (6000, 32, 0.95, 1e-3, 128, [0, 1, 2])


def test_rules_are_those_fixed_before_the_run():
    def cell(*values, ci95=None):
        return {"mean": sum(values) / len(values), "ci95": ci95, "n": len(values), "values": list(values)}

    rules = {claim.id: claim.rule for claim in paper.claims if claim.rule}
    assert rules["C1 short"].decide(cell(1.08)) and not rules["C1 short"].decide(cell(1.081))
    assert rules["C1 collision-free"].decide(cell(0, 0)) and not rules["C1 collision-free"].decide(cell(0, 0, 1))
    assert rules["C2 needed"].decide(cell(1, 1, 0)) and not rules["C2 needed"].decide(cell(1, 0, 0))
    assert rules["C3 success"].decide(cell(0.97)) and not rules["C3 success"].decide(cell(0.969))
    assert rules["C5 safe bias"].text == rules["C5"].text
    assert rules["C5"].decide(cell(0.99)) and not rules["C5"].decide(cell(0.9899))
    [c3] = [claim for claim in paper.claims if claim.id == "C3"]
    assert c3.settled_by == "any" and c3.rule.decide(cell(1, 1, ci95=[0.1, 2])) and not c3.rule.decide(cell(1, 1, ci95=[0, 2]))


def test_every_claim_is_measured(flow):
    _, metrics = flow
    for claim in paper.claims:
        for method, metric in claim.cells:
            assert metric in metrics[method], (claim.id, method, metric)


def test_plans_hold_when_replayed_from_the_tables(flow):
    folder, metrics = flow
    tasks = read_instances(folder / "data")
    assert list(tasks) == ["square-0", "square-1"]
    for name, task in tasks.items():
        plan = read_plan(folder / "train", name)
        np.testing.assert_array_equal(plan.starts, task.starts)
        check_schedule(plan.problem, plan.schedule)
        movers = [move.molecule for move in plan.moves]
        paths = [move.path for move in plan.moves]
        check_geometry(
            plan.starts, plan.targets, paths, plan.schedule.order, 1.2, 0.9, 0.01, molecules=movers, assignment=plan.assignment
        )
    ratios = metrics["SAT, cost minimised"]["length_ratio"]["values"]
    assert len(ratios) == 2 and min(ratios) >= 1


def test_schedulers_agree_on_the_optimum(flow):
    _, metrics = flow
    assert metrics["MaxSAT - CP-SAT"]["detour_pm"]["values"] == [0, 0]
    assert metrics["MaxSAT - CP-SAT"]["layers"]["values"] == [0, 0]
    shares = [metrics[name]["placed"]["values"] for name in metrics if name.startswith("greedy, ")]
    assert metrics["best greedy"]["placed"]["values"] == np.max(shares, axis=0).tolist()


def test_the_best_protocol_is_the_one_with_the_best_return(flow):
    folder, metrics = flow
    table = pd.read_parquet(folder / "evaluate/policies.parquet")
    means = table.groupby("policy")["return"].mean()
    protocols = means[[str(protocol) for protocol in fixed_protocols()]]
    assert metrics["best protocol"]["return"]["mean"] == pytest.approx(protocols.max())
    safe = [name for name in protocols.index if not name.endswith(" 3 V")]
    assert metrics["best safe protocol"]["return"]["mean"] == pytest.approx(protocols[safe].max())
    theirs = table[table["policy"] == protocols.idxmax()]["return"].to_numpy()
    mine = table[table["policy"] == "DQN"]["return"].to_numpy()
    np.testing.assert_allclose(metrics["DQN - best protocol"]["return"]["values"], mine - theirs)


def test_fidelity_is_what_the_last_frame_shows(flow):
    folder, metrics = flow
    runs = pd.read_parquet(folder / "evaluate/executions.parquet")
    with np.load(folder / "evaluate/frames.npz") as frames:
        last = frames["sites"][-1][frames["alive"][-1]]
    targets = snap(read_instances(folder / "data")["square-0"].targets)
    occupied = (targets[:, None] == last[None]).all(axis=2).any(axis=1).mean()
    assert runs["fidelity"].iloc[0] == pytest.approx(occupied)
    values = metrics["DQN"]["fidelity"]["values"]
    assert values == runs[runs["policy"] == "DQN"]["fidelity"].tolist()
    pulses = pd.read_parquet(folder / "evaluate/pulses.parquet")
    assert pulses.groupby("run").size().tolist() == runs["pulses"].tolist()


def test_a_check_that_objects_counts_as_failed(capsys):
    def objects():
        raise AssertionError("the space is wrong")

    passes = module(SLUG, "evaluate").passes
    assert (passes(objects), passes(lambda: None)) == (0.0, 1.0)
    assert "the space is wrong" in capsys.readouterr().out


def test_stages_are_deterministic_to_the_byte(flow, tmp_path):
    folder, metrics = flow
    again = run(SLUG, tmp_path, changes=SMALL)
    assert hashes(tmp_path) == hashes(folder) and again == metrics


def test_report_is_whole(flow, tmp_path):
    folder, metrics = flow
    for stage in ("data", "train", "evaluate"):
        (tmp_path / stage).symlink_to(folder / stage)
    run(SLUG, tmp_path, ["report"], metrics=metrics)
    text = (tmp_path / "report/README.md").read_text()
    ratio = metrics["SAT, cost minimised"]["length_ratio"]["mean"]
    assert f"{ratio:.4f}" in text
    figures = {path.stem for path in (tmp_path / "report/figures").iterdir()}
    assert figures == {"plans", "gantt", "schedulers", "policies", "learning", "film"}
    claims = json.loads((tmp_path / "report/claims.json").read_text())
    assert [claim["id"] for claim in claims] == [claim.id for claim in paper.claims]


def test_measured_positions_become_a_task(tmp_path):
    rng = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(np.arange(4), np.arange(3)), axis=-1).reshape(-1, 2) * 2.5
    path = tmp_path / "positions.csv"
    rows = [f"{x:.3f},{y:.3f},{angle:.1f}" for (x, y), angle in zip(grid + 100, rng.uniform(0, 180, 12), strict=True)]
    path.write_text("x_nm,y_nm,orientation_deg\n" + "\n".join(rows))
    p = params(SLUG, "data", "smoke", n=9, measured={"positions": str(path), "shape": "hex"})
    module(SLUG, "data").data(p, tmp_path)
    task = read_instances(tmp_path)["measured-0"]
    assert task.name == "hex" and task.start_sites.shape == task.target_sites.shape == (12, 2)
    assert np.abs(task.starts.mean(axis=0)).max() < 0.2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n": 4000}, "square: .*box"),
        ({"shapes": ["spiral"]}, "unknown shape 'spiral'"),
        ({"measured": {"positions": "nowhere.csv"}}, "nano_assembly.data.measured: .*nowhere.csv"),
    ],
)
def test_tasks_that_cannot_be_made_are_one_sentence(tmp_path, changes, words):
    with pytest.raises(UserError, match=words):
        module(SLUG, "data").data(params(SLUG, "data", "smoke", **changes), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_wrong_parameters_are_errors():
    train = module(SLUG, "train")
    with pytest.raises(ValidationError, match="greater_than"):
        train.Plan(clearance=0)
    with pytest.raises(ValidationError, match="literal_error"):
        train.Agent(methods=["SARSA"])
    with pytest.raises(ValidationError, match="unknown solver 'magic'; PySAT has .*cadical153"):
        train.Plan(solver="magic")
    with pytest.raises(UserError, match=r"nano_assembly\.train\.plan: .*clearance"):
        train.make_plan(train.Plan(clearance=0.5), np.array([[0.0, 0.0]]), np.array([[3.0, 0.0]]), 10.0)


def test_the_paper_profile_plans_its_structures_on_a_cut(tmp_path):
    p = params(SLUG, "data", "paper", n=30, seeds=[0], box={}, default_box=36.0)
    assert params(SLUG, "data", "paper").n == 420 and params(SLUG, "train", "paper").agent.iters == 200_000
    module(SLUG, "data").data(p, tmp_path)
    tasks = read_instances(tmp_path)
    assert list(tasks) == ["kagome-0", "honeycomb-0", "rings-0", "bitmap-0"]
    train = module(SLUG, "train")
    for task in tasks.values():
        plan = train.make_plan(params(SLUG, "train", "paper").plan, task.starts, task.targets, task.box)
        check_schedule(plan.problem, plan.schedule)


def test_names_of_tasks_are_names_of_folders():
    assert instance_name("bitmap(NANO 2)", 3) == "bitmap-NANO-2-3"


def test_sweep_searches_parameters_that_exist():
    known = params(SLUG, "train", "cpu").model_dump()
    for key in paper.sweep.space:
        node = known
        for part in key.split(".")[1:]:
            assert part in node, key
            node = node[part]

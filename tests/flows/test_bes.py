"""Boundary embedding shaping as a flow: rules, parameters, no leak from test data, same bytes twice, the paper's configuration."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from torch_geometric.data import Data

from components.graphs.csbm import boundary_csbm
from components.graphs.links import split_links
from flows.bes import paper
from flows.bes.arms import ABLATIONS, ARMS, BASELINES, LINK_ARMS, UNTUNED, VIEWS
from flows.bes.store import StoredGraph, read_graph, read_parts, write_graph
from tests.flows.stages import hashes, module, params, run

SLUG = "bes"


SMALL = {
    "data": {"datasets": ["csbm"], "splits": 2, "csbm": {"n": 120}},
    "train": {
        "ablation_splits": 1,
        "encoder": {"epochs": 4},
        "decoder": {"epochs": 4, "eval_every": 2},
        "baselines": {"epochs": 3, "hidden": [8, 16]},
        "link_prediction": {"datasets": ["csbm"], "splits": 1, "epochs": 3},
    },
}


@pytest.fixture(scope="module")
def flow(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("PAPERFLOWS_WORKERS", "1")
    folder = tmp_path_factory.mktemp("bes")
    metrics = run(SLUG, folder, ["data", "train", "evaluate"], SMALL)
    yield folder, metrics
    patch.undo()


# --- claims and parameters ------------------------------------------------------------------------------------------


def cell(*values):
    half = 1.0 if len(values) > 1 else None
    mean = sum(values) / len(values)
    return {
        "mean": mean,
        "ci95": None if half is None else [mean - half, mean + half],
        "n": len(values),
        "values": list(values),
    }


def test_rules_are_those_fixed_before_the_run():
    claims = {claim.id: claim for claim in paper.claims}
    assert claims["C1"].rule.decide(cell(1.2, 1.3, 1.4, 1.5))
    assert not claims["C1"].rule.decide(cell(0.9, 0.8, 0.9, 0.8))  # lower bound below zero
    assert claims["C2"].rule.decide(cell(-0.1, 0.1, -0.2, 0.1)) and not claims["C2"].rule.decide(cell(-1.0, -0.9, -1.1))
    assert claims["C4 selective"].rule.decide(cell(0.1, 0.2, 0.3, 0.4))
    assert not claims["C4 selective"].rule.decide(cell(0.9, -0.2, -0.3, 0.1))  # mean above zero, p = 0.4
    assert claims["C4 not uniform"].rule.decide(cell(0.1, 0.1)) and not claims["C3"].rule.decide(cell(-0.1, 0.0))
    assert {c.cells for c in (claims["C3"], claims["C4 selective"])} == {
        (("BES - GCN", "cora/link_accuracy"), ("BES - frozen", "cora/link_accuracy")),
        (("BES - frozen", "cora/accuracy"), ("BES - frozen", "csbm/accuracy")),
    }


@pytest.mark.parametrize("profile", ["smoke", "cpu", "paper"])
def test_parameters_of_every_profile_are_valid(profile):
    for name in ("data", "train", "evaluate", "report"):
        params(SLUG, name, profile)
    # Every claim's cell is measured: both data sets are in every profile, and links on Cora.
    assert {"cora", "csbm"} <= set(params(SLUG, "data", profile).datasets)
    assert "cora" in params(SLUG, "train", profile).link_prediction.datasets


def test_cpu_parameters_are_the_specified_ones():
    p = params(SLUG, "train", "cpu")
    assert (p.shape.lr, p.shape.tau, p.shape.delta, p.shape.knn, p.shape.threshold) == (1e-4, 1.0, 5.0, 5, 0.5)
    assert (p.shape.scale, p.shape.max_shift, p.shape.tokens, p.norm_target) == ("update", 0.01, "single", 5.66)
    assert (p.decoder.epochs, p.encoder.epochs, params(SLUG, "data", "cpu").splits) == (100, 120, 8)


def test_wrong_parameters_are_errors():
    with pytest.raises(ValidationError, match="extra_forbidden"):
        module(SLUG, "train").Shape(learning_rate=0.1)
    with pytest.raises(ValidationError, match="greater_than"):
        module(SLUG, "train").Shape(tau=0)
    with pytest.raises(ValidationError, match="literal_error"):
        module(SLUG, "data").Params(datasets=["reddit"])


def test_sweep_searches_parameters_that_exist_and_never_test_data():
    assert paper.sweep.objective[1].endswith("validation_accuracy")
    known = params(SLUG, "train", "cpu").model_dump()
    for key in (*paper.sweep.space, *paper.sweep.overrides):
        node = known
        for part in key.split(".")[1:]:
            assert part in node, key
            node = node[part]


# --- the stages -----------------------------------------------------------------------------------------------------


def test_data_are_drawn_per_seed_and_split_stratified(flow):
    folder, _ = flow
    parts = read_parts(folder / "data")
    assert list(parts) == [("csbm", 0), ("csbm", 1)]
    first, second = (read_graph(folder / "data", "csbm", seed) for seed in (0, 1))
    assert not np.array_equal(first.x, second.x) and first.is_boundary.sum() == 36
    assert np.bincount(parts["csbm", 0]).tolist() == [70, 25, 25]
    summary = json.loads((folder / "data/summary.json").read_text())
    assert summary["csbm/graph-0.npz"]["nodes"] == 120


def test_every_method_is_trained_and_measured(flow):
    folder, metrics = flow
    runs = pd.read_parquet(folder / "train/runs.parquet")
    nodes = runs[runs["task"] == "nodes"]
    assert set(nodes[nodes["seed"] == 0]["method"]) == {*BASELINES, *UNTUNED, *ARMS, *ABLATIONS}
    assert set(nodes[nodes["seed"] == 1]["method"]) == {*BASELINES, *UNTUNED, *ARMS}
    assert set(runs[runs["task"] == "links"]["method"]) == set(LINK_ARMS)
    for method in (*BASELINES, *UNTUNED, *ARMS):
        assert metrics[method]["csbm/accuracy"]["n"] == 2
    difference = np.subtract(metrics["BES"]["csbm/accuracy"]["values"], metrics["GCN"]["csbm/accuracy"]["values"])
    np.testing.assert_allclose(metrics["BES - GCN"]["csbm/accuracy"]["values"], difference)
    rivals = [metrics[method]["csbm/accuracy"]["mean"] for method in ("GCN", "GAT", "SAGE", "SGC", "Cheb")]
    best = metrics["BES - best baseline"]["csbm/accuracy"]["mean"]
    assert best == pytest.approx(metrics["BES"]["csbm/accuracy"]["mean"] - max(rivals))


def test_metrics_are_what_the_predictions_say(flow):
    folder, metrics = flow
    predictions = pd.read_parquet(folder / "evaluate/predictions.parquet")
    y = read_graph(folder / "data", "csbm", 1).y
    rows = predictions[(predictions["seed"] == 1) & (predictions["method"] == "BES")]
    test = np.flatnonzero(read_parts(folder / "data")["csbm", 1] == 2)
    assert np.array_equal(np.sort(rows["node"]), test)
    accuracy = 100 * np.mean(rows["pred"].to_numpy() == y[rows["node"]])
    assert metrics["BES"]["csbm/accuracy"]["values"][1] == pytest.approx(accuracy)
    at = rows[rows["at_boundary"]]
    assert metrics["BES"]["csbm/boundary_accuracy"]["values"][1] == pytest.approx(100 * at["correct"].mean())


def test_checkpoint_rebuilds_the_embeddings(flow):
    from components.graphs.bes import BoundaryAttention

    folder, _ = flow
    stored = load_file(folder / "train/checkpoints/csbm-0.safetensors")
    phi = BoundaryAttention(stored["h"].shape[1])
    phi.load_state_dict({k.removeprefix("BES/phi/"): v for k, v in stored.items() if k.startswith("BES/phi/")})
    torch.testing.assert_close(phi(stored["h"]).detach(), stored["BES/z"])
    assert not torch.equal(stored["BES/z"], stored["frozen/z"])
    assert stored["h"].norm(dim=1).mean().item() == pytest.approx(5.66, abs=1e-3)


def test_stages_are_deterministic_to_the_byte(flow, tmp_path):
    folder, metrics = flow
    again = run(SLUG, tmp_path, ["data", "train", "evaluate"], SMALL)
    assert hashes(tmp_path) == hashes(folder) and again == metrics


def test_no_label_of_a_test_node_reaches_training(flow, tmp_path):
    folder, _ = flow
    run(SLUG, tmp_path, ["data"], SMALL)
    for (_, seed), part in read_parts(tmp_path / "data").items():
        stored = read_graph(tmp_path / "data", "csbm", seed)
        y = stored.y.copy()
        y[part == 2] = (y[part == 2] + 1) % 5
        write_graph(tmp_path / "data/csbm" / f"graph-{seed}.npz", stored._replace(y=y))
    run(SLUG, tmp_path, ["train"], SMALL)
    assert hashes(tmp_path / "train") == hashes(folder / "train")


def test_no_held_out_edge_takes_part_in_message_passing(flow, monkeypatch):
    folder, _ = flow
    train = module(SLUG, "train")
    p = params(SLUG, "train", "smoke", **SMALL["train"])
    job = train.jobs_of(p, folder / "data")[-1]
    assert job.task == "links"
    seen = []
    original = train.fit_links

    def spy(net, x, graph, split, **options):
        seen.append((graph.edge_index, split))
        return original(net, x, graph, split, **options)

    label_graphs = []
    original_nodes = train.fit_nodes

    def spy_nodes(net, x, graph, *rest, **options):
        label_graphs.append(graph.edge_index)
        return original_nodes(net, x, graph, *rest, **options)

    monkeypatch.setattr(train, "fit_links", spy)
    monkeypatch.setattr(train, "fit_nodes", spy_nodes)
    train.run_job(job)
    whole = read_graph(folder / "data", "csbm", 0)
    split = split_links(torch.from_numpy(whole.edge_index), 120, seed=0)
    held_out = {tuple(pair) for part in (split.val, split.test) for pair in part.T.tolist()}
    graphs = [graph for graph, _ in seen] + label_graphs
    assert len(seen) == 8 and len(label_graphs) == 2 and held_out  # 2 GCNs, 2 link encoders, 4 decoders; 2 label encoders
    for graph in graphs:
        edges = {tuple(pair) for pair in graph.T.tolist()}
        assert edges and not edges & held_out and not {(v, u) for u, v in edges} & held_out


def test_unknown_methods_and_unprepared_data_are_named(flow):
    folder, _ = flow
    jobs_of = module(SLUG, "train").jobs_of
    base = {"link_prediction": {"splits": 0}}
    for changes, says in (
        ({"methods": ["GIN"]}, "train.methods names 'GIN'"),
        ({"datasets": ["cora"]}, "'cora', which the stage data did not prepare"),
        ({"splits": 9}, "9 splits are wanted, but the stage data prepared 2"),
    ):
        with pytest.raises(ValueError, match=says):
            jobs_of(params(SLUG, "train", "smoke", **base, **changes), folder / "data")


def test_changed_cora_is_refused(monkeypatch, tmp_path):
    data = module(SLUG, "data")
    monkeypatch.setattr(data, "cora_from_wheel", lambda path: boundary_csbm(n=60))
    with pytest.raises(RuntimeError, match="Cora's class counts, edges and homophily are"):
        data.data(params(SLUG, "data", "smoke", datasets=["cora"]), {"cora": tmp_path}, tmp_path)


def test_report_is_whole(flow, tmp_path, monkeypatch):
    """On planted graphs alone; claims on Cora are then not measurable, so the planted ones stand in their place."""
    import dataclasses

    folder, metrics = flow
    report = module(SLUG, "report")
    claims = tuple(c for c in paper.claims if all(m.startswith("csbm") for _, m in c.cells))
    monkeypatch.setattr(report, "paper", dataclasses.replace(paper, claims=claims))
    report.report(params(SLUG, "report", "smoke"), metrics, folder / "data", folder / "train", folder / "evaluate", tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "What the gain is made of" in text and "BES Adam 0.01" in text
    frozen = metrics["BES - frozen"]["csbm/accuracy"]["mean"]
    assert f"shaping (BES - frozen): {frozen:+.2f}" in text
    figures = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert figures == {"differences", "shift", "embeddings-csbm", "epochs"}
    assert {entry["id"] for entry in json.loads((tmp_path / "claims.json").read_text())} >= {"C4 not uniform", "C4 boundary"}


# --- the paper's own scale ------------------------------------------------------------------------------------------


def test_paper_profile_trains_every_data_sets_own_views_on_a_cut(monkeypatch, tmp_path):
    """The real loaders need the internet: graphs of their shapes, cut down, stand in; the configuration is the paper's."""
    data, train = module(SLUG, "data"), module(SLUG, "train")
    p = params(SLUG, "data", "paper", splits=1, csbm={"n": 120})
    assert p.datasets == ["cora", "citeseer", "pubmed", "wikics", "csbm"] and p.svd is None
    assert params(SLUG, "data", "paper").splits == 10 and params(SLUG, "train", "paper").decoder.epochs == 200
    asked = []

    def cut(name, root):
        asked.append(name)
        graph = boundary_csbm(n=90, classes=3, dim=40, seed=len(asked))
        return Data(x=graph.x.abs(), y=graph.y, edge_index=graph.edge_index)

    monkeypatch.setattr(data, "planetoid", cut)
    monkeypatch.setattr(data, "wikics", lambda root: cut("WikiCS", root))
    monkeypatch.setenv("PAPERFLOWS_WORKERS", "1")
    (tmp_path / "data").mkdir()
    (tmp_path / "train").mkdir()
    data.data(p, {}, tmp_path / "data")
    assert asked == ["Cora", "CiteSeer", "PubMed", "WikiCS"]
    small = {"decoder": {"epochs": 2}, "encoder": {"epochs": 2}, "link_prediction": {"splits": 0}, "methods": ["frozen", "BES"]}
    train.train(params(SLUG, "train", "paper", **small), tmp_path / "data", tmp_path / "train")
    for dataset, kinds in VIEWS.items():
        stored = load_file(tmp_path / "train/checkpoints" / f"{dataset}-0.safetensors")
        nodes = 120 if dataset == "csbm" else 90
        assert stored["h"].shape == (nodes, 32) and stored["BES/z"].shape == (nodes, 32)
        assert len({name.split("/")[1].split(".")[1] for name in stored if name.startswith("encoder/")}) == len(kinds) == 2
    assert (
        VIEWS["wikics"] == ("cheb", "gatv2")
        and VIEWS["pubmed"] == ("cheb", "graphconv")
        and VIEWS["citeseer"] == ("sgc", "ssgc")
    )


def test_store_round_trip(tmp_path):
    graph = StoredGraph(np.eye(3, dtype=np.float32), np.arange(3), np.array([[0, 1], [1, 0]]), None)
    write_graph(tmp_path / "cora/graph.npz", graph)
    read = read_graph(tmp_path, "cora", 5)
    assert read.is_boundary is None and all(np.array_equal(a, b) for a, b in zip(read[:3], graph[:3], strict=True))

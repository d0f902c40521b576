"""M+Adam as a flow: rules, parameters, pairing and choice of step sizes, same bytes twice, the paper's configuration."""

from __future__ import annotations

import hashlib
import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from components.language.corpus import SHAKESPEARE_SYMBOLS
from components.language.tiny_llama import LLAMA_SHAPES, TinyLlama
from components.lowprec.formats import FORMATS
from components.lowprec.quantize import QTensor
from flows.mplus_adam import paper
from flows.mplus_adam.arms import NAMES, readable, runs_method, short, tag
from flows.mplus_adam.store import read_problem, read_text
from tasks import settings, track
from tasks.assets import check
from tests.flows import stages
from tests.flows.stages import hashes, module
from tests.projects import ROOT

SLUG = "mplus_adam"
ASSETS = {"shakespeare": ROOT / "data/shakespeare"}
SMALL = {
    "data": {"bench": {"n": 40, "seeds": 2, "descent_n": 20}, "limit": 30_000},
    "train": {
        "bench": {"steps": 10, "seeds": 2},
        "descent": {"steps": 12, "seeds": 2},
        "tuning": {"factors": [1.0, 30.0]},
        "lm": {"d": 16, "heads": 2, "layers": 1, "seq": 16, "steps": 3, "seeds": 2, "final_windows": 8},
        "runs": [["fp32", "none", "rne", 0.01], ["bf16", "none", "rne", 0.01], ["e4m3", "mx", "rne", 0.05],
                 ["e4m3", "mx", "sr", 0.02], ["e2m1", "mx", "rne", 0.2], ["e2m1", "mx", "sr", 0.1]],
    },
}  # fmt: skip


def stage(name):
    return module(SLUG, name)


def params(name, profile, **changes):
    return stages.params(SLUG, name, profile, **changes)


@pytest.fixture(scope="module")
def flow(tmp_path_factory):
    check(ROOT, "shakespeare")  # says which command brings it
    patch = pytest.MonkeyPatch()
    patch.setenv("PAPERFLOWS_WORKERS", "1")
    folder = tmp_path_factory.mktemp("mplus")
    metrics = stages.run(SLUG, folder, changes=SMALL, assets=ASSETS)
    yield folder, metrics
    patch.undo()


# --- claims and parameters ------------------------------------------------------------------------------------------


def cell(*values):
    mean = sum(values) / len(values)
    return {
        "mean": mean,
        "ci95": [min(values), max(values)] if len(values) > 1 else None,
        "n": len(values),
        "values": list(values),
    }


def test_rules_are_those_fixed_before_the_run():
    claims = {claim.id: claim for claim in paper.claims}
    assert claims["C1"].rule.decide(cell(0.2, 0.25)) and not claims["C1"].rule.decide(cell(0.19, 0.2))
    assert claims["C1 frozen"].rule.decide(cell(0.96, 0.99)) and not claims["C1 frozen"].rule.decide(cell(0.9, 0.95))
    assert claims["C2 multiplicative"].rule.decide(cell(1.0, 0.9)) and not claims["C2 multiplicative"].rule.decide(
        cell(0.8, 0.9)
    )
    assert claims["C2 both"].rule.decide(cell(0.5, 0.4)) and not claims["C2 both"].rule.decide(cell(0.5, 0.6))
    assert claims["C3"].rule.decide(cell(1.0, 1.0)) and not claims["C3"].rule.decide(cell(1.0, 0.999))
    for name in ("C4 BF16", "C4 FP8", "C4 FP4", "C4 specific"):
        assert claims[name].rule.decide(cell(0.1, 0.2)) and not claims[name].rule.decide(cell(-0.01, 0.2))
    assert claims["C4 FP8"].cells == (("Adam-LP - M+Adam", "lm/e4m3 rne/nll"), ("Adam-LP - M+Adam", "lm/e4m3 sr/nll"))
    assert claims["C4 scale"].untestable


@pytest.mark.parametrize("profile", ["smoke", "cpu", "paper"])
def test_parameters_of_every_profile_are_valid_and_measure_every_claim(profile):
    for name in ("data", "train", "evaluate", "report"):
        params(name, profile)
    p = params("train", profile)
    tags = {tag(fmt, rounding) for fmt, _, rounding, _ in p.runs}
    assert {"fp32", "bf16 rne", "e4m3 rne", "e4m3 sr", "e2m1 rne", "e2m1 sr"} <= tags
    assert {"bf16", "e4m3"} <= set(p.bench.formats) and p.bench.seeds <= params("data", profile).bench.seeds


def test_cpu_parameters_are_the_specified_ones():
    p = params("train", "cpu")
    assert (p.bench.steps, p.bench.lr, p.bench.lr_mult["bf16"], p.bench.lr_mult["e4m3"]) == (800, 1e-3, 1e-2, 1e-1)
    assert (p.lm.d, p.lm.layers, p.lm.heads, p.lm.seq, p.lm.batch, p.lm.lr, p.lm.seeds) == (64, 2, 4, 64, 16, 3e-3, 3)
    assert dict(zip(("e4m3", "e2m1"), (p.runs[2][3], p.runs[4][3]), strict=True)) == {"e4m3": 0.05, "e2m1": 0.2}
    assert params("data", "cpu").bench.n == 4000 and len(p.tuning.factors) >= 3


def test_wrong_parameters_are_errors():
    for changes in (
        {"lm": {"lr": 0.0}},
        {"lm": {"widht": 4}},
        {"bench": {"formats": ["fp8"]}},
        {"runs": [["e4m3", "mx", "up", 0.1]]},
    ):
        with pytest.raises((ValidationError, settings.UserError)):
            params("train", "cpu", **changes)


def test_sweep_searches_parameters_that_exist_and_never_the_reported_text():
    known = params("train", "cpu").model_dump()
    for key in (*paper.sweep.space, *paper.sweep.overrides):
        node = known
        for part in key.split(".")[1:]:
            assert part in node, key
            node = node[part]
    assert paper.sweep.objective == ("M+Adam", "lm/choice_nll") and paper.sweep.step_metric == "choice_nll"


def test_names():
    assert tag("fp32", "sr") == "fp32" and readable("e2m1 sr") == "FP4 (E2M1), stochastic" and readable("fp32") == "FP32"
    assert short("e4m3 rne") == "FP8 nearest" and short("fp32") == "FP32"
    assert not runs_method("adam_kahan", "fp32", "rne") and not runs_method("adam_kahan", "e4m3", "sr")
    assert runs_method("adam_kahan", "e4m3", "rne") and all(
        runs_method(m, "fp32", "rne") for m in ("adam", "madam", "mplus_adam")
    )


# --- the stages -----------------------------------------------------------------------------------------------------


def test_text_is_split_in_order_and_problems_are_drawn_per_seed(flow):
    folder, _ = flow
    text = read_text(folder / "data")
    assert (len(text.train), len(text.choice), len(text.report)) == (28_500, 750, 750)
    assert text.symbols == SHAKESPEARE_SYMBOLS
    sheet = json.loads((folder / "data/datasheet.json").read_text())
    assert sheet["sha256"] == hashlib.sha256(np.load(folder / "data/tokens.npy").tobytes()).hexdigest()
    first, second = (read_problem(folder / "data", "bench", seed) for seed in (0, 1))
    assert first.w0.shape == (3, 40) and not np.array_equal(first.w0, second.w0)
    with pytest.raises(ValueError, match="seed 2 of bench is wanted, but the stage data drew 2"):
        read_problem(folder / "data", "bench", 2)


def test_every_method_runs_in_every_format_and_every_claim_is_measured(flow):
    folder, metrics = flow
    lm = pd.read_parquet(folder / "train/lm.parquet")
    for kind, seeds in (("tune", 1), ("lm", 2)):
        found = lm[lm["kind"] == kind].groupby("tag")["method"].agg(set).to_dict()
        everything = set(NAMES)
        assert found["bf16 rne"] == found["e4m3 rne"] == found["e2m1 rne"] == everything
        assert found["fp32"] == found["e4m3 sr"] == found["e2m1 sr"] == everything - {"adam_kahan"}
        assert set(lm[lm["kind"] == kind].groupby(["tag", "method", "factor"])["seed"].nunique()) == {seeds}
    for claim in paper.claims:
        for cell in claim.cells:
            assert cell.metric in metrics[cell.method], cell
            assert metrics[cell.method][cell.metric]["n"] == 2


def test_every_method_chooses_among_as_many_settings_on_text_that_is_not_reported(flow):
    folder, _ = flow
    lm = pd.read_parquet(folder / "train/lm.parquet")
    tried, final = lm[lm["kind"] == "tune"], lm[lm["kind"] == "lm"]
    assert set(tried.groupby(["tag", "method"])["factor"].nunique()) == {2} and not set(tried["seed"]) & set(final["seed"])
    best = tried.loc[tried.groupby(["tag", "method"])["choice_nll"].idxmin()].set_index(["tag", "method"])["factor"]
    for (name, method), rows in final.groupby(["tag", "method"]):
        assert set(rows["factor"]) == {best[name, method]}
    chosen = json.loads((folder / "train/chosen.json").read_text())
    assert chosen["e4m3 rne"]["madam"] == best["e4m3 rne", "madam"]


def test_differences_are_paired_by_seed(flow):
    _, metrics = flow
    for name in ("bf16 rne", "e2m1 sr"):
        a, b = (np.array(metrics[m][f"lm/{name}/nll"]["values"]) for m in ("Adam-LP", "M+Adam"))
        np.testing.assert_allclose(metrics["Adam-LP - M+Adam"][f"lm/{name}/nll"]["values"], a - b)
        c, d = (np.array(metrics[m]["lm/fp32/nll"]["values"]) for m in ("Adam-LP", "M+Adam"))
        np.testing.assert_allclose(metrics["gain - gain in fp32"][f"lm/{name}/nll"]["values"], (a - b) - (c - d))
        np.testing.assert_allclose(metrics["M+Adam"][f"lm/{name}/perplexity"]["values"], np.exp(b))
    worst = {
        m: [max(metrics[m][f"bench/e4m3 rne/{g} error"]["values"][i] for g in "LSX") for i in (0, 1)]
        for m in ("M+Adam", "Madam")
    }
    np.testing.assert_allclose(
        metrics["M+Adam / Madam"]["bench/e4m3 rne/worst error"]["values"], np.divide(worst["M+Adam"], worst["Madam"])
    )


def test_seeds_share_their_start_and_batches_over_methods(flow):
    """The first loss is that of the start: the same for all methods of a seed and a format, different between seeds."""
    folder, _ = flow
    history = pd.read_parquet(folder / "train/history.parquet")
    first = history[(history["kind"] == "lm") & (history["step"] == 1)]
    losses = first.groupby(["tag", "seed"])["train_nll"].agg(set)
    assert all(len(values) == 1 for values in losses) and all(len(set.union(*part)) == 2 for _, part in losses.groupby("tag"))
    assert first["train_nll"].between(math.log(SHAKESPEARE_SYMBOLS) - 0.2, math.log(SHAKESPEARE_SYMBOLS) + 0.2).all()


def test_schedule_moves_both_steps(flow):
    folder, _ = flow
    history = pd.read_parquet(folder / "train/history.parquet")
    rows = history[(history["kind"] == "lm") & (history["tag"] == "e4m3 rne") & (history["method"] == "mplus_adam")]
    ratio = rows["lr_mult"] / rows["lr"]
    assert np.allclose(ratio, ratio.iloc[0]) and len(set(rows["lr"])) > 1
    q = params("train", "cpu").lm
    factor = [stage("train").step_factor(q, step) for step in range(q.steps)]
    assert factor[0] == 1 / q.warmup and max(factor) == 1 and factor[-1] == pytest.approx(q.final_lr_frac)
    assert np.argmax(factor) in (q.warmup - 1, q.warmup)


def test_checkpoint_rebuilds_the_model(flow):
    """Codes and scales alone give a model with the reported loss."""
    folder, metrics = flow
    train = stage("train")
    p = params("train", "smoke", **SMALL["train"])
    stored = load_file(folder / "train/checkpoints/e2m1-rne-mplus_adam-0.safetensors")
    text = read_text(folder / "data")
    net = TinyLlama(text.symbols, 16, 1, 2)
    for name, parameter in net.named_parameters():
        fmt, scaling, block = (FORMATS["bf16"], "none", 0) if parameter.ndim < 2 else (FORMATS["e2m1"], "mx", 32)
        q = QTensor(stored[f"{name}/codes"], stored.get(f"{name}/scale"), None, parameter.shape, fmt, scaling, block)
        with torch.no_grad():
            parameter.copy_(q.dequantize())
    found = train.nll(net, text.report, p.lm, p.lm.final_windows, "cpu")
    assert found == pytest.approx(metrics["M+Adam"]["lm/e2m1 rne/nll"]["values"][0], abs=1e-6)


def test_bytes_per_weight_are_those_of_the_formats(flow):
    _, metrics = flow
    one = {name: metrics["M+Adam"][f"lm/{name}/bytes"]["mean"] for name in ("fp32", "bf16 rne", "e4m3 rne", "e2m1 rne")}
    assert one["fp32"] == 20 and one["bf16 rne"] == 18 and 17 < one["e4m3 rne"] < 17.2 and 16.5 < one["e2m1 rne"] < 16.7
    assert metrics["Adam-LP"]["lm/fp32/bytes"]["mean"] == 12  # weights and two moments


def test_stages_are_deterministic_to_the_byte(flow, tmp_path):
    folder, metrics = flow
    again = stages.run(SLUG, tmp_path, changes=SMALL, assets=ASSETS)
    assert hashes(tmp_path) == hashes(folder) and again == metrics


def test_report_is_whole(flow, tmp_path):
    folder, metrics = flow
    report = stage("report")
    report.report(params("report", "smoke"), metrics, folder / "train", folder / "evaluate", folder / "data", tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "Lowest mean loss" in text and "FP4 (E2M1), stochastic" in text
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == {"frozen", "bench", "curves", "deciles", "tuning"}
    assert {entry["id"] for entry in json.loads((tmp_path / "claims.json").read_text())} == {c.id for c in paper.claims}


def test_a_trial_of_the_sweep_runs_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("PAPERFLOWS_WORKERS", "1")
    check(ROOT, "shakespeare")
    stages.run(SLUG, tmp_path, ["data"], changes=SMALL, assets=ASSETS)
    changes: dict = {"lm": SMALL["train"]["lm"] | {"lr": 2e-3, "lr_mult": 0.3, "rounding": "sr"}}
    for key, value in paper.sweep.overrides.items():
        node = changes
        *path, last = key.split(".")[1:]
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    seen = []
    track.listen(lambda step, values: seen.append((step, values)))
    try:
        (tmp_path / "train").mkdir()
        stage("train").train(params("train", "smoke", **changes), tmp_path / "data", tmp_path / "train")
    finally:
        track.listen(None)
    (tmp_path / "evaluate").mkdir()
    metrics = stage("evaluate").evaluate(
        params("evaluate", "smoke"), tmp_path / "data", tmp_path / "train", tmp_path / "evaluate"
    )
    method, metric = paper.sweep.objective
    assert metrics[method][metric]["n"] == 2 and [step for step, _ in seen] == [3, 3]
    assert all(set(values) == {"choice_nll"} for _, values in seen)
    assert set(pd.read_parquet(tmp_path / "train/lm.parquet")["tag"]) == {"e4m3 sr"}


def test_grids_that_make_no_sense_are_named(tmp_path):
    train = stage("train")
    with pytest.raises(ValueError, match="train.runs names e4m3 rne twice"):
        train.lm_arms(params("train", "cpu", runs=[["e4m3", "mx", "rne", 0.1], ["e4m3", "mx_up", "rne", 0.1]]), tmp_path)
    with pytest.raises(ValueError, match="bench.lr_mult has no step for e5m2"):
        train.bench_jobs(params("train", "cpu", bench={"formats": ["e5m2"]}), tmp_path)
    with pytest.raises(ValueError, match="lm.model is 'llama_7b'"):
        train.build(params("train", "cpu", lm={"model": "llama_7b"}), 84, 0)


# --- the paper's own scale ------------------------------------------------------------------------------------------


def test_paper_profile_streams_c4_and_trains_the_60m_shape_on_a_cut(monkeypatch, tmp_path):
    """The corpus needs the internet and the model a GPU: a stand-in stream, and the shape with fewer blocks and short windows."""
    data, train = stage("data"), stage("train")
    whole, p = params("data", "paper"), params("train", "paper")
    assert whole.source == "c4" and whole.limit == 1_200_000_000
    assert (
        p.lm.model == "llama_60m"
        and p.lm.batch * p.lm.seq == 524_288
        and p.lm.batch * p.lm.seq * p.lm.steps >= 0.999 * whole.limit
    )
    assert p.state_dtype == "bfloat16" and ("e2m1", "nvfp4", "sr", 0.1) in p.runs

    def stream(out, count, *, tokenizer):
        tokens = np.random.default_rng(0).integers(0, 300, count).astype(np.uint16)
        np.save(out, tokens)
        return tokens, 300

    monkeypatch.setattr(data, "stream_tokens", stream)
    monkeypatch.setenv("PAPERFLOWS_WORKERS", "1")
    monkeypatch.setitem(LLAMA_SHAPES, "llama_60m", LLAMA_SHAPES["llama_60m"]._replace(layers=1, d=32, ff=48))
    (tmp_path / "data").mkdir()
    (tmp_path / "train").mkdir()
    data.data(params("data", "paper", limit=20_000, bench={"n": 20}), {}, tmp_path / "data")
    cut = {
        "device": "cpu",
        "lm": {
            "seq": 8,
            "batch": 4,
            "micro_batch": 2,
            "steps": 2,
            "warmup": 1,
            "seeds": 1,
            "eval_windows": 2,
            "final_windows": 4,
        },
        "bench": {"seeds": 0},
        "descent": {"seeds": 0},
        "methods": ["adam", "mplus_adam"],
    }
    train.train(params("train", "paper", **cut), tmp_path / "data", tmp_path / "train")
    lm = pd.read_parquet(tmp_path / "train/lm.parquet")
    assert len(lm) == 12 and np.isfinite(lm["nll"]).all()
    stored = load_file(tmp_path / "train/checkpoints/e2m1-sr-mplus_adam-0.safetensors")
    assert stored["blocks.0.q.weight/exp_avg_sq"].dtype == torch.bfloat16 and "blocks.0.q.weight/tensor_scale" in stored
    with pytest.raises(ValueError, match=r"mplus_adam.data.limit must say how many tokens"):
        data.data(params("data", "paper", limit=None), {}, tmp_path / "data")


def test_micro_batches_add_up_to_the_batch(flow):
    folder, _ = flow
    train = stage("train")
    losses = []
    for micro in (None, 1):
        p = params("train", "smoke", **settings.merge(SMALL["train"], {"lm": {"micro_batch": micro}}))
        job = train.lm_arms(p, folder / "data")[0]
        losses.append(train.run_lm(job)["history"]["train_nll"].to_numpy())
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)

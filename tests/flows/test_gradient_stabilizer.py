"""GradientStabilizer as a flow: rules, parameters, the same bytes twice, metrics by hand, the paper's configuration on a cut."""

from __future__ import annotations

import json
import math
import sys
import types

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from components.datasets.weather import Weather
from components.language.corpus import characters
from components.language.tiny_llama import LLAMA_SHAPES, LlamaShape
from components.optim.gradient_transforms import stabilizer_bound
from flows.gradient_stabilizer import OTHERS, paper
from flows.gradient_stabilizer.arms import ABLATIONS, CLIPS, METHODS
from tasks import settings
from tasks.errors import UserError
from tests.flows import stages
from tests.flows.stages import hashes, module

SLUG = "gradient_stabilizer"


def stage(name):
    return module(SLUG, name)


def params(name, profile, **changes):
    return stages.params(SLUG, name, profile, **changes)


SMALL = {
    "data": {"text": {"limit": 3000}, "weather": {"rows": 400, "context": 24, "horizon": 6}},
    "train": {
        "history_every": 1,
        "weight_decay": {"steps": 4, "widths": [8], "seeds": 2},
        "lr_sweep": {
            "d": 8,
            "layers": 1,
            "heads": 2,
            "seq": 8,
            "batch": 2,
            "steps": 3,
            "lrs": [0.01, 0.1],
            "windows": 4,
            "seeds": 2,
        },
        "corrupted": {"steps": 2, "batch": 2, "d": 4, "heads": 1, "layers": 1, "seeds": 2},
        "spikes": {"dim": 4, "steps": 30, "prob": 0.1, "traced": 20, "seeds": 2},
        "sensitivity": {"gamma1": [0.4], "gamma2": [0.95, 0.999], "seeds": 2},
    },
    "evaluate": {
        "adversary": {"steps": 100, "free": 20, "iterations": 5, "seeds": 2},
        "law": {"burn_in": 5, "steps": 3, "seeds": 2},
    },
}


@pytest.fixture(scope="module")
def sources():
    """Small stand-ins for the packaged texts and weather, so that the tests need no asset."""
    rng, patch = np.random.default_rng(0), pytest.MonkeyPatch()
    letters = "".join(rng.choice(list("abcdefgh ,."), size=3000))
    time = np.datetime64("2013-01-01T00", "s") + np.arange(500) * np.timedelta64(3600, "s")
    values = np.cumsum(rng.normal(size=(500, 6)), axis=0)
    values[7, 3] = 900.0  # a sensor's fault
    data = stage("data")
    patch.setattr(data, "load_shakespeare", lambda folder, limit: characters(letters[:limit]))
    patch.setattr(data, "load_weather", lambda folder: Weather(time, values))
    patch.setenv("PAPERFLOWS_WORKERS", "1")
    yield
    patch.undo()


def run(folder):
    return stages.run(SLUG, folder, changes=SMALL, assets={"shakespeare": folder, "weather": folder})


@pytest.fixture(scope="module")
def flow(tmp_path_factory, sources):
    folder = tmp_path_factory.mktemp("gradient_stabilizer")
    return folder, run(folder)


# --- claims and parameters ------------------------------------------------------------------------------------------


def cell(*values, half=1.0):
    mean = sum(values) / len(values)
    return {
        "mean": mean,
        "ci95": [mean - half, mean + half] if len(values) > 1 else None,
        "n": len(values),
        "values": list(values),
    }


def test_rules_are_those_fixed_before_the_run():
    claims = {claim.id: claim for claim in paper.claims}
    assert claims["C1 bound"].rule.decide(cell(0.3, 1.0)) and not claims["C1 bound"].rule.decide(cell(0.3, 1.00001))
    assert claims["C1 reached"].rule.decide(cell(0.91, 1.0)) and not claims["C1 reached"].rule.decide(cell(0.89, 1.0))
    assert claims["C3"].rule.decide(cell(0.97, 1.03)) and not claims["C3"].rule.decide(cell(1.021, 1.021))
    base, clip = claims["C4 FP4"].rules
    assert base.decide(cell(-2, -2)) and not base.decide(cell(-0.5, -0.5)) and clip.decide(cell(0.0, 0.0))
    assert not clip.decide(cell(0.1, 0.1))
    assert claims["C4 full precision"].rules[0].decide(cell(-0.1, -0.1))
    assert claims["C9 half"].rule.decide(cell(0.0, 0.0)) and not claims["C9 half"].rule.decide(cell(-0.1, -0.1))
    assert claims["C9 accuracy"].rule.decide(cell(2, 2)) and not claims["C9 accuracy"].rule.decide(cell(0.5, 0.5))
    assert claims["C10"].rule.decide(cell(-2, -2)) and not claims["C10"].rule.decide(cell(-0.5, -0.5))
    assert claims["C11"].rule.decide(cell(0.04, 0.05)) and not claims["C11"].rule.decide(cell(0.06, 0.05))
    assert claims["C8 width"].rule.decide(cell(0.0, 0.0)) and not claims["C8 area"].rule.decide(cell(0.0, 0.0))
    assert set(OTHERS) == {"none", *CLIPS} and {c.id for c in paper.claims if c.untestable} == {"C5", "C6"}


@pytest.mark.parametrize("profile", ["smoke", "cpu", "paper"])
def test_parameters_of_every_profile_are_valid(profile):
    for name in ("data", "train", "evaluate", "report"):
        params(name, profile)
    p = params("train", profile)
    # Every claim's cell is measured: a full precision and FP4, noise levels 1 and 3, no decay and some.
    assert {precision[:3] for precision in p.lr_sweep.precisions} in ({"fp3", "fp4"}, {"fp1", "fp4"})
    assert {0, 1, 3} <= set(p.corrupted.levels) and min(p.weight_decay.values) == 0 < max(p.weight_decay.values)


def test_cpu_parameters_are_the_specified_ones():
    p = params("train", "cpu")
    assert (p.gs.gamma1, p.gs.gamma2, p.gs.eps, p.gs.bias_correction, p.gs.scope) == (0.6, 0.999, 1e-12, True, "tensor")
    t = p.transforms
    assert (t.norm.max_norm, t.value.v, t.agc.factor, t.zclip.alpha, t.zclip.z, t.zclip.warmup) == (
        1.0,
        0.1,
        0.01,
        0.97,
        2.5,
        25,
    )
    assert (
        p.weight_decay.optimizer == "adam"
        and p.weight_decay.values == [0, 1e-3, 1e-2, 3e-2, 1e-1]
        and p.weight_decay.seeds == 5
    )
    assert (
        p.lr_sweep.lrs == [3e-3, 1e-2, 3e-2, 1e-1] and p.lr_sweep.precisions == ["fp32", "fp4_e1m2"] and p.lr_sweep.seeds == 3
    )
    assert (p.corrupted.prob, p.corrupted.levels, p.spikes.factor, p.spikes.prob) == (0.05, [0, 1, 3], 1000, 0.005)


def test_wrong_parameters_are_errors():
    with pytest.raises(ValidationError, match="extra_forbidden"):
        stage("train").Stabilizer(gamma=0.1)
    with pytest.raises(ValidationError, match="no uniform bound"):
        stage("train").Stabilizer(gamma1=0.95, gamma2=0.9)
    with pytest.raises(ValidationError, match="greater_than"):
        stage("train").NormOptions(max_norm=0)
    with pytest.raises(ValidationError, match="greater_than_equal"):
        stage("train").WeightDecay(values=[0.0, 1.0], seeds=-1)


def test_sweep_searches_parameters_that_exist_and_rates_that_have_a_bound():
    known = params("train", "cpu").model_dump()
    for key in (*paper.sweep.space, *paper.sweep.overrides):
        node = known
        for part in key.split(".")[1:]:
            assert part in node, key
            node = node[part]
    space = paper.sweep.space
    assert space["train.gs.gamma1"].high ** 2 < min(space["train.gs.gamma2"].values)
    assert paper.sweep.objective[1].endswith("selection loss")


def test_a_trial_of_the_sweep_measures_its_objective(flow, tmp_path):
    folder, _ = flow
    overrides = {}
    for key, value in paper.sweep.overrides.items():
        node = overrides
        *path, last = key.split(".")[1:]
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    p = params("train", "smoke", **settings.merge(SMALL["train"], settings.merge(overrides, {"lr_sweep": {"lr": 0.02}})))
    (tmp_path / "train").mkdir()
    (tmp_path / "evaluate").mkdir()
    stage("train").train(p, folder / "data", tmp_path / "train")
    metrics = stage("evaluate").evaluate(
        params("evaluate", "smoke", **SMALL["evaluate"]), folder / "data", tmp_path / "train", tmp_path / "evaluate"
    )
    method, metric = paper.sweep.objective
    assert metrics[method][metric]["n"] == 2 and metrics[method]["language/full/best lr"]["mean"] == pytest.approx(0.02)


# --- the stages -----------------------------------------------------------------------------------------------------


def test_every_claims_quantity_is_measured(flow):
    _, metrics = flow
    for claim in paper.claims:
        for at in claim.cells:
            found = metrics[at.method][at.metric]
            assert math.isfinite(found["mean"]) and found["n"] == 2, at


def test_every_method_runs_on_every_task(flow):
    folder, _ = flow
    runs = pd.read_parquet(folder / "train/runs.parquet")
    for task, group in runs.groupby("task"):
        wanted = set(METHODS) if task in ("language", "spikes") else set(METHODS) - set(ABLATIONS)
        wanted = {"trace": {"none", "NormClip", "ZClip", "GS"}, "sensitivity": {"GS"}}.get(task, wanted)
        assert set(group["method"]) == wanted
    grid = (
        runs[runs["task"] == "language"]
        .groupby("method")[["lr", "precision", "seed"]]
        .apply(lambda x: sorted(map(tuple, x.values.tolist())))
    )
    assert all(rows == grid.iloc[0] for rows in grid)  # the same rates, precisions and seeds for every method
    history = pd.read_parquet(folder / "train/history.parquet")
    assert set(history["run"]) == set(runs["run"]) and list(history.columns[:2]) == ["step", "loss"]
    assert set(load_file(folder / "train/weights-fp32.safetensors")) == set(
        load_file(folder / "train/weights-fp4_e1m2.safetensors")
    )


def test_methods_share_weights_batches_and_noise(flow):
    folder, _ = flow
    runs = pd.read_parquet(folder / "train/runs.parquet")
    history = pd.read_parquet(folder / "train/history.parquet").merge(runs, on="run", suffixes=("", "_run"))
    first = history[history["step"] == 0]
    for task in ("digits", "weather", "language", "spikes"):
        keys = ["seed", "precision", "level"]
        spread = first[first["task"] == task].groupby(keys)[["loss", "raw_norm"]].agg(lambda x: x.max() - x.min())
        # Weight decay, learning rate and method change nothing about the first gradient.
        assert len(spread) >= 2 and float(spread.max().max()) == 0


def test_stabilised_norms_of_all_runs_obey_the_bound(flow):
    folder, metrics = flow
    runs = pd.read_parquet(folder / "train/runs.parquet")
    ours = runs[(runs["method"] == "GS") & (runs["task"] != "sensitivity")]
    bound = stabilizer_bound()
    assert metrics["GS"]["bound/largest norm"]["values"][0] == pytest.approx(ours[ours["seed"] == 0]["max_rho"].max() / bound)
    assert ours["max_rho"].max() <= bound
    spikes = runs[(runs["task"] == "spikes") & (runs["method"] == "none")]
    assert spikes["max_rho"].max() > 100  # what the others let through


def test_differences_and_best_clip_by_hand(flow):
    _, metrics = flow
    for metric in ("weather/mse@1", "digits/accuracy@strongest", "language/fp4/area"):
        ours, none = metrics["GS"][metric]["values"], metrics["none"][metric]["values"]
        np.testing.assert_allclose(metrics["GS - none"][metric]["values"], np.subtract(ours, none))
        clips = [metrics[clip][metric]["mean"] for clip in CLIPS]
        best = max(clips) if "accuracy" in metric else min(clips)
        assert metrics["GS - best clip"][metric]["mean"] == pytest.approx(metrics["GS"][metric]["mean"] - best)
    drop = {
        m: np.subtract(metrics[m]["digits/accuracy@0"]["values"], metrics[m]["digits/accuracy@0.1"]["values"])
        for m in ("GS", "AGC")
    }
    np.testing.assert_allclose(
        metrics["half the drop of AGC - drop of GS"]["digits/accuracy"]["values"], drop["AGC"] / 2 - drop["GS"]
    )


def test_stages_are_deterministic_to_the_byte(flow, tmp_path, sources):
    folder, metrics = flow
    again = run(tmp_path)
    assert hashes(tmp_path) == hashes(folder) and again == metrics


def test_report_is_whole(flow, tmp_path):
    folder, metrics = flow
    stage("report").report(params("report", "smoke"), metrics, folder / "train", folder / "evaluate", tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "The stabilised norm under SGD" in text and "the best clip" in text
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == {"spike", "rates", "decay", "bound"}
    assert [entry["id"] for entry in json.loads((tmp_path / "claims.json").read_text())] == [claim.id for claim in paper.claims]


def test_unknown_methods_are_named(flow):
    folder, _ = flow
    with pytest.raises(ValueError, match=r"train\.methods names 'Adam'"):
        stage("train").jobs_of(params("train", "smoke", methods=["Adam"]), folder / "data")


# --- measures -------------------------------------------------------------------------------------------------------


def test_area_width_and_holm_by_hand():
    evaluate = stage("evaluate")
    lrs, losses = np.array([1e-3, 1e-2, 1e-1]), np.array([2.0, 1.0, 4.0])
    assert evaluate.area(lrs, losses) == pytest.approx((1.5 + 2.5) / 2) and evaluate.area(lrs[:1], losses[:1]) == 2
    assert evaluate.width(lrs, losses, 1.0, 0.2) == 0 and evaluate.width(lrs, losses, 1.0, 1.0) == pytest.approx(1)
    assert evaluate.width(lrs, losses, 0.5, 0.1) == 0
    found = evaluate.holm({"a": 0.01, "b": 0.04, "c": 0.03})
    assert found == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})


def test_the_search_comes_near_the_bound_and_not_beyond():
    evaluate = stage("evaluate")
    p = evaluate.Adversary(steps=400, free=40, iterations=150, seeds=1)
    norms = evaluate.adversarial_norms(p, 0.6, 0.95, 0)
    assert norms.shape == (400,) and norms.min() >= 1 - 1e-9 and norms.max() <= 1e8 * (1 + 1e-9)
    reached = evaluate.norms_through(stage("train").GradientStabilizer(0.6, 0.95), norms[:, None]).max()
    assert 0.95 < reached / stabilizer_bound(0.6, 0.95) <= 1


def test_quadratic_spikes_are_where_they_are_asked_for():
    problems, q = stage("problems"), params("train", "smoke", spikes={"dim": 16}).spikes
    spiky, calm = (problems.Quadratic(q, 3, spikes) for spikes in (frozenset({5}), frozenset()))
    for step in range(8):
        for problem in (spiky, calm):
            problem.set_gradient(step)
        if step == 5:
            assert spiky.x.grad.norm().item() == pytest.approx(1000 * spiky.running, rel=1e-4)
        else:
            assert torch.equal(spiky.x.grad, calm.x.grad)  # the same numbers are drawn with and without


def test_corruption_touches_a_share_of_the_training_inputs_alone(flow, monkeypatch):
    folder, _ = flow
    problems, seen = stage("problems"), []
    original = problems.PatchTST.forward
    monkeypatch.setattr(problems.PatchTST, "forward", lambda net, x: seen.append(x.detach().clone()) or original(net, x))
    q = params("train", "smoke", **SMALL["train"]).corrupted.model_copy(update={"batch": 64})
    results = {}
    for level in (0, 1, 3):
        problem = problems.weather(q, folder / "data", level, 0)
        problem.loss(0)
        results[level] = seen.pop()
        problem.measure()
        results[level, "test"] = seen.pop()
    assert torch.equal(results[0, "test"], results[3, "test"])
    noise = results[1] - results[0]
    share = (noise != 0).double().mean().item()
    assert share == pytest.approx(0.05, abs=0.01)
    torch.testing.assert_close(results[3] - results[0], 3 * noise, rtol=1e-3, atol=1e-4)
    assert noise[noise != 0].std().item() == pytest.approx(6, rel=0.15)  # the largest clean input is the limit of 6
    assert results[0].abs().max() <= 6


# --- the paper's own scale ------------------------------------------------------------------------------------------


def test_paper_profile_reads_c4_and_trains_its_llama_in_half_precision_on_a_cut(monkeypatch, tmp_path, sources):
    """C4 and the tokeniser need the internet: stand-ins with their interfaces; the configuration is the paper's."""
    asked = {}

    class Tokenizer:
        def __call__(self, text):
            return {"input_ids": [ord(c) % 32 for c in text] + [1]}

        def __len__(self):
            return 32

    def load(*words, **options):
        asked["data"] = (words, options)
        return iter([{"text": "a text of the web " * 20}] * 40)

    fakes = {
        "datasets": types.SimpleNamespace(load_dataset=load),
        "transformers": types.SimpleNamespace(
            AutoTokenizer=types.SimpleNamespace(from_pretrained=lambda name: asked.setdefault("name", name) and Tokenizer())
        ),
    }
    for name, fake in fakes.items():
        monkeypatch.setitem(sys.modules, name, fake)
    whole = params("data", "paper")
    assert (whole.text.source, whole.text.limit) == ("c4", 2_200_000_000)
    p = params("data", "paper", text={"limit": 4000, "train_share": 0.9}, weather={"rows": 400})
    (tmp_path / "data").mkdir()
    stage("data").data(p, {"shakespeare": tmp_path, "weather": tmp_path}, tmp_path / "data")
    assert asked == {"name": "t5-base", "data": (("allenai/c4", "en"), {"split": "train", "streaming": True})}
    tokens = np.load(tmp_path / "data/tokens.npy")
    assert tokens.size == 4000 and tokens.dtype == np.int32 and tokens[18 * 20] == 1

    q = params("train", "paper").lr_sweep
    assert (q.task, q.seq, q.batch, q.warmup, q.precisions) == ("llama_130m", 256, 512, 2000, ["fp16", "fp4_e1m2"])
    assert LLAMA_SHAPES["llama_130m"] == LlamaShape(768, 2048, 12, 12)
    monkeypatch.setitem(LLAMA_SHAPES, "llama_130m", LlamaShape(8, 16, 1, 2))
    cut = {"lr_sweep": {"seq": 8, "batch": 2, "steps": 3, "warmup": 2, "lrs": [0.01], "windows": 4, "seeds": 1}}
    off = {task: {"seeds": 0} for task in ("weight_decay", "corrupted", "spikes", "sensitivity")}
    (tmp_path / "train").mkdir()
    p = params("train", "paper", device="cpu", methods=["none", "GS"], **cut, **off)
    stage("train").train(p, tmp_path / "data", tmp_path / "train")
    runs = pd.read_parquet(tmp_path / "train/runs.parquet")
    assert list(runs["precision"]) == ["fp16", "fp16", "fp4_e1m2", "fp4_e1m2"] and runs["loss"].between(1, 5).all()


def test_c4_that_cannot_be_had_is_one_sentence(monkeypatch):
    data = stage("data")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="needs the packages datasets and transformers"):
        data.c4_tokens(data.Text(source="c4", limit=5000))
    with pytest.raises(UserError, match="must say how many tokens"):
        data.c4_tokens(data.Text(source="c4"))


def test_vision_transformer_trains_on_a_cut(monkeypatch, tmp_path):
    """ImageNet needs a licence agreement and torchvision its own package: stand-ins with their interfaces."""
    images = [(torch.full((3, 4, 4), float(i % 2)), i % 2) for i in range(8)]

    class Folder(list):
        def __init__(self, root, transform):
            super().__init__(images)
            self.classes = ["a", "b"]

    def net(weights, num_classes):
        assert weights is None
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, num_classes))

    anything = types.SimpleNamespace(
        **{name: lambda *a: None for name in ("ToTensor", "Normalize", "Compose", "RandomResizedCrop")}
    )
    for name in ("RandomHorizontalFlip", "Resize", "CenterCrop"):
        setattr(anything, name, lambda *a: None)
    fake = types.SimpleNamespace(
        datasets=types.SimpleNamespace(ImageFolder=Folder), models=types.SimpleNamespace(vit_b_16=net), transforms=anything
    )
    problems, train = stage("problems"), stage("train")
    q = params("train", "paper").weight_decay
    assert (q.task, q.values, q.optimizer) == ("vit_b_imagenet", [0, 1e-4, 5e-4], "adam")
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(UserError, match="needs the package torchvision"):
        problems.vision_transformer(q, 0, "cpu")
    monkeypatch.setitem(sys.modules, "torchvision", fake)
    with pytest.raises(UserError, match="must hold ImageNet as folders train and val"):
        problems.vision_transformer(q, 0, "cpu")
    for part in ("train", "val"):
        (tmp_path / part).mkdir()
    cut = {"weight_decay": {"folder": str(tmp_path), "steps": 30, "batch": 4, "lr": 0.05}}
    p = params("train", "paper", device="cpu", **cut)
    job = train.Job(p, tmp_path, "digits", "GS", 0, "adam", 0.05)
    assert train.run_job(job)["facts"]["accuracy"] == 100

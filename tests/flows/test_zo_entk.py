"""Zeroth-order SGD through the tangent kernel as a flow: rules, parameters, laws seen in its tables, same bytes twice, language models on a cut."""

from __future__ import annotations

import gzip
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

from flows.zo_entk import language, paper
from flows.zo_entk.nets import batches, mlp
from flows.zo_entk.store import KINDS, Inputs, read_inputs, read_pairs, seed_of
from tasks.claims import verdicts
from tasks.errors import UserError
from tests.flows import stages
from tests.flows.stages import hashes, module

SLUG = "zo_entk"


def stage(name):
    return module(SLUG, name)


def params(name, profile, **changes):
    return stages.params(SLUG, name, profile, **changes)


SMALL = {
    "train": {
        "widths": [8, 16],
        "trajectory": {"steps": 4, "perturbations": [2, 8], "compared_at": [8]},
        "lenet": {"train_steps": 2},
    },
    "evaluate": {
        "perturbations": [2, 8],
        "least_columns": 16,
        "focus": 8,
        "v_scan": [2, 4],
        "length_draws": 4,
        "lenet": {"perturbations": [4, 8]},
        "one_step": {"perturbations": 4},
    },
}


@pytest.fixture(scope="module")
def asset(tmp_path_factory):
    """A file of the packaged digits' shape: noise that brightens with the class."""
    folder = tmp_path_factory.mktemp("mnist_5k")
    rows = np.random.default_rng(0).integers(0, 100, (5000, 785))
    rows[:, -1] = np.arange(5000) // 500
    rows[:, :28] += 10 * rows[:, -1:]
    with gzip.open(folder / "mnist_5k.csv.gz", "wt", compresslevel=1) as file:
        pd.DataFrame(rows).to_csv(file, header=False, index=False)
    return folder


@pytest.fixture(scope="module")
def flow(tmp_path_factory, asset):
    patch = pytest.MonkeyPatch()
    patch.setenv("PAPERFLOWS_WORKERS", "1")
    folder = tmp_path_factory.mktemp("zo_entk")
    metrics = stages.run(SLUG, folder, changes=SMALL, assets={"mnist_5k": asset})
    yield folder, metrics
    patch.undo()


# --- claims and parameters ------------------------------------------------------------------------------------------


def cell(*values):
    mean = sum(values) / len(values)
    return {
        "mean": mean,
        "ci95": [mean - 0.01, mean + 0.01] if len(values) > 1 else None,
        "n": len(values),
        "values": list(values),
    }


def test_rules_are_those_fixed_before_the_run():
    claims = {claim.id: claim for claim in paper.claims}
    assert claims["C1"].rule.decide(cell(2.1, 2.0)) and not claims["C1"].rule.decide(cell(1.8, 1.8))
    assert claims["C2"].rule.decide(cell(1e-6, 9e-6)) and not claims["C2"].rule.decide(cell(1e-9, 2e-5))
    assert claims["C3 rate"].rule.decide(cell(-0.46, -0.54)) and not claims["C3 rate"].rule.decide(cell(-0.44))
    assert claims["C3 law"].rule.decide(cell(0.86, 1.14)) and not claims["C3 law"].rule.decide(cell(1.0, 1.16))
    assert claims["C4 kernel"].rule.decide(cell(0.04, 0.05)) and not claims["C4 kernel"].rule.decide(cell(0.06, 0.07))
    assert claims["C4 trajectory"].rule.decide(cell(0.14, 0.14)) and not claims["C4 trajectory"].rule.decide(cell(0.16, 0.16))
    wide = cell(0.1, 0.1) | {"ci95": [-0.1, 0.3]}
    assert not claims["C4 trajectory"].rule.decide(wide)
    assert claims["C4 outputs"].rule.decide(cell(0.41)) and not claims["C4 outputs"].rule.decide(cell(0.61))
    assert claims["C5"].rule.decide(cell(1.04)) and not claims["C5"].rule.decide(cell(0.94))
    assert claims["C6"].rule.decide(cell(0.91, 1.0)) and not claims["C6"].rule.decide(cell(1.11))
    assert [rule.decide(cell(0.0)) for rule in claims["C7 order"].rules] == [False, False, True]
    assert claims["C7 alignment"].rule.decide(cell(0.9)) and not claims["C7 alignment"].rule.decide(cell(0.89))
    assert claims["C4 language models"].untestable


@pytest.mark.parametrize("profile", ["smoke", "cpu", "paper"])
def test_parameters_of_every_profile_are_valid(profile):
    for name in ("data", "train", "evaluate", "report"):
        params(name, profile)
    assert len(params("train", profile).widths) > 1  # slopes against d need two
    assert params("evaluate", profile).focus in params("evaluate", profile).perturbations


def test_cpu_parameters_are_the_specified_ones():
    p, q = params("train", "cpu"), params("evaluate", "cpu")
    t = p.trajectory
    assert (p.widths, p.gain, p.seeds) == ([48, 144, 432], 1.5, 5)
    assert (t.eta, t.steps, t.batch, t.perturbations, t.mu, t.seeds) == (0.3, 60, 64, [1, 4, 16, 64], 1e-3, 3)
    assert (q.dists, q.perturbations, q.kernel_reps) == (["gaussian", "rademacher", "sphere"], [1, 4, 16, 64, 256], 8)
    assert (q.v_scan, q.lenet.perturbations, p.lenet.train_steps) == ([2, 5, 10, 30, 100], [5, 25, 125], 200)
    assert params("data", "cpu").pairs_per_kind == 4 and params("data", "cpu").probes == 200


def test_wrong_parameters_are_errors(asset, tmp_path):
    with pytest.raises(ValidationError, match="extra_forbidden"):
        stage("train").Trajectory(learning_rate=1.0)
    with pytest.raises(ValidationError, match="greater_than"):
        stage("train").Trajectory(mu=0)
    with pytest.raises(ValidationError, match="literal_error"):
        stage("evaluate").Params(dists=["cauchy"])
    with pytest.raises(UserError, match="9 pairs of kind similar are wanted, but the 50 probes of digits have"):
        stage("data").data(params("data", "cpu", probes=50, pairs_per_kind=9), {"mnist_5k": asset}, tmp_path)
    with pytest.raises(UserError, match="probes = 400 leaves nothing of 400 rows"):
        stage("data").data(params("data", "smoke", probes=400), {"mnist_5k": asset}, tmp_path)
    with pytest.raises(UserError, match=r"similar needs two different classes"):
        stage("data").data(params("data", "smoke", similar=[4, 4]), {"mnist_5k": asset}, tmp_path)


def test_sweep_searches_parameters_that_exist():
    known = {name: params(name, "cpu").model_dump() for name in ("train", "evaluate")}
    for key in (*paper.sweep.space, *paper.sweep.overrides):
        node = known
        for part in key.split("."):
            assert part in node, key
            node = node[part]


def test_a_sweeps_trial_spends_its_forward_passes(flow, tmp_path):
    folder, _ = flow
    changes = {"widths": [8], "trajectory": {"forward_passes": 64, "sweep_perturbations": 4, "sweep_dist": "sphere"}}
    seen = []
    from tasks import track

    track.listen(lambda step, values: seen.append((step, values["probe_loss"])))
    try:
        stage("train").train(params("train", "smoke", **changes), folder / "data", tmp_path)
    finally:
        track.listen(None)
    history = pd.read_parquet(tmp_path / "history.parquet")
    assert history["step"].tolist() == [8, 8] and len(seen) == 16
    metrics = stage("evaluate").evaluate(params("evaluate", "smoke", budget_only=True), folder / "data", tmp_path, tmp_path)
    method, metric = paper.sweep.objective
    assert metrics[method][metric]["values"] == history["probe_loss"].tolist() == [seen[7][1], seen[15][1]]


# --- the stages -----------------------------------------------------------------------------------------------------


def test_pairs_are_what_their_kind_says(flow):
    folder, _ = flow
    for name in ("digits", "mnist"):
        inputs, pairs = read_inputs(folder / "data", name), read_pairs(folder / "data", name)
        assert (
            inputs.y.size == 400 and set(pairs["kind"]) == set(KINDS) and pairs[["idx_o", "idx_u"]].max().max() < inputs.probes
        )
        for pair in pairs.itertuples():
            assert (inputs.y[pair.idx_o], inputs.y[pair.idx_u]) == (pair.y_o, pair.y_u)
            classes = {pair.y_o, pair.y_u}
            assert (pair.idx_o == pair.idx_u) == (pair.kind == "self")
            assert {
                "self": len(classes) == 1,
                "same": len(classes) == 1,
                "similar": classes == {4, 9},
                "dissimilar": classes == {0, 1},
            }[pair.kind]
    with pytest.raises(ValueError, match="did not prepare the data set 'cifar'"):
        read_inputs(folder / "data", "cifar")


def test_probes_are_never_trained_on_and_batches_are_shared():
    inputs = Inputs(np.arange(50, dtype=np.float32)[:, None], np.zeros(50, dtype=np.int64), 20)
    first, again = (torch.stack([x for x, _ in batches(inputs, 8, 30, 3)]) for _ in range(2))
    assert first.min() >= 20 and torch.equal(first, again)
    assert not torch.equal(first, torch.stack([x for x, _ in batches(inputs, 8, 30, 4)]))
    assert len({seed_of("a", 1), seed_of("a", 2), seed_of("b", 1), seed_of(1, "a")}) == 4


def test_first_order_trajectory_is_torchs_sgd(flow):
    folder, _ = flow
    p, inputs = params("train", "smoke", **SMALL["train"]), read_inputs(folder / "data", "digits")
    net = mlp(16, p.gain, 1)
    stored = load_file(folder / "train/weights/16-1.safetensors")
    assert torch.equal(stored["start"], net.flat())
    optimizer = torch.optim.SGD(net.parameters(), p.trajectory.eta)
    for x, y in batches(inputs, p.trajectory.batch, p.trajectory.steps, 1):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(net.flat(), stored["FO"], atol=1e-5, rtol=0)


def test_zeroth_order_trajectory_is_the_optimisers(flow):
    from components.optim.zeroth_order import ZOSGD

    folder, _ = flow
    p, inputs = params("train", "smoke", **SMALL["train"]), read_inputs(folder / "data", "digits")
    t, net = p.trajectory, mlp(8, p.gain, 0)
    optimizer = ZOSGD(net.parameters(), t.eta, 8, t.mu, "gaussian", seed=seed_of("trajectory", "gaussian", 8, 8, 0))
    for x, y in batches(inputs, t.batch, t.steps, 0):
        optimizer.step(lambda x=x, y=y: torch.nn.functional.cross_entropy(net(x), y))
    stored = load_file(folder / "train/weights/8-0.safetensors")["ZO gaussian P=8"]
    # Losses of about 3 in float32 over 2 mu: the slopes carry errors of 1e-4.
    assert (net.flat() - stored).norm() < 0.01 * (stored - mlp(8, p.gain, 0).flat()).norm()


def test_deviation_by_hand():
    start = torch.zeros(2, 1)
    dev, cos = stage("train").deviation(torch.tensor([[0.0], [3.0]]), torch.tensor([[4.0], [0.0]]), start)
    assert (dev, cos) == pytest.approx((5 / 4, 0))
    assert all(math.isnan(x) for x in stage("train").deviation(start, start, start))


def test_tables_hold_every_pair_distribution_and_draw(flow):
    folder, metrics = flow
    kernel = pd.read_parquet(folder / "evaluate/kernel.parquet")
    assert set(kernel["dist"]) == {"gaussian", "rademacher", "sphere", "coordinate"}
    counts = kernel.groupby(["net", "seed", "dist", "P", "pair_id"]).size()
    assert counts.xs("16", level="net").groupby("P").first().to_dict() == {2: 8, 8: 3}
    assert np.isfinite(kernel["square_error"]).all() and (kernel["kappa"] <= 1 + 1e-9).all()
    gaussian = kernel[kernel["dist"] == "gaussian"]
    # The law of Gaussian perturbations through the alignment alone.
    np.testing.assert_allclose(
        gaussian["law"], gaussian["square_norm"] * (1 + gaussian["kappa"] ** -2) / gaussian["P"], rtol=1e-6
    )
    pooled = np.sqrt(kernel["square_error"].groupby(kernel["dist"]).sum() / kernel["law"].groupby(kernel["dist"]).sum())
    assert pooled.drop("coordinate").between(0.6, 1.6).all()
    assert metrics["ZO"]["one_step/kernel_difference"]["n"] == 2
    assert max(metrics["ZO"]["one_step/kernel_difference"]["values"]) < 1e-5


def test_every_claim_is_measured(flow):
    _, metrics = flow
    found = {entry["id"]: entry for entry in verdicts(paper.claims, metrics)}
    assert set(found) == {claim.id for claim in paper.claims}
    assert found["C1"]["verdict"] == "holds" and found["C2"]["verdict"] == "holds"  # these two need no scale


def test_stages_are_deterministic_to_the_byte(flow, asset, tmp_path):
    folder, metrics = flow
    again = stages.run(SLUG, tmp_path, changes=SMALL, assets={"mnist_5k": asset})
    assert hashes(tmp_path) == hashes(folder) and again == metrics


def test_report_is_whole(flow, tmp_path):
    folder, metrics = flow
    stage("report").report(params("report", "smoke"), metrics, folder / "data", folder / "train", folder / "evaluate", tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "falls as P / d, and nothing in the kernel" in text and "per forward pass" in text
    figures = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert figures == {"error", "dimension", "trajectories", "normalised", "outputs", "one-step"}
    assert len(json.loads((tmp_path / "claims.json").read_text())) == len(paper.claims)


# --- the paper's own scale ------------------------------------------------------------------------------------------


class TinyLM(torch.nn.Module):
    """The interface of a causal language model: logits (N, L, vocabulary) that depend on the tokens up to each place."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = torch.nn.Embedding(64, 8), torch.nn.Linear(8, 64)

    def forward(self, input_ids, attention_mask):
        h = self.embedding(input_ids) * attention_mask[..., None]
        return types.SimpleNamespace(logits=self.head(torch.tanh(h.cumsum(1))))


def tokenizer(text, add_special_tokens=True):
    ids = [sum(map(ord, word)) % 60 + 2 for word in text.split()]
    return {"input_ids": ([1] if add_special_tokens else []) + ids}


def sentences():
    rows = [("train", f"film {k} {'fine' if k % 2 else 'dull'}", k % 2) for k in range(40)]
    return pd.DataFrame(rows + [("validation", *row[1:]) for row in rows], columns=["split", "text", "label"])


def test_paper_profile_names_the_papers_models_and_setting():
    q, e = params("train", "paper").language, params("evaluate", "paper").language
    assert tuple(q.models) == tuple(e.models) == language.MODELS
    assert (q.perturbations, q.eta, q.mu, q.steps, q.batch, q.dtype) == ([1, 5, 25, 125], 1e-6, 1e-3, 2000, 16, "bfloat16")
    assert params("data", "paper").sst2 and params("data", "paper").lenet_source == "mnist"


def test_paper_profile_runs_on_a_cut(flow, tmp_path, monkeypatch):
    """The hub's models, tokenizers and sentences need the internet: small ones of their interface stand in."""
    folder, _ = flow
    for name in ("train", "evaluate"):
        monkeypatch.setattr(stage(name), "load_causal_lm", lambda name, dtype, device: (TinyLM(), tokenizer))
    (tmp_path / "data").mkdir()
    sentences().to_parquet(tmp_path / "data/sst2.parquet")
    cut = {
        "language": {
            "models": ["facebook/opt-125m"],
            "perturbations": [5],
            "steps": 3,
            "eta": 0.1,
            "probes": 6,
            "device": "cpu",
        }
    }
    p = params("train", "paper", **cut)
    train = stage("train")
    result = train.run_job(train.Job(p, tmp_path / "data", 0, "facebook/opt-125m"))
    history = result["history"]
    assert history[["P", "step"]].to_numpy().tolist() == [[P, s] for P in (0, 5) for s in range(4)]
    exact, rough = history[history["P"] == 0], history[history["P"] == 5]
    assert exact["dev"].iloc[1:].max() < 1e-12 and exact["cos"].iloc[1:].min() > 0.999 and rough["dev"].iloc[-1] > 0.05
    e = params("evaluate", "paper", language={"perturbations": [25, 125], "pairs": 3, "device": "cpu"})
    found = stage("evaluate").run_language("facebook/opt-125m", e.language, sentences(), 0)
    assert found.groupby(["kind", "P"]).size().to_dict() == {(kind, P): 3 for kind in ("same", "different") for P in (25, 125)}
    ratio = np.sqrt(found["square_error"].sum() / found["law"].sum())
    assert 0.3 < ratio < 2  # three pairs, one draw each
    with pytest.raises(UserError, match=r"data\.sst2 is false"):
        train.jobs_of(p, folder / "data")


def test_finite_differences_give_the_projected_kernel():
    """From forward passes alone, against the tangent vectors and the replayed directions; the weights come back."""
    from components.optim.entk import jacobian, zo_entk

    net = language.VerbaliserModel(TinyLM().double(), [3, 5])
    before = [parameter.clone() for parameter in net.parameters()]
    first, second = (language.encode(tokenizer, [text], 16) for text in ("a good film", "bad"))
    facts = language.kernel_error(net, first, second, perturbations=6, mu=1e-3, seed=2, step=1)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    Jo, Ju = jacobian(net, first)[0], jacobian(net, second)[0]
    wanted = (zo_entk(Jo.float(), Ju.float(), 6, seed=2, step=1) - Jo.float() @ Ju.float().T).square().sum().item()
    assert facts["square_error"] == pytest.approx(wanted, rel=1e-2)


def test_prompts_and_verbalisers():
    tokens = language.encode(tokenizer, ["one two", "three"], 16)
    assert tokens.shape == (2, 5) and tokens[1, -1] == -1 and (tokens[0] >= 0).all()
    assert language.encode(tokenizer, ["a b c d e f g h i j k"], 8).shape == (1, 8)
    assert language.verbaliser_ids(tokenizer) == [tokenizer(w, False)["input_ids"][0] for w in language.VERBALISERS]
    with pytest.raises(ValueError, match="begin with the same token"):
        language.verbaliser_ids(lambda text, add_special_tokens: {"input_ids": [7]})
    net = language.VerbaliserModel(TinyLM(), [3, 5])
    # Padding changes nothing: the last real token is read.
    torch.testing.assert_close(net(tokens)[1], net(tokens[1:, :4])[0])
    with pytest.raises(ValueError, match="at least one token"):
        net(torch.full((1, 3), -1))


def test_missing_packages_are_named(monkeypatch, asset, tmp_path):
    for name in ("datasets", "torchvision", "torchvision.datasets"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match="SST-2 could not be loaded.*package datasets"):
        stage("data").data(params("data", "smoke", sst2=True), {"mnist_5k": asset}, tmp_path)
    with pytest.raises(UserError, match="MNIST could not be loaded.*torchvision"):
        stage("data").data(params("data", "smoke", lenet_source="mnist"), {}, tmp_path)


def test_sst2_is_the_hubs(monkeypatch):
    asked = []
    fake = types.SimpleNamespace(
        load_dataset=lambda *names: (
            asked.append(names) or {split: {"sentence": ["x"] * n, "label": [0] * n} for split, n in language.SPLITS.items()}
        )
    )
    monkeypatch.setitem(sys.modules, "datasets", fake)
    found = language.load_sst2()
    assert asked == [("nyu-mll/glue", "sst2")] and found["split"].value_counts().to_dict() == language.SPLITS


def test_a_saved_opt_is_loaded_and_read_through_its_verbalisers(tmp_path):
    """A model of the paper's family in the hub's layout, small and untrained: the loaders and the tokenizer are the real ones."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

    words = ["<unk>", "</s>", "terrible", "great", "a", "good", "film", "It", "was"]
    tokens = Tokenizer(WordLevel({word: k for k, word in enumerate(words)}, unk_token="<unk>"))
    tokens.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokens, unk_token="<unk>", bos_token="</s>").save_pretrained(tmp_path)
    config = OPTConfig(
        vocab_size=len(words), hidden_size=16, word_embed_proj_dim=16, ffn_dim=32, num_hidden_layers=2, num_attention_heads=2
    )
    torch.manual_seed(0)
    saved = OPTForCausalLM(config).eval()
    saved.save_pretrained(tmp_path)
    model, own = language.load_causal_lm(str(tmp_path), "bfloat16", "cpu")
    assert not model.training and next(model.parameters()).dtype == torch.bfloat16
    ids = language.verbaliser_ids(own)
    assert ids == [2, 3]
    read = language.encode(own, ["a good film"], 16)
    expected = saved.to(torch.bfloat16)(read).logits[0, -1, ids].float()
    torch.testing.assert_close(language.VerbaliserModel(model, ids)(read)[0], expected)

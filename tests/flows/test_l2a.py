"""Learning to attend as a flow: rules, parameters, operations counted by brute force, the pretrained path, same bytes twice."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from components.attention.head_router import HeadRoutedAttention
from components.attention.l2a import L2AAttention, l2a_layers
from components.attention.router import ConstantRouter, RandomRouter
from flows.l2a import paper
from flows.l2a.arms import METHODS, Arm
from flows.l2a.models import Model, RouterParams, adapt, pretrained_base, small_base
from flows.l2a.store import Held
from tasks.assets import check
from tasks.claims import NOT_TESTABLE, verdicts
from tasks.errors import UserError
from tests.flows import stages
from tests.flows.stages import hashes, module
from tests.projects import ROOT

SLUG = "l2a"
ASSETS = {"shakespeare": ROOT / "data/shakespeare"}


def stage(name):
    return module(SLUG, name)


def params(name, profile, **changes):
    return stages.params(SLUG, name, profile, **changes)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The stages twice, and what they returned."""
    check(ROOT, "shakespeare")  # says which command brings it
    folders = [tmp_path_factory.mktemp("l2a") for _ in range(2)]
    return folders, [stages.run(SLUG, folder, assets=ASSETS) for folder in folders]


def test_the_same_bytes_twice(ran):
    (first, second), (one, two) = ran
    assert hashes(first) == hashes(second)
    assert one == two


def test_every_claim_has_its_number(ran):
    _, (metrics, _) = ran
    for claim in paper.claims:
        if claim.untestable is None:
            for method, metric in claim.cells:
                assert metric in metrics[method], (claim.id, method, metric)
    assert {v["id"]: v["verdict"] for v in verdicts(paper.claims, metrics)}["C3 time"] == NOT_TESTABLE


def test_what_train_leaves(ran):
    (folder, _), (metrics, _) = ran
    history = pd.read_parquet(folder / "train/history.parquet")
    recall = history[history["task"] == "recall"]
    assert set(recall["method"]) >= {"base", "full", "swa", "interleave dense from 0", "head_router", "l2a", "random_router"}
    assert recall["nll"].between(0, 6).all()
    ours = recall[recall["method"] == "l2a"]
    assert ours["lambda"].is_monotonic_increasing and ours["lambda"].iloc[-1] == pytest.approx(0.1)
    # All methods see the same batches: a dense model and a window start from one base, at one loss but for what they look at.
    runs = json.loads((folder / "train/runs.json").read_text())
    (random,) = [run for run in runs if run["arm"] and run["arm"]["method"] == "random_router"]
    (ours,) = [run for run in runs if run["arm"] == dict(Arm("l2a")._asdict()) and run["task"] == "recall"]
    assert random["rates"] == ours["active"]
    assert metrics["full"]["recall/operations"]["mean"] == 100 and metrics["full"]["recall/cache"]["mean"] == 100


def toy(window=4):
    """The sizes of a small model."""
    torch.manual_seed(0)
    return Model(d=16, layers=2, heads=2, kv_heads=1, window=window, every=2)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    p = params("data", "smoke")
    sheet = stage("data").write_recall(p.recall, folder)
    (folder / "datasheet.json").write_text(json.dumps({"recall": sheet}))
    return folder


def arms():
    return [Arm("full"), Arm("swa"), Arm("interleave", 1), Arm("head_router"), Arm("l2a"), Arm("random_router")]


@pytest.mark.parametrize("arm", arms(), ids=lambda arm: arm.name)
def test_operations_are_the_pairs_that_are_looked_at(planted, arm):
    """Every pair counted from masks that are written out."""
    evaluate, p = stage("evaluate"), toy()
    model = adapt(small_base(p, planted, "recall"), arm, p, RouterParams(tau=1.0), [0.3, 0.7])
    for layer in model.modules():
        if isinstance(layer, L2AAttention | HeadRoutedAttention) and not isinstance(layer.router, RandomRouter):
            torch.nn.init.normal_(layer.router.weight)
    tokens = torch.randint(0, 60, (3, 21), generator=torch.Generator().manual_seed(2))
    seen = evaluate.look(model, Held(tokens, tokens, None, None, None), 2, 3, "cpu")
    t, s = np.arange(21)[:, None], np.arange(21)
    near, whole = (s <= t) & (s > t - 4), s <= t
    wanted = 0
    for place, layer in enumerate(evaluate.attention_layers(model)):
        for text in range(3):
            for head in range(2):
                if isinstance(layer, HeadRoutedAttention):
                    wanted += np.where(layer.routing.a[text, :, head, None].numpy(), whole, near).sum()
                elif isinstance(layer, L2AAttention):
                    wanted += near.sum() + whole[layer.routing.a[text].numpy()].sum()
                else:
                    wanted += (whole if arm.method == "full" or arm.offset == place else near).sum()
    assert seen.pairs == wanted
    assert seen.nll.shape == (3, 21) and seen.active.shape == (2, 3, 21)


def test_windows_over_everything_with_routers_off_are_the_base(planted):
    p = toy(window=100)
    base = small_base(p, planted, "recall")
    tokens = torch.randint(0, 60, (2, 30))
    with torch.no_grad():
        wanted = base(tokens)
        model = adapt(base, Arm("l2a"), p, RouterParams())
        doubled = model(tokens)
        for layer in l2a_layers(model):
            layer.router = ConstantRouter(on=False)
        torch.testing.assert_close(model(tokens), wanted, atol=1e-5, rtol=1e-5)
    assert (doubled - wanted).abs().max() > 1e-3  # attention twice: what training has to repair


def test_selectivity_by_hand():
    recall = np.zeros((1, 6), dtype=bool)
    recall[0, [1, 4]] = True
    active = np.array([[[0, 1, 0, 0, 1, 0]], [[1, 1, 1, 1, 1, 1]], [[0, 0, 0, 0, 0, 0]]], dtype=np.float32)
    found = stage("evaluate").selectivity(active, recall)
    assert found["selective layer"] == 0 and found["firing on Q"] == 100 and found["router precision"] == 100
    assert found["firing ratio"] == pytest.approx(math.log10(4))  # none of four others: counted as one
    everywhere = stage("evaluate").selectivity(active[1:], recall)
    assert everywhere["firing ratio"] == 0 and everywhere["router precision"] == pytest.approx(100 / 3)


def test_interleave_is_picked_by_choice_texts_alone():
    values = {
        ("interleave dense from 0", "recall/choice nll"): {0: 1.0, 1: 3.0},
        ("interleave dense from 1", "recall/choice nll"): {0: 2.0, 1: 2.0},
        ("interleave dense from 0", "recall/nll"): {0: 9.0, 1: 8.0},
        ("interleave dense from 1", "recall/nll"): {0: 7.0, 1: 6.0},
    }
    stage("evaluate").pick_interleave(values, "recall")
    assert values["interleave", "recall/nll"] == {0: 9.0, 1: 6.0}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A Qwen3-shaped model of random weights, saved as a hub model is."""
    folder = tmp_path_factory.mktemp("qwen3")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    heads = {"num_key_value_heads": 2, "head_dim": 16}
    Qwen3ForCausalLM(Qwen3Config(vocab_size=84, max_position_embeddings=64, **sizes, **heads)).save_pretrained(folder)
    return folder


def test_a_pretrained_model_takes_the_same_path(pretrained, tmp_path):
    """Texts of Shakespeare through a saved Qwen3: extended at a length beyond its own, evaluated, pruned."""
    check(ROOT, "shakespeare")
    model = {"base_model": str(pretrained), "rope_theta": 5.0e6, "window": 8, "train_all": False}
    changes = {
        "data": {"text": {"long": 96}},
        "train": {
            "recall": {"seeds": 0},
            "tradeoff": {"seeds": 0},
            "text": {"model": model, "methods": ["full", "swa", "interleave", "l2a", "random_router"], "extend": {"steps": 2}},
        },
    }
    metrics = stages.run(SLUG, tmp_path, changes=changes, assets=ASSETS)
    for method in ("full", "swa", "interleave", "l2a", "random_router"):
        assert 0 < metrics[method]["text/nll"]["mean"] < 8
    assert metrics["full"]["text/operations"]["mean"] == 100
    stored = load_file(tmp_path / "train/text/l2a-0.safetensors")
    base = Qwen3ForCausalLM.from_pretrained(pretrained)
    moved = {name for name, tensor in base.state_dict().items() if not torch.equal(tensor, stored.get(f"model.{name}", tensor))}
    assert moved and all("norm" in name for name in moved)  # MLPs and embeddings are frozen
    assert stored["model.model.layers.0.self_attn.l2a.distant.q.weight"].shape == (64, 32)


def test_a_model_that_is_not_there_is_named(pretrained, tmp_path):
    with pytest.raises(UserError, match="could not be loaded"):
        pretrained_base(Model(base_model=str(tmp_path / "nothing")), 64)
    with pytest.raises(ValueError, match="head_router is for small models"):
        adapt(pretrained_base(Model(base_model=str(pretrained)), 64), Arm("head_router"), Model(), RouterParams())


def test_documents_with_a_tokenizer(tmp_path):
    """Files and a tokeniser that is saved as a hub's is: ids, the end of each document, and clear words where they lack."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    data = stage("data")
    vocab = {"[UNK]": 0, "<end>": 1, "to": 2, "be": 3}
    tokenizer = Tokenizer(models.WordLevel(vocab, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="<end>").save_pretrained(tmp_path / "tok")
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "b.txt").write_text("be be")
    (texts / "a.txt").write_text("to be or")
    p = data.Text(source="files", path=str(texts), tokenizer=str(tmp_path / "tok"))
    tokens, size = data.tokens_of_files(p)
    assert tokens.tolist() == [2, 3, 0, 1, 3, 3, 1] and size == 4
    with pytest.raises(UserError, match="needs a path and a tokenizer"):
        data.tokens_of_files(data.Text(source="files"))
    with pytest.raises(UserError, match=r"holds no \*.txt"):
        data.tokens_of_files(p.model_copy(update={"path": str(tmp_path)}))
    with pytest.raises(UserError, match="could not be loaded"):
        data.tokens_of_files(p.model_copy(update={"tokenizer": str(tmp_path / "none")}))


@pytest.mark.parametrize("profile", ["cpu", "smoke", "paper"])
def test_parameters_of_every_profile(profile):
    p = params("train", profile)
    assert set(p.text.methods) <= set(METHODS) and p.router.theta == 0.5
    assert params("data", profile).recall.language.pairs == 4
    if profile == "paper":
        assert p.text.model.base_model == "Qwen/Qwen3-8B" and p.text.model.window == 4095 and p.text.extend.steps == 3973
        # 6,291,456 tokens in a step, and the paper's lambda of a sum over 131,072 tokens.
        assert p.text.extend.batch * params("data", "paper").text.long == 6_291_456
        assert p.router.lambda_bar / 131_072 == pytest.approx(1e-8, rel=0.01)


def test_wrong_parameters_are_refused():
    for changes in (
        {"router": {"theta": 1.0}},
        {"router": {"leak": 1.2}},
        {"recall": {"model": {"window": 0}}},
        {"nothing": 1},
    ):
        with pytest.raises((ValidationError, UserError)):
            params("train", "cpu", **changes)
    train = stage("train")
    with pytest.raises(ValueError, match="no method 'flash'"):
        train.arms_of(train.Task(base=_phase(), extend=_phase(), methods=["flash"]))
    with pytest.raises(ValueError, match="takes its share from l2a"):
        train.arms_of(train.Task(base=_phase(), extend=_phase(), methods=["random_router"]))


def _phase():
    return stage("train").Phase(batch=1, steps=1, lr=1e-3)

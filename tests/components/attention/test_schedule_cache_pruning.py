"""The penalty and its schedule, the cache's bytes, and pruning, by closed forms and by running what they describe."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from components.attention.costs import cache_saving, dense_cache_bytes, dense_pairs, l2a_cache_bytes, share_of_dense
from components.attention.decode import cache_for, greedy_decode
from components.attention.kv_cache import L2ACache
from components.attention.l2a import L2AAttention, L2ABlock, decisions, l2a_layers
from components.attention.pruning import SparsityTracker, prune_layers, skip_rates
from components.attention.router import RandomRouter, router_loss
from components.attention.schedule import L2AConfig
from components.language.small_lm import FactoredEmbedding, SmallLM


def model_of(layers=2, window=4):
    torch.manual_seed(0)
    blocks = [L2ABlock(L2AAttention(16, 2, 2, window, layer=i), 16, 24) for i in range(layers)]
    return SmallLM(FactoredEmbedding(torch.arange(11)[:, None].numpy(), 16), blocks, 16, 11, 8)


def texts(count=3, length=20):
    return torch.randint(0, 11, (count, length), generator=torch.Generator().manual_seed(5))


def test_penalty_gold_values():
    p = torch.tensor([[0.5, 1.0, 0.0]])
    assert router_loss([p]).item() == pytest.approx(0.416667, abs=1e-6)
    assert router_loss([p], power=1).item() == pytest.approx(0.5)
    # Another length does not change what a mean costs.
    assert router_loss([p.repeat(1, 7)]).item() == pytest.approx(0.416667, abs=1e-6)
    assert router_loss([p, torch.zeros(1, 3)]).item() == pytest.approx(0.208333, abs=1e-6)
    with pytest.raises(FloatingPointError, match="layer 1"):
        router_loss([p, p * math.nan])
    with pytest.raises(ValueError, match="at least one layer"):
        router_loss([])


def test_schedule_is_zero_then_linear_to_its_full_value():
    config = L2AConfig(lam=0.1, warmup=20, total=120)
    assert [config.weight(step) for step in (0, 19)] == [0, 0]
    assert config.weight(119) == pytest.approx(0.1)
    assert config.weight(69) == pytest.approx(0.05)
    steps = [config.weight(step + 1) - config.weight(step) for step in range(20, 119)]
    assert max(steps) == pytest.approx(min(steps))
    assert L2AConfig(0.1, 20, 120, lam_schedule="constant").weight(20) == 0.1
    for bad in ({"lam": -1.0}, {"leak": 1.5}, {"warmup": -1}, {"lam_schedule": "cosine"}, {"total": 0}):
        with pytest.raises(ValueError, match=next(iter(bad)).split("_")[0]):
            L2AConfig(**({"lam": 0.1, "warmup": 2, "total": 9} | bad))
    with pytest.raises(ValueError, match="step must lie"):
        config.weight(120)


def test_leaks_are_the_same_everywhere_and_as_frequent_as_asked():
    config = L2AConfig(0.1, 0, 10, leak=0.1)
    drawn = torch.tensor([config.leaks(4, step, 7) for step in range(2000)]).float()
    torch.manual_seed(99)
    assert config.leaks(4, 3, 7) == drawn[3].bool().tolist()
    assert abs(drawn.mean().item() - 0.1) < 4 * math.sqrt(0.09 / drawn.numel())
    assert not any(L2AConfig(0.1, 0, 10, leak=0.0).leaks(4, 3)) and all(L2AConfig(0.1, 0, 10, leak=1.0).leaks(4, 3))


@given(st.integers(1, 40), st.integers(1, 40), st.lists(st.booleans(), min_size=1, max_size=5), st.sampled_from([2, 4]))
def test_cache_bytes_are_those_of_its_tensors(length, window, gone, item):
    dtype = {2: torch.bfloat16, 4: torch.float32}[item]
    cache = L2ACache(len(gone), window, length, 3, 8, dtype, pruned=tuple(i for i, x in enumerate(gone) if x))
    assert cache.nbytes() == l2a_cache_bytes(length, window, 3, 8, item, gone)
    assert cache_saving(length, window, gone) == pytest.approx(
        1 - cache.nbytes() / dense_cache_bytes(length, len(gone), 3, 8, item)
    )


def test_savings_of_the_paper_and_the_probe():
    assert cache_saving(192, 16, [True, False]) == pytest.approx(0.5 - 16 / 192)  # 42 %
    assert cache_saving(192, 16, [False, False]) < 0  # unpruned L2A needs more than a dense model
    assert share_of_dense(0.2, 4096, 131072) == pytest.approx(0.2625)
    assert dense_pairs(5) == torch.ones(5, 5).tril().sum()


def test_ring_holds_the_last_tokens():
    cache = L2ACache(1, 4, 50, 1, 1)
    rows = torch.arange(11.0).view(1, 11, 1, 1)
    k, v = cache.update_local(0, rows[:, :3], -rows[:, :3])
    assert k.flatten().tolist() == [0, 1, 2] and torch.equal(v, -k)
    k, _ = cache.update_local(0, rows[:, 3:9], -rows[:, 3:9])
    assert k.flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]  # up to W - 1 = 3 before the new ones
    for t in (9, 10):
        k, v = cache.update_local(0, rows[:, t : t + 1], -rows[:, t : t + 1])
        assert sorted(k.flatten().tolist()) == [t - 3, t - 2, t - 1, t] and torch.equal(v, -k)
    assert cache.seen(0) == 11 and cache.length == 11


def test_what_a_cache_does_not_take():
    cache = L2ACache(2, 4, 6, 1, 2, pruned=(1,))
    one = torch.zeros(1, 1, 1, 2)
    with pytest.raises(KeyError, match="layer 1 is pruned"):
        cache.update_global(1, one, one)
    with pytest.raises(KeyError, match="pruned already"):
        cache.drop_global(1)
    with pytest.raises(IndexError, match="holds 6 tokens: 7 more"):
        cache.update_global(0, one.repeat(1, 7, 1, 1), one.repeat(1, 7, 1, 1))
    with pytest.raises(IndexError, match=r"layer must lie in \[0, 2\)"):
        cache.update_local(2, one, one)
    with pytest.raises(ValueError, match="keys and values must have shape"):
        cache.update_local(0, one, one.repeat(1, 1, 2, 1))
    with pytest.raises(ValueError, match="window must be a whole number"):
        L2ACache(1, 0, 6, 1, 2)


def test_sparsity_is_counted_over_batches():
    tracker, generator = SparsityTracker(), torch.Generator().manual_seed(0)
    a = torch.rand(3, 10, 7, generator=generator) < torch.tensor([0.1, 0.5, 0.9])[:, None, None]
    tracker.update(a[:, :4])
    tracker.update(a[:, 4:])
    assert tracker.skip_rates() == pytest.approx((~a).float().mean((1, 2)).tolist())
    torch.testing.assert_close(torch.from_numpy(tracker.by_position()), a.double().mean(1))
    with pytest.raises(ValueError, match="layers and tokens"):
        tracker.update(a[:2])
    with pytest.raises(TypeError, match="must be bool"):
        tracker.update(a.float())
    with pytest.raises(ValueError, match="nothing was counted"):
        SparsityTracker().skip_rates()


def test_pruning_by_threshold_is_the_router_switched_off():
    model, held = model_of(3), texts()
    for layer, rate in zip(l2a_layers(model), (0.0, 0.6, 0.0), strict=True):
        layer.router = RandomRouter(rate)
    assert skip_rates(model, [held])[::2] == [1.0, 1.0]
    l2a_layers(model)[1].router.reseed(0)
    with torch.no_grad():
        before = model(held)
    l2a_layers(model)[1].router.reseed(0)
    report = prune_layers(model, held.split(2), threshold=0.95)
    assert report.pruned == (True, False, True)
    assert report.saving_before == pytest.approx(-4 / 20) and report.saving_after == pytest.approx(1 - (3 * 4 + 20) / 60)
    assert cache_for(model, 1, 20).nbytes() == (1 - report.saving_after) * dense_cache_bytes(20, 3, 2, 8, 4)
    l2a_layers(model)[1].router.reseed(0)
    with torch.no_grad():
        torch.testing.assert_close(model(held), before, atol=0, rtol=0)
    assert not decisions(model)[[0, 2]].any()


def test_pruning_to_a_target_takes_the_sparsest_first():
    model, held = model_of(4, window=2), texts()
    for layer, rate in zip(l2a_layers(model), (0.9, 0.1, 0.5, 0.3), strict=True):
        layer.router = RandomRouter(rate)
    report = prune_layers(model, [held], target_saving=0.35)
    assert report.pruned == (False, True, False, True) and report.saving_after == pytest.approx(0.4)
    with pytest.raises(ValueError, match="out of reach"):
        prune_layers(model, [held], target_saving=0.95)
    assert [layer.pruned for layer in l2a_layers(model)] == [False, True, False, True]
    with pytest.warns(UserWarning, match="every layer is pruned"):
        prune_layers(model, [held], threshold=0.0)
    assert model(held).shape == (3, 20, 11)
    for options in ({}, {"threshold": 0.5, "target_saving": 0.5}):
        with pytest.raises(ValueError, match="either a threshold"):
            prune_layers(model, [held], **options)
    with pytest.raises(ValueError, match="at least one batch"):
        prune_layers(model_of(), [], threshold=0.5)
    with pytest.raises(ValueError, match="no L2A layer"):
        prune_layers(torch.nn.Linear(1, 1), [held], threshold=0.5)


def test_generating_with_the_cache_is_generating_without():
    model = model_of(window=3).eval()
    for layer in l2a_layers(model):
        torch.nn.init.normal_(layer.router.weight)
    l2a_layers(model)[0].prune()
    wanted = prompt = texts(2, 6)
    with torch.no_grad():
        for _ in range(9):
            wanted = torch.cat((wanted, model(wanted)[:, -1].argmax(-1, keepdim=True)), 1)
    assert torch.equal(greedy_decode(model, prompt, 9), wanted)
    assert torch.equal(greedy_decode(model, prompt, 0), prompt)
    with pytest.raises(ValueError, match="at least 0"):
        greedy_decode(model, prompt, -1)
    with pytest.raises(ValueError, match="convert it first"):
        cache_for(torch.nn.Linear(1, 1), 1, 4)

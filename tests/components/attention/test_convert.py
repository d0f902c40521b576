"""Real models of `transformers`, random and tiny, against their converted selves."""

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from components.attention.convert import cached_step, convert_to_l2a
from components.attention.decode import cache_for, greedy_decode
from components.attention.l2a import decisions, l2a_layers
from components.attention.router import ConstantRouter

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
BASES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)),
}


def base_of(family, seed=0):
    torch.manual_seed(seed)
    model = BASES[family]().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases that matter
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def split_routers(model, seed=1):
    """Routers that switch about half of the tokens on."""
    generator = torch.Generator().manual_seed(seed)
    for layer in l2a_layers(model):
        with torch.no_grad():
            layer.router.weight.copy_(torch.randn(layer.router.weight.shape, generator=generator))
    return model


def logits_of(model, tokens):
    with torch.no_grad():
        return model(input_ids=tokens, use_cache=False).logits


TOKENS = torch.randint(0, 50, (2, 20), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("family", BASES)
def test_window_over_everything_and_router_off_is_the_base(family):
    model = base_of(family)
    wanted = logits_of(model, TOKENS)
    convert_to_l2a(model, 20)
    for layer in l2a_layers(model):
        layer.router = ConstantRouter(False)
    torch.testing.assert_close(logits_of(model, TOKENS), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", BASES)
def test_step_0_attends_twice_and_branches_are_copies(family):
    model = base_of(family)
    wanted = logits_of(model, TOKENS)
    convert_to_l2a(model, 4)
    found = logits_of(model, TOKENS)
    assert found.shape == wanted.shape and decisions(model).all()
    assert not torch.allclose(found, wanted, atol=1e-3)
    for layer in l2a_layers(model):
        assert torch.equal(layer.local.q.weight, layer.distant.q.weight)
        assert layer.local.q.weight.data_ptr() != layer.distant.q.weight.data_ptr()
        assert torch.equal(layer.norm.weight, layer.global_norm.weight)


@pytest.mark.parametrize("backend", ["reference", "sdpa", "triton"])
def test_causal_with_every_backend(backend):
    model = split_routers(convert_to_l2a(base_of("qwen3"), 5, backend=backend))
    other = TOKENS.clone()
    other[:, 12:] = (other[:, 12:] + 7) % 50
    first, second = logits_of(model, TOKENS), logits_of(model, other)
    torch.testing.assert_close(first[:, :12], second[:, :12], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(first[:, 12:], second[:, 12:], atol=1e-3)


@pytest.mark.parametrize(
    ("family", "first", "backend"),
    [*((family, first, "sdpa") for family in BASES for first in (1, 3, 11)), ("qwen3", 11, "triton")],
)
def test_token_by_token_is_one_pass(family, first, backend):
    """A prefill shorter and longer than the window, then single tokens; some are off, and seen later all the same."""
    model = split_routers(convert_to_l2a(base_of(family), 5, backend=backend))
    wanted = logits_of(model, TOKENS)
    share = decisions(model).float().mean().item()
    assert 0.1 < share < 0.9
    step, cache = cached_step(model), cache_for(model, 2, 20)
    with torch.no_grad():
        found = [step(TOKENS[:, :first], cache), *(step(TOKENS[:, t : t + 1], cache) for t in range(first, 20))]
    torch.testing.assert_close(torch.cat(found, 1), wanted, atol=1e-5, rtol=1e-5)
    with pytest.raises(IndexError, match="20 tokens"), torch.no_grad():
        step(TOKENS[:, :1], cache)


def test_chunks_behind_a_prefix_and_a_pruned_layer():
    model = split_routers(convert_to_l2a(base_of("qwen2"), 5))
    l2a_layers(model)[0].prune()
    wanted = logits_of(model, TOKENS)
    step, cache = cached_step(model), cache_for(model, 2, 32)
    with torch.no_grad():
        found = [step(part, cache) for part in TOKENS.split([4, 7, 2, 7], dim=1)]
    torch.testing.assert_close(torch.cat(found, 1), wanted, atol=1e-5, rtol=1e-5)
    assert cache.nbytes() == 2 * 2 * 2 * 8 * 4 * (2 * 5 + 32)  # K and V, texts, heads, width, float32; two rings, one whole


def test_greedy_decode_is_generate():
    model = split_routers(convert_to_l2a(base_of("qwen3"), 5))
    ours = greedy_decode(model, TOKENS, 8, cached_step(model))
    theirs = model.generate(TOKENS, max_new_tokens=8, do_sample=False, attention_mask=torch.ones_like(TOKENS))
    assert torch.equal(ours, theirs)


def test_attention_norms_and_routers_are_trained_alone():
    model = convert_to_l2a(base_of("qwen3"), 5)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen and all("mlp" in name or "embed_tokens" in name or "lm_head" in name for name in frozen)
    assert {"model.layers.0.self_attn.l2a.router.weight", "model.layers.1.self_attn.l2a.distant.k_norm.weight", "model.norm.weight",
            "model.layers.0.post_attention_layernorm.weight"} <= trained  # fmt: skip
    model(input_ids=TOKENS, labels=TOKENS, use_cache=False).loss.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters() if p.requires_grad)
    assert all(p.requires_grad for p in convert_to_l2a(base_of("llama"), 5, train_all=True).parameters())


def test_some_layers_alone():
    model = base_of("llama")
    wanted = logits_of(model, TOKENS)
    convert_to_l2a(model, 20, layers=[1])
    (layer,) = l2a_layers(model)
    assert layer.layer == 1
    layer.prune()
    torch.testing.assert_close(logits_of(model, TOKENS), wanted, atol=1e-5, rtol=1e-5)


def test_what_cannot_be_converted_or_called():
    with pytest.raises(TypeError, match="llama, qwen2, qwen3, got GPT2LMHeadModel"):
        convert_to_l2a(GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=10)), 4)
    with pytest.raises(ValueError, match="layers must lie"):
        convert_to_l2a(base_of("llama"), 4, layers=[2])
    with pytest.raises(ValueError, match="window must be at least 1"):
        convert_to_l2a(base_of("llama"), 0)
    sliding = Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=1)
    with pytest.raises(ValueError, match="full attention in every layer"):
        convert_to_l2a(Qwen2ForCausalLM(sliding), 4)
    with pytest.raises(ValueError, match="width 16, 32, 64"):
        convert_to_l2a(base_of("llama"), 4, backend="triton")
    model = convert_to_l2a(base_of("llama"), 4)
    with pytest.raises(ValueError, match="converted already"):
        convert_to_l2a(model, 4)
    padded = torch.ones_like(TOKENS)
    padded[0, 0] = 0
    with pytest.raises(ValueError, match="no padding"):
        model(input_ids=TOKENS, attention_mask=padded, use_cache=False)
    with pytest.raises(ValueError, match="its own cache"):
        model(input_ids=TOKENS, use_cache=True)
    with pytest.raises(ValueError, match="65 tokens, the model's positions end at 64"):
        model(input_ids=torch.zeros(1, 65, dtype=torch.int64), use_cache=False)
    with pytest.raises(ValueError, match="the cache has a window of 5 tokens, layer 0 of 4"):
        cached_step(model)(TOKENS, cache_for(convert_to_l2a(base_of("llama"), 5), 2, 20))

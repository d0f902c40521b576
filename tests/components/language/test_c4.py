"""The stream of C4, with stand-ins for the hub's two packages."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from components.language.c4 import stream_tokens


class Letters:
    eos_token_id = 26

    def __len__(self):
        return 27

    def __call__(self, text, add_special_tokens):
        assert add_special_tokens is False
        return {"input_ids": [ord(letter) - ord("a") for letter in text]}


@pytest.fixture
def hub(monkeypatch):
    asked = []

    def load_dataset(*names, **options):
        asked.append((names, options))
        return iter([{"text": "abc"}, {"text": "de"}, {"text": "zzzz"}])

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    tokenizers = SimpleNamespace(from_pretrained=lambda name: Letters())
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoTokenizer=tokenizers))
    return asked


def test_documents_are_joined_and_cut(hub, tmp_path):
    tokens, symbols = stream_tokens(tmp_path / "tokens.npy", 9, tokenizer="llama")
    assert tokens.tolist() == [0, 1, 2, 26, 3, 4, 26, 25, 25] and symbols == 27
    assert np.array_equal(np.load(tmp_path / "tokens.npy"), tokens)
    assert hub == [(("allenai/c4", "en"), {"split": "train", "streaming": True})]


def test_bad_input_is_one_clear_sentence(hub, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="ended after 12 tokens, 99 are wanted"):
        stream_tokens(tmp_path / "a.npy", 99, tokenizer="llama")
    with pytest.raises(ValueError, match="count must be at least 1"):
        stream_tokens(tmp_path / "a.npy", 0, tokenizer="llama")
    monkeypatch.setattr(Letters, "__len__", lambda self: 70_000)
    with pytest.raises(ValueError, match="stored in 16 bits, but llama has 70000 symbols"):
        stream_tokens(tmp_path / "a.npy", 5, tokenizer="llama")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ModuleNotFoundError, match="C4 needs the package datasets"):
        stream_tokens(tmp_path / "a.npy", 5, tokenizer="llama")

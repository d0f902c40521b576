"""Reading, numbering, splitting and cutting text into windows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from components.language.corpus import (
    characters,
    contiguous_split,
    even_windows,
    load_shakespeare,
    random_windows,
    read_texts,
)

ASSET = Path(__file__).resolve().parents[3] / "data/shakespeare"


def test_texts_are_joined_by_name_and_latin_letters_become_spaces(tmp_path):
    (tmp_path / "b.txt").write_bytes(b"to be")
    (tmp_path / "a.txt").write_bytes("caf\xe9!".encode("latin-1"))
    (tmp_path / "notes.md").write_bytes(b"not text")
    assert read_texts(tmp_path) == "caf !\nto be"


def test_numbers_are_positions_in_the_sorted_alphabet():
    corpus = characters("hello, all")
    assert corpus.vocab == "".join(sorted(set("hello, all"))) and corpus.tokens.dtype == np.uint8
    assert corpus.text() == "hello, all" and corpus.text(corpus.tokens[:2]) == "he"
    assert characters("ba", vocab="bca").tokens.tolist() == [0, 2]


@pytest.mark.skipif(not ASSET.is_dir(), reason="the asset shakespeare is not there")
def test_the_packaged_corpus():
    corpus = load_shakespeare(ASSET)
    assert corpus.tokens.size == 5_057_239 and len(corpus.vocab) == 84
    text = corpus.text(corpus.tokens[:200_000])
    counts = Counter(text)
    assert counts.most_common(1)[0][0] == " " and np.bincount(corpus.tokens[:200_000]).max() == counts[" "]
    assert load_shakespeare(ASSET, limit=1000).vocab == corpus.vocab
    train, validation = contiguous_split(corpus.tokens)
    assert len(train) == 4_804_377 and len(train) + len(validation) == corpus.tokens.size


def test_another_text_is_not_taken_for_the_corpus(tmp_path):
    (tmp_path / "a.txt").write_text("abc")
    with pytest.raises(ValueError, match="holds 3 characters of 3 symbols, expected 5057239 of 84"):
        load_shakespeare(tmp_path)


def test_random_windows_are_pieces_of_the_text_with_the_next_character():
    tokens = np.arange(50, dtype=np.uint8)
    stream = random_windows(tokens, seq=7, batch=64, generator=torch.Generator().manual_seed(0))
    starts = set()
    for _ in range(20):
        inputs, targets = next(stream)
        assert inputs.shape == targets.shape == (64, 7) and torch.equal(targets, inputs + 1)
        assert torch.equal(inputs, inputs[:, :1] + torch.arange(7))
        starts |= set(inputs[:, 0].tolist())
    assert starts == set(range(43))  # every place where a window and its next character fit


def test_random_windows_repeat_under_a_seed():
    tokens = np.arange(100, dtype=np.uint8)
    a, b = (random_windows(tokens, seq=5, batch=3, generator=torch.Generator().manual_seed(4)) for _ in range(2))
    assert all(torch.equal(next(a)[0], next(b)[0]) for _ in range(5))


@pytest.mark.parametrize(("length", "seq", "count"), [(101, 10, 4), (101, 10, 10), (30, 7, 99), (8, 7, 3)])
def test_even_windows_cover_without_overlap(length, seq, count):
    tokens = np.arange(length, dtype=np.uint8)
    inputs, targets = even_windows(tokens, seq=seq, count=count)
    assert len(inputs) == min(count, (length - 1) // seq) and torch.equal(targets, inputs + 1)
    assert targets.flatten().unique().numel() == targets.numel() and int(targets.max()) < length


def test_bad_input_is_one_clear_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no \*.txt file"):
        read_texts(tmp_path)
    with pytest.raises(ValueError, match="text must not be empty"):
        characters("")
    with pytest.raises(ValueError, match="at most 256 different symbols, got 300"):
        characters("".join(chr(256 + i) for i in range(300)))
    with pytest.raises(ValueError, match="'z', which the vocabulary lacks"):
        characters("az", vocab="ab")
    with pytest.raises(ValueError, match="limit must be at least 1"):
        load_shakespeare(tmp_path, limit=0)
    with pytest.raises(ValueError, match="leaves one part of 3 tokens empty"):
        contiguous_split(np.arange(3), 0.0)
    with pytest.raises(ValueError, match="need at least 6 tokens, got 5"):
        random_windows(np.arange(5, dtype=np.uint8), seq=5, batch=1, generator=torch.Generator())
    with pytest.raises(ValueError, match="batch must be at least 1"):
        random_windows(np.arange(9, dtype=np.uint8), seq=5, batch=0, generator=torch.Generator())
    with pytest.raises(ValueError, match="count must be at least 1"):
        even_windows(np.arange(9, dtype=np.uint8), seq=5, count=0)

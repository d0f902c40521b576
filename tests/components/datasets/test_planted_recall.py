"""The planted recall language against its own words: what may stand where, read off the texts alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.datasets.planted_recall import RecallLanguage


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.integers(1, 9), st.integers(40, 120), st.integers(0, 10**6))
def test_texts_follow_the_language(nk, nv, length, seed):
    language = RecallLanguage(nk=nk, nv=nv, pairs=nk)
    texts = language.sample(6, length, seed)
    for row, recall, distance, nearest in zip(*texts, strict=True):
        names = [language.name(int(token)) for token in row]
        told, defined = {}, {}
        for t, name in enumerate(names):
            if name[0] == "D":
                key, value = name[1:].split(":")
                assert t < length / 6 and key not in told
                told[key], defined[key] = (value, t), t
            elif name[0] == "A":
                key = names[t - 1][1:]
                assert names[t - 1][0] == "Q" and t - 1 > length // 6
                value, last = told[key]
                assert name[1:] == value and recall[t] == 1
                assert distance[t] == t - defined[key] and nearest[t] == t - last
                told[key] = value, t
            if name[0] != "A":
                assert recall[t] == distance[t] == nearest[t] == 0
            if name[0] == "Q":
                assert names[t + 1][0] == "A"
        assert len(defined) == nk


def test_background_and_recalls_are_as_frequent_as_asked():
    language = RecallLanguage(pq=0.0, pairs=1, nk=1)
    tokens = language.sample(400, 192, 0).tokens.astype(int)
    follow = language.background_map()
    tail = tokens[:, 40:]
    kept = (follow[tail[:, :-1]] == tail[:, 1:]).mean()
    wanted = 0.85 + 0.15 / 16
    assert abs(kept - wanted) < 4 * np.sqrt(wanted * (1 - wanted) / tail[:, 1:].size)
    # A recall takes two symbols: a renewal process, pq / (1 + pq) recalls per symbol.
    asked = RecallLanguage().sample(400, 192, 0).recall[:, 40:].mean()
    assert asked == pytest.approx(0.2 / 1.2, rel=0.02)
    assert not RecallLanguage(pq=0.0).sample(3, 48, 0).recall.any()


def test_same_seed_same_texts_and_factors_name_every_symbol():
    language = RecallLanguage()
    for one, two in zip(language.sample(5, 48, 3), language.sample(5, 48, 3), strict=True):
        np.testing.assert_array_equal(one, two)
    assert not np.array_equal(language.sample(5, 48, 3).tokens, language.sample(5, 48, 4).tokens)
    assert language.vocab == 60 and len(np.unique(language.factors(), axis=0)) == 60
    assert [language.name(token) for token in (0, 16, 20, 28, 59)] == ["b0", "Q0", "A0", "D0:0", "D3:7"]


def test_what_the_language_does_not_take():
    for options, words in (
        ({"pairs": 5}, "pairs must be at most nk = 4"),
        ({"pq": 1.2}, r"pq must lie in \[0, 1\]"),
        ({"nb": 0}, "nb must be at least 1"),
        ({"nk": 16, "nv": 16}, "stored in 8 bits"),
    ):
        with pytest.raises(ValueError, match=words):
            RecallLanguage(**options)
    with pytest.raises(ValueError, match="length must be above 18"):
        RecallLanguage().sample(1, 18, 0)
    with pytest.raises(ValueError, match="count must be at least 1"):
        RecallLanguage().sample(0, 48, 0)
    with pytest.raises(ValueError, match="symbols are 0 to 59"):
        RecallLanguage().name(60)

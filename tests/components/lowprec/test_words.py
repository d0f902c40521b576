"""The compiled counter generator is the reference, and good enough to round with."""

from __future__ import annotations

import pytest
import torch

from components.lowprec.formats import round_to
from components.lowprec.words import counter_words
from kernels.philox import mix, philox_words


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 1001])
@pytest.mark.parametrize("key", [0, 1, mix(3, 4, 5), (1 << 64) - 1])
def test_compiled_words_are_the_reference_ones(key, count):
    assert torch.equal(counter_words(key, (count,)), philox_words(key, count))


def test_words_are_uniform_and_keys_are_independent():
    a, b = (counter_words(mix(0, step, 0), (200_000,)).double() / 2**32 for step in (1, 2))
    for u in (a, b):
        counts = torch.histc(u.float(), 100, 0, 1)
        assert ((counts - 2000).square() / 2000).sum() < 149  # chi-square, 99 degrees of freedom: p = 0.0008
    correlation = torch.corrcoef(torch.stack([a, b]))[0, 1].abs()
    lagged = torch.corrcoef(torch.stack([a[:-1], a[1:]]))[0, 1].abs()
    assert correlation < 4 / 200_000**0.5 and lagged < 4 / 200_000**0.5


def test_rounding_with_words_of_successive_steps_is_unbiased():
    x = torch.full((64,), 1.1)
    total = sum(round_to(x, "e2m1", "sr", words=counter_words(mix(7, step, 1), x.shape)) for step in range(2000)) / 2000
    # between 1 and 1.5 with probability 0.2: the standard error of one mean is 0.2 / sqrt(2000), of all 64 an eighth of it
    assert (total - 1.1).abs().max() < 4.5 * 0.2 / 2000**0.5
    assert (total.mean() - 1.1).abs() < 4 * 0.2 / (64 * 2000) ** 0.5


def test_bad_keys_are_named():
    for function in (lambda key: counter_words(key, (2,)), lambda key: philox_words(key, 2)):
        with pytest.raises(ValueError, match=r"a key lies in \[0, 2\^64\)"):
            function(-1)
    with pytest.raises(ValueError, match="a count is not negative"):
        philox_words(0, -1)

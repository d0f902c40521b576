"""The random streams against published SplitMix64 numbers, and their independence of what is beside them."""

import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from components.envs.streams import Streams, normal


def test_published_numbers_of_splitmix64():
    # The first outputs for seed 1234567, as listed with the reference implementation.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    drawn = Streams([1234567]).uniform(slice(None), 5)[0]
    assert drawn.tolist() == [(number >> 11) * 2.0**-53 for number in published]


def test_a_stream_is_the_same_alone_and_in_company():
    together, alone = Streams([3, 2**63 - 1, 17]), Streams([17])
    first = together.uniform(np.array([2, 0]), 4)
    second = together.uniform(slice(None), 3)
    assert np.array_equal(np.concatenate([first[0], second[2]]), alone.uniform(slice(None), 7)[0])


def test_numbers_are_uniform_and_normal():
    drawn = Streams(np.random.default_rng(0).integers(2**63, size=200)).uniform(slice(None), 500)
    assert 0 <= drawn.min() and drawn.max() < 1
    assert chisquare(np.histogram(drawn, bins=50, range=(0, 1))[0]).pvalue > 1e-3
    assert kstest(normal(drawn).ravel(), "norm").pvalue > 1e-3
    assert abs(np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]) < 0.015


@pytest.mark.parametrize("keys", [[], [[1]], [1.5]])
def test_bad_keys(keys):
    with pytest.raises(ValueError, match="keys"):
        Streams(keys)

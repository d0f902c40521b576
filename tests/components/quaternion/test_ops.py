"""Quaternion algebra against the multiplication table, its identities, and counts made by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from components.quaternion.counting import ProductCounter
from components.quaternion.ops import component_scores, conj, hamilton, left_matrix, qinner, score_mults, shared_scores
from components.quaternion.subspace import interaction_ranks, score_forms

UNITS = dict(zip("1ijk", torch.eye(4, dtype=torch.float64), strict=True))
FOURS = st.lists(st.floats(-5, 5), min_size=4, max_size=4).map(lambda x: torch.tensor(x, dtype=torch.float64))


def close(a, b, tolerance=1e-9):
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def test_gold_products():
    q, k = torch.tensor([1.0, 2, 3, 4]), torch.tensor([2, -1, 0.5, 1])
    assert qinner(q, k, -1).item() == 5.5
    assert hamilton(q, k, -1).tolist() == [-1.5, 4, 0.5, 13]
    assert hamilton(q, conj(k, -1), -1).tolist() == [5.5, 4, 11.5, 3]


def test_the_table_of_units():
    for word, wanted in {"ij": "k", "jk": "i", "ki": "j"}.items():
        close(hamilton(UNITS[word[0]], UNITS[word[1]], -1), UNITS[wanted])
        close(hamilton(UNITS[word[1]], UNITS[word[0]], -1), -UNITS[wanted])
    for unit in "ijk":
        close(hamilton(UNITS[unit], UNITS[unit], -1), -UNITS["1"])


@settings(max_examples=60, deadline=None)
@given(FOURS, FOURS, FOURS)
def test_identities(p, q, r):
    close(hamilton(hamilton(p, q, -1), r, -1), hamilton(p, hamilton(q, r, -1), -1))
    close(hamilton(p, q, -1).norm(), p.norm() * q.norm())
    close(left_matrix(hamilton(p, q, -1)), left_matrix(p) @ left_matrix(q))
    close(left_matrix(p).T, left_matrix(conj(p, -1)))
    close(left_matrix(p) @ q, hamilton(p, q, -1))
    close(conj(hamilton(p, q, -1), -1), hamilton(conj(q, -1), conj(p, -1), -1))
    close(qinner(p, q, -1), hamilton(p, conj(q, -1), -1)[0])


@pytest.mark.parametrize("conjugate", [False, True])
def test_scores_are_products_pair_by_pair(conjugate):
    q, k = torch.randn(2, 3, 5, 4, 2, dtype=torch.float64)
    plain = component_scores(q, k, conjugate=conjugate, fused=False)
    fused = component_scores(q, k, conjugate=conjugate, fused=True)
    key = conj(k) if conjugate else k
    pairs = hamilton(q[:, :, None], key[:, None]).sum(-1)  # (3, 5, 5, 4)
    for c in range(4):
        close(plain[c], pairs[..., c])
        close(fused[c], pairs[..., c])
    close(shared_scores(q, k), qinner(q[:, :, None], k[:, None]).sum(-1))


@pytest.mark.parametrize(("length", "h"), [(1, 1), (7, 3), (16, 4)])
def test_a_quarter_of_the_multiplications(length, h):
    """4 products per pair and feature for the shared score, 16 for the components, however they are computed."""
    assert score_mults("shared", length, h) == 4 * length * length * h
    for kind in ("component", "component_fused"):
        assert score_mults(kind, length, h) == 16 * length * length * h


def test_counter_sees_products_and_softmaxes():
    a, b = torch.zeros(3, 5, 7), torch.zeros(3, 7, 2)
    with ProductCounter() as counter:
        (a @ b).softmax(-1)
        torch.nn.functional.linear(torch.zeros(4, 7), torch.zeros(6, 7), torch.zeros(6))
        torch.nn.functional.scaled_dot_product_attention(*torch.zeros(3, 1, 2, 9, 4))
        torch.zeros(5) @ torch.zeros(5)
    assert counter.products == 3 * 5 * 7 * 2 + 4 * 7 * 6 + 2 * 2 * 9 * 9 * 4 + 5
    assert (counter.softmax_calls, counter.softmax_rows) == (2, 15 + 18)


def test_one_score_spans_what_four_span():
    """With queries and keys of quaternion maps: four dimensions of sixteen, together too; all sixteen without the conjugate."""
    assert interaction_ranks() == (4, (4, 4, 4, 4), 4)
    assert interaction_ranks(conjugate=False) == (4, (16, 16, 16, 16), 16)
    with pytest.raises(ValueError, match="at least 16"):
        interaction_ranks(15)


@pytest.mark.parametrize("conjugate", [False, True])
def test_forms_give_the_scores(conjugate):
    p, s, x, y = torch.randn(4, 6, 4, dtype=torch.float64)
    shared, components = score_forms(p, s, conjugate)
    q, k = hamilton(p, x, -1), hamilton(s, y, -1)
    product = hamilton(q, conj(k, -1) if conjugate else k, -1)
    close(torch.einsum("na,nab,nb->n", x, shared, y), qinner(q, k, -1))
    close(torch.einsum("na,ncab,nb->nc", x, components.reshape(6, 4, 4, 4), y), product)


def test_bad_input_is_named():
    good = torch.zeros(3, 4, 2)
    with pytest.raises(ValueError, match=r"p must have four components on axis -2, got shape \(3, 3, 2\)"):
        hamilton(torch.zeros(3, 3, 2), good)
    with pytest.raises(TypeError, match="real floating point"):
        conj(torch.zeros(4, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="count it from the end"):
        hamilton(torch.zeros(4), torch.zeros(4, 4), 0)
    with pytest.raises(ValueError, match="that fit"):
        shared_scores(good[None], torch.zeros(1, 3, 4, 3))
    with pytest.raises(ValueError, match="kind must be one of"):
        score_mults("fused", 2, 2)
    with pytest.raises(ValueError, match="at least 1"):
        score_mults("shared", 0, 2)

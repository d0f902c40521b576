"""The pulse against its closed form, its symmetries and its limits."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, chi2_contingency, chisquare, kstest

from components.envs.hexagonal import NEIGHBOURS, to_position
from components.envs.stm import Physics, change_tip, excitation, hop_probabilities, pulse, scan

PHYSICS = Physics()


def scenes(count, sites, orientation=0, seed=0, physics=PHYSICS):
    """`count` copies of a scene, and uniform numbers for a pulse."""
    sites = np.asarray(sites, dtype=np.int64)
    shape = (count, len(sites))
    turned = np.full(shape, orientation, dtype=np.int64)
    uniforms = np.random.default_rng(seed).random((*shape, physics.draws))
    return np.repeat(sites[None], count, axis=0), turned, np.ones(shape, dtype=bool), uniforms


def pulse_at(count, sites, tip, bias, orientation=0, seed=0, physics=PHYSICS):
    sites, turned, alive, uniforms = scenes(count, sites, orientation, seed, physics)
    return pulse(sites, turned, alive, np.tile(np.asarray(tip, float), (count, 1)), np.full(count, bias), uniforms, physics)


def closed_form(tip, bias, phi):
    """The six hop probabilities of a molecule at the origin, written down with nothing but `math`."""
    a0, weights = 0.2885, []
    e = 1 / (1 + math.exp(-(bias - 2.4) / 0.2)) * math.exp(-(tip[0] ** 2 + tip[1] ** 2) / (2 * 0.35**2))

    def energy(x, y):
        return -0.060 * bias * math.exp(-((x - tip[0]) ** 2 + (y - tip[1]) ** 2) / (2 * 0.5**2))

    for k in range(6):
        angle = math.radians(60 * k)
        rise = energy(a0 * math.cos(angle), a0 * math.sin(angle)) - energy(0, 0)
        weights.append(math.exp(-(rise / 2 + 0.020 * math.sin(angle - math.radians(60 * phi)) ** 2) / 0.012))
    return [e * w / (1 + sum(weights)) for w in weights]


@pytest.mark.parametrize(("tip", "bias", "phi"), [((0.4, 0.0), 2.6, 0), ((0.2, -0.3), 3.0, 2), ((-0.1, 0.55), 2.2, 1)])
def test_single_hops_follow_the_closed_form(tip, bias, phi):
    expected = closed_form(tip, bias, phi)
    law = hop_probabilities(np.zeros((1, 2), int), np.array([phi]), np.array([tip]), np.array([bias]))
    assert law[0] == pytest.approx(expected, rel=1e-12)
    one = replace(PHYSICS, sub_steps=1)
    after = pulse_at(100_000, [(0, 0)], tip, bias, phi, physics=one).sites[:, 0]
    counts = [int((after == step).all(axis=1).sum()) for step in NEIGHBOURS]
    stayed = 100_000 - sum(counts)
    assert stayed == (after == 0).all(axis=1).sum()
    assert chisquare([*counts, stayed], [100_000 * p for p in (*expected, 1 - sum(expected))]).pvalue > 1e-3


def test_far_below_the_threshold_nothing_moves():
    sharp = replace(PHYSICS, softness=0.08)  # 0.4 V is 25 widths below
    after = pulse_at(20_000, [(0, 0), (4, 0)], (0.25, 0.0), 0.4, physics=sharp)
    assert (after.sites[:, 0] == 0).all() and (after.sites[:, 1] == (4, 0)).all()
    assert after.alive.all() and not after.contacts.any()
    assert (pulse_at(20_000, [(0, 0)], (0.25, 0.0), 0.4).sites != 0).any(axis=(1, 2)).mean() < 1e-3


def test_without_a_tip_nearby_nothing_moves_at_full_bias():
    after = pulse_at(20_000, [(0, 0)], (3.0, 0.0), 3.0)
    assert (after.sites == 0).all() and (after.orientation == 0).all()


def same_law(first, second):
    """p-value of: two samples of sites (n, 2) come from one distribution."""
    _, where = np.unique(np.concatenate([first, second]), axis=0, return_inverse=True)
    table = np.stack([np.bincount(part, minlength=where.max() + 1) for part in (where[: len(first)], where[len(first) :])])
    return chi2_contingency(table[:, table.sum(axis=0) >= 20]).pvalue


def test_mirrored_tip_and_axis_give_mirrored_displacements():
    def mirror(sites):  # y -> -y in axial coordinates
        return np.stack([sites[:, 0] + sites[:, 1], -sites[:, 1]], axis=1)

    count, tip, image = 40_000, (0.3, 0.25), (0.3, -0.25)
    after = pulse_at(count, [(0, 0)], tip, 3.0, orientation=1, seed=1).sites[:, 0]
    assert len(np.unique(after, axis=0)) > 8
    assert same_law(after, mirror(pulse_at(count, [(0, 0)], image, 3.0, orientation=2, seed=2).sites[:, 0])) > 1e-3
    # That the axis has to be mirrored too shows.
    assert same_law(after, mirror(pulse_at(count, [(0, 0)], image, 3.0, orientation=1, seed=2).sites[:, 0])) < 1e-6


@given(
    st.integers(-9, 9), st.integers(-9, 9), st.integers(0, 2), st.floats(-0.8, 0.8), st.floats(-0.8, 0.8), st.floats(2.0, 3.2)
)
def test_the_law_turns_and_shifts_with_the_world(q, r, phi, x, y, bias):
    def law(site, phi, offset):
        site = np.array([site])
        return hop_probabilities(site, np.array([phi]), to_position(site) + np.array([offset]), np.array([bias]))[0]

    here = law((q, r), phi, (x, y))
    assert here == pytest.approx(law((0, 0), phi, (x, y)), rel=1e-9, abs=1e-15)
    c, s = math.cos(math.pi / 3), math.sin(math.pi / 3)
    turned = law((0, 0), (phi + 1) % 3, (c * x - s * y, s * x + c * y))
    assert np.roll(here, 1) == pytest.approx(turned, rel=1e-6, abs=1e-12)
    assert 0 <= here.min() and here.sum() <= excitation(np.array(x * x + y * y), np.array(bias))


def test_no_hop_ends_within_contact_and_refusals_are_counted():
    # Two molecules just outside contact (4 steps: 1.154 nm), the tip between them.
    after = pulse_at(20_000, [(0, 0), (4, 0)], (0.577, 0.0), 3.0)
    gap = np.hypot(*(to_position(after.sites[:, 0]) - to_position(after.sites[:, 1])).T)
    assert gap.min() >= PHYSICS.contact
    assert after.contacts.sum() > 1000
    free = pulse_at(20_000, [(0, 0), (4, 0)], (0.577, 0.0), 3.0, physics=replace(PHYSICS, contact=0.1))
    assert np.hypot(*(to_position(free.sites[:, 0]) - to_position(free.sites[:, 1])).T).min() < PHYSICS.contact
    assert not pulse_at(20_000, [(0, 0)], (0.4, 0.0), 3.0).contacts.any()


def test_molecules_are_conserved_and_stay_apart_over_many_pulses():
    rng = np.random.default_rng(0)
    sites = np.array([(0, 0), (4, 0), (0, 4), (-4, 4), (4, -4)])
    sites, turned, alive, _ = scenes(100, sites)
    alive[:, 4] = False  # a place that is not taken
    absent = sites[:, 4].copy()
    for _ in range(60):
        place = to_position(sites[:, 0])
        tip = place + rng.normal(0, 0.3, place.shape)
        bias = rng.choice([2.2, 2.6], 100)
        sites, turned, alive, _ = pulse(sites, turned, alive, tip, bias, rng.random((100, 5, PHYSICS.draws)))
        gap = to_position(sites[:, :4, None]) - to_position(sites[:, None, :4])
        gap = np.hypot(gap[..., 0], gap[..., 1]) + 9 * np.eye(4)
        assert gap.min() >= PHYSICS.contact - 1e-9
    assert alive[:, :4].all() and not alive[:, 4].any()  # nothing breaks below 2.8 V
    assert np.array_equal(sites[:, 4], absent)
    assert set(np.unique(turned)) == {0, 1, 2}


def test_turning_and_breaking_have_their_probabilities():
    still = replace(PHYSICS, threshold=50.0, dissociation=0.5)  # excitation switched off: the molecule stays in place
    tip, bias, count = (0.4, 0.0), 3.0, 40_000
    g = math.exp(-(0.4**2) / (2 * 0.5**2))
    after = pulse_at(count, [(0, 0)], tip, bias, orientation=1, physics=still)
    turn = 0.10 * g * bias / 2.5
    counts = np.bincount(after.orientation[:, 0], minlength=3)
    assert chisquare(counts, [count * turn / 2, count * (1 - turn), count * turn / 2]).pvalue > 1e-3
    assert binomtest(int((~after.alive).sum()), count, 0.5 * g).pvalue > 1e-3
    assert pulse_at(count, [(0, 0)], tip, 2.79, physics=still).alive.all()


def test_bystanders_within_contact_are_dragged_and_beyond_the_clearance_practically_never():
    """A tip that passes by, 0.4 nm ahead of where a molecule would be, in steps of 0.2 nm at 2.6 V."""

    def share_moved(distance, count=400):
        row = round(distance / (0.2885 * math.sqrt(3) / 2))
        site = np.array([(-row // 2, row)])
        sites, turned, alive, _ = scenes(count, [(500, 0), site[0]])
        first = sites[:, 1].copy()
        rng = np.random.default_rng(3)
        for x in np.arange(-2, 2, 0.2):
            tip = np.tile([x, 0.0], (count, 1))
            sites, turned, alive, _ = pulse(
                sites, turned, alive, tip, np.full(count, 2.6), rng.random((count, 2, PHYSICS.draws))
            )
        return (sites[:, 1] != first).any(axis=1).mean()

    assert share_moved(0.5) > 0.9
    assert share_moved(0.75) > 0.5
    assert share_moved(1.25) < 0.1
    assert share_moved(1.5) < 0.03


def test_only_the_addressed_molecule_feels_a_distant_pulse():
    far = replace(PHYSICS, excitation_range=5.0)
    after = pulse_at(2000, [(0, 0), (0, 9)], (-2.0, 0.0), 3.0, physics=far)
    moved = (after.sites != [(0, 0), (0, 9)]).any(axis=2).mean(axis=0)
    assert moved[0] > 0.5 and moved[1] == 0


def test_the_tip_changes_now_and_then():
    u = np.random.default_rng(0).random((200_000, 3))
    before = np.tile([9.0, 9.0], (200_000, 1))
    after = change_tip(before, u)
    changed = (after != 9).any(axis=1)
    assert binomtest(int(changed.sum()), 200_000, 0.002).pvalue > 1e-3
    assert kstest((after[changed] / 0.08).ravel(), "norm").pvalue > 1e-3


def test_scans_report_positions_with_noise():
    sites = np.tile([[3, -2], [5, 5]], (20_000, 1, 1))
    seen = scan(sites, np.random.default_rng(0).random((20_000, 4)))
    assert kstest(((seen - to_position(sites)) / 0.02).ravel(), "norm").pvalue > 1e-3


def test_arguments_are_left_alone_and_the_same_numbers_give_the_same_pulse():
    sites, turned, alive, uniforms = scenes(50, [(0, 0), (3, 2)])
    tip, bias = np.tile([0.3, 0.1], (50, 1)), np.full(50, 3.0)
    copies = [array.copy() for array in (sites, turned, alive, tip, bias, uniforms)]
    first, second = (pulse(sites, turned, alive, tip, bias, uniforms) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second))
    assert all(np.array_equal(a, b) for a, b in zip((sites, turned, alive, tip, bias, uniforms), copies))
    # Scene by scene it is the same too.
    alone = [pulse(*(part[b : b + 1] for part in (sites, turned, alive, tip, bias, uniforms))) for b in range(50)]
    assert all(np.array_equal(np.concatenate([pulsed[k] for pulsed in alone]), first[k]) for k in range(4))


def test_bad_input():
    sites, turned, alive, uniforms = scenes(2, [(0, 0)])
    tip, bias = np.zeros((2, 2)), np.full(2, 2.6)
    with pytest.raises(ValueError, match="uniforms must have shape"):
        pulse(sites, turned, alive, tip, bias, uniforms[:, :, :3])
    with pytest.raises(ValueError, match="tip must have shape"):
        pulse(sites, turned, alive, tip[:1], bias, uniforms)
    with pytest.raises(ValueError, match="tip's position must be finite"):
        pulse(sites, turned, alive, tip * np.nan, bias, uniforms)
    with pytest.raises(ValueError, match="bias must be finite and not negative"):
        pulse(sites, turned, alive, tip, -bias, uniforms)
    for wrong in ({"contact": math.nan}, {"temperature": 0}, {"rotation": 1.5}, {"sub_steps": 0}, {"a0": "x"}, {"reach": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Physics(**wrong)

"""Boundary embedding shaping: golds, laws, brute force, gradients, bad input."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data
from torch_geometric.nn import GCN

from components.graphs.bes import (
    BESPlugin,
    BoundaryAttention,
    Shaper,
    class_centroids,
    detect_boundary,
    displacement_step,
    gravity_loss,
    rescale,
    slab_margins,
)
from components.graphs.contrastive import supervised_contrastive
from components.graphs.decoders import ChebDecoder
from components.graphs.propagation import SparseGraph

CENTROIDS = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 4.0]], dtype=torch.float64)


def blobs(n=90, dim=4, classes=3, seed=0, spread=1.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    means = 2 * torch.randn(classes, dim, generator=generator)
    z = means[y] + spread * torch.randn(n, dim, generator=generator)
    return z.to(dtype), y, torch.rand(n, generator=generator) < 0.6


# --- the loss -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("z", "y", "tau", "expected"),
    [
        ([[0, 0]], [0], 1.0, math.log1p(math.exp(-9) + math.exp(-16))),
        ([[0, 0]], [1], 1.0, 3.048588),
        ([[0, 0], [2, 0]], [1, 0], 0.5, 3.064702),
    ],
)
def test_gravity_golds(z, y, tau, expected):
    loss = gravity_loss(torch.tensor(z, dtype=torch.float64), torch.tensor(y), CENTROIDS, tau)
    assert loss.item() == pytest.approx(expected, abs=5e-7)


def naive_gravity(z, y, centroids, tau, mode, denominator):
    losses = []
    for b in range(len(z)):
        attract = (z[b] - centroids[y[b]]).norm()
        others = [(z[b] - centroids[c]).norm() for c in range(len(centroids)) if c != y[b]]
        if mode == "rival":
            foreign = [(z[j] - centroids[y[b]]).norm() for j in range(len(z)) if y[j] != y[b]]
            nearest = min(foreign) if foreign else torch.tensor(math.inf)
        else:
            nearest = min(others)
        positive = torch.exp(-(max(0.0, (attract - nearest).item()) ** 2) / torch.tensor(tau, dtype=torch.float64))
        negative = sum(torch.exp(-(d**2) / tau) for d in others)
        total = negative + (positive if denominator == "both" else 0)
        losses.append(-torch.log(positive / total))
    return torch.stack(losses).mean()


@pytest.mark.parametrize(("mode", "denominator"), list(product(["centroid", "rival"], ["both", "neg_only"])))
def test_gravity_equals_its_definition(mode, denominator):
    z, y, _ = blobs(12, 3, dtype=torch.float64)
    z, centroids = z / 2, class_centroids(z / 2, y, 3)
    got = gravity_loss(z, y, centroids, 1.7, mode, denominator)
    torch.testing.assert_close(got, naive_gravity(z, y, centroids, 1.7, mode, denominator))


@pytest.mark.parametrize(("mode", "denominator"), list(product(["centroid", "rival"], ["both", "neg_only"])))
def test_gravity_gradient(mode, denominator):
    z, y, _ = blobs(7, 3, dtype=torch.float64)
    centroids = class_centroids(z, y, 3) + 0.3
    z.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: gravity_loss(z, y, centroids, 2.0, mode, denominator), z)


def test_hinge_switches_the_pull_off_but_not_the_push():
    z = torch.tensor([[0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    gravity_loss(z, torch.tensor([0]), CENTROIDS).backward()
    # Only the push from the foreign centroids is left: -d/dz log(1 + sum exp(-d_c^2)).
    push = z.detach().clone().requires_grad_()
    torch.log1p(torch.exp(-(push - CENTROIDS[1:]).square().sum(1)).sum()).backward()
    torch.testing.assert_close(z.grad, push.grad)


def test_gradient_is_finite_on_a_centroid():
    z = CENTROIDS.clone().requires_grad_()
    gravity_loss(z, torch.tensor([0, 1, 2]), CENTROIDS).backward()
    assert torch.isfinite(z.grad).all()


def test_no_gradient_into_centroids_and_none_lost_far_away():
    centroids = CENTROIDS.clone().requires_grad_()
    z = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    loss = gravity_loss(z, torch.tensor([1]), centroids, tau=1e-3)  # exp(-4000) and exp(-1000) are zero in float64
    loss.backward()
    assert centroids.grad is None and loss.item() == pytest.approx(3000) and z.grad.abs().sum() > 0


@given(st.floats(0, 2 * math.pi), st.floats(-5, 5), st.permutations([0, 1, 2]))
@settings(max_examples=25, deadline=None)
def test_gravity_is_invariant_to_motions_and_class_names(angle, offset, permutation):
    z, y, _ = blobs(9, 2, dtype=torch.float64)
    centroids = class_centroids(z, y, 3) + 0.5
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64)
    expected = gravity_loss(z, y, centroids)
    torch.testing.assert_close(gravity_loss(z @ turn + offset, y, centroids @ turn + offset), expected)
    permutation = torch.tensor(permutation)
    torch.testing.assert_close(gravity_loss(z, permutation[y], centroids[permutation.argsort()]), expected)


def test_supervised_contrastive_equals_its_definition():
    z, y, _ = blobs(11, 3, dtype=torch.float64)
    y = y.clone()
    y[0] = 7  # alone in its class: left out
    unit = z / z.norm(dim=1, keepdim=True)
    losses = []
    for i in range(1, 11):
        denominator = sum(torch.exp(unit[i] @ unit[a] / 0.3) for a in range(11) if a != i)
        positives = [p for p in range(11) if p != i and y[p] == y[i]]
        losses.append(-sum(torch.log(torch.exp(unit[i] @ unit[p] / 0.3) / denominator) for p in positives) / len(positives))
    torch.testing.assert_close(supervised_contrastive(z, y, 0.3), torch.stack(losses).mean())
    z.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: supervised_contrastive(z, y, 0.3), z)
    assert supervised_contrastive(z[:2], torch.tensor([0, 1])).item() == 0


# --- the map --------------------------------------------------------------------------------------------------------


def test_single_token_is_the_affine_residual_map():
    torch.manual_seed(0)
    phi = BoundaryAttention(8).double()
    h = torch.randn(5, 8, dtype=torch.float64)

    def block(z):
        return z + (z @ phi.value.weight.T + phi.value.bias) @ phi.out.weight.T + phi.out.bias

    torch.testing.assert_close(phi(h), block(block(h) + h))
    phi(h).square().sum().backward()
    for layer in (phi.query, phi.key):
        assert torch.equal(layer.weight.grad, torch.zeros_like(layer.weight))
        assert torch.equal(layer.bias.grad, torch.zeros_like(layer.bias))
    assert phi.value.weight.grad.abs().sum() > 0


def test_views_attend_and_permuting_them_permutes_the_outputs():
    torch.manual_seed(0)
    phi = BoundaryAttention(8, heads=2, tokens="views").double()
    h = torch.randn(5, 8, dtype=torch.float64)
    torch.testing.assert_close(phi(h.roll(4, 1)), phi(h).roll(4, 1))
    phi(h).square().sum().backward()
    assert phi.query.weight.grad.abs().sum() > 0
    changed = h.clone()
    changed[:, :4] += 1
    assert not torch.allclose(phi(changed)[:, 4:], phi(h)[:, 4:])  # one view sees the other


def test_attention_block_agrees_with_torchs():
    torch.manual_seed(1)
    phi = BoundaryAttention(12, heads=3, tokens="views", n_views=2).double()
    theirs = torch.nn.MultiheadAttention(6, 3, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([phi.query.weight, phi.key.weight, phi.value.weight]))
        theirs.in_proj_bias.copy_(torch.cat([phi.query.bias, phi.key.bias, phi.value.bias]))
        theirs.out_proj.weight.copy_(phi.out.weight)
        theirs.out_proj.bias.copy_(phi.out.bias)
    tokens = torch.randn(7, 2, 6, dtype=torch.float64)
    expected = theirs(tokens, tokens, tokens)[0] + tokens
    torch.testing.assert_close(phi.block(tokens.reshape(7, 12)), expected.reshape(7, 12))


def test_initial_weights_are_distributed_as_torchs():
    torch.manual_seed(0)
    phi, theirs = BoundaryAttention(256), torch.nn.MultiheadAttention(256, 2)
    for ours, reference in ((phi.value.weight, theirs.in_proj_weight[512:]), (phi.out.weight, theirs.out_proj.weight)):
        assert ours.std().item() == pytest.approx(reference.std().item(), rel=0.02)
        assert ours.abs().max().item() == pytest.approx(reference.abs().max().item(), rel=0.01)
    assert not phi.value.bias.any() and not phi.out.bias.any()


@pytest.mark.parametrize(
    "options", [{"dim": 7}, {"dim": 6, "tokens": "views"}, {"dim": 8, "heads": 0}, {"dim": 8, "tokens": "x"}]
)
def test_map_rejects_bad_sizes(options):
    with pytest.raises(ValueError, match=r"multiple of views x heads|tokens must be"):
        BoundaryAttention(**options)
    with pytest.raises(ValueError, match=r"shape \(N, 8\)"):
        BoundaryAttention(8)(torch.zeros(3, 6))


# --- detection ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slab", ["paper", "centred"])
def test_margins_by_brute_force_over_all_pairs(slab):
    z, y, _ = blobs(40, 5, dtype=torch.float64)
    mu = class_centroids(z, y, 3)
    precision = torch.linalg.inv(torch.cov(z.T) + 1e-4 * torch.eye(5))
    margins = slab_margins(z, y, mu, slab=slab)
    for i, n in product(range(40), range(3)):
        m = y[i]
        if n == m:
            assert margins[i, n] == math.inf
            continue
        point = z[i] - (mu[m] + mu[n]) / 2 if slab == "centred" else z[i]
        assert margins[i, n].item() == pytest.approx(((mu[m] - mu[n]) @ precision @ point).item(), abs=1e-9)


@pytest.mark.parametrize(("delta", "threshold"), [(0.5, 0.5), (2.0, 0.3), (50.0, 0.7)])
def test_detection_by_brute_force(delta, threshold):
    z, y, train = blobs(80, 3, spread=2.0, dtype=torch.float64)
    state = detect_boundary(z, y, train, delta=delta, threshold=threshold, k=4)
    rows = train.nonzero().flatten()
    mu = class_centroids(z[train], y[train], 3)
    margins = slab_margins(z[train], y[train], mu)
    candidates = [int(rows[i]) for i in range(len(rows)) if (margins[i].abs() <= delta).any()]
    hard = []
    for v in candidates:
        near = sorted((u for u in candidates if u != v), key=lambda u: ((z[u] - z[v]).square().sum().item(), u))[:4]
        if near and sum(int(y[u] != y[v]) for u in near) / len(near) > threshold:
            hard.append(v)
    assert state.candidates.tolist() == candidates and state.nodes.tolist() == hard
    torch.testing.assert_close(state.centroids, mu)


def test_detection_reads_no_label_and_no_embedding_outside_training():
    z, y, train = blobs(80, 3, spread=2.0)
    expected = detect_boundary(z, y, train)
    y[~train] = y[~train].flip(0) + 40
    z[~train] = torch.nan
    got = detect_boundary(z, y, train)
    assert all(torch.equal(a, b) for a, b in zip(got[:4], expected[:4], strict=True)) and expected.nodes.numel() > 0


def test_centred_hard_nodes_straddle_the_hyperplane():
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 2
    z = torch.randn(400, 2, generator=generator) + 5  # far from the origin: the uncentred slab misses the contact zone
    z[:, 0] += torch.where(y == 0, -1.0, 1.0)
    state = detect_boundary(z, y, torch.ones(400, dtype=torch.bool), slab="centred", q=0.4)
    x = z[state.nodes, 0] - 5
    assert state.candidates.numel() == 160 and (x > 0).any() and (x < 0).any() and x.abs().max() < 1.0


def test_too_few_candidates_is_an_empty_hard_set_and_k_is_reduced():
    z, y, train = blobs()
    state = detect_boundary(z, y, train, delta=0.0)
    assert state.nodes.numel() == 0 and state.candidates.numel() == 0 and state.neighbours_used == 0
    state = detect_boundary(z, y, train, k=1000)
    assert state.neighbours_used == state.candidates.numel() - 1


def test_detection_rejects_bad_input():
    z, y, train = blobs()
    for options, says in (
        ({"delta": -1.0}, "delta must not be negative"),
        ({"k": 0}, "k must be at least 1"),
        ({"q": 2.0}, "q must lie in"),
        ({"slab": "x"}, "slab must be"),
        ({"num_classes": 2}, r"labels must lie in \[0, 2\)"),
        ({"num_classes": 5}, "class 3 has none"),
        ({"num_classes": 1}, "at least 2 classes"),
    ):
        with pytest.raises(ValueError, match=says):
            detect_boundary(z, y, train, **options)
    with pytest.raises(ValueError, match="selects no node"):
        detect_boundary(z, y, torch.zeros_like(train))
    with pytest.raises(TypeError, match="integer labels"):
        detect_boundary(z, y.float(), train)
    with pytest.raises(ValueError, match=r"eigenvalues range from"):
        detect_boundary(torch.zeros_like(z), y, train, reg=0.0)
    z[train.nonzero()[3]] = torch.inf
    with pytest.raises(ValueError, match="Z must be finite"):
        detect_boundary(z, y, train)


def test_loss_rejects_bad_input():
    z, y, _ = blobs(9, 2)
    mu = class_centroids(z, y, 3)
    with pytest.raises(ValueError, match="tau must be positive, got 0"):
        gravity_loss(z, y, mu, 0.0)
    with pytest.raises(ValueError, match="mode must be"):
        gravity_loss(z, y, mu, mode="x")
    with pytest.raises(ValueError, match="M >= 1"):
        gravity_loss(z[:0], y[:0], mu)
    with pytest.raises(ValueError, match=r"\[0, C\) with C = 3"):
        gravity_loss(z, y + 1, mu)
    with pytest.raises(TypeError, match="integer labels"):
        gravity_loss(z, y.double(), mu)


# --- the step -------------------------------------------------------------------------------------------------------


def pull(h):
    return lambda phi: phi(h[:10]).square().mean()


def test_sgd_with_grad_scale_moves_the_embeddings_by_alpha():
    torch.manual_seed(0)
    phi, h = BoundaryAttention(8).double(), torch.randn(50, 8, dtype=torch.float64)
    before = phi(h).detach()
    info = displacement_step(phi, pull(h), h, torch.optim.SGD(phi.parameters(), lr=1e-4), scale="grad", alpha=0.05)
    moved = (phi(h) - before).norm(dim=1).sum().item()
    assert moved == pytest.approx(0.05, rel=0.05) and info.delta == pytest.approx(moved)
    torch.testing.assert_close(info.outputs, phi(h).detach())


@pytest.mark.parametrize("lr", [1e-5, 1e-1, 3.0])
def test_update_scale_is_a_trust_region_that_never_enlarges(lr):
    torch.manual_seed(0)
    phi, twin, h = BoundaryAttention(8), BoundaryAttention(8), torch.randn(50, 8)
    twin.load_state_dict(phi.state_dict())
    before = phi(h).detach()
    info = displacement_step(phi, pull(h), h, torch.optim.Adam(phi.parameters(), lr=lr), scale="update", max_shift=0.01)
    shift = (phi(h) - before).norm(dim=1).mean()
    assert shift <= 0.01 * before.norm(dim=1).mean() and info.shrink <= 1
    displacement_step(twin, pull(h), h, torch.optim.Adam(twin.parameters(), lr=lr), scale="none")
    if lr == 1e-5:  # inside the region: the optimiser's own step, bit for bit
        assert info.shrink == 1 and all(torch.equal(a, b) for a, b in zip(phi.parameters(), twin.parameters(), strict=True))
    else:
        assert info.shrink < 1 and shift > 0.005 * before.norm(dim=1).mean()


@pytest.mark.parametrize("scale", ["none", "grad", "update"])
def test_an_aborted_step_leaves_everything_bit_for_bit(scale):
    torch.manual_seed(0)
    phi, h = BoundaryAttention(8), torch.randn(20, 8)
    optimizer = torch.optim.Adam(phi.parameters(), lr=0.01)
    displacement_step(phi, pull(h), h, optimizer, scale="none")
    parameters = [parameter.detach().clone() for parameter in phi.parameters()]
    moments = [optimizer.state[parameter]["exp_avg"].clone() for parameter in phi.parameters()]
    poisoned = h.clone()
    poisoned[3] = torch.inf  # the displacement over all nodes becomes NaN after the virtual step
    with pytest.raises(FloatingPointError, match="not finite"):
        displacement_step(phi, pull(h), poisoned, optimizer, scale=scale)
    assert all(torch.equal(a, b) for a, b in zip(phi.parameters(), parameters, strict=True))
    assert all(torch.equal(optimizer.state[p]["exp_avg"], m) for p, m in zip(phi.parameters(), moments, strict=True))


def test_grad_scale_does_not_commit_the_virtual_step():
    """With a zero learning rate for the commit (weight decay off) the virtual parameters must be gone, bit for bit."""
    torch.manual_seed(0)
    phi, h = BoundaryAttention(8), torch.randn(20, 8)
    parameters = [parameter.detach().clone() for parameter in phi.parameters()]

    class Still(torch.optim.SGD):
        def step(self, closure=None):
            return None

    info = displacement_step(phi, pull(h), h, Still(phi.parameters(), lr=0.1), scale="grad")
    assert info.proposed > 0 and info.delta == 0
    assert all(torch.equal(a, b) for a, b in zip(phi.parameters(), parameters, strict=True))


def test_step_rejects_bad_options():
    phi, h = BoundaryAttention(4), torch.randn(5, 4)
    optimizer = torch.optim.SGD(phi.parameters(), lr=0.1)
    for options, says in (
        ({"scale": "x"}, "scale must be"),
        ({"alpha": 0.0}, "must be positive"),
        ({"max_shift": -1.0}, "positive"),
    ):
        with pytest.raises(ValueError, match=says):
            displacement_step(phi, pull(h), h, optimizer, **options)


# --- the whole ------------------------------------------------------------------------------------------------------


def problem(n=120, seed=0):
    z, y, train = blobs(n, 8, spread=3.0, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(0, n, (2, 4 * n), generator=generator)
    graph = SparseGraph(torch.cat([edges, edges.flip(0)], 1), n)
    rest = (~train).nonzero().flatten()
    val = torch.zeros(n, dtype=torch.bool)
    val[rest[::2]] = True
    return Data(x=z, y=y, edge_index=graph.edge_index, train_mask=train, val_mask=val, test_mask=~train & ~val)


def test_plugin_shapes_a_frozen_pyg_encoder():
    data = problem()
    torch.manual_seed(0)
    encoder = GCN(8, 16, 1, dropout=0.5)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    plugin = BESPlugin(encoder, 3, epochs=5, seed=1).fit(data)
    shaped = plugin.transform(data)
    assert shaped.shape == (120, 16) and not shaped.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items()) and encoder.training
    assert torch.equal(shaped, BESPlugin(encoder, 3, epochs=5, seed=1).fit(data).transform(data))
    torch.testing.assert_close(shaped, plugin.shaper.z)
    assert not torch.equal(shaped, BESPlugin(encoder, 3, epochs=5, seed=1, nodes="none").fit(data).transform(data))


def test_plugin_rejects_bad_input():
    data = problem()
    with pytest.raises(RuntimeError, match="call fit"):
        BESPlugin(data.x, 3).transform(data)
    with pytest.raises(TypeError, match="module or a tensor"):
        BESPlugin("gcn", 3)
    with pytest.raises(ValueError, match="dead"):
        BESPlugin(torch.zeros_like(data.x), 3).fit(data)
    data.val_mask = data.train_mask
    with pytest.raises(ValueError, match="must not overlap"):
        BESPlugin(data.x, 3).fit(data)


@pytest.mark.parametrize("nodes", ["boundary", "random", "all", "none"])
def test_arms_differ_in_whom_they_pull(nodes):
    data = problem()
    h, _ = rescale(data.x, 5.66)
    shaper = Shaper(h, data.y, data.train_mask, 3, nodes=nodes, batch=1000)
    z = shaper.z.clone()
    record = shaper.step()
    expected = {"boundary": record.n_hard, "random": record.n_hard, "all": int(data.train_mask.sum()), "none": 0}[nodes]
    assert record.n_hard > 0 and record.n_pulled == expected
    assert torch.equal(z, shaper.z) == (nodes == "none")
    assert torch.equal(shaper.z, shaper.phi(h).detach())


def test_shaping_leaves_the_global_generator_and_h_alone():
    data = problem()
    torch.manual_seed(5)
    h = data.x.clone()
    state = torch.random.get_rng_state()
    shaper = Shaper(data.x, data.y, data.train_mask, 3, nodes="random")
    shaper.step()
    assert torch.equal(torch.random.get_rng_state(), state) and torch.equal(data.x, h)


def test_decoder_gives_no_gradient_to_the_map():
    data = problem()
    shaper = Shaper(data.x, data.y, data.train_mask, 3, nodes="none")
    decoder = ChebDecoder(8, 3)
    decoder(shaper.z, SparseGraph(data.edge_index, 120)).sum().backward()
    assert all(parameter.grad is None for parameter in shaper.phi.parameters())
    assert all(parameter.grad is not None for parameter in decoder.parameters())


def test_pulling_brings_hard_nodes_nearer_to_their_centroid():
    data = problem()
    h, _ = rescale(data.x, 5.66)
    shaper = Shaper(h, data.y, data.train_mask, 3, lr=1e-3, weight_decay=0.0, batch=1000)
    hard = shaper.detect().nodes

    def loss():
        mu = class_centroids(shaper.z[data.train_mask], data.y[data.train_mask], 3)
        return gravity_loss(shaper.z[hard], data.y[hard], mu).item()

    start = loss()
    for _ in range(40):
        shaper.step()
    assert loss() < 0.9 * start


def test_shaper_rejects_bad_options():
    data = problem()
    for options, says in (
        ({"nodes": "some"}, "nodes must be one of"),
        ({"loss": "l2"}, "loss must be one of"),
        ({"optimizer": "lion"}, "optimizer must be one of"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"contrast_tau": 0.0}, "contrast_tau must be positive"),
    ):
        with pytest.raises(ValueError, match=says):
            Shaper(data.x, data.y, data.train_mask, 3, **options)

"""Loops choose their epoch on validation data, leak nothing, and agree with PyTorch Geometric's own GCN."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GCN

from components.graphs.bes import Shaper
from components.graphs.csbm import boundary_csbm
from components.graphs.decoders import ChebDecoder, InnerProduct, LinkMLP, LinkNet
from components.graphs.links import sample_negatives, split_links
from components.graphs.propagation import SparseGraph
from components.graphs.splits import stratified_split
from components.graphs.training import fit_links, fit_nodes
from components.graphs.two_view import TwoLayerNet


@pytest.fixture(scope="module")
def problem():
    data = boundary_csbm(n=300, seed=0)
    part = torch.from_numpy(stratified_split(data.y.numpy()))
    return data, SparseGraph(data.edge_index, 300), part == 0, part == 1, part == 2


def fit(problem, epochs=12, **options):
    data, graph, train, val, _ = problem
    torch.manual_seed(0)
    return fit_nodes(TwoLayerNet("gcn", 50, 16, 5), data.x, graph, data.y, train, val, epochs=epochs, **options)


def test_the_best_validation_epoch_is_returned_with_its_own_state(problem):
    data, graph, _, val, _ = problem
    result = fit(problem, eval_every=5)
    assert [epoch for epoch, _, _ in result.curve] == [5, 10, 12]
    best = max(accuracy for _, accuracy, _ in result.curve)
    assert (result.epoch, best) == next((e, a) for e, a, _ in result.curve if a == best)
    net = TwoLayerNet("gcn", 50, 16, 5)
    net.load_state_dict(result.state)
    logits = net.eval()(data.x, graph).detach()
    assert torch.equal(logits, result.scores)
    assert result.val_accuracy == (logits.argmax(1) == data.y)[val].double().mean().item()


def test_labels_of_test_nodes_are_never_read(problem):
    data, graph, train, val, test = problem
    expected = fit(problem)
    changed = data.clone()
    changed.y[test] = changed.y[test].flip(0)
    assert torch.equal(fit((changed, graph, train, val, test)).scores, expected.scores)


def test_shaped_fit_returns_the_map_of_its_epoch(problem):
    data, graph, train, val, _ = problem
    h = torch.relu(data.x[:, :32])
    torch.manual_seed(0)
    shaper = Shaper(h, data.y, train, 5)
    decoder = ChebDecoder(32, 5)
    result = fit_nodes(decoder, h, graph, data.y, train, val, epochs=6, eval_every=2, shaper=shaper)
    assert len(result.records) == 6
    shaper.phi.load_state_dict(result.phi)
    torch.testing.assert_close(shaper.phi(h).detach(), result.z)
    torch.testing.assert_close(decoder(result.z, graph).detach(), result.scores)


def test_gcn_trains_like_pygs(problem):
    """From the same weights and without dropout, 30 epochs of ours and of PyG's GCN give the same logits."""
    data, _, train, val, _ = problem
    graph, x = SparseGraph(data.edge_index, 300, torch.float64), data.x.double()
    torch.manual_seed(0)
    ours, theirs = TwoLayerNet("gcn", 50, 16, 5, dropout=0.0).double(), GCN(50, 16, 2, 5).double()
    with torch.no_grad():
        for convolution, layer in zip(theirs.convs, (ours.first, ours.second), strict=True):
            convolution.lin.weight.copy_(layer.project.weight.T)
    optimizer = torch.optim.Adam(theirs.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(30):
        optimizer.zero_grad()
        cross_entropy(theirs(x, data.edge_index)[train], data.y[train]).backward()
        optimizer.step()
    # Evaluated at the last epoch alone, so that this is the epoch chosen.
    result = fit_nodes(ours, x, graph, data.y, train, val, epochs=30, eval_every=30)
    torch.testing.assert_close(result.scores, theirs(x, data.edge_index).detach())


def test_link_split_partitions_the_edges_and_negatives_are_non_edges(problem):
    data, *_ = problem
    split = split_links(data.edge_index, 300, seed=3)
    edges = {tuple(pair) for pair in data.edge_index.T.tolist()}
    parts = [{tuple(pair) for pair in part.T.tolist()} for part in split]
    train, val, val_negative, test, test_negative = parts
    assert len(train) + len(val) + len(test) == len(edges) // 2
    assert train | val | test == {(u, v) for u, v in edges if u < v}
    assert not (val_negative | test_negative) & edges and not val_negative & test_negative
    assert len(val) == len(val_negative) and len(test) == len(test_negative)
    assert all(u < v for u, v in val_negative | test_negative)
    assert torch.equal(split.test, split_links(data.edge_index, 300, seed=3).test)
    assert not torch.equal(split.test, split_links(data.edge_index, 300, seed=4).test)


def test_sampled_negatives_are_distinct_and_uniform():
    train = torch.tensor([[0, 1], [1, 2]])
    generator = torch.Generator().manual_seed(0)
    drawn = [tuple(pair) for _ in range(600) for pair in sample_negatives(train, 5, generator).T.tolist()]
    counts = {pair: drawn.count(pair) for pair in set(drawn)}
    assert set(counts) == {(u, v) for u in range(5) for v in range(u + 1, 5)} - {(0, 1), (1, 2)}
    assert min(counts.values()) > 100 and max(counts.values()) < 200  # 150 expected, standard deviation 11
    with pytest.raises(ValueError, match="only 1 exist"):
        sample_negatives(torch.tensor([[0, 0], [1, 2]]), 3, generator)


def test_links_are_learned_and_leaks_are_refused():
    data = boundary_csbm(n=300, boundary=0.0, hom=1.0, seed=0)  # edges within classes: most non-edges can be told
    split = split_links(data.edge_index, 300)
    both = torch.cat([split.train, split.train.flip(0)], 1)
    torch.manual_seed(0)
    net = LinkNet(TwoLayerNet("gcn", 50, 16, 16), InnerProduct())
    result = fit_links(net, data.x, SparseGraph(both, 300), split, epochs=40, seed=0, eval_every=5)
    assert result.val_accuracy > 0.7 and result.scores.shape == (2 * split.test.shape[1],)
    leaky = torch.cat([both, split.test[:, :1], split.test[:, :1].flip(0)], 1)
    with pytest.raises(ValueError, match="1 validation or test edges are in it"):
        fit_links(net, data.x, SparseGraph(leaky, 300), split, epochs=1, seed=0)


def test_pair_scores_are_symmetric():
    q, pairs = torch.randn(9, 4), torch.tensor([[0, 1, 2], [3, 4, 5]])
    for scorer in (InnerProduct(), LinkMLP(4)):
        torch.testing.assert_close(scorer(q, pairs), scorer(q, pairs.flip(0)))


def test_legacy_head_bounds_logits_below():
    graph = SparseGraph(torch.tensor([[0, 1], [1, 0]]), 4)
    decoder = ChebDecoder(6, 3, legacy_head=True).eval()
    assert (decoder(torch.randn(4, 6), graph) >= 0).all()
    assert (ChebDecoder(6, 3).eval()(torch.randn(4, 6), graph) < 0).any()


def test_bad_input_is_named(problem):
    data, graph, train, val, _ = problem
    net = TwoLayerNet("gcn", 50, 16, 5)
    with pytest.raises(ValueError, match="must not overlap, but they share"):
        fit_nodes(net, data.x, graph, data.y, train, train, epochs=1)
    with pytest.raises(ValueError, match="val_mask selects no node"):
        fit_nodes(net, data.x, graph, data.y, train, torch.zeros_like(val), epochs=1)
    with pytest.raises(ValueError, match="at least 1, got 0 and 1"):
        fit_nodes(net, data.x, graph, data.y, train, val, epochs=0)
    with pytest.raises(FloatingPointError, match="training loss is nan in epoch 1"):
        fit_nodes(net, data.x * torch.nan, graph, data.y, train, val, epochs=1)
    with pytest.raises(ValueError, match="positive and together below 1"):
        split_links(data.edge_index, 300, val=0.5, test=0.5)
    with pytest.raises(ValueError, match="too few"):
        split_links(torch.tensor([[0, 1], [1, 0]]), 2)

"""Layers over CSR against PyTorch Geometric's, and propagation against dense algebra."""

from __future__ import annotations

import pytest
import torch
from torch_geometric import nn as pyg

from components.graphs.checks import undirected
from components.graphs.layers import KINDS, ChebLayer, Dropout, SSGCLayer, graph_layer
from components.graphs.propagation import SparseGraph
from components.graphs.two_view import OneLayerNet, TwoLayerNet, TwoViewEncoder

N = 30


def graph(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, N - 2, (2, 60), generator=generator)  # the last two nodes are isolated
    return SparseGraph(torch.cat([edges, edges.flip(0)], 1), N, dtype)


def dense(g):
    a = torch.zeros(N, N, dtype=torch.float64)
    a[g.edge_index[0], g.edge_index[1]] = 1
    return a


def test_propagators_equal_dense_algebra_forward_and_backward():
    g = graph()
    a, eye = dense(g), torch.eye(N, dtype=torch.float64)
    d = a.sum(1)
    inverse = torch.where(d > 0, 1 / d.clamp(min=1), 0)
    expected = {
        "renormalised": (a + eye) / (d + 1).sqrt() / (d + 1).sqrt()[:, None],
        "chebyshev": -a * inverse.sqrt() * inverse.sqrt()[:, None],
        "mean": a * inverse[:, None],
        "adjacency": a,
    }
    x = torch.randn(N, 3, dtype=torch.float64)
    for name, matrix in expected.items():
        propagate = getattr(g, name)
        torch.testing.assert_close(propagate(x), matrix @ x)
        leaf = x.clone().requires_grad_()
        weight = torch.randn(N, 3, dtype=torch.float64)
        (propagate(leaf) * weight).sum().backward()
        torch.testing.assert_close(leaf.grad, matrix.T @ weight)
        assert torch.autograd.gradcheck(propagate, leaf)


PAIRS = {
    "gcn": (lambda i, o: pyg.GCNConv(i, o), {"lin.weight": "project.weight", "bias": "project.bias"}),
    "sgc": (lambda i, o: pyg.SGConv(i, o, K=2), {"lin.weight": "project.weight", "lin.bias": "project.bias"}),
    "ssgc": (lambda i, o: pyg.SSGConv(i, o, alpha=0.1, K=16), {"lin.weight": "project.weight", "lin.bias": "project.bias"}),
    "cheb": (
        lambda i, o: pyg.ChebConv(i, o, K=3),
        {f"lins.{k}.weight": f"projections.{k}.weight" for k in range(3)} | {"bias": "bias"},
    ),
    "sage": (
        lambda i, o: pyg.SAGEConv(i, o),
        {"lin_l.weight": "neighbours.weight", "lin_l.bias": "own.bias", "lin_r.weight": "own.weight"},
    ),
    "graphconv": (
        lambda i, o: pyg.GraphConv(i, o),
        {"lin_rel.weight": "neighbours.weight", "lin_rel.bias": "own.bias", "lin_root.weight": "own.weight"},
    ),
}


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize(("in_dim", "out_dim"), [(9, 4), (3, 8), (5, 5)])
def test_layer_equals_pygs_forward_and_backward(kind, in_dim, out_dim):
    """Wide to narrow and narrow to wide: the two orders of propagation and projection."""
    torch.manual_seed(0)
    g, build, names = graph(), *PAIRS[kind]
    ours, theirs = graph_layer(kind, in_dim, out_dim).double(), build(in_dim, out_dim).double()
    mine = dict(ours.named_parameters())
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.copy_(torch.randn_like(parameter))
            target = mine[names[name]]
            target.copy_(parameter.T if parameter.ndim == 2 else parameter)
    x = torch.randn(N, in_dim, dtype=torch.float64)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    out, expected = ours(a, g), theirs(b, g.edge_index)
    torch.testing.assert_close(out, expected)
    weight = torch.randn_like(out)
    (out * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(a.grad, b.grad)
    for name, parameter in theirs.named_parameters():
        gradient = mine[names[name]].grad
        torch.testing.assert_close(gradient.T if gradient.ndim == 2 else gradient, parameter.grad)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize(("in_dim", "out_dim"), [(6, 2), (2, 6)])
def test_chebyshev_of_any_order_both_ways(order, in_dim, out_dim):
    g = graph()
    layer = ChebLayer(in_dim, out_dim, order).double()
    operator = g.chebyshev(torch.eye(N, dtype=torch.float64))
    polynomials = [torch.eye(N, dtype=torch.float64), operator]
    while len(polynomials) < order:
        polynomials.append(2 * operator @ polynomials[-1] - polynomials[-2])
    x = torch.randn(N, in_dim, dtype=torch.float64)
    expected = sum(t @ x @ lin.weight for t, lin in zip(polynomials, layer.projections, strict=False))
    torch.testing.assert_close(layer(x, g), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_two_layer_nets_and_views_have_the_right_shapes(kind):
    g, x = graph(torch.float32), torch.randn(N, 7)
    net = TwoLayerNet(kind, 7, 16, 3)
    assert net(x, g).shape == (N, 3)
    encoder = TwoViewEncoder((kind, "gcn"), 7)
    assert encoder(x, g).shape == (N, 32) and (encoder(x, g) >= 0).all()


def test_cut_encoder_is_frozen_and_equals_the_nets_first_layers():
    g, x = graph(torch.float32), torch.randn(N, 7)
    nets = [TwoLayerNet("cheb", 7, 4, 3), OneLayerNet("gcn", 7, 5)]
    encoder = TwoViewEncoder.cut_from(nets)
    assert not encoder.training and not any(p.requires_grad for p in encoder.parameters())
    expected = torch.cat([torch.relu(net.first(x, g)) for net in nets], 1)
    torch.testing.assert_close(encoder(x, g), expected)


def test_dropout_keeps_the_mean_and_drops_its_share():
    torch.manual_seed(0)
    x = torch.ones(400, 400, requires_grad=True)
    dropout = Dropout(0.3)
    out = dropout(x)
    assert (out == 0).double().mean().item() == pytest.approx(0.3, abs=0.01)
    assert out.mean().item() == pytest.approx(1, abs=0.01) and out.unique().numel() == 2
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())
    assert dropout.eval()(x) is x


def test_undirected_repairs_and_says_so():
    with pytest.warns(UserWarning, match="1 edges in one direction only"):
        fixed = undirected(torch.tensor([[0, 1, 2, 2, 2], [1, 0, 2, 1, 1]]), 4)
    assert fixed.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert undirected(torch.zeros(2, 0, dtype=torch.int64), 3).shape == (2, 0)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"node numbers in \[0, 2\), got 0 to 2"):
        SparseGraph(torch.tensor([[0], [2]]), 2)
    with pytest.raises(ValueError, match=r"int64 tensor of shape \(2, E\)"):
        SparseGraph(torch.zeros(3, 2), 2)
    with pytest.raises(ValueError, match="unknown layer kind 'x'; known are gcn"):
        graph_layer("x", 2, 2)
    with pytest.raises(ValueError, match="multiple of heads"):
        graph_layer("gat", 2, 7, heads=2)
    with pytest.raises(ValueError, match="order must be at least 1"):
        ChebLayer(2, 2, 0)
    with pytest.raises(ValueError, match="alpha in"):
        SSGCLayer(2, 2, alpha=2)
    with pytest.raises(ValueError, match="at least 1 input"):
        graph_layer("gcn", 0, 2)
    with pytest.raises(ValueError, match="dropout must lie"):
        TwoLayerNet("gcn", 2, 2, 2, dropout=1.0)
    with pytest.raises(ValueError, match="at least one view"):
        TwoViewEncoder((), 2)

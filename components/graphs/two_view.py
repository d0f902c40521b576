"""Two-layer graph classifiers, and encoders that are their first layers side by side.

TwoLayerNet:     x -> dropout -> layer -> ReLU -> dropout -> layer -> logits
TwoViewEncoder:  H = [ReLU(layer_1(x)), ..., ReLU(layer_V(x))], each layer cut from its own trained TwoLayerNet, then frozen
Source: Chen et al., "Boundary Embedding Shaping with Adaptive Contrastive Learning for Graph Structural Disentanglement".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from components.graphs.layers import Dropout, graph_layer
from components.graphs.propagation import SparseGraph


class TwoLayerNet(nn.Module):
    """Dropout, layer, ReLU, dropout, layer.

    Parameters
    ----------
    kind : of both layers, one of `layers.KINDS`; "sgc" is one linear layer behind its hops, without a hidden one.
    in_dim, hidden, out_dim : widths.   dropout : probability, in [0, 1), default 0.5.
    heads : of the first attention layer ("gat", "gatv2"), default 8; the second has one.

    Shapes: (N, in_dim), graph -> (N, out_dim).
    Raises ValueError for an unknown kind, widths below 1, dropout outside [0, 1), hidden % heads != 0 with attention.
    """

    def __init__(self, kind: str, in_dim: int, hidden: int, out_dim: int, dropout: float = 0.5, heads: int = 8):
        super().__init__()
        self.kind = kind
        self.dropout = Dropout(dropout)
        self.first = graph_layer(kind, in_dim, hidden, heads=heads, dropout=dropout)
        self.second = graph_layer(kind, hidden, out_dim, dropout=dropout)

    def forward(self, x: Tensor, graph: SparseGraph) -> Tensor:
        hidden = torch.relu(self.first(self.dropout(x), graph))
        return self.second(self.dropout(hidden), graph)


class OneLayerNet(nn.Module):
    """Dropout and one layer, for methods without a hidden layer (SGC). Shapes and errors as `TwoLayerNet`."""

    def __init__(self, kind: str, in_dim: int, out_dim: int, dropout: float = 0.0):
        super().__init__()
        self.dropout = Dropout(dropout)
        self.first = graph_layer(kind, in_dim, out_dim)

    def forward(self, x: Tensor, graph: SparseGraph) -> Tensor:
        return self.first(self.dropout(x), graph)


class TwoViewEncoder(nn.Module):
    """One graph layer per view, ReLU, concatenated.

    Parameters
    ----------
    kinds : kind of each view's layer, for example ("cheb", "gcn").
    in_dim : features.   hidden : outputs of each view, default 16; attention layers use 4 heads.

    Shapes: (N, in_dim), graph -> (N, V * hidden).
    Raises ValueError for no or unknown kinds.
    """

    def __init__(self, kinds: Sequence[str], in_dim: int, hidden: int = 16):
        super().__init__()
        if not kinds:
            raise ValueError("kinds must name at least one view")
        self.views = nn.ModuleList(graph_layer(kind, in_dim, hidden, heads=self.heads(hidden)) for kind in kinds)

    @staticmethod
    def heads(hidden: int) -> int:
        """Attention heads of a view: 4, or 1 where that does not divide the width."""
        return 4 if hidden % 4 == 0 else 1

    @classmethod
    def cut_from(cls, nets: Sequence[nn.Module]) -> TwoViewEncoder:
        """Frozen encoder out of the first layers of trained nets (modules with an attribute `first`)."""
        encoder = cls.__new__(cls)
        nn.Module.__init__(encoder)
        encoder.views = nn.ModuleList(net.first for net in nets)
        return encoder.requires_grad_(False).eval()

    def forward(self, x: Tensor, graph: SparseGraph) -> Tensor:
        return torch.cat([torch.relu(view(x, graph)) for view in self.views], dim=1)

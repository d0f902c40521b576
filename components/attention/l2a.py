"""L2A: a sliding window for every token, and the whole past for the tokens that a router chooses.

    s  = x + W_o SWA(norm(x))
    z  = norm_g(s)
    m  = router(z)                                   one bit per token
    x' = s + W_og (m * GlobalAttention(z))           keys and values of all tokens, queries of the chosen ones

The layer has its own projections for both branches. `L2AAttention` returns x' - x, what is added to the residual stream, so that
it can take the place of a plain attention layer.

A compact pass computes global attention at the chosen tokens alone; their y is what the router's gradient is made of, so tokens
that are off get none. A leak pass computes it for all tokens, with the same result and a gradient for every token.

Source: "Learning When to Attend: Conditional Memory Access for Long-Context LLMs", layer and conversion.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from components.attention.backends import backend_named
from components.attention.branch import Branch, Rope, later_mask, rope_of
from components.attention.kv_cache import L2ACache
from components.attention.router import Router, Routing, TokenRouter
from components.language.tiny_llama import RMSNorm
from kernels.reference_attention import check_window


class L2AAttention(nn.Module):
    """The attention half of a layer.

    Parameters
    ----------
    d : width of the model.   heads, kv_heads : query heads, and key/value heads, which divide them.
    window : tokens of the window, the own one included.
    rope_base : of the rotary angles, where `forward` is not given any; default 10,000.
    width : of a head; default d / heads.   qk_norm : RMS norm of queries and keys.
    tau, theta : temperature and threshold of the router.
    backend : "reference" (default), "sdpa" or "triton".
    layer : number of the layer, its place in a cache.   max_position : longest text, default any.

    Attributes
    ----------
    routing : decisions of the last pass, None for a pruned layer.   leak : whether passes compute all tokens.

    Raises ValueError for sizes that do not fit, tau <= 0, theta outside (0, 1), a window below 1, a width that the backend
    does not know.
    """

    def __init__(
        self,
        d: int,
        heads: int,
        kv_heads: int,
        window: int,
        rope_base: float = 1e4,
        *,
        width: int | None = None,
        qk_norm: bool = False,
        tau: float = 0.1,
        theta: float = 0.5,
        backend: str = "reference",
        layer: int = 0,
        max_position: int | None = None,
    ) -> None:
        super().__init__()
        self.window, self.rope_base, self.layer, self.max_position = check_window(window), rope_base, layer, max_position
        self.norm: nn.Module = RMSNorm(d)
        self.local = Branch(d, heads, kv_heads, width, qk_norm=qk_norm)
        self.global_norm: nn.Module | None = RMSNorm(d)
        self.distant: Branch | None = Branch(d, heads, kv_heads, width, qk_norm=qk_norm)
        self.router: TokenRouter | None = Router(d, tau, theta, layer=layer)
        self.backend = backend_named(backend, self.local.width)
        self.leak = False
        self.routing: Routing | None = None

    @classmethod
    def from_base(
        cls,
        norm: nn.Module,
        branch: Branch,
        window: int,
        *,
        rope_base: float = 1e4,
        tau: float = 0.1,
        theta: float = 0.5,
        backend: str = "reference",
        layer: int = 0,
        max_position: int | None = None,
    ) -> L2AAttention:
        """Both branches and norms are copies of a base layer's; so at step 0 the layer attends twice, and training repairs that."""
        d = branch.q.in_features
        made = cls(
            d,
            branch.heads,
            branch.kv_heads,
            window,
            rope_base,
            width=branch.width,
            tau=tau,
            theta=theta,
            backend=backend,
            layer=layer,
            max_position=max_position,
        )
        made.router.to(branch.q.weight)
        made.norm, made.global_norm = copy.deepcopy(norm), copy.deepcopy(norm)
        made.local, made.distant = copy.deepcopy(branch), copy.deepcopy(branch)
        return made

    @property
    def pruned(self) -> bool:
        return self.distant is None

    def prune(self) -> None:
        """Cut the global branch: weights, norm and router. What is left is a window layer."""
        self.distant = self.global_norm = self.router = self.routing = None

    def forward(self, x: Tensor, rope: Rope | None = None, cache: L2ACache | None = None) -> Tensor:
        """x [batch, time, d] to the update x' - x of the same shape.

        With a cache, x holds the tokens behind those that it has seen. Raises ValueError for another shape or a text beyond
        `max_position`, IndexError for a full cache, FloatingPointError for a router with NaN logits."""
        if x.ndim != 3 or x.shape[2] != self.local.q.in_features:
            raise ValueError(f"x must have shape [batch, time, {self.local.q.in_features}], got {list(x.shape)}")
        start = 0 if cache is None else cache.seen(self.layer)
        end = start + x.shape[1]
        if self.max_position is not None and end > self.max_position:
            raise ValueError(f"the text has {end} tokens, the model's positions end at {self.max_position}")
        if cache is not None and cache.window != self.window:
            raise ValueError(f"the cache has a window of {cache.window} tokens, layer {self.layer} of {self.window}")
        rope = rope_of(start, x.shape[1], self.local.width, self.rope_base, x) if rope is None else rope
        local = self._near(self.norm(x), rope, cache, start)
        if self.pruned:
            return local
        z = self.global_norm(x + local)
        routing = self.routing = self.router(z)
        k, v = self.distant.keys_values(z, rope)
        if cache is not None:
            k, v = cache.update_global(self.layer, k, v)
        if start:
            return local + self._far_later(z, rope, k, v, routing, start)
        q = self.distant.queries(z, rope)
        y = self.backend.dense(q, k, v) if self.leak else self.backend.gathered(q, k, v, routing.a)
        return local + self.distant.back(y, routing.m, routing.a)

    def _near(self, h: Tensor, rope: Rope, cache: L2ACache | None, start: int) -> Tensor:
        """The window branch."""
        q, (k, v) = self.local.queries(h, rope), self.local.keys_values(h, rope)
        if cache is not None:
            seen_k, seen_v = cache.update_local(self.layer, k, v)
            if start:
                n, keys = q.shape[1], seen_k.shape[1]
                # A single query may see all that the ring holds.
                mask = None if n == 1 else later_mask(start, start + n - keys, n, keys, self.window, q.device)
                return self.local.back(self.backend.later(q, seen_k, seen_v, mask))
        return self.local.back(self.backend.window(q, k, v, self.window))

    def _far_later(self, z: Tensor, rope: Rope, k: Tensor, v: Tensor, routing: Routing, start: int) -> Tensor:
        """The global branch behind a cached prefix: sequences without a chosen token read nothing."""
        chosen = routing.a.any(1).nonzero().flatten()
        out = torch.zeros_like(z)
        if not chosen.numel():
            return out
        one = Rope(*(x if x.ndim == 2 or x.shape[0] == 1 else x[chosen] for x in rope))
        q = self.distant.queries(z[chosen], one)
        mask = None if q.shape[1] == 1 else later_mask(start, 0, q.shape[1], k.shape[1], None, q.device)
        y = self.backend.later(q, k[chosen], v[chosen], mask)
        return out.index_copy(0, chosen, self.distant.back(y, routing.m[chosen], routing.a[chosen]))


class GatedMLP(nn.Module):
    """W_down (silu(W_gate x) * W_up x)"""

    def __init__(self, d: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(d, hidden, bias=False),
            nn.Linear(d, hidden, bias=False),
            nn.Linear(hidden, d, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down(silu(self.gate(x)) * self.up(x))


class L2ABlock(nn.Module):
    """One layer: x' = x + attention(x), then x' + MLP(norm(x')).

    attention : an `L2AAttention`, or any module that takes (x, rope, cache) and returns an update.   d, hidden : widths of the
    model and of the MLP.
    """

    def __init__(self, attention: nn.Module, d: int, hidden: int) -> None:
        super().__init__()
        self.attention, self.norm, self.mlp = attention, RMSNorm(d), GatedMLP(d, hidden)

    def forward(self, x: Tensor, rope: Rope | None = None, cache: L2ACache | None = None) -> Tensor:
        x = x + self.attention(x, rope, cache)
        return x + self.mlp(self.norm(x))


def l2a_layers(model: nn.Module) -> list[L2AAttention]:
    """All L2A layers of a model, in order."""
    return [module for module in model.modules() if isinstance(module, L2AAttention)]


def set_leaks(layers: Iterable[L2AAttention], leaks: Iterable[bool]) -> None:
    """Decide for the next pass which layers compute all tokens. Raises ValueError for another number of decisions."""
    for layer, leak in zip(layers, leaks, strict=True):
        layer.leak = bool(leak)


def decisions(model: nn.Module) -> Tensor:
    """What the routers of the last pass decided, [layers, batch, time] bool on the CPU; a pruned layer chose nothing.

    Raises ValueError for a model without L2A layers, or without a pass through one that is not pruned."""
    layers = l2a_layers(model)
    found = [layer.routing.a for layer in layers if layer.routing is not None]
    if not found:
        raise ValueError("there are no decisions: the model has no L2A layer with a router, or no pass was made")
    nothing = torch.zeros_like(found[0])
    return torch.stack([nothing if layer.routing is None else layer.routing.a for layer in layers]).cpu()

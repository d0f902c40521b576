"""What a language model with two attention branches remembers while it generates.

Per layer: a ring of the last W keys and values for the window, and keys and values of all tokens for the global branch, whether
or not a token was routed (a later one may look back at it). A pruned layer has the ring alone.

Source: "Learning When to Attend: Conditional Memory Access for Long-Context LLMs", inference state.
"""

from __future__ import annotations

import torch
from torch import Tensor


class L2ACache:
    """Keys and values of all layers.

    Parameters
    ----------
    layers, window, max_len : layers, tokens of the window, most tokens of a sequence.
    kv_heads, width : key/value heads and their width.
    batch : sequences; default 1.   dtype, device : of what is stored.
    pruned : layers without a global branch; default none.

    Keys and values are [batch, n, kv heads, width], n new tokens after those that are stored. Raises ValueError for sizes below 1.
    """

    def __init__(
        self,
        layers: int,
        window: int,
        max_len: int,
        kv_heads: int,
        width: int,
        dtype: torch.dtype = torch.float32,
        *,
        batch: int = 1,
        device: torch.device | str | None = None,
        pruned: tuple[int, ...] = (),
    ) -> None:
        sizes = {"layers": layers, "window": window, "max_len": max_len, "kv_heads": kv_heads, "width": width, "batch": batch}
        for name, value in sizes.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        self.layers, self.window, self.max_len = layers, window, max_len
        # A window beyond the longest sequence never fills.
        self.ring = min(window, max_len)

        def empty(length: int) -> Tensor:
            return torch.zeros(2, batch, length, kv_heads, width, dtype=dtype, device=device)

        self._local = [empty(self.ring) for _ in range(layers)]
        self._global = {layer: empty(max_len) for layer in range(layers)}
        self._local_length = [0] * layers
        self._global_length = [0] * layers
        for layer in pruned:
            self.drop_global(layer)

    @property
    def length(self) -> int:
        """Tokens that every layer has seen."""
        return min(self._local_length)

    def seen(self, layer: int) -> int:
        """Tokens in the window branch of a layer so far, those that the ring has forgotten included."""
        self._check_layer(layer)
        return self._local_length[layer]

    def _check_layer(self, layer: int) -> None:
        if not 0 <= layer < self.layers:
            raise IndexError(f"layer must lie in [0, {self.layers}), got {layer}")

    def _check_new(self, store: Tensor, length: int, k: Tensor, v: Tensor) -> None:
        wanted = (store.shape[1], k.shape[1] if k.ndim == 4 else None, *store.shape[3:])
        if tuple(k.shape) != wanted or k.shape != v.shape:
            raise ValueError(
                f"keys and values must have shape [{store.shape[1]}, tokens, {store.shape[3]}, {store.shape[4]}], "
                f"got {list(k.shape)} and {list(v.shape)}"
            )
        if length + k.shape[1] > self.max_len:
            raise IndexError(f"the cache holds {self.max_len} tokens: {k.shape[1]} more do not fit behind {length}")

    def update_local(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store n new tokens; the keys and values that they may see: up to W - 1 earlier ones, then the new ones.

        For n = 1 all of them are within the window of the one query, and come in the ring's order, not that of time.
        """
        self._check_layer(layer)
        store, start, n = self._local[layer], self._local_length[layer], k.shape[1]
        self._check_new(store, start, k, v)
        new = torch.stack((k, v)).detach()
        before = torch.arange(max(0, start - self.window + 1), start, device=store.device) % self.ring
        seen = None if n == 1 else torch.cat((store[:, :, before], new), 2)
        kept = min(n, self.ring)
        store[:, :, torch.arange(start + n - kept, start + n, device=store.device) % self.ring] = new[:, :, n - kept :]
        self._local_length[layer] = start + n
        if seen is None:
            seen = store[:, :, : min(start + 1, self.ring)]
        return seen[0], seen[1]

    def update_global(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store n new tokens; keys and values of all tokens so far, in order. Raises KeyError for a pruned layer."""
        self._check_layer(layer)
        if layer not in self._global:
            raise KeyError(f"the global branch of layer {layer} is pruned: it has no cache to write to")
        store, start = self._global[layer], self._global_length[layer]
        self._check_new(store, start, k, v)
        end = start + k.shape[1]
        store[0, :, start:end], store[1, :, start:end] = k.detach(), v.detach()
        self._global_length[layer] = end
        return store[0, :, :end], store[1, :, :end]

    def drop_global(self, layer: int) -> None:
        """Free the global part of a layer. Raises KeyError where it is gone already."""
        self._check_layer(layer)
        if layer not in self._global:
            raise KeyError(f"the global branch of layer {layer} is pruned already")
        del self._global[layer]

    def nbytes(self) -> int:
        """Bytes of all tensors held."""
        return sum(x.numel() * x.element_size() for x in [*self._local, *self._global.values()])

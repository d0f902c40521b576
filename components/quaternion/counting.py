"""Count the multiplications and softmaxes of a computation while torch performs it.

    with ProductCounter() as counter:
        attention(x)
    counter.products, counter.softmax_rows

Counted where the operators arrive: every matrix product by its sizes, every softmax by the rows it normalises.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten


class Product(NamedTuple):
    """`batch` matrix products of (rows, inner) with (inner, columns)."""

    batch: int
    rows: int
    inner: int
    columns: int

    @property
    def multiplications(self) -> int:
        return self.batch * self.rows * self.inner * self.columns


def _matrices(a: Tensor, b: Tensor) -> list[Product]:
    return [Product(math.prod(a.shape[:-2]), a.shape[-2], a.shape[-1], b.shape[-1])]


def _attention(q: Tensor, k: Tensor, v: Tensor) -> list[Product]:
    batch = math.prod(q.shape[:-2])
    scores = Product(batch, q.shape[-2], q.shape[-1], k.shape[-2])
    return [scores, Product(batch, q.shape[-2], k.shape[-2], v.shape[-1])]


def _vector(a: Tensor, b: Tensor) -> list[Product]:
    return [Product(1, a.shape[0] if a.ndim == 2 else 1, a.shape[-1], 1)]


_PRODUCTS: dict[Any, Callable[..., list[Product]]] = {
    _aten.mm: _matrices,
    _aten.bmm: _matrices,
    _aten.mv: _vector,
    _aten.dot: _vector,
    _aten.addmm: lambda bias, a, b: _matrices(a, b),
    _aten.baddbmm: lambda bias, a, b: _matrices(a, b),
}
_ATTENTION = {
    _aten._scaled_dot_product_flash_attention_for_cpu,
    _aten._scaled_dot_product_flash_attention,
    _aten._scaled_dot_product_efficient_attention,
    _aten._scaled_dot_product_cudnn_attention,
}
_SOFTMAX = {_aten._softmax, _aten._safe_softmax}


class ProductCounter(TorchDispatchMode):
    """A context in which matrix products and softmaxes are counted.

    matmuls : list of `Product`, in the order they ran; scaled dot-product attention counts as its two products.
    products : the real multiplications in them. Elementwise multiplications are not counted.
    softmax_calls, softmax_rows : calls, and the rows that they normalised.
    """

    def __init__(self) -> None:
        super().__init__()
        self.matmuls: list[Product] = []
        self.softmax_calls = 0
        self.softmax_rows = 0

    @property
    def products(self) -> int:
        return sum(product.multiplications for product in self.matmuls)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        operator = func.overloadpacket
        if operator in _PRODUCTS:
            self.matmuls += _PRODUCTS[operator](*args[:3])
        elif operator in _ATTENTION:
            self.matmuls += _attention(*args[:3])
            self._softmax(math.prod(args[0].shape[:-1]))
        elif operator in _SOFTMAX:
            x, axis = args[:2]
            self._softmax(x.numel() // max(x.shape[axis], 1))
        return func(*args, **(kwargs or {}))

    def _softmax(self, rows: int) -> None:
        self.softmax_calls += 1
        self.softmax_rows += rows

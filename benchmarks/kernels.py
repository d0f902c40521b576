"""Every kernel checked and timed beside what a user would take instead: `python -m benchmarks.kernels`.

On a GPU the Triton kernels, in bfloat16 where they are about products; on a CPU the torch references, in float32. First each
kernel is checked against float64 on a small input (an error stops the run); then it and its rivals take turns. The table gives
time, achieved operations and bytes per second, and their share of two ceilings measured in the same run: a large matrix product
and a large copy. Operations and bytes are the counts that the kernels' own modules make.

    python -m benchmarks.kernels                       the device at hand; writes its section of RESULTS.md
    python -m benchmarks.kernels --json kernels.json   and everything as JSON
    python -m benchmarks.kernels --quick --no-results  a few small sizes, nothing written

To add a kernel, add a function to REGISTRY.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.results import write_section
from benchmarks.timing import milliseconds
from kernels.boundary_knn import boundary_knn, boundary_knn_reference
from kernels.gradient_stabilizer import stabilize, stabilize_reference
from kernels.l2a_attention import (
    build_index,
    bytes_moved,
    flops,
    gathered_pairs,
    sliding_window_attention,
    token_gathered_attention,
    window_pairs,
)
from kernels.l2a_decode import decode_attention
from kernels.mplus_adam_step import StepOptions, mplus_adam_step, mplus_adam_step_reference
from kernels.quaternion_attention import bytes_moved as quaternion_bytes
from kernels.quaternion_attention import component_score_attention, quaternion_attention_reference, shared_score_attention
from kernels.quaternion_attention import flops as quaternion_flops
from kernels.seeded_projection import seeded_directions_reference, seeded_project

Function = Callable[[], Any]


@dataclass
class Case:
    """One kernel at one size. `operations` and `bytes` of a call of `run` are 0 where they are not what limits it."""

    size: str
    run: Function
    operations: int
    bytes: int
    rivals: dict[str, Function] = field(default_factory=dict)


@dataclass(frozen=True)
class Bench:
    """Where and how large: the device, and whether a few small sizes are enough."""

    device: str
    quick: bool = False

    @property
    def gpu(self) -> bool:
        return torch.device(self.device).type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.gpu else torch.float32

    def randn(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(*shape, device=self.device, dtype=dtype or self.dtype)


def agree(name: str, found: Tensor, exact: Tensor, tolerance: float) -> None:
    """AssertionError where a kernel is further than the tolerance from float64."""
    error = (found.double() - exact.double()).abs().max().item() if exact.numel() else 0.0
    if not error <= tolerance:
        raise AssertionError(f"{name} is off by {error:.2g}, more than {tolerance:g}")


def with_backward(function: Callable[..., Tensor], *inputs: Tensor) -> Function:
    """A call that runs the function and its backward pass."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    gradient = torch.randn_like(function(*leaves))
    return lambda: torch.autograd.grad(function(*leaves), leaves, gradient)


def heads_first(*tensors: Tensor) -> list[Tensor]:
    """[B, T, H, D] to the layout of torch's attention."""
    return [x.transpose(1, 2) for x in tensors]


def causal_mask(length: int, device: str) -> tuple[Tensor, Tensor]:
    """Positions of queries as a column and of keys as a row."""
    places = torch.arange(length, device=device)
    return places[:, None], places


def qkv(bench: Bench, length: int, heads: int, kv_heads: int, width: int) -> list[Tensor]:
    return [bench.randn(1, length, count, width) for count in (heads, kv_heads, kv_heads)]


def attention_sizes(bench: Bench) -> tuple[int, int, int]:
    """Query heads, key heads, width."""
    return (32, 8, 128) if bench.gpu else (4, 2, 64)


def flex(mask: Callable[..., Tensor], queries: int, keys: int, device: str) -> Callable[..., Tensor]:
    """FlexAttention, compiled, with a block mask made once."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    blocks = create_block_mask(mask, None, None, queries, keys, device=device)
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v: compiled(q, k, v, block_mask=blocks, enable_gqa=True)


def gathered(bench: Bench) -> Iterator[Case]:
    """Token-gathered attention over lengths and shares of active tokens, forward, and forward with backward."""
    heads, kv_heads, width = attention_sizes(bench)
    q, k, v = qkv(bench, 192, heads, kv_heads, width)
    active = torch.rand(1, 192, device=bench.device) < 0.3
    wide = heads_first(*(x.double() for x in (q, k, v)))
    exact = scaled_dot_product_attention(*wide, is_causal=True, enable_gqa=True).transpose(1, 2) * active[..., None, None]
    agree("token_gathered_attention", token_gathered_attention(q, k, v, active), exact, 0.03 if bench.gpu else 1e-5)
    for length in (256,) if bench.quick else (8192, 32768) if bench.gpu else (1024, 4096):
        q, k, v = qkv(bench, length, heads, kv_heads, width)
        for share in (0.2,) if bench.quick else (0.1, 0.2, 0.5):
            active = torch.rand(1, length, device=bench.device) < share
            index, places = build_index(active), active[0].nonzero().flatten()
            pairs, count = gathered_pairs(active), int(active.sum())

            def ours(q: Tensor, k: Tensor, v: Tensor, index: Any = index) -> Tensor:
                return token_gathered_attention(q, k, v, index)

            def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                return scaled_dot_product_attention(*heads_first(q, k, v), is_causal=True, enable_gqa=True)

            if bench.gpu:
                attend = flex(lambda b, h, i, j, at=places: at[i] >= j, count, length, bench.device)
            else:
                seen = keys_seen(places, length)

                def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor = seen) -> Tensor:
                    return scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)

            def compacted(
                q: Tensor, k: Tensor, v: Tensor, places: Tensor = places, attend: Callable[..., Tensor] = attend
            ) -> Tensor:
                return attend(*heads_first(q[:, places], k, v))

            name = "FlexAttention, compacted" if bench.gpu else "SDPA, compacted with a mask"
            moved = (pairs, count, length, heads, kv_heads, width, q.element_size())
            size = f"T = {length}, {100 * share:.0f}% active, {heads}/{kv_heads} heads of {width}"
            yield Case(
                f"{size}, forward",
                lambda f=ours, x=(q, k, v): f(*x),
                flops(pairs, heads, width),
                bytes_moved(*moved),
                {"SDPA, dense": lambda x=(q, k, v): dense(*x), name: lambda f=compacted, x=(q, k, v): f(*x)},
            )
            yield Case(
                f"{size}, with backward",
                with_backward(ours, q, k, v),
                flops(pairs, heads, width) + flops(pairs, heads, width, backward=True),
                bytes_moved(*moved) + bytes_moved(*moved, backward=True),
                {"SDPA, dense": with_backward(dense, q, k, v), name: with_backward(compacted, q, k, v)},
            )
            if share == 0.2:
                yield from both_branches(bench, length, q, k, v, index, pairs, count)


def both_branches(
    bench: Bench, length: int, q: Tensor, k: Tensor, v: Tensor, index: Any, pairs: int, count: int
) -> Iterator[Case]:
    """What L2A's two branches take together, a window for all tokens and the past for a fifth, beside dense attention."""
    heads, kv_heads, width = q.shape[2], k.shape[2], q.shape[3]
    window = length // 8 if bench.gpu else min(128, length // 8)
    near = window_pairs(1, length, window)

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sliding_window_attention(q, k, v, window) + token_gathered_attention(q, k, v, index)

    def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(*heads_first(q, k, v), is_causal=True, enable_gqa=True)

    operations = flops(pairs + near, heads, width)
    moved = [(p, n, length, heads, kv_heads, width, q.element_size()) for p, n in ((pairs, count), (near, length))]
    size = f"T = {length}, W = {window} and 20% active, {heads}/{kv_heads} heads of {width}"
    yield Case(
        f"{size}, forward",
        lambda: ours(q, k, v),
        operations,
        sum(bytes_moved(*m) for m in moved),
        {"SDPA, dense": lambda: dense(q, k, v)},
    )
    yield Case(
        f"{size}, with backward",
        with_backward(ours, q, k, v),
        operations + flops(pairs + near, heads, width, backward=True),
        sum(bytes_moved(*m) + bytes_moved(*m, backward=True) for m in moved),
        {"SDPA, dense": with_backward(dense, q, k, v)},
    )


def keys_seen(places: Tensor, length: int) -> Tensor:
    return torch.arange(length, device=places.device) <= places[:, None]


def windowed(bench: Bench) -> Iterator[Case]:
    """Sliding windows beside masked and dense attention."""
    heads, kv_heads, width = attention_sizes(bench)
    q, k, v = qkv(bench, 192, heads, kv_heads, width)
    rows, keys = causal_mask(192, bench.device)
    near = (keys <= rows) & (keys > rows - 50)
    exact = scaled_dot_product_attention(*heads_first(*(x.double() for x in (q, k, v))), near, enable_gqa=True).transpose(1, 2)
    agree("sliding_window_attention", sliding_window_attention(q, k, v, 50), exact, 0.03 if bench.gpu else 1e-5)
    sizes = ((256, 32),) if bench.quick else ((8192, 512), (32768, 4096)) if bench.gpu else ((1024, 128), (4096, 128))
    for length, window in sizes:
        q, k, v = qkv(bench, length, heads, kv_heads, width)
        pairs = window_pairs(1, length, window)

        def ours(q: Tensor, k: Tensor, v: Tensor, window: int = window) -> Tensor:
            return sliding_window_attention(q, k, v, window)

        def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return scaled_dot_product_attention(*heads_first(q, k, v), is_causal=True, enable_gqa=True)

        if bench.gpu:
            attend = flex(lambda b, h, i, j, w=window: (j <= i) & (j > i - w), length, length, bench.device)
        else:
            rows, keys = causal_mask(length, bench.device)
            near = (keys <= rows) & (keys > rows - window)

            def attend(q: Tensor, k: Tensor, v: Tensor, near: Tensor = near) -> Tensor:
                return scaled_dot_product_attention(q, k, v, near, enable_gqa=True)

        def masked(q: Tensor, k: Tensor, v: Tensor, attend: Callable[..., Tensor] = attend) -> Tensor:
            return attend(*heads_first(q, k, v))

        name = "FlexAttention" if bench.gpu else "SDPA, masked"
        moved = (pairs, length, length, heads, kv_heads, width, q.element_size())
        size = f"T = {length}, W = {window}, {heads}/{kv_heads} heads of {width}"
        yield Case(
            f"{size}, forward",
            lambda f=ours, x=(q, k, v): f(*x),
            flops(pairs, heads, width),
            bytes_moved(*moved),
            {name: lambda f=masked, x=(q, k, v): f(*x), "SDPA, dense": lambda x=(q, k, v): dense(*x)},
        )
        yield Case(
            f"{size}, with backward",
            with_backward(ours, q, k, v),
            flops(pairs, heads, width) + flops(pairs, heads, width, backward=True),
            bytes_moved(*moved) + bytes_moved(*moved, backward=True),
            {name: with_backward(masked, q, k, v), "SDPA, dense": with_backward(dense, q, k, v)},
        )


def decoding(bench: Bench) -> Iterator[Case]:
    """One new token per sequence over a cache; a fifth of the sequences look at it, or all."""
    heads, kv_heads, width = attention_sizes(bench)
    batch, capacity = (16, 32768) if bench.gpu else (8, 4096)
    if bench.quick:
        batch, capacity = 5, 128
    k, v = (bench.randn(batch, capacity, kv_heads, width) for _ in range(2))
    q = bench.randn(batch, heads, width)
    lengths = torch.full((batch,), capacity, dtype=torch.int32, device=bench.device)
    wide = heads_first(*(x.double() for x in (q[:2, None], k[:2], v[:2])))
    exact = scaled_dot_product_attention(*wide, enable_gqa=True)[:, :, 0]
    agree("decode_attention", decode_attention(q[:2], k[:2], v[:2], lengths[:2]), exact, 0.01 if bench.gpu else 1e-5)

    def everything() -> Tensor:
        return scaled_dot_product_attention(*heads_first(q[:, None], k, v), enable_gqa=True)

    for count in (batch, max(batch // 5, 1)):
        rows = torch.arange(count, dtype=torch.int32, device=bench.device)
        yield Case(
            f"{count} of {batch} sequences, cache of {capacity}",
            lambda rows=rows: decode_attention(q, k, v, lengths, rows=rows),
            flops(count * capacity, heads, width),
            count * (2 * capacity * kv_heads + 2 * heads) * width * q.element_size(),
            {"SDPA, all sequences": everything},
        )


def quaternion(bench: Bench) -> Iterator[Case]:
    """Shared scores beside scores per component, and beside torch's attention on contiguous copies."""
    q, k, v = (bench.randn(1, 70, 4, 12) for _ in range(3))
    wide = [x.double() for x in (q, k, v)]
    for function, score in ((shared_score_attention, "shared"), (component_score_attention, "component")):
        exact = quaternion_attention_reference(*wide, heads=2, score=score)
        agree(f"{score} scores", function(q, k, v, heads=2), exact, 0.05 if bench.gpu else 1e-5)
    sizes = ((1, 2, 64, 4),) if bench.quick else ((8, 8, 1024, 16), (2, 8, 8192, 16), (2, 8, 4096, 32))
    for batch, heads, length, h in sizes if bench.gpu or bench.quick else ((8, 4, 128, 4), (4, 4, 256, 8), (1, 4, 512, 16)):
        n = heads * h
        q, k, v = (bench.randn(batch, length, 4, n) for _ in range(3))

        def shared(q: Tensor, k: Tensor, v: Tensor, heads: int = heads) -> Tensor:
            return shared_score_attention(q, k, v, heads=heads)

        def component(q: Tensor, k: Tensor, v: Tensor, heads: int = heads) -> Tensor:
            return component_score_attention(q, k, v, heads=heads)

        def sdpa(q: Tensor, k: Tensor, v: Tensor, heads: int = heads, h: int = h) -> Tensor:
            split = (x.unflatten(-1, (heads, h)).permute(0, 3, 1, 2, 4).flatten(-2) for x in (q, k, v))
            return scaled_dot_product_attention(*split)

        size = f"B = {batch}, L = {length}, {heads} heads of {h} quaternions"
        yield Case(
            f"{size}, forward",
            lambda f=shared, x=(q, k, v): f(*x),
            quaternion_flops(batch, heads, length, h),
            quaternion_bytes(batch, length, n, q.element_size()),
            {
                "score per component": lambda f=component, x=(q, k, v): f(*x),
                "SDPA on copies": lambda f=sdpa, x=(q, k, v): f(*x),
            },
        )
        yield Case(
            f"{size}, with backward",
            with_backward(shared, q, k, v),
            quaternion_flops(batch, heads, length, h) + quaternion_flops(batch, heads, length, h, backward=True),
            quaternion_bytes(batch, length, n, q.element_size()) + quaternion_bytes(batch, length, n, q.element_size(), backward=True),
            {"score per component": with_backward(component, q, k, v), "SDPA on copies": with_backward(sdpa, q, k, v)},
        )  # fmt: skip


def boundary(bench: Bench) -> Iterator[Case]:
    """Neighbours across a class boundary beside a distance matrix."""
    z, y = bench.randn(200, 16, dtype=torch.float32), torch.randint(0, 5, (200,), device=bench.device)
    agree("boundary_knn", boundary_knn(z, y, 5)[0], boundary_knn_reference(z.double(), y, 5)[0], 1e-6)
    for count in (256,) if bench.quick else (4096, 16384) if bench.gpu else (1600, 4000):
        z, y = bench.randn(count, 128, dtype=torch.float32), torch.randint(0, 7, (count,), device=bench.device)
        yield Case(
            f"B = {count}, D = 128, k = 5",
            lambda z=z, y=y: boundary_knn(z, y, 5),
            3 * count * count * 128,
            4 * count * 128,
            {"distance matrix and topk": lambda z=z, y=y: boundary_knn_reference(z, y, 5)},
        )


def stabilizer(bench: Bench) -> Iterator[Case]:
    """Norms of many gradients replaced in three launches."""
    shapes = [(64, 256)] * 8 if bench.quick else [(4096, 1024)] * 48 if bench.gpu else [(512, 256)] * 24

    def made(dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
        generator = torch.Generator().manual_seed(0)
        tensors = [torch.randn(shape, generator=generator).to(bench.device, dtype) for shape in shapes]
        floats = [torch.zeros(len(shapes), dtype=torch.float64, device=bench.device) for _ in range(2)]
        counts = [torch.zeros(len(shapes), dtype=torch.int64, device=bench.device) for _ in range(2)]
        return tensors, floats + counts

    (tensors, state), (wide, wide_state) = made(torch.float32), made(torch.float64)
    stabilize(tensors, *state), stabilize_reference(wide, *wide_state)
    agree("stabilize", tensors[0], wide[0], 1e-4)
    total = sum(a * b for a, b in shapes)
    yield Case(
        f"{len(shapes)} gradients, {total:,} numbers",
        lambda: stabilize(tensors, *state),
        3 * total,
        12 * total,
        {"plain torch": lambda: stabilize_reference(tensors, *state)},
    )


def step_of(bench: Bench, rows: int, length: int) -> tuple[list[Tensor], dict[str, Any]]:
    """A weight of E4M3 codes with its scales, gradient and moments."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 120, (rows, length), generator=generator).to(torch.uint8).to(bench.device)
    scale = torch.full((rows, length // 32), 121, dtype=torch.uint8, device=bench.device)
    grad = torch.randn(rows, length, generator=generator).to(bench.device)
    moments = [torch.zeros(rows, length, device=bench.device) for _ in range(4)]
    return [codes, scale, grad, *moments, torch.empty(rows, length, device=bench.device)], {"fmt": "e4m3", "scaling": "mx"}


def mplus_step(bench: Bench) -> Iterator[Case]:
    """One step of M+Adam on 8-bit weights; AdamW on float32 weights of the same number beside it."""
    options = StepOptions(1e-3, 5e-2, beta1=0.9, beta2=0.999, eps=1e-8, eps_mult=1e-8, weight_decay=0.0, e_max=1.0, t=1)
    small, names = step_of(bench, 8, 64)
    other, _ = step_of(bench, 8, 64)
    mplus_adam_step(*small, **names, options=options)
    mplus_adam_step_reference(*other, **names, options=options)
    agree("mplus_adam_step", small[-1], other[-1], 1e-5)
    rows = 8 if bench.quick else 8192 if bench.gpu else 256
    tensors, names = step_of(bench, rows, 1024)
    weight = torch.nn.Parameter(torch.randn(rows, 1024, device=bench.device))
    weight.grad = tensors[2].clone()
    adam = torch.optim.AdamW([weight], fused=True)
    yield Case(
        f"{rows * 1024:,} weights, E4M3 with shared scales",
        lambda: mplus_adam_step(*tensors, **names, options=options),
        0,
        rows * 1024 * 42 + 2 * tensors[1].numel(),
        {"AdamW, fused, float32 weights": adam.step},
    )


def projection(bench: Bench) -> Iterator[Case]:
    """Projection on directions that are never in memory."""
    J = bench.randn(3, 500, dtype=torch.float32)
    exact = J.double() @ seeded_directions_reference(500, 7, 0, device=bench.device).double() / 7**0.5
    agree("seeded_project", seeded_project(J, 7), exact, 1e-3)
    d = 2**12 if bench.quick else 2**22 if bench.gpu else 2**16
    J = bench.randn(64, d, dtype=torch.float32)

    def drawn() -> Tensor:
        return J @ torch.randn(d, 64, device=bench.device) / 8

    yield Case(
        f"64 vectors of {d:,}, 64 directions",
        lambda: seeded_project(J, 64),
        2 * 64 * d * 64,
        4 * 64 * d,
        {"torch.randn and a product": drawn},
    )


REGISTRY: dict[str, tuple[str, Callable[[Bench], Iterator[Case]]]] = {
    "token-gathered attention": ("l2a_attention", gathered),
    "sliding window attention": ("l2a_attention", windowed),
    "decode attention": ("l2a_decode", decoding),
    "quaternion attention, shared score": ("quaternion_attention", quaternion),
    "boundary k-NN": ("boundary_knn", boundary),
    "gradient stabilizer": ("gradient_stabilizer", stabilizer),
    "M+Adam step": ("mplus_adam_step", mplus_step),
    "seeded projection": ("seeded_projection", projection),
}
NOT_TIMED = {
    "philox": "random words that the other kernels draw",
    "reference_attention": "the definitions that attention is checked against",
}


def ceilings(bench: Bench) -> dict[str, float]:
    """Operations per second of a large matrix product, bytes per second of a large copy."""
    side, count = (8192, 2**28) if bench.gpu else (1024, 2**24)
    if bench.quick:
        side, count = 256, 2**16
    a, b, x = bench.randn(side, side), bench.randn(side, side), bench.randn(count)
    y = torch.empty_like(x)
    times = milliseconds({"product": lambda: a @ b, "copy": lambda: y.copy_(x)}, bench.device)
    return {
        "operations per second": 2e3 * side**3 / times["product"],
        "bytes per second": 2e3 * x.numel() * x.element_size() / times["copy"],
    }


def measure(bench: Bench, only: list[str] | None = None) -> dict[str, Any]:
    """Check and time everything that is registered. AssertionError where a kernel is wrong."""
    torch.manual_seed(0)
    card = torch.cuda.get_device_name(bench.device) if bench.gpu else f"{platform.machine()}, one thread"
    limits, rows = ceilings(bench), []
    for kernel, (module, cases) in REGISTRY.items():
        if only and module not in only:
            continue
        for case in cases(bench):
            times = milliseconds({"ours": case.run} | case.rivals, bench.device)
            seconds = times.pop("ours") / 1e3
            row = {
                "kernel": kernel,
                "module": module,
                "size": case.size,
                "milliseconds": 1e3 * seconds,
                "operations": case.operations,
                "bytes": case.bytes,
                "share of product": case.operations / seconds / limits["operations per second"],
                "share of copy": case.bytes / seconds / limits["bytes per second"],
                "rivals": {name: {"milliseconds": t, "times faster": t / (1e3 * seconds)} for name, t in times.items()},
            }
            print(f"{kernel}: {case.size}: {row['milliseconds']:.3f} ms", flush=True)
            rows.append(row)
    return {"device": card, "dtype": str(bench.dtype), "torch": torch.__version__, "ceilings": limits, "cases": rows}


def table(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """Rows for people."""
    rows = []
    for row in found["cases"]:
        rate = row["operations"] / row["milliseconds"] / 1e6
        moved = row["bytes"] / row["milliseconds"] / 1e6
        rivals = "; ".join(f"{name} {value['times faster']:.2f}" for name, value in row["rivals"].items())
        rows.append(
            (
                row["kernel"],
                row["size"],
                f"{row['milliseconds']:.2f}",
                f"{rate:.0f} ({100 * row['share of product']:.0f}%)" if row["operations"] else "",
                f"{moved:.1f} ({100 * row['share of copy']:.0f}%)",
                rivals,
            )
        )
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", nargs="*", metavar="MODULE", help="modules of kernels/, default all")
    parser.add_argument("--json", type=Path, help="where everything is written too")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that all runs")
    parser.add_argument("--no-results", action="store_true", help="leave RESULTS.md alone")
    given = parser.parse_args(arguments)
    known = {module for module, _ in REGISTRY.values()}
    for name in given.only or ():
        if name not in known:
            parser.error(f"--only: {name} is none of {', '.join(sorted(known))}")
    if torch.device(given.device).type == "cpu":
        torch.set_num_threads(1)
    found = measure(Bench(given.device, given.quick), given.only)
    if given.json:
        given.json.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    limits = found["ceilings"]
    columns = (
        "kernel",
        "size",
        "ms",
        f"GFLOP/s (share of a product's {limits['operations per second'] / 1e9:.0f})",
        f"GB/s (share of a copy's {limits['bytes per second'] / 1e9:.1f})",
        "times faster than",
    )
    rows = table(found)
    if given.no_results:
        print("\n".join(" | ".join(row) for row in (columns, *rows)))
    else:
        command = "python -m benchmarks.kernels"
        write_section(f"Kernels on {found['device']}, {found['dtype'].removeprefix('torch.')}", command, columns, rows)


if __name__ == "__main__":
    main()

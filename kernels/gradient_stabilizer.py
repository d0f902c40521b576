"""Replace the norms of many gradient tensors by their running estimates, in three launches for all of them.

Per tensor g with R = |g|:  m <- gamma1 m + (1 - gamma1) R,  v <- gamma2 v + (1 - gamma2) R^2,
rho = m_hat / (sqrt(v_hat) + eps),  g <- g rho / R.  A tensor that is not finite becomes zero; one of norm 0 stays.

The tensors are described by a table on the device (address, length, which chunk begins where):
  1. a program per chunk of 65,536 entries writes its sum of squares, accumulated in float32; no atomics, so the same
     gradients give the same bits;
  2. a program per tensor sums its chunks in float64, updates m, v, t and writes the factor rho / R;
  3. a program per chunk multiplies.
Memory traffic: two reads and one write of every entry; 3 operations per entry.

`stabilize` is the public entry: the kernels on CUDA tensors (and, under Triton's interpreter, on the CPU); on the CPU
`stabilize_reference`, the definition in plain torch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 65536
_ELEMENTS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float64: tl.float64}


def _check(tensors: list[Tensor], m: Tensor, v: Tensor, t: Tensor, skipped: Tensor) -> None:
    if not tensors:
        raise ValueError("there is no tensor to stabilise")
    for position, g in enumerate(tensors):
        if g.dtype not in _ELEMENTS:
            raise TypeError(f"gradients must be float16, bfloat16, float32 or float64, but tensor {position} is {g.dtype}")
        if g.device != tensors[0].device:
            raise ValueError(f"all tensors must be on one device, got {tensors[0].device} and {g.device}")
    for name, x, dtype in (
        ("m", m, torch.float64),
        ("v", v, torch.float64),
        ("t", t, torch.int64),
        ("skipped", skipped, torch.int64),
    ):
        if x.shape != (len(tensors),) or x.dtype != dtype or not x.is_contiguous():
            raise ValueError(
                f"{name} must be a contiguous {dtype} tensor of shape ({len(tensors)},), got {x.dtype} of shape {tuple(x.shape)}"
            )
        if x.device != tensors[0].device:
            raise ValueError(f"{name} must be on {tensors[0].device}, where the tensors are, got {x.device}")


@torch.no_grad()
def stabilize_reference(
    tensors: list[Tensor],
    m: Tensor,
    v: Tensor,
    t: Tensor,
    skipped: Tensor,
    *,
    gamma1: float = 0.6,
    gamma2: float = 0.999,
    eps: float = 1e-12,
    bias_correction: bool = True,
) -> tuple[Tensor, Tensor]:
    """The definition, one tensor at a time; same arguments, results and errors as `stabilize`."""
    _check(tensors, m, v, t, skipped)
    norms, rhos = [], []
    for i, g in enumerate(tensors):
        r = torch.linalg.vector_norm(g, dtype=torch.float64 if g.dtype == torch.float64 else torch.float32).double()
        norms.append(r)
        rho = torch.zeros_like(r)
        if not torch.isfinite(r):
            g.zero_()
            skipped[i] += 1
        elif r > 0:
            t[i] += 1
            m[i] = gamma1 * m[i] + (1 - gamma1) * r
            v[i] = gamma2 * v[i] + (1 - gamma2) * r * r
            steps = int(t[i])
            top, bottom = (m[i] / (1 - gamma1**steps), v[i] / (1 - gamma2**steps)) if bias_correction else (m[i], v[i])
            rho = top / (bottom.sqrt() + eps)
            g.mul_(rho / r)
        rhos.append(rho)
    return torch.stack(norms), torch.stack(rhos)


@triton.jit
def _squares_kernel(
    addresses,
    lengths,
    chunk_tensor,
    chunk_start,
    chunk_slot,
    partial,
    ELEMENT: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    tensor = tl.load(chunk_tensor + program)
    start = tl.load(chunk_start + program)
    length = tl.load(lengths + tensor)
    g = tl.load(addresses + tensor).to(tl.pointer_type(ELEMENT))
    total = tl.zeros((BLOCK,), dtype=tl.float64 if ELEMENT == tl.float64 else tl.float32)
    for offset in range(0, tl.minimum(length - start, SIZE), BLOCK):
        index = start + offset + tl.arange(0, BLOCK)
        x = tl.load(g + index, mask=index < length, other=0.0).to(total.dtype)
        total += x * x
    tl.store(partial + tl.load(chunk_slot + program), tl.sum(total, axis=0).to(tl.float64))


@triton.jit
def _scalars_kernel(
    partial,
    first_chunk,
    m_ptr,
    v_ptr,
    t_ptr,
    skipped_ptr,
    norm_ptr,
    rho_ptr,
    factor_ptr,
    hyper,
    limits,
    CORRECT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0)
    begin, end = tl.load(first_chunk + i), tl.load(first_chunk + i + 1)
    sums = tl.zeros((BLOCK,), dtype=tl.float64)
    for offset in range(begin, end, BLOCK):
        index = offset + tl.arange(0, BLOCK)
        sums += tl.load(partial + index, mask=index < end, other=0.0)
    square = tl.sum(sums, axis=0)
    r = tl.sqrt(square)
    # The rates are loaded, since numbers passed to a kernel would be rounded to float32.
    gamma1, gamma2, eps = tl.load(hyper), tl.load(hyper + 1), tl.load(hyper + 2)
    log1, log2 = tl.load(hyper + 3), tl.load(hyper + 4)  # base 2
    finite = r < tl.load(limits + i)  # false for NaN too
    active = finite & (r > 0)
    m, v, t = tl.load(m_ptr + i), tl.load(v_ptr + i), tl.load(t_ptr + i)
    used = tl.where(active, r, 1.0)
    m = tl.where(active, gamma1 * m + (1 - gamma1) * used, m)
    v = tl.where(active, gamma2 * v + (1 - gamma2) * used * used, v)
    t = t + tl.where(active, 1, 0)
    top, bottom = m, v
    if CORRECT:
        steps = tl.maximum(t, 1).to(tl.float64)
        top = m / (1 - tl.exp2(steps * log1))
        bottom = v / (1 - tl.exp2(steps * log2))
    rho = tl.where(active, top / (tl.sqrt(bottom) + eps), 0.0)
    tl.store(m_ptr + i, m)
    tl.store(v_ptr + i, v)
    tl.store(t_ptr + i, t)
    tl.store(skipped_ptr + i, tl.load(skipped_ptr + i) + tl.where(finite, 0, 1))
    tl.store(norm_ptr + i, r)
    tl.store(rho_ptr + i, rho)
    # A factor of -1 says: not finite, write zeros.
    tl.store(factor_ptr + i, tl.where(active, rho / used, tl.where(finite, 1.0, -1.0)))


@triton.jit
def _scale_kernel(
    addresses, lengths, chunk_tensor, chunk_start, factor_ptr, ELEMENT: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    program = tl.program_id(0)
    tensor = tl.load(chunk_tensor + program)
    start = tl.load(chunk_start + program)
    length = tl.load(lengths + tensor)
    g = tl.load(addresses + tensor).to(tl.pointer_type(ELEMENT))
    factor = tl.load(factor_ptr + tensor)
    if factor != 1.0:
        for offset in range(0, tl.minimum(length - start, SIZE), BLOCK):
            index = start + offset + tl.arange(0, BLOCK)
            x = tl.load(g + index, mask=index < length, other=0.0)
            wide = x.to(tl.float64) if ELEMENT == tl.float64 else x.to(tl.float32)
            y = tl.where(factor < 0, 0.0, wide * factor.to(wide.dtype))
            tl.store(g + index, y.to(ELEMENT), mask=index < length)


class _Table:
    """Where the chunks of tensors of given lengths and element types lie; the same at every step, so made once."""

    def __init__(self, lengths: tuple[int, ...], dtypes: tuple[torch.dtype, ...], device: torch.device) -> None:
        first, chunks = [0], {}  # element type -> (tensor, start, slot) of each chunk
        for i, (length, dtype) in enumerate(zip(lengths, dtypes, strict=True)):
            slots = range(first[-1], first[-1] + -(-length // CHUNK))
            first.append(slots.stop)
            chunks.setdefault(dtype, []).extend((i, CHUNK * k, slot) for k, slot in enumerate(slots))

        def row(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        self.lengths, self.first, self.slots = row(list(lengths)), row(first), first[-1]
        self.chunks = {
            dtype: tuple(row(list(part)) for part in zip(*rows, strict=True)) for dtype, rows in chunks.items() if rows
        }
        # A float32 sum of squares ends at float32's range, whichever way its parts are added.
        narrow = torch.finfo(torch.float32).max ** 0.5
        limits = [torch.inf if dtype == torch.float64 else narrow for dtype in dtypes]
        self.limits = torch.tensor(limits, dtype=torch.float64, device=device)


_tables: dict[tuple, _Table] = {}


def _table(tensors: list[Tensor]) -> _Table:
    key = (tuple(g.numel() for g in tensors), tuple(g.dtype for g in tensors), tensors[0].device)
    if key not in _tables:
        if len(_tables) >= 64:  # models come and go
            _tables.pop(next(iter(_tables)))
        _tables[key] = _Table(*key)
    return _tables[key]


@torch.no_grad()
def stabilize(
    tensors: list[Tensor],
    m: Tensor,
    v: Tensor,
    t: Tensor,
    skipped: Tensor,
    *,
    gamma1: float = 0.6,
    gamma2: float = 0.999,
    eps: float = 1e-12,
    bias_correction: bool = True,
    block: int = 2048,
    warps: int = 4,
) -> tuple[Tensor, Tensor]:
    """Change `tensors` and their state in place.

    Parameters
    ----------
    tensors : gradients of any shape, float16, bfloat16, float32 or float64, on one device; strided ones cost a copy.
    m, v : (n,) float64, moments of the norms.   t, skipped : (n,) int64, steps that counted and those that did not.
    gamma1, gamma2, eps, bias_correction : see the module; not checked here.
    block : entries that a program handles at once, 1024, 2048 or 4096.   warps : of a program, 4 or 8.

    Returns
    -------
    norms (n,) float64 before, not finite where the tensor was set to zero; rho (n,) float64, the norms after.
    Nothing is read by the host.

    Raises
    ------
    ValueError : no tensors, several devices, a state that does not fit, another block or number of warps.
    TypeError : element types that are not floating point.

    References
    ----------
    Huang et al., "GradientStabilizer: Fix the Norm, Not the Gradient".
    """
    _check(tensors, m, v, t, skipped)
    if block not in (1024, 2048, 4096) or warps not in (4, 8):
        raise ValueError(f"block must be 1024, 2048 or 4096 and warps 4 or 8, got {block} and {warps}")
    device, count = tensors[0].device, len(tensors)
    if device.type != "cuda" and isinstance(_squares_kernel, triton.runtime.JITFunction):
        options = {"gamma1": gamma1, "gamma2": gamma2, "eps": eps, "bias_correction": bias_correction}
        return stabilize_reference(tensors, m, v, t, skipped, **options)
    dense = [g if g.is_contiguous() else g.contiguous() for g in tensors]
    table = _table(dense)
    log1, log2 = (torch.tensor(gamma, dtype=torch.float64).log2() for gamma in (gamma1, gamma2))
    host = torch.tensor([gamma1, gamma2, eps, log1, log2], dtype=torch.float64)
    addresses = torch.tensor([g.data_ptr() for g in dense], dtype=torch.int64)
    if device.type == "cuda":
        # From pinned memory the copy does not wait for the device.
        host, addresses = (x.pin_memory().to(device, non_blocking=True) for x in (host, addresses))
    partial = torch.empty(max(table.slots, 1), dtype=torch.float64, device=device)
    norms, rho, factor = (torch.empty(count, dtype=torch.float64, device=device) for _ in range(3))
    for dtype, (owner, start, slot) in table.chunks.items():
        options = {"ELEMENT": _ELEMENTS[dtype], "SIZE": CHUNK, "BLOCK": block, "num_warps": warps}
        _squares_kernel[(owner.numel(),)](addresses, table.lengths, owner, start, slot, partial, **options)
    state = (m, v, t, skipped)
    _scalars_kernel[(count,)](
        partial, table.first, *state, norms, rho, factor, host, table.limits, CORRECT=bias_correction, BLOCK=128, num_warps=4
    )
    for dtype, (owner, start, _) in table.chunks.items():
        options = {"ELEMENT": _ELEMENTS[dtype], "SIZE": CHUNK, "BLOCK": block, "num_warps": warps}
        _scale_kernel[(owner.numel(),)](addresses, table.lengths, owner, start, factor, **options)
    for g, copy in zip(tensors, dense, strict=True):
        if g is not copy:
            g.copy_(copy)
    return norms, rho

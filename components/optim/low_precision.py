"""Optimisers that keep the weights in a small number format alone: no float32 copy survives a step.

Each step decodes the stored codes, computes the new weights in float32 and rounds them onto the format's grid:

    w = decode(codes);  w' = update(w, g, state);  codes = encode(round(w'))

The model's parameters are float32 tensors that show the decoded values, so every element lies on the grid. What the
update is, subclasses say (`components.optim.mplus_adam`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from components.lowprec.formats import FORMATS, FloatFormat, check_rounding, format_of, round_to, storage_dtype
from components.lowprec.quantize import QTensor, check_scaling, quantize, quantize_unchecked
from components.lowprec.words import counter_words
from kernels.philox import mix

_STATE_DTYPES = (torch.float32, torch.bfloat16)
WEIGHTS, _BUFFER, _MOMENTS = 0, 1, 2  # streams of random words


def check_group(group: dict[str, Any]) -> None:
    """Raise ValueError for options of a parameter group that make no sense; which ones there are depends on the optimiser."""
    if "lr" in group and not group["lr"] > 0:
        raise ValueError(f"lr must be above 0, got {group['lr']}")
    if "lr_mult" in group and not group["lr_mult"] >= 0:
        raise ValueError(f"lr_mult must not be negative, got {group['lr_mult']}")
    for position, beta in enumerate(group["betas"]):
        if not 0 <= beta < 1:
            raise ValueError(f"betas[{position}] must lie in [0, 1), got {beta}")
    for name in ("eps", "eps_mult", "weight_decay"):
        if name in group and not group[name] >= 0:
            raise ValueError(f"{name} must not be negative, got {group[name]}")
    if "e_max" in group and not group["e_max"] > 0:
        raise ValueError(f"e_max must be above 0, got {group['e_max']}")
    seed = group["seed"]
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed must be a whole number of at least 0, got {seed!r}")
    check_scaling(format_of(group["fmt"]), group["scale"], group["block"])
    check_rounding(group["rounding"])


class LowPrecisionOptimizer(torch.optim.Optimizer, ABC):
    """Storage, rounding, checks and checkpoints; a subclass brings `moments` and `update`.

    The options common to all, per parameter group unless marked (*):

    fmt : number format of the weights, a name in `components.lowprec.formats.FORMATS`.
    scale, block, rounding : how scales are shared and what rounding is, as for `components.lowprec.quantize.quantize`.
    quantize_1d : whether tensors of fewer than two dimensions (gains, biases) are stored in `fmt` too, if it has at most 8
        bits; default False: they are stored in bf16.
    state_dtype (*) : of the moments, float32 or bfloat16. In bfloat16 they are stored with stochastic rounding: to nearest, a
        second moment with beta 0.999 would not move.
    seed : of stochastic rounding; the words depend on (seed, step, position of the parameter) alone.
    strict (*) : a gradient that is not finite raises FloatingPointError; by default its tensor is skipped, weights and
        moments, and counted in `skipped`.
    count_frozen (*) : keep the counts for `frozen_fraction`.

    Parameters are rounded to nearest, in place, when they are handed over. A state dict holds plain tensors: "step", "codes",
    "scale" and "tensor_scale" where there are such, and the moments.
    """

    moments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()  # attributes of the instance that a copy needs

    def __init__(
        self,
        params: Iterable[Any],
        defaults: dict[str, Any],
        *,
        state_dtype: torch.dtype = torch.float32,
        seed: int = 0,
        strict: bool = False,
        count_frozen: bool = False,
    ) -> None:
        if state_dtype not in _STATE_DTYPES:
            raise ValueError(f"state_dtype must be torch.float32 or torch.bfloat16, got {state_dtype}")
        self.state_dtype, self.strict, self.count_frozen = state_dtype, strict, count_frozen
        self.skipped = 0
        self._counts: list[tuple[Tensor, Tensor]] = []
        self._unverified = False
        defaults = defaults | {"seed": seed}  # among the options, so that a checkpoint brings it back
        check_group(defaults)
        super().__init__(params, defaults)

    def __getstate__(self) -> dict[str, Any]:
        # torch's own drops what a subclass adds; a copy or a pickle has to step as this one would
        own = ("state_dtype", "strict", "count_frozen", "skipped", "_counts", "_unverified", "moments", *self.options)
        return super().__getstate__() | {name: getattr(self, name) for name in own}

    # --- what a subclass says ---------------------------------------------------------------------------------------

    @abstractmethod
    def update(
        self, w: Tensor, g: Tensor, state: dict[str, Tensor], group: dict[str, Any], t: int, buffer: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The new weights before rounding (`w` may be overwritten), and with a buffer what it has to be added to.

        w, g : float32, one shape.   state : the moments, float32, to be changed in place.   t : 1 at the first step."""

    def buffers_of(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Name of a quantised tensor that is kept beside the weights, at most one."""
        return ()

    def fused_step(self, p: Tensor, index: int, state: dict[str, Tensor], group: dict[str, Any], t: int) -> bool:
        """Do the whole step of one tensor in a kernel and return True, or do nothing and return False."""
        return False

    # --- parameters and their codes ---------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own; they are rounded onto the grid.

        TypeError for parameters that are not dense float32; ValueError for options or values that make no sense."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            check_group(group)
            for p in group["params"]:
                if p.dtype != torch.float32 or p.layout != torch.strided:
                    raise TypeError(
                        f"parameters must be dense float32 tensors (they show the decoded values), got {p.dtype}, {p.layout}"
                    )
            quantised = [self._first_quantisation(p, group) for p in group["params"]]
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise
        for p, q in zip(group["params"], quantised, strict=True):
            with torch.no_grad():
                p.copy_(q.dequantize())
            state = self.state[p]
            state["step"] = torch.zeros(())
            _store(state, "", q)
            for name in self.moments:
                state[name] = torch.zeros_like(p, dtype=self.state_dtype, memory_format=torch.contiguous_format)
            for name in self.buffers_of(group):
                _store(state, name, quantize(torch.zeros_like(p), q.fmt, q.scaling, group["block"]))

    def _first_quantisation(self, p: Tensor, group: dict[str, Any]) -> QTensor:
        fmt, scaling = self._format(p, group)
        try:
            return quantize(p.detach(), fmt, scaling, group["block"])
        except ValueError as error:
            raise ValueError(f"a parameter of shape {tuple(p.shape)} cannot be stored: {error}") from error

    @staticmethod
    def _format(p: Tensor, group: dict[str, Any]) -> tuple[FloatFormat, str]:
        fmt = format_of(group["fmt"])
        if p.ndim < 2 and fmt.bits <= 8 and not group["quantize_1d"]:
            return FORMATS["bf16"], "none"
        return fmt, group["scale"]

    def quantized(self, p: Tensor) -> QTensor:
        """What is stored of a parameter. KeyError for a tensor that is none of this optimiser's."""
        return self._quantised(p, "", self._group_of(p))

    def _group_of(self, p: Tensor) -> dict[str, Any]:
        for group in self.param_groups:
            if any(p is other for other in group["params"]):
                return group
        raise KeyError("this tensor is not a parameter of the optimiser")

    def _quantised(self, p: Tensor, name: str, group: dict[str, Any]) -> QTensor:
        fmt, scaling = self._format(p, group)
        state = self.state[p]
        scale, tensor_scale = state.get(_key(name, "scale")), state.get(_key(name, "tensor_scale"))
        blocks = group["block"] if scaling in ("mx", "mx_up", "nvfp4") else 0
        return QTensor(state[_key(name, "codes")], scale, tensor_scale, p.shape, fmt, scaling, blocks)

    def nbytes(self) -> int:
        """Bytes that are kept between steps: codes, scales and moments (the step counters aside)."""
        return sum(
            value.numel() * value.element_size() for state in self.state.values() for k, value in state.items() if k != "step"
        )

    # --- the step ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; parameters without a gradient are left alone. Returns what `closure` returned.

        RuntimeError for a sparse gradient; FloatingPointError for one that is not finite, if strict; ValueError at the first
        step after `load_state_dict` where a parameter is not what the loaded codes say."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._unverified:
            self._verify()
        self._counts = []
        index = -1
        for group in self.param_groups:
            for p in group["params"]:
                index += 1
                if p.grad is not None and self._usable(p.grad, index):
                    self._step(p, index, group)
        return loss

    def _usable(self, g: Tensor, index: int) -> bool:
        if g.is_sparse or g.layout != torch.strided:
            raise RuntimeError(f"{type(self).__name__} does not take sparse gradients; parameter {index} has one")
        if g.numel() and not torch.isfinite(torch.linalg.vector_norm(g, torch.inf)):
            if self.strict:
                raise FloatingPointError(f"the gradient of parameter {index} holds NaN or infinity")
            self.skipped += 1
            return False
        return True

    def _step(self, p: Tensor, index: int, group: dict[str, Any]) -> None:
        state = self.state[p]
        state["step"] += 1
        t = int(state["step"])
        before = p.detach().clone() if self.count_frozen else None
        if not self.fused_step(p, index, state, group, t):
            w = self._quantised(p, "", group).dequantize()
            names = self.buffers_of(group)
            buffer = self._quantised(p, names[0], group).dequantize() if names else None
            exact = {name: state[name].float() for name in self.moments}
            w, whole = self.update(w, p.grad, exact, group, t, buffer)
            fmt, scaling = self._format(p, group)
            words = self._words(group, group["rounding"], t, index, WEIGHTS, w)
            q = quantize_unchecked(w, fmt, scaling, group["block"], group["rounding"], words=words)
            _store(state, "", q)
            shown = q.dequantize()
            p.copy_(shown)
            if names:
                words = self._words(group, group["rounding"], t, index, _BUFFER, w)
                lost = whole.sub_(shown)
                _store(
                    state,
                    names[0],
                    quantize_unchecked(lost, fmt, scaling, group["block"], group["rounding"], words=words),
                )
            if self.state_dtype != torch.float32:
                for position, name in enumerate(self.moments):
                    words = self._words(group, "sr", t, index, _MOMENTS + position, w)
                    state[name].copy_(round_to(exact[name], "bf16", "sr", words=words))
        if before is not None:
            active = p.grad != 0
            self._counts.append(((active & (before == p)).sum(), active.sum()))

    @staticmethod
    def _words(group: dict[str, Any], rounding: str, t: int, index: int, stream: int, like: Tensor) -> Tensor | None:
        return counter_words(mix(group["seed"], t, index, stream), like.shape, like.device) if rounding == "sr" else None

    def frozen_fraction(self) -> float:
        """Share of coordinates with a gradient other than 0 that the last step left where they were; 0 if there was none.

        RuntimeError without `count_frozen=True` or before the first step."""
        if not self.count_frozen or not self._counts:
            raise RuntimeError("frozen_fraction() needs count_frozen=True and a step that had gradients")
        frozen, active = (sum(int(pair[side]) for pair in self._counts) for side in (0, 1))
        return frozen / active if active else 0.0

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over codes, scales, moments and options. The parameters must show the same values: this is looked at in the next
        step. ValueError for a state dict of another optimiser or other shapes."""
        super().load_state_dict(state_dict)
        for index, p in enumerate(p for group in self.param_groups for p in group["params"]):
            self._restore(p, index)
        self._unverified = True

    def _restore(self, p: Tensor, index: int) -> None:
        """Undo torch's cast of everything to the parameter's dtype; codes are small whole numbers, so nothing was lost."""
        state, group = self.state[p], self._group_of(p)
        fmt, scaling = self._format(p, group)
        wanted = dict.fromkeys(self.moments, self.state_dtype)
        for prefix in ("", *self.buffers_of(group)):
            wanted[_key(prefix, "codes")] = storage_dtype(fmt)
            if scaling != "none":
                wanted[_key(prefix, "scale")] = torch.uint8
            if scaling == "nvfp4":
                wanted[_key(prefix, "tensor_scale")] = torch.float32
        found = {name for name in state if name != "step"}
        if found != set(wanted):
            raise ValueError(
                f"the state of parameter {index} holds {sorted(found)}, {type(self).__name__} keeps {sorted(wanted)}: "
                "it was saved by another optimiser or with other options"
            )
        for name, dtype in wanted.items():
            state[name] = state[name].to(dtype)
        for name in self.moments:
            if state[name].shape != p.shape:
                raise ValueError(f"{name} of parameter {index} has shape {tuple(state[name].shape)}, not {tuple(p.shape)}")

    def _verify(self) -> None:
        for index, p in enumerate(p for group in self.param_groups for p in group["params"]):
            try:
                same = torch.equal(self.quantized(p).dequantize(), p)
            except (ValueError, RuntimeError) as error:
                raise ValueError(f"the stored codes of parameter {index} do not fit its shape {tuple(p.shape)}") from error
            if not same:
                raise ValueError(
                    f"parameter does not match its stored codes: parameter {index} of shape {tuple(p.shape)}; load the model and "
                    "the optimiser from one checkpoint"
                )
        self._unverified = False


def _key(prefix: str, name: str) -> str:
    return f"{prefix}_{name}" if prefix else name


def _store(state: dict[str, Tensor], prefix: str, q: QTensor) -> None:
    for name in ("codes", "scale", "tensor_scale"):
        value = getattr(q, name)
        if value is not None:
            state[_key(prefix, name)] = value

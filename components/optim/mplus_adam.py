"""M+Adam: an additive and a multiplicative step at once, for weights that are stored in a few bits; and its two halves alone.

Per tensor, with w the decoded weights, g the gradient and t = 1, 2, ...:

    m  = b1 m  + (1 - b1) g        v  = b2 v  + (1 - b2) g^2         additive moments
    ge = ln2 w g                                                     the gradient by e, for w = s 2^e
    me = b1 me + (1 - b1) ge       ve = b2 ve + (1 - b2) ge^2        multiplicative moments
    a  = -lr m^ / (sqrt(v^) + eps)
    d  = clip(-lr_mult me^ / (sqrt(ve^) + eps_mult), -e_max, e_max)
    w' = (1 - lr weight_decay) w + w (2^d - 1) + a                   then rounded; hats are bias-corrected

Rounded to nearest, an additive step a is lost on every weight whose binade 2^E satisfies |a| <= 2^(E - M - 1): large weights
freeze. A multiplicative step passes at any magnitude once |d| >= log2(1 + 2^(-M - 1)), but it can neither cross zero nor leave
it. Their sum has neither failure.

Source: Liang et al., "M+Adam: Low-Precision Training via Additive-Multiplicative Optimization"; the multiplicative half is
Bernstein et al., "Learning compositional functions via multiplicative weight updates" (Madam), with moments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from components.lowprec.formats import Rounding
from components.lowprec.quantize import Scaling
from components.optim.low_precision import WEIGHTS, LowPrecisionOptimizer
from kernels.mplus_adam_step import StepOptions, fused_formats, mplus_adam_step
from kernels.philox import mix

LN2 = math.log(2.0)
MULT_FORMS = ("exp2", "linear", "instant", "rho", "mantissa")
MultForm = Literal["exp2", "linear", "instant", "rho", "mantissa"]
Backend = Literal["auto", "torch", "triton"]
RHO_FLOOR = 1e-6  # tau of the form "rho"


def adam_moments(g: Tensor, first: Tensor, second: Tensor, betas: tuple[float, float]) -> None:
    """Exponential moving averages of g and g^2, in place."""
    first.lerp_(g, 1 - betas[0])
    second.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])


def adam_direction(
    numerator: Tensor, second: Tensor, t: int, betas: tuple[float, float], eps: float, corrected: bool = True
) -> Tensor:
    """numerator^ / (sqrt(second^) + eps) with bias corrections (of the numerator too, if `corrected`); a new tensor."""
    denominator = second.sqrt().div_(math.sqrt(1 - betas[1] ** t)).add_(eps)
    return torch.div(numerator, denominator, out=denominator).div_(1 - betas[0] ** t if corrected else 1.0)


class MPlusAdam(LowPrecisionOptimizer):
    """Additive and multiplicative Adam steps on weights that are kept in `fmt` alone.

    Parameters
    ----------
    params : float32 parameters, or groups with options of their own. They are rounded onto the grid at once.
    lr : step of the additive half, in units of weight; above 0.
    lr_mult : step of the multiplicative half, in powers of two; not negative. Good values are about one to two times
        log2(1 + 2^(-M - 1)) under rounding to nearest (bf16 1e-2, e4m3 5e-2, e5m2 1e-1, e2m1 2e-1), half of that under "sr". A
        schedule has to change both: `group["lr"]` and `group["lr_mult"]`.
    betas, eps, eps_mult, weight_decay : as above; eps_mult is small because ge is small where |w| is.
    fmt, scale, block, rounding, quantize_1d, state_dtype, seed, strict, count_frozen : see LowPrecisionOptimizer.
    mult_form : "exp2" (default, above); "linear": w ln2 d in place of w (2^d - 1); "instant": ge in place of me, three
        moments instead of four; "rho": w d / (sign(w) max(|w|, 1e-6)), one reading of the paper's algorithm, for ablations: wherever
        |w| > 1e-6 an additive step of size lr_mult, and for negative w along the gradient rather than against it;
        "mantissa": w = mu 2^e with |mu| in [1, 2), Adam on mu with gradient 2^e g, the multiplicative step on e, both clipped.
    e_max : largest |d|, default 1.
    backend : "torch"; "triton": one fused kernel; "auto" (default): the kernel for CUDA tensors that it can handle.

    Raises
    ------
    ValueError, TypeError, RuntimeError : as LowPrecisionOptimizer; unknown mult_form or backend; backend="triton" without CUDA
    (unless TRITON_INTERPRET=1), or with what the kernel does not do (forms other than exp2, bfloat16 moments, tensor or nvfp4
    scales).
    """

    moments = ("exp_avg", "exp_avg_sq", "exp_avg_e", "exp_avg_sq_e")
    options = ("mult_form", "backend", "fusible")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        lr_mult: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        eps_mult: float = 1e-12,
        weight_decay: float = 0.0,
        fmt: str = "bf16",
        scale: Scaling = "none",
        block: int = 32,
        rounding: Rounding = "rne",
        mult_form: MultForm = "exp2",
        e_max: float = 1.0,
        state_dtype: torch.dtype = torch.float32,
        seed: int = 0,
        backend: Backend = "auto",
        *,
        quantize_1d: bool = False,
        strict: bool = False,
        count_frozen: bool = False,
    ) -> None:
        if mult_form not in MULT_FORMS:
            raise ValueError(f"mult_form must be one of {', '.join(MULT_FORMS)}, got {mult_form!r}")
        if backend not in ("auto", "torch", "triton"):
            raise ValueError(f"backend must be auto, torch or triton, got {backend!r}")
        self.mult_form, self.backend = mult_form, backend
        self.fusible = mult_form == "exp2" and state_dtype == torch.float32
        if mult_form == "instant":
            self.moments = ("exp_avg", "exp_avg_sq", "exp_avg_sq_e")
        if backend == "triton":
            from triton import knobs

            if not (torch.cuda.is_available() or knobs.runtime.interpret):
                raise RuntimeError("backend='triton' needs a CUDA device, or TRITON_INTERPRET=1 to run on the CPU")
            if not self.fusible:
                raise ValueError("backend='triton' does mult_form='exp2' with float32 moments; use backend='torch'")
        defaults = {
            "lr": lr,
            "lr_mult": lr_mult,
            "betas": tuple(betas),
            "eps": eps,
            "eps_mult": eps_mult,
            "weight_decay": weight_decay,
            "fmt": fmt,
            "scale": scale,
            "block": block,
            "rounding": rounding,
            "e_max": e_max,
            "quantize_1d": quantize_1d,
        }
        super().__init__(params, defaults, state_dtype=state_dtype, seed=seed, strict=strict, count_frozen=count_frozen)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As LowPrecisionOptimizer; ValueError where backend="triton" cannot store the group's format."""
        if self.backend == "triton":
            options = self.defaults | param_group
            if not fused_formats(options["fmt"], options["scale"]):
                raise ValueError(f"backend='triton' does not do {options['fmt']} with scale={options['scale']!r}; use 'torch'")
        super().add_param_group(param_group)

    def update(self, w, g, state, group, t, buffer):
        lr, betas = group["lr"], group["betas"]
        if self.mult_form == "mantissa":
            return self._mantissa(w, g, state, group, t), None
        adam_moments(g, state["exp_avg"], state["exp_avg_sq"], betas)
        step = adam_direction(state["exp_avg"], state["exp_avg_sq"], t, betas, group["eps"]).mul_(-lr)
        d = self._exponent_step(w, g, state, group, t)
        if self.mult_form in ("exp2", "instant"):
            step.addcmul_(w, d.exp2_().sub_(1))
        elif self.mult_form == "linear":
            step.addcmul_(w, d.mul_(LN2))
        else:
            # w / rho is sign(w) sign(w) = 1 wherever |w| > tau
            step.addcmul_(w.abs() / w.abs().clamp(min=RHO_FLOOR), d)
        if group["weight_decay"]:
            w.mul_(1 - lr * group["weight_decay"])
        return w.add_(step), None

    def _exponent_step(self, w: Tensor, g: Tensor, state: dict[str, Tensor], group: dict[str, Any], t: int) -> Tensor:
        """d, the clipped change of log2 |w|."""
        betas = group["betas"]
        ge = torch.mul(w, g).mul_(LN2)
        if self.mult_form == "instant":
            state["exp_avg_sq_e"].mul_(betas[1]).addcmul_(ge, ge, value=1 - betas[1])
            d = adam_direction(ge, state["exp_avg_sq_e"], t, betas, group["eps_mult"], corrected=False)
        else:
            adam_moments(ge, state["exp_avg_e"], state["exp_avg_sq_e"], betas)
            d = adam_direction(state["exp_avg_e"], state["exp_avg_sq_e"], t, betas, group["eps_mult"])
        return d.mul_(-group["lr_mult"]).clamp_(-group["e_max"], group["e_max"])

    def _mantissa(self, w: Tensor, g: Tensor, state: dict[str, Tensor], group: dict[str, Any], t: int) -> Tensor:
        """The workshop's form: both steps relative to the weight's binade, the first on the mantissa."""
        binade = torch.frexp(w).exponent - 1
        power = torch.exp2(torch.where(w == 0, -126, binade.clamp(min=-126)).float())
        adam_moments(g * power, state["exp_avg"], state["exp_avg_sq"], group["betas"])
        change = adam_direction(state["exp_avg"], state["exp_avg_sq"], t, group["betas"], group["eps_mult"]).mul_(-group["lr"])
        mantissa = (1 - group["lr"] * group["weight_decay"]) * w / power + change.clamp_(-group["e_max"], group["e_max"])
        return mantissa * power * torch.exp2(self._exponent_step(w, g, state, group, t))

    def fused_step(self, p, index, state, group, t):
        fmt, scaling = self._format(p, group)
        able = self.fusible and fused_formats(fmt.name, scaling) and p.is_contiguous() and p.numel() > 0
        if self.backend == "torch" or not able or (self.backend == "auto" and not p.is_cuda):
            return False
        options = StepOptions(
            group["lr"],
            group["lr_mult"],
            *group["betas"],
            group["eps"],
            group["eps_mult"],
            group["weight_decay"],
            group["e_max"],
            t,
        )
        mplus_adam_step(
            state["codes"],
            state.get("scale"),
            p.grad,
            *(state[name] for name in self.moments),
            p,
            fmt=fmt.name,
            scaling=scaling,
            block=group["block"],
            rounding=group["rounding"],
            key=mix(group["seed"], t, index, WEIGHTS),
            options=options,
        )
        return True


class AdamLP(LowPrecisionOptimizer):
    """Adam with decoupled weight decay on weights that are kept in `fmt` alone: the additive half of M+Adam.

    Parameters
    ----------
    kahan : keep what rounding lost in a buffer of the same format and add it to the next step (compensated summation).
    Others as for MPlusAdam.

    References: Kingma & Ba, "Adam"; Loshchilov & Hutter, "Decoupled weight decay regularization"; Zamirai et al., "Revisiting
    BFloat16 Training" (compensated and stochastically rounded updates).
    """

    moments = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        fmt: str = "bf16",
        scale: Scaling = "none",
        block: int = 32,
        rounding: Rounding = "rne",
        kahan: bool = False,
        state_dtype: torch.dtype = torch.float32,
        seed: int = 0,
        *,
        quantize_1d: bool = False,
        strict: bool = False,
        count_frozen: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": tuple(betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "fmt": fmt,
            "scale": scale,
            "block": block,
            "rounding": rounding,
            "kahan": kahan,
            "quantize_1d": quantize_1d,
        }
        super().__init__(params, defaults, state_dtype=state_dtype, seed=seed, strict=strict, count_frozen=count_frozen)

    def buffers_of(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("kahan",) if group["kahan"] else ()

    def update(self, w, g, state, group, t, buffer):
        adam_moments(g, state["exp_avg"], state["exp_avg_sq"], group["betas"])
        step = adam_direction(state["exp_avg"], state["exp_avg_sq"], t, group["betas"], group["eps"]).mul_(-group["lr"])
        if group["weight_decay"]:
            w.mul_(1 - group["lr"] * group["weight_decay"])
        if buffer is not None:
            step.add_(buffer)
        w = w.add_(step)
        return w, w if buffer is None else w.clone()


class MadamLP(LowPrecisionOptimizer):
    """The multiplicative half of M+Adam alone: w' = w 2^d. Signs never change and zeros stay.

    Parameters as for MPlusAdam, without the additive ones."""

    moments = ("exp_avg_e", "exp_avg_sq_e")

    def __init__(
        self,
        params: Iterable[Any],
        lr_mult: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps_mult: float = 1e-12,
        fmt: str = "bf16",
        scale: Scaling = "none",
        block: int = 32,
        rounding: Rounding = "rne",
        e_max: float = 1.0,
        state_dtype: torch.dtype = torch.float32,
        seed: int = 0,
        *,
        quantize_1d: bool = False,
        strict: bool = False,
        count_frozen: bool = False,
    ) -> None:
        defaults = {
            "lr_mult": lr_mult,
            "betas": tuple(betas),
            "eps_mult": eps_mult,
            "fmt": fmt,
            "scale": scale,
            "block": block,
            "rounding": rounding,
            "e_max": e_max,
            "quantize_1d": quantize_1d,
        }
        super().__init__(params, defaults, state_dtype=state_dtype, seed=seed, strict=strict, count_frozen=count_frozen)

    def update(self, w, g, state, group, t, buffer):
        ge = torch.mul(w, g).mul_(LN2)
        adam_moments(ge, state["exp_avg_e"], state["exp_avg_sq_e"], group["betas"])
        d = adam_direction(state["exp_avg_e"], state["exp_avg_sq_e"], t, group["betas"], group["eps_mult"])
        d.mul_(-group["lr_mult"]).clamp_(-group["e_max"], group["e_max"])
        # w + w (2^d - 1) and not w 2^d: to the last bit what M+Adam does without its additive half
        return w.add_(d.exp2_().sub_(1).mul_(w)), None

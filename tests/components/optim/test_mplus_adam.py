"""The optimisers against gold values, their parents, a loop over scalars and the kernel's definition; checkpoints; bad input."""

from __future__ import annotations

import copy
import io
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from components.lowprec.formats import FORMATS, round_to
from components.lowprec.quantize import quantize
from components.optim.low_precision import WEIGHTS
from components.optim.mplus_adam import MULT_FORMS, AdamLP, MadamLP, MPlusAdam
from kernels.mplus_adam_step import StepOptions, fused_formats, mplus_adam_step_reference
from kernels.philox import mix

FORMAT_SCALES = [
    ("fp32", "none"),
    ("bf16", "none"),
    ("e4m3", "mx"),
    ("e5m2", "mx_up"),
    ("e2m1", "mx"),
    ("e2m1", "nvfp4"),
    ("e4m3", "tensor"),
]


def parameter(*shape, seed=0, size=1.0):
    return nn.Parameter(size * torch.randn(shape, generator=torch.Generator().manual_seed(seed)))


def optimisers(params, fmt="bf16", scale="none", rounding="rne", **options):
    common = {"fmt": fmt, "scale": scale, "rounding": rounding, **options}
    return [
        ("M+Adam", lambda: MPlusAdam(params(), 0.01, 0.05, **common)),
        ("Adam", lambda: AdamLP(params(), 0.01, weight_decay=0.1, **common)),
        ("Adam, Kahan", lambda: AdamLP(params(), 0.01, kahan=True, **common)),
        ("Madam", lambda: MadamLP(params(), 0.05, **common)),
    ]


def gradient(step, shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1000 + step))


def run(optimizer, steps, start=0):
    for step in range(start, start + steps):
        for index, p in enumerate(p for group in optimizer.param_groups for p in group["params"]):
            p.grad = gradient(step * 10 + index, p.shape)
        optimizer.step()


# --- the update -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fmt", "wanted"), [("fp32", 2 * 2**-0.1 - 0.1), ("e4m3", 1.75), ("bf16", 1.765625)])
def test_gold_step(fmt, wanted):
    """w = 2, g = 0.5, both steps 0.1: the additive part is -0.1, the exponent's -0.1."""
    p = nn.Parameter(torch.tensor([[2.0]]))
    optimizer = MPlusAdam([p], 0.1, 0.1, fmt=fmt)
    p.grad = torch.tensor([[0.5]])
    optimizer.step()
    assert p.item() == pytest.approx(wanted, abs=1e-6 if fmt == "fp32" else 0)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_without_its_multiplicative_half_it_is_adamw(weight_decay):
    p, q = parameter(7, 5), parameter(7, 5)
    ours = MPlusAdam([p], 1e-2, 0.0, fmt="fp32", weight_decay=weight_decay)
    alone = AdamLP([r := parameter(7, 5)], 1e-2, fmt="fp32", weight_decay=weight_decay)
    theirs = torch.optim.AdamW([q], 1e-2, weight_decay=weight_decay)
    for optimizer in (ours, alone, theirs):
        run(optimizer, 50)
    torch.testing.assert_close(p, q, rtol=0, atol=1e-6)
    torch.testing.assert_close(r, q, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("fmt", "scale"), FORMAT_SCALES)
def test_without_its_additive_half_it_is_madam_and_keeps_signs_and_zeros(fmt, scale):
    p, q = parameter(6, 40), parameter(6, 40)
    with torch.no_grad():
        p[0], q[0] = 0, 0
    start = p.detach().clone()
    ours, theirs = MPlusAdam([p], 1.0, 0.1, fmt=fmt, scale=scale), MadamLP([q], 0.1, fmt=fmt, scale=scale)
    ours.param_groups[0]["lr"] = 0.0  # what a schedule may do; the constructor refuses it
    run(ours, 30)
    run(theirs, 30)
    assert torch.equal(p, q) and not p[0].any()
    assert (p * start >= 0).all() and not torch.equal(p, start)


def scalar_loop(w, gradients, lr, lr_mult, b1, b2, eps, eps_mult, decay, e_max):
    m = v = me = ve = 0.0
    for t, g in enumerate(gradients, start=1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        ge = math.log(2) * w * g
        me, ve = b1 * me + (1 - b1) * ge, b2 * ve + (1 - b2) * ge * ge
        c1, c2 = 1 - b1**t, 1 - b2**t
        a = -lr * (m / c1) / (math.sqrt(v / c2) + eps)
        d = max(-e_max, min(e_max, -lr_mult * (me / c1) / (math.sqrt(ve / c2) + eps_mult)))
        w = (1 - lr * decay) * w + w * (2**d - 1) + a
    return w


def test_fp32_equals_a_loop_over_scalars():
    p = parameter(4, 3)
    start = p.detach().double().clone()
    optimizer = MPlusAdam([p], 0.02, 0.3, (0.8, 0.95), 1e-6, 1e-9, 0.2, fmt="fp32", e_max=0.2)
    run(optimizer, 40)
    grads = torch.stack([gradient(step * 10, (4, 3)) for step in range(40)]).double()
    for i in range(4):
        for j in range(3):
            wanted = scalar_loop(start[i, j].item(), grads[:, i, j].tolist(), 0.02, 0.3, 0.8, 0.95, 1e-6, 1e-9, 0.2, 0.2)
            assert p[i, j].item() == pytest.approx(wanted, abs=2e-5)


@pytest.mark.parametrize(("fmt", "scale"), [pair for pair in FORMAT_SCALES if fused_formats(*pair)])
@pytest.mark.parametrize("rounding", ["rne", "sr"])
def test_steps_equal_the_definition_and_the_kernel(fmt, scale, rounding):
    """Three ways of decoding, rounding and encoding: bits, logarithms, and the kernel (interpreted without a GPU)."""
    options = {"fmt": fmt, "scale": scale, "rounding": rounding, "seed": 4}
    p, q = parameter(5, 45), parameter(5, 45)
    ours, fused = MPlusAdam([p], 0.01, 0.1, backend="torch", **options), MPlusAdam([q], 0.01, 0.1, backend="triton", **options)
    state = {k: v.clone() for k, v in ours.state[p].items()}
    shown = p.detach().clone()
    for t in range(1, 4):
        p.grad = q.grad = gradient(t, p.shape)
        ours.step()
        fused.step()
        mplus_adam_step_reference(
            state["codes"], state.get("scale"), p.grad, *(state[name] for name in MPlusAdam.moments), shown,
            fmt=fmt, scaling=scale, rounding=rounding, key=mix(4, t, 0, WEIGHTS),
            options=StepOptions(0.01, 0.1, 0.9, 0.999, 1e-8, 1e-12, 0.0, 1.0, t),
        )  # fmt: skip
    if fmt == "fp32":
        torch.testing.assert_close(p, shown, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-6)
    else:
        assert torch.equal(p, shown) and torch.equal(p, q)
        assert torch.equal(ours.state[p]["codes"], state["codes"]) and torch.equal(fused.state[q]["codes"], state["codes"])


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(["bf16", "e4m3", "e5m2", "e2m1"]),
    fraction=st.floats(1, 1.999),
    above=st.integers(0, 6),
    sign=st.sampled_from([-1, 1]),
    grad=st.sampled_from([-0.7, 0.3]),
)
def test_additive_steps_are_lost_on_large_weights_and_multiplicative_ones_are_not(name, fraction, above, sign, grad):
    """lr = 2^(E - M - 1 - above) on a weight of binade E > emin, at step 1, where the additive step is just the lr."""
    fmt = FORMATS[name]
    exponent = min(3, fmt.emax - 1)  # room above: growth must not saturate
    w = round_to(torch.tensor([[sign * fraction * 2.0**exponent]]), fmt)
    if w.abs().item() >= 2.0 ** (exponent + 1) or w.abs().item() == 2.0**exponent:
        return  # at a power of two the grid below is finer by half
    lr = 0.999 * 2.0 ** (exponent - fmt.man_bits - 1 - above)
    d = 1.01 * fmt.smallest_exponent_move
    p, q = nn.Parameter(w.clone()), nn.Parameter(w.clone())
    additive, both = AdamLP([p], lr, fmt=name), MPlusAdam([q], lr, d, fmt=name)
    p.grad = q.grad = torch.tensor([[grad]])
    additive.step()
    both.step()
    assert torch.equal(p, w) and not torch.equal(q, w)
    assert (q - w).sign().item() == -math.copysign(1, grad)


@pytest.mark.parametrize("form", [form for form in MULT_FORMS if form != "rho"])
def test_forms_move_against_the_gradient(form):
    p = parameter(9, 9)
    start = p.detach().clone()
    optimizer = MPlusAdam([p], 1e-3, 1e-2, betas=(0.0, 0.999), fmt="fp32", mult_form=form)
    p.grad = gradient(0, (9, 9))
    optimizer.step()
    assert ((p - start).sign() == -p.grad.sign()).all()
    assert len(optimizer.state[p]) == (6 if form != "instant" else 5)


def test_linear_and_exponential_forms_agree_for_small_steps_and_rho_is_additive():
    moved = {}
    for form in ("exp2", "linear", "rho"):
        p = parameter(9, 9)
        start = p.detach().clone()
        optimizer = MPlusAdam([p], 1e-9, 1e-3, fmt="fp32", mult_form=form)
        p.grad = gradient(0, (9, 9))
        optimizer.step()
        moved[form] = p.detach() - start
    torch.testing.assert_close(moved["exp2"], moved["linear"], rtol=2e-3, atol=1e-6)
    # a step of lr_mult in units of weight, signed as -w g / |w g| where w is: growth of |w| for g against it
    torch.testing.assert_close(moved["rho"], -1e-3 * (start * gradient(0, (9, 9))).sign(), rtol=1e-3, atol=1e-6)


def test_descent_on_a_quadratic_with_small_steps():
    """b1 = 0, no rounding, |d_i| <= 2 |g_i| / L: every step lowers f."""
    h = torch.logspace(-1, 1, 20)[None]
    p = nn.Parameter(torch.linspace(-3, 3, 20)[None].clone())
    optimizer = MPlusAdam([p], 1e-3, 1e-3, betas=(0.0, 0.999), fmt="fp32")
    for _ in range(200):
        before, w = (0.5 * h * p**2).sum().item(), p.detach().clone()
        p.grad = h * w
        optimizer.step()
        moved = p.detach() - w
        if (moved.abs() <= 2 * p.grad.abs() / h).all():
            assert (0.5 * h.double() * p.detach().double() ** 2).sum().item() <= before + 1e-5
        assert (moved * p.grad <= 0).all()


# --- storage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fmt", "scale"), FORMAT_SCALES)
@pytest.mark.parametrize("rounding", ["rne", "sr"])
def test_parameters_always_show_their_codes(fmt, scale, rounding):
    for _, make in optimisers(lambda: [parameter(3, 35), parameter(4, seed=1)], fmt, scale, rounding):
        optimizer = make()
        run(optimizer, 3)
        for p in optimizer.param_groups[0]["params"]:
            assert torch.equal(optimizer.quantized(p).dequantize(), p)


def test_one_dimensional_tensors_are_bf16_unless_asked():
    for whole, fmt in ((False, "bf16"), (True, "e2m1")):
        gain, matrix = parameter(33), parameter(4, 33)
        optimizer = MPlusAdam([gain, matrix], 0.01, 0.1, fmt="e2m1", scale="mx", quantize_1d=whole)
        assert optimizer.quantized(gain).fmt.name == fmt and optimizer.quantized(matrix).fmt.name == "e2m1"


def test_bytes_kept():
    count = 64 * 64
    for fmt, scale, weight in (
        ("bf16", "none", 2 * count),
        ("e4m3", "mx", count + count // 32),
        ("e2m1", "mx", count // 2 + count // 32),
    ):
        assert MPlusAdam([parameter(64, 64)], 0.01, 0.1, fmt=fmt, scale=scale).nbytes() == weight + 16 * count
        assert AdamLP([parameter(64, 64)], 0.01, fmt=fmt, scale=scale, kahan=True).nbytes() == 2 * weight + 8 * count
    assert MPlusAdam([parameter(64, 64)], 0.01, 0.1, state_dtype=torch.bfloat16).nbytes() == 10 * count


@pytest.mark.parametrize(("fmt", "scale"), FORMAT_SCALES)
@pytest.mark.parametrize("rounding", ["rne", "sr"])
@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
def test_a_loaded_checkpoint_goes_on_to_the_bit(fmt, scale, rounding, state_dtype):
    """Nothing but the file goes from one to the other, after every step: no hidden copy of the weights survives."""
    params = lambda: [parameter(3, 35), parameter(4, seed=1)]  # noqa: E731
    for name, make in optimisers(params, fmt, scale, rounding, state_dtype=state_dtype, seed=9):
        whole, part = make(), make()
        run(whole, 3)
        for step in range(3):
            run(part, 1, start=step)
            file = io.BytesIO()
            torch.save({"model": [p.detach() for p in part.param_groups[0]["params"]], "optimizer": part.state_dict()}, file)
            file.seek(0)
            stored = torch.load(file, weights_only=True)
            part = dict(optimisers(params, fmt, scale, rounding, state_dtype=state_dtype))[name]()
            with torch.no_grad():
                for p, value in zip(part.param_groups[0]["params"], stored["model"], strict=True):
                    p.copy_(value)
            part.load_state_dict(stored["optimizer"])
        for p, q in zip(whole.param_groups[0]["params"], part.param_groups[0]["params"], strict=True):
            assert torch.equal(p, q), name
            for key, value in whole.state[p].items():
                assert value.dtype == part.state[q][key].dtype and torch.equal(value, part.state[q][key]), (name, key)


def test_a_deep_copy_steps_as_the_original():
    model = nn.Linear(8, 4)
    optimizer = MPlusAdam(model.parameters(), 0.01, 0.1, fmt="e4m3", scale="mx", rounding="sr", mult_form="linear")
    model_2, optimizer_2 = copy.deepcopy((model, optimizer))
    for m, o in ((model, optimizer), (model_2, optimizer_2)):
        for step in range(3):
            m.weight.grad, m.bias.grad = gradient(step, (4, 8)), gradient(step, (4,))
            o.step()
    assert torch.equal(model.weight, model_2.weight) and o.mult_form == "linear"


def test_seeds_decide_stochastic_rounding():
    results = []
    for seed in (1, 1, 2):
        p = parameter(8, 40)
        run(MPlusAdam([p], 0.01, 0.1, fmt="e2m1", scale="mx", rounding="sr", seed=seed), 3)
        results.append(p.detach())
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])


def test_kahan_collects_what_rounding_loses():
    """Steps of 1e-4 on weights of 1 in bf16, whose spacing is 2^-7: without the buffer nothing ever moves."""
    for kahan, wanted in ((False, 1.0), (True, 0.98)):
        p = nn.Parameter(torch.ones(4, 4))
        optimizer = AdamLP([p], 1e-4, fmt="bf16", kahan=kahan)
        for _ in range(200):
            p.grad = torch.ones(4, 4)
            optimizer.step()
        torch.testing.assert_close(p.detach(), torch.full((4, 4), wanted), rtol=0, atol=0.0 if not kahan else 0.004)


def test_stochastic_rounding_follows_the_exact_path_on_average():
    p, q = nn.Parameter(torch.ones(100, 100)), nn.Parameter(torch.ones(1, 1))
    rounded, exact = AdamLP([p], 1e-3, fmt="e4m3", rounding="sr"), AdamLP([q], 1e-3, fmt="fp32")
    for _ in range(50):
        p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
        rounded.step()
        exact.step()
    # spacing 1/16 below 1: each weight's error is a sum of 50 two-point errors, below 0.0625 sqrt(50)/2 in deviation
    assert abs(p.mean().item() - q.item()) < 4.5 * 0.0625 * 50**0.5 / 2 / 100


def test_bfloat16_moments_do_not_stall():
    """v grows by a factor 1.001 a step at most; rounded to nearest in bfloat16 it would not grow at all."""
    p = nn.Parameter(torch.zeros(50, 50))
    optimizer = AdamLP([p], 1e-3, fmt="bf16", state_dtype=torch.bfloat16)
    for _ in range(500):
        p.grad = torch.ones_like(p)
        optimizer.step()
    assert optimizer.state[p]["exp_avg_sq"].dtype == torch.bfloat16
    assert optimizer.state[p]["exp_avg_sq"].float().mean().item() == pytest.approx(1 - 0.999**500, rel=0.02)


# --- an optimiser of torch ------------------------------------------------------------------------------------------


def test_groups_have_formats_and_steps_of_their_own():
    p, q = parameter(4, 32), parameter(4, 32, seed=1)
    optimizer = MPlusAdam([{"params": [p], "fmt": "e4m3", "scale": "mx", "lr_mult": 0.0}, {"params": [q]}], 0.01, 0.05)
    assert optimizer.quantized(p).fmt.name == "e4m3" and optimizer.quantized(q).fmt.name == "bf16"
    alone = MPlusAdam([r := parameter(4, 32)], 0.01, 0.0, fmt="e4m3", scale="mx")
    run(optimizer, 4)
    run(alone, 4)
    assert torch.equal(p, r)
    optimizer.add_param_group({"params": [parameter(3, 3)], "fmt": "fp32"})
    run(optimizer, 1)
    with pytest.raises(ValueError, match="lr_mult must not be negative"):
        optimizer.add_param_group({"params": [parameter(3, 3)], "lr_mult": -1.0})
    assert len(optimizer.param_groups) == 3


def test_closure_schedule_and_missing_gradients():
    p, idle = parameter(4, 4), parameter(2, 2)
    optimizer = MPlusAdam([p, idle], 0.1, 0.1, fmt="fp32")
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))

    def closure():
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    kept = idle.detach().clone()
    losses = []
    for _ in range(30):
        losses.append(optimizer.step(closure).item())
        scheduler.step()
    assert losses[-1] < losses[0] and torch.equal(idle, kept)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 31)


def test_frozen_fraction_counts_coordinates_with_a_gradient():
    p = nn.Parameter(torch.tensor([[64.0, 0.001, 0.002, 32.0]]))
    optimizer = AdamLP([p], 1e-3, fmt="e4m3", count_frozen=True)
    with pytest.raises(RuntimeError, match="needs count_frozen=True and a step"):
        optimizer.frozen_fraction()
    p.grad = torch.tensor([[1.0, 1.0, 0.0, 1.0]])
    before = p.detach().clone()
    optimizer.step()
    moved = (p != before)[0].tolist()
    assert moved[0] is False and moved[3] is False and moved[2] is False
    assert optimizer.frozen_fraction() == pytest.approx((3 - sum(moved)) / 3)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_is_skipped_and_counted(bad):
    for _, make in optimisers(lambda: [parameter(3, 3), parameter(3, 3, seed=1)]):
        optimizer = make()
        p, q = optimizer.param_groups[0]["params"]
        p.grad, q.grad = torch.ones(3, 3), torch.ones(3, 3)
        p.grad[1, 1] = bad
        before, other = p.detach().clone(), q.detach().clone()
        optimizer.step()
        assert torch.equal(p, before) and not torch.equal(q, other)
        assert optimizer.skipped == 1 and optimizer.state[p]["step"] == 0
        assert all(torch.isfinite(value.float()).all() for value in optimizer.state[p].values())
    strict = AdamLP([r := parameter(2, 2)], 0.1, strict=True)
    r.grad = torch.full((2, 2), bad)
    with pytest.raises(FloatingPointError, match="the gradient of parameter 0 holds NaN or infinity"):
        strict.step()


def test_empty_and_scalar_parameters_step():
    p, q = nn.Parameter(torch.empty(0, 8)), nn.Parameter(torch.tensor(3.0))
    optimizer = MPlusAdam([p, q], 0.1, 0.1, fmt="e4m3", scale="mx")
    p.grad, q.grad = torch.empty(0, 8), torch.tensor(1.0)
    optimizer.step()
    assert q.item() < 3


# --- bad input ------------------------------------------------------------------------------------------------------


def test_bad_options_are_one_clear_sentence():
    for options, says in (
        ({"lr": 0.0}, "lr must be above 0, got 0.0"),
        ({"lr": -1.0}, "lr must be above 0"),
        ({"lr": math.nan}, "lr must be above 0"),
        ({"lr_mult": -0.1}, "lr_mult must not be negative, got -0.1"),
        ({"betas": (1.0, 0.9)}, r"betas\[0\] must lie in \[0, 1\), got 1.0"),
        ({"betas": (0.9, -0.1)}, r"betas\[1\]"),
        ({"eps": -1e-8}, "eps must not be negative"),
        ({"eps_mult": -1.0}, "eps_mult must not be negative"),
        ({"weight_decay": -0.1}, "weight_decay must not be negative"),
        ({"e_max": 0.0}, "e_max must be above 0"),
        ({"fmt": "fp8"}, "there is no number format 'fp8'"),
        ({"scale": "row"}, "scale must be one of"),
        ({"rounding": "up"}, "rounding must be one of"),
        ({"fmt": "e4m3", "scale": "mx", "block": 64}, "block must be 16 or 32"),
        ({"mult_form": "power"}, "mult_form must be one of"),
        ({"backend": "cuda"}, "backend must be auto, torch or triton"),
        ({"state_dtype": torch.float16}, "state_dtype must be"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"backend": "triton", "mult_form": "rho"}, "backend='triton' does mult_form='exp2'"),
        ({"backend": "triton", "fmt": "e4m3", "scale": "tensor"}, "backend='triton' does not do e4m3 with scale='tensor'"),
    ):
        with pytest.raises(ValueError, match=says):
            MPlusAdam([parameter(2, 2)], **({"lr": 0.1, "lr_mult": 0.1} | options))
    with pytest.raises(ValueError, match="lr must be above 0"):
        AdamLP([parameter(2, 2)], 0.0)
    with pytest.raises(ValueError, match="lr_mult must not be negative"):
        MadamLP([parameter(2, 2)], -1.0)


def test_kernel_without_a_gpu_or_interpreter_is_refused(monkeypatch):
    from triton import knobs

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    with pytest.raises(RuntimeError, match="needs a CUDA device, or TRITON_INTERPRET=1"):
        MPlusAdam([parameter(2, 2)], 0.1, 0.1, backend="triton")


def test_bad_parameters_are_one_clear_sentence():
    for dtype in (torch.complex64, torch.float64, torch.bfloat16):
        with pytest.raises(TypeError, match=f"parameters must be dense float32 tensors .*{dtype}"):
            MPlusAdam([nn.Parameter(torch.zeros(2, 2, dtype=dtype))], 0.1, 0.1)
    with pytest.raises(ValueError, match=r"a parameter of shape \(2, 2\) cannot be stored: x reaches 500, .* scale='mx'"):
        MPlusAdam([nn.Parameter(torch.full((2, 2), 500.0))], 0.1, 0.1, fmt="e4m3")
    with pytest.raises(ValueError, match="x must be finite"):
        MPlusAdam([nn.Parameter(torch.full((2, 2), math.nan))], 0.1, 0.1)
    with pytest.raises(KeyError, match="not a parameter of the optimiser"):
        MPlusAdam([parameter(2, 2)], 0.1, 0.1).quantized(parameter(2, 2))


def test_sparse_gradients_are_refused():
    embedding = nn.Embedding(5, 3, sparse=True)
    for _, make in optimisers(lambda: list(embedding.parameters())):
        optimizer = make()
        embedding.zero_grad()
        embedding(torch.tensor([1])).sum().backward()
        with pytest.raises(RuntimeError, match="does not take sparse gradients; parameter 0 has one"):
            optimizer.step()


def test_foreign_checkpoints_are_refused():
    state = AdamLP([parameter(2, 2)], 0.1).state_dict()
    with pytest.raises(ValueError, match="it was saved by another optimiser or with other options"):
        MPlusAdam([parameter(2, 2)], 0.1, 0.1).load_state_dict(state)
    with pytest.raises(ValueError, match=r"exp_avg of parameter 0 has shape \(2, 2\), not \(3, 2\)"):
        AdamLP([parameter(3, 2)], 0.1).load_state_dict(state)


def test_a_parameter_that_is_not_what_its_codes_say_is_refused():
    saved = AdamLP([parameter(2, 2)], 0.1).state_dict()
    p = parameter(2, 2, seed=5)
    optimizer = AdamLP([p], 0.1)
    optimizer.load_state_dict(saved)
    p.grad = torch.ones(2, 2)
    with pytest.raises(ValueError, match="parameter does not match its stored codes: parameter 0"):
        optimizer.step()
    with torch.no_grad():
        p.copy_(quantize(parameter(2, 2).detach(), "bf16", "none").dequantize())
    optimizer.step()

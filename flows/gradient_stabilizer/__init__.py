"""GradientStabilizer: what the paper claims, and the rules that settle each claim."""

from tasks.claims import (
    Claim,
    all_of,
    every_value_within,
    lower_bound_above,
    mean_above,
    mean_below,
    mean_within,
    upper_bound_below,
)
from tasks.lazy import flow_of
from tasks.paper import Paper, Range, Sweep

INFINITE = float("inf")
OTHERS = ("none", "NormClip", "ValueClip", "AGC", "ZClip")

paper = Paper(
    slug="gradient_stabilizer",
    title="GradientStabilizer: Fix the Norm, Not the Gradient",
    authors="T. Huang et al.",
    arxiv="2502.17055",
    field="optimisation",
    summary=(
        "A few huge gradients can throw a network off, and clipping needs a threshold that nobody knows in advance. GradientStabilizer "
        "divides each gradient tensor by its norm and multiplies it by an estimate from the norm's running first and second moment, so "
        "that no step exceeds a constant that depends on two decay rates alone. Here its bounds are tested with adversarial sequences, "
        "and it runs before Adam, AdamW and SGD against four clipping rules and Stable-SPAM: weight decay on digits, learning rates of "
        "a small character LLaMA in full precision and FP4, corrupted weather, and a quadratic with spikes."
    ),
    assets=("shakespeare", "weather"),
    claims=(
        Claim(
            id="C1 bound",
            statement="The norm of a stabilised gradient stays below a constant, however large a spike is.",
            paper="rho at most (1 - gamma1) / sqrt(1 - gamma2) * (1 - gamma1^2 / gamma2)^(-1/2) = 15.816 for the defaults",
            unit="times the bound",
            quantity=(("GS", "bound/largest norm"), ("GS", "bound/adversary"), ("GS", "bound/adversary, no correction")),
            rule=every_value_within(0, 1 + 1e-6),
        ),
        Claim(
            id="C1 reached",
            statement="The bound is tight: norm sequences exist that come within a tenth of it.",
            paper="the bound is an equality of Cauchy and Schwarz",
            unit="times the bound",
            quantity=("GS", "bound/adversary"),
            rule=every_value_within(0.9, 1 + 1e-6),
        ),
        Claim(
            id="C2",
            statement="The moments of Adam behind it stay bounded: |m| by the bound, v by its square.",
            paper="|m_t| at most rho (1 - beta1^t), |v_t| at most rho^2 (1 - beta2^t)",
            unit="times the bound",
            quantity=(("GS", "bound/Adam m"), ("GS", "bound/Adam v")),
            rule=every_value_within(0, 1 + 1e-6),
        ),
        Claim(
            id="C3",
            statement="For stationary norms R the stabilised norm settles at E[R] / sqrt(E[R^2]).",
            paper="rho* = 1 / sqrt(1 + c_v^2); exp(-sigma^2 / 2) for log-normal norms",
            unit="times rho*",
            quantity=(("GS", "law/sigma=0.25"), ("GS", "law/sigma=0.5")),
            rule=mean_within(0.98, 1.02),
        ),
        Claim(
            id="C4 full precision",
            statement="Each at its best learning rate, it trains a language model better than no clipping and no worse than the best clip.",
            paper="LLaMA 130M, C4, FP16: perplexity 24.31 without, 23.14 with, 23.86 for the best clip (NormClip)",
            unit="nats per symbol",
            quantity=(("GS - none", "language/full/best loss"), ("GS - best clip", "language/full/best loss")),
            rule=(mean_below(0), mean_within(-INFINITE, 0)),
            explanation=(
                "All methods lie within a few hundredths of a nat, less than seeds differ by, and there is little to stabilise: in runs of this "
                "length the largest gradient norm is less than twice the median (spike ratio, below), with or without it."
            ),
        ),
        Claim(
            id="C4 FP4",
            statement="So it does with weights and activations in FP4, and the gain over no clipping is beyond chance.",
            paper="LLaMA 130M, C4, FP4: perplexity 28.72 without, 26.66 with",
            unit="nats per symbol",
            quantity=(("GS - none", "language/fp4/best loss"), ("GS - best clip", "language/fp4/best loss")),
            rule=(all_of(mean_below(0), upper_bound_below(0)), mean_within(-INFINITE, 0)),
            explanation=(
                "As in full precision: FP4 costs every method about as much, and does not bring spikes at this size and length. The best clip "
                "is picked by the reported loss itself, which favours the clips."
            ),
        ),
        Claim(
            id="C5",
            statement="It improves image classifiers on ImageNet.",
            paper="ViT-B 79.3 to 79.6, ConvNeXt-T 79.6 to 80.1, ResNet-50 77.3 to 77.6",
            unit="percentage points",
            untestable="training on ImageNet takes GPU days and a data set that needs a licence agreement",
        ),
        Claim(
            id="C6",
            statement="PPO with it reaches the highest return on HalfCheetah, Ant and Hopper.",
            paper="highest of the compared methods on all three",
            unit="return",
            untestable="a million environment steps for each of many seeds and six methods take CPU days",
        ),
        Claim(
            id="C7",
            statement="Without any corruption PatchTST forecasts weather no worse with it than with the best clip.",
            paper="lowest test MSE of the compared methods on Weather (21 channels)",
            unit="MSE",
            quantity=("GS - best clip", "weather/mse@0"),
            rule=mean_within(-INFINITE, 0),
            explanation=(
                "It is ahead of no clipping and of three of the four clips; AGC is ahead of it by less than the interval is wide. Six channels "
                "of one airport take the place of the paper's 21."
            ),
        ),
        Claim(
            id="C8 width",
            statement="Its range of good learning rates is at least as wide as without clipping.",
            paper="stable from 1e-4 to 3e-3",
            unit="decades",
            quantity=("GS - none", "language/full/stable width"),
            rule=mean_within(0, INFINITE),
        ),
        Claim(
            id="C8 area",
            statement="Over the grid of learning rates its loss is lower than without clipping.",
            paper="lower at every learning rate of the grid (figure)",
            unit="nats per symbol",
            quantity=("GS - none", "language/full/area"),
            rule=mean_below(0),
        ),
        Claim(
            id="C9 half",
            statement="With coupled weight decay in Adam accuracy falls at most half as much as without it or with any clip.",
            paper="ViT-B at decay 0 / 1e-4 / 5e-4: Adam 77.1 / 59.3 / 52.9, NormClip 77.1 / 53.4 / 20.6, GS 77.3 / 78.7 / 72.4",
            unit="percentage points to spare",
            quantity=tuple((f"half the drop of {other} - drop of GS", "digits/accuracy") for other in OTHERS),
            rule=mean_within(0, INFINITE),
        ),
        Claim(
            id="C9 accuracy",
            statement="At the strongest weight decay it is more accurate than Adam alone.",
            paper="ViT-B at 5e-4: 52.9 without, 72.4 with",
            unit="percentage points",
            quantity=("GS - none", "digits/accuracy@strongest"),
            rule=all_of(mean_above(0), lower_bound_above(0)),
        ),
        Claim(
            id="C10",
            statement="It forecasts better than no clipping where training inputs are corrupted.",
            paper="MSE lower by 0.008, 0.018, 0.025 at noise level 1, 2, 3",
            unit="MSE",
            quantity=(("GS - none", "weather/mse@1"), ("GS - none", "weather/mse@3")),
            rule=all_of(mean_below(0), upper_bound_below(0)),
        ),
        Claim(
            id="C11",
            statement="It is insensitive to its two decay rates.",
            paper="loss varies by less than 0.02 over gamma1 in 0.4 to 0.8 and gamma2 in 0.95 to 0.99999",
            unit="nats per symbol",
            quantity=("GS", "sensitivity/range"),
            rule=mean_below(0.05),
        ),
    ),
    sweep=Sweep(
        space={
            "train.gs.gamma1": Range("uniform", 0.0, 0.94),  # below the root of the smallest gamma2, so that a bound exists
            "train.gs.gamma2": Range("choice", values=[0.9, 0.99, 0.999, 0.9999, 0.99999]),
            "train.gs.bias_correction": Range("choice", values=[True, False]),
            "train.gs.scope": Range("choice", values=["tensor", "global"]),
            "train.lr_sweep.lr": Range("log", 1e-3, 1e-1),
        },
        objective=("GS", "language/full/selection loss"),
        mode="min",
        overrides={
            "train.methods": ["GS"],
            "train.lr_sweep.seeds": 2,
            "train.lr_sweep.precisions": ["fp32"],
            "train.weight_decay.seeds": 0,
            "train.corrupted.seeds": 0,
            "train.spikes.seeds": 0,
            "train.sensitivity.seeds": 0,
        },
        step_metric="loss",
        # A look at the training loss every ten steps: 15 in each of two runs.
        max_steps=30,
        grace=6,
    ),
)
__getattr__ = flow_of(paper)

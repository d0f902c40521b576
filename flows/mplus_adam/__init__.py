"""M+Adam: what the paper claims of low-precision master weights, and the rules that settle each claim."""

import math

from tasks.claims import Claim, every_value_within, lower_bound_above, mean_within
from tasks.lazy import flow_of
from tasks.paper import Paper, Range, Sweep

NLL = "nats per character"
GAIN = "Adam-LP - M+Adam"
EXTRA = "gain - gain in fp32"


def better(id: str, statement: str, *tags: str, explanation: str | None = None) -> Claim:
    """M+Adam beats Adam in the same format, with the same rounding, each at its own chosen step size."""
    return Claim(
        id=id,
        statement=statement,
        paper="consistently better than the additive optimiser at 60M to 1B parameters; no numbers in the abstract",
        unit=NLL,
        quantity=tuple((GAIN, f"lm/{tag}/nll") for tag in tags),
        rule=lower_bound_above(0),
        explanation=explanation,
    )


paper = Paper(
    slug="mplus_adam",
    title="M+Adam: Low-Precision Training via Additive-Multiplicative Optimization",
    authors="Liang, Loeschcke, Toftrup, Anandkumar",
    arxiv="2607.10611",
    field="optimisation",
    summary=(
        "A master copy of the weights in 32 bits exists because a small additive step disappears when it is rounded to 8 or 4 bits. "
        "Where the low-precision copy is all there is, Adam stops moving exactly the large weights, whose grid is coarse. A "
        "multiplicative step (Madam) passes rounding at any magnitude, but cannot cross zero. M+Adam takes both at once. Here the "
        "formats are emulated bit by bit; planted quadratics isolate each failure, and a small LLaMA learns Shakespeare with BF16, "
        "FP8 or FP4 weights alone, every method with its step size chosen from the same number of settings."
    ),
    assets=("shakespeare",),
    claims=(
        Claim(
            id="C1",
            statement="Under low precision additive updates leave large weights where they started: Adam-LP's error on group L stays.",
            paper="stuck at large |w|; error 0.25 at the start",
            unit="median relative error",
            quantity=tuple(("Adam-LP", f"bench/{fmt} rne/L error") for fmt in ("bf16", "e4m3")),
            rule=mean_within(0.8 * 0.25, math.inf),
        ),
        Claim(
            id="C1 frozen",
            statement="What stops Adam-LP on large weights is rounding: it leaves the stored value unchanged.",
            paper="stuck at large |w|",
            unit="share of updates",
            quantity=tuple(("Adam-LP", f"bench/{fmt} rne/L frozen") for fmt in ("bf16", "e4m3")),
            rule=mean_within(0.95, 1.0),
        ),
        Claim(
            id="C2 multiplicative",
            statement="Multiplicative updates fail near zero and across sign changes (groups S and X).",
            paper="cannot leave zero or change sign",
            unit="median relative error",
            quantity=tuple(("Madam", f"bench/{fmt} rne/{group} error") for fmt in ("bf16", "e4m3") for group in ("S", "X")),
            rule=mean_within(0.9, math.inf),
        ),
        Claim(
            id="C2 both",
            statement="The combination has neither failure: its worst group is at most half as far off as that of either parent.",
            paper="the two failures are complementary",
            unit="ratio of worst-group errors",
            quantity=tuple(
                (f"M+Adam / {other}", f"bench/{fmt} rne/worst error")
                for fmt in ("bf16", "e4m3")
                for other in ("Adam-LP", "Madam")
            ),
            rule=mean_within(0.0, 0.5),
        ),
        Claim(
            id="C3",
            statement="Without rounding and with steps under the smoothness bound the loss falls at every step.",
            paper="monotone descent under standard smoothness assumptions",
            unit="share of steps",
            quantity=("M+Adam", "descent/fp32/decreasing"),
            rule=every_value_within(1.0, 1.0),
        ),
        Claim(
            id="C3 rounded",
            statement="With E4M3 weights the loss does not rise until it is below the floor that the grid sets.",
            paper="descent down to the precision of the format",
            unit="share of steps",
            quantity=("M+Adam", "descent/e4m3/not rising"),
            rule=every_value_within(1.0, 1.0),
            explanation=(
                "The multiplicative step has to be a grid cell or more to survive rounding, and it does not shrink with the gradient. "
                "A coordinate that is nearer to its minimiser than half a step goes past it, by more than rounding alone would: the "
                "smoothness bound is broken by the step size, and the loss levels off above the floor. The step would have to decay, as it "
                "does under a schedule."
            ),
        ),
        better("C4 BF16", "With BF16 weights alone, M+Adam ends at a lower loss than Adam-LP.", "bf16 rne"),
        better("C4 FP8", "The same with E4M3 weights, rounded to nearest and stochastically.", "e4m3 rne", "e4m3 sr"),
        better(
            "C4 FP4",
            "The same with E2M1 weights, rounded to nearest and stochastically.",
            "e2m1 rne",
            "e2m1 sr",
            explanation=(
                "Each method chooses its step size, and with a larger one Adam-LP freezes fewer weights: what M+Adam is ahead by is much less "
                "than at one step size for all, and with stochastic rounding nothing. Three seeds do not settle so little."
            ),
        ),
        Claim(
            id="C4 specific",
            statement="The gain is one of low precision: with FP8 and FP4 weights it exceeds what M+Adam gains in FP32.",
            paper="not reported",
            unit=NLL,
            quantity=((EXTRA, "lm/e4m3 rne/nll"), (EXTRA, "lm/e2m1 rne/nll")),
            rule=lower_bound_above(0),
            explanation="A difference of differences over three seeds: its interval is wider than the gains themselves.",
        ),
        Claim(
            id="C4 scale",
            statement="The same holds for LLaMA models of 60M to 1B parameters at one to eight times the Chinchilla budget.",
            paper="60M to 1B parameters, BF16, FP8 and FP4",
            unit=NLL,
            untestable="a model of 60M parameters takes 1.2 billion tokens; the paper profile has its configuration",
        ),
    ),
    sweep=Sweep(
        space={
            "train.lm.lr": Range("log", 3e-4, 1e-2),
            "train.lm.lr_mult": Range("log", 1e-3, 5e-1),
            "train.lm.rounding": Range("choice", values=["rne", "sr"]),
        },
        overrides={
            "train.runs": [["e4m3", "mx", "rne", 0.05]],
            "train.methods": ["mplus_adam"],
            "train.bench.seeds": 0,
            "train.descent.seeds": 0,
            "train.tuning.factors": [1.0],
            "train.lm.seeds": 2,
        },
        objective=("M+Adam", "lm/choice_nll"),
        mode="min",
        step_metric="choice_nll",
        # a look at the validation text every 20 steps of each of the two seeds' runs
        max_steps=20,
        grace=3,
    ),
)
__getattr__ = flow_of(paper)

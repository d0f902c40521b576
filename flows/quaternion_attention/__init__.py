"""Quaternion self-attention with one shared score: what the paper claims, and the rules that settle each claim."""

from tasks.claims import Claim, lower_bound_above, mean_above, mean_within
from tasks.lazy import flow_of
from tasks.paper import Paper, Range, Sweep

TIME = (
    "time is not the same twice, and what a stage writes must be: `python -m benchmarks.quaternion_attention` measures it side by side "
    "on the machine at hand and writes it into benchmarks/RESULTS.md; here the multiplications are counted"
)

paper = Paper(
    slug="quaternion_attention",
    title="Quaternion Self-Attention with Shared Scores",
    authors="Yamauchi, Nitta, Tamori",
    arxiv="2605.24920",
    field="attention",
    summary=(
        "Quaternion networks group four features into one number and share weights through the Hamilton product, a quarter of the parameters. "
        "Their attention so far has a score per component: four maps and four softmaxes. The paper takes one real score, the quaternion inner "
        "product, for all four. Here both forms enhance noisy speech (recorded telephone prompts), classify digits and tell Shakespeare from "
        "Milton, beside blocks without attention and real-valued ones of four times the weights; multiplications and softmaxes are counted as "
        "they run."
    ),
    assets=("asterisk_prompts", "shakespeare", "milton"),
    claims=(
        Claim(
            id="C1",
            statement="One shared score takes a quarter of the multiplications of a score per component.",
            paper="16 to 4 per pair and feature (-75 %)",
            unit="of the products of component scores",
            quantity=(("shared / component", "scores/products"), ("shared / component, fused", "scores/products")),
            rule=(mean_within(0.25, 0.25), mean_within(0.25, 0.25)),
        ),
        Claim(
            id="C2",
            statement="It takes one softmax where they take four.",
            paper="4 to 1",
            unit="softmaxes",
            quantity=(("shared", "scores/softmaxes"), ("component", "scores/softmaxes")),
            rule=(mean_within(1, 1), mean_within(4, 4)),
        ),
        Claim(
            id="C3",
            statement="With quaternion maps before them, four scores lie in the same space of interactions as one.",
            paper="the same interaction subspace: four maps re-parameterise, they do not add interactions",
            unit="dimensions",
            quantity=(
                ("q conj(k)", "ranks/union"),
                ("shared", "ranks/score"),
                ("q conj(k)", "ranks/least component"),
                ("q conj(k)", "ranks/largest component"),
            ),
            rule=tuple(mean_within(4, 4) for _ in range(4)),
            explanation=(
                "This is so for the product with the conjugated key. The components of q k, which the earlier attention takes, range over all "
                "16 dimensions of the bilinear forms, each by itself: there the four maps do reach interactions that one inner product cannot."
            ),
        ),
        Claim(
            id="C4 operation",
            statement="The attention itself takes at most half the time on a CPU, whether component scores are written as 16 products or fused.",
            paper="not reported apart from the network",
            unit="of the time of component scores",
            untestable=TIME,
        ),
        Claim(
            id="C4 network",
            statement="The whole network's real-time factor on a CPU falls to at most half (component scores as written), 0.7 (fused).",
            paper="-57.5 to -58.1 % on a CPU, -22.3 to -44.3 % on a GPU",
            unit="of the real-time factor with component scores",
            untestable=TIME,
        ),
        Claim(
            id="C5",
            statement="Speech is enhanced as well with shared as with component scores, to half a decibel, both by more than 2 dB.",
            paper="QConformer PESQ 3.11 to 3.18, SI-SDR 19.62 to 19.36; QTransformer PESQ 3.07 to 3.07",
            unit="dB SI-SDR",
            quantity=(
                ("shared - component", "speech/improvement"),
                ("shared", "speech/improvement"),
                ("component", "speech/improvement"),
            ),
            rule=(lower_bound_above(-0.5), mean_above(2), mean_above(2)),
            explanation=(
                "It is a weak test at this budget: blocks without any attention gain more, in bursts too, so that a worse attention would hardly "
                "show. The real network gains half as much again with four times the weights. What the test does say: one map in place of four "
                "costs nothing here."
            ),
        ),
        Claim(
            id="C6 digits",
            statement="Digits are classified as well, to two percentage points.",
            paper="the same trend on CIFAR-100",
            unit="percentage points",
            quantity=("shared - component", "digits/accuracy"),
            rule=lower_bound_above(-2),
            explanation=(
                "What two heads with one score each seem to lack here is the number of maps. The same shared score in eight heads, as many maps as "
                "four per head, makes up for most of it with the same weights; and component scores of q conj(k), which span no more interactions "
                "than the shared one, do about as well as those of q k. So it is hardly what a score can express. In longer runs the difference "
                "shrinks: with five times the steps it was 0.6 points in a trial of six seeds."
            ),
        ),
        Claim(
            id="C6 text",
            statement="So are lines of verse.",
            paper="the same trend on SST-2",
            unit="percentage points",
            quantity=("shared - component", "text/accuracy"),
            rule=lower_bound_above(-2),
        ),
        Claim(
            id="GPU time",
            statement="A fused kernel keeps the advantage on a GPU.",
            paper="real-time factor -22.3 to -44.3 % on an A100",
            unit="of the time of component scores",
            untestable=(
                "this profile runs on CPUs; `benchmarks/kernels.py` measures both modes of the Triton kernel, and torch's attention, on a GPU"
            ),
        ),
    ),
    sweep=Sweep(
        space={
            "train.speech.model.n": Range("choice", values=[4, 6, 8, 12]),
            "train.speech.model.heads": Range("choice", values=[1, 2]),
            "train.speech.model.layers": Range("choice", values=[1, 2]),
            "train.speech.lr": Range("log", 1e-3, 1e-2),
            "train.speech.model.qk_norm": Range("choice", values=[True, False]),
        },
        objective=("shared", "speech/choice improvement"),
        mode="max",
        overrides={
            "train.speech.methods": ["shared"],
            "train.speech.seeds": 2,
            "train.digits.seeds": 0,
            "train.text.seeds": 0,
        },
        step_metric="loss",
        # A look at the loss every ten steps: 12 in each of two runs.
        max_steps=24,
        grace=8,
    ),
)
__getattr__ = flow_of(paper)

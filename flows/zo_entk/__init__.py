"""Zeroth-order SGD through the empirical tangent kernel: what the paper claims, and the rules that settle each claim."""

import math

from tasks.claims import Claim, all_of, every_value_within, mean_above, mean_within, upper_bound_below
from tasks.lazy import flow_of
from tasks.paper import Paper, Range, Sweep

paper = Paper(
    slug="zo_entk",
    title="Learning Dynamics of Zeroth-Order Optimization: A Kernel Perspective",
    authors="Li, Ying, Liu, Yang",
    arxiv="2605.03373",
    field="optimisation",
    summary=(
        "Zeroth-order training estimates a gradient from losses at randomly perturbed weights, without a backward pass. Theory of its "
        "loss descent says that it slows down in proportion to the number of weights d. Seen through the predictions, one step acts through "
        "the empirical neural tangent kernel, randomly projected: the error of that kernel depends on the number of perturbations P, on the "
        "number of outputs and on how alike two inputs are for the model, not on d. Here this is measured on networks of 6 to 219 "
        "thousand weights on real digits, against exact laws of the kernel's error, with perturbations of four distributions."
    ),
    assets=("mnist_5k",),
    claims=(
        Claim(
            id="C1",
            statement=(
                "A step changes log-probabilities by -eta A K_U G up to second order in the learning rate, for zeroth-order and "
                "first-order SGD alike."
            ),
            paper="first-order term of the expansion; the remainder is O(eta^2)",
            unit="exponent of the remainder in eta",
            quantity=(("ZO", "one_step/slope"), ("FO", "one_step/slope")),
            rule=mean_within(1.85, 2.15),
        ),
        Claim(
            id="C2",
            statement="The kernel of a finite-difference step is the tangent kernel projected on the span of the perturbations.",
            paper="K_U = J_o U U^T J_u^T",
            unit="relative difference",
            quantity=("ZO", "one_step/kernel_difference"),
            rule=every_value_within(0, 1e-5),
        ),
        Claim(
            id="C3 rate",
            statement="The kernel's error falls as one over the square root of the number of perturbations.",
            paper="proportional to P^-1/2",
            unit="exponent of the error in P",
            quantity=(("gaussian", "error/slope_P"), ("rademacher", "error/slope_P"), ("sphere", "error/slope_P")),
            rule=mean_within(-0.55, -0.45),
        ),
        Claim(
            id="C3 law",
            statement="The kernel's error is what the exact law says, for each kind of pair and each number of perturbations.",
            paper="bounds of the Johnson-Lindenstrauss kind; the law here is exact",
            unit="measured error / law",
            quantity=(("gaussian", "error/over_law"), ("rademacher", "error/over_law"), ("sphere", "error/over_law")),
            rule=every_value_within(0.85, 1.15),
        ),
        Claim(
            id="C4 kernel",
            statement="The kernel's error does not depend on the number of weights.",
            paper="no d in the bound; LeNet, OPT-125M, OPT-1.3B and Mistral-7B alike",
            unit="exponent of the normalised error in d",
            quantity=("gaussian", "error/slope_d"),
            rule=all_of(mean_within(-0.05, 0.05), upper_bound_below(0.25)),
        ),
        Claim(
            id="C4 trajectory",
            statement="Models of different size leave the first-order trajectory at the same rate for the same P.",
            paper="trajectories of OPT-125M and OPT-1.3B on SST-2 deviate alike",
            unit="exponent of the normalised deviation in d",
            quantity=("gaussian", "trajectory/slope_d"),
            rule=all_of(mean_within(-0.15, 0.15), upper_bound_below(0.25)),
        ),
        Claim(
            id="C4 outputs",
            statement="The kernel's error grows as the square root of the number of outputs V.",
            paper="||Delta K||_F^2 <= (eps^2 V / 2) (||J_o||_F^2 + ||J_u||_F^2)^2",
            unit="exponent of the relative error in V, V >= 10",
            quantity=("gaussian", "error/slope_V"),
            rule=mean_within(0.4, 0.6),
            explanation=(
                "The error is what the exact law says at every V (figure on outputs); the square root is its limit for wide networks, where "
                "the kernel of an input with itself is a multiple of the identity. Here the width is 144: with 100 outputs, 35% of the "
                "squared kernel lies off the diagonal, which aligns the tangent vectors and lowers the error. The law's own exponent over "
                "V = 10, 30, 100, computed for wider networks of one seed, rises to 0.45 at width 432 and 0.47 at width 1000."
            ),
        ),
        Claim(
            id="C4 language models",
            statement="The same holds from OPT-125M to Mistral-7B on SST-2.",
            paper="deviation from first-order training is the same for OPT-125M, OPT-1.3B and Mistral-7B at equal P",
            untestable="the language models and SST-2 need the internet and an accelerator; the paper profile runs them",
        ),
        Claim(
            id="C5",
            statement="In the view of the loss d stays: the squared length of the estimate grows in proportion to d.",
            paper="E||g||^2 = (d + 2) ||grad||^2 for one Gaussian perturbation, d ||grad||^2 for signs",
            unit="exponent of the squared length in d",
            quantity=(("gaussian", "length/slope_d"), ("rademacher", "length/slope_d")),
            rule=mean_within(0.95, 1.05),
        ),
        Claim(
            id="C6",
            statement="Gaussian and sign perturbations give kernels of the same fidelity.",
            paper="Frobenius error, CKA and spectra overlap",
            unit="ratio of the errors, signs / Gaussian, pair by pair",
            quantity=("rademacher / gaussian", "error"),
            rule=mean_within(0.9, 1.1),
        ),
        Claim(
            id="C7 order",
            statement="Similar inputs need fewer perturbations: self <= same class < similar classes < dissimilar classes in error.",
            paper="digits 4 and 9: error about 0.338 at P = 125; 0 and 1 keep a large residual",
            unit="difference of mean log errors",
            quantity=(("dissimilar - similar", "error"), ("similar - same", "error"), ("same - self", "error")),
            rule=(mean_above(0), mean_above(0), mean_within(0, math.inf)),
            explanation=(
                "On 8 x 8 digits the two last kinds differ by no more than the spread between seeds: their alignments are alike. With LeNet "
                "on MNIST they are apart: 0.43 for 4 and 9, 0.76 for 0 and 1 at P = 125 (table on kinds of pairs)."
            ),
        ),
        Claim(
            id="C7 alignment",
            statement="What counts is the kernel alignment of the pair: errors rank as the inverse of the alignment.",
            paper="pairs that are similar for the model reach a given fidelity with fewer perturbations",
            unit="Spearman correlation over pairs",
            quantity=("gaussian", "error/spearman_inverse_alignment"),
            rule=mean_within(0.9, math.inf),
        ),
    ),
    sweep=Sweep(
        space={
            "train.trajectory.sweep_perturbations": Range("choice", values=[1, 2, 4, 8, 16, 32, 64, 128]),
            "train.trajectory.eta": Range("log", 0.03, 3),
            "train.trajectory.sweep_dist": Range("choice", values=["gaussian", "rademacher", "sphere"]),
        },
        # Each trial spends the same number of forward passes, 2 P T: many rough steps against few exact ones.
        overrides={"train.trajectory.forward_passes": 8192, "evaluate.budget_only": True},
        objective=("ZO at equal passes", "probe_loss"),
        mode="min",
        step_metric="probe_loss",
        max_steps=100,
        grace=10,
    ),
)
__getattr__ = flow_of(paper)

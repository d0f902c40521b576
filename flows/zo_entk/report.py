"""Figures, tables and text of the report; every number in the text is computed from the metrics and tables."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator

from components.optim.entk import jl_budget
from components.stats.intervals import Metrics, Summary
from flows.zo_entk import paper
from flows.zo_entk.store import KINDS, read_parameters
from tasks.params import StageParams
from tasks.report import COLOURS, Report, interval, style

PALETTE = list(COLOURS.values())
MARKS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", "--", "-.", ":")
DISTRIBUTIONS = {
    "gaussian": ("blue", "o"),
    "rademacher": ("vermillion", "s"),
    "sphere": ("green", "^"),
    "coordinate": ("purple", "D"),
}


class Params(StageParams):
    """Nothing to choose but what every stage has."""


def found(metrics: Metrics, method: str, prefix: str) -> dict[int, Summary]:
    """Cells `<prefix><number>` of a method, by number."""
    cells = {k.removeprefix(prefix): v for k, v in metrics.get(method, {}).items() if k.startswith(prefix)}
    return {int(k): cells[k] for k in sorted((k for k in cells if k.isdecimal()), key=int)}


def pooled(kernel: pd.DataFrame, column: str, by: list[str]) -> pd.DataFrame:
    """Root mean squares relative to ||K||_F over seeds and draws, with the quartiles over seeds."""
    per_seed = np.sqrt((kernel[column] / kernel["square_norm"]).groupby([kernel[name] for name in [*by, "seed"]]).mean())
    return per_seed.groupby(by).agg(
        middle=lambda s: float(np.sqrt((s**2).mean())), low=lambda s: s.quantile(0.025), high=lambda s: s.quantile(0.975)
    )


def band(axis, x, table: pd.DataFrame, colour: str, mark: str, label: str) -> None:
    axis.fill_between(x, table["low"], table["high"], color=colour, alpha=0.18, lw=0)
    axis.plot(x, table["middle"], color=colour, marker=mark, ls="none", label=label)


def error_figure(kernel: pd.DataFrame) -> Figure:
    """Relative error against P by kind of pair, with the law: the fully connected nets and LeNet."""
    panels = {"64-w-w-10, 8 x 8 digits": kernel["net"] != "lenet", "LeNet, MNIST digits": kernel["net"] == "lenet"}
    fig, axes = plt.subplots(1, 2, figsize=(9.6, 4.3), sharey=True)
    for axis, (title, chosen) in zip(axes, panels.items(), strict=True):
        rows = kernel[chosen & (kernel["dist"] == "gaussian")]
        for position, kind in enumerate(KINDS):
            mine = rows[rows["kind"] == kind]
            measured, law = pooled(mine, "square_error", ["P"]), pooled(mine, "law", ["P"])
            band(axis, measured.index, measured, PALETTE[position], MARKS[position], f"{kind}")
            axis.plot(law.index, law["middle"], color=PALETTE[position], lw=1.2, ls=DASHES[position])
        axis.set(xscale="log", yscale="log", xlabel="perturbations P", title=f"{title} (n = {rows['seed'].nunique()} seeds)")
        axis.set_xticks(sorted(rows["P"].unique()), [str(P) for P in sorted(rows["P"].unique())])
        axis.minorticks_off()
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes[0].set_ylabel("relative kernel error (rms)")
    axes[0].legend(title="pair (lines: exact law)", ncol=2)
    return fig


def dimension_figure(kernel: pd.DataFrame, lengths: pd.DataFrame) -> Figure:
    """Left: normalised kernel error against d, flat. Right: squared length of the estimate, slope one."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(9.6, 4.1))
    for dist, (colour, mark) in DISTRIBUTIONS.items():
        rows = kernel[(kernel["net"] != "lenet") & (kernel["dist"] == dist)]
        if rows.empty:
            continue
        scaled = rows["square_error"] * rows["P"] / rows["norms"] ** 2
        per_seed = np.sqrt(scaled.groupby([rows["d"], rows["seed"]]).mean())
        middle = np.sqrt((per_seed**2).groupby("d").mean())
        left.fill_between(
            middle.index, per_seed.groupby("d").min(), per_seed.groupby("d").max(), color=COLOURS[colour], alpha=0.15, lw=0
        )
        left.plot(middle.index, middle, color=COLOURS[colour], marker=mark, label=dist)
    left.set(
        xscale="log",
        xlabel="weights d",
        ylabel=r"$\sqrt{P}\,\|\Delta K\|_F\,/\,(\|J_o\|_F\,\|J_u\|_F)$ (rms)",
        title="Kernel error",
    )
    left.set_ylim(bottom=0)
    left.legend()
    for dist, rows in lengths.groupby("dist"):
        colour, mark = DISTRIBUTIONS[dist]
        table = rows.groupby("d")["ratio"].agg(["mean", "min", "max"])
        right.fill_between(table.index, table["min"], table["max"], color=COLOURS[colour], alpha=0.15, lw=0)
        right.plot(table.index, table["mean"], color=COLOURS[colour], marker=mark, ls="none", label=f"{dist}, P = 1")
    law = lengths.groupby("d")["law"].max()
    right.plot(law.index, law, color="black", lw=1, ls="--", label="law, d + 2")
    right.set(
        xscale="log",
        yscale="log",
        xlabel="weights d",
        ylabel="squared length of the estimate / of the gradient",
        title="Length of the estimate",
    )
    right.legend()
    return fig


def trajectory_figure(history: pd.DataFrame) -> Figure:
    """Deviation from first-order training and cosine against the step: a panel column per P, a colour per width."""
    rows = history[history["dist"] == "gaussian"]
    budgets, widths = sorted(rows["P"].unique()), sorted(rows["d"].unique())
    fig, axes = plt.subplots(2, len(budgets), figsize=(2.6 * len(budgets) + 0.6, 5.4), sharex=True, sharey="row", squeeze=False)
    for column, P in enumerate(budgets):
        for position, d in enumerate(widths):
            run = rows[(rows["P"] == P) & (rows["d"] == d)]
            for row, quantity in enumerate(("dev", "cos")):
                table = run.groupby("step")[quantity].agg(["mean", "min", "max"])
                colour = PALETTE[position]
                axes[row, column].fill_between(table.index, table["min"], table["max"], color=colour, alpha=0.15, lw=0)
                axes[row, column].plot(table.index, table["mean"], color=colour, ls=DASHES[position % 4], label=f"d = {d:,}")
        axes[0, column].set_title(f"P = {P}")
        axes[1, column].set_xlabel("step")
    axes[0, 0].set(yscale="log", ylabel="deviation from\nfirst-order logits")
    axes[1, 0].set(ylabel="cosine of the\nlogits' displacements")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncol=len(widths))
    return fig


def normalised_figure(metrics: Metrics) -> Figure:
    """Last-step deviation against d, raw and divided by the one-step error r."""
    fig, axes = plt.subplots(1, 2, figsize=(9.6, 4.0))
    methods = sorted((m for m in metrics if m.startswith("ZO gaussian")), key=lambda m: int(m.split("=")[1]))
    for position, method in enumerate(methods):
        for axis, name in zip(axes, ("dev", "normalised_dev"), strict=True):
            cells = found(metrics, method, f"trajectory/{name}/d=")
            mean = [cell["mean"] for cell in cells.values()]
            spread = np.abs(
                [[cell["mean"] - min(cell["values"]), max(cell["values"]) - cell["mean"]] for cell in cells.values()]
            ).T
            axis.errorbar(
                list(cells),
                mean,
                spread,
                color=PALETTE[position],
                marker=MARKS[position],
                ls=DASHES[position % 4],
                capsize=2,
                label=method.split()[-1],
            )
    for axis, label in zip(axes, ("deviation after the last step", "deviation / one-step error r"), strict=True):
        axis.set(xscale="log", yscale="log", xlabel="weights d", ylabel=label)
    axes[1].legend()
    return fig


def output_figure(outputs: pd.DataFrame) -> Figure:
    """Relative error of a `self` pair against the number of outputs."""
    fig, axis = plt.subplots(figsize=(5.6, 3.8))
    outputs = outputs.assign(square_norm=outputs["square_norm"])
    measured, law = pooled(outputs, "square_error", ["V"]), pooled(outputs, "law", ["V"])
    band(axis, measured.index, measured, COLOURS["blue"], "o", f"measured (n = {outputs['seed'].nunique()} seeds)")
    axis.plot(law.index, law["middle"], color="black", lw=1, ls="--", label="exact law")
    axis.set(xscale="log", yscale="log", xlabel="outputs V", ylabel="relative kernel error (rms)")
    axis.legend()
    return fig


def step_figure(steps: pd.DataFrame) -> Figure:
    """Residual of the one-step formula against the learning rate."""
    fig, axis = plt.subplots(figsize=(5.6, 3.8))
    for (method, run), (colour, mark) in zip(steps.groupby("method"), (("blue", "o"), ("vermillion", "s")), strict=True):
        table = run.groupby("eta")["residual"].agg(["mean", "min", "max"])
        axis.fill_between(table.index, table["min"], table["max"], color=COLOURS[colour], alpha=0.15, lw=0)
        axis.plot(
            table.index,
            table["mean"],
            color=COLOURS[colour],
            marker=mark,
            label=f"{method} (n = {run['seed'].nunique()} seeds)",
        )
    anchor = steps[steps["method"] == "FO"].groupby("eta")["residual"].mean()
    x = np.array(anchor.index)
    axis.plot(x, anchor.iloc[0] * (x / x[0]) ** 2, color="black", lw=1, ls=":", label="slope 2")
    axis.set(
        xscale="log", yscale="log", xlabel="learning rate", ylabel="largest |change of log-probability\n− prediction| (nats)"
    )
    axis.legend()
    return fig


def trajectory_rows(metrics: Metrics) -> list[list[str]]:
    methods = sorted(
        (m for m in metrics if m.startswith("ZO ") and "P=" in m),
        key=lambda m: (m.split()[1] != "gaussian", int(m.split("=")[1]), m),
    )
    rows = []
    for method in methods:
        for d, cell in found(metrics, method, "trajectory/dev/d=").items():
            row = [method.removeprefix("ZO "), f"{d:,}", interval(cell, 2)]
            row += [interval(metrics[method][f"trajectory/{name}/d={d}"], 2) for name in ("normalised_dev", "cos")]
            drop, exact = (metrics[name][f"trajectory/loss_drop/d={d}"] for name in (method, "FO"))
            rows.append([*row, f"{drop['mean']:.2f} ({np.mean(exact['values'][: drop['n']]):.2f})"])
    return rows


def kind_rows(metrics: Metrics, kernel: pd.DataFrame) -> list[list[str]]:
    """Measured error, law and alignment by net and kind, at the largest P below or at 125."""
    rows = []
    for title, chosen, prefix in (("64-w-w-10", kernel["net"] != "lenet", ""), ("LeNet", kernel["net"] == "lenet", "lenet/")):
        mine = kernel[chosen & (kernel["dist"] == "gaussian")]
        P = max(P for P in mine["P"].unique() if P <= 125)
        for kind in KINDS:
            of_kind = mine[(mine["kind"] == kind) & (mine["P"] == P)]
            law = float(np.sqrt((of_kind["law"] / of_kind["square_norm"]).mean()))
            required = int(np.ceil(P * law**2 / 0.25**2))
            rows.append(
                [
                    title,
                    kind,
                    str(P),
                    interval(metrics["gaussian"][f"{prefix}error/P={P}/{kind}"], 3),
                    f"{law:.3g}",
                    f"{of_kind['kappa'].median():.3f}",
                    f"{required:,}",
                ]
            )
    return rows


def likeness_rows(metrics: Metrics, kernel: pd.DataFrame) -> list[list[str]]:
    rows = []
    nets = sorted((net for net in kernel["net"].unique() if net != "lenet"), key=int)
    for dist in (name for name in DISTRIBUTIONS if name in set(kernel["dist"])):
        P = max(kernel[kernel["net"] != "lenet"]["P"])
        cells = [metrics[dist].get(f"width={net}/cka/P={P}") for net in (nets[0], nets[-1])]
        cells.append(metrics[dist].get(f"width={nets[-1]}/wasserstein/P={P}"))
        ratio = metrics[dist].get("error/over_law")
        rows.append(
            [dist, *(interval(cell, 3) for cell in cells), interval(ratio, 3), interval(metrics[dist].get("error/slope_P"), 3)]
        )
    return rows


def baselines_text(metrics: Metrics) -> str:
    """Where what differs from Gaussian perturbations stands, and where first-order wins."""
    lines = []
    for P in sorted({int(m.split("=")[1]) for m in metrics if m.startswith("ZO coordinate")}):
        cells = {dist: found(metrics, f"ZO {dist} P={P}", "trajectory/dev/d=") for dist in DISTRIBUTIONS}
        for d in cells["coordinate"]:
            parts = [f"{dist} {interval(of[d], 2)}" for dist, of in cells.items() if d in of]
            lines.append(f"- deviation at P = {P}, d = {d:,}: {'; '.join(parts)}.")
    ratio = metrics.get("coordinate", {}).get("error/slope_d")
    if ratio is not None:
        lines.append(
            f"- exponent of the normalised kernel error in d: coordinate {interval(ratio, 3)}, gaussian {interval(metrics['gaussian']['error/slope_d'], 3)}."
        )
    return "\n".join(lines)


def descent_text(metrics: Metrics) -> str:
    """How much loss each method takes off, by size, and per forward pass."""
    exact = found(metrics, "FO", "trajectory/loss_drop/d=")
    lines = []
    for method in sorted((m for m in metrics if m.startswith("ZO gaussian")), key=lambda m: int(m.split("=")[1])):
        P, cells = int(method.split("=")[1]), found(metrics, method, "trajectory/loss_drop/d=")
        # The same seeds on both sides: the first ones.
        shares = {d: cell["mean"] / np.mean(exact[d]["values"][: cell["n"]]) for d, cell in cells.items()}
        told = ", ".join(f"{100 * share:.0f}% at d = {d:,}" for d, share in shares.items())
        per_pass = ", ".join(f"{100 * share * 3 / (2 * P):.{0 if P < 16 else 1}f}%" for share in shares.values())
        lines.append(f"- P = {P}: {told}; per forward pass, with first-order SGD at 100%: {per_pass}.")
    return "\n".join(lines)


def report(p: Params, metrics: Metrics, data: Path, train: Path, evaluate: Path, out: Path) -> None:
    """Writes the page, the same as Markdown, the figures and the verdicts."""
    tables = {name: pd.read_parquet(evaluate / f"{name}.parquet") for name in ("kernel", "one_step", "outputs", "lengths")}
    kernel, history = tables["kernel"], pd.read_parquet(train / "history.parquet")
    settings = read_parameters(train)
    delta = read_parameters(evaluate)["delta"]
    with style():
        r = Report(paper, metrics, out)
        r.section("The projected kernel")
        r.text(
            "Pairs of digits that are never trained on: an input with itself (*self*), two images of one class (*same*), of classes that look "
            f"alike ({settings_pair(data, 'similar')}) and of classes that do not ({settings_pair(data, 'dissimilar')}). The kernels are those of the "
            "networks after first-order training. The lines are no fits: the law has the two tangent matrices and P in it, nothing else."
        )
        r.figure(
            error_figure(kernel),
            "error",
            caption="Relative error of the zeroth-order kernel, Gaussian perturbations: points are measured, lines the exact law; bands hold 95% of the seeds.",
            alt="Log-log plots of kernel error against P for four kinds of pairs, parallel lines of slope minus one half.",
        )
        r.table(
            ["network", "pair", "P", "relative error", "law", "alignment (median)", "P for an error of 0.25"],
            kind_rows(metrics, kernel),
            caption="Kinds of pairs. The last column is what the law asks for, from the table's own law.",
        )
        n = 2 * 10
        share = metrics["gaussian"]["error/share_within_bound"]
        r.text(
            f"The paper's sufficient number of perturbations for n = {n} tangent vectors and an error of 0.5 with probability {1 - delta:g} is "
            f"{jl_budget(n, 0.5, delta)}. Turned around, each P allows an eps; the worst-case bound on the whole block with that eps was kept in "
            f"{100 * share['mean']:.1f}% of the draws (Gaussian): it is loose, since it adds squared norms of tangent vectors, where the law has their product."
        )
        r.section("What depends on the number of weights, and what does not")
        r.figure(
            dimension_figure(kernel, tables["lengths"]),
            "dimension",
            caption="Left: the kernel's error, normalised, against d; bands: range over seeds. Right: the estimate's squared length, which grows with d.",
            alt="Two log plots against the number of weights: flat lines on the left, a line of slope one on the right.",
        )
        r.text(
            "Bounds on the descent of the loss hold the squared length of the estimate, times the largest curvature: in that view the learning rate that is "
            "safe, and the speed of descent with it, falls as P / d, and nothing in the kernel's law takes that back. What enters the expected loss itself "
            "is the trace of the curvature, eta^2 (||g||^2 tr H + 2 g^T H g) / 2 for one Gaussian perturbation; in the parameterisation used here it does not "
            "grow with the width, in others it does. The drop of the probes' loss over the run, as a share of the drop of first-order SGD with the same "
            "learning rate, steps and batches:\n\n"
            + descent_text(metrics)
            + "\n\nA zeroth-order step costs 2 P forward passes; a first-order step is counted as three, its backward pass as two. Per pass, first-order SGD "
            "is ahead wherever the second figure is below 100%."
        )
        r.section("Trajectories")
        r.figure(
            trajectory_figure(history),
            "trajectories",
            caption="Deviation of the probes' logits from the first-order run, relative to its displacement (top), and cosine of the two displacements (bottom); mean and range over seeds.",
            alt="Line plots over steps, a column per number of perturbations, a colour per network size.",
        )
        r.figure(
            normalised_figure(metrics),
            "normalised",
            caption="Deviation after the last step against d, raw (left) and divided by the one-step error r of each size (right); bars: range over seeds.",
            alt="Two log-log plots of deviation against number of weights, one line per P.",
        )
        seeds = settings["trajectory"]["seeds"]
        r.table(
            [
                "perturbations",
                "d",
                "deviation",
                "deviation / r",
                "cosine",
                "loss drop (FO)",
            ],
            trajectory_rows(metrics),
            caption=f"After {settings['trajectory']['steps']} steps; mean and 95% interval over n = {seeds} seeds. Last column: mean drop of the probes' loss in nats, beside that of first-order SGD.",
        )
        r.section("Distributions")
        r.table(
            [
                "perturbations",
                "CKA, smallest",
                "CKA, largest net",
                "W1, largest net",
                "error / law",
                "exponent in P",
            ],
            likeness_rows(metrics, kernel),
            caption=f"Kernels of the tangent vectors of the self inputs at P = {max(kernel[kernel['net'] != 'lenet']['P'])}: centred alignment with the exact kernel, and distance W1 of the spectra relative to the mean singular value. Error / law: all kinds of pairs and all P.",
        )
        if text := baselines_text(metrics):
            r.text(
                "Steps along single coordinates are no Johnson-Lindenstrauss projection: their error depends on how concentrated the tangent vectors are "
                "(sum of a_k^2 b_k^2) times d.\n\n" + text
            )
        r.section("Outputs, and the one-step formula")
        r.figure(
            output_figure(tables["outputs"]),
            "outputs",
            caption="Error of a self pair against the number of outputs, random heads; the band holds 95% of the seeds.",
            alt="Log-log plot of kernel error against number of outputs, slope one half.",
        )
        r.figure(
            step_figure(tables["one_step"]),
            "one-step",
            caption="Remainder of the one-step formula in float64; range over seeds.",
            alt="Log-log plot of residual against learning rate for first-order and zeroth-order steps, slope two.",
        )
        if (evaluate / "language.parquet").is_file():
            language = pd.read_parquet(evaluate / "language.parquet")
            language = language.assign(
                error=np.sqrt(language["square_error"] / language["square_norm"]),
                law=np.sqrt(language["law"] / language["square_norm"]),
            )
            table = language.groupby(["model", "kind", "P"])[["error", "law"]].median().reset_index()
            r.table(
                list(table.columns),
                table.to_numpy().tolist(),
                caption="Language models: relative kernel error of the verbalisers' logits, median over pairs.",
            )
        for stage, folder in (("data", data), ("train", train), ("evaluate", evaluate)):
            r.parameters(read_parameters(folder), label=f"stage {stage}")
        r.write()


def settings_pair(data: Path, kind: str) -> str:
    first, second = read_parameters(data)[kind]
    return f"{first} and {second}"

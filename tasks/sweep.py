"""`paperflows sweep`: Ray Tune over a paper's parameters.

A trial is train and evaluate with its own parameters, in its own folder, over the shared output of the stage data. Where
training reports curves (`tasks.track.step`), ASHA stops the trials that fall behind. Every trial is an MLflow run nested in
the sweep's.
"""

import contextlib
import math
import os
import shutil
import time
from pathlib import Path
from typing import Any

from tasks import dvc, settings, track
from tasks.environment import WORKERS_VARIABLE, make_deterministic, prepare, seed_everything, tracking_wanted
from tasks.errors import UserError
from tasks.files import write_json, write_text
from tasks.paper import Paper, Range, Sweep, get
from tasks.project import Project
from tasks.stage import check_metrics, load, reads

_OBJECTIVE = "objective"


def sweep_paper(
    project: Project,
    slug: str,
    *,
    samples: int = 20,
    apply: bool = False,
    jobs: int | None = None,
    seed: int = 0,
    profile: str | None = None,
) -> dict[str, Any]:
    """Search; print a table, leave `results.json`, a table and a plot in `.paperflows/sweeps/<slug>/`; returns the best trial.

    apply: write its parameters into params.yaml. RAY_ADDRESS: use that cluster (it has to see this folder)."""
    paper = get(slug)
    if paper.sweep is None:
        raise UserError(f"flows/{slug}/__init__.py declares no sweep")
    blocks = _blocks(project, paper, profile)
    _check_space(slug, paper.sweep, blocks)
    if tracking_wanted():
        from tasks.tracking import check_reachable, store_uri

        check_reachable(store_uri(project))
    data = _data(project, slug, profile)
    folder = project.scratch / "sweeps" / slug
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    begin = time.monotonic()
    trials = _search(project, paper, blocks, data, folder, samples, jobs, seed)
    trials.sort(key=lambda trial: _rank(trial, paper.sweep.mode))
    best = trials[0]
    if best["stopped"] or best[_OBJECTIVE] is None:
        raise UserError(f"no trial of the sweep of {slug} came to its end: {best['error'] or 'all were stopped early'}")
    write_json(folder / "results.json", trials)
    _plot(paper, trials, folder / "sweep.png")
    _print(paper, trials, folder, time.monotonic() - begin)
    _log(project, paper, trials, folder, profile or settings.profile_of(settings.read(project.params)))
    if apply:
        found = {f"{slug}.{key}": value for key, value in best["parameters"].items()}
        settings.write_with_settings(project.params, project.params, found)
        print("wrote the best parameters into params.yaml; `paperflows run " + slug + "` brings the results up to date")
    return best


def _blocks(project: Project, paper: Paper, profile: str | None) -> dict[str, dict[str, Any]]:
    everything = settings.read(project.params)
    if profile is not None:
        everything["profile"] = profile
    return {stage: settings.block_of(everything, paper.slug, stage) for stage in ("train", "evaluate")}


def _with(blocks: dict[str, dict[str, Any]], values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The stages' parameters with `values` ({"train.shape.lr": 1e-3}) put in."""
    changed = blocks
    for key, value in values.items():
        nested: Any = value
        for part in reversed(key.split(".")):
            nested = {part: nested}
        changed = settings.merge(changed, nested)
    return changed


def _check_space(slug: str, sweep: Sweep, blocks: dict[str, dict[str, Any]]) -> None:
    """Refuse a space that leads out of the parameters' bounds before any trial starts."""
    for key, place in sweep.space.items():
        for value in place.values if place.kind == "choice" else (place.low, place.high):
            value = int(value) if place.kind == "integer" else value
            _validated(slug, _with(blocks, {**sweep.overrides, key: value}))


def _validated(slug: str, blocks: dict[str, dict[str, Any]]) -> dict[str, Any]:
    models = {}
    for stage, block in blocks.items():
        _, model = load(slug, stage)
        models[stage] = settings.validate(model, block, f"sweep of {slug}: {stage}")
    return models


def _data(project: Project, slug: str, profile: str | None) -> Path:
    """The output of the stage data, brought up to date."""
    from tasks.orchestrate import working_place
    from tasks.runs import prepare_papers

    place = working_place(project, profile, {})
    prepare_papers(place, {slug: get(slug)})
    dvc.reproduce(place, slug, "data")
    return place.artifact(slug, "data")


def _search(
    project: Project,
    paper: Paper,
    blocks: dict[str, dict[str, Any]],
    data: Path,
    folder: Path,
    samples: int,
    jobs: int | None,
    seed: int,
) -> list[dict[str, Any]]:
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    import logging

    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    sweep = paper.sweep
    assert sweep is not None
    mine = not ray.is_initialized()
    if mine:
        # Workers import this project's code from its folder, wherever they were started.
        runtime = {"env_vars": {"PYTHONPATH": str(project.root), WORKERS_VARIABLE: "1", "PYTHONHASHSEED": "0"}}
        # Without an address Ray would join whatever cluster runs on this machine, or the remains of one.
        own = {"address": "local", "num_cpus": jobs or os.cpu_count(), "include_dashboard": False}
        local = {} if os.environ.get("RAY_ADDRESS") else own
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, runtime_env=runtime, **local)
        except ConnectionError as error:
            raise UserError(
                f"RAY_ADDRESS is {os.environ.get('RAY_ADDRESS')}: {error}; start the cluster, or unset it "
                "(a cluster that wants a token needs RAY_AUTH_MODE=token here, and the token in RAY_AUTH_TOKEN)"
            ) from None
    try:
        scheduler = None
        if sweep.step_metric:
            # One more than training reports: ASHA ends a trial at max_t, and the last report is evaluate's.
            last = sweep.max_steps + 1
            scheduler = ASHAScheduler(time_attr="training_iteration", max_t=last, grace_period=min(sweep.grace, last))
        tuner = tune.Tuner(
            tune.with_resources(
                tune.with_parameters(_trial, slug=paper.slug, sweep=sweep, blocks=blocks, data=str(data), folder=str(folder)),
                {"cpu": 1},
            ),
            param_space={key: _domain(place) for key, place in sweep.space.items()},
            tune_config=tune.TuneConfig(
                num_samples=samples,
                metric=_OBJECTIVE,
                mode=sweep.mode,
                scheduler=scheduler,
                search_alg=_sampler(seed),
                max_concurrent_trials=jobs,
            ),
            run_config=tune.RunConfig(storage_path=str(folder / "ray"), name="tune", verbose=0),
        )
        grid = tuner.fit()
        return [_summary(number, result, sweep) for number, result in enumerate(grid)]
    finally:
        if mine:
            ray.shutdown()


def _rank(trial: dict[str, Any], mode: str) -> tuple:
    """Finished trials by their objective; then those stopped early, the longest first: they were compared on other data."""
    if trial[_OBJECTIVE] is None:
        return (2, 0, 0.0, trial["number"])
    value = -trial[_OBJECTIVE] if mode == "max" else trial[_OBJECTIVE]
    return (int(trial["stopped"]), -trial["steps"] if trial["stopped"] else 0, value, trial["number"])


def _sampler(seed: int):
    from ray.tune.search.basic_variant import BasicVariantGenerator

    return BasicVariantGenerator(random_state=seed)


def _domain(place: Range):
    from ray import tune

    if place.kind == "choice":
        return tune.choice(list(place.values))
    if place.kind == "integer":
        return tune.randint(int(place.low), int(place.high) + 1)
    return (tune.loguniform if place.kind == "log" else tune.uniform)(place.low, place.high)


def _summary(number: int, result: Any, sweep: Sweep) -> dict[str, Any]:
    metrics = result.metrics or {}
    value = metrics.get(_OBJECTIVE)
    curve = []
    if result.metrics_dataframe is not None and _OBJECTIVE in result.metrics_dataframe:
        curve = [float(x) for x in result.metrics_dataframe[_OBJECTIVE]]
    return {
        "number": number,
        "parameters": dict(result.config or {}),
        _OBJECTIVE: float(value) if value is not None and math.isfinite(value) and result.error is None else None,
        "stopped": not metrics.get("finished", False),
        "steps": int(metrics.get("training_iteration", 0)),
        "curve": curve,
        "error": str(result.error).strip().splitlines()[-1] if result.error else None,
    }


def _trial(config: dict[str, Any], *, slug: str, sweep: Sweep, blocks: dict, data: str, folder: str) -> None:
    """Train and evaluate with the trial's parameters. Runs in a Ray worker."""
    prepare()
    from ray import tune

    p = _validated(slug, _with(blocks, {**sweep.overrides, **config}))
    trial_id = tune.get_context().get_trial_id()
    outputs = {"data": Path(data)}
    latest: list[float] = []  # one value per training job, the newest last

    def listener(step: int, values: dict[str, float]) -> None:
        """Training jobs follow one another in a trial: what is compared is the mean over those begun so far, so that two
        trials at the same step have seen the same jobs."""
        if sweep.step_metric not in values:
            raise UserError(f"the sweep of {slug} watches {sweep.step_metric!r}; training reports {', '.join(values)}")
        if step <= listener.last or not latest:
            latest.append(0.0)
        latest[-1] = values[sweep.step_metric]
        listener.last = step
        tune.report({_OBJECTIVE: sum(latest) / len(latest), "finished": False})

    listener.last = 0
    with _listening(listener if sweep.step_metric else None):
        for stage in ("train", "evaluate"):
            make_deterministic(p[stage].threads)
            function, _ = load(slug, stage)
            out = Path(folder) / "trials" / trial_id / stage
            out.mkdir(parents=True)
            seed_everything(p[stage].seed, p[stage].threads)
            wanted = reads(function, stage, f"flows/{slug}/{stage}.py")
            if "assets" in wanted:
                raise UserError(f"flows/{slug}/{stage}.py reads assets: a trial shares the data stage's output and no more")
            returned = function(p[stage], **{name: outputs[name] for name in wanted}, out=out)
            outputs[stage] = out
    check_metrics(returned, f"flows/{slug}/evaluate.py")
    method, metric = sweep.objective
    if metric not in returned.get(method, {}):
        raise UserError(f"the sweep of {slug} compares {method} / {metric}, which evaluate does not return")
    tune.report({_OBJECTIVE: returned[method][metric]["mean"], "finished": True})


@contextlib.contextmanager
def _listening(listener):
    track.listen(listener)
    try:
        yield
    finally:
        track.listen(None)


def _log(project: Project, paper: Paper, trials: list[dict[str, Any]], folder: Path, profile: str) -> None:
    if not tracking_wanted():
        return
    from tasks.tracking import stage_run

    with stage_run(project, paper.slug, "sweep", profile, {"samples": len(trials), "mode": paper.sweep.mode}) as run:
        for trial in trials:
            track.run(
                f"trial {trial['number']}",
                params=trial["parameters"],
                metrics={} if trial[_OBJECTIVE] is None else {_OBJECTIVE: trial[_OBJECTIVE]},
                curves={"curve": trial["curve"]},
                tags={"stopped": str(trial["stopped"]).lower()},
            )
        if run:
            for name in ("results.json", "sweep.md", "sweep.png"):
                run.client.log_artifact(run.run_id, str(folder / name), "sweep")


def _print(paper: Paper, trials: list[dict[str, Any]], folder: Path, seconds: float) -> None:
    keys = list(paper.sweep.space)
    method, metric = paper.sweep.objective
    lines = [
        f"# Sweep of {paper.slug}: {method}, {metric} ({paper.sweep.mode}imal is best)\n",
        "| " + " | ".join(["trial", *keys, "objective", "steps", ""]) + " |",
        "| " + " | ".join("---" for _ in range(len(keys) + 4)) + " |",
    ]
    for trial in trials:
        values = [f"{v:.4g}" if isinstance(v, float) else str(v) for v in (trial["parameters"].get(key) for key in keys)]
        # A trial that was stopped has no final objective; its last point of the curve is in brackets.
        objective = "" if trial[_OBJECTIVE] is None else f"{trial[_OBJECTIVE]:.5g}"
        objective = f"({objective})" if objective and trial["stopped"] else objective
        note = trial["error"] or ("stopped early" if trial["stopped"] else "")
        lines.append("| " + " | ".join([str(trial["number"]), *values, objective, str(trial["steps"]), note]) + " |")
    write_text(folder / "sweep.md", "\n".join(lines) + "\n")
    print("\n".join(lines))
    print(f"\n{len(trials)} trials in {seconds:.0f} s; table, plot and curves in {folder}")


def _plot(paper: Paper, trials: list[dict[str, Any]], path: Path) -> None:
    """The objective against each parameter that was searched."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    from tasks.report import COLOURS, style

    style()
    colours = list(COLOURS.values())
    space = paper.sweep.space
    figure, axes = plt.subplots(1, len(space), figsize=(3 * len(space), 3), sharey=True, squeeze=False, layout="constrained")
    for axis, (key, place) in zip(axes[0], space.items(), strict=True):
        for stopped, marker, label in ((False, "o", "finished"), (True, "x", "stopped early")):
            points = [
                (t["parameters"][key], t[_OBJECTIVE]) for t in trials if t[_OBJECTIVE] is not None and t["stopped"] is stopped
            ]
            if points:
                x, y = zip(*points, strict=True)
                shown = [str(v) for v in x] if place.kind == "choice" else x
                axis.plot(shown, y, marker, color=colours[int(stopped)], label=label)
        if place.kind == "log":
            axis.set_xscale("log")
        axis.set_xlabel(key)
    method, metric = paper.sweep.objective
    axes[0][0].set_ylabel(f"{method}: {metric}")
    axes[0][0].legend(title=f"n = {len(trials)} trials")
    figure.savefig(path, dpi=120)
    plt.close(figure)

"""What orchestration costs: ratios of wall-clock times, measured side by side in one run.

    python -m benchmarks.orchestration            BES at the cpu profile, and two tiny papers
    python -m benchmarks.orchestration --quick    the same with a tiny paper in the place of BES

Writes its section of benchmarks/RESULTS.md. Everything runs in copies of the project in a temporary folder; the committed
results stay as they are.
"""

import argparse
import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.results import write_section

ROOT = Path(__file__).resolve().parent.parent
STAGES = ("data", "train", "evaluate", "report")

# The four stage functions in fresh processes, with nothing of ours around them: no DVC, Prefect or MLflow.
BARE = """
import json, sys
from pathlib import Path
from tasks.environment import make_deterministic, seed_everything
make_deterministic(1)
from tasks import settings
from tasks.paper import get
from tasks.stage import load, reads
slug, stage = sys.argv[1:3]
root = Path.cwd()
function, model = load(slug, stage)
p = settings.validate(model, settings.block_of(settings.read(root / "params.yaml"), slug, stage), "params.yaml")
seed_everything(p.seed, p.threads)
out = root / "bare" / slug / stage
out.mkdir(parents=True)
inputs = {}
for name in reads(function, stage, stage):
    if name == "assets":
        inputs[name] = {asset: root / "data" / asset for asset in get(slug).assets}
    elif name == "metrics":
        inputs[name] = json.loads((root / "bare" / slug / "metrics.json").read_text())
    else:
        inputs[name] = root / "bare" / slug / name
returned = function(p, **inputs, out=out)
if stage == "evaluate":
    (out.parent / "metrics.json").write_text(json.dumps(returned))
"""

METAFLOW = """
import subprocess, sys
from metaflow import FlowSpec, step

def run(stage):
    subprocess.run([sys.executable, "bare.py", "{slug}", stage], check=True)

class PaperFlow(FlowSpec):
    @step
    def start(self):
        run("data")
        self.next(self.train)

    @step
    def train(self):
        run("train")
        self.next(self.evaluate)

    @step
    def evaluate(self):
        run("evaluate")
        self.next(self.end)

    @step
    def end(self):
        run("report")

if __name__ == "__main__":
    PaperFlow()
"""


def environment(folder: Path) -> dict[str, str]:
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("PAPERFLOWS_", "MLFLOW_", "PREFECT_", "RAY_"))
    }
    return kept | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(folder),
        "PREFECT_HOME": str(folder / ".prefect"),
        "PYTHONHASHSEED": "0",
        "METAFLOW_USER": "benchmark",
        "METAFLOW_DEFAULT_DATASTORE": "local",
        "DVC_NO_ANALYTICS": "1",
    }


def copy_project(folder: Path) -> Path:
    """A copy of this project that has run nothing: code, parameters, assets."""
    ignore = shutil.ignore_patterns("__pycache__", "cache", "tmp", "dvc.lock", "templates_c")
    for name in ("flows", "tasks", "components", "kernels", "tests", ".dvc"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    shutil.copytree(ROOT / "data", folder / "data", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "params.yaml", ".gitignore", ".dvcignore"):
        shutil.copyfile(ROOT / name, folder / name)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    (folder / "bare.py").write_text(BARE)
    paperflows(folder, "new", "tiny_a")
    paperflows(folder, "new", "tiny_b")
    # Long enough for the side-by-side ratio to be about the work and not about the start of Prefect's server.
    for slug in ("tiny_a", "tiny_b"):
        train = folder / "flows" / slug / "train.py"
        head, body = train.read_text().split("out: Path) -> None:\n")
        train.write_text(head.replace("def train(", BUSY + "\n\ndef train(") + "out: Path) -> None:\n    busy()\n" + body)
    paperflows(folder, "sync")
    return folder


BUSY = '''def busy() -> None:
    """A fixed amount of arithmetic on one core, in the place of training."""
    a = np.eye(300) + 0.01
    for _ in range(25_000):
        a = np.tanh(a @ a.T / 300)
'''


def timed(words: list[str], folder: Path) -> float:
    begin = time.perf_counter()
    done = subprocess.run(words, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout}\n{done.stderr}")
    return seconds


def paperflows(folder: Path, *words: str) -> float:
    return timed([sys.executable, "-m", "tasks", *words], folder)


def bare(folder: Path, slug: str) -> float:
    shutil.rmtree(folder / "bare", ignore_errors=True)
    return sum(timed([sys.executable, "bare.py", slug, stage], folder) for stage in STAGES)


def metaflow(folder: Path, slug: str) -> float:
    shutil.rmtree(folder / "bare", ignore_errors=True)
    (folder / "paper_flow.py").write_text(METAFLOW.replace("{slug}", slug))
    return timed([sys.executable, "paper_flow.py", "--quiet", "run"], folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny paper in the place of BES")
    parser.add_argument("--repeats", type=int, default=7, help="repeats of the no-op measurements")
    options = parser.parse_args()
    slug = "tiny_a" if options.quick else "bes"
    rows: list[tuple[str, str, str, str]] = []
    with tempfile.TemporaryDirectory() as place:
        folder = copy_project(Path(place) / "project")
        # Once per installation Prefect and MLflow make their databases; that is no part of what a run costs.
        paperflows(folder, "run", "tiny_b")
        alone = bare(folder, slug)
        rows.append((f"{slug}: four bare stage functions, fresh processes", f"{alone:.1f} s", "1.00", ""))
        orchestrated = paperflows(folder, "run", slug)
        rows.append(
            (
                f"{slug}: `paperflows run`, all stages executed",
                f"{orchestrated:.1f} s",
                f"{orchestrated / alone:.2f}",
                "at most 1.10",
            )
        )
        if importlib.util.find_spec("metaflow"):
            # On the tiny paper: what is compared is the constant that each adds, and that does not grow with the work.
            tiny, ours = bare(folder, "tiny_a"), paperflows(folder, "run", "tiny_a", "--force")
            peer = metaflow(folder, "tiny_a")
            rows.append(("tiny_a: four bare stage functions, fresh processes", f"{tiny:.1f} s", "1.00", ""))
            rows.append(("tiny_a: `paperflows run`, all stages executed", f"{ours:.1f} s", f"{ours / tiny:.2f}", ""))
            rows.append(("tiny_a: the same stage functions under Metaflow", f"{peer:.1f} s", f"{peer / tiny:.2f}", ""))
        repro, run = [], []
        for _ in range(options.repeats):  # alternating, so that a busy moment hits both
            repro.append(timed([sys.executable, "-m", "dvc", "repro", f"flows/{slug}/dvc.yaml"], folder))
            run.append(paperflows(folder, "run", slug))
        plain, ours = statistics.median(repro), statistics.median(run)
        rows.append((f"{slug}: `dvc repro`, nothing to do (median of {options.repeats})", f"{plain:.2f} s", "1.00", ""))
        rows.append(
            (
                f"{slug}: `paperflows run`, nothing to do (median of {options.repeats})",
                f"{ours:.2f} s",
                f"{ours / plain:.2f}",
                "at most 1.2",
            )
        )
        serial = paperflows(folder, "run", "tiny_a", "tiny_b", "--force")
        parallel = paperflows(folder, "run", "tiny_a", "tiny_b", "--force", "-j", "2")
        rows.append(("two papers one after the other", f"{serial:.1f} s", "1.00", ""))
        rows.append(
            ("two papers with `-j 2`", f"{parallel:.1f} s", f"{serial / parallel:.2f} times faster", "at least 1.5 times")
        )
    command = "python -m benchmarks.orchestration" + (" --quick" if options.quick else "")
    write_section("Orchestration", command, ("what", "wall clock", "ratio", "goal"), rows)


if __name__ == "__main__":
    main()

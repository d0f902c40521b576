"""What has to be in the environment before the heavy libraries are imported.

Nothing here imports more than the standard library: it runs first, on the path of every command.
"""

import os
import sys
from pathlib import Path

ROOT_VARIABLE = "PAPERFLOWS_ROOT"
HOME_VARIABLE = "PAPERFLOWS_HOME"  # the project that owns the tracking store, when a run works in a side workspace
TRACK_VARIABLE = "PAPERFLOWS_TRACK"
WORKERS_VARIABLE = "PAPERFLOWS_WORKERS"

_QUIET = {
    "DO_NOT_TRACK": "1",
    "DVC_QUIET": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
}
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def prepare() -> None:
    """Turn analytics off, and make `python` mean this interpreter in the commands that DVC starts."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    # DVC runs `python -m flows ...` through a shell: without an activated virtual environment `python` is another one.
    here = str(Path(sys.executable).parent)
    paths = os.environ.get("PATH", "").split(os.pathsep)
    if paths[0] != here:
        os.environ["PATH"] = os.pathsep.join([here, *paths])


def make_deterministic(threads: int) -> None:
    """Fix what must be fixed before numpy and torch are imported: thread counts (the order of a parallel sum
    depends on them) and CUDA's workspace."""
    for name in _THREAD_VARIABLES:
        os.environ[name] = str(threads)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    os.environ.setdefault("MPLBACKEND", "agg")


def seed_everything(seed: int, threads: int) -> None:
    """Seed python, numpy and torch, and hold torch to deterministic algorithms on `threads` threads.

    A stage that uses torch imports it at the top of its module, so it is loaded by now; one that does not is spared the
    seconds that its import takes."""
    import random

    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        torch.manual_seed(seed)
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(True)


def tracking_wanted() -> bool:
    return os.environ.get(TRACK_VARIABLE, "1") != "0"

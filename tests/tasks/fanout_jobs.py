"""Jobs for tests of fan-outs: worker processes import them by name."""

import time
from pathlib import Path


def second_waits_for_third(job):
    """The second of three jobs ends only after the third has: results come in the order of jobs all the same."""
    number, folder = job
    deadline = time.monotonic() + 60
    while number == 1 and not (Path(folder) / "2").exists():
        if time.monotonic() > deadline:
            raise TimeoutError("the third job did not run beside the second")
        time.sleep(0.01)
    (Path(folder) / str(number)).touch()
    return number


def fail(job):
    if job == 1:
        raise ValueError("job 1 fails")
    return job

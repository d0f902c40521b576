"""`python -m flows PAPER STAGE` runs one stage; it is the command that DVC runs."""

import os
import sys

from tasks.environment import prepare
from tasks.errors import UserError


def main() -> int:
    if len(sys.argv) != 3:
        print("usage: python -m flows PAPER STAGE", file=sys.stderr)
        return 2
    # The order of sets of strings follows the hash seed, which only a new process can change.
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "flows", *sys.argv[1:]])
    prepare()
    from tasks.project import find_project
    from tasks.stage import run_stage

    try:
        run_stage(find_project(), *sys.argv[1:])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: nothing of this stage was kept", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

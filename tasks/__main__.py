"""`python -m tasks` is `paperflows`."""

import sys

from tasks.cli import main

sys.exit(main())

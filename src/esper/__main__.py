"""`python -m esper` is the `esper` command, for where the command itself is not on the path."""

import sys

from esper.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

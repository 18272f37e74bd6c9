"""`python -m waypoint`: the command line."""

import sys

from waypoint.cli import main

if __name__ == "__main__":
    sys.exit(main())

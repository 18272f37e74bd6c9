"""`python -m waypoint`: the command line."""

from waypoint.cli import run

if __name__ == "__main__":
    run()

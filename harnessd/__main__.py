"""`python -m harnessd` is the daemon's program."""

from harnessd.cli import harnessd

if __name__ == "__main__":
    harnessd()

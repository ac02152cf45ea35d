"""`python -m harnessd.cli` is the client's program."""

from harnessd.cli import harnessctl

if __name__ == "__main__":
    harnessctl()

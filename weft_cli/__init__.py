"""The command ``weft``. It is no part of the package ``weft``, which imports torch: help and
mistakes on the command line are answered without it."""

import sys


def main() -> None:
    """Runs the command line of this process. Exit codes: 0 fine, 1 something is wrong with what was
    looked at, 2 it was not understood."""
    try:
        from weft_cli.app import app  # imports typer, which is an extra
    except ModuleNotFoundError as error:
        if error.name != "typer":
            raise
        print("weft: the command line needs typer\nhelp: pip install typer rich", file=sys.stderr)
        raise SystemExit(2) from None
    app(prog_name="weft")

"""``python -m weft``: the command ``weft``."""

from weft_cli import main

main()

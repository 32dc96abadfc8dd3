"""Which tests take long: ``long.txt`` has their names, one a line, and they are ``slow``.

It is made anew of what pytest says of a run of all others and of these:

    make test ARGS="--durations=0 --durations-min=0.2" > took.txt
    make slow ARGS="-m long --durations=0 --durations-min=0.2" >> took.txt
    python -m tests.long took.txt
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

FILE = Path(__file__).with_name("long.txt")
CASE = 0.35  # seconds of a case of several: the quickest of a function is asked for ``ALONE``
ALONE = 1.0
_LINE = re.compile(r"([\d.]+)s (?:call|setup|teardown) +(\S.*)")


def named() -> frozenset[str]:
    return frozenset(FILE.read_text().splitlines())


def functions(names: Iterable[str]) -> set[str]:
    """The tests whose cases these are."""
    return {name.partition("[")[0] for name in names}


def long_ones(lines: Iterable[str], every: Iterable[str]) -> list[str]:
    """The names, by what pytest's ``--durations`` told. ``every``: the names of all tests that
    would run if none was in the list; of each function one stays, unless it takes long."""
    took = Counter[str]()
    for line in lines:
        if found := _LINE.fullmatch(line.strip()):
            took[found[2]] += float(found[1])
    kept: dict[str, str] = {}
    for name in sorted(every, key=lambda name: (took[name], name)):
        kept.setdefault(name.partition("[")[0], name)
    alone = {*kept.values()}
    return sorted(n for n in every if took[n] >= (ALONE if n in alone else CASE))


def main() -> None:
    import pytest

    class Collected:
        names: tuple[str, ...] = ()

        def pytest_collection_finish(self, session: pytest.Session) -> None:
            known = named()
            self.names = tuple(
                item.nodeid for item in session.items
                if item.nodeid in known or item.get_closest_marker("slow") is None
            )  # fmt: skip

    collected = Collected()
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["--collect-only", "-q"], plugins=[collected])
    lines = [line for file in sys.argv[1:] for line in Path(file).read_text().splitlines()]
    names = long_ones(lines, collected.names)
    FILE.write_text("".join(f"{name}\n" for name in names))
    print(f"{len(names)} of {len(collected.names)} tests take long")


if __name__ == "__main__":
    main()

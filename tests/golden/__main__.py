"""``python -m tests.golden [check|record] [KERNEL ...]``, ``... --show KERNEL [--at REVISION]``."""

from __future__ import annotations

import argparse
import sys

from tests.golden import replay


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=replay.__doc__)
    parser.add_argument("what", nargs="?", default="check",
                        choices=["check", "record", "texts", "times"],
                        help="`times` are those of each kernel")  # fmt: skip
    parser.add_argument("kernels", nargs="*", help="all, if none is named")
    parser.add_argument("--show", metavar="KERNEL", help="how its texts differ from a revision's")
    parser.add_argument("--at", default="HEAD", metavar="REVISION", help="of git")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    names = given.kernels or list(replay.KERNELS)
    unknown = [name for name in [*names, given.show or names[0]] if name not in replay.KERNELS]
    if unknown:
        parser.error(f"no kernel of the replay: {', '.join(unknown)}")
    if given.show:
        return replay.show(given.show, given.at)
    match given.what:
        case "texts":
            for name in names:
                for what, text in replay.texts(name):
                    sys.stdout.write(f"\x00{what}\x00{text}")
        case "times":
            replay.timed()
        case "record":
            replay.record(names, given.processes)
        case _:
            return replay.check(names, given.processes)
    return 0


if __name__ == "__main__":
    sys.exit(main())

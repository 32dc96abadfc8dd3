"""Every schedule that a call of a random program's loops may take on an H100, compiled there.

No GPU is needed: the programs of all forms run on the CPU against the undecorated Python, as
elsewhere; each loop that this compiles, derived ones too, is then put on a grid by every candidate.
The verifier looks at the IR after each step, LLVM's at each module; of some, LLVM makes PTX and
NVIDIA's assembler code. Invalid IR may end the process, so a process of its own does this, and says
before each program which one it is.

``python -m tests.fuzz.every_schedule FORM SEED [COUNT]`` checks the programs from a seed on.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from random import Random
from typing import Any

from tests.processes import CONTEXT

ARCH = "sm_90"
ASSEMBLED = 0.1  # how often LLVM makes PTX of a candidate,
CODE = 0.2  # and how often ptxas makes code of this
DERIVED = 0.3  # how often loops of programs that ask for no gradient are derived, too
MOST = 40  # candidates of a program, from which on its other loops are left to other programs
FORMS = (
    "plain", "rows", "nests", "scans", "windows", "staged", "complexes", "collections", "unsigned",
    "float8", "captured", "siblings", "gradients", "recurrences", "second", "histories", "ties",
)  # fmt: skip


def checks() -> dict[str, Callable[[Random], Any]]:
    """The programs of each form, run against the Python. Imported in the process of its own."""
    from tests.fuzz import (
        collections,
        complexes,
        float8,
        generate,
        gradients,
        histories,
        nests,
        rows,
        scans,
        staged,
        ties,
        unsigned,
        windows,
    )
    from tests.fuzz.check import check
    from tests.fuzz.test_captured import check_captured
    from tests.fuzz.test_siblings import check_siblings

    drawn = {"plain": generate, "rows": rows, "nests": nests, "scans": scans, "windows": windows,
             "staged": staged}  # fmt: skip

    def of(draw: Any) -> Callable[[Random], None]:
        return lambda random: check(random, draw=draw)

    return {name: of(module.kernel) for name, module in drawn.items()} | {
        "complexes": complexes.check, "collections": collections.check, "unsigned": unsigned.check,
        "float8": float8.check, "captured": check_captured, "siblings": check_siblings,
        "gradients": gradients.check_gradients, "recurrences": gradients.check_recurrences,
        "second": gradients.check_second, "histories": histories.check_history,
        "ties": ties.check_ties,
    }  # fmt: skip


def check_every_schedule(form: str, seed: int) -> int:
    """Runs one program, and compiles its loops by a candidate of each combination of steps; gives
    how many there were. Raises what tells of a mistake."""
    from weft import compiler
    from weft.errors import GradientError
    from weft.ir.text import print_function
    from weft.tools import cross

    loops = dict[str, Any]()  # by their text: some are compiled several times
    made = compiler.to_code

    def to_code(function: Any, options: Any, **how: Any) -> Any:
        loops.setdefault(print_function(function), (function, options))
        return made(function, options, **how)

    compiler.to_code = to_code
    try:
        checks()[form](Random(seed))
    finally:
        compiler.to_code = made
    random = Random(seed)
    derive = form in FORMS[: FORMS.index("gradients")] and random.random() < DERIVED
    for function, options in list(loops.values()) if derive else ():
        for derived in (cross.gradient_loops, cross.tangent_loops):
            try:
                loops |= {print_function(f): (f, options) for f in derived(function)}
            except GradientError:
                continue
    count = 0
    for function, options in random.sample([*loops.values()], len(loops)):
        count += _compile(function, options, random) if count < MOST else 0
    return count


def _compile(function: Any, options: Any, random: Random) -> int:
    from dataclasses import replace

    import llvmlite.binding as llvm

    from weft import compiler
    from weft.codegen import cuda, ptx
    from weft.ir.verify import verify
    from weft.schedule.choose import candidate

    optimized = compiler.optimize(function, replace(options, verify=True))
    kinds = dict[tuple[type, ...], list[str]]()
    for text in cuda.analyse(optimized).candidates:
        kinds.setdefault(tuple(map(type, candidate(text).schedule)), []).append(text)
    found = [random.choice(alike) for alike in kinds.values()]
    for text in found:
        schedule = candidate(text).schedule
        try:
            grid = cuda.scheduled(optimized, schedule, lambda _, made: verify(made, scheduled=True))
            llvm.parse_assembly(grid.emit()).verify()
            if random.random() < ASSEMBLED:
                code = cuda.compile_cuda(optimized, schedule, ARCH)
                if random.random() < CODE and ptx.ptxas() is not None:
                    ptx.cubin(code.ptx, ARCH)
        except Exception as error:
            error.add_note(f"{function.name} by {text}")
            raise
    return len(found)


def _told(form: str, seeds: Sequence[int], parent: Connection) -> None:
    """What the process of its own does: tells of each program before and after."""
    os.environ["WEFT_CACHE"] = "0"  # what is not compiled is not seen
    for seed in seeds:
        parent.send((seed, None, None))
        try:
            parent.send((seed, check_every_schedule(form, seed), None))
        except Exception:
            parent.send((seed, 0, traceback.format_exc()))


def failures(form: str, seeds: Sequence[int]) -> tuple[dict[int, str], int]:
    """What is wrong with the programs of these seeds, and how many candidates were compiled."""
    left, found, compiled = list(seeds), dict[int, str](), 0
    while left:
        here, there = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=_told, args=(form, left, there))
        process.start()
        there.close()
        seed = left[0]
        try:
            while True:
                seed, count, wrong = here.recv()
                if count is not None:
                    left.remove(seed)
                    compiled += count
                if wrong is not None:
                    found[seed] = wrong
        except EOFError:
            process.join()
        if left:
            found[seed] = f"the process ended: exit code {process.exitcode}"
            left.remove(seed)
    return found, compiled


def main() -> int:
    form, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3:][0] if sys.argv[3:] else 1)
    found, compiled = failures(form, range(first, first + count))
    for seed, wrong in found.items():
        print(f"{form} {seed}: {wrong}\n")
    print(f"{form}: {count} programs from {first}, {compiled} candidates, {len(found)} wrong")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())

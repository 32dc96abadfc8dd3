"""interleave: turns that need each other in sums alone, side by side."""

from __future__ import annotations

import numpy as np
import pytest

from tests.autodiff.test_rows_inside import TEXT
from tests.passes.texts import parsed
from weft.autodiff.rows_inside import rows_inside
from weft.ir.core import Function, walk
from weft.ir.interp import run
from weft.ir.verify import verify
from weft.ir.views import constant_of
from weft.schedule.interleave import interleave


def rows(many: int, count: int = 8) -> Function:
    text = TEXT.replace("%I,", "%ROWS,").replace("constant 8 :", f"constant {count} :")
    made = rows_inside(parsed(text), 0, count, ["d"], ["tape"])
    for op in walk(made.body):
        if "interleave" in op.attrs:
            op.attrs["interleave"] = many
    return made


@pytest.mark.parametrize("many", [2, 4])
def test_bits_are_kept(many: int) -> None:
    """The order of sums is, too; of four turns each begins with what was read for it before."""
    before = rows(many)
    after = interleave(before)
    verify(after)
    steps = [constant_of(op.operands[2]) for op in walk(after.body) if "unroll" in op.attrs]
    assert steps == [many] * 4
    rng = np.random.default_rng(many)
    shapes = ((5, 8), (5, 3), (5, 3), (8, 3), (5, 8, 3))
    given = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    found: list[list[np.ndarray]] = []
    for function in (before, after):
        arrays = dict(zip(("x", "y", "d", "last", "tape"), (a.copy() for a in given), strict=True))
        run(function, [(arrays | {"n": 5, "m": 3})[a.name] for a in function.args])  # type: ignore[operator]
        found.append([*arrays.values()])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_operations_stand_side_by_side() -> None:
    for op in walk(interleave(rows(4)).body):
        if "unroll" in op.attrs:
            names = [o.name for o in op.body.ops if o.name in ("memref.load", "memref.store")]
            assert [name for name in names[::4] for _ in range(4)] == names


def test_what_the_turn_before_finds_out_is_waited_for() -> None:
    """Of eight turns the seventh would begin with what the first one reads."""

    def carried_steps(many: int) -> set[int | None]:
        loops = (op for op in walk(interleave(rows(many, 16)).body) if op.name == "scf.for")
        return {constant_of(op.operands[2]) for op in loops if op.results}

    assert 4 in carried_steps(4)
    assert 8 not in carried_steps(8)

"""Races: what is proven free, what is refused and how, and what is left to the writer."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from tests.index.make import Make
from weft.errors import RaceError
from weft.index.describe import describe, in_words
from weft.index.races import check_races, find_races
from weft.ir.types import f32, i8, index


def verdict(k: Make, name: str = "out") -> str:
    return find_races(k.done()).of(name)


# ------------------------------------------------------------------------------------------- free


def test_plain_subscripts() -> None:
    k = Make(out=3, B="index", C="index", T="index")
    with k.parallel(b=k.B, c=k.C, t=k.T) as (b, c, t):
        k.load(k.out, b, c, t)
        k.store(k.out, b, c, t)
    assert verdict(k) == "free"


def test_transposed_write() -> None:
    k = Make(x=2, out=2, n="index", m="index")
    with k.parallel(i=k.n, j=k.m) as (i, j):
        k.store(k.out, j, i, value=k.load(k.x, i, j))
    assert verdict(k) == "free"


def test_serial_loop_and_other_dimensions() -> None:
    k = Make(out=2, n="index")
    with k.parallel(i=k.n) as i, k.serial(u=i + 1) as u:
        k.store(k.out, i, u)
        k.load(k.out, i, u - 1)
    assert verdict(k) == "free"


def test_data_dependent_second_subscript() -> None:
    k = Make(x=1, out=2, n="index")
    with k.parallel(i=k.n) as i:
        k.store(k.out, i, k.data(k.x, i))
    assert verdict(k) == "free"


def test_strided_pair() -> None:
    k = Make(out=1, n="index")
    with k.parallel(i=k.n) as i:
        k.store(k.out, 2 * i)
        k.store(k.out, 2 * i + 1)
    assert verdict(k) == "free"


@pytest.mark.parametrize(("text", "end", "expected"), [
    ("(i + k.s) % k.n", "k.n", "free"),
    ("(k.s - i) % k.n", "k.n", "free"),
    ("(i + k.s + k.n) % k.n", "k.n", "free"),
    ("(i + k.s) % (k.n + 3)", "k.n", "free"),
    ("(i + k.s) % 16", "16", "free"),
    ("(i + k.s) % k.n", "k.n + 1", "conflict"),
    ("(i + k.s) % k.m", "k.n", "unknown"),
    ("(2 * i + k.s) % k.n", "k.n", "unknown"),
    ("(i * k.s) % k.n", "k.n", "unknown"),
    ("(i // 2 + k.s) % k.n", "k.n", "conflict"),
])  # fmt: skip
def test_shifted_around(text: str, end: str, expected: str) -> None:
    k = Make(x=1, out=1, n="index", m="index", s="index")
    with k.parallel(i=eval(end)) as i:
        k.store(k.out, eval(text), value=k.load(k.x, i))
    assert verdict(k) == expected


def test_two_indices_shifted_around() -> None:
    k = Make(out=2, flat=1, n="index", m="index", s="index")
    with k.parallel(i=k.n, j=4) as (i, j):
        k.store(k.out, (i + k.s) % k.n, (j - k.s) % 4)
        k.store(k.flat, (i * 4 + j + k.s) % (k.n * 4))
    assert verdict(k) == "free"
    assert verdict(k, "flat") == "free"


def test_reversed_and_shifted() -> None:
    k = Make(out=1, n="index")
    with k.parallel(i=k.n) as i:
        k.store(k.out, k.n - 1 - i)
        k.load(k.out, k.n - 1 - i)
    assert verdict(k) == "free"


def test_flattened() -> None:
    k = Make(out=1, B="index", H="index", W="index")
    with k.parallel(b=k.B, i=k.H, j=k.W) as (b, i, j):
        k.store(k.out, (b * k.H + i) * k.W + j)
    assert verdict(k) == "free"


def test_flattened_with_a_margin() -> None:
    k = Make(out=1, B="index", H="index", W="index")
    with k.parallel(b=k.B, i=k.H, j=k.W) as (b, i, j):
        k.store(k.out, (b * (k.H + 2) + i + 1) * (k.W + 2) + j + 1)
    assert verdict(k) == "free"


def test_flattened_backwards() -> None:
    k = Make(out=1, n="index", m="index")
    with k.parallel(i=k.n, j=k.m) as (i, j):
        k.store(k.out, (k.n - 1 - i) * k.m + (k.m - 1 - j))
    assert verdict(k) == "free"


def test_flattened_with_serial_columns() -> None:
    k = Make(out=1, n="index", m="index")
    with k.parallel(i=k.n) as i:
        with k.serial(j=k.m) as j:
            k.store(k.out, i * k.m + j)
        with k.serial(u=k.m) as u:
            k.load(k.out, i * k.m + u)
    assert verdict(k) == "free"


def test_flat_index_taken_apart() -> None:
    k = Make(out=3, n="index", C="index", T="index")
    with k.parallel(p=k.n) as p:
        row = p // k.T
        k.store(k.out, row // k.C, row % k.C, p % k.T)
    assert verdict(k) == "free"


def test_brick_pattern() -> None:
    k = Make(out=2, n="index")
    with k.parallel(i=k.n) as i:
        k.store(k.out, i // 8, i % 8)
    assert verdict(k) == "free"


def test_checkerboard() -> None:
    k = Make(out=2, n="index", m="index")
    with k.parallel(i=(1, k.n), j=(1, k.m)) as (i, j), k.when(((i + j) % 2).compare("eq", 0)):
        k.load(k.out, i - 1, j)
        k.load(k.out, i, j - 1)
        k.store(k.out, i, j)
    assert verdict(k) == "free"


def test_triangle() -> None:
    k = Make(out=2, n="index")
    with k.parallel(i=k.n) as i, k.serial(j=i) as j:
        k.store(k.out, i, j)
        k.store(k.out, j, i)
    assert verdict(k) == "free"


def test_shift_by_the_extent_of_the_loop() -> None:
    k = Make(out=1, n="index")
    with k.parallel(i=k.n) as i:
        k.store(k.out, i, value=k.load(k.out, i + k.n))
    assert verdict(k) == "free"


def test_one_iteration() -> None:
    k = Make(out=1)
    with k.parallel(i=1):
        k.store(k.out, 0)
    assert verdict(k) == "free"


def test_constant_planes() -> None:
    k = Make(out=2, n="index")
    with k.parallel(i=k.n) as i:
        k.store(k.out, 0, i)
        k.load(k.out, 1, i + 1)
    assert verdict(k) == "free"


def test_accumulations_of_one_kind() -> None:
    k = Make(x=1, out=1, n="index")
    with k.parallel(i=k.n) as i:
        k.add(k.out, k.data(k.x, i))
        k.add(k.out, 0)
    assert verdict(k) == "free"


def test_local_array() -> None:
    k = Make(x=1, n="index")
    with k.parallel(i=k.n):
        local = k.build.alloca(f32, (4,))
        k.store(local, 0)
    assert find_races(k.done()).arrays == ()


# --------------------------------------------------------------------------------------- conflict


def error(k: Make) -> str:
    with pytest.raises(RaceError) as caught:
        check_races(k.done())
    return str(caught.value)


def test_one_element_written_by_all() -> None:
    k = Make(x=1, out=1, n="index")
    with k.parallel(i=k.n) as i:
        k.at(7, "        out[0] = x[i]")
        k.store(k.out, 0, value=k.load(k.x, i))
    assert error(k) == textwrap.dedent("""\
        model.py:7: in kernel `kernel`: iterations i=0 and i=1 both write out[0]
            out[0] = x[i]
            ^^^^^^^^^^^^^
        help: accumulate with `out[...] += ...`, run the loop in order \
(weft.loop_config(serialize=True) on the line before it), \
or index `out` by `i` too""")


def test_missing_index() -> None:
    k = Make(x=2, out=1, n="index", m="index")
    with k.parallel(i=k.n, j=k.m) as (i, j):
        k.at(9, "    out[i] = x[i, j]", "out[i]")
        k.store(k.out, i, value=k.load(k.x, i, j))
    assert error(k) == textwrap.dedent("""\
        model.py:9: in kernel `kernel`: iterations (i=0, j=0) and (i=0, j=1) both write out[0]
            out[i] = x[i, j]
            ^^^^^^
        help: accumulate with `out[...] += ...`, make the loop over `j` serial \
(a nested `for ... in range(...)`), or index `out` by `j` too""")


def test_stencil_in_place() -> None:
    k = Make(x=1, n="index")
    with k.parallel(i=(1, k.n)) as i:
        k.at(4, "    x[i] = x[i - 1]")
        k.store(k.x, i, value=k.load(k.x, i - 1))
    assert error(k) == textwrap.dedent("""\
        model.py:4: in kernel `kernel`: iteration i=1 writes x[1], which iteration i=2 reads
            x[i] = x[i - 1]
            ^^^^^^^^^^^^^^^
        help: read from a copy made before the loop (`old = x.clone()`), write to another tensor, \
or run the loop in order: weft.loop_config(serialize=True) on the line before it""")


def test_accumulate_and_read() -> None:
    k = Make(x=1, n="index")
    with k.parallel(i=k.n) as i:
        k.load(k.x, i)
        k.at(4, "    x[0] += 1.0")
        k.add(k.x, 0)
    assert "iteration i=1 accumulates into x[0], which iteration i=0 reads" in error(k)


def test_accumulate_and_write() -> None:
    k = Make(x=1, n="index", m="index")
    with k.parallel(i=k.n, j=k.m) as (i, j), k.when(j.compare("eq", 0)):
        k.store(k.x, i)
        k.add(k.x, i + 1)
    text = error(k)
    assert "iteration (i=1, j=0) writes x[1], into which iteration (i=0, j=0) accumulates" in text
    assert "help: initialise `x` in a loop of its own" in text


def test_accumulations_of_two_kinds() -> None:
    k = Make(x=1, n="index")
    with k.parallel(i=k.n):
        k.add(k.x, 0)
        k.add(k.x, 0, kind="maximumf")
    assert error(k) == (
        "iterations i=0 and i=1 accumulate into x[0] with `+=` and `max`\n"
        "help: the result would depend on the order of iterations: use two loops, "
        "or an array for each"
    )


def test_divided_index() -> None:
    k = Make(out=1, n="index")
    with k.parallel(i=k.n) as i:
        k.store(k.out, i // 2)
    assert "iterations i=0 and i=1 both write out[0]" in error(k)


def test_ring() -> None:
    k = Make(out=1, n="index")
    with k.parallel(i=k.n) as i:
        k.store(k.out, i % 4)
    assert "iterations i=0 and i=4 both write out[0]" in error(k)


def test_flattened_overlap() -> None:
    k = Make(out=1, n="index", m="index")
    with k.parallel(i=k.n, j=2 * k.m) as (i, j):
        k.store(k.out, i * k.m + j)
    report = find_races(k.done())
    (array,) = report.arrays
    assert array.verdict == "conflict"
    assert array.witness is not None
    assert dict(array.witness.sizes)["m"] == 2


def test_serial_loop_of_one_step() -> None:
    """``u`` is always ``i``: it has one value, but not the same one in all iterations."""
    k = Make(out=1, n="index")
    with k.parallel(i=k.n) as i, k.serial(u=(i, i + 1)) as u:
        k.store(k.out, i - u)
    assert "iterations i=0 and i=1 both write out[0]" in error(k)


def test_diagonals() -> None:
    k = Make(out=1, n="index", m="index")
    with k.parallel(i=k.n, j=k.m) as (i, j):
        k.store(k.out, i - j + k.m)
    assert "iterations (i=0, j=0) and (i=1, j=1) both write out[2]" in error(k)


def test_scalar_result() -> None:
    k = Make(out=0, n="index")
    with k.parallel(i=k.n):
        k.store(k.out)
    assert error(k) == (
        "iterations i=0 and i=1 both write out\n"
        "help: accumulate with `+=` or run the loop in order "
        "(weft.loop_config(serialize=True) on the line before it)"
    )


# ---------------------------------------------------------------------------------------- unknown


def test_scatter() -> None:
    k = Make(x=1, out=1, n="index")
    with k.parallel(i=k.n) as i:
        k.store(k.out, k.data(k.x, i))
    assert verdict(k) == "unknown"


def test_under_a_data_dependent_condition() -> None:
    k = Make(x=1, out=1, n="index")
    with k.parallel(i=k.n) as i, k.when(k.data(k.x, i).compare("eq", 3)):
        k.store(k.out, 0)
    assert verdict(k) == "unknown"


@pytest.mark.parametrize("shift", ["k", "m"])
def test_shift_by_an_argument(shift: str) -> None:
    k = Make(out=1, n="index", k="index", m="index")
    with k.parallel(i=k.n) as i:
        k.store(k.out, i, value=k.load(k.out, i + getattr(k, shift)))
    assert verdict(k) == "unknown"


def test_flattened_with_a_stride_of_its_own() -> None:
    k = Make(out=1, n="index", m="index", stride="index")
    with k.parallel(i=k.n, j=k.m) as (i, j):
        k.store(k.out, i * k.stride + j)
    assert verdict(k) == "unknown"


def test_only_for_some_sizes() -> None:
    k = Make(out=1, n="index")
    with k.parallel(i=k.n) as i:
        k.store(k.out, i % 100_000)
    assert verdict(k) == "unknown"


def test_only_for_even_sizes() -> None:
    k = Make(out=1, m="index")
    with k.parallel(i=k.m) as i:
        k.store(k.out, 4 * i, value=k.load(k.out, i * k.m))
    assert verdict(k) == "unknown"


def test_compare_and_swap() -> None:
    k = Make(out=1, n="index")
    with k.parallel(i=k.n):
        one = k.build.constant(1.0, f32)
        k.build.op("memref.atomic_cas", one, one, k.out, k.int(0).value, type=f32)
        k.load(k.out, 0)
    assert verdict(k) == "unknown"


def test_narrow_integers_wrap() -> None:
    k = Make(out=1, n="index")
    with k.parallel(i=k.n) as i:
        narrow = k.build.op("arith.index_cast", i.value, type=i8)
        wide = k.build.op("arith.index_cast", narrow, type=index)
        k.build.store(k.build.constant(1.0, k.out.type.element), k.out, [wide])
    assert verdict(k) == "unknown"


# ----------------------------------------------------------------------------------- other things


def test_conditional_subscripts() -> None:
    k = Make(out=1, n="index")
    with k.parallel(i=k.n) as i:
        test = i.compare("slt", 3)
        value = k.build.op("arith.select", test, (i + k.n).value, i.value)
        k.build.store(k.build.constant(1.0, k.out.type.element), k.out, [value])
    assert verdict(k) == "free"


def test_clamped_subscripts() -> None:
    k = Make(out=1, n="index")
    with k.parallel(i=k.n) as i:
        clamped = k.build.op("arith.minsi", i.value, (k.n - 2).value)
        k.build.store(k.build.constant(1.0, k.out.type.element), k.out, [clamped])
    assert "both write out[" in error(k)


def test_common_kernels_do_not_import_islpy() -> None:
    program = textwrap.dedent("""
        import sys
        from tests.index import test_races as t
        from weft.index.races import find_races
        from tests.index.make import Make
        for name in ("plain_subscripts", "transposed_write", "serial_loop_and_other_dimensions",
                     "data_dependent_second_subscript", "strided_pair", "flattened",
                     "flattened_with_a_margin", "flat_index_taken_apart", "brick_pattern",
                     "accumulations_of_one_kind", "scatter", "constant_planes",
                     "under_a_data_dependent_condition"):
            getattr(t, "test_" + name)()
        assert "islpy" not in sys.modules
    """)
    subprocess.run([sys.executable, "-c", program], check=True)


def test_description() -> None:
    k = Make(x=1, out=1)
    end = k.dim(k.out, 0)
    with k.parallel(i=end) as i:
        k.store(k.out, i, value=k.load(k.x, i // 2))
    assert describe(k.done()) == textwrap.dedent("""\
        reads x[((i) // (2))]
          [out_0] -> { S[i] -> x[floor((i)/2)] : out_0 >= 0 and i >= 0 and i < out_0 }
          range not proven
        writes out[i]
          [out_0] -> { S[i] -> out[i] : out_0 >= 0 and i >= 0 and i < out_0 }
          in range
        races on out: free""")


def test_description_in_words() -> None:
    k = Make(x=2, out=1, n="index")
    end = k.dim(k.out, 0)
    with k.parallel(i=end, j=k.n) as (i, j):
        k.store(k.out, i, value=k.load(k.x, i // 2, 7 - 2 * j))
    assert in_words(k.done()) == textwrap.dedent("""\
        Reads x[((i) // (2)), 7 - 2*j]
          for each i from 0 to out.shape[0] - 1, each j from 0 to n - 1
          along j: every element 2 further back
          not proven to stay inside of `x`
        Writes out[i]
          for each i from 0 to out.shape[0] - 1, each j from 0 to n - 1
          along j: the same place of a row
          the same elements whatever j
          always inside of `out`
        Two iterations of the loop meet on an element of `out`""")

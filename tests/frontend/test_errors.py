"""Every error of the frontend, by its whole text: place, message, line, carets, what to write."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import weft

HERE = Path(__file__)
LINES = HERE.read_text().splitlines()


def expect(
    error: type[weft.CompileError], call, message: str, line: str, carets: str, help: str, kernel="f"
) -> None:
    """``call()`` raises ``error`` with exactly this text; ``carets`` is the part that is underlined."""
    with pytest.raises(error) as info:
        call()
    span = info.value.span
    assert span is not None
    assert LINES[span.line - 1].strip() == line
    underline = " " * line.index(carets) + "^" * len(carets)
    assert str(info.value) == (
        f"{HERE}:{span.line}: in kernel `{kernel}`: {message}\n    {line}\n    {underline}\nhelp: {help}"
    )


x = torch.ones(4)
x2 = torch.ones(3, 4)


def recursive(n):
    return recursive(n - 1) + 1 if n > 0 else 0


def test_try() -> None:
    @weft.kernel
    def f(x):
        for i in range(4):
            try:
                x[i] = 1.0
            finally:
                pass

    expect(
        weft.KernelSyntaxError, lambda: f(x), "`try` cannot be compiled", "try:", "try:",
        "test for what could go wrong with `if`, or do it in the host part",
    )  # fmt: skip


def test_with() -> None:
    @weft.kernel
    def f(x):
        for i in range(4):
            with torch.no_grad():
                x[i] = 1.0

    expect(
        weft.KernelSyntaxError, lambda: f(x), "`with` cannot be compiled", "with torch.no_grad():",
        "with torch.no_grad():", "put it around the loop, in the host part",
    )  # fmt: skip


def test_lambda() -> None:
    @weft.kernel
    def f(x):
        for i in range(4):
            g = lambda v: v + 1  # noqa: E731
            x[i] = g(x[i])

    expect(
        weft.KernelSyntaxError, lambda: f(x), "`lambda` cannot be compiled",
        "g = lambda v: v + 1  # noqa: E731", "lambda v: v + 1",
        "define a function outside of the kernel: it will be inlined",
    )  # fmt: skip


def test_comprehension() -> None:
    @weft.kernel
    def f(x):
        for i in range(4):
            x[i] = sum([x[j] for j in range(4)])

    expect(
        weft.KernelSyntaxError, lambda: f(x), "a list comprehension cannot be compiled",
        "x[i] = sum([x[j] for j in range(4)])", "[x[j] for j in range(4)]", "write a for loop",
    )  # fmt: skip


def test_unknown_name() -> None:
    @weft.kernel
    def f(x):
        for i in range(4):
            x[i] = unknown_thing  # noqa: F821

    expect(
        weft.KernelNameError, lambda: f(x), "the name `unknown_thing` is not known",
        "x[i] = unknown_thing  # noqa: F821", "unknown_thing",
        "a kernel sees its parameters, its own variables, and the names of its module",
    )  # fmt: skip


def test_call_without_source() -> None:
    @weft.kernel
    def f(x):
        for i in range(4):
            x[i] = math.lgamma(x[i])

    expect(
        weft.KernelTypeError, lambda: f(x),
        "`math.lgamma` cannot be called in a device loop: it has no Python source",
        "x[i] = math.lgamma(x[i])", "math.lgamma(x[i])",
        "use weft.math, math, or a Python function of your own; whole-tensor functions belong in the "
        "host part",
    )  # fmt: skip


def test_recursion() -> None:
    @weft.kernel
    def f(x):
        for i in range(4):
            x[i] = recursive(i)

    with pytest.raises(weft.KernelSyntaxError, match="`recursive` calls itself: recursion cannot be compiled"):
        f(x)


@pytest.mark.parametrize("given", [1, 3])
def test_number_of_subscripts(given: int) -> None:
    @weft.kernel
    def one(x):
        for i in range(3):
            x[i, 0] = x[i]

    @weft.kernel
    def three(x):
        for i in range(3):
            x[i, 0] = x[i, 0, 0]

    if given == 1:
        expect(
            weft.KernelIndexError, lambda: one(x2), "`x` has 2 dimensions, but 1 subscript is given",
            "x[i, 0] = x[i]", "x[i, 0] = x[i]", "write x[i, j]", "one",
        )  # fmt: skip
    else:
        expect(
            weft.KernelIndexError, lambda: three(x2), "`x` has 2 dimensions, but 3 subscripts are given",
            "x[i, 0] = x[i, 0, 0]", "x[i, 0, 0]", "write x[i, j]", "three",
        )  # fmt: skip


def test_types_that_do_not_join() -> None:
    @weft.kernel
    def f(x):
        for i in range(4):
            v = 0.0
            if i > 2:
                v = x
            x[i] = v

    expect(
        weft.KernelTypeError, lambda: f(x),
        "`v` is a scalar (float) here and a tensor of 1 dimensions elsewhere", "v = x", "v = x",
        "a variable of a kernel has one type: use another name than `v`",
    )  # fmt: skip


def test_return_in_loop() -> None:
    @weft.kernel
    def f(x):
        for i in range(4):
            return x[i]

    with pytest.raises(weft.KernelSyntaxError) as info:
        f(x)
    assert "return" in str(info.value)
    assert "return x[i]" in str(info.value)


def test_break_out_of_parallel_loop() -> None:
    @weft.kernel
    def f(x):
        for i in range(4):
            if x[i] > 0:
                break
            x[i] = 1.0

    expect(
        weft.KernelSyntaxError, lambda: f(x), "`break` out of a parallel loop", "break", "break",
        "its iterations run at once: use `continue`, or weft.serial(...)",
    )  # fmt: skip


def test_name_without_value() -> None:
    @weft.kernel
    def f(x):
        for i in range(4):
            if x[i] > 0:
                v = 1.0
            x[i] = v

    expect(
        weft.KernelNameError, lambda: f(x),
        "`v` may have no value here: it is assigned in only one branch of an `if`", "x[i] = v", "v",
        "give `v` a value before",
    )  # fmt: skip


def test_name_of_a_loop() -> None:
    @weft.kernel
    def f(x):
        for i in range(4):
            for j in range(3):
                v = 1.0 * j
            x[i] = v

    expect(
        weft.KernelNameError, lambda: f(x),
        "`v` may have no value here: it is assigned inside a loop, which may run zero times",
        "x[i] = v", "v", "give `v` a value before",
    )  # fmt: skip


def test_float_subscript() -> None:
    @weft.kernel
    def f(x):
        for i in range(4):
            x[i] = x[i / 2]

    expect(
        weft.KernelTypeError, lambda: f(x),
        "a subscript or a bound must be an integer, and this is a float", "x[i] = x[i / 2]", "i / 2",
        "write int(...) around it, which truncates towards zero",
    )  # fmt: skip


def test_slice() -> None:
    @weft.kernel
    def f(x):
        for i in range(3):
            x[i, :] = 0.0

    expect(
        weft.KernelSyntaxError, lambda: f(x2),
        "a slice in a device loop: elements are read and written one by one", "x[i, :] = 0.0", ":",
        "loop over the elements, or take the view in the host part",
    )  # fmt: skip


def test_reduced_name_is_read() -> None:
    @weft.kernel
    def f(x):
        s = 0.0
        for i in range(4):
            s += x[i]
            x[i] = s
        return s

    expect(
        weft.KernelSyntaxError, lambda: f(x),
        "`s` is read in the parallel loop that accumulates into it", "x[i] = s", "s",
        "other iterations are still adding to it: read it after the loop, or use weft.serial(...)",
    )  # fmt: skip


def test_two_combiners() -> None:
    @weft.kernel
    def f(x):
        s = 0.0
        for i in range(4):
            s += x[i]
            s = max(s, x[i])
        return s

    expect(
        weft.KernelSyntaxError, lambda: f(x), "`s` is accumulated in two ways, by add and by max",
        "s = max(s, x[i])", "s = max(s, x[i])", "use one variable for each",
    )  # fmt: skip


def test_proven_race() -> None:
    @weft.kernel
    def f(x, out):
        for i in range(x.shape[0]):
            out[0] = x[i]

    with pytest.raises(weft.RaceError) as info:
        f(x, torch.zeros(1))
    assert "out[0] = x[i]" in str(info.value)
    assert "both" in str(info.value)


def test_float_into_integer_tensor() -> None:
    @weft.kernel
    def f(x):
        for i in range(4):
            x[i] += 0.5

    expect(
        weft.KernelTypeError, lambda: f(torch.ones(4, dtype=torch.int32)),
        "`x` holds i32 and a float is accumulated into it", "x[i] += 0.5", "x[i] += 0.5",
        "convert with int(...), or make the tensor a float one",
    )  # fmt: skip


def test_literal_too_large() -> None:
    @weft.kernel
    def f(x):
        for i in range(4):
            x[i] = x[i] + 300

    expect(
        weft.KernelValueError, lambda: f(torch.ones(4, dtype=torch.uint8)), "300 does not fit in u8",
        "x[i] = x[i] + 300", "x[i] + 300", "widen the other operand, for instance weft.i64(x)",
    )  # fmt: skip


def test_sum_of_booleans() -> None:
    @weft.kernel
    def f(x):
        for i in range(4):
            x[i] = (x[i] > 0) + (x[i] < 1)

    expect(
        weft.KernelTypeError, lambda: f(x),
        "`+` of two booleans: Python and torch disagree on what it means",
        "x[i] = (x[i] > 0) + (x[i] < 1)", "(x[i] > 0) + (x[i] < 1)",
        "use `and`, `or`, `^`, or int(...) around them",
    )  # fmt: skip


def test_exec_has_no_source() -> None:
    scope: dict = {"weft": weft}
    exec("@weft.kernel\ndef f(x):\n    for i in range(4):\n        x[i] = 1.0\n", scope)
    with pytest.raises(weft.SourceUnavailableError) as info:
        scope["f"](x)
    assert str(info.value) == (
        "the source of `f` is not available\n"
        "help: weft compiles a function's source text: define it in a file, a notebook cell or "
        "(Python 3.13+) the interactive prompt, not through exec or python -c"
    )


def test_index_out_of_range_in_debug_mode() -> None:
    @weft.kernel(debug=True)
    def f(x, n: int):
        for i in range(n):
            x[i] = 1.0

    with pytest.raises(weft.KernelIndexError) as info:
        f(x.clone(), 5)
    text = str(info.value)
    assert "in kernel `f`" in text
    assert "x[i] = 1.0" in text
    assert "4" in text


def test_assert_in_kernel() -> None:
    @weft.kernel
    def f(x):
        for i in range(4):
            assert x[i] > 2, "x must be large"
            x[i] = 1.0

    with pytest.raises(weft.KernelAssertionError) as info:
        f(x.clone())
    assert "x must be large" in str(info.value)
    assert 'assert x[i] > 2, "x must be large"' in str(info.value)

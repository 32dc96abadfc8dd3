"""Every error of the frontend, by its whole text: place, message, line, carets, what to write."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import pytest
import torch

import weft

HERE = Path(__file__)
LINES = HERE.read_text().splitlines()


def expect(
    error: type[weft.CompileError],
    call,
    message: str,
    line: str,
    carets: str,
    help: str,
    kernel="f",
) -> None:
    """``call()`` raises ``error`` with exactly this text; ``carets`` is the underlined part."""
    with pytest.raises(error) as info:
        call()
    span = info.value.span
    assert span is not None
    assert LINES[span.line - 1].strip() == line
    underline = " " * line.index(carets) + "^" * len(carets)
    text = f"{HERE}:{span.line}: in kernel `{kernel}`: {message}\n    {line}\n    {underline}"
    assert str(info.value) == text + (f"\nhelp: {help}" if help else "")


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
            x[i] = g(x[i], 2)

    expect(
        weft.KernelTypeError, lambda: f(x),
        "`lambda` is called with other arguments than it takes",
        "x[i] = g(x[i], 2)", "g(x[i], 2)", "it takes (v)",
    )  # fmt: skip


def test_comprehension() -> None:
    @weft.kernel
    def f(x):
        for i in range(4):
            x[i] = len([j for j in range(300)])  # noqa: C416

    expect(
        weft.KernelSyntaxError, lambda: f(x), "a comprehension of more than 256 items",
        "x[i] = len([j for j in range(300)])  # noqa: C416", "[j for j in range(300)]",
        "use a generator in sum, min, max, any or all, or a tensor of the host part",
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
            x[i] = math.ulp(x[i])

    expect(
        weft.KernelTypeError,
        lambda: f(x),
        "`math.ulp` cannot be called in a device loop: weft has no such function yet",
        "x[i] = math.ulp(x[i])",
        "math.ulp(x[i])",
        "call it in the host part and pass the result; docs/functions.md has what there is",
    )


def test_recursion() -> None:
    @weft.kernel
    def f(x):
        for i in range(4):
            x[i] = recursive(i)

    expect(
        weft.KernelSyntaxError,
        lambda: f(x),
        "`recursive` calls itself, more than 32 levels deep",
        "return recursive(n - 1) + 1 if n > 0 else 0",
        "recursive(n - 1)",
        "recursion is written out: it has to end by what is known at compile time; write a loop, "
        "or a stack in a local array",
    )


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
            weft.KernelIndexError,
            lambda: one(x2),
            "`x` has 2 dimensions, but 1 subscript is given",
            "x[i, 0] = x[i]",
            "x[i, 0] = x[i]",
            "write x[i, j]",
            "one",
        )
    else:
        expect(
            weft.KernelIndexError,
            lambda: three(x2),
            "`x` has 2 dimensions, but 3 subscripts are given",
            "x[i, 0] = x[i, 0, 0]",
            "x[i, 0, 0]",
            "write x[i, j]",
            "three",
        )


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
        "`v` is a scalar (float) here and a tensor of 1 dimension elsewhere", "v = x", "v = x",
        "a variable of a kernel has one type: use another name than `v`",
    )  # fmt: skip


def test_one_name_for_two_local_arrays() -> None:
    @weft.kernel
    def f(x):
        for i in range(4):
            a, b = weft.zeros(2, weft.f32), weft.zeros(3, weft.f32)
            if i > 2:
                a = b
            x[i] = a[0]

    expect(
        weft.KernelTypeError, lambda: f(x),
        "`a` may be a local array of 1 dimension, or another one", "if i > 2:", "if i > 2:",
        "what a name stands for is known when the kernel is compiled: write both cases out, or "
        "use one with one more subscript that says which",
    )  # fmt: skip


def test_an_assigned_name_from_before_the_loop() -> None:
    @weft.kernel
    def f(x):
        before = 0.0
        for i in range(4):
            x[i] = x[i] - before
            before = x[i]

    expect(
        weft.KernelSyntaxError, lambda: f(x),
        "`before` comes from before the parallel loop and is assigned in it", "before = x[i]",
        "before = x[i]",
        "only an accumulation may leave a parallel loop: `before += ...`, `before = max(before, "
        "...)`; use another name for a temporary. Where each iteration needs the one before, let "
        "the loop run in order: "
        "weft.loop_config(serialize=True) before it",
    )  # fmt: skip


def test_return_in_loop() -> None:
    @weft.kernel  # noqa: RET503
    def f(x):
        for i in range(4):
            return x[i]

    expect(
        weft.KernelSyntaxError, lambda: f(x), "`return` inside a device loop",
        "return x[i]", "return x[i]", "store the result in a tensor and return that after the loop",
    )  # fmt: skip


def test_break_out_of_parallel_loop() -> None:
    @weft.kernel
    def f(x):
        for i in range(4):
            if x[i] > 0:
                break
            x[i] = 1.0

    expect(
        weft.KernelSyntaxError, lambda: f(x), "`break` out of a parallel loop", "break", "break",
        "its iterations run at once: use `continue`, or write weft.loop_config(serialize=True) on "
        "the line before the loop",
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


def test_the_index_has_the_name_of_its_bound() -> None:
    @weft.kernel
    def f(x, n: int):
        for n in range(n):  # noqa: B020
            x[n] = 1.0

    expect(
        weft.KernelSyntaxError, lambda: f(torch.zeros(4), 3),
        "`n` comes from before the parallel loop and is its index",
        "for n in range(n):  # noqa: B020", "n",
        "give the index a name of its own",
    )  # fmt: skip


def test_an_inner_index_has_the_name_of_a_total() -> None:
    @weft.kernel
    def f(x):
        n = 0
        for i in x:
            n += 1
            for n in range(2):
                x[i] += n
        return n

    expect(
        weft.KernelSyntaxError, lambda: f(torch.zeros(4)),
        "`n` comes from before the parallel loop and is an index in it", "for n in range(2):",
        "for n in range(2):", "give the index a name of its own",
    )  # fmt: skip


def test_name_of_a_loop() -> None:
    @weft.kernel
    def f(x):
        for i in range(4):
            for j in range(x.shape[0]):
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
        weft.KernelTypeError,
        lambda: f(x),
        "a subscript or a bound must be an integer, and this is a float",
        "x[i] = x[i / 2]",
        "i / 2",
        "write int(...) around it, which truncates towards zero",
    )


def test_slice() -> None:
    @weft.kernel
    def f(x):
        for i in range(3):
            x[i, ::-1] = 0.0

    expect(
        weft.KernelTypeError, lambda: f(x2),
        "the step of a slice is a positive number that is known at compile time",
        "x[i, ::-1] = 0.0", "::-1", "write the loop over range(start, stop, step)",
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
        "`s` is read in the device loop that accumulates into it", "x[i] = s", "s",
        "read it after the loop. Where each iteration needs the one before, let the loop run in "
        "order: weft.loop_config(serialize=True) before it",
    )  # fmt: skip


def test_the_value_before_an_atomic_on_a_variable() -> None:
    @weft.kernel
    def f(x, out):
        n = 0
        for i in x:
            if x[i] > 0:
                k = weft.atomic_add(n, 1)
                out[k] = x[i]
        return n

    expect(
        weft.KernelSyntaxError, lambda: f(x, x.clone()),
        "`n` is read in the device loop that accumulates into it", "k = weft.atomic_add(n, 1)",
        "n", "what was there before is known of an element of a tensor: write `n = x.new_zeros(1, "
        "dtype=torch.int64)` before the loop, and `weft.atomic_add(n[0], v)`",
    )  # fmt: skip

    @weft.kernel
    def kept(x, out):
        n = x.new_zeros(1, dtype=torch.int64)
        for i in x:
            if x[i] > 0:
                k = weft.atomic_add(n[0], 1)
                out[k] = x[i]
        return n

    values, out = torch.randn(17), torch.zeros(17)
    n = int(kept(values, out))
    assert out[:n].sort().values.equal(values[values > 0].sort().values)


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


def test_a_time_loop_without_serial() -> None:
    @weft.kernel
    def f(x):
        a, b = x.clone(), x.clone()
        for _ in range(3):
            c = torch.empty_like(x)
            for i in range(x.shape[0]):
                c[i] = a[i] + b[i]
            b = a
            a = c
        return a

    expect(
        weft.KernelSyntaxError, lambda: f(torch.ones(3)),
        "`b` is a tensor of 1 dimension: a device loop assigns its elements", "b = a", "b = a",
        "write b[...] = ...; if this is a loop of the host part: "
        "`for _ in weft.serial(range(3))`",
    )  # fmt: skip


def test_proven_race() -> None:
    @weft.kernel
    def f(x, out):
        for i in range(x.shape[0]):
            out[0] = x[i]

    expect(
        weft.RaceError, lambda: f(x, torch.zeros(1)), "iterations i=0 and i=1 both write out[0]",
        "out[0] = x[i]", "out[0]",
        "accumulate with `out[...] += ...`, run the loop in order "
        "(weft.loop_config(serialize=True) on the line before it), or index "
        "`out` by `i` too",
    )  # fmt: skip


def test_proven_race_between_a_read_and_a_write() -> None:
    @weft.kernel
    def f(x):
        for i in range(1, x.shape[0]):
            x[i] += x[i - 1]

    expect(
        weft.RaceError, lambda: f(x.clone()),
        "iteration i=1 accumulates into x[1], which iteration i=2 reads", "x[i] += x[i - 1]",
        "x[i]", "read from a copy made before the loop (`old = x.clone()`), write to "
        "another tensor, or run the loop in order: weft.loop_config(serialize=True) "
        "on the line before it",
    )  # fmt: skip


def test_proven_race_between_loops_of_iterations() -> None:
    @weft.kernel
    def f(x, y, steps):
        for _ in range(steps):
            for i in range(1, x.shape[0] - 1):
                y[i] = (x[i - 1] + x[i + 1]) / 2
            for i in range(1, x.shape[0] - 1):
                x[i] = y[i]

    x, y = torch.rand(2, 7)
    expect(
        weft.RaceError, lambda: f(x, y, 3), "iteration _=1 writes x[1], which iteration _=0 "
        "reads", "x[i] = y[i]", "x[i]",
        "read from a copy made before the loop (`old = x.clone()`), write to another tensor, or "
        "run the loop in order: weft.loop_config(serialize=True) on the line before it, or `for _ "
        "in weft.serial(range(...))`, with the loops in it parallel",
    )  # fmt: skip

    @weft.kernel
    def followed(x, y, steps):
        for _ in weft.serial(range(steps)):
            for i in range(1, x.shape[0] - 1):
                y[i] = (x[i - 1] + x[i + 1]) / 2
            for i in range(1, x.shape[0] - 1):
                x[i] = y[i]

    copies = x.clone(), y.clone()
    followed(*copies, 3)
    followed.function(x, y, 3)
    torch.testing.assert_close(copies, (x, y))


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
        weft.KernelValueError,
        lambda: f(torch.ones(4, dtype=torch.uint8)),
        "300 does not fit in u8",
        "x[i] = x[i] + 300",
        "x[i] + 300",
        "widen the other operand, for instance weft.i64(x)",
    )


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
        "the interactive prompt, not through exec or python -c"
    )


def test_index_out_of_range_in_debug_mode() -> None:
    @weft.kernel(debug=True)
    def f(x, n: int):
        for i in range(n):
            x[i] = 1.0

    expect(
        weft.KernelIndexError, lambda: f(x.clone(), 5),
        "subscript 4 of `x` is out of range: its dimension 0 has 4 elements", "x[i] = 1.0", "i",
        "narrow the loop, or test the subscript before",
    )  # fmt: skip


@pytest.mark.parametrize("i", [-4, 2, 3])
def test_subscripts_of_what_is_no_tensor_in_debug_mode(i: int) -> None:
    @weft.kernel(debug=True)
    def of_tuple(out, a, i: int):
        for k in range(1):
            out[k] = (1.0, 2.0, 3.0)[i + k]

    @weft.kernel(debug=True)
    def of_argument(out, a, i: int):
        for k in range(1):
            out[k] = a[i + k]

    @weft.kernel(debug=True)
    def of_vector(out, a, i: int):
        for k in range(1):
            out[k] = weft.Vector([1.0, 2.0, 3.0])[i + k]

    @weft.kernel(debug=True)
    def of_row(out, a, i: int):
        for k in range(1):
            out[k] = weft.Matrix([[4.0, 4.0, 4.0], [1.0, 2.0, 3.0]])[k + 1, i]

    @weft.kernel(debug=True)
    def stored(out, a, i: int):
        for k in range(1):
            v = weft.Vector([0.0, 0.0, 0.0])
            v[i + k] = 3.0
            out[k] = v[2]

    cases = [
        (of_tuple, "(1.0, 2.0, 3.0)", 0, "(1.0, 2.0, 3.0)[i + k]"),
        (of_argument, "a", 0, "a[i + k]"),
        (of_vector, "weft.Vector([1.0, 2.0, 3.0])", 0, "weft.Vector([1.0, 2.0, 3.0])[i + k]"),
        (of_row, "weft.Matrix([[4.0, 4.0, 4.0], [1.0, 2.0, 3.0]])", 1,
         "weft.Matrix([[4.0, 4.0, 4.0], [1.0, 2.0, 3.0]])[k + 1, i]"),
        (stored, "v", 0, "v[i + k]"),
    ]  # fmt: skip
    for kernel, name, axis, text in cases:
        out = torch.zeros(1)
        if i == 2:
            kernel(out, [1.0, 2.0, 3.0], i)
            assert out.tolist() == [3.0]
            continue
        with pytest.raises(weft.KernelIndexError) as info:
            kernel(out, [1.0, 2.0, 3.0], i)
        message = f"subscript {i} of `{name}` is out of range: its dimension {axis} has 3 elements"
        assert message in str(info.value)
        assert text in str(info.value).splitlines()[1]


def test_assert_in_kernel() -> None:
    @weft.kernel
    def f(x):
        for i in range(4):
            assert x[i] > 2, "x must be large"
            x[i] = 1.0

    expect(
        weft.KernelAssertionError, lambda: f(x.clone()), "x must be large",
        'assert x[i] > 2, "x must be large"', 'assert x[i] > 2, "x must be large"', "",
    )  # fmt: skip


@weft.kernel
def copied(x, out):
    for i in range(4):
        out[i] = x[i]


@pytest.mark.parametrize(
    ("error", "args", "message", "help"),
    [
        (
            weft.KernelValueError, lambda: (x, torch.zeros(1).expand(4)),
            "`out` is written, and it is expanded: several of its indices are one place in memory",
            "pass out.clone()",
        ),
        (
            weft.KernelValueError, lambda: (x.to("meta"), x),
            "`x` is on meta and `out` on cpu",
            "tensors of one loop must be on one device: move one with .to(...)",
        ),
        (
            weft.KernelTypeError, lambda: (x.to(torch.float8_e4m3fnuz), x),
            "`x` has dtype float8_e4m3fnuz, which kernels do not take",
            "kernels take f8e4m3, f8e5m2, f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, "
            "u64 and bool tensors",
        ),
        (
            weft.KernelTypeError, lambda: (x.numpy(), x), "`x` is a NumPy array",
            "pass torch.from_numpy(x), which shares its memory",
        ),
        (
            weft.KernelTypeError, lambda: (x.to_sparse(), x), "`x` is a sparse_coo tensor",
            "kernels take dense tensors: pass x.to_dense(), or its values and indices",
        ),
    ],
)  # fmt: skip
def test_tensors_that_a_kernel_cannot_take(error, args, message: str, help: str) -> None:
    line = "for i in range(4):"
    expect(error, lambda: copied(*args()), message, line, line, help, "copied")


@weft.kernel
def filled(x: torch.Tensor, n: int, value: float = 1.0):
    for i in range(n):
        x[i] = value


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((x, 2.5), "`n` is annotated int, and a float was passed"),
        ((x, "3"), "`n` is annotated int, and a str was passed"),
        (([1.0], 3), "`x` is annotated torch.Tensor, and a list was passed"),
        ((x, 3, None), "`value` is annotated float, and None was passed"),
    ],
)
def test_arguments_of_the_wrong_kind(args, message: str) -> None:
    name = message.split("`")[1]
    expect(
        weft.KernelTypeError,
        lambda: filled(*args),
        message,
        "for i in range(n):",
        "for i in range(n):",
        f"pass what the annotation says, or change the annotation of `{name}`",
        "filled",
    )


def test_a_tensor_for_a_number() -> None:
    expect(
        weft.KernelTypeError, lambda: filled(x, x),
        "`n` is annotated int, and a tensor of shape (4,) was passed", "for i in range(n):",
        "for i in range(n):", "pass a number, or annotate `n: torch.Tensor`", "filled",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((x,), "missing a required argument: 'n'"),
        ((x, 1, 2.0, 3), "too many positional arguments"),
    ],
)
def test_wrong_number_of_arguments(args, message: str) -> None:
    line = "def filled(x: torch.Tensor, n: int, value: float = 1.0):"
    signature = "(x: torch.Tensor, n: int, value: float = 1.0)"
    if "from __future__ import annotations" in LINES:
        signature = "(x: 'torch.Tensor', n: 'int', value: 'float' = 1.0)"
    expect(
        weft.KernelTypeError, lambda: filled(*args), message, line, line,
        f"the kernel is filled{signature}", "filled",
    )  # fmt: skip
    looked = (filled.interpret, filled.inspect, filled.schedules, filled.cost,
              functools.partial(weft.compile_for, "sm_90", filled))  # fmt: skip
    for look in looked:
        with pytest.raises(weft.KernelTypeError) as raised:
            look(*args)
        assert raised.value.message == message


def test_the_shape_of_a_tensor_without_dimensions() -> None:
    @weft.kernel
    def f(x):
        for i in range(x.shape[0]):
            x[i] = 1.0

    expect(
        weft.KernelIndexError, lambda: f(torch.zeros(())), "subscript 0 of a tuple of 0",
        "for i in range(x.shape[0]):", "x.shape[0]",
        "it has none, as the shape of a tensor without dimensions",
    )  # fmt: skip


def test_shape_names_that_disagree() -> None:
    global Row
    Row = pytest.importorskip("jaxtyping").Float[torch.Tensor, "N"]

    @weft.kernel
    def f(a: Row, b: Row):
        for i in range(a.shape[0]):
            a[i] = b[i]

    expect(
        weft.KernelValueError, lambda: f(x, torch.ones(5)), "`N` is 4 in `a` and 5 in `b`",
        "def f(a: Row, b: Row):", "def f(a: Row, b: Row):", "dimensions of one name have one size",
    )  # fmt: skip


def test_two_sides_of_a_conditional() -> None:
    @weft.kernel
    def f(x):
        for i in range(4):
            x[i] = x[i] if i > 2 else x

    expect(
        weft.KernelTypeError,
        lambda: f(x),
        "one side is a scalar (f32) and the other a tensor of 1 dimension",
        "x[i] = x[i] if i > 2 else x",
        "x[i] if i > 2 else x",
        "make both sides of one type",
    )


def test_part_of_a_tensor_has_no_methods() -> None:
    @weft.kernel
    def f(x):
        for i in range(3):
            x[i, 0] = x[i].cumsum(0)

    expect(
        weft.KernelTypeError,
        lambda: f(x2),
        "a part of the tensor `x` has no method `cumsum` in a device loop",
        "x[i, 0] = x[i].cumsum(0)",
        "x[i].cumsum(0)",
        "write the loop over its elements",
    )


def test_division_of_constants_by_zero() -> None:
    @weft.kernel
    def f(x):
        for i in range(4):
            x[i] = 1 // 0

    expect(
        weft.KernelValueError,
        lambda: f(x),
        "ZeroDivisionError: integer division or modulo by zero",
        "x[i] = 1 // 0",
        "1 // 0",
        "change the constants",
    )


def test_reduction_into_a_tuple() -> None:
    @weft.kernel
    def f(x):
        v = (0.0, 1.0)
        for i in x:
            v += (x[i], 2.0)
        return v

    expect(
        weft.KernelTypeError, lambda: f(x),
        "`v` is a tuple of 2, and a parallel loop accumulates into numbers, and vectors and "
        "structs of them", "for i in x:", "for i in x:",
        "use one variable for each member, a weft.Struct, or accumulate into a tensor",
    )  # fmt: skip


def test_a_subscript_that_is_negative_in_every_iteration() -> None:
    """Python counts it from the end; a loop would write in front of the tensor."""

    @weft.kernel
    def reverse(x, o):
        for i in range(x.shape[0]):
            o[-i - 1] = x[i]

    @weft.kernel
    def inner(x, o):
        for i in range(x.shape[0]):
            for k in range(1, 3):
                o[i] += x[-k]

    @weft.kernel
    def fine(x, o):
        for i in range(x.shape[0]):
            o[i] = x[-1] + x[x.shape[0] - i - 1]
            if i > 0:
                o[i] += x[i - 1]
            if i < 0:
                o[i] += x[-i - 9]
            for k in range(i * 6 % 3):  # none
                o[i] += x[-k - 1]

    x, o = torch.arange(4.0), torch.zeros(4)
    for kernel, name, text in ((reverse, "o", "o[-i - 1]"), (inner, "x", "x[-k]")):
        with pytest.raises(weft.KernelIndexError) as caught:
            kernel(x, o)
        assert caught.value.message == (
            f"subscript 0 of `{name}` is negative in every iteration: only a literal is counted "
            "from the end"
        )
        assert caught.value.help == f"write {name}.shape[0] in front of it"
        assert text in str(caught.value)
    fine(x, o)
    assert o.tolist() == [6.0, 5.0, 5.0, 5.0]


def test_a_subscript_that_is_negative_in_one_iteration():
    """In one that there is whenever the loop runs; elsewhere it is the program's to know."""

    @weft.kernel
    def before(x, o):
        for i in x:
            o[i] = x[i - 1]

    @weft.kernel
    def corner(x, o):
        for i in range(x.shape[0]):
            for k in range(4, 0, -1):
                o[i] += x[i + k - 2]

    @weft.kernel
    def stored(x, o):
        for i in range(1, 9):
            o[7 - i] = x[0]

    @weft.kernel
    def of_both(x, o):
        for i in x:
            o[i] = weft.select(x[i - 1] > 0, x[i - 1], 0.0)

    @weft.kernel
    def fine(x, o, first: int):
        for i in range(x.shape[0]):
            o[i] = x[i - 1] if i else x[-1]
            for j in range(1, i):
                o[i] += x[i - 2] + x[j - 1]
            o[i] += x[(i - 1) % x.shape[0]] + x[max(i - 1, 0)]
            if i < 2:
                continue
            o[i] += x[i - 2]
        for i in range(first, x.shape[0]):
            o[i] += x[i - 1]
        for i in range(1):
            o[i] += x[-i]
            assert i > 5 or x[0] < 9
            while i > 5:
                o[i] = x[i - 6]

    x, o = torch.arange(4.0), torch.zeros(4)
    for kernel, name, text in (
        (before, "x", "x[i - 1]"), (corner, "x", "x[i + k - 2]"), (stored, "o", "o[7 - i]"),
        (of_both, "x", "x[i - 1]"),
    ):  # fmt: skip
        with pytest.raises(weft.KernelIndexError) as caught:
            kernel(x, o)
        assert caught.value.message == (
            f"subscript 0 of `{name}` is -1 in one iteration: only a literal is counted from the "
            "end"
        )
        assert f"count from the end by `% {name}.shape[0]`" in (caught.value.help or "")
        assert text in str(caught.value)
    fine(x, o, 1)
    expected = torch.zeros(4)
    fine.function(x, expected, 1)
    assert o.tolist() == expected.tolist()


def test_what_the_host_alone_knows_of_a_tensor_is_no_method():
    @weft.kernel
    def asks(x, o):
        for i in range(x.shape[0]):
            x[i] += 1
            o[i] = (x.grad is None) * 16.0 + x.is_leaf * 8.0 + x.itemsize
            if x.is_cuda or x.requires_grad or x.is_sparse or x.layout != torch.strided:
                o[i] = 99.0

    def first(t):
        return 1.0 if t.grad is None else 2.0

    @weft.kernel
    def in_a_function(x, o):
        for i in range(x.shape[0]):
            o[i] = first(x)

    other = torch.ones(3, requires_grad=True)
    other.sum().backward()
    for x in (torch.zeros(3), torch.zeros(3, dtype=torch.float64), other, torch.zeros(3)):
        out, expected = torch.zeros(3), torch.zeros(3)
        with torch.no_grad():
            asks(x, out)
            asks.function(x, expected)
        assert out.tolist() == expected.tolist()
    expect(
        weft.KernelTypeError, lambda: in_a_function(torch.zeros(3), torch.zeros(3)),
        "`.grad` of a tensor of 1 dimension is not known here",
        "return 1.0 if t.grad is None else 2.0", "t.grad",
        "ask for it by the name that the host part has for the tensor, and hand on the answer",
        kernel="in_a_function",
    )  # fmt: skip


def test_lists_and_dicts_that_a_loop_would_make_longer():
    @weft.kernel
    def collected(x):
        out = []
        for i in range(x.shape[0]):
            out.append(x[i])
        return out

    @weft.kernel
    def counted(x):
        for i in range(x.shape[0]):
            d = {}
            d[i] = x[i]

    expect(
        weft.KernelTypeError, lambda: collected(torch.zeros(3)),
        "a tuple of 0 has no attribute `append`", "out.append(x[i])", "out.append",
        "a list of the host part stays as it is in a loop whose iterations run at once: store into "
        "a tensor, or make the list in the loop", kernel="collected",
    )  # fmt: skip
    expect(
        weft.KernelTypeError, lambda: counted(torch.zeros(3)), "a dict gets another key",
        "d[i] = x[i]", "d[i] = x[i]",
        "make the dict with all of its keys, which are constants; by a number of run time there "
        "are elements of tensors and of lists", kernel="counted",
    )  # fmt: skip


def test_host_statements_in_a_loop_over_time_name_weft_serial():
    """The loop over ``t`` is one of the host part: each says so, whatever it is refused for."""

    def summed(x, o, n: int):
        for t in range(n):
            for i in range(x.shape[0]):
                o[i] = x[i] + t
            y = x.cumsum(0)  # noqa: F841

    def swapped(x, o, n: int):
        for t in range(n):
            for i in range(x.shape[0]):
                o[i] = x[i] + t
            x, o = o, x

    help = "if this is a loop of the host part: `for t in weft.serial(range(n))`"
    for function in (summed, swapped):
        with pytest.raises(weft.CompileError) as caught:
            weft.kernel(function)(torch.ones(3), torch.ones(3), 2)
        assert caught.value.help.endswith(help)
        assert caught.value.span.line == function.__code__.co_firstlineno + 4


def test_a_tensor_that_a_loop_without_loops_assigns():
    @weft.kernel
    def f(x, o):
        for i in range(o.shape[0]):
            x += o[i]

    with pytest.raises(weft.KernelSyntaxError) as caught:
        f(torch.ones(3), torch.ones(3))
    assert (caught.value.message, caught.value.help) == (
        "`x` is a tensor of 1 dimension: a device loop assigns its elements",
        "write x[...] = ...",
    )


def test_attributes_that_are_not_there_are_no_methods():
    @weft.kernel
    def fourth(x, o):
        for i in o:
            o[i] = weft.Vector([x[i], 2.0, 3.0]).w

    @weft.kernel
    def shape(x, o):
        for i in o:
            o[i] = x[i].shape

    for kernel, name, of, help in (
        (fourth, "w", "vector", "name an element that it has, as v.x or v[0]"),
        (shape, "shape", "element", "an element is a number: write `shape` of the tensor"),
    ):
        with pytest.raises(weft.KernelTypeError) as caught:
            kernel(torch.ones(3), torch.ones(3))
        assert caught.value.message == (
            f"this must be a scalar, and is `{name}`, which no such {of} has"
        )
        assert caught.value.help == help


@pytest.mark.parametrize("shape", [-2, "a", (2, -1), 2.5, (2, "b")])
def test_shapes_that_are_none(shape):
    with pytest.raises(weft.KernelValueError) as caught:
        weft.field(weft.f32, shape=shape)
    assert caught.value.message.endswith(f"integers from 0 on, and this is {shape!r}")
    assert caught.value.help == "write shape=128, or shape=(4, 128)"


def test_the_first_line_of_an_error_without_words_is_its_type() -> None:
    assert weft.errors.first_line(NotImplementedError()) == "NotImplementedError"
    assert weft.errors.first_line(ValueError("one\ntwo")) == "one"

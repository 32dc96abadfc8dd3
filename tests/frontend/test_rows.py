"""Rows as values: what the undecorated Python gives, the compiled loop gives, and `interpret`."""

from __future__ import annotations

import math

import pytest
import torch

import weft
from tests.fuzz.check import function as from_text

SHAPES = ((1, 1), (2, 3), (3, 17), (17, 2))


def rows(dtype: torch.dtype, shape: tuple[int, ...], *, strided: bool = False) -> torch.Tensor:
    made = torch.randn(*shape, 2) if strided else torch.randn(shape)
    made = made[..., 1] if strided else made
    return (made * 4).to(dtype) if not dtype.is_floating_point else made.to(dtype)


def check(function, *args, interpret: bool = True) -> None:
    """``function`` compiled and under ``interpret`` gives what it gives as it stands."""
    kernel = weft.kernel(function)

    def copies():
        return [a.clone(memory_format=torch.preserve_format) if isinstance(a, torch.Tensor) else a
                for a in args]  # fmt: skip

    expected, found = copies(), copies()
    function(*expected)
    kernel(*found)
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-5, equal_nan=True)
    if interpret:
        found = copies()
        kernel.interpret(*found)
        for a, b in zip(expected, found, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-5, equal_nan=True)


def reductions(x, out):
    for i in range(x.shape[0]):
        out[i, 0] = x[i].sum() + x[i, :].sum() + x[i, ...].sum() + sum(x[i])
        out[i, 1] = x[i].max() - x[i].min() + max(x[i]) + torch.amin(x[i])
        out[i, 2] = x[i].argmax() + len(x[i]) + x[i].shape[0] + x[i].numel()
        out[i, 3] = (x[i] > 0).sum() + (x[i] > 0).any() * 2 + torch.all(x[i] < 1) * 3
        out[i, 4] = torch.dot(x[i], x[i, :]) + x[i] @ x[i]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64])
def test_reductions(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        for strided in (False, True):
            check(reductions, rows(dtype, shape, strided=strided),
                  torch.full((shape[0], 5), math.nan, dtype=torch.float64))  # fmt: skip


def floats(x, y, w, out, v):
    for i in range(x.shape[0]):
        row = x[i]
        out[i] = row * 2 + y[i] - w
        out[i] += torch.exp(row) / (1 + y[i].abs())
        out[i, 0] = row.mean() + row.norm() + row.var(unbiased=False)
        v[i] = torch.logsumexp(row, 0) + torch.linalg.vector_norm(row) + row.std(correction=0)
        out[i] = torch.where(y[i] > 0, out[i], torch.softmax(row, 0)).clamp(min=-1.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_elementwise(dtype: torch.dtype) -> None:
    if dtype in (torch.float16, torch.bfloat16):  # computed in f32: compared with that
        x, y, w = (rows(dtype, s) for s in ((3, 17), (3, 17), (17,)))
        out, v = torch.full_like(x, math.nan), torch.full((3,), math.nan, dtype=dtype)
        wide = [t.float() for t in (x, y, w, out, v)]
        weft.kernel(floats)(x, y, w, out, v)
        floats(*wide)
        torch.testing.assert_close(out, wide[3].to(dtype), rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(v, wide[4].to(dtype), rtol=2e-2, atol=2e-2)
        return
    for n, m in SHAPES:
        x, y = (rows(dtype, (n, m), strided=True) for _ in range(2))
        out, v = torch.full((n, m), math.nan, dtype=dtype), torch.full((n,), math.nan, dtype=dtype)
        check(floats, x, y, rows(dtype, (m,)), out, v)


def slices(x, out, a: int, b: int):
    n = x.shape[0]
    for i in range(n):
        out[i, 0] = x[i, 1:].sum() + 2 * x[i, :-1].sum() + 3 * x[i, ::2].sum()
        out[i, 1] = x[i, a:b].sum() + x[i, i - 2 :].sum() + x[i, -3:].sum() + x[i, 1:100:3].sum()
        out[i, 2:] = x[i, 2:] * 2
        out[i, 2:][1:] -= x[i][2:][1:]
        out[i, -1] = x[i, 1:][-1]


@pytest.mark.parametrize(("a", "b"), [(0, 3), (-3, 10), (2, -1), (-100, 100), (4, 2), (7, 9)])
def test_slices_have_pythons_bounds(a: int, b: int) -> None:
    for n, m in ((1, 4), (3, 17), (2, 5)):
        check(slices, torch.randn(n, m), torch.full((n, m), math.nan), a, b)


def columns(x, out, s):
    for j in range(x.shape[1]):
        out[:, j] = x[:, j] - x[:, j].mean()
        s[j] = x[1:, j].sum() + x[0, j:].max()


def blocks(x, w, out, s):
    for i in range(x.shape[0]):
        out[i] = x[i].sum(0) + x[i].amax(dim=0) + x[i, :, 0].mean()
        out[i] += (x[i] * w).sum(dim=0, keepdim=False)
        s[i] = torch.relu(x[i, 0] @ w) + w @ x[i, 1]
        for row in x[i]:
            s[i, 0] += row.max()


def iterated(x, y, out):
    for i in range(x.shape[0]):
        s = 0.0
        for k, v in enumerate(x[i], 1):
            s = 0.5 * s + k * v
        for a, b in zip(x[i], y[i, 1:]):  # noqa: B905
            if a > 1:
                continue
            if b > 2:
                break
            s += a * b
        for v, k in zip(reversed(x[i]), reversed(range(3))):  # noqa: B905
            s += v * k
        out[i] = s


def test_columns_blocks_and_loops_over_rows() -> None:
    for n, m in ((2, 3), (5, 4)):
        check(columns, torch.randn(n, m), torch.full((n, m), math.nan), torch.empty(m))
        out, s = torch.full((n, m), math.nan), torch.full((n, m), math.nan)
        check(blocks, torch.randn(n, m, m), torch.randn(m, m), out, s)
        check(iterated, torch.randn(n, m), torch.randn(n, m), torch.empty(n))


def views(x, out):
    for i in range(x.shape[0]):
        row = x[i]
        e = torch.exp(row - row.max())
        out[i] = e / e.sum()
        row += 1  # a view, as in Python
        row[0] = 5.0
        x[i] *= 2
        x[i] = x[i] - x[i].mean()


def test_a_row_of_a_tensor_is_a_view() -> None:
    check(views, torch.randn(3, 5), torch.full((3, 5), math.nan))


def ints(x, y, out):
    for i in range(x.shape[0]):
        out[i] = x[i] * y[i, 0] + x[i].sum()


def test_a_number_of_the_same_sort_takes_the_rows_dtype() -> None:
    """As 0-d tensors in torch: i8 times an i32 element wraps at 8 bits."""
    x = torch.randint(-128, 127, (3, 5), dtype=torch.int8)
    y = torch.randint(-1000, 1000, (3, 5), dtype=torch.int32)
    check(ints, x, y, torch.empty(3, 5, dtype=torch.int64))


def complex_rows(x, y, out, s):
    for i in range(x.shape[0]):
        out[i] = x[i] * y[i] + x[i].sum()
        s[i] = x[i].norm() + x[i].abs().max()


def test_complex_rows() -> None:
    x, y = (torch.randn(3, 4, dtype=torch.complex64) for _ in range(2))
    check(complex_rows, x, y, torch.empty_like(x), torch.empty(3), interpret=False)


def complex_parts(x, y, out, s):
    for i in range(x.shape[0]):
        out[i] = x[i].prod() * y[i, :0].prod()
        s[i] = (
            (x[i].real ** 2 + x[i].imag ** 2).max() + (x[i] * y[i]).imag.sum() + x[i].real.real[0]
        )
        for v in y[i, 1:].imag:
            s[i] += v


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_parts_and_products_of_complex_rows(dtype: torch.dtype) -> None:
    x, y = (torch.randn(3, 4, dtype=dtype) for _ in range(2))
    check(complex_parts, x, y, torch.empty_like(x), x.new_empty(3).real)


@pytest.mark.parametrize(
    ("text", "message", "help"),
    [
        ("x[0].imag.sum()", "`.imag` of a part of the tensor `x`",
         "real numbers have no imaginary part"),
        ("x[0, 0].imag", "`.imag` of a scalar (f32)", "real numbers have no imaginary part"),
        ("x[i].T[0]", "`.T` of a part of the tensor `x` is not known here",
         "write the subscripts in the order that is meant"),
        ("x[i].requires_grad", "`.requires_grad` of a part of the tensor `x` is not known here",
         "ask for it of the tensor, in the host part"),
    ],
)  # fmt: skip
def test_attributes_that_rows_do_not_have(text: str, message: str, help: str) -> None:
    body = f"    for i in range(out.shape[0]):\n        out[i] = {text}\n"
    kernel = weft.kernel(from_text(f"def kernel(x, out):\n{body}"))
    with pytest.raises(weft.KernelTypeError) as raised:
        kernel(torch.ones(3, 4), torch.zeros(3))
    assert (raised.value.message, raised.value.help) == (message, help)


def test_gradients() -> None:
    @weft.kernel
    def normalised(x, w):
        out, s = torch.empty_like(x), x.new_empty(x.shape[0])
        for i in range(x.shape[0]):
            r = x[i]
            out[i] = (r - r.mean()) / torch.sqrt(r.var(unbiased=False) + 1e-5) * w[0]
            out[i, 1:] += torch.softmax(r, 0)[1:] * r[:-1]
            s[i] = torch.dot(r, w[1]) / r.norm() + r.max() + torch.logsumexp(r, 0)
        return out, s

    @weft.kernel
    def product(x, w):
        out = x.new_empty(x.shape[0], w.shape[1])
        for i in range(x.shape[0]):
            out[i] = torch.tanh(x[i] @ w)
        return out

    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(normalised, (x, torch.randn(2, 4).double().requires_grad_()))
    assert torch.autograd.gradcheck(product, (x, torch.randn(4, 3).double().requires_grad_()))


def test_the_norm_of_zeros_has_the_derivative_zero() -> None:
    @weft.kernel
    def norms(x):
        out = x.new_empty(x.shape[0])
        for i in range(x.shape[0]):
            out[i] = x[i].norm()
        return out

    x = torch.zeros(2, 3, requires_grad=True)
    norms(x).sum().backward()
    assert (x.grad == 0).all()


def refused(function, *args) -> str:
    with pytest.raises(weft.WeftError) as caught:
        weft.kernel(function)(*args)
    return str(caught.value).split(": ", 2)[-1].split("\n")[0]


def test_lengths_are_compared_when_it_runs() -> None:
    def added(x, y, out):
        for i in range(x.shape[0]):
            out[i] = x[i] + y[i]

    def stored(x, y, out):
        for i in range(x.shape[0]):
            out[i] = x[i, 1:]

    def dotted(x, y, out):
        for i in range(x.shape[0]):
            out[i, 0] = torch.dot(x[i], y[i])

    def largest(x, y, out):
        for i in range(x.shape[0]):
            out[i, 0] = x[i, 5:].max()

    x, y, out = torch.randn(2, 4), torch.randn(2, 3), torch.zeros(2, 4)
    assert refused(added, x, y, out).startswith("rows of different lengths meet")
    assert refused(stored, x, y, out) == "a row is stored into one of another length"
    assert refused(dotted, x, y, out) == "the inner sizes of a product differ"
    assert refused(largest, x, y, out) == "`max` of no elements"


def test_what_would_change_its_meaning_is_refused() -> None:
    def late(x, out):
        for i in range(x.shape[0]):
            e = x[i] * 2
            x[i] = 0.0
            out[i] = e

    def later(x, out):
        for i in range(x.shape[0]):
            e = x[i] * 2
            for _ in range(2):
                out[i] = e
                x[i] += 1

    def shifted(x, out):
        for i in range(x.shape[0]):
            x[i, 1:] = x[i, :-1] * 2

    def changed(x, out):
        for i in range(x.shape[0]):
            e = x[i] * 2
            e += 1

    def twice(x, out):
        for i in range(x.shape[0]):
            out[i] = (x[i] @ x) @ x

    x, out = torch.randn(3, 3), torch.zeros(3, 3)
    message = "`e` is computed of `x`, which is stored into before it is used"
    assert refused(late, x, out) == refused(later, x, out) == message
    assert refused(shifted, x, out) == "this reads `x` while it overwrites it, at other places"
    assert refused(changed, x, out) == (
        "a computed row is a value, into which nothing can be stored"
    )
    assert refused(twice, x, out) == (
        "each element of this row takes a loop, and would be computed many times"
    )


def zeroed(x, i):
    x[i] = 0.0
    return 1.0


def items_behind(x, out):
    for i in range(x.shape[0]):
        for j, v in enumerate(2.0 * x[i]):
            x[i, j] = v + 1
        for j, v in zip(range(3), x[i] * x[i], strict=True):
            x[i, j] += v
        for j, v in enumerate(x[i, 1:] - x[i, :-1]):
            if v > 0:
                x[i, j] = v
                continue
            x[i, j] -= v
        s = 0.0
        for v in x[i] * 2.0:
            s += v
            x[i, 0] = s
            out[i, 1] += v
        for v in x[i]:  # a part is no copy
            x[i, 2] += v
        for j, v in enumerate(0.5 * x[i]):  # that is left is one over what it carries
            if v > 0.9:
                break
            x[i, j] += v
            if x[i, 0] > 1.5:
                break
        for j, (v, w) in enumerate(zip(x[i] * 0.5, out[i] + x[i], strict=True)):
            x[i, 0] += v
            out[i, j] = v - w
            if out[i, 1] < 0:
                break
        for v in x[i, 1:] * 0.5:
            x[i, 1] += v
            x[i, 0] -= v
            if v < -0.3:
                break
        t = sum(v for v in x[i] * 2.0)
        for _ in range(2):
            x[i, 1] += max(x[i] * 2.0) + t


def test_items_of_what_is_computed_are_stored_behind_their_turn() -> None:
    x, out = torch.randn(5, 3, dtype=torch.float64), torch.zeros(5, 3, dtype=torch.float64)
    expected = x.clone(), out.clone()
    items_behind(*(t.numpy() for t in expected))
    weft.kernel(items_behind)(x, out)
    torch.testing.assert_close((x, out), expected)


def test_items_of_what_is_computed_are_no_later_numbers() -> None:
    """Python computes all of them before the first turn."""

    def ahead(x, out):
        for i in range(x.shape[0]):
            for j, v in enumerate(x[i] * 2.0):
                x[i, (j + 1) % 3] += v

    def whole(x, out):
        for i in range(x.shape[0]):
            for v in 1.0 * x[i]:
                x[i] = x[i] * 0.5 + v

    def backward(x, out):
        for i in range(x.shape[0]):
            for v in reversed(x[i] * 2.0):
                x[i, 0] = v

    def left(x, out):
        for i in range(x.shape[0]):
            for j, v in enumerate(x[i] + 1.0):
                x[i, max(j, 1)] += v
                if v < 0:
                    break

    def left_late(x, out):
        for i in range(x.shape[0]):
            for v in x[i] + 1.5:
                if v < 0:
                    break
                x[i, 1] += v

    def rows(x, out):
        for i in range(out.shape[0]):
            for r in 2.0 * x:
                x[1, i] = r.sum()

    x, out = torch.randn(3, 3), torch.zeros(3, 3)
    for plain, what in ((ahead, "enumerate(x[i] * 2.0)"), (whole, "1.0 * x[i]"),
                        (left, "enumerate(x[i] + 1.0)"), (left_late, "x[i] + 1.5"),
                        (backward, "reversed(x[i] * 2.0)"), (rows, "2.0 * x")):  # fmt: skip
        message = f"`{what}` is computed of `x`, which is stored into before it is used"
        assert refused(plain, x, out) == message

    def exchanged(x, out):
        for i in range(x.shape[0]):
            x[i], out[i] = out[i] * 1.0, x[i] * 1.0

    def by_a_call(x, out):
        for i in range(x.shape[0]):
            out[i] = x[i] * 2.0 + zeroed(x, i)

    message = "what is stored here is computed of `x`, which is stored into before it is used"
    assert refused(exchanged, x, out) == refused(by_a_call, x, out) == message

    def apart(x, out):
        for i in range(x.shape[0]):
            for j, v in enumerate(x[i] * 2.0):
                out[i, (j + 1) % 3] += v

    weft.kernel(apart)(x, out)
    with pytest.raises(weft.KernelValueError, match="share"):
        weft.kernel(apart)(x, x)


def test_arguments_that_share_memory() -> None:
    """Python computes a row before it stores it; one tensor passed twice is no harm."""

    def doubled(x, out):
        for i in range(x.shape[0]):
            out[i] = x[i] * 2

    base = torch.randn(3, 5)
    expected = base[:, :4] * 2
    kernel = weft.kernel(doubled)
    kernel(base[:, :4], base[:, :4])
    assert torch.equal(base[:, :4], expected)
    assert refused(doubled, base[:, :4], base[:, 1:]) == (
        "`out` and `x` share memory, and the loop stores rows that are computed of rows"
    )


def test_races_between_rows_are_found() -> None:
    def carried(x):
        for i in range(1, x.shape[0]):
            x[i] = x[i - 1] * 2

    with pytest.raises(weft.RaceError):
        weft.kernel(carried)(torch.zeros(3, 2))
    with pytest.raises(weft.RaceError):
        weft.kernel(carried).interpret(torch.zeros(3, 2))


def either_row(x, i):
    if i % 3 == 0:
        return x[i]
    if i % 3 == 1:
        return x[0]
    return x[:, 1][: x.shape[1]]


def one_of_two(x, y, k, out):
    for i in range(x.shape[0]):
        row = x[i] if i % 2 else y[i]
        other = x[k[i]] if k[i] >= 0 else x[0, :]
        a, b = (x[i], y[0]) if other[0] > 0 else (y[i], x[0])
        third = x[i, 1:] if k[i] > 1 else y[i, :-1] if k[i] > 0 else x[0, 1:]
        if row.sum() > 0:
            row = y[1]
        whole = x if k[i] > 0 else y
        out[i] = row.sum() * 2 + other.max() + torch.dot(a, b) + third.mean() + whole[i, 1]
        for v in either_row(x, i):
            out[i] = out[i] * 0.5 + v


def one_of_two_is_stored_into(x, y, k, out):
    for i in range(x.shape[0]):
        row = x[i] if k[i] > 0 else y[i]
        row[0] = i
        row += 1.5
        out[i] = row[1]


@pytest.mark.parametrize("function", [one_of_two, one_of_two_is_stored_into])
def test_rows_that_a_condition_chooses(function) -> None:
    x, y = torch.randn(2, 5, 4, dtype=torch.float64).unbind()
    k = torch.tensor([1, -1, 3, 2, 0])
    wanted = [x.clone(), y.clone(), k, torch.zeros(5, dtype=torch.float64)]
    found = [v.clone() for v in wanted]
    function(*wanted)
    weft.kernel(function)(*found)
    torch.testing.assert_close(found, wanted)


def test_gradients_of_rows_that_a_condition_chooses() -> None:
    @weft.kernel
    def chosen(x, y):
        out = torch.empty(x.shape[0], dtype=x.dtype)
        for i in range(x.shape[0]):
            row = x[i] if i % 2 else y[i]
            other = x[0, 1:] if y[i, 0] > 0 else x[1, :-1]
            out[i] = (row[1:] * other).sum()
        return out

    given = [torch.randn(4, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(chosen, given)


def test_rows_of_several_types_are_no_value() -> None:
    @weft.kernel
    def mixed(x, m, out):
        for i in range(3):
            row = x[i] if i % 2 else m[i]
            out[i] = row[0]

    with pytest.raises(weft.KernelTypeError, match="one side is a part of the tensor `x` and"):
        mixed(torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.int32), torch.empty(3))


def unpacked(x, y, out):
    for i in range(x.shape[0]):
        a, b = x[i]
        (c, d), e, f = y[i]
        s = 0.0
        for p, q in y[i]:
            s += p * q
        for k, (p, q) in enumerate(y[i]):
            s += k * p - q
        low, high = x[i] * 2
        out[i] = a * 2 + b + c * d + e.sum() + f[1] + s + high - low


def test_a_row_is_unpacked_into_names():
    x, y = (torch.randn(n, dtype=torch.float64) for n in ((6, 2), (6, 3, 2)))
    out = torch.zeros(2, 6, dtype=torch.float64)
    unpacked(x, y, out[0])
    weft.kernel(unpacked)(x, y, out[1])
    torch.testing.assert_close(out[1], out[0])
    with pytest.raises(weft.KernelAssertionError, match="unpacked into 2 names, and has another"):
        weft.kernel(unpacked)(torch.randn(6, 3), y, out[1])

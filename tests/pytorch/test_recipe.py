"""Host parts that are carried out without Python."""

import itertools
from typing import Any

import pytest
import torch

import weft
from tests.pytorch.test_boxed import by_python, learned
from weft.pytorch.recipe import Computed, Fresh, Made, Number, Size, recipe_of
from weft.runtime import stable

needs_code = pytest.mark.skipif(bool(stable.missing()), reason=stable.missing())
numbers = itertools.count()
rate = 0.5


def kernel(function: Any) -> Any:
    return weft.kernel(namespace=f"weft_recipe_{next(numbers)}")(function)


@kernel
def conv(w: torch.Tensor, k: torch.Tensor, eps: float) -> torch.Tensor:
    """A docstring."""
    B, C, T = k.shape
    out = torch.empty_like(k)
    for b, c, t in weft.ndrange(B, C, T):
        s = eps
        for u in range(t + 1):
            s += w[c, T - 1 - t + u] * k[b, c, u]
        out[b, c, t] = s
    return out


@kernel
def several(x: torch.Tensor, y: torch.Tensor) -> Any:
    rows = x.shape[0]
    n = x.shape[-1]
    sums = torch.zeros_like(x)
    unused = torch.empty_like(x)
    copies = torch.empty_like(y)
    for i, j in weft.ndrange(rows, n):
        unused[i, j] = x[i, j] * rate
        sums[i, j] += unused[i, j] + n
        if i == 0:
            copies[j] = y[j]
    return copies, sums


def test_what_is_known_of_a_host_part() -> None:
    recipe = recipe_of(conv)
    assert recipe is not None
    assert recipe.places == (Size(1, 0), Size(1, 1), Size(1, 2), 2, 0, 1, Fresh(0))
    assert recipe.made == (Made(1),)
    assert recipe.returned == (0,)
    recipe = recipe_of(several)
    assert recipe is not None
    assert recipe.made == (Made(0, zeros=True), Made(0), Made(1))
    assert recipe.returned == (2, 0)


@kernel
def windows(x: torch.Tensor, w: torch.Tensor, n: int) -> torch.Tensor:
    H, W = x.shape[0] - n % 3, 2 * x.shape[1]
    r = w.shape[0] // 2
    middle, last = -(n // 2), x.shape[-1] - 1
    out = torch.empty(H, W // 2, 2, dtype=torch.float64)
    for i, j, k in weft.ndrange(H, last + 1, 2):
        s = 0.0
        for a in range(w.shape[0]):
            at = j + a - r
            if at >= 0 and at <= last:
                s += w[a] * x[i, at]
        out[i, j, k] = s + middle * k
    return out


@kernel
def of_the_same_kind(x: torch.Tensor, n: int) -> Any:
    rows, columns = x.shape
    out, sums = x.new_empty((columns, rows)), x.new_zeros(n, dtype=torch.int64)
    for i, j in weft.ndrange(columns, rows):
        out[i, j] = x[j, i] * 2
    return out, sums


@kernel
def counted(x: torch.Tensor, n: int) -> Any:
    out = torch.zeros((n + 1,), dtype=x.dtype, device=x.device)
    ends = x.new_empty(n)
    for k in range(n):
        out[k] = x[k % x.shape[0]] * k
        ends[k] = k
    return ends, out


def test_numbers_that_are_computed_of_sizes() -> None:
    recipe = recipe_of(windows)
    assert recipe is not None
    r = Computed("//", Size(1, 0), Number(2))
    assert r in recipe.places
    assert (recipe.whole, recipe.defaults) == ({2}, False)
    assert recipe.sizes == {Size(1, 0), Size(0, 0), Size(0, 1), Size(0, -1)}
    (made,) = recipe.made
    width = Computed("*", Number(2), Size(0, 1))
    assert made.sizes is not None
    assert made.sizes[1:] == (Computed("//", width, Number(2)), Number(2))
    assert (made.dtype, made.device) == (torch.float64, None)
    recipe = recipe_of(counted)
    assert recipe is not None
    assert [(m.dtype, m.device, m.zeros) for m in recipe.made] == [(0, 0, True), (0, 0, False)]
    recipe = recipe_of(of_the_same_kind)
    assert recipe is not None, "two tensors in one statement"
    assert [(m.dtype, m.zeros) for m in recipe.made] == [(0, False), (torch.int64, True)]
    assert recipe.returned == (0, 1)


@needs_code
def test_machine_code_makes_two_tensors_of_one_statement() -> None:
    x = torch.randn(5, 7)
    code = learned(of_the_same_kind, x, 4)
    assert by_python(code, lambda: of_the_same_kind.op(x, 3)) == 0
    doubled, zeros = of_the_same_kind.op(x, 3)
    assert torch.equal(doubled, 2 * x.T)
    assert zeros.tolist() == [0, 0, 0]


@needs_code
def test_machine_code_computes_them() -> None:
    """As Python does; what it cannot goes to Python, which has the errors."""
    code = learned(windows, torch.randn(5, 6), torch.randn(3), 4)
    plain = windows.function
    for rows, columns, taps, n in ((5, 6, 3, 4), (2, 17, 4, 7), (3, 1, 1, -1), (3, 2, 0, -7),
                                   (2, 0, 2, 2)):  # fmt: skip
        x, w = torch.randn(rows, columns), torch.randn(taps)
        made: list[Any] = []
        counted_calls = by_python(code, lambda a=(x, w, n): made.append(windows.op(*a)))  # noqa: B023
        assert counted_calls == 0
        torch.testing.assert_close(made[0], plain(x, w, n), rtol=1e-6, atol=1e-6)
        assert made[0].is_contiguous()
    with pytest.raises(RuntimeError, match="negative dimension"):
        windows.op(torch.randn(1, 3), torch.randn(1), 2)
    code = learned(counted, torch.randn(4), 3)
    for n in (0, 1, 3, 127):
        x = torch.randn(5)
        made = []
        assert by_python(code, lambda a=(x, n): made.append(counted.op(*a))) == 0  # noqa: B023
        torch.testing.assert_close(made[0], counted.function(x, n))
    with pytest.raises(TypeError, match="Overflow when unpacking"):
        counted.op(torch.randn(4), 2**63 - 1)


@kernel
def divided(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty(x.shape[0] // n, x.shape[0] % n, dtype=torch.float32)
    for i, j in weft.ndrange(out.shape[0], out.shape[1]):
        out[i, j] = x[i]
    return out


@needs_code
def test_a_division_that_python_refuses_or_rounds() -> None:
    x = torch.randn(7)
    code = learned(divided, x, 3)
    with pytest.raises(ZeroDivisionError):
        divided.op(x, 0)
    with pytest.raises(RuntimeError, match="negative dimension"):
        divided.op(x, -2)
    assert by_python(code, lambda: divided.op(x, 4)) == 0


@needs_code
def test_the_gradient_of_a_kernel_that_makes_tensors_of_sizes_of_its_own() -> None:
    op = counted.op
    learned(counted, torch.randn(4), 3)
    for n in (3, 3, 6, 1):
        x = torch.randn(4, requires_grad=True)
        ends, out = op(x, n)
        (grad,) = torch.autograd.grad((out * torch.arange(n + 1)).sum() + ends.sum(), x)
        expected = [sum(k * k for k in range(n) if k % 4 == i) for i in range(4)]
        assert grad.tolist() == expected


def test_a_jagged_tensor_whose_sizes_are_computed_with_is_refused() -> None:
    @kernel
    def shifted(x: torch.Tensor) -> torch.Tensor:
        half = x.shape[0] // 2
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] + half
        return out

    parts = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    with pytest.raises(weft.errors.KernelTypeError, match="computes with the number of rows"):
        shifted(parts)


def branches(x):
    out = torch.empty_like(x)
    if x.shape[0] > 3:
        out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i]
    return out


def after(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i]
    return out * 2


def view(x):
    out = torch.empty_like(x).view(-1)
    for i in range(x.shape[0]):
        out[i] = x[i]
    return out


def twice(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i]
    return out, out


def again(x):
    x = torch.zeros_like(x)
    for i in range(x.shape[0]):
        x[i] += 1
    return x


def other_type(x):
    out = torch.empty_like(x, dtype=torch.float64)
    for i in range(x.shape[0]):
        out[i] = x[i]
    return out


def reduced(x):
    s = 0.0
    for i in range(x.shape[0]):
        s += x[i]
    return s


def converted(x, n: weft.i32):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] + n
    return out


@pytest.mark.parametrize("function", [branches, after, view, twice, again, other_type, converted])
def test_other_host_parts(function: Any) -> None:
    assert recipe_of(kernel(function)) is None


@needs_code
def test_tensors_that_are_made() -> None:
    x, y = torch.randn(3, 4), torch.randn(4)
    code = learned(several, x, y)
    assert [made.zeros for form in code._known for made in form.made] == [True, False, False]
    for rows, n in ((3, 4), (5, 7), (0, 2), (2, 0)):
        x, y = torch.randn(rows, n), torch.randn(n)
        made = []
        assert by_python(code, lambda x=x, y=y: made.extend(several.op(x, y))) == 0  # noqa: B023
        copies, sums = made
        torch.testing.assert_close(sums, x * 0.5 + n)
        assert sums.is_contiguous()
        assert not sums.requires_grad
        if rows:
            assert torch.equal(copies, y)
    turned = torch.randn(4, 3).t()  # torch.empty_like has its strides
    _, sums = several.op(turned, torch.randn(4))
    assert sums.stride() == (1, 3)
    torch.testing.assert_close(sums, turned * 0.5 + 4)


@kernel
def sizes_alone(x: torch.Tensor, out: torch.Tensor) -> None:
    n = x.shape[0]
    for i in range(out.shape[0]):
        out[i] = n


@needs_code
def test_an_argument_that_the_loop_does_not_get() -> None:
    out = torch.zeros(3)
    code = learned(sizes_alone, torch.zeros(5), out)
    assert by_python(code, lambda: sizes_alone.op(torch.zeros(6), out)) == 0
    assert out.tolist() == [6.0] * 3
    other = torch.zeros(7, dtype=torch.complex64)  # no loop takes such
    for _ in range(9):
        sizes_alone.op(other, out)
    assert out.tolist() == [7.0] * 3


@needs_code
def test_strides_are_those_of_empty_like() -> None:
    x = torch.randn(8, 4)[:1]
    x = torch.as_strided(x, (1, 4), (100, 1))
    y = torch.randn(4)
    code = learned(several, x, y)
    made: list[Any] = []
    assert by_python(code, lambda: made.extend(several.op(x, y))) == 0
    assert made[1].stride() == torch.zeros_like(x).stride() == (100, 1)


@needs_code
def test_gradients_go_by_python() -> None:
    w, k = torch.randn(4, 6), torch.randn(2, 4, 6)
    code = learned(conv, w, k, 0.1)
    wanted = w.clone().requires_grad_()
    out = conv.op(wanted, k, 0.1)
    out.sum().backward()
    own = w.clone().requires_grad_()
    conv(own, k, 0.1).sum().backward()
    torch.testing.assert_close(wanted.grad, own.grad)
    with torch.inference_mode():
        made = []
        assert by_python(code, lambda: made.append(conv.op(w, k, 0.1))) == 0
    torch.testing.assert_close(made[0], conv(w, k, 0.1))


@needs_code
def test_what_is_read_around_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.randn(3, 4), torch.randn(4)
    code = learned(several, x, y)
    monkeypatch.setitem(globals(), "rate", 2.0)
    torch.testing.assert_close(several.op(x, y)[1], x * 2 + 4)
    monkeypatch.undo()
    made: list[Any] = []

    def empty_like(x: torch.Tensor) -> torch.Tensor:
        made.append(x)
        return torch.zeros_like(x)

    assert not code._known  # the number may change again
    w, k = torch.randn(4, 6), torch.randn(2, 4, 6)
    learned(conv, w, k, 0.1)
    monkeypatch.setattr(torch, "empty_like", empty_like)
    with torch.inference_mode():
        conv.op(w, k, 0.1)
    assert made


def test_a_loop_over_no_elements_has_no_step() -> None:
    w, k = torch.randn(4, 6), torch.randn(2, 4, 6)
    assert conv(w[:, :0], k[..., :0], 0.1).shape == (2, 4, 0)

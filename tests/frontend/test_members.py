"""Lists, tuples, dicts and dataclasses of tensors as arguments: the undecorated Python is the
oracle."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

import weft


class Pair(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor


@dataclass
class Layer:
    a: torch.Tensor
    weights: list[torch.Tensor]
    scale: float

    def at(self, i):
        return self.a[i] * self.scale + self.weights[0][i]


def tensors(count: int = 3, size: int = 7) -> list[torch.Tensor]:
    return [torch.randn(size, dtype=torch.float64) for _ in range(count)]


def by_constants(xs, out):
    for i in range(out.shape[0]):
        out[i] = xs[0][i] + xs[-1][i] * len(xs)


def unrolled(xs, out):
    for i in range(out.shape[0]):
        s = 0.0
        for k, x in enumerate(reversed(xs[1:])):
            s += x[i] * k
        out[i] = s + sum(x[i] for x in xs) + max(x[i] for x in xs)


def zipped(xs, ws, out):
    for i in range(out.shape[0]):
        for x, w in zip(xs, ws):  # noqa: B905
            out[i] += x[i] * w[i]


def chosen(xs, out):
    for i in range(out.shape[0]):
        out[i] = xs[i % 3][i] * 2


def helper(xs, k, i):
    return xs[k][i] + xs[0][i]


def chosen_in_a_function(xs, out):
    for i in range(out.shape[0]):
        out[i] = helper(xs, (i + 1) % 3, i)


def chosen_in_a_loop(xs, out):
    for i in range(out.shape[0]):
        s = 0.0
        for k in range(len(xs)):
            s += xs[k][i]
        out[i] = s


def rows(xs, out):
    for i in range(out.shape[0]):
        x = xs[i % 3]
        s = 0.0
        for v in x[2:]:
            s += v * x.shape[0]
        out[i] = x.sum() + x[1:].max() + s


def stores(xs, out):
    for i in range(out.shape[0]):
        xs[i % 3][i] = out[i]


def updates(xs, out):
    for i in range(out.shape[0]):
        xs[i % 3][i] += out[i]
        xs[(i + 1) % 3][i] /= 2
        for x in xs:
            x[i] -= 0.5


def stores_rows(xs, out):
    for i in range(3):
        xs[i][1:] = xs[i][1:] * 2 + out[i]


def dicts(d, out):
    for i in range(out.shape[0]):
        out[i] = d["a"][i] - d["b"][i]


def nested(t, out):
    for i in range(out.shape[0]):
        out[i] = t[i % 2][0][i] * t[1][1][i]


def named(p, out):
    for i in range(out.shape[0]):
        a, b = p
        out[i] = p.a[i] - b[i] + a[i]


def dataclasses(layer, out):
    for i in range(out.shape[0]):
        out[i] = layer.at(i) + layer.weights[1][i]


def with_numbers(pairs, out):
    for i in range(out.shape[0]):
        for x, c in pairs:
            out[i] += c * x[i]


def of_the_host_part(xs, out):
    doubled = [x * 2 for x in xs]
    for i in range(out.shape[0]):
        out[i] = doubled[i % 3][i]


def of_the_loop(a, b, out):
    for i in range(out.shape[0]):
        xs = [a, b]
        s = 0
        for x in xs:
            s += x[i]
        out[i] = s + xs[i % 2][i]


def rows_of_the_loop(a, out):
    for i in range(2):
        rs = [a[0], a[1], a[0, 1:]]
        ws = [out[2:4], out[4:6]]
        ws[i][1] = rs[1 - i][0] * 3
        out[i] = rs[(i + 1) % 3][1] + rs[i + 1].sum()


CASES: list[tuple[Callable[..., None], Callable[[], list[Any]]]] = [
    (by_constants, lambda: [tensors()]), (unrolled, lambda: [tensors()]),
    (zipped, lambda: [tensors(), tuple(tensors())]), (chosen, lambda: [tuple(tensors())]),
    (chosen_in_a_function, lambda: [tensors()]), (chosen_in_a_loop, lambda: [tensors()]),
    (rows, lambda: [tensors()]), (stores, lambda: [tensors()]), (updates, lambda: [tensors()]),
    (stores_rows, lambda: [tensors()]), (named, lambda: [Pair(*tensors(2))]),
    (dicts, lambda: [dict(zip("ab", tensors(2), strict=True))]),
    (nested, lambda: [(tuple(tensors(2)), tuple(tensors(2)))]),
    (dataclasses, lambda: [Layer(tensors(1)[0], tensors(2), 0.25)]),
    (with_numbers, lambda: [list(zip(tensors(2), (2.5, 3), strict=True))]),
    (of_the_host_part, lambda: [tensors()]), (of_the_loop, lambda: tensors(2)),
    (rows_of_the_loop, lambda: [torch.randn(2, 5, dtype=torch.float64)]),
]  # fmt: skip


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, Layer):
        value = [value.a, value.weights]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [t for item in value for t in flat(item)]
    return [value] if isinstance(value, torch.Tensor) else []


@pytest.mark.parametrize(("function", "make"), CASES, ids=lambda c: getattr(c, "__name__", ""))
def test_members_are_what_they_are_in_python(function, make) -> None:
    kernel = weft.kernel(function)
    for _ in range(2):
        args = [*make(), torch.full((7,), 1.5, dtype=torch.float64)]
        expected = copy.deepcopy(args)
        function(*expected)
        kernel(*args)
        torch.testing.assert_close(flat(args), flat(expected))
    assert len(kernel.specializations) == 1  # other tensors, the same code


def test_lists_of_other_lengths_and_types_are_specialised() -> None:
    kernel = weft.kernel(chosen_in_a_loop)
    for count, dtype in ((1, torch.float64), (2, torch.float32), (2, torch.float64)):
        xs, out = [x.to(dtype) for x in tensors(count)], torch.empty(7, dtype=dtype)
        kernel(xs, out)
        torch.testing.assert_close(out, sum(xs[1:], xs[0]))
    assert len(kernel.specializations) == 3


def test_starred_parameters() -> None:
    @weft.kernel
    def added(out, *xs: torch.Tensor, **named: torch.Tensor):
        for i in out:
            out[i] = sum(x[i] for x in xs) + named["last"][i]

    a, b, c = tensors()
    out = torch.empty_like(a)
    added(out, a, b, last=c)
    torch.testing.assert_close(out, a + b + c)


@weft.kernel
def product(xs):
    out = torch.empty_like(xs[0])
    for i in out:
        out[i] = xs[i % 2][i] * xs[0][i] + sum(x[i] for x in xs)
    return out


def of_torch(xs):
    place = torch.arange(xs[0].shape[0]) % 2
    return torch.where(place == 0, xs[0], xs[1]) * xs[0] + sum(xs)


def test_derivatives() -> None:
    xs = tensors(2)
    assert torch.autograd.gradcheck(lambda *x: product([*x]), [x.requires_grad_() for x in xs])


@pytest.mark.slow
def test_transforms() -> None:
    plain = tensors(2)
    found = torch.func.grad(lambda xs: product(xs).sum())(plain)
    torch.testing.assert_close(found, torch.func.grad(lambda xs: of_torch(xs).sum())(plain))
    samples = [torch.randn(3, 7, dtype=torch.float64) for _ in range(2)]
    found = torch.vmap(lambda a, b: product([a, b]))(*samples)
    torch.testing.assert_close(found, torch.vmap(lambda a, b: of_torch([a, b]))(*samples))
    found = torch.func.jvp(lambda *x: product([*x]), (*plain,), (*tensors(2),))
    torch.testing.assert_close(found[0], of_torch(plain))


def test_a_dict_that_a_transform_could_not_see_is_refused() -> None:
    @weft.kernel
    def doubled(d):
        out = torch.empty_like(d["x"])
        for i in out:
            out[i] = 2 * d["x"][i]
        return out

    x = torch.ones(3, requires_grad=True)
    doubled({"x": x}).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 3
    with pytest.raises(weft.KernelTypeError, match="`d` is a dict of tensors, of which"):
        torch.func.grad(lambda d: doubled(d | {"y": object()}).sum())({"x": x.detach()})
    found = torch.func.grad(lambda d: doubled(d).sum())({"x": x.detach()})
    assert found["x"].tolist() == [2.0] * 3


def test_members_that_share_memory() -> None:
    def shifted(xs):
        for i in range(4):
            xs[0][i] = xs[1][i] + 1

    found, expected = torch.arange(5.0), torch.arange(5.0)
    shifted([expected[1:], expected[:-1]])
    with pytest.warns(UserWarning, match=r"`xs\[0\]` and `xs\[1\]` share memory"):
        weft.kernel(shifted)([found[1:], found[:-1]])
    assert found.tolist() == expected.tolist()

    def copied(xs, out):
        for i in out:
            xs[0][i] += xs[1][i]
            out[i] = xs[i % 2][i]

    x, out = torch.ones(4), torch.empty(4)
    weft.kernel(copied)([x, x], out)
    assert x.tolist() == out.tolist() == [2.0] * 4


def test_races_of_what_may_be_any_member() -> None:
    @weft.kernel
    def meets(xs):
        for i in range(3):
            xs[i % 2][0] = i

    with pytest.raises(weft.RaceError, match=r"both write xs\[0\]\[0\]"):
        meets(tensors(2))

    @weft.kernel(debug=True)
    def by_data(xs, at):
        for i in range(3):
            xs[at[i]][at[i]] = i

    by_data(tensors(3), torch.tensor([2, 0, 1]))
    with pytest.raises(weft.RaceError, match="iterations 0 and 2 both write"):
        by_data(tensors(3), torch.tensor([2, 0, 2]))


@pytest.mark.parametrize(("place", "message"), [
    ("k, 0", "subscript 2 of `xs` is out of range: its dimension 0 has 2 elements"),
    ("0, k + 5", r"subscript 7 of `xs\[...\]` is out of range: its dimension 0 has 7 elements"),
])  # fmt: skip
def test_debug_checks_subscripts(place: str, message: str) -> None:
    @weft.kernel(debug=True)
    def read(xs, out, n: int, chosen: bool):
        for k in range(n):
            if chosen:
                out[k] = xs[k][0]
            else:
                out[k] = xs[k * 0][k + 5]

    with pytest.raises(weft.KernelIndexError, match=message):
        read(tensors(2), torch.empty(3), 3, place.startswith("k"))


def test_loops_over_members_in_branches_and_with_breaks() -> None:
    def f(xs, out):
        for i in range(4):
            s = 0.0
            for x in xs:
                if x[i] > 0:
                    break
                s = s + x[i]
            if i % 2:
                for x in xs[1:]:
                    s = s - x[i]
            for j in range(i):  # it was refused: `x` may be another one behind it
                for x in xs[1:]:
                    s = s * 0.5 - x[j]
            out[i] = s

    xs, found, expected = [torch.randn(4) for _ in range(3)], torch.empty(4), torch.empty(4)
    weft.kernel(f)(xs, found)
    f(xs, expected)
    torch.testing.assert_close(found, expected)

    @weft.kernel
    def left(xs, out):
        for i in range(4):
            for x in xs:
                if x[i] > 0:
                    break
            out[i] = x[i]  # which one it is, nobody knows before

    with pytest.raises(weft.KernelNameError, match="`x` may have no value here: the loop that"):
        left(xs, found)

    @weft.kernel
    def earlier(xs, out):
        for i in range(4):
            for x in xs:
                out[i] = x[i]
            for j in range(i):
                out[i] += x[j]  # in the second turn another one
                for x in xs[1:]:
                    out[i] += x[j]

    with pytest.raises(weft.KernelNameError, match="`x` may have no value here: a loop inside of"):
        earlier(xs, found)


def test_atomics_on_a_member() -> None:
    @weft.kernel
    def counted(xs, out):
        for i in range(10):
            old = weft.atomic_add(xs[i % 2][0], 1.0)
            weft.atomic_max(xs[i % 2][1], old)

    xs = [torch.zeros(2), torch.zeros(2)]
    counted(xs, None)
    assert [x.tolist() for x in xs] == [[5.0, 4.0]] * 2


def test_numbers_and_complex_numbers_are_chosen() -> None:
    def f(xs, zs, out):
        for i in range(4):
            out[i] = xs[i % 2] * zs[(i + 1) % 2][i]

    args = [torch.tensor(1.5), torch.tensor(2.5)], [torch.randn(4, dtype=torch.complex64)] * 2
    found, expected = (torch.empty(4, dtype=torch.complex64) for _ in range(2))
    weft.kernel(f)(*args, found)
    f(*args, expected)
    torch.testing.assert_close(found, expected)


def test_members_that_are_not_alike_are_not_chosen_of() -> None:
    kernel = weft.kernel(chosen_in_a_loop)
    with pytest.raises(weft.KernelTypeError, match="holds a tensor of 1 dimension of f32"):
        kernel([torch.ones(7), torch.ones(7, dtype=torch.int32)], torch.ones(7))


def test_parameters_of_a_module() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ws = torch.nn.ParameterList(torch.randn(4) for _ in range(3))

        @weft.kernel
        def forward(self, x):
            out = torch.empty_like(x)
            for i in out:
                out[i] = self.ws[i % 3][i] * x[i] + self.ws[0][i]
            return out

    module, x = Scaled(), torch.randn(4)
    found = module(x)
    expected = torch.stack([module.ws[i % 3][i] * x[i] + module.ws[0][i] for i in range(4)])
    torch.testing.assert_close(found, expected)
    wanted = torch.autograd.grad(expected.sum(), [*module.ws])
    torch.testing.assert_close(torch.autograd.grad(found.sum(), [*module.ws]), wanted)


class Sizes:
    def __init__(self, k: int, rate: float = 0.5) -> None:
        self.k, self.rate, self.inner = k, rate, Pair(k + 1, k * 2)

    def unit(self, d, x):
        v = weft.Vector([0.0] * self.k)
        v[d] = x
        return v.sum()


def unrolled(c, x, out):
    for i in range(x.shape[0]):
        a = weft.zeros(c.inner.a, weft.f64)
        for u in weft.static(range(c.k)):
            a[u + 1] = a[u] + x[i] * u * c.rate + c.unit(u, x[i])
        out[i] = a[c.inner.a - 1]


@pytest.mark.parametrize("debug", [False, True])
def test_integers_of_objects_that_have_to_be_known_are_constants(
    debug: bool, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = weft.kernel(debug=debug)(unrolled)
    x, out = tensors(2)
    with caplog.at_level("DEBUG", "weft.specialize"):
        for k, rate in ((2, 0.5), (3, 0.25), (2, 4.0), (5, 0.5)):
            kernel(Sizes(k, rate), x, out.fill_(torch.nan))
            expected = x * (sum(range(k)) * rate + k)
            torch.testing.assert_close(out, expected)
    line = kernel.span.line + 1
    wanted = "`c.inner.a` has to be known at compile time: a constant"
    assert f"unrolled, loop at line {line}: {wanted}" in caplog.messages


def test_integers_of_objects_are_arguments_where_they_need_not_be_known() -> None:
    @weft.kernel
    def scaled(c, x, wide: weft.template()):
        for i in range(x.shape[0]):
            x[i] *= c.k
            for _ in weft.static(range(x.shape[0] if wide else 0)):
                x[i] += 1

    x = torch.ones(3)
    for k in range(1, 5):
        scaled(Sizes(k), x, False)
    assert x.tolist() == [24.0] * 3
    assert len(scaled.specializations) == 1
    for _ in range(2):  # of a loop that is refused nothing is kept
        with pytest.raises(weft.KernelTypeError, match="`static` needs what is known"):
            scaled(Sizes(2), x, True)
    for k in range(1, 5):
        scaled(Sizes(k), x, False)
    assert len(scaled.specializations) == 1


def test_gradients_where_integers_of_objects_are_constants() -> None:
    def call(x: torch.Tensor, k: int) -> torch.Tensor:
        out = torch.empty_like(x)
        weft.kernel(unrolled)(Sizes(k), x, out)
        return out

    for k in (2, 3):
        (x,) = tensors(1)
        assert torch.autograd.gradcheck(lambda x, k=k: call(x, k), x.requires_grad_())


class Line(NamedTuple):
    slope: float
    at_zero: float = 0.5

    def at(self, x):
        return self.slope * x + self.at_zero


def lines(ps, x, out):
    for i in range(out.shape[0]):
        out[i] = sum(p.at(x[i]) for p in ps) + ps[i % 2].slope + ps[1][1]
        for slope, at_zero in ps:
            out[i] = out[i] * slope - at_zero


def test_named_tuples_of_numbers_in_a_list_keep_their_names() -> None:
    x, kernel = torch.randn(4, dtype=torch.float64), weft.kernel(lines)
    for ps in ([Line(1.5), Line(-0.5, 2.0)], [Line(2.5), Line(1.0, 3.0)], ((1.0, 2.0),) * 2):
        found = torch.zeros(2, 4, dtype=torch.float64)
        if isinstance(ps, list):
            lines(ps, x, found[0])
            kernel(ps, x, found[1])
            torch.testing.assert_close(found[1], found[0])
        else:  # which are no lines, though their numbers are of the same types
            with pytest.raises(weft.KernelTypeError, match="has no"):
                kernel(ps, x, found[1])
    assert len(kernel.specializations) == 1

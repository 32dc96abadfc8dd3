"""``weft.autotune``: configs of a kernel, chosen by measuring."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import weft
from tests.tuning.conftest import Stopwatch
from weft.errors import KernelTypeError
from weft.kernel import kernel_inside
from weft.tuning.autotune import AutotuneWarning

pytestmark = pytest.mark.filterwarnings("ignore:.*torch:DeprecationWarning")


CONFIGS = [weft.Config(N=1), weft.Config(N=2), {"N": 4}]


def total(x, out, N: weft.template()):
    for i in out:
        s = 0.0
        for j in range(0, x.shape[1], N):
            for k in weft.static(range(N)):
                s += x[i, j + k]
        out[i] = s
    return out


def tuned(stopwatch: Stopwatch, function: Any = total, key: Sequence[str] = ("x",)) -> Any:
    return weft.autotune(CONFIGS, key, measure=stopwatch)(function)


def called(kernel: Any, *shape: int) -> None:
    x = torch.randn(*shape)
    out = kernel(x, torch.full((shape[0],), torch.nan))
    torch.testing.assert_close(out, x.sum(1), rtol=1e-4, atol=1e-4)


def chosen(kernel: Any) -> list[str]:
    return [str(choice.config) for choice in kernel.tuning.choices.values()]


def test_the_fastest_config_of_a_size_class_is_taken():
    stopwatch = Stopwatch(3.0, 1.0, 2.0)
    kernel = tuned(stopwatch)
    called(kernel, 3, 64)
    assert stopwatch.calls == 1
    assert chosen(kernel) == ["N=2"]
    called(kernel, 3, 64)
    called(kernel, 4, 60)  # the same class
    assert stopwatch.calls == 1
    stopwatch.times = (1.0, 2.0, 0.5)
    called(kernel, 4, 68)
    assert stopwatch.calls == 2
    assert chosen(kernel) == ["N=2", "N=4"]
    x, out = torch.ones(3, 64), torch.zeros(3)
    assert kernel(x, out=out).tolist() == [64.0] * 3
    assert kernel(x, out, N=8).tolist() == [64.0] * 3
    assert stopwatch.calls == 2
    kernel(x.double(), out.double())  # other dtypes are another class
    assert stopwatch.calls == 3
    assert len(str(kernel.tuning).splitlines()) == 3
    assert re.search(r": float32, float32, x 4 x 64: N=2 \(N=1: 3 ms; N=2: 1 ms; N=4: 2 ms\)$",
                     str(kernel.tuning).splitlines()[0])  # fmt: skip


def test_the_choice_is_kept_on_disk():
    called(tuned(Stopwatch(3.0, 1.0, 2.0)), 3, 64)
    again = Stopwatch()
    kernel = tuned(again)
    called(kernel, 3, 64)
    assert again.calls == 0
    assert {str(c) for c in kernel.tuning.chosen.values()} == {"N=2"}
    other = Stopwatch(1.0, 2.0)
    called(weft.autotune(CONFIGS[:2], ["x"], measure=other)(total), 3, 64)
    assert other.calls == 1, "other configs are another text"


def test_it_stands_in_any_order_with_other_decorators():
    watch = Stopwatch(2.0, 1.0, 3.0)
    tune = weft.autotune(CONFIGS, ["x"], measure=watch)
    strict = weft.kernel(strict_math=True)
    orders = [
        tune(weft.kernel(total)), weft.kernel(tune(total)), tune(total), tune(strict(total)),
        strict(tune(total)), torch.no_grad()(tune(strict(total))),
        tune(torch.no_grad()(total_kernel())),
        strict(torch.no_grad()(tune(total))), torch.compile(tune(total), backend="eager"),
        tune(torch.compile(total_kernel(), backend="eager")),
    ]  # fmt: skip
    for kernel in orders:
        called(kernel, 3, 64)
    assert [k.options.strict_math for k in orders[3:5]] == [True, True]
    assert kernel_inside(orders[7]).options.strict_math


def total_kernel() -> Any:
    return weft.kernel(total)


def test_a_method_is_tuned():
    class Sums(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        @tuned_method
        @weft.kernel
        def forward(self, x, N: weft.template()):
            out = torch.zeros(x.shape[0])
            for i in out:
                for j in range(0, x.shape[1], N):
                    for k in weft.static(range(N)):
                        out[i] += x[i, j + k]
            for i in self.calls:
                self.calls[i] += 1
            return out

    sums = Sums()
    assert sums(torch.ones(3, 8)).tolist() == [8.0] * 3
    assert sums.calls.item() == 1, "what a call writes is put back before the next"
    assert chosen(Sums.forward) == ["N=4"]
    assert sums(torch.ones(3, 8)).tolist() == [8.0] * 3
    assert sums.calls.item() == 2


tuned_method = weft.autotune(CONFIGS, ["x"], measure=Stopwatch(3.0, 2.0, 1.0))


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_graph_measures_when_it_runs():
    stopwatch = Stopwatch(3.0, 2.0, 1.0)
    kernel = weft.autotune(CONFIGS, ["x"], measure=stopwatch)(sums)
    graph = torch.compile(lambda x: kernel(x * 2).cos(), backend="aot_eager", fullgraph=True)
    x = torch.randn(3, 64, requires_grad=True)
    out = graph(x)
    assert stopwatch.calls == 1
    assert chosen(kernel) == ["N=4"]
    expected = (x * 2).sum(1).cos()
    torch.testing.assert_close(out, expected, rtol=1e-3, atol=1e-3)
    given = torch.randn(3)
    (found,) = torch.autograd.grad(out, x, given)
    torch.testing.assert_close(
        found, torch.autograd.grad(expected, x, given)[0], rtol=1e-3, atol=1e-3
    )
    dynamic = torch.compile(kernel, backend="eager", fullgraph=True, dynamic=True)
    for n in (64, 72, 80, 320):
        assert dynamic(torch.ones(2, n)).tolist() == [n, n]
    assert stopwatch.calls == 4


def sums(x, N: weft.template()):
    out = torch.empty(x.shape[0])
    for i in out:
        s = 0.0
        for j in range(0, x.shape[1], N):
            for k in weft.static(range(N)):
                s += x[i, j + k]
        out[i] = s
    return out


def test_gradients_and_transforms():
    stopwatch = Stopwatch(3.0, 2.0, 1.0)
    kernel = weft.autotune(CONFIGS, ["x"], measure=stopwatch)(sums)
    x = torch.randn(3, 8, requires_grad=True)
    assert torch.func.grad(lambda x: kernel(x).sum())(x.detach()).tolist() == [[1.0] * 8] * 3
    _, tangent = torch.func.jvp(kernel, (x.detach(),), (torch.ones(3, 8),))
    assert tangent.tolist() == [8.0] * 3
    kernel(x).sum().backward()
    assert stopwatch.calls == 1
    assert (x.grad == 1).all()
    assert (kernel.interpret(torch.ones(3, 8)) == 8).all()
    assert (kernel.interpret(torch.ones(3, 8), N=2) == 8).all()
    assert "scf.for" in kernel.inspect(x.detach())["ir"]


def test_fake_and_meta_tensors_measure_nothing():
    stopwatch = Stopwatch(3.0, 2.0, 1.0)
    kernel = weft.autotune(CONFIGS, ["x"], measure=stopwatch)(sums)
    with FakeTensorMode() as mode:
        assert kernel(mode.from_tensor(torch.ones(3, 8))).shape == (3,)
    with torch.device("meta"):
        assert kernel(torch.ones(3, 8)).shape == (3,)
    assert stopwatch.calls == 0
    assert not kernel.tuning.chosen


def test_arguments_and_random_numbers_are_left_as_they_were():
    def scale(x, N: weft.template()):
        noise = torch.rand(())
        for i in range(x.shape[0]):
            for _ in weft.static(range(2)):
                x[i] = x[i] * 3.0
        return noise

    kernel = weft.autotune(CONFIGS, measure=Stopwatch(3.0, 2.0, 1.0))(scale)
    x = torch.ones(5)
    torch.manual_seed(1)
    version = x._version
    noise = kernel(x)
    assert x.tolist() == [9.0] * 5
    assert x._version == version + 1
    torch.manual_seed(1)
    assert noise == torch.rand(())


def test_a_config_that_computes_something_else_is_left_out():
    def first(x, N: weft.template()):
        out = torch.empty_like(x)
        for i in x:
            out[i] = x[i] * N
        return out

    kernel = weft.autotune(CONFIGS, measure=Stopwatch(1.0))(first)
    with pytest.warns(AutotuneWarning) as caught:
        assert kernel(torch.ones(4)).tolist() == [1.0] * 4
    assert str(caught[0].message) == (
        "kernel `first`: the config (N=2) is left out: the largest difference is 1, the largest "
        "element 1\nhelp: every config has to compute what the first one does, (N=1)"
    )
    assert len(caught) == 2


def test_a_config_that_cannot_be_compiled_is_left_out():
    def f(x, N: weft.template()):
        for i in x:
            for k in weft.static(range(4 if N < 4 else None)):
                x[i] += k

    kernel = weft.autotune(CONFIGS, measure=Stopwatch(2.0, 1.0))(f)
    with pytest.warns(AutotuneWarning, match=r"the config \(N=4\) is left out: ") as caught:
        kernel(torch.ones(4))
    assert len(caught) == 1
    assert chosen(kernel) == ["N=2"]
    kernel = weft.autotune([weft.Config(N=4), weft.Config(N=1)])(f)
    with pytest.raises(weft.CompileError):
        kernel(torch.ones(4))


@pytest.mark.parametrize(
    ("configs", "key", "message"),
    [
        ([], [], "weft.autotune has no configs\nhelp: write configs=[weft.Config(BLOCK=32), ...]"),
        ([{"N": 1}, {"M": 1}], [], "the configs (M=1) and (N=1) name different parameters\n"
         "help: give each config a value for every parameter"),
        ([{"N": 1}, {"N": 1}], [], "two configs are alike\nhelp: leave one of them out"),
        ([{"M": 1}], [], "there is no parameter `M`\nhelp: the parameters are x, out, N"),
        ([{"N": 1}], ["y"], "there is no parameter `y`\nhelp: the parameters are x, out, N"),
        ([{"N": 1}], ["N"], "`N` is in the key and in the configs\n"
         "help: the key names what calls pass"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_kernel_is_refused(configs, key, message):
    with pytest.raises(KernelTypeError) as caught:
        weft.autotune(configs, key)(total)
    place, _, said = str(caught.value).partition(": in kernel `total`: ")
    assert place.startswith(__file__)
    lines = said.splitlines()
    assert "\n".join([lines[0], *lines[-1:]]) == message


def test_other_mistakes_are_refused():
    with pytest.raises(TypeError, match=re.escape("`key` is a list of names: write key=['x']")):
        weft.autotune([{"N": 1}], "x")
    with pytest.raises(KernelTypeError) as caught:
        weft.autotune([{"N": 1}])(3)
    assert str(caught.value) == (
        "weft.autotune decorates a kernel, not int\nhelp: put it above or below @weft.kernel"
    )
    with pytest.raises(KernelTypeError, match="`total` is autotuned twice"):
        tuned(Stopwatch(), tuned(Stopwatch()))
    kernel = weft.kernel(total)
    kernel(torch.ones(2, 2), torch.ones(2), 1)
    with pytest.raises(KernelTypeError, match="`total` is decorated again after its first call"):
        tuned(Stopwatch(), torch.no_grad()(kernel))

    def two(x, N: weft.template(), M: weft.template()):
        for i in x:
            x[i] += N + M

    kernel = weft.autotune([{"N": 1, "M": 2}])(two)
    with pytest.raises(KernelTypeError) as caught:
        kernel(torch.ones(2), M=1)
    assert "`M` is given, and `N` is not" in str(caught.value)
    assert str(caught.value).endswith("give all of N, M, or none of them to have them chosen")


def test_parameters_of_configs_may_stand_anywhere():
    def f(x, N: weft.template(), by=2.0, *, M: weft.template(), out):
        for i in x:
            out[i] = x[i] * by + (N - N) + (M - M)

    kernel = weft.autotune([{"N": 1, "M": 2}, {"N": 2, "M": 1}], measure=Stopwatch(2.0, 1.0))(f)
    out = torch.empty(2)
    kernel(torch.ones(2), 3.0, out=out)
    assert out.tolist() == [3.0, 3.0]
    kernel(torch.ones(2), out=out)
    assert out.tolist() == [2.0, 2.0]
    assert (kernel.interpret(torch.ones(2), 4.0, out=out), out.tolist()) == (None, [4.0, 4.0])

    def rest(x, N: weft.template(), *others):
        for i in x:
            x[i] += N

    with pytest.raises(KernelTypeError, match="`N` cannot be passed by its name"):
        weft.autotune([{"N": 1}])(rest)


def test_a_real_measurement():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel = weft.autotune(CONFIGS, ["x"])(total)
        called(kernel, 8, 64)
    (choice,) = kernel.tuning.choices.values()
    assert len(choice.milliseconds) == 3
    assert all(ms > 0 for ms in choice.milliseconds.values())

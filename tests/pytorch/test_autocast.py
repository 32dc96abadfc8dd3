"""Autocast policies of kernels: dtypes of calls and of gradients, eager, as operators, compiled."""

from __future__ import annotations

import pytest
import torch

import weft
from weft.errors import KernelTypeError, KernelValueError

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.compile's own


@weft.kernel(autocast=True)
def product(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    (n, m), p = x.shape, w.shape[1]
    out = torch.empty(n, p)
    for i, j in weft.ndrange(n, p):
        s = b[j]
        for k in range(m):
            s += x[i, k] * w[k, j]
        out[i, j] = s
    return out


@weft.kernel(autocast=torch.float32)
def softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        total = 0.0
        for j in range(x.shape[1]):
            total += weft.exp(x[i, j])
        for j in range(x.shape[1]):
            out[i, j] = weft.exp(x[i, j]) / total
    return out


@weft.kernel(autocast=("x",))
def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * w[i]
    return out


@weft.kernel
def plain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * w[i]
    return out


def draw() -> list[torch.Tensor]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    return [t.requires_grad_() for t in (torch.randn(3, 4), torch.randn(4, 5), torch.randn(5))]


def reference(x, w, b):
    return x.bfloat16().float() @ w.bfloat16().float() + b


def compiled(*args):
    return torch.compile(product, backend="aot_eager", fullgraph=True)(*args)


@pytest.mark.parametrize(
    "call", [product, compiled, lambda *args: product.operators(product.recast(args, {})[0], {})],
    ids=["eager", "compiled", "operator"],
)  # fmt: skip
def test_what_is_contracted_goes_to_autocast_s_dtype(call):
    args, others = draw(), draw()
    with torch.autocast("cpu", torch.bfloat16):
        out = call(*args)
    expected = reference(*others)
    torch.testing.assert_close(out, expected)
    out.sum().backward()
    expected.sum().backward()
    for a, b in zip(args, others, strict=True):
        assert a.grad.dtype == torch.float32
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-2, atol=1e-2)
    assert not torch.equal(product(*draw()), out)  # without autocast, as it is


def test_float64_stays():
    args = [a.detach().double() for a in draw()]
    expected = product(*args)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(product(*args), expected)


@pytest.mark.parametrize("compile", [False, True])
def test_one_dtype_for_all(compile):
    x = torch.randn(3, 4).bfloat16()
    torch._dynamo.reset()
    f = torch.compile(softmax, backend="aot_eager", fullgraph=True) if compile else softmax
    assert f(x).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        out = f(x)
    torch.testing.assert_close(out, torch.softmax(x.float(), 1))
    assert out.dtype == torch.float32


def test_named_parameters():
    x, w = torch.randn(2, 6)
    with torch.autocast("cpu", torch.float16):
        out = scaled(w=w, x=x)
        assert plain(x, w).dtype == torch.float32  # nothing happens without a policy
    assert out.dtype == torch.float16
    assert torch.equal(out, (x.half().float() * w).half())


def test_what_counts_as_a_contraction():
    @weft.kernel(autocast=True)
    def mixed(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, e: torch.Tensor,
              f: torch.Tensor, out: torch.Tensor):  # fmt: skip
        g = e * 2.0
        for i in range(out.shape[0]):
            s = 0.0
            for j in range(a.shape[0]):
                s += a[j] * b[j] + c[j] * c[j]
                if d[j] > 0:
                    s += a[j] * d[j]
                s += g[j] * f[j]
            out[i] = s

    shapes = [("tensor", torch.float32, (4,))] * 7
    # Of `c` there is a square, `d` is compared, `e` is read outside.
    assert mixed._policy.derived((tuple(shapes), ())) == {"a", "b", "f"}


def test_what_is_stored_or_replaces_what_a_loop_carries_is_no_sum():
    @weft.kernel(autocast=True)
    def last(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, out: torch.Tensor):
        for i in range(out.shape[0]):
            h = 0.0
            for j in range(a.shape[0]):
                h = a[j] * b[j] + c[j]
            out[i] = h + a[i] * c[i]

    shapes = [("tensor", torch.float32, (4,))] * 4
    assert last._policy.derived((tuple(shapes), ())) == frozenset()


def test_policies_that_are_none():
    with pytest.raises(KernelTypeError) as info:
        weft.kernel(autocast="x")(plain.function)(torch.ones(1), torch.ones(1))
    assert info.value.message == "autocast='x' is no policy of `plain`"
    assert info.value.help == (
        "write autocast=True, a dtype, or names of parameters: autocast=('x', 'w',)"
    )


def test_a_host_part_that_looks_at_elements_needs_names():
    @weft.kernel(autocast=True)
    def first(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        out, m = torch.zeros_like(x), int(n)
        for i in range(m):
            out[i] = x[i]
        return out

    assert first(torch.ones(3), torch.tensor(2)).tolist() == [1, 1, 0]
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(KernelValueError) as info:
        first(torch.ones(3), torch.tensor(2))
    assert info.value.message.startswith(
        "autocast=True follows what the loops do with each argument, and the host part looks at "
        "elements: "
    )
    assert info.value.help == "name the parameters that are to be cast: autocast=('x', 'w')"


def test_other_errors_of_a_host_part_are_those_of_a_call_without_a_policy():
    @weft.kernel(autocast=True)
    def multiplied(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        for i in range(y.shape[0]):
            y[i, 0] = x[i, 0]
        return y

    args = torch.ones(2, 3), torch.ones(2, 3)
    said = []
    for enabled in (False, True):
        around = torch.autocast("cpu", torch.bfloat16, enabled=enabled)
        with around, pytest.raises(RuntimeError) as info:
            multiplied(*args)
        said.append(isinstance(info.value, KernelValueError))
    assert said == [False, False]


def test_what_is_written_is_not_cast():
    @weft.kernel(autocast=torch.bfloat16)
    def into(out: torch.Tensor, x: torch.Tensor):
        for i in range(x.shape[0]):
            out[i] += x[i]

    out, x = torch.zeros(4), torch.rand(4)
    with torch.autocast("cpu", torch.bfloat16):
        into(out, x)
    assert torch.equal(out, x.bfloat16().float())

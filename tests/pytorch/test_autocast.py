"""Autocast policies of kernels: dtypes of calls and of gradients, eager, as operators, compiled."""

from __future__ import annotations

import pytest
import torch

import weft
from weft.errors import KernelTypeError, KernelValueError
from weft.pytorch import contractions

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


def multiply(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    (n, m), p = x.shape, w.shape[1]
    out = x.new_empty(n, p)
    for i, j in weft.ndrange(n, p):
        s = 0.0
        for k in range(m):
            s += x[i, k] * w[k, j]
        out[i, j] = s
    return out


@weft.kernel
def convolved(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        s = 0.0
        for u in range(i + 1):
            s += w[i - u] * x[u]
        out[i] = s
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
    assert {*mixed._policy.derived((tuple(shapes), ()))} == {"a", "b", "f"}


def test_what_is_stored_or_replaces_what_a_loop_carries_is_no_sum():
    @weft.kernel(autocast=True)
    def last(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, out: torch.Tensor):
        for i in range(out.shape[0]):
            h = 0.0
            for j in range(a.shape[0]):
                h = a[j] * b[j] + c[j]
            out[i] = h + a[i] * c[i]

    shapes = [("tensor", torch.float32, (4,))] * 4
    assert last._policy.derived((tuple(shapes), ())) == ()


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


def test_without_a_policy_a_product_is_cast_as_torch_s_own():
    unasked, never = weft.kernel(multiply), weft.kernel(autocast=False)(multiply)
    x, w = torch.randn(6, 40, requires_grad=True), torch.randn(40, 5, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out, expected = unasked(x, w), x @ w
        assert never(x, w).dtype == torch.float32
    assert out.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(out, expected)
    g = torch.randn(6, 5).bfloat16()
    found = torch.autograd.grad(out, (x, w), g)
    for a, b in zip(found, torch.autograd.grad(expected, (x, w), g), strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
    with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
        assert torch.equal(unasked(x, w), never(x, w))


def test_what_serves_later_calls_asks_for_autocast():
    w, x = torch.randn(2, 30)
    plain_out = convolved(w, x)
    half = torch.randn(30).bfloat16()

    def repeated(*args):
        first = convolved(*args)
        for _ in range(20):
            assert torch.equal(convolved(*args), first)
        return first

    assert torch.equal(repeated(w, x), plain_out)
    with torch.autocast("cpu", torch.bfloat16):
        out = repeated(w, x)
        assert torch.equal(repeated(w.bfloat16(), x.bfloat16()), out)
        with torch.autocast("cpu", torch.float16):
            for args in ((w, x), (half, x), (half, half)):
                assert repeated(*args).dtype == torch.float16
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), plain_out, rtol=5e-2, atol=5e-2)
    assert repeated(half, half).dtype == torch.bfloat16
    assert torch.equal(repeated(w, x), plain_out)


def test_calls_of_which_nothing_is_cast_go_the_short_way():
    @weft.kernel
    def plainly(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * w[i]
        return out

    x, w = torch.randn(2, 9)
    for kernel, short in (plainly, True), (weft.kernel(convolved.function), False):
        with torch.autocast("cpu", torch.bfloat16):
            for _ in range(20):
                out = kernel(x, w)
        assert any(work.whole is not None for work in kernel._regions[0].promoted) is short
        assert out.dtype == (torch.float32 if short else torch.bfloat16)


@pytest.mark.parametrize("policy", [None, True])
def test_one_graph_for_many_sizes(policy):
    kernel = weft.kernel(autocast=policy)(multiply)
    torch._dynamo.reset()
    graphs = []
    f = torch.compile(
        lambda x, w: kernel(x, w) * 2, fullgraph=True, dynamic=True,
        backend=lambda graph, example: graphs.append(graph) or graph,
    )  # fmt: skip
    w = torch.randn(8, 3)
    with torch.autocast("cpu", torch.bfloat16):
        for n in (5, 6, 9):
            x = torch.randn(n, 8)
            assert torch.equal(f(x, w), (x @ w) * 2)
    assert len(graphs) == 1
    assert f(x, w).dtype == torch.float32


@pytest.mark.parametrize("policy", [None, ("x", "w")])
@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_casts(strict, policy):
    kernel = weft.kernel(autocast=policy)(multiply)

    class Layer(torch.nn.Module):
        def forward(self, x, w):
            with torch.autocast("cpu", torch.bfloat16):
                return kernel(x, w)

    x, w = torch.randn(4, 8), torch.randn(8, 3)
    program = torch.export.export(Layer(), (x, w), strict=strict)
    with torch.autocast("cpu", torch.bfloat16):
        expected = x @ w
    assert torch.equal(program.module()(x, w), expected)


def test_without_a_policy_other_loops_are_left_alone():
    @weft.kernel
    def dot(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        s = 0.0
        for i in range(x.shape[0]):
            s += x[i] * w[i]
        return s

    @weft.kernel
    def added(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        out = x.new_zeros(x.shape[0])
        for i in range(x.shape[0]):
            for k in range(w.shape[0]):
                out[i] += x[i] * w[k]
        return out

    @weft.kernel
    def checked(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        assert x.shape == w.shape
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = sum(x[u] * w[i - u] for u in range(i + 1))
        return out

    @weft.kernel
    def listed(xs: list[torch.Tensor], w: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(w)
        for i in range(w.shape[0]):
            s = 0.0
            for k in range(w.shape[0]):
                s += xs[0][k] * w[k]
            out[i] = s
        return out

    x, w = torch.randn(2, 8)
    for kernel, args in (dot, (x, w)), (added, (x, w)), (checked, (x, w)), (listed, ([x], w)):
        expected = kernel(*args)
        with torch.autocast("cpu", torch.bfloat16):
            out = kernel(*args)
        assert out.dtype == torch.float32
        assert torch.equal(out, expected), kernel


def test_without_a_policy_what_is_written_or_annotated_decides():
    @weft.kernel
    def typed(x: weft.types.ndarray(dtype=weft.f32, ndim=1), w: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(w)
        for i in range(w.shape[0]):
            out[i] = sum(x[u] * w[i - u] for u in range(i + 1))
        return out

    @weft.kernel
    def into(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor):
        for i in range(w.shape[0]):
            out[i] = sum(x[u] * w[i - u] for u in range(i + 1))

    (x, w), out, expected = torch.randn(2, 8), torch.empty(8), torch.empty(8)
    into(x, w, expected)
    with torch.autocast("cpu", torch.bfloat16):
        into(x, w, out)
        assert torch.equal(typed(x, w), expected)
    assert torch.equal(out, expected)


def test_an_error_of_the_host_part_is_that_of_the_call():
    @weft.kernel
    def narrowed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(x.shape[0] - 2000)
        for i in range(out.shape[0]):
            s = 0.0
            for k in range(w.shape[0]):
                s += x[i + k] * w[k]
            out[i] = s
        return out

    w = torch.randn(3)
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(RuntimeError, match="negative dimension"):
            narrowed(torch.randn(7), w)
        found = narrowed(torch.randn(2004), w)
        assert found.shape == (4,)
        assert found.dtype == torch.bfloat16


@pytest.mark.parametrize("policy", [None, True])
@pytest.mark.parametrize("compile", [False, True])
def test_what_is_cast_does_not_hang_on_sizes(policy, compile):
    """The policy was looked for with 1024 for all sizes and 1 for all numbers: where the host part
    makes nothing of these, nothing was cast."""

    @weft.kernel(autocast=policy)
    def windows(x: torch.Tensor, w: torch.Tensor, stride: int, left: int) -> torch.Tensor:
        rows, n = x.shape
        m = w.size(-1)
        count = (n * rows - 3000 * rows) // (m - 1024 + 1100 * (stride - 1)) + x.shape[left] - rows
        out = x.new_empty(rows, -(-count // 1))
        for i, j in out:
            s = 0.0
            for k in range(m):
                s += x[i, j * stride + k] * w[k]
            out[i, j] = s
        return out

    torch._dynamo.reset()
    f = torch.compile(windows, fullgraph=True) if compile else windows
    x, w = torch.randn(3, 3800), torch.randn(1020)
    with torch.autocast("cpu", torch.bfloat16):
        out = f(x, w, 2, 0)
    assert out.dtype == torch.bfloat16
    narrow = x.bfloat16().double().unfold(1, 1020, 2)[:, : out.shape[1]] @ w.bfloat16().double()
    assert out.shape == (3, (3 * 3800 - 9000) // 1096)
    torch.testing.assert_close(out.double(), narrow, rtol=1e-2, atol=1e-2)


def test_an_error_of_the_analysis_is_logged_and_the_call_goes_on(monkeypatch, caplog):
    def broken(*_: object) -> bool:
        raise KeyError("a bug")

    monkeypatch.setattr(contractions, "only_contracted", broken)
    kernel = weft.kernel(multiply)
    x, w = torch.randn(3, 4), torch.randn(4, 5)
    with torch.autocast("cpu", torch.bfloat16):
        assert kernel(x, w).dtype == torch.float32
    (record,) = caplog.records
    assert record.message.startswith("nothing of `<weft.kernel")
    assert "a bug" in caplog.text


@pytest.mark.parametrize("policy", [None, True, ("x",), torch.float16, False])
def test_interpret_casts_as_a_call_does(policy):
    kernel = weft.kernel(multiply, autocast=policy)
    x, w = torch.randint(1, 9, (3, 4)) + 2**-14, torch.randint(1, 9, (4, 5)) + 2**-14
    with torch.autocast("cpu", torch.bfloat16):  # sums are exact, and casts cut the fractions off
        called = kernel(x, w)
        found = kernel.interpret(x, w)
        (row,) = kernel.interpret(x[:1], w, only=(0, 2))
    assert found.dtype == called.dtype
    assert torch.equal(found, called)
    assert row[2] == called[0, 2]

"""vmap of kernels: a batch is what each of its samples is by itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import weft
from weft.errors import GradientError, KernelIndexError, KernelTypeError, KernelValueError
from weft.pytorch.batches import under_vmap
from weft.runtime.function import CompiledFunction
from weft.runtime.launch import Launcher

F64 = torch.float64
close = torch.testing.assert_close


def drawn(*shape: int, dtype: torch.dtype = F64) -> torch.Tensor:
    return torch.rand(shape, dtype=F64).add(0.1).to(dtype)


@weft.kernel
def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * x[i] * w[i]
    return out


@weft.kernel
def softmax(x: torch.Tensor) -> torch.Tensor:
    rows, cols = x.shape
    top = torch.full((rows,), -float("inf"), dtype=x.dtype)
    total = torch.zeros(rows, dtype=x.dtype)
    out = torch.empty_like(x)
    for i in range(rows):
        for j in range(cols):
            top[i] = max(top[i], x[i, j])
    for i in range(rows):
        for j in range(cols):
            total[i] += weft.exp(x[i, j] - top[i])
    for i, j in weft.ndrange(rows, cols):
        out[i, j] = weft.exp(x[i, j] - top[i]) / total[i]
    return out


@weft.kernel
def norm(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    mean = x.mean(-1)
    var = ((x - mean[:, None]) ** 2).mean(-1)
    out = torch.empty_like(x)
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        out[i, j] = (x[i, j] - mean[i]) * weft.rsqrt(var[i] + eps) * w[j]
    return out


@weft.kernel
def gathered(w: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    out = torch.empty(index.shape[0], w.shape[1], dtype=w.dtype)
    for i, j in weft.ndrange(index.shape[0], w.shape[1]):
        out[i, j] = w[index[i], j]
    return out


@weft.kernel
def scattered(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(7, dtype=x.dtype)
    for i in range(x.shape[0]):
        out[index[i]] += x[i] * x[i]
    return out


@weft.kernel
def blurred(x: torch.Tensor, steps: int) -> torch.Tensor:
    a = x.clone()
    b = x.clone()
    for _ in weft.serial(range(steps)):
        for i in range(1, x.shape[0] - 1):
            b[i] = (a[i - 1] + a[i] + a[i + 1]) / 3
        a, b = b, a
    return a


@weft.kernel
def stats(x: torch.Tensor):
    total = 0.0
    top = -float("inf")
    count = 0
    for i in range(x.shape[0]):
        total += x[i]
        top = max(top, x[i])
        count += 1
    return total, top, count


@weft.kernel
def first(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(n[()]):
        out[i] = x[i] * 2
    return out


@weft.kernel
def halved(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        v = x[i]
        while v > 0.1:
            v = v / 2
        out[i] = v
    return out


@weft.kernel
def added_(out: torch.Tensor, x: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        out[i] += x[i] * x[i]


def index(*shape: int) -> torch.Tensor:
    return torch.randint(0, 5, shape)


# A kernel, its arguments with a batch of n samples, and where that is.
CASES: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]], Any]] = {
    "a loop": (scaled, lambda n: (drawn(n, 4), drawn(4)), (0, None)),
    "the other argument": (scaled, lambda n: (drawn(4), drawn(n, 4)), (None, 0)),
    "both": (scaled, lambda n: (drawn(4, n), drawn(n, 4)), (1, 0)),
    "loops": (softmax, lambda n: (drawn(n, 3, 4),), 0),
    "the middle": (softmax, lambda n: (drawn(3, n, 4),), 1),
    "the last": (softmax, lambda n: (drawn(3, 4, n),), -1),
    "strided": (softmax, lambda n: (drawn(2 * n, 6, 4)[::2, ::2],), 0),
    "a host part": (norm, lambda n: (drawn(n, 3, 4), drawn(4), 1e-5), (0, None, None)),
    "gathered": (gathered, lambda n: (drawn(5, 3), index(n, 4)), (None, 0)),
    "a table for each": (gathered, lambda n: (drawn(n, 5, 3), index(4)), (0, None)),
    "accumulated": (scattered, lambda n: (drawn(n, 9), index(9)), (0, None)),
    "accumulated where each says": (scattered, lambda n: (drawn(9), index(n, 9)), (None, 0)),
    "again and again": (blurred, lambda n: (drawn(n, 6), 3), (0, None)),
    "reductions": (stats, lambda n: (drawn(n, 5),), 0),
    "a bound of each": (first, lambda n: (drawn(5), index(n)), (None, 0)),
    "while": (halved, lambda n: (drawn(n, 5),), 0),
}


def by_sample(kernel: Any, args: tuple[Any, ...], dims: Any) -> Any:
    dims = dims if isinstance(dims, tuple) else (dims,) * len(args)
    count = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
    found = [kernel(*(a if d is None else a.select(d, k) for a, d in zip(args, dims, strict=True)))
             for k in range(count)]  # fmt: skip
    if not isinstance(found[0], tuple):
        return torch.stack(found)
    return tuple(torch.stack([*map(torch.as_tensor, part)]) for part in zip(*found, strict=True))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(3)
def test_each_sample_is_by_itself(case: str) -> None:
    kernel, make, dims = CASES[case]
    for n in (1, 3, 17):
        args = make(n)
        found = vmap(kernel, dims)(*args)
        close(found, by_sample(kernel, args, dims))
        last = vmap(kernel, dims, out_dims=-1)(*args)
        pairs = zip(last, found, strict=True) if isinstance(found, tuple) else [(last, found)]
        for a, b in pairs:
            close(a.movedim(-1, 0), b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32])
def test_dtypes(dtype: torch.dtype) -> None:
    x, w = (10 * drawn(3, 4)).to(dtype), (10 * drawn(4)).to(dtype)
    close(vmap(scaled, (0, None))(x, w), by_sample(scaled, (x, w), (0, None)))


@pytest.mark.parametrize("case", CASES)
def test_a_batch_without_samples(case: str) -> None:
    kernel, make, dims = CASES[case]
    args = make(3)
    dims = dims if isinstance(dims, tuple) else (dims,)
    none = [a if d is None else a.narrow(d, 0, 0) for a, d in zip(args, dims, strict=True)]
    found, some = vmap(kernel, dims)(*none), vmap(kernel, dims)(*args)
    for a, b in zip(found, some, strict=True) if isinstance(some, tuple) else [(found, some)]:
        assert (a.shape, a.dtype) == ((0, *b.shape[1:]), b.dtype)


@pytest.mark.cuda
@pytest.mark.parametrize("case", CASES)
def test_on_a_gpu(case: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    kernel, make, dims = CASES[case]
    args = make(33)
    expected = by_sample(kernel, args, dims)
    with torch.device("cuda"):
        found = vmap(kernel, dims)(*(a.cuda() if torch.is_tensor(a) else a for a in args))
    single = isinstance(expected, torch.Tensor)
    for a, b in [(found, expected)] if single else zip(found, expected, strict=True):
        close(a.cpu(), b)


@pytest.mark.cuda
def test_derivatives_on_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    with torch.device("cuda"):
        x, w = drawn(6, 5), drawn(5)
        for f in (DERIVATIVES["of samples"], DERIVATIVES["a hessian of samples"]):
            close(f(scaled)(x, w), f(lambda x, w: x * x * w)(x, w))
        close(jacrev(softmax)(x), jacrev(lambda x: x.softmax(1))(x))
        y, w = x.clone().requires_grad_(), w.requires_grad_()
        rows = torch.autograd.grad(norm(y, w, 1e-5), w, torch.eye(30).double().view(30, 6, 5),
                                   is_grads_batched=True)[0]  # fmt: skip
        close(rows, jacrev(lambda w: norm(x, w, 1e-5))(w.detach()).reshape(30, 5))


def test_nested() -> None:
    x, w = drawn(3, 4), drawn(2, 4)
    close(vmap(vmap(scaled, (0, None)), (None, 0))(x, w), x * x * w[:, None])
    close(vmap(vmap(scaled, (None, 0)), (0, None))(x, w), (x * x)[:, None] * w)
    y = drawn(4, 3, 2, 5)
    close(vmap(vmap(softmax, 1), 2)(y), y.permute(2, 1, 0, 3).softmax(3))


def test_one_tensor_as_a_batch_and_as_a_sample() -> None:
    x = drawn(4, 4)

    @weft.kernel
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(a)
        for i in range(a.shape[0]):
            total = 0.0
            for j in range(a.shape[0]):
                total += a[j] * b[j, i]
            out[i] = total
        return out

    close(vmap(product, (0, None))(x, x), x @ x)


def test_one_launch_of_each_loop_for_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[str] = []
    call = CompiledFunction.__call__
    monkeypatch.setattr(CompiledFunction, "__call__", lambda self, values: (
        launched.append(self.function.name), call(self, values)))  # fmt: skip
    monkeypatch.setattr(Launcher, "__call__", lambda *_: pytest.fail("a launch of one sample"))
    fresh = weft.kernel(strict_math=True)(softmax.function)
    vmap(fresh)(drawn(5, 3, 4))
    assert launched == [f"softmax_{k}_batched" for k in range(3)]
    vmap(grad(lambda x: fresh(x)[0, 0]))(drawn(5, 3, 4))
    assert launched[3:6] == launched[:3]
    assert all("_batched" in name for name in launched)


DERIVATIVES: dict[str, Callable[[Any], Any]] = {
    "jacrev": lambda f: jacrev(f, argnums=(0, 1)),
    "jacfwd": lambda f: jacfwd(f, argnums=(0, 1)),
    "hessian": lambda f: hessian(lambda x, w: f(x, w).sum(), argnums=(0, 1)),
    "jacrev of jacrev": lambda f: jacrev(jacrev(f)),
    "of samples": lambda f: vmap(grad(lambda x, w: (f(x, w) ** 2).sum(), argnums=(0, 1)),
                                 (0, None)),
    "a hessian of samples": lambda f: vmap(hessian(lambda x, w: f(x, w).sum()), (0, None)),
    "jacrev of a batch": lambda f: jacrev(vmap(f, (0, None)), argnums=(0, 1)),
    "jvp of a batch": lambda f: lambda x, w: jvp(vmap(f, (0, None)), (x, w), (x, w)),
    "jvp of samples": lambda f: vmap(lambda x, w: jvp(lambda x: f(x, w), (x,), (x,)), (0, None)),
    "tangents": lambda f: lambda x, w: vmap(lambda t: jvp(lambda x: f(x, w), (w,), (t,)))(x),
    "vjp of samples": lambda f: vmap(lambda x, w: vjp(f, x, w)[1](x), (0, None)),
}  # fmt: skip


@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.sampled(3)
def test_derivatives(derivative: str) -> None:
    of_one = derivative in ("jacrev", "jacfwd", "hessian", "jacrev of jacrev")
    x, w = drawn(4) if of_one else drawn(3, 4), drawn(4)
    f = DERIVATIVES[derivative]
    close(f(scaled)(x, w), f(lambda x, w: x * x * w)(x, w))


@pytest.mark.parametrize("derivative", ["jacrev", "jacfwd", "hessian"])
def test_derivatives_of_loops(derivative: str) -> None:
    x = drawn(2, 3)
    f = {"jacrev": jacrev, "jacfwd": jacfwd,
         "hessian": lambda g: hessian(lambda x: (g(x) ** 2).sum())}[derivative]  # fmt: skip
    close(f(softmax)(x), f(lambda x: x.softmax(1))(x))


@pytest.mark.parametrize(
    ("kernel", "args"),
    [
        (vmap(norm, (0, None, None)), (drawn(2, 1, 2), drawn(2), 1e-5)),
        (vmap(softmax, 1), (drawn(1, 2, 2),)),
        (vmap(scattered, (0, None)), (drawn(2, 3), torch.tensor([1, 0, 1]))),
        (scaled, (drawn(3), drawn(3))),
        (softmax, (drawn(1, 3),)),
    ],
    ids=["norm", "softmax", "scattered", "no vmap", "no vmap, loops"],
)
@pytest.mark.sampled(3)
@pytest.mark.slow
def test_batches_of_gradients_and_tangents(kernel: Any, args: tuple[Any, ...]) -> None:
    """``is_grads_batched``, ``vectorize`` in both modes, by torch's own checks."""
    args = tuple(a.clone().requires_grad_() if torch.is_tensor(a) and a.is_floating_point() else a
                 for a in args)  # fmt: skip
    torch.autograd.gradcheck(kernel, args, check_batched_grad=True, check_forward_ad=True,
                             check_batched_forward_grad=True)  # fmt: skip
    if kernel is scaled:
        torch.autograd.gradgradcheck(kernel, args, check_batched_grad=True)


def test_the_derivative_of_a_batch_of_gradients() -> None:
    x, w = drawn(4).requires_grad_(), drawn(4).requires_grad_()

    def second(f: Any) -> Any:
        rows = torch.autograd.grad(f(x, w), (x, w), torch.eye(4, dtype=F64), create_graph=True,
                                   is_grads_batched=True)  # fmt: skip
        return torch.autograd.grad(sum((r**3).sum() for r in rows), (x, w))

    close(second(scaled), second(lambda x, w: x * x * w))


def test_batches_of_gradients_of_operators_in_graphs() -> None:
    """torch's first ``vmap`` meets the operators of derivatives themselves, and their overloads."""

    @weft.kernel
    def hosted(x: torch.Tensor, w: torch.Tensor) -> Any:
        z = torch.sin(x)
        out, sums = torch.empty_like(x), torch.zeros_like(x)
        for i in range(x.shape[0]):
            out[i] = z[i] * w[i]
            sums[i] = z[i] + w[i] * w[i]
        return out, sums

    def reference(x: Any, w: Any) -> Any:
        return (x.sin() * w, x.sin() + w * w)

    def all_of(f: Any, x: Any, w: Any) -> Any:
        return sum(f(x, w)).cos()

    x, w = drawn(4).requires_grad_(), drawn(4).requires_grad_()
    rows = drawn(3, 4)
    torch._dynamo.reset()  # where sizes vary, torch lets nobody retain the graph
    compiled = torch.compile(functools.partial(all_of, hosted), backend="aot_eager", fullgraph=True)
    plain = functools.partial(all_of, reference)
    batched = functools.partial(torch.autograd.grad, inputs=(x, w), grad_outputs=rows,
                                is_grads_batched=True, retain_graph=True)  # fmt: skip
    close(batched(compiled(x, w)), batched(plain(x, w)))
    by_operator = functools.partial(all_of, hosted.op)
    for f in (by_operator, plain):
        first = torch.autograd.grad(f(x, w), (x, w), rows[0], create_graph=True)
        found = *batched(first[0]), *batched(first[1])
        if f is by_operator:
            expected = found
    close(found, expected)


def test_gradients_of_each_sample_of_a_module() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(drawn(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return norm(x, self.w, 1e-5)

    layer, x = Layer(), drawn(5, 3, 4)

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return (functional_call(layer, parameters, (x,)) ** 2).sum()

    found = vmap(grad(loss), (None, 0))(dict(layer.named_parameters()), x)["w"]
    for k in range(5):
        close(found[k], torch.autograd.grad((layer(x[k]) ** 2).sum(), layer.w)[0])


# --- kernels that write to their arguments -------------------------------------------------------
@pytest.mark.parametrize("dim", [0, 1])
def test_what_is_written(dim: int) -> None:
    x, out = drawn(3, 4), drawn(3, 4)
    expected = out + x * x
    given = out.movedim(0, dim).contiguous()
    assert vmap(added_, (dim, 0), out_dims=None)(given, x) is None
    close(given.movedim(dim, 0), expected)
    vmap(added_, (dim, None), out_dims=None)(given, x[0])
    close(given.movedim(dim, 0), expected + x[0] * x[0])


def test_the_gradient_of_what_is_written() -> None:
    x = drawn(3, 4).requires_grad_()
    out = torch.zeros(3, 4, dtype=F64)
    vmap(added_, out_dims=None)(out, x)
    close(torch.autograd.grad((out * out).sum(), x)[0], 4 * x.detach() ** 3)


def test_what_is_written_has_samples() -> None:
    with pytest.raises(KernelValueError) as raised:
        vmap(added_, (None, 0), out_dims=None)(drawn(4), drawn(3, 4))
    assert raised.value.message == (
        "under vmap `out` is written, and has no samples of its own as `x` has"
    )
    assert raised.value.help == (
        "return a new tensor, made by torch.empty_like and the like or by clone(); or give vmap a "
        "dimension of `out` (in_dims)"
    )


def test_what_is_written_is_not_read() -> None:
    x = drawn(3, 8)
    vmap(lambda v: added_(v[:4], v[4:]), out_dims=None)(x)
    with pytest.raises(KernelValueError) as raised:
        vmap(lambda v: added_(v[1:], v[:-1]), out_dims=None)(x)
    assert raised.value.message == (
        "memory that the loop writes is also read or written through another argument, which vmap "
        "does not allow"
    )
    assert raised.value.help == "pass a copy: x.clone()"


# --- host parts ----------------------------------------------------------------------------------
@weft.kernel
def dropped(x: torch.Tensor, p: float) -> torch.Tensor:
    drawn = torch.rand(x.shape)
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] if drawn[i] >= p else 0.0
    return out


def test_random_numbers_are_as_vmap_is_told() -> None:
    x = torch.ones(2, 200)
    same = vmap(dropped, (0, None), randomness="same")(x, 0.5)
    close(same[0], same[1])
    other = vmap(dropped, (0, None), randomness="different")(x, 0.5)
    assert (other[0] != other[1]).any()
    with pytest.raises(RuntimeError, match="randomness error mode"):
        vmap(dropped, (0, None))(x, 0.5)
    f = grad(lambda x: dropped(x, 0.5).sum())
    with torch.random.fork_rng():
        torch.manual_seed(1)
        kept = vmap(dropped, (0, None), randomness="different")(x, 0.5)
        torch.manual_seed(1)
        close(vmap(f, randomness="different")(x), kept)  # of the numbers that were drawn


@pytest.mark.parametrize("text", ["n = int(x.sum())", "if x.sum() > 0:"])
def test_a_host_part_that_looks_at_values(text: str) -> None:
    @weft.kernel
    def looks(x: torch.Tensor) -> torch.Tensor:
        n = int(x.sum())
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * n
        return out

    @weft.kernel
    def branches(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        if x.sum() > 0:
            out = x.clone()
        for i in range(x.shape[0]):
            out[i] = x[i]
        return out

    with pytest.raises(KernelValueError) as raised:
        vmap(looks if "int" in text else branches)(drawn(2, 3))
    assert raised.value.message == (
        "the host part makes a number of what is in a tensor, and under vmap each sample has its "
        "own"
    )
    assert raised.value.help == (
        "sizes and branches may depend on shapes and numbers only: use torch.where and the like, "
        "or compute the number outside of vmap and pass it as an argument"
    )
    assert raised.value.span is not None
    assert text in raised.value.span.text


def test_sums_in_order_where_torch_is_to_be_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.runtime import cpu

    threads: list[int] = []
    one = cpu.one_thread
    monkeypatch.setattr(cpu, "one_thread", lambda: threads.append(1) or one())
    torch.use_deterministic_algorithms(True)
    try:
        vmap(scattered, (0, None))(drawn(2, 9), index(9))
    finally:
        torch.use_deterministic_algorithms(False)
    assert threads == [1]


@pytest.mark.parametrize("hidden", [False, True])
def test_a_batch_that_is_no_argument(hidden: bool) -> None:
    """Its level may be one that a kernel's own batches have, and its size theirs."""

    class Box:
        value: Any = None

    def outer(c: torch.Tensor) -> torch.Tensor:
        Box.value = c

        @weft.kernel
        def product(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            for i in range(x.shape[0]):
                out[i] = x[i] * c[i]
            return out

        @weft.kernel
        def hides(x: torch.Tensor) -> torch.Tensor:
            out = x * getattr(Box, "value")  # noqa: B009
            for i in range(x.shape[0]):
                out[i] += 1
            return out

        return vmap(hides if hidden else product)(x)

    x = drawn(3, 4)
    with pytest.raises(GradientError) as raised:
        vmap(outer)(drawn(3, 4))
    assert raised.value.message == (
        f"{'a tensor' if hidden else '`c`'} belongs to a transform of torch.func, and it is not "
        "an argument of the kernel"
    )
    assert raised.value.help == "transforms see arguments only: pass it as one"


def test_a_kernel_in_the_host_part_of_another() -> None:
    @weft.kernel
    def squared(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * x[i]
        return out

    @weft.kernel
    def cubed(x: torch.Tensor) -> torch.Tensor:
        y = squared(x)
        out = torch.zeros_like(x)
        for i in range(x.shape[0]):
            out[i] += y[i] * x[i]
        return out

    x = drawn(3, 4)
    close(vmap(cubed)(x), x**3)
    close(vmap(hessian(lambda x: cubed(x).sum()))(x), torch.diag_embed(6 * x))


def test_modes_reach_what_the_host_part_makes() -> None:
    @weft.kernel
    def ones(x: torch.Tensor) -> torch.Tensor:
        out = torch.ones(4)
        for i in range(4):
            out[i] += x[i]
        return out

    with torch.device("meta"):
        x = torch.empty(3, 4, device="meta")
        assert vmap(ones)(x).is_meta
        assert vmap(grad(lambda x: ones(x).sum()))(x).is_meta
        assert torch.empty(1).is_meta
    assert torch.empty(1).is_cpu


def test_a_gradient_that_is_that_of_the_result() -> None:
    x = drawn(3, 4)
    close(vmap(grad(lambda x: (blurred(x, 0) ** 2).sum()))(x), 2 * x)
    close(vmap(jacrev(lambda x: blurred(x, 0)))(x), torch.eye(4).double().expand(3, 4, 4))


def test_a_tensor_without_dimensions_beside_others() -> None:
    @weft.kernel
    def sums(a: torch.Tensor, b: torch.Tensor):
        c = torch.empty_like(a)
        d = torch.empty_like(b)
        total = torch.zeros((), dtype=a.dtype)
        for i in range(a.shape[0]):
            c[i] = a[i] * b[i]
            d[i] = a[i] + b[i]
            total[()] += a[i]
        return c, d, total

    a, b = drawn(3, 4), drawn(3, 4)
    found = vmap(grad(lambda a, b: sum((o * o).sum() for o in sums(a, b))))(a, b)
    close(found, 2 * a * b * b + 2 * (a + b) + 2 * a.sum(1, keepdim=True))


def test_batches_of_gradients_in_a_thread_that_knows_no_levels() -> None:
    """As backward passes on GPUs are in one."""
    x = drawn(2, 3, 4)
    both = torch._add_batch_dim(torch._add_batch_dim(x, 0, 1), 0, 2)
    found, none = under_vmap(lambda t, _: [(t * t).sum(), None], [both, None])
    assert none is None
    known = torch._remove_batch_dim(torch._remove_batch_dim(found, 2, 3, 0), 1, 2, 0)
    close(known, (x * x).sum(2))


def test_a_loop_that_writes_to_two_tensors() -> None:
    @weft.kernel
    def both(x: torch.Tensor, y: torch.Tensor):
        a = torch.empty_like(y)
        b = torch.zeros_like(y)
        for i in range(x.shape[0]):
            a[i] = x[i] * y[i]
            b[i] += x[i] + y[i]
        return a, b

    for n in (1, 3):
        x, y = drawn(n, 4), drawn(4)
        close(vmap(grad(lambda x, y: (both(x, y)[0] * both(x, y)[1]).sum()), (0, None))(x, y),
              2 * x * y + y**2)  # fmt: skip


@weft.kernel(debug=True)
def beyond(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i + 1]
    return out


def test_subscripts_are_checked_in_each_sample() -> None:
    with pytest.raises(KernelIndexError, match="subscript 4 of `x` is out of range: its dimension"):
        vmap(beyond)(drawn(3, 4))


@pytest.mark.slow
def test_batches_of_tangents_of_tangents() -> None:
    x = drawn(2, 3)
    found = vmap(jacfwd(jacfwd(lambda x: scaled(x, x).sum())))(x)
    close(found, vmap(hessian(lambda x: scaled(x, x).sum()))(x))


@weft.kernel
def through_sizes(x: torch.Tensor, out: torch.Tensor) -> None:
    room = torch.zeros(x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        room[i] += x[i] * x[i]
    for i in range(x.shape[0]):
        out[i] += room[i] * x[i]


@weft.kernel
def through_counts(x: torch.Tensor, out: torch.Tensor) -> None:
    room = torch.arange(4.0, dtype=x.dtype)
    for i in range(x.shape[0]):
        room[i] += x[i] * x[i]
    for i in range(x.shape[0]):
        out[i] += room[i] * x[i]


TRANSFORMS: dict[str, Any] = {
    "of gradients": lambda f, x: vmap(grad(f))(x),
    "in a gradient": lambda f, x: grad(lambda x: vmap(f)(x).sum())(x),
    "of batches": lambda f, x: vmap(vmap(grad(f)))(x[None]),
    "tangents": lambda f, x: jacfwd(f)(x[0]),
    "hessian": lambda f, x: vmap(hessian(f))(x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_gradients_of_samples_through_what_the_host_part_makes_by_sizes(name: str) -> None:
    def cubes(kernel: Any, x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        kernel(x, out)
        return out.sum()

    x, transform = drawn(3, 4), TRANSFORMS[name]
    found = transform(lambda x: cubes(through_sizes, x), x)
    close(found, transform(lambda x: (x**3).sum(), x))
    if name != "tangents":  # whose samples are of tangents alone
        with pytest.raises(KernelValueError, match="under vmap `room` is written, and has no samp"):
            transform(lambda x: cubes(through_counts, x), x)


@weft.kernel
def moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    m = weft.Vector([0.0, 0.0])
    for i in range(x.shape[0]):
        m[0] += x[i]
        m[1] += x[i] * x[i] * x[i]
    return m[0], m[1]


@weft.kernel
def spread(x: torch.Tensor) -> torch.Tensor:
    mean = weft.Vector([0.0])
    for i in range(x.shape[0]):
        mean[0] += x[i] / x.shape[0]
    out = weft.zeros(4, weft.f64)
    for i in range(x.shape[0]):
        out[i] += (x[i] - mean[0]) ** 2
    return out


def moments_of_torch(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sum(), (x**3).sum()


def spread_of_torch(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean()) ** 2


@pytest.mark.parametrize(
    ("kernel", "expected"), [(moments, moments_of_torch), (spread, spread_of_torch)]
)
@pytest.mark.parametrize(
    "transform",
    [vmap, lambda f: vmap(jacrev(f)), lambda f: vmap(hessian(f)), lambda f: vmap(jacfwd(f))],
    ids=["samples", "jacrev", "hessian", "jacfwd"],
)
def test_vectors_and_arrays_of_the_host_part_have_samples(
    transform: Any, kernel: Any, expected: Any
) -> None:
    x = drawn(3, 4)
    close(transform(kernel)(x), transform(expected)(x))


@weft.kernel
def drawn_in_the_loop(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * weft.random(weft.f64)
    return out


@weft.kernel
def drawn_in_the_host_part(x: torch.Tensor) -> torch.Tensor:
    factor = torch.rand(x.shape, dtype=x.dtype)
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * factor[i]
    return out


@pytest.mark.parametrize("kernel", [drawn_in_the_loop, drawn_in_the_host_part])
@pytest.mark.parametrize("randomness", ["error", "same", "different"])
def test_a_batch_of_gradients_is_that_of_the_numbers_drawn(kernel: Any, randomness: str) -> None:
    x = torch.ones(3, dtype=F64)
    y, pulled = vjp(kernel, x)
    (jacobian,) = vmap(pulled, randomness=randomness)(torch.eye(3, dtype=F64))
    close(jacobian.diagonal(), y)

    def beside(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, pulled = vjp(kernel, x)
        return y, vmap(pulled, randomness=randomness)(torch.eye(3, dtype=F64))[0]

    y, jacobians = vmap(beside, randomness="different")(x.expand(2, 3))
    close(jacobians.diagonal(dim1=1, dim2=2), y)
    assert (y[0] != y[1]).all()
    y, pulled = vjp(vmap(kernel, randomness="different"), x.expand(2, 3))
    (rows,) = vmap(pulled, randomness=randomness)(torch.eye(6, dtype=F64).reshape(6, 2, 3))
    close(rows.reshape(6, 6).diagonal(), y.reshape(6))
    assert (y[0] != y[1]).all()


@weft.kernel
def doubled_if_many(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] > 1:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = 2 * x[i]
        return out
    return x


def test_an_argument_that_is_returned_in_one_place_alone() -> None:
    with pytest.raises(KernelTypeError) as raised:
        vmap(doubled_if_many)(drawn(2, 3))
    assert raised.value.message == "`doubled_if_many` returns different things in different places"
    assert raised.value.help == (
        "an operator gives back its argument always or never: return x.clone()"
    )

"""Gradients of kernels whose host part overwrites what loops have read: time loops that fill one
tensor, work arrays that are used again, statements of torch in between."""

from __future__ import annotations

import concurrent.futures
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import weft
from weft.errors import GradientError
from weft.pytorch.overwriting import Moment, Referred
from weft.pytorch.references import REFERENCES

F64 = torch.float64


def leaf(*shape: int, seed: int = 0) -> torch.Tensor:
    """Numbers from 0.5 to 1.5."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, dtype=F64, generator=generator) + 0.5).requires_grad_()


def positive(x: torch.Tensor) -> torch.Tensor:
    """A positive definite matrix."""
    return x @ x.T + 3 * torch.eye(len(x), dtype=x.dtype)


@weft.kernel
def trajectory(x0, T):
    x = torch.empty(T, len(x0), dtype=x0.dtype)
    x[0] = x0
    for t in weft.serial(range(T - 1)):
        for i in range(x.shape[1]):
            x[t + 1, i] = x[t, i] + 0.1 * torch.sin(x[t, i])
    return x


@weft.kernel
def trajectory_with_boundary(x0, T):
    x = torch.empty(T, len(x0), dtype=x0.dtype)
    x[0] = x0
    for t in weft.serial(range(T - 1)):
        for i in range(1, x.shape[1]):
            x[t + 1, i] = x[t, i] * x[t, i - 1]
        x[t + 1, 0] = 0.5
    return x


@weft.kernel
def rows(x0, T):
    x = torch.empty(T, len(x0), dtype=x0.dtype)
    x[0] = x0
    for t in weft.serial(range(T - 1)):
        a, b = x[t], x[t + 1]
        for i in a:
            b[i] = a[i] + 0.1 * torch.sin(a[i])
    return x


@weft.kernel
def work_array(image):
    y, z = torch.empty_like(image), torch.empty_like(image)
    for i in y:
        y[i] = image[i] ** 2
    for i in z:
        z[i] = y[i] ** 2
    for i in y:
        y[i] = z[i] ** 2
    return y


@weft.kernel
def heat(u0, T):
    u, v = u0.clone(), u0.clone()
    for _ in weft.serial(range(T)):
        for i in range(1, len(u0) - 1):
            v[i] = u[i] + 0.1 * u[i] * (u[i - 1] - 2 * u[i] + u[i + 1])
        u, v = v, u
    return u


@weft.kernel
def pressure(p0, b, T):
    p, old = p0.clone(), torch.empty_like(p0)
    n, m = p.shape
    for _ in weft.serial(range(T)):
        old.copy_(p)
        for i, j in weft.ndrange((1, n - 1), (1, m - 1)):
            p[i, j] = 0.25 * old[i + 1, j] * old[i - 1, j] + old[i, j + 1] * old[i, j - 1] - b[i, j]
        p[:, 0] = p[:, 1]
        p[0] = 0.5
    return p


@weft.kernel
def cholesky(a):
    n, L = len(a), torch.zeros_like(a)
    for j in weft.serial(range(n)):
        s = 0.0
        for k in range(j):
            s += L[j, k] ** 2
        L[j, j] = torch.sqrt(a[j, j] - s)
        for i in range(j + 1, n):
            dot = 0.0
            for k in range(j):
                dot += L[i, k] * L[j, k]
            L[i, j] = (a[i, j] - dot) / L[j, j]
    return L


@weft.kernel
def lu(a0):
    a = a0.clone()
    n = len(a)
    for k in weft.serial(range(n - 1)):
        for i in range(k + 1, n):
            a[i, k] = a[i, k] / a[k, k]
        for i, j in weft.ndrange((k + 1, n), (k + 1, n)):
            a[i, j] = a[i, j] - a[i, k] * a[k, j]
    return a


@weft.kernel
def gram_schmidt(a0):
    a, q = a0.clone(), torch.zeros_like(a0)
    m, n = a.shape
    r = torch.zeros(n, n, dtype=a.dtype)
    for k in weft.serial(range(n)):
        norm = 0.0
        for i in range(m):
            norm += a[i, k] * a[i, k]
        r[k, k] = torch.sqrt(norm)
        for i in range(m):
            q[i, k] = a[i, k] / r[k, k]
        for j in range(k + 1, n):
            s = 0.0
            for i in range(m):
                s += q[i, k] * a[i, j]
            r[k, j] = s
        for i, j in weft.ndrange(m, (k + 1, n)):
            a[i, j] = a[i, j] - q[i, k] * r[k, j]
    return q, r


@weft.kernel
def bodies(x0, v0, mass, T):
    x, v = x0.clone(), v0.clone()
    for _ in weft.serial(range(T)):
        for i in x:
            a = 0.0
            for j in range(len(mass)):
                d = x[j] - x[i]
                a += mass[j] * d / (d * d + 0.1) ** 1.5
            v[i] += 0.1 * a
        for i in x:
            x[i] += 0.1 * v[i]
    return x, v


@weft.kernel
def correlation(data):
    n, m = data.shape
    x = data.clone()
    mean, deviation = torch.zeros(m, dtype=x.dtype), torch.zeros(m, dtype=x.dtype)
    for j in range(m):
        s = 0.0
        for i in range(n):
            s += x[i, j]
        mean[j] = s / n
    for j in range(m):
        s = 0.0
        for i in range(n):
            s += (x[i, j] - mean[j]) ** 2
        deviation[j] = torch.sqrt(s / n)
    for i, j in x:
        x[i, j] = (x[i, j] - mean[j]) / deviation[j]
    out = torch.zeros(m, m, dtype=x.dtype)
    for i, j in out:
        s = 0.0
        for k in range(n):
            s += x[k, i] * x[k, j]
        out[i, j] = s / n
    x *= 2
    return out


@weft.kernel
def alternating(u0, T):
    """The shape of an ADI solver: sweeps along rows, then along columns."""
    u, v = u0.clone(), torch.ones_like(u0)
    p = torch.zeros_like(u0)
    n = len(u0)
    for _ in weft.serial(range(T)):
        for sweep in weft.serial(range(1, n)):
            for i in range(n):
                p[i, sweep] = 0.3 / (2.0 + p[i, sweep - 1] * u[i, sweep])
        for i, j in v:
            v[i, j] = p[i, j] * u[j, i] + v[i, j] * 0.5
        for sweep in weft.serial(range(1, n)):
            for j in range(n):
                u[sweep, j] = v[sweep, j] * u[sweep - 1, j]
    return u


@weft.kernel
def solve(real, imaginary, right):
    """Complex Jacobi sweeps, the parts apart."""
    n = len(right)
    a, b = torch.zeros_like(right), torch.zeros_like(right)
    c, d = torch.zeros_like(right), torch.zeros_like(right)
    for _ in weft.serial(range(3)):
        for i in range(n):
            x, y = right[i], 0.0
            for j in range(n):
                if j != i:
                    x -= real[i, j] * a[j] - imaginary[i, j] * b[j]
                    y -= real[i, j] * b[j] + imaginary[i, j] * a[j]
            size = real[i, i] ** 2 + imaginary[i, i] ** 2
            c[i] = (x * real[i, i] + y * imaginary[i, i]) / size
            d[i] = (y * real[i, i] - x * imaginary[i, i]) / size
        a.copy_(c)
        b.copy_(d)
    return a, b


@weft.kernel
def deriche(image, a):
    """Recursive filters forth and back, along rows, then along columns, in the same arrays."""
    n, m = image.shape
    y, z, out = torch.zeros_like(image), torch.zeros_like(image), torch.zeros_like(image)
    for j in weft.serial(range(1, m)):
        for i in range(n):
            y[i, j] = image[i, j] + a[0] * y[i, j - 1] ** 2
    for j in weft.serial(range(m - 2, -1, -1)):
        for i in range(n):
            z[i, j] = image[i, j] + a[0] * z[i, j + 1] ** 2
    for i, j in out:
        out[i, j] = y[i, j] * z[i, j]
    for i in weft.serial(range(1, n)):
        for j in range(m):
            y[i, j] = out[i, j] + a[0] * y[i - 1, j] ** 2
    for i in weft.serial(range(n - 2, -1, -1)):
        for j in range(m):
            z[i, j] = out[i, j] + a[0] * z[i + 1, j] ** 2
    for i, j in out:
        out[i, j] = y[i, j] * z[i, j]
    return out


@weft.kernel
def fdtd(e0, h0, T):
    e, h = e0.clone(), h0.clone()
    n = len(e)
    for t in weft.serial(range(T)):
        e[0] = 0.1 * t
        for i in range(1, n):
            e[i] = e[i] - 0.5 * (h[i] - h[i - 1]) * h[i]
        for i in range(n - 1):
            h[i] = h[i] - 0.5 * (e[i + 1] - e[i]) * e[i]
    return e, h


@weft.kernel
def constants(x, T):
    """Work arrays that need no gradient, which launches overwrite that autograd does not see."""
    scale, which = torch.empty(len(x), dtype=x.dtype), torch.zeros(len(x), dtype=torch.int64)
    out = torch.zeros_like(x)
    for t in weft.serial(range(T)):
        for i in range(len(scale)):
            scale[i] = 1.0 + t * i
            which[i] = (3 * i + t) % len(which)
        for i in x:
            out[i] += scale[i] * x[which[i]] ** 2
    return out


@weft.kernel
def by_torch(x):
    b, out = torch.empty_like(x), torch.empty_like(x)
    s = 0.0
    for i in x:
        b[i] = x[i] ** 2
    for i in x:
        s += b[i] ** 2
    for i in x:
        out[i] = b[i] ** 2 * s
    b *= 2
    s *= 3
    for i in x:
        out[i] += b[i] ** 3 * s
    b[1:].mul_(b[:-1].clone())
    for i in x:
        out[i] += b[i] ** 2
    return out


@weft.kernel
def buffers(x, T):
    pair = [x.clone(), torch.empty_like(x)]
    for t in weft.serial(range(T)):
        p, q = pair[t % 2], pair[(t + 1) % 2]
        for i in p:
            q[i] = p[i] * torch.sin(p[i])
    return pair[T % 2]


@weft.kernel
def log_sum_exp(x, T):
    y, out = torch.empty_like(x), torch.zeros(T, dtype=x.dtype)
    for t in weft.serial(range(T)):
        for i in x:
            y[i] = x[i] * torch.sin(x[i] * (t + 1))
        most = -1e9
        for i in y:
            most = max(most, y[i])
        s = 0.0
        for i in y:
            s += torch.exp(y[i] - most)
        out[t] = most + torch.log(s)
    return out


@weft.kernel
def step(x, v):
    for i in x:
        v[i] = v[i] - 0.1 * torch.sin(x[i])
    for i in x:
        x[i] = x[i] + 0.1 * v[i]


def steps(x: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x, v = x.clone(), v.clone()
    for _ in range(4):
        step(x, v)
    return x, v


@weft.kernel
def nested(x0, v0):
    x, v = x0.clone(), v0.clone()
    for _ in weft.serial(range(3)):
        step(x, v)
        for i in x:
            v[i] = v[i] * x[i]
    return x, v


Program = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]
PROGRAMS: dict[str, Program] = {
    "trajectory": (lambda x: trajectory(x, 4), (leaf(4),)),
    "trajectory with boundary": (lambda x: trajectory_with_boundary(x, 4), (leaf(4),)),
    "rows": (lambda x: rows(x, 4), (leaf(4),)),
    "work array": (work_array, (leaf(4),)),
    "heat": (lambda x: heat(x, 4), (leaf(6),)),
    "pressure": (lambda p, b: pressure(p, b, 2), (leaf(4, 4), leaf(4, 4, seed=1))),
    "Cholesky": (lambda x: cholesky(positive(x)), (leaf(4, 4),)),
    "LU": (lambda x: lu(positive(x)), (leaf(4, 4),)),
    "Gram-Schmidt": (gram_schmidt, (leaf(4, 3),)),
    "bodies": (lambda x, v, m: bodies(x, v, m, 3), (leaf(3), leaf(3, seed=1), leaf(3, seed=2))),
    "correlation": (correlation, (leaf(4, 3),)),
    "alternating": (lambda u: alternating(u, 2), (leaf(3, 3),)),
    "solve": (lambda a, b, c: solve(positive(a), b, c),
              (leaf(3, 3), leaf(3, 3, seed=1), leaf(3, seed=2))),
    "deriche": (deriche, (leaf(3, 4), leaf(1, seed=1))),
    "FDTD": (lambda e, h: fdtd(e, h, 3), (leaf(4), leaf(4, seed=1))),
    "constants": (lambda x: constants(x, 3), (leaf(4),)),
    "by torch": (by_torch, (leaf(4),)),
    "buffers": (lambda x: buffers(x, 3), (leaf(4),)),
    "log-sum-exp": (lambda x: log_sum_exp(x, 3), (leaf(4),)),
    "steps": (steps, (leaf(3), leaf(3, seed=1))),
    "nested": (nested, (leaf(3), leaf(3, seed=1))),
}  # fmt: skip
SOME = ["trajectory", "heat", "by torch"]


def loss(f: Callable[..., Any], *inputs: Any) -> torch.Tensor:
    out = f(*inputs)
    outs = out if isinstance(out, tuple) else (out,)
    return sum((o * torch.arange(o.numel()).view_as(o).cos()).sum() for o in outs)  # type: ignore[return-value]


def gradients(f: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> Any:
    return torch.autograd.grad(loss(f, *inputs), inputs)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name: str) -> None:
    f, inputs = PROGRAMS[name]
    assert torch.autograd.gradcheck(f, inputs)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sampled(9)
def test_gradients_where_memories_of_dead_graphs_are_looked_for(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``deriche`` reads nothing of ``out`` but its shape: nothing in the trees speaks for it."""
    add = REFERENCES.add

    def sweep_and_add(held: Referred, tensor: torch.Tensor) -> None:
        monkeypatch.setattr(REFERENCES, "_most", 0)
        add(held, tensor)

    monkeypatch.setattr(REFERENCES, "add", sweep_and_add)
    f, inputs = PROGRAMS[name]
    gradients(f, inputs)


@pytest.mark.parametrize("name", ["trajectory", "rows", "heat", "constants"])
def test_second_derivatives(name: str) -> None:
    f, inputs = PROGRAMS[name]
    assert torch.autograd.gradgradcheck(f, inputs)


def test_cholesky_beside_torch() -> None:
    a = positive(leaf(5, 5))
    torch.testing.assert_close(cholesky(a), torch.linalg.cholesky(a))
    found = gradients(lambda x: cholesky(positive(x)), (x := leaf(5, 5),))
    expected = gradients(lambda x: torch.linalg.cholesky(positive(x)), (x,))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", SOME)
def test_hooks_and_checkpoints(name: str) -> None:
    """What goes through hooks is a copy: they may move it, or drop it and compute it again."""
    f, inputs = PROGRAMS[name]
    expected = gradients(f, inputs)
    with torch.autograd.graph.save_on_cpu():
        torch.testing.assert_close(gradients(f, inputs), expected)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        torch.testing.assert_close(gradients(f, inputs), expected)
    again = gradients(lambda *x: checkpoint(f, *x, use_reentrant=False), inputs)
    torch.testing.assert_close(again, expected)


@pytest.mark.parametrize("name", SOME)
def test_transforms(name: str) -> None:
    f, inputs = PROGRAMS[name]
    expected = gradients(f, inputs)
    given = tuple(x.detach() for x in inputs)
    along = tuple(torch.rand_like(x) for x in given)
    found = torch.func.grad(lambda *x: loss(f, *x), argnums=tuple(range(len(given))))
    torch.testing.assert_close(found(*given), expected)
    product = sum((g * u).sum() for g, u in zip(expected, along, strict=True))
    _, tangent = torch.func.jvp(lambda *x: loss(f, *x), given, along)
    torch.testing.assert_close(tangent, product)
    with forward_ad.dual_level():
        duals = map(forward_ad.make_dual, inputs, along)  # recorded as well
        torch.testing.assert_close(forward_ad.unpack_dual(loss(f, *duals)).tangent, product)
    _, forward = torch.func.jvp(found, given, along)
    first = torch.autograd.grad(loss(f, *inputs), inputs, create_graph=True)
    total = sum((g * u).sum() for g, u in zip(first, along, strict=True))
    assert isinstance(total, torch.Tensor)
    torch.testing.assert_close(forward, torch.autograd.grad(total, inputs))


def test_compiled() -> None:
    """The backward of an operator runs the host part again."""
    f, inputs = PROGRAMS["heat"]
    found = gradients(torch.compile(f, backend="aot_eager"), inputs)
    torch.testing.assert_close(found, gradients(f, inputs))


def test_interpreted() -> None:
    for kernel in (heat, trajectory):
        x = leaf(5)
        (expected,) = torch.autograd.grad(kernel(x, 4).sum(), x)
        found = kernel.backward.interpret(x.detach(), 4)[0]
        assert found is not None
        torch.testing.assert_close(found, expected)


@pytest.fixture
def referred(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Referred]]:
    """Gives all that refers to a tensor, of launches in this test."""
    made: list[weakref.ref[Referred]] = []
    begin = Referred.begin

    def noted(self: Referred, tensor: torch.Tensor, moment: Moment) -> None:
        made.append(weakref.ref(self))
        begin(self, tensor, moment)

    monkeypatch.setattr(Referred, "begin", noted)
    return lambda: [r for ref in made if (r := ref()) is not None and r.tensor is not None]


def test_a_trajectory_copies_nothing(referred: Callable[[], list[Referred]]) -> None:
    for kernel, x in ((trajectory, leaf(4)), (rows, leaf(4))):
        y = kernel(x, 6)
        assert len(referred()) == 5
        assert all(r.copies is None for r in referred())
        del y
    y = lu(positive(leaf(5, 5)))
    assert len(referred()) == 8
    assert all(r.copies is None for r in referred())
    assert y.requires_grad


def test_copies_hold_no_more_than_is_read(referred: Callable[[], list[Referred]]) -> None:
    @weft.kernel
    def rewritten(x, T):
        y = x.clone()
        for _ in weft.serial(range(T)):
            for i in range(2, 5):
                y[i] = torch.sin(y[i + 10])
            for i in range(2, 5):
                y[i + 10] = y[i + 20] ** 2
        return y

    y = rewritten(leaf(40), 3)
    assert [[c.numel() for c in r.copies or ()] for r in referred()] == [[3], []] * 3
    assert y.requires_grad


def test_memory_goes_with_the_graph(referred: Callable[[], list[Referred]]) -> None:
    x = leaf(8)
    gc.disable()
    try:
        for kernel in (heat, trajectory, rows):
            y = kernel(x, 5)
            assert referred() != []
            del y
            assert referred() == []  # no cycles
    finally:
        gc.enable()
    y = heat(x, 5).sum()
    assert referred() != []
    y.backward()
    assert referred() == []  # though ``y`` has its history still


def test_a_graph_is_used_again_if_it_is_kept() -> None:
    f, inputs = PROGRAMS["heat"]
    total = loss(f, *inputs)
    first = torch.autograd.grad(total, inputs, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(total, inputs), first)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(total, inputs)


def test_threads() -> None:
    f, inputs = PROGRAMS["heat"]
    expected = gradients(f, inputs)

    def run(_: int) -> Any:
        return gradients(f, tuple(x.detach().clone().requires_grad_() for x in inputs))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for found in pool.map(run, range(40)):
            torch.testing.assert_close(found, expected)


@weft.kernel
def product(x, w):
    y = torch.empty_like(x)
    for i in x:
        y[i] = x[i] * w[i]
    return y


@weft.kernel
def behind_the_back(x):
    y, z = torch.empty_like(x), torch.empty_like(x)
    for i in x:
        y[i] = x[i] ** 2
    for i in x:
        z[i] = y[i] ** 2
    with torch.no_grad():
        for i in range(len(y)):
            y[i] = 0.0
    return z


def raised(total: torch.Tensor) -> str:
    with pytest.raises(GradientError) as caught:
        total.sum().backward()
    return "\n".join(str(caught.value).split(": ", 2)[2].splitlines())


def gone(name: str, line: str) -> str:
    return (
        f"the gradient of this loop needs `{name}`, which was modified by an inplace operation "
        f"after the loop: its values are gone\n    {line}\n    {'^' * len(line)}\n"
        f"help: change a copy of it: {name}.clone()"
    )


def test_what_changes_behind_the_back_is_an_error() -> None:
    """Never a wrong gradient: a leaf changed by an optimizer, a tensor changed by the caller, or by
    a loop that autograd was told not to see."""
    x, w = leaf(3), leaf(3, seed=1)
    y = product(x, w)
    with torch.no_grad():
        w.mul_(2)
    assert raised(y) == gone("w", "for i in x:")
    assert raised(y) == gone("w", "for i in x:")  # and so it stays

    y = trajectory(x, 4)
    y.mul_(2)
    assert raised(y) == gone("x", "for i in range(x.shape[1]):")
    assert raised(behind_the_back(x)) == gone("y", "for i in x:")


def test_a_second_derivative_that_is_lost() -> None:
    @weft.kernel
    def views(x):
        y = torch.empty(2, 2, len(x), dtype=x.dtype)
        for t in weft.serial(range(2)):
            a = y[t]
            for i in x:
                a[0, i] = x[i] * (t + 1)
                a[1, i] = a[0, i] ** 2
        return y

    x = leaf(3)
    assert torch.autograd.gradcheck(views, x)
    with pytest.raises(GradientError) as caught:
        torch.autograd.grad(views(x).sum(), x, create_graph=True)
    assert str(caught.value).split(": ", 2)[2] == (
        "a derivative of this order needs `a`, a view that the loop writes and that is overwritten "
        "later\n    for i in x:\n    ^^^^^^^^^^^\n"
        "help: write to the whole tensor, with one subscript more"
    )


def test_a_gradient_is_overwritten_where_nothing_else_has_it(monkeypatch: pytest.MonkeyPatch):
    """A clone of the whole tensor at each step of a time loop takes time in proportion to T²."""
    trajectory(leaf(3), 5).sum().backward()  # what is counted once is
    clones: list[int] = []
    clone = torch.Tensor.clone
    monkeypatch.setattr(torch.Tensor, "clone", lambda x, **k: clones.append(1) or clone(x, **k))
    counts: list[int] = []
    for T in (5, 50):
        y = trajectory(leaf(3), T)
        clones.clear()
        y.sum().backward()
        counts.append(len(clones))
    assert counts[0] == counts[1] <= 1


@weft.kernel
def stepped(x, t):
    for i in range(x.shape[1]):
        x[t + 1, i] = torch.sin(x[t, i]) * 1.5


KEEPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "hook": lambda g: g, "view": lambda g: g[:], "numpy": lambda g: torch.from_numpy(g.numpy()),
}  # fmt: skip


@pytest.mark.parametrize("way", [*KEEPS, "edge"])
def test_a_gradient_that_something_else_has_stays(way: str):
    """Each step's own gradient is that of the steps behind it, carried out on its results."""
    x0 = leaf(3)
    x = torch.zeros(5, 3, dtype=F64)
    x[0] = x0
    seen: list[torch.Tensor] = []
    edges: list[Any] = []
    for t in range(4):
        stepped(x, t)
        edges.append(torch.autograd.graph.get_gradient_edge(x))
        if way != "edge":
            x.register_hook(lambda g: seen.append(KEEPS[way](g)))
    found = torch.autograd.grad(x.sum(), [*edges, x0] if way == "edge" else [x0])
    states = list(found[:4]) if way == "edge" else seen[::-1]
    for t, state in enumerate(states):
        rows = [row.requires_grad_() for row in x.detach().clone()[: t + 2]]
        last, total = rows[-1], torch.stack(rows).sum()
        for _ in range(t + 1, 4):
            last = torch.sin(last) * 1.5
            total = total + last.sum()
        expected = torch.stack(torch.autograd.grad(total, rows))
        torch.testing.assert_close(state[: t + 2], expected)


def test_a_gradient_that_was_given_stays():
    x = torch.zeros(5, 3, dtype=F64)
    x[0] = leaf(3)
    for t in range(4):
        stepped(x, t)
    given = torch.ones(5, 3, dtype=F64)
    x.backward(given)
    assert torch.equal(given, torch.ones(5, 3, dtype=F64))


@weft.kernel
def running_sums(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(out.shape[0]):
        s = 0.0
        for j in range(out.shape[1]):
            s += x[i, j]
            out[i, j] += s * w[j]
    return out


@pytest.mark.parametrize("call", [running_sums, running_sums.op], ids=["call", "op"])
def test_what_a_gradient_asks_for_its_sizes_alone_may_be_overwritten(call: Any) -> None:
    """``out += bias`` of a result over whose sizes the loop goes: nobody keeps it."""
    for turn in range(3):  # as any launch, as a plan, by its builtins
        x, w, bias = leaf(3, 4, seed=turn), leaf(4, seed=1), leaf(4, seed=2)
        y = call(x, w)
        y += bias
        with torch.no_grad():
            y.mul_(0)
        kept = weakref.ref(y.untyped_storage())
        total = y.sum()
        del y
        assert kept() is None
        found = torch.autograd.grad(total, [x, w, bias])
        other = (x.cumsum(1) * w + bias).sum()
        torch.testing.assert_close(found, torch.autograd.grad(other, [x, w, bias]))


@pytest.mark.parametrize("call", [running_sums, running_sums.op], ids=["call", "op"])
def test_what_is_read_beside_it_may_not(call: Any) -> None:
    x, w = leaf(3, 4), leaf(4, seed=1)
    y = call(x, w)
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(GradientError, match="needs `w`, which was modified"):
        y.sum().backward()


@weft.kernel
def times(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * y[i]
    return out


@pytest.mark.parametrize("calls", [0, 5])  # of which the last ones are planned
@pytest.mark.parametrize("call", [times, times.op], ids=["call", "op"])
def test_what_is_saved_is_as_it_was(call: Any, calls: int) -> None:
    """Torch counts neither other ``.data`` nor what hooks give: a shorter tensor was read beyond
    its end, one with gaps as if it had none, a negative view as it is in memory."""
    x, y = leaf(300), leaf(300, seed=1)
    for _ in range(calls):
        call(x, y).sum().backward()
    shorter, wide = torch.ones(3, dtype=F64), torch.arange(600, dtype=F64)[::2]
    for other, said in (
        (shorter, r"\[3\] of float64 now"), (torch.ones(400, dtype=F64), r"\[400\] of float64 now"),
        (torch.ones(300), r"\[300\] of float32 now"),
    ):  # fmt: skip
        x = leaf(300)
        out = call(x, y)
        x.data = other
        with pytest.raises(GradientError, match=rf"`x` was \[300\] of float64 when .* {said}"):
            torch.autograd.grad(out.sum(), y)
    x = leaf(300)
    out = call(x, y)
    x.data = wide
    torch.testing.assert_close(torch.autograd.grad(out.sum(), y)[0], wide)
    for pack, unpack in (
        (torch.neg, torch._neg_view), (torch.clone, lambda t: torch.stack([t, t], 1)[:, 0])
    ):  # fmt: skip
        x = leaf(300)
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            out = call(x, y)
        found = torch.autograd.grad(out.sum(), [x, y])
        torch.testing.assert_close(found, (y.detach(), x.detach()))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t[:7]):
        out = call(x, y)
    with pytest.raises(GradientError, match=r"`x` was \[300\] .* is \[7\] of float64 now"):
        torch.autograd.grad(out.sum(), y)
    for unpack, said in (
        (lambda t: t.to("meta"), r"\[300\] of float64 on cpu .* of float64 on meta now"),
        (torch.Tensor.to_sparse, r"\[300\] of float64 when .* of float64, sparse_coo, now"),
    ):  # fmt: skip
        with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, unpack):
            out = call(x, y)
        with pytest.raises(GradientError, match=said):
            torch.autograd.grad(out.sum(), y)

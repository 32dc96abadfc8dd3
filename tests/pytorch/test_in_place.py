"""Kernels that write to their arguments, as Inductor and checkpoints see them."""

import functools
import warnings

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import weft
from weft.errors import GradientError
from weft.pytorch.forward_level import is_open
from weft.runtime.overlap import OverlapWarning

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.compile's own


@weft.kernel
def scale_(x: torch.Tensor, factor: float) -> None:
    for i in range(x.shape[0]):
        x[i] *= factor


@weft.kernel
def add_(x: torch.Tensor, y: torch.Tensor) -> None:
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        x[i, j] += y[i, j]


@weft.kernel
def square(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * x[i]
    return out


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(6))

    def forward(self, x, m):
        scale_(self.seen, 2.0)  # a buffer
        scale_(x, 3.0)  # an argument
        fresh = x * 1
        scale_(fresh[2:], 5.0)  # a view of what is fresh
        alias = fresh.view(-1)
        scale_(alias, 2.0)  # all of it, by another name
        scale_(fresh, 0.5)  # twice
        grid = m + 1
        add_(grid.t(), grid.t().clone())  # transposed
        add_(grid[:2], grid[1:])  # what is read overlaps what is written
        return fresh * self.seen, alias.sum(), grid * 2


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.sampled(5)
def test_writes_of_every_form_under_compile(backend):
    def run(wrap):
        model = Counting()
        x, m = torch.arange(6.0), torch.arange(9.0).view(3, 3)
        outs = wrap(model)(x, m)
        return x, m, model.seen, *outs

    torch.testing.assert_close(
        run(functools.partial(torch.compile, fullgraph=True, backend=backend)), run(lambda m: m)
    )


@weft.kernel
def carry_(y: torch.Tensor, x: torch.Tensor) -> None:
    for i in range(y.shape[0]):
        y[i] += 2 * x[i]


def overlapping(y):
    z = y * 1
    carry_(z[1:], z[:-1])
    return z


def apart(y):
    z = y * 1
    carry_(z[1::2], z[::2])
    carry_(z, z)
    return z


@weft.kernel
def rescaled_(x, y, out):
    for i in x:
        x[i] = y[i] * 2
        out[i] = y[i] + 1


@weft.kernel
def smoothed_(x, y):
    for i in range(x.shape[0]):
        for k in range(x.shape[1]):
            x[i, k] = y[i, k] + 1
        for k in range(1, x.shape[1]):
            x[i, k] += y[i, k - 1]


@weft.kernel
def doubled_(x, y, out):
    for i in range(x.shape[0]):
        for k in range(x.shape[1]):
            out[i, k] = y[i, k] + 1
            x[i, k] = y[i, k] * 2


def one_element(y):
    z, out = y * 1, torch.empty_like(y)
    rescaled_(z, z, out)
    return z + out


def one_row(y):
    z = y.reshape(2, 4) * 1
    smoothed_(z, z)
    return z


def read_before(y):
    z, out = y.reshape(2, 4) * 1, torch.empty(2, 4)
    doubled_(z, z, out)
    rescaled_(z[0], z[1], out[0])
    return z + out


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("program", "warned"),
    [(overlapping, True), (apart, False), (one_element, True), (one_row, True),
     (read_before, False)],
)  # fmt: skip
@pytest.mark.sampled(3)
def test_a_graph_says_that_it_reads_what_was_there_before(program, warned, dynamic):
    torch._dynamo.reset()
    for kernel in (carry_, rescaled_, smoothed_):
        kernel.source.warned.clear()
    y = torch.arange(1.0, 9.0)
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OverlapWarning)
        found = compiled(y)
    said = [str(w.message) for w in caught if w.category is OverlapWarning]
    assert bool(said) == warned
    for message in said:
        rest = message[message.index("`: ") + 1 :]
        assert rest == (
            ": arguments share memory that the loop writes and reads: PyTorch's "
            "graphs write to a copy, and the loop reads what was there before\nhelp: pass a copy "
            "(x.clone()) if that is meant, or call the kernel outside of torch.compile"
        )
    if not warned:
        assert found.tolist() == program(y).tolist()


def test_a_level_of_forward_mode_is_seen_however_it_was_entered():
    assert not is_open()
    with forward_ad.dual_level():
        assert is_open()
    torch._C._enter_dual_level()  # as compiled code does
    assert is_open()
    assert forward_ad._current_level < 0
    torch._C._exit_dual_level(level=0)
    assert not is_open()
    with forward_ad.dual_level():  # asking has left nothing behind
        assert is_open()


def test_asking_for_tangents_is_no_operation():
    seen = []

    class Names(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.ones(3)
    with Names():
        scale_(x, 2.0)
    assert seen == [str(scale_.op)]


@pytest.mark.parametrize("policy", [CheckpointPolicy.PREFER_RECOMPUTE, CheckpointPolicy.MUST_SAVE])
def test_selective_checkpoints(policy):
    x = torch.arange(1.0, 4.0, requires_grad=True)
    contexts = functools.partial(create_selective_checkpoint_contexts, lambda *_, **__: policy)

    def call(x):
        return square(x.sin()).cos().sum()

    checkpoint(call, x, use_reentrant=False, context_fn=contexts).backward()
    expected = x.detach().requires_grad_()
    (expected.sin() ** 2).cos().sum().backward()
    torch.testing.assert_close(x.grad, expected.grad)


@pytest.mark.parametrize("calls", [0, 8])
def test_a_policy_of_selective_checkpoints_meets_every_kernel(calls):
    kernel = weft.kernel(square.function)
    x, met = torch.arange(1.0, 4.0, requires_grad=True), []

    def policy(context, operator, *args, **kwargs):
        met.append(operator)
        return CheckpointPolicy.MUST_SAVE

    for _ in range(calls):  # which a builtin serves then
        kernel(x).sum().backward()
    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    checkpoint(kernel, x, use_reentrant=False, context_fn=contexts)
    assert met == [kernel.op]


def test_a_checkpoint_around_the_operator():
    x = torch.arange(1.0, 4.0, requires_grad=True)
    checkpoint(lambda x: square.op(x.sin()).sum(), x, use_reentrant=False).backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().sin() * x.detach().cos())


@weft.kernel
def squared_into(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        out[i] = x[i] * x[i]


class Part(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x[1:4]

    @staticmethod
    def backward(ctx, g):
        return torch.nn.functional.pad(g, (1, 2))


@pytest.mark.parametrize(
    "how", ["several", "of a history", "no_grad", "inference", "a view of it", "function"]
)
def test_a_view_that_torch_follows_no_writes_to_stays_as_it_was(how):
    """It was written before torch refused it; what had saved it did not see that."""
    base = torch.arange(6.0)
    if how in ("of a history", "function"):
        base = base.requires_grad_() * 1
    if how == "function":
        view = Part.apply(base)
    elif how in ("no_grad", "inference"):
        with torch.no_grad() if how == "no_grad" else torch.inference_mode():
            view = base[1:4]
    else:
        view = base.chunk(2)[1]
        view = view.view(3) if how == "a view of it" else view
    before = view.detach().clone()
    x = torch.full((3,), 7.0, requires_grad=True)
    with pytest.raises(RuntimeError):
        view.copy_(x)
    with pytest.raises(GradientError, match=r"`out` is .* the loop writes to it, and a gradient"):
        squared_into(x, view)
    assert torch.equal(view, before)


@weft.kernel
def products_into(out: torch.Tensor, x: torch.Tensor, beside: list[torch.Tensor]) -> None:
    for i in range(out.shape[0]):
        out[i] += x[i] * beside[0][i]


def of_parts(x: torch.Tensor) -> torch.Tensor:
    y = x * 1.0
    products_into(y[0:2], y[2:4], [y[4:6]])  # views of one tensor, which have nothing in common
    return (y * y).sum()


def of_parts_plain(x: torch.Tensor) -> torch.Tensor:
    return ((x[0:2] + x[2:4] * x[4:6]) ** 2).sum() + (x[2:] ** 2).sum()


def of_shifted(x: torch.Tensor) -> torch.Tensor:
    y = x * 1.0
    products_into(y[1:], y[:-1], [x])  # each element follows from the one before
    return (y * y).sum()


def of_one(f, x):
    return torch.func.grad(f)(x[0])


def tangents_of_one(f, x):
    return torch.func.jvp(f, (x[0],), (x[1],))[1]


def gradients_of_samples(f, x):
    return torch.vmap(torch.func.grad(f))(x)


def gradients_of_a_batch(f, x):
    return torch.func.grad(lambda x: torch.vmap(f)(x).sum())(x)


def tangents_of_samples(f, x):
    return torch.vmap(lambda x: torch.func.jvp(f, (x,), (x + 1,))[1])(x)


def tangents_of_a_batch(f, x):
    return torch.func.jvp(torch.vmap(f), (x,), (x + 1,))[1]


def hessian(f, x):
    return torch.func.hessian(f)(x[0])


TRANSFORMS = [of_one, tangents_of_one, gradients_of_samples, gradients_of_a_batch,
              tangents_of_samples, tangents_of_a_batch, hessian]  # fmt: skip


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_of_writes_to_a_part_of_what_is_read(transform):
    """Torch could not say of a transform's views where they lie, and took what the gradient keeps
    for changed."""
    x = torch.randn(3, 6, dtype=torch.float64)
    torch.testing.assert_close(transform(of_parts, x), transform(of_parts_plain, x))


def test_a_compiled_gradient_of_writes_to_a_part_of_what_is_read():
    batch = torch.randn(3, 6, dtype=torch.float64)
    compiled = torch.compile(lambda x: gradients_of_a_batch(of_parts, x), backend="aot_eager")
    torch.testing.assert_close(compiled(batch), gradients_of_a_batch(of_parts_plain, batch))
    x = torch.randn(6, dtype=torch.float64, requires_grad=True)
    for transform in (torch.func.grad, lambda f: lambda x: torch.autograd.grad(f(x), x)[0]):
        torch._dynamo.reset()
        found = transform(torch.compile(of_parts, backend="aot_eager"))(x)
        torch.testing.assert_close(found, transform(of_parts_plain)(x))


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_of_writes_to_what_is_read(transform):
    """The tangents of a batch were those of what was there before."""
    x = torch.randn(3, 6, dtype=torch.float64)
    with pytest.raises(GradientError, match="is also read or written through another argument"):
        transform(of_shifted, x)


def test_compiled_tangents_of_a_batch_that_writes_to_what_is_read():
    x = torch.randn(3, 6, dtype=torch.float64)
    compiled = torch.compile(lambda x: tangents_of_a_batch(of_shifted, x), backend="aot_eager")
    with pytest.raises(RuntimeError, match="is also read or written through another argument"):
        compiled(x)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("of", ["both", "x", "y"])
@pytest.mark.parametrize("dims", [(0, 0), (0, None), (1, 1)])
def test_batches_of_tensors_that_require_a_gradient_are_written(compiled, of, dims):
    given = torch.rand(3, 3, dtype=torch.float64), torch.rand(3, 3, dtype=torch.float64)
    x, y = (t.requires_grad_(of in ("both", name)) for t, name in zip(given, "xy", strict=True))
    second = y[0] if dims[1] is None else y
    other = y[:1] if dims[1] is None else y

    def sample(x, y):
        z = x * x
        carry_(z, y)
        return z

    def run(x, y):
        return torch.vmap(sample, dims)(x, y)

    if compiled:
        torch._dynamo.reset()  # it has a limit of graphs for one function
        run = torch.compile(run, backend="aot_eager", fullgraph=True)
    wanted = [t for t in (x, y) if t.requires_grad]
    expected = x * x + 2 * other
    expected = expected.t() if dims[0] == 1 else expected
    weights = torch.rand(3, 3, dtype=torch.float64)
    found = run(x, second)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad((found * weights).sum(), wanted),
        torch.autograd.grad((expected * weights).sum(), wanted),
    )


@pytest.mark.parametrize("compiled", [False, True])
def test_batches_of_batches_of_tensors_that_require_a_gradient_are_written(compiled):
    x, y = torch.rand(2, 3, 4, requires_grad=True), torch.rand(3, 2, 4, requires_grad=True)

    def sample(x, y):
        z = x * 1
        carry_(z, y)
        return z

    def run(x, y):
        return torch.vmap(torch.vmap(sample), (0, 1))(x, y)

    if compiled:
        run = torch.compile(run, backend="aot_eager", fullgraph=True)
    found = torch.autograd.grad(run(x, y).sin().sum(), (x, y))
    expected = torch.autograd.grad((x + 2 * y.transpose(0, 1)).sin().sum(), (x, y))
    torch.testing.assert_close(found, expected)

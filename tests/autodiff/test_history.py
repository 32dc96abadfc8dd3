"""Gradients of calls whose arguments are as those of one before, which are planned."""

import gc
import math
import sys
import threading
import time

import pytest
import torch
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import weft
from benchmarks import first_backward, gradient_cost
from tests.autodiff import kernels as k
from tests.autodiff.test_gradients import CASES
from weft.errors import GradientError
from weft.pytorch import autograd, history
from weft.runtime import fastpath, native

if not native.available() or fastpath._TensorGuards is None:
    pytest.skip("builtins are not to be had here", allow_module_level=True)


@weft.kernel
def multiply(x, y):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * y[i]
    return out


@weft.kernel
def weighted(x, weights):
    out = torch.empty_like(x)
    for i in out:
        out[i] = x[i] * weights[i]
    return out


@weft.kernel
def scaled(x, n: int, factor: float):
    out = torch.zeros_like(x)
    for i in range(n):
        out[i] = x[i] * x[i] * factor
    return out


@weft.kernel
def picked(x, places, weights):
    out = torch.empty_like(weights)
    for i in range(places.shape[0]):
        out[i] = x[places[i]] * weights[i]
    return out


@weft.kernel
def into(x, out):
    for i in range(x.shape[0]):
        out[i] = 2.0 * x[i] * x[i]


@pytest.fixture
def usual(monkeypatch):
    """How often a backward went the usual way."""
    seen = []
    backward = autograd.Launch.backward

    def counted(ctx, *grads):
        seen.append(ctx)
        return backward(ctx, *grads)

    monkeypatch.setattr(autograd.Launch, "backward", staticmethod(counted))
    return seen


def leaf(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def planned(kernel, *args, calls=4):
    """Calls it until its gradient is planned."""
    for _ in range(calls):
        out = kernel(*args)
        out.sum().backward()
        for a in args:
            if isinstance(a, torch.Tensor):
                a.grad = None


def gradients(kernel, args):
    leaves = [a.detach().clone().requires_grad_() if isinstance(a, torch.Tensor)
              and a.is_floating_point() else a for a in args]  # fmt: skip
    outs = kernel(*leaves)
    outs = outs if isinstance(outs, tuple) else (outs,)
    sum((o * torch.linspace(0.5, 2.0, o.numel()).reshape(o.shape)).sum() for o in outs).backward()
    return [o.detach() for o in outs], [a.grad for a in leaves if isinstance(a, torch.Tensor)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(3)
def test_later_gradients_are_those_of_first_calls(name, monkeypatch):
    def draws(kernel):
        for seed in range(5):
            torch.manual_seed(seed)
            yield gradients(kernel, CASES[name]()[1:])

    kernel, *_ = CASES[name]()
    found = list(draws(kernel))
    monkeypatch.setattr(history, "history", lambda *_: None)
    torch.testing.assert_close(found, list(draws(weft.kernel(kernel.function))))


@pytest.mark.slow
def test_what_a_later_gradient_takes_of_python():
    x, y = leaf(4), leaf(4)
    planned(multiply, x, y)
    out, ones = None, torch.ones(4, dtype=torch.float64)
    called = []

    def watched(frame, event, argument):
        if event == "call":
            called.append(frame.f_code.co_name)

    sys.setprofile(watched)
    try:
        out = multiply(x, y)
        torch.autograd.grad(out, (x, y), ones)
    finally:
        sys.setprofile(None)
    assert called[2] == "grad"  # torch's own from here on
    assert called[:2] == ["__call__", "is_dynamo_compiling"]
    assert not {"forward", "backward"} & {*called}


def test_the_builtins_that_autograd_calls_give_back_what_they_take():
    """Nothing is held by them, also where a graph was freed, or a gradient is of another kind."""
    x, y = leaf(64), leaf(64)
    planned(scaled, x, 64, 0.5, calls=6)
    planned(multiply, x, y, calls=6)
    ones, strided = torch.ones(64, dtype=x.dtype), torch.ones(64, 2, dtype=x.dtype)[:, 0]

    def freed():
        out = multiply(x, y)
        torch.autograd.grad(out, (x, y), ones)
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(out, (x, y), ones)

    def calls():
        for _ in range(20):
            for given in (ones, strided):
                torch.autograd.grad(multiply(x, y), (x, y), given)
                torch.autograd.grad(scaled(x, 64, 0.5), x, given)
            freed()

    def counts():
        gc.collect()
        objects = ones, strided, x, y, None, NotImplemented
        return len(gc.get_objects()), *map(sys.getrefcount, objects)

    calls()
    calls()
    before = counts()
    calls()
    after = counts()
    assert all(b - a < 20 for a, b in zip(before, after, strict=True)), (before, after)


def test_an_unpack_hook_that_raises_is_heard():
    x, y = leaf(4), leaf(4)
    planned(multiply, x, y)

    def unpack(_):
        raise KeyError("what was saved")

    with saved_tensors_hooks(lambda t: t, unpack):
        out = multiply(x, y)
    with pytest.raises(KeyError, match="what was saved"):
        out.sum().backward()


def test_a_gradient_of_the_size_of_the_call_before_is_inspected():
    @weft.kernel
    def own(x):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            s = x[i] + 0
            while s < 4.0:
                s = s * s + 0.5
            out[i] = s
        return out

    few, many = leaf(3), leaf(4097)
    first = own.backward.inspect(few)
    for x in (many, few, many):
        planned(own, x)
    assert own.backward.inspect(few) == first


def test_gradients_of_many_layouts_dtypes_and_orders(usual):
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        x, y = leaf(6, dtype=dtype), leaf(12, dtype=dtype)
        planned(multiply, x, y[::2])
        del usual[:]
        out = multiply(x, y[::2])
        dx, dy = torch.autograd.grad(out, (x, y), torch.full((12,), 3.0, dtype=dtype)[::2])
        assert not usual
        torch.testing.assert_close(dx, (3 * y[::2]).detach())
        torch.testing.assert_close(dy[::2], (3 * x).detach())


@weft.kernel
def differences(x):
    out = torch.empty_like(x)
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        out[i, j] = x[i, j] * x[i, j] - x[i, (j + 1) % x.shape[1]]
    return out


def called_in_c(f):
    """What ``f`` gives, and the names of builtins that its backward has called."""
    names = []

    def watched(frame, event, argument):
        if event == "c_call" and frame.f_code.co_filename.startswith("<weft"):
            names.append(argument.__name__)

    sys.setprofile(watched)
    try:
        return f(), names
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [2, 7, 300])
def test_the_gradient_of_a_sum_is_written_out_by_the_builtin(usual, dtype, columns):
    x, row, other = (leaf(*shape, dtype=dtype) for shape in ((3, columns), (columns,), (columns,)))
    planned(differences, x)
    planned(multiply, row, other)
    del usual[:]
    one = torch.tensor(0.3, dtype=dtype)
    for kernel, args in ((differences, (x,)), (multiply, (row, other))):
        out = kernel(*args)
        expected = torch.autograd.grad(out, args[0], one.repeat(out.shape), retain_graph=True)
        small = out.numel() * dtype.itemsize <= 4096
        for _ in range(2):
            found, names = called_in_c(
                lambda out=out, args=args: torch.autograd.grad(
                    out, args[0], one.expand(out.shape), retain_graph=True
                )
            )
            assert torch.equal(found[0], expected[0])
            assert names == ([] if small else ["launch", "contiguous", "launch"])
    assert not usual


def test_the_gradient_of_a_sum_of_which_another_step_reads_is_copied():
    @weft.kernel
    def in_two_steps(x, k):
        out = torch.zeros_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * x[k[i]]
        return out

    x, k = leaf(5), torch.tensor([1, 1, 0, 4, 2])
    for n in range(6):
        (found,) = torch.autograd.grad(in_two_steps(x, k).sum() * n, x)
        (expected,) = torch.autograd.grad((x * x[k]).sum() * n, x)
        torch.testing.assert_close(found, expected)


def test_gradients_that_require_grad_are_as_others(usual):
    x, y = leaf(5), leaf(5)
    planned(multiply, x, y)
    del usual[:]
    for n in range(6):
        weight = torch.randn(5, dtype=torch.float64, requires_grad=n % 2 == 0)
        (dx,) = torch.autograd.grad(multiply(x, y), x, weight)
        torch.testing.assert_close(dx, (weight * y).detach())
        assert not dx.requires_grad
    assert not usual


def test_a_sparse_gradient_is_as_a_dense_one(usual):
    x, y = leaf(4), leaf(4)
    given = torch.tensor([0.0, 2.0, 0.0, -1.0], dtype=torch.float64)
    for _ in range(4):
        found = torch.autograd.grad(multiply(x, y), [x, y], given.to_sparse())
        torch.testing.assert_close(found, (given * y, given * x))
        torch.autograd.grad(multiply(x, y), [x, y], given)


def test_gradients_of_other_kinds_in_turn_are_rarely_learned(usual, monkeypatch):
    x, y = leaf(1001), leaf(1001)
    planned(multiply, x, y)
    made = []
    backward = history._backward
    monkeypatch.setattr(history, "_backward", lambda *a: made.append(a) or backward(*a))
    for n in range(60):
        weight = torch.randn(1001, dtype=torch.float64)
        weight = torch.nn.Parameter(weight, requires_grad=False) if n % 2 == 0 else weight
        (dx,) = torch.autograd.grad(multiply(x, y), x, weight)
        torch.testing.assert_close(dx, (weight * y).detach())
    assert 1 < len(made) < 4
    for _ in range(200):  # and those of one kind are planned in the end
        del usual[:]
        torch.autograd.grad(multiply(x, y), x, torch.ones(1001, dtype=torch.float64))
    assert not usual


def test_one_tensor_twice(usual):
    x, y = leaf(5), leaf(5)
    for turn in range(40):  # in turn with others
        a = y if turn % 2 else x
        out, g = multiply(x, a), torch.randn(5, dtype=torch.float64)
        if turn == 8:
            del usual[:]
        found = torch.autograd.grad(out, {x, a}, g)
        expected = torch.autograd.grad(x * a, {x, a}, g)
        torch.testing.assert_close(found, expected)
        (found,) = torch.autograd.grad(multiply(x, a).sum(), (x,))
        torch.testing.assert_close(found, torch.autograd.grad((x * a).sum(), (x,))[0])
    assert not usual


def test_a_gradient_that_is_a_tensor_of_the_call():
    x, y = leaf(5), leaf(5)
    planned(multiply, x, y)
    for turn in range(12):
        g = (x, y, torch.ones(5, dtype=torch.float64), y)[turn % 4]
        found = torch.autograd.grad(multiply(x, y), (x, y), g.detach() if turn % 2 else g)
        torch.testing.assert_close(found, (g * y, g * x))


def test_numbers_may_change(usual):
    x = leaf(6)
    planned(scaled, x, 4, 0.5)
    del usual[:]
    for n, factor in ((4, 0.5), (4, 3.0), (2, 3.0), (2, 1.5), (4, 2.0), (6, -1.0)):
        (grad,) = torch.autograd.grad(scaled(x, n, factor).sum(), x)
        expected = torch.where(torch.arange(6) < n, 2 * factor * x, 0.0)
        torch.testing.assert_close(grad, expected.detach())
    assert len(usual) == 2  # the first of each number of iterations


@pytest.mark.parametrize(("size", "count"), [(5, 40), (1000, 300), (64, 1 << 15)])
def test_additions_by_several_threads_are_planned_for_these(usual, size, count):
    def right():
        out, g = picked(x, places, weights), torch.randn(len(places), dtype=torch.float64)
        dx, dw = torch.autograd.grad(out, (x, weights), g)
        expected = torch.zeros_like(x).index_put((places,), g * weights, accumulate=True)
        torch.testing.assert_close((dx, dw), (expected.detach(), (g * x[places]).detach()))

    def goes_the_usual_way():
        del usual[:]
        right()
        return bool(usual)

    x, weights, places = leaf(size), leaf(count), torch.randint(size, (count,))
    before = torch.get_num_threads()
    try:
        for threads in (2, 1, 3):
            torch.set_num_threads(threads)
            for _ in range(60):  # what changes often is planned anew more and more rarely
                right()
            assert not goes_the_usual_way()
            torch.use_deterministic_algorithms(True)
            assert goes_the_usual_way()
            torch.use_deterministic_algorithms(False)
            assert not goes_the_usual_way()
            torch.set_num_threads(threads + 2)
            assert goes_the_usual_way()
        torch.set_num_threads(3)
        for other in (count // 2, count + 1, 0, 3):
            weights, places = leaf(other), torch.randint(size, (other,))
            right()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(before)


def test_what_asks_for_more_goes_the_usual_way(usual):
    x, y = leaf(4), leaf(4)
    planned(multiply, x, y)
    del usual[:]
    out = multiply(x, y)
    (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), y)
    torch.testing.assert_close((grad.detach(), second), (y.detach(), torch.ones_like(y)))
    assert usual
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        torch.testing.assert_close(forward_ad.unpack_dual(multiply(dual, y)).tangent, y)
    torch.testing.assert_close(torch.func.grad(lambda x: multiply(x, y).sum())(x), y)
    eye = torch.eye(4, dtype=x.dtype)
    (rows,) = torch.autograd.grad(multiply(x, y), x, eye, is_grads_batched=True)
    torch.testing.assert_close(rows, eye * y)


def test_plain_tensors_within_a_transform_are_seen_by_their_dispatch_keys(usual):
    x, y, z = leaf(4), leaf(4), torch.randn(4, dtype=torch.float64)
    planned(multiply, x, y)

    def both(f):
        value = torch.func.grad(lambda z: (f(x, y) * z).sum())(z)
        outs = torch.func.vmap(lambda z: f(x, y) + z)(z)
        (dx,) = torch.autograd.grad(value.sum() + outs.sum(), x)
        return value, outs, dx

    for _ in range(5):
        torch.testing.assert_close(both(multiply), both(torch.mul))
    del usual[:]
    torch.autograd.grad(multiply(x, y).sum(), x)
    assert not usual


@pytest.mark.parametrize("first", ["sum", "plain"])
def test_gradients_of_a_sum_and_others_in_turn(usual, first):
    x, y = leaf(5), leaf(5)
    weights = torch.tensor(2.0, dtype=torch.float64).expand(5), leaf(5).detach()
    for weight in weights if first == "sum" else weights[::-1]:
        (dx,) = torch.autograd.grad(multiply(x, y), x, weight)
    del usual[:]
    for weight in (*weights, torch.randn(10, dtype=torch.float64)[::2]) * 3:
        (dx,) = torch.autograd.grad(multiply(x, y), x, weight)
        torch.testing.assert_close(dx, (weight * y).detach())
    assert not usual


def test_a_graph_is_kept_freed_and_checked(usual):
    x, y = leaf(4), leaf(4)
    planned(multiply, x, y)
    del usual[:]
    out = multiply(x, y)
    for _ in range(2):
        out.sum().backward(retain_graph=True)
    torch.testing.assert_close(x.grad, (2 * y).detach())
    out.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()
    out = multiply(x, y)
    with torch.no_grad():
        y += 1
    with pytest.raises(GradientError, match="the gradient of this loop needs `y`, which was mod"):
        out.sum().backward()
    assert len(usual) == 2


def test_hooks_and_checkpoints(usual):
    x, y = leaf(4), leaf(4)
    planned(multiply, x, y)
    del usual[:]
    seen = []
    with saved_tensors_hooks(lambda t: (seen.append(t), t.clone())[1], lambda t: t):
        out = multiply(x, y)
    out.register_hook(lambda g: 3 * g)
    out.sum().backward()
    torch.testing.assert_close(x.grad, (3 * y).detach())
    assert len(seen) == 2
    x.grad = None
    checkpoint(lambda x: multiply(x, y).sin(), x, use_reentrant=False).sum().backward()
    torch.testing.assert_close(x.grad, ((x * y).cos() * y).detach())


def test_what_is_written_may_be_a_view_or_an_argument():
    x, whole = leaf(4), torch.zeros(8, dtype=torch.float64)
    for _ in range(6):
        whole = torch.zeros(8, dtype=torch.float64)
        into(x, whole[::2])
        (grad,) = torch.autograd.grad(whole.sum(), x)
        torch.testing.assert_close(grad, (4 * x).detach())
        own = torch.zeros(4, dtype=torch.float64)
        into(x, own)
        (grad,) = torch.autograd.grad(own.sum(), x)
        torch.testing.assert_close(grad, (4 * x).detach())


def test_without_a_gradient_nothing_is_recorded():
    x, y = leaf(4), leaf(4)
    planned(multiply, x, y)
    with torch.no_grad():
        assert multiply(x, y).grad_fn is None
    with torch.inference_mode():
        assert multiply(x, y).is_inference()
    assert multiply(x.detach(), y.detach()).grad_fn is None
    out = multiply(x, y.detach())
    assert type(out.grad_fn).__name__ == "multiply_0Backward"
    out.sum().backward()
    assert y.grad is None


def test_names_of_nodes_and_their_edges():
    x, y = leaf(4), leaf(4)
    out = multiply(x, y)  # before torch 2.13, Python's nodes have no name where results are gone
    planned(multiply, x, y)
    out_later = multiply(x, y)
    first, later = out.grad_fn, out_later.grad_fn
    assert first.name() == later.name() == "multiply_0Backward"
    edges = [fn.variable for fn, _ in later.next_functions if fn is not None]
    assert [e is t for e, t in zip(edges, (x, y), strict=True)] == [True, True]


def test_results_of_reductions_have_a_history(usual):
    x = leaf(5)
    for _ in range(4):
        (grad,) = torch.autograd.grad(k.product_of_all(x) * 2, x)
    torch.testing.assert_close(grad, (2 * (x + 1).prod() / (x + 1)).detach())


def test_more_shapes_than_there_are_builtins(usual):
    shapes = range(2, 4 + fastpath.MOST_BUILTINS)
    for _ in range(5):
        del usual[:]
        for n in shapes:
            x, y = leaf(n), leaf(n)
            grads = torch.autograd.grad(multiply(x, y).sum(), (x, y))
            torch.testing.assert_close(grads, (y.detach(), x.detach()))
    assert not usual


def test_threads(usual):
    x, y = leaf(4), leaf(4)
    planned(multiply, x, y)
    found = []

    def work():
        a, b = leaf(4), leaf(4)
        for _ in range(50):
            found.append(torch.equal(torch.autograd.grad(multiply(a, b).sum(), a)[0], b.detach()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(found)
    assert len(found) == 200


def test_deterministic_mode_is_asked_for_at_each_call(usual):
    x = leaf(6)
    index = torch.tensor([0, 2, 1, 2, 2, 0])
    for _ in range(5):
        torch.autograd.grad(k.pick(leaf(3), index).sum(), x, allow_unused=True)
    torch.use_deterministic_algorithms(True)
    try:
        multiply(x, x.detach()).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(x.grad, x.detach())


def test_a_change_of_schedule_is_seen():
    kernel = weft.kernel(multiply.function)
    x, y = leaf(64), leaf(64)
    planned(kernel, x, y)
    kernel.schedule("cpu", None)
    planned(kernel, x, y)
    torch.testing.assert_close(gradients(kernel, (x, y))[1], gradients(multiply, (x, y))[1])


@pytest.mark.cpu
def test_a_first_backward_takes_less_than_a_fifth_of_a_second(monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", "0")
    multiply(leaf(4), leaf(4)).sum().backward()  # what it imports
    kernel = weft.kernel(multiply.function)
    x, y = leaf(4), leaf(4)
    out = kernel(x, y).sum()
    begin = time.thread_time()
    out.backward()
    assert time.thread_time() - begin < 0.2


@pytest.mark.cpu
def test_a_first_gradient_of_a_new_process_takes_less_than_a_fifth_of_a_second():
    """What it imports is counted, and nothing is cached (`make bench` has more kernels). On a slow
    machine it takes no longer than the first call, which compiles another loop."""
    taken = first_backward.ask("softmax", 1)
    assert not isinstance(taken, str), taken
    wall, processor = taken["first gradient"]
    assert processor < max(first_backward.LIMIT, taken["first call"][1])
    assert wall > 10  # it was compiled


@pytest.mark.cpu
@pytest.mark.slow
def test_a_small_gradient_costs_what_torchs_own_does():
    """Within 1.3: least times of samples in turn, to which other processes can only add."""
    ours, theirs, count = gradient_cost.PAIRS["x * y"]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    x = [leaf(64) for _ in range(count)]
    calls = [gradient_cost.by_grad(f, x) for f in (ours, theirs)]
    least = [math.inf, math.inf]
    for turn in range(400):
        least = [min(a, gradient_cost.sample(c, cuda=False))
                 for a, c in zip(least, calls, strict=True)]  # fmt: skip
        if turn > 20 and least[0] < 1.3 * least[1]:
            break
    torch.set_num_threads(threads)
    assert least[0] < 1.3 * least[1]


@pytest.mark.slow
def test_what_is_known_of_gradients_holds_no_memory():
    """Which would be that of a graph, where CUDA was recording one."""

    def held():
        gc.collect()
        return {t.untyped_storage()._cdata for t in gc.get_objects()
                if type(t) is torch.Tensor and t.untyped_storage().nbytes()}  # fmt: skip

    @weft.kernel
    def total(x, y):  # with numbers, workspaces, and what it reduces into
        s = 0.0
        out = torch.zeros_like(x)
        for i in range(x.shape[0]):
            h = 0.0
            for j in range(x.shape[1]):
                h = math.tanh(h * y[j] + x[i, j])
                out[i, j] = h
            s += h
        return out, s

    x, y = leaf(3, 20), leaf(20)
    args = [x, y]
    before = held()
    for _ in range(5):
        out, s = total(*args)
        torch.autograd.grad(out.sum() + s, args)
    del out, s
    assert held() <= before


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64])
def test_a_gradient_reads_unsigned_integers(dtype: torch.dtype) -> None:
    """Which the IR has none of."""
    x = torch.ones(3, requires_grad=True)
    weights = torch.tensor([1, 0, 255]).to(dtype)
    for _ in range(3):  # the first one is planned, the others are as it was
        (found,) = torch.autograd.grad(weighted(x, weights).sum(), x)
        assert found.tolist() == [1.0, 0.0, 255.0]


@weft.kernel
def three_results(x):
    square, root = torch.empty_like(x), torch.empty_like(x)
    count = torch.zeros(1, dtype=torch.int64)
    for i in range(x.shape[0]):
        square[i] = x[i] * x[i]
        root[i] = torch.sqrt(x[i])
        count[0] += 1
    return square, root, count


def test_gradients_of_some_of_the_results_are_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """In turn with those of all: each has a plan of its own."""
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    slopes = {(0,): [0.0, 8.0], (1,): [math.inf, 0.25], (0, 1): [math.inf, 8.25]}

    def compare() -> None:
        for asked, slope in slopes.items():
            made = three_results(x)
            given = [torch.ones(2) for _ in asked]
            (found,) = torch.autograd.grad([made[k] for k in asked], x, given)
            assert found.tolist() == slope, asked

    for _ in range(3):
        compare()
    usual: list[int] = []
    gradients = autograd.Launch.gradients
    monkeypatch.setattr(autograd.Launch, "gradients",
                        staticmethod(lambda *a: usual.append(1) or gradients(*a)))  # fmt: skip
    compare()
    assert not usual


def test_a_gradient_of_some_results_has_a_derivative() -> None:
    x = torch.tensor([1.0, 4.0], requires_grad=True)
    for _ in range(3):
        (slope,) = torch.autograd.grad(three_results(x)[0].sum(), x, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), x)
        assert curvature.tolist() == [2.0, 2.0]


@weft.kernel
def rests(x, y):
    out, rest = torch.empty_like(x), torch.empty_like(x)
    for i in out:
        out[i] = x[i] * y[i]
        rest[i] = x[i] % y[i]
    return out, rest


def test_a_planned_gradient_asks_for_the_size_of_a_result_at_which_nobody_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was a KeyError: the result is not saved."""
    x, y = torch.tensor([1.0, 5.0, -3.0]), torch.tensor([2.0, 3.0, 2.0])

    def slopes() -> list[list[float]]:
        leaves = [t.clone().requires_grad_() for t in (x, y)]
        return [g.tolist() for g in torch.autograd.grad(rests(*leaves)[1].sum(), leaves)]

    for _ in range(3):
        assert slopes() == [[1.0, 1.0, 1.0], [0.0, -1.0, 2.0]]
    monkeypatch.setattr(autograd.Launch, "backward", None)  # it is planned
    assert slopes()[1] == [0.0, -1.0, 2.0]

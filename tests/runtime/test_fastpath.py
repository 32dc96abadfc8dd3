"""The functions before the exact key: each call is like one met before, or goes on."""

import itertools
import linecache
import threading
from collections import OrderedDict, defaultdict
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import weft
from weft.errors import KernelTypeError, KernelValueError
from weft.runtime import fastpath

FACTOR = 2.0


@pytest.fixture(params=["guards", "no guards"], autouse=True)
def guards(request, monkeypatch):
    """With torch's guards, and on a torch that has none."""
    if request.param == "no guards":
        monkeypatch.setattr(fastpath, "_TensorGuards", None)
    elif fastpath._TensorGuards is None:
        pytest.skip("this torch has no TensorGuards")


def fresh():
    def axpy(a, x, y):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = a * x[i] + y[i] * FACTOR
        return out

    return weft.kernel(axpy)


def operands(size, dtype, step):
    return [torch.randn(size * step).to(dtype)[::step] for _ in range(2)]


def test_many_shapes_dtypes_and_strides_in_turn():
    kernel = fresh()
    sizes, dtypes = (0, 1, 5, 17, 127), (torch.float32, torch.float64, torch.float16)
    combinations = list(itertools.product(sizes, dtypes, (1, 3)))
    assert len(combinations) > fastpath.MOST_BUILTINS
    for _ in range(3):
        for size, dtype, step in combinations:
            x, y = operands(size, dtype, step)
            torch.testing.assert_close(kernel(0.5, x, y), 0.5 * x + 2 * y)
    assert sum(s.plans for s in kernel.specializations) == len(combinations)


def test_the_same_arguments_take_one_plan():
    kernel = fresh()
    for _ in range(5):
        kernel(0.5, torch.ones(3), torch.ones(3))
    assert sum(s.plans for s in kernel.specializations) == 1
    assert len(kernel._regions[0].promoted) == (fastpath._TensorGuards is not None)


def test_the_type_of_a_number_counts():
    kernel = fresh()
    x = torch.arange(4)
    for a in (2, 0.5, True, 2, 0.5):
        torch.testing.assert_close(kernel(a, x, x), (a * x + x * 2.0).to(x.dtype))


def test_a_gradient_asked_for_later():
    kernel = fresh()
    x, y = torch.ones(3), torch.ones(3)
    assert not kernel(2.0, x, y).requires_grad
    assert not kernel(2.0, x, y).requires_grad
    z = torch.ones(3, requires_grad=True)
    for _ in range(2):
        assert kernel(2.0, z, y).requires_grad
        with torch.no_grad():
            assert not kernel(2.0, z, y).requires_grad
    assert not kernel(2.0, x, y).requires_grad


def test_first_without_gradient_mode():
    kernel = fresh()
    x, y = torch.ones(3, requires_grad=True), torch.ones(3)
    with torch.no_grad():
        kernel(2.0, x, y)
        kernel(2.0, x, y)
    assert kernel(2.0, x, y).requires_grad
    with torch.inference_mode():
        assert kernel(2.0, x, y).is_inference()
    assert not kernel(2.0, y, y).requires_grad


def test_modes_transforms_and_subclasses_after_plain_calls():
    kernel = fresh()
    x, y = torch.ones(3), torch.ones(3)
    kernel(2.0, x, y)
    kernel(2.0, x, y)
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Mode():
        kernel(2.0, x, y)
    assert any("axpy" in name for name in seen)
    grad = torch.func.grad(lambda v: kernel(2.0, v, y).sum())(x)
    torch.testing.assert_close(grad, torch.full((3,), 2.0))
    parameter = torch.nn.Parameter(torch.ones(3))
    assert kernel(2.0, parameter, y).requires_grad

    class Own(torch.Tensor):
        pass

    torch.testing.assert_close(
        torch.Tensor(kernel(2.0, x.as_subclass(Own), y)), torch.full((3,), 4.0)
    )
    torch.testing.assert_close(kernel(2.0, x, y), torch.full((3,), 4.0))


def test_a_lazily_negated_tensor_after_a_plain_one():
    kernel = fresh()
    y = torch.ones(4)
    x = torch.ones(8)[::2]
    kernel(2.0, x, y)
    kernel(2.0, x, y)
    with pytest.raises((KernelTypeError, KernelValueError)):
        kernel(2.0, torch.randn(4, dtype=torch.complex64).conj().imag, y)


def test_overlapping_memory_after_separate_memory():
    @weft.kernel
    def move(x, out):
        for i in range(out.shape[0]):
            out[i] = x[i] + 1

    base = torch.zeros(12)
    for _ in range(3):
        move(torch.ones(5), torch.zeros(5))
        move(base[:5], base[:5])
    assert base.tolist() == [3.0] * 5 + [0.0] * 7
    assert sorted(s.aliased for s in move.specializations) == [False, True]


def test_a_changed_global(monkeypatch):
    kernel = fresh()
    x = torch.ones(2)
    for factor in (2.0, 2.0, 3.0, 3.0, 2.0):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        assert kernel(1.0, x, x).tolist() == [1 + factor] * 2


def test_more_kinds_of_arguments_than_one():
    kernel = fresh()
    x = torch.ones(2)
    for a in (1.0, np.float32(1.0), 1.0, np.float32(1.0)):
        assert kernel(a, x, x).tolist() == [3.0, 3.0]


def test_writes_are_told_to_autograd_each_time():
    @weft.kernel
    def fill(x):
        for i in range(x.shape[0]):
            x[i] = 1.0

    x = torch.zeros(3)
    versions = []
    for _ in range(4):
        fill(x)
        versions.append(x._version)
    assert versions == [1, 2, 3, 4]


@pytest.mark.cpu
def test_wrong_arguments_after_right_ones():
    kernel = fresh()
    x = torch.ones(3)
    kernel(1.0, x, x)
    with pytest.raises(KernelTypeError, match="missing a required argument: 'y'"):
        kernel(1.0, x)
    with pytest.raises(KernelTypeError, match="unexpected keyword argument 'z'"):
        kernel(1.0, x, x, z=1)
    with pytest.raises(KernelTypeError):
        kernel(1.0, x, None)
    with pytest.raises(KernelValueError, match="`x` is on cpu and `y` on meta"):
        kernel(1.0, x, x.to("meta"))
    assert kernel(1.0, x, x).tolist() == [3.0] * 3


@pytest.mark.cpu  # under torch.device(...), a torch without guards has each call bound
def test_annotated_tensors_take_the_way_of_others_and_are_checked(monkeypatch):
    @weft.kernel
    def scale(x: weft.types.ndarray(weft.f32, ndim=1), w: weft.types.ndarray() = None):
        for i in range(x.shape[0]):
            x[i] *= 2.0 if w is None else w[i]

    x, w = torch.ones(3), torch.full((3,), 3.0)
    for _ in range(3):
        scale(x, w)
    bind, bound = type(scale).bind, list[str]()

    def counted(kernel, args, kwargs):
        bound.append(kernel.__name__)
        return bind(kernel, args, kwargs)

    monkeypatch.setattr(type(scale), "bind", counted)
    for _ in range(3):
        scale(x, w)
    assert not bound
    for wrong, of in (((x.double(), w), "f32"), ((x[None], w), "1 dimension"), ((x, 3), "`w`")):
        with pytest.raises(KernelTypeError, match=of):
            scale(*wrong)
    scale(x, w=None)
    scale(torch.ones(4), torch.ones(4))
    assert x.tolist() == [1458.0] * 3


def test_every_kind_of_parameter():
    @weft.kernel
    def scaled(x, /, factor=3.0, *, offset: int = 0, power=(1, 2)):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * factor + offset + power[1]
        return out

    x = torch.ones(2)
    for _ in range(2):
        assert scaled(x).tolist() == [5.0] * 2
        assert scaled(x, 2.0, offset=1).tolist() == [5.0] * 2
        assert scaled(x, factor=1.0, power=(0, 0)).tolist() == [1.0] * 2

    @weft.kernel
    def positional(x, /):
        for i in range(x.shape[0]):
            x[i] += 1

    @weft.kernel
    def gathered(x, *more, **named):
        for i in range(x.shape[0]):
            x[i] += 1

    for _ in range(2):
        positional(x)
        gathered(x, 3, key=4)
    assert x.tolist() == [5.0] * 2
    with pytest.raises(KernelTypeError):
        positional(x=x)


def test_threads_with_shapes_of_their_own():
    kernel = fresh()
    wrong = []

    def work(size):
        for k in range(200):
            x = torch.full((size + k % 7,), float(k))
            if not torch.equal(kernel(1.0, x, x), 3 * x):
                wrong.append((size, k))

    threads = [threading.Thread(target=work, args=(size,)) for size in (1, 3, 50, 99)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_calls_of_two_kinds_of_arguments_in_turn_have_plans():
    """A bias that is a tensor at one call, and None or a number at others."""

    def biased(x, bias):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            v = 2 * x[i]
            if bias is not None:
                v += bias[i]
            out[i] = v
        return out

    def scaled(x, factor):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * factor
        return out

    x, y = torch.randn(2, 5)
    need = torch.randn(5, requires_grad=True)
    calls = [(biased, (x, y)), (biased, (x, None)), (biased, (x, (1.0, 2.0, 3.0, 4.0, 5.0)))]
    calls += [(biased, (need, y)), (biased, (need, None)), (biased, (x.double(), None))]
    calls += [(scaled, (x, factor)) for factor in (2, 0.5, y[0])]
    kernels = {function: weft.kernel(function) for function in (biased, scaled)}

    def expected(function, x, other):
        if function is scaled:
            return x * other
        return 2 * x if other is None else 2 * x + torch.as_tensor(other)

    def plans():
        return [s.plans for kernel in kernels.values() for s in kernel.specializations]

    made: list[int] = []
    for turn in range(5):
        for function, args in calls:
            torch.testing.assert_close(kernels[function](*args), expected(function, *args))
        made = plans() if turn < 2 else made
    assert plans() == made


def called(x, f):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = f(x[i])
    return out


def gone_over(x, f):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        for k in f:
            out[i] += x[i] * k
    return out


def sliced(x, f):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * f.start + f.stop
    return out


def looked_up(x, f):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * f["a"] + f.get("b", 0.5)
    return out


def scaled(v, by, plus=0.0):
    return v * by + plus


def of_defaults(by):
    def f(v, by=by):
        return v * by if by != 2 else v / by

    return f


def four():
    return lambda v: v * 4


def three():
    return lambda v: v * 3


def taken():
    return partial(lambda w, v: w - v, 1.5)


def turned():
    return partial(lambda w, v: v - w, 1.5)


# For each kernel, what makes a value that means the same each time, values that do not, and for how
# many all of them are compiled.
MADE_ANEW = [
    (called, four, [three()], 2),
    (called, lambda: of_defaults(3), [of_defaults(3.5), of_defaults(2)], 3),
    (called, lambda: partial(scaled, by=2.5),
     [partial(scaled, by=3.5), partial(scaled, by=2.5, plus=1), partial(scaled, plus=1.5, by=2)],
     4),
    (called, taken, [turned()], 2),
    (gone_over, lambda: range(1, 4, 2), [range(1, 4), range(0, -3, -1), range(0)], 4),
    (sliced, lambda: slice(3, 7), [slice(4, 7), slice(3.0, 7.5)], 2),  # ints are passed
    (looked_up, lambda: OrderedDict(a=2, b=3), [OrderedDict(b=4, a=2), OrderedDict(a=3)], 3),
    (looked_up, lambda: defaultdict(int, a=3), [defaultdict(int, a=3, b=1)], 2),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(MADE_ANEW)))
def test_what_is_made_anew_for_each_call_is_compiled_once(case):
    plain, make, others, count = MADE_ANEW[case]
    kernel, x = weft.kernel(plain), torch.randn(5)
    for _ in range(3):
        for f in (make(), make(), *others):
            torch.testing.assert_close(kernel(x, f), plain(x, f))
        assert len(kernel.specializations) == count
        assert sum(s.plans for s in kernel.specializations) == count


def test_functions_of_one_text_are_what_they_see():
    """Their module, closure and defaults, now."""
    text = "f = lambda v: v * SCALE\ng = lambda v, by=1.0: v * by\n"
    code = compile(text, "<anew>", "exec")
    linecache.cache["<anew>"] = (len(text), None, text.splitlines(True), "<anew>")
    modules = [{"SCALE": scale} for scale in (2.0, 3.0, 2.0)]
    for module in modules:
        exec(code, module)
    kernel, x = weft.kernel(called), torch.randn(5)
    for module in modules:
        torch.testing.assert_close(kernel(x, module["f"]), x * module["SCALE"])
    modules[0]["SCALE"] = 5.0
    torch.testing.assert_close(kernel(x, modules[0]["f"]), x * 5)
    torch.testing.assert_close(kernel(x, modules[2]["f"]), x * 2)
    for module, by in itertools.product(modules, (1.0, 1.5, 1.0)):
        module["g"].__defaults__ = (by,)
        torch.testing.assert_close(kernel(x, module["g"]), x * by)

    def closure(by, weight):
        return lambda v: v * by + weight[0]

    for by, weight in itertools.product((1.0, 2.0, 2.0), (torch.ones(1), torch.zeros(1))):
        torch.testing.assert_close(kernel(x, closure(by, weight)), x * by + weight)
        torch.testing.assert_close(kernel(x, partial(scaled, by=weight[0])), x * weight)

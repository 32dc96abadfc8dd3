"""What records or watches a program without being a dispatch mode: each sees a kernel as one call,
also after machine code stands before it."""

import pickle

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import weft
from tests.pytorch.tensors import double_, twice

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.jit.trace is deprecated


@weft.kernel
def front(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(n):
        out[i] = x[i]
    return out


def both(x):
    y = twice(x)
    double_(y)
    return y


@pytest.fixture(params=[0, 8], ids=["first", "later"], autouse=True)
def warm(request):
    for _ in range(request.param):
        twice(torch.ones(3))
        double_(torch.ones(3))


@pytest.mark.parametrize(
    "trace",
    [
        make_fx(both, pre_dispatch=True),
        lambda x: torch.jit.trace(both, (x,)),
        lambda x: torch.fx.symbolic_trace(both),
        lambda x: pickle.loads(pickle.dumps(torch.fx.symbolic_trace(both))),
    ],
    ids=["pre-dispatch", "jit", "symbolic", "pickled"],
)
def test_a_trace_runs_the_kernels_again(trace):
    traced = trace(torch.ones(3))
    if isinstance(traced, torch.fx.GraphModule):
        traced.graph.eliminate_dead_code()
        traced.recompile()
    x = torch.arange(5.0)
    assert torch.equal(traced(x), 4 * x)
    x.requires_grad_()
    if isinstance(traced, torch.jit.ScriptFunction):
        assert str(traced.graph).count("weft::") == 2
    else:
        assert len([n for n in traced.graph.nodes if n.op == "call_function"]) == 2


def test_sizes_stay_sizes_in_a_jit_trace():
    traced = torch.jit.trace(lambda x: front(x, x.shape[0] - 1), (torch.ones(3),))
    assert traced(torch.ones(5)).tolist() == [1.0] * 4 + [0.0]


def test_a_jit_trace_has_gradients():
    traced = torch.jit.trace(twice, (torch.ones(3),))
    x = torch.ones(5, requires_grad=True)
    traced(x).sum().backward()
    assert x.grad.tolist() == [2.0] * 5


def test_the_branches_of_a_condition():
    def choose(p, x):
        return torch.cond(p.sum() > 0, lambda x: twice(x), lambda x: x + 1, (x,))

    traced = make_fx(choose, pre_dispatch=True)(torch.ones(2), torch.ones(3))
    assert "weft.twice" in traced.true_graph_0.code


# --- __torch_function__ --------------------------------------------------------------------------
class Unit(torch.Tensor):
    """A tensor that notes which functions are called with it."""

    seen: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


class Boxed:
    """No tensor, but torch's functions take it."""

    def __init__(self, value):
        self.value = value

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        plain = [a.value if isinstance(a, Boxed) else a for a in args]
        return Boxed(func(*plain, **(kwargs or {})))


def test_a_type_overrides_kernels_as_it_does_functions():
    Unit.seen.clear()
    out = twice(torch.ones(3).as_subclass(Unit))
    assert Unit.seen == ["twice"]
    assert type(out) is Unit
    boxed = twice(Boxed(torch.ones(3)))
    assert isinstance(boxed, Boxed)
    assert boxed.value.tolist() == [2.0] * 3
    with torch._C.DisableTorchFunctionSubclass():
        Unit.seen.clear()
        twice(torch.ones(3).as_subclass(Unit))
        assert Unit.seen == []


def test_a_mode_sees_what_the_host_part_calls():
    seen = []

    class Names(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    with Names():
        out = twice(torch.ones(3))
    assert "empty_like" in seen
    assert "twice" not in seen
    assert out.tolist() == [2.0] * 3


# --- the profiler --------------------------------------------------------------------------------
def _names(call):
    with torch.profiler.profile() as profile:
        call()
    return [event.key for event in profile.key_averages()]


def test_the_profiler_names_kernels():
    x = torch.ones(3, requires_grad=True)
    assert "weft::twice" in _names(lambda: twice(torch.ones(3)))
    assert "weft::double_" in _names(lambda: double_(torch.ones(3)))
    names = _names(lambda: twice(x).sum().backward())
    assert "weft::twice" in names
    assert "twice_0Backward" in names
    assert "weft::double_" not in _names(lambda: twice(torch.ones(3)))
    names = _names(lambda: checkpoint(twice, x, use_reentrant=False).sum().backward())
    assert "twice_0Backward" in names
    assert type(twice(x).grad_fn).__name__ == "twice_0Backward"


def test_the_profiler_names_operators():
    names = _names(lambda: twice.op(torch.ones(3)))
    assert any(name.startswith("weft::twice") for name in names)

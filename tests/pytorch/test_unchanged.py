"""The backward of a compiled graph is that of what its forward has read around the kernel, or it is
an error that says what has changed."""

from __future__ import annotations

import array
import contextvars
import copy
import ctypes
import dataclasses
import enum
import math
import os
import random
import time
import types
import weakref
from collections import ChainMap, UserDict, UserList
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.func import grad, vmap
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import weft
from weft.errors import GradientError

GAIN = 1.0
EACH = torch.ones(4)
DIALS = {"gain": 1.0}
LISTED = [1.0]
HELD = types.SimpleNamespace(gain=1.0)


def gained(x: Any) -> Any:
    return x * GAIN


@weft.kernel
def of_global(x):
    out = torch.empty_like(x)
    for i in out:
        out[i] = x[i] * x[i] * GAIN
    return out


@weft.kernel
def of_function(x):
    y = torch.sin(x)
    out = torch.empty_like(x)
    for i in out:
        out[i] = gained(y[i]) * x[i]
    return out


@weft.kernel
def of_tensor(x):
    out = torch.empty_like(x)
    for i in out:
        out[i] = x[i] * x[i] * EACH[i]
    return out


@weft.kernel
def of_item(x):
    out = torch.empty_like(x)
    for i in out:
        out[i] = x[i] * x[i] * DIALS["gain"]
    return out


@weft.kernel
def of_list(x):
    out = torch.empty_like(x)
    for i in out:
        out[i] = x[i] * x[i] * LISTED[0]
    return out


@weft.kernel
def of_attribute(x):
    out = torch.empty_like(x)
    for i in out:
        out[i] = x[i] * x[i] * HELD.gain
    return out


@weft.kernel
def of_two(x):
    out, more = torch.empty_like(x), torch.empty_like(x)
    for i in out:
        out[i] = x[i] * x[i] * GAIN
        more[i] = x[i] * GAIN
    return out, more


@weft.kernel
def of_nothing(x):
    out = torch.empty_like(x)
    for i in out:
        out[i] = x[i] * x[i]
    return out


class Mode(enum.Enum):
    FIRST = 1
    SECOND = 2


@weft.kernel
def of_members(x, mode=Mode.FIRST):
    out = torch.zeros(x.shape, dtype=torch.float32)
    for i in out:
        out[i] = x[i] * math.pi if mode is Mode.FIRST else weft.math.exp(x[i])
    return out


CHANGES: dict[Any, tuple[str, Callable[[], Any]]] = {
    of_global: ("`GAIN` was 1.0 at the call and is 3.0 now", lambda: globals().update(GAIN=3.0)),
    of_function: ("`gained: GAIN` was 1.0", lambda: globals().update(GAIN=3.0)),
    of_tensor: ("`EACH` was written to after the call", lambda: EACH.add_(1)),
    of_item: ("`DIALS", lambda: DIALS.update(gain=3.0)),
    of_list: ("`LISTED` is not what it was", lambda: LISTED.append(LISTED.pop() + 2)),
    of_attribute: ("`HELD.gain` was 1.0", lambda: vars(HELD).update(gain=3.0)),
    of_two: ("`GAIN` was 1.0", lambda: globals().update(GAIN=3.0)),
}
BACKENDS = ["aot_eager", "aot_eager_default_partitioner", "inductor"]


@pytest.fixture(autouse=True)
def anew() -> None:
    global GAIN
    GAIN = DIALS["gain"] = LISTED[0] = HELD.gain = 1.0
    EACH.fill_(1)
    torch._dynamo.reset()


def total(kernel: Any, x: torch.Tensor) -> torch.Tensor:
    out = kernel(x)
    return out[0].sum() * out[1].sum() if isinstance(out, tuple) else out.sum()


def inputs() -> torch.Tensor:
    return torch.rand(4).requires_grad_()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kernel", CHANGES, ids=lambda k: k.__name__)
def test_what_has_changed_is_said(kernel: Any, backend: str) -> None:
    said, change = CHANGES[kernel]
    compiled = torch.compile(lambda x: total(kernel, x) * 2, fullgraph=True, backend=backend)
    for _ in range(3):  # the third is machine code's
        x = inputs()
        compiled(x).backward()
        expected = torch.autograd.grad(total(kernel, y := x.detach().requires_grad_()) * 2, y)
        torch.testing.assert_close(x.grad, expected[0])
    out = compiled(inputs())
    change()
    with pytest.raises(GradientError, match="would be that of another call") as error:
        out.backward()
    assert said in str(error.value)
    x = inputs()
    compiled(x).backward()  # of what is there now
    (expected,) = torch.autograd.grad(total(kernel, y := x.detach().requires_grad_()) * 2, y)
    torch.testing.assert_close(x.grad, expected)


def test_several_calls_before_one_backward() -> None:
    """A parameter that is annealed: each call had another value."""
    global GAIN
    compiled = torch.compile(of_global, fullgraph=True, backend="aot_eager")
    x = inputs()
    losses: list[torch.Tensor] = []
    for GAIN in (1.0, 2.0, 3.0):  # noqa: B007, which is read elsewhere
        losses.append(compiled(x).sum())
    with pytest.raises(GradientError, match=r"`GAIN` was (1|2)\.0 at the call and is 3\.0 now"):
        torch.stack(losses).sum().backward()
    x.grad = None
    GAIN = 1.0  # as it was
    out = compiled(x).sum()
    GAIN = 2.0
    GAIN = 1.0
    out.backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_a_tensor_in_the_place_of_another() -> None:
    global EACH
    before = EACH
    compiled = torch.compile(of_tensor, fullgraph=True, backend="aot_eager")
    out = compiled(inputs()).sum()
    try:
        EACH = torch.ones(4) * 2
        with pytest.raises(GradientError, match="`EACH` is not what it was at the call"):
            out.backward()
    finally:
        EACH = before


def test_long_ago() -> None:
    """What is not kept is not named, and an error all the same."""
    global GAIN
    compiled = torch.compile(of_global, fullgraph=True, backend="aot_eager")
    outs: list[torch.Tensor] = []
    for k in range(40):
        GAIN = float(k)
        outs.append(compiled(inputs()).sum())
    with pytest.raises(GradientError, match="what `of_global` reads around it is not what it was"):
        outs[0].backward()
    outs[-1].backward()


def nodes(kernel: Any) -> str:
    found: list[str] = []

    def keep(graph: Any, _: Any) -> Any:
        found.append(graph.code)
        return graph

    backend: Any = aot_autograd(fw_compiler=keep)
    torch.compile(kernel, fullgraph=True, backend=backend)(inputs())
    return found[0]


def test_what_reads_nothing_around_it_has_no_note() -> None:
    assert "_noted" in nodes(of_global)
    assert "_noted" not in nodes(of_nothing)
    assert "_noted" not in nodes(of_members)  # of classes and libraries
    with torch.no_grad():
        torch._dynamo.reset()
        assert "_noted" not in nodes(of_global)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_batches(backend: str) -> None:
    global GAIN
    compiled = torch.compile(lambda x: vmap(of_global)(x).sum(), fullgraph=True, backend=backend)
    x = torch.rand(3, 4, requires_grad=True)
    compiled(x).backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())
    out = compiled(x)
    GAIN = 3.0
    with pytest.raises(GradientError, match=r"`GAIN` was 1\.0"):
        out.backward()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_second_derivatives_in_a_graph(backend: str) -> None:
    global GAIN

    def penalty(x: torch.Tensor) -> torch.Tensor:
        return grad(lambda y: of_global(y).pow(2).sum())(x).pow(2).sum()

    compiled = torch.compile(penalty, backend=backend, fullgraph=True)
    x = inputs()
    (found,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(found, 96 * x.detach() ** 5)
    out = compiled(x)
    GAIN = 3.0
    with pytest.raises(GradientError, match=r"`GAIN` was 1\.0"):
        out.backward()


def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_RECOMPUTE


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("selective", [False, True])
def test_a_checkpoint_computes_no_note_again(selective: bool, backend: str) -> None:
    global GAIN
    contexts = partial(create_selective_checkpoint_contexts, policy)
    chosen = {"context_fn": contexts} if selective else {}

    def loss(x: torch.Tensor) -> Any:
        made = checkpoint(lambda x: of_global(x.sin()).exp(), x, use_reentrant=False, **chosen)
        return made.sum()

    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    x = inputs()
    compiled(x).backward()
    (expected,) = torch.autograd.grad(of_global(x.sin()).exp().sum(), x)
    torch.testing.assert_close(x.grad, expected)
    out = compiled(inputs())
    GAIN = 3.0
    with pytest.raises(GradientError, match=r"`GAIN` was 1\.0"):
        out.backward()


@pytest.mark.parametrize(
    "options", [{"activation_memory_budget": 0.1}, {"aggressive_recomputation": True}], ids=str
)
def test_a_partitioner_computes_no_note_again(options: dict[str, Any]) -> None:
    global GAIN
    with torch._functorch.config.patch(options):
        compiled = torch.compile(
            lambda x: of_global(x.sin()).exp().sum(), fullgraph=True, backend="aot_eager"
        )
        out = compiled(inputs())
    GAIN = 3.0
    with pytest.raises(GradientError, match=r"`GAIN` was 1\.0"):
        out.backward()


def test_the_operator_is_found_by_its_name() -> None:
    """As a graph that is kept from an earlier process asks for it."""
    x = inputs().detach()
    name = of_global.operators.found((x,), {})[0].overload._schema.name
    note = torch.ops.weft_graphs.around(x, name)
    assert note.dtype is torch.int64
    assert note.dim() == 0
    made = getattr(torch.ops.weft, f"{name.rpartition(':')[2]}_noted").default
    torch.testing.assert_close(made(note, x), x**2)
    assert torch.library.opcheck(made, (note, x)).keys()
    assert torch.library.opcheck(torch.ops.weft_graphs.around.default, (x, name)).keys()


def left_out(kernel: Any, gradient: bool) -> dict[str, bool]:
    """Of each of weft's operators in the graphs of ``kernel``, whether CUDA graphs leave it out."""
    found: dict[str, bool] = {}

    def note(graph: Any, _: Any) -> Any:
        for node in graph.graph.nodes:
            of = node.args[0] if "functionalized" in str(node.target) else node.target
            if "weft" in str(of):
                found[str(of)] = torch.Tag.cudagraph_unsafe in of.tags
        return make_boxed_func(graph.forward)

    graphs = aot_autograd(fw_compiler=note, bw_compiler=note)
    compiled = torch.compile(lambda x: total(kernel, x), fullgraph=True, backend=graphs)
    with torch.set_grad_enabled(gradient):
        out = compiled(inputs())
    if gradient:
        out.backward()
    return found


@pytest.mark.parametrize("draw", [time.time, random.random], ids=lambda draw: draw.__name__)
def test_cuda_graphs_leave_out_what_draws(draw: Callable[[], float]) -> None:
    @weft.kernel
    def drawing(x):
        number = draw()
        out = torch.empty_like(x)
        for i in out:
            out[i] = x[i] + number
        return out

    assert [*left_out(drawing, gradient=False).values()] == [True]


@pytest.mark.parametrize("kernel", [*CHANGES, of_nothing, of_members], ids=lambda k: k.__name__)
def test_cuda_graphs_leave_out_what_reads_around_it(kernel: Any) -> None:
    """They would replay what was there when they were recorded."""
    found = left_out(kernel, gradient=True)
    assert len(found) == (4 if kernel in CHANGES else 2)
    assert {*found.values()} == {kernel in CHANGES}


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # of its first, by which it warms up
@pytest.mark.parametrize("kernel", CHANGES, ids=lambda k: k.__name__)
@pytest.mark.parametrize("gradient", [False, True])
def test_cuda_graphs_see_what_changes(kernel: Any, gradient: bool) -> None:
    def made() -> torch.Tensor:
        return torch.rand(4, device="cuda").requires_grad_(gradient)

    global EACH
    EACH = EACH.cuda()
    try:
        compiled = torch.compile(
            lambda x: total(kernel, torch.sin(x)) * 2, fullgraph=True, mode="reduce-overhead"
        )
        for change in (lambda: None, CHANGES[kernel][1], lambda: None):
            change()
            for _ in range(4):
                x = made()
                found, expected = (
                    compiled(x),
                    total(kernel, torch.sin(y := x.detach().requires_grad_(gradient))) * 2,
                )
                torch.testing.assert_close(found, expected)
                if gradient:
                    torch.testing.assert_close(
                        *(torch.autograd.grad(o, v)[0] for o, v in ((found, x), (expected, y)))
                    )
        if gradient:
            out = compiled(made())
            globals().update(GAIN=7.0), EACH.add_(1)
            DIALS.update(gain=7.0), LISTED.append(LISTED.pop() + 2), vars(HELD).update(gain=7.0)
            with pytest.raises(GradientError, match="would be that of another call"):
                out.backward()
    finally:
        EACH = EACH.cpu()


class Getter:
    def __get__(self, _: Any, of: Any) -> float:
        return GAIN


class Getting:
    gain = Getter()


class Holder:
    def __init__(self) -> None:
        self.gain = 1.0


@dataclasses.dataclass
class Fields:
    gain: float = 1.0


def gain_of(holder: Any) -> float:
    return holder.gain


HOLDER, GETTING, FIELDS = Holder(), Getting(), Fields()
BOUND, WEAK = partial(gain_of, HOLDER), weakref.ref(HOLDER)
PROXY, USER, CHAIN, ITEMS = (
    types.MappingProxyType(DIALS), UserDict(gain=1.0), ChainMap(DIALS), UserList([1.0]),
)  # fmt: skip
NUMBERS, NUMBER = array.array("d", [1.0]), ctypes.c_double(1.0)
VARIABLE = contextvars.ContextVar("gain", default=1.0)
SCHEDULE = torch.optim.lr_scheduler.ExponentialLR(torch.optim.SGD([EACH], lr=1.0), 0.5)
HOLDS: dict[Callable[[], float], Callable[[], Any]] = {
    lambda: BOUND(): lambda: setattr(HOLDER, "gain", 3.0),
    lambda: WEAK().gain: lambda: setattr(HOLDER, "gain", 3.0),
    lambda: vars(HOLDER)["gain"]: lambda: setattr(HOLDER, "gain", 3.0),
    lambda: next(iter(HOLDER.__dict__.values())): lambda: setattr(HOLDER, "gain", 3.0),
    lambda: GETTING.gain: lambda: globals().update(GAIN=3.0),
    lambda: globals()["GAIN"]: lambda: globals().update(GAIN=3.0),
    lambda: eval("GAIN"): lambda: globals().update(GAIN=3.0),
    lambda: eval("HOLDER.gain + 0.0"): lambda: setattr(HOLDER, "gain", 3.0),
    lambda: copy.copy(HOLDER).gain: lambda: setattr(HOLDER, "gain", 3.0),
    lambda: copy.deepcopy(ITEMS)[0]: lambda: ITEMS.append(ITEMS.pop() + 2),
    lambda: dataclasses.asdict(FIELDS)["gain"]: lambda: setattr(FIELDS, "gain", 3.0),
    lambda: dataclasses.astuple(FIELDS)[0]: lambda: setattr(FIELDS, "gain", 3.0),
    lambda: dataclasses.replace(FIELDS).gain: lambda: setattr(FIELDS, "gain", 3.0),
    lambda: PROXY["gain"]: lambda: DIALS.update(gain=3.0),
    lambda: CHAIN["gain"]: lambda: DIALS.update(gain=3.0),
    lambda: USER["gain"]: lambda: USER.update(gain=3.0),
    lambda: ITEMS[0]: lambda: ITEMS.append(ITEMS.pop() + 2),
    lambda: NUMBERS[0]: lambda: NUMBERS.append(NUMBERS.pop() + 2),
    lambda: NUMBER.value: lambda: setattr(NUMBER, "value", 3.0),
    lambda: VARIABLE.get(): lambda: VARIABLE.set(3.0),
    lambda: SCHEDULE.get_last_lr()[0]: lambda: SCHEDULE.step(),
    lambda: float(os.environ["GAIN"]): lambda: os.environ.update(GAIN="3"),
    lambda: float(os.environ.get("GAIN", "1")): lambda: os.environ.update(GAIN="3"),
    lambda: float(os.getenv("GAIN", "1")): lambda: os.environ.update(GAIN="3"),
}


@pytest.mark.filterwarnings("ignore:Detected call of")  # of a schedule that steps by itself
@pytest.mark.parametrize("read", HOLDS)
def test_what_objects_of_libraries_hold_is_noticed(
    read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backward would read it again, whatever it is by then."""
    monkeypatch.setenv("GAIN", "1")

    def kernel(x):
        gain = read()
        out = torch.empty(x.shape, dtype=torch.float32)
        for i in out:
            out[i] = x[i] * x[i] * gain
        return out

    HOLDER.gain = FIELDS.gain = 1.0
    out = torch.compile(weft.kernel(kernel), backend="aot_eager", fullgraph=True)(inputs()).sum()
    HOLDS[read]()
    with pytest.raises(GradientError, match="would be that of another call"):
        out.backward()


@pytest.mark.parametrize("get", [False, True])
def test_of_the_environment_what_is_named_counts(
    get: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GAIN", "1")

    @weft.kernel
    def by_get(x):
        gain = float(os.environ.get("GAIN", "1"))
        out = torch.empty_like(x)
        for i in out:
            out[i] = x[i] * gain
        return out

    @weft.kernel
    def by_item(x):
        gain = float(os.environ["GAIN"])
        out = torch.empty_like(x)
        for i in out:
            out[i] = x[i] * gain
        return out

    x = inputs()
    kernel = by_get if get else by_item
    out = torch.compile(kernel, backend="aot_eager")(x)
    monkeypatch.setenv("ANOTHER", "1")
    out.sum().backward()
    assert x.grad is not None

"""``torch.ops.weft`` and other namespaces of kernels."""

import gc
import os
import subprocess
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import weft
from tests import processes
from weft.errors import KernelNameError, KernelTypeError
from weft.pytorch.namespace import namespace_of

KERNEL = """import torch, weft
@weft.kernel
def exported_double(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in x:
        out[i] = x[i] * 2
    return out
class Model(torch.nn.Module):
    def forward(self, x):
        return exported_double(x)
"""
SAVE = """import torch, exported_kernel as k
torch.export.save(torch.export.export(k.Model(), (torch.ones(3),)), 'model.pt2')
"""
LOAD = """import torch, exported_kernel
print(torch.export.load('model.pt2').module()(torch.ones(3)).tolist())
"""


@pytest.mark.slow
def test_an_exported_program_in_a_new_process(tmp_path: Path) -> None:
    def run(code: str) -> subprocess.CompletedProcess[str]:
        program = tmp_path / "program.py"
        program.write_text(code)
        return processes.run(program, os.environ, tmp_path)

    file = tmp_path / "exported_kernel.py"
    file.write_text(KERNEL)
    assert run(SAVE).returncode == 0
    file.write_text(KERNEL.replace("    out =", "    # a comment\n    out ="))
    assert run(LOAD).stdout == "[2.0, 2.0, 2.0]\n"
    file.write_text(KERNEL.replace("* 2", "* 3"))
    assert "no kernel `exported_double` of this process has the operator" in run(LOAD).stderr


EXPORT = """
import torch, weft

@weft.kernel
def largest(x: torch.Tensor) -> torch.Tensor:
    m = -1e30
    for i in range(x.shape[0]):
        m = max(m, x[i])
    return m

class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.p = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        return largest(x * self.p)

exported = torch.export.export(Module(), (torch.arange(3.0),))
print(exported.module()(torch.arange(3.0)).item())
"""


@pytest.mark.slow
def test_a_kernel_that_an_export_is_the_first_to_use(tmp_path: Path) -> None:
    """What makes operators is imported while torch traces."""
    program = tmp_path / "program.py"
    program.write_text(EXPORT)
    found = processes.run(program, os.environ, tmp_path)
    assert found.stdout == "2.0\n", found.stderr


def test_operators_are_made_when_they_are_asked_for() -> None:
    @weft.kernel
    def never_called(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] + 1
        return out

    assert "parts" not in vars(never_called)  # nothing is parsed by the decorator
    packet = torch.ops.weft.never_called
    assert packet.default is never_called.op
    assert packet(torch.ones(2)).tolist() == [2.0] * 2

    @weft.kernel(namespace="weft_tests", name="mine")
    def another(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] - 1
        return out

    assert torch.ops.weft_tests.mine(torch.ones(2)).tolist() == [0.0] * 2
    name = another.op._schema.name
    assert name.startswith("weft_tests::mine_")
    assert not hasattr(torch.ops.weft, "mine")
    assert hasattr(torch.ops.weft_tests, name.partition("::")[2] + "_backward")


def test_who_asked_for_a_derivative_first_holds_its_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What made the operator was given another packet than later ones, which torch kept, and which
    read freed memory once the kernel was gone."""
    monkeypatch.setattr(namespace_of("weft_asked"), "recent", deque(maxlen=0))

    def asked(ending: str) -> Any:
        @weft.kernel(namespace="weft_asked")
        def squares(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            for i in x:
                out[i] = x[i] * x[i]
            return out

        name = squares.op._schema.name.partition("::")[2] + ending
        packet = getattr(torch.ops.weft_asked, name)
        assert packet is getattr(torch.ops.weft_asked, name)
        assert name not in vars(torch.ops.weft_asked)
        return packet

    backward = asked("_backward")
    gc.collect()
    (found,) = backward(torch.full((2,), 3.0), [torch.ones(2)], [0])
    assert found.tolist() == [6.0] * 2
    del backward, found
    gc.collect()
    (found,) = asked("_jvp")(torch.full((2,), 3.0), [torch.ones(2)], [0])
    assert found.tolist() == [6.0] * 2


def test_what_an_operator_is_not_made_of() -> None:
    @weft.kernel
    def unannotated(x):
        for i in range(x.shape[0]):
            x[i] += 1

    with pytest.raises(KernelTypeError, match="nothing says what `x` is"):
        _ = torch.ops.weft.unannotated
    assert not hasattr(torch.ops.weft, "no_kernel_is_called_this")

    @weft.kernel
    def edited(x: torch.Tensor) -> None:
        for i in range(x.shape[0]):
            x[i] += 1

    with pytest.raises(KernelNameError) as info:
        _ = torch.ops.weft.edited_01234567
    assert info.value.message == (
        "no kernel `edited` of this process has the operator `weft::edited_01234567`"
    )
    assert info.value.help == (
        "the hash in the name is that of the kernel's text, of what it calls, of the kinds of its "
        "arguments and of weft. If one has changed, export the graph again; otherwise call the "
        "kernel once as the graph does, under torch.compile, say"
    )
    del edited, info


@pytest.mark.slow
def test_operators_of_a_kernel_that_is_gone_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = namespace_of("weft_freed")
    monkeypatch.setattr(namespace, "recent", deque(maxlen=0))

    def defined(kind: str) -> tuple[weakref.ref[weft.Kernel], str, Any]:
        @weft.kernel(namespace="weft_freed")
        def freed(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            for i in x:
                out[i] = x[i] * x[i]
            return out

        kept: Any = None
        if kind == "graph":
            kept = make_fx(lambda x: freed(x) * 2)(torch.ones(3))
        elif kind == "result":
            x = torch.ones(3, requires_grad=True)
            kept = x, freed.op(x).sum()
        return weakref.ref(freed), freed.op._schema.name, kept

    def is_there(name: str) -> bool:
        return bool(torch._C._dispatch_has_kernel(name))

    kernel, name, _ = defined("alone")
    gc.collect()
    assert kernel() is None
    assert not any(map(is_there, (name, f"{name}_backward", f"{name}_jvp")))
    with pytest.raises(AttributeError, match="no attribute"):
        getattr(torch.ops.weft_freed, name.partition("::")[2])

    _, name, graph = defined("graph")
    gc.collect()
    assert is_there(name)
    assert graph(torch.full((3,), 3.0)).tolist() == [18.0] * 3
    del graph
    gc.collect()
    assert not is_there(name)

    _, name, (x, result) = defined("result")
    gc.collect()
    result.backward()
    assert x.grad.tolist() == [2.0] * 3
    del result
    gc.collect()
    assert not is_there(name)


def test_torchscript_holds_no_operator_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had held the overloads that take plain integers: the next operator of the name, that of a
    notebook's cell which is run again, say, read what they had pointed to. It knows operators by
    their functions' addresses, too: functions that came to be there later were taken for them."""
    monkeypatch.setattr(namespace_of("weft_again"), "recent", deque(maxlen=0))

    def defined() -> set[str]:
        @weft.kernel(namespace="weft_again")
        def again(x: torch.Tensor, n: int, n_of_int: float) -> torch.Tensor:
            out = torch.empty_like(x)
            for i in x:
                out[i] = x[i] * n + n_of_int
            return out

        assert again.op(torch.ones(2), 2, 1.0).tolist() == [3.0] * 2
        name = again.op._schema.name.partition("::")[2]
        backward = getattr(torch.ops.weft_again, f"{name}_backward")
        (found,) = backward(torch.ones(2), 2, 1.0, [torch.ones(2)], [0])
        assert found.tolist() == [2.0] * 2
        every = torch._C._dispatch_get_all_op_names()
        return {name for name in every if name.startswith("weft_again::")}

    first = defined()
    gc.collect()
    assert any(name.endswith("_backward.int") for name in first)
    assert not any(map(torch._C._dispatch_has_kernel, first))
    for name in first:
        assert torch._C._jit_get_schemas_for_operator(name.partition(".")[0]) == []
    assert first.isdisjoint(torch.jit._builtins._get_builtin_table().values())
    assert defined() == first


def test_what_a_name_means_is_known_without_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python asks ``__getattr__`` of the class, and this the dispatcher, where a name is new or
    means another operator now: calls by ``torch.ops.weft_known.known`` are as quick as others."""
    asked: list[str] = []
    namespace = namespace_of("weft_known")
    monkeypatch.setattr(namespace, "recent", deque(maxlen=0))
    operators = torch.ops.weft_known
    of_class = type(operators).__getattr__

    def counting(self: Any, name: str) -> Any:
        asked.append(name)
        return of_class(self, name)

    monkeypatch.setattr(type(operators), "__getattr__", counting)
    x = torch.ones(2)

    def defined(factor: float) -> weft.Kernel:
        @weft.kernel(namespace="weft_known")
        def known(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            for i in x:
                out[i] = x[i] * factor
            return out

        assert known.op(x).tolist() == [factor] * 2  # makes the operator
        asked.clear()
        return known

    def found() -> float:
        return operators.known(x)[0].item()

    first = defined(2.0)
    assert operators.__getattr__("known").default is first.op  # asked for by its method
    assert (found(), found(), found(), asked) == (2.0, 2.0, 2.0, ["known"])
    second = defined(3.0)  # the cell of a notebook, run again
    assert (found(), found(), asked) == (3.0, 3.0, ["known"])
    hashed = second.op._schema.name.partition("::")[2]
    asked.clear()
    assert getattr(operators, hashed).default is second.op
    assert not asked

    gone = weakref.ref(second)
    del second
    gc.collect()
    assert gone() is None  # nothing that is known keeps it
    assert (found(), found(), asked) == (2.0, 2.0, ["known"])
    asked.clear()
    before = first.op
    first.implementation("cpu")(lambda x: x * 2.0)  # of which the operator is another
    assert operators.known.default is operators.known.default is first.op is not before
    assert asked.count("known") == 1
    del first, before
    gc.collect()
    assert not hasattr(operators, "known")
    assert not hasattr(operators, hashed)


@weft.kernel
def größe(ä: torch.Tensor, β: float) -> torch.Tensor:
    ö = torch.empty_like(ä)
    for i in range(ä.shape[0]):
        ö[i] = ä[i] * β
    return ö


def test_names_that_are_not_ascii() -> None:
    x = torch.rand(3, requires_grad=True)
    assert str(größe.op._schema).startswith("weft::gr_f6__df_e_")
    assert str(größe.op._schema).endswith("(Tensor _e4_, float _3b2_) -> Tensor")
    assert torch.ops.weft.größe is torch.ops.weft.gr_f6__df_e
    compiled = torch.compile(größe, fullgraph=True, backend="aot_eager")
    for call in (größe, größe.op, torch.ops.weft.größe, compiled):
        (found,) = torch.autograd.grad(call(x, 3.0).sum(), x)
        torch.testing.assert_close(found, torch.full((3,), 3.0))
    with pytest.raises(KernelNameError, match="the namespace `ü` of operators is not ASCII"):
        weft.kernel(namespace="ü")(größe.function)


def test_names_that_no_operator_can_have_are_refused_by_the_decorator() -> None:
    """`torch.library` takes both in one string."""
    with pytest.raises(KernelNameError, match="`mine::scale` is not the name of an") as caught:
        weft.kernel(name="mine::scale")(größe.function)
    assert 'write weft.kernel(namespace="mine", name="scale")' in str(caught.value)
    with pytest.raises(KernelNameError, match="`two words` is not the name of an operator"):
        weft.kernel(name="two words")(größe.function)
    with pytest.raises(KernelNameError, match="is not the namespace of an operator"):
        weft.kernel(namespace="a.b")(größe.function)


class Scale(NamedTuple):
    w: torch.Tensor
    by: float


def of_one_name(body: Callable[..., Any]) -> weft.Kernel:
    body.__name__ = "of_one_name"
    return weft.kernel(body)


def test_kernels_of_one_name() -> None:
    """Generated code that was kept asks for operators by their names, backward ones first."""

    def refused(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in x:
            out[i] = x[i].no_such_method()
        return out

    def scaled(scale, x):
        out = torch.empty_like(x)
        for i in x:
            out[i] = scale.w[i] * x[i] * scale.by
        return out

    def unannotated(x, y):
        out = torch.empty_like(x)
        for i in x:
            out[i] = x[i] * y[i]
        return out

    kernels = [of_one_name(body) for body in (unannotated, refused, scaled, refused, unannotated)]
    w, x = torch.randn(2, 5)
    graph = make_fx(lambda w, x: kernels[2](Scale(w, 2.0), x), pre_dispatch=False)(w, x)
    (name,) = {str(n.target) for n in graph.graph.nodes if "of_one_name" in str(n.target)}
    _, name, _ = name.split(".")
    backward = getattr(torch.ops.weft, f"{name}_backward")
    for found, wanted in zip(
        backward(w, 2.0, x, [torch.ones(5)], [0, 1], []), (x * 2, w * 2), strict=True
    ):
        torch.testing.assert_close(found, wanted)
    with pytest.raises(KernelNameError, match="no kernel `of_one_name` of this process has"):
        _ = torch.ops.weft.of_one_name_01234567
    loop = "of_one_name_loop0_rttttIIsd_01234567"  # of another kernel: too many arguments
    with pytest.raises(KernelNameError, match="no kernel `of_one_name` of this process has"):
        getattr(torch.ops.weft, loop)

"""Looking at the derivatives of a kernel: ``kernel.backward`` and ``kernel.jvp``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from weft.errors import KernelTypeError, ScheduleError
from weft.frames import user_frames
from weft.ir import interp
from weft.ir.core import Function
from weft.ir.interp import Watch
from weft.lang.dtypes import EIGHT_BITS
from weft.pytorch.autograd import with_functions
from weft.pytorch.forward_level import level, tangent_of
from weft.pytorch.inputs import items
from weft.pytorch.loop import Loop, Make
from weft.pytorch.transforms import gradients, is_float
from weft.runtime.launch import KernelLike, Launcher

if TYPE_CHECKING:
    from weft.pytorch.cost import Cost
    from weft.runtime.candidates import Row, Schedules
    from weft.schedule.machine import GpuMachine


class _Derived:
    def __init__(self, kernel: KernelLike) -> None:
        self.kernel = kernel

    def loops(self) -> Iterator[tuple[int, Loop]]:
        """The loops that something was derived from, with their lines."""
        for launcher in self.kernel.launchers:
            for special in launcher.specializations:
                if special.derived is not None:
                    yield launcher.region.span.line, special.derived

    def interpreted(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], watch: Watch | None
    ) -> Any:
        """A call of the kernel in which the interpreter carries out its loops, and all that is
        derived from them."""
        return self.made(
            lambda _: functools.partial(InterpretedFunction, watch=watch), args, kwargs
        )

    def made(
        self, make: Callable[[Launcher], Make], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A call in which what ``make`` says carries out loops, and all that is derived."""
        launchers = [functools.partial(with_functions, r, make(r)) for r in self.kernel.launchers]
        return self.kernel.carry_out(launchers, args, kwargs)


class Backward(_Derived):
    """The gradient that was derived from a kernel."""

    @user_frames
    def schedule(self, device: str, text: str | None, loop: str = "") -> object:
        """Has a loop of the gradient run by the schedule ``text``, as ``Kernel.schedule`` does.
        ``loop``: its name, as ``inspect`` shows it (``func @name``); not needed where there is one.
        Gives the kernel. Raises ``ScheduleError``."""
        names = list(dict.fromkeys(self._steps()))
        if not loop and len(names) == 1:
            loop = names[0]
        if not loop or (names and loop not in names):
            kernel = self.kernel.__name__
            message = f"the gradient of `{kernel}` has no loop `{loop}`"
            if not loop:
                message = f"the gradient of `{kernel}` has several loops: say which one"
            if not names:
                message = f"no gradient of `{kernel}` was asked for yet: say which loop is meant"
            there = ", ".join(f'"{name}"' for name in names)
            help = f"write one of loop={there}" if names else f"{kernel}.backward.inspect(...)"
            raise ScheduleError(message, self.kernel.span, help)
        return self.kernel.schedule(device, text, loop)

    def _steps(self) -> Iterator[str]:
        """The names of the loops of gradients that were derived so far."""
        for _, loop in self.loops():
            for adjoint in loop.adjoints:
                lengths = adjoint.lengths
                counting = lengths.measure if lengths is not None else None
                yield from (step.name for step in (counting, *adjoint.steps) if step is not None)

    @user_frames
    def schedules(
        self, *args: Any, device: str | None = None, machine: GpuMachine | None = None,
        **kwargs: Any,
    ) -> Schedules:  # fmt: skip
        """The schedules that each loop of the gradient may run by, as ``Kernel.schedules`` says of
        the kernel's own. Forward and backward are carried out on copies."""
        from weft.runtime import candidates  # the compiler proper is imported where it is needed

        rows: dict[str, list[Row]] = {}

        def make(launcher: Launcher) -> Make:
            return lambda function: candidates.Listed(
                function, launcher.options, launcher.region.span.line, device, machine, rows
            )

        _differentiated(lambda *a, **k: self.made(make, a, k), args, kwargs)
        own = {s.compiled.loop.summary.name for launcher in self.kernel.launchers
               for s in launcher.specializations}  # fmt: skip
        return candidates.Schedules(
            [row for n, loop in rows.items() if n not in own for row in loop]
        )

    @user_frames
    def cost(self, *args: Any, **kwargs: Any) -> Cost:
        """What the loops of the gradient cost, as ``Kernel.cost`` says of the kernel's own; every
        float tensor counts as wanted."""
        from weft.pytorch import cost  # only where somebody counts

        return cost.cost(self.kernel, args, kwargs, _differentiated, derived=True)

    @user_frames
    def inspect(self, *args: Any, **kwargs: Any) -> str:
        """For each loop, how each gradient is accumulated, the workspaces, and the loops of the
        gradient as IR, in the form that these sizes call for; and what Inductor makes of the
        gradient of the operator. Forward and backward are carried out on copies; every float tensor
        counts as wanted."""
        from weft.pytorch.fusible_backward import explained  # only for a look at it

        for known in [known for _, loop in self.loops() for known in loop.histories]:
            known.forget()  # so that the loop is told what is launched
        _differentiated(self.kernel.direct, args, kwargs)
        texts: list[str] = []
        for line, loop in self.loops():
            found = [a.text() for a in loop.adjoints]
            if loop.launched and loop.sizes:
                found = [loop.launched.text(loop.sizes.bytes())]
            texts += [f"=== gradient of the loop at line {line} ===\n{text}" for text in found]
        texts.append(f"=== inductor ===\n{explained(self.kernel, args, kwargs)}")
        return "\n\n".join(dict.fromkeys(texts))

    @user_frames
    def interpret(
        self, *args: Any, grad: Any = None, watch: Watch | None = None, **kwargs: Any
    ) -> tuple[torch.Tensor | None, ...]:
        """The gradients, computed by the IR's reference interpreter instead of compiled code.

        One for each argument in the order in which they are given, None for what is not a float
        tensor. ``grad``: the gradient of the result, or a tuple of them, one for each float tensor
        that the kernel returns or, after these, writes to; ones if it is None. The kernel is called
        on copies. ``watch(op, operands, results)`` is called after each operation of the kernel and
        of its gradient, and may stop there (``breakpoint()``): ``op.name`` and ``op.span`` say what
        and where it is. Every access is checked for bounds and races.
        """

        def call(*args: Any, **kwargs: Any) -> Any:
            return self.interpreted(args, kwargs, watch)

        every, outs = _recorded(call, args, kwargs)
        grads = _like(self.kernel, grad, outs)
        leaves = [leaf for leaf in every if leaf is not None]
        made = iter(gradients(outs, leaves, grads))
        return tuple(None if leaf is None else next(made) for leaf in every)


class Jvp(_Derived):
    """The forward derivative of a kernel: its loops with tangents."""

    @user_frames
    def inspect(self, *args: Any, **kwargs: Any) -> str:
        """For each loop, which arguments have tangents, the workspaces, and the loops with tangents
        as IR. The kernel is called on copies; every float tensor has a tangent."""
        with level(), torch.no_grad():
            self.kernel.direct(*map(_dual, args), **{n: _dual(v) for n, v in kwargs.items()})
        texts = [f"=== tangents of the loop at line {line} ===\n{tangent}"
                 for line, loop in self.loops() for tangent in loop.tangents]  # fmt: skip
        return "\n\n".join(dict.fromkeys(texts))

    @user_frames
    def interpret(
        self, *args: Any, tangents: Sequence[Any] | None = None, watch: Watch | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        """The tangents of the results, computed by the IR's reference interpreter.

        One for each float tensor that the kernel returns or, after these, writes to. ``tangents``:
        one for each argument in the order in which they are given, None where there is none; ones
        for every float tensor if it is left out. The rest is as in ``kernel.backward.interpret``.
        """
        values = [*args, *kwargs.values()]
        if tangents is not None and len(tangents) != len(values):
            raise KernelTypeError(
                f"`{self.kernel.__name__}` is called with {len(values)} arguments, and there are "
                f"{len(tangents)} tangents", help="give one for each argument, None for no tangent",
            )  # fmt: skip
        with level(), torch.no_grad():
            pairs = zip(values, tangents or [None] * len(values), strict=True)
            given = [_dual(v, t, tangents is None) for v, t in pairs]
            versions = [_version(v) for v in given]
            named = dict(zip(kwargs, given[len(args) :], strict=True))
            out = self.interpreted(tuple(given[: len(args)]), named, watch)
            written = [v for v, n in zip(given, versions, strict=True) if _version(v) != n]
            found = [(o, tangent_of(o)) for o in _floats(out, written)]
            return tuple(torch.zeros_like(o) if t is None else t.clone() for o, t in found)


def _recorded(
    call: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[torch.Tensor | None], list[torch.Tensor]]:
    """``call`` on copies: a leaf for each argument that is a float tensor, None for the others, and
    the float tensors among results and what was written."""
    with torch.enable_grad():
        values = [_wanted(v) for v in (*args, *kwargs.values())]
        given = [copy for _, copy in values]
        versions = [_version(v) for v in given]
        out = call(*given[: len(args)], **dict(zip(kwargs, given[len(args) :], strict=True)))
        written = [v for v, n in zip(given, versions, strict=True) if _version(v) != n]
    return [leaf for leaf, _ in values], _floats(out, written)


def _differentiated(call: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """``call`` and its gradient, on copies."""
    leaves, outs = _recorded(call, args, kwargs)
    wanted = [leaf for leaf in leaves if leaf is not None]
    gradients(outs, wanted, [torch.ones_like(o) for o in outs])


def _wanted(value: Any) -> tuple[torch.Tensor | None, Any]:
    """A leaf that a gradient is asked for, and a copy of it that may be written to."""
    if not isinstance(value, torch.Tensor):
        return None, value
    copy = value.detach().clone()
    if not copy.is_floating_point():
        return None, copy
    leaf = copy.requires_grad_()
    return leaf, leaf * 1


def _dual(value: Any, tangent: torch.Tensor | None = None, ones: bool = True) -> Any:
    """A copy with a tangent."""
    if not isinstance(value, torch.Tensor):
        return value
    copy = value.detach().clone()
    if tangent is None and not (ones and copy.is_floating_point()):
        return copy
    along = torch.ones_like(copy) if tangent is None else tangent.detach().clone()
    return torch.autograd.forward_ad.make_dual(copy, along)


def _version(value: Any) -> int:
    return value._version if isinstance(value, torch.Tensor) else 0


def _floats(out: Any, written: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The float tensors among results and what was written, each once."""
    return list({id(v): v for v in (*items(out), *written) if is_float(v)}.values())


def _like(kernel: KernelLike, grad: Any, outs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    if grad is None:
        return [torch.ones_like(o) for o in outs]
    grads = list(grad) if isinstance(grad, tuple | list) else [grad]
    if [g.size() for g in grads] != [o.size() for o in outs]:
        raise KernelTypeError(
            f"`grad` has shapes {[tuple(g.size()) for g in grads]}, and `{kernel.__name__}` gives "
            f"{[tuple(o.size()) for o in outs]}", help="give a gradient for each float tensor",
        )  # fmt: skip
    return grads


class InterpretedFunction:
    """As ``CompiledFunction``, by ``ir.interp`` with races checked. ``watch`` is called after each
    operation (see ``interp.run``)."""

    def __init__(self, function: Function, watch: interp.Watch | None = None) -> None:
        self.function = function
        self.watch = watch

    def __call__(self, values: Sequence[Any]) -> None:
        """Runs it on ``values``: a tensor for each memref, a number for each scalar."""
        memory = HostMemory()
        arrays = [memory.array(v) if isinstance(v, torch.Tensor) else v for v in values]
        interp.run(self.function, arrays, races=True, watch=self.watch)
        memory.write_back()


class HostMemory:
    """Tensors as NumPy arrays. Memory of another device is copied here, each storage once, so that
    tensors which share memory there do so here."""

    def __init__(self) -> None:
        self.copies: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def array(self, tensor: torch.Tensor) -> np.ndarray[Any, Any]:
        tensor = tensor.detach()
        if tensor.device.type != "cpu":
            tensor = self._copied(tensor)
        if tensor.dtype is torch.bfloat16:
            tensor = tensor.view(torch.uint16)
        if tensor.dtype in EIGHT_BITS:
            tensor = tensor.view(torch.uint8)
        return tensor.numpy()

    def write_back(self) -> None:
        for theirs, ours in self.copies.values():
            theirs.copy_(ours)

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        theirs = tensor.untyped_storage()
        _, ours = self.copies.setdefault(theirs.data_ptr(), (theirs, theirs.cpu()))
        empty = torch.empty(0, dtype=tensor.dtype, device="cpu")
        return empty.set_(ours, tensor.storage_offset(), tensor.size(), tensor.stride())

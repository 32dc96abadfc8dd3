"""The backward of an operator as launches that Inductor may fuse with others (``fusible.py``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from weft.errors import GradientError
from weft.index.expression import Dim, Poly, evaluate
from weft.ir.core import Function
from weft.pytorch.changing import Unknown
from weft.pytorch.fusible import (
    Launch,
    Recorded,
    Recorder,
    always,
    check_host,
    described,
    launched,
)
from weft.pytorch.fusible import number as number_of
from weft.pytorch.fusion import Opaque, prepared
from weft.pytorch.inputs import Structure, items
from weft.pytorch.loop import Loop, Reversed
from weft.pytorch.transforms import is_float, of_floats
from weft.pytorch.workspaces import computed_in
from weft.runtime.launch import KernelLike, Launcher

_ROUNDS = 4  # each may find more gradients that are stored, not accumulated


def recorder(
    kernel: KernelLike, run: Callable[[Any, Sequence[Any]], Any],
    split: Callable[[Sequence[Any]], tuple[Sequence[Any], Any, Any, Any, Any]],
) -> Recorder:  # fmt: skip
    """Of the backward of an operator of ``kernel`` that ``run(launchers, inputs)`` carries out with
    these for its loops, so that autograd sees it. ``split``: see ``Backward``."""

    def record(passed: Sequence[Any], known: Callable[[Any], bool]) -> tuple[Recorded, Any]:
        check_host(kernel)
        inputs, outs, grads, wanted, given = split(passed)
        recorded = Recorded([*Structure.of(inputs)[0], *grads, *(outs or ())], known)
        host = _Host(kernel, recorded, inputs, wanted)
        out = items(host.carried_out(run))
        recorded.check()
        pairs = list(zip(of_floats(out, given), grads, strict=True))
        found = _Steps(host, out, outs, pairs).gradients()
        return recorded, found

    return record


def explained(kernel: KernelLike, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What Inductor makes of the gradient of a call, or why it does not: for
    ``kernel.backward.inspect``. Every float tensor counts as wanted."""
    bound = kernel.bind(args, kwargs)
    inputs = list(bound.arguments.values())
    tensors, _ = Structure.of(inputs)

    def run(launchers: Any, values: Sequence[Any]) -> Any:
        bound.arguments = dict(zip(bound.arguments, values, strict=True))
        return kernel.parts.host(launchers, *bound.args, **bound.kwargs)

    launchers = [lambda *given, own=own: launched(own, given).made for own in kernel.launchers]
    wanted = [k for k, t in enumerate(tensors) if is_float(t)]
    try:
        with torch.no_grad():
            outs = [o for o in items(run(launchers, inputs)) if isinstance(o, torch.Tensor)]
        grads = [torch.empty_like(o) for o in outs if is_float(o)]
        record = recorder(kernel, run, lambda given: (given, outs, grads, wanted, None))
        recorded, _ = record(inputs, always)
    except Opaque as reason:
        return f"a call: {reason}"
    return "\n".join(described(probe) for _, probe in recorded.launches)


class _Host:
    """The host part of a call on ``inputs``, which has one loop. ``leaves`` stand for the tensors
    among these."""

    def __init__(
        self, kernel: KernelLike, recorded: Recorded, inputs: Sequence[Any], wanted: Sequence[int]
    ) -> None:
        if len(kernel.launchers) != 1:
            raise Opaque("it has several loops")
        self.launcher: Launcher = kernel.launchers[0]
        self.recorded, self.wanted = recorded, wanted
        self.tensors, self.form = Structure.of(inputs)
        self.leaves = [t.detach().requires_grad_() if k in wanted else t.detach()
                       for k, t in enumerate(self.tensors)]  # fmt: skip
        self.given = Recorded(self.leaves, recorded.known)
        self.launches: list[Launch] = []

    def carried_out(self, run: Callable[[Any, Sequence[Any]], Any]) -> Any:
        """What the host part gives. Raises ``Opaque`` where it does more than to allocate."""
        with torch.enable_grad():
            out = run((self._launch,), self.form.inputs(self.leaves))
        self.given.check()
        if len(self.launches) != 1:
            raise Opaque("its loop runs several times")
        return out

    def _launch(self, *args: Any) -> Any:
        found = launched(self.launcher, args)
        loop_writes = Loop(found.function, self.launcher.options).written
        for k, (argument, value) in enumerate(found.named):
            if not isinstance(value, torch.Tensor):
                continue
            own = any(value is leaf for leaf in self.leaves)
            if own if k in loop_writes else not own:
                raise Opaque(f"its host part computes `{argument.name}`" if not own else
                             f"it writes to `{argument.name}`, which it was given")  # fmt: skip
            if not own:
                if value.requires_grad:
                    raise Opaque(f"its host part copies to `{argument.name}`")
                self.given.fill(str(argument.name), value)
        self.launches.append(found)
        return found.made


class _Steps:
    """The steps of the adjoint of a call. ``env``: what each name is that they know."""

    def __init__(
        self, host: _Host, made: Sequence[Any], outs: Sequence[torch.Tensor] | None,
        pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
    ) -> None:  # fmt: skip
        """``pairs``: results and their gradients."""
        (launch,) = host.launches
        self.host, self.launch = host, launch
        gradient_of = {id(o): g for o, g in pairs}
        every = Loop(launch.function, host.launcher.options)
        unseen = [k for k in every.written if is_float(launch.values[k])
                  and id(launch.values[k]) not in gradient_of]  # fmt: skip
        self.loop = loop = every.without(frozenset(unseen))
        self.prefix = loop.prefix
        self.env: dict[str, Any] = {}
        self.wanted: dict[int, int] = {}  # positions of the wanted tensors, by their numbers
        self.given: dict[str, torch.Tensor] = {}  # what has a gradient that is given
        saved = {id(o): s for o, s in zip(made, outs or (), strict=False)}
        if any(all(o is not v for v in launch.values) for o in made):
            raise Opaque("its host part computes what it returns")
        for k, (name, value) in enumerate(zip(loop.names, launch.values, strict=True)):
            place = next((n for n, leaf in enumerate(host.leaves) if leaf is value), None)
            if isinstance(value, Unknown):
                place = next(n for n, leaf in enumerate(host.leaves) if leaf is value.tensor)
                self.env[name] = Unknown.of(host.tensors[place])
            elif not isinstance(value, torch.Tensor):
                self.env[name] = value
            elif place is not None:
                self.env[name] = host.tensors[place]
                if place in self.wanted:
                    raise Opaque("a gradient is wanted of a tensor that is there twice")
                if place in host.wanted:
                    self.wanted[place] = k
            else:
                if id(value) in saved:
                    self.env[name] = saved[id(value)]
                if id(value) in gradient_of:
                    self.given[name] = gradient_of[id(value)]

    def gradients(self) -> list[torch.Tensor]:
        """Those that are wanted, when what computes them is recorded."""
        loop, prefix, recorded = self.loop, self.prefix, self.host.recorded
        if self.wanted.keys() != {*self.host.wanted}:
            raise Opaque("the loop has no part of what a gradient is wanted of")
        made = self._fitting()
        adjoint = made.adjoint
        if adjoint.taped or adjoint.copies.keys() & {n for s in made.steps for n in s.names}:
            raise Opaque("its gradient needs workspaces")
        for name, gradient in self.given.items():
            own = self._own(name)
            if gradient.dtype is not computed_in(own, prefix + name in adjoint.narrow):
                raise Opaque("it accumulates in another dtype")
            self.env[prefix + name] = gradient
        found: list[torch.Tensor] = []
        for n in self.host.wanted:
            tensor, name = self.host.tensors[n], prefix + loop.names[self.wanted[n]]
            if name not in adjoint.defined:
                raise Opaque("its gradient is accumulated")
            if computed_in(tensor.dtype, name in adjoint.narrow) is not tensor.dtype:
                raise Opaque("it accumulates in another dtype")
            new = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            self.env[name] = new
            found.append(new)
        for step in made.steps:
            recorded.add(self._launch(step.function, step.names))
        return found

    def _own(self, name: str) -> torch.dtype:
        return self.launch.values[self.loop.names.index(name)].dtype

    def _launch(self, function: Function, names: Sequence[str]) -> Launch:
        missing = [name for name in names if name not in self.env]
        if missing:
            raise Opaque(f"its gradient needs `{missing[0]}`")
        values = [self.env[name] for name in names]
        return Launch(function, prepared(function), values, 0, self.launch.anyway)

    def _fitting(self) -> Reversed:
        """The adjoint in which gradients are stored that can be."""
        loop, form = self.loop, dict[str, Any]()
        wanted = frozenset(self.wanted.values())
        kept = frozenset(loop.written)
        if loop.halves:
            form["narrow"] = True
        try:
            made = loop.reversed(wanted, kept)
            stored = frozenset[str]()
            for _ in range(_ROUNDS):
                better = stored | self._dense(made)
                if made.adjoint.defined and better == stored:
                    break
                stored = better
                made = loop.reversed(wanted, kept, **form, stored=stored)
        except GradientError:  # which the call raises
            raise Opaque("it has no derivative") from None
        return made

    def _dense(self, made: Reversed) -> frozenset[str]:
        """The gradients whose first accumulations always go to every element once."""
        known = self.host.recorded.known
        return frozenset(
            name for name, pairs in made.adjoint.dense.items()
            if all(known(sympy.Eq(self._evaluated(a), self._evaluated(b))) for a, b in pairs)
        )  # fmt: skip

    def _evaluated(self, poly: Poly) -> Any:
        """In sizes, of sympy. Raises ``Opaque``."""
        found: dict[Any, Any] = {}
        for leaf in poly.leaves():
            value = leaf.memref if isinstance(leaf, Dim) else leaf
            name = str(value.name).removeprefix(self.prefix)
            given = self.launch.values[self.loop.names.index(name)]
            number = given.shape[leaf.axis] if isinstance(leaf, Dim) else given
            found[leaf] = number_of(number)
        try:
            return evaluate(poly, found)
        except TypeError:  # an order of symbols
            raise Opaque("its gradient may be accumulated") from None

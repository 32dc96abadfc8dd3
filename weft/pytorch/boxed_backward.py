"""The backward of an operator in machine code.

What ``autograd.Launch`` does for a loop follows, for calls with the sizes of one before, from the
adjoint that fits them: the tensors that it makes, and the steps that it launches.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

# pyright: reportPrivateUsage=false
from weft.autodiff.adjoint import segment_length
from weft.frontend.specs import ConstSpec
from weft.pytorch.autograd import loop_of
from weft.pytorch.boxed import BoxedKernel, Found, operands
from weft.pytorch.boxed_program import Operand, Program, Unfit, constant, parts
from weft.pytorch.fitting import Sizes
from weft.pytorch.history import is_atomic, repeats
from weft.pytorch.loop import NEVER, Loop, Reversed
from weft.pytorch.recipe import Fresh
from weft.pytorch.workspaces import Workspaces, computed_in
from weft.runtime.fastpath import passed as of_loop
from weft.runtime.function import CompiledFunction
from weft.runtime.signature import TORCH_DTYPES


def found(kernel: BoxedKernel, passed: Sequence[Any]) -> Found:
    """The form of a call of the backward. Raises ``Unfit`` where it takes Python."""
    program = Program(passed, kernel.types, exact=True)
    program.take_all()
    with torch.no_grad():
        return _Steps(kernel, program, passed).found()


class _Steps:
    """The steps of one call. ``where``: what each name is that these know."""

    def __init__(self, kernel: BoxedKernel, program: Program, passed: Sequence[Any]) -> None:
        self.kernel, self.program, recipe = kernel, program, kernel.recipe
        *inputs, _, numbers, outs, given, _ = passed
        launcher, self.args, fresh, self.specs, self.compiled, self.guards = kernel.specialized(
            inputs, program
        )
        self.values = of_loop(self.specs, self.args)
        for _, dtype in self.compiled.results:
            self.values.append(torch.empty((), dtype=TORCH_DTYPES[dtype], device=program.device))
        tensors = [program.starts[k] for k, v in enumerate(inputs) if isinstance(v, torch.Tensor)]
        self.wanted = [tensors[n] for n in numbers]  # items
        self.where: dict[str, Operand] = {}
        self.items: dict[int, int] = {}  # of the function's arguments that the operator has
        self.made: dict[int, int] = {}  # those that it makes: their places among what it returns
        self.pairs = set[int]()  # those that are the parts of complex numbers
        self.grads, first = program.starts[-5], program.starts[-3]
        held: list[Operand] = []
        for place, spec, value in zip(recipe.places, self.specs, self.args, strict=True):
            if not isinstance(spec, ConstSpec):
                if isinstance(place, Fresh):
                    self.made[len(held)] = place.number
                    if fresh[place.number].is_complex():
                        self.pairs.add(len(held))
                held += operands(place, program, value)
        for n in range(len(self.compiled.results)):
            self.made[len(held)] = len(recipe.made) + n
            held.append(-1)
        results = dict(enumerate(fresh)) | {n: self.values[k] for k, n in self.made.items()}
        floats = [n for n in recipe.returned
                  if results[n].is_floating_point() or results[n].is_complex()]  # fmt: skip
        self.given = floats if given is None else [floats[n] for n in given]
        loop = loop_of(launcher, self.specs, program.device.type)
        unseen = [k for k in loop.written if self.made.get(k, -1) in {*floats} - {*self.given}]
        self.loop = loop = loop.without(frozenset(unseen))
        self.prefix = loop.prefix
        for k, (name, operand) in enumerate(zip(loop.names, held, strict=True)):
            if k not in self.made:
                self.where[name] = operand
                if isinstance(operand, int):
                    self.items[k] = operand
                    if program.values[operand].is_complex():
                        self.pairs.add(k)
            elif self.made[k] in recipe.returned and outs:
                self.where[name] = first + recipe.returned.index(self.made[k])

    def found(self) -> Found:
        """The form of the call. Raises ``Unfit``."""
        loop, program = self.loop, self.program
        wanted = frozenset(k for k, item in self.items.items() if item in self.wanted)
        base = loop.reversed(wanted, frozenset(loop.written) - wanted)
        if (
            loop.later is not NEVER or not base.steps or not wanted.isdisjoint(loop.written)
            or any(loop.before_name(k) in base.reads for k in loop.before)
        ):  # fmt: skip
            raise Unfit
        fixed = [None if isinstance(v, torch.Tensor) else v for v in self.values]
        saved = [loop.names[k] for k in loop.memrefs if loop.names[k] in base.reads]
        env: dict[str, Any] = dict(zip(loop.names, fixed, strict=True))
        env |= {name: self._example(name) for name in saved}
        for k in loop.written:
            if self.values[k].is_floating_point():
                env[self.prefix + loop.names[k]] = self.values[k]
        shapes = {loop.function.args[k]: self.values[k].size() for k in loop.memrefs}
        sizes_of = Sizes(loop, fixed, wanted, env, shapes, program.device, True)
        made, sizes = sizes_of.fitting(base)
        if not repeats(loop, base, made) or is_atomic(base, made):
            raise Unfit
        self._make(made, sizes, wanted)
        for step in made.steps:
            self._step(made, step, env)
        returned = [self._gradient(item) for item in self.wanted]
        form = program.form(returned, self.guards, listed=True)
        return Found(form, tuple(program.codes), (self.compiled, made, *program.keep), self.guards)

    def _example(self, name: str) -> torch.Tensor:
        position = self.where.get(name)
        if not isinstance(position, int):
            raise Unfit
        return parts(self.program.values[position])

    def _make(self, made: Reversed, sizes: Workspaces, wanted: frozenset[int]) -> None:
        """The gradients, given and wanted, and the workspaces."""
        loop, program, adjoint = self.loop, self.program, made.adjoint
        for k in loop.written:
            name, tensor = self.prefix + loop.names[k], self.values[k]
            if not tensor.is_floating_point():
                continue
            dtype = computed_in(tensor.dtype, name in adjoint.narrow)
            new = functools.partial(self._new, k, dtype)
            if self.made[k] not in self.given:
                self.where[name] = program.make(new(), zeros=True)
                continue
            item = self.grads + self.given.index(self.made[k])
            grad = program.values[item]
            fits = parts(grad).dtype is dtype and grad.is_contiguous()
            self.where[name] = item if fits else program.make(new(), of=item)
        for k in wanted:
            name, tensor = self.prefix + loop.names[k], self.values[k]
            if computed_in(tensor.dtype, name in adjoint.narrow) is not tensor.dtype:
                raise Unfit
            new = self._new(k, tensor.dtype)
            self.where[name] = program.make(new, zeros=name not in adjoint.defined)
        for buffer in adjoint.taped:
            dtype = TORCH_DTYPES[buffer.element]
            new = torch.empty(sizes.shape(buffer), dtype=dtype, device=program.device)
            self.where[buffer.name] = program.make(new)
        for name, op in adjoint.segments:
            self.where[name] = constant(segment_length(sizes.trips[op]))

    def _new(self, k: int, dtype: torch.dtype) -> torch.Tensor:
        """A tensor for the gradient of an argument of the loop, whose numbers are of this type."""
        new = torch.empty(self.values[k].size(), dtype=dtype, device=self.program.device)
        return torch.view_as_complex(new) if k in self.pairs else new

    def _step(self, made: Reversed, step: Loop, env: dict[str, Any]) -> None:
        copies, program = made.adjoint.copies, self.program
        if not isinstance(step.run, CompiledFunction):
            raise Unfit
        held: list[Operand] = []
        values: list[Any] = []
        for name in step.names:
            if name in copies:
                position = self.where.get(copies[name])
                if copies[name] in made.writes or not isinstance(position, int):
                    raise Unfit
                source = program.values[position]
                held.append(program.make(torch.empty_like(source), of=position))
            elif name in self.where:
                held.append(self.where[name])
            else:
                raise Unfit
            operand = held[-1]
            if isinstance(operand, int):
                values.append(parts(program.values[operand]))
            else:
                values.append(env.get(name, operand.arg))
        bound, _, _ = step.run.bound(values)
        tensors = [v for v in values if isinstance(v, torch.Tensor)]
        if bound.loop.summary.unordered:
            raise Unfit
        program.run(bound.for_all_sizes().fitting(tensors, self.kernel), held, values)

    def _gradient(self, item: int) -> int:
        k = next((k for k, own in self.items.items() if own == item), None)
        if k is None:  # the loop has no part of it
            return self.program.make(torch.empty_like(self.program.values[item]), zeros=True)
        position = self.where[self.prefix + self.loop.names[k]]
        assert isinstance(position, int)
        return position

"""What DTensor is told of a kernel's operators: imported where somebody has imported DTensor.

Rules (``sharding.py``) are given to torch as strategies for one dimension of a mesh, in the newest
form that it has; it expands them to meshes, chooses, and moves tensors. The rules of the derivative
follow by duality: what is cut stays cut, what all ranks have the whole of gets a sum of what each
finds, and a sum hands its gradient to each. An operator that writes to arguments has a handler of
its own, since torch might move these, and write to the copy; and so has one that needs rows of
neighbours.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._library.autograd import Info, make_autograd_impl
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
from torch.utils._python_dispatch import _disable_current_modes

# How DTensor is told of operators has no public name.
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false, reportMissingImports=false
from weft.errors import GradientError, KernelTypeError, KernelValueError
from weft.pytorch.derivative_ops import BACKWARD
from weft.pytorch.derivative_ops import Rule as Derivatives
from weft.pytorch.forward_mode import Refused
from weft.pytorch.halo import Neighbours, carried_out, pulled, widest
from weft.pytorch.inputs import Structure, items
from weft.pytorch.namespace import Latest, without_defaults
from weft.pytorch.operator import Operator
from weft.pytorch.sharding import Meta, Place, Rule, Rules, meta

try:
    from torch.distributed.tensor._ops import single_dim_strategy as newest

    # Of torch 2.11, it takes no uneven shards.
    _ = inspect.signature(newest.register_single_dim_strategy).parameters["allow_uneven_sharding"]
except (ImportError, KeyError):
    newest: Any = None


def register(operator: Operator) -> None:
    """Tells DTensor of an operator."""
    overload = operator.overload
    overload.family.sharded = Sharded(operator)


def placement(place: Place) -> Any:
    if place is None:
        return Replicate()
    return Partial(place) if isinstance(place, str) else Shard(place)


def _strategy(place: Place) -> Any:
    return newest._ShardingPlaceholder(place) if isinstance(place, int) else placement(place)


# Of arguments, where tensors may be: what is returned, and the arguments.
Places = Callable[[Sequence[Any]], Sequence[tuple[Sequence[Place], Sequence[Place]]]]


def _tell(overload: Any, places: Places) -> None:
    """Registers strategies of an operator, beside which all ranks may have all of it."""
    _told.add(overload)
    if newest is not None:
        lists = any("Tensor[]" in str(a.type) for a in overload._schema.arguments)
        info = RuntimeSchemaInfo(static_argnum=0, needs_pytree=lists)

        def strategies(op: Any, args: Any, kwargs: Any) -> list[list[Any]]:
            return [[*map(_strategy, outs), *map(_strategy, ins)] for outs, ins in places(args)]

        newest.register_single_dim_strategy(overload, info, allow_uneven_sharding=True)(strategies)
        return
    from torch.distributed.tensor.experimental import register_sharding  # the older form

    def acceptable(*args: Any) -> list[Any]:
        which = [isinstance(meta(v), Meta) for v in args]
        count = len(overload._schema.returns)
        rows = [*places(args), ((None,) * count, (None,) * sum(which))]
        found: list[Any] = []
        for outs, ins in rows:
            given = iter(ins)
            found.append((list(map(placement, outs)),
                          [placement(next(given)) if w else None for w in which]))  # fmt: skip
        return found

    register_sharding(overload)(acceptable)
    propagator: Any = DTensor._op_dispatcher.sharding_propagator
    known = propagator.op_to_schema_info[overload]
    propagator.op_to_schema_info[overload] = RuntimeSchemaInfo(0, None, known.needs_pytree)


def _forget(overload: Any) -> None:
    dispatcher: Any = DTensor._op_dispatcher
    propagator = dispatcher.sharding_propagator
    dispatcher._custom_op_handlers.pop(overload, None)
    for table in ("op_strategy_funcs", "op_single_dim_strategy_funcs", "op_to_schema_info",
                  "op_to_schema_info_for_single_dim_strategy"):  # fmt: skip
        getattr(propagator, table, {}).pop(overload, None)


_told = Latest(_forget)


class Sharded:
    """One operator under DTensor."""

    def __init__(self, operator: Operator) -> None:
        form, self.overload = operator.form, operator.overload
        self.kernel, self.name = form.kernel, form.kernel.__name__
        self.rules = Rules(form)
        self.family = self.overload.family
        arguments = self.overload._schema.arguments
        self.names = [a.name for a in arguments]
        self.written = [a.alias_info is not None and a.alias_info.is_write for a in arguments]
        self.each: dict[tuple[Any, ...], Any] = {}
        _tell(self.overload, self._places)
        if any(self.written):
            self._handle()

    def _handle(self) -> None:
        """Has DTensor hand all calls over."""
        handlers: dict[Any, Any] = DTensor._op_dispatcher._custom_op_handlers
        handlers[self.overload] = self._handled

    def prepare(self, passed: Sequence[Any]) -> None:
        """Before a call: rows of neighbours are none of the strategies that torch knows."""
        if self.concerns(passed) and any(r.has_halo for r in self._rules(passed)):
            self._handle()

    def _rules(self, passed: Sequence[Any]) -> Sequence[Rule]:
        """Those of a call; torch leaves last arguments out that are as their defaults."""
        left = self.overload._schema.arguments[len(passed) :]
        return self.rules.of([*passed, *(a.default_value for a in left)]).rules

    def _places(self, passed: Sequence[Any]) -> list[tuple[Sequence[Place], Sequence[Place]]]:
        return [(r.outputs, r.inputs) for r in self._rules(passed) if not r.has_halo]

    # --- calls that torch does not carry out -----------------------------------------------------
    def _handled(self, overload: Any, args: Sequence[Any], kwargs: Any) -> Any:
        """A call with DTensors, of which those that are written stay where they are."""
        with torch.no_grad():
            return self._carried_out(overload, args)

    def _carried_out(self, overload: Any, args: Sequence[Any]) -> Any:
        tensors: list[tuple[str, DTensor, bool]] = []
        for name, value, written in zip(self.names, args, self.written, strict=False):
            if isinstance(value, DTensor):
                tensors.append((name, value, written))
            elif isinstance(value, torch.Tensor):
                raise KernelTypeError(
                    f"`{name}` is a plain tensor, and others are DTensors", self.kernel.span,
                    help=f"distribute_tensor({name}, mesh, ...) makes it one",
                )  # fmt: skip
        mesh = tensors[0][1].device_mesh
        whole = Rule("", (None,) * len(tensors), (None,) * len(self.overload._schema.returns))
        rules = [whole, *self._rules(args)]
        chosen: list[Rule] = []
        for dim in range(mesh.ndim):
            fit = [r for r in rules if all(
                not w or v.placements[dim] == placement(p)
                for (_, v, w), p in zip(tensors, r.inputs, strict=True))
                and _has_neighbours(Neighbours(mesh, dim, *r.halo), r, tensors)]  # fmt: skip
            if not fit:
                self._refuse([(n, v) for n, v, w in tensors if w], dim)
            chosen.append(min(fit, key=functools.partial(_cost, tensors, dim)))
        passed: list[Any] = []
        moved = iter(zip(*(r.inputs for r in chosen), strict=True))
        memory = {v._local_tensor.untyped_storage()._cdata for _, v, w in tensors if w}
        for value in args:
            if isinstance(value, DTensor):
                places = tuple(map(placement, next(moved)))
                if value.placements != places:
                    if value._local_tensor.untyped_storage()._cdata in memory:
                        raise KernelValueError(
                            "arguments share memory, one is written, and another one has to be "
                            "moved between ranks", self.kernel.span, help="pass a copy (x.clone())",
                        )  # fmt: skip
                    # Torch 2.11 detaches the result in place, which DTensors cannot.
                    value = value.detach().redistribute(mesh, places)
                value = value._local_tensor
            passed.append(value)
        outs = carried_out(self.overload, chosen, mesh, passed)
        if not outs:
            return None
        with _disable_current_modes(), FakeTensorMode():
            like = items(overload(*(
                torch.empty(v.shape, dtype=v.dtype, device=v.device.type)
                if isinstance(v, DTensor) else v for v in args)))  # fmt: skip
        made = [
            DTensor.from_local(out, mesh, [placement(r.outputs[k]) for r in chosen],
                               run_check=False, shape=like[k].size(), stride=like[k].stride())
            for k, out in enumerate(outs)
        ]  # fmt: skip
        return made[0] if len(made) == 1 else tuple(made)

    def _refuse(self, written: Sequence[tuple[str, DTensor]], dim: int) -> None:
        which = ", ".join(f"`{n}` is {v.placements[dim]}" for n, v in written)
        raise KernelValueError(
            f"{which} and written in place, which ranks cannot do on what they have",
            self.kernel.span,
            help=f"{self.name}.sharding(...) prints how it may be cut: redistribute it before",
        )

    # --- derivatives -----------------------------------------------------------------------------
    def concerns(self, passed: Sequence[Any]) -> bool:
        return any(isinstance(t, DTensor) for t in Structure.of(passed)[0])

    def gradients(
        self, rule: Derivatives, inputs: Sequence[Any], grads: Sequence[Any], wanted: Sequence[int],
        outs: Sequence[Any],
    ) -> list[Any]:  # fmt: skip
        """The gradients of those of the tensors among ``inputs`` whose numbers are ``wanted``."""
        tensors, _ = Structure.of(inputs)
        mesh = next(t for t in tensors if isinstance(t, DTensor)).device_mesh
        whole = [Replicate()] * mesh.ndim
        given = [
            g if isinstance(g, DTensor) else DTensor.from_local(g, mesh, whole, run_check=False)
            for g in grads
        ]
        found = self._of_neighbours(rule, inputs, given, wanted)
        if found is not None:
            return found
        key = len(given), len(outs), tuple(wanted)
        if key not in self.each:
            self.each[key] = self._backward(rule, *key)
        found = self.each[key](*inputs, *given, *outs)
        return list(found) if isinstance(found, tuple | list) else [found]

    def _of_neighbours(
        self, rule: Derivatives, inputs: Sequence[Any], grads: Sequence[DTensor],
        wanted: Sequence[int],
    ) -> list[Any] | None:  # fmt: skip
        """The gradients by rules some of which need rows of neighbours; None if there are none."""
        tensors = [(n, v, False) for n, v in zip(self.names, inputs, strict=False)
                   if isinstance(v, DTensor)]  # fmt: skip
        rules = self._rules(inputs)
        if len(tensors) < len(Structure.of(inputs)[0]) or not any(r.has_halo for r in rules):
            return None
        mesh = tensors[0][1].device_mesh
        whole = Rule("", (None,) * len(tensors), (None,) * len(rules[0].outputs))
        chosen: list[Rule] = []
        for dim in range(mesh.ndim):
            fit = [r for r in rules if r.backwards
                   and _has_neighbours(widest(r, mesh, dim), r, tensors)]  # fmt: skip
            chosen.append(min([whole, *fit], key=functools.partial(_cost, tensors, dim)))
        if not any(r.has_halo for r in chosen):
            return None

        def local(value: DTensor, places: Sequence[Place]) -> torch.Tensor:
            return value.redistribute(mesh, [*map(placement, places)])._local_tensor

        with torch.no_grad():
            places = iter(zip(*(r.inputs for r in chosen), strict=True))
            passed = [local(v, next(places)) if isinstance(v, DTensor) else v for v in inputs]
            floats = [k for k, f in enumerate(rules[0].floats) if f]
            outs = [[p if isinstance(p := r.outputs[k], int) else None for r in chosen]
                    for k in floats]  # fmt: skip
            given = list(map(local, grads, outs))
            parts = pulled(rule.derived(BACKWARD).overload, chosen, mesh, passed, given, wanted)
        leaves = [t for t in (*inputs, *grads) if isinstance(t, DTensor) and t.requires_grad]
        found: list[Any] = []
        for k, part in zip(wanted, parts, strict=True):
            cut = [None if r is whole else "sum" if r.inputs[k] is None else r.inputs[k]
                   for r in chosen]  # fmt: skip
            shape = tensors[k][1].shape
            gradient = DTensor.from_local(
                part, mesh, list(map(placement, cut)), run_check=False, shape=shape,
                stride=torch.empty(shape, device="meta").stride(),
            )  # fmt: skip
            again = torch.is_grad_enabled() and leaves
            error = self._second_error()
            found.append(Refused.apply(error, gradient, *leaves) if again else gradient)
        return found

    def _second_error(self) -> GradientError:
        return GradientError(
            f"second derivatives of `{self.name}` are not there for DTensors", self.kernel.span,
            help="take them of plain tensors, x.full_tensor() say",
        )  # fmt: skip

    def _backward(self, rule: Derivatives, grads: int, outs: int, wanted: Sequence[int]) -> Any:
        """The backward as an operator that returns a tensor for each that is ``wanted``: DTensor
        cuts no lists."""
        plain = rule.derived(BACKWARD).overload
        types = [str(a.type) for a in self.overload._schema.arguments]
        if any("List[Tensor" in t or "Tensor[]" in t for t in types):
            raise GradientError(
                f"`{self.name}` takes a list of tensors, and has no gradient for DTensors",
                self.kernel.span, help="pass the tensors one by one",
            )  # fmt: skip
        ahead = without_defaults(rule.schema)
        names = [*(f"Tensor grad_{k}" for k in range(grads)),
                 *(f"Tensor out_{k}" for k in range(outs))]  # fmt: skip
        returns = ", ".join(["Tensor"] * len(wanted))
        returns = f"({returns})" if len(wanted) > 1 else returns
        schema = f"({', '.join([*([ahead] if ahead else []), *names])}) -> {returns}"
        count = rule.count

        def split(passed: Sequence[Any]) -> tuple[Sequence[Any], Any, Any]:
            at = count + grads
            return passed[:count], list(passed[count:at]), list(passed[at:])

        def run(*passed: Any) -> Any:
            inputs, given, made = split(passed)
            found = plain(*inputs, given, [*wanted], made)
            return tuple(found) if len(wanted) > 1 else found[0]

        def fake(*passed: Any) -> Any:
            tensors, _ = Structure.of(split(passed)[0])
            like = [tensors[k] for k in wanted]
            found = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in like]
            return tuple(found) if len(wanted) > 1 else found[0]

        name = f"{rule.name}_backward_{'_'.join(map(str, (grads, outs, *wanted)))}_each"
        overload = self.family.define(name, schema, run, fake)

        def refuse(*_: Any) -> Any:
            raise self._second_error()

        self.family.differentiate(name, make_autograd_impl(
            overload, Info(refuse, lambda *_, **__: None)))  # fmt: skip

        def places(passed: Sequence[Any]) -> list[tuple[Sequence[Place], Sequence[Place]]]:
            inputs, _, made = split(passed)
            found: list[tuple[Sequence[Place], Sequence[Place]]] = []
            for r in self._rules(inputs):
                floats = [p for p, f in zip(r.outputs, r.floats, strict=True) if f]
                if (
                    r.has_halo
                    or not r.backwards
                    or (made and not all(isinstance(p, int) for p in r.outputs))
                ):
                    continue
                given = [p if isinstance(p, int) else None for p in floats]
                each = ["sum" if r.inputs[k] is None else r.inputs[k] for k in wanted]
                found.append((each, [*r.inputs, *given, *(r.outputs if made else ())]))
            return found

        _tell(overload, places)
        return overload


def _has_neighbours(
    near: Neighbours, rule: Rule, tensors: Sequence[tuple[str, DTensor, bool]]
) -> bool:
    """Whether ranks have, and may exchange, the rows that ``rule`` needs. Tracers see no exchange
    between two ranks, and rows that are cut along several dimensions of a mesh have neighbours
    elsewhere."""
    for (_, value, _), axis in zip(tensors, rule.inputs, strict=True):
        if rule.has_halo and isinstance(axis, int):
            others = [p for k, p in enumerate(value.placements) if k != near.dim]
            if any(not p.is_replicate() and p.is_shard(axis) for p in others):
                return False
            if type(value._local_tensor) is not torch.Tensor or not near.suffice(value.shape[axis]):
                return False
    return True


def _cost(tensors: Sequence[tuple[str, DTensor, bool]], dim: int, rule: Rule) -> int:
    """Bytes that go between ranks, about."""
    total = 0
    for (_, value, _), place in zip(tensors, rule.inputs, strict=True):
        before, after = value.placements[dim], placement(place)
        if before != after and not before.is_replicate():
            total += value.numel() * value.element_size() * (1 + before.is_partial())
    return total

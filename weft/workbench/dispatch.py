"""Which code carries out a call of a kernel that has implementations: the first that applies, which
is compared with the loop when it first does, or the loop. All else stays the loop's."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
import types
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, TypeVar

import torch

from weft.errors import KernelValueError
from weft.kernel import Kernel
from weft.lang.dtypes import DType
from weft.pytorch.forward_level import is_open
from weft.pytorch.identity import may_draw, text_of
from weft.runtime.fastpath import disjoint_pairs, tensor_check
from weft.runtime.overlap import distances, meets_itself
from weft.values import frozen
from weft.workbench.implementation import (
    TENSORS,
    Implementation,
    add_plain,
    check_function,
    conditions,
    parameters_of,
)
from weft.workbench.verification import Verification

# What is asked of torch's dispatcher has no public name.
# pyright: reportPrivateUsage=false
log = logging.getLogger("weft.launch")
F = TypeVar("F", bound=Callable[..., Any])
_MOST_PLANS = 8  # of a kernel
_SIMPLE = (int, float, complex, str, bytes, type(None), type, torch.dtype, torch.device, DType,
           Kernel, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)  # fmt: skip
_transforms = torch._C._are_functorch_transforms_active


@frozen
class Plan:
    """What is known of calls like one. ``serves`` says of arguments whether they are: types and the
    mode of autograd are the same, and tensors alike in all but sizes and strides."""

    serves: Callable[..., bool]
    tensors: tuple[int, ...]  # their positions
    written: tuple[int, ...]  # which of the tensors are
    # What is for such tensors, in turn: the condition that is left, and the implementation, None
    # where it is not known to be right.
    able: tuple[tuple[Callable[..., Any] | None, Implementation | None], ...]
    bare: bool  # nothing is written, no gradient asked for, no device to be chosen


class Way(Enum):
    """Where a gradient may be asked for: the loop runs, as there are tensors that only it knows of,
    or what the operator has is recorded."""

    LOOP = auto()
    OPERATOR = auto()


class Implementations:
    """Those of one kernel. A call is carried out by the first of them that applies.

    None does where a tensor has no elements, is of a subclass, or under a transform of
    ``torch.func``, in debug mode, and where ``torch.use_deterministic_algorithms`` asks for an
    order of sums: there the loop runs, as it does where a kernel writes to its arguments, and a
    gradient is asked for, or what is written shares memory.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.registered: list[Implementation] = []
        # The loop by itself: what others are compared with. It is no other operator of that name.
        self.loop = Kernel(kernel.function, kernel.given, kernel.__name__,
                           f"{kernel._namespace}_loops", kernel.tuning)  # fmt: skip
        # Why an implementation is wrong ("": it is not), by what it was compared for.
        self.verdicts: dict[tuple[Any, ...], str] = {}
        self._plans: tuple[Plan, ...] = ()  # the newest first
        self._parameters = parameters_of(kernel)
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._positional = all(p.kind in kinds for p in self._parameters)
        self._names = [p.name for p in self._parameters]
        self._lock = threading.RLock()

    @property
    def text(self) -> str:
        """Which there are, in words that are the same in each process."""
        return ", ".join(map(str, self.registered))

    def providers(self, device: torch.device, backward: bool) -> dict[str, Callable[..., Any]]:
        """The loop by itself, and what may stand in for it on ``device``, by name."""
        found: dict[str, Callable[..., Any]] = {"weft": self.loop}
        for one in self.registered if not backward else ():
            if one.device == device.type:
                found[one.name] = functools.partial(self._provided, one)
        return found

    def verification(self, one: Implementation, device: torch.device) -> Verification:
        """What compares ``one`` with the loop."""

        def call(*args: Any, **named: Any) -> Any:
            return self._provided(one, *args, **named)

        def applies(*args: Any, **named: Any) -> bool:
            return self._taken(one, args, named) is not None

        return Verification(self.loop, call, applies, device, one.finite)

    def _provided(self, one: Implementation, *args: Any, **named: Any) -> Any:
        taken = self._taken(one, args, named)
        if taken is None:
            raise KernelValueError("it is not for such arguments", self.kernel.span)
        return one.run(*taken, self._written(*taken))

    def _taken(
        self, one: Implementation, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The arguments as ``one`` takes them; None where it does not apply."""
        given, named = self._given(args, named)
        tensors: list[torch.Tensor] = []
        values = (*(given or ()), *named.values())
        if given is None or not add_plain(values, tensors):
            return None
        if not one.applies(given, named, tensors):
            return None
        return given, named

    # --- registering -----------------------------------------------------------------------------
    def registration(
        self, device: str, dtypes: Sequence[torch.dtype] | None, when: Callable[..., Any] | None,
        finite: bool,
    ) -> Callable[[F], F]:  # fmt: skip
        """What registers a function. Raises ``KernelValueError`` and ``KernelTypeError``."""
        chosen = conditions(self.kernel, device, dtypes, when)

        def register(function: F) -> F:
            name = getattr(function, "__name__", type(function).__name__)
            check_function(self.kernel, function, name)
            if name in {one.name for one in self.registered}:
                name = f"{name} of {function.__module__}, {len(self.registered)}"
            self.registered.append(Implementation(name, function, device, chosen, when, finite))
            self._plans = ()
            self.kernel.implemented(self)
            return function

        return register

    # --- calling ---------------------------------------------------------------------------------
    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of the kernel: by an implementation, or by the loop."""
        kernel = self.kernel
        if kernel._checked:
            kernel.check_arguments(args, kwargs)
        launchers = kernel.current_launchers()
        if _transforms() or is_open():
            return kernel.carry_out(launchers, args, kwargs)
        return self.planned(launchers, *args, **kwargs)

    def planned(self, launchers: Sequence[Callable[..., Any]], *args: Any, **named: Any) -> Any:
        """The same under no transform, by the plan of a call like it."""
        for plan in self._plans if not named and len(args) == len(self._names) else ():
            if not plan.serves(*args):
                continue
            if plan.written and _overlap(plan.written, [args[k] for k in plan.tensors]):
                break
            for when, one in plan.able:
                if when is None or when(*args):
                    if one is None:
                        return self._looked_up(launchers, args, named)
                    if plan.bare:
                        return one.unrecorded(*args)
                    return one.run(args, named, self._written(args, named))
            return self.kernel.parts.host(launchers, *args)
        return self._looked_up(launchers, args, named)

    def _looked_up(
        self, launchers: Sequence[Callable[..., Any]], args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:  # fmt: skip
        """The same of a call without a plan."""
        found, given, named = None, args, kwargs
        if kwargs or not self._positional or len(args) != len(self._names):
            given, named = self._given(args, kwargs)
        if given is not None:
            found = self._found(given, named)
            way = self._recorded((*given, *named.values()))
            if found is not None and way is Way.OPERATOR:
                return self.kernel.operators(args, kwargs)  # it comes back without the gradient
            found = None if way is Way.LOOP else found
        if found is None or given is None:
            return self.kernel.carry_out(launchers, args, kwargs)
        return found.run(given, named, self._written(given, named))

    def _remember(
        self, args: tuple[Any, ...], tensors: Sequence[torch.Tensor], found: Implementation | None
    ) -> None:
        """Makes a plan of a call's arguments, of which ``found`` is the first that applies."""
        way, check = self._recorded(args), tensor_check(tensors, sizes=False)
        several = any(isinstance(v, list | tuple) for v in args)  # whose types say not all
        if check is None or several or (found is not None and way is Way.OPERATOR):
            return
        able: list[tuple[Callable[..., Any] | None, Implementation | None]] = []
        for one in self.registered if way is not Way.LOOP else ():
            if one.takes(tensors):
                right = self.verdicts.get(one.comparison(tensors)) == ""
                able.append((one.when, one if right and way is None else None))
        asked = any(t.requires_grad for t in tensors)
        bare = not self.written and not asked and tensors[0].device.type == "cpu"
        places = tuple(k for k, v in enumerate(args) if isinstance(v, torch.Tensor))
        written = tuple(n for n, k in enumerate(places) if self._names[k] in self.written)
        plan = Plan(_serves(args, places, check), places, written, tuple(able), bare)
        self._plans = (plan, *self._plans)[:_MOST_PLANS]

    def _recorded(self, values: tuple[Any, ...]) -> Way | None:
        """Where a gradient may be asked for: what a call goes through."""
        if not torch.is_grad_enabled():
            return None
        asked = torch._C._any_requires_grad(*values)
        hidden = self._reads_around or not all(map(_is_simple, values))  # who may ask for one
        if hidden or (asked and self.written):
            return Way.LOOP
        return Way.OPERATOR if asked else None

    @functools.cached_property
    def written(self) -> frozenset[str]:
        """The parameters that the kernel writes to."""
        return self.kernel.mutated

    @functools.cached_property
    def _reads_around(self) -> bool:
        """Whether the kernel may read tensors that are no arguments."""
        function = self.kernel.function
        names = inspect.getclosurevars(function)
        values = [*names.nonlocals.values(), *names.globals.values()]
        return any(isinstance(v, torch.Tensor) or not _is_simple(v) for v in values)

    def _given(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...] | None, dict[str, Any]]:
        """Arguments with their defaults; None where those of a config (``weft.autotune``) are
        among them, which are the loop's alone."""
        bound = self.kernel.bind(args, kwargs)
        names = {p.name for p in self._parameters}
        if any(v is not None for n, v in bound.arguments.items() if n not in names):
            return None, {}
        return bound.args, {n: v for n, v in bound.kwargs.items() if n in names}

    def _found(self, args: tuple[Any, ...], named: dict[str, Any]) -> Implementation | None:
        """The first that applies. Raises ``KernelValueError`` where it is wrong."""
        values = (*args, *named.values()) if named else args
        tensors: list[torch.Tensor] = []
        if (
            not add_plain(values, tensors) or not tensors or _transforms() or is_open()
            or self.kernel.options.debug or torch._C._get_deterministic_algorithms()
        ):  # fmt: skip
            return None
        written = self._written(args, named)
        own = [k for k, t in enumerate(tensors) if any(t is w for w in written)]
        if _overlap(own, tensors):
            return None
        _ = self.kernel.launchers  # from now on calls of the kernel look for a plan
        found = next((o for o in self.registered if o.applies(args, named, tensors)), None)
        if found is not None:
            key = found.comparison(tensors)
            why = self.verdicts.get(key)
            if why is None:
                why = self._verdict(key, found, args, named, tensors[0].device)
            if why:
                raise self._error(found, why)
            if why is None:
                return None
        if not named:
            self._remember(args, tensors, found)
        return found

    def _written(self, args: tuple[Any, ...], named: dict[str, Any]) -> list[torch.Tensor]:
        """The tensors that a call writes to."""
        if not self.written:
            return []
        given = zip(self._names, (*args, *named.values()), strict=True)
        return [v for n, v in given if n in self.written and isinstance(v, torch.Tensor)]

    def _verdict(
        self, key: tuple[Any, ...], one: Implementation, args: tuple[Any, ...],
        named: dict[str, Any], device: torch.device,
    ) -> str | None:  # fmt: skip
        """Why it is wrong for such arguments, "" if it is not; None where that cannot be seen."""
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            log.debug("%s: a graph is captured before %s is verified: the loop runs",
                      self.kernel.__name__, one)  # fmt: skip
            return None

        with self._lock:
            why = self.verdicts.get(key)
            if why is None and may_draw(text_of(self.kernel.source, {})):
                why = self.verdicts[key] = (
                    "the kernel draws random numbers, and others would be drawn: draw them outside"
                )
            if why is None:
                why = self.verdicts[key] = self.verification(one, device).verdict(args, named)
                log.debug("%s: %s: %s", self.kernel.__name__, one, why or "verified")
        return why

    def _error(self, one: Implementation, why: str) -> KernelValueError:
        return KernelValueError(
            f"`{one.name}` does not compute what the loop does: {why}", self.kernel.span,
            help="an implementation has to agree for all arguments that it is registered for: "
            "when=lambda x: x.is_contiguous() and dtypes=[torch.float32] leave calls to the loop",
        )  # fmt: skip


def _serves(
    args: Sequence[Any], places: Sequence[int], check: Callable[..., bool]
) -> Callable[..., bool]:
    """Whether others are of the types of ``args``, their tensors, at ``places``, as ``check`` asks
    and with elements, gradients recorded or not as now, and no order of sums is asked for."""
    tensors = [f"a{k}" for k in places]
    asked = [
        *(f"a{k}.__class__ is t{k}" for k in range(len(args))),
        *(f"not {a}.is_nested" for a in tensors),  # which ``check`` must not be asked about
        f"check({', '.join(tensors)})", *(f"{a}.numel() > 0" for a in tensors),
        f"recorded() is {torch.is_grad_enabled()}", "not ordered()",
    ]  # fmt: skip
    text = f"lambda {', '.join(f'a{k}' for k in range(len(args)))}: {' and '.join(asked)}"
    scope = {f"t{k}": type(v) for k, v in enumerate(args)}
    scope |= {"check": check, "recorded": torch.is_grad_enabled,
              "ordered": torch._C._get_deterministic_algorithms}  # fmt: skip
    return eval(compile(text, "<weft implementations>", "eval"), scope)


def _overlap(written: Sequence[int], tensors: Sequence[torch.Tensor]) -> bool:
    """Whether one of ``tensors`` at the positions ``written`` shares memory with another, or with
    itself. Storages say not all: two may be of one array of NumPy's."""
    if not all(tensors[k].is_contiguous() or not meets_itself(tensors[k]) for k in written):
        return True
    memory = [t.untyped_storage() for t in tensors] if written else []
    begins = [m.data_ptr() for m in memory]
    near = [(i, j) for i, j in disjoint_pairs(written, range(len(memory)))
            if begins[i] < begins[j] + memory[j].nbytes()
            and begins[j] < begins[i] + memory[i].nbytes()]  # fmt: skip
    return bool(near) and bool(distances(tensors, near))


def _is_simple(value: object) -> bool:
    """Whether ``value`` holds no other tensor, by which a gradient may be asked for."""
    if isinstance(value, list | tuple):
        return all(map(_is_simple, value))
    return value.__class__ in TENSORS or isinstance(value, _SIMPLE)

"""Operators whose kernel is machine code: a call of ``torch.ops`` runs no Python.

A kernel whose host part is plain (``recipe.py``) gets such a kernel for the CPU once it was called
twice through its operator: what ``codegen/boxed.py`` writes for the forms that the calls had, at
the dispatch key of the device, and, where the operator takes tensors only, at that of its autograd.
What no form covers (another dtype, memory that is shared, a gradient, a mode) goes on to the
operator's Python functions, as do all calls on a torch without the functions that this takes.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import operator
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from weft.codegen import boxed
from weft.codegen.boxed import Form, MadeForm, NumberForm, TensorForm
from weft.codegen.interface import Slot
from weft.errors import KernelTypeError
from weft.frames import shorten
from weft.frontend.kinds import RegionChanged
from weft.frontend.parameters import returned_types
from weft.frontend.scope import Guard
from weft.frontend.specs import ConstSpec, ScalarSpec, Spec, TensorSpec
from weft.pytorch.annotations import is_checked
from weft.pytorch.recipe import Fresh, Place, Recipe, Size, recipe_of
from weft.runtime import stable, tuned
from weft.runtime.build import Compiled
from weft.runtime.cache import DiskCache, disk, hashed
from weft.runtime.cpu import load_shared
from weft.runtime.fastpath import bounds
from weft.runtime.launch import KernelLike, Launcher
from weft.runtime.link import Linked
from weft.runtime.signature import value_spec
from weft.runtime.specialize import Specialization

if TYPE_CHECKING:
    from weft.pytorch.namespace import Family

# What is asked of torch's dispatcher has no public name.
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false
log = logging.getLogger("weft.launch")

FIRST, EVERY = 2, 8  # calls by Python that are looked at; later ones each time their number doubles
MOST = 8  # forms of one operator
_TYPES = ("Tensor", "SymInt", "float", "bool")  # of arguments
_FROM = {"SymInt": ctypes.c_int64, "float": ctypes.c_double, "bool": ctypes.c_bool}
_errors = threading.local()  # what a thread's last call by Python has raised, and its text


class _Known(NamedTuple):
    """What carries out the calls of a form."""

    special: Specialization
    guards: stable.Guards


class BoxedKernel:
    """The kernel of one operator in machine code. ``types`` are its arguments' schema types."""

    def __init__(self, launcher: Launcher, types: Sequence[str], recipe: Recipe) -> None:
        self.launcher, self.types, self.recipe = launcher, types, recipe
        self._calls = 0  # by Python
        self._known = dict[Form, _Known]()
        self._kernels = dict[str, stable.Registered]()
        launcher.boxed.add(self)

    def attach(self, family: Family, name: str) -> None:
        """Becomes the kernel of its operator, which nobody has called yet."""
        self.name, self._family = name, weakref.ref(family)
        packet, namespace = family.namespace.packets[name], family.namespace.namespace
        for called in (packet, packet.default):
            called._op = _raising(called._op)
        torch.jit._builtins._register_builtin(packet._op, f"{namespace}::{name}")
        self._python = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(
            _called(weakref.ref(self))
        )
        keys = {boxed.BELOW: "CPU"}
        if all(t == "Tensor" for t in self.types) and ("autograd", name) in family.python:
            # A kernel of this kind makes a number of a symbolic one.
            keys[boxed.AUTOGRAD] = "AutogradCPU"
        for symbol, key in keys.items():
            record = self._record(symbol)
            self._kernels[symbol] = stable.Registered(namespace, name, key, record)

    def forget(self) -> None:
        """What the loop was compiled to is not what it is compiled to now."""
        self._known.clear()
        self._update()

    def learn(self, passed: Sequence[Any]) -> None:
        """Is told of a call that Python has carried out."""
        self._calls += 1
        if self._calls < FIRST or (self._calls > EVERY and self._calls & (self._calls - 1)):
            return
        with self.launcher.lock:
            try:
                found = self._form(passed)
            except RegionChanged:  # the next launch sees to it
                return
            if found is None:
                return
            form, special, guards = found
            known = self._known.get(form)
            if known is not None and known.special is special:
                known.guards.refresh()
            elif known is not None or len(self._known) < MOST:
                self._known[form] = _Known(special, stable.Guards(guards))
                self._update()
                log.debug("%s: %d form(s) of calls in machine code", self.name,
                          len(self._known))  # fmt: skip

    def _update(self) -> None:
        for symbol, kernel in self._kernels.items():
            kernel.become(self._record(symbol))

    def _record(self, symbol: str) -> Any:
        """The record of the kernel for the forms that are known, the last one's first."""
        known = list(self._known.items())[::-1]
        code = _code(tuple(form for form, _ in known), disk(self.launcher.options))
        words = [code.addresses[symbol], ctypes.cast(self._python, ctypes.c_void_p).value or 0]
        for _, (special, guards) in known:
            words += [special.compiled.code.address, ctypes.addressof(guards.table)]
        record: Any = (ctypes.c_uint64 * len(words))(*words)
        record.keep = [code, *(what for _, what in known)]
        return record

    def _form(self, passed: Sequence[Any]) -> tuple[Form, Specialization, tuple[Guard, ...]] | None:
        """The form of a call, and what carries it out; None where that takes Python."""
        launcher, recipe = self.launcher, self.recipe
        tensors = [v for v in passed if isinstance(v, torch.Tensor)]
        if len(launcher.region.args) != len(recipe.places) or not tensors:
            return None
        if any(type(v) is not torch.Tensor or v.device.type != "cpu" for v in tensors):
            return None
        if not all(passed[made.like].is_contiguous() for made in recipe.made):
            return None
        args = recipe.arguments(passed)
        specs = list(launcher.forms.specs(args).values())
        special = launcher.forms.specialize(specs, place="cpu")
        compiled, written = special.compiled, special.compiled.loop.summary.written
        read = (place for place in recipe.places if isinstance(place, Guard))
        guards = (*compiled.guards, *recipe.guards, *read)
        tensors = [v for v in args if isinstance(v, torch.Tensor)]
        if not tensors or not _without_python(launcher, compiled, guards, tensors):
            return None
        positions = [k for k, spec in enumerate(specs) if isinstance(spec, TensorSpec)]
        writes = {positions[k] for k in written if k < len(positions)}
        arguments: list[Any] = [None] * len(passed)
        sources: list[Place] = []  # of the function's arguments
        for k, (spec, place) in enumerate(zip(specs, recipe.places, strict=True)):
            if not isinstance(spec, ConstSpec):
                sources.append(place)
            if isinstance(place, int):
                arguments[place] = _argument(spec, k in writes, args[k])
        for k, value in enumerate(passed):
            if k not in recipe.places:  # the host part alone asks for its sizes
                try:
                    arguments[k] = _argument(value_spec("", value), False, value)
                except KernelTypeError:  # loops do not take it
                    return None
        slots = [_slot(slot, sources, passed) for slot in compiled.slots]
        if None in arguments or None in slots:
            return None
        made = tuple(MadeForm(m.like, m.zeros) for m in recipe.made)
        form = Form(tuple(arguments), tuple(slots), made, recipe.returned, bool(guards))  # type: ignore[arg-type]
        return form, special, guards

    def call(self, stack: int, which: int) -> int | None:
        """Carries a call out by the operator's functions in Python. Gives the address of the text
        of an error; torch's words are the handles of what was made."""
        words = (ctypes.c_uint64 * max(len(self.types), 1)).from_address(stack)
        try:
            passed = [
                stable.taken(word) if kind == "Tensor"
                else _FROM[kind].from_buffer_copy(word.to_bytes(8, "little")).value
                for word, kind in zip(words, self.types, strict=False)
            ]  # fmt: skip
            family = self._family()
            assert family is not None
            if boxed.SYMBOLS[which] == boxed.AUTOGRAD:
                made = family.python["autograd", self.name](_keys(passed), *passed)
            else:
                made = family.python["run", self.name](*passed)
            results = [made] if isinstance(made, torch.Tensor) else list(made or ())
            for k, result in enumerate(results):
                ctypes.c_uint64.from_address(stack + 8 * k).value = stable.given(result)
        except BaseException as error:  # it goes on at ``_raising``
            _errors.last = _meant(error)
            _errors.text = ctypes.create_string_buffer(str(error).encode(errors="replace"))
            return ctypes.addressof(_errors.text)
        return None


def boxed_kernel(kernel: KernelLike, types: Sequence[str], name: str) -> BoxedKernel | None:
    """The machine code of the kernel's operator ``name``; None where it takes Python."""
    options = kernel.launchers[0].options if kernel.launchers else None
    if options is None or not set(types) <= set(_TYPES) or options.debug or options.interpret:
        return None
    if "autotune" in kernel.described or any(map(is_checked, kernel.parts.parameters)):
        return None
    recipe = recipe_of(kernel) if returned_types(kernel.function) is None else None
    if recipe is None:
        return None
    missing = stable.missing()
    if missing:
        log.debug("%s: the operator's kernels are in Python: %s", name, missing)
        return None
    return BoxedKernel(kernel.launchers[0], types, recipe)


def _slot(slot: Slot, sources: Sequence[Place], passed: Sequence[Any]) -> Slot | None:
    """A word of the loop's argument block, by where its value is from; None where that takes
    Python. ``sources``: of the function's arguments."""
    if slot.arg < 0:
        return slot
    source = sources[slot.arg]
    match source:
        case int():
            return Slot(slot.kind, source, slot.axis)
        case Fresh():
            return Slot(slot.kind, len(passed) + source.number, slot.axis)
        case Size():
            return Slot("size", source.parameter, source.axis % passed[source.parameter].dim())
        case _:
            return None


@functools.lru_cache(256)
def _code(forms: tuple[Form, ...], cache: DiskCache | None) -> Linked:
    """The machine code of kernels for these forms."""
    text = boxed.text(forms, stable.keys())
    make: Callable[[], Any] = lambda: (text, boxed.SYMBOLS)  # noqa: E731
    return load_shared(f"boxed {hashed(text)}", make, cache, needs=stable.functions())


def _without_python(
    launcher: Launcher, compiled: Any, guards: Sequence[Guard], tensors: Sequence[torch.Tensor]
) -> bool:
    """Whether calls of the loop need none: to compare values that were compiled in, to order
    iterations, to choose a schedule by the sizes."""
    return (
        isinstance(compiled, Compiled)
        and bool(compiled.code.address)
        and not (compiled.header.checks or compiled.loop.summary.unordered)
        and all(guard.by_identity for guard in guards)
        and compiled.fitting(tensors, launcher) is compiled
        and tuned.records.none(launcher.options, compiled.loop.digest, tensors[0].device)
    )


def _argument(spec: Spec, written: bool, value: Any) -> TensorForm | NumberForm | None:
    """What an argument has to be; None where machine code cannot tell."""
    if isinstance(spec, TensorSpec):
        if spec.shape is not None or spec.element or spec.backing or spec.clamped:
            return None
        number = stable.number_of(value.dtype)
        return TensorForm(number, value.element_size(), spec.rank, spec.layout, written)
    if isinstance(spec, ScalarSpec) and not spec.captured:
        return NumberForm(*(bounds(spec) or (None, None)))
    return None


def _keys(passed: Sequence[Any]) -> Any:
    """The dispatch keys that a call has at its autograd, without those that do nothing for the
    operators of kernels."""
    own = [torch._C._dispatch_keys(v) for v in passed if isinstance(v, torch.Tensor)]
    every = functools.reduce(operator.or_, own, torch._C._dispatch_tls_local_include_set())
    every = every - torch._C._dispatch_tls_local_exclude_set()
    key = torch._C.DispatchKey
    return every.remove(key.ADInplaceOrView).remove(key.BackendSelect)


def _called(kernel: weakref.ref[BoxedKernel]) -> Callable[[int, int], int | None]:
    def call(stack: int, which: int) -> int | None:
        found = kernel()
        assert found is not None  # the operator that is called holds it
        return found.call(stack, which)

    return call


def _raising(op: Callable[..., Any]) -> Callable[..., Any]:
    """``op``, whose errors are those of Python's functions: torch's own have their texts alone."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return op(*args, **kwargs)
        except RuntimeError as error:
            meant = _meant(error)
            if meant is error:
                raise
        _errors.last = None
        shorten(meant)
        raise meant

    return call


def _meant(error: BaseException) -> BaseException:
    """The error of a Python function that ``error``, torch's, has the text of; else itself."""
    last: BaseException | None = getattr(_errors, "last", None)
    if last is None or type(error) is not RuntimeError or str(error) != str(last):
        return error
    return last

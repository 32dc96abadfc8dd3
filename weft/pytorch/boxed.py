"""Operators whose kernel is machine code: a call of ``torch.ops`` runs no Python.

A kernel whose host part is plain (``recipe.py``) gets such a kernel once it was called twice
through its operator: what ``codegen/boxed.py`` writes for the forms that the calls had, at the
dispatch key of the device and at that of its autograd. What no form covers (another dtype, memory
that is shared, a gradient, a mode) goes on to the operator's Python functions, as do all calls on a
torch without the functions that this takes.

A kernel at autograd's key makes numbers of symbolic ones. An operator that takes numbers therefore
has a second overload, ``.int``, which calls go on to where nothing is symbolic.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import logging
import operator
import re
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch._C import _autograd

from weft.codegen import boxed
from weft.codegen.boxed_forms import Form
from weft.codegen.interface import Slot
from weft.frames import shorten
from weft.frontend.kinds import RegionChanged
from weft.frontend.parameters import returned_types
from weft.frontend.scope import Guard
from weft.frontend.specs import ConstSpec, Spec, TensorSpec
from weft.pytorch.annotations import is_checked
from weft.pytorch.boxed_program import NOWHERE, Operand, Program, Unfit, constant
from weft.pytorch.changing import CHANGING
from weft.pytorch.forward_level import is_open
from weft.pytorch.namespace import Family, tell_torchscript
from weft.pytorch.recipe import Computed, Count, Fresh, Number, Place, Recipe, Size, recipe_of
from weft.pytorch.transforms import PLAIN
from weft.runtime import stable, tuned
from weft.runtime.build import Compiled, Made
from weft.runtime.cache import DiskCache, disk, hashed
from weft.runtime.cpu import load_shared
from weft.runtime.fastpath import passed as given
from weft.runtime.launch import KernelLike, Launcher
from weft.runtime.link import Linked
from weft.runtime.signature import TORCH_DTYPES, is_pair

# What is asked of torch's dispatcher has no public name.
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false
log = logging.getLogger("weft.launch")

FIRST, EVERY = 2, 8  # calls by Python that are looked at; later ones each time their number doubles
MOST, MOST_ENTRIES = 8, 64  # forms of one operator whose code differs, and all of them
_TYPES = ("Tensor", "Tensor?", "SymInt", "SymInt?", "float", "float?", "bool", "bool?", "SymInt[]",
          "float[]", "bool[]", "ScalarType", "Device", CHANGING)  # of arguments  # fmt: skip
_WORD = (1 << 64) - 1
_errors = threading.local()  # what a thread's last call by Python has raised, and its text


class Found(NamedTuple):
    """The form of a call, the addresses of its loops, what these rest on, and what was compiled
    in."""

    form: Form
    codes: tuple[int, ...]
    keep: object
    guards: tuple[Guard, ...]


class _Known(NamedTuple):
    """What carries out the calls of a form: its loops' addresses, the form that its code has, and
    its numbers."""

    codes: tuple[int, ...]
    keep: object
    guards: stable.Guards
    written: Form
    numbers: tuple[int, ...]

    @property
    def entry(self) -> list[int]:
        """Its words in a record."""
        kept = [number & _WORD for number in self.numbers]
        return [ctypes.addressof(self.guards.table), *self.codes, *kept]


class BoxedKernel:
    """The kernel of one operator in machine code. ``types`` are its arguments' schema types.
    ``listed``: it gives a list."""

    listed = False
    # What gives the same where a gradient is asked for, and nothing watches.
    recorded: Callable[..., Any] | None = None

    def __init__(self, launcher: Launcher, types: Sequence[str], recipe: Recipe) -> None:
        self.launcher, self.types, self.recipe = launcher, types, recipe
        self._calls = 0  # by Python
        self._met = deque[Any](maxlen=64)  # sizes of calls
        self._known = dict[Form, _Known]()
        self._forgotten = dict[Form, _Known]()
        self._tables = dict[tuple[int, ...], Any]()
        self._kernels: list[tuple[str, stable.Registered]] = []
        launcher.boxed.add(self)

    def attach(self, family: Family, name: str) -> None:
        """Becomes the kernel of its operator, which nobody has called yet."""
        self.name, self._family = name, weakref.ref(family)
        family.boxed[name] = self
        packet, namespace = family.namespace.packets[name], family.namespace.namespace
        differentiable = ("autograd", name) in family.python
        numbers = differentiable and any(t.startswith("SymInt") for t in self.types)
        quick = _overload_of_numbers(family, name) if numbers else None
        for called in (packet, packet.default):
            plain = called._op
            if quick is not None:
                plain = _quick(self.types, quick, plain, packet.default._schema.arguments)
            if name in family.direct:
                own = self.recorded or family.direct[name]
                plain = _recording(plain, own, packet.default._schema.arguments)
            called._op = _raising(plain)
        tell_torchscript(packet)
        self._python = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(
            _called(weakref.ref(self))
        )
        for device in stable.devices():
            self._register(boxed.BELOW, namespace, name, device)
            if numbers:
                self._register(boxed.BELOW, namespace, f"{name}.int", device)
            if differentiable:
                above = f"{name}.int" if numbers else name
                self._register(boxed.AUTOGRAD, namespace, above, f"Autograd{device}")

    def _register(self, symbol: str, namespace: str, name: str, key: str) -> None:
        kernel = stable.Registered(namespace, name, key, self._record(symbol))
        self._kernels.append((symbol, kernel))

    def forget(self) -> None:
        """What the loop was compiled to is not what it is compiled to now."""
        self._forgotten = {**self._known} or self._forgotten
        self._known.clear()
        self._update()

    def taught(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """``run``, of whose calls this is told."""

        def implementation(*passed: Any) -> Any:
            out = run(*passed)
            self.learn(passed)
            return out

        return implementation

    def learn(self, passed: Sequence[Any]) -> None:
        """Is told of a call that Python has carried out."""
        if torch._C._are_functorch_transforms_active():  # of which tensors show a part
            return
        first = FIRST
        if self.listed or any(isinstance(v, torch.Tensor) and v.is_cuda for v in passed):
            sizes, first = _sizes(passed), 1  # a form is one of these
            if sizes not in self._met:
                self._met.append(sizes)
                return
        self._calls += 1
        if self._calls < first or (self._calls > EVERY and self._calls & (self._calls - 1)):
            return
        with self.launcher.lock:
            try:
                form, codes, keep, guards = self.form_of(passed)
            except (RegionChanged, Unfit, torch.OutOfMemoryError):  # at the next call, perhaps
                return
            known = self._known.get(form)
            if known is not None and known.codes == codes:
                known.guards.refresh()
            else:
                written, numbers = form.separated()
                while known is None and not self._has_room(written):
                    del self._known[next(iter(self._known))]  # the oldest
                known = self._forgotten.pop(form, None)
                places = [guard.place for guard in guards]
                if known is None or known.codes != codes or known.guards.places != places:
                    known = _Known(codes, keep, stable.Guards(guards), written, numbers)
                known.guards.refresh()
                self._known[form] = known
                self._update()
                log.debug("%s: %d form(s) of calls in machine code", self.name,
                          len(self._known))  # fmt: skip

    def _has_room(self, written: Form) -> bool:
        forms = {written, *(known.written for known in self._known.values())}
        return len(self._known) < MOST_ENTRIES and len(forms) <= MOST

    def _update(self) -> None:
        for symbol, kernel in self._kernels:
            kernel.become(self._record(symbol))

    def _record(self, symbol: str) -> Any:
        """The record of the kernel for the forms that are known, the last one's first."""
        entries = dict[Form, list[int]]()
        for known in reversed(self._known.values()):
            entries.setdefault(known.written, []).extend(known.entry)
        code = _code(tuple(entries), disk(self.launcher.options))
        words = [code.addresses[symbol], ctypes.cast(self._python, ctypes.c_void_p).value or 0]
        tables = [self._table(*entry) for entry in entries.values()]
        for form, table in zip(entries, tables, strict=True):
            words += [len(table) // form.words, ctypes.addressof(table)]
        record: Any = (ctypes.c_uint64 * len(words))(*words)
        record.keep = [code, tables, *self._known.values()]
        return record

    def _table(self, *words: int) -> Any:
        """Memory with these words, the same for the same: so are the records that point to it."""
        if words not in self._tables:
            self._tables[words] = (ctypes.c_uint64 * len(words))(*words)
        return self._tables[words]

    def specialized(
        self, inputs: Sequence[Any], program: Program
    ) -> tuple[Launcher, tuple[Any, ...], list[torch.Tensor], list[Spec], Made, tuple[Guard, ...]]:
        """The loop's launcher, its arguments (complex ones as pairs), what the host part makes,
        what is known of the former, the compiled loop, and what was compiled in. Raises
        ``Unfit``."""
        launcher, recipe = self.launcher, self.recipe
        if len(launcher.region.args) != len(recipe.places):
            raise Unfit
        inputs = [v.item() if start in program.numbers else v
                  for v, start in zip(inputs, program.starts, strict=False)]  # fmt: skip
        elsewhere = any(m.sizes is not None and m.device is None for m in recipe.made)
        if elsewhere and program.cpu != program.device:
            raise Unfit
        args, made = recipe.arguments(inputs, program.as_made, program.cpu)
        which = frozenset(k for k, v in enumerate(args) if is_pair(launcher.region.args[k], v))
        if which:
            if program.loops or any(not isinstance(args[k], torch.Tensor) for k in which):
                raise Unfit
            launcher = launcher.other(which)
            if launcher.region.complex_results:
                raise Unfit
            args = tuple(torch.view_as_real(v.resolve_conj()) if k in which else v
                         for k, v in enumerate(args))  # fmt: skip
        specs = list(launcher.forms.specs(args).values())
        place = program.loops or program.device.type
        compiled = launcher.forms.specialize(specs, place=place).compiled
        read = (place for place in recipe.places if isinstance(place, Guard))
        guards = (*compiled.guards, *recipe.guards, *read)
        frozen = program.loops or all(guard.by_identity for guard in guards)
        if compiled.loop.summary.unordered or not frozen:
            raise Unfit  # it takes Python to compare values, and to order iterations
        return launcher, args, made, specs, compiled, guards

    def form_of(self, passed: Sequence[Any], program: Program | None = None) -> Found:
        """Raises ``Unfit`` where the call takes Python. ``program``: where it is written down."""
        recipe = self.recipe
        program = program or Program(passed, self.types)
        if not program.loose and not all(
            m.described or m.sizes is not None or passed[m.like].is_contiguous()
            for m in recipe.made
        ):
            raise Unfit
        launcher, args, made, specs, compiled, guards = self.specialized(passed, program)
        written = compiled.loop.summary.written
        tensors = [v for v in args if isinstance(v, torch.Tensor)]
        if not tensors:
            raise Unfit
        positions = [k for k, spec in enumerate(specs) if isinstance(spec, TensorSpec)]
        writes = {positions[k] for k in written if k < len(positions)}
        for k, (spec, place) in enumerate(zip(specs, recipe.places, strict=True)):
            if isinstance(place, int) and program.starts[place] != NOWHERE:
                program.take(program.starts[place], spec, written=k in writes)
        program.take_rest()
        for number, tensor in enumerate(made):
            self._make(program, number, tensor)
        held, values = list[Operand](), given(specs, args)
        for place, spec, value in zip(recipe.places, specs, args, strict=True):
            if not isinstance(spec, ConstSpec):
                held += operands(place, program, value)
        for _, dtype in compiled.results:
            result = torch.empty((), dtype=TORCH_DTYPES[dtype], device=program.device)
            held.append(program.make(result))
            values.append(result)
        made_for = compiled if program.loops else _fitting(launcher, compiled, tensors)
        program.run(made_for, held, values)
        first = len(program.items)
        form = program.form([first + k for k in recipe.returned], guards)
        return Found(form, tuple(program.codes), (compiled, *program.keep), guards)

    def _make(self, program: Program, number: int, tensor: torch.Tensor) -> None:
        """Writes down how the host part makes a tensor."""
        made = self.recipe.made[number]
        if made.sizes is not None:
            sizes = [count(size, program) for size in made.sizes]
            program.make(tensor, sizes=sizes, strides=_strides(sizes, program), zeros=made.zeros)
            return
        start, rank = program.starts[made.like], tensor.dim()
        if not made.described:
            program.like(start, tensor, zeros=made.zeros, of=start if made.copied else -1)
            return
        sizes, strides = ([Slot("int", first + axis) for axis in range(rank)]
                          for first in (start, start + rank))  # fmt: skip
        program.make(tensor, sizes=sizes, strides=strides)

    def call(self, stack: int, which: int) -> int | None:
        """Carries a call out by the operator's functions in Python. Gives the address of the text
        of an error; torch's words are the handles of what was made."""
        words = (ctypes.c_uint64 * max(len(self.types), 1)).from_address(stack)
        try:
            passed = [stable.argument(word, "Tensor" if kind == CHANGING else kind)
                      for word, kind in zip(words, self.types, strict=False)]  # fmt: skip
            family = self._family()
            assert family is not None
            if boxed.SYMBOLS[which] == boxed.AUTOGRAD:
                made = family.python["autograd", self.name](_keys(passed), *passed)
            else:
                made = family.python["run", self.name](*passed)
            results = [made] if isinstance(made, torch.Tensor) else list(made or ())
            given = [stable.listed(results)] if self.listed else map(stable.given, results)
            for k, handle in enumerate(given):
                ctypes.c_uint64.from_address(stack + 8 * k).value = handle
        except BaseException as error:  # it goes on at ``_raising``
            _errors.last = _meant(error)
            _errors.text = ctypes.create_string_buffer(str(error).encode(errors="replace"))
            return ctypes.addressof(_errors.text)
        return None


class BoxedBackward(BoxedKernel):
    """The kernel of the backward of an operator that has one itself. ``former`` finds the form of a
    call, or raises ``Unfit``."""

    listed = True
    former: Callable[[BoxedKernel, Sequence[Any]], Found]

    @classmethod
    def of(
        cls, code: BoxedKernel, former: Callable[[BoxedKernel, Sequence[Any]], Found]
    ) -> BoxedBackward | None:
        missing = stable.missing_for_lists()
        if missing:
            log.debug("gradients of operators are in Python: %s", missing)
            return None
        # See ``Rule._backward``.
        types = *code.types, "Tensor[]", "int[]", "Tensor[]?", "int[]?", "Tensor?"
        made = cls(code.launcher, types, code.recipe)
        made.former = former
        return made

    def form_of(self, passed: Sequence[Any], program: Program | None = None) -> Found:
        return self.former(self, passed)


def boxed_kernel(
    kernel: KernelLike, types: Sequence[str], name: str, *, frozen: bool = False
) -> BoxedKernel | None:  # fmt: skip
    """The machine code of the kernel's operator ``name``; None where it takes Python. ``frozen``:
    torch's default dtype stays what it is."""
    options = kernel.launchers[0].options if kernel.launchers else None
    if options is None or not set(types) <= set(_TYPES) or options.debug or options.interpret:
        return None
    if "autotune" in kernel.described or any(map(is_checked, kernel.parts.parameters)):
        return None
    recipe = recipe_of(kernel) if returned_types(kernel.function) is None else None
    if recipe is None or (recipe.defaults and not frozen):
        return None
    if any(not types[k].startswith(("SymInt", "int")) for k in recipe.whole):
        return None
    missing = stable.missing()
    if not missing and any("[" in kind for kind in types):
        missing = stable.missing_for_lists()
    if missing:
        log.debug("%s: the operator's kernels are in Python: %s", name, missing)
        return None
    return BoxedKernel(kernel.launchers[0], types, recipe)


def operands(place: Place, program: Program, value: Any) -> list[Operand]:
    """The words or the tensor that an argument of the loop is, by where it is from."""
    match place:
        case int():
            start = program.starts[place]
            if start in program.numbers:
                return [Slot("item", start)]
            if start in program.values:
                return [start]
            numbers = value if isinstance(value, tuple | list) else (value,)
            return [Slot("float" if type(number) is float else "int", start + k)
                    for k, number in enumerate(numbers)]  # fmt: skip
        case Fresh():
            return [len(program.items) + place.number]
        case Size() | Computed():
            return [count(place, program)]
        case Number():
            return [constant(place.value)]
        case Guard() if program.loops and isinstance(value, int | float):
            return [constant(value)]  # as it is now
        case _:
            raise Unfit


def count(place: Count, program: Program) -> Slot:
    """The word of a whole number. Raises ``Unfit``."""
    match place:
        case Size():
            start = program.starts[place.parameter]
            return Slot("size", start, place.axis % program.values[start].dim())
        case Number():
            return constant(int(place.value))
        case Computed():
            left, right = count(place.left, program), count(place.right, program)
            return program.compute(place.operation, left, right)
        case _:
            start = program.starts[place]
            if program.exact:  # whose grids and tensors are of this number
                program.fix(start, int(program.items[start]))
            return Slot("int", start)


def _strides(sizes: Sequence[Slot], program: Program) -> list[Slot]:
    """Those of a contiguous tensor."""
    strides = [constant(1)]
    for size in reversed(sizes[1:]):
        some = program.compute("max", size, constant(1))
        strides.append(program.compute("*", strides[-1], some))
    return strides[::-1]


def _overload_of_numbers(family: Family, name: str) -> Callable[..., Any]:
    """Makes the overload that takes no symbolic numbers. Gives what calls it.

    Its arguments have other names: TorchScript, to which a symbolic number is an integer, keeps one
    overload of those that are written alike, and would hold the other one when both are gone.
    """
    qualified = f"{family.namespace.namespace}::{name}"
    schema = str(torch._C._get_schema(qualified, "")).partition("(")[2]
    default = family.namespace.packets[name].default._op
    numbers = re.sub(r"\bSymInt(\S*) (\w+)", r"int\1 \2_of_int", schema)
    family.define_overload(name, f"{name}.int({numbers}", default)
    return torch._C._get_operation_overload(qualified, "int")[0]


@functools.lru_cache(256)
def _code(forms: tuple[Form, ...], cache: DiskCache | None) -> Linked:
    """The machine code of kernels for these forms."""
    text = boxed.text(forms, stable.keys())
    make: Callable[[], Any] = lambda: (text, boxed.SYMBOLS)  # noqa: E731
    needs = {**stable.functions(), **stable.device_functions()}
    # Calls and comparisons in a row: compiled with more effort, it is no faster.
    return load_shared(f"boxed {hashed(text)}", make, cache, effort=0, needs=needs)


def _fitting(launcher: Launcher, compiled: Made, tensors: Sequence[torch.Tensor]) -> Made:
    """What carries the loop out. Raises ``Unfit`` where a call must choose it by the sizes."""
    compiled = compiled.for_all_sizes()
    found = compiled.fitting(tensors, launcher)
    if isinstance(compiled, Compiled):
        digest, device = compiled.loop.digest, tensors[0].device
        own = compiled, compiled.streaming  # which asks for the sizes at each call
        if found not in own or not tuned.records.none(launcher.options, digest, device):
            raise Unfit
    return found


def _sizes(value: Any) -> Any:
    """What is equal for values that one form may be of."""
    if isinstance(value, torch.Tensor):
        return value.size(), value.stride(), value.dtype
    if isinstance(value, list | tuple):
        return tuple(map(_sizes, value))
    return float if isinstance(value, float) else value


def _keys(passed: Sequence[Any]) -> Any:
    """The dispatch keys that a call has at its autograd, without those that do nothing for the
    operators of kernels."""
    lists = [v for v in passed if isinstance(v, list)]
    own = [torch._C._dispatch_keys(v) for v in itertools.chain(passed, *lists)
           if isinstance(v, torch.Tensor)]  # fmt: skip
    every = functools.reduce(operator.or_, own, torch._C._dispatch_tls_local_include_set())
    every = every - torch._C._dispatch_tls_local_exclude_set()
    key = torch._C.DispatchKey
    return every.remove(key.ADInplaceOrView).remove(key.BackendSelect)


def _quick(
    types: Sequence[str], quick: Callable[..., Any], plain: Callable[..., Any],
    arguments: Sequence[Any],
) -> Callable[..., Any]:  # fmt: skip
    """``quick`` where nothing is symbolic, nothing watches and no derivative is asked for;
    ``plain`` otherwise."""
    count, own = len(types), stable.PLAIN
    least = sum(not a.has_default_value() for a in arguments)
    defaults = [a.default_value for a in arguments]
    lists = [k for k, kind in enumerate(types) if kind.startswith("Tensor[]")]
    tensors = [k for k, kind in enumerate(types) if kind in ("Tensor", CHANGING)]
    optional = [k for k, kind in enumerate(types) if kind == "Tensor?"]
    transforms = torch._C._are_functorch_transforms_active
    modes, functions = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
    recording = torch.is_grad_enabled

    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs or not least <= len(args) <= count or modes() or functions() or transforms():
            return plain(*args, **kwargs)
        if len(args) < count:
            args = (*args, *defaults[len(args) :])
        recorded = recording()
        found = [args[k] for k in tensors]
        for k in optional:
            if args[k] is not None:
                found.append(args[k])
        for k in lists:
            found += args[k] or ()
        for tensor in found:
            if type(tensor) not in own or (recorded and tensor.requires_grad):
                return plain(*args)
        return quick(*args)

    return call


def _recording(
    plain: Callable[..., Any], direct: Callable[..., Any], arguments: Sequence[Any]
) -> Callable[..., Any]:  # fmt: skip
    """``direct`` where a gradient is asked for, and nothing watches; ``plain`` otherwise."""
    least = sum(not a.has_default_value() for a in arguments)
    count, own = len(arguments), stable.PLAIN
    defaults = [a.default_value for a in arguments]
    wanted, recording = torch._C._any_requires_grad, torch.is_grad_enabled
    transforms, profiled = torch._C._are_functorch_transforms_active, _autograd._profiler_enabled
    modes, functions = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
    included = torch._C._dispatch_tls_local_include_set
    excluded = torch._C._dispatch_tls_local_exclude_set
    state, keys = tuple(each.raw_repr() for each in PLAIN), torch._C._dispatch_keys

    def call(*args: Any, **kwargs: Any) -> Any:
        if (
            not recording() or not wanted(*args) or kwargs or not least <= len(args) <= count
            or modes() or functions() or transforms() or profiled() or is_open()
            or (included().raw_repr(), excluded().raw_repr()) != state
        ):  # fmt: skip
            return plain(*args, **kwargs)
        for value in args:
            if isinstance(value, torch.Tensor) and (
                type(value) not in own or not reaches_device(keys(value).raw_repr())
            ):
                return plain(*args)
        return direct(*args, *defaults[len(args) :])

    return call


@functools.lru_cache(64)
def reaches_device(raw: int) -> bool:
    """Whether nothing but autograd stands before the device's kernel, of a set of keys."""
    key = torch._C.DispatchKey
    below = torch._C.DispatchKeySet.from_raw_repr(raw) & torch._C._after_autograd_keyset
    below = below.remove(key.ADInplaceOrView).remove(key.BackendSelect)  # which do nothing
    return below.highestPriorityTypeId() in (key.CPU, key.CUDA)


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

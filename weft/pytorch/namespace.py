"""The operators of one namespace, ``torch.ops.<namespace>``."""

from __future__ import annotations

import functools
import re
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch._ops import _OpNamespace
from torch.jit._builtins import _get_builtin_table

from weft.errors import CompileError, KernelNameError
from weft.frames import user_frames
from weft.runtime.launch import KernelLike

# pyright: reportPrivateUsage=false


_DERIVED = re.compile(r"(\w+)_[0-9a-f]{8}(_\d+)?(_vmap)*(_backward|_jvp)*(_noted)?")
DTENSOR = "torch.distributed.tensor"
KINDS = re.compile(r"_(vmap|backward|jvp|noted)")
_DEFAULT = re.compile(r"=(\[[^\]]*\]|[^,()]+)")  # in the text of a schema


def without_defaults(schema: str) -> str:
    return _DEFAULT.sub("", schema)


# The operator that carries one out on every sample, and its arguments, of those for one sample,
# their batch dimensions, the size of the batch and its randomness.
Sampled = Callable[[Sequence[Any], Sequence[Any], Any, str], tuple[Any, Sequence[Any]]]


def in_ascii(name: str) -> str:
    """``name`` as operators and their arguments can have it: ``größe`` is ``gr_f6__df_e``."""
    return "".join(c if c.isascii() else f"_{ord(c):x}_" for c in name)


def tell_torchscript(packet: Any) -> None:
    """Has TorchScript know the function of the operator, which it does by the address: as long as
    the function is there. What is at the address later may be any function that it compiles."""
    function, table = packet._op, _get_builtin_table()
    table[id(function)] = packet._qualified_op_name
    weakref.finalize(function, table.pop, id(function), None).atexit = False


class Latest:
    """The operators that a part of PyTorch, which would keep all of them, was told of last."""

    MOST = 256

    def __init__(self, forget: Callable[[Any], None]) -> None:
        self._forget = forget
        self._told = deque[Any]()

    def add(self, overload: Any) -> None:
        """``overload`` is told now; what was told longest ago is forgotten."""
        self._told.append(overload)
        if len(self._told) > self.MOST:
            self._forget(self._told.popleft())


class Family:
    """An operator and its derivatives, each of which holds it by its ``overload``, as graphs hold
    these. Nothing else does (torch gets functions with a weak reference), so that PyTorch forgets
    the operators when the kernel and the graphs that were made with it are gone."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self._library = torch.library.Library(namespace.namespace, "FRAGMENT")
        self._functions: list[Callable[..., Any]] = []
        self.samples: dict[str, Any] = {}  # what vmap does, by name of the operator (``Samples``)
        self.rules: dict[str, Any] = {}  # derivatives, by name of the operator (``Rule``)
        self.sharded: Any = None  # what DTensor was told, where it is imported (``dtensor.py``)
        # What torch calls where a kernel in machine code does not, by ("run" or "autograd", name).
        self.python: dict[tuple[str, str], Callable[..., Any]] = {}
        # The default of each argument, or None, of the operators that have any: torch passes no
        # last arguments on that are as their defaults.
        self._defaults: dict[str, list[Any]] = {}
        # What carries plain calls out, and records a gradient, by name.
        self.direct = dict[str, Callable[..., Any]]()
        self.boxed: dict[str, Any] = {}  # kernels in machine code, by name (``BoxedKernel``)
        self.portable: dict[str, Callable[[], Any]] = {}  # what makes them for a library
        self.look_around: Callable[..., Any] | None = None  # which gives ``around``
        self.tags: tuple[torch.Tag, ...] = ()  # of the operator and all that is derived of it

    @functools.cached_property
    def around(self) -> Any:
        """What is around the kernel (``around.py``), which derivatives ask for."""
        assert self.look_around is not None
        return self.look_around()

    def define(
        self, name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any],
        *tags: torch.Tag,
    ) -> Any:  # fmt: skip
        """Makes an operator, without a derivative. Returns its overload."""
        namespace = self.namespace
        namespace.defining = name  # torch asks whether it is there
        told = dict.fromkeys((torch.Tag.pt2_compliant_tag, *self.tags, *tags))
        self._library.define(name + schema, tags=(*told,))
        namespace.defining = ""
        qualified = f"{namespace.namespace}::{name}"
        arguments = torch._C._get_schema(qualified, "").arguments
        if any(a.has_default_value() for a in arguments):
            self._defaults[name] = [a.default_value for a in arguments]
        self.python["run", name] = held = self.held(self.complete(name, run))
        self._library.impl(name, held, "CompositeExplicitAutograd")
        whole = self.held(self.complete(name, fake))
        torch.library.register_fake(qualified, whole, lib=self._library)
        return namespace.adopt(name, self)

    def define_overload(self, name: str, schema: str, otherwise: Callable[..., Any]) -> None:
        """Makes another overload of the operator ``name``, which is ``otherwise`` where it has no
        kernel of its own."""
        self.namespace.defining = name
        self._library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        self.namespace.defining = ""
        tell_torchscript(self.namespace.packets[name])  # whose function is another one now
        overload = schema.partition("(")[0]
        for key in ("CompositeImplicitAutograd", "Batched"):  # which torch counts to no others
            self._library.impl(overload, self.held(otherwise), key)

    def differentiate(self, name: str, autograd: Callable[..., Any]) -> None:
        """Gives the operator ``name`` what autograd calls in its place."""
        complete = self.complete(name, autograd, after=1)
        self.python["autograd", name] = held = self.held(complete)
        self._library.impl(name, held, "Autograd", with_keyset=True)

    def batch(self, name: str, sampled: Sampled) -> None:
        """Tells ``vmap`` what to do with the operator ``name``."""

        def vmapped(info: Any, in_dims: Sequence[Any], *passed: Any) -> Any:
            overload, args = sampled(passed, in_dims, info.batch_size, info.randomness)
            out = overload(*args)
            if isinstance(out, list):
                return out, [0] * len(out)
            return out, (0,) * len(out) if isinstance(out, tuple) else None if out is None else 0

        def rule(keyset: Any, *passed: Any) -> Any:
            # What `torch.library.register_vmap` does, imported by vmap.
            from torch._functorch.autograd_function import custom_function_call_vmap_helper
            from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

            interpreter: Any = retrieve_current_functorch_interpreter()
            overload = self.namespace.packets[name].default
            return custom_function_call_vmap_helper(interpreter, vmapped, overload, *passed)

        def first(*passed: Any) -> Any:
            """Batches of torch's first ``vmap``, which ``is_grads_batched`` goes by: the rule of
            the second one, in its place."""
            from weft.pytorch.batches import under_vmap  # as above
            from weft.pytorch.inputs import Structure, items

            overload, made = self.namespace.packets[name].default, list[Any]()
            tensors, form = Structure.of(passed)

            def call(*given: Any) -> Sequence[Any]:
                made[:] = [overload(*form.inputs(given))]
                return items(made[0])

            found = under_vmap(call, tensors)
            return type(made[0])(found) if isinstance(made[0], list | tuple) else found[0]

        complete = self.complete(name, rule, after=1)
        self._library.impl(name, self.held(complete), "FuncTorchBatched", with_keyset=True)
        self._library.impl(name, self.held(self.complete(name, first)), "Batched")

    def derive(self, name: str, kinds: Sequence[str]) -> None:
        """Makes the derivatives of these kinds of the operator ``name``, each of the one before,
        where it has such."""
        for kind in kinds:
            if kind == "vmap":
                _ = self.samples[name].operator
            elif kind == "noted":
                _ = self.rules[name].noting
            elif name in self.rules:
                self.rules[name].derived(kind)
            name += f"_{kind}"

    def complete(self, name: str, function: Callable[..., Any], after: int = 0) -> Any:
        """``function``, given all arguments of the operator ``name``, behind ``after`` others."""
        defaults = self._defaults.get(name)
        if defaults is None:
            return function

        def call(*passed: Any) -> Any:
            return function(*passed, *defaults[len(passed) - after :])

        return call

    def held(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, held by the family alone: for tables of torch's."""
        number, family = len(self._functions), weakref.ref(self)
        self._functions.append(function)

        @user_frames
        def call(*args: Any) -> Any:
            found = family()
            assert found is not None  # the overload that is called holds it
            return found._functions[number](*args)

        return call


class Namespace:
    """The kernels and the operators of one namespace."""

    RECENT = 32
    every: ClassVar[dict[str, Namespace]] = {}  # by their names

    def __init__(self, namespace: str) -> None:
        if not namespace.isascii():
            raise KernelNameError(
                f"the namespace `{namespace}` of operators is not ASCII",
                help="PyTorch has no others: weft.kernel(namespace=...) chooses one",
            )
        if not namespace.isidentifier():
            raise KernelNameError(
                f"`{namespace}` is not the namespace of an operator",
                help="choose one that is like a module's: weft.kernel(namespace=...)",
            )
        self.namespace = namespace
        self.kernels: dict[str, weakref.WeakKeyDictionary[KernelLike, None]] = {}
        # Operators that kernels of one text share.
        self.made = weakref.WeakValueDictionary[Hashable, Any]()
        # Of names that torch has no operator of, which it takes it long to say: the packet of the
        # last kernel's. It holds the kernel.
        self.latest = dict[str, weakref.ref[Any]]()
        self.packets = weakref.WeakValueDictionary[str, Any]()  # by their names
        # Of a kernel that is gone, a graph may still have the operators' names in a generated text:
        # that of a backward pass, say.
        self.recent = deque[Family](maxlen=self.RECENT)
        self.lock = threading.RLock()
        self.defining = ""
        found = getattr(torch.ops, namespace)
        if type(found) is _OpNamespace:
            found.__class__ = _Operators
            found.__dict__["__getattr__"] = _known(found, self.latest, self.packets)

    def announce(self, name: str, kernel: KernelLike) -> None:
        """``kernel`` is what ``torch.ops.<namespace>.<name>`` means from now on, or, where that
        is known of it, has other operators than before. Raises
        ``KernelNameError`` where a name was chosen that no operator can have."""
        if not name.isidentifier() and name != kernel.__name__:
            space, _, own = name.rpartition("::")
            raise KernelNameError(
                f"`{name}` is not the name of an operator", kernel.span,
                help=f'write weft.kernel(namespace="{space}", name="{own}")' if space
                else "choose one that Python could give a function: weft.kernel(name=...)",
            )  # fmt: skip
        for each in {name, in_ascii(name)}:
            self.kernels.setdefault(each, weakref.WeakKeyDictionary())[kernel] = None
            self.latest.pop(each, None)

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What ``make()`` has given for ``key``."""
        with self.lock:
            found = self.made.get(key)
            if found is None:
                found = self.made[key] = make()
            return found

    def free_name(self, name: str) -> str:
        """``name``, or with a number after it where it is taken."""
        candidate, number = name, 2
        while _is_taken(f"{self.namespace}::{candidate}"):
            candidate, number = f"{name}_{number}", number + 1
        return candidate

    def adopt(self, name: str, family: Family) -> Any:
        """Has the operator ``name`` hold its ``family``, and be held by who uses it only. Returns
        its overload."""
        operators = getattr(torch.ops, self.namespace)
        packet = self.packets[name] = getattr(operators, name)
        delattr(operators, name)  # where torch keeps it
        operators._dir.remove(name)
        tell_torchscript(packet)
        packet.default.family = family
        if family not in self.recent:
            self.recent.append(family)
        return packet.default

    def packet_of(self, name: str) -> Any:
        """What ``torch.ops.<namespace>.<name>`` is where there is no operator of that name: the
        operator of the kernel ``name`` that was defined last. None where there is none.

        Operators whose names have a hash are made here, if a kernel of today has it, and are among
        ``packets`` then; otherwise ``KernelNameError`` is raised.
        """
        if self.kernels.get(name):
            packet = list(self.kernels[name])[-1].op.overloadpacket
            self.latest[name] = weakref.ref(packet)
            return packet
        match = _DERIVED.fullmatch(name)
        if match is None or name == self.defining:
            return None
        loop = re.fullmatch(r"(\w+)_loop(\d+)_([pr][a-zA-Z]*)", match[1])
        kernels = list(self.kernels.get(loop[1] if loop else match[1], ()))
        refused: CompileError | None = None  # another kernel of the name may have it
        for kernel in kernels:
            try:
                for found in kernel.operators.candidates(loop and (int(loop[2]), loop[3])):
                    first = found._schema.name.rpartition(":")[2]
                    if name == first or name.startswith(f"{first}_"):
                        found.family.derive(first, KINDS.findall(name[len(first) :]))
                        return None  # it is there now
            except CompileError as error:
                refused = error
        if refused is not None:
            raise refused
        if kernels:
            raise KernelNameError(
                f"no kernel `{kernels[-1].__name__}` of this process has the operator "
                f"`{self.namespace}::{name}`", kernels[-1].span,
                help="the hash in the name is that of the kernel's text, of what it calls, of the "
                "kinds of its arguments and of weft. If one has changed, export the graph again; "
                "otherwise call the kernel once as the graph does, under torch.compile, say",
            )  # fmt: skip
        return None


class _Operators(_OpNamespace):
    """Makes the operator of a kernel when it is asked for: by a graph that was exported, say."""

    __module__ = _OpNamespace.__module__  # a part of the names of operators in saved graphs

    def __getattr__(self, name: str) -> Any:
        space = namespace_of(self.name)
        packet = space.packets.get(name)
        if packet is not None:
            return packet
        try:
            if name not in space.latest:
                return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__"):
                raise
        found = space.packet_of(name) or space.packets.get(name)
        return super().__getattr__(name) if found is None else found


def _known(
    operators: Any, latest: Mapping[str, weakref.ref[Any]], packets: Mapping[str, Any]
) -> Callable[[str], Any]:
    """``__getattr__`` of the module ``operators``' own, which finds those that were asked for
    before: Python asks it before that of the class, and in half the time. An attribute, which is
    quicker still, would keep its operator, and this its kernel, for good."""
    modules = sys.modules

    def find(name: str) -> Any:
        known = latest.get(name)
        found = packets.get(name) if known is None else known()
        if found is None or (
            known is not None and DTENSOR in modules and found.default.family.sharded is None
            and is_sharded()
        ):  # fmt: skip
            return _Operators.__getattr__(operators, name)  # which may tell DTensor
        return found

    return find


def is_sharded() -> bool:
    """Whether somebody may use DTensor."""
    return DTENSOR in sys.modules and torch.distributed.is_initialized()


def _is_taken(qualified: str) -> bool:
    try:
        torch._C._dispatch_find_schema_or_throw(qualified, "")
    except RuntimeError:
        return False
    return True


def namespace_of(name: str) -> Namespace:
    found = Namespace.every.get(name)
    return Namespace.every.setdefault(name, Namespace(name)) if found is None else found


def announced() -> list[KernelLike]:
    """Every kernel of this process that is still there, of all namespaces."""
    spaces = list(Namespace.every.values())
    found = (kernel for space in spaces for named in list(space.kernels.values())
             for kernel in list(named))  # fmt: skip
    return list(dict.fromkeys(found))  # one whose name is not ASCII has two

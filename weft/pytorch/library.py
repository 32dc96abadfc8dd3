"""Kernels as PyTorch operators.

A kernel is one operator for each way that it can be called: tensors, numbers and lists of them are
the operator's arguments; whatever else is passed (functions, dtypes, None, objects) is fixed in it.
The operator returns the tensors that the kernel made; parameters that it returns are put back by
the caller.
"""

from __future__ import annotations

# What is asked of torch's dispatcher has no public name.
# pyright: reportPrivateUsage=false
import ast
import contextlib
import dis
import functools
import inspect
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Protocol

import torch
from torch.fx.node import has_side_effect

from weft.errors import GradientError, KernelTypeError, KernelValueError, warn
from weft.frames import shorten, user_frames
from weft.frontend.callees import known
from weft.frontend.mutation import mutated
from weft.frontend.names import Scope
from weft.frontend.parameters import Parameter, returned_types
from weft.frontend.specs import constant_key
from weft.frontend.split import HostPart, Returned
from weft.lang.dtypes import DType
from weft.pytorch.ambient import Autocast, autocast_state, under
from weft.pytorch.derivative import Rule, Transformed, register
from weft.pytorch.fake import fake_launchers, hidden_write, without_data
from weft.pytorch.identity import decided_by, deciding, fingerprint, may_draw, text_of
from weft.pytorch.level import has_dual
from weft.pytorch.namespace import Family, namespace_of
from weft.pytorch.replay import Reading, replaying, returned_names
from weft.pytorch.transforms import batching_error, called
from weft.runtime.launch import Launcher, gradient_error
from weft.runtime.overlap import OverlapWarning
from weft.source import FunctionSource, Span

# schema type of a Python value's type
_SCALARS = {int: "SymInt", float: "float", bool: "bool", torch.SymInt: "SymInt",
            torch.SymFloat: "float", torch.SymBool: "bool"}  # fmt: skip
# Types of values that an operator may have fixed in it under torch.compile.
_FIXED = (str, type(None), bool, int, float, tuple, list, torch.dtype, torch.device, DType, type,
          FunctionType, BuiltinFunctionType, MethodType)  # fmt: skip
_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
_exclude = torch._C._dispatch_tls_set_dispatch_key_excluded
_VERSIONS = torch._C.DispatchKey.ADInplaceOrView  # counts how often a tensor was written to
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_ANNOTATED = {"tensor": "Tensor", "float": "float", "int": "SymInt", "bool": "bool"}


class KernelLike(Protocol):
    """What is asked of a kernel."""

    __name__: str
    function: Callable[..., Any]

    @functools.cached_property
    def parts(self) -> HostPart: ...
    @functools.cached_property
    def source(self) -> FunctionSource: ...
    @property
    def span(self) -> Span: ...

    @property
    def launchers(self) -> list[Launcher]: ...
    @property
    def op(self) -> Any: ...
    @property
    def described(self) -> dict[str, Any]: ...
    def unconverted(self, *args: Any, **kwargs: Any) -> Any: ...
    def bind(self, args: Any, kwargs: Any) -> inspect.BoundArguments: ...


@dataclass(slots=True, weakref_slot=True)
class Operator:
    """One operator of a kernel. ``types``: the schema type of each parameter, "" where its value is
    fixed, in which case it is in ``fixed``."""

    overload: Any
    types: tuple[str, ...]
    fixed: dict[str, Any]
    rule: Rule | None  # its derivative


class Operators:
    """The operators of one kernel, made when they are needed."""

    def __init__(self, kernel: KernelLike, namespace: str, name: str) -> None:
        self.kernel = kernel
        self.namespace = namespace
        self.name = name
        # Dynamo guards each string that it reads of an object: by this, which kernel it is.
        self.token = f"{name} {uuid.uuid4()}"
        self.made: dict[tuple[Any, ...], Operator] = {}
        self.refused: dict[str, Callable[..., Any]] = {}
        self.parameters = kernel.parts.parameters
        self.returned = one_return(kernel)
        loops = frozenset[ast.AST](region.node for region in kernel.parts.regions)
        self.deciding = deciding(kernel.function, kernel.source.tree, loops)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the kernel through PyTorch's dispatcher."""
        self._check_captured()
        values = list(self.kernel.bind(args, kwargs).arguments.values())
        types = tuple(map(schema_type, self.parameters, values))
        fixed = [v for v, t in zip(values, types, strict=True) if not t]
        operator = self.find(types, fixed, self.deciding(), autocast_state())
        passed = [v for v, t in zip(values, types, strict=True) if t]
        if operator.rule is not None and torch._C._are_functorch_transforms_active():
            out = (Transformed.apply(operator.overload, operator.rule, *passed)
                   if torch._C._len_torch_dispatch_stack()  # which wants to see operators
                   else called(operator.rule.made, passed, self.kernel.span))  # fmt: skip
        elif any(map(_is_batched, passed)):  # which torch has no way to write to
            raise batching_error(self.kernel.span)
        else:
            out = operator.overload(*passed)
        return self.assemble(out, values)

    def traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same while Dynamo traces it: plain loops, and the operator as a constant."""
        values: list[Any] = []
        types: list[str] = []
        passed: list[Any] = []
        fixed: list[Any] = []
        for number, parameter in enumerate(self.parameters):
            if number < len(args):
                value = args[number]
            elif parameter.name in kwargs:
                value = kwargs[parameter.name]
            else:
                value = parameter.default
            kind = schema_type(parameter, value)
            if not kind and not isinstance(value, _FIXED):
                self.refuse(parameter.name)
                return self.refused[parameter.name](*args, **kwargs)
            values.append(value)
            types.append(kind)
            (passed if kind else fixed).append(value)
        around = self.deciding()
        name = self.name_for(self.token, tuple(types), tuple(fixed), around)
        out = getattr(getattr(torch.ops, self.namespace), name).default(*passed)
        return self.assemble(out, values)

    def assemble(self, out: Any, values: list[Any]) -> Any:
        """What the kernel returns, from what the operator returned and the kernel's arguments."""
        returned = self.returned
        if returned is None:
            return None
        names = [p.name for p in self.parameters]
        if isinstance(returned, str):
            return values[names.index(returned)] if returned else out
        made = [out] if returned.count("") == 1 else list(out or ())
        result = []
        for item in returned:
            result.append(values[names.index(item)] if item else made.pop(0))
        return tuple(result)

    def default(self) -> Any:
        """The operator by annotations, or the one that was made first."""
        for (*_, autocast), made in self.made.items():
            if not autocast:
                return made.overload
        types = []
        for parameter in self.parameters:
            kind = _ANNOTATED.get(parameter.kind)
            if kind is None:
                raise KernelTypeError(
                    f"the operator of `{self.kernel.__name__}` is not made yet: nothing says what "
                    f"`{parameter.name}` is", self.kernel.span,
                    help="annotate every parameter (torch.Tensor, float, int, bool), or call the "
                    "kernel once through the operator (under torch.compile, say)",
                )  # fmt: skip
            types.append(kind + "?" if parameter.optional and kind == "Tensor" else kind)
        return self.find(tuple(types), [], self.deciding()).overload

    def find(
        self, types: tuple[str, ...], fixed: Sequence[Any], around: tuple[Any, ...],
        autocast: Autocast = (),
    ) -> Operator:  # fmt: skip
        """The operator for arguments of these schema types, these fixed values, and these values
        of what is around the kernel (``identity.deciding``). Its host part runs under ``autocast``:
        compiled graphs, and derivatives, run outside of it."""
        key = (types, *map(constant_key, fixed), constant_key(around), autocast)
        operator = self.made.get(key)
        if operator is None:
            function = self.kernel.function
            absent = iter(fixed)
            pairs = zip(self.parameters, types, strict=True)
            constants = {p.name: next(absent) for p, kind in pairs if not kind}
            written = self._written(constants)
            schema = self._schema(types, written)
            others = (types, fixed, around, autocast, schema, decided_by())
            text = text_of(self.kernel.source, self.kernel.described, *others)
            name = f"{self.name}_{fingerprint(text)}"
            tags = (torch.Tag.nondeterministic_seeded,) if may_draw(text) else ()
            # A cell of a notebook that is run again defines the same kernel.
            shared = (
                name, id(function.__globals__), *map(id, function.__closure__ or ()),
                constant_key(function.__defaults__), constant_key(function.__kwdefaults__), key,
            )  # fmt: skip
            make = functools.partial(
                self._make, name, schema, types, constants, written, autocast, tags
            )
            operator = self.made[key] = namespace_of(self.namespace).once(shared, make)
        return operator

    def name_for(
        self, token: str, types: tuple[str, ...], fixed: tuple[Any, ...], around: tuple[Any, ...]
    ) -> str:
        """The name of ``find(...)``'s operator: a constant to Dynamo, which calls this as it is,
        and guards the token and ``around``."""
        assert token == self.token
        self._check_captured()
        operator = self.find(types, fixed, around, autocast_state())
        return operator.overload._schema.name.rpartition(":")[2]

    def refuse(self, name: str) -> bool:
        """Makes ``refused[name]``: the kernel, in front of which Dynamo breaks its graph. Where it
        must not, the message says why."""
        if name not in self.refused:
            reason = (
                f"`{name}` is an object: under torch.compile a kernel takes tensors, numbers, "
                "tuples of one of these, functions, dtypes, strings and None. Give what "
                f"`{self.kernel.__name__}` reads of `{name}` parameters of its own, and pass them "
                "from a function or method around it"
            )
            kernel: Any = self.kernel
            self.refused[name] = torch.compiler.disable(kernel.__call__, reason=reason)
        return True

    # What torch.compiler.assume_constant_result does, without importing Dynamo.
    name_for._dynamo_marked_constant = True  # type: ignore[attr-defined]
    refuse._dynamo_marked_constant = True  # type: ignore[attr-defined]

    # --- making one ------------------------------------------------------------------------------
    def _make(
        self, name: str, schema: str, types: tuple[str, ...], constants: dict[str, Any],
        written: frozenset[str], autocast: Autocast, tags: tuple[torch.Tag, ...],
    ) -> Operator:  # fmt: skip
        namespace = namespace_of(self.namespace)
        name, family = namespace.free_name(name), Family(namespace)
        implementation = self._implementation(types, constants, written, autocast, None)
        launchers = fake_launchers(self.kernel, operator=True)
        fake = self._implementation(types, constants, written, autocast, launchers)
        overload = family.define(
            name, schema, implementation, without_data(fake, self.kernel), *tags
        )
        if not overload._schema.returns and not overload._schema.is_mutable:
            # It asserts or prints: graphs must not drop the call.
            has_side_effect(overload)
        rule: Rule | None = None
        if any(a.alias_info is not None for a in overload._schema.arguments) or not self._gives(
            overload
        ):
            family.differentiate(name, self._autograd(overload))
        else:
            rule = self._rule(name, types, constants, autocast, family)
        return Operator(overload, types, constants, rule)

    def _rule(
        self,
        name: str,
        types: tuple[str, ...],
        constants: dict[str, Any],
        autocast: Autocast,
        family: Family,
    ) -> Rule:
        """Tells autograd how the operator ``name`` is differentiated."""
        kernel, returned = self.kernel, self.returned
        names = returned_names(kernel.parts, kernel.source)
        items = (returned,) if isinstance(returned, str) else returned or ()

        def run(launchers: Any, inputs: Sequence[Any], *, recording: bool = False) -> Any:
            return self._implementation(
                types, constants, frozenset(), autocast, launchers, recording
            )(*inputs)

        def made(inputs: Sequence[Any], outs: Sequence[torch.Tensor] | None) -> Any:
            if names is None or outs is None:
                return run(None, inputs, recording=True)
            fresh = [n for n, item in zip(names, items, strict=True) if not item]
            known = dict(zip(fresh, outs or [None] * len(fresh), strict=True))
            return run((replaying(kernel.launchers[0], known),), inputs, recording=True)

        schema = self._schema(types, frozenset())
        schema = schema[1 : schema.index(") ->")]
        reads = (lambda _: False) if names is None else Reading(kernel, kernel.launchers[0], run)
        return register(name, schema, made, reads, family, kernel.span)

    def _gives(self, overload: Any) -> bool:
        """Whether there is something to differentiate."""
        return len(overload._schema.returns) > 0 and any(
            "Tensor" in str(a.type) for a in overload._schema.arguments
        )

    @functools.cached_property
    def _captured(self) -> tuple[str, ...]:
        """The values that the kernel takes from around it, dotted where they are attributes."""
        function = self.kernel.function
        names = {*function.__code__.co_freevars}
        names |= {i.argval for i in dis.get_instructions(function) if i.opname == "LOAD_GLOBAL"}
        regions = self.kernel.parts.regions
        return (*names, *(a.name for r in regions for a in r.args if a.captured and not a.read))

    def _check_captured(self) -> None:
        """Raises ``GradientError`` where the derivative would leave out a tensor that is no
        argument, and so none of the operator's."""
        function = self.kernel.function
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        scope = dict(function.__globals__)
        for name, cell in cells:
            with contextlib.suppress(ValueError):  # not assigned yet
                scope[name] = cell.cell_contents
        for dotted in self._captured:
            first, *rest = dotted.split(".")
            value = functools.reduce(lambda v, name: getattr(v, name, None), rest, scope.get(first))
            if has_dual((value,)) or (torch.is_grad_enabled() and _needs_grad(value)):
                raise GradientError(
                    f"`{dotted}` needs a derivative, and it is not an argument of the kernel",
                    self.kernel.span,
                    help="torch.compile and other transforms see arguments only: pass it as one, "
                    f"or {dotted}.detach()",
                )  # fmt: skip

    def _written(self, constants: dict[str, Any]) -> frozenset[str]:
        """The names that the operator with these fixed values writes to. Raises
        ``KernelValueError`` for what is none of its tensors."""
        parts, names = self.kernel.parts, {p.name for p in self.parameters}
        found = parts.mutated
        if any(map(known, constants.values())):  # to functions, which may write
            regions = [region.node for region in parts.regions]
            scope = Scope.of(self.kernel.function)
            found, _ = mutated(self.kernel.source.tree, scope, regions, constants)
        for name in sorted(found):
            if constants.get(name) is not None or name not in names:
                raise hidden_write(name, self.kernel.span)
        return found

    def _schema(self, types: tuple[str, ...], written: frozenset[str]) -> str:
        letters = iter("abcdefghijklmnopqrstuvwxyz")
        parts = []
        for parameter, kind in zip(self.parameters, types, strict=True):
            if not kind:
                continue
            if parameter.name in written and kind.startswith("Tensor"):
                kind = kind.replace("Tensor", f"Tensor({next(letters)}!)")
            parts.append(f"{kind} {parameter.name}")
        made = _made_items(self.returned)
        returns = "Tensor" if made == 1 else f"({', '.join(['Tensor'] * made)})"
        return f"({', '.join(parts)}) -> {returns}"

    def _implementation(
        self, types: tuple[str, ...], constants: dict[str, Any], written: frozenset[str],
        autocast: Autocast, launchers: Any, recording: bool = False,
    ) -> Callable[..., Any]:  # fmt: skip
        """What carries the kernel out: with ``launchers`` for its loops, if not its own.
        ``recording``: autograd is to see it, and forward mode."""
        kernel, parameters, returned = self.kernel, self.parameters, self.returned
        passed_on = [p.name for p, kind in zip(parameters, types, strict=True) if kind]
        unwritten = [k for k, n in enumerate(passed_on) if n not in written]
        host = kernel.unconverted
        if launchers is not None:
            host = functools.partial(kernel.parts.host, launchers)
        as_passed = all(types) and all(p.position in _POSITIONAL for p in parameters)

        def call(passed: tuple[Any, ...]) -> Any:
            if as_passed:
                return host(*passed)
            given = iter(passed)
            values = [next(given) if t else constants[p.name]
                      for p, t in zip(parameters, types, strict=True)]  # fmt: skip
            args, kwargs = as_call(parameters, values)
            return host(*args, **kwargs)

        def implementation(*passed: Any) -> Any:
            grad, tangents = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
            torch._C._set_grad_enabled(recording)
            torch._C._set_fwd_grad_enabled(recording and tangents)
            before = [_version(passed[k]) for k in unwritten]
            uncounted = _is_excluded(_VERSIONS)  # compiled graphs do not count what is written
            _exclude(_VERSIONS, False)
            try:
                out = call(passed)
                if before != [_version(passed[k]) for k in unwritten]:
                    pairs = zip(unwritten, before, strict=True)
                    changed = {k for k, version in pairs if version != _version(passed[k])}
                    self._check_written(passed_on, passed, changed, written)
                return list_made(out, returned, passed, kernel, launchers is not None)
            except Exception as error:
                shorten(error)
                raise
            finally:
                _exclude(_VERSIONS, uncounted)
                torch._C._set_fwd_grad_enabled(tangents)
                torch._C._set_grad_enabled(grad)

        def cast(*passed: Any) -> Any:
            with under(autocast):
                return implementation(*passed)

        return cast if autocast else implementation

    def _check_written(
        self, names: list[str], passed: tuple[Any, ...], changed: set[int], written: frozenset[str]
    ) -> None:
        """Raises ``KernelValueError`` where one of the ``changed`` arguments shares no memory with
        those that are known to be written."""
        memory: set[int] = set()
        _add_storages([v for n, v in zip(names, passed, strict=True) if n in written], memory)
        for k in sorted(changed):
            own: set[int] = set()
            _add_storages([passed[k]], own)
            if own & memory:
                continue
            raise KernelValueError(
                f"`{names[k]}` is written, and the text of the kernel does not show it",
                self.kernel.span,
                help="torch.compile and other transforms must know before a call what it writes "
                f"to: write to `{names[k]}` by its name, or to a view that the kernel makes of it",
            )  # fmt: skip

    def _autograd(self, overload: Any) -> Callable[..., Any]:
        names = [argument.name for argument in overload._schema.arguments]
        written = [k for k, a in enumerate(overload._schema.arguments)
                   if a.alias_info is not None and a.alias_info.is_write]  # fmt: skip
        span = self.kernel.span

        @user_frames
        def autograd(keyset: Any, *passed: Any) -> Any:
            if has_dual(passed):
                dual = next(n for n, v in zip(names, passed, strict=True) if has_dual((v,)))
                raise GradientError(
                    f"`{dual}` has a tangent, and the kernel is called as an operator that writes "
                    "to its arguments", span,
                    help="call it outside of torch.compile, torch.func and dispatch modes, or "
                    "return new tensors",
                )  # fmt: skip
            wanting = ""
            if torch.is_grad_enabled():
                wanting = next(
                    (n for n, v in zip(names, passed, strict=True) if _needs_grad(v)), ""
                )
            if wanting and any(_is_floating(passed[k]) for k in written):
                raise gradient_error(wanting, span)
            with torch._C._AutoDispatchBelowAutograd():
                out = overload.redispatch(keyset & torch._C._after_autograd_keyset, *passed)
            made = out if isinstance(out, tuple | list) else (out,)
            if wanting and any(map(_is_floating, made)):
                raise gradient_error(wanting, span)
            return out

        return autograd


def _version(value: Any) -> Any:
    """How often ``value``, a tensor or a list of them, was written to."""
    if isinstance(value, torch.Tensor):
        return None if value.is_inference() else value._version
    return [_version(v) for v in value] if isinstance(value, list | tuple) else None


def _needs_grad(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_needs_grad, value))
    return isinstance(value, torch.Tensor) and value.requires_grad


def _is_batched(value: Any) -> bool:
    functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    return isinstance(value, torch.Tensor) and functorch.is_batchedtensor(value)


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def schema_type(parameter: Parameter, value: Any) -> str:
    """The schema type that ``value`` is passed as; "" if it is fixed in the operator."""
    if isinstance(value, torch.Tensor):
        return "Tensor?" if parameter.optional and parameter.kind == "tensor" else "Tensor"
    if value is None:
        return "Tensor?" if parameter.optional and parameter.kind == "tensor" else ""
    if parameter.kind == "template":
        return ""
    kind = _SCALARS.get(type(value), "")
    if kind == "SymInt" and parameter.kind == "float":
        return "float"
    if kind:
        return kind
    if isinstance(value, list | tuple) and value:
        first = schema_type(parameter, value[0])
        if first and all(schema_type(parameter, item) == first for item in value):
            return f"{first}[]" if "[" not in first else ""
    return ""


def as_call(
    parameters: tuple[Parameter, ...], values: list[Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Values by parameter, as positional and keyword arguments."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for parameter, value in zip(parameters, values, strict=True):
        if parameter.position is inspect.Parameter.VAR_POSITIONAL:
            args += value
        elif parameter.position is inspect.Parameter.VAR_KEYWORD:
            kwargs |= value
        elif parameter.position is inspect.Parameter.KEYWORD_ONLY:
            kwargs[parameter.name] = value
        else:
            args.append(value)
    return args, kwargs


def one_return(kernel: KernelLike) -> Returned:
    """What all ``return`` statements give. Raises ``KernelTypeError`` where they differ in form."""
    forms = list(dict.fromkeys(kernel.parts.returns))
    if len(forms) > 1:
        raise KernelTypeError(
            f"`{kernel.__name__}` returns different things in different places", kernel.span,
            help="an operator has one kind of result: return the same number of tensors everywhere",
        )  # fmt: skip
    return forms[0] if forms else None


def _made_items(returned: Returned) -> int:
    if returned is None:
        return 0
    return int(not returned) if isinstance(returned, str) else returned.count("")


def list_made(
    result: Any, returned: Returned, passed: tuple[Any, ...], kernel: KernelLike, traced: bool
) -> Any:
    """The tensors among ``result`` that the kernel made, as the operator returns them.

    An operator must not return memory that it was given: views of arguments are copied, which is
    said where a graph is ``traced``.
    """
    if _made_items(returned) == 0:
        return None
    items = [result] if isinstance(returned, str) else list(result)
    names = [returned] if isinstance(returned, str) else list(returned or ())
    wanted = returned_types(kernel.function)
    types = list(wanted) if isinstance(wanted, tuple) else [wanted] * len(names)
    taken: set[int] = set()
    _add_storages(passed, taken)
    made = []
    for item, name, type_ in zip(items, names, types, strict=True):
        if name:
            continue
        if isinstance(item, bool | int | float):
            item = torch.tensor(item)
        if isinstance(type_, DType) and isinstance(item, torch.Tensor):
            item = item.to(type_.torch)
        if not isinstance(item, torch.Tensor):
            raise KernelTypeError(
                f"`{kernel.__name__}` returns {type(item).__name__}", kernel.span,
                help="as an operator (under torch.compile, say) it can return tensors only; write "
                "a tuple as `return a, b`",
            )  # fmt: skip
        if item.untyped_storage()._cdata in taken:
            item = item.clone()
            if traced:
                warn(
                    OverlapWarning, "it returns memory of an argument, or one memory twice: as an "
                    "operator, a copy", kernel.span, "what is written to the copy does not reach "
                    "the argument: make the view outside of the kernel, or return x.clone()",
                    kernel.source.warned,
                )  # fmt: skip
        if len(names) > 1:
            taken.add(item.untyped_storage()._cdata)
        made.append(item)
    return made[0] if len(made) == 1 else tuple(made)


def _add_storages(values: Sequence[Any], taken: set[int]) -> None:
    for value in values:
        if isinstance(value, torch.Tensor):
            taken.add(value.untyped_storage()._cdata)
        elif isinstance(value, list | tuple):
            _add_storages(value, taken)

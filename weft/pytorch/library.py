"""Kernels as PyTorch operators.

A kernel is one operator for each way that it can be called: tensors, numbers and lists of them are
the operator's arguments; whatever else is passed (functions, dtypes, None, objects) is fixed in it.
The operator returns the tensors that the kernel made; parameters that it returns are put back by
the caller.
"""

from __future__ import annotations

# What is asked of torch's dispatcher has no public name.
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false
import ast
import functools
import inspect
import uuid
from collections.abc import Callable, Iterator, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._guards import TracingContext

from weft.errors import KernelTypeError
from weft.frontend.callees import known
from weft.frontend.members import form_of, leaves
from weft.frontend.mutation import mutated
from weft.frontend.names import Scope, root_name
from weft.frontend.parameters import EMPTY, SCALARS, Parameter
from weft.frontend.returns import Returned, put_together
from weft.frontend.specs import constant_key, kept
from weft.lang.random import KEY
from weft.pytorch.ambient import Ambient, ambient_state, default_device
from weft.pytorch.around import Around, check_asks
from weft.pytorch.batches import (
    differentiates,
    direct,
    is_batched,
    is_transformed,
    levels_of,
    of_all_samples,
    vectorizes,
)
from weft.pytorch.changing import (
    CHANGING,
    as_constant,
    as_tensor,
    changes,
    of_constant,
    without_symbols,
)
from weft.pytorch.derivative_ops import transformed
from weft.pytorch.dynamo import changed
from weft.pytorch.fake import changed_error, hidden_write, no_argument, of_samples, unmade
from weft.pytorch.forward_level import has_dual, is_open
from weft.pytorch.guarded import Guarded
from weft.pytorch.hidden import captured, check_captured
from weft.pytorch.identity import chains, decided_by, fingerprint, makes_tensors, may_draw, text_of
from weft.pytorch.members import Like, MemberKernel, key_of, members_of, reads_of, schema_type
from weft.pytorch.namespace import in_ascii, is_sharded, namespace_of
from weft.pytorch.operator import Operator, OperatorForm
from weft.pytorch.transforms import called, is_functionalized
from weft.pytorch.unchanged import is_traced
from weft.runtime.launch import KernelLike

if TYPE_CHECKING:
    from weft.pytorch.sharding import Sharding

TANGENTS = "tangents"  # around an operator whose tensors may have them
_transforms = torch._C._are_functorch_transforms_active
_CODE = (type, FunctionType, BuiltinFunctionType, MethodType)  # which may write to arguments
_ANNOTATED = {"tensor": "Tensor", "float": "float", "int": "SymInt", "bool": "bool"}


class Operators:
    """The operators of one kernel, made when they are needed."""

    def __init__(self, kernel: KernelLike, namespace: str, name: str) -> None:
        self.kernel = kernel
        self.draws = True  # random numbers, if the loops do
        self.own = frozenset[str]()  # names that an operator of one loop makes, and returns
        self.copies = False  # whether it returns copies of arguments that the loop has written to
        self.namespace = namespace
        self.name, self.label = in_ascii(name), kernel.__name__  # of operators, and in messages
        self.shown: dict[str, str] = {}  # parameters that have another name in messages
        # Dynamo guards each string that it reads of an object: by this, which kernel it is.
        self.token = f"{name} {uuid.uuid4()}"
        self.made: dict[tuple[Any, ...], Operator] = {}
        self.refused: dict[str, Callable[..., Any]] = {}
        self.of_members: dict[str, MemberOperators] = {}
        self.parameters = kernel.parts.parameters
        self.reads = reads_of(kernel.source.tree, [p.name for p in self.parameters])
        self.returned, self.captured = one_return(kernel), captured(kernel)
        loops = frozenset[ast.AST](region.node for region in kernel.parts.regions)
        self.guarded = Guarded(kernel.function, kernel.source.tree, loops)
        self.makes = makes_tensors(kernel.function, kernel.source.tree, loops)
        self.followed = False  # whether the host part may be, by what the kernel is
        # What stands for the loops where PyTorch traces the host part (``hosted.py``), if it may.
        self.loops: Sequence[Any] = ()
        self.recorded: Sequence[Any] = ()  # where it writes to arguments, and a gradient is wanted
        # Whether they write to what the host part makes: under vmap it makes that once, maybe, and
        # the operator of the whole kernel once for each sample.
        self.fills = any(r.args[k].fresh for r in kernel.parts.regions for k in r.stored)
        self.host = kernel.parts.host  # Dynamo does not look at kernels
        self.totals = tuple(sorted(kernel.parts.totals))
        self.letters = _letters(kernel, loops)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the kernel through PyTorch's dispatcher."""
        loops = _followed(self, args, kwargs)
        tracing = loops and (loops is self.recorded if _transforms() else is_traced())
        if tracing and not any(isinstance(v, _CODE) for v in args):
            host = functools.partial(self.host, loops)
            levels = levels_of(*args, *kwargs.values()) if self.fills and _transforms() else None
            return direct(host, args, kwargs, levels) if levels else host(*args, **kwargs)
        self._check_captured()
        values = list(self.kernel.bind(args, kwargs).arguments.values())
        likes, members = members_of(self.parameters, self.reads, values)
        if any(not isinstance(like, str) for like in likes):
            key = self.make_of_members(self.token, likes)
            return self.assemble(self.of_members[key](members, {}), values)
        ambient = ambient_state(default_device() if self.makes else "")
        operator, values, passed = self.found(args, kwargs, ambient)
        _shard(operator, passed)
        check_asks(operator.overload.family, passed)
        watched = torch._C._len_torch_dispatch_stack() > 0  # which wants to see operators
        batched = any(map(is_batched, passed))
        functional = _transforms() and is_functionalized(operator.form.written, self.kernel.span)
        if functional or (batched and watched):
            out = operator.overload(*passed)
        elif operator.rule is not None and _transforms():
            out = (transformed(operator.overload, operator.rule, passed) if watched
                   else called(of_samples(operator.rule.plain, self.kernel), passed,
                               self.kernel.span, operator.overload.family.around))  # fmt: skip
        elif batched:
            return direct(of_samples(self.kernel.unconverted, self.kernel), args, kwargs)
        else:
            out = operator.overload(*passed)
        return self.assemble(out, values)

    def found(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], ambient: Ambient = ()
    ) -> tuple[Operator, list[Any], list[Any]]:
        """The operator of a call, the values of the kernel's parameters, and those among them that
        are its arguments."""
        values = list(self.kernel.bind(args, kwargs).arguments.values())
        types = tuple(map(schema_type, self.parameters, values))
        fixed = [v for v, t in zip(values, types, strict=True) if not t]
        _refuse_hidden(self, values, types)
        operator = self.find(types, fixed, self.guarded.decides(), ambient)
        return operator, values, [v for v, t in zip(values, types, strict=True) if t]

    def traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same while Dynamo traces it: plain loops, and the operator as a constant."""
        if not _fit(self.parameters, args, kwargs):
            return self.refused[self.refuse("", "call")](*args, **kwargs)
        values: list[Any] = []
        types: list[str] = []
        passed: list[Any] = []
        fixed: list[Any] = []
        loops = _followed(self, args, kwargs)
        plain = len(loops) > 0
        for number, parameter in enumerate(self.parameters):
            value = _given(self.parameters, number, args, kwargs)
            kind = schema_type(parameter, value)
            if isinstance(value, torch.Tensor) and value.is_nested:
                return self.refused[self.refuse(parameter.name, "nested")](*args, **kwargs)
            if isinstance(value, np.ndarray):  # as numbers of NumPy are, too, while Dynamo traces
                return self.refused[self.refuse(parameter.name, "numpy")](*args, **kwargs)
            values.append(value)
            if kind == "float" and self.letters[number] == "c" and changes(value):
                value, kind = as_tensor(value), CHANGING
            types.append(kind)
            (passed if kind else fixed).append(value)
            plain = plain and not isinstance(value, _CODE)
        plain = plain and not (self.fills and vectorizes()) and not self.in_level(self.token)
        if plain and all(loop.takes(values) for loop in loops):
            return self.host(loops, *args, **kwargs)
        likes, members = members_of(self.parameters, self.reads, values, True)
        for parameter, like in zip(self.parameters, likes, strict=True):
            if like == "object":
                return self.refused[self.refuse(parameter.name, "object")](*args, **kwargs)
        name, what = self.unsteady(self.token)
        if name and (_is_differentiated(members) or what == "asks_always"):
            return self.refused[self.refuse(name, what)](*args, **kwargs)
        if any(not isinstance(like, str) for like in likes):
            key = self.make_of_members(self.token, likes)
            return self.assemble(self.of_members[key].traced(members, {}), values)
        around = without_symbols(self.guarded.around(self.token))
        constants, device = tuple(map(as_constant, fixed)), default_device() if self.makes else ""
        name = self.name_for(self.token, tuple(types), constants, around, device)
        out = getattr(getattr(torch.ops, self.namespace), name).default(*passed)
        return self.assemble(out, values)

    def make_of_members(self, token: str, likes: tuple[Like, ...]) -> str:
        """Makes the operators of calls with such arguments: their key in ``of_members``."""
        assert token == self.token
        key = key_of(likes)
        if key not in self.of_members:
            self.of_members[key] = MemberOperators(self, likes)
        return key

    def assemble(self, out: Any, values: list[Any]) -> Any:
        """What the kernel returns, given what the operator returned. Dynamo traces this."""
        names = [p.name for p in self.parameters]
        returned = _returned(self, [isinstance(v, torch.Tensor) for v in values])
        made = [out] if returned.count("") == 1 else list(out or ())
        tensors = [values[names.index(n)] if n else made.pop(0) for n in returned]
        return put_together(self.returned.form, iter(tensors))

    def default(self) -> Any:
        """The operator by annotations, or the one that was made first: for the default device, if
        there is one."""
        return _default(self)

    def candidates(self, loop: tuple[int, str] | None) -> Iterator[Any]:
        """The operators that one which a graph names can be of: of this device loop and the types
        in its name (see ``TracedLoop.named``), or of the whole kernel."""
        if loop is not None:
            index, code = loop
            for each in (self.loops or self.recorded)[index : index + 1]:
                yield from each.named(code)
        else:
            yield from [made.overload for made in self.made.values()]
            found = _annotated(self)
            if not isinstance(found, Parameter):
                yield found
        for members in list(self.of_members.values()):
            yield from members.candidates(loop)

    def find(
        self, types: tuple[str, ...], fixed: Sequence[Any], around: tuple[Any, ...],
        ambient: Ambient = (),
    ) -> Operator:  # fmt: skip
        """The operator for arguments of these schema types, these fixed values, and these values
        of what is around the kernel (``guarded.Guarded``). Its host part runs under ``ambient``:
        compiled graphs, and derivatives, run outside of it."""
        key = (types, *map(constant_key, fixed), constant_key(around), ambient)
        operator = self.made.get(key)
        if operator is None:
            function = self.kernel.function
            form = self.form(types, [*map(kept, fixed)], ambient, TANGENTS not in around)
            schema = form.schema()
            others = (types, tuple(fixed), around, ambient, schema, decided_by())
            text = text_of(self.kernel.source, self.kernel.described, *others)
            name = f"{self.name}_{fingerprint(text)}"
            tags = [torch.Tag.nondeterministic_seeded] if _draws(self, text) else []
            # A cell of a notebook that is run again defines the same kernel.
            shared = (
                name, id(function.__globals__), *map(id, function.__closure__ or ()),
                constant_key(function.__defaults__), constant_key(function.__kwdefaults__), key,
                id(self.kernel.implementations),
            )  # fmt: skip
            decided = dict(zip(self.guarded.decides.names, around, strict=False))
            make = functools.partial(form.make, name, schema, (*tags,), decided)
            operator = self.made[key] = namespace_of(self.namespace).once(shared, make)
        return operator

    def form(
        self, types: tuple[str, ...], fixed: Sequence[Any], ambient: Ambient = (),
        fuses: bool = True,
    ) -> OperatorForm:  # fmt: skip
        absent = iter(fixed)
        pairs = list(zip(self.parameters, types, strict=True))
        constants = {p.name: next(absent) for p, kind in pairs if not kind}
        written = _written(self.kernel, constants, self.own)
        defaults = {p.name: p.default for p, kind in pairs if _fits_schema(p, kind)}
        names = _returned(self, [kind.startswith("Tensor") for kind in types])
        returned = Returned(names, self.returned.form)
        return OperatorForm(
            self.kernel, returned, self.namespace, types, constants, defaults, written,
            ambient, fuses and self.kernel.implementations is None, self.copies,
        )  # fmt: skip

    def name_for(
        self, token: str, types: tuple[str, ...], fixed: tuple[Any, ...], around: tuple[Any, ...],
        device: str,
    ) -> str:  # fmt: skip
        """The name of ``find(...)``'s operator: a constant to Dynamo, which calls this as it is,
        and guards the token and ``around``."""
        assert token == self.token
        self._check_captured()
        if name := changed(self.kernel.function, self.captured):
            raise changed_error(name, self.kernel.span)
        if self.in_level(token):
            around = (*around, TANGENTS)
        ambient = ambient_state(device)
        operator = self.find(types, [*map(of_constant, fixed)], around, ambient)
        _shard(operator)
        return operator.overload._schema.name.rpartition(":")[2]

    def in_level(self, token: str) -> bool:
        """Whether what Dynamo compiles is called where tensors may have tangents: Inductor's code
        loses them, the operator does not. Compiled again where that changes."""
        assert token == self.token
        if TracingContext.try_get() is not None:  # other tracers have no guards
            from torch._dynamo.guards import GuardBuilder, install_guard  # which calls this
            from torch._dynamo.source import GlobalStateSource

            install_guard(GlobalStateSource().make_guard(GuardBuilder.DUAL_LEVEL))
        return is_open() and not torch._C._are_functorch_transforms_active()

    def unsteady(self, token: str) -> tuple[str, str]:
        """What is another in a derivative than in the call, and why a graph cannot have that."""
        assert token == self.token
        return Around(self.kernel, {}, {}).unsteady()

    def refuse(self, name: str, what: str) -> str:
        """The key in ``refused`` of the kernel, in front of which Dynamo breaks its graph. Where it
        must not, the message says what the argument for ``name`` is that a graph cannot have."""
        key = f"{what} {name}"
        if key not in self.refused:
            reason = no_argument(self.shown.get(name, name), self.label, what)
            kernel: Any = self.kernel
            self.refused[key] = torch.compiler.disable(kernel.__call__, reason=reason)
        return key

    def _check_captured(self) -> None:
        check_captured(self.kernel, self.captured)


class MemberOperators(Operators):
    """The operators of calls whose arguments are taken apart. They give what operators do: whose
    call it is knows the arguments, and puts together what the kernel returns."""

    def __init__(self, of: Operators, likes: tuple[Like, ...]) -> None:
        kernel = MemberKernel(of.kernel, likes)
        # It has what an operator asks of a kernel.
        super().__init__(cast(KernelLike, kernel), of.namespace, of.name)
        self.draws, self.own, self.copies = of.draws, of.own, of.copies
        self.letters = "".join(of.letters[k] for k in kernel.origins)
        self.label, self.of = of.label, of

    def _check_captured(self) -> None:
        self.of._check_captured()

    def unsteady(self, token: str) -> tuple[str, str]:
        return "", ""  # ``of`` was asked

    def assemble(self, out: Any, values: list[Any]) -> Any:
        return out


_CONSTANT: list[Any] = [
    Operators.name_for,
    Operators.in_level,
    Guarded.look,
    Operators.refuse,
    Operators.make_of_members,
    Operators.unsteady,
    MemberOperators.unsteady,
]
for _method in _CONSTANT:  # what torch.compiler.assume_constant_result does, without Dynamo
    _method._dynamo_marked_constant = True


def _default(operators: Operators) -> Any:
    ambient, calls = _of_default_device(operators), _made_by_calls(operators)
    found = next((made for own, made in calls if own == ambient), None)
    if found is None:
        annotated = _annotated(operators)
        if not isinstance(annotated, Parameter):
            return annotated
        if not calls:
            raise unmade(operators.kernel, annotated.name, len(operators.loops) > 0)
        _, found = calls[0]
    _shard(found)
    return found.overload


def _made_by_calls(operators: Operators) -> list[tuple[Ambient, Operator]]:
    """Those operators of calls that are as good as the one by annotations. Where a number may be
    None, that of a call has None fixed in it, or takes numbers alone."""
    if any(p.optional and p.kind in SCALARS.values() for p in operators.parameters):
        return []
    return [(ambient, made) for (*_, ambient), made in operators.made.items()
            if all(kind == "" for kind, _ in ambient) and CHANGING not in made.types]  # fmt: skip


def _of_default_device(operators: Operators) -> Ambient:
    device = default_device() if operators.makes else ""
    return (("", device),) if device else ()


def _annotated(operators: Operators) -> Any:
    """The operator by annotations and defaults, or the first parameter that has neither."""
    types: list[str] = []
    fixed: list[Any] = []
    for parameter in operators.parameters:
        kind = _ANNOTATED.get(parameter.kind)
        if kind is None and parameter.default is not EMPTY:
            types.append(schema_type(parameter, parameter.default))
            fixed += [] if types[-1] else [parameter.default]
            continue
        if kind is None:
            return parameter
        types.append(kind + "?" if parameter.optional else kind)
    ambient = _of_default_device(operators)
    return operators.find(tuple(types), fixed, operators.guarded.decides(), ambient).overload


def _fits_schema(parameter: Parameter, kind: str) -> bool:
    """Whether the default of a parameter of this schema type may be that of the schema."""
    value = parameter.default
    if value is None:
        return kind.endswith("?")
    return kind != "" and schema_type(parameter, value) == kind.removesuffix("?")


def _returned(operators: Operators, tensors: Sequence[bool]) -> tuple[str, ...]:
    """The names of what is returned (``Returned``) where these parameters are tensors.
    Dynamo traces this, in which it makes no ``Returned`` (PyTorch 2.11)."""
    numbers = [p.name for p, is_one in zip(operators.parameters, tensors, strict=True)
               if p.name in operators.totals and not is_one]  # fmt: skip
    return operators.returned.without(numbers) if numbers else operators.returned.names


def _draws(operators: Operators, text: str) -> bool:
    """Whether a call may draw random numbers; ``text``: what the operator is made of."""
    keys = (a.key for region in operators.kernel.parts.regions for a in region.args)
    return operators.draws and (may_draw(text) or KEY in keys)


def _written(
    kernel: KernelLike, constants: dict[str, Any], own: frozenset[str]
) -> frozenset[str]:  # fmt: skip
    """The names that the operator with these fixed values writes to; ``own`` are those that it
    makes. Raises ``KernelValueError`` for what is none of its tensors."""
    parts = kernel.parts
    names = {p.name for p in parts.parameters}
    found = parts.mutated
    if any(map(known, constants.values())):  # to functions, which may write
        regions = [region.node for region in parts.regions]
        scope = Scope.of(kernel.function)
        found, _ = mutated(kernel.source.tree, scope, regions, constants)
        found -= own
    for name in sorted(found):
        if constants.get(name) is not None or name not in names:
            raise hidden_write(name, kernel.span)
    return found


def sharding(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sharding:
    """The rules by which a call of ``kernel`` may run on parts of its tensors."""
    from weft.pytorch.sharding import Rules  # only where somebody asks

    values = list(kernel.bind(*kernel.recast(args, kwargs)).arguments.values())
    types = tuple(map(schema_type, kernel.operators.parameters, values))
    pairs = list(zip(values, types, strict=True))
    form = kernel.operators.form(types, [v for v, kind in pairs if not kind])
    return Rules(form).of([v for v, kind in pairs if kind])


def _shard(operator: Operator, passed: Sequence[Any] = ()) -> None:
    """Tells DTensor of an operator, which it then holds, where somebody uses that."""
    family = operator.overload.family
    if family.sharded is None and is_sharded():
        from weft.pytorch import dtensor  # only where there are DTensors

        dtensor.register(operator)
    if family.sharded is not None:
        family.sharded.prepare(passed)


def _letters(kernel: KernelLike, loops: frozenset[ast.AST]) -> str:
    """A letter for each parameter (Dynamo may take numbers of an object for symbols): "c" where
    only loops read it, and nothing converts it: nothing else depends on such a float."""
    read = {root_name(chain) for chain in chains(kernel.source.tree, loops)}
    parameters = kernel.parts.parameters
    return "".join("-" if p.name in read or p.dtype else "c" for p in parameters)


def _followed(operators: Operators, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
    """What stands for the loops of a call whose host part may be followed."""
    recorded = operators.recorded and _is_copied(args, kwargs)
    return operators.recorded if recorded else operators.loops


def _is_copied(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether loops are to return copies of what they would write to, in a graph: where a gradient
    or a tangent is asked for; and of complex tensors, where Inductor has no operators that write to
    arguments (torch 2.13). Dynamo traces this."""
    recorded = torch.is_grad_enabled()
    inside = is_transformed() and differentiates()
    traced = torch.compiler.is_dynamo_compiling()  # which cannot tell what is of a transform
    values = (*args, *kwargs.values())
    for value in (*values, *(v for x in values if isinstance(x, list | tuple) for v in x)):
        if isinstance(value, torch.Tensor) and (
            (recorded and has_history(value)) or value.is_complex()
            or (inside and (traced or is_functorch_wrapped_tensor(value)))
        ):  # fmt: skip
            return True
    return not traced and has_dual(values)


def _is_differentiated(values: Sequence[Any]) -> bool:
    """Whether a gradient may be asked for. Dynamo traces this."""
    if not torch.is_grad_enabled():
        return False
    for value in (*values, *(v for x in values if isinstance(x, list | tuple) for v in x)):
        if isinstance(value, torch.Tensor) and has_history(value):
            return True
    return is_transformed() and differentiates()


def has_history(value: torch.Tensor) -> bool:
    """Whether ``value`` requires a gradient. Dynamo, which traces this, says it of a tensor as it
    was made, which something may have written to since: a view of it was made now. A batch does not
    say it."""
    found = value.requires_grad
    if found or not torch.compiler.is_dynamo_compiling() or type(value) is not torch.Tensor:
        return found
    if vectorizes():
        value = of_all_samples(value)
    return value.is_floating_point() and value.view_as(value).requires_grad


def _fit(parameters: Sequence[Parameter], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether there is one value for each parameter, and a parameter for each value."""
    names: list[str] = []  # of those that positional arguments are for
    for p in parameters:
        if p.position in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
            continue
        if p.position is inspect.Parameter.VAR_POSITIONAL:
            names += [p.name] * len(args)
        elif p.name in kwargs and (
            len(names) < len(args) or p.position is inspect.Parameter.POSITIONAL_ONLY
        ):
            return False
        else:
            names.append(p.name)
    if len(args) > len(names):
        return False
    own = [p.name for p in parameters]
    more = any(p.position is inspect.Parameter.VAR_KEYWORD for p in parameters)
    return (more or all(name in own for name in kwargs)) and not any(
        _given(parameters, k, args, kwargs) is EMPTY for k in range(len(parameters))
    )


def _given(
    parameters: Sequence[Parameter], number: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What a call gives the parameter of that number."""
    parameter = parameters[number]
    if parameter.position is inspect.Parameter.VAR_POSITIONAL:
        return args[number:]
    if parameter.is_variadic:
        own = [p.name for p in parameters]
        return {k: v for k, v in kwargs.items() if k not in own} or ()
    if number < len(args) and parameter.position is not inspect.Parameter.KEYWORD_ONLY:
        return args[number]
    return kwargs.get(parameter.name, parameter.default)


def _refuse_hidden(operators: Operators, values: Sequence[Any], types: Sequence[str]) -> None:
    """Refuses a call whose operator would have tensors fixed in it that PyTorch has to see."""
    for parameter, value, kind in zip(operators.parameters, values, types, strict=True):
        if not kind and any(map(_is_followed, leaves(value, form_of(value)))):
            raise KernelTypeError(
                f"`{parameter.name}` is {_named(value)} of tensors, of which a derivative, a "
                "batch or a graph is made", operators.kernel.span,
                help="where PyTorch follows a kernel as an operator, it sees tensors and tuples "
                "of them: pass these as arguments of their own",
            )  # fmt: skip


def _is_followed(value: Any) -> bool:
    """Whether ``value`` is a tensor that a transform, autograd or a graph has to see."""
    return isinstance(value, torch.Tensor) and (
        (torch.is_grad_enabled() and value.requires_grad) or is_functorch_wrapped_tensor(value)
        or is_traced()
    )  # fmt: skip


def _named(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def one_return(kernel: KernelLike) -> Returned:
    """What all ``return`` statements give. Raises ``KernelTypeError`` where they differ in form."""
    forms = list(dict.fromkeys(kernel.parts.returns))
    if len(forms) > 1:
        help = "an operator has one kind of result: return the same number of tensors everywhere"
        named = [n for f in forms for n in f.names if n]
        if named and len({f.form for f in forms}) == 1:
            help = f"an operator gives back its argument always or never: return {named[0]}.clone()"
        raise KernelTypeError(
            f"`{kernel.__name__}` returns different things in different places", kernel.span,
            help=help,
        )  # fmt: skip
    return forms[0] if forms else Returned.tensors(0)

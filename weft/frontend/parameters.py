"""A kernel's parameters and what their annotations ask for."""

from __future__ import annotations

import ast
import functools
import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.errors import KernelSyntaxError, SourceUnavailableError, WeftError
from weft.frontend.names import Scope, bound_names, stored_into
from weft.lang.dtypes import DType
from weft.lang.loops import is_func
from weft.lang.types import NDArrayType, is_template
from weft.lang.vectors import MatrixType, VectorType
from weft.source import Span, read_function
from weft.values import frozen

EMPTY = inspect.Parameter.empty
_TYPES = (DType, VectorType, MatrixType)
SCALARS = {float: "float", int: "int", bool: "bool"}


@frozen
class Parameter:
    """``kind`` is "tensor", "float", "int", "bool", "template" or "" (not said).

    ``dtype`` is set for a scalar annotated with a weft dtype (a strong scalar). ``annotation`` is
    the annotation itself, ``optional`` says whether None is allowed besides.
    """

    name: str
    kind: str = ""
    dtype: str | None = None
    optional: bool = False
    annotation: Any = None
    default: Any = EMPTY
    position: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD

    @property
    def is_variadic(self) -> bool:
        """Whether it is ``*args`` or ``**kwargs``, whose annotation says what each of them is."""
        return self.position in (
            inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
        )  # fmt: skip


def as_call(
    parameters: Sequence[Parameter], values: Sequence[Any]
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


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of ``function``; those that are text are evaluated where that is possible."""
    scope = Scope.of(function)
    cells = {n: v for n in scope.cells if (v := scope.lookup(n)) is not inspect.Parameter.empty}
    result: dict[str, Any] = {}
    for name, value in getattr(function, "__annotations__", {}).items():
        if isinstance(value, str):
            try:
                # As typing.get_type_hints does, but one name that is unknown hides no other.
                value = eval(value, scope.globals, cells)
            except (NameError, AttributeError, TypeError, SyntaxError):
                continue
        result[name] = value
    return result


def parameters(function: Callable[..., Any]) -> tuple[Parameter, ...]:
    """The parameters of ``function`` in order."""
    hints = annotations_of(function)
    return tuple(
        _parameter(p, hints.get(p.name)) for p in inspect.signature(function).parameters.values()
    )


def assigned_references(tree: ast.FunctionDef, hints: dict[str, Any]) -> dict[str, bool]:
    """The parameters of a function that are annotated ``template()`` and that it assigns: they are
    the caller's variables. True: the name itself, not only elements of it."""
    names = [name for name, hint in hints.items() if name != "return" and is_template(hint)]
    if not names:
        return {}
    bound = {n for s in tree.body for n in bound_names(s)}
    into = {n for s in tree.body for n in stored_into(s)}
    return {name: name in bound for name in names if name in bound or name in into}


def converts(function: Callable[..., Any]) -> bool:
    """Whether ``function`` has a parameter or a result that is annotated with a dtype, or one that
    is a copy (see ``copies``)."""
    if copies(function):
        return True
    if not getattr(function, "__annotations__", None):
        return False
    hints = annotations_of(function)
    wanted = [hint for name, hint in hints.items() if name != "return"]
    return any(isinstance(hint, _TYPES) for hint in wanted) or (
        not isinstance(result := returned_types(function), type) and result is not None
    )


@functools.lru_cache(256)
def copies(function: Callable[..., Any]) -> frozenset[str]:
    """The parameters of a ``weft.func`` that are assigned members or elements and are not
    ``template()``s: of a struct or a vector, they are copies, as in Taichi."""
    if not is_func(function):
        return frozenset()
    try:
        tree = read_function(function).tree
    except WeftError:  # there is no source: who lowers it says so
        return frozenset()
    hints = annotations_of(function)
    into = {name.partition(".")[0] for s in tree.body for name in stored_into(s)}
    names = inspect.signature(function).parameters
    return frozenset(n for n in names if n in into and not is_template(hints.get(n)))


def converting(
    function: Callable[..., Any], cast: Callable[[Any, Any], Any],
    copies: frozenset[str] = frozenset(),
) -> Callable[..., Any]:  # fmt: skip
    """``function`` with its arguments and results converted by ``cast(annotation, value)``, and
    those named in ``copies`` copied."""
    from weft.lang.numbers import copied  # where functions are called

    hints, wanted = annotations_of(function), returned_types(function)
    types = {n: h for n, h in hints.items() if n != "return" and isinstance(h, _TYPES)}
    signature = inspect.signature(function)

    def result(annotation: Any, value: Any) -> Any:
        if isinstance(annotation, tuple) and isinstance(value, tuple):
            return tuple(map(result, annotation, value))
        return cast(annotation, value) if isinstance(annotation, _TYPES) else value

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for name in copies:
            bound.arguments[name] = copied(bound.arguments[name])
        for name, annotation in types.items():
            bound.arguments[name] = cast(annotation, bound.arguments[name])
        return result(wanted, function(*bound.args, **bound.kwargs))

    return call


def refuse_references(function: Callable[..., Any], span: Span | None) -> None:
    """Refuses a call from Python of a function that assigns a ``template()``: Python's variables
    cannot be assigned by what is called."""
    if not any(map(is_template, annotations_of(function).values())):
        return
    from weft.frontend.accumulations import atomics  # of few kernels

    try:
        source = read_function(function)
    except SourceUnavailableError:
        return
    tree = atomics(source, Scope.of(function))
    found = assigned_references(tree, annotations_of(function))
    for name in (name for name, bound in found.items() if bound):
        raise KernelSyntaxError(
            f"`{function.__name__}` assigns to `{name}`, a template(), and is called by Python",
            span, help="call it in a device loop, or have it return the value",
        )  # fmt: skip


def returned_types(function: Callable[..., Any]) -> Any:
    """What the return annotation says of the type of numbers: a weft dtype, a vector or matrix
    type, ``float``, ``int`` or ``bool``, or a tuple of the former. None where it says nothing."""
    annotation = annotations_of(function).get("return")
    items = annotation if isinstance(annotation, tuple) else typing.get_args(annotation)
    is_tuple = isinstance(annotation, tuple) or typing.get_origin(annotation) is tuple
    if is_tuple and items and all(isinstance(item, _TYPES) for item in items):
        return tuple(items)
    if isinstance(annotation, type):
        return annotation if annotation in SCALARS else None
    return annotation if isinstance(annotation, _TYPES) else None


def _parameter(parameter: inspect.Parameter, annotation: Any) -> Parameter:
    kind, dtype, optional = "", None, False
    members = [a for a in typing.get_args(annotation) if a is not type(None)]
    if type(None) in typing.get_args(annotation) and len(members) == 1:
        annotation, optional = members[0], True
    if annotation in SCALARS if isinstance(annotation, type) else False:
        kind = SCALARS[annotation]
    elif isinstance(annotation, DType):
        kind, dtype = annotation.kind, annotation.name
    elif is_template(annotation):
        kind = "template"
    elif is_tensor_annotation(annotation):
        kind = "tensor"
    return Parameter(
        parameter.name, kind, dtype, optional or parameter.default is None, annotation,
        parameter.default, parameter.kind,
    )  # fmt: skip


def is_tensor_annotation(annotation: Any) -> bool:
    """True for ``torch.Tensor``, ``weft.types.ndarray(...)`` and jaxtyping's ``Float[...]``."""
    if isinstance(annotation, NDArrayType) or is_jaxtyping(annotation):
        return True
    return isinstance(annotation, type) and issubclass(annotation, torch.Tensor)


def is_clamped(parameter: Parameter | None) -> bool:
    """Whether subscripts of ``parameter`` are moved into the tensor's range."""
    return getattr(parameter and parameter.annotation, "boundary", None) == "clamp"


def element_shape(parameter: Parameter | None) -> tuple[int, ...]:
    """The shape of the vectors or matrices that ``parameter`` is annotated to have as elements."""
    annotation = parameter and parameter.annotation
    return annotation.element_shape if isinstance(annotation, NDArrayType) else ()


def is_jaxtyping(annotation: Any) -> bool:
    """True for jaxtyping's annotations, which are classes with these attributes."""
    return all(hasattr(annotation, name) for name in ("dtypes", "dim_str", "array_type"))

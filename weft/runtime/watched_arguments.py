"""The arguments of a kernel that is interpreted (``watch.py``), with tensors that are checked."""

from __future__ import annotations

import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import torch

from weft.frontend import parameters as declared
from weft.lang.dtypes import DType, from_torch
from weft.lang.elements import Elementwise, rebuilt
from weft.lang.vectors import MatrixType, VectorType
from weft.runtime.signature import check_argument

_KEPT = (list, dict, OrderedDict, defaultdict)


def bound_arguments(
    function: Callable[..., Any], watch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> inspect.BoundArguments:
    """The arguments, watched; numbers cast where the parameter is annotated with a dtype."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    try:
        annotations = inspect.get_annotations(function, eval_str=True)
    except NameError:  # an annotation of names that exist for type checkers only
        annotations = {}
    for parameter in declared.parameters(function):
        if parameter.dtype is not None:
            check_argument(parameter, bound.arguments[parameter.name])
    named = {p.name: p for p in declared.parameters(function)}
    for name, value in bound.arguments.items():
        annotation, parameter = annotations.get(name), named.get(name)
        element = declared.element_shape(parameter)
        if isinstance(value, torch.Tensor) and (element or declared.is_clamped(parameter)):
            bound.arguments[name] = value = watch.watched(value, own=False)
            value.clamped = declared.is_clamped(parameter)
            if element and value.element is None:
                kind = from_torch(value.dtype)
                sides: Any = MatrixType if len(element) == 2 else VectorType
                value.element = sides(*element, kind.kind, kind)
            continue
        if parameter is not None and parameter.is_variadic and isinstance(value, tuple):
            bound.arguments[name] = tuple(_passed(annotation, v, watch) for v in value)
        elif parameter is not None and parameter.is_variadic and isinstance(value, dict):
            passed = {k: _passed(annotation, v, watch) for k, v in value.items()}
            bound.arguments[name] = passed
        else:
            bound.arguments[name] = _passed(annotation, value, watch)
    return bound


def _passed(annotation: Any, value: Any, watch: Any) -> Any:
    """An argument as the annotation has it."""
    if isinstance(annotation, DType) and isinstance(value, bool | int | float):
        return annotation(value)
    if annotation is float and isinstance(value, int):
        return float(value)  # as the compiled kernel, and PyTorch's operators
    return watch.wrap(value)


def exchanged(value: Any, function: Callable[[torch.Tensor], Any], seen: set[int]) -> Any:
    """``value`` with ``function`` of its tensors. Lists and dicts stay the same objects, of which
    the items change: the kernel may change them, too. ``seen``: those that have changed."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, tuple) and not isinstance(value, Elementwise | torch.Size):
        items = [exchanged(item, function, seen) for item in value]
        same = all(a is b for a, b in zip(items, value, strict=True))
        return value if same else rebuilt(value, items)
    if type(value) in _KEPT and id(value) not in seen:
        seen.add(id(value))
        kept: Any = value
        for key in range(len(kept)) if isinstance(kept, list) else list(kept):
            item = exchanged(kept[key], function, seen)
            if item is not kept[key]:
                kept[key] = item
    return value

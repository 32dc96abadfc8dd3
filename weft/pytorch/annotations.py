"""Checks tensors against ``weft.types.ndarray(...)`` and jaxtyping annotations.

jaxtyping is understood, not required: its annotations are classes with ``dtypes`` and ``dim_str``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from weft.errors import KernelTypeError, KernelValueError
from weft.frontend.parameters import Parameter, is_jaxtyping
from weft.lang.types import NDArrayType
from weft.runtime.entry import form
from weft.source import Span


def is_checked(parameter: Parameter) -> bool:
    """Whether the annotation of ``parameter`` says more than that it is a tensor."""
    return isinstance(parameter.annotation, NDArrayType) or is_jaxtyping(parameter.annotation)


def asks_for_form(parameter: Parameter) -> bool:
    """Whether it says something of the dtype, the rank or sizes."""
    annotation = parameter.annotation
    plain = isinstance(annotation, NDArrayType) and not annotation.element_shape
    return not plain or annotation.dtype is not None or annotation.rank is not None


def check_once(
    parameters: Sequence[Parameter], arguments: dict[str, Any], span: Span | None, seen: set[Any]
) -> None:  # fmt: skip
    """``check_annotations``, once for each set of shapes and dtypes; ``seen`` has those."""
    key = tuple(form(arguments[p.name]) for p in parameters)
    if key not in seen:
        check_annotations(parameters, arguments, span)
        seen.add(key)


def check_annotations(
    parameters: Sequence[Parameter], arguments: dict[str, Any], span: Span | None
) -> None:
    """Checks tensors against their annotations. Raises ``KernelTypeError`` (dtype, rank) and
    ``KernelValueError`` (sizes)."""
    sizes: dict[str, tuple[int, str]] = {}
    for parameter in parameters:
        value = arguments.get(parameter.name)
        if (value is None and parameter.optional) or not is_checked(parameter):
            continue
        annotation = parameter.annotation
        if not isinstance(value, torch.Tensor):
            raise KernelTypeError(
                f"`{parameter.name}` is annotated as a tensor, and {type(value).__name__} was "
                "passed", span,
                help="pass torch.from_numpy(...), or annotate it weft.types.ndarray()"
                if isinstance(value, np.ndarray) else "",
            )  # fmt: skip
        if isinstance(annotation, NDArrayType):
            _check_ndarray(parameter.name, annotation, value, span)
        else:
            _check_jaxtyping(parameter.name, annotation, value, sizes, span)


def shared(
    parameters: Sequence[Parameter], bind: Callable[..., inspect.BoundArguments],
    args: tuple[Any, ...], kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:  # fmt: skip
    """The arguments of a call, with tensors of the memory of NumPy arrays where a parameter is
    annotated ``weft.types.ndarray``. Raises ``KernelTypeError`` for what torch has no tensor of."""
    if np.ndarray not in map(type, (*args, *kwargs.values())):
        return args, kwargs
    bound = bind(args, kwargs)
    for parameter in parameters:
        value = bound.arguments.get(parameter.name)
        if isinstance(parameter.annotation, NDArrayType) and isinstance(value, np.ndarray):
            if not value.flags.writeable:
                raise KernelTypeError(
                    f"`{parameter.name}` is a NumPy array that cannot be written to",
                    help="pass a copy of it",
                )  # fmt: skip
            try:
                bound.arguments[parameter.name] = torch.from_numpy(value)
            except (TypeError, ValueError) as error:
                raise KernelTypeError(
                    f"`{parameter.name}` is a NumPy array that torch has no tensor of: {error}",
                    help="pass a copy of it, of a dtype that torch has",
                ) from None  # fmt: skip
    return bound.args, bound.kwargs


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_ndarray(
    name: str, annotation: NDArrayType, tensor: torch.Tensor, span: Span | None
) -> None:
    if annotation.dtype is not None and tensor.dtype is not annotation.dtype.torch:
        raise KernelTypeError(
            f"`{name}` is annotated {annotation.dtype.name}, and a tensor of dtype "
            f"{_name(tensor.dtype)} was passed", span,
        )  # fmt: skip
    inner = annotation.element_shape
    if inner and tuple(tensor.size()[-len(inner) :]) != inner:
        raise KernelTypeError(
            f"`{name}` is annotated with elements of {' x '.join(map(str, inner))}, and a tensor "
            f"of shape {tuple(tensor.size())} was passed", span,
            help="the dimensions of a vector or a matrix are the tensor's last ones",
        )  # fmt: skip
    # `ndim` of a field of vectors is its own where the annotation says nothing of elements.
    ranks = {tensor.dim(), *(() if inner or annotation.element_dim else (len(tensor.shape),))}
    if annotation.rank is not None and annotation.rank not in ranks:
        raise KernelTypeError(
            f"`{name}` is annotated with {annotation.rank} dimensions, and a tensor of shape "
            f"{tuple(tensor.size())} was passed", span,
        )  # fmt: skip


def _check_jaxtyping(
    name: str,
    annotation: Any,
    tensor: torch.Tensor,
    sizes: dict[str, tuple[int, str]],
    span: Span | None,
) -> None:
    dtypes = annotation.dtypes
    if isinstance(dtypes, list | tuple | set | frozenset) and _name(tensor.dtype) not in dtypes:
        raise KernelTypeError(
            f"`{name}` is annotated {annotation.__name__}, and a tensor of dtype "
            f"{_name(tensor.dtype)} was passed", span,
        )  # fmt: skip
    words = annotation.dim_str.split()
    variadic = [
        k for k, word in enumerate(words) if word == "..." or word.lstrip("#?_").startswith("*")
    ]
    shape = tuple(tensor.size())
    if len(shape) != len(words) if not variadic else len(shape) < len(words) - 1:
        raise KernelTypeError(
            f'`{name}` is annotated "{annotation.dim_str}", and a tensor of shape {shape} was '
            "passed",
            span,
        )  # fmt: skip
    if variadic:
        k = variadic[0]
        after = len(words) - k - 1
        pairs = [*zip(words[:k], shape), *zip(words[k + 1 :], shape[len(shape) - after :])]  # noqa: B905
    else:
        pairs = list(zip(words, shape, strict=True))
    for word, size in pairs:
        _check_size(name, word, size, sizes, span)


def _check_size(
    name: str, word: str, size: int, sizes: dict[str, tuple[int, str]], span: Span | None
) -> None:
    """One dimension: ``B`` binds or compares, ``3`` compares, ``_`` and ``#B`` of size 1 pass."""
    broadcast = "#" in word[:2]
    word = word.lstrip("#?").rpartition("=")[2]
    if word.startswith("_") or (broadcast and size == 1):
        return
    if word.isdigit():
        if int(word) != size:
            raise KernelValueError(
                f"`{name}` has size {size} where its annotation says {word}", span
            )
    elif word.isidentifier():
        known = sizes.setdefault(word, (size, name))
        if known[0] != size:
            raise KernelValueError(
                f"`{word}` is {known[0]} in `{known[1]}` and {size} in `{name}`", span,
                help="dimensions of one name have one size",
            )  # fmt: skip

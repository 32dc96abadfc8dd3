"""What a kernel is specialised on: from values to specs."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from weft.errors import KernelTypeError, KernelValueError
from weft.frontend.kinds import FLOATS, passed_range
from weft.frontend.parameters import Parameter, element_shape, is_clamped
from weft.frontend.specs import TENSOR_DTYPES, ConstSpec, ScalarSpec, Spec, TensorSpec, TupleSpec
from weft.frontend.split import Region, RegionArg
from weft.lang import dtypes
from weft.lang.dtypes import stands_for_another
from weft.lang.elements import Elementwise
from weft.lang.numbers import Number
from weft.lang.vectors import Backing
from weft.source import Span

if TYPE_CHECKING:
    from weft.frontend.members import Form

DTYPES: dict[torch.dtype, str] = {d.torch: d.name for d in dtypes.DTYPES.values()}
# By weft's names and the IR's.
TORCH_DTYPES: dict[str, torch.dtype] = {n: d for d, n in DTYPES.items()} | {"i1": torch.bool}
_SCALARS = ("float", "int", "bool")
_ANY = inspect.Parameter.POSITIONAL_OR_KEYWORD
COMPLEX = frozenset([torch.complex64, torch.complex128])
_COMPLEX_NUMBERS = (complex, np.complexfloating)
_PLAIN = (torch.Tensor, int, float, str, type(None))
_SYMBOLIC = {torch.SymInt: "int", torch.SymFloat: "float", torch.SymBool: "bool"}

# What is to see the tensors that kernels reach which are none of their arguments, if anything is.
REACHED: ContextVar[Callable[[Any], None] | None] = ContextVar("weft_reached", default=None)


def come_apart(region: Region, args: Sequence[Any]) -> bool:
    """Whether ``region`` takes some of these arguments as pairs, or as their members."""
    return any(map(is_pair, region.args, args)) or any(forms_of(region, args))


def forms_of(region: Region, args: Sequence[Any]) -> list[Form | None]:
    """The form of each argument that is passed as its members: a collection of tensors. (What is
    captured is a constant, whose tensors are reached.)"""
    if all(arg.captured or isinstance(value, _PLAIN) for arg, value in zip(region.args, args)):  # noqa: B905
        return [None for _ in region.args]
    from weft.frontend.members import form_of, form_of_total  # where there may be collections
    from weft.lang.structs import Struct

    given = zip(region.args, args, strict=False)
    forms = [
        None if arg.captured or isinstance(value, _PLAIN)
        else form_of_total(value)
        if isinstance(value, Elementwise | Struct) and arg.name in region.results
        else form_of(value)
        for arg, value in given
    ]  # fmt: skip
    return [*forms, *(None for _ in region.args[len(forms) :])]


def is_pair(arg: RegionArg, value: Any) -> bool:
    """Whether ``value`` is a complex tensor, or a number that is passed at run time."""
    if isinstance(value, torch.Tensor):
        return value.dtype in COMPLEX
    return isinstance(value, _COMPLEX_NUMBERS) and not (arg.captured or arg.template)


def spec_of(arg: RegionArg, value: Any, span: Span | None = None) -> Spec:
    """The spec of ``value``, passed for ``arg``.

    Raises ``KernelTypeError`` and ``KernelValueError`` for what a kernel cannot be called with.
    """
    if isinstance(value, torch.Tensor):
        if arg.parameter is not None:
            check_argument(arg.parameter, value, span)
        spec = tensor_spec(arg.name, value, span)
        if element := element_shape(arg.parameter):
            spec = replace(spec, element=element)
        if is_clamped(arg.parameter):
            spec = replace(spec, clamped=True)
        if arg.pair:
            spec = replace(spec, pair=True)
        return replace(spec, shape=tuple(value.size())) if arg.template else spec
    if arg.captured or arg.template:
        return _constant(arg.name, value, span)
    if arg.parameter is not None and arg.parameter.kind:
        check_argument(arg.parameter, value, span)
        if arg.parameter.is_variadic and isinstance(value, tuple | list):
            one = replace(arg, parameter=replace(arg.parameter, position=_ANY))
            return TupleSpec(tuple(spec_of(one, item, span) for item in value))
        if arg.parameter.kind in _SCALARS and scalar_kind(value):
            return ScalarSpec(arg.parameter.kind, arg.parameter.dtype)
    return value_spec(arg.name, value, span)


def check_argument(parameter: Parameter, value: Any, span: Span | None = None) -> None:
    """Refuses what is not as the annotation of ``parameter`` says; of ``*args`` and ``**kwargs``,
    each of them."""
    if parameter.is_variadic and isinstance(value, tuple | list | dict):
        for place, item in value.items() if isinstance(value, dict) else enumerate(value):
            one = replace(parameter, name=f"{parameter.name}[{place!r}]", position=_ANY)
            check_argument(one, item, span)
    elif not isinstance(value, torch.Tensor):
        _check_kind(parameter.name, parameter, value, span)
        if parameter.kind in _SCALARS and value is not None:
            _check_range(parameter.name, value, parameter.dtype, span)
    elif parameter.kind in _SCALARS and value.dim():
        raise KernelTypeError(
            f"`{parameter.name}` is annotated {_annotation_name(parameter)}, and a tensor of "
            f"shape {tuple(value.size())} was passed", span,
            help=f"pass a number, or annotate `{parameter.name}: torch.Tensor`",
        )  # fmt: skip


def value_spec(name: str, value: Any, span: Span | None = None) -> Spec:
    """The spec of a value that nothing else is known of."""
    kind = scalar_kind(value)
    if kind:
        _check_range(name, value, None, span)
        return ScalarSpec(kind, value.dtype.name if isinstance(value, Number) else None)
    if isinstance(value, torch.Tensor):
        return tensor_spec(name, value, span)
    if isinstance(value, tuple | list) and not hasattr(value, "entries"):
        for item in value:
            if isinstance(item, torch.Tensor):
                raise KernelTypeError(
                    f"`{name}` is a {type(value).__name__} that holds tensors", span,
                    help="give each tensor a name in the host part (`a, b = pair`) and use that",
                )  # fmt: skip
        items = tuple(value_spec(name, item, span) for item in value)
        return TupleSpec(items, type(value) if hasattr(value, "_fields") else None)
    return _constant(name, value, span)


def scalar_kind(value: Any) -> str:
    """ "int", "float" or "bool" for a scalar that is passed at run time, else ""."""
    if isinstance(value, bool | np.bool_):
        return "bool"
    if isinstance(value, int | np.integer):
        return "int"
    if isinstance(value, float | np.floating):
        return "float"
    return _SYMBOLIC.get(type(value), "")


def tensor_spec(name: str, tensor: torch.Tensor, span: Span | None = None) -> TensorSpec:
    """The spec of a tensor. Raises ``KernelTypeError`` for what a kernel cannot read."""
    check_layout(name, tensor, span)
    if tensor.is_quantized:
        raise KernelTypeError(
            f"`{name}` is a quantized tensor", span,
            help=f"pass {name}.dequantize(), or {name}.int_repr() with scale and zero point",
        )  # fmt: skip
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        help = f"kernels take {', '.join(TENSOR_DTYPES[:-1])} and bool tensors"
        if tensor.dtype is torch.complex32:
            help = f"pass {name}.to(torch.complex64)"
        elif tensor.is_complex():
            help = f"pass `{name}` as an argument, not by a function that the loop calls"
        raise KernelTypeError(
            f"`{name}` has dtype {str(tensor.dtype).removeprefix('torch.')}, which kernels do not "
            "take", span, help=help,
        )  # fmt: skip
    element = getattr(tensor, "element", None)  # of a field of vectors or matrices
    backing = isinstance(element, Backing)
    shape = element.shape if element is not None else ()
    sizes = tuple(tensor.size()) if backing else None
    offset = getattr(element, "offset", ())
    return TensorSpec(
        dtype,
        tensor.dim(),
        layout(tensor),
        sizes,
        shape,
        backing,
        offset=offset,
        of_field=bool(shape) and not backing,
    )


def check_layout(
    name: str, tensor: torch.Tensor, span: Span | None = None, cause: Exception | None = None
) -> None:
    """Raises ``KernelTypeError`` where the elements are not where sizes and strides say."""
    if tensor.is_nested:
        flat = f"{name}.values() and {name}.offsets()"
        if tensor.layout is not torch.jagged:
            flat = f"{name}.to_padded_tensor(0.0), or each of {name}.unbind()"
        raise KernelTypeError(
            f"`{name}` is a nested tensor", span, help=f"kernels take dense tensors: pass {flat}"
        ) from cause
    if tensor.layout is not torch.strided:
        flat = ", or its values and indices" * str(tensor.layout).startswith("torch.sparse")
        raise KernelTypeError(
            f"`{name}` is a {str(tensor.layout).removeprefix('torch.').lstrip('_')} tensor", span,
            help=f"kernels take dense tensors: pass {name}.to_dense(){flat}",
        ) from cause  # fmt: skip


def layout(tensor: torch.Tensor) -> str:
    """How much is known of the strides: one of ``ir.types.LAYOUTS``."""
    if tensor.is_contiguous():
        return "contiguous"
    return "unit" if tensor.stride(-1) == 1 else "strided"


def check_devices(named: Iterable[tuple[str, torch.Tensor]], span: Span | None = None) -> None:
    """Raises ``KernelValueError`` unless all tensors are on the CPU, or all on one GPU."""
    named = list(named)
    check_one_device(named, span)
    for name, tensor in named:
        if tensor.device.type not in ("cpu", "cuda", "mps", "meta"):
            raise KernelValueError(
                f"`{name}` is on {tensor.device}", span,
                help=f'kernels run on tensors of "cpu", "cuda" and "mps": pass {name}.cpu()',
            )  # fmt: skip
        if stands_for_another(tensor):
            raise KernelTypeError(
                f"`{name}` is a {type(tensor).__name__}, whose data a loop cannot reach", span,
                help="pass it as an argument of the kernel, not by a global or an attribute",
            )  # fmt: skip
        if tensor.is_neg():
            raise KernelValueError(
                f"`{name}` is a lazily negated view", span, help=f"pass {name}.resolve_neg()"
            )


def check_one_device(named: Sequence[tuple[str, torch.Tensor]], span: Span | None) -> None:
    for name, tensor in named:
        first = named[0]
        if tensor.device != first[1].device:
            raise KernelValueError(
                f"`{first[0]}` is on {first[1].device} and `{name}` on {tensor.device}", span,
                help="tensors of one loop must be on one device: move one with .to(...)",
            )  # fmt: skip


def _constant(name: str, value: Any, span: Span | None) -> ConstSpec:
    if isinstance(value, np.ndarray):
        raise KernelTypeError(
            f"`{name}` is a NumPy array", span,
            help=f"pass torch.from_numpy({name}), which shares its memory",
        )  # fmt: skip
    if isinstance(value, torch.SymInt):
        value = int(value)  # the graph is one for this value
    return ConstSpec(value.item() if isinstance(value, np.generic) else value)


def _check_kind(name: str, parameter: Parameter, value: Any, span: Span | None) -> None:
    allowed = {"float": ("float", "int", "bool"), "int": ("int", "bool"), "bool": ("bool",)}
    if value is None and parameter.optional:
        return
    wanted = allowed.get(parameter.kind)
    fits = wanted is None or scalar_kind(value) in wanted
    if fits and parameter.kind != "tensor":
        return
    help = f"pass what the annotation says, or change the annotation of `{name}`"
    if isinstance(value, np.ndarray):
        help = f"pass torch.from_numpy({name}), which shares its memory"
    raise KernelTypeError(
        f"`{name}` is annotated {_annotation_name(parameter)}, and {_describe(value)} was passed",
        span, help=help,
    )  # fmt: skip


def _check_range(name: str, value: Any, dtype: str | None, span: Span | None) -> None:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        return
    if dtype in FLOATS:
        return
    low, high = passed_range(dtype or "i64")
    if not low <= value <= high:
        help = f"it must be in {low}..{high}"
        if dtype == "u64" and value > high:
            help = "PyTorch's operators take integers of 64 bits with a sign: pass "
            help += "torch.tensor(value, dtype=torch.uint64), and read its element"
        raise KernelValueError(
            f"`{name}` is {value}, which does not fit in {dtype or '64 bits'}", span, help=help
        )


def _annotation_name(parameter: Parameter) -> str:
    if parameter.dtype is not None:
        return f"weft.{parameter.dtype}"
    annotation = parameter.annotation
    if isinstance(annotation, type):
        module = "torch." if annotation.__module__.startswith("torch") else ""
        return f"{module}{annotation.__name__}"
    return str(annotation)


def _describe(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, types.FunctionType):
        return "a function"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"

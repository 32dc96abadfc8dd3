"""Where the elements of arguments are: torch has tensors without memory, or with that of others;
and what the arguments of one call share, where a loop writes to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from weft.errors import KernelValueError
from weft.ir.core import Function, Value
from weft.ir.types import MemRefType
from weft.lang.field import Field
from weft.source import Span

# What torch knows of a tensor beside its memory has no public name.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
if TYPE_CHECKING:
    from weft.index.aliasing import View

_address = torch.Tensor.data_ptr  # of a resident tensor, too, of which nobody reads it there
_FAR = 50  # log2 of bytes: no tensor is larger
Pairs = Sequence[tuple[int, int]]  # positions of a tensor that is written, and of another one


def _space(tensor: torch.Tensor) -> int:
    """Where ``_address`` counts from. Of tensors on "mps" torch tells the address of an object of
    Metal's, and adds offsets to it: two of them may be near each other, whose memory is not."""
    return tensor.untyped_storage().data_ptr() if tensor.is_mps else 0


def address_of(tensor: torch.Tensor) -> int:
    """A number for the first element: those of tensors without common memory are far apart."""
    return (_space(tensor) << _FAR) + _address(tensor)


class OverlapWarning(UserWarning):
    """Arguments share memory such that iterations may meet: the loop runs in order."""


def extent(tensor: torch.Tensor) -> int:
    """Bytes from the first to the end of the last element (strides are never negative in torch)."""
    if tensor.numel() == 0:
        return 0
    reach = sum((n - 1) * s for n, s in zip(tensor.size(), tensor.stride(), strict=True))
    return (reach + 1) * tensor.element_size()


def dense(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments, with memory for torch's ZeroTensors (tangents and gradients), which have
    none. Numbers of the CPU (0-d tensors: a total of a loop that reads no tensor, say) are on the
    device where others are, as PyTorch's operators have them."""
    device = place_of(args)

    def there(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value._is_zerotensor():
            return value.clone()
        # A gradient cannot come back from "meta".
        apart = value.device != device and is_number(value)
        stays = device is not None and device.type == "meta" and value.requires_grad
        return value.to(device) if apart and not stays else value

    return tuple(map(there, args))


def place_of(args: Sequence[Any]) -> torch.device | None:
    """Where the tensors are, but for numbers of the CPU. None: there are no tensors."""
    tensors = [v for v in args if isinstance(v, torch.Tensor)]
    return next((v.device for v in tensors if not is_number(v)),
                tensors[0].device if tensors else None)  # fmt: skip


def is_number(tensor: torch.Tensor) -> bool:
    """Whether loops read it beside tensors of any device."""
    return tensor.dim() == 0 and tensor.device.type == "cpu" and not isinstance(tensor, Field)


def strided(gradient: torch.Tensor) -> torch.Tensor:
    """A gradient as a tensor with strides: torch's own functions give sparse ones, too."""
    return gradient if gradient.layout is torch.strided else gradient.to_dense()


def is_uniform(gradient: object) -> TypeGuard[torch.Tensor]:
    """Whether all places of a gradient are one element in memory, as in that of a sum. So may be
    the one place that it has."""
    return (
        type(gradient) is torch.Tensor and gradient.layout is torch.strided
        and gradient.dim() > 0 and gradient.numel() > 0 and not any(gradient.stride())
    )  # fmt: skip


def uniform_in(gradient: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``gradient``, which ``is_uniform``, in ``dtype``; it is so still."""
    if gradient.dtype is dtype:
        return gradient
    return gradient.as_strided((), ()).to(dtype).expand(gradient.size())


def check_memory(name: str, tensor: torch.Tensor, span: Span) -> None:
    """Raises ``KernelValueError`` where the elements of ``tensor`` are not in memory of its own."""
    if torch._is_functional_tensor(tensor):
        raise KernelValueError(
            f"`{name}` is a functional tensor: it stands for one in a trace", span,
            help="call the kernel as an operator, kernel.op(...), where tensors are functionalized",
        )  # fmt: skip
    try:
        _address(tensor)
    except RuntimeError as error:
        raise KernelValueError(
            f"`{name}` has no memory of its own: it is a batch, or belongs to a transform of "
            "torch.func", span,
            help="use tensors of a transform inside of it only",
        ) from error  # fmt: skip
    size = torch.Tensor.untyped_storage(tensor).nbytes()
    if tensor.numel() and size < tensor.storage_offset() * tensor.element_size() + extent(tensor):
        raise KernelValueError(
            f"`{name}` has {tensor.numel()} element{'s' * (tensor.numel() != 1)}, and its storage "
            f"has {size} bytes", span,
            help="its storage was resized: call the kernel while the data is there (inside of "
            "FSDP's forward, say)",
        )  # fmt: skip


def check_writable(name: str, tensor: torch.Tensor, span: Span) -> None:
    """Raises ``KernelValueError`` for a tensor that torch does not write to, either."""
    if tensor._is_zerotensor():
        raise KernelValueError(
            f"`{name}` is written, and it is a ZeroTensor, which is immutable", span,
            help=f"pass {name}.clone()",
        )  # fmt: skip
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        raise KernelValueError(
            f"`{name}` is written, and it is an inference tensor, outside of inference mode", span,
            help=f"pass {name}.clone(), or call the kernel under torch.inference_mode()",
        )  # fmt: skip


def distances(args: Sequence[Any], pairs: Pairs) -> tuple[int | None, ...]:
    """How far the tensors of each pair are from each other in bytes, where their extents overlap;
    None for a pair that is apart. Empty where all are."""
    found: list[int | None] = []
    for i, j in pairs:
        one, two = address_of(args[i]), address_of(args[j])
        near = one < two + extent(args[j]) and two < one + extent(args[i])
        found.append(two - one if near else None)
    return tuple(found) if any(d is not None for d in found) else ()


def refuse_overlap_within(
    args: Sequence[Any], written: Sequence[int], names: Sequence[str], span: Span | None
) -> None:
    """Raises ``KernelValueError`` where a tensor that is written has several indices for one
    element."""
    for position in written:
        tensor, name = args[position], names[position]
        steps = zip(tensor.size(), tensor.stride(), strict=True)
        why = ""
        if tensor.numel() and any(s == 0 and n > 1 for n, s in steps):
            why = "it is expanded"
        elif tensor.numel() and meets_itself(tensor):
            why = f"its strides {tuple(tensor.stride())} are smaller than what they step over"
        if why:
            raise KernelValueError(
                f"`{name}` is written, and {why}: several of its indices are one place in memory",
                span, help=f"pass {name}.clone()",
            )  # fmt: skip


def refuse_rows(
    function: Function, args: Sequence[Any], pairs: Pairs, shared: Sequence[int | None],
    names: Sequence[str], span: Span | None,
) -> None:  # fmt: skip
    """Raises ``KernelValueError`` where a statement on rows would read, through one argument, what
    it has written through another: Python computes all of a row before it stores it. One tensor
    passed twice is no harm where places that are read and stored are the same (``rows`` is
    "alike")."""
    kind = function.attrs.get("rows")
    for (i, j), distance in zip(pairs, shared, strict=True):
        if kind is None or distance is None:
            continue
        a, b = args[i], args[j]
        same = distance == 0 and (a.size(), a.stride(), a.dtype) == (b.size(), b.stride(), b.dtype)
        if not (same and kind == "alike") and any_shared(args, [(i, j)]):
            raise KernelValueError(
                f"`{names[i]}` and `{names[j]}` share memory, and the loop stores rows that are "
                "computed of rows", span, help=f"pass {names[j]}.clone()",
            )  # fmt: skip


def needs_order(function: Function, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether iterations of ``function`` may meet where two of these arguments share memory."""
    spaces = [_space(t) for t in tensors]
    return _meet(
        function, [_view(t, spaces.index(s) << _FAR) for t, s in zip(tensors, spaces, strict=True)]
    )


def fakes_need_order(function: Function, tensors: Sequence[torch.Tensor]) -> bool:
    """The same of tensors without data, or whether an iteration may read what it has written by
    another name. Of sizes that are symbols, those of the example count."""
    bases = [t.untyped_storage()._cdata for t in tensors]
    if len(set(bases)) == len(bases):
        return False
    views: list[View] = []
    for tensor, base in zip(tensors, bases, strict=True):
        view = _view_of_fake(tensor, bases.index(base) << _FAR)
        if view is None:
            return False
        views.append(view)
    if _meet(function, views):
        return True
    from weft.autodiff.memory import read_after_write  # likewise
    from weft.index.aliasing import meeting_accesses

    return read_after_write(function, meeting_accesses(function, _by_argument(function, views)))


def fakes_share(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors, which may be without data, have an element in common."""
    if one.untyped_storage()._cdata != other.untyped_storage()._cdata:
        return False
    from weft.index.aliasing import share_memory  # likewise

    a, b = _view_of_fake(one), _view_of_fake(other)
    return a is not None and b is not None and share_memory(a, b)


def _view_of_fake(tensor: torch.Tensor, begin: int = 0) -> View | None:
    """Where the elements of a tensor without data lie; None where data would say it."""
    from weft.index.aliasing import View  # likewise

    size = tensor.element_size()
    numbers = (*tensor.size(), *tensor.stride(), tensor.storage_offset())
    known = [n.node.hint if isinstance(n, torch.SymInt) else n for n in numbers]
    if None in known:
        return None
    shape, strides = known[: tensor.dim()], [s * size for s in known[tensor.dim() : -1]]
    return View(tuple(shape), tuple(strides), begin + known[-1] * size, size)


def _meet(function: Function, views: Sequence[View]) -> bool:
    from weft.index.aliasing import iterations_meet  # index sets: only for memory that overlaps

    return iterations_meet(function, _by_argument(function, views))


def _by_argument(function: Function, views: Sequence[View]) -> dict[Value, View]:
    memrefs = [a for a in function.args if isinstance(a.type, MemRefType)]
    return dict(zip(memrefs, views, strict=False))


def any_shared(args: Sequence[Any], pairs: Pairs) -> bool:
    """Whether the tensors of a pair have an element in common."""
    from weft.index.aliasing import share_memory  # likewise

    return any(
        _space(args[i]) == _space(args[j]) and share_memory(_view(args[i]), _view(args[j]))
        for i, j in pairs
    )


def meets_itself(tensor: torch.Tensor) -> bool:
    """Whether two indices are one place in memory. None are where each stride steps over all that
    the smaller ones reach."""
    reach = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if extent > 1 and stride < reach:
            from weft.index.aliasing import overlaps_itself  # likewise

            return overlaps_itself(_view(tensor))
        reach += (extent - 1) * stride if extent > 1 else 0
    return False


def _view(tensor: torch.Tensor, begin: int = 0) -> View:
    """Where the elements of a tensor lie. ``begin``: of their space."""
    from weft.index.aliasing import View  # likewise

    size = tensor.element_size()
    address = begin + _address(tensor)
    return View(tuple(tensor.size()), tuple(s * size for s in tensor.stride()), address, size)

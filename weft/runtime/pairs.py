"""Arguments of a device loop that are passed as others: a complex one as a pair of floats, and a
list, tuple, dict or dataclass of tensors as its members.

A loop has a launcher of its own for each set of arguments that are complex, and for each set of
forms of collections. The tensors of the former are views (``torch.view_as_real``), so that what
derives, batches or records launches sees floats, and the gradient in torch's convention is what
torch makes of the views.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self, TypeVar

import torch
from torch.autograd import forward_ad

# What is asked of forward mode and transforms has no public name.
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false
from weft.errors import KernelValueError
from weft.frontend.split import Parts, Region
from weft.runtime.fastpath import kind_of
from weft.runtime.native import FastCall
from weft.runtime.signature import check_argument, forms_of, is_pair


class Paired(Protocol):
    """What has others of its kind for pairs and members: a launcher."""

    region: Region

    def other(self, key: Parts) -> Self: ...


T = TypeVar("T", bound=Paired)
_MOST = 4096  # kinds of calls that are counted
_SMALL = 1 << 14  # elements that are copied faster than torch tells autograd of a view


def apart(launcher: T, args: Sequence[Any], call: Callable[[T, tuple[Any, ...]], Any]) -> Any:
    """``call`` of the launcher for pairs and members, and its arguments; its results as complex
    numbers. Where nothing comes apart, of what is given."""
    region = launcher.region
    forms = forms_of(region, args)
    if any(forms):
        own = launcher.other((*forms,))
        found = apart(own, region.members_of(args, forms), call)
        return _vectors(
            own.region, dict(zip((a.name for a in region.args), args, strict=False)), found
        )
    which = frozenset(k for k, pair in enumerate(map(is_pair, region.args, args)) if pair)
    if not which:
        return call(launcher, (*args,))
    made: dict[int, Any] = {}
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []
    several = len(region.stored) + len(region.totals) > 1
    copied, small = several and _is_recorded(args), not _is_transformed() and _is_recorded(args)
    for k in which:
        value, arg = args[k], region.args[k]
        if not isinstance(value, torch.Tensor):
            if arg.parameter is not None:
                check_argument(arg.parameter, value, region.span)
            made[k] = float(value.real), float(value.imag)
        elif id(value) not in made:
            made[id(value)] = _parts(value, arg.name, k in region.stored, region)
            if k in region.stored and (copied or (small and value.numel() <= _SMALL)):
                made[id(value)] = made[id(value)].clone()
                copies.append((value, made[id(value)]))
    given = tuple(made.get(id(v) if isinstance(v, torch.Tensor) else k, v) if k in which else v
                  for k, v in enumerate(args))  # fmt: skip
    own = launcher.other(which)
    found = call(own, given)
    for value, parts in copies:
        value.copy_(torch.view_as_complex(parts))
    return _joined(own.region, found)


def work_of(
    counts: dict[tuple[Any, ...], int], args: Sequence[Any], own: Any, given: Sequence[Any]
) -> FastCall | None:
    """What a builtin does for calls with complex tensors and numbers, of which the launcher ``own``
    was ``given`` the parts; None where there is none, and where calls with such have not just come
    twice, four times, and so on. ``counts``: how often they came."""
    key = tuple((v.size(), v.stride(), v.dtype, v.requires_grad) if isinstance(v, torch.Tensor)
                else type(v) for v in args)  # fmt: skip
    if len(counts) >= _MOST:
        counts.clear()
    count = counts[key] = counts.get(key, 0) + 1
    if count == 1 or count & (count - 1) or _is_recorded(args) or own.region.complex_results:
        return None
    if len(given) != len(own.forms.names) or any(
        isinstance(v, torch.Tensor) and (v.is_conj() or v.is_neg()) for v in args
    ):
        return None
    specs = list(own.forms.specs(given).values())
    kinds = tuple(map(kind_of, specs, given))
    for code in own.generated.values():
        plan = code.plans.get(code.key(*given)) if tuple(code.kinds) == kinds else None
        if plan is not None and not plan.history:
            return code.for_plan(plan, specs, args)
    return None


def _is_recorded(args: Sequence[Any]) -> bool:
    """Whether a derivative may be asked for: torch follows views that a function writes to where
    it writes to nothing else."""
    if _is_transformed():
        return True
    wanted = any(isinstance(v, torch.Tensor) and v.requires_grad for v in args)
    return wanted and torch.is_grad_enabled()


def _is_transformed() -> bool:
    """Whether forward mode or a transform has a part in a call."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def _parts(tensor: torch.Tensor, name: str, written: bool, region: Region) -> torch.Tensor:
    """The parts of a complex tensor, as a view of its memory where that has them as they are."""
    if tensor.is_conj() or tensor.is_neg():
        if written:
            raise KernelValueError(
                f"`{name}` is written, and it is a lazily conjugated or negated view", region.span,
                help=f"pass {name}.resolve_conj().resolve_neg()",
            )  # fmt: skip
        tensor = tensor.resolve_conj().resolve_neg()
    return torch.view_as_real(tensor)


def parts_by_name(region: Region, values: Mapping[str, Any]) -> dict[str, Any]:
    """The complex tensors that a loop writes and reduces into, by name, as pairs: those that it
    reduces into by the names of their parts. None stays None."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name in region.complex_results:
            parts = (None, None) if value is None else torch.view_as_real(value).unbind()
            found |= zip((f"{name}_real", f"{name}_imag"), parts, strict=True)
        else:
            whole = isinstance(value, torch.Tensor) and value.is_complex()
            found[name] = torch.view_as_real(value) if whole else value
    return found


def _joined(region: Region, found: Any) -> Any:
    """What a launch gives, if anything: the two results that are a complex number as one."""
    if not region.complex_results or found is None:
        return found
    results, made = iter(found), list[Any]()
    vectors = region.vector_results
    for name in region.results:
        if name in region.complex_results:
            made.append(torch.complex(next(results), next(results)))
        else:
            made += [next(results) for _ in vectors.get(name, (name,))]
    return made[0] if len(made) == 1 else tuple(made)


def _vectors(region: Region, before: Mapping[str, Any], found: Any) -> Any:
    """What a launch gives, with the numbers of a vector as one like that from before."""
    vectors = region.vector_results
    if not vectors or found is None:
        return found
    from weft.frontend.members import with_leaves  # where there are collections

    results = iter(found if isinstance(found, tuple) else (found,))
    forms = {name: form for name, form, _ in region.collections}
    made = [with_leaves(before[name], forms[name], results) if name in vectors else next(results)
            for name in region.results]  # fmt: skip
    return made[0] if len(made) == 1 else tuple(made)

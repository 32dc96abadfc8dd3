"""The function that a call of a kernel runs first, as Python text with the kernel's own signature.

It asks whether the call is for PyTorch's dispatcher (a mode, a transform, a tracer, a forward-mode
level, a tensor subclass), is profiled, or casts under autocast, and goes on to the host part. What
it finds out of the ordinary it leaves to ``special``, which takes the arguments by the same names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Set
from typing import Any

import torch
from torch.autograd import forward_ad, profiler

# What is asked of torch's dispatcher has no public name.
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false
_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._are_functorch_transforms_active
_autocast = torch._C._is_any_autocast_enabled
_traced = torch._C._is_tracing  # by torch.jit.trace
_functions = torch._C._len_torch_function_stack
_pre_dispatch: Callable[[], int] = torch._ops._len_torch_dispatch_stack_pre_dispatch
# Types of arguments that the host part takes as they are.
PLAIN = frozenset([torch.Tensor, torch.nn.Parameter, int, float, bool, type(None), str])

TENSORS = frozenset([torch.Tensor, torch.nn.Parameter])

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_TEXT = """\
def entry({signature}):
    if (
        _weft_modes() or _weft_transforms() or _weft_traced() or _weft_functions()
        or _weft_forward_ad._current_level >= 0 or _weft_profiler._is_profiler_enabled
        {autocast}{tests}
    ):
        return _weft_special({passed})
    return _weft_host(_weft_launchers{positional})
"""


def dispatched() -> bool:
    """Whether something watches PyTorch's dispatcher, or transforms what goes through it."""
    return bool(_modes() or _transforms() or _traced() or _pre_dispatch())


def autocast_is_on() -> bool:
    """Whether it is, for some device. Dynamo traces this."""
    return any(map(torch.is_autocast_enabled, ("cpu", "cuda", "mps")))


def form(value: Any) -> Any:
    """What checks of an argument ask for."""
    tensor = isinstance(value, torch.Tensor)
    return (value.size(), len(value.shape), value.dtype) if tensor else type(value)


def make_entry(
    signature: inspect.Signature,
    host: Callable[..., Any],
    launchers: list[Callable[..., Any]],
    special: Callable[..., Any],
    plain: Set[type],
    casts: bool,
    checked: Mapping[str, bool],
    seen: Set[Any],
) -> Callable[..., Any]:
    """``entry(*args, **kwargs)`` for ``host(launchers, *args, **kwargs)``, where all arguments are
    of ``plain`` types, and autocast is off if the kernel ``casts`` under it; ``special`` itself
    where the kernel takes any number of arguments. Those ``checked``, by name, are tensors; if one
    of them has more than that to fulfil, ``seen`` has what is known to (see ``form``)."""
    parameters = list(signature.parameters.values())
    if any(p.kind in _VARIADIC for p in parameters):
        return special
    scope: dict[str, Any] = {
        "_weft_modes": _modes, "_weft_transforms": _transforms, "_weft_traced": _traced,
        # Where modes are asked before autograd (``make_fx(pre_dispatch=True)``), so are functions.
        "_weft_functions": _functions, "_weft_forward_ad": forward_ad, "_weft_profiler": profiler,
        "_weft_plain": plain, "_weft_special": special, "_weft_host": host,
        "_weft_launchers": launchers, "_weft_autocast": _autocast,
        "_weft_tensors": TENSORS, "_weft_seen": seen,
    }  # fmt: skip
    declared: list[str] = []
    for k, p in enumerate(parameters):
        before = parameters[k - 1].kind if k else None
        if p.kind is p.KEYWORD_ONLY and before is not p.KEYWORD_ONLY:
            declared.append("*")
        if before is p.POSITIONAL_ONLY and p.kind is not p.POSITIONAL_ONLY:
            declared.append("/")
        if p.default is p.empty:
            declared.append(p.name)
        else:
            scope[f"_weft_default{k}"] = p.default
            declared.append(f"{p.name}=_weft_default{k}")
    if parameters and parameters[-1].kind is inspect.Parameter.POSITIONAL_ONLY:
        declared.append("/")
    passed = "".join(
        f", {p.name}={p.name}" if p.kind is p.KEYWORD_ONLY else f", {p.name}" for p in parameters
    )
    tests = [f"{p.name}.__class__ not in _weft_{'tensors' if p.name in checked else 'plain'}"
             for p in parameters]  # fmt: skip
    if any(checked.values()):
        forms = ", ".join(f"({x}.size(), {x}.dim(), {x}.dtype)" for x in checked)
        tests.append(f"({forms},) not in _weft_seen")
    text = _TEXT.format(
        signature=", ".join(declared),
        autocast="or _weft_autocast()\n        " if casts else "",
        tests="".join(f"or {test}\n        " for test in tests),
        passed=passed.removeprefix(", "),
        positional=passed,
    )
    exec(compile(text, "<weft entry>", "exec"), scope)
    return scope["entry"]

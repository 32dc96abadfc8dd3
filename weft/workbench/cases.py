"""One way to call a kernel: sizes, dtypes, where elements lie, what numbers there are; and what a
call with it computes."""

from __future__ import annotations

import contextlib
import math
import random
import warnings
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import torch

# pyright: reportPrivateUsage=false
from weft.kernel import Kernel
from weft.values import frozen
from weft.workbench.arguments import Maker
from weft.workbench.compare import parts, widened

LAYOUTS = ("strided", "transposed", "offset", "expanded")
_SPECIAL = (math.inf, -math.inf, math.nan, 0.0, -0.0)


@frozen
class Case:
    """``layout``: "contiguous" or one of ``LAYOUTS``. ``dtype``: that of floating-point tensors, or
    None: as they are made. ``values``: "random"; "special", with infinities, NaN and zeros of both
    signs among them; "small", whole numbers; or "zero"."""

    sizes: tuple[tuple[str, int], ...]
    layout: str = "contiguous"
    dtype: torch.dtype | None = None
    values: str = "random"
    device: str = "cpu"
    seed: int = 0

    def resized(self, **sizes: int) -> Case:
        return replace(self, sizes=tuple({**dict(self.sizes), **sizes}.items()))


def build(maker: Maker, case: Case, mutated: frozenset[str]) -> dict[str, Any]:
    """The arguments of a case, on the CPU, by parameter."""
    given = maker.make(dict(case.sizes), case.seed)
    return {name: _formed(name, value, case, name in mutated) for name, value in given.items()}


def special_cases(maker: Maker) -> list[Case]:
    """Infinities and NaN: few, so that each is seen in what is computed of it, and more."""

    def sized(n: int) -> tuple[tuple[str, int], ...]:
        return tuple((name, min(n, maker.most.get(name, n))) for name in maker.sizes)

    return [Case(sized(n), values="special", seed=n) for n in (2, 3, 5, 17)]


def _formed(name: str, value: Any, case: Case, is_mutated: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return _simple(value) if case.values in ("small", "zero") else value
    if case.dtype is not None and value.is_floating_point():
        value = value.to(case.dtype)
    if value.is_floating_point():
        value = _valued(name, value, case)
    layout = "contiguous" if is_mutated and case.layout == "expanded" else case.layout
    return laid_out(value, layout)


def _simple(value: Any) -> Any:
    return float(math.copysign(1.0, value)) if isinstance(value, float) else value


def _valued(name: str, value: torch.Tensor, case: Case) -> torch.Tensor:
    if case.values == "zero":
        return torch.zeros_like(value)
    if case.values == "small":
        return value.nan_to_num(0.0).round().clamp(-3, 3)
    if case.values == "special":
        chosen = random.Random(f"{case.seed} {name}")  # others in each tensor
        flat = value.reshape(-1).clone()
        begin, count = chosen.randrange(len(_SPECIAL)), -(-flat.numel() // 5)
        for k, place in enumerate(chosen.sample(range(flat.numel()), count)):
            flat[place] = _SPECIAL[(begin + k) % len(_SPECIAL)]
        return flat.reshape(value.size())
    return value


def laid_out(value: torch.Tensor, layout: str) -> torch.Tensor:
    """The same elements: with gaps along the last dimension, dimensions the other way round in
    memory, behind an offset of one element, or the first slice repeated with stride 0."""
    rank = value.dim()
    if layout == "contiguous" or rank == 0:
        return value.clone(memory_format=torch.contiguous_format)
    if layout == "expanded":
        return value[:1].clone().expand(value.size()) if value.numel() else value.clone()
    if layout == "strided":
        room = value.new_empty((*value.size()[:-1], 2 * value.size()[-1] + 1))
        view = room[..., 1::2]
    elif layout == "transposed":
        view = value.new_empty(value.size()[::-1]).permute(*reversed(range(rank)))
    else:
        view = value.new_empty(value.numel() + 1)[1:].view(value.size())
    return view.copy_(value)


def copied(arguments: dict[str, Any], device: str = "cpu") -> dict[str, Any]:
    """Arguments of their own memory, each tensor with the strides and the offset that it has."""

    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if 0 in value.stride() and value.numel():
            return value[:1].clone().to(device).expand(value.size())
        if value.numel() == 0:
            return value.clone().to(device)
        extent = 1 + sum((n - 1) * s for n, s in zip(value.size(), value.stride(), strict=True))
        offset = value.storage_offset()
        room = torch.empty(extent + offset, dtype=value.dtype, device=device)
        return room.as_strided(value.size(), value.stride(), offset).copy_(value)

    return {name: copy(value) for name, value in arguments.items()}


def as_float64(arguments: dict[str, Any]) -> dict[str, Any]:
    return {n: widened(v) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}


def outcome(
    kernel: Kernel, call: Callable[..., Any], arguments: dict[str, Any]
) -> dict[str, torch.Tensor]:
    """All that a call computes: results, and arguments that the kernel writes to; on the CPU,
    complex numbers as pairs."""
    bound = kernel.signature.bind_partial()
    bound.arguments.update(arguments)
    with same_numbers():
        result = call(*bound.args, **bound.kwargs)
    found = {n: arguments[n] for n in arguments if n in kernel.mutated}
    several = isinstance(result, tuple | list)
    for k, value in enumerate(result if several else [result]):
        if value is not None:
            found[f"result {k}" if several else "the result"] = torch.as_tensor(value)
    # Two mutated arguments may share memory with a result.
    tensors = {n: t for n, t in found.items() if isinstance(t, torch.Tensor)}
    return {n: parts(t.detach().cpu()).clone() for n, t in tensors.items()}


@contextlib.contextmanager
def same_numbers() -> Generator[None]:
    """Has what draws random numbers draw the same each time."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        yield


@contextlib.contextmanager
def filled_memory() -> Generator[None]:
    """Has ``torch.empty`` give NaN, or the largest integer: what nobody writes shows."""
    before = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    how: Any = torch.utils.deterministic
    fills = how.fill_uninitialized_memory
    # Not by ``torch.use_deterministic_algorithms``, which imports Inductor.
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    how.fill_uninitialized_memory = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch._C._set_deterministic_algorithms(before, warn_only=only_warns)
        how.fill_uninitialized_memory = fills


def shapes(arguments: dict[str, Any]) -> str:
    """What arguments are, in a few words: ``x f32[2, 3]; n 4``."""

    def one(name: str, value: Any) -> str:
        if not isinstance(value, torch.Tensor):
            return f"{name} {value!r}"
        dtype = str(value.dtype).removeprefix("torch.")
        for long, short in (("float", "f"), ("uint", "u"), ("int", "i"), ("bf", "bf")):
            if dtype.startswith(long) and dtype[len(long) :].isdigit():
                dtype = short + dtype[len(long) :]
                break
        return f"{name} {dtype}{list(value.size())}".replace("bfloat16", "bf16")

    return "; ".join(one(name, value) for name, value in arguments.items())

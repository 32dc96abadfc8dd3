"""Arguments of a kernel at any sizes: made from its annotations, cut out of given ones, or by the
function ``NAME_arguments`` beside it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from weft.errors import first_line
from weft.frontend.parameters import EMPTY, Parameter, is_jaxtyping
from weft.kernel import Kernel
from weft.lang.types import NDArrayType
from weft.source import subtree
from weft.values import frozen
from weft.workbench.report import UsageError

Sizes = Mapping[str, int]
SMALL = (2, 3, 5, 4)  # to begin with: sizes that are not alike
_UNNAMED = "n"  # the size of dimensions of which nothing is known
_WAYS = "give arguments: --args 'torch.randn(8, 3), 2', or a function {0}_arguments() beside it"


@frozen
class Maker:
    """``make(sizes, seed)`` gives arguments by the names of parameters. ``sizes``: names of sizes
    and what they are to begin with; ``most``: what they may be at most. ``promised``: arguments of
    any sizes are good ones, so that an error of the Python with them is one of the kernel."""

    sizes: dict[str, int]
    make: Callable[[Sizes, int], dict[str, Any]]
    promised: bool
    most: dict[str, int]


def maker_of(
    kernel: Kernel, args: tuple[Any, ...], kwargs: Mapping[str, Any], names: Mapping[str, Any]
) -> Maker:
    """How arguments of ``kernel`` are made: of ``args`` and ``kwargs`` if there are any, else by
    the function ``NAME_arguments`` among ``names``, else by annotations. Raises ``UsageError``."""
    hook = names.get(f"{kernel.__name__}_arguments")
    if args or kwargs:
        return _from_given(dict(kernel.bind(args, dict(kwargs)).arguments))
    return _from_hook(kernel, hook) if callable(hook) else _from_annotations(kernel)


# --- of given ones -------------------------------------------------------------------------------
def _from_given(given: dict[str, Any]) -> Maker:
    """Sizes that are alike are one; numbers that are a size as well follow it. Smaller tensors are
    cut out of those given."""
    tensors = [v for v in given.values() if isinstance(v, torch.Tensor)]
    most = {f"size{n}": n for t in tensors for n in t.size()}

    def make(sizes: Sizes, seed: int) -> dict[str, Any]:
        def cut(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                box = tuple(slice(0, sizes[f"size{n}"]) for n in value.size())
                return value.detach()[box].clone()
            if isinstance(value, int) and not isinstance(value, bool):
                return sizes.get(f"size{value}", value)
            return value

        return {name: cut(value) for name, value in given.items()}

    return Maker(most, make, False, most)


def _from_hook(kernel: Kernel, hook: Any) -> Maker:
    """A function whose parameters are sizes; it returns a tuple, or a dict by parameter."""
    parameters = inspect.signature(hook).parameters.values()
    sizes = {p.name: p.default for p in parameters}
    if not all(type(n) is int for n in sizes.values()):
        raise UsageError(f"parameters of {kernel.__name__}_arguments are sizes: each needs a "
                         "default, an int")  # fmt: skip

    def make(sizes: Sizes, seed: int) -> dict[str, Any]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            value = hook(**sizes)
        args, kwargs = ((), value) if isinstance(value, dict) else (value, {})
        return dict(kernel.bind(args if isinstance(args, tuple) else (args,), kwargs).arguments)

    return Maker(sizes, make, True, {})


# --- of annotations ------------------------------------------------------------------------------
def _from_annotations(kernel: Kernel) -> Maker:
    """Sizes are the names in annotations, and the int parameters without a default."""
    uses = Uses(kernel)
    drawn: dict[str, Callable[[Sizes, torch.Generator], Any]] = {}
    sizes: dict[str, int] = {}
    for parameter in kernel.parts.parameters:
        if parameter.position in (parameter.position.VAR_POSITIONAL,
                                  parameter.position.VAR_KEYWORD):  # fmt: skip
            continue
        named, draw = _drawing(kernel, parameter, uses)
        drawn[parameter.name] = draw
        for name in named:
            sizes.setdefault(name, SMALL[len(sizes) % len(SMALL)])

    def make(sizes: Sizes, seed: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed)
        return {name: draw(sizes, generator) for name, draw in drawn.items()}

    return Maker(sizes, make, _names_every_size(kernel), {})


def _names_every_size(kernel: Kernel) -> bool:
    tensors = [p for p in kernel.parts.parameters if p.kind == "tensor"]
    return all(is_jaxtyping(p.annotation) for p in tensors)


def _drawing(
    kernel: Kernel, parameter: Parameter, uses: Uses
) -> tuple[list[str], Callable[[Sizes, torch.Generator], Any]]:
    """The names of sizes that one parameter has, and what draws it."""
    name, kind = parameter.name, parameter.kind
    if not kind and parameter.default is EMPTY:
        kind = "tensor" if uses.ranks.get(name) else "float"
    if parameter.default is not EMPTY and kind != "tensor":
        return [], lambda sizes, generator: parameter.default
    if kind == "tensor":
        words = _words(kernel, parameter, uses)
        dtype = _dtype(parameter, uses)
        indexes = name in uses.indices

        def tensor(sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
            shape = [_evaluated(word, sizes) for word in words]
            return random_tensor(shape, dtype, generator, min(sizes.values()) if indexes else None)

        return [n for word in words for n in re.findall(r"[A-Za-z_]\w*", word)], tensor
    if kind == "int":
        return [name], lambda sizes, generator: sizes[name]
    if kind in ("float", "bool"):
        return [], lambda sizes, generator: 0.75 if kind == "float" else True
    raise UsageError(f"nothing says what the template parameter `{name}` of {kernel.__name__} is\n"
                     f"help: {_WAYS.format(kernel.__name__)}")  # fmt: skip


def random_tensor(
    shape: list[int], dtype: torch.dtype, generator: torch.Generator, below: int | None = None
) -> torch.Tensor:
    """Normal numbers, or small integers: from 0 on ``below`` it, if that is given."""
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        return torch.randn(shape, generator=generator, dtype=wide).to(dtype)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    low = 0 if below is not None or not dtype.is_signed else -9
    high = 20 if below is None else max(below, 1)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def _words(kernel: Kernel, parameter: Parameter, uses: Uses) -> list[str]:
    """What each dimension of a tensor is called: names, numbers, or expressions of names."""
    annotation, name = parameter.annotation, parameter.name
    if is_jaxtyping(annotation):
        words = [word.lstrip("#?") for word in annotation.dim_str.split()]
        return [_word(word, f"{name}_{k}") for k, word in enumerate(words)]
    inner = [str(n) for n in getattr(annotation, "element_shape", ())]
    rank = annotation.rank if isinstance(annotation, NDArrayType) else None
    rank = uses.ranks.get(name) if rank is None else rank
    if rank is None:
        raise UsageError(
            f"nothing says how many dimensions `{name}` of {kernel.__name__} has\n"
            f'help: annotate it, `{name}: Float[torch.Tensor, "b t"]`, or '
            f"{_WAYS.format(kernel.__name__)}"
        )
    return [*[_UNNAMED] * (rank - len(inner)), *inner]


def _word(word: str, own: str) -> str:
    if word == "..." or word.startswith("*"):
        return word.lstrip("*").replace("...", "batch").lstrip("_") or own
    if word.startswith("_"):
        return own
    return word.rpartition("=")[2]


def _evaluated(word: str, sizes: Sizes) -> int:
    return int(word) if word.isdigit() else int(eval(word, {}, dict(sizes)))


def _dtype(parameter: Parameter, uses: Uses) -> torch.dtype:
    annotation = parameter.annotation
    if isinstance(annotation, NDArrayType) and annotation.dtype is not None:
        return annotation.dtype.torch
    allowed = dtypes_of(parameter)
    wanted = torch.int64 if parameter.name in uses.indices else torch.float32
    if allowed is None or wanted in allowed:
        return wanted
    order = (torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64, torch.float64)
    return next((d for d in order if d in allowed), allowed[0])


def dtypes_of(parameter: Parameter) -> list[torch.dtype] | None:
    """The dtypes that the annotation of a tensor allows; None if it says nothing."""
    annotation = parameter.annotation
    if isinstance(annotation, NDArrayType):
        return None if annotation.dtype is None else [annotation.dtype.torch]
    if not is_jaxtyping(annotation) or isinstance(annotation.dtypes, str):
        return None
    found = [getattr(torch, str(name), None) for name in annotation.dtypes]
    return [d for d in found if isinstance(d, torch.dtype)] or None


class Uses:
    """What the source says of parameters: by how many subscripts they are read (``ranks``), and
    which of them are read for the subscripts of others (``indices``)."""

    def __init__(self, kernel: Kernel) -> None:
        self.ranks: dict[str, int] = {}
        self.indices: set[str] = set()
        for node in subtree(kernel.source.tree):
            self._note(node)

    def _at_least(self, node: ast.expr, rank: int) -> None:
        if isinstance(node, ast.Name):
            self.ranks[node.id] = max(rank, self.ranks.get(node.id, 0))

    def _note(self, node: ast.AST) -> None:
        if isinstance(node, ast.Subscript):
            self._subscript(node)
        elif isinstance(node, ast.Assign) and _is_shape(node.value):
            for target in node.targets:
                if isinstance(target, ast.Tuple):
                    self._at_least(_owner(node.value), len(target.elts))
        elif isinstance(node, ast.For):
            length = len(node.target.elts) if isinstance(node.target, ast.Tuple) else 1
            self._at_least(node.iter, length)
            for argument in node.iter.args if isinstance(node.iter, ast.Call) else ():
                if isinstance(argument, ast.Starred) and _is_shape(argument.value):
                    self._at_least(_owner(argument.value), length)

    def _subscript(self, node: ast.Subscript) -> None:
        inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if _is_shape(node.value):
            last = node.slice.value if isinstance(node.slice, ast.Constant) else None
            if isinstance(last, int) and last >= 0:
                self._at_least(_owner(node.value), last + 1)
            return
        self._at_least(node.value, len(inside))
        for inner in (n for index in inside for n in subtree(index)):
            if isinstance(inner, ast.Subscript) and isinstance(inner.value, ast.Name):
                self.indices.add(inner.value.id)


def _is_shape(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "shape"


def _owner(node: ast.expr) -> ast.expr:
    assert isinstance(node, ast.Attribute)
    return node.value


def device_of(name: str) -> torch.device:
    """The device of that name, the GPU if there is one for "". Raises ``UsageError``."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not name:
        return torch.device("cuda" if count else "cpu")
    kind, _, place = name.partition(":")
    if kind not in ("cpu", "cuda") or not (place or "0").isdigit():
        raise UsageError(f"{name!r} is no device that kernels run on\nhelp: write cpu or cuda")
    if kind == "cuda" and int(place or 0) >= count:
        raise UsageError(f"{name!r} is not here: PyTorch sees {count} GPUs\nhelp: write cpu")
    return torch.device(name)


def call_arguments(
    kernel: Kernel, args: tuple[Any, ...], names: Mapping[str, Any] | None = None,
    sizes: Sizes | None = None, device: str = "",
) -> tuple[Any, ...]:  # fmt: skip
    """``args``, or arguments that are made (see ``maker_of``), of ``sizes`` where these are given,
    on ``device`` ("": the GPU if there is one). Raises ``UsageError``."""
    if args:
        if sizes:
            raise UsageError("sizes are for arguments that are made, and --args are given")
        device_of(device)
        return args
    scope = getattr(kernel.function, "__globals__", {}) if names is None else names
    maker = maker_of(kernel, (), {}, scope)
    unknown = [name for name in sizes or () if name not in maker.sizes]
    if unknown:
        raise UsageError(f"{unknown[0]!r} is no size of {kernel.__name__}\n"
                         f"help: there are {', '.join(maker.sizes) or 'none'}")  # fmt: skip
    where = device_of(device)
    bound = kernel.signature.bind_partial()
    try:
        bound.arguments.update(maker.make({**maker.sizes, **(sizes or {})}, 0))
        return tuple(v.to(where) if isinstance(v, torch.Tensor) else v
                     for v in (*bound.args, *bound.kwargs.values()))  # fmt: skip
    except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is one
        raise UsageError(f"arguments of these sizes cannot be made: {first_line(error)}") from error

"""A failing case made as small as it stays failing, and as Python that shows it."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from weft.kernel import Kernel
from weft.workbench.cases import Case

SECONDS = 10.0  # that shrinking may take


def shrunk(case: Case, fails: Callable[[Case], bool]) -> Case:
    """The smallest case that was found to fail as well: contiguous where it can be, sizes towards
    0, numbers towards whole ones and zeros."""
    end = time.perf_counter() + SECONDS
    while True:
        smaller = next((c for c in _smaller(case) if time.perf_counter() < end and fails(c)), None)
        if smaller is None:
            return case
        case = smaller


def _smaller(case: Case) -> Iterator[Case]:
    """What is simpler than ``case``, the simplest first."""
    if case.layout != "contiguous":
        yield replace(case, layout="contiguous")
    least = {name: min(n, 1) for name, n in case.sizes}
    if least != dict(case.sizes):
        yield case.resized(**least)
    for name, size in case.sizes:
        for fewer in dict.fromkeys((0, 1, 2, size // 2, size - 1)):
            if 0 <= fewer < size:
                yield case.resized(**{name: fewer})
    if case.values in ("random", "special", "small"):
        yield replace(case, values="zero")
    if case.values in ("random", "special"):
        yield replace(case, values="small")


def as_python(
    kernel: Kernel, arguments: dict[str, Any], device: str, compared: list[str], seen: str
) -> str:
    """A program that calls ``kernel`` on ``device`` and its Python with these arguments, and
    compares. ``compared``: what, by the names that ``cases.outcome`` gives; ``seen``: what was
    found wrong."""
    module, name = kernel.__module__, kernel.__name__
    made = [f"        {n}={_literal(value)}," for n, value in arguments.items()]
    special = [w for w in ("inf", "nan") if any(re.search(rf"\b{w}\b", line) for line in made)]
    lines = [*(f"# {line}" for line in seen.splitlines())]
    file = getattr(sys.modules.get(module), "__file__", None)
    lines += ["import sys"] if file else []
    lines += [f"from math import {', '.join(special)}"] if special else []
    lines += ["", "import torch", ""]
    if file is not None:
        path = Path(file).resolve()
        depth = 1 if module == "__main__" else len(module.split("."))
        lines.append(f"sys.path.insert(0, {str(path.parents[depth - 1])!r})")
        module = path.stem if depth == 1 else module
    lines += [f"from {module} import {name}", "", "", "def arguments():", "    return dict("]
    lines += [*made, "    )", "", "", "mine, python = arguments(), arguments()"]
    if device != "cpu":
        lines += ["for name, value in mine.items():", "    if isinstance(value, torch.Tensor):",
                  f"        mine[name] = value.to({device!r})"]  # fmt: skip
    lines += [f"found, expected = {name}(**mine), {name}.interpret(**python)"]
    results = [n for n in compared if n not in arguments]
    pairs = [("found", "expected")] if results else []
    pairs += [(f"mine[{n!r}]", f"python[{n!r}]") for n in compared if n in arguments]
    lines += [
        f"torch.testing.assert_close({a}, {b}, equal_nan=True, check_device=False)"
        for a, b in pairs
    ]
    return "\n".join(lines) + "\n"


def _literal(value: Any) -> str:
    """Python for a value; tensors with the strides and the offset that they have."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    dtype = f"dtype={value.dtype}"
    if value.numel() == 0:
        return f"torch.empty({tuple(value.size())}, {dtype})"
    content = f"torch.tensor({value.tolist()}, {dtype})"
    if value.is_contiguous() and value.storage_offset() == 0:
        return content
    if 0 in value.stride():
        return f"torch.tensor({value[:1].tolist()}, {dtype}).expand({tuple(value.size())})"
    offset, shape, stride = value.storage_offset(), tuple(value.size()), value.stride()
    extent = offset + 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    view = f"torch.empty({extent}, {dtype}).as_strided({shape}, {stride}, {offset})"
    return f"{view}.copy_({content})"

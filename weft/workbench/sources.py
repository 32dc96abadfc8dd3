"""``FILE:KERNEL``: the kernel of that name in a file or a module."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from weft.kernel import kernel_inside
from weft.values import frozen
from weft.workbench.report import UsageError


@frozen
class Source:
    """A kernel, or what else was asked for, and the names of the file in which it is."""

    kernel: Any
    names: dict[str, Any]

    def evaluate(self, expression: str) -> tuple[Any, ...]:
        """The arguments that ``expression`` lists, with the file's names and torch's; none of
        ""."""
        if not expression:
            return ()
        scope = {"torch": importlib.import_module("torch"), **self.names}
        try:  # in parentheses, for "*pair, 2"; "*pair" alone lacks the comma that makes a tuple
            try:
                value = eval(f"({expression})", scope)
            except SyntaxError:
                value = eval(f"({expression},)", scope)
        except Exception as error:
            raise UsageError(f"--args {expression!r}: {type(error).__name__}: {error}") from error
        return value if isinstance(value, tuple) else (value,)


def load(text: str, *kinds: type) -> Source:
    """The kernel, or object of one of ``kinds``, that ``text`` names: ``path/file.py:kernel`` or
    ``package.module:kernel``; without ``:kernel`` the only kernel that is there. Raises
    ``UsageError``."""
    place, _, name = text.rpartition(":") if ":" in text else (text, "", "")
    module = _module(place)
    names = vars(module)
    kernels = {n: k for n, v in names.items() if (k := kernel_inside(_plain(v))) is not None}
    own = [n for n, k in kernels.items() if k.__module__ == module.__name__]
    listed = f"there are {', '.join(own)}" if own else "there are none: decorate one @weft.kernel"
    if not name and len(own) != 1:
        raise UsageError(f"{place}: which kernel?\nhelp: write {place}:KERNEL; {listed}")
    other = names.get(name)
    found = other if isinstance(other, kinds) else kernels.get(name or own[0])
    if found is None:
        raise UsageError(f"{place} has no kernel {name!r}\nhelp: {listed}")
    return Source(found, names)


def function_of(place: str, name: str) -> Callable[[], Any]:
    """The function ``name`` of a file or a module, which takes no argument. Raises
    ``UsageError``."""
    names = vars(_module(place))
    found = names.get(name)
    if not callable(found):
        there = [n for n, v in names.items() if inspect.isfunction(v)]
        raise UsageError(f"{place} has no function {name!r}\n"
                         f"help: there are {', '.join(there) or 'none'}")  # fmt: skip
    return found


def _plain(value: Any) -> Any:
    """``value`` where it can be a kernel, or what wraps one; classes and modules are not asked."""
    return value if callable(value) and not isinstance(value, type) else None


def _module(place: str) -> Any:
    path = Path(place)
    if path.suffix != ".py":
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise UsageError(f"there is no module {error.name!r}\nhelp: write FILE.py:KERNEL or "
                             "MODULE:KERNEL") from None  # fmt: skip
    if not path.is_file():
        raise UsageError(f"there is no file {place}")
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # for what the file imports from beside it
        sys.path.insert(0, folder)
    known = sys.modules.get(path.stem)
    if known is not None and _is_at(known, path):
        return known
    if known is not None or not path.stem.isidentifier():
        # Another module has this name: the file gets one of its own.
        return _executed(f"weft_file_{abs(hash(str(path.resolve())))}", path)
    return _executed(path.stem, path)


def _is_at(module: Any, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve() == path.resolve()


def _executed(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def parsed_sweep(texts: Sequence[str]) -> dict[str, list[int]]:
    """``n=1024,4096`` or ``n=1024..65536`` (doubled each time), one text a size. Raises
    ``UsageError``."""
    found: dict[str, list[int]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        first, dots, last = values.partition("..")
        try:
            if dots:
                low, high = int(first), int(last)
                if not 0 < low <= high:
                    raise ValueError
                found[name] = [low << k for k in range(high.bit_length()) if low << k <= high]
            else:
                found[name] = [int(n) for n in values.split(",")]
        except ValueError:
            raise UsageError(f"--sweep {text!r}: write --sweep n=1000,2000 or, doubled each time, "
                             "--sweep n=1024..65536") from None  # fmt: skip
    return found


def parsed_sizes(texts: Sequence[str]) -> dict[str, int]:
    """``n=1024``, one text a size. Raises ``UsageError``."""
    found = parsed_sweep(texts)
    several = [name for name, values in found.items() if len(values) != 1]
    if several:
        raise UsageError(f"--size {several[0]}: write one number; sweeps are for weft bench")
    return {name: values[0] for name, values in found.items()}

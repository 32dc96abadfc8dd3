"""``FILE:KERNEL``: the kernel of that name in a file or a module."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from weft.errors import WeftError
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
    if found is None and inspect.isfunction(other):
        raise UsageError(f"{name!r} of {place} is a function, not a kernel\n"
                         f"help: decorate it @weft.kernel; {listed}")  # fmt: skip
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
        return _imported(place)
    if not path.is_file():
        raise UsageError(f"there is no file {place}")
    _found_from(path.resolve().parent)  # for what the file imports from beside it
    known = sys.modules.get(path.stem)
    if known is not None and _is_at(known, path):
        return known
    with _told(place):
        if known is not None or not path.stem.isidentifier():
            # Another module has this name: the file gets one of its own.
            return _executed(f"weft_file_{abs(hash(str(path.resolve())))}", path)
        return _executed(path.stem, path)


def _imported(place: str) -> Any:
    """The module of that name, from the current folder, too, as ``python -m`` has it."""
    missing = UsageError(f"there is no module {place!r}\n"
                         "help: write FILE.py:KERNEL or MODULE:KERNEL")  # fmt: skip
    if not all(map(str.isidentifier, place.split("."))):
        raise missing
    _found_from(Path.cwd())
    with _told(place):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if f"{place}.".startswith(f"{error.name}."):
                raise missing from None
            raise


def _found_from(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


@contextlib.contextmanager
def _told(place: str) -> Generator[None]:
    """What ends an import is ``UsageError``, with the frames of what is imported alone."""
    try:
        yield
    except SystemExit as end:
        raise UsageError(
            f"{place} ended the program with {end.code!r} when it was imported\n"
            'help: put what runs under `if __name__ == "__main__":`'
        ) from None
    except WeftError:
        raise
    except Exception as error:
        lines = traceback.format_exception_only(error)
        frames = [f for f in traceback.extract_tb(error.__traceback__)
                  if f.filename != __file__ and "importlib" not in f.filename]  # fmt: skip
        shown = "".join([*traceback.format_list(frames), *lines]).rstrip()
        raise UsageError(f"{place} cannot be imported:\n{shown}") from None


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
    found: dict[str, int] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name.isidentifier() or not value.isdecimal():
            raise UsageError(f"--size {text!r}: write one number, as in --size n=1024; sweeps are "
                             "for weft bench")  # fmt: skip
        found[name] = int(value)
    return found

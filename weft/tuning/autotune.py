"""``weft.autotune``: which of several sets of template arguments a kernel is called with."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from weft.errors import KernelTypeError, WeftError, first_line, warn
from weft.frontend.names import Scope
from weft.frontend.specs import constant_key
from weft.frontend.split import HostPart
from weft.kernel import Kernel, kernel_inside
from weft.pytorch.identity import text_of
from weft.runtime.cache import hashed
from weft.runtime.entry import PLAIN, dispatched
from weft.runtime.tuned import Record, machine_of, records, shape_class, size_class
from weft.tuning.measure import Measure, measure
from weft.tuning.state import Kept, difference, tensors_in
from weft.values import frozen

log = logging.getLogger("weft.tune")
_MOST = 4096  # exact sizes that are remembered
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Config(dict[str, Any]):
    """Values for parameters of a kernel: ``weft.Config(BLOCK=32)``."""

    def __str__(self) -> str:
        return ", ".join(f"{name}={_text(value)}" for name, value in self.items())

    def __repr__(self) -> str:
        return f"weft.Config({self})"


class AutotuneWarning(UserWarning):
    """A config that is left out, or a kernel whose configs are not measured."""


def autotune(
    configs: Sequence[Mapping[str, Any]], key: Sequence[str] = (), *, measure: Measure = measure
) -> Callable[[Any], Any]:
    """Has a kernel choose among ``configs``, values of some of its parameters, by measuring.

    ``@weft.autotune(configs=[weft.Config(BLOCK=32), weft.Config(BLOCK=64)], key=["x"])`` stands
    above or below ``@weft.kernel`` (which it implies) and other decorators. Calls leave the
    parameters of the configs out; the first call with new size classes of the arguments that
    ``key`` names measures every config on them, and keeps the fastest, also on disk. Sizes and
    numbers between two powers of two are of one class; dtypes and devices of tensor arguments, and
    other values that ``key`` names, are of their own. Fake tensors, and calls that something
    watches or transforms, measure nothing: they take what is known, or the first config.

    Every config has to compute what the first one does: it is tried, and left out with a warning
    otherwise. ``measure(runs, device, restore)`` gives milliseconds.
    """
    if isinstance(key, str):
        raise TypeError(f"`key` is a list of names: write key=[{key!r}]")

    def decorate(function: Any) -> Any:
        inner = kernel_inside(function)
        if inner is None:
            if not inspect.isfunction(function):
                raise KernelTypeError(
                    f"weft.autotune decorates a kernel, not {type(function).__name__}",
                    help="put it above or below @weft.kernel",
                )
            function = inner = Kernel(function, {}, "", "weft")
        made = Autotuning(inner, [Config(c) for c in configs], key, measure)
        if function is inner:
            return inner.changed({}, made)
        inner.adopt({}, made)
        return function

    return decorate


@frozen
class Choice:
    """What one size class takes, and the milliseconds of each config (by its text) that computes
    what the first one does."""

    config: Config
    milliseconds: Mapping[str, float]

    def __str__(self) -> str:
        times = "; ".join(f"{config}: {ms:.4g} ms" for config, ms in self.milliseconds.items())
        return f"{self.config} ({times})"


class Autotuning:
    """The configs of one kernel, and what was chosen so far: ``choices`` by machine and size class,
    as they were measured; ``chosen`` by exact sizes."""

    def __init__(
        self, kernel: Kernel, configs: Sequence[Config], key: Sequence[str], measure: Measure
    ) -> None:
        """Raises ``KernelTypeError`` where configs and key do not fit the kernel's parameters."""
        self.configs = configs
        self.key = tuple(key)
        self.measure = measure
        self.names = tuple(configs[0]) if configs else ()
        own = inspect.signature(kernel.function).parameters
        self._check(kernel, own)
        # What calls pass. Behind the first of the configs' parameters it goes by its name.
        self.passed = [n for n in own if n not in self.names]
        self.first = min(map(list(own).index, self.names))
        self.positional = not any(p.kind in _VARIADIC for p in own.values())
        self.choices: dict[tuple[str, str], Choice] = {}
        self.chosen: dict[tuple[Any, ...], Config] = {}
        self._lock = threading.RLock()
        records.announce(self)

    def forget(self) -> None:
        """There are other records: they are asked again."""
        self.chosen.clear()

    def __str__(self) -> str:
        """What was measured: a line for each machine and size class."""
        return "\n".join(
            f"{machine}: {sizes}: {choice}" for (machine, sizes), choice in self.choices.items()
        )

    @property
    def text(self) -> str:
        """What tells it from others, in words that are the same in each process."""
        return f"autotune({'; '.join(map(str, self.configs))}, key={self.key})"

    def _check(self, kernel: Kernel, parameters: Mapping[str, inspect.Parameter]) -> None:
        def refuse(message: str, help: str) -> None:
            raise KernelTypeError(message, kernel.span, help=help)

        if not self.names:
            refuse("weft.autotune has no configs", "write configs=[weft.Config(BLOCK=32), ...]")
        for config in self.configs:
            if set(config) != set(self.names):
                refuse(f"the configs ({config}) and ({self.configs[0]}) name different parameters",
                       "give each config a value for every parameter")  # fmt: skip
        if len({str(config) for config in self.configs}) < len(self.configs):
            refuse("two configs are alike", "leave one of them out")
        for name in (*self.names, *self.key):
            if name not in parameters:
                refuse(f"there is no parameter `{name}`",
                       f"the parameters are {', '.join(parameters)}")  # fmt: skip
        kinds = [p.kind for p in parameters.values()]
        for name in self.names:
            where = list(parameters).index(name)
            if name in self.key:
                refuse(f"`{name}` is in the key and in the configs",
                       "the key names what calls pass")  # fmt: skip
            if (
                kinds[where] not in (_KEYWORD, inspect.Parameter.POSITIONAL_OR_KEYWORD)
                or _VARIADIC[0] in kinds[where:]
            ):
                refuse(f"`{name}` cannot be passed by its name", "declare it behind the others")

    # -- what the kernel asks for

    def signature(self, signature: inspect.Signature) -> inspect.Signature:
        """The signature without the parameters of the configs: they may be given by name."""
        own = signature.parameters
        kept = [own[n] for n in self.passed]
        given = [own[n].replace(kind=_KEYWORD, default=None) for n in self.names]
        ends = [p for p in kept if p.kind is inspect.Parameter.VAR_KEYWORD]
        kept = [p for p in kept if p not in ends]
        return signature.replace(parameters=[*kept, *given, *ends])

    def parts(self, kernel: Kernel, parts: HostPart) -> HostPart:
        """The parts of a kernel whose host function chooses a config, where none is given."""
        plain, by_name = parts.host, {p.name: p for p in parts.parameters}

        @functools.wraps(plain)
        def host(launchers: Any, *args: Any, **kwargs: Any) -> Any:
            args, kwargs = self.completed(kernel, args, kwargs, launchers)
            return plain(launchers, *args, **kwargs)

        wanted = kernel.signature.parameters
        parameters = tuple(
            replace(by_name[n], default=p.default, position=p.kind) for n, p in wanted.items()
        )
        return replace(parts, host=host, parameters=parameters)

    def completed(
        self, kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any], launchers: Any = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call with those of a config. Nothing is measured but for the kernel's
        own ``launchers``. Raises ``KernelTypeError`` where only some are given."""
        given: Mapping[str, Any] = {n: kwargs.pop(n, None) for n in self.names}
        absent = [n for n, value in given.items() if value is None]
        if absent and len(absent) < len(given):
            raise KernelTypeError(
                f"`{next(n for n in given if n not in absent)}` is given, and `{absent[0]}` is not",
                kernel.span,
                help=f"give all of {', '.join(given)}, or none of them to have them chosen",
            )
        if absent:
            values: Sequence[Any] = args
            if kwargs or len(args) != len(self.passed) or not self.positional:
                bound = kernel.signature.bind(*args, **kwargs)
                bound.apply_defaults()
                values = [bound.arguments[n] for n in self.passed]
            given = self._chosen(kernel, values, launchers)
        if len(args) > self.first:
            kwargs = {**kwargs, **dict(zip(self.passed[self.first :], args[self.first :]))}  # noqa: B905
            args = args[: self.first]
        return args, {**kwargs, **given}

    # -- choosing

    def _chosen(self, kernel: Kernel, values: Sequence[Any], launchers: Any) -> Config:
        tensors = [v for v in values if isinstance(v, torch.Tensor)]
        keyed = [values[self.passed.index(n)] for n in self.key]
        exact = (*((t.dtype, t.device) for t in tensors), *map(_exact, keyed))
        try:
            config = self.chosen.get(exact)
        except TypeError:  # sizes that are symbols
            return self.configs[0]
        if config is not None:
            return config
        if any(type(t) not in PLAIN or t.device.type not in ("cpu", "cuda") for t in tensors):
            return self.configs[0]
        with self._lock:
            device = next((t.device for t in tensors), torch.device("cpu"))
            told = [str(t.dtype).removeprefix("torch.") for t in tensors]
            told += [f"{n} {_class(value)}" for n, value in zip(self.key, keyed, strict=True)]
            config = self._known(kernel, machine_of(device), ", ".join(told))
            if config is None:
                if not self._may_measure(kernel, tensors, launchers):
                    return self.configs[0]
                config = self._measured(kernel, device, ", ".join(told), values)
            if len(self.chosen) >= _MOST:
                self.chosen.clear()
            self.chosen[exact] = config
            return config

    def _digest(self, kernel: Kernel) -> str:
        return hashed(text_of(kernel.source, kernel.described))

    def _known(self, kernel: Kernel, machine: str, sizes: str) -> Config | None:
        """What was chosen for this size class before: in this process, or in a record."""
        choice = self.choices.get((machine, sizes))
        if choice is not None:
            return choice.config
        name, digest = kernel.__name__, self._digest(kernel)
        record = records.find(kernel.options, "config", name, digest, machine, sizes)
        if record is None:
            return None
        return next((c for c in self.configs if str(c) == record.choice), None)

    def _may_measure(self, kernel: Kernel, tensors: Sequence[torch.Tensor], launchers: Any) -> bool:
        """Whether it is a plain call, which nothing watches, transforms or records."""
        if not kernel.is_own(launchers) or dispatched():
            return False
        return not (any(t.is_cuda for t in tensors) and torch.cuda.is_current_stream_capturing())

    def _measured(
        self, kernel: Kernel, device: torch.device, sizes: str, values: Sequence[Any]
    ) -> Config:
        """Runs every config on the arguments of a call, and puts back what they wrote."""
        named = dict(zip(self.passed, values, strict=True))
        written = [*self._written(kernel, named)]
        kept = Kept(written, device)
        call = inspect.BoundArguments(kernel.signature, cast(Any, named))
        results: list[list[torch.Tensor] | None] = []

        def run(config: Config) -> Any:
            return kernel.direct(*call.args, **call.kwargs, **config)

        with torch.no_grad(), kept.unseen():
            try:
                for config in self.configs:
                    kept.restore()
                    results.append(self._tried(kernel, config, run, written, results))
                left = [c for c, r in zip(self.configs, results, strict=True) if r is not None]
                runs = [functools.partial(run, c) for c in left]
                times = self.measure(runs, device, kept.restore_contents)
            finally:
                kept.restore()
        took = dict(zip(map(str, left), times, strict=True))
        best = min(left, key=lambda c: took[str(c)])
        name, machine = kernel.__name__, machine_of(device)
        choice = self.choices[machine, sizes] = Choice(best, took)
        log.debug("%s, %s: %s", name, sizes, choice)
        if len(left) == len(self.configs):  # what is left out is said in each process
            record = Record("config", name, self._digest(kernel), machine, sizes, str(best),
                            took[str(left[0])], took[str(best)])  # fmt: skip
            records.keep(kernel.options, [record])
        return best

    def _tried(
        self, kernel: Kernel, config: Config, run: Callable[[Config], Any],
        written: Sequence[torch.Tensor], results: Sequence[list[torch.Tensor] | None],
    ) -> list[torch.Tensor] | None:  # fmt: skip
        """What a config computes; None, with a warning, where it fails or computes something else
        than the first."""
        try:
            result = run(config)
        except (WeftError, RuntimeError) as error:
            if not results:
                raise
            why = first_line(error)
        else:
            found = [t.detach().clone() for t in [*tensors_in(result), *written]]
            first = results[0] if results else None
            why = difference(found, first, exact=False) if first is not None else ""
            if not why:
                return found
        warn(
            AutotuneWarning, f"the config ({config}) is left out: {why}", kernel.span,
            f"every config has to compute what the first one does, ({self.configs[0]})",
        )  # fmt: skip
        return None

    def _written(self, kernel: Kernel, values: dict[str, Any]) -> Iterator[torch.Tensor]:
        """The tensors that a call may write to: those in arguments, and captured ones."""
        scope = Scope.of(kernel.function)
        for name in kernel.parts.mutated:
            yield from tensors_in(values.get(name, scope.lookup(name)))


def _exact(value: Any) -> Any:
    return value.size() if isinstance(value, torch.Tensor) else constant_key(value)


def _class(value: Any) -> str:
    """The size class of an argument, in words."""
    if isinstance(value, torch.Tensor):
        return shape_class(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(size_class(value))
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_class, value))})"  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return _text(value)


def _text(value: Any) -> str:
    """A value in words that are the same in each process."""
    name = getattr(value, "__qualname__", None)
    return f"{value.__module__}.{name}" if name is not None else repr(value)

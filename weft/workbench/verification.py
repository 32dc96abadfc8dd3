"""Whether an implementation computes what its kernel's loop does: on arguments that are generated,
beside the undecorated Python, and on those of a call, beside the compiled loop."""

from __future__ import annotations

import ast
import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from weft.errors import WeftError
from weft.frontend.names import Scope
from weft.kernel import Kernel
from weft.pytorch.fake import hollow
from weft.source import subtree
from weft.values import mutable
from weft.workbench.arguments import Maker, maker_of, random_tensor
from weft.workbench.cases import LAYOUTS, Case, copied, filled_memory, shapes, special_cases
from weft.workbench.operator_checks import OK, WRONG, Verdict
from weft.workbench.report import UsageError
from weft.workbench.trials import Trials, bits

_SIZES = (1, 3, 17, 127)
_PATIENCE = 0.2  # seconds that the Python may take for one set of arguments
_SECONDS = 3.0  # of the processor after which no further ones are generated
_LARGE, _ITERATIONS = 300, 2e7  # of a size, and of the loop at such sizes
_MOST = 1 << 24  # elements of a call's arguments, which are copied if there are no more


@mutable
class Verification:
    """Of the implementation ``call``, which ``applies`` to some arguments on ``device``, and may
    differ from the loop for infinities and NaN if it is for ``finite`` numbers. ``loop``: the
    kernel without implementations. ``rate``: seconds that it took for an element of its
    arguments, lately: one that is interpreted may be slow."""

    loop: Kernel
    call: Callable[..., Any]
    applies: Callable[..., bool]
    device: torch.device
    finite: bool
    rate: float = 0.0

    def verdict(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Why it is wrong, with the first element that differs; "" where nothing was found.
        ``args`` and ``kwargs`` are those of the call that it first applies to."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices), torch.no_grad():
            given = {n: v.detach() if isinstance(v, torch.Tensor) else v
                     for n, v in self.loop.bind(args, kwargs).arguments.items()}  # fmt: skip
            return next(filter(None, self._findings(given)), "")

    def _findings(self, given: dict[str, Any]) -> Iterator[str]:
        small = _elements(given) <= _MOST
        end = math.inf  # the first may import much
        for maker in self._makers(given if small else {n: _cut(v) for n, v in given.items()}):
            trials = Trials(self.loop, maker, self.observed, patience=_PATIENCE, first=True,
                            counts=False, subject="the implementation",
                            applies=self.applies, fills=False)  # fmt: skip
            results: set[str] = set()
            for case in _cases(maker):
                if time.thread_time() > end:
                    break
                result, why = self._generated(trials, replace(case, device=str(self.device)))
                results.add(result)
                end = min(end, time.thread_time() + _SECONDS)
                yield why
            if results == {OK}:  # what is made is good for the Python: compiled code may run
                yield self._larger(trials)
            # What subscripts the Python makes of infinities is no mistake of the implementation.
            trials.maker = replace(maker, promised=False)
            for case in special_cases(maker) if not self.finite else ():
                if time.thread_time() > end:
                    break
                yield self._generated(trials, replace(case, device=str(self.device)))[1]
        if small:
            here = copied(given)
            yield self._beside_loop(here, "the call's own arguments")
            generator = torch.Generator().manual_seed(2)
            drawn = {n: v.copy_(random_tensor([*v.size()], v.dtype, generator))
                     if isinstance(v, torch.Tensor) and _is_drawn(v) else v
                     for n, v in here.items()}  # fmt: skip
            yield self._beside_loop(drawn, "random numbers of the call's sizes")

    # --- generated arguments ---------------------------------------------------------------------
    def _makers(self, given: dict[str, Any]) -> Iterator[Maker]:
        """What makes arguments like the given ones at other sizes: none where tensors of the same
        size as before may be read besides, of objects or around the kernel."""
        loop, found = self.loop, []
        if not all(map(_is_value, given.values())) or _reads_around(loop):
            return
        with contextlib.suppress(UsageError):  # nothing says what they are like
            found.append(maker_of(loop, (), {}, loop.function.__globals__))
        bound = loop.signature.bind_partial()
        bound.arguments.update(copied(given))
        found.append(maker_of(loop, bound.args, bound.kwargs, {}))
        for maker in found:
            fitted = _fitted(maker, given)
            try:
                fitted.make(fitted.sizes, 0)
            except Exception:  # of whoever makes them: not for arguments like these
                continue
            yield fitted

    def _generated(self, trials: Trials, case: Case) -> Verdict:
        try:
            arguments = trials.arguments(case)
        except Exception:  # sizes that whoever makes the arguments cannot do
            return OK, ""
        takes = trials.takes(arguments, str(self.device))
        if not takes or trials.seconds(arguments) > _PATIENCE:
            return OK, ""
        result, why = trials.compared(case)
        layout = "" if case.layout == "contiguous" else f" ({case.layout})"
        return result, f"with {shapes(arguments)}{layout}: {why}" if result == WRONG else ""

    def _larger(self, trials: Trials) -> str:
        """At sizes of several blocks of threads, as far as the loop takes no time for that."""
        targets = [node.target for node in subtree(self.loop.source.tree)
                   if isinstance(node, ast.For)]  # fmt: skip
        names = {n.id for t in targets for n in subtree(t) if isinstance(n, ast.Name)}
        size = max(17, min(_LARGE, int(_ITERATIONS ** (1 / max(len(names), 1)))))
        most = trials.maker.most
        case = Case(tuple((n, min(size, most.get(n, size))) for n in trials.maker.sizes), seed=5)
        try:
            arguments = trials.arguments(case)
        except Exception:  # as above
            return ""
        return self._beside_loop(arguments, "larger sizes")

    # --- those of a call -------------------------------------------------------------------------
    def _beside_loop(self, arguments: dict[str, Any], what: str) -> str:
        maker = Maker({}, lambda sizes, seed: arguments, True, {})
        trials = Trials(self.loop, maker, self.observed, oracle=self.loop, first=True,
                        where=str(self.device), subject="the implementation",
                        applies=self.applies, fills=False)  # fmt: skip
        slow = self.rate * _elements(arguments) > _SECONDS
        if slow or not trials.takes(arguments, str(self.device)):
            return ""
        expected, why = trials.python(arguments)
        if expected is None:
            raise why[0] or WeftError(why[1])
        result, why = trials.beside(arguments, expected, str(self.device))
        return f"with {what}, {shapes(arguments)}: {why}" if result == WRONG else ""

    # --- what an implementation may do -----------------------------------------------------------
    def observed(self, *args: Any, **kwargs: Any) -> Any:
        """A call of the implementation. Raises ``WeftError`` for what values do not show: other
        arguments that it writes to, memory that it returns, strides that the operator has not."""
        bound = self.loop.signature.bind(*args, **kwargs)
        tensors = {n: v for n, v in bound.arguments.items() if isinstance(v, torch.Tensor)}
        before = {n: v.clone() for n, v in tensors.items() if n not in self.loop.mutated}
        with filled_memory():
            begin = time.perf_counter()
            out = self.call(*args, **kwargs)
            self.rate = (time.perf_counter() - begin) / _elements(bound.arguments)
        for name, content in before.items():
            if not torch.equal(bits(content), bits(tensors[name])):
                raise WeftError(f"it writes to `{name}`, which the loop only reads")
        self._check_results(out, bound.arguments, tensors)
        return out

    def _check_results(
        self, out: Any, arguments: dict[str, Any], tensors: dict[str, torch.Tensor]
    ) -> None:
        hollowed = {n: hollow(v) for n, v in arguments.items()}
        like = self.loop.signature.bind_partial()
        like.arguments.update(hollowed)
        try:
            wanted = self.loop.unconverted(*like.args, **like.kwargs)
        except Exception:  # the host part looks at elements: graphs have no such calls
            return
        several = isinstance(wanted, tuple | list)
        if several != isinstance(out, tuple | list) or (several and len(out) != len(wanted)):
            raise WeftError(f"it returns {_told(out)} in place of {_told(wanted)}")
        for one, other in zip(out if several else [out], wanted if several else [wanted],
                              strict=True):  # fmt: skip
            if not isinstance(other, torch.Tensor):
                continue
            if not isinstance(one, torch.Tensor):
                raise WeftError(f"it returns {_told(one)} in place of a tensor")
            name = next((n for n, v in hollowed.items() if v is other), "")
            if name and one is not tensors[name]:
                raise WeftError(f"it does not return `{name}` itself, as the kernel does")
            if not name:
                self._check_new(one, other, tensors)

    def _check_new(
        self, one: torch.Tensor, other: torch.Tensor, tensors: dict[str, torch.Tensor]
    ) -> None:
        for name, tensor in tensors.items():
            if one.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
                raise WeftError(f"it returns memory of `{name}`: return a new tensor")
        if one.device != self.device:
            raise WeftError(f"it returns a tensor on {one.device}")
        if one.dtype is not other.dtype:
            raise WeftError(f"it returns {one.dtype} in place of {other.dtype}")
        strides = [(a, b) for n, a, b in zip(one.size(), one.stride(), other.stride(), strict=False)
                   if n > 1]  # fmt: skip
        if one.size() == other.size() and any(a != b for a, b in strides):
            raise WeftError(
                f"it returns strides {list(one.stride())} in place of {list(other.stride())}: make "
                "the result as the kernel does"
            )


def _is_value(value: Any) -> bool:
    return value is None or isinstance(value, torch.Tensor | int | float | complex | str)


def _reads_around(kernel: Kernel) -> bool:
    """Whether a loop reads a tensor that is no argument."""
    scope = Scope.of(kernel.function)
    captured = [a.expr for r in kernel.parts.regions for a in r.args if a.captured]
    return any(isinstance(scope.resolve(e), torch.Tensor) for e in captured)


def _cases(maker: Maker) -> Iterator[Case]:
    """Small sizes unlike each other, elements in other places, sizes that are alike."""
    base = Case(tuple((n, min(k, 7)) for n, k in maker.sizes.items()))
    yield base
    for layout in LAYOUTS:
        yield replace(base, layout=layout)
    for size in _SIZES:
        most = {n: min(size, maker.most.get(n, size)) for n in maker.sizes}
        yield replace(base.resized(**most), seed=size)


def _fitted(maker: Maker, given: dict[str, Any]) -> Maker:
    """``maker`` of arguments of the dtypes and ranks of those given, with their numbers where these
    are no sizes. What it makes raises ``UsageError`` where it does not fit."""

    def fit(name: str, value: Any) -> Any:
        own = given[name]
        if isinstance(own, torch.Tensor) != isinstance(value, torch.Tensor):
            raise UsageError(f"`{name}` is another kind of argument")
        if not isinstance(own, torch.Tensor):
            return value if name in maker.sizes or type(value) is int else own
        if own.dim() != value.dim():
            raise UsageError(f"`{name}` has {own.dim()} dimensions")
        return value.to(own.dtype)

    def make(sizes: Any, seed: int) -> dict[str, Any]:
        return {n: fit(n, v) for n, v in maker.make(sizes, seed).items()}

    return Maker(maker.sizes, make, maker.promised, maker.most)


def _elements(arguments: Mapping[str, Any]) -> int:
    return sum(v.numel() for v in arguments.values() if isinstance(v, torch.Tensor))


def _cut(value: Any) -> Any:
    """A tensor with 127 elements along each dimension, or as many as it has."""
    if not isinstance(value, torch.Tensor):
        return value
    return value[tuple(slice(0, 127) for _ in value.size())]


def _is_drawn(value: torch.Tensor) -> bool:
    """Whether each element of it may be any number."""
    return value.is_floating_point() and 0 not in value.stride()


def _told(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"{len(value)} values"
    return "a tensor" if isinstance(value, torch.Tensor) else type(value).__name__

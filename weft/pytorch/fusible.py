"""Launches that Inductor may fuse with others, and why others stay calls of an operator."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import sympy
import torch

from weft.errors import CompileError
from weft.frontend.lower import Lowered, lower
from weft.frontend.names import KNOWN_MODULES, Scope, dotted, is_known, is_known_module
from weft.frontend.scope import ABSENT
from weft.frontend.specs import ConstSpec, ScalarSpec, TensorSpec
from weft.index.bounds import check_negative
from weft.index.races import check_races
from weft.ir.core import Function, Value
from weft.options import Options
from weft.pytorch.batches import storage
from weft.pytorch.changing import Unknown
from weft.pytorch.fake import loose_spec
from weft.pytorch.fusion import Facts, Fusion, Opaque, Probe, Tensor, prepared
from weft.pytorch.guarded import DECIDING
from weft.pytorch.identity import chains
from weft.runtime.backing import is_backed
from weft.runtime.launch import KernelLike, Launcher, empty_results, one_or_all
from weft.runtime.signature import come_apart
from weft.values import frozen

# pyright: reportPrivateUsage=false


@frozen
class Hooks:
    """Of a version of Inductor: the name of the table where it keeps the lowerings of others, and
    the operations that its code for GPUs does not carry out as weft does; whether its C++
    rounds to half precision what another loop of the same kernel reads; and whether what it makes
    for GPUs was compared with weft's."""

    table: str
    lacking: frozenset[str] = frozenset()
    rounds: bool = True
    on_gpus: bool = True


# By the first two numbers of torch's version. These hooks are no public interface.
HOOKS = {
    # Its constants below 2**-126 are doubles on GPUs.
    "2.10": Hooks("lowerings", frozenset({"arith.divf"}), rounds=False, on_gpus=False),
    # It rounds quotients to two units.
    "2.11": Hooks("lowerings", frozenset({"arith.divf"}), rounds=False),
    "2.13": Hooks("user_lowerings"),
}


def hooks() -> Hooks:
    """Those of this torch. Raises ``Opaque``."""
    version = ".".join(torch.__version__.split(".")[:2])
    if version not in HOOKS:
        raise Opaque(f"Inductor's hooks are known of torch {', '.join(HOOKS)}, this is {version}")
    return HOOKS[version]


@frozen
class Launch:
    """A launch of a loop on tensors without data: its ``function``, the same as ``Fusion`` reads
    it, and the values of its arguments, of which the last ``results`` are what it reduces into."""

    function: Function
    prepared: Function
    values: Sequence[Any]
    results: int
    anyway: bool

    @property
    def made(self) -> Any:
        """What the launch gives."""
        return one_or_all(self.values[len(self.values) - self.results :])

    @property
    def named(self) -> list[tuple[Value, Any]]:
        """The arguments of what ``Fusion`` reads, with what each is."""
        return list(zip(self.prepared.args, self.values, strict=True))

    def given(self, load: Callable[[torch.Tensor], Any]) -> dict[Value, Any]:
        """By argument, what ``Fusion`` takes; ``load`` gives what loads from a tensor."""
        found: dict[Value, Any] = {}
        for value, given in self.named:
            held = given.tensor if isinstance(given, Unknown) else given
            found[value] = number(held)
            if isinstance(held, torch.Tensor):
                found[value] = Tensor(list(map(number, held.size())), held.dtype, load(held))
        return found

    def probed(self, known: Callable[[Any], bool]) -> Fusion:
        """Raises ``Opaque`` where the loop cannot be fused, or should not be."""
        on_gpu = any(isinstance(v, torch.Tensor) and v.is_cuda for _, v in self.named)
        known_of = hooks()
        lacking = known_of.lacking if on_gpu else frozenset[str]()
        if on_gpu and not known_of.on_gpus:
            raise Opaque(f"this is torch {torch.__version__}, whose code for GPUs is not known")
        if on_gpu and any(isinstance(v, Unknown) for v in self.values):
            raise Opaque("a number may differ from call to call")
        return Fusion(
            self.prepared, self.given(lambda tensor: lambda index: None),
            Facts(known, self.anyway, on_gpu, lacking, on_gpu or known_of.rounds), Probe(),
            lambda *reduction: lambda index: None,
        )  # fmt: skip


def number(value: Any) -> Any:
    """A number or a size, of sympy where it is whole."""
    if isinstance(value, torch.SymInt):
        return value.node.expr
    if isinstance(value, torch.SymFloat | torch.SymBool):
        raise Opaque("a number that is no integer may differ from call to call")
    return sympy.Integer(value) if type(value) is int else value


def launched(launcher: Launcher, args: Sequence[Any]) -> Launch:
    """A launch with these arguments. Raises ``Opaque``."""
    region, options = launcher.region, launcher.options
    tensors = [v for v in args if isinstance(v, torch.Tensor)]
    if come_apart(region, args) or any(arg.pair for arg in region.args):
        raise Opaque("its numbers are complex")
    _check_options(options, tensors[0].device.type if tensors else "cpu")
    if is_backed(region, args) or any(a.read for a in region.args):
        raise Opaque("it uses a tensor or a vector that is no argument of the loop")
    specs = [loose_spec(arg, value) for arg, value in zip(region.args, args, strict=True)]
    for arg, spec in zip(region.args, specs, strict=True):
        if not isinstance(spec, TensorSpec | ScalarSpec | ConstSpec):
            raise Opaque(f"`{arg.name}` is a tuple")
        if arg.captured and not (isinstance(spec, ConstSpec) and _is_steady(spec.value)):
            raise Opaque(f"`{arg.name}`, from around the kernel, may change")
        if isinstance(spec, ConstSpec) and _is_open(spec.value):
            raise Opaque(f"a number in `{arg.name}` may differ from call to call")
    names = [arg.name for arg in region.args]
    try:
        lowered: Lowered = lower(region, dict(zip(names, specs, strict=True)), launcher.source)
        check_negative(lowered.function)
        check_races(lowered.function)
    except CompileError as error:  # which the call raises
        raise Opaque(f"it is a {type(error).__name__}") from None
    for guard in lowered.guards:
        if not _is_steady(guard.value):
            raise Opaque(f"`{guard.name}`, from around the kernel, may change")
    if len({t.device for t in tensors}) > 1:
        raise Opaque("its tensors are on several devices")
    made: Any = empty_results(lowered.results, tensors[0].device if tensors else None)
    results = made if isinstance(made, tuple) else () if made is None else (made,)
    given = [v for v, s in zip(args, specs, strict=True) if type(s) is not ConstSpec]
    values, anyway = (*given, *results), options.fuse is True
    function = lowered.function
    return Launch(function, prepared(function), values, len(results), anyway)


def _check_options(options: Options, device: str) -> None:
    for asked, name in (
        (options.fuse is False, "fuse=False"), (options.debug, "debug=True"),
        (options.strict_math, "strict_math=True"), (options.interpret, "WEFT_INTERPRET=1"),
        (any(place == device for place, _, _ in options.schedules), "a schedule"),
        (options.on, f'on("{options.on}")'),
    ):  # fmt: skip
        if asked:
            raise Opaque(f"{name} is asked for")


def _is_steady(value: Any) -> bool:
    """Whether a value from around a kernel is one that nobody replaces: of torch, math or weft."""
    if value is ABSENT:
        return True
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
    return is_known(value) and (name or "").partition(".")[0] in KNOWN_MODULES


def _is_open(value: Any) -> bool:
    """Whether it is or holds a number that a graph leaves open."""
    if isinstance(value, dict | list | tuple):
        return any(map(_is_open, value.values() if isinstance(value, dict) else value))
    return isinstance(value, Unknown)


def check_host(kernel: KernelLike) -> None:
    """Raises ``Opaque`` where the host part takes from around the kernel what may change, and what
    no graph has a guard for."""
    function, scope = kernel.function, Scope.of(kernel.function)
    around = {*function.__code__.co_freevars, *function.__code__.co_names}
    loops = frozenset(region.node for region in kernel.parts.regions)
    for chain in chains(kernel.source.tree, loops):
        name = dotted(chain)
        root, _, member = name.partition(".")
        value = scope.resolve(chain) if root in around else ABSENT
        if (
            isinstance(value, float)
            and member
            and (is_known_module(scope.resolve(ast.Name(root, ast.Load()))))
        ):  # `math.inf`
            continue
        if not isinstance(value, DECIDING) and not _is_steady(value):
            raise Opaque(f"its host part reads `{name}`, from around the kernel")


# What stands for a call of an operator with arguments without data, ``known`` being whether a
# relation of sizes always holds: its launches, and what it gives. Raises ``Opaque``.
Recorder = Callable[[Sequence[Any], Callable[[Any], bool]], tuple["Recorded", Any]]


def recorder(kernel: KernelLike, implementation: Callable[[Any], Any]) -> Recorder:
    """Of an operator of ``kernel`` that ``implementation(launchers)`` carries out with these for
    its loops."""

    def record(given: Sequence[Any], known: Callable[[Any], bool]) -> tuple[Recorded, Any]:
        check_host(kernel)
        recorded = Recorded(given, known)
        out = implementation(tuple(map(recorded.launcher, kernel.launchers)))(*given)
        recorded.check()
        return recorded, out

    return record


class Recorded:
    """The launches of a call on tensors without data; ``given`` are the call's. ``known``: whether
    a relation of sizes always holds."""

    def __init__(self, given: Sequence[Any], known: Callable[[Any], bool]) -> None:
        self.known = known
        self.launches: list[tuple[Launch, Fusion]] = []
        self.tensors: dict[int, tuple[torch.Tensor, int]] = {}  # with how often each was written to
        for value in given:
            if isinstance(value, torch.Tensor):
                self.tensors[id(value)] = value, value._version

    def launcher(self, launcher: Launcher) -> Callable[..., Any]:
        def launch(*args: Any) -> Any:
            self.check()
            found = launched(launcher, args)
            self.add(found)
            return found.made

        return launch

    def add(self, launch: Launch) -> None:
        """Raises ``Opaque`` where it cannot be fused, or should not be."""
        probe = launch.probed(self.known)
        filled = {s.memref for s in probe.stores}
        for value, tensor in launch.named:
            if not isinstance(tensor, torch.Tensor):
                continue
            if value not in filled and id(tensor) not in self.tensors:
                raise Opaque(f"its host part computes `{value.name}`")
            if value in filled:
                self.fill(value.name, tensor)
        self.launches.append((launch, probe))

    def fill(self, name: str, tensor: torch.Tensor) -> None:
        if tensor._is_view() or storage(tensor) in (storage(t) for t, _ in self.tensors.values()):
            raise Opaque(f"`{name}` shares memory with another tensor")
        self.tensors[id(tensor)] = tensor, tensor._version

    def check(self) -> None:
        """Raises ``Opaque`` where the host part has written to a tensor of the launches."""
        if any(tensor._version != version for tensor, version in self.tensors.values()):
            raise Opaque("its host part writes to a tensor")


def explained(launcher: Launcher, args: Sequence[Any]) -> str:
    """What Inductor makes of a launch, or why it does not: for ``kernel.inspect``."""
    try:
        return described(launched(launcher, args).probed(always))
    except Opaque as reason:
        return f"a call: {reason}"


def always(relation: Any) -> bool:
    """Whether a relation of sizes that are known holds."""
    return bool(relation == True)  # noqa: E712


def described(probe: Fusion) -> str:
    """The nodes of a fused launch."""
    lines = [f"Reduction over {list(map(int, reduced))} for {list(map(int, ranges))}"
             for ranges, reduced in probe.reduced]  # fmt: skip
    lines += [f"Pointwise {s.memref.name} over {list(map(int, probe.values[s.memref].sizes))}"
              for s in probe.stores]  # fmt: skip
    return "\n".join(lines)

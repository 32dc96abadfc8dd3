"""On which parts of its tensors a kernel may run: rules of sharding, ``kernel.sharding(...)``.

A rule is a proof. The host part is carried out on tensors without memory, whose size is one symbol
along the axes that a rule cuts, and of which nothing may be asked: what it makes then has the same
form on each rank. ``index.sharding`` follows each loop that it launches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, _constrain_range_for_size
from torch.utils._python_dispatch import _disable_current_modes

# What makes tensors with symbolic sizes has no public name.
# pyright: reportPrivateUsage=false
from weft.errors import CompileError, WeftError
from weft.frontend.lower import Lowered
from weft.frontend.specs import ConstSpec, TensorSpec
from weft.index.bounds import check_negative
from weft.index.races import check_races
from weft.index.rows import Content, Halo, Memory, NotLocal, Rows, Size, along
from weft.index.sharding import follow
from weft.ir.core import Value
from weft.pytorch.batches import storage
from weft.pytorch.cut_tensors import Asked, Host
from weft.pytorch.fake import loose_spec, lowered_for
from weft.pytorch.operator import OperatorForm
from weft.pytorch.transforms import items
from weft.runtime.backing import is_backed
from weft.runtime.launch import Launcher, empty_results, one_or_all
from weft.values import frozen

# Where a tensor is: cut along an axis, on each rank the whole of it (None), or a part that is to be
# combined ("sum", "max", "min").
Place = int | str | None


@frozen
class Rule:
    """Of tensors that are arguments, in their order, where they may be; and where what the kernel
    returns is then. ``index``: the loop's, or the loops'. ``halo``: how many rows of the ranks
    before and behind it a rank needs of tensors that are cut and read at other rows. ``floats``:
    which of what is returned are numbers with a gradient."""

    index: str
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]
    halo: tuple[int, int] = (0, 0)
    floats: tuple[bool, ...] = ()

    @property
    def has_halo(self) -> bool:
        return self.halo != (0, 0)

    @property
    def backwards(self) -> bool:
        """Whether the derivative may run on the same parts, with rows of neighbours where there is
        a halo: what is returned is put together from what each rank has, or added up."""
        return all(
            isinstance(p, int) or p == "sum" for p, f in zip(self.outputs, self.floats, strict=True)
            if f
        )  # fmt: skip


@frozen
class Refused:
    """Axes that are not cut, and why."""

    axes: tuple[tuple[int, int], ...]  # of which tensor, which axis
    reason: str


class Sharding:
    """The rules of a call, and what is refused. Printed, it is a table."""

    def __init__(
        self, name: str, tensors: Sequence[str], rules: Sequence[Rule], refused: Sequence[Refused]
    ) -> None:
        self.name, self.tensors = name, tuple(tensors)
        self.rules, self.refused = tuple(rules), tuple(refused)

    def __str__(self) -> str:
        rows = [["loop", *self.tensors, "->", *self._results()]]
        for rule in self.rules:
            places = [shown(p) for p in rule.inputs]
            row = [rule.index, *places, "->", *map(shown, rule.outputs)]
            if rule.has_halo:
                before, after = rule.halo
                row.append(f"halo: {before} rows before, {after} behind")
            rows.append(row)
        whole = [shown(None)] * len(self.tensors)
        rows.append(["", *whole, "->", *[shown(None)] * len(self._results())])
        wide = [max(len(r[k]) for r in rows if k < len(r)) for k in range(max(map(len, rows)))]
        lines = [f"sharding of {self.name}"]
        lines += ["  ".join(c.ljust(w) for c, w in zip(r, wide, strict=False)).rstrip()
                  for r in rows]  # fmt: skip
        for found in self.refused:
            axes = ", ".join(f"{self.tensors[k]}.shape[{axis}]" for k, axis in found.axes)
            lines.append(f"not along {axes or 'any axis'}: {found.reason}")
        return "\n".join(lines)

    __repr__ = __str__

    def _results(self) -> list[str]:
        count = len(self.rules[0].outputs) if self.rules else 1
        return ["result"] if count == 1 else [f"result {k}" for k in range(count)]


def shown(place: Place) -> str:
    if place is None:
        return "Replicate"
    return f"Partial({place})" if isinstance(place, str) else f"Shard({place})"


# --- launches ------------------------------------------------------------------------------------
def _lowered(launcher: Launcher, args: tuple[Any, ...]) -> tuple[Lowered, list[tuple[Value, Any]]]:
    """The loop of a launch, and its arguments with their values. Raises ``NotLocal``."""
    return launcher.forms.retried(args, functools.partial(_lowered_once, launcher))


def _lowered_once(
    launcher: Launcher, args: tuple[Any, ...]
) -> tuple[Lowered, list[tuple[Value, Any]]]:
    region = launcher.region
    if any(v.is_complex() for v in args if isinstance(v, torch.Tensor)):
        raise NotLocal("complex numbers, which are pairs in memory, are not followed")
    if is_backed(region, args) or any(a.read for a in region.args):
        raise NotLocal("a loop uses a tensor or a vector that is no argument of it")
    specs = [
        loose_spec(arg, value if arg.captured or arg.template else _any_size(value))
        for arg, value in zip(region.args, args, strict=True)
    ]
    for arg, spec in zip(region.args, specs, strict=True):
        if isinstance(spec, TensorSpec) and arg.captured:
            raise NotLocal(f"`{arg.name}` is no argument of the kernel")
    lowered = lowered_for(launcher, specs)
    check_negative(lowered.function)
    check_races(lowered.function)
    kept = [v for v, s in zip(args, specs, strict=True) if not isinstance(s, ConstSpec)]
    return lowered, list(zip(lowered.function.args, _flat(kept), strict=False))


def _flat(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [item for part in value for item in _flat(part)]
    return [value]


def _any_size(value: Any) -> Any:
    """``value`` with a number for each symbol: all sizes have one spec."""
    if isinstance(value, tuple | list) and not hasattr(value, "entries"):
        return tuple(map(_any_size, value))
    return 2 if isinstance(value, torch.SymInt) else value


def _results(lowered: Lowered, args: Sequence[Any]) -> list[torch.Tensor]:
    device = next((v.device for v in args if isinstance(v, torch.Tensor)), None)
    made = empty_results(lowered.results, device)
    return list(made) if isinstance(made, tuple) else [] if made is None else [made]


class _Proof:
    """The launches of a call in which ranks have their own rows."""

    def __init__(self, host: Host) -> None:
        self.host, self.halo = host, Halo()

    def launcher(self, launcher: Launcher) -> Callable[..., Any]:
        def launch(*args: Any) -> Any:
            with torch._C.DisableTorchFunction():
                return self._launch(launcher, args)

        return launch

    def _launch(self, launcher: Launcher, args: Sequence[Any]) -> Any:
        with _disable_current_modes():
            lowered, named = _lowered(launcher, tuple(args))
        results = _results(lowered, args)
        for (name, _), tensor in zip(lowered.results, results, strict=True):
            self.host.know(tensor, Content(name, False))
        function = lowered.function
        named += zip(function.args[len(named) :], results, strict=True)
        follow(function, {v: self._given(v, t) for v, t in named}, self.halo)
        memory: dict[int, Value] = {}
        stored = {v for v, t in named if isinstance(t, torch.Tensor)
                  and self.host.content(t).whole}  # fmt: skip
        for value, tensor in named:
            if isinstance(tensor, torch.Tensor):
                other = memory.setdefault(storage(tensor), value)
                content = self.host.content(tensor)
                if other is not value and (value in stored or content.partial):
                    raise NotLocal(f"`{value.name}` and `{other.name}` share memory")
        return one_or_all(results)

    def _given(self, value: Value, given: Any) -> object:
        if isinstance(given, torch.Tensor):
            content = self.host.content(given)
            content.name = value.name if content.name == "a tensor" else content.name
            axis = self.host.axis(given)
            shape = [None if k == axis else int(n) for k, n in enumerate(given.shape)]
            return Memory(content, axis, shape)
        if isinstance(given, torch.SymInt):
            poly = given.node.expr.as_poly(self.host.symbol)
            if poly is None or poly.degree() > 1 or not all(c.is_Integer for c in poly.coeffs()):
                raise NotLocal(f"`{value.name}` depends on how much a rank has")
            factor = int(poly.coeff_monomial(self.host.symbol))
            return Size(factor, int(poly.coeff_monomial(1)))
        if isinstance(given, torch.SymFloat | torch.SymBool):
            raise NotLocal(f"`{value.name}` depends on how much a rank has")
        return given


# --- calls ---------------------------------------------------------------------------------------
@frozen
class Meta:
    """A tensor without memory."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def meta(value: Any) -> Any:
    """What rules are looked up by: tensors, and what DTensor has for them, as ``Meta``."""
    of = getattr(value, "tensor_meta", value)  # of a spec, in older releases
    if hasattr(of, "shape") and hasattr(of, "dtype"):
        return Meta(tuple(map(int, of.shape)), of.dtype)
    return tuple(map(meta, value)) if isinstance(value, list | tuple) else value


def devices() -> tuple[str, ...]:
    """Those that tensors may be on: host parts may ask, and rules hold on all of them."""
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


class Rules:
    """The rules of one operator, by what it is called with."""

    MOST = 256

    def __init__(self, form: OperatorForm) -> None:
        self.form = form
        self._known = functools.lru_cache(self.MOST)(self._of)

    def of(self, passed: Sequence[Any]) -> Sharding:
        """For the operator's arguments."""
        with _disable_current_modes():
            return self._known(tuple(map(meta, passed)))

    def _of(self, passed: tuple[Any, ...]) -> Sharding:
        found = [self._found(passed, device) for device in devices()]
        first, *others = found
        rules = [r for r in first.rules if all(r in o.rules for o in others)]
        return Sharding(first.name, first.tensors, rules, first.refused)

    def _found(self, passed: tuple[Any, ...], device: str) -> Sharding:
        name = self.form.kernel.__name__
        metas = [v for v in passed if isinstance(v, Meta)]
        tensors = [n for n, v in zip(self._passed_on, passed, strict=True) if isinstance(v, Meta)]
        if any(isinstance(v, tuple) and any(isinstance(t, Meta) for t in v) for v in passed):
            return Sharding(name, tensors, [], [Refused((), "lists of tensors are not cut")])
        rules: dict[Any, Rule] = {}
        refused: dict[tuple[tuple[int, int], ...], str] = {}
        try:
            candidates = self._candidates(passed, device)
        except (NotLocal, WeftError, CompileError) as error:
            return Sharding(name, tensors, [], [Refused((), str(error))])
        for index, axes in candidates:
            cut = dict(axes)
            if len(cut) != len(axes) or len({metas[k].shape[a] for k, a in axes}) > 1:
                refused.setdefault(axes, "they are of different sizes, or of one tensor")
                continue
            try:
                rule = self._proved(index, passed, cut, device)
            except (NotLocal, WeftError) as error:
                refused.setdefault(axes, str(error))
                continue
            known = rules.setdefault(rule.inputs, rule)
            if known is not rule and index not in known.index.split(", "):
                rules[rule.inputs] = Rule(f"{known.index}, {index}", *_rest(known))
        proved = {tuple((k, a) for k, a in enumerate(r.inputs) if isinstance(a, int))
                  for r in rules.values()}  # fmt: skip
        covered = {axis for axes in proved for axis in axes}
        left = [Refused(axes, why) for axes, why in refused.items() if not covered >= {*axes}]
        named = covered.union(*refused)
        alone = [(k, a) for k, m in enumerate(metas) for a in range(len(m.shape))]
        unnamed = tuple(place for place in alone if place not in named)
        if unnamed:
            left.append(Refused(unnamed, "no loop goes along it, and along nothing else"))
        return Sharding(name, tensors, list(rules.values()), left)

    @property
    def _passed_on(self) -> list[str]:
        names = [p.name for p in self.form.kernel.parts.parameters]
        return [n for n, kind in zip(names, self.form.types, strict=True) if kind]

    def _candidates(
        self, passed: Sequence[Any], device: str
    ) -> list[tuple[str, tuple[tuple[int, int], ...]]]:
        """Axes that may be cut together, with the names of their indices: each size is a symbol of
        its own, and those are put together that an index runs along."""
        env = ShapeEnv()
        groups: list[_Group] = []
        places: list[tuple[Any, tuple[int, int]]] = []
        number = 0

        def size(place: tuple[int, int], n: int) -> Any:
            source = ConstantSource(f"size_{place[0]}_{place[1]}")
            symbol = env.create_symbol(n, source, dynamic_dim=DimDynamic.DYNAMIC,
                                       constraint_dim=None,
                                       do_not_specialize_zero_one=True)  # fmt: skip
            made = env.create_symintnode(symbol, hint=n, source=source)
            places.append((made, place))
            return made

        def launcher(launcher: Launcher) -> Callable[..., Any]:
            def launch(*args: Any) -> Any:
                lowered, named = _lowered(launcher, args)
                shapes = {v: t.shape for v, t in named if isinstance(t, torch.Tensor)}

                def symbols(which: frozenset[tuple[Value, int]]) -> set[Any]:
                    found = [shapes[v][axis] for v, axis in which if v in shapes]
                    return {_expression(n) for n in found if isinstance(n, torch.SymInt)}

                rows: Rows
                for rows in along(lowered.function):
                    groups.append((rows.index, symbols(rows.alone), symbols(rows.mixed)))
                return one_or_all(_results(lowered, args))

            return launch

        with FakeTensorMode(shape_env=env):
            given: list[Any] = []
            for value in passed:
                if isinstance(value, Meta):
                    shape = [size((number, a), n) for a, n in enumerate(value.shape)]
                    given.append(torch.empty(shape, dtype=value.dtype, device=device))
                    number += 1
                else:
                    given.append(value)
            self._run(launcher, given)
        merged = _merged(
            [
                (index, {_expression(s, env) for s in alone}, {_expression(s, env) for s in mixed})
                for index, alone, mixed in groups
            ]
        )
        of = [(_expression(made, env), place) for made, place in places]
        found: list[tuple[str, tuple[tuple[int, int], ...]]] = []
        metas = [v for v in passed if isinstance(v, Meta)]
        for index, alone, mixed in merged:
            small = tuple(place for s, place in of if s in alone)
            sizes = {metas[k].shape[a] for k, a in small}
            large = tuple(p for s, p in of if s in alone
                          or (s in mixed and {metas[p[0]].shape[p[1]]} >= sizes))  # fmt: skip
            found += [(index, axes) for axes in dict.fromkeys((large, small)) if axes]
        return found

    def _run(self, launcher: Callable[[Launcher], Callable[..., Any]], given: Sequence[Any]) -> Any:
        launchers = tuple(map(launcher, self.form.kernel.launchers))
        return self.form.implementation(launchers)(*given)

    def _proved(
        self, index: str, passed: Sequence[Any], cut: dict[int, int], device: str
    ) -> Rule:  # fmt: skip
        """Raises ``NotLocal``, or what the host part raises."""
        env = ShapeEnv()
        size = env.create_unbacked_symint()
        _constrain_range_for_size(size)
        host = Host(size.node.expr)
        proof, number = _Proof(host), 0
        with FakeTensorMode(shape_env=env):
            given: list[Any] = []
            for name, value in zip(self._passed_on, passed, strict=True):
                if isinstance(value, Meta):
                    shape: list[Any] = list(value.shape)
                    if number in cut:
                        shape[cut[number]] = size
                    value = torch.empty(shape, dtype=value.dtype, device=device)
                    host.know(value, Content(name))
                    number += 1
                given.append(value)
            try:
                with host, Asked():
                    out = self._run(proof.launcher, given)
            except (NotLocal, WeftError):
                raise
            except (RuntimeError, TypeError, ValueError) as error:
                # What torch says where the host part asks of the size, which no rank may ask.
                raise NotLocal(
                    f"the host part asks how large a tensor is that is cut ({type(error).__name__})"
                ) from error
        halo = (proof.halo.before, proof.halo.after)
        metas = [v for v in passed if isinstance(v, Meta)]
        if 2 * max(halo) > min(metas[k].shape[axis] for k, axis in cut.items()):
            raise NotLocal(f"too few rows: each rank needs {max(halo)} of its neighbours")
        contents = list(host.contents.values())
        made: list[torch.Tensor] = [o for o in items(out) if o is not None]
        if halo != (0, 0) and (
            any(c.whole and (c.shifted or c.given) for c in contents)
        ):  # fmt: skip
            raise NotLocal("rows of neighbours are read of what is written")
        if any(c.partial and c.given for c in contents):
            raise NotLocal("rows on several ranks write to an argument")
        places = [host.content(o).partial or host.axis(o) for o in made]
        inputs = tuple(cut.get(k) for k in range(number))
        return Rule(index, inputs, tuple(places), halo, tuple(o.is_floating_point() for o in made))


def _rest(rule: Rule) -> tuple[Any, ...]:
    return rule.inputs, rule.outputs, rule.halo, rule.floats


def _expression(size: Any, env: ShapeEnv | None = None) -> Any:
    """What a size is, by what is known of which are equal."""
    found = size.node.expr if isinstance(size, torch.SymInt) else size
    return found if env is None else env.replace(found)


_Group = tuple[str, set[Any], set[Any]]


def _merged(groups: Sequence[_Group]) -> list[_Group]:
    """Groups of sizes with nothing in common, of those that loops run along."""
    found: list[_Group] = []
    for index, alone, mixed in groups:
        rest = []
        for names, own, others in found:
            if own & alone or (not alone and own & mixed):
                names_ = [*names.split(", "), *index.split(", ")]
                index = ", ".join(dict.fromkeys(names_))
                alone, mixed = own | alone, others | mixed
            else:
                rest.append((names, own, others))
        found = [*rest, (index, alone, mixed)]
    return found

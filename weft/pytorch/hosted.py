"""The host part of a kernel as PyTorch traces it, around operators that are one device loop each.

Under ``torch.compile`` and ``torch.export`` a graph then has ATen's operators where the host part
has them, with their derivatives, random numbers and guards, and ``weft::<kernel>_loop<k>_...``
where a loop was. Such an operator writes to none of its arguments if it makes what the loop fills,
or if a gradient is asked for: it returns a tensor, which the trace copies to the one that the host
part has. (A graph has no copy then, where nothing else sees that tensor.) Otherwise it writes to
its arguments, which Inductor lets it do in place. So a kernel that writes to its own arguments has
a gradient, too.
"""

from __future__ import annotations

import ast
import copy
import types
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false
from weft.errors import GradientError
from weft.frontend.names import Scope, bound_names, root_name
from weft.frontend.parameters import Parameter
from weft.frontend.returns import Returned, is_plain
from weft.frontend.split import HostPart, Region, RegionArg
from weft.lang.random import KEY, read_key
from weft.pytorch.ambient import Ambient
from weft.pytorch.batches import innermost, is_transformed, levels_of, no_samples, storage
from weft.pytorch.changing import CHANGING
from weft.pytorch.forward_level import is_open
from weft.pytorch.identity import is_imported
from weft.pytorch.library import Operators, has_history
from weft.pytorch.members import members_of, reads_of
from weft.pytorch.operator import Operator
from weft.pytorch.recipe import Fresh, Made, Place, Recipe, captured, cells_of
from weft.runtime.launch import KernelLike, Launcher, gradient_error
from weft.runtime.overlap import fakes_share
from weft.source import FunctionSource, subtree

# Functions whose results have no contents yet.
_EMPTY = frozenset({"empty", "empty_like", "new_empty", "empty_strided"})
# Methods and functions that look at elements, or at what a trace has not.
_LOOKS = frozenset({"item", "tolist", "numpy", "data_ptr", "backward", "storage", "untyped_storage",
                    "register_hook", "cpu", "cuda", "pin_memory", "nonzero", "unique", "data",
                    "unique_consecutive", "masked_select", "bincount", "repeat_interleave", "grad",
                    "argwhere", "equal", "allclose", "from_file", "is_nonzero"})  # fmt: skip
_BUILTINS = (len, min, max, abs, tuple, list, dict)
_EXPRESSIONS = (
    ast.Name, ast.Constant, ast.Tuple, ast.List, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop,
    ast.Subscript, ast.Slice, ast.Attribute, ast.expr_context, ast.keyword, ast.Starred, ast.Dict,
)  # fmt: skip


def traced_loops(
    operators: Operators, recorded: bool = False, *, exported: bool = False
) -> tuple[TracedLoop, ...]:  # fmt: skip
    """What stands for the device loops of a kernel while its host part is traced. None where the
    kernel is an operator as a whole: where its host part only allocates for one loop, or has
    statements and calls that a trace may not be able to follow. ``recorded``: for calls of which a
    gradient is asked, where loops write to the kernel's own arguments. ``exported``: for a program
    of ``torch.export``, which Dynamo does not trace and which has to hold the host part."""
    kernel = operators.kernel
    parts, scope = kernel.parts, Scope.of(kernel.function)
    if parts.rewritten or not is_imported(kernel.function):
        return ()
    nodes = [region.node for region in parts.regions]
    host = [s for s in kernel.source.tree.body if s not in nodes]
    draws = any(_is_key(a) for r in parts.regions for a in r.args)
    alone = len(parts.regions) == 1 and not any(map(_works, host)) and not draws
    if alone and not (recorded or exported):
        return ()
    known = {p.name for p in parts.parameters} | {n for s in host for n in bound_names(s)}
    if not all(_is_followed(s, scope, known) for s in host):
        return ()
    if not all(
        _is_separate(r, scope, recorded) and r.node in kernel.source.tree.body
        for r in parts.regions
    ):
        return ()
    looked_up = {n for r in parts.regions for a in r.args if a.captured for n in _names(a.expr)}
    if not looked_up.isdisjoint({n for s in host for n in _names(s)} - known):
        return ()  # an exported graph keeps what the host part saw, and loops look it up
    return tuple(TracedLoop(operators, region) for region in parts.regions)


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in subtree(node) if isinstance(n, ast.Name)}


def _works(statement: ast.stmt) -> bool:
    """Whether it does anything but allocate and take apart."""
    return any(isinstance(n, ast.BinOp) or (isinstance(n, ast.Call) and _callee(n) not in _EMPTY)
               for n in subtree(statement))  # fmt: skip


def _callee(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _is_followed(statement: ast.stmt, scope: Scope, known: set[str]) -> bool:
    """Whether it is one that Dynamo can trace whatever the values: assignments and a ``return`` of
    PyTorch's functions. ``known``: the kernel's own names."""
    match statement:
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign(targets=[target], value=value):
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            if not all(isinstance(n, ast.Name) for n in names):
                return False
        case ast.Return(value=value):
            if value is None:
                return True
        case _:
            return False
    return all(
        _is_torchs(n, scope, known) if isinstance(n, ast.Call)
        else isinstance(n, _EXPRESSIONS) and getattr(n, "attr", "") not in _LOOKS
        for n in subtree(value)
    )  # fmt: skip


def _is_torchs(call: ast.Call, scope: Scope, known: set[str]) -> bool:
    """Whether it calls a function of torch, a method of a tensor, a plain builtin, or the class of
    a named tuple or dataclass."""
    root, name = root_name(call.func), _callee(call)
    if name.startswith("_") or name.endswith("_"):
        return False
    if root is None or root in known:
        return hasattr(torch.Tensor, name)
    called = scope.resolve(call.func)
    if is_plain(called):
        return True
    if not isinstance(call.func, ast.Attribute):
        return any(called is builtin for builtin in _BUILTINS)
    owner = scope.resolve(call.func.value)
    return owner is torch.nn.functional or (
        owner is torch and hasattr(torch._C._VariableFunctions, name)
    )


def _is_separate(region: Region, scope: Scope, recorded: bool) -> bool:
    """Whether all that the loop writes to was made by the host part (or is an argument, if
    ``recorded``), which knows it by one name, no two of them views of one memory, and all that it
    takes from around the kernel are plain values."""
    if any(a.read and not _is_key(a) for a in region.args):
        return False
    captured = [scope.resolve(a.expr) for a in region.args if a.captured and not a.read]
    if any(isinstance(v, torch.Tensor) or not isinstance(v, _PLAIN) for v in captured):
        return False
    stored = [region.args[k] for k in region.stored]
    if not all(
        (a.fresh or (recorded and a.parameter is not None)) and isinstance(a.expr, ast.Name)
        for a in stored
    ) or not region.order.apart([a.name for a in stored]):
        return False
    return region.order.written(region.node, [a.name for a in region.args]) == {*region.stored}


def _is_key(arg: RegionArg) -> bool:
    """Whether it is the key of the loop's random numbers."""
    return arg.key == KEY


_PLAIN = (bool, int, float, str, type(None), torch.dtype)


# What is said where a gradient is asked for and arguments are views of one memory.
_SHARED = ("memory that the loop writes is also read or written through another argument, and a "
           "gradient is asked for", "pass a copy: x.clone()")  # fmt: skip
_SEVERAL = ("the loop writes to several tensors, and one of them is a view: torch cannot follow "
            "that", "write each in a loop of its own, or write to whole tensors")  # fmt: skip


@torch.library.custom_op("weft_graphs::copied", mutates_args=())
def copied(x: torch.Tensor, beside: Sequence[torch.Tensor]) -> torch.Tensor:
    """A copy of what a loop writes to, which its gradient may need. A compiled graph would make one
    by ``clone`` again in the backward pass, of what an argument holds by then. Not for transforms
    and tangents: it has none. ``beside``: the loop's other tensors, which are to be apart from
    it."""
    return x.clone()


@copied.register_fake
def _(x: torch.Tensor, beside: Sequence[torch.Tensor]) -> torch.Tensor:
    if any(fakes_share(x, other) for other in beside):
        raise GradientError(_SHARED[0], None, help=_SHARED[1])
    return x.clone()


def _keep(ctx: Any, inputs: tuple[torch.Tensor, Sequence[torch.Tensor]], output: Any) -> None:
    x, beside = inputs
    ctx.beside = len(beside)
    if not x.requires_grad:  # one beside it does
        ctx.mark_non_differentiable(output)


copied.register_autograd(lambda ctx, grad: (grad, [None] * ctx.beside), setup_context=_keep)


def _refuse_shared(x: torch.Tensor, beside: Sequence[torch.Tensor]) -> torch.Tensor:
    if any(fakes_share(x, other) for other in beside):
        raise GradientError(_SHARED[0], None, help=_SHARED[1])
    return x.new_empty(0)


_LIBRARY = torch.library.Library("weft_graphs", "FRAGMENT")
_LIBRARY.define(
    "apart(Tensor x, Tensor[] beside) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,)
)  # fmt: skip
_LIBRARY.impl("apart", lambda x, beside: x.new_empty(0), "CompositeExplicitAutograd")
_LIBRARY.impl("apart", torch.library.fallthrough_kernel, "Autograd")
torch.library.register_fake("weft_graphs::apart", _refuse_shared, lib=_LIBRARY)

# An error where a graph is made (which drops it then) if ``x`` has an element in common with those
# ``beside`` it. Views of a batch do not say what they are of, but their memory does.
_check = torch.ops.weft_graphs.apart.default
torch.library.register_vmap(
    "weft_graphs::apart", lambda info, dims, x, beside: (_check(x, beside), None), lib=_LIBRARY
)


def _in_common(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether they may be views of one tensor that have an element in common. Dynamo traces this,
    which knows no offsets."""
    if not _of_one(one, other):
        return False
    traced = torch.compiler.is_dynamo_compiling()
    return traced or fakes_share(innermost(one), innermost(other))


def _of_one(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether they are views of one tensor. Views of a batch do not say so."""
    if not torch.compiler.is_dynamo_compiling() and is_transformed():
        return storage(one) == storage(other)
    return _whole(one) is _whole(other)


def _kept(value: Any, written: Sequence[torch.Tensor], inside: bool) -> Any:
    """An argument that is read, or a copy where it is a view of one that is written: torch takes
    all of that for changed. Of a transform's views, Dynamo does not know."""
    if isinstance(value, list | tuple):
        items = [_kept(v, written, inside) for v in value]
        named = hasattr(value, "_fields")
        return items if isinstance(value, list) else type(value)(*items) if named else (*items,)
    unknown = inside and torch.compiler.is_dynamo_compiling()
    if not isinstance(value, torch.Tensor) or not (
        unknown or any(_of_one(value, w) for w in written)
    ):
        return value
    return value.clone() if inside else copied(value, [])


def _whole(value: torch.Tensor) -> torch.Tensor:
    """The tensor that it is a view of, or itself. Of subclasses, as of fields, Dynamo does not
    know: what two of these have in common ``copied`` finds."""
    if torch.compiler.is_dynamo_compiling() and type(value) not in _KNOWN:
        return value
    return value if value._base is None else value._base


_KNOWN = (torch.Tensor, torch.nn.Parameter)


class TracedLoop:
    """A device loop while the host part is traced: called as a launcher is."""

    def __init__(self, operators: Operators, region: Region) -> None:
        kernel = operators.kernel
        written = ", ".join(region.args[k].name for k in region.stored)
        self.no_gradient = str(gradient_error(written, region.span))
        self.span, self.args = region.span, region.args
        self.shared, self.several = (
            str(GradientError(text, region.span, help=help)) for text, help in (_SHARED, _SEVERAL)
        )
        made = tuple(k for k in region.stored if _is_made(kernel, region, k))
        others = tuple(k for k in region.stored if k not in made)
        # For each argument a letter: Dynamo may take the numbers of an object for symbols.
        self.roles = "".join(
            "k" if _is_key(a) else "c" if a.captured else "m" if k in made
            else "-" if a.fresh or k not in others else "w"
            for k, a in enumerate(region.args)
        )  # fmt: skip
        # Those that it only reads, and that loops or the host part overwrite later.
        names = [a.name for a in region.args]
        later = region.order.later(region.node, names)
        self.overwritten = "".join(
            "y" if n in (later.by_loops | later.by_host) and k not in region.stored else "n"
            for k, n in enumerate(names)
        )
        # Where a gradient is asked for, and where none is: the operators, and what they return.
        self.recorded = LoopOperators(LoopKernel(operators, region, made, others))
        self.plain = self.recorded
        if others:
            self.plain = LoopOperators(LoopKernel(operators, region, made, ()))
        # The kernel's parameters that it is given as they are, and what it reads of each.
        given = {a.name for a in region.args if a.parameter and not a.member}
        own = {p.name: r for p, r in zip(self.plain.parameters, self.plain.reads, strict=True)}
        self.whole = tuple((k, p, own[p.name]) for k, p in enumerate(operators.parameters)
                           if p.name in given and p.name in own)  # fmt: skip

    def takes(self, values: Sequence[Any]) -> bool:
        """Whether its operator can be given what a call gives the kernel: not an object of which it
        calls a method. Dynamo traces this."""
        for k, parameter, read in self.whole:
            (like,), _ = members_of([parameter], [read], [values[k]], True)
            if like == "object":
                return False
        return True

    def __call__(self, *args: Any) -> Any:
        if "k" in self.roles:  # a graph draws the key, and the loop is a function of it
            args = (*args, read_key(args))
        # Tensors of transforms do not say whether a derivative is wanted.
        inside = is_transformed()
        if not torch.compiler.is_dynamo_compiling():  # which follows no other dual tensors
            inside = inside or is_open()
        wanted = inside
        recorded = torch.is_grad_enabled()
        for value, role in zip(args, self.roles, strict=True):
            if role == "c":  # which Dynamo must not look at, or it guards the value
                continue
            members = value if isinstance(value, list | tuple) else (value,)
            if any(isinstance(v, torch.Tensor) for v in members):
                for v in members:
                    if isinstance(v, torch.Tensor) and (
                        (role in "-w" and recorded and has_history(v)) or v.is_complex()
                    ):  # fmt: skip
                        wanted = True
            elif isinstance(value, complex):
                wanted = True
        operators = self.recorded if wanted else self.plain
        tensors = [[v for v in (value if isinstance(value, list | tuple) else (value,))
                    if isinstance(v, torch.Tensor)] if role != "c" else []
                   for value, role in zip(args, self.roles, strict=True)]  # fmt: skip
        self._check_apart(tensors, operators.given, inside)
        written = [v for k, own in enumerate(tensors) if operators.given[k] == "r" for v in own]
        values: list[Any] = []
        for k, (value, role) in enumerate(zip(args, self.roles, strict=True)):
            back = operators.given[k]
            if role == "m":
                values += [list(value.size()), list(value.stride()), value.dtype, value.device]
            elif back == "r" and not isinstance(value, torch.Tensor):
                raise TypeError(self.no_gradient)  # Dynamo makes no other errors
            elif back == "r":  # it is written to, and saved for a gradient before
                beside = [v for j, each in enumerate(tensors) if j != k for v in each]
                values.append(
                    copied(value, beside) if role == "w" and not inside else value.clone()
                )
            elif wanted and self.overwritten[k] == "y" and isinstance(value, torch.Tensor):
                values.append(value.clone() if inside else copied(value, []))
            elif role != "c":
                values.append(_kept(value, written, inside) if written else value)
        found = operators.traced(tuple(values), {})
        outs = [] if found is None else list(found) if isinstance(found, tuple) else [found]
        for k, role in enumerate(operators.given):
            if role == "r":
                new = outs.pop(0)
                if inside and not torch.compiler.is_dynamo_compiling():
                    self._check_samples(k, new, args)
                args[k].copy_(new)
        return tuple(outs) if len(outs) > 1 else outs[0] if outs else None

    def _check_apart(
        self, tensors: Sequence[Sequence[torch.Tensor]], given: str, inside: bool
    ) -> None:  # fmt: skip
        """Refuses what copies back to arguments would lose. Dynamo traces this: of tensors that
        are of no transform, ``copied`` knows more."""
        traced = torch.compiler.is_dynamo_compiling()
        for k, own in enumerate(tensors):
            if given[k] != "r":
                continue
            for value in own:
                others = [v for j, each in enumerate(tensors) if j != k for v in each]
                if (whole := _whole(value)) is not value and given.count("r") > 1:
                    if traced:
                        raise TypeError(self.several)
                    # A dual tensor is a view of what it was made of.
                    if not inside or any(_whole(v) is whole for v in others):
                        raise GradientError(_SEVERAL[0], self.span, help=_SEVERAL[1])
                if (inside or not traced) and any(_in_common(value, v) for v in others):
                    if traced:
                        raise TypeError(self.shared)
                    raise GradientError(_SHARED[0], self.span, help=_SHARED[1])
                if traced and inside:
                    _check(value, others)

    def _check_samples(self, k: int, new: torch.Tensor, args: Sequence[Any]) -> None:
        """Refuses ``new`` of samples for the argument ``k``, which has none."""
        levels = levels_of(new) - levels_of(args[k])
        for arg, value in zip(self.args, args, strict=True):
            if levels and levels_of(value) & levels:
                raise no_samples(self.args[k].name, arg.name, self.span)

    def named(self, code: str) -> list[Any]:
        """The operator whose name has this text between that of the loop and its hash; none where
        a name does not say what it is made of, or is of another loop."""
        types = [kind for letter in code[1:] for kind, own in _LETTERS.items() if own == letter]
        operators = self.plain if code[0] == "p" else self.recorded
        if "" in types or len(types) != len(operators.parameters):
            return []
        return [operators.find(tuple(types), [], operators.guarded.decides()).overload]


def _is_made(kernel: KernelLike, region: Region, k: int) -> bool:
    """Whether argument ``k``, which the loop writes to, has no contents before."""
    arg = region.args[k]
    binders = [s for s in kernel.source.tree.body if arg.name in bound_names(s)]
    return (
        arg.fresh and len(binders) == 1 and not region.order.met_before(region.node, arg.name)
        and isinstance(binders[0], ast.Assign) and isinstance(binders[0].targets[0], ast.Name)
        and isinstance(binders[0].value, ast.Call) and _callee(binders[0].value) in _EMPTY
    )  # fmt: skip


class LoopKernel:
    """One device loop as a kernel of its own. It returns the arguments ``made``, which it allocates
    from sizes, strides, dtype and device, and ``copied``, of which it takes a copy first; then what
    the loop reduces into."""

    implementations = None

    def __init__(
        self, of: Operators, region: Region, made: Sequence[int], copied: Sequence[int]
    ) -> None:
        kernel, self.namespace = of.kernel, of.namespace
        self.kernel, self.region, self.made, self.copied = kernel, region, made, copied
        self.given = tuple(k for k in region.stored if k in (*made, *copied))
        self.__name__ = f"{of.name}_loop{region.index}"
        own = kernel.function
        self.function = types.FunctionType(
            own.__code__, own.__globals__, self.__name__, None, own.__closure__
        )
        self.span, self.described, self.scope = region.span, kernel.described, Scope.of(own)
        names = [a.name.replace(".", "_") for a in region.args]
        parameters: list[Parameter] = []
        self.dotted: list[str] = []  # what the text calls each parameter
        for k, (arg, name) in enumerate(zip(region.args, names, strict=True)):
            if k in made:
                parameters += [Parameter(f"{name}_size"), Parameter(f"{name}_stride"),
                               Parameter(f"{name}_dtype", "ScalarType"),
                               Parameter(f"{name}_device", "Device")]  # fmt: skip
                self.dotted += [p.name for p in parameters[-4:]]
            elif not arg.captured or _is_key(arg):
                kind = arg.parameter.kind if arg.parameter else ""
                parameters.append(Parameter(name, "template" if arg.template else kind))
                self.dotted.append(arg.name)
        self.own = frozenset(names[k] for k in self.given)
        outs = [names[k] for k in self.given] + region.results
        self.mutated = frozenset(names[k] for k in region.stored if k not in self.given)
        self.parts = HostPart(self._host, [region], self.mutated, [Returned.tensors(len(outs))],
                              tuple(parameters))  # fmt: skip
        self.source = self._text(kernel.source, outs)

    def _text(self, source: FunctionSource, outs: Sequence[str]) -> FunctionSource:
        """What names of operators and derivatives look at."""
        tree = copy.copy(source.tree)
        tree.name, tree.returns = self.__name__, None
        args = [ast.arg(p.name) for p in self.parts.parameters]
        tree.args = ast.arguments(
            posonlyargs=[], args=args, kwonlyargs=[], kw_defaults=[], defaults=[]
        )
        names: list[ast.expr] = [ast.Name(n, ast.Load()) for n in outs]
        value = names[0] if len(names) == 1 else ast.Tuple(names, ast.Load())
        tree.body = [self.region.node, ast.Return(value if names else None)]
        ast.fix_missing_locations(tree)
        return FunctionSource(self.function, self.__name__, source.file, source.text, tree,
                              source.kernel, source.lines, source.warned)  # fmt: skip

    def _host(self, launchers: Sequence[Callable[..., Any]], *values: Any) -> Any:
        given = iter(values)
        args: list[Any] = []
        for k, arg in enumerate(self.region.args):
            if arg.read is not None and not _is_key(arg):  # which the launcher adds
                continue
            if arg.captured and not arg.read:
                args.append(self.scope.resolve(arg.expr))
            elif k in self.made:
                size, stride, dtype, device = (next(given) for _ in range(4))
                args.append(torch.empty_strided(size, stride, dtype=dtype, device=device))
            else:
                args.append(next(given).clone() if k in self.copied else next(given))
        results = launchers[0](*args)
        outs = [args[k] for k in self.given]
        outs += results if isinstance(results, tuple) else [] if results is None else [results]
        return outs[0] if len(outs) == 1 else tuple(outs) or None

    def recipe(self) -> Recipe | None:
        """What the host part does, for machine code."""
        scope, cells = self.function.__globals__, cells_of(self.function)
        places: list[Place] = []
        made: list[Made] = []
        position = 0
        numbers = dict[int, int]()
        for k, arg in enumerate(self.region.args):
            if arg.captured and not _is_key(arg):
                if not isinstance(arg.expr, ast.Name):
                    return None
                places.append(captured(arg.name, scope, cells))
                continue
            places.append(position)
            if k in self.made or k in self.copied:
                numbers[k] = len(made)
                places[-1] = Fresh(len(made))
                made.append(Made(position, copied=k in self.copied, described=k in self.made))
            position += 4 if k in self.made else 1
        results = range(len(made), len(made) + len(self.region.results))
        return Recipe(
            tuple(places), tuple(made), (*map(numbers.__getitem__, self.given), *results), ()
        )

    def unconverted(self, *args: Any) -> Any:
        return self._host(self.kernel.current_launchers()[self.region.index :], *args)

    def __call__(self, *args: Any) -> Any:
        """In front of this, Dynamo breaks a graph that cannot have one of the arguments."""
        return self.unconverted(*args)

    @property
    def launchers(self) -> list[Launcher]:
        return [self.kernel.launchers[self.region.index]]


# Letters for the types of arguments in the names of operators, by which one that a saved graph
# names can be made.
_LETTERS = {
    "Tensor": "t", "Tensor?": "o", "SymInt": "i", "float": "f", "bool": "b", "Tensor[]": "T",
    "SymInt[]": "I", "float[]": "F", "bool[]": "B", "ScalarType": "s", "Device": "d",
    "Scalar": "c", "": "x", CHANGING: "n",
}  # fmt: skip


class LoopOperators(Operators):
    """The operators of one device loop. ``given``: for each argument "r" where they return it."""

    def __init__(self, kernel: LoopKernel) -> None:
        # It has what an operator asks of a kernel.
        super().__init__(cast(KernelLike, kernel), kernel.namespace, kernel.__name__)
        self.stem, self.draws = self.name, False  # the key of random numbers is an argument
        self.own, self.copies = kernel.own, bool(kernel.copied)
        self.reads = reads_of(kernel.source.tree, kernel.dotted)
        names = [p.name for p in kernel.parts.parameters]
        self.label, self.shown = (
            kernel.kernel.__name__,
            dict(zip(names, kernel.dotted, strict=True)),
        )
        self.given = "".join("r" if k in kernel.given else "-"
                             for k in range(len(kernel.region.args)))  # fmt: skip

    def find(
        self, types: tuple[str, ...], fixed: Sequence[Any], around: tuple[Any, ...],
        ambient: Ambient = (),
    ) -> Operator:  # fmt: skip
        kind = "p" if self.kernel.mutated else "r"
        self.name = f"{self.stem}_{kind}{''.join(map(_LETTERS.__getitem__, types))}"
        return super().find(types, fixed, around)

    def _check_captured(self) -> None:
        """Tensors from around the kernel are arguments of the trace."""

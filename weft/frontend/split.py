"""Cuts a kernel in two: the host part, which Python runs, and its device loops (regions).

Top-level ``for`` statements over ``range``, ``weft.ndrange``, ``weft.grouped`` or a tensor are
regions. In the host function, region k is replaced by a call of launcher k with the values that
the region reads; all else is left as it is written.
"""

from __future__ import annotations

import ast
import copy
import functools
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from weft.errors import KernelNameError, KernelSyntaxError, KernelValueError
from weft.frontend import host
from weft.frontend.hints import EITHER, HOST_LOOPS, KEPT, is_once, with_lists
from weft.frontend.mutation import mutated
from weft.frontend.names import (
    MISSING,
    Reads,
    Scope,
    bound_names,
    dotted,
    is_known,
    is_known_module,
    own_nodes,
    root_name,
    statement_lists,
    stored_into,
)
from weft.frontend.parameters import Parameter, element_shape, is_clamped, parameters
from weft.lang.random import DRAWS, KEY, KEY_NAME, read_key
from weft.source import FunctionSource, Span, children, copied_tree, recompiled, subtree
from weft.values import frozen, mutable

if TYPE_CHECKING:
    from weft.frontend.either import Either
    from weft.frontend.element_loops import ElementLoop
    from weft.frontend.members import Form
    from weft.frontend.overwrites import Order
    from weft.frontend.returns import Returned

STEP = "__weft_step__"  # the host function's check of a step that is computed
LAUNCHERS = "__weft__"  # the host function's hidden first parameter: a tuple of launchers
_HOST = "__weft_host__"  # the host function while it is compiled: no name that its body may read
DEVICE_LOOPS = ("range", "ndrange", "grouped")
# Attributes that a specialisation knows of a tensor: not passed where the tensor itself is.
SELF_EVIDENT = ("shape", "ndim", "dtype")

# How arguments come apart: the places of complex ones, or the forms of collections (or None).
Parts = frozenset[int] | tuple[Any, ...]


@frozen
class RegionArg:
    """One value that a region reads. ``name`` may be dotted (``cfg.eps``): ``member`` of an object.

    ``captured``: a global or closure value, constant for a specialisation. ``template``: the value
    of a ``weft.template()`` parameter, or of a member that has to be known. ``parameter``: the
    kernel's parameter that it is, where the host part does not reassign it. ``fresh``: shares no
    memory with what the caller can see. ``read``: gives a tensor that a called function reaches
    from the arguments before it; ``key`` says where it is. ``pair``: it is complex, passed as two.
    """

    name: str
    expr: ast.expr
    captured: bool = False
    template: bool = False
    member: bool = False
    parameter: Parameter | None = None
    fresh: bool = False
    key: tuple[Any, ...] = ()
    read: Callable[[Sequence[Any]], Any] | None = None
    pair: bool = False

    @property
    def place(self) -> Any:
        """Where a captured value stands, told from other places."""
        return self.key or self.name

    @property
    def annotation(self) -> Any:
        return self.parameter.annotation if self.parameter else None


@mutable
class Region:
    """One device loop. ``results`` are the scalars that it reduces into, which the host defined;
    ``stored`` are the positions of the arguments into whose elements it may store. ``order``: where
    it stands among all that the host part does. ``either``: says whether Python runs it."""

    index: int
    node: ast.For
    args: list[RegionArg]
    results: list[str]
    span: Span
    order: Order
    stored: tuple[int, ...] = ()
    varying: set[Any] = field(default_factory=set)  # captured numbers (places) that are passed
    pinned: set[Any] = field(default_factory=set)  # those that have to stay constants
    # The collections whose members are arguments: their names, forms, and members' names.
    collections: list[tuple[str, Form, tuple[str, ...]]] = field(default_factory=list)
    either: Either | None = None

    def members_of(self, args: Sequence[Any], forms: Sequence[Form | None]) -> tuple[Any, ...]:
        """What the loop ``of_parts(forms)`` is given for ``args``."""
        from weft.frontend.members import leaves  # where there are collections

        kept = self._passed(forms)
        given = zip(args, forms, strict=False)
        return tuple(v for k, (x, form) in enumerate(given) if k in kept for v in leaves(x, form))

    def of_parts(self, key: Parts) -> Region:
        """This loop where the arguments at these places are pairs of floats, or where collections
        of these forms are passed as their members."""
        return self._of_pairs(key) if isinstance(key, frozenset) else self._of_members(key)

    def _of_members(self, forms: Sequence[Form | None]) -> Region:
        from weft.frontend.members import leaf_names  # where there are collections

        known = {arg.name for arg in self.args}
        hidden = any(name.partition(".")[0] not in known for name in stored_into(self.node))
        args: list[RegionArg] = []
        stored: list[int] = []
        collections: list[tuple[str, Form, tuple[str, ...]]] = []
        for k in sorted(self._passed(forms)):
            arg, form, first = self.args[k], forms[k], len(args)
            names = tuple(leaf_names(arg.name, form))
            if form is not None:
                collections.append((arg.name, form, names))
                one = arg.parameter is not None and arg.parameter.is_variadic
                arg = replace(arg, parameter=arg.parameter if one else None, fresh=False)
            args += [replace(arg, name=name) for name in names]
            if k in self.stored or (form and hidden):  # by a name that the loop gives a member
                stored += range(first, len(args))
        return replace(
            self, args=args, stored=tuple(stored), varying=set(), pinned=set(),
            collections=collections,
        )  # fmt: skip

    def _passed(self, forms: Sequence[Form | None]) -> set[int]:
        """The places of the arguments that are passed to the loop of members: members of others are
        not passed twice, and what functions reach is found again, as it is read by places."""
        held = {arg.name: form for arg, form in zip(self.args, forms, strict=True) if form}
        found = (arg.read is not None and arg.key != KEY for arg in self.args)
        return {k for k, (arg, again) in enumerate(zip(self.args, found, strict=True))
                if not (again or _is_member(arg.name, held))}  # fmt: skip

    def _of_pairs(self, which: frozenset[int]) -> Region:
        return replace(
            self, args=[replace(arg, pair=k in which) for k, arg in enumerate(self.args)]
        )

    @property
    def complex_results(self) -> frozenset[str]:
        """The results that begin as a complex argument."""
        return frozenset(arg.name for arg in self.args if arg.pair) & {*self.results}

    @property
    def totals(self) -> list[str]:
        """The names of the floats, integers and booleans that it reduces into: two of a complex
        number, and all of a vector."""
        pairs, vectors = self.complex_results, self.vector_results
        names = ((f"{n}_real", f"{n}_imag") if n in pairs
                 else vectors.get(n, (n,)) for n in self.results)  # fmt: skip
        return [total for each in names for total in each]

    @property
    def vector_results(self) -> dict[str, tuple[str, ...]]:
        """The results that are vectors, matrices or structs, and the names of their numbers."""
        made = {name: members for name, form, members in self.collections if form.total}
        return {name: tuple(f"{name}_{k}" for k in range(len(made[name]))) for name in made}


@mutable
class HostPart:
    """``host(launchers, *args, **kwargs)`` runs the kernel. ``mutated``: parameters (and captured
    tensors) that are written to. ``returns``: what each ``return`` statement gives. ``rewritten``:
    ``host`` calls functions that the kernel's text does not."""

    host: Callable[..., Any]
    regions: list[Region]
    mutated: frozenset[str]
    returns: list[Returned]
    parameters: tuple[Parameter, ...]
    captured: tuple[str, ...] = ()
    lines: dict[int, str] = field(default_factory=dict)
    rewritten: bool = False

    @functools.cached_property
    def totals(self) -> frozenset[str]:
        """The parameters that are added to, in place if they are tensors (see ``host``)."""
        return frozenset[str]().union(*(getattr(r.node, host.IN_PLACE, ()) for r in self.regions))


def split(
    source: FunctionSource, function: Callable[..., Any], check: host.Check = lambda p, v: None,
    debug: bool = False,
) -> HostPart:  # fmt: skip
    """Splits the kernel ``function``. ``check(parameter, value)`` refuses what a parameter that is
    annotated with a dtype cannot be. ``debug``: integers of the host part are checked.
    Raises ``KernelSyntaxError`` and ``KernelNameError``."""
    splitter = _Splitter(source, function)
    tree = copied_tree(splitter.tree())
    always = [r.args for r in splitter.regions if any(r.node is node for node in source.tree.body)]
    passed = [a.parameter.name for args in always for a in args if a.parameter is not None]
    hidden = host.rewritten(
        tree, source, splitter.scope, splitter.parameters, LAUNCHERS, passed, check, debug
    )
    if any(computed_step(r.node) is not None for r in splitter.regions):
        hidden[STEP] = functools.partial(_check_step, [r.span for r in splitter.regions])
    for region in splitter.regions:
        if region.either is not None:
            hidden[f"__weft_either_{region.index}__"] = region.either.asked()
    made = _host_function(source, function, tree, hidden)
    captured = {a.name.partition(".")[0] for r in splitter.regions for a in r.args if a.captured}
    return HostPart(
        made, splitter.regions, splitter.written, splitter.returns, splitter.parameters,
        tuple(sorted(captured)), source.lines, bool(hidden),
    )  # fmt: skip


class _Splitter:
    def __init__(self, source: FunctionSource, function: Callable[..., Any]) -> None:
        self.source = source
        self.scope = Scope.of(function)
        self.parameters = parameters(function)
        self.by_name = {p.name: p for p in self.parameters}
        self.regions: list[Region] = []
        self.returns: list[Returned] = []
        self.region_nodes: set[ast.stmt] = set()
        from weft.frontend.local_functions import into_loops  # where a kernel is split

        into_loops(source.tree, self.is_region)
        _refuse(source, source.tree.body, self.is_region)
        self.stored = set(self._host_names(source.tree.body))
        self.locals = frozenset(self.stored | set(self.by_name))
        for parameter in self.parameters:
            if is_clamped(parameter) and parameter.name in self.stored:
                raise KernelSyntaxError(
                    f'`{parameter.name}`, whose boundary is "clamp", is assigned',
                    source.span(source.tree), help="use another name for what is assigned",
                )  # fmt: skip
        self.written, self.aliases = mutated(source.tree, self.scope, self.region_nodes)
        in_place = host.in_place(self.region_nodes, self.parameters, self.stored)
        self.replaced = {n for r in self.region_nodes for n in bound_names(r)} - in_place
        self.written |= {root for n in in_place for root in self.aliases.get(n, ())}
        from weft.frontend.overwrites import Order  # where a kernel is called

        self.order = Order(source, self.scope, self.region_nodes)

    def tree(self) -> ast.FunctionDef:
        """The host function's syntax tree, its first parameter not yet added."""
        from weft.frontend.returns import Reader, given_once  # where a kernel is split

        inside = {n for region in self.region_nodes for n in subtree(region)}
        outside = [n for n in subtree(self.source.tree) if n not in inside]
        given = given_once(self.source.tree.body, [*subtree(self.source.tree)])
        reader = Reader(self.scope, self._passed, self.locals, given)
        for statement in outside:
            if isinstance(statement, ast.Return):
                self.returns.append(reader.returned(statement.value))
        new = copy.copy(self.source.tree)
        new.body = self._block(self.source.tree.body)
        _ReadsAfter(self.source, self.regions).check(self.source.tree.body, {})
        return new

    # --- which statements are what -------------------------------------------------------------
    def is_region(self, node: ast.stmt) -> bool:
        """Whether ``node``, a statement of the host part, is a device loop."""
        if not isinstance(node, ast.For):
            return False
        over = node.iter
        if isinstance(over, ast.Call):
            called = self.scope.called(over.func, frozenset(self.by_name))
            if called in DEVICE_LOOPS:
                return True
            if called in HOST_LOOPS:
                return False
        while isinstance(over, ast.Subscript) and _is_key(over.slice):  # a dict's item
            over = over.value
        if root_name(over) is not None:
            return True
        raise KernelSyntaxError(
            f"a kernel cannot loop over `{ast.unparse(node.iter)}`", self.source.span(node.iter),
            help="a device loop goes over range(...), weft.ndrange(...) or a tensor; write "
            "`for ... in weft.serial(...)` for a loop of the host part",
        )  # fmt: skip

    def _host_names(self, body: Iterable[ast.stmt]) -> Iterable[str]:
        """The names that the host part assigns."""
        for node in body:
            if self.is_region(node):
                self.region_nodes.add(node)
                continue
            blocks = statement_lists(node)
            if not blocks:
                yield from bound_names(node)
                continue
            for child in children(node):
                if isinstance(child, ast.ExceptHandler):
                    yield from [child.name] if child.name else []
                elif isinstance(child, ast.match_case):
                    yield from bound_names(child.pattern)
                elif not isinstance(child, ast.stmt):
                    yield from bound_names(child)
            for block in blocks:
                yield from self._host_names(block)

    def _block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return [
            made for node in body for made in
            (self._region(node) if isinstance(node, ast.For) and self.is_region(node)
             else [self._either(node) if isinstance(node, ast.If) and hasattr(node, EITHER)
                   else with_lists(node, self._block)])
        ]  # fmt: skip

    def _either(self, node: ast.If) -> ast.stmt:
        """A loop that is Python's in one branch, and compiled in the other: which, is asked."""
        from weft.frontend.either import Either  # where there are such loops

        index, new = len(self.regions), copy.copy(node)
        new.body, new.orelse = self._block(node.body), self._block(node.orelse)
        region = self.regions[index]
        inner = region.node.body[0]
        assert isinstance(inner, ast.For)
        names, own = [a.name for a in region.args], frozenset(self.by_name)
        constants = frozenset(a.name for a in region.args if a.template or a.captured)
        found: ElementLoop = getattr(node, EITHER)
        region.either = Either(inner, found, names, region.results, own, constants)
        if any(p is not None and (is_clamped(p) or element_shape(p))
               for p in (a.parameter for a in region.args)):  # fmt: skip
            region.either.compiles = lambda *_: None  # subscripts mean other things
        way = f"__weft_way_{index}__"
        asked = ast.Call(ast.Name(f"__weft_either_{index}__", ast.Load()),
                         [copied_tree(a.expr) for a in region.args], [])  # fmt: skip
        new.test = ast.UnaryOp(ast.Not(), ast.NamedExpr(ast.Name(way, ast.Store()), asked))
        for launch in new.orelse:
            if region.results and host.is_launch(getattr(launch, "value", node), LAUNCHERS):
                assert isinstance(launch, ast.Assign)
                launch.value = ast.Call(ast.Name(way, ast.Load()), [launch.value], [])
        for child in subtree(new):
            if isinstance(child, ast.expr) and not hasattr(child, "lineno"):
                ast.copy_location(child, node)
        return new

    # --- one region -----------------------------------------------------------------------------
    def _region(self, node: ast.For) -> list[ast.stmt]:
        span = self.source.span(node)
        if node.orelse:
            raise KernelSyntaxError(
                "`else` of a device loop", self.source.span(node.orelse[0]),
                help="write the statements after the loop: it cannot be left by `break`",
            )  # fmt: skip
        for inner in own_nodes(node):
            if isinstance(inner, ast.Return) and not is_once(node):
                raise KernelSyntaxError(
                    "`return` inside a device loop", self.source.span(inner),
                    help="store the result in a tensor and return that after the loop",
                )  # fmt: skip
        reads = Reads()
        reads.statement(node, frozenset())
        stored = set(bound_names(node))
        read = {root_name(chain) for chain in reads.chains}
        kept: frozenset[str] = getattr(node, KEPT, frozenset())
        results = [n for n in dict.fromkeys((*bound_names(node), *sorted(kept)))
                   if n in self.locals and (n in read or n in kept)]  # fmt: skip
        args: dict[str, RegionArg] = {}
        unread = (ast.copy_location(ast.Name(n, ast.Load()), node) for n in kept - read)
        for chain in (*reads.chains, *unread):
            self._check_clamped(chain)
            arg = self._arg(chain, stored)
            if arg is not None:
                args.setdefault(arg.name, arg)
        for name in [n for n in args if n.rpartition(".")[2] in SELF_EVIDENT]:
            if name.rpartition(".")[0] in args:
                del args[name]
        into = stored_into(node)
        places = tuple(k for k, name in enumerate(args) if name in into)
        region = Region(
            len(self.regions), node, list(args.values()), results, span, self.order, places
        )
        self.regions.append(region)
        passed = [copied_tree(a.expr) for a in region.args]
        from weft.frontend.callees import mentions  # where a kernel is split

        if mentions(node, self.scope, DRAWS):  # the launcher draws it
            region.args.append(
                RegionArg(KEY_NAME, ast.Constant(None), captured=True, key=KEY, read=read_key)
            )
        function = ast.Subscript(
            ast.Name(LAUNCHERS, ast.Load()), ast.Constant(region.index), ast.Load()
        )
        call = ast.Call(function, passed, [])
        statements: list[ast.stmt] = [ast.Expr(call)]
        if results:
            statements = host.given_to(results, call, getattr(node, host.IN_PLACE, ()))
        step = computed_step(node)
        if step is not None:
            check = ast.Call(
                ast.Name(STEP, ast.Load()), [ast.Constant(region.index), copied_tree(step)], []
            )
            statements = [ast.If(check, statements, [])]
        head = ast.copy_location(ast.Pass(), node)
        head.end_lineno, head.end_col_offset = node.iter.end_lineno, node.iter.end_col_offset
        for child in (c for statement in statements for c in subtree(statement)):
            if isinstance(child, ast.expr | ast.stmt):
                ast.copy_location(child, head)
        return statements

    def _arg(self, chain: ast.expr, stored: set[str]) -> RegionArg | None:
        """What the host has to pass for a name that the region reads; None if nothing."""
        root = root_name(chain)
        assert root is not None
        if root in self.locals:
            parameter = self.by_name.get(root) if root not in self.stored else None
            whole = isinstance(chain, ast.Name)
            template = parameter is not None and parameter.kind == "template"
            return RegionArg(
                dotted(chain), chain, template=template, member=not whole,
                parameter=parameter if whole else None, fresh=not self.aliases.get(root, True),
            )  # fmt: skip
        if root in stored:
            return None
        value = self.scope.lookup(root)
        if value is MISSING:
            return None  # an error if it is ever lowered: a static branch may leave it out
        if isinstance(value, types.ModuleType) and not is_known_module(value):
            value = self.scope.resolve(chain)  # `config.N`: passed, so that a change is noticed
        passed = value is not MISSING and not is_known(value)
        return RegionArg(dotted(chain), chain, captured=True) if passed else None

    def _check_clamped(self, chain: ast.expr) -> None:
        """Refuses another name for a tensor whose subscripts clamp: those of the name would not."""
        root = root_name(chain) or ""
        if root not in self.locals or is_clamped(self.by_name.get(root)):
            return
        for name in sorted(self.aliases.get(root, ())):
            if is_clamped(self.by_name.get(name)):
                raise KernelSyntaxError(
                    f'`{root}` may share the memory of `{name}`, whose boundary is "clamp", and '
                    "does not clamp itself", self.source.span(chain),
                    help=f"use `{name}` in the loop, or a copy: {name}.clone()",
                )  # fmt: skip

    def _passed(self, name: str) -> str:
        """The name of a parameter that is returned as it was passed, or ""."""
        return name if name in self.by_name and name not in self.stored | self.replaced else ""


class _ReadsAfter:
    """Refuses what the host part reads after a region, of which each iteration had its own."""

    def __init__(self, source: FunctionSource, regions: Sequence[Region]) -> None:
        self.source = source
        self.regions = {id(region.node): region for region in regions}

    def check(self, body: list[ast.stmt], private: dict[str, ast.For]) -> None:
        """Walks in program order; ``private`` are the names last assigned by a region."""
        for node in body:
            region = self.regions.get(id(node))
            if region is not None:
                for arg in region.args:
                    self._refuse(arg.expr, private)
                for name in bound_names(node):
                    if name in region.results:
                        private.pop(name, None)
                    else:
                        private[name] = region.node
                continue
            blocks = statement_lists(node)
            if not blocks:
                self._host_reads(node, private)
                continue
            for child in children(node):
                if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                    self._host_reads(child, private)
            repeats = 2 if isinstance(node, ast.For | ast.While) else 1
            for _ in range(repeats):
                after: dict[str, ast.For] = {}
                for block in blocks:
                    inner = dict(private)
                    self.check(block, inner)
                    after |= inner
                private.clear()
                private |= after

    def _host_reads(self, node: ast.AST, private: dict[str, ast.For]) -> None:
        reads = Reads()
        if isinstance(node, ast.stmt):
            reads.statement(node, frozenset())
        else:
            reads.expression(getattr(node, "context_expr", node), frozenset())  # of a `with`
        for chain in reads.chains:
            self._refuse(chain, private)
        for name in bound_names(node):
            private.pop(name, None)

    def _refuse(self, chain: ast.expr, private: dict[str, ast.For]) -> None:
        name = root_name(chain)
        if name in private:
            use = "write what it is last, by the bounds of the loop"
            if name not in bound_names(private[name].target):
                use = (f"accumulate into a value from before the loop (`{name} += ...`; of a place"
                       f", after one that finds the value: `{name} = min({name}, i)`)")  # fmt: skip
            raise KernelNameError(
                f"`{name}` is read after the device loop that assigns it (line "
                f"{private[name].lineno})", self.source.span(chain),
                help=f"each iteration has a `{name}` of its own: store it in a tensor, or {use}",
            )  # fmt: skip


def _is_key(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_member(name: str, held: dict[str, Form]) -> bool:
    """Whether a dotted argument is a member of a collection that is passed as its members, or what
    is known of that."""
    root, _, rest = name.rpartition(".")
    if rest in SELF_EVIDENT and root not in held:
        root, _, rest = root.rpartition(".")
    form = held.get(root)
    return form is not None and form.kind is not dict and rest in form.names


def computed_step(node: ast.For) -> ast.expr | None:
    """The step of a device loop over ``range(a, b, step)`` where Python knows it before the launch,
    and the compiler may not."""
    match node.iter:
        case ast.Call(func=ast.Name(id="ndrange") | ast.Attribute(attr="ndrange")):
            return None  # of extents
        case ast.Call(args=[_, _, step]) if not isinstance(step, ast.Constant):
            computes = (ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator,
                        ast.unaryop, ast.expr_context)  # fmt: skip
            return step if all(isinstance(n, computes) for n in subtree(step)) else None
        case _:
            return None


def _check_step(spans: Sequence[Span], index: int, step: Any) -> bool:
    if isinstance(step, int) and step == 0:
        raise KernelValueError(
            "the step of a range is 0", spans[index], help="use a positive or a negative one"
        )
    return True


_REFUSED: dict[type[ast.AST], tuple[str, str]] = {
    **dict.fromkeys((ast.Yield, ast.YieldFrom),
                    ("`yield` in a kernel, or in a function that it defines",
                     "both run to their end: return tensors, from such a function a list")),
    ast.Await: ("`await` in a kernel", "a kernel is an ordinary function"),
    ast.AsyncFor: ("`async for` in a kernel", "a kernel is an ordinary function"),
    ast.AsyncWith: ("`async with` in a kernel", "a kernel is an ordinary function"),
    ast.Global: ("`global` in a kernel", "return the value, or write it into a tensor"),
    ast.Nonlocal: ("`nonlocal` in a kernel", "return the value, or write it into a tensor"),
    **dict.fromkeys((ast.FunctionDef, ast.AsyncFunctionDef), (
        "a function defined inside a kernel", "define it outside of it, or in the loops: the host "
        "part may define what device loops alone call, its defaults constants",
    )),
    ast.ClassDef: ("a class defined inside a kernel", "define it outside of the kernel"),
}  # fmt: skip


def _refuse(
    source: FunctionSource, body: Iterable[ast.AST], is_region: Callable[[ast.stmt], bool],
    inside: bool = False,
) -> None:  # fmt: skip
    """Refuses what no part of a kernel may hold; functions are defined ``inside`` device loops."""
    for node in body:
        function = isinstance(node, ast.FunctionDef)
        if type(node) in _REFUSED and not (function and inside):
            message, help = _REFUSED[type(node)]
            raise KernelSyntaxError(message, source.span(node), help=help)
        loop = not inside and isinstance(node, ast.For) and is_region(node)
        _refuse(source, children(node), is_region, inside or loop)


def _host_function(
    source: FunctionSource, function: Callable[..., Any], tree: ast.FunctionDef,
    hidden: dict[str, Any],
) -> Callable[..., Any]:  # fmt: skip
    """Compiles ``tree`` with the globals, closure, defaults and place of ``function``. ``hidden``
    are functions that it calls besides: parameters with defaults."""
    tree.name, tree.decorator_list, tree.returns = _HOST, [], None
    arguments = tree.args
    arguments.posonlyargs = [ast.arg(LAUNCHERS), *arguments.posonlyargs]
    arguments.kwonlyargs += map(ast.arg, hidden)
    arguments.kw_defaults += [None] * len(hidden)
    for argument in subtree(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    made = recompiled(tree, function, function.__globals__)
    made.__kwdefaults__ = {**(function.__kwdefaults__ or {}), **hidden}
    return made

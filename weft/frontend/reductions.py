"""Scalars that a parallel loop accumulates into: which combiner, and what is refused."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from weft.errors import KernelSyntaxError, KernelTypeError, Span
from weft.frontend.accumulations import ATOMIC
from weft.frontend.desugar import placed
from weft.frontend.expressions import BINARY
from weft.frontend.kinds import UNSIGNED, is_float
from weft.lang.dtypes import DTYPES
from weft.source import FunctionSource, children, subtree

# The combiner that `x op= v` accumulates with.
AUGMENTED = {"+": "add", "-": "add", "*": "mul", "/": "mul", "&": "and", "|": "or", "^": "xor"}
_OPERATORS = {kind: AUGMENTED[symbol] for kind, symbol in BINARY.items() if symbol in AUGMENTED}
_EXTREMES = {
    "max": "max", "maximum": "max", "fmax": "max", "min": "min", "minimum": "min", "fmin": "min",
}  # fmt: skip
_KINDS = {
    "add": ("addf", "addi", "addi"), "mul": ("mulf", "muli", "muli"),
    "max": ("maximumf", "maxsi", "maxui"), "min": ("minimumf", "minsi", "minui"),
    "and": ("", "andi", "andi"), "or": ("", "ori", "ori"), "xor": ("", "xori", "xori"),
}  # fmt: skip
IN_ORDER = (
    "Where each iteration needs the one before, let the loop run in order: "
    "weft.loop_config(serialize=True) before it"
)


def kind(combiner: str, dtype: str) -> str:
    """The IR's combiner for values of ``dtype``."""
    column = 0 if is_float(dtype) else 2 if dtype in (*UNSIGNED, "bool") else 1
    return _KINDS[combiner][column]


def rewrite(body: list[ast.stmt], names: list[str]) -> list[ast.stmt]:
    """``if x > m: m = x`` becomes ``m = max(m, x)`` for the reduced ``names``."""
    if not names:
        return body
    rewriter = _Extremes(set(names))
    return [rewriter.visit(node) for node in body]


class _Extremes(ast.NodeTransformer):
    def __init__(self, names: set[str]) -> None:
        self.names = names

    def visit_If(self, node: ast.If) -> ast.stmt:
        match node:
            case ast.If(
                test=ast.Compare(left=left, ops=[op], comparators=[right]),
                body=[ast.Assign(targets=[ast.Name(id=name)], value=value)],
                orelse=[],
            ) if name in self.names:
                function = _extreme(left, op, right, name, value)
                if function:
                    old = ast.Name(name, ast.Load())
                    call = ast.Call(ast.Name(function, ast.Load()), [old, value], [])
                    new = ast.Assign([ast.Name(name, ast.Store())], call)
                    return placed(new, node)
            case _:
                pass
        new_node = ast.If(
            node.test, [self.visit(n) for n in node.body], [self.visit(n) for n in node.orelse]
        )
        return ast.copy_location(new_node, node)


def _extreme(left: ast.expr, op: ast.cmpop, right: ast.expr, name: str, value: ast.expr) -> str:
    """ "max" or "min" if the comparison asks whether ``value`` is beyond ``name``."""
    text = ast.dump(value)
    if isinstance(right, ast.Name) and right.id == name and ast.dump(left) == text:
        return "max" if isinstance(op, ast.Gt) else "min" if isinstance(op, ast.Lt) else ""
    if isinstance(left, ast.Name) and left.id == name and ast.dump(right) == text:
        return "max" if isinstance(op, ast.Lt) else "min" if isinstance(op, ast.Gt) else ""
    return ""


def combiner(body: list[ast.stmt], name: str, source: FunctionSource) -> str:
    """How ``name`` is accumulated into: one of add, mul, max, min, and, or, xor.

    Raises ``KernelSyntaxError`` where it is updated in two ways, or read besides.
    """
    found: dict[str, ast.stmt] = {}
    for node in (n for statement in body for n in subtree(statement)):
        if isinstance(node, ast.stmt):
            update = _update(node, name)
            if update is None:
                continue
            way, rest = update
            if isinstance(node, ast.For):
                raise KernelSyntaxError(
                    f"`{name}` comes from before the parallel loop and is an index in it",
                    source.span(node), help="give the index a name of its own",
                )  # fmt: skip
            if not way:
                raise KernelSyntaxError(
                    f"`{name}` comes from before the parallel loop and is assigned in it",
                    source.span(node),
                    help=f"only an accumulation may leave a parallel loop: `{name} += ...`, "
                    f"`{name} = max({name}, ...)`; use another name for a temporary. {IN_ORDER}",
                )  # fmt: skip
            found.setdefault(way, node)
            if any(_reads(part, name) for part in rest):
                _refuse_read(node, name, source)
    for statement in body:
        _check_reads(statement, name, source)
    if len(found) > 1:
        first, second = list(found)[:2]
        raise KernelSyntaxError(
            f"`{name}` is accumulated in two ways, by {first} and by {second}",
            source.span(found[second]), help="use one variable for each",
        )  # fmt: skip
    return next(iter(found))


def signs(body: list[ast.stmt], name: str) -> set[str]:
    """ "+" if something is added to ``name`` in ``body``, "-" if something is taken off it."""
    nodes = (n for statement in body for n in subtree(statement) if isinstance(n, ast.stmt))
    updates = [n for n in nodes if _update(n, name) is not None]
    taken = [isinstance(getattr(n, "op", getattr(n.value, "op", None)), ast.Sub) for n in updates]  # type: ignore[attr-defined]
    return {"-" if each else "+" for each in taken}


def _update(node: ast.stmt, name: str) -> tuple[str, list[ast.expr]] | None:
    """(combiner, other operands) if ``node`` assigns ``name``; combiner "" if by no known one."""
    if isinstance(node, ast.AugAssign) and _is(node.target, name):
        return _OPERATORS.get(type(node.op), ""), [node.value]
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if not any(_is(t, name) for t in targets for t in subtree(t)):
            return None
        value = node.value
        match value:
            case ast.BinOp(left=left, op=op, right=right) if _is(left, name):
                return _OPERATORS.get(type(op), ""), [right]
            case ast.BinOp(
                left=left,
                op=ast.Add() | ast.Mult() | ast.BitAnd() | ast.BitOr() | ast.BitXor() as op,
                right=right,
            ) if _is(right, name):
                return _OPERATORS[type(op)], [left]
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=args) if (
                called in _EXTREMES and any(_is(a, name) for a in args)
            ):
                return _EXTREMES[called], [a for a in args if not _is(a, name)]
            case ast.BoolOp(op=op, values=values) if any(_is(v, name) for v in values):
                way = "and" if isinstance(op, ast.And) else "or"
                return way, [v for v in values if not _is(v, name)]
            case _:
                return "", []
    if isinstance(node, ast.For) and any(_is(t, name) for t in subtree(node.target)):
        return "", []
    return None


def _check_reads(node: ast.AST, name: str, source: FunctionSource) -> None:
    if isinstance(node, ast.stmt) and _update(node, name) is not None:
        return
    for child in children(node):
        if isinstance(child, ast.expr) and _reads(child, name):
            _refuse_read(child, name, source, getattr(node, ATOMIC, ""))
        _check_reads(child, name, source)


def _refuse_read(node: ast.AST, name: str, source: FunctionSource, atomic: str = "") -> None:
    """``atomic``: the operation of which the value before is what is read."""
    help = f"read it after the loop. {IN_ORDER}"
    if atomic:
        help = (
            f"what was there before is known of an element of a tensor: write `{name} = "
            f"x.new_zeros(1, dtype=torch.int64)` before the loop, and `weft.{atomic}({name}[0], v)`"
        )
    raise KernelSyntaxError(
        f"`{name}` is read in the device loop that accumulates into it",
        source.span(node),
        help=help,
    )


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _reads(node: ast.AST, name: str) -> bool:
    return any(_is(n, name) for n in subtree(node))


def check_names(tree: ast.AST, loop: ast.For, name: str, span: Span) -> None:
    """Refuses a total that the host part may give a tensor which has another name, or whose tensor
    it has given another name: Python would change that, too. Names that weft makes are those of
    what is its own. What begins as a number is one, also as the 0-d tensor that a loop gives."""
    if name.startswith("weft_"):
        return
    inside = {*subtree(loop)}
    pairs = [(getattr(n, "lineno", 0), *pair) for n in subtree(tree) if n not in inside
             for pair in _given(n)]  # fmt: skip
    values = [value for _, target, value in pairs if target == name]
    if any(map(_is_view, values)):
        raise KernelTypeError(
            f"`{name}` is another name of a tensor, which a sum in it would change", span,
            help=f"give it a copy ({name} = y.clone()), or accumulate into a tensor's element",
        )  # fmt: skip
    called = [v.func for v in values if isinstance(v, ast.Call)]
    made = any(isinstance(f, ast.Attribute) and f.attr not in DTYPES for f in called)
    for line, other, value in pairs:
        if made and isinstance(value, ast.Name) and value.id == name and line < loop.lineno:
            raise KernelTypeError(
                f"`{other}` is another name of `{name}`, which a sum in that would change", span,
                help=f"give it a copy: {other} = {name}.clone()",
            )  # fmt: skip


def _given(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The names that the statement or expression ``node`` assigns, with what each may be."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _paired(target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from _paired(target, value)
        case ast.NamedExpr(target=target, value=value):
            yield from _paired(target, value)
        case _:
            pass


def _paired(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match target, value:
        case ast.Name(id=name), ast.IfExp(body=body, orelse=orelse):
            yield from ((name, each) for each in (body, orelse))
        case ast.Name(id=name), ast.BoolOp(values=values):
            yield from ((name, each) for each in values)
        case ast.Name(id=name), ast.NamedExpr(value=inner):
            yield name, inner
        case ast.Name(id=name), _:
            yield name, value
        case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
            for pair in zip(targets, values, strict=True):
                yield from _paired(*pair)
        case _:
            pass


# Of a tensor without dimensions, which have none either.
_WHOLE_VIEWS = (
    "squeeze",
    "view",
    "view_as",
    "reshape",
    "reshape_as",
    "detach",
    "expand",
    "permute",
)


def _is_view(value: ast.expr) -> bool:
    """Whether it gives what has a name, or a view of it that is no element."""
    match value:
        case ast.Name() | ast.Attribute():
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name() | ast.Attribute(), attr=method)):
            return method in _WHOLE_VIEWS
        case _:
            return False

"""Lists that change places: names that hold one local array after another.

While a loop is lowered a name stands for one array. A name that would stand for another one in the
next turn of a loop, or behind a branch (``prev, cur = cur, prev``, ``dp = new``), has an array of
its own, its *home*, and what it is assigned is copied there. That is what Python does, as long as
nobody changes a list that has two names: ``list_flow.py`` refuses what does.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import field, replace

from weft.errors import KernelTypeError, Span
from weft.frontend import casts, elements, growing, lists, tuple_lists
from weft.frontend.context import TWO_KINDS, Again, Form, Lowering
from weft.frontend.desugar import RETURN_VALUE
from weft.frontend.kinds import (
    Kind,
    OpaqueKind,
    Operand,
    Part,
    Row,
    ScalarKind,
    Tensor,
    Tup,
    TupKind,
    TupleList,
    dtype_of,
)
from weft.frontend.list_flow import Known, check_flow
from weft.frontend.names import stored_lists
from weft.frontend.scope import Frame
from weft.ir.core import Value
from weft.lang.growing import ROOM
from weft.source import subtree
from weft.values import mutable

List = Tensor | TupleList


@mutable
class Moves:
    """The homes of one frame, and what ``list_flow`` has to know of its lists."""

    homes: dict[str, List]
    body: Sequence[ast.stmt]
    known: Known
    caller: dict[str, Operand] = field(default_factory=dict)  # the lists that parameters are

    def check(self, name: str, x: Operand, span: Span) -> None:
        """Refuses a tuple or an object that holds a list which changes places, and another list
        for a name that has a home."""
        if name in self.homes and x is not self.homes[name] and _is_array(x):
            raise KernelTypeError(
                f"`{name}` is assigned one list after another, and here as a part of something",
                span, help=f"write {name} = ... in a statement of its own",
            )  # fmt: skip
        own = self.memory()
        if name != RETURN_VALUE and any(_memory(item) & own for item in _inside(x)):
            raise KernelTypeError(
                f"`{name}` holds a list whose name is assigned another one", span,
                help="put a copy of the list into it: a[:]",
            )  # fmt: skip

    def memory(self) -> set[Value]:
        return {memref for home in self.homes.values() for memref in _memory(home)}


def _inside(x: Operand) -> Iterator[Operand]:
    for item in x.items if isinstance(x, Tup) else ():
        yield item
        yield from _inside(item)


def _memory(x: Operand) -> set[Value]:
    """The arrays that a list, or a part of one, is in."""
    if isinstance(x, TupleList):
        return {column.memref for column in x.columns}
    if isinstance(x, Row):
        return {x.view.tensor.memref} if x.view is not None else set()
    tensor = x.tensor if isinstance(x, Part) else x
    return {tensor.memref} if isinstance(tensor, Tensor) else set()


def _is_array(x: Operand) -> bool:
    return isinstance(x, TupleList) or (isinstance(x, Tensor) and x.local and not x.element)


# --- which names have homes, and of what form -----------------------------------------------------
def _form(x: Operand | TupKind) -> Form | None:
    """What a home has to be like that ``x``, a list or the kind of one, is copied to."""
    if isinstance(x, TupKind | Tup):
        if x.names:
            return None
        kinds = {type(item) for item in x.items}
        numbers = kinds <= {ScalarKind} if isinstance(x, TupKind) else all(map(dtype_of, x.items))
        return Form((len(x.items),)) if numbers or not x.items else Form((), ROOM)
    if isinstance(x, TupleList):
        return Form((), growing.room_of(x))
    if not isinstance(x, Tensor) or not _is_array(x):
        return None
    dtype = "" if x.key else x.dtype
    if growing.is_growing(x):
        return Form((), growing.room_of(x), dtype)
    return Form(x.shape or (), 0, dtype, x.pair, x.listed)


def _joined(a: Form, b: Form) -> Form | None:
    """What can hold either."""
    if a.dtype != b.dtype or a.pair != b.pair:
        return None
    if a.room or b.room:
        fixed = [form.shape for form in (a, b) if not form.room]
        if any(len(shape) != 1 for shape in fixed) or a.pair:
            return None
        return Form((), max(ROOM, a.room, b.room, *(s[0] for s in fixed)), a.dtype)
    if a.shape == b.shape:
        return replace(a, listed=a.listed and b.listed)
    if len(a.shape) != 1 or len(b.shape) != 1 or a.dtype:
        return None
    return Form((), max(ROOM, *a.shape, *b.shape))


def _two_kinds(cx: Lowering, a: Kind, b: Kind, name: str) -> None:
    """Has ``name`` have a home from the next round on, where both kinds are those of lists."""
    if not name.isidentifier() or cx.frame.moves is None:
        return
    arrays = [k.operand for k in (a, b) if isinstance(k, OpaqueKind) and _is_array(k.operand)]
    tuples = [k for k in (a, b) if isinstance(k, TupKind)]
    if len(arrays) + len(tuples) < 2 or (
        not arrays and not cx.frame.moves.known.only_lists(name)
    ):  # fmt: skip
        return
    found, *others = [_form(x) for x in (*arrays, *tuples)]
    for form in others:
        nested = found is not None and len(found.shape) > 1 and tuples  # which says no sizes
        found = found if nested else _joined(found, form) if found and form else None
    if found is not None:
        _mark(cx, name, found)


def _mark(cx: Lowering, name: str, form: Form) -> None:
    """Begins another round, in which ``name`` has a home of that form, if that is news."""
    key = (*cx.frame.path, name)
    known = cx.homes.get(key)
    if name in cx.frame.grown and not form.room and len(form.shape) == 1 and not form.pair:
        form = Form((), max(ROOM, *form.shape), form.dtype)
    found = _joined(known, form) if known else form
    if found is None or found == known:
        return
    cx.homes[key] = found
    raise Again


def begin(cx: Lowering, body: Sequence[ast.stmt], given: dict[str, Operand], span: Span) -> None:
    """Makes the homes of the frame whose ``body`` is lowered next, and copies parameters there."""
    path = cx.frame.path
    homes = {
        key[-1]: _home(cx, key[-1], form, span)
        for key, form in cx.homes.items() if key[:-1] == path
    }  # fmt: skip
    cx.frame.moves = Moves(homes, body, Known(frozenset(homes), body))
    cx.frame.moves.caller = {name: x for name, x in given.items() if _is_array(x)}
    cx.frame.moves.known.listed |= cx.frame.moves.caller.keys()
    for name in given.keys() & homes.keys():
        _put(cx, name, given[name], span)
        cx.frame.env[name] = homes[name]


def _home(cx: Lowering, name: str, form: Form, span: Span) -> List:
    key = (*cx.frame.path, f"{name}[]")
    if form.room:
        if form.dtype:
            return growing.of_items(cx, "", [], span, form.dtype, form.room)
        return growing.of_items(cx, name, [], span, room=form.room)
    kind = ScalarKind(form.dtype) if form.dtype else cx.kinds.get(key, ScalarKind("int"))
    if not isinstance(kind, ScalarKind):
        raise KernelTypeError(f"`{name}` holds lists of numbers, and of tuples", span,
                              help="a list holds items of one form")  # fmt: skip
    shape = (*form.shape, 2) if form.pair else form.shape
    memref = elements.local_memory(cx, shape, kind.dtype)
    return Tensor(memref, kind.dtype, "a local array", local=True, shape=form.shape,
                  pair=form.pair, listed=form.listed or not form.dtype,
                  key=() if form.dtype else key)  # fmt: skip


# --- assignments ----------------------------------------------------------------------------------
def assigned(
    cx: Lowering, target: ast.expr, value: ast.expr | None, x: Operand, span: Span
) -> Operand:  # fmt: skip
    """What ``target = value`` assigns, where ``value`` is ``x``: of names with homes, these, after
    lists have been copied there; else what ``lists.assigned`` says."""
    moves = cx.frame.moves
    if moves is None:
        return lists.assigned(cx, target, value, x, span) if value is not None else x
    pairs = _pairs(target, value, x)
    moved = {t.id: (t, y) for t, v, y in pairs if isinstance(t, ast.Name) and t.id in moves.homes
             and _is_list(v, y)}  # fmt: skip
    if not moved:
        made = lists.assigned(cx, target, value, x, span) if value is not None else x
        for t, v, y in _pairs(target, value, made):
            _note(cx, moves, t, v, y)
        return made
    for t, v, y in pairs:
        _note(cx, moves, t, v, y)
    _put_all(cx, [(name, y) for name, (_, y) in moved.items()], span)
    homes = {id(t): moves.homes[name] for name, (t, _) in moved.items()}
    if not isinstance(target, ast.Tuple | ast.List):
        return homes[id(target)]
    return Tup([homes[id(t)] if id(t) in homes else
                lists.assigned(cx, t, v, y, span) if v is not None else y
                for t, v, y in pairs])  # fmt: skip


def _pairs(
    target: ast.expr, value: ast.expr | None, x: Operand
) -> list[tuple[ast.expr, ast.expr | None, Operand]]:
    """The names that an assignment assigns, each with what."""
    if not isinstance(target, ast.Tuple | ast.List):
        return [(target, value, x)]
    count = len(target.elts)
    starred = any(isinstance(t, ast.Starred) for t in target.elts)
    if starred or not isinstance(x, Tup) or len(x.items) != count:
        return []
    values: list[ast.expr | None] = [None] * count
    if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == count:
        values = [*value.elts]
    return list(zip(target.elts, values, x.items, strict=True))


def _is_list(value: ast.expr | None, x: Operand) -> bool:
    if isinstance(x, Tup):
        return not x.names and value is not None and not isinstance(value, ast.Tuple)
    return _is_array(x)


def _note(
    cx: Lowering, moves: Moves, target: ast.expr, value: ast.expr | None, x: Operand
) -> None:  # fmt: skip
    """Notes for ``list_flow`` what a name is assigned, and gives it a home where it is assigned the
    list of one that has a home."""
    part = isinstance(x, Part | Row)
    known = moves.known
    if isinstance(x, Tup) and isinstance(target, ast.Name) and not x.names:
        known.listed.add(target.id)  # one that nothing changes, so far
        if value is None or isinstance(value, ast.Call):
            read = [n.id for n in subtree(value or target) if isinstance(n, ast.Name)]
            known.shared[id(target)] = known.listed & {*read} if value else known.listed
    if not isinstance(target, ast.Name) or not (_is_array(x) or part):
        return
    memory, own = _memory(x), moves.memory()
    if part:
        if memory & own:
            known.parts.add(id(target))
            known.listed.add(target.id)
        return
    known.listed.add(target.id)
    known.shared[id(target)] = {n for n, y in cx.frame.env.items() if memory & _memory(y)}
    if memory & own and target.id != RETURN_VALUE and target.id not in moves.homes:
        form = _form(x)
        if form is not None:
            _mark(cx, target.id, form)


def _put_all(cx: Lowering, given: list[tuple[str, Operand]], span: Span) -> None:
    """Copies what was evaluated before any of it is assigned."""
    homes = cx.frame.moves.homes
    pairs = [(homes[name], x) for name, x in given if homes[name] is not x]
    own = {m for home, _ in pairs for m in _memory(home)}
    exchanged = [(home, x) for home, x in pairs if _memory(x) & own]
    if len(exchanged) > 1 and all(_alike(home, x) for home, x in exchanged):
        _exchange(cx, [(h, x) for h, x in exchanged if isinstance(h, Tensor)
                       and isinstance(x, Tensor)], span)  # fmt: skip
        given = [(name, x) for name, x in given if not _memory(x) & own]
    elif len(given) > 1:
        given = [(name, _copied(cx, x, span) if _memory(x) & own else x) for name, x in given]
    for name, x in given:
        _put(cx, name, x, span)


def _alike(home: List, x: Operand) -> bool:
    return (
        isinstance(home, Tensor) and isinstance(x, Tensor)
        and home.length is None and x.length is None
        and (home.shape, home.pair) == (x.shape, x.pair)
    )  # fmt: skip


def _exchange(cx: Lowering, pairs: list[tuple[Tensor, Tensor]], span: Span) -> None:
    """Elements change places one by one."""

    def one(place: list[Value]) -> None:
        items = [cx.load_real(x, place, span) for _, x in pairs]
        for (home, _), item in zip(pairs, items, strict=True):
            lists.check_stored(cx, home, item, span)
            cx.store_element(home.memref, home.dtype, place, item, span)

    cx.builder.each_element(pairs[0][0].memref, one)


def _copied(cx: Lowering, x: Operand, span: Span) -> Operand:
    """A copy of a list."""
    form = _form(x)
    if form is None or isinstance(x, Tup):
        return x
    if form.room:
        made = growing.like(cx, x, span)  # pyright: ignore[reportArgumentType]
        _fill(cx, made, x, span)
        return made
    assert isinstance(x, Tensor)
    memref = x.memref.memref
    made = replace(x, memref=cx.builder.alloca(memref.element, memref.shape or ()))
    _fill(cx, made, x, span)
    return made


def _put(cx: Lowering, name: str, x: Operand, span: Span) -> None:
    """Copies the list ``x`` to the home of ``name``."""
    home = cx.frame.moves.homes[name]
    if x is home:
        return
    items = casts.static_items(x) if isinstance(x, Tup) else None
    form = _form(x)
    if items is not None and isinstance(home, Tensor) and home.rank > 1:
        form = Form(_sizes(x))
    known = cx.homes[(*cx.frame.path, name)]
    if form is None or (found := _joined(known, form)) is None:
        raise KernelTypeError(
            f"`{name}` holds lists of other sizes, or of other things, too", span,
            help=f"use another name than `{name}`, or lists of one form",
        )  # fmt: skip
    if found.shape != known.shape or (found.room > known.room and not growing.is_growing(x)):
        _mark(cx, name, form)
    if isinstance(x, TupleList) and not isinstance(home, TupleList):
        zeros = iter([cx.builder.constant(0, t) for t in cx.types(x.kind)])
        item = cx.rebuild(x.kind, zeros)
        assert isinstance(item, Tup)
        tuple_lists.begin_again(cx, (*cx.frame.path, f"{name}[]"), item, span)
    _fill(cx, home, x, span)


def _sizes(x: Operand) -> tuple[int, ...]:
    if not isinstance(x, Tup):
        return ()
    inner = {_sizes(item) for item in x.items}
    return (len(x.items), *inner.pop()) if len(inner) == 1 else (-1,)


def _fill(cx: Lowering, home: List, x: Operand, span: Span) -> None:
    """Makes ``home`` hold what ``x`` holds."""
    b = cx.builder
    if growing.is_growing(home):
        growing.fill(cx, home, x, span)
        return
    assert isinstance(home, Tensor)
    if isinstance(x, Tup):
        lists.store_items(cx, home, x, span)
        return
    assert isinstance(x, Tensor)

    def one(place: list[Value]) -> None:
        item = cx.load_real(x, place, span)
        lists.check_stored(cx, home, item, span)
        cx.store_element(home.memref, home.dtype, place, item, span)

    b.each_element(home.memref, one)


# --- the end of a frame ---------------------------------------------------------------------------
def check(cx: Lowering) -> None:
    """Refuses what a copy would change the meaning of. Called behind the body of the frame."""
    moves = cx.frame.moves
    if not moves.homes:
        return
    same: dict[Value, str] = {}
    for name, x in moves.caller.items():
        moves.known.given[name] = same.setdefault(min(_memory(x), key=id), f" of {name}")
    if (found := check_flow(moves.known)) is not None:
        node, message, help = found
        raise KernelTypeError(message, cx.span(node), help=help)


def called(
    cx: Lowering, inner: Frame, tree: ast.AST, places: dict[str, ast.expr], node: ast.Call
) -> None:
    """Notes which lists of the caller's the function changes that was lowered with the frame
    ``inner``."""
    moves = cx.frame.moves
    if moves is None:
        return
    changed = stored_lists(tree) | inner.grown
    if inner.moves is not None:
        changed |= {name for names in inner.moves.known.writes.values() for name in names}
    wrote = changed - places.keys()
    for name in changed & places.keys():
        wrote |= {n.id for n in subtree(places[name]) if isinstance(n, ast.Name)}
    moves.known.writes[id(node)] = wrote | moves.known.writes.get(id(node), set())


TWO_KINDS.append(_two_kinds)

"""Arrays that a loop both reads and writes: which contents does each read see?

The adjoint runs after the loop, so it finds the contents from after it. A read that no later write
of its iteration overwrites may read them again: "after". A read that no earlier write of its
iteration precedes saw what was there before the loop: "before", of which a copy is kept. Other
iterations cannot be in the way: that would be a race. A read that is neither is refused.
"""

from __future__ import annotations

from weft.errors import GradientError
from weft.index.access import Access, accesses
from weft.index.meeting import aligned
from weft.index.relation import Text, context
from weft.ir.core import Block, Function, Op, Value


def contents(function: Function) -> dict[Op, str]:
    """ "after" or "before" for each load from an argument that ``function`` also writes.

    Raises ``GradientError`` for a load that is neither.
    """
    args = set(function.args)
    found: dict[Op, str] = {}
    every = accesses(function)
    written = {a.memref for a in every if a.writes} & args
    whiles = _in_while(function.body, False)
    order = {a.op: k for k, a in enumerate(every)}
    for load in every:
        if load.kind != "load" or load.memref not in written:
            continue
        if load.memref.name in function.attrs.get("tapes", ()):  # written once, by construction
            found[load.op] = "after"
            continue
        writes = [a for a in every if a.memref is load.memref and a.writes]
        loose = [a for a in writes if load.op in whiles and a.op in whiles]
        if not any(_meets(load, w, order, True, w in loose) for w in writes):
            found[load.op] = "after"
        elif not any(_meets(load, w, order, False, w in loose) for w in writes):
            found[load.op] = "before"
        else:
            raise _overwritten(function, load)
    return found


def _overwritten(function: Function, load: Access) -> GradientError:
    name = load.memref.name or "the array"
    if "order" in function.attrs and load.memref.name.partition(".")[0] in ("d", "d2", "d3"):
        return GradientError(
            "a derivative of this order is not there: one tensor is written in several places, or "
            "again and again", load.op.span, help="ask for a lower one (create_graph=False)",
        )  # fmt: skip
    return GradientError(
        f"`{name}` is read here and overwritten later by the same iteration, so its gradient would "
        "need values that are gone", load.op.span,
        help=f"carry the value in a local variable, or write to another tensor than `{name}`",
    )  # fmt: skip


def _in_while(block: Block, inside: bool) -> set[Op]:
    found: set[Op] = set()
    for op in block.ops:
        if inside:
            found.add(op)
        for region in op.regions:
            found |= _in_while(region, inside or op.name == "scf.while")
    return found


def _meets(load: Access, write: Access, order: dict[Op, int], later: bool, loose: bool) -> bool:
    """Whether ``write`` may touch the element of ``load``, in the same parallel iteration, and
    after it (``later``) or before it. ``loose``: their order is not known."""
    common = [iv for iv in load.serial if iv in set(write.serial)]
    behind = (order[write.op] > order[load.op]) == later
    if not common and not loose and not behind:
        return False
    if any(s is None for s in (*load.subscripts, *write.subscripts)):
        return True
    return not _apart(load, write, common, later, behind, loose)


def _apart(
    load: Access, write: Access, common: list[Value], later: bool, behind: bool, loose: bool
) -> bool:
    """Proves that there is no such pair."""
    import islpy  # 50 ms: only where a loop reads what it writes

    text = Text()
    first = {loop.iv: text.fresh(loop.iv.name or "i") for loop in load.loops}
    second = {
        loop.iv: first[loop.iv] if loop.parallel and loop.iv in first
        else text.fresh((loop.iv.name or "i") + "_")
        for loop in write.loops
    }  # fmt: skip
    constraints = text.domain(load, first) + text.domain(write, second)
    pairs = aligned(load, write)
    if pairs is None:
        return True
    for left, right in pairs:
        x, y = text.affine(left, first), text.affine(right, second)
        if x is not None and y is not None:
            constraints.append(f"{x} = {y}")
    if not loose:
        cases, same = [], ""
        for iv in common:
            x, y = first[iv], second[iv]
            cases.append(f"({same}{y} {'>' if later else '<'} {x})")
            same += f"{x} = {y} and "
        if behind:
            cases.append(f"({same}true)")
        constraints.append(f"({' or '.join(cases)})")
    names = [*first.values(), *(n for iv, n in second.items() if n != first.get(iv))]
    try:
        return islpy.Set.read_from_str(
            context(), text.finish(f"[{', '.join(names)}]", constraints)
        ).is_empty()
    except islpy.Error:  # more work than isl may do
        return False


def element_written_once(function: Function, memref: Value) -> bool:
    """Proves that no iteration writes an element of ``memref`` twice, and that it only stores.

    The adjoint of such an array needs no resetting on the way back.
    """
    writes = [a for a in accesses(function) if a.memref is memref and a.writes]
    whiles = _in_while(function.body, False)
    if any(a.kind != "store" or a.op in whiles or not _distinct(a) for a in writes):
        return False
    pairs = [(a, b) for k, a in enumerate(writes) for b in writes[k + 1 :]]
    return all(_apart(a, b, [], True, True, True) for a, b in pairs)


def _distinct(access: Access) -> bool:
    """Whether different serial iterations write different elements, seen from the subscripts: each
    serial index is in one of its own."""
    serial = set(access.serial)
    for iv in access.serial:
        alone = False
        for poly in access.subscripts:
            if poly is None:
                continue
            leaves = list(poly.leaves())
            others = serial - {iv}
            if poly.terms.get((iv,)) and leaves.count(iv) == 1 and not others & set(leaves):
                alone = True
        if not alone:
            return False
    return True

"""Machine code for launches that autograd knows of, beside that of ``routine.py``.

``told`` tells autograd of a launch. The other two are what it calls then: ``FORWARD`` is the
``forward`` of an ``autograd.Function``, to which the launch is over, and ``BACKWARD`` the ``apply``
of its node, for gradients that one launch computes. A frame of Python's costs a microsecond there,
since so much code runs in between that nothing of the interpreter's is in the nearest caches.

Torch's ``apply`` asks Python whether an argument that is of no class of its own is a tensor. So it
is given tensors alone, and what else ``FORWARD`` needs is on the stack of who calls ``apply``, in a
list (``record.PENDING``) whose first element is at the address in a word that all share, "pending".
``FORWARD`` takes the first one of its thread: what runs between may tell autograd of other
launches, in this thread or another one.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.runtime import record
from weft.runtime.routine import Writer

_, FORWARD, BACKWARD, APPLY = record.SYMBOLS


def _value(w: Writer) -> None:
    """One of the arguments, the results and the objects, borrowed."""
    arguments, results = (w.load(w.at("%record", record.HEAD.index(name)))
                          for name in ("arguments", "results"))  # fmt: skip
    with w.where(w.test("ult", "%which", arguments)):
        w.give("ptr", w.load(w.at("%args", "%which", "ptr"), "ptr"))
        w.start(w.label("never"))
    left = w.inst(f"sub i64 %which, {arguments}")
    inside = w.test("ult", left, results)
    behind = w.inst(f"sub i64 {left}, {results}")
    tuple = w.inst(f"select i1 {inside}, ptr %made, ptr %self")
    number = w.inst(f"select i1 {inside}, i64 {left}, i64 {behind}")
    w.give("ptr", w.api("PyTuple_GetItem", tuple, number))


_PLACES = "ptr %self, ptr %record, ptr %args, ptr %made"


def _values(w: Writer) -> None:
    """A tuple of ``count`` values, which ``list`` numbers."""
    found = w.api("PyTuple_New", "%count")
    w.refuse(w.null(found))
    with w.each("%count") as k:
        value = w.inst(f"call ptr @value({_PLACES}, i64 {w.load(w.at('%list', k))})")
        w.api("Py_IncRef", value)
        w.api("PyTuple_SetItem", found, k, value)
    w.give("ptr", found)
    w.give("ptr", "null", at="no")


def _records(w: Writer) -> None:
    """Whether gradients are recorded: 1, 0, or -1 with an error set."""
    w.refuse(w.test("eq", "%gradient", 0), "ask")
    w.give("i32", w.inst(f"trunc i64 {w.says('%gradient')} to i32"))
    w.start("ask")
    operands = f"ptr {w.object('grad_enabled')}, ptr null, i64 0, i64 %true"
    w.give("i32", w.inst(f"call i32 @asks({operands})"))


def _told(w: Writer) -> None:
    """Tells autograd of a launch; null with an error set. Its function is given the values that are
    wanted."""
    head = {name: w.load(w.at("%record", record.HEAD.index(name)))
            for name in ("results", "none", "pending", *record.TOLD)}  # fmt: skip
    lists, place = dict[str, str](), w.at("%slots", head["results"])
    for name in record.TOLD:
        lists[name], place = place, w.at(place, head[name])

    def values(name: str) -> str:
        return w.inst(f"call ptr @values({_PLACES}, ptr {lists[name]}, i64 {head[name]})")

    given = w.inst(f"alloca ptr, i64 {head['wanted']}")
    with w.each(head["wanted"]) as k:
        number = w.load(w.at(lists["wanted"], k))
        value = w.inst(f"call ptr @value({_PLACES}, i64 {number})")
        w.store("ptr", value, w.at(given, k, "ptr"))
    made = w.room("ptr")
    with w.where(w.test("eq", head["outs"], 1)):
        value = w.inst(f"call ptr @value({_PLACES}, i64 {w.load(lists['outs'])})")
        w.api("Py_IncRef", value)
        w.store("ptr", value, made)
    with w.where(w.test("ne", head["outs"], 1)):
        w.store("ptr", values("outs"), made)
    numbers, none = w.room("ptr"), w.pointer(head["none"])
    w.store("ptr", none, numbers)
    with w.where(w.test("eq", head["numbers"], 0)):
        w.api("Py_IncRef", none)
    with w.where(w.test("ne", head["numbers"], 0)):
        w.store("ptr", values("numbers"), numbers)
    parts = [w.load(made, "ptr"), values("saved"), w.load(numbers, "ptr")]
    handed = ", ".join(f"ptr {part}" for part in parts)
    operands = f"ptr {given}, i64 {head['wanted']}, ptr {w.pointer(head['pending'])}"
    w.give("ptr", w.inst(f"call ptr @handed(ptr {w.object('history')}, {handed}, {operands})"))


def _handed(w: Writer) -> None:
    """``apply`` of what is given, and for its ``forward`` what was made, is saved, and the numbers
    or None, whose references this takes; null with an error set, also where one of them is null."""
    parts, answer = ("%made", "%saved", "%numbers"), w.room("ptr")
    own = w.room(f"[{len(record.PENDING)} x i64]")
    w.store("ptr", "null", answer)
    for part in parts:
        w.refuse(w.null(part), "done")
    thread = w.api("PyThreadState_Get")
    for k, value in enumerate((*parts, thread, w.load("%pending", "ptr"))):
        w.store("ptr", value, w.at(own, k))
    w.store("ptr", own, "%pending")
    told = w.api("PyObject_Vectorcall", "%apply", "%given", "%count", "null")
    w.store("ptr", told, answer)
    w.line(f"call ptr @taken(ptr %pending, ptr {own}, ptr {thread})")  # if nobody has
    w.jump("done")
    w.start("done")
    for part in parts:
        with w.where(w.test("ne", part, "null", "ptr")):
            w.api("Py_DecRef", part)
    w.give("ptr", w.load(answer, "ptr"))


def _taken(w: Writer) -> None:
    """Takes ``wanted`` out of the list, or if that is null the first one of the thread; null where
    it is not there."""
    place = w.room("ptr")
    w.store("ptr", "%pending", place)
    w.jump("next")
    w.start("next")
    link = w.load(place, "ptr")
    one = w.load(link, "ptr")
    w.refuse(w.null(one), "nothing")
    thread = w.load(w.at(one, record.PENDING.index("thread")), "ptr")
    behind = w.at(one, record.PENDING.index("next"))
    w.store("ptr", behind, place)
    first = w.inst(f"and i1 {w.null('%wanted')}, {w.test('eq', thread, '%thread', 'ptr')}")
    w.need(w.inst(f"or i1 {first}, {w.test('eq', one, '%wanted', 'ptr')}"), "next")
    w.store("ptr", w.load(behind, "ptr"), link)
    w.give("ptr", one)
    w.give("ptr", "null", at="nothing")


def _apply(w: Writer) -> None:
    """``apply(made, saved, numbers, *tensors)``, as the launch itself tells autograd."""
    args = [w.load(w.at("%args", k, "ptr"), "ptr") for k in range(4)]
    for part in args[1:]:
        w.api("Py_IncRef", part)
    pending = w.load(w.api("PyBytes_AsString", "%self"), "ptr")
    handed = ", ".join(f"ptr {part}" for part in args)
    given, count = w.at("%args", 4, "ptr"), w.inst("sub i64 %given, 4")
    operands = f"ptr {given}, i64 {count}, ptr {pending}"
    w.give("ptr", w.inst(f"call ptr @handed({handed}, {operands})"))


def _forward(w: Writer) -> None:
    """What was made, once the node knows what is saved."""
    node = w.load("%args", "ptr")

    def own(name: str) -> str:
        return w.api("PyTuple_GetItem", "%self", record.FORWARD.index(name))

    def put(name: str, value: str) -> None:
        done = w.api("PyObject_SetAttr", node, own(name), value)
        w.need(w.test("eq", done, 0, "i32"))

    pending = w.load(w.api("PyBytes_AsString", own("pending")), "ptr")
    thread = w.api("PyThreadState_Get")
    handed = w.inst(f"call ptr @taken(ptr {pending}, ptr null, ptr {thread})")
    w.refuse(w.null(handed), "nothing")
    made, saved, numbers = (w.load(w.at(handed, k), "ptr") for k in range(3))
    put("to_save", saved)
    none = w.api("PyTuple_GetItem", "%self", len(record.FORWARD))
    with w.where(w.test("ne", numbers, none, "ptr")):
        put("numbers", numbers)
    with w.where(w.test("ne", own("materialize"), none, "ptr")):
        put("materialize_grads", own("materialize"))
    w.api("Py_IncRef", made)
    w.give("ptr", made)
    w.start("nothing")
    w.api("PyErr_BadInternalCall")
    w.jump("no")
    w.give("ptr", "null", at="no")


def _backward(w: Writer) -> None:
    """The gradients, by one launch of what the node saved and was given; by the fallback, which is
    given that and what is saved, where the launch does not know such tensors."""
    own = {name: w.api("PyTuple_GetItem", "%self", k) for k, name in enumerate(record.BACKWARD)}
    words = w.api("PyBytes_AsString", own["words"])
    head = w.words(words, record.WORDS_OF_BACKWARD)
    sources = w.at(words, len(record.WORDS_OF_BACKWARD))
    none = w.api("PyTuple_GetItem", "%self", len(record.BACKWARD))
    node, held, numbers = w.load("%args", "ptr"), w.room("ptr"), w.room("ptr")
    room, answer = w.inst(f"alloca ptr, i64 {head['arguments']}"), w.room("ptr")
    count = w.inst(f"add i64 {head['grads']}, 2")
    whole = w.inst(f"alloca ptr, i64 {count}")
    w.store("ptr", "null", numbers)
    saved = w.api("PyObject_GetAttr", node, own["saved_tensors"])
    w.store("ptr", saved, held)
    w.refuse(w.null(saved), "freed")
    with w.where(w.test("ne", head["numbered"], 0)):
        read = w.api("PyObject_GetAttr", node, own["numbers"])
        w.store("ptr", read, numbers)
        w.refuse(w.null(read), "fail")
    with w.each(head["arguments"]) as k:
        place, source = w.at(room, k, "ptr"), w.load(w.at(sources, k))
        behind = w.inst(f"sub i64 {source}, {head['grads']}")
        with w.where(w.test("ult", source, head["grads"])):
            own_place = w.at("%args", w.inst(f"add i64 {source}, 1"), "ptr")
            w.store("ptr", w.load(own_place, "ptr"), place)
        with w.where(w.test("uge", source, head["grads"])):
            first = w.test("ult", behind, head["saved"])
            last = w.inst(f"sub i64 {behind}, {head['saved']}")
            of = w.inst(f"select i1 {first}, ptr {saved}, ptr {w.load(numbers, 'ptr')}")
            number = w.inst(f"select i1 {first}, i64 {behind}, i64 {last}")
            w.store("ptr", w.api("PyTuple_GetItem", of, number), place)
    found = w.api("PyObject_Vectorcall", own["step"], room, head["arguments"], "null")
    w.store("ptr", found, answer)
    w.need(w.test("eq", found, own["refused"], "ptr"), "done")
    w.api("Py_DecRef", found)
    w.jump("usual")
    w.start("freed")
    known = w.api("PyErr_ExceptionMatches", own["freed"])
    w.refuse(w.test("eq", known, 0, "i32"), "fail")
    w.api("PyErr_Clear")
    w.api("Py_IncRef", none)
    w.store("ptr", none, held)
    w.jump("usual")
    w.start("usual")
    given = w.inst(f"add i64 {head['grads']}, 1")
    w.copy(whole, "%args", w.inst(f"shl i64 {given}, 3"))
    w.store("ptr", w.load(held, "ptr"), w.at(whole, given, "ptr"))
    usual = w.api("PyObject_Vectorcall", own["fallback"], whole, count, "null")
    w.store("ptr", usual, answer)
    w.jump("done")
    w.start("fail")
    w.store("ptr", "null", answer)
    w.jump("done")
    w.start("done")
    for one in (held, numbers):
        with w.where(w.test("ne", w.load(one, "ptr"), "null", "ptr")):
            w.api("Py_DecRef", w.load(one, "ptr"))
    w.give("ptr", w.load(answer, "ptr"))


PARTS: dict[str, Callable[[Writer], None]] = {
    f"internal ptr @value({_PLACES}, i64 %which)": _value,
    f"internal ptr @values({_PLACES}, ptr %list, i64 %count)": _values,
    "internal i32 @records(ptr %self, i64 %gradient, i64 %true)": _records,
    f"internal ptr @told({_PLACES}, ptr %slots)": _told,
    "internal ptr @handed(ptr %apply, ptr %made, ptr %saved, ptr %numbers, ptr %given, i64 %count, "
    "ptr %pending)": _handed,
    "internal ptr @taken(ptr %pending, ptr %wanted, ptr %thread)": _taken,
    f"ptr @{APPLY}(ptr %self, ptr %args, i64 %given, ptr %names)": _apply,
    f"ptr @{FORWARD}(ptr %self, ptr %args, i64 %given, ptr %names)": _forward,
    f"ptr @{BACKWARD}(ptr %self, ptr %args, i64 %given, ptr %names)": _backward,
}

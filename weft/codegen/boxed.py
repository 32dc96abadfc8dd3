"""The kernel of an operator as PyTorch's dispatcher calls it, without Python: a boxed kernel of the
stable C interface (torch/csrc/stable/c/shim.h), as LLVM IR.

It takes a stack of words, one for each argument: a handle of a tensor that it owns, or a number.
It asks each tensor what a plan knows of it (dtype, rank, layout, memory), packs the argument block,
and calls the compiled loop. What no ``Form`` covers goes to Python, which also words the errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.codegen.emit import Emitter, Module
from weft.codegen.interface import Slot
from weft.values import frozen

# The symbols of the kernels: at the key of the device, and at that of its autograd. Beside what
# torch passes they take a record of words: the kernel's own address; ``python(stack, which)``,
# which carries a call out (``which``: the position here) and gives the text of an error or null;
# and for each form the address of its loop, and that of its table of guards.
BELOW, AUTOGRAD = SYMBOLS = "weft_below", "weft_autograd"
PYTHON, FORMS = 1, 2  # positions in the record

# torch's functions, and their types. Those of C++ are what the C interface lacks: what a gradient
# is asked for, what stands between autograd and the device, and counting what is written.
FUNCTIONS = {
    "aoti_torch_get_dtype": "i32 (ptr, ptr)", "aoti_torch_get_device_type": "i32 (ptr, ptr)",
    "aoti_torch_get_dim": "i32 (ptr, ptr)", "aoti_torch_get_sizes": "i32 (ptr, ptr)",
    "aoti_torch_get_strides": "i32 (ptr, ptr)", "aoti_torch_is_contiguous": "i32 (ptr, ptr)",
    "aoti_torch_get_data_ptr": "i32 (ptr, ptr)", "aoti_torch_get_storage_size": "i32 (ptr, ptr)",
    "aoti_torch_get_storage_offset": "i32 (ptr, ptr)", "aoti_torch_is_defined": "i32 (ptr, ptr)",
    "aoti_torch_empty_strided": "i32 (i64, ptr, ptr, i32, i32, i32, ptr)",
    "aoti_torch_delete_tensor_object": "i32 (ptr)", "aoti_torch_zero_": "i32 (ptr)",
    "aoti_torch_grad_mode_is_enabled": "i1 ()",
    "aoti_torch_check": "void (i1, ptr, ptr, i32, ptr)",
}  # fmt: skip
REQUIRES_GRAD = "_ZNK3c1010TensorImpl13requires_gradEv"
TANGENT = "_ZNK3c1010TensorImpl8_fw_gradEmRKN2at10TensorBaseE"
VERSION = "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE"
INFERENCE = "_ZN2at6native12is_inferenceERKNS_6TensorE"
INCLUDED = "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE"
SPECIAL = (  # tensors that another dispatch key treats
    "_ZN2at4impl19tensor_has_dispatchERKNS_6TensorE",
    "_ZN2at17functionalization4impl18isFunctionalTensorERKNS_6TensorE",
    "_ZN2at6native6is_negERKNS_6TensorE",
    "_ZN2at6native14_is_zerotensorERKNS_6TensorE",
)
METHODS = {
    REQUIRES_GRAD: "i1 (ptr)", TANGENT: "ptr (ptr, i64, ptr)", VERSION: "void (ptr)",
    INFERENCE: "i1 (ptr)", INCLUDED: "i1 (i16)", **dict.fromkeys(SPECIAL, "i1 (ptr)"),
}  # fmt: skip

_TENSOR = ("dtype", "rank", "contiguous", "sizes", "strides", "data", "storage", "offset")
_ASKED = dict(zip(_TENSOR, (
    "get_dtype", "get_dim", "is_contiguous", "get_sizes", "get_strides", "get_data_ptr",
    "get_storage_size", "get_storage_offset",
), strict=True))  # fmt: skip


@frozen
class Keys:
    """torch's numbers of dispatch keys: those that are included where something stands ``between``
    autograd and the device; that of ``views``, which is included outside of inference mode."""

    between: tuple[int, ...]
    views: int


@frozen
class TensorForm:
    """A tensor argument: torch's number of its dtype, the bytes of an element, what is known of its
    strides (one of ``ir.types.LAYOUTS``), and whether the loop writes to it."""

    dtype: int
    bytes: int
    rank: int
    layout: str
    written: bool


@frozen
class NumberForm:
    """An argument that is a number, from ``low`` to ``high`` where it is an integer."""

    low: int | None = None
    high: int | None = None


@frozen
class MadeForm:
    """A tensor that the kernel makes, of dtype, sizes and strides of the argument ``like``, which
    is contiguous, and fills with ``zeros`` or not."""

    like: int
    zeros: bool


@frozen
class Form:
    """What one compiled loop takes: the operator's arguments, and the words of the argument block,
    whose ``arg`` are positions among the arguments, and behind them among what is ``made``.
    ``returned``: which of these the operator gives, in turn."""

    arguments: tuple[TensorForm | NumberForm, ...]
    slots: tuple[Slot, ...]
    made: tuple[MadeForm, ...]
    returned: tuple[int, ...]
    guarded: bool


def text(forms: Sequence[Form], keys: Keys) -> str:
    """The LLVM IR of the kernels. The forms' tensors are at the same positions. Without forms all
    calls go to Python."""
    module = Module()
    if forms:
        tensors = [k for k, a in enumerate(forms[0].arguments) if isinstance(a, TensorForm)]
        _looks(_Writer(module))
        _runs(_Writer(module), forms, tensors, keys)
        _plain(_Writer(module), tensors, keys.between)
    for which, symbol in enumerate(SYMBOLS):
        _kernel(_Writer(module), symbol, which, bool(forms))
    return str(module) + _GUARDS * any(form.guarded for form in forms)


class _Writer(Emitter):
    """Writes a function that calls torch's."""

    def __init__(self, module: Module) -> None:
        super().__init__(module, None)  # type: ignore[arg-type]  # there is no operation to lower

    def torch(self, name: str, *operands: str | int) -> str:
        """A call of a function of torch."""
        result, _, types = {**FUNCTIONS, **METHODS}[name].removesuffix(")").partition(" (")
        types = types.split(", ") if types else []
        extended = [t + " zeroext" * (t in ("i1", "i16")) for t in types]
        self.declare(f"declare {result} @{name}({', '.join(extended)})")
        given = ", ".join(f"{t} {v}" for t, v in zip(extended, operands, strict=True))
        if result == "void":
            self.line(f"call void @{name}({given})")
            return ""
        return self.inst(f"call {result} @{name}({given})")

    def at(self, base: str, k: int) -> str:
        return self.inst(f"getelementptr i64, ptr {base}, i64 {k}")

    def load(self, place: str, type: str = "i64") -> str:
        return self.inst(f"load {type}, ptr {place}")

    def store(self, value: str | int, place: str, type: str = "i64") -> None:
        self.line(f"store {type} {value}, ptr {place}")

    def room(self, words: int) -> str:
        name = self.fresh()
        self.allocas.append(f"{name} = alloca [{words} x i64], align 16")
        return name

    def test(self, relation: str, a: str, b: str | int, type: str = "i64") -> str:
        return self.inst(f"icmp {relation} {type} {a}, {b}")

    def need(self, condition: str, otherwise: str = "no") -> None:
        """What follows is for where the condition holds."""
        then = self.label("then")
        self.branch(condition, then, otherwise)
        self.start(then)

    def succeeds(self, error: str, otherwise: str = "no") -> None:
        self.need(self.test("eq", error, 0, "i32"), otherwise)

    def ends(self, header: str) -> None:
        """Ends a function that gives whether it went well; ``no`` is where it did not."""
        self.line("ret i1 true")
        self.start("no")
        self.line("ret i1 false")
        self.finish(f"define internal i1 {header} nounwind")


def _kernel(w: _Writer, symbol: str, which: int, runs: bool) -> None:
    """A kernel: the loop, or Python. An error is torch's to throw, by a call in tail position:
    nothing unwinds through this code."""
    if runs and symbol == AUTOGRAD:
        w.need(w.inst("call i1 @plain(ptr %stack)"), "python")
    w.branch(
        w.inst("call i1 @runs(ptr %stack, ptr %record)") if runs else "false", "done", "python"
    )
    w.start("python")
    python = w.load(w.at("%record", PYTHON), "ptr")
    error = w.inst(f"call ptr {python}(ptr %stack, i64 {which})")
    w.branch(w.test("eq", error, "null", "ptr"), "done", "fail")
    w.start("fail")
    w.declare("declare void @aoti_torch_check(i1 zeroext, ptr, ptr, i32, ptr)")
    operands = f"i1 zeroext false, ptr {error}, ptr {error}, i32 0, ptr {error}"
    w.line(f"tail call void @aoti_torch_check({operands})")
    w.line("ret void")
    w.start("done")
    w.line("ret void")
    w.finish(f"define void @{symbol}(ptr %stack, i64 %given, i64 %wanted, ptr %record)")


def _looks(w: _Writer) -> None:
    """Writes what torch says of a tensor to the words ``_TENSOR``; false where it is not on the
    CPU, or has nothing to say."""
    device = w.room(1)
    w.succeeds(w.torch("aoti_torch_get_device_type", "%tensor", device))
    w.need(w.test("eq", w.load(device, "i32"), 0, "i32"))
    for k, name in enumerate(_TENSOR):
        place = w.at("%words", k)
        w.store(0, place)  # some are of fewer bytes
        w.succeeds(w.torch(f"aoti_torch_{_ASKED[name]}", "%tensor", place))
    w.ends("@looks(ptr %tensor, ptr %words)")


def _plain(w: _Writer, tensors: Sequence[int], keys: Sequence[int]) -> None:
    """Whether nothing stands between autograd and the loop, and no derivative is asked for."""
    for key in keys:
        w.need(w.inst(f"xor i1 {w.torch(INCLUDED, key)}, true"))
    defined = w.room(1)
    grads = w.torch("aoti_torch_grad_mode_is_enabled")
    for k in tensors:
        handle = w.load(w.at("%stack", k), "ptr")
        for question in SPECIAL:
            w.need(w.inst(f"xor i1 {w.torch(question, handle)}, true"))
        tensor = w.load(handle, "ptr")
        wanted = w.inst(f"and i1 {w.torch(REQUIRES_GRAD, tensor)}, {grads}")
        w.need(w.inst(f"xor i1 {wanted}, true"))
        w.store(0, defined)
        w.succeeds(w.torch("aoti_torch_is_defined", w.torch(TANGENT, tensor, 0, handle), defined))
        w.need(w.test("eq", w.load(defined), 0))
    w.ends("@plain(ptr %stack)")


# Asks CPython whether guards hold. A table is the number of steps, and four words for each: its
# kind, where (a dict or an object), a name, and the object that is there.
ITEM, MISSING, ATTRIBUTE = range(3)
_GUARDS = f"""
declare i32 @PyGILState_Ensure()
declare void @PyGILState_Release(i32)
declare ptr @PyDict_GetItemWithError(ptr, ptr)
declare ptr @PyObject_GetAttr(ptr, ptr)
declare void @Py_DecRef(ptr)
declare void @PyErr_Clear()

define internal i1 @guards(ptr %table) nounwind {{
entry:
  %count = load i64, ptr %table
  %first = getelementptr i64, ptr %table, i64 1
  %state = call i32 @PyGILState_Ensure()
  br label %each
each:
  %k = phi i64 [ 0, %entry ], [ %next, %same ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %step, label %end
step:
  %at = getelementptr [4 x ptr], ptr %first, i64 %k
  %kind = load i64, ptr %at
  %p1 = getelementptr ptr, ptr %at, i64 1
  %p2 = getelementptr ptr, ptr %at, i64 2
  %p3 = getelementptr ptr, ptr %at, i64 3
  %owner = load ptr, ptr %p1
  %name = load ptr, ptr %p2
  %wanted = load ptr, ptr %p3
  %attribute = icmp eq i64 %kind, {ATTRIBUTE}
  br i1 %attribute, label %ask, label %look
look:
  %item = call ptr @PyDict_GetItemWithError(ptr %owner, ptr %name)
  %nothing = icmp eq i64 %kind, {MISSING}
  %empty = icmp eq ptr %item, null
  %absent = and i1 %nothing, %empty
  %there = icmp eq ptr %item, %wanted
  %fits = or i1 %absent, %there
  br i1 %fits, label %same, label %no
ask:
  %held = call ptr @PyObject_GetAttr(ptr %owner, ptr %name)
  %none = icmp eq ptr %held, null
  br i1 %none, label %no, label %drop
drop:
  call void @Py_DecRef(ptr %held)
  %equal = icmp eq ptr %held, %wanted
  br i1 %equal, label %same, label %no
same:
  %next = add i64 %k, 1
  br label %each
no:
  call void @PyErr_Clear()
  br label %end
end:
  %holds = phi i1 [ true, %each ], [ false, %no ]
  call void @PyGILState_Release(i32 %state)
  ret i1 %holds
}}
"""


class _Tensor:
    """A tensor while a form is tested: what torch says of it, and the names of its sizes, strides
    and, in bytes, of its extent."""

    def __init__(self, w: _Writer, form: TensorForm, words: str) -> None:
        self.form = form
        self.told = {name: w.load(w.at(words, k)) for k, name in enumerate(_TENSOR)}
        self.data = self.told["data"]
        self.sizes: list[str] = []
        self.strides: list[str] = []
        self.extent = "0"

    def covered(self, w: _Writer, no: str) -> None:
        """Goes to ``no`` where the tensor is not of the form."""
        form, told = self.form, self.told
        w.need(w.test("eq", told["dtype"], form.dtype), no)
        w.need(w.test("eq", told["rank"], form.rank), no)
        w.need(w.test("eq", told["contiguous"], int(form.layout == "contiguous")), no)
        for name, into in (("sizes", self.sizes), ("strides", self.strides)):
            base = w.inst(f"inttoptr i64 {told[name]} to ptr")
            into += [w.load(w.at(base, axis)) for axis in range(form.rank)]
        if form.layout != "contiguous":
            unit = w.test("eq", self.strides[-1], 1)
            w.need(unit if form.layout == "unit" else w.inst(f"xor i1 {unit}, true"), no)
        self._reaches(w, no)

    def _reaches(self, w: _Writer, no: str) -> None:
        """The extent; to ``no`` where it is not in the tensor's memory."""
        reach, some = "1", "true"
        for size, stride in zip(self.sizes, self.strides, strict=True):
            steps = w.inst(f"mul i64 {w.inst(f'sub i64 {size}, 1')}, {stride}")
            reach = w.inst(f"add i64 {reach}, {steps}")
            some = w.inst(f"and i1 {some}, {w.test('ne', size, 0)}")
        bytes = w.inst(f"mul i64 {reach}, {self.form.bytes}")
        self.extent = w.inst(f"select i1 {some}, i64 {bytes}, i64 0")
        before = w.inst(f"mul i64 {self.told['offset']}, {self.form.bytes}")
        ends = w.inst(f"add i64 {before}, {bytes}")
        inside = w.test("ule", ends, self.told["storage"])
        there = w.inst(f"and i1 {inside}, {w.test('ne', self.told['data'], 0)}")
        w.need(w.inst(f"select i1 {some}, i1 {there}, i1 true"), no)

    def writable(self, w: _Writer, handle: str, keys: Keys, no: str) -> None:
        """Goes to ``no`` where torch would not write to the tensor, or two of its indices may be
        one place: where a stride does not step over all that the smaller ones reach."""
        outside = w.torch(INCLUDED, keys.views)  # of inference mode
        refused = w.inst(f"and i1 {w.torch(INFERENCE, handle)}, {outside}")
        w.need(w.inst(f"xor i1 {refused}, true"), no)
        if self.form.layout == "contiguous":
            return
        steps = list(zip(self.sizes, self.strides, strict=True))
        for k, (size, stride) in enumerate(steps):
            reach = "1"
            for j, (count, step) in enumerate(steps):
                if j != k:  # of equal strides each steps over the other's
                    less = w.test("ule" if j < k else "ult", step, stride)
                    long = w.inst(f"mul i64 {w.inst(f'sub i64 {count}, 1')}, {step}")
                    reach = w.inst(f"add i64 {reach}, "
                                   f"{w.inst(f'select i1 {less}, i64 {long}, i64 0')}")  # fmt: skip
            over = w.test("uge", stride, reach)
            w.need(w.inst(f"or i1 {over}, {w.test('ule', size, 1)}"), no)

    def apart(self, w: _Writer, other: _Tensor, no: str) -> None:
        """Goes to ``no`` where both share memory."""
        ends = [w.inst(f"add i64 {t.data}, {t.extent}") for t in (self, other)]
        before = [w.test("ule", ends[0], other.data),
                  w.test("ule", ends[1], self.data)]  # fmt: skip
        w.need(w.inst(f"or i1 {before[0]}, {before[1]}"), no)


def _runs(w: _Writer, forms: Sequence[Form], tensors: Sequence[int], keys: Keys) -> None:
    """Carries the call out by the first form that covers it; false where none does."""
    handles = {k: w.load(w.at("%stack", k), "ptr") for k in tensors}
    words = {k: w.room(len(_TENSOR)) for k in tensors}
    for k in tensors:
        w.need(w.inst(f"call i1 @looks(ptr {handles[k]}, ptr {words[k]})"))
    for number, form in enumerate(forms):
        other = w.label("other")
        found = _covered(w, form, words, other)
        _writable(w, found, handles, keys, other)
        _run(w, number, form, found, handles, other)
        w.start(other)
    w.line("ret i1 false")
    w.start("no")
    w.line("ret i1 false")
    w.finish("define internal i1 @runs(ptr %stack, ptr %record) nounwind")


def _covered(
    w: _Writer, form: Form, words: Mapping[int, str], other: str
) -> dict[int, _Tensor]:  # fmt: skip
    """The tensors; to ``other`` where the arguments are not of the form."""
    found: dict[int, _Tensor] = {}
    for k, argument in enumerate(form.arguments):
        if isinstance(argument, TensorForm):
            found[k] = _Tensor(w, argument, words[k])
            found[k].covered(w, other)
        elif argument.low is not None:
            value = w.load(w.at("%stack", k))
            w.need(w.test("sge", value, argument.low), other)
            w.need(w.test("sle", value, argument.high or 0), other)
    return found


def _writable(
    w: _Writer, found: Mapping[int, _Tensor], handles: Mapping[int, str], keys: Keys, other: str
) -> None:
    """Goes to ``other`` where what is written must not be, or shares memory."""
    written = [k for k, tensor in found.items() if tensor.form.written]
    for k in written:
        found[k].writable(w, handles[k], keys, other)
        for j in found:
            if j != k and not (j in written and j < k):
                found[k].apart(w, found[j], other)


def _run(
    w: _Writer, number: int, form: Form, found: Mapping[int, _Tensor], handles: Mapping[int, str],
    other: str,
) -> None:  # fmt: skip
    """Calls the loop, and ends the function; to ``other`` where there is no memory."""
    if form.guarded:
        table = w.load(w.at("%record", FORMS + 2 * number + 1), "ptr")
        w.need(w.inst(f"call i1 @guards(ptr {table})"), other)
    there: dict[int, _Tensor | _New] = {**found}
    made: list[str] = []
    for new in form.made:
        tensor = _New(w, found[new.like], other)
        there[len(form.arguments) + len(made)] = tensor
        made.append(tensor.handle)
        if new.zeros:
            w.succeeds(w.torch("aoti_torch_zero_", tensor.handle), other)
    block = w.room(len(form.slots))
    for n, slot in enumerate(form.slots):
        w.store(_word(w, slot, there), w.at(block, n))
    loop = w.load(w.at("%record", FORMS + 2 * number), "ptr")
    w.line(f"call void {loop}(ptr {block})")
    for k in [k for k, tensor in found.items() if tensor.form.written]:
        skip, counted = w.label("next"), w.label("counted")
        w.branch(w.torch(INFERENCE, handles[k]), skip, counted)  # which has no version
        w.start(counted)
        w.torch(VERSION, handles[k])
        w.jump(skip)
        w.start(skip)
    for handle in [*handles.values(), *(h for k, h in enumerate(made) if k not in form.returned)]:
        w.torch("aoti_torch_delete_tensor_object", handle)
    for n, k in enumerate(form.returned):
        w.store(made[k], w.at("%stack", n), "ptr")
    w.line("ret i1 true")


class _New:
    """A tensor with the sizes and strides of another one; to ``no`` where there is no memory."""

    def __init__(self, w: _Writer, like: _Tensor, no: str) -> None:
        rank = like.form.rank
        self.sizes, self.strides = like.sizes, like.strides
        rooms = w.room(max(rank, 1)), w.room(max(rank, 1))
        for room, words in zip(rooms, (self.sizes, self.strides), strict=True):
            for axis, word in enumerate(words):
                w.store(word, w.at(room, axis))
        place = w.room(1)
        asked = rank, *rooms, like.form.dtype, 0, 0, place
        w.succeeds(w.torch("aoti_torch_empty_strided", *asked), no)
        self.handle = w.load(place, "ptr")
        w.torch("aoti_torch_get_data_ptr", self.handle, place)
        self.data = w.load(place)


def _word(w: _Writer, slot: Slot, there: Mapping[int, _Tensor | _New]) -> str:
    """What stands in a word of the argument block."""
    match slot.kind:
        case "pointer":
            return there[slot.arg].data
        case "size":
            return there[slot.arg].sizes[slot.axis]
        case "stride":
            return there[slot.arg].strides[slot.axis]
        case "int" | "float":
            return w.load(w.at("%stack", slot.arg))
        case _:
            return "0"  # the record of checks, of which there are none

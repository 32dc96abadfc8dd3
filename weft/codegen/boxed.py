"""The kernel of an operator as PyTorch's dispatcher calls it, without Python: a boxed kernel of the
stable C interface (torch/csrc/stable/c/shim.h), as LLVM IR.

It takes a stack of words, one for each argument: a handle of a tensor that it owns, a number, or a
handle of a list of these. It asks each tensor what a plan knows of it (dtype, rank, layout,
memory), makes the tensors that the host part makes, packs the argument blocks, and calls the
compiled loops. What no ``Form`` covers goes to Python, which also words the errors.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from weft.codegen.arith import Instructions
from weft.codegen.boxed_forms import (
    ANY,
    CPU,
    CUDA,
    CURRENT,
    NONE,
    ONE,
    Form,
    Keys,
    MadeForm,
    RunForm,
    Size,
    TensorForm,
    Word,
)
from weft.codegen.boxed_guards import GUARDS
from weft.codegen.emit import Emitter, Module
from weft.codegen.interface import Slot
from weft.ir.trips import steps_of, trip_count

# CUlaunchConfig: its bytes, and the place of the stream; names of cuLaunchKernelEx's ``extra``.
CONFIG, STREAM, EXTRA_POINTER, EXTRA_SIZE = 56, 32, 1, 2

# The symbols of the kernels: at the key of the device, and at that of its autograd. Beside what
# torch passes they take a record of words: the kernel's own address; ``python(stack, which)``,
# which carries a call out (``which``: the position here) and gives the text of an error or null;
# then for each form how many entries it has, and their address. An entry is the address of a table
# of guards, those of the loops, and numbers. (A library has the entry of each form itself there.)
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
    "aoti_torch_copy_": "i32 (ptr, ptr, i32)", "aoti_torch_get_device_index": "i32 (ptr, ptr)",
    "aoti_torch_grad_mode_is_enabled": "i1 ()",
    "aoti_torch_check": "void (i1, ptr, ptr, i32, ptr)",
}  # fmt: skip
LISTS = {  # where an operator takes lists, or gives one
    "torch_list_size": "i32 (ptr, ptr)", "torch_list_get_item": "i32 (ptr, i64, ptr)",
    "torch_delete_list": "i32 (ptr)", "torch_new_list_reserve_size": "i32 (i64, ptr)",
    "torch_list_push_back": "i32 (ptr, i64)", "torch_delete_stable_ivalue": "i32 (ptr)",
}  # fmt: skip
DEVICE = {  # where it launches on a CUDA device
    "aoti_torch_get_current_cuda_stream": "i32 (i32, ptr)", "cuCtxGetDevice": "i32 (ptr)",
    "cuLaunchKernelEx": "i32 (ptr, ptr, ptr, ptr)",
}  # fmt: skip
# Operations on whole numbers, by LLVM's functions that tell of an overflow, and those that are
# written out: division as Python's by a number above zero, and the larger one.
COMPUTED = {"+": "sadd", "-": "ssub", "*": "smul", "//": "", "%": "", "max": ""}
# What a shared library has itself (``exported.py``): torch.empty_like, a loaded function.
EXPORTED = {"weft_like": "i32 (ptr, ptr)", "weft_loaded": "ptr (ptr, i32)"}
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
    "_ZN2at6native7is_conjERKNS_6TensorE",
)
METHODS = {
    REQUIRES_GRAD: "i1 (ptr)", TANGENT: "ptr (ptr, i64, ptr)", VERSION: "void (ptr)",
    INFERENCE: "i1 (ptr)", INCLUDED: "i1 (i16)", **dict.fromkeys(SPECIAL, "i1 (ptr)"),
}  # fmt: skip
_ASKED = {  # what is known of a tensor, and the functions that are asked
    "device": "get_device_type", "index": "get_device_index", "dtype": "get_dtype",
    "rank": "get_dim", "sizes": "get_sizes", "strides": "get_strides", "data": "get_data_ptr",
    "contiguous": "is_contiguous", "storage": "get_storage_size", "offset": "get_storage_offset",
}  # fmt: skip


def text(forms: Sequence[Form], keys: Keys, exported: str = "") -> str:
    """The LLVM IR of the kernels. Without forms all calls go to Python. ``exported``: a symbol in
    place of the kernels' own, for a library, of ``i1 (ptr stack, ptr record, i1 above)``: whether
    the call was carried out; ``above``: at autograd's key."""
    module = Module()
    groups = dict[Hashable, list[tuple[int, Form]]]()  # whose tensors are at the same positions
    place = FORMS
    for form in forms:
        tensors = tuple(k for k, a in enumerate(form.arguments) if isinstance(a, TensorForm))
        groups.setdefault((form.lists, tensors), []).append((place, form))
        place += form.words if exported else 2
    if forms:
        _looks(_Writer(module))
        _plain(_Writer(module))
    for number, group in enumerate(groups.values()):
        _runs(_Writer(module), number, group, keys, inside=bool(exported))
    if exported:
        _carried_out(_Writer(module), exported, len(groups))
    for which, symbol in enumerate(() if exported else SYMBOLS):
        _kernel(_Writer(module), symbol, which, len(groups))
    return str(module) + GUARDS * any(form.guarded for form in forms)


class _Writer(Emitter):
    """Writes a function that calls torch's."""

    def __init__(self, module: Module) -> None:
        super().__init__(module, None)  # type: ignore[arg-type]  # there is no operation to lower

    def torch(self, name: str, *operands: str | int) -> str:
        """A call of a function of torch."""
        known = {**FUNCTIONS, **LISTS, **DEVICE, **METHODS, **EXPORTED}
        result, _, types = known[name].removesuffix(")").partition(" (")
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
        name, words = self.fresh(), max(words, 1)
        self.allocas.append(f"{name} = alloca [{words} x i64], align 16")
        return name

    def test(self, relation: str, a: str, b: str | int, type: str = "i64") -> str:
        return self.inst(f"icmp {relation} {type} {a}, {b}")

    def computed(self, operation: str, left: str, right: str, no: str) -> str:
        """A whole number of two; goes to ``no`` where it is none of 64 bits, or division is by
        what is not above zero."""
        if operation == "max":
            return self.extreme("smax", left, right)
        if COMPUTED[operation]:
            name = f"@llvm.{COMPUTED[operation]}.with.overflow.i64"
            self.declare(f"declare {{ i64, i1 }} {name}(i64, i64)")
            both = self.inst(f"call {{ i64, i1 }} {name}(i64 {left}, i64 {right})")
            over = self.inst(f"extractvalue {{ i64, i1 }} {both}, 1")
            self.need(self.inst(f"xor i1 {over}, true"), no)
            return self.inst(f"extractvalue {{ i64, i1 }} {both}, 0")
        self.need(self.test("sgt", right, 0), no)
        rest = self.inst(f"srem i64 {left}, {right}")
        below = self.test("slt", rest, 0)
        if operation == "%":
            added = self.inst(f"add i64 {rest}, {right}")
            return self.inst(f"select i1 {below}, i64 {added}, i64 {rest}")
        less = self.inst(f"sext i1 {below} to i64")
        return self.inst(f"add i64 {self.inst(f'sdiv i64 {left}, {right}')}, {less}")

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


def _kernel(w: _Writer, symbol: str, which: int, groups: int) -> None:
    """A kernel: the loops, or Python. An error is torch's to throw, by a call in tail position:
    nothing unwinds through this code."""
    above = "true" if symbol == AUTOGRAD else "false"
    for k in range(groups):
        other = w.label("other")
        w.branch(w.inst(f"call i1 @runs{k}(ptr %stack, ptr %record, i1 {above})"), "done", other)
        w.start(other)
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


def _carried_out(w: _Writer, symbol: str, groups: int) -> None:
    for k in range(groups):
        other = w.label("other")
        w.branch(w.inst(f"call i1 @runs{k}(ptr %stack, ptr %record, i1 %above)"), "done", other)
        w.start(other)
    w.line("ret i1 false")
    w.start("done")
    w.line("ret i1 true")
    w.finish(f"define zeroext i1 @{symbol}(ptr %stack, ptr %record, i1 zeroext %above)")


def _looks(w: _Writer) -> None:
    """Writes what torch says of a tensor to words; false where it has nothing to say."""
    for k, function in enumerate(_ASKED.values()):
        place = w.at("%words", k)
        w.store(0, place)  # some are of fewer bytes
        w.succeeds(w.torch(f"aoti_torch_{function}", "%tensor", place))
    w.ends("@looks(ptr %tensor, ptr %words)")


def _plain(w: _Writer) -> None:
    """Whether nothing but autograd wants to see the tensor, and that no derivative of it."""
    defined = w.room(1)
    for question in SPECIAL:
        w.need(w.inst(f"xor i1 {w.torch(question, '%handle')}, true"))
    tensor = w.load("%handle", "ptr")
    wanted = w.inst(f"and i1 {w.torch(REQUIRES_GRAD, tensor)}, %grads")
    w.need(w.inst(f"xor i1 {wanted}, true"))
    w.store(0, defined)
    w.succeeds(w.torch("aoti_torch_is_defined", w.torch(TANGENT, tensor, 0, "%handle"), defined))
    w.need(w.test("eq", w.load(defined), 0))
    w.ends("@plain(ptr %handle, i1 %grads)")


class _Tensor:
    """A tensor while a form is tested: its handle, what torch says of it, and the names of its
    sizes, strides and, in bytes, of its extent."""

    def __init__(self, w: _Writer, form: TensorForm, handle: str, words: str) -> None:
        self.form, self.handle = form, handle
        self.told = {name: w.load(w.at(words, k)) for k, name in enumerate(_ASKED)}
        self.data = self.told["data"]
        self.sizes: list[str] = []
        self.strides: list[str] = []
        self.extent = "0"

    def covered(
        self, w: _Writer, device: tuple[int, str | int], no: str,
        number: Callable[[Word], str | int],
    ) -> None:  # fmt: skip
        """Goes to ``no`` where the tensor is not of the form. ``number``: what words are."""
        form, told = self.form, self.told
        w.need(w.test("eq", told["device"], device[0]), no)
        if device[0] != CPU:
            index = w.inst(f"trunc i64 {told['index']} to i32")
            w.need(w.test("eq", index, device[1], "i32"), no)
        w.need(w.test("eq", told["dtype"], form.dtype), no)
        w.need(w.test("eq", told["rank"], form.rank), no)
        if form.layout != ANY:
            w.need(w.test("eq", told["contiguous"], int(form.layout == "contiguous")), no)
        for name, into in (("sizes", self.sizes), ("strides", self.strides)):
            base = w.inst(f"inttoptr i64 {told[name]} to ptr")
            into += [w.load(w.at(base, axis)) for axis in range(form.rank)]
        if form.layout not in ("contiguous", ANY):
            unit = w.test("eq", self.strides[-1], 1)
            w.need(unit if form.layout == "unit" else w.inst(f"xor i1 {unit}, true"), no)
        for found, known in ((self.sizes, form.shape), (self.strides, form.steps)):
            for word, wanted in zip(found, known or (), strict=False):
                w.need(w.test("eq", word, number(wanted)), no)
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

    def writable(self, w: _Writer, keys: Keys, no: str) -> None:
        """Goes to ``no`` where torch would not write to the tensor, or two of its indices may be
        one place: where a stride does not step over all that the smaller ones reach."""
        outside = w.torch(INCLUDED, keys.views)  # of inference mode
        refused = w.inst(f"and i1 {w.torch(INFERENCE, self.handle)}, {outside}")
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


def _runs(
    w: _Writer, number: int, group: Sequence[tuple[int, Form]], keys: Keys, *, inside: bool
) -> None:
    """Carries the call out by the first entry that covers it; false where none does. ``inside``:
    the entries are in the record, one for each form."""
    form = group[0][1]
    leaves = _leaves(w, form)
    handles = {k: w.load(w.at(leaves, k), "ptr")
               for k, a in enumerate(form.arguments) if isinstance(a, TensorForm)}  # fmt: skip
    words = {k: w.room(len(_ASKED)) for k in handles}
    ask, asked = w.label("ask"), w.label("asked")
    w.branch("%above", ask, asked)
    w.start(ask)
    for key in keys.between:
        w.need(w.inst(f"xor i1 {w.torch(INCLUDED, key)}, true"))
    grads = w.torch("aoti_torch_grad_mode_is_enabled")
    for handle in handles.values():
        w.need(w.inst(f"call i1 @plain(ptr {handle}, i1 {grads})"))
    w.jump(asked)
    w.start(asked)
    for k, handle in handles.items():
        w.need(w.inst(f"call i1 @looks(ptr {handle}, ptr {words[k]})"))
    for place, each in group:
        if inside:
            _Run(w, each, w.at("%record", place), leaves, keys).carry_out(handles, words)
            continue
        count, entries = w.load(w.at("%record", place)), w.load(w.at("%record", place + 1), "ptr")
        head, one, after, before = w.label("head"), w.label("one"), w.label("after"), w.block
        w.jump(head)
        w.start(head)
        k, slot = w.phi("i64")
        w.branch(w.test("ult", k, count), one, after)
        w.start(one)
        entry = w.inst(f"getelementptr [{each.words} x i64], ptr {entries}, i64 {k}")
        _Run(w, each, entry, leaves, keys).carry_out(handles, words)
        w.fill(slot, ("0", before), (w.inst(f"add i64 {k}, 1"), w.block))
        w.jump(head)
        w.start(after)
    w.line("ret i1 false")
    w.start("no")
    w.line("ret i1 false")
    w.finish(f"define internal i1 @runs{number}(ptr %stack, ptr %record, i1 %above) nounwind")


def _leaves(w: _Writer, form: Form) -> str:
    """Where the arguments are, item by item."""
    if not any(form.lists):
        return "%stack"
    leaves, length, at = w.room(len(form.arguments)), w.room(1), 0
    for k, held in enumerate(form.lists):
        word = w.load(w.at("%stack", k))
        count, optional = held or (ONE, False)
        if optional:  # there is a word around it
            w.need(w.test("eq" if count == NONE else "ne", word, 0))
            if count == NONE:
                continue
            word = w.load(w.inst(f"inttoptr i64 {word} to ptr"))
        if count == ONE:
            w.store(word, w.at(leaves, at))
            at += 1
            continue
        handle = w.inst(f"inttoptr i64 {word} to ptr")
        w.succeeds(w.torch("torch_list_size", handle, length))
        w.need(w.test("eq", w.load(length), count))
        for item in range(count):
            w.succeeds(w.torch("torch_list_get_item", handle, item, w.at(leaves, at)))
            at += 1
    return leaves


class _Run:
    """One form of the arguments, and what is done where it is theirs."""

    def __init__(self, w: _Writer, form: Form, entry: str, leaves: str, keys: Keys) -> None:
        """``entry``: of its words, the address; ``leaves``: where the arguments are."""
        self.w, self.form, self.entry, self.leaves, self.keys = w, form, entry, leaves, keys
        self.other = w.label("other")  # where it is not theirs
        self.device: tuple[int, str | int] = form.device
        self.there: dict[int, _Tensor] = {}
        self.computed: list[str] = []
        self.made: list[tuple[str, str]] = []  # the handle, and where what is made goes

    @property
    def no(self) -> str:
        """Where something is not as it must be: what is made goes, and another form is tried."""
        return self.made[-1][1] if self.made else self.other

    def carry_out(self, handles: Mapping[int, str], words: Mapping[int, str]) -> None:
        """Ends the function where the form covers the call."""
        w, form = self.w, self.form
        if form.device[0] == CUDA:
            current = w.room(1)
            w.succeeds(w.torch("cuCtxGetDevice", current), self.other)
            if form.device[1] == CURRENT:
                self.device = CUDA, w.load(current, "i32")
            else:
                w.need(w.test("eq", w.load(current, "i32"), form.device[1], "i32"), self.other)
        for k, argument in enumerate(form.arguments):
            if isinstance(argument, TensorForm):
                self.there[k] = tensor = _Tensor(w, argument, handles[k], words[k])
                device = (CPU, 0) if argument.host else self.device
                tensor.covered(w, device, self.other, self._number)
            elif argument.low is not None:
                value = w.load(w.at(self.leaves, k))
                w.need(w.test("sge", value, self._number(argument.low)), self.other)
                w.need(w.test("sle", value, self._number(argument.high or 0)), self.other)
        for operation, left, right in form.computed:
            numbers = self._word(left), self._word(right)
            self.computed.append(w.computed(operation, *numbers, self.other))
        self._writable()
        if form.guarded:
            table = w.load(self.entry, "ptr")
            w.need(w.inst(f"call i1 @guards(ptr {table})"), self.other)
        for made in form.made:
            self._make(made)
        blocks = [self._block(run) for run in form.runs]
        for number, (run, block) in enumerate(zip(form.runs, blocks, strict=True)):
            code = w.load(w.at(self.entry, 1 + number), "ptr")
            if form.device[0] == CUDA:
                self._launch(run, code, block)
            else:
                w.line(f"call void {code}(ptr {block})")
        self._finish(handles)
        for position in reversed(range(len(self.made))):
            handle, label = self.made[position]
            w.start(label)
            w.torch("aoti_torch_delete_tensor_object", handle)
            w.jump(self.made[position - 1][1] if position else self.other)
        w.start(self.other)

    def _writable(self) -> None:
        """Goes to ``other`` where what is written must not be, or shares memory."""
        written = [k for k, tensor in self.there.items() if tensor.form.written]
        for k in written:
            self.there[k].writable(self.w, self.keys, self.other)
            for j in self.there:
                if j != k and not (j in written and j < k):
                    self.there[k].apart(self.w, self.there[j], self.other)

    def _make(self, made: MadeForm) -> None:
        """Makes a tensor, which goes again where it is not as it has to be."""
        w, form, place = self.w, made.tensor, self.w.room(1)
        if made.like >= 0:
            w.succeeds(w.torch("weft_like", self.there[made.like].handle, place), self.no)
        else:
            rooms = w.room(form.rank), w.room(form.rank)
            for room, slots in zip(rooms, (made.sizes, made.strides), strict=True):
                for axis, slot in enumerate(slots):
                    word = self._word(slot)
                    if slot.kind in ("int", "computed"):  # which may be below zero
                        w.need(w.test("sge", word, 0), self.no)
                    w.store(word, w.at(room, axis))
            asked = form.rank, *rooms, form.dtype, *self.device, place
            w.succeeds(w.torch("aoti_torch_empty_strided", *asked), self.no)
        handle, words = w.load(place, "ptr"), w.room(len(_ASKED))
        self.made.append((handle, w.label("drop")))
        if made.zeros:
            w.succeeds(w.torch("aoti_torch_zero_", handle), self.no)
        if made.of >= 0:
            w.succeeds(w.torch("aoti_torch_copy_", handle, self.there[made.of].handle, 0), self.no)
        w.need(w.inst(f"call i1 @looks(ptr {handle}, ptr {words})"), self.no)
        tensor = _Tensor(w, form, handle, words)
        tensor.covered(w, self.device, self.no, self._number)
        if form.written:
            tensor.writable(w, self.keys, self.no)
        self.there[len(self.form.arguments) + len(self.made) - 1] = tensor

    def _block(self, run: RunForm) -> str:
        w = self.w
        block, words = w.room(len(run.slots)), [self._word(slot) for slot in run.slots]
        for n, word in enumerate(words):
            w.store(word, w.at(block, n))
        for n, bytes in run.aligned:
            w.need(w.test("eq", w.inst(f"and i64 {words[n]}, {bytes - 1}"), 0), self.no)
        return block

    def _launch(self, run: RunForm, code: str, block: str) -> None:
        """Has the driver launch a loop on the current stream."""
        w = self.w
        stream, size, extra, config = (w.room(n) for n in (1, 1, 5, CONFIG // 8))
        w.succeeds(w.torch("aoti_torch_get_current_cuda_stream", self.device[1], stream), self.no)
        if self.form.device[1] == CURRENT:  # in a library, which loads its code
            code = w.torch("weft_loaded", code, self.device[1])
            w.need(w.test("ne", code, "null", "ptr"), self.no)
        w.store(8 * len(run.slots), size)
        for n, (word, type) in enumerate(
            ((EXTRA_POINTER, "i64"), (block, "ptr"), (EXTRA_SIZE, "i64"), (size, "ptr"), (0, "i64"))
        ):
            w.store(word, w.at(extra, n), type)
        for n in range(CONFIG // 8):
            w.store(0, w.at(config, n))
        grid: list[str | int] = [*run.grid]
        for n, (low, high, step, threads) in enumerate(run.covering):
            grid[n] = self._blocks(low, high, step, threads, run.grid[n])
        for n, number in enumerate(grid):
            w.store(number, w.inst(f"getelementptr i32, ptr {config}, i64 {n}"), "i32")
        w.store(w.load(stream), w.inst(f"getelementptr i8, ptr {config}, i64 {STREAM}"))
        w.succeeds(w.torch("cuLaunchKernelEx", config, code, "null", extra), self.no)

    def _blocks(self, low: Size, high: Size, step: int, threads: int, most: int) -> str:
        """Blocks that have a thread for each iteration, from 1 to ``most``."""
        w, number = self.w, Instructions(self.w, "i64")
        trips = trip_count(number, self._size(low), self._size(high), str(step))
        blocks = steps_of(number, w.extreme("smax", trips, "1"), str(threads))
        return w.inst(f"trunc i64 {w.extreme('umin', blocks, str(most))} to i32")

    def _size(self, size: Size) -> str:
        if isinstance(size, Slot):
            return self._word(size)
        operation, first, second = size
        return self.w.inst(f"{operation} i64 {self._size(first)}, {self._size(second)}")

    def _finish(self, handles: Mapping[int, str]) -> None:
        """Counts what was written, lets go of what is not given, and ends the function."""
        w, form = self.w, self.form
        for k in handles:
            if self.there[k].form.written:
                skip, counted = w.label("next"), w.label("counted")
                w.branch(w.torch(INFERENCE, handles[k]), skip, counted)  # which has no version
                w.start(counted)
                w.torch(VERSION, handles[k])
                w.jump(skip)
                w.start(skip)
        first = len(form.arguments)
        given = [self.made[k - first][0] for k in form.returned]
        for handle in [*handles.values(), *(h for h, _ in self.made if h not in given)]:
            w.torch("aoti_torch_delete_tensor_object", handle)
        for k, held in enumerate(form.lists):
            if held is not None and held[0] != NONE:
                handle = box = w.load(w.at("%stack", k), "ptr")
                if held[1]:
                    handle = w.load(box, "ptr")
                    w.torch("torch_delete_stable_ivalue", box)
                if held[0] != ONE:
                    w.torch("torch_delete_list", handle)
        if form.listed:
            w.torch("torch_new_list_reserve_size", len(given), "%stack")
            made = w.load("%stack", "ptr")
            for handle in given:
                w.torch("torch_list_push_back", made, w.inst(f"ptrtoint ptr {handle} to i64"))
        else:
            for n, handle in enumerate(given):
                w.store(handle, w.at("%stack", n), "ptr")
        w.line("ret i1 true")

    def _number(self, word: Word) -> str | int:
        return word if isinstance(word, int) else self._word(word)

    def _word(self, slot: Slot) -> str:
        """What stands in a word of an argument block."""
        match slot.kind:
            case "pointer":
                return self.there[slot.arg].data
            case "size":
                return self.there[slot.arg].sizes[slot.axis]
            case "stride":
                return self.there[slot.arg].strides[slot.axis]
            case "pair stride":
                return self.w.inst(f"shl i64 {self.there[slot.arg].strides[slot.axis]}, 1")
            case "int" | "float":
                return self.w.load(self.w.at(self.leaves, slot.arg))
            case "item":
                data = self.w.inst(f"inttoptr i64 {self.there[slot.arg].data} to ptr")
                return self.w.load(data)
            case "computed":
                return self.computed[slot.arg]
            case "constant":
                return str(slot.arg)
            case "kept":
                return self.w.load(self.w.at(self.entry, 1 + len(self.form.runs) + slot.arg))
            case _:
                return "0"  # the record of checks, of which there are none

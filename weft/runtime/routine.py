"""The machine code of ``native.py``: one function of CPython's C API, the same for all plans.

It is written out as LLVM IR. It reads a record and objects, which ``record.py`` lays out. Of
CPython only functions are used, and no layout of its objects.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.runtime import record

SYMBOL = "weft_native"


def _words(base: str, *names: str, of: Sequence[str] = record.HEAD) -> str:
    """Loads words of a record by their names."""
    return "\n".join(
        f"  %{name}.p = getelementptr i64, ptr %{base}, i64 {of.index(name)}\n"
        f"  %{name} = load i64, ptr %{name}.p"
        for name in names
    )


def _object(name: str) -> str:
    """Takes one of the objects from the builtin's ``self``."""
    number = record.OBJECTS.index(name)
    return f"  %{name}.o = call ptr @PyTuple_GetItem(ptr %self, i64 {number})"


# The functions of CPython that are called, and their types.
FUNCTIONS = {
    "PyTuple_GetItem": "ptr (ptr, i64)", "PyTuple_Size": "i64 (ptr)", "PyTuple_New": "ptr (i64)",
    "PyTuple_SetItem": "i32 (ptr, i64, ptr)", "PyBytes_AsString": "ptr (ptr)",
    "PyBytes_Size": "i64 (ptr)", "PyBytes_FromStringAndSize": "ptr (ptr, i64)",
    "PyObject_Vectorcall": "ptr (ptr, ptr, i64, ptr)", "PyObject_Type": "ptr (ptr)",
    "PyObject_RichCompareBool": "i32 (ptr, ptr, i32)", "PyLong_AsLongLong": "i64 (ptr)",
    "PyLong_AsUnsignedLongLong": "i64 (ptr)", "PyFloat_AsDouble": "double (ptr)",
    "Py_IncRef": "void (ptr)", "Py_DecRef": "void (ptr)", "PyErr_Occurred": "ptr ()",
    "PyErr_ExceptionMatches": "i32 (ptr)", "PyErr_Clear": "void ()",
    "PyEval_SaveThread": "ptr ()", "PyEval_RestoreThread": "void (ptr)",
    "PyObject_GetAttr": "ptr (ptr, ptr)", "PyDict_GetItemWithError": "ptr (ptr, ptr)",
}  # fmt: skip

TEXT = f"""
; 1 where the call gives the object "true", 0 where it gives another, -1 with an error set
define internal i32 @asks(ptr %function, ptr %args, i64 %count, i64 %true) {{
  %found = call ptr @PyObject_Vectorcall(ptr %function, ptr %args, i64 %count, ptr null)
  %failed = icmp eq ptr %found, null
  br i1 %failed, label %error, label %answer
answer:
  %address = ptrtoint ptr %found to i64
  %same = icmp eq i64 %address, %true
  call void @Py_DecRef(ptr %found)
  %word = zext i1 %same to i32
  ret i32 %word
error:
  ret i32 -1
}}

; a call with one argument
define internal ptr @one(ptr %function, ptr %argument) {{
  %args = alloca ptr
  store ptr %argument, ptr %args
  %found = call ptr @PyObject_Vectorcall(ptr %function, ptr %args, i64 1, ptr null)
  ret ptr %found
}}

; whether an object is of exactly this type, given by its address
define internal i1 @is(ptr %value, i64 %type) {{
  %class = call ptr @PyObject_Type(ptr %value)
  call void @Py_DecRef(ptr %class)
  %address = ptrtoint ptr %class to i64
  %same = icmp eq i64 %address, %type
  ret i1 %same
}}

; whether no error is set
define internal i1 @clean() {{
  %set = call ptr @PyErr_Occurred()
  %none = icmp eq ptr %set, null
  ret i1 %none
}}

; writes the address of a tensor's data; false where it has none to give, an error may be set
define internal i1 @points(ptr %self, i64 %export, i64 %true, ptr %tensor, ptr %slot) {{
  %view = alloca [{record.VIEW} x i8], align 8
  %asking = icmp eq i64 %export, 0
  br i1 %asking, label %nested, label %exported
exported:
  %export.f = inttoptr i64 %export to ptr
  %result = call i32 %export.f(ptr %tensor, ptr %view)
  %given = icmp eq i32 %result, 0
  %data = load i64, ptr %view
  store i64 %data, ptr %slot
  ret i1 %given
nested:
{_object("nested")}
  %is.nested = call ptr @PyObject_GetAttr(ptr %tensor, ptr %nested.o)
  %unasked = icmp eq ptr %is.nested, null
  br i1 %unasked, label %no, label %flat
flat:
  call void @Py_DecRef(ptr %is.nested)
  %nested.v = ptrtoint ptr %is.nested to i64
  %many = icmp eq i64 %nested.v, %true
  br i1 %many, label %no, label %ask
ask:
{_object("data_ptr")}
  %number = call ptr @one(ptr %data_ptr.o, ptr %tensor)
  %failed = icmp eq ptr %number, null
  br i1 %failed, label %no, label %take
take:
  %address = call i64 @PyLong_AsUnsignedLongLong(ptr %number)
  store i64 %address, ptr %slot
  call void @Py_DecRef(ptr %number)
  %suspect = icmp eq i64 %address, -1
  br i1 %suspect, label %doubt, label %yes
doubt:
  %sound = call i1 @clean()
  ret i1 %sound
yes:
  ret i1 true
no:
  ret i1 false
}}

; one step: whether the argument is as it has to be; where not, an error may be set
define internal i1 @fits(
    ptr %self, ptr %step, ptr %args, ptr %block, ptr %tensors, i64 %export, i64 %true) {{
{_words("step", *record.STEP, of=record.STEP)}
  %value.p = getelementptr ptr, ptr %args, i64 %argument
  %value = load ptr, ptr %value.p
  %place = getelementptr i64, ptr %block, i64 %slot
  %typeless = icmp eq i64 %type, 0
  br i1 %typeless, label %typed, label %typing
typing:
  %exact = call i1 @is(ptr %value, i64 %type)
  br i1 %exact, label %typed, label %no
typed:
  switch i64 %kind, label %no [
    i64 {record.TENSOR}, label %tensor
    i64 {record.INTEGER}, label %integer
    i64 {record.FLOAT}, label %float
    i64 {record.SAME}, label %same
    i64 {record.EQUAL}, label %equal
    i64 {record.SIZE}, label %size
    i64 {record.ASKED}, label %asked
    i64 {record.ITEM}, label %owned
    i64 {record.MISSING}, label %owned
    i64 {record.ATTRIBUTE}, label %owned
  ]
tensor:
  %tensor.p = getelementptr ptr, ptr %tensors, i64 %slot
  store ptr %value, ptr %tensor.p
  %told = call i1 @points(ptr %self, i64 %export, i64 %true, ptr %value, ptr %place)
  ret i1 %told
integer:
  %integer.v = call i64 @PyLong_AsLongLong(ptr %value)
  store i64 %integer.v, ptr %place
  %above = icmp sge i64 %integer.v, %low
  %below = icmp sle i64 %integer.v, %high
  %within = and i1 %above, %below
  br i1 %within, label %stored, label %no
float:
  %float.v = call double @PyFloat_AsDouble(ptr %value)
  store double %float.v, ptr %place
  br label %stored
stored:
  %sound = call i1 @clean()
  ret i1 %sound
same:
  %same.o = call ptr @PyTuple_GetItem(ptr %self, i64 %low)
  %same.v = icmp eq ptr %same.o, %value
  ret i1 %same.v
equal:
  %equal.o = call ptr @PyTuple_GetItem(ptr %self, i64 %low)
  %equal.v = call i32 @PyObject_RichCompareBool(ptr %value, ptr %equal.o, i32 2)
  %equal.y = icmp eq i32 %equal.v, 1
  ret i1 %equal.y
size:
  %count = call i64 @PyTuple_Size(ptr %value)
  %fitting = icmp eq i64 %count, %high
  br i1 %fitting, label %item, label %no
item:
  %k = phi i64 [ 0, %size ], [ %next, %took ]
  %more = icmp ult i64 %k, %high
  br i1 %more, label %look, label %stored
look:
  %item.o = call ptr @PyTuple_GetItem(ptr %value, i64 %k)
  %int = call i1 @is(ptr %item.o, i64 %low)
  br i1 %int, label %took, label %no
took:
  %item.v = call i64 @PyLong_AsLongLong(ptr %item.o)
  %item.p = getelementptr i64, ptr %place, i64 %k
  store i64 %item.v, ptr %item.p
  %next = add i64 %k, 1
  br label %item
owned:
  %owner = call ptr @PyTuple_GetItem(ptr %self, i64 %low)
  %own.n = add i64 %low, 1
  %own = call ptr @PyTuple_GetItem(ptr %self, i64 %own.n)
  %is.attribute = icmp eq i64 %kind, {record.ATTRIBUTE}
  br i1 %is.attribute, label %attribute, label %lookup
lookup:
  %held = call ptr @PyDict_GetItemWithError(ptr %owner, ptr %own)
  %absent = icmp eq ptr %held, null
  br i1 %absent, label %gone, label %present
gone:
  %may.miss = icmp eq i64 %kind, {record.MISSING}
  br i1 %may.miss, label %stored, label %no
present:
  %held.n = add i64 %low, 2
  %held.w = call ptr @PyTuple_GetItem(ptr %self, i64 %held.n)
  %held.y = icmp eq ptr %held, %held.w
  ret i1 %held.y
attribute:
  %read = call ptr @PyObject_GetAttr(ptr %owner, ptr %own)
  %unread = icmp eq ptr %read, null
  br i1 %unread, label %no, label %reading
reading:
  call void @Py_DecRef(ptr %read)
  %read.n = add i64 %low, 2
  %read.w = call ptr @PyTuple_GetItem(ptr %self, i64 %read.n)
  %read.y = icmp eq ptr %read, %read.w
  ret i1 %read.y
asked:
  %ask = call ptr @PyTuple_GetItem(ptr %self, i64 %low)
  %answer = call ptr @one(ptr %ask, ptr %value)
  %mute = icmp eq ptr %answer, null
  br i1 %mute, label %no, label %compare
compare:
  %then.n = add i64 %low, 1
  %then = call ptr @PyTuple_GetItem(ptr %self, i64 %then.n)
  %as.then = call i32 @PyObject_RichCompareBool(ptr %answer, ptr %then, i32 2)
  call void @Py_DecRef(ptr %answer)
  %agrees = icmp eq i32 %as.then, 1
  br i1 %agrees, label %valued, label %no
valued:
  %valueless = icmp eq i64 %high, 0
  br i1 %valueless, label %yes, label %pack
pack:
  %packer.n = add i64 %low, 2
  %packer = call ptr @PyTuple_GetItem(ptr %self, i64 %packer.n)
  %packed = call ptr @one(ptr %packer, ptr %value)
  %unpacked = icmp eq ptr %packed, null
  br i1 %unpacked, label %no, label %measure
measure:
  %length = call i64 @PyBytes_Size(ptr %packed)
  %whole = icmp eq i64 %length, %high
  br i1 %whole, label %copy, label %drop
copy:
  %bytes = call ptr @PyBytes_AsString(ptr %packed)
  call void @llvm.memcpy.p0.p0.i64(ptr %place, ptr %bytes, i64 %high, i1 false)
  br label %drop
drop:
  call void @Py_DecRef(ptr %packed)
  ret i1 %whole
yes:
  ret i1 true
no:
  ret i1 false
}}

; one call of the driver; whether it was made, where not, an error may be set
define internal i1 @drives(ptr %self, ptr %cell, ptr %block, i64 %flags) {{
  %record = load ptr, ptr %cell
  %unready = icmp eq ptr %record, null
  br i1 %unready, label %no, label %ready
ready:
{_words("record", "driver", "function", of=record.WORDS)}
  %driver.f = inttoptr i64 %driver to ptr
  %function.f = inttoptr i64 %function to ptr
{_object("device")}
  %several = and i64 %flags, {record.SEVERAL}
  %one = icmp eq i64 %several, 0
  br i1 %one, label %sizes, label %ask
ask:
{_object("current")}
  %now = call ptr @PyObject_Vectorcall(ptr %current.o, ptr null, i64 0, ptr null)
  %unknown = icmp eq ptr %now, null
  br i1 %unknown, label %no, label %compare
compare:
  %now.v = call i64 @PyLong_AsLongLong(ptr %now)
  call void @Py_DecRef(ptr %now)
  %device.v = call i64 @PyLong_AsLongLong(ptr %device.o)
  %here = icmp eq i64 %now.v, %device.v
  br i1 %here, label %sizes, label %no
sizes:
{_words("record", "taken", "rest", "tests", of=record.WORDS)}
  %template = getelementptr i8, ptr %record, i64 {record.LAUNCH.size}
  %ending = getelementptr i8, ptr %template, i64 {record.CONFIG}
  %first = getelementptr i8, ptr %ending, i64 %rest
  br label %test
test:
  %k = phi i64 [ 0, %sizes ], [ %next, %passed ]
  %left = icmp ult i64 %k, %tests
  br i1 %left, label %look, label %fill
look:
  %test.p = getelementptr [3 x i64], ptr %first, i64 %k
{_words("test.p", "place", "mask", "wanted", of=("place", "mask", "wanted"))}
  %word.p = getelementptr i8, ptr %block, i64 %place
  %word = load i64, ptr %word.p
  %masked = and i64 %word, %mask
  %as.wanted = icmp eq i64 %masked, %wanted
  br i1 %as.wanted, label %passed, label %no
passed:
  %next = add i64 %k, 1
  br label %test
fill:
{_object("stream")}
  %stream.n = call ptr @one(ptr %stream.o, ptr %device.o)
  %lost = icmp eq ptr %stream.n, null
  br i1 %lost, label %no, label %launch
launch:
  %stream = call i64 @PyLong_AsUnsignedLongLong(ptr %stream.n)
  call void @Py_DecRef(ptr %stream.n)
  %config = alloca [{record.CONFIG} x i8], align 8
  %extra = alloca [5 x i64], align 8
  %bytes = alloca i64, align 8
  %total = add i64 %taken, %rest
  %whole = alloca i8, i64 %total, align 16
  call void @llvm.memcpy.p0.p0.i64(ptr %config, ptr %template, i64 {record.CONFIG}, i1 false)
  %stream.p = getelementptr i8, ptr %config, i64 {record.STREAM}
  store i64 %stream, ptr %stream.p
  call void @llvm.memcpy.p0.p0.i64(ptr %whole, ptr %block, i64 %taken, i1 false)
  %behind = getelementptr i8, ptr %whole, i64 %taken
  call void @llvm.memcpy.p0.p0.i64(ptr %behind, ptr %ending, i64 %rest, i1 false)
  store i64 %total, ptr %bytes
  store [5 x i64] [ i64 1, i64 0, i64 2, i64 0, i64 0 ], ptr %extra
  %whole.p = getelementptr i64, ptr %extra, i64 1
  store ptr %whole, ptr %whole.p
  %bytes.p = getelementptr i64, ptr %extra, i64 3
  store ptr %bytes, ptr %bytes.p
  %thread = call ptr @PyEval_SaveThread()
  %result = call i32 %driver.f(ptr %config, ptr %function.f, ptr null, ptr %extra)
  call void @PyEval_RestoreThread(ptr %thread)
  %good = icmp eq i32 %result, 0
  ret i1 %good
no:
  ret i1 false
}}

; carries a call out whose arguments are packed: what the builtin gives
define internal ptr @carries(ptr %self, ptr %record, ptr %args, ptr %block, ptr %bumped.list) {{
{
    _words(
        "record",
        "tensors",
        "results",
        "bumped",
        "size",
        "flags",
        "way",
        "code",
        "true",
        "none",
        "export",
    )
}
  %made.p = alloca ptr
  store ptr null, ptr %made.p
  %resultless = icmp eq i64 %results, 0
  br i1 %resultless, label %call, label %make
make:
  %made = call ptr @PyTuple_New(i64 %results)
  store ptr %made, ptr %made.p
  %unmade = icmp eq ptr %made, null
  br i1 %unmade, label %fail, label %result
result:
  %k = phi i64 [ 0, %make ], [ %next, %kept ]
  %more = icmp ult i64 %k, %results
  br i1 %more, label %new, label %call
new:
  %maker.n = add i64 %k, {len(record.OBJECTS)}
  %maker = call ptr @PyTuple_GetItem(ptr %self, i64 %maker.n)
  %fresh = call ptr @PyObject_Vectorcall(ptr %maker, ptr null, i64 0, ptr null)
  %nothing = icmp eq ptr %fresh, null
  br i1 %nothing, label %fail, label %keep
keep:
  %set = call i32 @PyTuple_SetItem(ptr %made, i64 %k, ptr %fresh)
  %slot.n = add i64 %tensors, %k
  %slot = getelementptr i64, ptr %block, i64 %slot.n
  %pointed = call i1 @points(ptr %self, i64 %export, i64 %true, ptr %fresh, ptr %slot)
  br i1 %pointed, label %kept, label %fail
kept:
  %next = add i64 %k, 1
  br label %result
call:
  %address = inttoptr i64 %code to ptr
  switch i64 %way, label %python [
    i64 {record.HOLDING}, label %holding
    i64 {record.RELEASING}, label %releasing
    i64 {record.DRIVER}, label %driver
  ]
holding:
  call void %address(ptr %block)
  br label %called
releasing:
  %thread = call ptr @PyEval_SaveThread()
  call void %address(ptr %block)
  call void @PyEval_RestoreThread(ptr %thread)
  br label %called
driver:
  %driven = call i1 @drives(ptr %self, ptr %address, ptr %block, i64 %flags)
  br i1 %driven, label %called, label %undriven
undriven:
  %sound = call i1 @clean()
  br i1 %sound, label %python, label %fail
python:
{_object("call")}
  %bytes = call ptr @PyBytes_FromStringAndSize(ptr %block, i64 %size)
  %full = icmp eq ptr %bytes, null
  br i1 %full, label %fail, label %pass
pass:
  %returned = call ptr @one(ptr %call.o, ptr %bytes)
  call void @Py_DecRef(ptr %bytes)
  %raised = icmp eq ptr %returned, null
  br i1 %raised, label %fail, label %returning
returning:
  call void @Py_DecRef(ptr %returned)
  br label %called
called:
  %silent = icmp eq i64 %bumped, 0
  br i1 %silent, label %give, label %tell
tell:
{_object("increment")}
  %written = call ptr @PyTuple_New(i64 %bumped)
  %untold = icmp eq ptr %written, null
  br i1 %untold, label %fail, label %list
list:
  %j = phi i64 [ 0, %tell ], [ %j.next, %listed ]
  %further = icmp ult i64 %j, %bumped
  br i1 %further, label %listed, label %bump
listed:
  %number.p = getelementptr i64, ptr %bumped.list, i64 %j
  %number = load i64, ptr %number.p
  %tensor.p = getelementptr ptr, ptr %args, i64 %number
  %tensor = load ptr, ptr %tensor.p
  call void @Py_IncRef(ptr %tensor)
  %put = call i32 @PyTuple_SetItem(ptr %written, i64 %j, ptr %tensor)
  %j.next = add i64 %j, 1
  br label %list
bump:
  %bumping = call ptr @one(ptr %increment.o, ptr %written)
  call void @Py_DecRef(ptr %written)
  %unbumped = icmp eq ptr %bumping, null
  br i1 %unbumped, label %fail, label %forget
forget:
  call void @Py_DecRef(ptr %bumping)
  br label %give
give:
  %all = load ptr, ptr %made.p
  switch i64 %results, label %several [
    i64 0, label %nothing.given
    i64 1, label %single
  ]
nothing.given:
  %none.o = inttoptr i64 %none to ptr
  call void @Py_IncRef(ptr %none.o)
  ret ptr %none.o
single:
  %only = call ptr @PyTuple_GetItem(ptr %all, i64 0)
  call void @Py_IncRef(ptr %only)
  call void @Py_DecRef(ptr %all)
  ret ptr %only
several:
  ret ptr %all
fail:
  %held = load ptr, ptr %made.p
  call void @Py_DecRef(ptr %held)
  ret ptr null
}}

; the builtin
define ptr @{SYMBOL}(ptr %self, ptr %args, i64 %given, ptr %names) {{
  %bytes = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %record = call ptr @PyBytes_AsString(ptr %bytes)
{_words("record", *record.HEAD)}
  %named = icmp ne ptr %names, null
  %other = icmp ne i64 %given, %arguments
  %unlike = or i1 %named, %other
  br i1 %unlike, label %otherwise, label %begin
begin:
  %steps.list = getelementptr i64, ptr %record, i64 {len(record.HEAD)}
  %extents = getelementptr [{len(record.STEP)} x i64], ptr %steps.list, i64 %steps
  %apart.list = getelementptr i64, ptr %extents, i64 %tensors
  %bumped.list = getelementptr [2 x i64], ptr %apart.list, i64 %apart
  %template = getelementptr i64, ptr %bumped.list, i64 %bumped
  %block = alloca i8, i64 %size, align 16
  %found = alloca ptr, i64 %tensors
  %one = alloca ptr
  call void @llvm.memcpy.p0.p0.i64(ptr %block, ptr %template, i64 %size, i1 false)
  br label %step
step:
  %s = phi i64 [ 0, %begin ], [ %s.next, %stepped ]
  %s.more = icmp ult i64 %s, %steps
  br i1 %s.more, label %take, label %guard
take:
  %step.p = getelementptr [{len(record.STEP)} x i64], ptr %steps.list, i64 %s
  %fitting = call i1 @fits(ptr %self, ptr %step.p, ptr %args, ptr %block, ptr %found,
                           i64 %export, i64 %true)
  br i1 %fitting, label %stepped, label %unexpected
stepped:
  %s.next = add i64 %s, 1
  br label %step
guard:
  %tensorless = icmp eq i64 %tensors, 0
  br i1 %tensorless, label %flagged, label %check
check:
{_object("check")}
  %alike = call i32 @asks(ptr %check.o, ptr %found, i64 %tensors, i64 %true)
  %like = icmp eq i32 %alike, 1
  br i1 %like, label %flagged, label %unexpected
flagged:
  %grad.f = and i64 %flags, {record.GRAD}
  %gradless = icmp eq i64 %grad.f, 0
  br i1 %gradless, label %constant, label %grad
grad:
{_object("grad_enabled")}
  %wanted = call i32 @asks(ptr %grad_enabled.o, ptr null, i64 0, i64 %true)
  %unwanted = icmp eq i32 %wanted, 0
  br i1 %unwanted, label %constant, label %unexpected
constant:
  %guards.f = and i64 %flags, {record.GUARDED}
  %guardless = icmp eq i64 %guards.f, 0
  br i1 %guardless, label %pointer, label %guards
guards:
{_object("holds")}
{_object("guards")}
  store ptr %guards.o, ptr %one
  %held = call i32 @asks(ptr %holds.o, ptr %one, i64 1, i64 %true)
  %holding = icmp eq i32 %held, 1
  br i1 %holding, label %pointer, label %unexpected
pointer:
  %t = phi i64 [ 0, %constant ], [ 0, %guards ], [ %t.next, %pointed ]
  %t.more = icmp ult i64 %t, %tensors
  br i1 %t.more, label %address, label %pair
address:
  %slot = getelementptr i64, ptr %block, i64 %t
  %slot.v = load i64, ptr %slot
  %memory.p = getelementptr i64, ptr %extents, i64 %t
  %memory = load i64, ptr %memory.p
  %nowhere = icmp eq i64 %slot.v, 0
  %needed = icmp ne i64 %memory, 0
  %lost = and i1 %nowhere, %needed
  br i1 %lost, label %otherwise, label %pointed
pointed:
  %t.next = add i64 %t, 1
  br label %pointer
pair:
  %p = phi i64 [ 0, %pointer ], [ %p.next, %separate ]
  %p.more = icmp ult i64 %p, %apart
  br i1 %p.more, label %overlap, label %carry
overlap:
  %i.p = getelementptr [2 x i64], ptr %apart.list, i64 %p
  %i = load i64, ptr %i.p
  %j.p = getelementptr i64, ptr %i.p, i64 1
  %j = load i64, ptr %j.p
  %i.begin.p = getelementptr i64, ptr %block, i64 %i
  %i.begin = load i64, ptr %i.begin.p
  %i.extent.p = getelementptr i64, ptr %extents, i64 %i
  %i.extent = load i64, ptr %i.extent.p
  %i.end = add i64 %i.begin, %i.extent
  %j.begin.p = getelementptr i64, ptr %block, i64 %j
  %j.begin = load i64, ptr %j.begin.p
  %j.extent.p = getelementptr i64, ptr %extents, i64 %j
  %j.extent = load i64, ptr %j.extent.p
  %j.end = add i64 %j.begin, %j.extent
  %j.before = icmp ult i64 %j.begin, %i.end
  %i.before = icmp ult i64 %i.begin, %j.end
  %meet = and i1 %j.before, %i.before
  br i1 %meet, label %otherwise, label %separate
separate:
  %p.next = add i64 %p, 1
  br label %pair
carry:
  %result = call ptr @carries(ptr %self, ptr %record, ptr %args, ptr %block, ptr %bumped.list)
  ret ptr %result
unexpected:
  %sound = call i1 @clean()
  br i1 %sound, label %otherwise, label %error
error:
  %exception.o = inttoptr i64 %exception to ptr
  %usual = call i32 @PyErr_ExceptionMatches(ptr %exception.o)
  %rare = icmp eq i32 %usual, 0
  br i1 %rare, label %raise, label %forget
forget:
  call void @PyErr_Clear()
  br label %otherwise
otherwise:
{_object("otherwise")}
  %instead = call ptr @PyObject_Vectorcall(ptr %otherwise.o, ptr %args, i64 %given, ptr %names)
  ret ptr %instead
raise:
  ret ptr null
}}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
""" + "\n".join(
    f"declare {type.replace(' (', f' @{name}(', 1)}" for name, type in FUNCTIONS.items()
)

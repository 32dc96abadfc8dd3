"""What the machine code of ``routine.py`` reads, and what it calls.

``routine.py`` reads a **record** of 64-bit words::

    HEAD    one word for each of its names
    steps   STEP words for each step: what one argument has to be, and where its value goes
    extents the bytes of each tensor from its first to the end of its last element
    disjoint two words for each pair of tensors that must not overlap
    mutated  the arguments that autograd is told of
    slots    the place of each result in the block
    wanted   where autograd is told: the values whose gradients are asked for, of the arguments,
             the results and the objects, in this order,
    saved    those that are saved for the gradient,
    numbers  numbers that it takes, and
    outs     those that the launch gives
    items   ITEM words for each dict that has to have a value, or none, under a name: the addresses
             of the three
    spread  SPREAD words, where one of the tensors may be one element for all of its places
    block   the argument block: pointers of tensors and of results, scalars, all that is known

and **objects**, which stand in a tuple together with the record (``OBJECTS``, then what the steps
need, then for each result what makes it, and a tuple of what that takes). That tuple is the
builtin's ``self``: it keeps everything alive.
"""

from __future__ import annotations

import ctypes
import struct

# The functions: of launches, and what autograd calls.
SYMBOLS = ("weft_native", "weft_forward", "weft_backward", "weft_apply")
HEAD = (
    "arguments", "steps", "tensors", "disjoint", "results", "mutated", "wanted", "saved", "numbers",
    "outs", "size", "flags", "way", "code", "true", "none", "exception", "export", "checked",
    "makers", "items", "spread", "pending", "plain", "held", "keys", "data",
    "gradient",
)  # fmt: skip
ANY = -1  # dispatch keys of any tensor
TOLD = ("wanted", "saved", "numbers", "outs")
# "pending": see ``recorded.py``. "plain": torch.Tensor. "held", "keys", "data": see
# ``tensors.Layout``. "gradient": the address of what says whether gradients are
# recorded, which is asked as "grad_enabled" where it is 0.
ITEM = ("owner", "name", "value")
# Of the tensor: its place in the block, elements, their size, and the address of a word that is not
# 0 where it was one element last time: "alike" is asked first then.
SPREAD = ("slot", "count", "bytes", "cell")
SPREADS, MOST_SPREAD = (2, 4, 8), 4096  # sizes of elements, bytes of a tensor that is spread
STEP = ("kind", "argument", "slot", "type", "low", "high", "keys")
OBJECTS = (
    "record", "fallback", "check", "data_ptr", "increment", "grad_enabled", "holds", "guards",
    "call", "stream", "device", "current", "nested", "history", "transforms", "alike",
)  # fmt: skip
# Kinds of steps. "type": the exact type that the argument has.
TENSOR = 0  # the tensor "low" of those to check, whose address goes to "slot", unless it is nested:
# asked about such a tensor, ``check`` ends the process, and ``export`` raises. "high": whether it
# has to be the one that another argument was, since ``check`` refuses to be given one twice.
# "keys": the dispatch keys that it has to have, which are read where "type" is one of tensors
INTEGER = 1  # a number of that type from "low" to "high", to "slot" as an integer
FLOAT = 2  # a number of that type, to "slot" as a double
IDENTITY = 3  # the object "low"
EQUAL = 4  # equal to the object "low"
SIZE = 5  # "high" ints, to "slot" and those after it
CALLBACK = 6  # object "low" called with it gives what equals the next one; the object after that,
# if it is not None, gives "high" bytes, to "slot"
# Guards, which look at no argument.
ATTRIBUTE = 7  # the object "low" has, under the name after it, the value after that
ASKED = 8  # object "low" called with nothing gives the next one
ANSWERED = 9  # torch's function at "low" gives "high", 0 or 1
# Objects of what autograd calls (see ``recorded.py``): "forward" gives values to attributes of its
# first argument, and None for "materialize" lets that be, "pending" is the address of a word;
# "backward" has words of its own: how many
# gradients and saved tensors there are, whether numbers are read, how many arguments "step" takes,
# and of each where it is among these three.
FORWARD = ("to_save", "numbers", "materialize_grads", "materialize", "pending")
BACKWARD = ("words", "saved_tensors", "numbers", "step", "fallback", "refused", "freed")
WORDS_OF_BACKWARD = ("grads", "saved", "numbered", "arguments")
# What a launch hands to "forward" beside the tensors: the thread that hands it over, and what it
# handed over before that is still to be taken.
PENDING = ("made", "saved", "numbers", "thread", "next")
# Ways to call.
HOLDING, RELEASING, PYTHON, DRIVER = range(4)
# Flags. TRANSFORMED: what tells autograd of a launch has to ask whether a transform is active.
GRAD, GUARDED, SEVERAL, HISTORY, TRANSFORMED = 1, 2, 4, 8, 16


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute whose value is an int."""

    _fields_ = (
        ("id", ctypes.c_uint), ("padding", ctypes.c_uint), ("value", ctypes.c_int),
        ("rest", ctypes.c_byte * 60),
    )  # fmt: skip

    def __init__(self, id: int, value: int) -> None:
        super().__init__(id, 0, value)


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid_x", ctypes.c_uint), ("grid_y", ctypes.c_uint), ("grid_z", ctypes.c_uint),
        ("block_x", ctypes.c_uint), ("block_y", ctypes.c_uint), ("block_z", ctypes.c_uint),
        ("shared", ctypes.c_uint), ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )  # fmt: skip


class Exchange(ctypes.Structure):
    """DLPackExchangeAPI."""

    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("before", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p), ("managed", ctypes.c_void_p), ("tensor", ctypes.c_void_p),
        ("view", ctypes.c_void_p), ("stream", ctypes.c_void_p),
    )  # fmt: skip


class View(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("rank", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64),
    )  # fmt: skip


# The functions of CPython that are called, and their types.
FUNCTIONS = {
    "PyTuple_GetItem": "ptr (ptr, i64)", "PyTuple_Size": "i64 (ptr)", "PyTuple_New": "ptr (i64)",
    "PyTuple_SetItem": "i32 (ptr, i64, ptr)", "PyBytes_AsString": "ptr (ptr)",
    "PyBytes_Size": "i64 (ptr)", "PyBytes_FromStringAndSize": "ptr (ptr, i64)",
    "PyObject_Vectorcall": "ptr (ptr, ptr, i64, ptr)", "PyObject_Type": "ptr (ptr)",
    "PyObject_Call": "ptr (ptr, ptr, ptr)",
    "PyObject_RichCompareBool": "i32 (ptr, ptr, i32)", "PyLong_AsLongLong": "i64 (ptr)",
    "PyLong_AsUnsignedLongLong": "i64 (ptr)", "PyFloat_AsDouble": "double (ptr)",
    "Py_IncRef": "void (ptr)", "Py_DecRef": "void (ptr)", "PyErr_Occurred": "ptr ()",
    "PyErr_ExceptionMatches": "i32 (ptr)", "PyErr_Clear": "void ()",
    "PyErr_BadInternalCall": "void ()", "PyThreadState_Get": "ptr ()",
    "PyEval_SaveThread": "ptr ()", "PyEval_RestoreThread": "void (ptr)",
    "PyObject_GetAttr": "ptr (ptr, ptr)", "PyObject_SetAttr": "i32 (ptr, ptr, ptr)",
    "PyDict_GetItemWithError": "ptr (ptr, ptr)",
}  # fmt: skip


# What the driver is called with (see ``launch_record``): launch, function, bytes of arguments,
# bytes behind them, tests; then CUlaunchConfig, the bytes behind, three words for each test: a
# place in the argument block, a mask, and what the word there has to be under the mask.
WORDS = ("driver", "function", "taken", "rest", "tests")
LAUNCH = struct.Struct("<5Q")
TEST = struct.Struct("<3Q")
CONFIG = ctypes.sizeof(LaunchConfig)
VIEW = ctypes.sizeof(View)
STREAM = LaunchConfig.stream.offset

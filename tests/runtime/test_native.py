"""Builtins of machine code: they act on what they know and pass everything else on, untouched."""

import ctypes
import dataclasses
import enum
import gc
import itertools
import linecache
import random
import struct
import sys
import threading
import types
import weakref

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import weft
from weft.errors import WeftError
from weft.runtime import fastpath, native, record, tensors
from weft.runtime.record import LaunchConfig

if not native.available() or fastpath._TensorGuards is None:
    pytest.skip("there are no builtins here", allow_module_level=True)

SEEN = []
FACTOR = 2.0


def work(arguments=1, **given):
    """The work of a plan that notes its argument block in ``SEEN``."""
    said: dict = {
        "check": None, "call": SEEN.append, "direct": None, "extents": (), "disjoint": (),
        "mutated": (), "makers": (), "block": b"", "grad": False, "guards": (), "holds": all,
    }  # fmt: skip
    return native.FastCall(arguments, **(said | given))


def otherwise(*args, **kwargs):
    return "fallback", args, kwargs


def made(it, last=otherwise):
    return native.builtin(it.packed(), last, None)


@pytest.fixture(autouse=True)
def nothing_seen():
    SEEN.clear()
    yield
    SEEN.clear()


def is_builtin(launcher):
    return isinstance(launcher, types.BuiltinFunctionType)


def hot(function, *calls):
    """A kernel whose launcher has a builtin for these calls."""
    kernel = weft.kernel(function)
    for args in calls:
        for _ in range(3):
            kernel(*args)
    assert is_builtin(kernel._launchers[0])
    return kernel


# --- what a plan's arguments have to be -----------------------------------------------------------
def step(kind, **given):
    it = work(block=bytes(8))
    it.step(kind, 0, **given)
    return made(it)


def taken(call, value):
    """The eight bytes that a value became; None if it was passed on."""
    SEEN.clear()
    result = call(value)
    if result is None:
        return SEEN.pop()
    assert result == ("fallback", (value,), {})
    assert SEEN == []
    return None


class Sub(int):
    pass


class Liar:
    """Says that it is an int."""

    @property
    def __class__(self):
        return int

    def __index__(self):
        raise AssertionError("nobody asks")


def test_integers():
    call = step(record.INTEGER, type=int, range=(-(1 << 63), (1 << 63) - 1))
    for n in (0, -1, 1, 5, -(1 << 63), (1 << 63) - 1, -(1 << 31)):
        assert taken(call, n) == struct.pack("<q", n)
    for other in (
        1 << 63,
        -(1 << 63) - 1,
        10**400,
        True,
        1.0,
        None,
        "1",
        Sub(3),
        Liar(),
        np.int64(3),
    ):
        assert taken(call, other) is None
    narrow = step(record.INTEGER, type=int, range=(-128, 127))
    assert [taken(narrow, n) is None for n in (-129, -128, 127, 128, 1 << 70)] == [
        True, False, False, True, True,
    ]  # fmt: skip
    truth = step(record.INTEGER, type=bool, range=(0, 1))
    assert taken(truth, True) == struct.pack("<q", 1)
    assert taken(truth, False) == struct.pack("<q", 0)
    assert taken(truth, 1) is None


def test_floats():
    call = step(record.FLOAT, type=float)
    for x in (0.0, -0.0, -1.0, 1e308, float("inf"), 5e-324):
        assert taken(call, x) == struct.pack("<d", x)
    assert struct.unpack("<d", taken(call, float("nan")))[0] != 0
    for other in (1, None, True, np.float64(1.0), "1.0"):
        assert taken(call, other) is None
    integers = step(record.FLOAT, type=int)
    assert taken(integers, 3) == struct.pack("<d", 3.0)
    assert taken(integers, -1) == struct.pack("<d", -1.0)
    assert taken(integers, 10**400) is None


def test_objects():
    one = object()
    call = step(record.IDENTITY, objects=[one])
    assert taken(call, one) == bytes(8)
    assert taken(call, object()) is None
    word = step(record.EQUAL, type=str, objects=["word"])
    assert taken(word, "".join(["wo", "rd"])) == bytes(8)
    assert taken(word, "other") is None
    assert taken(word, 3) is None


def test_sizes():
    call = work(block=bytes(24))
    call.step(record.SIZE, 0, slot=1, type=torch.Size, range=(id(int), 2))
    call = made(call)
    assert call(torch.Size([3, -5])) is None
    assert SEEN.pop() == struct.pack("<qqq", 0, 3, -5)
    for other in (torch.Size([3]), torch.Size([1, 2, 3]), (3, 4), [3, 4], torch.Size([3, Sub(4)])):
        assert call(other)[0] == "fallback"
    assert SEEN == []


def test_guards():
    owner = types.SimpleNamespace(name=work)
    scope: dict[str, object] = {"name": work}

    def guarded(where, item, absent=False):
        it = work(block=bytes(8))
        it.guard(where, "name", work, item, absent)
        return made(it)

    for where, call in ((owner, guarded(owner, False)), (scope, guarded(scope, True))):
        space = where if isinstance(where, dict) else vars(where)
        assert taken(call, 1) == bytes(8)
        space["name"] = made
        assert taken(call, 1) is None
        del space["name"]
        assert taken(call, 1) is None
    missing = guarded(scope, True, absent=True)
    assert taken(missing, 1) == bytes(8)
    scope["name"] = work
    assert taken(missing, 1) is None


def test_what_python_is_asked():
    asked = []

    def ask(value):
        asked.append(value)
        if isinstance(value, BaseException):
            raise value
        return value

    def pack(value):
        if value == [4]:
            raise OverflowError
        return {1: b"12345678", 2: b"123", 3: None}[value[0]]

    class Equal:
        def __eq__(self, other):
            return True

    call = work(block=bytes(16))
    call.step(record.CALLBACK, 0, slot=1, range=(0, 8), objects=[ask, Equal(), pack])
    call = made(call)
    assert call([1]) is None
    assert SEEN.pop() == bytes(8) + b"12345678"
    for other in ([2], [3], [4], [5], ValueError("no")):
        assert call(other) == ("fallback", (other,), {})
    assert len(asked) == 6
    for rare in (KeyboardInterrupt, SystemExit, GeneratorExit):
        with pytest.raises(rare):
            call(rare())
    assert SEEN == []


def test_counts_and_keywords():
    it = work(2)
    it.step(record.IDENTITY, 1, objects=[None])
    call = made(it)
    assert call(1, None) is None
    for args in ((), (1,), (1, None, 2), (None,) * 30):
        assert call(*args) == ("fallback", args, {})
    assert call(1, b=None) == ("fallback", (1,), {"b": None})
    assert call(a=1, b=None) == ("fallback", (), {"a": 1, "b": None})
    assert call(1, None, c=3) == ("fallback", (1, None), {"c": 3})
    assert SEEN == [b""]


# --- what is asked of torch -----------------------------------------------------------------------
def launching(n=1, **given):
    it = work(n, extents=[16] * n, block=bytes(8 * n), **given)
    for k in range(n):
        it.step(record.TENSOR, k, slot=k, range=(k, 0))
    return made(it)


def test_a_tensor_that_is_given_twice():
    x, y = torch.ones(4), torch.ones(4)
    it = work(3, check=fastpath.tensor_check([x, y]), extents=[16] * 3, block=bytes(24))
    for k, tensor in enumerate((x, y, x)):
        it.tensor(k, k, tensor)
    assert (it.pattern, it.checked) == ((0, 1, 0), 2)
    call = made(it)
    assert call(x, y, x) is call(y, x, y) is None
    assert struct.unpack("<3Q", SEEN[0]) == (x.data_ptr(), y.data_ptr(), x.data_ptr())
    for args in ((x, y, y), (x, x, x), (x, y, torch.ones(4)), (x, y, None)):
        assert call(*args) == ("fallback", args, {})
    assert len(SEEN) == 2


@pytest.mark.parametrize("said", [False, None, 1, "True", TypeError, AttributeError, ValueError])
def test_a_check_that_does_not_say_true(said):
    def check(tensor):
        if isinstance(said, type):
            raise said("no")
        return said

    x = torch.ones(4)
    assert launching(check=check)(x)[1][0] is x
    assert SEEN == []


def test_a_check_that_is_interrupted():
    def check(tensor):
        raise KeyboardInterrupt

    x = torch.ones(4)
    before = sys.getrefcount(x)
    with pytest.raises(KeyboardInterrupt):
        launching(check=check)(x)
    assert sys.getrefcount(x) == before
    assert SEEN == []


def test_what_is_no_tensor_has_no_address():
    call = launching(check=lambda value: True)
    for value in (None, 3, "x", object(), torch.ones(4).to_sparse(), torch.Tensor):
        assert call(value)[0] == "fallback"
    assert SEEN == []
    x = torch.ones(4)
    assert call(x) is None
    assert [struct.pack("<Q", x.data_ptr())] == SEEN


def test_overlaps():
    call = launching(2, check=lambda *_: True, disjoint=[(0, 1)])
    x = torch.ones(12)
    for k, separate in ((0, False), (3, False), (4, True), (8, True)):
        assert (call(x[:4], x[k : k + 4]) is None) == separate
        assert (call(x[k : k + 4], x[:4]) is None) == separate


def test_gradients_and_guards():
    x = torch.ones(4)
    call = launching(check=lambda _: True, grad=True)
    assert call(x)[0] == "fallback"
    with torch.no_grad():
        assert call(x) is None
    said = True
    call = launching(check=lambda _: True, guards=(1, 2), holds=lambda guards: said)
    assert call(x) is None
    said = False
    assert call(x)[0] == "fallback"


def test_writes_are_told():
    x = torch.ones(4)
    call = launching(check=lambda _: True, mutated=[0])
    for version in range(1, 5):
        assert call(x) is None
        assert x._version == version
    it = work(2, check=lambda _: True, extents=[16], block=bytes(8), mutated=[1])
    it.step(record.TENSOR, 0)
    odd = object()
    before = sys.getrefcount(odd)
    for _ in range(10):
        with pytest.raises(RuntimeError):  # autograd's
            made(it)(x, odd)
    assert sys.getrefcount(odd) == before


def test_results():
    one = torch.ones(())
    it = work(0, makers=[lambda: one], block=bytes(8))
    before = sys.getrefcount(one)
    for _ in range(100):
        assert made(it)() is one
    assert SEEN[-1] == struct.pack("<Q", one.data_ptr())
    it = work(0, makers=[torch.ones(()).clone, torch.ones(2).clone], block=bytes(16))
    call = made(it)
    first, second = call()
    assert SEEN[-1] == struct.pack("<QQ", first.data_ptr(), second.data_ptr())

    def fails():
        raise MemoryError

    for makers in ([fails], [lambda: one, fails], [lambda: one, lambda: None]):
        call = made(work(0, makers=makers, block=bytes(16)))
        for _ in range(10):
            with pytest.raises((MemoryError, TypeError, RuntimeError)):
                call()
    del call, it
    assert sys.getrefcount(one) == before


@pytest.mark.parametrize("exported", [True, False])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_address_of_a_tensor(monkeypatch, exported):
    """By torch's exchange API, or by asking the tensor; of a nested one by neither."""
    if not exported:
        monkeypatch.setattr(native, "export", lambda: 0)
    elif not native.export():
        pytest.skip("this torch has no exchange API")
    x = torch.randn(8)[3:]
    it = work(1, block=bytes(16), extents=[20], makers=[lambda: x[2:]], check=lambda *_: True)
    it.step(record.TENSOR, 0, type=torch.Tensor)
    call = made(it)
    assert call(x).data_ptr() == x.data_ptr() + 8
    assert [struct.pack("<QQ", x.data_ptr(), x.data_ptr() + 8)] == SEEN
    nested = torch.nested.nested_tensor([torch.randn(2), torch.randn(3)])
    assert type(nested) is torch.Tensor
    for value in (nested, torch.nn.Parameter(x), torch._efficientzerotensor(4), None):
        assert call(value) == otherwise(value)


def test_a_call_that_raises():
    def fails(block):
        raise RuntimeError("in the loop")

    one = torch.ones(())
    x = torch.ones(4)
    it = work(1, makers=[lambda: one], extents=[16], block=bytes(16), check=lambda _: True,
              call=fails, mutated=[0])  # fmt: skip
    it.step(record.TENSOR, 0)
    call = made(it)
    before = sys.getrefcount(one), sys.getrefcount(x)
    for _ in range(10):
        with pytest.raises(RuntimeError, match="in the loop"):
            call(x)
    assert (sys.getrefcount(one), sys.getrefcount(x)) == before
    assert x._version == 0


# --- how code is called ---------------------------------------------------------------------------
@pytest.mark.parametrize("way", [record.HOLDING, record.RELEASING])
def test_code_is_called(way):
    blocks = []
    prototype = ctypes.PYFUNCTYPE if way == record.HOLDING else ctypes.CFUNCTYPE
    code = prototype(None, ctypes.c_void_p)(
        lambda block: blocks.append(ctypes.string_at(block, 16))
    )  # fmt: skip
    address = ctypes.cast(code, ctypes.c_void_p).value
    it = work(1, direct=native.Direct(way, address, code), block=bytes(8) + b"the tail")
    it.step(record.INTEGER, 0, type=int, range=(0, 9))
    call = made(it)
    assert call(7) is None
    assert call(9) is None
    assert blocks == [struct.pack("<q", n) + b"the tail" for n in (7, 9)]
    assert SEEN == []


class Driven:
    """A driver, and all that is asked before it is called."""

    def __init__(self, monkeypatch):
        self.calls, self.device, self.code = [], 0, 0
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(LaunchConfig), ctypes.c_void_p, ctypes.c_void_p,
            ctypes.POINTER(ctypes.c_void_p),
        )  # fmt: skip
        self.callback = kind(self.launch)
        self.cell = ctypes.c_char_p()
        monkeypatch.setattr(native, "_stream", self.stream)
        monkeypatch.setattr(native, "_device", lambda: self.device)

    def stream(self, device):
        if device != 0:
            raise RuntimeError("no such device")
        return 77

    def launch(self, config, function, parameters, extra):
        size = ctypes.cast(extra[3], ctypes.POINTER(ctypes.c_size_t))[0]
        found = config[0]
        self.calls.append(
            ((found.grid_x, found.block_y, found.shared, found.stream), function, parameters,
             (extra[0], extra[2], extra[4]), ctypes.string_at(extra[1], size))
        )  # fmt: skip
        return self.code

    def ready(self, ending, tests):
        config = LaunchConfig(3, 1, 1, 32, 5, 1, 99, None, None, 0)
        address = ctypes.cast(self.callback, ctypes.c_void_p).value
        self.cell.value = native.launch_record(address, 1234, config, 16, ending, tests)

    def builtin(self, device=0, several=False):
        direct = native.Direct(
            record.DRIVER, ctypes.addressof(self.cell), self, device, several
        )  # fmt: skip
        it = work(1, direct=direct, block=bytes(8) + b"the tail")
        it.step(record.INTEGER, 0, type=int, range=(0, 1 << 40))
        return made(it)


def test_a_launch_hands_over_the_arguments(monkeypatch):
    driven = Driven(monkeypatch)
    call = driven.builtin()
    assert call(16) is None
    slots = struct.pack("<q", 16) + b"the tail"
    assert [slots] == SEEN, "not ready: Python launches"
    driven.ready(
        b"12345678", [(0, 15, 0), (8, (1 << 64) - 1, int.from_bytes(b"the tail", "little"))]
    )
    assert call(16) is None
    assert driven.calls == [((3, 5, 99, 77), 1234, None, (1, 2, None), slots + b"12345678")]
    assert call(17) is None, "not aligned: Python launches"
    assert [slots, struct.pack("<q", 17) + b"the tail"] == SEEN
    driven.ready(b"", [])
    driven.code = 700
    assert call(16) is None, "an error: Python tries again, and says what it is"
    assert len(driven.calls) == 2
    assert SEEN[2:] == [slots]


def test_a_launch_for_a_number(monkeypatch):
    driven = Driven(monkeypatch)
    call = driven.builtin()
    driven.ready(b"", [(0, (1 << 64) - 1, (3 << 32) + 5)])
    for n in ((3 << 32) + 5, 5, 3 << 32, (3 << 32) + 5):
        assert call(n) is None
    assert (len(driven.calls), len(SEEN)) == (2, 2)


def test_a_launch_on_another_device(monkeypatch):
    driven = Driven(monkeypatch)
    driven.ready(b"", [])
    call = driven.builtin(several=True)
    assert call(1) is None
    driven.device = 1
    assert call(2) is None
    assert (len(driven.calls), len(SEEN)) == (1, 1)
    with pytest.raises(RuntimeError, match="no such device"):
        driven.builtin(device=1, several=True)(3)
    assert (len(driven.calls), len(SEEN)) == (1, 1)


# --- lifetimes ------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_builtin_keeps_what_it_uses_and_lets_go_of_it():
    class Thing:
        pass

    thing, keep = Thing(), Thing()
    it = work(1, direct=native.Direct(record.PYTHON, 0, keep))
    it.step(record.IDENTITY, 0, objects=[thing])
    call = made(it)
    seen = weakref.ref(thing), weakref.ref(keep)
    del it, keep
    gc.collect()
    assert seen[1]() is not None
    assert call(thing) is None
    del thing
    gc.collect()
    assert seen[0]() is not None
    del call
    gc.collect()
    assert [r() for r in seen] == [None, None]
    # A cycle.
    loop = Thing()
    it = work(1)
    it.step(record.IDENTITY, 0, objects=[loop])
    loop.call = made(it)
    seen = weakref.ref(loop)
    del it, loop
    gc.collect()
    assert seen() is None


def axpy(a, x, y):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = a * x[i] + y[i]
    return out


def test_references_of_arguments():
    kernel = hot(axpy, (2.5, torch.ones(3), torch.ones(3)))
    x, y, a = torch.ones(3), torch.ones(3), 1234.5
    before = [sys.getrefcount(v) for v in (x, y, a, None)]
    for _ in range(1000):
        kernel(a, x, y)
    after = [sys.getrefcount(v) for v in (x, y, a, None)]
    assert after[:3] == before[:3]
    assert abs(after[3] - before[3]) < 100
    freed = weakref.ref(x)
    del x
    gc.collect()
    assert freed() is None


def test_a_launcher_lets_go_of_tensors():
    x, y = torch.ones(3), torch.ones(3)
    kernel = hot(axpy, (2.5, x, y))
    seen = weakref.ref(x), weakref.ref(y)
    del x, y
    gc.collect()
    assert [r() for r in seen] == [None, None]
    assert is_builtin(kernel._launchers[0])


# --- kernels --------------------------------------------------------------------------------------
class Mode(enum.IntEnum):
    ONE = 1
    TWO = 2


@dataclasses.dataclass(frozen=True)
class Config:
    scale: float
    shift: int


VALUES = [
    0.5, 2, True, False, -1, -1.0, 1 << 40, Mode.ONE, Mode.TWO, np.float32(0.25), np.int16(3),
]  # fmt: skip
TUPLES = [(1, 2), (1.0, 2), [1, 2], torch.Size([1, 2]), (3, 4), torch.Size([3, 4])]
OBJECTS = [Config(1.0, 2), Config(1.5, 2), Config(1.0, 2)]


def with_number(x, a):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * a
    return out


def with_pair(x, pair):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * pair[0] + pair[1]
    return out


def with_object(x, config):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * config.scale + config.shift
    return out


@pytest.mark.parametrize(
    ("function", "values"), [(with_number, VALUES), (with_pair, TUPLES), (with_object, OBJECTS)]
)
def test_every_kind_of_argument(function, values):
    kernel = weft.kernel(function)
    draw = random.Random(7)
    plain = {}
    for value in values * 2 + draw.choices(values, k=120):
        x = torch.arange(5, dtype=torch.float64)
        # Without the decorator it means the same.
        want = plain.setdefault((type(value), str(value)), function(x, value))
        torch.testing.assert_close(kernel(x, value), want)
    assert is_builtin(kernel._launchers[0])


def outcome(call, args):
    try:
        return call(*args)
    except (WeftError, TypeError, RuntimeError, OverflowError, ValueError) as error:
        return type(error), str(error)


def strange():
    """What nobody means to pass."""

    class Own(torch.Tensor):
        pass

    class Overridden(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, kinds, args=(), kwargs=None):
            raise ValueError("not with me")

    class Duck:
        shape = (4,)
        dtype = torch.float32

        def data_ptr(self):
            return 1

        @classmethod
        def __torch_function__(cls, *_):
            return 3

    x = torch.arange(4.0)
    return [
        x, torch.arange(4.0), x[::2], x.double(), torch.ones(0), torch.ones(()), torch.ones(2, 2),
        torch.ones(4, requires_grad=True), torch.nn.Parameter(torch.ones(4)), x.to("meta"),
        x.as_subclass(Own), x.as_subclass(Overridden), torch.ones(4).to_sparse(), Duck(), None, 0,
        -1, 1.5, "x", b"x", (), [], {}, object(), int, axpy, 10**30, float("nan"), torch.Size([4]),
        torch.ones(4, dtype=torch.complex64), torch.ones(4, dtype=torch.float8_e5m2),
        torch.ones(1).expand(4), NotImplemented, ..., np.ones(4), np.float64(2),
    ]  # fmt: skip


def within(a, x, y):
    out = torch.zeros_like(x)
    for i in range(min(len(x), len(y))):
        out[i] = a * x[i] + y[i]
    return out


def first_four(a, x, y, out):
    for i in range(4):
        out[i] = a * x[i] + y[i]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_odd_arguments_are_what_they_are_without_builtins(seed, monkeypatch):
    draw = random.Random(seed)
    things = strange()
    with torch._C.DisableTorchFunctionSubclass():
        few = [v for v in things if not isinstance(v, torch.Tensor) or v.numel() >= 4]
    calls = [draw.choices(things, k=draw.choice((0, 1, 2, 3, 3, 3, 3, 3, 4))) for _ in range(300)]
    calls += [[draw.choice((0.5, 2, None)), *draw.choices(things[:9], k=2)] for _ in range(200)]
    direct = [draw.choices(few, k=draw.choice((0, 1, 2, 3, 3, 3, 3, 3, 4))) for _ in range(300)]
    direct += [[draw.choice((0.5, 2, None)), *draw.choices(few[:7], k=2)] for _ in range(200)]

    def outcomes(make):
        kernel, other = make(within), make(first_four)
        found = [outcome(kernel, args) for args in calls]
        for args in direct:
            out = torch.zeros(4)
            found += [outcome(other._launchers[0], [*args, out]), out]
        return found, is_builtin(kernel._launchers[0]), is_builtin(other._launchers[0])

    x = torch.ones(4)
    hottest = ((0.5, x, x.clone()), (2, x, x.clone()))
    found, *builtins = outcomes(
        lambda f: hot(f, *((*args, torch.ones(4)) if f is first_four else args for args in hottest))
    )
    assert builtins == [True, True]
    monkeypatch.setattr(fastpath, "_TensorGuards", None)

    def plain(function):
        kernel = weft.kernel(function)
        kernel(0.5, x, x.clone(), *[torch.ones(4)] * (function is first_four))
        return kernel

    wanted, *builtins = outcomes(plain)
    assert builtins == [False, False]
    compare(found, wanted)


def compare(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        if isinstance(a, torch.Tensor) and a.__class__ is torch.Tensor and a.device.type == "cpu":
            torch.testing.assert_close(a, b, equal_nan=True)
            assert a.requires_grad == b.requires_grad
        elif isinstance(a, tuple):
            assert a[0] is b[0]
        else:
            assert type(a) is type(b)


# --- kernels that are one loop --------------------------------------------------------------------
def move(a, n: int, x, out):
    """Reads its arguments in another order."""
    for i in range(out.shape[0]):
        out[i] = x[i] * n + a


def test_a_builtin_in_front_of_a_kernel():
    x, out = torch.rand(5), torch.zeros(5)
    kernel = hot(move, (0.5, 3, x, out))
    assert is_builtin(kernel._entry)
    for a, n in ((0.5, 3), (-2.0, -1), (1, 2), (0.5, 1 << 33)):
        kernel(a, n, x, out)
        torch.testing.assert_close(out, x * n + a)
    kernel(1.5, 2, x=x, out=out)
    torch.testing.assert_close(out, x * 2 + 1.5)
    version = out._version
    kernel(a=2.5, n=2, x=x, out=out)
    torch.testing.assert_close(out, x * 2 + 2.5)
    assert out._version == version + 1
    for wrong in ((), (0.5, 3, x), (0.5, 3, x, out, out)):
        with pytest.raises(TypeError, match="argument"):
            kernel(*wrong)
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        kernel(0.5, 3, x, out, z=1)
    with pytest.raises(WeftError):
        kernel(0.5, 1.5, x, out)
    with pytest.raises(WeftError):
        kernel(0.5, 1 << 64, x, out)
    kernel(0.5, 3, out, out)
    torch.testing.assert_close(out, (x * 2 + 2.5) * 3 + 0.5)


def test_what_comes_before_the_builtin_of_a_kernel():
    x, out = torch.rand(5), torch.zeros(5)
    kernel = hot(move, (0.5, 3, x, out))
    seen = []

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Noting():
        kernel(0.5, 3, x, out)
    assert any("move" in name for name in seen)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones(5))
        fresh = torch.zeros(5)
        kernel(0.5, 3, dual, fresh)
        tangent = forward_ad.unpack_dual(fresh).tangent
    assert tangent.tolist() == [3.0] * 5
    kernel(1.0, 2, x, out)
    torch.testing.assert_close(out, x * 2 + 1)
    needs = x.clone().requires_grad_()
    fresh = torch.zeros(5)
    kernel(0.5, 3, needs, fresh)
    fresh.sum().backward()
    assert needs.grad.tolist() == [3.0] * 5

    class Own(torch.Tensor):
        __torch_function__ = torch._C._disabled_torch_function_impl

        @staticmethod
        def __new__(cls, elem):
            return torch.Tensor._make_wrapper_subclass(cls, elem.shape, dtype=elem.dtype)

        def __init__(self, elem):
            self.elem = elem

        @classmethod
        def __torch_dispatch__(cls, function, kinds, args=(), kwargs=None):
            seen.append(cls)
            args = [a.elem if isinstance(a, cls) else a for a in args]
            return function(*args, **(kwargs or {}))

    out.zero_()
    kernel(0.5, 3, Own(x), out)
    assert Own in seen
    torch.testing.assert_close(out, x * 3 + 0.5)


def test_kernels_whose_host_part_does_more_have_no_builtin_in_front():
    def with_number(x):
        s = 0.0
        for i in range(x.shape[0]):
            s += x[i]
        return s + 1.0

    def argument(x):
        for i in range(x.shape[0]):
            x[i] = 1.0
        return x

    def one_in_a_tuple(x):
        y = torch.empty_like(x)
        for i in range(x.shape[0]):
            y[i] = x[i]
        return (y,)

    def scratch(x, out):
        y = torch.empty_like(x)
        for i in range(x.shape[0]):
            y[i] = x[i]
            out[i] = y[i] + 1.0

    def unused(x, y):
        for i in range(x.shape[0]):
            x[i] = 1.0

    def captured(x):
        for i in range(x.shape[0]):
            x[i] = FACTOR

    def attribute(config, x):
        for i in range(x.shape[0]):
            x[i] = config.scale

    def named(x, *, y=2.0):
        for i in range(x.shape[0]):
            x[i] = y

    x = torch.rand(3)
    more = {unused: (x, 1), attribute: (Config(1.0, 2), x), scratch: (x, torch.rand(3))}
    for function in (
        with_number, argument, one_in_a_tuple, scratch, unused, captured, attribute, named,
    ):  # fmt: skip
        kernel = hot(function, more.get(function, (x,)))
        assert not is_builtin(kernel._entry)


def _sums(x, y):
    n = x.shape[0]
    half = 0.5
    double = torch.zeros_like(x)
    out = torch.empty_like(y)
    total = 0.0
    for i in range(1, n):
        double[i] += half * x[i]
        out[i] = x[i] * y[i]
        total += out[i]
    return double, out, total


@pytest.mark.parametrize("n", [1, 2, 17])
def test_a_builtin_makes_the_tensors_of_the_host_part(n):
    kernel = weft.kernel(_sums)

    def check(x, y):
        expected, found = _sums(x, y), kernel(x, y)
        for e, f in zip(expected[:2], found[:2], strict=True):
            torch.testing.assert_close(f[1:], e[1:])
            assert (f.shape, f.stride(), f.dtype) == (e.shape, e.stride(), e.dtype)
        assert found[0][0] == 0
        torch.testing.assert_close(found[2], torch.as_tensor(expected[2]), check_dtype=False)

    x, y = torch.rand(n), torch.rand(2 * n)[::2]
    for _ in range(3):
        check(x, y)
    assert is_builtin(kernel._entry)
    for _ in range(3):
        check(torch.rand(n), torch.rand(2 * n)[::2])
    check(torch.rand(n + 1), torch.rand(n + 1))  # another size: not what the builtin is for
    check(x.double(), y)


def test_gradients_of_a_builtin_that_makes_tensors():
    def reference(x, y):
        keep = torch.arange(len(x)) > 0
        return 0.5 * x * keep, x * y * keep, (x * y)[1:].sum()

    kernel = weft.kernel(_sums)
    for repeat in range(8):
        x, y = (torch.rand(5, requires_grad=True) for _ in range(2))
        found, expected = kernel(x, y), reference(x, y)
        # What torch hands over: dense, expanded, with strides, nothing.
        weights = [torch.rand(5), torch.rand(1).expand(5), torch.rand(10)[::2]][repeat % 3]

        def scalar(outs, repeat=repeat, weights=weights):
            some = outs[1][1:] @ weights[1:] + outs[2] * 3.0
            return some if repeat % 2 else some + outs[0][1:].sum()

        wanted = torch.autograd.grad(scalar(expected), (x, y))
        torch.testing.assert_close(torch.autograd.grad(scalar(found), (x, y)), wanted)
        if repeat > 4:  # with a graph, where a derivative of the derivative may be asked for
            grads = [torch.autograd.grad(scalar(f(x, y)), x, create_graph=True)[0]
                     for f in (kernel, reference)]  # fmt: skip
            second = [torch.autograd.grad((g * x).sum(), y)[0] for g in grads]
            torch.testing.assert_close(*second)
    assert is_builtin(kernel._entry)
    found = kernel(x, y)
    with torch.no_grad():
        y.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found[2].backward()


def test_what_comes_before_a_builtin_that_makes_tensors(monkeypatch):
    @weft.kernel
    def first(x):
        out = torch.empty_like(x)
        for i in range(x.shape[0] - 1):
            out[i] = 2.0 * x[i]
        return out

    x, seen = torch.rand(5), []
    for _ in range(4):
        first(x)
    assert is_builtin(first._entry)

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    class Calls(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, kinds, args=(), kwargs=None):
            seen.append(getattr(function, "__name__", ""))
            return function(*args, **(kwargs or {}))

    with Watching():
        first(x)
    assert any("first" in name for name in seen)
    with Calls():
        first(x)
    assert "empty_like" in seen
    torch.use_deterministic_algorithms(True)  # which fills memory: what nobody writes is NaN
    try:
        assert first(x)[4].isnan()
    finally:
        torch.use_deterministic_algorithms(False)
    with torch.inference_mode():
        assert first(x).is_inference()
    assert not first(x).is_inference()
    tangent = torch.func.jvp(lambda x: first(x)[:4], (x,), (x,))[1]
    torch.testing.assert_close(tangent, 2 * x[:4])
    batch = torch.func.vmap(lambda x: first(x)[:4])(x.expand(3, 5))
    torch.testing.assert_close(batch, 2 * x[:4].expand(3, 4))
    monkeypatch.setattr(torch, "empty_like", lambda x: torch.full_like(x, 7.0))
    assert first(x)[4] == 7.0


def test_a_default_in_front():
    def scaled(x, out, a=2.0):
        """Has a docstring, too."""
        for i in range(x.shape[0]):
            out[i] = a * x[i]

    x, out = torch.rand(3), torch.zeros(3)
    kernel = hot(scaled, (x, out, 3.0))
    assert is_builtin(kernel._entry)
    kernel(x, out)
    torch.testing.assert_close(out, 2 * x)
    kernel(x, out, 4.0)
    torch.testing.assert_close(out, 4 * x)


def test_gradients_after_a_builtin():
    x, y = torch.ones(3, requires_grad=True), torch.ones(3)
    with torch.no_grad():
        kernel = hot(axpy, (2.0, x, y))
    for _ in range(3):
        out = kernel(2.0, x, y)
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert grad.tolist() == [2.0] * 3
        assert not kernel(2.0, y, y).requires_grad


def test_saved_tensors_that_a_kernel_changes():
    def fill(x):
        for i in range(x.shape[0]):
            x[i] = 1.0

    x = torch.rand(3)
    kernel = hot(fill, (x,))
    w = torch.rand(3, requires_grad=True)
    loss = (w * x).sum()
    kernel(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_sums():
    def moments(x):
        s = 0.0
        q = 0.0
        for i in range(x.shape[0]):
            s += x[i]
            q += x[i] * x[i]
        return s, q

    kernel = hot(moments, (torch.rand(9),))
    kept = [(x, *kernel(x)) for x in (torch.rand(9) for _ in range(50))]
    for x, s, q in kept:
        torch.testing.assert_close(s, x.sum())
        torch.testing.assert_close(q, (x * x).sum())


def test_threads():
    def slow(x):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            s = 0.0
            for j in range(x.shape[0]):
                s += x[j]
            out[i] = s
        return out

    kernel = hot(slow, (torch.ones(64),), (torch.ones(65),))
    wrong = []

    def run(size):
        for _ in range(100):
            if kernel(torch.ones(size)).tolist() != [float(size)] * size:
                wrong.append(size)

    threads = [threading.Thread(target=run, args=(n,)) for n in (64, 65, 64, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_more_plans_than_builtins():
    kernel = hot(axpy, *((1.0, torch.ones(n), torch.ones(n)) for n in range(1, 8)))
    assert len(kernel._regions[0].promoted) == fastpath.MOST_BUILTINS
    for n in itertools.chain(range(1, 8), range(7, 0, -1)):
        assert kernel(1.0, torch.ones(n), torch.ones(n)).tolist() == [2.0] * n


def test_many_arguments():
    names = [f"x{k}" for k in range(40)]
    total = " + ".join(f"{n}[i]" for n in names)
    source = (
        f"def many({', '.join(names)}, out):\n    for i in range(3):\n        out[i] = {total}\n"
    )
    scope = {}
    # So that the source is found.
    linecache.cache["<many>"] = (len(source), None, source.splitlines(True), "<many>")
    exec(compile(source, "<many>", "exec"), scope)
    args = [torch.rand(3) for _ in names]
    out = torch.empty(3)
    hot(scope["many"], (*args, out))(*args, out)
    torch.testing.assert_close(out, torch.stack(args).sum(0))


def test_where_tensors_are(monkeypatch):
    """In their Python objects, as torch's functions say; or nothing is known of it."""
    found = tensors.layout()
    assert found.held or torch.__version__ < "2.13"
    monkeypatch.setattr(tensors, "_words", lambda address, count: [1] * count)  # another layout
    assert tensors._layout() == (0, 0, 0)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_that_other_keys_treat(monkeypatch, known):
    """They are not what their memory is: before torch's check, where their keys can be read."""
    if not known:
        monkeypatch.setattr(tensors, "layout", lambda: tensors._UNKNOWN)
    elif not tensors.layout().held:
        pytest.skip("nothing is known of this torch")
    x = torch.randn(8)[3:]
    it = work(1, block=bytes(8), extents=[20], check=lambda *_: True)
    it.tensor(0, 0, x)
    call = made(it)
    assert call(x) is None
    assert [struct.pack("<Q", x.data_ptr())] == SEEN
    with torch.inference_mode():
        inference = torch.randn(5)
    nested = torch.nested.nested_tensor([torch.randn(2), torch.randn(3)])
    others = [nested, None] + [torch._neg_view(x), inference, x.to("meta")] * known
    for value in others:
        assert call(value) == otherwise(value)
    assert len(SEEN) == 1


def test_what_torch_is_asked_without_python():
    it = work(1)
    it.step(record.ASKED, None, objects=[torch.is_grad_enabled, False])
    it.step(record.ASKED, None, objects=[torch._C._is_torch_function_mode_enabled, False])
    known = len(tensors.answers())
    assert known == 2 or torch.__version__ < "2.13"
    assert [step.kind for step in it.steps].count(record.ANSWERED) == known
    call = made(it)
    assert call(None) == otherwise(None)
    with torch.no_grad():
        assert call(None) is None
        with torch.overrides.BaseTorchFunctionMode():
            assert call(None) == otherwise(None)


def test_launches_that_autograd_is_told_of_within_another():
    """Between a launch and what autograd asks of it: where torch makes the node, Python may look
    for garbage, and a finalizer may launch as well."""

    def scaled(x: torch.Tensor, a: float) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = a * x[i]
        return out

    kernel = hot(scaled, (torch.randn(4, requires_grad=True), 2.0))
    x, others, seen, numbers = torch.randn(4, requires_grad=True), [], [], itertools.count(1)

    class Node:
        def __init__(self):
            self.own = self

        def __del__(self):
            k = next(numbers)
            recorded = torch.is_grad_enabled()  # not within a forward of another
            seen.append((k, recorded, kernel(x * k, 3.0)))

    def launch():
        for _ in range(300):
            others.append(kernel(x + 1, 2.0))
            Node()

    before = gc.get_threshold()
    gc.set_threshold(3, 1000, 1000)
    try:
        threads = [threading.Thread(target=launch) for _ in range(2)]
        for one in threads:
            one.start()
        launch()
        for one in threads:
            one.join()
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert len(others) == 900
    for one in others:
        torch.testing.assert_close(torch.autograd.grad(one.sum(), x)[0], torch.full((4,), 2.0))
    assert len(seen) == 900
    for k, recorded, one in seen:
        torch.testing.assert_close(one.detach(), 3 * k * x.detach())
        assert one.requires_grad is recorded
        if recorded:
            (found,) = torch.autograd.grad(one.sum(), x)
            torch.testing.assert_close(found, torch.full((4,), 3.0 * k))
    assert any(recorded for _, recorded, _ in seen)


def test_gradients_of_several_sizes_have_builtins():
    """One loop is compiled for all of them: the last size alone was served."""

    def scaled(x: torch.Tensor, a: float) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = a * x[i]
        return out

    kernel = weft.kernel(scaled)
    leaves = [torch.randn(n, requires_grad=True) for n in (2, 3, 5)]
    for _ in range(20):
        for x in leaves:
            (found,) = torch.autograd.grad(kernel(x, 2.0).sum(), x)
            torch.testing.assert_close(found, torch.full_like(x, 2.0))
    promoted = kernel._regions[0].promoted
    assert sorted(work.extents[0] for work in promoted) == [8, 12, 20]
    assert all(work.history is not None for work in promoted)

"""Graphs are made anew where what decides on sizes has changed, wherever the host part finds it."""

import linecache
import sys
from types import ModuleType

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.torch_version import TorchVersion

import weft

MODULE = """
import enum, functools
from collections import deque
from typing import NamedTuple
from types import SimpleNamespace
import torch, weft

class Inner:
    def __init__(self): self.count = 2

class Held:
    kind = 2
    def __init__(self):
        self.n, self.inner, self.sizes = 2, Inner(), {"a": 2}
    def size(self): return self.n
    def by_size(self): return self.size() + 0
    def by_function(self): return of(self)
    def by_inner(self): return self.inner.count
    def by_item(self): return self.sizes["a"]
    def by_default(self, n=2): return n
    @property
    def count(self): return self.n
    @property
    def by_count(self): return self.count
    @staticmethod
    def of_all(): return COUNT
    @classmethod
    def of_class(cls): return cls.kind
    def __len__(self): return self.n
    def __getitem__(self, k): return self.n
    def __call__(self): return self.n

    def of_inner(self): return self.inner.count
    def itself(self): return self
    def by_attribute(self, name="n"): return getattr(self, name)

class Child(Held):
    def size(self): return super().size() + 0

class Asked:
    def __init__(self): self.own = {"n": 2}
    def __getattr__(self, name): return self.own[name]

class Config(dict):
    def __getattr__(self, name): return self[name]

class Described:
    class Of:
        def __get__(self, held, cls): return held.kept
    n = Of()
    def __init__(self): self.kept = 2

class Pair(NamedTuple):
    n: int
    held: object

class Slots:
    __slots__ = ("n",)
    def __init__(self): self.n = 2
    def size(self): return self.n

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.n, self.inner = 2, torch.nn.Linear(1, 1)
        self.inner.n = 2
    def forward(self): return self.n
    def size(self): return self.inner.n

def of(held): return held.n
def named(a, *, held): return held.n
def through(held): return held.size()
def sum_of(a, b): return a + b
def round_of(node, k): return node.n if k == 0 else round_of(node.next, k - 1)
def last(node): return node.n if node.next is None else last(node.next)

def counted(): return COUNT
def more(): return COUNT + 1
def applied(f, *args): return f(*args)
def most(*args): return max(h.n for h in args)
def given(): return held
def called(): return counted()
def by_default(n=2): return n
def by_name(*, n=2): return n
def by_three(): return 3
def by_summed(held): return tables["summed"](held)
def summed(held): return held.of_inner() + 0
class Mode(enum.Enum):
    SHORT, LONG = 2, 3

child, asked, described, config = Child(), Asked(), Described(), Config(n=2)
held, slots, layer, COUNT = Held(), Slots(), Layer(), 2
many = {"one": Held(), "list": [Held()], 3: 2}
first, FLAG, KEY, calls, ends = Held(), True, "a", {"a": counted, "b": more}, deque([2, 2])
pair, sizes, blocks = Pair(2, Held()), {"a": 2}, torch.nn.ModuleList([Layer()])
row, table = [Held(), Held()], {"a": Held(), "b": Held()}
partly, of_held, bound = functools.partial(sum_of, 1, b=1), functools.partial(of, held), held.size
space = SimpleNamespace(held=Held(), n=2)
node = SimpleNamespace(n=0, next=SimpleNamespace(n=2, next=None))
ring = SimpleNamespace(n=2, next=None)
ring.next = ring
mode, ones, tables = Mode.SHORT, [1, 1], {"summed": summed}

@weft.kernel
def other(x: torch.Tensor) -> torch.Tensor:
    out = x.new_zeros(COUNT)
    for i in range(out.shape[0]):
        out[i] = x[0]
    return out

@weft.kernel
def sized(x: torch.Tensor) -> torch.Tensor:
    assert x.shape[0] > 0  # no graph holds this host part
    {before}
    out = x.new_zeros({size})
    for i in range(out.shape[0]):
        out[i] = x[i % x.shape[0]]
    return out

def caller(x):
    y = sized(x)
    return y * y.shape[0]
"""
SIZES = [  # after what, which size, and what makes it 3
    ("", "held.size()", "held.n = 3"),
    ("", "held.by_size()", "held.n = 3"),
    ("", "held.by_function()", "held.n = 3"),
    ("", "held.by_inner()", "held.inner.count = 3"),
    ("", "held.by_inner()", "held.inner = Inner(); held.inner.count = 3"),
    ("", "held.by_item()", "held.sizes['a'] = 3"),
    ("", "held.by_default()", "Held.by_default.__defaults__ = (3,)"),
    ("", "held.count", "held.n = 3"),
    ("", "held.by_count", "held.n = 3"),
    ("", "held.of_all()", "COUNT = 3"),
    ("", "held.of_class()", "Held.kind = 3"),
    ("", "len(held)", "held.n = 3"),
    ("", "held[0]", "held.n = 3"),
    ("", "held()", "held.n = 3"),
    ("", "held.kind", "Held.kind = 3"),
    ("", "getattr(held, 'n')", "held.n = 3"),
    ("", "vars(held)['n']", "held.n = 3"),
    ("", "held.__dict__['n']", "held.n = 3"),
    ("", "max(held.n, 1)", "held.n = 3"),
    ("", "held.size() if COUNT else 1", "held.n = 3"),
    ("", "slots.n", "slots.n = 3"),
    ("", "slots.size()", "slots.n = 3"),
    ("", "layer()", "layer.n = 3"),
    ("", "layer.size()", "layer.inner.n = 3"),
    ("", "of(held)", "held.n = 3"),
    ("", "named(1, held=held)", "held.n = 3"),
    ("", "through(held)", "held.n = 3"),
    ("", "partly()", "partly = functools.partial(sum_of, 2, b=1)"),
    ("", "of_held()", "held.n = 3"),
    ("", "bound()", "held.n = 3"),
    ("", "many['one'].n", "many['one'].n = 3"),
    ("", "many['one'].size()", "many['one'].n = 3"),
    ("", "many['list'][0].n", "many['list'][0].n = 3"),
    ("", "many[3]", "many[3] = 3"),
    ("", "row[-1].n", "row[-1].n = 3"),
    ("", "max(h.n for h in row)", "row[1].n = 3"),
    ("", "max([h.size() for h in row])", "row[0].n = 3"),
    ("", "max(h.n for k, h in enumerate(row))", "row[1].n = 3"),
    ("", "max(h.n for h in table.values())", "table['b'].n = 3"),
    ("", "max(h.size() for k, h in table.items())", "table['b'].n = 3"),
    ("", "max(h.n for h in reversed(row))", "row[1].n = 3"),
    ("", "space.held.size()", "space.held.n = 3"),
    ("", "last(node)", "node.next.n = 3"),
    ("", "ring.next.next.n", "ring.n = 3"),
    ("", "round_of(ring, 3)", "ring.n = 3"),
    ("h = held", "h.n", "held.n = 3"),
    ("h = held.inner", "h.count", "held.inner.count = 3"),
    ("h = held; n = h.size()", "n", "held.n = 3"),
    ("", "child.size()", "child.n = 3"),
    ("", "held.itself().size()", "held.n = 3"),
    ("", "held.by_attribute()", "held.n = 3"),
    ("", "given().n", "held.n = 3"),
    ("", "asked.n", "asked.own['n'] = 3"),
    ("", "config.n", "config['n'] = 3"),
    ("", "config['n']", "config['n'] = 3"),
    ("", "described.n", "described.kept = 3"),
    ("", "pair.n", "pair = Pair(3, None)"),
    ("", "pair.held.n", "pair.held.n = 3"),
    ("", "blocks[0].n", "blocks[0].n = 3"),
    ("", "ends[0]", "ends[0] = 3"),
    ("", "sizes[KEY]", "sizes['a'] = 3"),
    ("", "max(sizes.values())", "sizes['b'] = 3"),
    ("", "3 if 'b' in sizes else 2", "sizes['b'] = 3"),
    ("", "calls[KEY]()", "COUNT = 3"),
    ("", "calls[KEY]()", "KEY = 'b'"),
    ("", "applied(held.size)", "held.n = 3"),
    ("", "applied(lambda h: h.n, held)", "held.n = 3"),
    ("", "most(*row)", "row[1].n = 3"),
    ("", "max(map(of, row))", "row[1].n = 3"),
    ("", "max(b.n for a, b in zip(row, row))", "row[1].n = 3"),
    ("", "max(h.n for h in row)", "row.append(Held()); row[2].n = 3"),
    ("", "max(row, key=of).n", "row[1].n = 3"),
    ("", "(held if FLAG else first).n", "held.n = 3"),
    ("c = first\n    if FLAG: c = held", "c.n", "held.n = 3"),
    ("a, b = held, first", "a.n", "held.n = 3"),
    ("c: object = held", "c.n", "held.n = 3"),
    ("if (c := held): pass", "c.n", "held.n = 3"),
    ("n = getattr(held, 'late', 2)", "n", "held.late = 3"),
    ("n = 3 if hasattr(held, 'late') else 2", "n", "held.late = 3"),
    ("n = 3 if isinstance(held, Child) else 2", "n", "held = Child()"),
    ("n = 0\n    for h in weft.serial(row):\n        n = max(n, h.n)", "n", "row[1].n = 3"),
]
OF_CLASSES = ("Held.kind", "Held.of_class()")  # of which older Dynamos guard nothing
if TorchVersion(torch.__version__) >= "2.12":
    SIZES += [("", size, "Held.kind = 3") for size in OF_CLASSES]


SIZES += [
    ("", "sizes.get('a', 2)", "sizes['a'] = 3"),
    ("", "sizes.get('m', 2)", "sizes['m'] = 3"),
    ("", "len(sizes) + 1", "sizes['m'] = 0"),
    ("", "ones[0] + 1", "ones[0] = 2"),
    ("", "len(ones)", "ones.append(0)"),
    ("", "sum(ones)", "ones[1] = 2"),
    ("", "mode.value", "mode = Mode.LONG"),
    ("", "by_default()", "by_default.__defaults__ = (3,)"),
    ("", "by_name()", "by_name.__kwdefaults__ = {'n': 3}"),
    ("", "counted()", "counted = lambda: 3"),
    ("", "counted()", "counted = by_three"),
    ("", "counted()", "counted.__code__ = by_three.__code__"),
    ("", "called()", "COUNT = 3"),
    ("", "by_summed(held)", "held.inner.count = 3"),
    ("", "by_summed((held, first)[0])", "held.inner.count = 3"),
    ("", "other(x).shape[0]", "COUNT = 3"),
]


@pytest.fixture
def imported():
    return True


@pytest.fixture
def module(request, imported, monkeypatch):
    before, size = request.param
    text = MODULE.replace("{size}", size).replace("{before}", before or "pass")
    found = ModuleType(f"sizes_{len(linecache.cache)}")  # Dynamo keeps that it was imported
    file = f"<module {len(linecache.cache)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    if imported:
        monkeypatch.setitem(sys.modules, found.__name__, found)  # where Dynamo finds its globals
    exec(compile(text, file, "exec"), vars(found))
    torch._dynamo.reset()
    return found


@pytest.mark.sampled(8)
@pytest.mark.parametrize("imported", [True, False], ids=["imported", "executed"])
@pytest.mark.parametrize(
    ("module", "change"),
    [pytest.param((before, size), change, id=f"{size} after {change}")
     for before, size, change in SIZES],
    indirect=["module"],
)  # fmt: skip
def test_what_decides_is_guarded_wherever_it_is(module, change):
    """What follows the kernel had the size that the graph was made for, without a word."""
    counter = CompileCounter()

    def caller(x):
        y = module.sized(x)
        return y * y.shape[0]

    compiled = torch.compile(caller, backend=counter, fullgraph=True)
    for _ in range(2):
        assert compiled(torch.ones(1)).tolist() == [2.0, 2.0]
        module.first.rate = 0.75  # which decides nothing
    assert counter.frame_count == 1
    exec(change, vars(module))
    assert compiled(torch.ones(1)).tolist() == [3.0, 3.0, 3.0]


@pytest.mark.parametrize("module", [("", "held.size()")], indirect=True)
def test_what_decides_is_looked_for_again(module):
    """A graph that was made anew had guards for what the first one read."""
    compiled = torch.compile(module.caller, backend="eager", fullgraph=True)
    file = f"<module {len(linecache.cache)}>"
    text = "class Other:\n    m = 2\n    def size(self): return self.m\n"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), vars(module))
    assert compiled(torch.ones(1)).tolist() == [2.0] * 2
    module.held = module.Other()
    assert compiled(torch.ones(1)).tolist() == [2.0] * 2
    module.held.m = 3
    assert compiled(torch.ones(1)).tolist() == [3.0] * 3


@pytest.mark.parametrize("module", [("", "applied(of, held)")], indirect=True)
def test_what_is_not_read_makes_no_graph(module):
    counter = CompileCounter()
    compiled = torch.compile(module.caller, backend=counter, fullgraph=True)
    for step in range(4):
        module.held.step = step
        compiled(torch.ones(1))
    assert counter.frame_count == 1


def local_kernel():
    count, held = 2, [1]

    @weft.kernel
    def kernel(x: torch.Tensor) -> torch.Tensor:
        assert x.shape[0] > 0
        out = x.new_zeros(count * held[0])
        for i in range(out.shape[0]):
            out[i] = x[0]
        return out

    def set_count(value):
        nonlocal count
        count = value

    def caller(x):
        y = kernel(x)
        return y * y.shape[0]

    return caller, set_count, held


def test_numbers_around_a_kernel_that_is_no_global():
    """Dynamo makes symbols of such numbers when they change, and ended in an error of its own."""
    caller, set_count, held = local_kernel()
    compiled = torch.compile(caller, backend="eager", fullgraph=True)
    for count, factor in ((2, 1), (3, 1), (4, 1), (4, 2), (4, 3)):
        set_count(count)
        held[0] = factor
        assert compiled(torch.ones(1)).tolist() == [count * factor] * (count * factor)

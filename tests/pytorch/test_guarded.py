"""Graphs are made anew where what decides on sizes has changed, wherever the host part finds it."""

import linecache
import sys
from types import ModuleType

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.torch_version import TorchVersion

MODULE = """
import functools
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

held, slots, layer, COUNT = Held(), Slots(), Layer(), 2
many = {"one": Held(), "list": [Held()], 3: 2}
row, table = [Held(), Held()], {"a": Held(), "b": Held()}
partly, of_held, bound = functools.partial(sum_of, 1, b=1), functools.partial(of, held), held.size
space = SimpleNamespace(held=Held(), n=2)
node = SimpleNamespace(n=0, next=SimpleNamespace(n=2, next=None))
ring = SimpleNamespace(n=2, next=None)
ring.next = ring

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
    ("n = 0\n    for h in weft.serial(row):\n        n = max(n, h.n)", "n", "row[1].n = 3"),
]
OF_CLASSES = ("Held.kind", "Held.of_class()")  # of which older Dynamos guard nothing
if TorchVersion(torch.__version__) >= "2.12":
    SIZES += [("", size, "Held.kind = 3") for size in OF_CLASSES]


@pytest.fixture
def module(request, monkeypatch):
    before, size = request.param
    text = MODULE.replace("{size}", size).replace("{before}", before or "pass")
    found = ModuleType("sizes_of_graphs")
    file = f"<module {len(linecache.cache)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    monkeypatch.setitem(sys.modules, found.__name__, found)  # where Dynamo finds its globals
    exec(compile(text, file, "exec"), vars(found))
    torch._dynamo.reset()
    return found


@pytest.mark.parametrize(
    ("module", "change"),
    [pytest.param((before, size), change, id=f"{size} after {change}")
     for before, size, change in SIZES],
    indirect=["module"],
)  # fmt: skip
def test_what_decides_is_guarded_wherever_it_is(module, change):
    """What follows the kernel had the size that the graph was made for, without a word."""
    counter = CompileCounter()
    compiled = torch.compile(module.caller, backend=counter, fullgraph=True)
    for _ in range(2):
        assert compiled(torch.ones(1)).tolist() == [2.0, 2.0]
    assert counter.frame_count == 1
    exec(change, vars(module))
    assert compiled(torch.ones(1)).tolist() == [3.0, 3.0, 3.0]

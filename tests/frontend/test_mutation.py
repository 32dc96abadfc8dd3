"""What a kernel writes to, found in its text: as running the undecorated Python does."""

import copy  # noqa: F401  (in texts)
import functools
import itertools  # noqa: F401
import linecache
import operator
import types

import pytest
import torch

import weft

CHOSEN = True


def store(x, i):
    x[i] = 7.0


def store_value(value, x, i):
    x[i] = value


def other_store(x, i):
    x[i] = 8.0


def read(x, i):
    return x[i] * 2


def call(function, x, i):
    return function(x, i)


def call_once_more(function, x, i):
    return call(function, x, i)


def by_default(x, i, function=store):
    function(x, i)


def apply(function, x):
    return function(x)


def by_inner_function(x):
    def inner(y):
        y.add_(1)

    inner(x)


def viewed(x):
    return x.view(-1)


class Writer:
    def method(self, x, i):
        x[i] = 7.0


class Model(torch.nn.Module):
    def forward(self, x):
        return x.add_(1)


@weft.kernel
def inner_kernel(x):
    for i in range(x.shape[0]):
        x[i] = 5.0


@weft.kernel
def new_kernel(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] + 1.0
    return out


@weft.kernel
def viewing_kernel(x):
    return x[1:]


NAMES = {
    "torch": torch, "weft": weft, "functools": functools, "operator": operator, "types": types,
    "CHOSEN": CHOSEN, "store": store, "store_value": store_value, "other_store": other_store,
    "read": read, "call": call, "call_once_more": call_once_more, "by_default": by_default,
    "apply": apply, "by_inner_function": by_inner_function, "viewed": viewed, "Model": Model,
    "inner_kernel": inner_kernel, "new_kernel": new_kernel, "viewing_kernel": viewing_kernel,
    "writer": Writer(), "model": Model(),
    "in_place": torch.nn.ReLU(inplace=True), "relu": torch.nn.ReLU(),
    "named": {"a": store, "b": read}, "pair": (store, read), "partly": functools.partial(store),
}  # fmt: skip
TEXT = """
def kernel(x, y):
    out = torch.empty_like(y)
    {host}
    for i in range(x.shape[0]):
        {loop}
        out[i] = y[i]
    return out
"""


def made(host, loop="pass"):
    return defined(
        TEXT.format(host=host.replace("\n", "\n    "), loop=loop.replace("\n", "\n        "))
    )


def defined(text):
    file = f"<text {len(linecache.cache)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope = NAMES | globals()
    exec(compile(text, file, "exec"), scope)
    return scope["kernel"]


def inputs():
    return [torch.linspace(-1.5, 3.0, 3), torch.tensor([4.0, 5.0, 6.0])]


IN_LOOPS = [
    ("g = store", "g(x, i)"),
    ("pass", "g = store\ng(x, i)"),
    ("pass", "named['a'](x, i)"),
    ("pass", "named['b'](x, i)"),
    ("g = {'a': store}", "g['a'](x, i)"),
    ("pass", "pair[0](x, i)"),
    ("g, h = store, read", "g(x, i)"),
    ("g, h = pair", "g(x, i)"),
    ("g, *_ = [store, read]", "g(x, i)"),
    ("pass", "(store if CHOSEN else other_store)(x, i)"),
    ("g = store if CHOSEN else other_store", "g(x, i)"),
    ("pass", "call(store, x, i)"),
    ("pass", "call(read, x, i)"),
    ("pass", "call_once_more(i=i, x=x, function=store)"),
    ("pass", "by_default(x, i)"),
    ("pass", "partly(x, i)"),
    ("g = functools.partial(store_value, 7.0)", "g(x, i)"),
    ("g = functools.partial(store, x)", "g(i)"),
    ("g = functools.partial(store_value, 7.0)\ng = functools.partial(g, x)", "g(i)"),
    ("g = functools.partial(store_value, x=x, i=0)", "g(7.0)"),
    ("g = writer.method", "g(x, i)"),
    ("pass", "g = writer.method\ng(x, i)"),
    ("x = x.clone()", "x[i] = 3.0"),
    ("z = x\nx = x * 2", "x[i] = 3.0"),
    ("if CHOSEN:\n    x = x.clone()\nelse:\n    x = x * 2", "x[i] += 3.0"),
    ("x, y = y, x", "y[i] = 3.0"),
]
IN_HOST = [
    "torch.add(y, 1, **{'out': x})", "kw = dict(out=x)\ntorch.add(y, 1, **kw)",
    "kw = {}\nkw['out'] = x\ntorch.add(y, 1, **kw)", "kw = dict(alpha=2)\ntorch.add(x, y, **kw)",
    "m = x.add_\nm(1)", "m, n = x.add_, x.mul_\nm(1)", "torch.Tensor.add_(x, 1)",
    "m = torch.Tensor.add_\nm(x, 1)", "getattr(x, 'add_')(1)", "torch._foreach_add_([x], 1.0)",
    "z = [x]\ntorch._foreach_mul_(z, 2.0)", "torch.ops.aten.add_.Tensor(x, y)",
    "torch.ops.aten.add.Tensor(x, y)", "m = torch.nn.init.zeros_\nm(x)",
    "torch.nn.functional.relu(x, True)", "torch.nn.functional.relu(x, inplace=True)",
    "torch.nn.functional.relu(x, inplace=False)", "torch.nn.functional.dropout(x, 0.5, False)",
    "x.__setitem__(0, 5.0)", "x.__iadd__(5.0)", "operator.setitem(x, 0, 5.0)",
    "operator.iadd(x, 5.0)", "operator.add(x, 5.0)", "by_inner_function(x)",
    "m = lambda t: t.add_(1)\nm(x)", "(lambda y: y.add_(1))(x)", "(lambda x: x.add_(1))(y)",
    "apply(torch.Tensor.zero_, x)", "apply(lambda t: t.zero_(), x)", "apply(by_inner_function, x)",
    "apply(viewed, x)", "apply(viewed, x).zero_()", "list(map(by_inner_function, [x]))",
    "[by_inner_function(t) for t in (x,)]", "z = [t.view(-1) for t in (x,)]\nz[0].add_(1)",
    "z = []\nz.append(x)\nz[0].add_(1)", "z = {}\nz['x'] = x\nz['x'].add_(1)",
    "z = types.SimpleNamespace()\nz.x = x\nz.x.add_(1)", "z = [torch.ones(3), x]\nz[0].shape",
    "inner_kernel(x)", "m = inner_kernel\nm(x)", "z = new_kernel(x)\nz[0] = 1.0",
    "z = viewing_kernel(x)\nz[0] = 1.0", "m = viewed\nz = m(x)\nz.add_(1)",
    "m = x.view\nz = m(-1)\nz.add_(1)", "m = torch.Tensor.view\nz = m(x, -1)\nz.add_(1)",
    "for m in weft.serial((by_inner_function, viewed)):\n    m(x)", "model(x)", "m = model\nm(x)",
    "in_place(x)", "relu(x)", "x.data = x + 1", "y = x\ny = y.clone()\ny.add_(1)",
    "x = x.clone()\nx += 1\nx.mul_(2)",
    "with torch.no_grad():\n    x = x.detach().clone()\n    x += 1",
    "try:\n    x = x.clone()\nfinally:\n    z = x.sum()",
    "z = sorted([x, y], key=lambda t: t.sum())",
    "z = x\nfor t in weft.serial(range(2)):\n    new = z.clone()\n    new[0] = 1.0\n    z = new",
]  # fmt: skip


@pytest.mark.parametrize(("host", "loop"), [*IN_LOOPS, *((h, "pass") for h in IN_HOST)])
def test_what_is_written_is_what_python_writes(host, loop):
    function, given, before = made(host, loop), inputs(), inputs()
    function(*given)
    changed = {n for n, a, b in zip("xy", given, before, strict=True) if not torch.equal(a, b)}
    assert weft.kernel(function).mutated == changed


def test_a_function_that_is_an_argument_is_known_to_the_operator():
    @weft.kernel
    def kernel(x, functions, of: weft.template()):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            functions[0](x, i)
            of(out, i)
        return out

    x = torch.ones(3)
    for function, written in ((store, True), (read, False)):
        operators = weft.kernel(kernel.function).operators
        operators((x, (function,), store), {})
        (made_,) = operators.made.values()
        assert made_.overload._schema.is_mutable == written
    assert x.tolist() == [7.0] * 3


STATE = {"seen": torch.zeros(3), "list": [], "module": torch.nn.Module()}


@pytest.mark.parametrize(
    "statement",
    ["STATE['seen'] = out", "STATE['list'].append(out)", "module.held = out", "held.append(out)"],
)
def test_what_the_host_part_leaves_around_it_is_refused_as_an_operator(statement):
    function = made(statement)
    function.__globals__.update(STATE=STATE, module=STATE["module"], held=STATE["list"])
    kernel = weft.kernel(function)
    kernel(*inputs())
    name = statement.partition(".")[0].partition("[")[0]
    with pytest.raises(weft.KernelValueError) as info:
        kernel.operators(tuple(inputs()), {})
    assert info.value.message == (
        f"`{name}` is written, and it is not a tensor argument of the kernel"
    )


def chosen_by_a_function():
    return store


@pytest.mark.parametrize(
    ("host", "loop"),
    [("exec('x.add_(1)')", "pass"), ("pass", "chosen()(x, i)")],
    ids=["host part", "device loop"],
)
def test_a_graph_is_not_made_where_a_write_is_not_seen(host, loop):
    function = made(host, loop)
    function.__globals__["chosen"] = chosen_by_a_function
    kernel = weft.kernel(function)
    assert not kernel.mutated
    with pytest.raises(weft.KernelValueError) as info:
        torch.fx.experimental.proxy_tensor.make_fx(kernel, tracing_mode="fake")(*inputs())
    assert info.value.message == "`x` is written, and the text of the kernel does not show it"


def test_a_graph_is_not_made_where_a_called_function_writes_to_what_it_captured():
    held = torch.zeros(3)

    def keep(x, i):
        held[i] = x[i]

    @weft.kernel
    def kernel(x):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            keep(x, i)
            out[i] = x[i]
        return out

    with pytest.raises(weft.KernelValueError) as info:
        torch.fx.experimental.proxy_tensor.make_fx(kernel, tracing_mode="fake")(torch.ones(3))
    assert info.value.message == "`held` is written, and it is not a tensor argument of the kernel"


def test_a_store_by_another_name_is_in_the_graph():
    torch._dynamo.reset()
    kernel = weft.kernel(made("g = store", "g(x, i)"))

    def program(x, y):
        kernel(x, y)
        return x + 1

    x, y = inputs()
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
    assert compiled(x, y).tolist() == [8.0] * 3
    assert x.tolist() == [7.0] * 3


def test_tensors_that_a_partial_function_holds():
    @weft.kernel
    def kernel(x, held):
        for i in range(x.shape[0]):
            held(x, i)

    x, values = torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])
    for kept in (values, values * 2):
        kernel(x, functools.partial(added, kept))
        assert x.tolist() == kept.tolist()
    kernel(x, functools.partial(added_by_name, values=values))
    assert x.tolist() == values.tolist()


def added(values, x, i):
    x[i] = values[i]


def added_by_name(x, i, *, values):
    x[i] = values[i]


def from_table(held, x, i):
    x[i] = held.table[i]


def from_other(held, x, i):
    x[i] = held.other[i]


def test_functions_that_reach_tensors_of_objects_of_other_classes():
    @weft.kernel
    def kernel(x, held, function):
        for i in range(x.shape[0]):
            function(held, x, i)

    x, values = torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])
    first, second = types.SimpleNamespace(table=values), types.SimpleNamespace(other=values * 2)
    for _ in range(2):
        kernel(x, first, from_table)
        assert x.tolist() == [1.0, 2.0, 3.0]
        kernel(x, second, from_other)
        assert x.tolist() == [2.0, 4.0, 6.0]
    with pytest.raises(weft.KernelTypeError, match="has no attribute `table`"):
        kernel(x, second, from_table)


def test_tensors_among_defaults_and_in_tuples():
    values = torch.tensor([1.0, 2.0, 3.0])
    pair = (values, values * 2)

    def of_default(x, i, held=values):
        x[i] = held[i]

    def of_pair(x, i):
        a, b = pair
        x[i] = a[i] + b[i]

    @weft.kernel
    def kernel(x, y):
        for i in range(x.shape[0]):
            of_default(x, i)
            of_pair(y, i)

    x, y = torch.zeros(3), torch.zeros(3)
    kernel(x, y)
    assert x.tolist() == [1.0, 2.0, 3.0]
    assert y.tolist() == [3.0, 6.0, 9.0]


def part_of(tensors):
    return tensors[1:]


def each_of(tensors):
    for tensor in tensors:
        own = tensor
        yield own


def each_from(tensors):
    yield from tensors


LOOPS = [
    ("p", "xs"), ("p", "list(xs)"), ("p", "reversed(xs)"), ("p", "sorted(xs, key=len)"),
    ("p", "xs[1:]"), ("p", "[xs[0]]"), ("p", "xs.copy()"), ("p", "copy.copy(xs)"),
    ("k, p", "enumerate(xs)"), ("p, q", "zip(xs, ys)"), ("q, p", "zip(ys, xs)"),
    ("k, (q, p)", "enumerate(zip(ys, xs), 1)"), ("k, p", "list(zip(range(9), xs))"),
    ("p", "part_of(xs)"), ("p", "each_of(xs)"),
    ("p", "each_from(xs)"), ("p", "map(lambda x: x, xs)"), ("p", "[x for x in xs]"),
    ("p", "{'a': xs[0]}.values()"), ("p", "itertools.islice(xs, 1)"),
    ("p", "[operator.getitem(xs, 0)]"), ("p", "[xs.__getitem__(0)]"),
]  # fmt: skip
LOOPS_OF_BOTH = [
    ("p", "xs + ys"),
    ("q, p", "[(y, x) for x, y in zip(xs, ys)]"),
    ("p", "itertools.chain(xs, ys)"),
    ("p, q", "zip(*(xs, ys))"),
]


@pytest.mark.parametrize("hint", ["serial", "static"])
@pytest.mark.parametrize(("target", "over"), LOOPS + LOOPS_OF_BOTH)
def test_what_a_loop_of_the_host_part_takes(hint, target, over):
    """Of ``zip``, each name is of one argument: a graph copies no gradients that an optimizer
    reads."""
    text = (
        f"def kernel(xs, ys):\n    for {target} in weft.{hint}({over}):\n"
        "        for i in range(p.shape[0]):\n            p[i] = 2.0 * p[i] + 1.0\n"
    )
    function = defined(text)
    kernel = weft.kernel(function)
    assert kernel.mutated == ({"xs"} if (target, over) in LOOPS else {"xs", "ys"})
    eager, compiled = ([[torch.ones(2), torch.ones(2)] for _ in range(2)] for _ in range(2))
    kernel(*eager)
    torch.compile(kernel, backend="aot_eager", fullgraph=True)(*compiled)
    torch.testing.assert_close(compiled, eager)
    assert any(t.tolist() == [3.0, 3.0] for t in eager[0])


def test_a_pair_that_zip_gives_is_of_both():
    function = defined(
        "def kernel(xs, ys):\n    for pair in weft.serial(zip(xs, ys)):\n"
        "        p, q = pair\n        for i in range(p.shape[0]):\n            p[i] += q[i]\n"
    )
    assert weft.kernel(function).mutated == {"xs", "ys"}

"""Whatever is passed to whatever the language knows: it is lowered, or refused by an error of
weft's own that has a line."""

from __future__ import annotations

import ast
import math
import operator

import pytest
import torch

import weft
from tests.fuzz.check import function
from weft.errors import InternalError, KernelTypeError, KernelValueError, WeftError
from weft.frontend import inline
from weft.frontend.calls import HANDLERS
from weft.frontend.context import Again, Lowering
from weft.frontend.draws import Stream
from weft.frontend.lower import argument
from weft.frontend.scalars import Scalars
from weft.frontend.scope import Frame
from weft.frontend.signatures import FUNCTIONS
from weft.frontend.specs import ScalarSpec, Spec, TensorSpec
from weft.frontend.split import split
from weft.ir import types as ir
from weft.ir.builder import Builder
from weft.ir.core import Function
from weft.lang import names
from weft.source import read_function

KINDS = (
    "x[0, 1]", "y[0]", "b[0]", "s", "2", "0.5", "x", "(1, 2)", "()", "'text'", "None", "weft.f32",
    "vec", "mat", "10**400", "x[0]", "range(3)", "print", "-(2**65)",
)  # fmt: skip
KEYWORDS = ("input", "other", "n", "dtype", "out", "min", "start", "key", "alpha", "strict")


class Object:
    value = 1.0


def body(x, y, b, s, n):
    for i in range(n):
        x[i, 0] = y[i] + s + b[i]


SPECS: dict[str, Spec] = {
    "x": TensorSpec("f32", 2), "y": TensorSpec("i32", 1), "b": TensorSpec("bool", 1),
    "s": ScalarSpec("int"), "n": ScalarSpec("int"),
}  # fmt: skip


class Attempts:
    """Lowers expressions one by one, within one loop."""

    def __init__(self) -> None:
        source = read_function(body, "body")
        region = split(source, body).regions[0]
        span = source.span(region.node)
        specs = {a.name: SPECS[a.name] for a in region.args}
        types = {"x": ir.MemRefType(ir.f32, 2, "contiguous"), "s": ir.index, "n": ir.index,
                 "y": ir.MemRefType(ir.i32, 1, "contiguous"),
                 "b": ir.MemRefType(ir.i1, 1, "contiguous")}  # fmt: skip
        function = Function("body", [types[n] for n in specs], list(specs), {}, span)
        self.lowering = Lowering(region, specs, source, {}, False)
        self.lowering.builder = Builder(function.body, span)
        self.lowering.scalars = Scalars(self.lowering.builder, ir.f32)
        self.lowering.frame = Frame(source, ())
        values = iter(function.args)
        for name, spec in specs.items():
            operand = argument(self.lowering, name, spec, values)
            self.lowering.frame.arguments[name] = operand
        self.lowering.operands = dict(self.lowering.frame.arguments)
        key = self.lowering.builder.constant(0, ir.i64)
        self.lowering.stream = Stream(key, key)
        self.wrong: list[str] = []

    def attempt(self, text: str, again: int = 3) -> bool:
        """Whether ``text`` is lowered; what is neither that nor refused well goes to ``wrong``."""
        try:
            self.lowering.expression(ast.parse(text, mode="eval").body)
        except WeftError as error:
            if isinstance(error, InternalError) or getattr(error, "span", None) is None:
                self.wrong.append(f"{text}: {error!r}")
            return False
        except Again:  # the next round of lowering knows more
            if again:
                return self.attempt(text, again - 1)
            self.wrong.append(f"{text}: one round after another")
            return False
        except Exception as error:
            self.wrong.append(f"{text}: {error!r}")
            return False
        return True


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Attempts:
    matrix = weft.Matrix([[1.0, 2.0], [3.0, 4.0]])
    known = {"weft": weft, "math": math, "vec": weft.Vector([1.0, 2.0]), "mat": matrix,
             "object_": Object()}  # fmt: skip
    for name, value in known.items():
        monkeypatch.setitem(globals(), name, value)
    return Attempts()


def test_every_function_has_a_row() -> None:
    assert set(HANDLERS) - set(FUNCTIONS) == set()


@pytest.mark.slow
def test_arguments_of_any_kind_and_number(attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    one_of_each = {name: known for known, name in names.BUILTINS.items()}
    for k, known in enumerate(one_of_each.values()):
        monkeypatch.setitem(globals(), f"f{k}", known)
        attempts.attempt(f"f{k}()")
        for count in range(1, 6):
            for kind in KINDS[:: 1 if count < 3 else 4]:
                attempts.attempt(f"f{k}({', '.join([kind] * count)})")
                attempts.attempt(f"f{k}(x[0, 0], {', '.join([kind] * (count - 1))})")
        for keyword in KEYWORDS:
            attempts.attempt(f"f{k}(x[0, 0], {keyword}=x[0, 1])")
        attempts.attempt(f"f{k}(**x)")
        attempts.attempt(f"f{k}(*x)")
    assert attempts.wrong == []


def test_operators_on_any_kind(attempts) -> None:
    symbols = ("+", "/", "//", "**", "<<", "&", "@", "==", "<", "in", "is", "and")
    for a in KINDS:
        for text in ("-({})", "~({})", "not ({})", "({})[1:2]", "({})[::0]", "({})['a':]",
                     "({})[0, 1, 2]", "({})[s]", "({})[()]", "({})()", "({}).undefined",
                     "({}).shape", "({}).norm(1, 2)", "({}).size(x)", "({}).to()", "({}).x",
                     "({}).sum(1)", "({}).dot()", "print({}, sep=1)", "(q := {})"):  # fmt: skip
            attempts.attempt(text.format(a))
        for b in KINDS:
            for symbol in symbols:
                attempts.attempt(f"({a}) {symbol} ({b})")
            attempts.attempt(f"({a})[{b}]")
            attempts.attempt(f"({a}) if ({b}) else 1")
    assert attempts.wrong == []


@pytest.mark.filterwarnings("ignore:This overload of", "ignore:__array_wrap__ must accept")
@pytest.mark.filterwarnings("ignore:Passing more than 2 positional arguments to np.maximum")
def test_no_call_is_lowered_that_python_refuses(attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the number of arguments: what is too much is never left out in silence."""
    accepted = []
    # torch's take fewer than math's and weft's; what is refused for its kind, elsewhere
    wider = ("log", "minimum", "maximum", "divmod", "ndrange")
    for known, name in names.BUILTINS.items():
        if known in (print, weft.loop_config):  # what they take is their own matter
            continue
        monkeypatch.setitem(globals(), "f", known)
        for count in (2, 3, 4, 5):
            try:
                known(*(torch.tensor(0.5 + k) for k in range(count)))
            except TypeError:
                text = f"f({', '.join(['x[0, 1]'] * count)})"
                if attempts.attempt(text) and name not in wider:
                    accepted.append(f"{name}: {text}")
            except (ValueError, RuntimeError, AttributeError, IndexError):
                continue
    assert accepted == [], accepted


def refusal(error: type[weft.CompileError], expression: str) -> str:
    """The message and the help of what ``x[i] = expression`` raises."""
    scope: dict = {}
    text = f"def f(x, n):\n    for i in range(n):\n        x[i] = {expression}\n"
    import linecache

    file = f"<{expression}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    exec(compile("import math, torch, weft\n", file, "exec"), scope)
    exec(compile(text, file, "exec"), scope)
    with pytest.raises(error) as info:
        weft.kernel(scope["f"])(torch.ones(4), 4)
    place, underline, carets, *rest = str(info.value).split("\n")
    assert underline == f"    x[i] = {expression}"
    assert carets.strip("^ ") == ""
    (help,) = rest
    return f"{place.removeprefix(f'{file}:3: in kernel `f`: ')} | {help.removeprefix('help: ')}"


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("math.exp()", "`math.exp` takes 1 argument, and 0 are given | write math.exp(x)"),
        ("torch.atan2(x[i])", "`torch.atan2` takes 2 arguments, and 1 is given | "
         "write torch.atan2(y, x)"),
        ("torch.log()", "`torch.log` takes 1 or 2 arguments, and 0 are given | "
         "write torch.log(x, base)"),
        ("torch.clamp()", "`torch.clamp` takes 1 to 3 arguments, and 0 are given | "
         "write torch.clamp(x, low, high)"),
        ("torch.clamp(x[i])", "`torch.clamp` needs a bound | "
         "write clamp(x, low, high), or clamp(x, min=low)"),
        ("torch.add(x[i], 1, alpha=2)", "`torch.add` takes no argument `alpha` in a device loop | "
         "write torch.add(x, y)"),
        ("torch.add(x[i], 1, other=2)", "`torch.add` is given `other` twice | "
         "write torch.add(x, y)"),
        ("round()", "`round` takes 1 or 2 arguments, and 0 are given | write round(x, ndigits)"),
        ("round(x[i], 1)", "`round` with digits cannot be compiled | "
         "write weft.round(x * 10) / 10"),
        ("round(x[i], ndigits=n)", "`round` with digits cannot be compiled | "
         "write weft.round(x * 10 ** digits) / 10 ** digits"),
        ("len()", "`len` takes 1 argument, and 0 are given | write len(x)"),
        ("max()", "`max` takes at least 1 argument, and 0 are given | write max(a, ...)"),
        ("max(1, key=2)", "`max` of the number 1 | give it a list, a row or a tuple"),
        ("max(1, by=2)", "`max` takes no argument `by` in a device loop | write max(a, ...)"),
        ("weft.f32(x[i], 1)", "`weft.f32` takes 1 argument, and 2 are given | write weft.f32(x)"),
        ("weft.math.vec2(1.0, 2.0).norm(1, 2)", "`.norm` takes 0 or 1 arguments, and 2 are given | "
         "write .norm(eps)"),
        ("~0.5", "`~` needs an integer, and this is a float | convert with int(...) first"),
    ],
)  # fmt: skip
def test_what_a_function_takes(expression: str, text: str) -> None:
    assert refusal(KernelTypeError, expression) == text


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("int(math.inf)", "int(inf): cannot convert float infinity to integer | "
         "write the number that is meant, or math.inf"),
        ("float(10 ** 400)", "float(an integer of 1329 bits): int too large to convert to float | "
         "write the number that is meant, or math.inf"),
        ("weft.i32(math.nan)", "nan as i32 | write the number that is meant"),
        ("10 ** 400", "an integer of 1329 bits is too large for a float | "
         "write math.inf, or a smaller number"),
        ("10 ** 10 ** 10", "a constant of more than 65536 bits | "
         "write a float, as 1e300, or compute it in the host part"),
        ("1 << 10 ** 9", "a constant of more than 65536 bits | "
         "write a float, as 1e300, or compute it in the host part"),
        ("i + 0xFFFFFFFFFFFFFFFF", "18446744073709551615 does not fit in 64 bits | "
         "write weft.u64(18446744073709551615); in i64, the same bits are -1"),
        ("weft.zeros(2_000_000)[0]", "a local array or vector of 2000000 elements: each iteration "
         "has one of its own, of at most 1048576 | make a tensor in the host part, with one more "
         "dimension for the iteration"),
        ("weft.zeros((2048, 1024))[0, 0]", "a local array or vector of 2097152 elements: each "
         "iteration has one of its own, of at most 1048576 | make a tensor in the host part, with "
         "one more dimension for the iteration"),
        ("weft.zeros(-1)[0]", "a local array or vector of -1 elements | sizes are 1 or more"),
    ],
)  # fmt: skip
def test_constants_without_a_value(expression: str, text: str) -> None:
    assert refusal(KernelValueError, expression) == text


def test_the_step_of_a_range_that_is_a_keyword_is_refused() -> None:
    assert refusal(KernelTypeError, "sum(range(3), start=x)") == (
        "`sum` needs a tuple or a vector, and this is a range | write the loop over the elements"
    )


@weft.kernel
def called(x, out):
    for i in x:
        out[0, i] = torch.clamp(x[i], min=-1.0)
        out[1, i] = torch.clamp(x[i], max=1)
        out[2, i] = weft.math.clamp(x[i], 0.0)
        out[3, i] = torch.clamp(x[i], None, 0.5)
        out[4, i] = torch.log(input=torch.exp(input=x[i]))
        out[5, i] = torch.where(input=x[i], other=0.0, condition=x[i] > 0)
        out[6, i] = sum((x[i], 1.0), start=2.0)
        out[7, i] = operator.add(x[i], 1)
        for k, v in enumerate((x[i], 2.0), start=3):
            out[8, i] += k * v
        for k, v in zip((1, 2), (x[i], 3.0), strict=True):
            out[9, i] += k * v
        out[10, i] = weft.Vector([x[i], 3.0]).norm(7.0)
        out[11, i] = weft.Vector([x[i], 3.0], dtype=weft.f64).sum()
        out[12, i] = torch.pow(x[i], exponent=2)


def test_arguments_by_keyword_mean_what_they_mean_in_python() -> None:
    x = torch.tensor([-2.0, 0.25, 3.0], dtype=torch.float64)
    out, expected = torch.zeros(13, 3, dtype=torch.float64), torch.zeros(13, 3, dtype=torch.float64)
    called(x, out)
    called.interpret(x, expected)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(out[0], x.clamp(min=-1.0))
    torch.testing.assert_close(out[8], 3 * x + 8.0)
    torch.testing.assert_close(out[10], (x * x + 16.0).sqrt())


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("math.ulp(x[i])", "`math.ulp` cannot be called in a device loop: weft has no such "
         "function yet | call it in the host part and pass the result; docs/functions.md has what "
         "there is"),
        ("torch.special.bessel_j0(x[i])", "`torch.special.bessel_j0` cannot be called in a device "
         "loop: it works on whole tensors, or weft has none of its kind for elements | call it in "
         "the host part and pass the result; docs/functions.md has what there is"),
        ("'abc'", "this must be a scalar, and is a string | pass a number for it; strings can be "
         "compared with each other, and printed"),
        ("None", "this must be a scalar, and is None | test `is None`, or let the function return "
         "a number on every path"),
        ("x[i] == 'a'", "a number is compared with a string | `is None` and strings are for "
         "compile-time values, as weft.template() makes"),
        ("weft.Vector([1, 2])", "this must be a scalar, and is a vector (2 x int) | name an "
         "element, v[0] or v.x, or what makes one number of it, as v.sum() or v.norm()"),
        ("x.undefined", "`x.undefined`: 'Tensor' object has no attribute 'undefined' | "
         "check the spelling"),
        ("weft.rand()", "weft has no function of that name: `rand` | write weft.random(dtype), "
         "uniform in [0, 1); docs/port-taichi.md says what there is"),
        ("1 + weft.atomic_max(n, 1)", "`atomic_max` works on an element of a tensor | write "
         "weft.atomic_max(x[i], value); of a variable, n = max(n, value)"),
        ("n.clamp(0)", "a scalar (int) has no method `clamp` in a device loop | "
         "write torch.clamp(...) of it"),
    ],
)  # fmt: skip
def test_the_true_cause_and_what_to_write(expression: str, text: str) -> None:
    assert refusal(KernelTypeError, expression) == text


@weft.kernel
def tuples(x):
    for i in x:
        a, *rest = (1, 2, i)
        *first, b = (x[i], 3.0, 4.0)
        if (i, 1) == (2, 1) and (1, 2, i) != (1, 2):
            x[i] = a + rest[1] + first[0] + b


def test_tuples_are_unpacked_by_a_star_and_compared() -> None:
    x = torch.zeros(4)
    tuples(x)
    assert x.tolist() == [0.0, 0.0, 7.0, 0.0]


def doubling(levels: int) -> weft.Kernel:
    """A kernel of functions that each call the one below twice."""
    texts = ["def h0(v):\n    return v + 1.0\n"]
    texts += [f"def h{k}(v):\n    return h{k - 1}(v) * h{k - 1}(v)\n" for k in range(1, levels)]
    loop = f"def kernel(x):\n    for i in x:\n        x[i] = h{levels - 1}(x[i])\n"
    return weft.kernel(function("\n\n".join([*texts, loop])))


def test_calls_that_double_with_every_level_are_refused(monkeypatch) -> None:
    assert inline.MOST_CALLS == 10_000
    monkeypatch.setattr(inline, "MOST_CALLS", 100)  # the message in a hundredth of the time
    help = "functions that each call the one below twice double them with every level"
    with pytest.raises(weft.KernelValueError, match="more than 100 calls") as error:
        doubling(8)(torch.ones(2))
    assert error.value.help.startswith(help)


def test_each_function_is_looked_at_once_for_what_it_writes() -> None:
    assert doubling(60).mutated == {"x"}  # of 2**59 calls


def test_sums_of_many_terms_and_functions_of_many_levels(tmp_path) -> None:
    lines = ["def f0(v): return v + 1.0"]
    lines += [f"def f{k}(v): return f{k - 1}(v) + 1.0" for k in range(1, 100)]
    total = "+".join(["x[i]"] * 800)
    lines += ["def f(x):", "    for i in x:", f"        x[i] = f99({total})"]
    file = tmp_path / "long.py"
    file.write_text("\n".join(lines) + "\n")
    scope: dict = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    x = torch.ones(2)
    weft.kernel(scope["f"])(x)
    assert x.tolist() == [900.0, 900.0]


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested")
@pytest.mark.parametrize("kind", ["sparse_csr", "nested"])
def test_tensors_without_strides_are_refused_by_name(kind: str) -> None:
    @weft.kernel
    def g(values):
        for i in values:
            values[i] = 1.0

    g(torch.zeros(3))  # a later call asks for strides first
    parts = [torch.ones(2), torch.ones(3)]
    if kind == "sparse_csr":
        tensor, shown = torch.eye(3).to_sparse_csr(), "a sparse_csr tensor"
    else:
        tensor, shown = torch.nested.nested_tensor(parts, layout=torch.strided), "a nested tensor"
    with pytest.raises(KernelTypeError, match=f"in kernel `g`: `values` is {shown}"):
        g(tensor)


@pytest.mark.parametrize("call", ["sorted((x[0], x[1]), 2)", "sorted([x[0], x[1]], None, True)"])
def test_sorted_takes_its_key_by_keyword(call: str) -> None:
    kernel = weft.kernel(function(f"def kernel(x):\n    for i in range(2):\n        y = {call}"
                                  "\n        x[i] = y[0]\n"))  # fmt: skip
    with pytest.raises(KernelTypeError, match=r"`sorted` takes 1 argument, and . are given") as e:
        kernel(torch.ones(2))
    assert "help: write sorted(x, key=..., reverse=...)" in str(e.value)


def _overwritten(x, i, v):
    x[i] = v
    return 1.0


@weft.kernel
def updated_late(x, out):
    for i in range(x.shape[0]):
        v = x[i] + 0.0
        x[i] += _overwritten(x, i, 10.0)
        x[i] *= abs(2.0) + _overwritten(x, i, 3.0)
        v += abs(1.0)
        out[i] = v


def test_an_element_is_updated_as_the_value_leaves_it() -> None:
    for call in (updated_late, updated_late.interpret, updated_late.function):
        x, out = torch.arange(3.0), torch.zeros(3)
        call(x, out)
        assert x.tolist() == [9.0, 9.0, 9.0]
        assert out.tolist() == [1.0, 2.0, 3.0]

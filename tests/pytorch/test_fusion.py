"""Loops that Inductor fuses with PyTorch's own."""

import importlib.util
import itertools
import logging
import math
from collections import deque

import pytest
import torch

import weft
from weft.pytorch import fusible

Tensor = torch.Tensor
pytestmark = pytest.mark.filterwarnings("ignore")  # torch.compile's own
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
on_devices = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, NEEDS_GPU])]
)

FACTOR = 3.0
LACKS_DIVISION = "arith.divf" in fusible.hooks().lacking
ROUNDS = fusible.hooks().rounds


@weft.kernel
def brick(tile: Tensor, height: int, width: int, offset: int) -> Tensor:
    tile_height, tile_width = tile.shape
    image = torch.empty(height, width, dtype=tile.dtype, device=tile.device)
    for row, col in weft.ndrange(height, width):
        y = height + 4 - row
        course = y // tile_height
        along = col - 7 - course * offset
        image[row, col] = tile[
            tile_height - 1 - (y - course * tile_height), along - along // tile_width * tile_width
        ]
    return image


@weft.kernel
def softmax(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        m = -math.inf
        for j in range(x.shape[1]):
            m = max(m, x[i, j])
        t = 0.0
        for j in range(x.shape[1]):
            t += math.exp(x[i, j] - m)
        for j in range(x.shape[1]):
            out[i, j] = math.exp(x[i, j] - m) / t
    return out


@weft.kernel
def log_softmax(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        m = -math.inf
        for j in range(x.shape[1]):
            m = max(m, x[i, j])
        t = 0.0
        for j in range(x.shape[1]):
            t += math.exp(x[i, j] - m)
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] - m - math.log(t)
    return out


@weft.kernel
def masked_sum(x: Tensor, index: Tensor) -> Tensor:
    out = torch.empty(x.shape[0], device=x.device)
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            if x[i, j] > 0:
                s += x[i, j] if x[i, index[j]] > 0 else 0.25
            elif j > 3:
                s += 1.5
        out[i] = s
    return out


@weft.kernel
def norm(x: Tensor, w: Tensor, eps: float) -> Tensor:
    mean = x.mean(1)
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        v = 0.0
        for j in range(x.shape[1]):
            v += (x[i, j] - mean[i]) * (x[i, j] - mean[i])
        r = 1 / math.sqrt(v / x.shape[1] + eps)
        for j in range(x.shape[1]):
            out[i, j] = (x[i, j] - mean[i]) * r * w[j]
    return out


@weft.kernel
def edges(x: Tensor, f: float) -> Tensor:
    n = x.shape[0]
    out = torch.empty_like(x)
    for i in range(n):
        before = x[i - 1] if i > 0 else x[i] * f
        if before > 0:
            out[i] = before - x[-1]
        else:
            out[i] = x[n - 1 - i]
    return out


@weft.kernel
def rows(w: Tensor, index: Tensor) -> Tensor:
    out = torch.empty(index.shape[0], w.shape[1], device=w.device)
    for i, j in weft.ndrange(index.shape[0], w.shape[1]):
        out[i, j] = w[index[i], j]
    return out


@weft.kernel
def statistics(x: Tensor, mask: Tensor):
    small = torch.empty(x.shape[1], dtype=torch.bool, device=x.device)
    s = 0.0
    for j in range(x.shape[1]):
        least = math.inf
        for i in range(x.shape[0]):
            least = min(least, x[i, j])
        small[j] = least < -1
        s += least if mask[j] else j
    return small, s


@weft.kernel
def scaled(x: Tensor, f: float) -> Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * f
    return out


@weft.kernel
def product(a: Tensor, b: Tensor) -> Tensor:
    out = torch.empty(a.shape[0], b.shape[1])
    for i, j in weft.ndrange(a.shape[0], b.shape[1]):
        s = 0.0
        for k in range(a.shape[1]):
            s += a[i, k] * b[k, j]
        out[i, j] = s
    return out


@weft.kernel
def reads_a_number(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = FACTOR * x[i]
    return out


@weft.kernel
def reads_an_item(x: Tensor, settings) -> Tensor:
    out = torch.empty_like(x)
    for i in out:
        out[i] = settings["factors"][0] * x[i]
    return out


@pytest.fixture
def compiled():
    """``compiled(f, *args)``: the result under Inductor, and the code that it made."""
    from torch._inductor import config
    from torch._inductor.utils import run_and_get_code

    def call(f, *args, **options):
        torch._dynamo.reset()
        with config.patch(fx_graph_cache=False):  # but that of compiled C++
            out, codes = run_and_get_code(torch.compile(f, fullgraph=True, **options), *args)
        return out, "\n".join(codes)

    return call


_numbers = itertools.count()


def module_of(text, folder):
    file = folder / f"fused{next(_numbers)}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def calls(code):
    return sum("torch.ops.weft." in line.partition("#")[0] and ".default(" in line
               for line in code.splitlines())  # fmt: skip


def kernels(code):
    return code.count("async_compile.cpp_pybinding") + code.count("async_compile.triton(")


@on_devices
def test_a_loop_becomes_one_kernel_with_its_neighbours(compiled, device):
    tile = torch.randn(8, 16, device=device)
    out, code = compiled(lambda tile: torch.relu(brick(tile, 37, 41, 3) * 2), tile)
    assert (kernels(code), calls(code)) == (1, 0)
    assert torch.equal(out, torch.relu(brick(tile, 37, 41, 3) * 2))


@on_devices
@pytest.mark.slow
def test_rows_gathers_and_conditions_are_fused(compiled, device):
    def several(x, w, index, mask, order):
        small, s = statistics(x + 1, mask)
        return (
            softmax(x * 2) + 1, torch.relu(norm(x, w, 1e-5)), rows(w[:, None], index) * 2,
            edges(w.sin(), 0.5) * 2, ~small, s * 2, log_softmax(x.cos()) * 2,
            masked_sum(x, order) * 2,
        )  # fmt: skip

    args = torch.randn(9, 33), torch.randn(33), torch.randint(0, 33, (5,)), torch.rand(33) > 0.5
    args = [arg.to(device) for arg in (*args, torch.randperm(33))]
    out, code = compiled(several, *args)
    assert calls(code) == 2 * (device == "cuda" and LACKS_DIVISION)
    torch.testing.assert_close(out, several(*args))


@pytest.mark.slow
def test_one_graph_serves_many_sizes(compiled):
    def f(x):
        return softmax(x * 2) + brick(x, x.shape[0], x.shape[1], 3)

    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("inductor")
    call = torch.compile(f, fullgraph=True, dynamic=True, backend=counter)
    for shape in ((5, 7), (8, 9), (4, 30)):
        x = torch.randn(shape)
        torch.testing.assert_close(call(x), f(x))
    assert counter.frame_count == 1


@on_devices
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_rounded_as_the_loop_rounds_them(compiled, dtype, device):
    x = torch.randn(500, device=device).to(dtype)
    out, code = compiled(lambda x: scaled(x, 2.1) * 3, x)
    # Inductor before torch 2.13 has C++ that does not round what it fuses: the loop stays a call.
    assert (kernels(code), calls(code)) == (1, device == "cpu" and not ROUNDS)
    assert torch.equal(out, scaled(x, 2.1) * 3)
    assert not torch.equal(out, (x.float() * 2.1 * 3).to(dtype))


# Of a and b, elements of two tensors: what has the same bits by Inductor.
EXACT = {
    "add": "a + b", "sub": "a - b", "mul": "a * b", "div": "a / b", "constant": "a / 3.0",
    "fmod": "math.fmod(a, b)", "maximum": "torch.maximum(a, b)", "neg": "-a", "abs": "abs(a)",
    "minimum": "torch.minimum(a, b)", "fmax": "torch.fmax(a, b)", "fmin": "torch.fmin(a, b)",
    "max": "max(a, b)", "min": "min(a, b)", "clamp": "min(max(a, -1.0), 1.0)",
    "floor": "weft.floor(a)", "ceil": "weft.ceil(a)", "round": "weft.round(a)",
    "trunc": "torch.trunc(a)", "sqrt": "math.sqrt(a)", "copysign": "math.copysign(a, b)",
    "lt": "1.0 if a < b else 2.0", "ne": "1.0 if a != b else 2.0", "eq": "float(a == b)",
    "not": "1.0 if not a >= b else 2.0", "and": "float(a < 0 and b < 0)",
    "or": "float(a < 0 or b < 0)", "isnan": "float(math.isnan(a))", "index": "a * i",
    "quotient": "a + i // 3",
}  # fmt: skip
# The last bit may differ.
NEARLY = ("exp", "log", "sin", "tanh", "rsqrt")
# Of subnormal numbers, Triton may give those of zeros, as for these functions of PyTorch's own.
OWN = ("floor", "ceil", *NEARLY)
TEXT = """
@weft.kernel
def {name}(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        a = x[i]
        b = y[i]
        out[i] = {value}
    return out
"""


@on_devices
@pytest.mark.slow
def test_operations_give_what_the_loops_do(compiled, tmp_path, device):
    values = EXACT | {name: f"weft.math.{name}(a)" for name in NEARLY}
    texts = [TEXT.format(name=f"k_{name}", value=value) for name, value in values.items()]
    module = module_of("import math\nimport torch\nimport weft\n" + "".join(texts), tmp_path)
    if device == "cuda" and LACKS_DIVISION:
        values = {name: value for name, value in values.items() if "/ " not in value}
    made = [getattr(module, f"k_{name}") for name in values]
    special = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 0.5, 2.5, 1e-3, 1e10, -7.25,
               3e38, -1e30, 1e-10, 1e-38, 1e-40, -1e-45]  # fmt: skip
    few = torch.tensor(special)
    x = torch.cat([few.repeat_interleave(len(few)), 3 * torch.randn(61)]).to(device)
    y = torch.cat([few.repeat(len(few)), 3 * torch.randn(61)]).to(device)
    out, code = compiled(lambda x, y: [kernel(x, y) for kernel in made], x, y)
    assert calls(code) == 0
    of_torch, _ = compiled(lambda x: [getattr(torch, name)(x) for name in OWN], x)
    own = dict(zip(OWN, of_torch, strict=True)) if device == "cuda" else {}
    subnormal = (x != 0) & (x.abs() < torch.finfo(x.dtype).tiny)
    for name, kernel, found in zip(values, made, out, strict=True):
        expected = kernel(x, y)
        if name in own:
            expected = torch.where(subnormal, own[name], expected)
        number = ~expected.isnan()
        assert torch.equal(~found.isnan(), number), name
        if name in ("maximum", "minimum"):  # of two zeros either, as torch's own
            found, expected = found + 0.0, expected + 0.0
        bits = (found.view(torch.int32).long() - expected.view(torch.int32)).abs()[number]
        assert bits.max() <= (name in NEARLY) * (1 if device == "cpu" else 4), name


REMAINDERS = {"mod": "a % b", "quotient": "a // b", "both": "sum(divmod(a, b))",
              "fmod": "torch.fmod(a, b)", "remainder": "torch.remainder(a, b)"}  # fmt: skip


@on_devices
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_remainders_are_exact_however_large_the_quotient(compiled, tmp_path, dtype, device):
    texts = [TEXT.format(name=f"k_{name}", value=value) for name, value in REMAINDERS.items()]
    module = module_of("import torch\nimport weft\n" + "".join(texts), tmp_path)
    made = [getattr(module, f"k_{name}") for name in REMAINDERS]
    info = torch.finfo(dtype)
    least = info.tiny * info.eps
    few = [0.0, 1.0, 7.0, 1e-10, 1e30, 1e-3, info.max, info.tiny, least, 3 * least, math.inf]
    special = torch.tensor([*few, *(-v for v in few), math.nan], dtype=dtype, device=device)
    x, y = special.repeat_interleave(len(special)), special.repeat(len(special))
    out, code = compiled(lambda x, y: [kernel(x, y) * 1 for kernel in made], x, y)
    divides = sum("//" in text or "divmod" in text for text in REMAINDERS.values())
    stay = len(made) if device == "cpu" and dtype is torch.float64 else 0
    if device == "cpu" and dtype is torch.bfloat16 and not ROUNDS:
        stay = len(made)
    if device == "cuda" and LACKS_DIVISION:
        stay = divides
    assert calls(code) == stay
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    for name, kernel, found in zip(REMAINDERS, made, out, strict=True):
        expected = kernel(x, y)
        same = (found.view(whole) == expected.view(whole)) | (found.isnan() & expected.isnan())
        assert same.all(), name


def test_a_subscript_out_of_range_is_an_error_and_no_number(compiled):
    with pytest.raises(RuntimeError, match="index out of bounds"):
        compiled(lambda w, index: rows(w, index) * 2, torch.randn(9, 5), torch.tensor([1, 10**6]))


def test_numbers_that_loops_read_are_looked_up_at_each_call(compiled, monkeypatch):
    call = torch.compile(reads_a_number, fullgraph=True)
    x = torch.randn(5)
    for factor in (3.0, 4.0):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        assert torch.equal(call(x), factor * x)


def test_an_item_that_changes_is_looked_up_at_each_call(compiled):
    """A graph leaves such a float open: it has no number that could be compiled in."""
    call = torch.compile(reads_an_item, fullgraph=True)
    x = torch.randn(5, requires_grad=True)
    for factor in (3.0, 4.0, 5.0):
        out = call(x, {"factors": [factor]})
        assert torch.equal(out, factor * x)
        assert torch.equal(*torch.autograd.grad(out.sum(), x), torch.full((5,), factor))


def says(kernel, *args):
    return kernel.inspect(*args)["inductor"]


def test_inspect_says_what_a_loop_becomes():
    x = torch.randn(4, 7)
    assert says(brick, x, 3, 5, 1) == "Pointwise image over [3, 5]"
    assert says(softmax, x) == (
        "Reduction over [7] for [4]\nReduction over [7] for [4]\nPointwise out over [4, 7]"
    )
    assert says(statistics, x, torch.rand(7) > 0) == (
        "Reduction over [4] for [7]\nReduction over [7] for []\nPointwise small over [7]\n"
        "Pointwise s over []"
    )


def loop(text):
    """A kernel of ``out`` like ``x``, with the lines ``text`` in its loop over ``i``."""
    lines = "".join(f"        {line}\n" for line in text.splitlines())
    return (
        "import math\nimport torch\nimport weft\n@weft.kernel\n"
        "def kernel(x: torch.Tensor) -> torch.Tensor:\n    out = torch.empty_like(x)\n"
        f"    n = x.shape[0]\n    for i in range(n):\n{lines}    return out\n"
    )


WRAPS = "integers that were loaded wrap, and C++ may assume that they do not"
OPAQUE = {
    "out[i] = x[i] + 1": (torch.int32, WRAPS),
    "out[i] = x[i] // 3": (torch.int32, "the quotient of integers by zero is 0 here, and anything "
                           "there"),
    "out[i] = x[i] << 1": (torch.int32, "a shift by the width or more shifts everything out here"),
    "out[i] = float(int(x[i]))": (torch.float32, "a float out of range saturates as an integer "
                                  "here"),
    "out[i] = weft.math.cbrt(x[i])": (torch.float32, "Inductor has no cube root"),
    "out[i] = math.erf(x[i])": (torch.float32, "on a CPU Inductor's erf is less accurate"),
    "v = x[i]\nwhile v > 1:\n    v = v / 2\nout[i] = v": (
        torch.float32, "the iterations of a loop depend on each other"),
    "v = 0.0\nfor j in range(n):\n    v = v * x[j] + 1\nout[i] = v": (
        torch.float32, "an iteration of a loop needs what another one has computed"),
    "v = 0.0\nfor j in range(n):\n    if x[j] < 0:\n        break\n    v += x[j]\nout[i] = v": (
        torch.float32, "the iterations of a loop depend on each other"),
    "v = 0.0\nfor j in range(i):\n    v += x[j]\nout[i] = v": (
        torch.float32, "the bounds of a loop depend on another one's index"),
    "v = 0.0\nfor j in range(n):\n    v += x[j]\nout[i] = v * x[i]": (
        torch.float32, "iterations share the elements that they reduce, which weft's own loops "
        "keep in registers"),
    "if x[i] > 0:\n    out[i] = x[i]": (torch.float32, "it stores under a condition"),
    "if i > 2:\n    out[i - 3] = x[i]": (torch.float32, "it stores under a condition"),
    "out[i // 2 * 2] += x[i]": (torch.float32, "iterations accumulate in one element"),
    "out[i] += x[i]": (torch.float32, "it reads `out`, which it writes to"),
    "assert x[i] > -9\nout[i] = x[i]": (torch.float32, "it checks values"),
}  # fmt: skip


@pytest.mark.parametrize("text", OPAQUE)
def test_inspect_says_why_a_loop_stays_a_call(text, tmp_path):
    dtype, reason = OPAQUE[text]
    kernel = module_of(loop(text), tmp_path).kernel
    assert says(kernel, torch.ones(8, dtype=dtype)) == f"a call: {reason}"


@pytest.mark.slow
def test_options_decide():
    a = torch.randn(4, 4)
    shared = ("a call: iterations share the elements that they reduce, which weft's own loops "
              "keep in registers")  # fmt: skip
    assert says(product, a, a) == shared
    assert says(weft.kernel(fuse=True)(product.function), a, a) == (
        "Reduction over [4] for [4, 4]\nPointwise out over [4, 4]"
    )
    for options in ("fuse=False", "debug=True", "strict_math=True"):
        kernel = eval(f"weft.kernel({options})(softmax.function)")
        assert says(kernel, a) == f"a call: {options} is asked for"
    jammed = weft.kernel(fuse=True, schedule={"cpu": "unroll_jam(i, 2)"})(product.function)
    assert says(jammed, a, a) == "a call: a schedule is asked for"
    jammed = weft.kernel(fuse=True, schedule={"cuda": "unroll_jam(i, 2)"})(product.function)
    assert says(jammed, a, a).startswith("Reduction")
    assert says(reads_a_number, a[0]) == "a call: `FACTOR`, from around the kernel, may change"


def test_a_reduction_without_neighbours_stays_a_call(compiled):
    x = torch.randn(4, 7)
    out, code = compiled(softmax, x)
    assert (kernels(code), calls(code)) == (0, 1)
    torch.testing.assert_close(out, x.softmax(1))


def test_fuse_false_is_another_operator_that_stays_a_call(compiled):
    plain = weft.kernel(fuse=False)(scaled.function)
    x = torch.randn(5)
    out, code = compiled(lambda x: plain(x, 2.0), x)
    assert calls(code) == 1
    assert torch.equal(out, x * 2)
    assert plain.op._schema.name != scaled.op._schema.name


def test_with_another_torch_operators_stay_calls(compiled, monkeypatch, caplog):
    monkeypatch.setattr(fusible, "HOOKS", {"1.0": fusible.HOOKS["2.13"]})
    again = weft.kernel(name="scaled_again")(scaled.function)
    with caplog.at_level(logging.DEBUG, "weft.specialize"):
        _, code = compiled(lambda x: again(x, 2.0), torch.randn(5))
    assert calls(code) == 1
    assert "stays a call: Inductor's hooks are known of torch 1.0, this is 2." in caplog.text
    assert says(again, torch.ones(2), 2.0).startswith("a call: Inductor's hooks are known of torch")


def test_inductor_keeps_a_bounded_number_of_operators(compiled, monkeypatch):
    from torch._inductor import lowering

    from weft.pytorch import inductor

    monkeypatch.setattr(inductor._told, "MOST", 2)
    monkeypatch.setattr(inductor._told, "_told", deque())
    table = getattr(lowering, fusible.hooks().table)
    before = len(table)
    for k in range(4):
        kernel = weft.kernel(name=f"kept{k}", fuse=False)(scaled.function)
        compiled(lambda x, kernel=kernel: kernel(x, 2.0), torch.randn(5))
    assert len(table) <= before + 2

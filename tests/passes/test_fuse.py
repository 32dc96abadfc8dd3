"""fuse, factor and advance: what loops over one range have in common, and what need not wait."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
import torch

import weft
from benchmarks.rows import cross_entropy, log_sum_exp
from examples.layer_norm import layer_norm
from examples.softmax import softmax
from tests.cuda.emulator import gradients
from tests.fuzz.check import function as written
from tests.passes.texts import in_function, normal, parsed, result_of
from weft import compiler
from weft.ir import interp
from weft.ir.core import Function, walk
from weft.ir.types import MemRefType
from weft.options import Options
from weft.passes.advance import advance
from weft.passes.cse import cse
from weft.passes.dce import dce
from weft.passes.factor import factor
from weft.passes.fuse import fuse
from weft.tools.cross import gradient_loops, lowered_loops

OPTIMIZE = {"cuda": compiler.optimize, "cpu": compiler.optimize_for_cpu}
ARGUMENTS = "%x: memref<?xf32>, %y: memref<?xf32>, %r: memref<?xf32>, %c: f32, %n: index"

SUM = """
  %s = scf.for %j = %c0 to %n step %c1 iter_args(%a = %zero) -> (f32) {
    %1 = memref.load %x[%j] : memref<?xf32>
    %2 = arith.addf %a, %1 : f32
    scf.yield %2 : f32
  }
"""
SQUARES = """
  %q = scf.for %k = %c0 to %n step %c1 iter_args(%b = %zero) -> (f32) {
    %3 = memref.load %x[%k] : memref<?xf32>
    %4 = arith.mulf %3, %3 : f32
    %5 = arith.addf %b, %4 : f32
    scf.yield %5 : f32
  }
"""
ENDS = """
  memref.store %s, %r[%c0] : memref<?xf32>
  memref.store %q, %r[%c1] : memref<?xf32>
"""
BOTH = """
  %s, %q = scf.for %j = %c0 to %n step %c1 iter_args(%a = %zero, %b = %zero) -> (f32, f32) {
    %1 = memref.load %x[%j] : memref<?xf32>
    %2 = arith.addf %a, %1 : f32
    %4 = arith.mulf %1, %1 : f32
    %5 = arith.addf %b, %4 : f32
    scf.yield %2, %5 : f32, f32
  }
"""
STORED = """
  scf.for %k = %c0 to %n step %c1 {
    %3 = memref.load %x[%k] : memref<?xf32>
    %4 = arith.mulf %3, %3 : f32
    memref.store %4, %y[%k] : memref<?xf32>
    scf.yield
  }
"""
SCALED = """
  scf.for %l = %c0 to %n step %c1 {
    %6 = memref.load %x[%l] : memref<?xf32>
    %7 = memref.load %y[%l] : memref<?xf32>
    %8 = arith.mulf %7, %s : f32
    %9 = arith.addf %8, %6 : f32
    memref.store %9, %y[%l] : memref<?xf32>
    scf.yield
  }
"""


def text(body: str, noalias: bool = True, order: int = 1) -> str:
    return "\n" + normal(in_function(ARGUMENTS, body, noalias=noalias, order=order))


def after(step, body: str, noalias: bool = True, order: int = 1) -> str:
    return "\n" + result_of([step], text(body, noalias, order))


def outcomes(function: Function, n: int) -> list[np.ndarray]:
    rng = np.random.default_rng(n)
    x = rng.standard_normal(n).astype(np.float32)
    y, r = np.full(n, 7, np.float32), np.full(4, 3, np.float32)
    interp.run(function, [x, y, r, np.float32(1.7), n])
    return [x, y, r]


def same_meaning(body: str, *steps, exact: bool = True, order: int = 1) -> None:
    before = parsed(text(body, order=order))
    for n in (0, 1, 5):
        made = before
        for step in steps:
            made = step(made)
        for a, b in zip(outcomes(before, n), outcomes(made, n), strict=True):
            if exact:
                np.testing.assert_array_equal(a, b)
            else:
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_two_sums_of_a_row_are_one_loop():
    assert after(fuse, SUM + SQUARES + ENDS) == text(BOTH + ENDS)
    same_meaning(SUM + SQUARES + ENDS, fuse)


def test_what_only_stores_goes_to_the_later_loop():
    body = STORED + SUM + SCALED + ENDS.replace("%q", "%s")
    made = parsed(after(fuse, body))
    loops = [op for op in walk(made.body) if op.name == "scf.for"]
    assert [sum(o.name == "memref.store" for o in walk(op.body)) for op in loops] == [1, 1]
    same_meaning(body, fuse)


def test_numbers_in_between_go_in_front():
    body = SUM + "  %d = arith.addf %c, %c : f32\n" + SQUARES.replace("%3, %3", "%3, %d") + ENDS
    expected = "  %d = arith.addf %c, %c : f32\n" + BOTH.replace("%1, %1", "%1, %d") + ENDS
    assert after(fuse, body) == text(expected)
    same_meaning(body, fuse)


LEFT = {
    "arguments overlap": (SUM + SQUARES + ENDS, False),
    "other range": (SUM + SQUARES.replace("%k = %c0", "%k = %c1") + ENDS, True),
    "from a number to a number": ((SUM + SQUARES).replace("to %n", "to %c2") + ENDS, True),
    "nothing in common": (SUM + SQUARES.replace("load %x", "load %y") + ENDS, True),
    "other places": (SUM + SQUARES.replace("load %x[%k]", "load %x[%c0]") + ENDS, True),
    "the later needs the earlier": (SUM + SQUARES.replace("%3, %3", "%3, %s") + ENDS, True),
    "the later needs what comes of the earlier": (
        SUM + "  %d = arith.addf %s, %c : f32\n" + SQUARES.replace("%3, %3", "%3, %d") + ENDS,
        True,
    ),
    "turns in an order": (SUM + SQUARES.replace("addf %b, %4", "subf %4, %b") + ENDS, True),
    "written in between": (
        SUM + "  memref.store %s, %x[%c0] : memref<?xf32>\n" + SQUARES + ENDS, True
    ),
    "another iteration's element": (
        SUM.replace("%2 =", "%0 = memref.load %y[%c0] : memref<?xf32>\n    %2 =")
        + STORED + ENDS.replace("%q", "%s"), True
    ),
    "a loop inside": (
        SUM + SQUARES.replace("    scf.yield", "    scf.for %m = %c0 to %n step %c1 {\n"
                              "      memref.store %c, %y[%m] : memref<?xf32>\n      scf.yield\n"
                              "    }\n    scf.yield") + ENDS, True
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", LEFT)
def test_fuse_leaves(why):
    body, noalias = LEFT[why]
    assert after(fuse, body, noalias) == text(body, noalias)


TIMES = SQUARES.replace("mulf %3, %3", "mulf %3, %c")
FACTORED = [
    ("a sum that is there", SUM + TIMES + ENDS, 1),
    ("taken off", SUM + TIMES.replace("addf %b", "subf %b") + ENDS, 1),
    ("divided", SUM + TIMES.replace("mulf", "divf") + ENDS, 1),
    ("from another number", SUM + TIMES.replace("%b = %zero", "%b = %c") + ENDS, 1),
    ("twice", SUM + TIMES.replace("mulf %3, %c", "addf %3, %3") + ENDS, 1),
    ("by what the sum gives", SUM + TIMES.replace("%3, %c", "%3, %s") + ENDS, 1),
    ("a quotient of both", SUM + "  %d = arith.divf %c, %s : f32\n"
     + TIMES.replace("%3, %c", "%3, %d") + ENDS, 1),
    ("not there yet", SUM + TIMES.replace("%5 =", "%6 = arith.mulf %4, %c : f32\n    %5 =").replace(
        "%3, %c", "%3, %3").replace("%b, %4", "%b, %6") + ENDS, 2),
]  # fmt: skip


@pytest.mark.parametrize(("body", "loops"), [f[1:] for f in FACTORED], ids=[f[0] for f in FACTORED])
def test_factors_leave_sums(body, loops):
    same_meaning(body, factor, cse, dce, exact=False)
    made = dce(cse(factor(parsed(text(body)))))
    found = [op for op in walk(made.body) if op.name == "scf.for"]
    assert len(found) == loops
    assert not any(o.name == "arith.mulf" and made.args[3] in o.operands
                   for op in found for o in walk(op.body))  # fmt: skip
    assert len([op for op in walk(fuse(made).body) if op.name == "scf.for"]) == 1


def test_what_cancels_is_nothing():
    body = (
        SUM
        + """
  %d = arith.divf %c, %s : f32
  %m = arith.negf %c : f32
  %q = scf.for %k = %c0 to %n step %c1 iter_args(%b = %m) -> (f32) {
    %3 = memref.load %x[%k] : memref<?xf32>
    %4 = arith.mulf %d, %3 : f32
    %5 = arith.addf %b, %4 : f32
    scf.yield %5 : f32
  }
"""
        + ENDS
    )
    made = dce(factor(parsed(text(body))))
    x, r = np.array([1, 2, 4], np.float32), np.zeros(4, np.float32)
    interp.run(made, [x, x.copy(), r, np.float32(0.1), 3])
    assert r[:2].tolist() == [7.0, 0.0]
    assert sum(op.name == "scf.for" for op in walk(made.body)) == 1


LEFT_BY_FACTOR = {
    "what a person wrote": (SUM + TIMES + ENDS, True, 0),
    "arguments overlap": (SUM + TIMES + ENDS, False, 1),
    "the first loop": (TIMES + SUM.replace("memref<?xf32>\n    %2", "memref<?xf32>\n    %2")
                       + ENDS, True, 1),
    "used elsewhere": (SUM + TIMES.replace("    scf.yield", "    memref.store %5, %y[%k] : "
                                           "memref<?xf32>\n    scf.yield") + ENDS, True, 1),
}  # fmt: skip


@pytest.mark.parametrize("why", LEFT_BY_FACTOR)
def test_factor_leaves(why):
    body, noalias, order = LEFT_BY_FACTOR[why]
    assert after(factor, body, noalias, order) == text(body, noalias, order)


def test_loads_do_not_wait_for_loops():
    late = """
  %i = memref.load %y[%c0] : memref<?xf32>
  %8 = arith.fptosi %i : f32 to i64
  %9 = arith.index_cast %8 : i64 to index
  %e = memref.load %x[%9] : memref<?xf32>
  %z = arith.addf %e, %q : f32
  memref.store %z, %r[%c0] : memref<?xf32>
"""
    squares = SQUARES.replace("%3, %3", "%3, %s")
    lines = late.strip("\n").splitlines(keepends=True)
    expected = lines[0] + SUM + "".join(lines[1:4]) + squares + "".join(lines[4:])
    assert after(advance, SUM + squares + late) == text(expected)
    near = late.replace("%y[%c0]", "%r[%c0]").replace("%x[%9]", "%r[%c2]")
    near = near.replace("    memref.store %z, %r[%c0]", "    memref.store %z, %r[%c1]")
    same_meaning(SUM + squares + near, advance)
    written = late.replace("%z, %r", "%z, %y")
    assert after(advance, SUM + squares + written) == text(SUM + squares + written)


# -- gradients


def optimized(
    kernel: weft.Kernel, *args: object, device: str = "cuda", **options: bool
) -> Function:  # fmt: skip
    (loop,) = lowered_loops(kernel, *args)
    adjoint, *_ = gradient_loops(loop)
    return OPTIMIZE[device](adjoint, Options(verify=True, **options))


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


@pytest.mark.parametrize(("kernel", "args", "loops"), [
    (softmax, (meta(4, 9),), 4), (log_sum_exp, (meta(4, 9),), 3),
    (cross_entropy, (meta(4, 9), torch.empty(4, dtype=torch.int64, device="meta")), 3),
    (layer_norm, (meta(4, 9), meta(9), meta(9), 1e-5), 3),
], ids=["softmax", "log-sum-exp", "cross entropy", "layer norm"])  # fmt: skip
def test_gradients_have_no_more_loops_than_by_hand(kernel, args, loops):
    assert sum(op.name == "scf.for" for op in walk(optimized(kernel, *args).body)) == loops


@pytest.mark.parametrize(("strict_math", "sums"), [(False, [1, 4]), (True, [1, 1, 2, 1])])
def test_a_cpu_does_not_read_rows_once_more(strict_math, sums):
    """Of layer norm, for the mean, and for all that is summed then; where sums keep their order,
    loops are as they were."""
    args = meta(4, 9), meta(9), meta(9), 1e-5
    found = optimized(layer_norm, *args, device="cpu", strict_math=strict_math)
    loops = [op for op in walk(found.body) if op.name == "scf.for" and op.results]
    assert [len(op.results) for op in loops] == sums


def reference(name: str, x: torch.Tensor, g: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    x = x.double().detach().requires_grad_()
    out = {
        "softmax": lambda: x.softmax(1),
        "log_sum_exp": lambda: x.logsumexp(1),
        "cross_entropy": lambda: torch.nn.functional.cross_entropy(x, target, reduction="none"),
    }
    return torch.autograd.grad(out[name](), x, g.double())[0].float()


@pytest.mark.parametrize("cols", [16, 33, 64])
@pytest.mark.parametrize("kernel", [softmax, log_sum_exp, cross_entropy], ids=lambda k: k.__name__)
@pytest.mark.sampled(3)
def test_gradients_on_a_gpu(kernel, cols):
    torch.manual_seed(cols)
    x, target = torch.randn(5, cols), torch.randint(0, cols, (5,))
    x[0, 3] = x[0, 7] = 5.0  # two largest
    x[1] *= 30
    x[2] = 0.0
    x[3, ::2] = -math.inf
    target[3] = 1
    args = (x.requires_grad_(), *([target] if kernel is cross_entropy else []))
    g = torch.randn(5, cols) if kernel is softmax else torch.randn(5)
    (found,) = gradients(kernel, *args, grad=g)
    torch.testing.assert_close(found, reference(kernel.__name__, x, g, target))


def test_a_schedule_that_names_a_loop_finds_it():
    @weft.kernel
    def moments(x):
        out = torch.empty(x.shape[0], 2)
        for i in range(x.shape[0]):
            s, q = 0.0, 0.0
            for j in range(x.shape[1]):
                s += x[i, j]
            for k in range(x.shape[1]):
                q += x[i, k] * x[i, k]
            out[i, 0] = s
            out[i, 1] = q
        return out

    x = meta(8, 64)
    (usual,) = moments.schedules(x, device="cuda").taken
    assert "cooperate((j), " in str(usual.schedule)
    (mine,) = moments.schedule("cuda", "cooperate((j, k), 32)").schedules(x, device="cuda").taken
    assert "cooperate((j, k), 32)" in str(mine.schedule)


# -- random gradients of rows


def drawn(random: Random) -> str:
    """A kernel along rows, some of which are empty: sums of products with what loops before gave,
    exponentials, quotients."""
    spans = ("cols", "cols", "n, cols", "n", "min(i, cols)")
    known, lines = ["0.7"], []

    def element() -> str:
        factor = random.choice(known)
        return random.choice(("x[i, k]", "w[k]", "x[i, k] * w[k]", f"math.exp(x[i, k] - {factor})"))

    def term() -> str:
        text = element()
        for _ in range(random.randrange(3)):
            form = random.choice(("({} * {c})", "({} / {c})", "({} - {c})", "({} * {e})", "(-{})"))
            text = form.format(text, c=random.choice(known), e=element())
        return text

    for q in range(random.randint(2, 4)):
        lines += [f"s{q} = {random.choice(('0.0', '0.0', known[-1]))}",
                  f"for k in range({random.choice(spans)}):",
                  f"    s{q} {random.choice(('+=', '-='))} {term()}"]  # fmt: skip
        known += [f"s{q}", random.choice((f"(s{q} / cols)", f"(1.0 / (2.0 + s{q} * s{q}))"))]
    lines += ["for k in range(cols):", f"    out[i, k] = {term()}"]
    return "\n".join([
        "import math, torch", "def kernel(x, w, n: int):", "    rows, cols = x.shape",
        "    out = torch.empty_like(x)", "    for i in range(rows):",
        *(f"        {line}" for line in lines), "    return out\n",
    ])  # fmt: skip


@pytest.mark.parametrize("device", OPTIMIZE)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.sampled(6)
def test_random_gradients_keep_their_meaning(seed, device):
    wide = [torch.empty(s, dtype=torch.float64, device="meta") for s in ((3, 4), (4,))]
    (loop,) = lowered_loops(weft.kernel(written(drawn(Random(seed)))), *wide, 2)
    steps = gradient_loops(loop)
    assert steps

    def gradients(rows: int, cols: int, n: int, change: bool) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        shapes = {"x": (rows, cols), "w": (cols,), "d.out": (rows, cols)}
        given = {name: rng.standard_normal(shape) + 0.5 for name, shape in shapes.items()}
        given |= {f"d.{name}": np.zeros(shapes[name]) for name in "xw"}
        numbers = {"rows": rows, "cols": cols, "n": n}
        for step in steps:
            if change:
                step = OPTIMIZE[device](step, Options(verify=True))
            for arg in step.args:  # what is kept of each row
                if isinstance(arg.type, MemRefType) and arg.name not in given:
                    given[arg.name] = np.zeros((rows, cols)[: arg.memref.rank])
            interp.run(step, [numbers[a.name] if a.name in numbers else given[a.name]
                              for a in step.args])  # fmt: skip
        return [given["d.x"], given["d.w"]]

    for sizes in ((3, 4, 2), (4, 3, 0), (2, 0, 0)):
        for before, after in zip(gradients(*sizes, False), gradients(*sizes, True), strict=True):
            ok = np.isfinite(before)
            most = max(np.abs(before[ok]).max(initial=1.0), 1.0)
            np.testing.assert_allclose(after[ok], before[ok], rtol=1e-7, atol=1e-10 * most)

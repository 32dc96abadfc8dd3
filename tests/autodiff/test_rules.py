"""The derivative of each operation, against finite differences under the interpreter."""

import numpy as np
import pytest

from weft.autodiff.reverse import reverse
from weft.autodiff.rules import REFUSED, RULES, ZERO
from weft.ir import interp
from weft.ir.builder import Builder
from weft.ir.core import Function
from weft.ir.ops import OPS
from weft.ir.types import MemRefType, f64, index
from weft.ir.verify import verify

# Where the function is smooth and defined.
POINTS = {
    "math.acosh": (1.5, 3.0), "math.log": (0.3, 2.0), "math.log2": (0.3, 2.0),
    "math.log10": (0.3, 2.0), "math.sqrt": (0.3, 2.0), "math.rsqrt": (0.3, 2.0),
    "math.cbrt": (0.3, 2.0), "math.powf": (0.3, 2.0), "math.log1p": (-0.5, 2.0),
}  # fmt: skip
UNARY_AND_MORE = [n for n in RULES if n not in ("arith.select", "arith.extf", "arith.truncf")]


def test_every_pure_operation_has_a_rule_or_is_declared_without():
    pure = {name for name, row in OPS.items() if row.pure and not row.terminator}
    # What schedules write, after gradients were derived.
    scheduled = {name for name in pure if name.startswith("gpu.")}
    scheduled |= {"memref.flatten", "weft.threads", "weft.chunks", "weft.copy_of"}
    scheduled |= {"weft.rows_follow", "weft.to_line"}
    assert pure - scheduled == set(RULES) | ZERO | REFUSED
    assert not set(RULES) & ZERO


def function_of(name, arity):
    memref = MemRefType(f64, 1)
    f = Function("f", [memref] * (arity + 1), [*"abc"[:arity], "out"])
    b = Builder(f.body)
    zero, one = b.constant(0, index), b.constant(1, index)
    n = b.op("memref.dim", f.args[-1], axis=0)
    loop = b.parallel([zero], [n], [one])
    with b.at(loop.regions[0]) as block:
        operands = [b.load(a, block.args) for a in f.args[:-1]]
        b.store(b.op(name, *operands), f.args[-1], block.args)
        b.do("scf.reduce")
    b.do("func.return")
    return f


@pytest.mark.parametrize("name", UNARY_AND_MORE)
def test_rule(name):
    arity = len(OPS[name].operands.split())
    f = function_of(name, arity)
    rng = np.random.default_rng(0)
    low, high = POINTS.get(name, (-0.9, 0.9))
    inputs = [rng.uniform(low, high, 16) for _ in range(arity)]
    adjoint = reverse(f, range(arity), [arity])
    (step,) = adjoint.steps
    verify(step)
    g = rng.standard_normal(16)

    def value(arrays):
        out = np.full(16, np.nan)
        interp.run(f, [*arrays, out])
        return out

    env = dict(zip("abc", inputs, strict=False)) | {"out": value(inputs), "d.out": g}
    env |= {f"d.{n}": np.zeros(16) for n in "abc"[:arity]}
    interp.run(step, [env[a.name] for a in step.args], races=True, order="random")
    for k in range(arity):
        moved = [[x + (s * 1e-6 if i == k else 0) for i, x in enumerate(inputs)] for s in (1, -1)]
        slope = (value(moved[0]) - value(moved[1])) / 2e-6
        np.testing.assert_allclose(env[f"d.{'abc'[k]}"], g * slope, rtol=2e-4, atol=1e-6)

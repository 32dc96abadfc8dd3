"""How values vary along an index: what is said, and that it is so for values that were computed."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from weft.ir.builder import Builder
from weft.ir.core import Function, Op, Value, walk
from weft.ir.interp import run
from weft.ir.parse import parse_function
from weft.ir.types import i32, index
from weft.ir.views import Parallel
from weft.ir.writes import written
from weft.schedule.variation import Growth, Variation

# out[i, j] = sum of a[i, k] * b[k, j] for k from max(j - 3, 0) to min(2 * j + i, n)
BAND = """
func.func @band(%a: memref<?x?xf32>, %b: memref<?x?xf32>, %out: memref<?x?xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %zero = arith.constant 0.0 : f32
  %m = "weft.dim"(%out) {axis = 0} : (memref<?x?xf32>) -> index
  %n = "weft.dim"(%out) {axis = 1} : (memref<?x?xf32>) -> index
  scf.parallel (%i, %j) = (%c0, %c0) to (%m, %n) step (%c1, %c1) {
    %left = arith.subi %j, %c3 : index
    %low = arith.maxsi %left, %c0 : index
    %twice = arith.muli %j, %c2 : index
    %right = arith.addi %twice, %i : index
    %high = arith.minsi %right, %n : index
    %s = scf.for %k = %low to %high step %c1 iter_args(%t = %zero) -> (f32) {
      %x = memref.load %a[%i, %k] : memref<?x?xf32>
      %y = memref.load %b[%k, %j] : memref<?x?xf32>
      %old = memref.load %out[%k, %k] : memref<?x?xf32>
      %2 = arith.mulf %x, %y : f32
      %3 = arith.addf %t, %2 : f32
      scf.yield %3 : f32
    }
    memref.store %s, %out[%i, %j] : memref<?x?xf32>
    scf.reduce
  }
  func.return
}
"""


def loop_of(function: Function) -> Op:
    return next(op for op in function.body.ops if op.name == "scf.parallel")


def test_what_varies_along_each_index() -> None:
    function = parse_function(BAND)
    parallel = loop_of(function)
    i, j = Parallel(parallel).indices
    values = {v.name: v for op in walk(parallel.body) for v in op.results}
    values |= {v.name: v for op in walk(parallel.body) for r in op.regions for v in r.args}
    loads = {op.result.name: op for op in walk(parallel.body) if op.name == "memref.load"}

    along = Variation(parallel.body, {j: 1}, changing=written(function))
    assert along.uniform(i, values["k"], values["x"])
    assert not any(along.uniform(values[name]) for name in ("y", "s", "t", "old"))
    assert along.slope(values["left"]) == 1
    assert along.slope(values["twice"]) == along.slope(values["right"]) == 2
    assert along.growth(values["low"]) == Growth(0, 1)
    assert along.direction(values["low"]) == along.direction(values["high"]) == 1
    assert (along.steepness(values["high"]), along.slope(values["high"])) == (2, None)
    assert [along.stride(loads[name]) for name in ("x", "y", "old")] == [0, 1, 0]
    assert along.divergent == {op for op in walk(parallel.body) if op.name == "scf.for"}

    down = Variation(parallel.body, {i: -1})
    assert down.uniform(values["low"], values["y"], values["old"])
    assert (down.direction(values["high"]), down.direction(values["low"])) == (-1, 0)
    assert down.stride(loads["x"]) is None, "from row to row"
    assert not down.uniform(values["s"])
    assert down.uniform(values["k"])

    beside = Variation(parallel.body, {j: 1}, beside=down)
    assert not beside.uniform(values["s"])
    masked = Variation(parallel.body, {i: 1}, masked=True)
    assert not masked.uniform(values["y"])


def _numbers(function: Function, chance: random.Random) -> dict[Value, list[int]]:
    """What each value of ``function`` is, by iterations, for two numbers by chance."""
    seen: dict[Value, list[int]] = {}

    def watch(op: Op, operands: object, results: list[int]) -> None:
        for value, number in zip(op.results, results, strict=True):
            seen.setdefault(value, []).append(number)

    run(function, [chance.randint(-5, 5), chance.randint(-5, 5)], watch=watch)
    return seen


@pytest.mark.parametrize("seed", range(40))
def test_growths_are_those_of_computed_values(seed: int) -> None:
    chance = random.Random(seed)
    function = Function("straight", [index, index])
    b = Builder(function.body)
    zero, one = b.constant(0, index), b.constant(1, index)
    step = chance.choice([1, -1, 3])
    parallel = b.parallel([zero], [b.constant(12, index)], [one])
    iv = parallel.body.args[0]
    with b.at(parallel.body):
        known = [b.op("arith.muli", iv, b.constant(step, index)), *function.args, one]
        first = known[0]
        for _ in range(12):
            x, y = chance.choice(known), chance.choice(known)
            known.append(_computed(b, chance, x, y))
        b.do("scf.reduce")
    b.do("func.return")
    seen = _numbers(function, chance)
    along = Variation(parallel.body, {iv: 1})
    assert along.slope(first) == step
    for value in known[3:]:
        if value in seen and value is not one:
            growth = along.growth(value)
            differences = [b - a for a, b in pairwise(seen[value])]
            assert growth.low <= min(differences)
            assert max(differences) <= growth.high


@pytest.mark.parametrize("seed", range(60))
def test_a_condition_holds_everywhere_if_it_does_at_its_ends(seed: int) -> None:
    chance = random.Random(seed)
    function = Function("straight", [index, index])
    b = Builder(function.body)
    zero, one = b.constant(0, index), b.constant(1, index)
    parallel = b.parallel([zero], [b.constant(5, index)], [one])
    iv = parallel.body.args[0]
    asked: list[Value] = []
    with b.at(parallel.body):
        known = [iv, *function.args, one]
        for _ in range(6):
            known.append(_computed(b, chance, chance.choice(known), chance.choice(known)))
        for predicate in ("slt", "sle", "sgt", "sge", "eq", "ne", "ult"):
            sides = chance.choice(known), chance.choice(known)
            asked.append(b.op("arith.cmpi", *sides, predicate=predicate))
        asked += [b.op("arith.andi", *chance.sample(asked, 2)) for _ in range(6)]
        b.do("scf.reduce")
    b.do("func.return")
    seen = _numbers(function, chance)
    along = Variation(parallel.body, {iv: 1})
    for value in asked:
        ends = along.ends(value)
        if ends:
            assert all(seen[value]) == all(seen[value][k] for k in ends)
        elif ends is not None:
            assert len(set(seen[value])) == 1


def test_one_end_is_asked_where_a_condition_falls_or_rises() -> None:
    function = Function("straight", [index, index])
    b = Builder(function.body)
    parallel = b.parallel([b.index(0)], [b.index(5)], [b.index(1)])
    iv, (n, m) = parallel.body.args[0], function.args
    with b.at(parallel.body):
        down = b.subi(n, iv)
        first = b.op("arith.cmpi", iv, n, predicate="sge")
        last = b.op("arith.cmpi", down, m, predicate="sgt")
        uniform = b.op("arith.cmpi", n, m, predicate="slt")
        pairs = (last, uniform), (first, last)
        tests = [first, last, uniform, *(b.op("arith.andi", *pair) for pair in pairs)]
        tests.append(b.op("arith.cmpi", iv, n, predicate="ne"))
    ends = [Variation(parallel.body, {iv: 1}).ends(v) for v in tests]
    assert ends == [{0}, {-1}, set(), {-1}, {0, -1}, None]


def _computed(b: Builder, chance: random.Random, x: Value, y: Value) -> Value:
    match chance.randrange(7):
        case 0 | 1:
            return b.op(f"arith.{chance.choice(['addi', 'subi'])}", x, y)
        case 2:
            return b.op(f"arith.{chance.choice(['minsi', 'maxsi'])}", x, y)
        case 3:
            factors = [x, b.constant(chance.randint(-3, 3), index)]
            chance.shuffle(factors)
            return b.op("arith.muli", *factors)
        case 4:
            small = b.op("arith.index_cast", x, type=i32)
            return b.op("arith.index_cast", b.op("arith.addi", small, small), type=index)
        case 5:
            return b.op("arith.floordivsi", x, b.constant(2, index))
        case _:
            return b.op("arith.select", b.op("arith.cmpi", x, y, predicate="slt"), x, y)


BRANCHES = BAND.replace(
    "    memref.store %s, %out",
    """    %some = arith.cmpi slt, %low, %high : index
    %r = scf.if %some -> (f32) {
      %far = arith.cmpi slt, %j, %m : index
      %u = scf.for %k2 = %c0 to %n step %c1 iter_args(%t2 = %s) -> (f32) {
        %q = scf.if %far -> (f32) {
          %v = scf.for %k3 = %c0 to %m step %c1 iter_args(%t3 = %t2) -> (f32) {
            %z = memref.load %b[%k3, %k2] : memref<?x?xf32>
            scf.yield %z : f32
          }
          scf.yield %v : f32
        } else {
          scf.yield %t2 : f32
        }
        scf.yield %q : f32
      }
      scf.yield %u : f32
    } else {
      scf.yield %s : f32
    }
    memref.store %r, %out""",
)


def test_inside_of_a_branch_that_all_take_it_is_as_if_that_had_been_known() -> None:
    function = parse_function(BRANCHES)
    body = loop_of(function).body
    outer, inner = (op for op in walk(body) if op.name == "scf.if")
    column, masked = {body.args[1]: 1}, []
    found = Variation(body, column, masked=True)
    for known in ({outer}, {outer, inner}):
        (branch,) = known - set(masked)
        masked.append(branch)
        found, whole = found.where_taken(branch), Variation(body, column, masked=True, whole=known)
        inside = list(walk(branch.regions[0]))
        values = [v for op in inside for v in (*op.operands, *op.results)]
        assert values
        for value in values:
            if value.op not in known:  # a branch's own results are asked for where all may take it
                assert found.growth(value) == whole.growth(value), value.name
        assert found.divergent & set(inside) == whole.divergent & set(inside)
    (load,) = (op for op in walk(inner.regions[0]) if op.name == "memref.load")
    assert found.uniform(load.result), "which differed where some lanes only took a branch"
    assert not Variation(body, column, masked=True).uniform(load.result)

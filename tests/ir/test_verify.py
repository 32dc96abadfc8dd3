"""verify: accepts what the builder makes, and says what is wrong with anything else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.ir.kernels import TYPICAL, axpy, causal_conv, function, sum_reduction, tensor, while_loop
from weft.errors import InternalError
from weft.ir.builder import Builder
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.types import MemRefType, Type, bf16, f16, f32, f64, i1, i8, i32, i64, index
from weft.ir.verify import verify
from weft.source import Span


def rejected(f: Function) -> str:
    with pytest.raises(InternalError) as caught:
        verify(f)
    return str(caught.value)


def find(f: Function, name: str) -> Op:
    return next(op for op in walk(f.body) if op.name == name)


def one(name: str, *types: Type, result: Type | None = None, **attrs: object) -> str:
    """The message about one operation on operands of these types."""
    f = Function("f", list(types), [f"a{k}" for k in range(len(types))])
    f.body.ops.append(Op(name, list(f.args), [result] if result else [], dict(attrs)))
    f.body.ops.append(Op("func.return", []))
    return rejected(f).removeprefix(f"IR of f: {name}: ")


@pytest.mark.parametrize("make", TYPICAL, ids=lambda make: make.__name__)
def test_typical_functions_are_valid(make: Callable[[], Function]) -> None:
    verify(make())


M1, M2 = tensor(f32, 1), tensor(f32, 2)
TOUCH = {"kind": "reads", "words": 3, "own": (0, 1), "against": (2,), "grouped": False}


@pytest.mark.parametrize(
    ("name", "types", "result", "attrs", "message"),
    [
        ("arith.what", (), None, {}, "is not in the table of operations"),
        ("arith.addf", (f32, f64), f32, {}, "operand 1 is f64, must be f32"),
        ("arith.addf", (f16, f16), f16, {}, "operand 0 is f16, must be T:float"),
        ("arith.addi", (f32, f32), f32, {}, "operand 0 is f32, must be T:int"),
        ("arith.addf", (f32,), f32, {}, "has 1 operands, must have 2"),
        ("arith.addf", (f32, f32), f64, {}, "the result is f64, must be f32"),
        ("arith.addf", (f32, f32), None, {}, "must have 1 results"),
        ("arith.cmpf", (f32, f32), i1, {}, "the attribute `predicate` is missing"),
        ("arith.cmpf", (f32, f32), i1, {"predicate": "slt"}, "'slt' is not a predicate"),
        ("arith.cmpi", (i8, i8), i8, {"predicate": "eq"}, "the result is i8, must be i1"),
        ("arith.select", (i8, f32, f32), f32, {}, "operand 0 is i8, must be i1"),
        ("arith.select", (i1, f32, i32), f32, {}, "operand 2 is i32, must be f32"),
        ("arith.constant", (), f32, {"value": 1},
         "the value of type f32 is a Python int, must be a float"),
        ("arith.constant", (), i1, {"value": 1},
         "the value of type i1 is a Python int, must be a bool"),
        ("arith.constant", (), i8, {"value": 256}, "256 does not fit into i8"),
        ("arith.extsi", (i32,), i8, {}, "from i32 to i8: must widen, to iN"),
        ("arith.trunci", (i32,), i64, {}, "from i32 to i64: must narrow, iN to iN"),
        ("arith.index_cast", (i32,), i64, {}, "from i32 to i64: one of the two must be index"),
        ("arith.sitofp", (index,), f32, {}, "from index to f32: must be iN to f32 or f64"),
        ("arith.fptosi", (f32,), index, {}, "from f32 to index: must be to iN"),
        ("arith.extf", (f32,), f16, {}, "from f32 to f16: must widen a float"),
        ("arith.truncf", (f16,), bf16, {}, "from f16 to bf16: must narrow a float"),
        ("arith.bitcast", (f32,), i64, {}, "from f32 to i64: must keep the width"),
        ("memref.load", (M2, index), f32, {},
         "1 subscripts, but memref<?x?xf32> has rank 2"),
        ("memref.load", (M1, i64), f32, {}, "operand 1 is i64, must be index"),
        ("memref.load", (M1, index), f64, {}, "the results are (f64), must be (f32)"),
        ("memref.load", (f32, index), f32, {}, "operand 0 is f32, must be memref"),
        ("memref.store", (f64, M1, index), None, {},
         "the values are (f64), must be (f32)"),
        ("memref.store", (M1, M1, index), None, {},
         "operand 0 is memref<?xf32>, must be any"),
        ("memref.atomic_rmw", (f32, M1, index), f32, {"kind": "addi", "atomic": True},
         "`addi` does not combine f32"),
        ("memref.atomic_rmw", (f32, M1, index), f32, {"kind": "subf", "atomic": True},
         "'subf' is not a combiner"),
        ("memref.atomic_rmw", (f16, tensor(f16, 0)), f16, {"kind": "addf", "atomic": True},
         "the values are (f16), must be (f32)"),
        ("memref.atomic_rmw", (f32, M1, index), f32, {"kind": "addf", "atomic": 1},
         "`atomic` must be True or False"),
        ("memref.atomic_cas", (i32, i32, tensor(i64, 0)), i64, {},
         "expected and desired are (i32, i32), must be (i64, i64)"),
        ("memref.dim", (M1,), index, {"axis": 1}, "there is no axis 1 in memref<?xf32>"),
        ("memref.alloca", (), M1, {},
         "a local array has known sizes and is contiguous, not memref<?xf32>"),
        ("weft.assert", (i1,), None, {"message": 3}, "`message` must be a string"),
        ("weft.check_race", (M1, index, index, index), None, TOUCH, "4 operands for rank 1"),
        ("weft.check_race", (M1, *[index] * 5), None, TOUCH | {"against": (3,)},
         "`own` and `against` must be places among the `words`"),
        ("weft.bounds", (index, i64), None, {"tensor": "x", "axis": 0},
         "operand 1 is i64, must be index"),
        ("weft.print", (f32,), None, {"parts": ("a",)},
         "0 values are to be printed, 1 are given"),
        ("weft.print", (f32,), None, {"parts": [None]},
         "`parts` must be a tuple of strings and None"),
        ("scf.yield", (), None, {}, "a terminator must be the last of its block"),
        ("scf.for", (index, index, index), None, {}, "must have 1 regions"),
        ("scf.for", (index, index), None, {}, "has 2 operands, must have at least 3"),
    ],
)  # fmt: skip
def test_one_operation_is_rejected(
    name: str, types: tuple[Type, ...], result: Type | None, attrs: dict[str, object], message: str
) -> None:
    assert one(name, *types, result=result, **attrs) == message


def test_a_span_is_named() -> None:
    f, b, (a,) = function("f", a=f32)
    b.span = Span("model.py", 7)
    b.append(Op("arith.negf", [a], [f64]))
    b.do("func.return")
    assert rejected(f) == "IR of f: arith.negf: the result is f64, must be f32 (from model.py:7)"


def test_values_are_used_where_they_are_visible() -> None:
    f = causal_conv()
    inner = find(f, "scf.for")
    product = find(f, "arith.mulf").result
    product.name = "product"
    inner.regions[0].terminator.operands = [product]
    message = "IR of causal_conv: scf.yield: operand 0, %product, is not defined at this point"
    assert rejected(f) == message


def test_values_are_used_after_they_are_defined() -> None:
    f = axpy()
    loop = find(f, "scf.parallel")
    ops = loop.regions[0].ops
    ops[0], ops[1] = ops[1], ops[0]
    assert "arith.mulf: operand 1, %, is not defined at this point" in rejected(f)


def test_block_arguments_end_with_their_region() -> None:
    f = axpy()
    i = find(f, "scf.parallel").regions[0].args[0]
    f.body.ops.insert(len(f.body.ops) - 1, Op("arith.addi", [i, i], [index]))
    assert rejected(f) == ("IR of axpy: arith.addi: operand 0, %i, is not defined at this point")


def test_an_operation_is_in_one_place() -> None:
    f = axpy()
    f.body.ops.insert(1, f.body.ops[0])
    assert rejected(f) == (
        "IR of axpy: arith.constant: the same operation is in the function twice"
    )


def test_results_belong_to_their_operation() -> None:
    f = axpy()
    f.body.ops[0].result.owner = None
    assert rejected(f) == "IR of axpy: arith.constant: its result % has another owner"


def test_a_function_ends_with_return() -> None:
    f = axpy()
    f.body.ops.pop()
    assert rejected(f) == "IR of axpy: the region must end with func.return"


def spoil_args(op: Op) -> None:
    op.regions[0].args = op.regions[0].args[:-1]


def spoil_yield(op: Op) -> None:
    op.regions[0].terminator.operands = []


def spoil_end(op: Op) -> None:
    op.regions[-1].ops.pop()


def spoil_results(op: Op) -> None:
    op.results = []


@pytest.mark.parametrize(
    ("make", "name", "spoil", "message"),
    [
        (causal_conv, "scf.for", spoil_args,
         "scf.for: the arguments of region 0 are (index), must be (index, f32)"),
        (causal_conv, "scf.for", spoil_yield,
         "scf.yield: the carried values are (), must be (f32)"),
        (causal_conv, "scf.for", spoil_end, "scf.for: the region must end with scf.yield"),
        (causal_conv, "scf.for", spoil_results, "scf.for: the results are (), must be (f32)"),
        (causal_conv, "scf.if", spoil_yield,
         "scf.yield: the values of this branch are (), must be (f32)"),
        (causal_conv, "scf.if", spoil_end, "scf.if: the region must end with scf.yield"),
        (while_loop, "scf.while", spoil_args,
         "scf.while: the arguments of region 0 are (i64), must be (i64, i64)"),
        (while_loop, "scf.while", spoil_results,
         "scf.condition: the values handed on are (i64, i64), must be ()"),
        (sum_reduction, "scf.parallel", spoil_args,
         "scf.parallel: the arguments of region 0 are (index), must be (index, index)"),
        (sum_reduction, "scf.parallel", spoil_yield,
         "scf.reduce: the contributions are (), must be (f32)"),
        (sum_reduction, "scf.parallel", spoil_results,
         "scf.parallel: the results are (), must be (f32)"),
    ],
)  # fmt: skip
def test_a_region_of_the_wrong_shape_is_rejected(
    make: Callable[[], Function], name: str, spoil: Callable[[Op], None], message: str
) -> None:
    f = make()
    spoil(find(f, name))
    assert rejected(f) == f"IR of {make.__name__}: {message}"


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"dims": 1}, "has 7 operands, must have 4"),
        ({"dims": -1}, "`dims` is -1, must be a count"),
        ({"kinds": ("addi",)}, "`addi` does not combine f32"),
        ({"kinds": ("sum",)}, "'sum' is not a combiner"),
        ({"kinds": ["addf"]}, "`kinds` is ['addf'], must be a tuple"),
    ],
)
def test_the_attributes_of_parallel_are_checked(attrs: dict[str, object], message: str) -> None:
    f = sum_reduction()
    find(f, "scf.parallel").attrs.update(attrs)
    assert rejected(f) == f"IR of sum_reduction: scf.parallel: {message}"


def test_memrefs_are_not_carried() -> None:
    f, b, (x, c) = function("f", x=M1, c=i1)
    branch = b.append(Op("scf.if", [c], [M1], {}, [Block(), Block()]))
    for region in branch.regions:
        with b.at(region):
            b.do("scf.yield", x)
    b.do("func.return")
    assert rejected(f) == "IR of f: scf.yield: operand 0 is memref<?xf32>, must be any"


def test_memref_types_make_sense() -> None:
    def given(type: MemRefType) -> str:
        f = Function("f", [type])
        Builder(f.body).do("func.return")
        return rejected(f)

    assert given(MemRefType(f32, 0, "unit")) == (
        "IR of f: a memref of rank 0 has no last stride, so no layout `unit`"
    )
    assert given(MemRefType(f32, 1, "dense")) == "IR of f: 'dense' is not a layout"
    assert "has rank 1, but 2 sizes" in given(MemRefType(f32, 1, "contiguous", (2, 3)))


def test_an_undefined_value_is_rejected() -> None:
    f, b, _ = function("f")
    b.op("arith.negf", Value(f32, "ghost"))
    b.do("func.return")
    assert rejected(f) == ("IR of f: arith.negf: operand 0, %ghost, is not defined at this point")

"""Every operation of the table is known to everything that goes by operation."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from tests.ir.kernels import TYPICAL
from weft.codegen.cuda_target import CudaTarget
from weft.ir.interp import RULES as INTERPRETER
from weft.ir.ops import CMPF, CMPI, COMBINERS, OPS
from weft.ir.scalar import SCALAR_RULES

WORDS = {
    "T:int", "T:float", "T", "i1", "index", "any", "memref", "index...", "any...", "memref...",
}  # fmt: skip
# Operations that code generation emits together with the one around them, so without a rule.
NO_LLVM_RULE: frozenset[str] = frozenset()
ON_GPUS = {name for name in OPS if name.startswith("gpu.")}


def test_the_interpreter_has_a_rule_for_each_operation() -> None:
    assert set(INTERPRETER) == set(OPS)


def test_scalar_rules_are_those_of_the_pure_scalar_operations() -> None:
    assert set(SCALAR_RULES) == {n for n in OPS if n.startswith(("arith.", "math."))}
    assert all(OPS[name].pure for name in SCALAR_RULES)


def test_code_generation_has_a_rule_for_each_operation() -> None:
    if importlib.util.find_spec("weft.codegen.llvm") is None:
        pytest.skip("weft.codegen.llvm is not there")
    rules = importlib.import_module("weft.codegen.llvm").RULES
    assert set(OPS) - set(rules) == NO_LLVM_RULE | ON_GPUS
    assert set(rules) <= set(OPS)
    assert set(CudaTarget.rules) <= set(OPS)
    assert set(CudaTarget.rules) >= ON_GPUS


def test_inductor_has_a_rule_for_each_operation_or_a_reason_why_not() -> None:
    rules = importlib.import_module("weft.pytorch.fusion_rules")
    columns = [{*rules.RULES}, {*rules.OPAQUE}, {*rules.STRUCTURE}]
    assert set.union(*columns) == {*OPS}
    assert sum(map(len, columns)) == len(OPS)
    assert {*rules.RULES} >= rules.OPAQUE_ON_CPU
    assert all(rules.OPAQUE.values())


@pytest.mark.parametrize("name", OPS)
def test_rows_are_well_formed(name: str) -> None:
    row = OPS[name]
    assert row.name == name
    assert set(row.operands.split()) <= WORDS
    assert row.results in ("", "T", "i1", "index", "?")
    assert row.doc
    assert row.results != "T" or "T" in row.operands
    assert not (row.terminator and row.pure)
    assert not row.commutative or len(row.operands.split()) == 2


def test_combiners_are_commutative_operations_on_two_values() -> None:
    assert all(OPS[f"arith.{kind}"].commutative for kind in COMBINERS)


def test_predicates_are_unique() -> None:
    assert len(set(CMPI)) == len(CMPI)
    assert len(set(CMPF)) == len(CMPF)


def test_kernels_have_names_of_their_own() -> None:
    assert len({make().name for make in TYPICAL}) == len(TYPICAL)

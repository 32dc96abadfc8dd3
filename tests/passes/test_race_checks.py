"""touch: race checks where index sets cannot tell."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.passes.generate import outcome, random_arguments, random_function
from tests.passes.texts import normal, parsed, result_of
from weft.errors import RaceError
from weft.ir.interp import Machine
from weft.ir.interp import run as interpret
from weft.ir.ops import OPS
from weft.passes.race_checks import race_checks
from weft.passes.run import PIPELINE, run

SCATTER = """
func.func @f(%x: memref<?xf32>, %idx: memref<?xindex>, %out: memref<?xf32>) attributes {noalias = true} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = "weft.dim"(%x) {axis = 0} : (memref<?xf32>) -> index
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {
    %k = memref.load %idx[%i] : memref<?xindex>
    %v = memref.load %x[%i] : memref<?xf32>
    memref.store %v, %out[%k] : memref<?xf32>
    %w = memref.load %out[%i] : memref<?xf32>
    memref.store %w, %x[%i] : memref<?xf32>
    scf.reduce
  }
  func.return
}
"""  # noqa: E501

BOX = """
func.func @f(%a: index, %b: index, %idx: memref<?xindex>, %out: memref<?xf32>) attributes {noalias = true} {
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %cst = arith.constant 0.0 : f32
  scf.parallel (%i, %j) = (%a, %c1) to (%b, %c2) step (%c3, %c1) {
    %k = memref.load %idx[%i] : memref<?xindex>
    %old = memref.atomic_rmw addf %cst, %out[%k] : (f32, memref<?xf32>) -> f32
    memref.store %cst, %out[%k] : memref<?xf32>
    scf.reduce
  }
  func.return
}
"""  # noqa: E501


def test_what_may_meet_is_watched_and_what_is_proven_is_not():
    assert result_of([race_checks], SCATTER) == normal("""
func.func @f(%x: memref<?xf32>, %idx: memref<?xindex>, %out: memref<?xf32>) attributes {noalias = true} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = "weft.dim"(%x) {axis = 0} : (memref<?xf32>) -> index
  %0 = arith.constant 0 : index
  %1 = arith.maxsi %n, %0 : index
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {
    %k = memref.load %idx[%i] : memref<?xindex>
    %v = memref.load %x[%i] : memref<?xf32>
    "weft.check_race"(%out, %i, %k, %c0, %c1, %1) {against = [1, 2], grouped = false, kind = "writes", own = [0], words = 3} : (memref<?xf32>, index, index, index, index, index) -> ()
    memref.store %v, %out[%k] : memref<?xf32>
    "weft.check_race"(%out, %i, %i, %c0, %c1, %1) {against = [0], grouped = false, kind = "reads", own = [1, 2], words = 3} : (memref<?xf32>, index, index, index, index, index) -> ()
    %w = memref.load %out[%i] : memref<?xf32>
    memref.store %w, %x[%i] : memref<?xf32>
    scf.reduce
  }
  func.return
}
""")  # noqa: E501  # fmt: skip


def test_iterations_are_numbered_from_bounds_and_steps():
    for touched in (
        race_checks(parsed(BOX)),
        run(parsed(BOX), [race_checks, *PIPELINE], verify=True),
    ):
        idx, out = np.arange(9), np.zeros(9, np.float32)
        interpret(touched, [2, 9, idx, out])
        idx[2] = idx[8]  # the first and the third row
        with pytest.raises(RaceError, match="iterations 0 and 2 meet"):
            interpret(touched, [2, 9, idx, out])


@pytest.mark.parametrize("noalias", [True, False])
def test_memory_that_may_overlap_is_watched_throughout(noalias):
    function = parsed(SCATTER.replace("noalias = true", f"noalias = {str(noalias).lower()}"))
    x, idx = np.arange(4, dtype=np.float32), np.array([3, 1, 2, 0])
    out = np.zeros(4, np.float32)
    watched = next(op for op in race_checks(function).body.ops if op.regions).regions[0]
    assert sum(op.name == "weft.check_race" for op in watched.ops) == (2 if noalias else 5)
    with pytest.raises(RaceError, match="iterations 0 and 3 meet where the latter"):
        interpret(race_checks(function), [x, idx, out])


def test_without_a_race_nothing_changes():
    x, idx = np.arange(4, dtype=np.float32), np.arange(4)
    out = np.zeros(4, np.float32)
    interpret(race_checks(parsed(SCATTER)), [x, idx, out])
    assert out.tolist() == [0, 1, 2, 3]


class WithoutLocals(Machine):
    """Does not report races on local arrays outside of the loop, which no frontend makes."""

    def element(self, op, memref, subscripts, writes):
        local = any(memref is array for array in self.locals)
        loops, self.loops = self.loops, [] if local else self.loops
        found = super().element(op, memref, subscripts, writes)
        self.loops = loops
        return found


def races(function, seed, alias):
    try:
        with mock.patch("weft.ir.interp.Machine", WithoutLocals):
            interpret(function, random_arguments(seed, alias), races=True)
    except RaceError:
        return True
    return False


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), alias=st.booleans(), noalias=st.booleans())
@pytest.mark.slow
def test_every_race_that_the_interpreter_sees_is_found(seed, alias, noalias):
    function = random_function(seed)
    function.attrs["noalias"] = noalias and not alias
    for passes in ([race_checks], [race_checks, *PIPELINE]):
        touched = run(function, passes, verify=True)
        try:
            found = outcome(touched, seed, alias)
        except RaceError:
            continue
        assert not races(function, seed, alias)
        assert found == outcome(function, seed, alias)


def test_the_pass_states_what_others_state():
    assert "Precondition:" in (race_checks.__doc__ or "")
    assert "Non-goals:" in (race_checks.__doc__ or "")
    assert not OPS["weft.check_race"].pure

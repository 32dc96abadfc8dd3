"""``weft check``: what is right passes, each kind of mistake is found, and is shown small."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import weft
from tests.workbench import kernels
from weft.workbench.arguments import maker_of
from weft.workbench.cases import build, special_cases
from weft.workbench.check import Check, Session
from weft.workbench.report import UsageError
from weft.workbench.trials import Trials
from weft_cli.app import app

MIXED = kernels.mixed
FILE = str(Path(kernels.__file__))


def results(found: Check) -> dict[str, set[str]]:
    """By what was tried, the results that there were."""
    told: dict[str, set[str]] = {}
    for trial in found.trials:
        told.setdefault(trial.what, set()).add(trial.result)
    return told


@pytest.fixture(scope="module")
def mixed() -> Check:
    return weft.check(kernels.mixed)


def test_what_is_right_is_ok(mixed: Check) -> None:
    assert mixed.ok, mixed
    told = results(mixed)
    for what in ("small sizes", "sizes", "strided", "transposed", "offset", "expanded", "empty",
                 "float64", "float32", "bfloat16", "float16", "infinities, NaN", "zeros",
                 "same bits again", "opcheck", "gradient", "forward mode"):  # fmt: skip
        assert told[what] == {"ok"}, what
    assert mixed.program == ""
    assert "ok      sizes            w f32[1]; x f32[1, 1]; eps 0.75\n" in str(mixed)


def test_arguments_of_annotations_have_sizes_that_agree(mixed: Check) -> None:
    shapes = {trial.arguments for trial in mixed.trials}
    assert {"w f32[2]; x f32[3, 2]; eps 0.75", "w f32[0]; x f32[3, 0]; eps 0.75",
            "w bf16[2]; x bf16[3, 2]; eps 0.75",
            "w f32[17]; x f32[3, 17]; eps 0.75"} <= shapes  # fmt: skip


def wrong_in_the_fifth(w: torch.Tensor, x: torch.Tensor, eps: float) -> torch.Tensor:
    out = MIXED(w, x, eps)
    out[:, 4:5] += 1.0
    return out


def test_a_wrong_number_is_shrunk_to_a_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = weft.check(kernels.mixed, against=wrong_in_the_fifth)
    assert not found.ok
    assert "WRONG: sizes: the result: 3 of 51 elements differ; at [" in str(found)
    assert "x=torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float32)," in found.program
    assert "# the result: 1 of 5 elements differ; at [0, 4] there is 2 in place of 1" in (
        found.program
    )
    # Where the kernel is wrong in the same way, the program fails as it says.
    wrong: Any = functools.partial(wrong_in_the_fifth)
    wrong.interpret = MIXED.interpret
    exec(found.program, {})
    monkeypatch.setattr(kernels, "mixed", wrong)
    with pytest.raises(AssertionError, match=r"Mismatched elements: 1 / 5"):
        exec(found.program, {})


def test_elements_that_only_compiled_code_leaves_are_found() -> None:
    """It is called where fresh memory holds NaN, too."""

    def lazy(w: torch.Tensor, x: torch.Tensor, eps: float) -> torch.Tensor:
        memory = torch.empty(3).isnan().all() and x.isfinite().all() and w.isfinite().all()
        out = MIXED(w, x, eps)
        out[-1:, -1:] = torch.nan if memory else out[-1:, -1:].clone()
        return out

    found = weft.check(kernels.mixed, against=lazy, seconds=1.0)
    assert "WRONG: small sizes: where fresh memory holds NaN, the result: 1 of 6" in str(found)


def test_special_numbers_are_among_those_that_are_tried() -> None:
    maker = maker_of(MIXED, (), {}, vars(kernels))
    seen: list[set[float]] = []
    for case in special_cases(maker):
        for value in build(maker, case, frozenset()).values():
            if isinstance(value, torch.Tensor):
                found = {str(v) for v in value.flatten().tolist() if v in (0.0, math.inf, -math.inf)
                         or v != v}  # fmt: skip
                assert found, "each tensor has some"
                seen.append(found)
    assert set().union(*seen) == {"inf", "-inf", "nan", "0.0", "-0.0"}
    assert {"inf", "-inf", "nan", "0.0", "-0.0"} in seen, "with few and with all of them"
    assert any(len(found) == 1 for found in seen)


@weft.kernel
def doubled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = 2.0 * x[i]
    return out


@doubled.implementation("cpu", dtypes=torch.float32, when=lambda x: x.is_contiguous())
def by_addition(x: torch.Tensor) -> torch.Tensor:
    return x + x


@doubled.implementation("cpu", finite=True)
def without_nan(x: torch.Tensor) -> torch.Tensor:
    return (2 * x).nan_to_num()


@doubled.implementation("cpu")
def wrong_for_two(x: torch.Tensor) -> torch.Tensor:
    return 2 * x + (len(x) == 2)


def test_an_implementation_is_tried_with_what_it_is_for() -> None:
    found = weft.check(doubled, implementation="by_addition")
    assert found.ok, found
    told = results(found)
    assert told["sizes"] == told["offset"] == told["infinities, NaN"] == {"ok"}
    assert told["float64"] == told["strided"] == told["empty"] == {"not tried"}
    assert ", float64, bfloat16, float16: `by_addition` is not for such arguments" in str(found)
    finite = weft.check(doubled, implementation="without_nan")
    assert finite.ok, finite
    assert "infinities, NaN" not in results(finite)
    ran = CliRunner().invoke(app, ["check", f"{__file__}:doubled", "--implementation",
                                   "wrong_for_two", "--json"])  # fmt: skip
    assert ran.exit_code == 1
    wrong = {t["arguments"]: t["why"] for t in json.loads(ran.stdout)["trials"]
             if t["result"] == "WRONG"}  # fmt: skip
    assert [*wrong] == ["x f32[2]", "x f64[2]", "x bf16[2]", "x f16[2]"]
    assert wrong["x f32[2]"].startswith("the result: ")
    with pytest.raises(UsageError, match=r"doubled has no implementation 'other'\n.*by_addition, "):
        weft.check(doubled, implementation="other")


def test_a_subscript_beyond_the_end_is_found() -> None:
    found = weft.check(kernels.beyond)
    assert not found.ok
    assert results(found)["sizes"] == {"WRONG"}
    assert results(found)["empty"] == {"ok"}
    assert "dimension 0 of `x` has 1 elements" in found.program


def test_elements_that_are_never_written_are_found() -> None:
    found = weft.check(kernels.every_other, seconds=2)
    assert not found.ok
    assert "does the kernel write every element?" in str(found)


def test_what_indexes_is_within_bounds() -> None:
    found = weft.check(kernels.counted)
    assert found.ok, found
    assert results(found)["gradient"] == {"not tried"}
    assert "no result depends on floating-point tensors" in str(found)


def test_a_function_beside_the_kernel_makes_its_arguments() -> None:
    found = weft.check(kernels.gathered)
    assert found.ok, found
    assert "gradient, forward mode: results are float32 where arguments are float64" in str(found)
    assert "x f32[4]; places i64[3]; scale 2.0" in {t.arguments for t in found.trials}


def test_given_arguments_are_cut_to_smaller_ones_and_tried_as_they_are() -> None:
    found = weft.check(kernels.mixed, torch.randn(30), torch.randn(4, 30), 0.5)
    assert found.ok, found
    told = {(t.what, t.arguments) for t in found.trials}
    assert ("small sizes", "w f32[3]; x f32[4, 3]; eps 0.5") in told
    whole = "w f32[30]; x f32[4, 30]; eps 0.5"
    assert ("as given, bounds and races", whole) in told


def test_bounds_of_what_is_given_are_checked_at_full_size() -> None:
    places = torch.zeros(3000, dtype=torch.int64)
    places[-1] = 50
    found = weft.check(kernels.gathered, torch.rand(50), places, 1.0)
    assert results(found)["as given, bounds and races"] == {"WRONG"}
    assert "out of range" in str(found)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("nowhere.py:k",), "there is no file nowhere.py"),
        ((f"{FILE}:mixt",), "has no kernel 'mixt'\nhelp: there are mixed, beyond, every_other, "),
        ((FILE,), "which kernel?"),
        ((f"{FILE}:unknown",), "nothing says how many dimensions `x` of unknown has\n"),
        ((f"{FILE}:templated",), "nothing says what the template parameter `n` of templated is\n"),
        ((f"{FILE}:mixed", "--args", "1 / 0"), "ZeroDivisionError"),
    ],
)
def test_usage_errors_say_what_to_write(words: tuple[str, ...], told: str) -> None:
    done = CliRunner().invoke(app, ["check", *words])
    assert done.exit_code == 2, done.output
    assert told in done.stderr


def test_the_command_answers_as_the_function_does() -> None:
    words = ["check", f"{FILE}:counted", "--args", "torch.tensor([2, 0, 2]), 3", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    told: dict[str, Any] = json.loads(done.output)
    assert (told["ok"], told["kernel"], told["program"]) == (True, "counted", "")
    assert {"what": "small sizes", "arguments": "index i64[3]; bins 3", "result": "ok",
            "why": ""} in told["trials"]  # fmt: skip
    done = CliRunner().invoke(app, ["check", f"{FILE}:beyond", "--seconds", "1"])
    assert done.exit_code == 1
    assert "This shows it:" in done.output


def test_imaginary_parts_are_compared() -> None:
    z = torch.randn(9, dtype=torch.complex64)

    def conjugated(z: torch.Tensor) -> torch.Tensor:
        return kernels.squared(z).conj()

    assert weft.check(kernels.squared, z).ok
    found = weft.check(kernels.squared, z, against=conjugated, seconds=1)
    assert not found.ok
    assert "WRONG: small sizes: the result: 3 of 6 elements differ; at [" in str(found)


def test_dtypes_are_compared() -> None:
    def doubled(z: torch.Tensor) -> torch.Tensor:
        return kernels.squared(z).double()

    found = weft.check(kernels.squared, torch.rand(3), against=doubled, seconds=1)
    assert "the result: torch.float64 in place of torch.float32" in str(found)
    assert "z=torch.empty((0,), dtype=torch.float32)," in found.program


@weft.kernel
def weighed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for b, c, i, j in weft.ndrange(*x.shape):
        s = 0.0
        for u in range(w.shape[1]):
            for v in range(w.shape[2]):
                s += x[b, c, i, j] * w[c, u, v]
        out[b, c, i, j] = s
    return out


def test_what_the_python_would_take_too_long_for_is_not_even_made() -> None:
    """Without names all sizes are one: 127 of all would be 260 million elements."""
    made: list[int] = []

    def weighed_arguments(n: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
        made.append(n)
        return torch.randn(n, n, n, n), torch.randn(n, n, n)

    names = {"weighed_arguments": weighed_arguments}
    maker = maker_of(weighed, (), {}, names)
    trials = Trials(weighed, maker, weighed, patience=0.05)
    found = Session(trials, False, 60.0).run(operators=False)
    assert found.ok, found
    assert max(made) == 17
    told = results(found)
    assert told["larger sizes"] == {"not tried"}
    assert told["same bits again"] == {"ok"}
    assert str(found).endswith(
        "not tried: sizes, infinities, NaN, larger sizes: the Python would take more than 0.05 "
        "seconds"
    )


def test_operators_are_checked_before_larger_sizes() -> None:
    found = weft.check(kernels.mixed, seconds=0)
    names = [trial.what for trial in found.trials]
    assert names.index("opcheck") < names.index("larger sizes")
    assert str(found).count("0 seconds are over (--seconds)") == 1
    assert "empty, float64" in str(found), "one reason names all that it is for"


def test_of_what_cannot_be_compiled_nothing_more_is_tried() -> None:
    found = weft.check(kernels.running)
    assert [(t.what, t.result) for t in found.trials] == [("small sizes", "WRONG")]
    assert "iteration i=1 writes out[1], which iteration i=2 reads" in str(found)
    assert found.program == ""


def test_subscripts_out_of_range_are_not_carried_out() -> None:
    """Sizes that are cut out of those given need not fit the numbers in them."""
    places = torch.tensor([900, 3, 2])
    found = weft.check(kernels.gathered, torch.rand(1000), places, 1.0, seconds=20)
    told = {(t.what, t.result) for t in found.trials if t.what in ("gradient", "opcheck")}
    assert told == {("gradient", "not tried"), ("opcheck", "not tried")}
    assert ("as given, bounds and races", "ok") in {(t.what, t.result) for t in found.trials}


def test_what_is_no_kernel_is_refused() -> None:
    with pytest.raises(UsageError, match=r"weft\.check takes a kernel, not func"):
        weft.check(lambda x: x)


@weft.kernel
def checkered(x: torch.Tensor, colour: int):
    H, W = x.shape
    for i, j in weft.ndrange(H, W):
        if (i + j) % 2 == colour:
            x[i, j] = x[(i + 1) % H, j] + x[i, (j - 1) % W]


@pytest.mark.slow
def test_whole_numbers_that_are_no_sizes_are_tried_as_flags() -> None:
    """With an odd side the neighbours across the edge are of one colour: a race that neither
    colour 2, nor colour 1 of one element, shows."""
    found = weft.check(checkered)
    assert not found.ok
    assert "in a loop whose iterations run at once" in str(found)


def test_a_race_is_told_once_whichever_iterations_meet() -> None:
    text = str(weft.check(kernels.scattered, torch.ones(5), torch.ones(5).long(), seconds=0.5))
    told, _, program = text.partition("This shows it:")
    assert "WRONG: as given, bounds" not in told
    assert told.count("iterations 0 and 1 both write `out[1]`") == 1
    assert told.count("both write") == 1
    assert "\nlikewise: sizes, strided, transposed, offset, " in told
    assert "from tests.workbench.kernels import scattered" in program


@pytest.mark.parametrize(
    ("kernel", "result"), [(kernels.imaginary, "not tried"), (kernels.rooted, "ok")]
)
def test_what_is_not_a_number_is_not_what_pytorch_compares(kernel: Any, result: str) -> None:
    """PyTorch's checks take NaN to differ from NaN. The root is of absolute values then; and
    annotations of float32 do not keep its gradient from being checked in float64."""
    x = torch.tensor([-2.0, 3.0])
    found = weft.check(kernel, *((x, x.clone()) if kernel is kernels.rooted else (x,)))
    assert found.ok
    told = results(found)
    assert told["opcheck"] == told["gradient"] == told["forward mode"] == {result}
    assert ("results are infinite or NaN, of absolute" in str(found)) == (result == "not tried")

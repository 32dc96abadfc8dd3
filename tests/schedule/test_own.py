"""A step in a file of its own, added as CONTRIBUTING says: a file, and a line of the registry."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import weft
from examples import causal_conv, gallery
from tests.cuda.emulator import EmulatedCall, emulated
from tests.cuda.test_choose import meta
from weft.codegen import cuda
from weft.compiler import optimize
from weft.errors import ScheduleError
from weft.ir.text import print_function
from weft.ir.verify import verify
from weft.schedule import language
from weft.schedule.language import parse, show
from weft.tools.cross import lowered_loops

PAGE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()


@pytest.fixture(autouse=True)
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The step of the page."""
    file, line = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    match = re.fullmatch(r'"(\w+)": "weft.schedule.(\w+)",\n', line)
    assert match is not None
    (tmp_path / f"{match[2]}.py").write_text(file)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(language.ELSEWHERE, match[1], match[2])
    yield
    sys.modules.pop(match[2], None)
    language._item.cache_clear()


def test_its_text_is_read_back() -> None:
    text = "index_width(32); reverse_blocks(); bind(t, x)"
    assert show(parse(text)) == text
    with pytest.raises(
        ScheduleError, match="`reverse_blocks\\(3\\)`: reverse_blocks takes 0 values"
    ):
        parse("reverse_blocks(3)")
    with pytest.raises(
        ScheduleError,
        match=r"reverse, longest_first, shared_arrays, copy_ahead, reverse_blocks$",
    ):
        parse("reverse_all()")


@pytest.mark.parametrize("text", ["reverse_blocks()", "unroll_jam(t, 4); reverse_blocks()"])
def test_results_keep_their_bits(text: str) -> None:
    w, k = torch.randn(3, 77), torch.randn(2, 3, 77)
    kernel = weft.kernel(schedule={"cuda": text})(causal_conv.causal_conv.function)
    plain = weft.kernel(schedule={"cuda": "index_width(32)"})(causal_conv.causal_conv.function)
    EmulatedCall.seen.clear()
    found = emulated(kernel)(w, k, 0.1)
    assert "reverse_blocks()" in show(EmulatedCall.seen[-1])
    assert torch.equal(found, emulated(plain)(w, k, 0.1))


@pytest.mark.parametrize("text", ["reverse_blocks()", "unroll_jam(t, 4); reverse_blocks()"])
def test_a_cpu_goes_by_it_too(text: str) -> None:
    w, k = torch.randn(3, 77), torch.randn(2, 3, 77)
    kernel = weft.kernel(schedule={"cpu": text})(causal_conv.causal_conv.function)
    plain = weft.kernel(schedule={"cpu": ""})(causal_conv.causal_conv.function)
    torch.testing.assert_close(kernel(w, k, 0.1), plain(w, k, 0.1))  # LLVM orders sums
    kernel = weft.kernel(schedule={"cpu": "vectorize(t, 8); reverse_blocks()"})(
        causal_conv.causal_conv.function
    )
    with pytest.raises(ScheduleError, match=r"`reverse_blocks\(\)`: it does not go with `vect"):
        kernel(w, k, 0.1)


def test_the_ir_before_and_after() -> None:
    (loop,) = lowered_loops(gallery.axpy, 2.0, meta(9), meta(9))
    function = optimize(loop)
    schedule = parse("reverse_blocks(); bind(i, x); block(256, 1)")
    made = cuda.scheduled(function, schedule).function
    verify(made)
    before, after = print_function(function), print_function(made)
    assert "memref.load %x[%i]" in before
    assert "memref.load %x[%i]" not in after
    assert after.count("memref.load") == before.count("memref.load")


def test_it_is_refused_where_its_rule_says() -> None:
    kernel = weft.kernel(schedule={"cuda": "reverse_blocks()"})(gallery.total.function)
    with pytest.raises(ScheduleError) as caught:
        weft.compile_for("sm_90", kernel, meta(9))
    assert caught.value.message == "`reverse_blocks()`: the order of a sum is part of its bits"
    assert caught.value.span is not None
    assert caught.value.span.text.strip() == "for i in range(x.shape[0]):"
    kernel = weft.kernel(schedule={"cuda": "vectorize(i, 4); reverse_blocks()"})(
        gallery.axpy.function
    )
    with pytest.raises(ScheduleError) as caught:
        weft.compile_for("sm_90", kernel, 2.0, meta(9), meta(9))
    assert caught.value.message == ("`reverse_blocks()`: it does not go with `vectorize(i, 4)`")

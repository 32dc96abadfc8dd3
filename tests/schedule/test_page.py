"""The schedules of docs/schedules.md: each is accepted, and gives the numbers that it promises."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from benchmarks.schedules import KERNELS, TEXTS, Text, arguments, by
from tests.cuda.emulator import EmulatedCall, emulated
from weft.codegen.machine import host_cpu
from weft.schedule import guards, language
from weft.schedule.language import parse, show

PAGE = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text()


def rows_of(head: str) -> list[list[str]]:
    """The cells of a table of the page."""
    table = PAGE[PAGE.index(head) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table]


HEADS = {
    "causal_conv": "| causal_conv, CUDA |", "softmax": "| softmax 4096 x 4096, CUDA |",
    "brick_wall": "| brick wall 4096 x 4096, CUDA |",
}  # fmt: skip


def test_the_page_lists_what_the_benchmark_measures() -> None:
    listed = [
        (kernel, row[0].strip("`"))
        for kernel, head in HEADS.items()
        for row in rows_of(head) if row[0] != "weft's own choice"
    ]  # fmt: skip
    assert listed == [(t.kernel, t.text) for t in TEXTS if t.device == "cuda"]
    on_cpu = [(kernel, text.strip("`")) for text, kernel, _ in rows_of("| CPU | kernel |")]
    plain = "no steps: LLVM vectorises"
    assert on_cpu == [(t.kernel, t.text or plain) for t in TEXTS if t.device == "cpu"]


@pytest.mark.parametrize("head", ["| step |", "| guard |"])
def test_the_page_has_every_step_and_guard(head: str) -> None:
    said = {name for row in rows_of(head) for name in re.findall(r"`(\w+)\(", row[0])}
    kinds = language.STEPS if head == "| step |" else guards.GUARDS
    assert said == {show([_any(kind)]).split("(")[0] for kind in kinds}


def _any(kind: type[Any]) -> object:
    return kind(*["x"] * sum(field.default is MISSING for field in fields(kind)))


def small(text: Text) -> tuple[object, ...]:
    """A call that the emulator carries out in a moment."""
    if text.kernel == "causal_conv":
        return torch.randn(3, 70), torch.randn(9, 3, 70), 0.1
    if text.kernel == "softmax":
        return (torch.randn(5, 132),)
    return torch.arange(48, dtype=torch.int32).view(6, 8), 20, 304, 4, 2, 8


@pytest.mark.sampled(5)
@pytest.mark.parametrize("text", [t for t in TEXTS if t.device == "cuda"], ids=str)
def test_a_text_for_cuda_gives_the_bits_that_it_promises(text: Text) -> None:
    args = small(text)
    plain = weft.kernel(schedule={"cuda": "index_width(32)"})(KERNELS[text.kernel].function)
    expected = emulated(plain)(*args)
    EmulatedCall.seen.clear()
    found = emulated(by(text))(*args)
    for step in parse(text.text.replace("index_width(64)", "")):
        assert any(type(step) is type(other) for other in EmulatedCall.seen[-1])
    if text.same_bits:
        assert torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(host_cpu().vector_bytes < 32, reason="this machine has no vectors of 8 floats")
@pytest.mark.parametrize("text", [t for t in TEXTS if t.device == "cpu"], ids=str)
def test_a_text_for_cpus_gives_the_bits_that_it_promises(text: Text) -> None:
    args = arguments(text.kernel, "cpu", small=True)
    expected = KERNELS[text.kernel](*args)
    kernel = by(text)
    found = kernel(*args)
    (special,) = kernel.specializations
    assert special.compiled.job.asked == text.text
    if text.same_bits:
        assert torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)

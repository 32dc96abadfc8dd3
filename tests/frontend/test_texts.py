"""Texts with values in them: what ``print`` writes and what a failed ``assert`` says."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

import weft
from tests.cuda.emulator import emulated
from weft.codegen.cuda_target import CudaTarget, _directive
from weft.codegen.emit import Emitter, Module
from weft.errors import KernelAssertionError, KernelSyntaxError, KernelTypeError
from weft.ir.core import Op
from weft.ir.types import ScalarType, f32, i32, i64
from weft.tools.cross import compile_for


@weft.kernel
def report(x: torch.Tensor, k: torch.Tensor, u: torch.Tensor, digits: weft.template()) -> None:  # type: ignore[valid-type]
    for i in range(x.shape[0]):
        print(f"{x[i]:.3f}|{x[i]:8.2e}|{i:03d}|{i:<4}|{k[i]:+d}|{k[i]!r:>5}", end=";")
        print(f"{x[i] > 0:3}|{u[i]:x}|{x[i]:.{digits}f}|{2.5:5.1f}|{x[i]:^9.1%}", k[i], sep="~")


def test_values_are_printed_in_pythons_formats(capfd: pytest.CaptureFixture[str]) -> None:
    x, k = torch.randn(17), torch.randint(-99, 99, (17,), dtype=torch.int32)
    u = torch.randint(0, 1 << 31, (17,)).to(torch.uint32)
    report(x, k, u, 2)
    found = capfd.readouterr().out
    report.function(x, k.tolist(), u.tolist(), 2)
    wanted = capfd.readouterr().out.replace("tensor(", "").replace(")", "")
    assert found.splitlines() == wanted.splitlines()
    report.interpret(x, k, u.to(torch.int64), 2)
    assert capfd.readouterr().out == found


class Place(NamedTuple):
    x: Any
    n: int


@dataclass
class Mass:
    value: Any
    kind: str


@weft.kernel
def containers(x: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        print((i,), (), ("a", i), {"k": i, 3: (1, x[i])}, (None, True, ((i,),)))
        print(Place(x[i], i), f"{Mass(x[i], 'heavy')} {'it'!r:>7}|{(i, 's')}")


@weft.kernel
def as_texts(x: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        print(f"{x[i]!r:>10}|{i!s:>5}|{i!s:5}|{i!s:s}|{x[i]!s:_<9}|{x[i]!a:^9s}|{7!s:5}|{7:5}|")


@pytest.mark.parametrize("kernel", [containers, as_texts])
def test_what_contains_values_and_texts_of_values_are_printed_as_python_does(
    kernel: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    x = torch.tensor([1.5, -0.25])
    kernel(x)
    found = capfd.readouterr().out

    class Floats(list[float]):
        shape = x.shape

    kernel.function(Floats(x.tolist()))
    assert capfd.readouterr().out == found


@weft.kernel
def choice_as_text(x: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        print(f"{x[i] > 0!s:>7}")


@weft.kernel
def part_of_a_text(x: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        print(f"{x[i]!r:.2}")


@weft.kernel
def number_as_text(x: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        print(f"{i!s:d}")


@pytest.mark.parametrize("kernel", [choice_as_text, part_of_a_text, number_as_text])
def test_texts_that_are_known_at_run_time_only_have_no_formats(kernel: Any) -> None:
    with pytest.raises(KernelTypeError, match=r"known only at run time|format code 'd'"):
        kernel(torch.zeros(1))


@weft.kernel
def checked(x: torch.Tensor, n: int, u: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        assert x[i] < 2, f"x[{i}] is {x[i]:.2f}, {{not}} below {2:.1f} of {n}, {u[i]}, {u[i]:#x}"


@weft.kernel
def plain_values(x: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        assert x[i] < 2, (i, x[i])


@weft.kernel
def late(x: torch.Tensor, k: torch.Tensor) -> None:
    for i in range(k.shape[0]):
        assert k[i] == 0, f"{x[k[i] - 1]}"  # where k[i] is 0, nothing of x is read
        x[i] += 1


@pytest.mark.parametrize("place", [lambda kernel: kernel, emulated], ids=["compiled", "emulated"])
def test_a_failed_assertion_says_its_values(place: Any) -> None:
    x = torch.tensor([1.0, 2.625, 1.0])
    u = torch.tensor([0, 2**64 - 1, 0], dtype=torch.uint64)
    with pytest.raises(weft.KernelAssertionError) as error:
        place(checked)(x, 7, u)
    line = str(error.value).splitlines()[0]
    most = 2**64 - 1
    assert line.endswith(f"x[1] is 2.62, {{not}} below 2.0 of 7, {most}, {most:#x}")
    with pytest.raises(weft.KernelAssertionError, match=r"\(1, 2.625\)"):
        place(plain_values)(x)
    before = x.clone()
    place(late)(x, torch.zeros(3, dtype=torch.int64))
    assert torch.equal(x, before + 1)


@pytest.mark.parametrize(
    ("form", "kind", "values"),
    [
        *((f, "float", (1.5, -0.25, 1e10, 123.456)) for f in
          (".3f", "8.2e", "+.1f", "<9.2f", "07.2f", ".4g", "G", "9.1%", ".0%", ">12.3E")),
        *((f, "int", (0, 7, -12345)) for f in ("d", "5", "<6d", "+d", "05d", " 4d", "7.2f", ".1%")),
        *((f, "unsigned", (0, 255, 1 << 40)) for f in ("x", "X", "012o", "<9x", "d")),
    ],
)  # fmt: skip
def test_formats_on_cuda_are_pythons(form: str, kind: str, values: tuple[float, ...]) -> None:
    """What C's printf makes of the directive that is written for CUDA's."""
    printf = ctypes.CDLL(None).snprintf
    t: ScalarType = f32 if kind == "float" else i64
    e = Emitter(Module(), CudaTarget([]))
    directive, word = _directive(Op("weft.print", [], []), form, t, kind == "unsigned")
    wants, _ = word(e, "%v")
    for value in values:
        scaled = value * 100 if form.endswith("%") else value
        passed = (ctypes.c_double if wants == "double" else ctypes.c_longlong)(scaled)  # type: ignore[arg-type]
        text = ctypes.create_string_buffer(99)
        printf(text, ctypes.c_size_t(99), directive.encode(), passed)
        assert text.value.decode() == format(value, form)


@pytest.mark.parametrize(
    ("form", "t"), [("^7", f32), ("x", i32), (",", i32), (".3", f32), ("*>5", f32), ("<9%", f32)]
)
def test_formats_that_cuda_has_not_are_refused(form: str, t: ScalarType) -> None:
    with pytest.raises(KernelTypeError, match="on CUDA"):
        _directive(Op("weft.print", [], []), form, t, False)


def test_formats_are_in_the_text_for_cuda() -> None:
    args = torch.empty(3), torch.empty(3, dtype=torch.int32), torch.empty(3, dtype=torch.uint32)

    @weft.kernel
    def shown(x, k, u):
        for i in range(x.shape[0]):
            print(f"{x[i]:.3f} {k[i]:5d} {u[i]:x} {i}")
            assert k[i] > 0, f"{x[i]:.3f}"

    (loop,) = compile_for("sm_90", shown, *args)
    codes = ", ".join(map(str, b"%.3f %5lld %llx %lld\n"))
    assert codes in loop.ptx


@weft.kernel
def unknown(x: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        print(f"{i:.2q}")


@weft.kernel
def of_run_time(x: torch.Tensor, n: int) -> None:
    for i in range(x.shape[0]):
        print(f"{x[i]:.{n}f}")


@weft.kernel
def of_a_tuple(x: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        print(f"{(i, x[i]):5}")


def test_formats_that_make_no_sense_are_refused_before_the_loop_runs() -> None:
    x = torch.zeros(2)
    with pytest.raises(KernelTypeError, match="Unknown format code 'q' for object of type 'int'"):
        unknown(x)
    with pytest.raises(SyntaxError, match="a format that is known only at run time"):
        of_run_time(x, 2)
    with pytest.raises(KernelTypeError, match="a format of a tuple"):
        of_a_tuple(x)


@weft.kernel
def formatted(x: weft.i32, y: weft.f32) -> None:
    for i in range(1):
        print("{} and {:.2f}; {{}} {name!r}".format(x, y, name=i))  # noqa: UP032
        print("{1:.1f} {0} {0}".format(x, y))  # noqa: UP032
        assert x == 4, "x = {}, y = {:.2f}".format(x, y)  # noqa: UP032


def test_format_with_a_literal_is_an_f_string(capfd: pytest.CaptureFixture[str]) -> None:
    formatted(4, 2.5)
    assert capfd.readouterr().out == "4 and 2.50; {} 0\n2.5 4 4\n"
    with pytest.raises(KernelAssertionError, match=r"x = 3, y = 2\.50"):
        formatted(3, 2.5)


@weft.kernel
def formatted_draws() -> None:
    for i in range(1):
        print("{1} {0}".format(weft.random(), i))  # noqa: UP030, UP032


@weft.kernel
def mixed_numbering(x: weft.i32) -> None:
    for i in range(1):
        print("{} {0}".format(x, i))  # noqa: F523, F525


@weft.kernel
def malformed(x: weft.i32) -> None:
    for _i in range(1):
        print("{".format(x))  # noqa: F521


def test_braces_that_do_not_match_are_told_with_their_line() -> None:
    with pytest.raises(KernelSyntaxError, match=r"test_texts.py:\d+.*Single '{'"):
        malformed(1)


@pytest.mark.parametrize("call", [formatted_draws, lambda: mixed_numbering(1)])
def test_formats_that_f_strings_do_not_have_are_refused(call: Any) -> None:
    with pytest.raises(KernelTypeError, match="cannot be called in a device loop"):
        call()

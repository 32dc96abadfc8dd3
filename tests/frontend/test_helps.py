"""What an error says to write instead is right: the program that follows it runs, and computes what
the undecorated Python does."""

from __future__ import annotations

import pytest
import torch

import weft
from tests.fuzz.check import function

# (a line of a loop over `x`, what the help says, the line that follows it)
LINES = {
    "too few names": ("a, b = (v, v, 1.0)", "write as many names as there are values",
                      "a, b, c = (v, v, 1.0); out[i] = a + b + c"),
    "@ of a scalar": ("out[i] = (weft.Vector([v, v]) @ 2.0)[0]", "use `*` with a scalar",
                      "out[i] = (weft.Vector([v, v]) * 2.0)[0]"),
    "a call of a number": ("out[i] = v(1)", "call a function", "out[i] = abs(v)"),
    "an argument too many": ("out[i] = twice(v, v)", "it is defined as twice(v)",
                             "out[i] = twice(v)"),
    "static of a value": ("for k in weft.static(range(int(v))):\n            out[i] += k",
                          "constants, template() arguments, and shapes of local arrays are known",
                          "for k in weft.static(range(3)):\n            out[i] += k"),
    "a shape that is not known": ("a = weft.zeros(i)", "use constants or template() arguments; "
                                  "weft.zeros(n, weft.f32, most=64) is an array of at most so many",
                                  "a = weft.zeros(3); out[i] = a[0]"),
    "an array of vectors": ("a = weft.zeros(3, weft.types.vector(2, weft.f32))",
                            "give it one more dimension: weft.zeros((n, 3))",
                            "a = weft.zeros((3, 2)); out[i] = a[2, 1]"),
    "no dimension": ("out[i] = x.size(1)", "write a constant, -1 to 0", "out[i] = x.size(-1)"),
    "no type": ("out[i] = weft.cast(v, 3)",
                "write a dtype such as weft.f32, torch.float32, int or float",
                "out[i] = weft.cast(v, torch.float32)"),
    "a sum of an element": ("out[i] = x[i].sum()",
                            "it is one number, not a row: write what that comes to",
                            "out[i] = x[i]"),
    "is": ("out[i] = 1.0 if v is x[0] else 2.0", "write ==, or compare with None",
           "out[i] = 1.0 if v == x[0] and v is not None else 2.0"),
    "an order of texts": ("out[i] = 1.0 if 'a' < 1 else 2.0", "compare numbers",
                          "out[i] = 1.0 if 0 < 1 else 2.0"),
    "modulo of complex numbers": ("out[i] = ((v * 1j) % 2).real",
                                  "write it of z.real and z.imag", "out[i] = (v * 1j).imag % 2"),
    "an order of complex numbers": ("out[i] = 1.0 if v * 1j < 2 else 2.0",
                                    "compare abs(z), z.real or z.imag",
                                    "out[i] = 1.0 if abs(v * 1j) < 2 else 2.0"),
    "a message of many values": (f"assert v == v, f'{'{v}' * 16}'",
                                 "15 fit: print(...) the others before",
                                 f"assert v == v, f'{'{v}' * 15}'"),
    "print to a file": ("print(v, file=None)", "leave the other keywords out",
                        "print(v, sep=' ', end='')"),
    "a format": ("print(f'{v:.{i}f}')", "write the width and the precision as numbers: {x:8.3f}",
                 "print(f'{v:8.3f}')"),
    "an f-string": ("a = f'{v}'", 'f-strings can be printed: print(f"...")', "print(f'{v}')"),
    "a slice by 0": ("a = (v, v, 1.0)[::0]", "write a[1:3]",
                     "a = (v, v, 1.0)[1:3]; out[i] = a[1]"),
    "a range by 0": ("for k in range(0, 5, 0):\n            out[i] += k", "use 1 or -1",
                     "for k in range(5, 0, -1):\n            out[i] += k"),
    "an atomic of booleans": ("weft.atomic_add(flags[i], True)", "use atomic_or or atomic_and",
                              "weft.atomic_or(flags[i], True)"),
    "grouped of a number": ("for J in weft.grouped(3):\n            out[i] += J[0]",
                            "write weft.grouped(x) or weft.grouped(weft.ndrange(n, m))",
                            "for J in weft.grouped(weft.ndrange(2)):\n            out[i] += J[0]"),
    "a breakpoint": ("breakpoint()", "run the Python itself: WEFT_INTERPRET=1, or "
                     "kernel.interpret(...)", None),
}  # fmt: skip

HEAD = """
def twice(v):
    return v * 2.0


def kernel(x, out, flags):
    for i in range(x.shape[0]):
        v = x[i]
        """


def made(line: str) -> weft.Kernel:
    return weft.kernel(function(HEAD + line.replace("; ", "\n        ") + "\n"))


def arguments() -> list[torch.Tensor]:
    return [torch.tensor([0.5, -1.5, 3.25]), torch.zeros(3), torch.zeros(3, dtype=torch.bool)]


@pytest.mark.parametrize("name", LINES)
def test_what_an_error_says_to_write_runs(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    wrong, help, right = LINES[name]
    with pytest.raises(weft.CompileError) as error:
        made(wrong)(*arguments())
    assert error.value.help == help
    if right is not None:
        kernel, found, expected = made(right), arguments(), arguments()
        kernel(*found)
        kernel.interpret(*expected)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)


def test_what_the_host_part_says_to_write_runs() -> None:
    assert list(weft.ndrange(2)) == [0, 1]
    with pytest.raises(weft.CompileError, match="takes a tensor or an ndrange"):
        weft.grouped(3)  # pyright: ignore[reportArgumentType]
    assert len(list(weft.grouped(weft.ndrange(2, 3)))) == 6
    with pytest.raises(weft.CompileError, match="a vector needs elements"):
        weft.Vector([])
    with pytest.raises(weft.CompileError, match="needs a dtype"):
        weft.field(shape=3)
    assert weft.field(weft.f32, shape=128).shape == (128,)


def test_isinstance_of_what_is_passed():
    @weft.kernel
    def scaled(x, by=None):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            if isinstance(by, torch.Tensor):
                out[i] = x[i] * by[i]
            elif by is None or isinstance(by, (str, list)):
                out[i] = x[i]
            else:
                out[i] = x[i] * by
        return out

    x = torch.tensor([1.0, 2.0])
    for by in (None, 2, 2.5, "none", torch.tensor([3.0, 4.0])):
        assert torch.equal(scaled(x, by), scaled.function(x, by))

    @weft.kernel
    def refused(x, by):
        for i in range(x.shape[0]):
            if isinstance(by, int):  # one of NumPy's is none, which nobody knows here
                x[i] = 0.0

    with pytest.raises(weft.KernelTypeError, match="a loop for each case"):
        refused(x, 2)

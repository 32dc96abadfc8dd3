"""What the disk cache knows of loops: it answers where all that lowering read is as it was."""

import importlib.util
import itertools
import math
import os
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import weft
from weft.runtime import build, gpu, lowering, maker

_numbers = itertools.count()

TEXT = """
import math
import torch
import weft
{top}

@weft.kernel
def kernel(x: torch.Tensor{parameters}) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        {body}
    return out
"""


@pytest.fixture
def process(tmp_path, monkeypatch):
    """Runs a kernel as a new process would: whether a loop was lowered, and the result."""
    lowered = []
    real = lowering.lower
    monkeypatch.setattr(lowering, "lower", lambda *a, **k: lowered.append(1) or real(*a, **k))

    def run(body, *args, top="", parameters="", change=lambda module: None, x=None, calls=1):
        path = tmp_path / "kernels.py"
        text = TEXT.format(top=top, body=body, parameters=parameters)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
        spec = importlib.util.spec_from_file_location(f"kernels{next(_numbers)}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        kernel = module.kernel
        kernel.__dict__["options"] = replace(kernel.options, cache_dir=tmp_path / "cache",
                                             cache=True)  # fmt: skip
        change(module)
        lowered.clear()
        x = torch.tensor([1.0, 2.0, 3.0]) if x is None else x
        for _ in range(calls):
            result = kernel(x, *args)
        return bool(lowered), result.tolist(), kernel

    return run


def same(process, *args, **kwargs):
    """The second process does not lower the loop, and computes the same."""
    first = process(*args, **kwargs)
    second = process(*args, **kwargs)
    assert (first[0], second[0]) == (True, False)
    assert first[1] == second[1]
    return second


def test_constants_functions_and_modules(process):
    top = "from math import pi\nK = 3\ndef f(a, b=2.0):\n    return g(a) * b\n"
    top += "def g(a):\n    return a + K"
    _, result, _ = same(process, "out[i] = f(x[i]) + weft.floor(pi) + math.tau * 0", top=top)
    assert result == [11.0, 13.0, 15.0]


def test_a_function_that_is_passed(process):
    same(process, "out[i] = math.exp(x[i]) * 0 + n", 4, parameters=", n: int")
    same(process, "out[i] = f(x[i])", torch.sqrt, parameters=", f")
    assert process("out[i] = f(x[i])", torch.exp, parameters=", f")[0]
    assert process("out[i] = f(x[i])", math.sqrt, parameters=", f")[0]


CHANGES = {
    "a global": ("out[i] = x[i] * K", "K = 2", lambda m: setattr(m, "K", 5), [5.0, 10.0, 15.0]),
    "the type of a global": (
        "out[i] = x[i] / K // 1",
        "K = 1",
        lambda m: setattr(m, "K", 0.5),
        [2.0, 4.0, 6.0],
    ),
    "what a function reads": (
        "out[i] = f(x[i])",
        "K = 2\ndef f(a):\n    return a * K",
        lambda m: setattr(m, "K", 5),
        [5.0, 10.0, 15.0],
    ),
    "a function": (
        "out[i] = f(x[i])",
        "def f(a):\n    return a\ndef g(a):\n    return 3 * a",
        lambda m: setattr(m, "f", m.g),
        [3.0, 6.0, 9.0],
    ),
    "the default of a parameter": (
        "out[i] = f(x[i])",
        "def f(a, b=2.0):\n    return a * b",
        lambda m: setattr(m.f, "__defaults__", (5.0,)),
        [5.0, 10.0, 15.0],
    ),
    "a closure": (
        "out[i] = f(x[i])",
        "def make(n):\n    def f(a):\n        return a * n\n    return f\nf = make(2)",
        lambda m: setattr(m.f.__closure__[0], "cell_contents", 9),
        [9.0, 18.0, 27.0],
    ),
    "the code of a function": (
        "out[i] = f(x[i])",
        "def f(a):\n    return a\ndef g(a):\n    return 4 * a",
        lambda m: setattr(m.f, "__code__", m.g.__code__),
        [4.0, 8.0, 12.0],
    ),
    "what is in a list": (
        "out[i] = f(x[i])",
        "L = [1.0, 2.0]\ndef f(a):\n    for k in weft.static(range(len(L))):\n"
        "        a += L[k]\n    return a",
        lambda m: m.L.append(5.0),
        [9.0, 10.0, 11.0],
    ),
    "the sign of a zero": (
        "out[i] = f(x[i])",
        "Z = 0.0\ndef f(a):\n    return 1.0 / (a * Z)",
        lambda m: setattr(m, "Z", -0.0),
        [-math.inf] * 3,
    ),
    "a function of a library": (
        "out[i] = f(x[i])",
        "f = abs",
        lambda m: setattr(m, "f", weft.floor),
        [1.0, 2.0, 3.0],
    ),
    "what hides a builtin": (
        "out[i] = max(x[i], 2.0)",
        "",
        lambda m: setattr(m, "max", min),
        [1.0, 2.0, 2.0],
    ),
    "what an annotation means": (
        "out[i] = f(x[i] + 0.5)",
        "real = weft.f32\ndef f(a: real):\n    return a",
        lambda m: m.f.__annotations__.update(a=weft.i32),
        [1.0, 2.0, 3.0],
    ),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.sampled(3)
def test_what_has_changed_is_lowered(process, what):
    body, top, change, expected = CHANGES[what]
    same(process, body, top=top)
    was_lowered, result, _ = process(body, top=top, change=change)
    assert was_lowered
    assert result == expected


def test_a_name_that_the_file_imports(process, tmp_path, monkeypatch):
    """An alias of another module: the kernel's own file is as it was."""
    monkeypatch.syspath_prepend(tmp_path)
    config = tmp_path / f"config{next(_numbers)}.py"
    body, top = "out[i] = c.f(x[i]) * c.K", f"import {config.stem} as c"
    config.write_text("K = 2\ndef f(a):\n    return a\n")
    same(process, body, top=top)
    module = __import__(config.stem)
    module.K = 7
    assert process(body, top=top)[:2] == (True, [7.0, 14.0, 21.0])
    config.write_text("K = 7\ndef f(a):\n    return -a  # another\n")
    os.utime(config, (1, 1))
    spec = importlib.util.spec_from_file_location(config.stem, config)
    spec.loader.exec_module(module)
    assert process(body, top=top)[:2] == (True, [-7.0, -14.0, -21.0])


def test_objects_are_lowered_each_time(process):
    top = "class C:\n    k = 2.0\nc = C()\ndef f(a):\n    return a * c.k"
    for _ in range(2):
        assert process("out[i] = f(x[i])", top=top)[:2] == (True, [2.0, 4.0, 6.0])
    same(process, "out[i] = x[i] * c.k", top=top)  # the host part reads it


def test_guards_hold_after_a_call_from_the_cache(process):
    body, top = "out[i] = x[i] * K + f(x[i])", "K = 2\ndef f(a):\n    return a * K"
    _, _, kernel = same(process, body, top=top)
    kernel.function.__globals__["K"] = 10
    assert kernel(torch.tensor([1.0, 2.0, 3.0])).tolist() == [20.0, 40.0, 60.0]
    kernel.function.__globals__["f"] = lambda a: a
    assert kernel(torch.tensor([1.0, 2.0, 3.0])).tolist() == [11.0, 22.0, 33.0]


def test_dtypes_and_layouts_are_told_apart(process):
    body = "out[i] = x[i] // 2"
    same(process, body)
    for x in (torch.tensor([1, 2, 3]), torch.arange(6.0)[::2], torch.ones(3, dtype=torch.float64)):
        assert process(body, x=x)[0]
        assert not process(body, x=x)[0]


def test_the_ir_is_made_when_it_is_asked_for(process):
    body = "out[i] = x[i] * x[i]"
    _, _, kernel = same(process, body)
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    kernel(x).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0, 6.0]
    compiled = kernel.specializations[0].compiled
    assert compiled.function.name == compiled.loop.summary.name == "kernel_0"


def test_arguments_that_share_memory(process):
    body = "x[i] = out[i] = y[i] + 1"
    y = torch.zeros(8)
    _, _, kernel = same(process, body, y[:3], parameters=", y: torch.Tensor", x=torch.zeros(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel(y[1:], y[:-1])
    assert y.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


def test_warnings_are_given_in_each_process(process):
    body = "s = x[0]\n        for v in range(3):\n            s += x[v]\n        out[i] = s"
    same(process, body)
    x = torch.ones(3, dtype=torch.int8)
    narrow = "t = 0\n        for k in range(3):\n            t += x[k]\n        out[i] = t"
    for _ in range(2):
        with pytest.warns(weft.frontend.advice.LoopWarning):
            assert process(narrow, x=x)[0]


def test_a_changed_file_is_lowered(process, tmp_path):
    """Even where the kernel's own text, and its line, are as they were."""
    body = "out[i] = x[i]"
    same(process, body, top="A = 1")
    assert process(body, top="A = 2")[0]


def test_a_gpu_takes_what_is_known(process):
    """Facts from the cache need no IR, and no compiler."""
    asked = []

    def spy(module):
        launcher = module.kernel.launchers[0]
        launcher.forms.compile_region = lambda place, *a, **k: (
            asked.append(a) or build.compile_region(place, *a, **k)
        )

    body = "out[i] = x[i] * 2"
    process(body, change=spy)
    first = build.compile_region(gpu.CUDA, *asked.pop())
    was_lowered, _, _ = process(body, change=spy)
    second = build.compile_region(gpu.CUDA, *asked.pop())
    assert not was_lowered
    assert (first.origin, second.origin) == ("compiled", "disk")
    assert "function" not in vars(second.loop)
    assert second.facts == first.facts
    assert second.loop.summary == first.loop.summary
    assert second.loop.summary.types == tuple(a.type for a in first.function.args)


def test_a_compiler_that_was_edited_while_the_process_ran_is_no_other_ones(monkeypatch):
    """Modules are imported when they are needed: from before the edit, and from after it."""
    made_by = maker.compiler.__wrapped__
    files = Path(weft.__file__).parent.rglob("*.py")
    assert made_by() == made_by()
    monkeypatch.setattr(maker, "STARTED", max(file.stat().st_ctime_ns for file in files))
    assert made_by() != made_by()

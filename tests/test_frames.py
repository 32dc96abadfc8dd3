"""What a user sees of a traceback: the whole of it, printed by a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import weft
from weft.frames import shorten, user_frames
from weft.options import default_options

PROGRAM = """\
import torch, weft

@weft.kernel
def inner(x):
    for i in x:
        x[i] = x[i, 0]

def helper(x):
    inner(x)

@weft.kernel
def outer(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    helper(y)
    for i in y:
        y[i] += 1.0
    return y

@weft.kernel
def fails(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    if y.sum() > 0:
        raise ValueError("mine")
    for i in y:
        y[i] += 1.0
    return y

"""
MESSAGE = """\
weft.errors.KernelIndexError: FILE:6: in kernel `inner`: `x` has 1 dimension, but 2 subscripts are given
    x[i] = x[i, 0]
           ^^^^^^^
help: write x[i]
"""  # noqa: E501
FRAMES = """\
  File "FILE", line 14, in outer
    helper(y)
  File "FILE", line 9, in helper
    inner(x)
  File "FILE", line 5, in inner
    for i in x:
    ^^^^^^^^^^
"""


CALLS = """\
from traceback import print_exc
def show(call):
    try:
        call()
    except Exception:
        print_exc()

show(lambda: fails(torch.ones(3)))
try:
    [][0]
except IndexError:
    show(lambda: inner(torch.ones(3)))
outer(torch.ones(3))
"""
PRINTED = """\
Traceback (most recent call last):
  File "FILE", line 31, in show
    call()
  File "FILE", line 35, in <lambda>
    show(lambda: fails(torch.ones(3)))
                 ^^^^^^^^^^^^^^^^^^^^
  File "FILE", line 23, in fails
    raise ValueError("mine")
ValueError: mine
Traceback (most recent call last):
  File "FILE", line 37, in <module>
    [][0]
    ~~^^^
IndexError: list index out of range

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "FILE", line 31, in show
    call()
  File "FILE", line 39, in <lambda>
    show(lambda: inner(torch.ones(3)))
                 ^^^^^^^^^^^^^^^^^^^^
  File "FILE", line 5, in inner
    for i in x:
    ^^^^^^^^^^
"""
UNCAUGHT = """\
Traceback (most recent call last):
  File "FILE", line 40, in <module>
    outer(torch.ones(3))
"""


def stderr(tmp_path: Path, **environment: str) -> str:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM + CALLS)
    variables = {k: v for k, v in os.environ.items() if k != "WEFT_TRACEBACK"} | environment
    done = subprocess.run(
        [sys.executable, str(file)], env=variables, cwd=os.getcwd(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    return done.stderr.replace(str(file), "FILE")


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="marks other parts of a line")
def test_a_printed_traceback_has_the_users_frames_alone(tmp_path: Path) -> None:
    assert stderr(tmp_path) == PRINTED + MESSAGE + UNCAUGHT + FRAMES + MESSAGE


@pytest.mark.slow
def test_all_frames_where_they_are_asked_for(tmp_path: Path) -> None:
    text = stderr(tmp_path, WEFT_TRACEBACK="full")
    assert text.endswith(MESSAGE)
    assert "weft/kernel.py" in text
    assert "weft/frontend/lower.py" in text


def test_what_the_variable_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_TRACEBACK", "loud")
    with pytest.raises(ValueError, match=r"^WEFT_TRACEBACK='loud': write WEFT_TRACEBACK=full or"):
        default_options.__wrapped__()


def frames(call) -> list[str]:
    """The functions in the traceback of what ``call()`` raises, this one's left out."""
    with pytest.raises((weft.WeftError, IndexError)) as info:
        call()
    names = [f.name for f in traceback.extract_tb(info.value.__traceback__)]
    return [n for n in names if n not in ("frames", "<lambda>")]


def wrong(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    for i in y:
        y[i] = x[i, 0]
    return y


def test_every_way_into_a_kernel_shows_the_users_frames() -> None:
    x = torch.ones(3)
    k = weft.kernel(wrong)
    assert frames(lambda: k(x)) == ["wrong"]
    assert frames(lambda: k(x)) == ["wrong"]  # not only the first time
    assert frames(lambda: k.inspect(x)) == ["wrong"]
    assert frames(lambda: k.interpret(x)) == ["wrong"]
    assert frames(lambda: k.backward.inspect(x)) == ["wrong"]
    assert frames(lambda: k()) == []
    assert frames(lambda: k(x, x)) == []
    annotated = weft.kernel(wrong).op
    assert frames(lambda: annotated(x)) == ["__call__", "wrong"]  # the first is torch's


def test_a_mistake_of_wefts_keeps_its_frames() -> None:
    scope: dict[str, Callable[[], None]] = {"__name__": "weft.somewhere"}  # type: ignore[dict-item]
    exec("def broken():\n    [][0]\n", scope)

    @user_frames
    def entry() -> None:
        scope["broken"]()

    assert frames(entry) == ["call", "entry", "broken"]


def test_an_error_without_a_traceback_is_left_alone() -> None:
    error = weft.KernelTypeError("no traceback")
    shorten(error)
    assert error.__traceback__ is None

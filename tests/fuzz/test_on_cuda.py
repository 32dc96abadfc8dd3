"""What runs random programs on a device moves arguments there and back; here, the device is the CPU
once more."""

import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import weft
from tests.fuzz.on_cuda import main, on_device, outcome, run

SEEN = []


def kernel(x, y, out):
    SEEN.append((x, y, out))
    for i in range(out.shape[0]):
        out[i] = 2.0 * x[i] + y[i]
    return out


def test_arguments_go_there_and_back() -> None:
    base = torch.arange(9.0)
    x, y, out = base[::2][:4], base[1:5], torch.full((4,), -1.0)
    expected = 2.0 * x + y
    SEEN.clear()
    with on_device("cpu"):
        found = weft.kernel(kernel)(x, y, out)
    (x_there, y_there, out_there), *_ = SEEN
    assert torch.equal(out, expected)
    assert found.data_ptr() == out.data_ptr()
    assert x_there.data_ptr() != x.data_ptr()
    assert x_there.stride() == x.stride()
    assert x_there.untyped_storage().data_ptr() == y_there.untyped_storage().data_ptr()
    assert out_there.data_ptr() != out.data_ptr()


@dataclass
class Record:
    first: torch.Tensor
    more: list[torch.Tensor]
    name: str = "a name"


def recorded(x, out):
    for i in range(out.shape[0]):
        out[i] = 2.0 * x[i]
    return Record(out, [x[1:]])


def test_what_a_record_holds_comes_back() -> None:
    x, out = torch.arange(4.0), torch.full((4,), -1.0)
    with on_device("cpu"):
        found = weft.kernel(recorded)(x, out)
    assert found.name == "a name"
    assert torch.equal(found.first, 2.0 * x)
    assert found.first.data_ptr() == out.data_ptr()
    assert found.more[0].data_ptr() == x[1:].data_ptr()


def test_gradients_come_back() -> None:
    x, y = (torch.randn(3, requires_grad=True) for _ in range(2))
    with on_device("cpu"):
        weft.kernel(kernel)(x, y, torch.empty(3)).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))
    assert torch.equal(y.grad, torch.ones(3))


def test_a_program_that_differs_is_told_with_its_seed(tmp_path: Path) -> None:
    assert outcome("plain", 5, "cpu") == "agrees"
    log = tmp_path / "log"
    found = run({"no such form": 1}, 60, 1, "cpu", str(log))
    assert found.words["no such form"] == {"wrong": 1}
    ((form, seed, message),) = found.wrong
    assert form == "no such form"
    assert "KeyError" in message
    text = log.read_text()
    assert f"no such form {seed}:\n{message}" in text
    assert text.endswith("1 wrong\n1 programs, 1 to look at\n\n")


def test_what_was_found_is_told_where_the_process_is_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    given = [sys.executable, "-m", "tests.fuzz.on_cuda", "--device", "cpu", "--processes", "1"]
    process = subprocess.Popen([*given, "--forms", "plain,captured", "--log", log])
    begin = time.monotonic()
    while not log.exists() and time.monotonic() - begin < 60:
        time.sleep(0.1)
    process.terminate()
    assert process.wait() != 0
    assert re.search(r"after \d+ s:\nplain +\d+  .*\ncaptured ", log.read_text())


def test_a_form_that_there_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["on_cuda", "--device", "cpu", "--forms", "plain,stone"])
    with pytest.raises(SystemExit):
        main()
    assert "no form is called 'stone': there are plain, rows, nests" in capsys.readouterr().err

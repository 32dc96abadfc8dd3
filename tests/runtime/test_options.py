"""The environment variables, each in a process of its own."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import torch, weft
@weft.kernel
def fill(x):
    for i in range(x.shape[0] + {extra}):
        x[i] = 7.0
x = torch.zeros(8)
fill(x[:4])
print(x.tolist(), [s.origin for s in fill.specializations])
"""


def run(tmp_path, extra=0, **environment):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.format(extra=extra))
    variables = {k: v for k, v in os.environ.items() if not k.startswith("WEFT_")}
    variables |= {"WEFT_CACHE_DIR": str(tmp_path / "cache")} | environment
    return subprocess.run(
        [sys.executable, str(file)], env=variables, cwd=os.getcwd(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_the_disk_cache_is_used_by_the_next_process(tmp_path):
    out = "[7.0, 7.0, 7.0, 7.0, 0.0, 0.0, 0.0, 0.0]"
    assert run(tmp_path).stdout == f"{out} ['compiled']\n"
    assert run(tmp_path).stdout == f"{out} ['disk']\n"
    assert run(tmp_path, WEFT_CACHE="0").stdout == f"{out} ['compiled']\n"
    for entry in (tmp_path / "cache").iterdir():
        entry.write_bytes(entry.read_bytes()[:-7])
    assert run(tmp_path).stdout == f"{out} ['compiled']\n"
    assert run(tmp_path).stdout == f"{out} ['disk']\n"


@pytest.mark.parametrize("variable", ["WEFT_DEBUG", "WEFT_INTERPRET"])
def test_checks_by_the_environment(tmp_path, variable):
    result = run(tmp_path, extra=1, **{variable: "1"})
    assert "KernelIndexError" in result.stderr
    assert "x[i] = 7.0" in result.stderr


def test_logs_say_what_is_compiled_and_why(tmp_path):
    result = run(tmp_path, WEFT_LOGS="specialize")
    assert "[weft.specialize] fill, loop at line 5: x: f32[:] (new signature)" in result.stderr


def test_a_wrong_value_is_an_error(tmp_path):
    assert "WEFT_DEBUG='maybe': write WEFT_DEBUG=1" in run(tmp_path, WEFT_DEBUG="maybe").stderr

"""The environment variables, each in a process of its own."""

import os
import re

import pytest

from tests import processes
from weft.options import LOG_NAMES, Options, default_options
from weft.passes.run import PIPELINE
from weft.runtime.cache import DiskCache

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


COUNT = """
import torch, weft
@weft.kernel
def count(x, idx, bins, out):
    for i in range(x.shape[0]):
        bins[idx[i]] += x[i]
        out[idx[i]] = x[i]
        x[i] *= 2.0
for _ in range(2):
    count(torch.ones(3), torch.tensor([0, 2, 1]), torch.zeros(3), torch.zeros(3))
"""


def run(tmp_path, extra=0, program=PROGRAM, **environment):
    file = tmp_path / "program.py"
    file.write_text(program.replace("{extra}", str(extra)))
    variables = {k: v for k, v in os.environ.items() if not k.startswith("WEFT_")}
    return processes.run(
        file, variables | {"WEFT_CACHE_DIR": str(tmp_path / "cache")} | environment
    )


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


# What each log says of COUNT: a line of it, or all, as a regular expression.
LOGS = {
    "source": r"""
\[weft\.source\] count_0:
    for i in range\(x\.shape\[0\]\): +# i: int
        bins\[idx\[i\]\] \+= x\[i\]
        out\[idx\[i\]\] = x\[i\]
        x\[i\] \*= 2\.0
""",
    "races": r"""
\[weft\.races\] count_0: `x`: free of conflicts, proven
\[weft\.races\] count_0: `bins`: free of conflicts, proven
\[weft\.races\] count_0: `out`: not decided, `out\[idx\[i\]\]` at line 7 may meet itself
\[weft\.races\] count_0: `x\[i\]` at line 8 is plain
\[weft\.races\] count_0: `bins\[idx\[i\]\]` at line 6 is atomic
""",
    "passes": "\n" + "".join(
        rf"\[weft\.passes\] count_0: {step.__name__:<23} +\d+\.\d{{3}} ms, \d+ -> \d+ operations\n"
        for step in PIPELINE if step.__name__ != "advance"  # for GPUs
    ),
    "launch": r"""
\[weft\.launch\] count, loop at line 5: on cpu with at most \d+ threads, 60 bytes in 4 tensors
""",
    "schedule": r"\n\[weft\.schedule\] count_0: by `[^`\n]*`(: LLVM vectorises)?\n",
    "time": r"\n\[weft\.time\] count_0, compiled\n(( *[a-z._]+ +\d+\.\d{3} ms)\n)+",
    "asm": r"\n\[weft\.asm\] (.*\n)+?weft_count_0:\n(.*\n)+\tret.?\n(.*\n)*",
}  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.sampled(3)
def test_each_log_says_what_it_is_for(tmp_path, name):
    said = run(tmp_path, program=COUNT, WEFT_LOGS=name)
    assert said.stdout == ""
    assert re.fullmatch(LOGS[name], "\n" + said.stderr), said.stderr
    if name in ("passes", "races", "asm"):  # what comes from the disk cache was not compiled
        assert run(tmp_path, program=COUNT, WEFT_LOGS=name).stderr == ""
    if name == "time":
        stages = re.findall(r"^ *([a-z._]+) ", said.stderr, re.MULTILINE)
        assert {"frontend", "races", "passes.relax_atomics", "emit", "llvm", "load"} <= set(stages)
        again = run(tmp_path, program=COUNT, WEFT_LOGS=name).stderr
        assert re.fullmatch(
            r"\[weft\.time\] count_0, disk\n"
            r"frontend +\d+\.\d{3} ms\nload +\d+\.\d{3} ms\n", again
        )  # fmt: skip


def test_debug_mode_logs_what_is_checked_at_run_time(tmp_path):
    said = run(tmp_path, program=COUNT, WEFT_LOGS="races", WEFT_DEBUG="1").stderr
    checked = [line for line in said.splitlines() if "run time" in line]
    assert checked == ["[weft.races] count_0: `out[idx[i]]` at line 7 is checked at run time"]


def test_a_proven_race_is_logged_before_it_is_raised(tmp_path):
    program = COUNT.replace("x[i] *= 2.0", "x[0] = 2.0")
    said = run(tmp_path, program=program, WEFT_LOGS="races").stderr
    assert "[weft.races] count_0: `x`: conflict, proven: iteration" in said
    assert "RaceError" in said


def test_every_log_can_be_turned_on_and_other_names_are_warned_of(tmp_path):
    tuned = "weft.tune(count, torch.ones(1), torch.tensor([0]), *torch.zeros(2, 1), most=0)\n"
    said = run(tmp_path, program=COUNT + tuned, WEFT_LOGS="all").stderr
    assert set(re.findall(r"^\[weft\.(\w+)\]", said, re.MULTILINE)) == set(LOG_NAMES)
    said = run(tmp_path, program=COUNT, WEFT_LOGS="speed").stderr
    assert said == (
        "[weft] WEFT_LOGS: no log is called 'speed'; there are " + ", ".join(LOG_NAMES) + "\n"
    )


def test_a_wrong_value_is_an_error(tmp_path):
    assert "WEFT_DEBUG='maybe': write WEFT_DEBUG=1" in run(tmp_path, WEFT_DEBUG="maybe").stderr


def options(monkeypatch, **environment):
    for name in [name for name in os.environ if name.startswith("WEFT_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return default_options.__wrapped__()


@pytest.mark.parametrize(("name", "default"), [
    ("WEFT_CACHE_MB", 512), ("WEFT_TAPE_MB", 16), ("WEFT_STREAMING_MB", 32),
])  # fmt: skip
def test_a_size_that_is_no_number_is_an_error_with_its_name(monkeypatch, name, default):
    for value in ("abc", "1.5", "-3", "²"):
        with pytest.raises(ValueError, match=name) as raised:
            options(monkeypatch, **{name: value})
        assert str(raised.value) == (
            f"{name}={value!r}: write a whole number of megabytes, {name}={default}"
        )


def test_an_empty_value_is_the_default(monkeypatch):
    names = ("WEFT_CACHE_MB", "WEFT_TAPE_MB", "WEFT_CACHE_DIR", "WEFT_CACHE", "WEFT_DEBUG",
             "WEFT_STREAMING_MB")  # fmt: skip
    assert options(monkeypatch, **dict.fromkeys(names, " ")) == Options()
    assert options(monkeypatch, WEFT_CACHE_MB=" 7 ").cache_bytes == 7 << 20


MOVES = """
import os, torch, weft
os.chdir("elsewhere")
@weft.kernel
def fill(x):
    for i in x:
        x[i] = 7.0
fill(torch.zeros(8))
"""


def test_a_relative_cache_folder_stays_where_the_process_started(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    file = tmp_path / "program.py"
    file.write_text(MOVES)
    variables = os.environ | {"WEFT_CACHE_DIR": "kept", "PYTHONPATH": os.getcwd()}
    assert processes.run(file, variables, tmp_path).returncode == 0
    assert list((tmp_path / "kept").iterdir())
    assert not list((tmp_path / "elsewhere").iterdir())


DAMAGED = """
import torch, weft
kernels = []
for name in "abcde":
    space = {"weft": weft}
    text = f"@weft.kernel\\ndef {name}(x):\\n    for i in x:\\n        x[i] = 7.0\\n"
    file = f"<{name}>"
    import linecache
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    exec(compile(text, file, "exec"), space)
    kernels.append(space[name])
for kernel in kernels:
    for _ in range(4):  # until machine code launches it
        x = torch.zeros(8)
        kernel(x)
        assert (x == 7).all()
print(*[s.origin for kernel in kernels for s in kernel.specializations])
"""


def test_sound_entries_with_unusable_code_are_compiled_anew(tmp_path):
    """Empty, cut short, zeros, nonsense, and another function's code: the check sum is right."""
    compiled, disk = "compiled compiled compiled compiled compiled\n", "disk disk disk disk disk\n"
    assert run(tmp_path, program=DAMAGED).stdout == compiled
    cache = DiskCache(tmp_path / "cache")
    damages = {
        "a": lambda code: b"", "b": lambda code: code[: len(code) // 2],
        "c": lambda code: bytes(len(code)), "d": lambda code: b"nonsense" * 100,
        "e": lambda code: code.replace(b"weft_e", b"weft_f"), "n": lambda code: code[:-100],
        "r": lambda code: code[:-100],
    }  # fmt: skip
    for path in sorted(cache.folder.iterdir()):
        header, code = cache.load(path.stem)
        symbol = header.get("symbol", header.get("symbols", [""])[0])
        name = symbol[len("weft_")]  # "native": of launches, "run": what all share
        cache.store(path.stem, header, damages.pop(name)(code))
    assert not damages
    assert run(tmp_path, program=DAMAGED).stdout == compiled
    assert run(tmp_path, program=DAMAGED).stdout == disk

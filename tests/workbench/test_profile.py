"""``weft profile``: its tables, what it reads of other profilers, threads, and perf's files."""

from __future__ import annotations

import json
import os
import shutil
import stat
import struct
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import weft
from weft.pytorch.namespace import announced
from weft.runtime import cpu
from weft.runtime.balance import Balance
from weft.runtime.jitdump import Jitdump, line_table
from weft.runtime.launch import Launcher
from weft.workbench import events, marked, processes, profilers
from weft.workbench.events import Costs, Event
from weft.workbench.marked import Capture
from weft.workbench.profile import Profile, profile
from weft.workbench.profile_program import _longest
from weft.workbench.report import Table
from weft_cli.app import app


@weft.kernel
def decayed(x: torch.Tensor, a: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s = s * a + x[i, j]
            out[i, j] = s
    return out


LINE = decayed.span.line
LOOP = LINE + 2


def names(found: Any) -> dict[str, Any]:
    return {e.name: e for e in found.entries if e.device == "cpu"}


# --- torch's profiler ----------------------------------------------------------------------------
@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    trace = tmp_path_factory.mktemp("profile") / "trace.json"
    x = torch.rand(6, 17, requires_grad=True)

    def step() -> None:
        with weft.profile.range("step"):
            decayed(x, 0.5).sum().backward()
            decayed.op(x.detach(), 0.5)

    return weft.profile(step, warmup=2, steps=3, trace=trace), trace


def test_kernels_have_their_name_source_line_shapes_and_bytes(found: tuple[Any, Path]) -> None:
    every = names(found[0])
    mine = every["weft::decayed"]
    assert (mine.calls, mine.shapes, mine.where) == (3, "[6, 17]", f"test_profile.py:{LINE}")
    assert mine.moved == decayed.cost(torch.rand(6, 17), 0.5).bytes == 2 * 4 * 6 * 17
    assert mine.allocated == 3 * 4 * 6 * 17
    assert 0 < mine.own <= mine.total
    assert every["decayed_0Backward"].where == mine.where
    (op,) = (e for name, e in every.items() if name.startswith("weft::decayed_"))
    assert (op.calls, op.where) == (3, mine.where), "by torch.ops"
    assert every["aten::sum"].source == ""
    assert every["step"].calls == 3
    assert every["step"].total >= mine.total
    assert found[0].of("decayed") == [mine]


def test_the_table_has_a_row_each_and_json_all_of_it(found: tuple[Any, Path]) -> None:
    profile, _ = found
    text = str(profile)
    assert "operators on the CPU: own time, without what they call\n" in text
    assert f"test_profile.py:{LINE}" in text
    told = profile.data()
    assert {e["name"] for e in told["entries"]} == {e.name for e in profile.entries}
    own = [e.own for e in profile.entries]
    assert own == sorted(own, reverse=True)
    short = replace(profile, rows=4).table("cpu")
    assert {e.name for e in profile.entries if e.source} <= {row[0] for row in short.rows}
    assert 4 <= len(short.rows) <= 8


def test_the_trace_says_where_kernels_are(found: tuple[Any, Path]) -> None:
    told = json.loads(found[1].read_text())["traceEvents"]
    mine = [e for e in told if e.get("name") == "weft::decayed"]
    assert len(mine) == 3
    assert all(e["args"]["source"] == f"{__file__}:{LINE}" for e in mine)
    assert mine[0]["args"]["Input Dims"] == [[6, 17], []]
    assert sum(e.get("name") == "step" and e["ph"] == "X" for e in told) == 3


def test_kernels_whose_construction_is_not_over_are_no_kernels_yet() -> None:
    """Dynamo makes such objects, and a thread may be at it."""
    bare = object.__new__(weft.Kernel)
    found = weft.profile(lambda: decayed(torch.rand(2, 3), 0.5), warmup=0, steps=1)
    assert bare not in [kernel for kernel in announced() if type(kernel) is weft.Kernel]
    assert found.of("decayed")[0].where == f"test_profile.py:{LINE}"


def test_a_trace_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    def never() -> None:
        raise AssertionError("it ran")

    for path, told in (
        (tmp_path / "x.txt", "is no trace"),
        (tmp_path / "no" / "x.json", "written"),
    ):
        with pytest.raises(weft.WeftError, match=told):
            weft.profile(never, warmup=0, trace=path)


class Raw:
    """An event as torch's profiler has it."""

    def __init__(self, name: str, begin: int, end: int, *, thread: int = 1, kind: str = "cpu_op",
                 device: str = "CPU", shapes: Any = (), bytes: int = 0) -> None:  # fmt: skip
        self.told = {
            "name": name, "start_ns": begin, "duration_ns": end - begin, "nbytes": bytes,
            "start_thread_id": thread, "activity_type": kind, "shapes": shapes,
            "device_type": SimpleNamespace(name=device), "is_user_annotation": False,
        }  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        return lambda: self.told[name]


def test_own_time_leaves_out_what_is_called_in_the_same_thread() -> None:
    raw = [
        Raw("outer", 0, 100), Raw("inner", 10, 40, shapes=[[2, 3], []]), Raw("leaf", 20, 25),
        Raw("[memory]", 22, 22, bytes=64), Raw("[memory]", 30, 30, bytes=-64),
        Raw("other", 5, 95, thread=2), Raw("kernel", 200, 260, device="CUDA", kind="kernel"),
        Raw("outer", 0, 300, device="CUDA", kind="gpu_user_annotation"),
        Raw("cudaLaunchKernel", 50, 60, kind="cuda_runtime"), Raw("next", 100, 101),
    ]  # fmt: skip
    made = events.events(SimpleNamespace(events=lambda: raw))
    own = {e.name: (e.own, e.bytes, e.device) for e in made}
    assert own == {
        "outer": (70, 64, "cpu"), "inner": (25, 64, "cpu"), "leaf": (5, 64, "cpu"),
        "other": (90, 0, "cpu"), "kernel": (60, 0, "cuda"), "next": (1, 0, "cpu"),
    }  # fmt: skip
    assert next(e.shapes for e in made if e.name == "inner") == "[2, 3]"


def test_only_what_is_inside_of_the_ranges_behind_the_first_ones_counts() -> None:
    def event(name: str, begin: int, device: str = "cpu") -> Event:
        return Event(name, device, begin, 5, 1, "", 5, 0)

    every = [replace(event("step", b), duration=10) for b in (0, 20, 40)]
    every += [event("a", b) for b in (1, 21, 31, 41)]
    every += [event("k", b, "cuda") for b in (2, 36)]
    kept = events.within(every, "step", 1)
    assert [(e.name, e.begin) for e in kept if e.name != "step"] == [
        ("a", 21), ("a", 41), ("k", 36),
    ]  # fmt: skip
    assert events.within(every, "step", 3) == []
    every += [replace(event("step", b), duration=3) for b in (3, 22)]  # inside of others
    assert events.within(every, "step", 1)[0].begin == 20
    assert ("a", 31) not in {(e.name, e.begin) for e in events.within(every, "step", 1)}
    assert ("a", 21) in {(e.name, e.begin) for e in events.within(every, "step", 1)}
    assert events.within(every, "stop", 0) == []


def test_functions_of_a_gpu_are_those_of_loops() -> None:
    costs = Costs({}, {"decayed_0": (4000, 4, "/x/model.py:7")}, {})
    kernel = [Event("weft_decayed_0", "cuda", b, 2000, -1, "", 2000, 0) for b in (0, 9, 12)]
    (entry,) = events.entries(kernel, costs)
    assert (entry.where, entry.moved, entry.calls) == ("model.py:7", 1000, 3)
    assert entry.bandwidth == pytest.approx(1000 / 2000)
    (other,) = events.entries([replace(kernel[0], name="gemm")], costs)
    assert (other.source, other.moved, other.later) == ("", None, None)


# --- programs ------------------------------------------------------------------------------------
SCRIPT = """
import sys
import torch
import weft
from beside import doubled

for i in range(3):
    with weft.profile.range("round"):
        doubled(torch.rand(5 + int(sys.argv[1])))
print("printed", sys.argv[1:], __name__)
sys.exit(int(sys.argv[2]))
"""
BESIDE = """
import torch
import weft


@weft.kernel
def doubled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = 2 * x[i]
    return out


def once():
    return doubled(torch.rand(4))
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "beside.py").write_text(BESIDE)
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield str(tmp_path / "train.py")
    sys.modules.pop("beside", None)


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["profile", *words])


def test_a_program_runs_as_python_would_run_it(script: str) -> None:
    before = [*sys.argv], [*sys.path]
    done = run("--range", "round", "--json", script, "2", "0", "--rows")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert "printed ['2', '0', '--rows'] __main__" in done.stderr
    (mine,) = (e for e in told["entries"] if e["name"] == "weft::doubled")
    assert (mine["calls"], mine["shapes"]) == (2, "[7]"), "the first round is left out"
    assert mine["source"].endswith("beside.py:7")
    assert ([*sys.argv], [*sys.path]) == before


def test_a_program_that_fails_and_one_that_is_not_there(script: str) -> None:
    done = run("--range", "square", script, "1", "3")
    assert done.exit_code == 1
    assert "WRONG: the program ended with 3" in done.output
    assert "no range 'square' was entered more than 1 times, so that all is listed" in done.output
    assert "weft::doubled" in done.output
    missing = run("absent.py")
    assert missing.exit_code == 2
    assert "there is no file absent.py" in missing.output


def test_a_function_of_a_file(script: str) -> None:
    beside = script.replace("train", "beside")
    done = run("--json", f"{beside}:once")
    assert done.exit_code == 0, done.output
    (mine,) = (e for e in json.loads(done.stdout)["entries"] if e["name"] == "weft::doubled")
    assert mine["calls"] == 10
    assert "has no function 'twice'\nhelp: there are once" in run(f"{beside}:twice").output
    assert "--perf: a program is run, no function" in run("--perf", f"{beside}:once").output


# --- other profilers -----------------------------------------------------------------------------
def test_what_is_not_installed_is_said_with_how_to_get_it(script: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(profilers, "place_of", lambda name: "")
    done = run("--ncu", "--nsys", "--perf", script, "1", "0")
    assert done.exit_code == 0, done.output
    for name, told in (("ncu", "developer.nvidia.com/nsight-compute"),
                       ("nsys", "developer.nvidia.com/nsight-systems"),
                       ("perf", "apt-get install linux-perf")):  # fmt: skip
        assert f"note: {name} is not installed: it comes with " in done.output
        assert told in done.output


RAW = """==PROF== Connected
"ID","Process ID","Process Name","Host Name","Kernel Name","Block Size","Grid Size","Device","CC",\
"dram__bytes.sum","dram__bytes.sum.pct_of_peak_sustained_elapsed","gpu__time_duration.sum",\
"sm__warps_active.avg.pct_of_peak_sustained_active",\
"smsp__pcsamp_warps_issue_stalled_long_scoreboard",\
"smsp__pcsamp_warps_issue_stalled_selected","smsp__pcsamp_warps_issue_stalled_wait_not_issued",\
"smsp__pcsamp_warps_issue_stalled_wait"
"","","","","","","","","","Mbyte","%","us","%","warp","warp","warp","warp"
"0","9","python","h","weft_doubled_0","(1)","(1)","0","9.0","2","40","1,000.5","50","3","9","9","1"
"1","9","python","h","weft_doubled_0","(1)","(1)","0","9.0","4","60","2,000.0","70","5","9","9","1"
"2","9","python","h","weft_doubled_0","(1)","(1)","0","9.0","6","80","3,000.0","90","1","9","9","2"
"3","9","python","h","gemm","(1,1,1)","(1,1,1)","0","9.0","1","10","9,000.0","90","1","9","9","2"
"""
# As ncu of CUDA 13 wrote them on an H200, with fewer columns and other numbers.
SOURCE = """"File Path","/x/beside.py"
"Function Name","weft_doubled_0"
"Line No","Source","Address","Source","Warp Stall Sampling (All Samples)","# Samples",\
"stall_barrier","stall_long_sb","stall_no_inst","stall_selected","stall_wait_not_issued","stall_wait"
"8","for i in range(x.shape[0]):","-","-","30","30","0","0","5","20","4","5"
"","","0x7fb3337a0010","      S2R R47, SR_TID.Z","900","0","900","0","0","0","0","0"
"9","    out[i] = 2 * x[i]","-","-","1,040","40","0","900","0","20","90","100"
"File Path","/x/beside.py"
"Function Name","weft_doubled_0"
"Line No","Source","Address","Source","Warp Stall Sampling (All Samples)","# Samples",\
"stall_barrier","stall_long_sb","stall_no_inst","stall_selected","stall_wait_not_issued","stall_wait"
"9","    out[i] = 2 * x[i]","-","-","130","10","0","0","0","30","0","100"
"File Path","/x/gemm.cu"
"Function Name","gemm"
"Line No","Source","Address","Source","Warp Stall Sampling (All Samples)","# Samples"
"1","x","-","-","0","0"
"""


def test_waits_are_those_of_source_lines() -> None:
    """Of all launches; instructions below a line are in it already, and what is issued is no
    wait."""
    table = profilers.waits_table(profilers.waits(SOURCE))
    assert table.rows == (
        ("weft_doubled_0", 9, "out[i] = 2 * x[i]", 1170, pytest.approx(97.5),
         "long scoreboard 82%, wait 18%"),
        ("weft_doubled_0", 8, "for i in range(x.shape[0]):", 30, pytest.approx(2.5),
         "no instruction 50%, wait 50%"),
    )  # fmt: skip
    alone = """"Function Name","weft_doubled_0"
"Line No","Source","Address","Source","group:smsp__pcsamp_warp_stall_reasons",\
"smsp__pcsamp_warps_issue_stalled_long_scoreboard","smsp__pcsamp_warps_issue_stalled_wait"
"8","for i in range(x.shape[0]):","-","-","28","0","12"
"","","0x7fb3337a0010","      S2R R47, SR_TID.Z","1","0","0"
"9","    out[i] = 2 * x[i]","-","-","84","60","20"
"""  # as ncu 2025.3 writes it of samples without a section
    assert profilers.waits_table(profilers.waits(alone)).data() == [
        {"kernel": "weft_doubled_0", "line": line, "source": text, "samples": samples,
         "% of kernel": pytest.approx(part), "waits for": why}
        for line, text, samples, part, why in (
            (9, "out[i] = 2 * x[i]", 84, 75, "long scoreboard 75%, wait 25%"),
            (8, "for i in range(x.shape[0]):", 28, 25, "wait 100%"))
    ]  # fmt: skip
    older = SOURCE.replace('"Warp Stall Sampling (All Samples)",', '"Other",')
    assert [one.samples for one in profilers.waits(older)] == [50, 30]
    assert profilers.waits('"Address","Source"\n"0x0","EXIT"\n') == [], "no source lines"


def test_ncus_pages_become_a_table() -> None:
    table = profilers.ncu_table(RAW, profilers.waits(SOURCE), {"weft_doubled_0": "beside.py:7"})
    gemm, mine = table.data()
    assert mine == {
        "kernel": "weft_doubled_0", "where": "beside.py:7", "launches": 3,
        "ms each": pytest.approx(2.0), "GB/s": pytest.approx(4e6 / 2e-3 / 1e9),
        "% of peak bandwidth": 60, "% occupancy": 70, "waits for": "long scoreboard",
        "hottest line": "9: out[i] = 2 * x[i]",
    }  # fmt: skip
    assert gemm["kernel"] == "gemm"
    assert profilers.ncu_table("==ERROR== no kernels were profiled\n", (), {}).rows == ()


def fake(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport sys, pathlib, subprocess\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_ncu_runs_the_program_and_is_read_back(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, "ncu", f"""
words = sys.argv[1:]
if "--import" in words:
    print({SOURCE!r} if "source" in words else {RAW!r}, end="")
else:
    pathlib.Path(words[words.index("-o") + 1] + ".ncu-rep").touch()
    pathlib.Path({str(tmp_path / "words")!r}).write_text(repr(words))
""")  # fmt: skip
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    done = run("--ncu", "--range", "round", "--json", script, "1", "0")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    rows, lines = (rows for name, rows in told.items() if name.startswith("ncu: "))
    assert [row["line"] for row in lines] == [9, 8]
    assert [row["where"] for row in rows] == ["", "beside.py:7"]
    words = eval((tmp_path / "words").read_text())
    assert words[words.index("--profile-from-start") + 1] == "off"
    assert words[-9:] == ["--range", "round", "--skip", "1", "--most", "2", script, "1", "0"]
    assert "--kernel-name" not in words, "the first run saw no GPU"


def test_ncu_that_may_not_read_counters_is_explained(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, "ncu", "print('==ERROR== ERR_NVGPUCTRPERM'); sys.exit(1)")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    done = run("--ncu", script, "1", "0")
    assert done.exit_code == 0, done.output
    assert "note: ncu ended with 1: this user may not read the GPU's counters: " in done.output
    assert "NVreg_RestrictProfilingToAdminUsers=0" in done.output


def test_ncu_looks_at_the_functions_that_took_most_time() -> None:
    """By the names that its filter knows."""
    names = {
        "weft_wkv_0_adjoint": "weft_wkv_0_adjoint",
        "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float> >(int)":
            "reduce_kernel",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<int, 3>(int*)":
            "CatArrayBatchedCopy",
        "cutlass::Kernel2<cutlass_80_simt>(T::Params)": "Kernel2",
    }  # fmt: skip
    assert {name: profilers.function_name(name) for name in names} == names
    kinds = [("gemm", ""), ("Memcpy HtoD", ""), *((f"at::f{k}<int>", "") for k in range(4)),
             ("weft_a_0", "a.py:1"), ("weft_b_0", "b.py:1")]  # fmt: skip
    entries = [SimpleNamespace(name=n, device="cuda", source=s) for n, s in kinds]
    assert _longest(SimpleNamespace(entries=entries), 2) == (
        "gemm", "at::f0<int>", "weft_a_0", "weft_b_0"
    )  # fmt: skip


def test_a_program_that_takes_too_long_is_ended_and_what_was_seen_is_kept(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the profiler's own time, and of a profiler that does not end."""
    monkeypatch.setattr(processes, "_GRACE", 0.1)
    fake(tmp_path, "ncu", f"""
import os, time
words = sys.argv[1:]
if "--import" in words:
    print({SOURCE!r} if "source" in words else {RAW!r}, end="")
else:
    print('==PROF== Profiling "weft_doubled_0": 0%....100% - 2 passes', flush=True)
    pathlib.Path(words[words.index("-o") + 1] + ".ncu-rep").touch()
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    time.sleep(60)
""")  # fmt: skip
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    done = run("--ncu", "--seconds", "1", script, "1", "0")
    assert done.exit_code == 0, done.output
    assert "ncu: medians of launches in the steady state\nkernel" in done.output
    assert "note: ncu ended with -15: it took more than 1 seconds (--seconds)" in done.output


def test_a_program_ends_when_its_profiler_has_looked_for_long_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "long.py"
    program.write_text("import time\ntry:\n    print('begun')\n    time.sleep(60)\n"
                       "finally:\n    print('cleaned up')\n")  # fmt: skip
    asked = profilers.Asked((str(program),), "", 0, {}, (), 0.2)
    words = asked.command()
    monkeypatch.setattr(sys, "argv", words[words.index("weft.workbench.marked") :])
    monkeypatch.setattr(profile, "watchers", [])
    marked.main()
    assert capsys.readouterr().out == "begun\ncleaned up\n"
    said = profilers._cut("ncu", asked, processes.Ended(0, "", 0.3))
    assert said.startswith("ncu: the program was ended after 0 seconds; the table has what was")
    assert profilers._cut("ncu", asked, processes.Ended(0, "", 0.1)) == ""


def test_a_terminal_shows_how_far_a_profiler_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    said = ["-c", """print('==PROF== Profiling "f": 0%..100%\\n' * 2, flush=True)"""]
    ended = processes.run_until([sys.executable, *said], 9.0, os.environ, profilers.Launches())
    assert (ended.code, ended.stopped) == (0, False)
    assert "of 9 s  2 launches, f" in capsys.readouterr().err


def test_nsys_sums_become_a_table() -> None:
    text = (
        "Processing [x.sqlite] with [cuda_gpu_kern_sum.py]...\n\n"
        "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
        '75.0,3000000,3,1,1,1,1,0,weft_doubled_0\n25.0,1000000,1,1,1,1,1,0,"gemm<a, b>"\n'
    )
    table = profilers.nsys_table([text, text], {"weft_doubled_0": "beside.py:7"})
    assert table.rows == (
        ("weft_doubled_0", "beside.py:7", 6, 6.0, 75.0, 1.0), ("gemm<a, b>", "", 2, 2.0, 25.0, 1.0),
    )  # fmt: skip
    assert profilers.nsys_table(["SKIPPED: no kernels"], {}).rows == ()


# As Nsight Systems 2023.4 wrote it of a program with CUDA 13, of which it then knew two launches.
UNREAD = (
    r'        Value: "/x/TraceProcessEvent.cpp(45): Throw in function const string& f(bool)\n'
    r"Dynamic exception type: boost::wrapexcept<InvalidArgumentException>\nstd::exception::what: "
    r"InvalidArgumentException\n[QuadDCommon::tag_message*] = Unknown runtime API function index: "
    r'468\n"' "\n      }\n\n\n**** Errors occurred while processing the raw events. ****\n"
)  # fmt: skip


def test_a_report_that_nsys_did_not_read_to_its_end_is_no_table_of_all() -> None:
    found = profilers._unread(UNREAD + UNREAD)
    assert "launches are missing in its table: Unknown runtime API function index: 468. " in found
    assert profilers._unread("Generated:\n    /tmp/report.nsys-rep\n") == ""


def test_long_tables_of_others_are_cut_and_kernels_of_weft_stay() -> None:
    rows = (*((f"gemm{k}", "") for k in range(4)), ("weft_a_0", "a.py:1"))
    table = Table(("kernel", "where"), rows)
    found = Profile((), others=(("nsys: kernels", table),), rows=2)
    assert [k in str(found) for k in ("gemm1", "gemm2", "weft_a_0")] == [True, False, True]
    assert len(found.data()["nsys: kernels"]) == 5


@pytest.mark.parametrize(("report", "stats", "told"), [
    ("nsys-rep", "Time (%),Total Time (ns),Instances,Name\n100.0,2000,2,weft_doubled_0\n", ""),
    ("nsys-rep", "SKIPPED: report.sqlite does not contain CUDA kernel data.\n",
     "nsys saw no kernel of a GPU in ranges 'round' behind the first 1"),
    ("nsys-rep", "\nERROR: Report 'cuda_gpu_kern_sum.py' encountered an internal error: No module",
     "nsys stats: ERROR: Report 'cuda_gpu_kern_sum.py' encountered an internal error: No module"),
    ("qdstrm", "", "nsys recorded the program, but its QdstrmImporter made no report of that: "
                   "QdstrmImporter: error while loading shared libraries: libssh.so"),
    ("", "", "nsys wrote nothing: on no GPU was anything done in ranges 'round' behind the first"),
])  # fmt: skip
def test_what_nsys_did_is_said(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    report: str, stats: str, told: str,
) -> None:  # fmt: skip
    """Its exit code is 0 in each of these."""
    for folder in ("bin", "host-linux-x64"):
        (tmp_path / folder).mkdir()
    fake(tmp_path / "bin", "nsys", f"""
words = sys.argv[1:]
if words[0] == "stats":
    print({stats!r}, end="")
elif {report!r}:
    pathlib.Path(words[words.index("-o") + 1]).with_suffix(".{report}").touch()
""")  # fmt: skip
    said = "QdstrmImporter: error while loading shared libraries: libssh.so"
    fake(tmp_path / "host-linux-x64", "QdstrmImporter", f"print({said!r}); sys.exit(127)")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    done = run("--nsys", "--range", "round", script, "1", "0")
    assert done.exit_code == 0, done.output
    assert ("nsys: kernels\nkernel" in done.output) == (not told)
    assert f"note: {told}" in done.output if told else "note: nsys" not in done.output


def test_perfs_samples_are_put_on_lines() -> None:
    text = " 11  7f00 [unknown]\n 12  7f08 [unknown]\n 11 aa _PyEval\n garbage\n 11  7f08 x\n"

    def at(address: int) -> tuple[str, str] | None:
        return ("doubled_0", f"/x/beside.py:{address & 15}") if address >> 8 == 0x7F else None

    assert profilers.perf_table(text, at).rows == (
        ("doubled_0", "beside.py:8", 2, 50.0, 2), ("doubled_0", "beside.py:0", 1, 25.0, 1),
        ("_PyEval", "", 1, 25.0, 1),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("perf") is None, reason="perf is not installed")
def test_perf_sees_lines_of_kernels(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(BESIDE)
    program = tmp_path / "train.py"
    program.write_text("import torch\nfrom beside import doubled\nx = torch.rand(1 << 22)\n"
                       "for _ in range(60):\n    doubled(x)\n")  # fmt: skip
    told = profilers.external("perf", profilers.Asked((str(program),), "", 0, {}))
    if not told.tables and "perf_event_paranoid" in told.note + profilers._GET["perf"]:
        pytest.skip(told.note)
    ((_, table),) = told.tables
    assert ("doubled_0", "beside.py:10") in {row[:2] for row in table.rows}


def test_the_capture_is_around_the_ranges_that_count(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    monkeypatch.setattr(Capture, "tell", staticmethod(told.append))
    monkeypatch.setattr(profile, "watchers", [Capture("step", 1, most=2)])
    rounds: list[int] = []

    def program() -> None:
        for k in range(9):
            rounds.append(k)
            with weft.profile.range("step"), weft.profile.range("o"), weft.profile.range("step"):
                pass

    with pytest.raises(marked.Enough):  # which ends it
        program()
    assert told == [True, False, True, False], "not around the first, nor around those inside"
    assert rounds == [0, 1, 2]


def test_the_marked_program_gets_its_own_arguments(
    script: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(profile, "watchers", [])
    monkeypatch.setattr(sys, "argv", ["marked", "--range", "round", script, "1", "0", "--skip"])
    with pytest.raises(SystemExit) as end:
        marked.main()
    assert end.value.code == 0
    assert "printed ['1', '0', '--skip'] __main__" in capfd.readouterr().out


# --- threads and perf's files --------------------------------------------------------------------
def test_what_threads_were_busy_for() -> None:
    if not cpu.teams().address:
        pytest.skip("the jump to OpenMP is for x86-64")
    x = torch.rand(400, 3000)
    want = decayed(x, 0.5)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with Balance() as found:
            got = [decayed(x, 0.5) for _ in range(2)]
        decayed(x, 0.5)
    finally:
        torch.set_num_threads(threads)
    (one,) = found.shared()
    assert (one.loop, one.launches, one.threads, len(one.busy)) == ("decayed_0", 2, 3, 3)
    assert 0 < one.balance <= 1.0
    assert max(one.busy) <= one.elapsed
    assert found.lost == 0
    assert cpu.teams().cell.value == cpu.teams().usual, "it is as before"
    for out in got:
        torch.testing.assert_close(out, want)


def test_threads_are_those_of_the_ranges_that_count() -> None:
    if not cpu.teams().address:
        pytest.skip("the jump to OpenMP is for x86-64")
    x = torch.rand(400, 3000)

    def program() -> None:
        for _ in range(4):
            with weft.profile.range("step"), weft.profile.range("step"):
                decayed(x, 0.5)
            decayed(x, 0.5)

    threads, watchers = torch.get_num_threads(), [*profile.watchers]
    torch.set_num_threads(2)
    try:
        launches = [profile.recorded(program, name=name, skip=1).shared[0].launches
                    for name in ("step", "absent")]  # fmt: skip
    finally:
        torch.set_num_threads(threads)
    assert launches == [3, 8]
    assert profile.watchers == watchers


def test_perf_is_told_of_code_and_lines(tmp_path: Path) -> None:
    options = replace(decayed.options, lines=True)
    launcher = Launcher(decayed.parts.regions[0], decayed.source, options)
    with Jitdump(tmp_path) as dump:
        decayed.parts.host([lambda *values: launcher.slow(values)], torch.rand(2, 3), 0.5)
    data = dump.path.read_bytes()
    magic, version, header, machine, _, pid = struct.unpack_from("<6I", data)
    assert (magic, version, machine, pid) == (0x4A695444, 1, 62, os.getpid())
    kinds: list[int] = []
    at = header
    while at < len(data):
        kind, size, _ = struct.unpack_from("<2IQ", data, at)
        kinds.append(kind)
        at += size
    assert at == len(data)
    assert kinds == [2, 0, 3], "lines, code, the end"
    ((begin, end, name, lines),) = json.loads(dump.path.with_suffix(".json").read_text())
    assert name == "decayed_0"
    assert {f"{__file__}:{LOOP + k}" for k in (2, 3, 4)} <= {place for _, place in lines}
    assert all(begin <= place < end for place, _ in lines)
    assert cpu.LOADED.at(begin) == "weft_decayed_0"
    assert cpu.LOADED.at(begin - 1) == ""
    assert cpu.LOADED.listeners == []


def test_an_object_without_lines_has_no_table() -> None:
    from weft.runtime import jit

    assert line_table(jit.emit("define void @f() { ret void }")) == []


def test_an_error_of_the_program_is_printed_without_what_is_around_it(
    script: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = Path(script)
    path.write_text(BESIDE + "\n\nonce()\nraise ValueError('of its own')\n")
    done = run(script)
    assert done.exit_code == 1
    assert "WRONG: the program ended with 'ValueError: of its own'" in done.output
    assert "weft::doubled" in done.output
    printed = done.stderr + capfd.readouterr().err
    assert "ValueError: of its own" in printed
    assert "runpy" not in printed


def test_a_kernel_whose_bytes_cannot_be_counted_says_why() -> None:
    @weft.kernel
    def chosen(x: torch.Tensor) -> torch.Tensor:
        n = int(x[0])
        out = torch.zeros(n)
        for i in range(n):
            out[i] = x[i]
        return out

    found = weft.profile(chosen, torch.full((3,), 3.0), warmup=1, steps=2)
    assert [e.moved for e in found.of("chosen")] == [None]
    assert any(note.startswith("bytes of weft::chosen: ") for note in found.notes), found.notes


def test_a_gradient_that_nobody_asked_for_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took half a minute for a kernel that wraps around by ``%``."""

    def derived(kernel: Any) -> Any:
        raise AssertionError("the gradient is counted")

    @weft.kernel
    def tripled(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = 3 * x[i]
        return out

    monkeypatch.setattr(events, "_derived", derived)
    x = torch.rand(5)
    assert weft.profile(tripled, x, warmup=0, steps=1).of("tripled")[0].moved == 2 * x.nbytes
    with pytest.raises(AssertionError, match="the gradient is counted"):
        weft.profile(lambda: tripled(x.requires_grad_()).sum().backward(), warmup=0, steps=1)

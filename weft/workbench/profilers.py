"""Programs that profile others: NVIDIA's ncu and nsys, and Linux's perf. They run the program once
more, and what they say of kernels is read back."""

from __future__ import annotations

import collections
import csv
import io
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.values import frozen
from weft.workbench.processes import Ended, place_of, run_until
from weft.workbench.report import Table

_CHILD = ("-m", "weft.workbench.marked")


@frozen
class Asked:
    """The program with its arguments, and the ranges that count (see ``Profiler.recorded``).
    ``places``: file and line of GPU functions and loops, by their names. ``kernels``: the names of
    the GPU's functions that ncu looks at, as PyTorch's profiler has them; all, where there are
    none. ``seconds``: for each of the programs that profile it."""

    program: tuple[str, ...]
    name: str
    skip: int
    places: Mapping[str, str]
    kernels: tuple[str, ...] = ()
    seconds: float = 60.0

    def command(self, *options: str, most: int = 0) -> list[str]:
        """What runs the program with its marks, until its time is over, or ``most`` ranges are
        (0: all are)."""
        until = ["--until", f"{time.time() + self.seconds:.1f}"]
        ranges = ["--range", self.name, "--skip", str(self.skip)] if self.name else []
        ranges += ["--most", str(most)] if self.name and most else []
        return [sys.executable, *_CHILD, *until, *ranges, *options, *self.program]


@frozen
class Found:
    """Tables by their titles, or the reason why there are none."""

    tables: tuple[tuple[str, Table], ...] = ()
    note: str = ""


_GET = {
    "ncu": "it comes with NVIDIA's CUDA toolkit, or by itself as Nsight Compute "
    "(apt-get install nsight-compute, conda install -c nvidia nsight-compute, "
    "https://developer.nvidia.com/nsight-compute). Reading counters may need root, or the driver's "
    "option NVreg_RestrictProfilingToAdminUsers=0",
    "nsys": "it comes with NVIDIA's CUDA toolkit, or by itself as Nsight Systems "
    "(apt-get install nsight-systems, conda install -c nvidia nsight-systems, "
    "https://developer.nvidia.com/nsight-systems)",
    "perf": "it comes with Linux (apt-get install linux-perf, or linux-tools-generic). "
    "/proc/sys/kernel/perf_event_paranoid has to be 2 or less",
}


def external(tool: str, asked: Asked) -> Found:
    """What ``tool`` ("ncu", "nsys" or "perf") says of the program."""
    run = {"ncu": _ncu, "nsys": _nsys, "perf": _perf}[tool]
    if not place_of(tool):
        return Found(note=f"{tool} is not installed: {_GET[tool]}")
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        return run(asked, Path(folder))


def _called(
    command: Sequence[str], what: str, seconds: float = 60.0, lines: bool = True,
    told: Callable[[str], str] | None = None,
) -> tuple[Ended, str]:  # fmt: skip
    """How a command of a profiler ended, and why it failed ("" where it did not). Kernels have
    source lines."""
    environment = {**os.environ, **({"WEFT_LINES": "1"} if lines else {})}
    ended = run_until([place_of(command[0]), *command[1:]], seconds, environment, told)
    refused = "ERR_NVGPUCTRPERM" in ended.text
    if not ended.code and not refused:
        return ended, ""
    if refused:
        why = f"this user may not read the GPU's counters: {_GET['ncu'].rpartition('). ')[2]}"
    elif ended.stopped:
        why = f"it took more than {seconds:.0f} seconds (--seconds)"
    else:
        said = [line for line in ended.text.strip().splitlines() if line.startswith("==ERROR==")]
        why = " ".join((said or ended.text.strip().splitlines())[-3:])
    return ended, f"{what} ended with {ended.code}: {why}"


def _cut(tool: str, asked: Asked, ended: Ended) -> str:
    """A note, where the program did not come to its end."""
    if ended.seconds < asked.seconds:
        return ""
    return (
        f"{tool}: the program was ended after {asked.seconds:.0f} seconds; the table has what was "
        "seen until then (--seconds gives it more)"
    )


# --- ncu -----------------------------------------------------------------------------------------
_TIME, _BYTES = "gpu__time_duration.sum", "dram__bytes.sum"
_OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
_PEAK = "dram__bytes.sum.pct_of_peak_sustained_elapsed"
# Samples of what warps wait for: one more pass over a kernel, where ncu's section SourceCounters
# takes ten, for which memory is put back as it was each time.
_SAMPLES_OF_WAITS = "group:smsp__pcsamp_warp_stall_reasons"
_STALLED = "smsp__pcsamp_warps_issue_stalled_"
_STALL = re.compile(rf"{_STALLED}(\w+)")
# The group is one column of the source page: the reasons have columns if they are named as well, in
# the same pass. All are known to GPUs from Volta on.
_REASONS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "imc_miss", "lg_throttle",
    "long_scoreboard", "math_pipe_throttle", "membar", "mio_throttle", "no_instructions",
    "not_selected", "short_scoreboard", "sleeping", "tex_throttle", "wait",
)  # fmt: skip
_LAUNCHES = 2  # of each kernel and grid
_SCALE = {"nsecond": 1e-6, "ns": 1e-6, "usecond": 1e-3, "us": 1e-3, "msecond": 1.0, "ms": 1.0,
          "second": 1e3, "s": 1e3,
          "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}  # fmt: skip


def _ncu(asked: Asked, folder: Path) -> Found:
    """Each kernel a few times per size of its grid: in the ranges that count, or behind the first
    two launches of it."""
    file = folder / "report"
    metrics = [_TIME, _BYTES, _OCCUPANCY, _PEAK, _SAMPLES_OF_WAITS,
               *(f"{_STALLED}{reason}" for reason in _REASONS)]  # fmt: skip
    names = "|".join(dict.fromkeys(map(re.escape, map(function_name, asked.kernels))))
    command = ["ncu", "-o", str(file), "--metrics", ",".join(metrics),
               *(["--kernel-name-base", "function", "--kernel-name", f"regex:^({names})$"]
                 if names else []),
               "--filter-mode", "per-launch-config", "--launch-skip", "0" if asked.name else "2",
               "--launch-count", str(_LAUNCHES), "--target-processes", "all",
               "--clock-control", "none", "--import-source", "yes",
               *(["--profile-from-start", "off"] if asked.name else [])]  # fmt: skip
    ended, why = _called([*command, *asked.command(most=_LAUNCHES)], "ncu", asked.seconds,
                         told=Launches())  # fmt: skip
    saved = file.with_suffix(".ncu-rep")
    if not saved.exists():
        return Found(note=why or f"ncu saw no launch of {', '.join(asked.kernels) or 'a kernel'}")
    read = ["ncu", "--import", str(saved), "--csv", "--page"]
    raw, failed = _called([*read, "raw"], "ncu --page raw")
    if failed:
        return Found(note=failed)
    lines, _ = _called([*read, "source", "--print-source", "cuda,sass"], "ncu --page source")
    waiting = waits(lines.text)
    tables = [("ncu: medians of launches in the steady state",
               ncu_table(raw.text, waiting, asked.places))]  # fmt: skip
    if waiting:
        tables.append(("ncu: on which source lines warps waited, and for what",
                       waits_table(waiting)))  # fmt: skip
    return Found(tuple(tables), why or _cut("ncu", asked, ended))


class Launches:
    """What a terminal shows of what ncu prints: how many launches it has looked at."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, line: str) -> str:
        found = re.search(r'Profiling "([^"]+)"', line)
        if found is None:
            return ""
        self.count += 1
        return f"{self.count} launches, {found[1]}"


def function_name(kernel: str) -> str:
    """The name of a GPU's function as ncu's filters have it: without its result, namespaces,
    template's arguments and parameters."""
    text = kernel.replace("(anonymous namespace)::", "").removeprefix("void ")
    return re.split(r"[<(]", text, maxsplit=1)[0].rpartition("::")[2].strip()


def ncu_table(text: str, waiting: Sequence[Waits], places: Mapping[str, str]) -> Table:
    """The raw page of ncu as comma-separated values: a row of names, one of units, one a launch.
    ``waiting``: lines, of each kernel the one that waited most first."""
    rows = [row for row in csv.reader(io.StringIO(text)) if "Kernel Name" in row or len(row) > 5]
    start = next((k for k, row in enumerate(rows) if "Kernel Name" in row), None)
    columns = ("kernel", "where", "launches", "ms each", "GB/s", "% of peak bandwidth",
               "% occupancy", "waits for", "hottest line")  # fmt: skip
    if start is None or len(rows) < start + 3:
        return Table(columns, ())
    hot: dict[str, str] = {}
    for one in waiting:
        hot.setdefault(one.kernel, f"{one.line}: {one.text}"[:60])
    names, units = rows[start], dict(zip(rows[start], rows[start + 1], strict=False))
    launches: dict[str, list[dict[str, str]]] = {}
    for row in rows[start + 2 :]:
        values = dict(zip(names, row, strict=False))
        launches.setdefault(values["Kernel Name"], []).append(values)

    def median(found: list[dict[str, str]], name: str) -> float | None:
        numbers = sorted(n for v in found if (n := _number(v.get(name, ""))) is not None)
        scale = _SCALE.get(units.get(name, ""), 1.0)
        return numbers[len(numbers) // 2] * scale if numbers else None

    made: list[tuple[Any, ...]] = []
    for kernel, found in launches.items():
        time, moved = median(found, _TIME), median(found, _BYTES)
        rate = moved / time / 1e6 if time and moved is not None else None
        stalls = [(value, match[1]) for name in names if (match := _STALL.fullmatch(name))
                  and match[1] != "selected" and not match[1].endswith("not_issued")
                  and (value := median(found, name))]  # fmt: skip
        waits = max(stalls)[1].replace("_", " ") if stalls else ""
        made.append((kernel[:60], places.get(kernel, ""), len(found), time, rate,
                     median(found, _PEAK), median(found, _OCCUPANCY), waits,
                     hot.get(kernel, "")))  # fmt: skip
    return Table(columns, tuple(sorted(made, key=lambda row: -(row[3] or 0.0) * row[2])))


# The first that there is: as ncu has it of samples alone, and of its section SourceCounters.
_SAMPLES = (_SAMPLES_OF_WAITS, "Warp Stall Sampling (All Samples)", "# Samples")
_REASON = re.compile(rf"(?:{_STALLED}|stall_)(\w+)")
# What ncu shortens in the names of columns.
_WORDS = {"sb": "scoreboard", "inst": "instruction", "lg": "lg throttle", "mio": "mio throttle",
          "tex": "tex throttle", "math": "math pipe throttle"}  # fmt: skip


@frozen
class Waits:
    """A source line of a kernel: how often a warp was seen there, and what it waited for, by
    reason."""

    kernel: str
    line: int
    text: str
    samples: float
    reasons: Mapping[str, float]


def waits(text: str) -> list[Waits]:
    """Of the source page with "cuda,sass", the lines with samples, most of them first. There is a
    table for each launch of a kernel and each file; below each of its lines are the instructions,
    without a number."""
    samples: dict[tuple[str, int, str], float] = {}
    reasons: dict[tuple[str, int, str], dict[str, float]] = {}
    kernel, place = "", -1
    named: dict[int, str] = {}  # columns of reasons
    for row in csv.reader(io.StringIO(text)):
        if len(row) == 2 and row[0] == "Function Name":
            kernel, place = row[1], -1
        elif row[:2] == ["Line No", "Source"]:
            place = next((row.index(name) for name in _SAMPLES if name in row), -1)
            named = {k: reason for k, name in enumerate(row) if (reason := _reason(name))}
        elif 0 <= place < len(row) and row[0].isdigit():
            key = kernel, int(row[0]), row[1].strip()
            samples[key] = samples.get(key, 0.0) + (_number(row[place]) or 0.0)
            told = reasons.setdefault(key, {})
            for k, reason in named.items():
                if k < len(row) and (count := _number(row[k])):
                    told[reason] = told.get(reason, 0.0) + count
    made = [Waits(*key, count, reasons[key]) for key, count in samples.items() if count]
    return sorted(made, key=lambda one: -one.samples)


def _reason(column: str) -> str:
    """What warps wait for, in words; "" for a column of something else. Warps that are
    "selected" issue an instruction."""
    match = _REASON.fullmatch(column)
    if match is None or match[1] == "selected" or match[1].endswith("_not_issued"):
        return ""
    return " ".join(_WORDS.get(word, word) for word in match[1].split("_"))


def waits_table(waiting: Sequence[Waits], lines: int = 5) -> Table:
    """The first ``lines`` of each kernel, with their part of its samples, and the two reasons that
    are most frequent on them."""
    every: dict[str, float] = {}
    for one in waiting:
        every[one.kernel] = every.get(one.kernel, 0.0) + one.samples
    rows: list[tuple[Any, ...]] = []
    for kernel in every:
        for one in [w for w in waiting if w.kernel == kernel][:lines]:
            most = sorted(one.reasons.items(), key=lambda item: -item[1])[:2]
            total = sum(one.reasons.values()) or 1.0
            told = ", ".join(f"{name} {100 * count / total:.0f}%" for name, count in most)
            rows.append((kernel[:60], one.line, one.text[:60], int(one.samples),
                         100 * one.samples / every[kernel], told))  # fmt: skip
    columns = ("kernel", "line", "source", "samples", "% of kernel", "waits for")
    known = len(columns) if any(one.reasons for one in waiting) else -1
    return Table(columns[:known], tuple(row[:known] for row in rows))


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


# --- nsys ----------------------------------------------------------------------------------------
_RANGES = 3  # each is a file of its own, which takes a second to read


def _nsys(asked: Asked, folder: Path) -> Found:
    file = folder / "report.nsys-rep"
    command = ["nsys", "profile", "-o", str(file), "--force-overwrite", "true", "--trace",
               "cuda,nvtx", "--sample", "none", "--cpuctxsw", "none",
               *(["--capture-range", "cudaProfilerApi", "--capture-range-end",
                  f"repeat:{_RANGES}"] if asked.name else [])]  # fmt: skip
    ended, why = _called([*command, *asked.command(most=_RANGES)], "nsys", asked.seconds,
                         lines=False)  # fmt: skip
    files = sorted(folder.glob("report*.nsys-rep"))
    if not files:
        return Found(note=why or _not_imported(folder) or "nsys wrote nothing: on no GPU was "
                     f"anything done{_within(asked)}")  # fmt: skip
    texts: list[str] = []
    for saved in files:
        told, why = _called(["nsys", "stats", "--report", "cuda_gpu_kern_sum", "--format", "csv",
                             "--output", "-", "--force-export", "true", str(saved)],
                            "nsys stats", lines=False)  # fmt: skip
        wrong = [line for line in told.text.splitlines() if line.startswith("ERROR: ")]
        if why or wrong:  # of a report, nsys does not tell by its exit code
            return Found(note=why or f"nsys stats: {wrong[0]}")
        texts.append(told.text)
    table = nsys_table(texts, asked.places)
    cut = _unread(ended.text) or _cut("nsys", asked, ended)
    if not table.rows:
        return Found(note=cut or f"nsys saw no kernel of a GPU{_within(asked)}")
    return Found((("nsys: kernels", table),), cut)


def _unread(text: str) -> str:
    """A note, where nsys gave up on what it had recorded: its report then ends there, without a
    word in it. One that is older than the driver's CUDA does so at functions it does not know."""
    if "Errors occurred while processing the raw events" not in text:
        return ""
    why = dict.fromkeys(re.findall(r"tag_message\*\] = (.+?)(?:\\n|\"|$)", text, re.MULTILINE))
    return (f"nsys did not read all that it recorded, so that launches are missing in its table: "
            f"{'; '.join(why) or 'see its report'}. An nsys that is as new as the program's CUDA "
            "may, or --range with less in it")  # fmt: skip


def _within(asked: Asked) -> str:
    return f" in ranges {asked.name!r} behind the first {asked.skip}" if asked.name else ""


def _not_imported(folder: Path) -> str:
    """Why nsys made no report of what it recorded; "" where it recorded nothing. Its importer,
    which is a program of its own beside it, may lack a library: nsys itself says "unknown
    error"."""
    if not any(folder.glob("*.qdstrm")):
        return ""
    note = "nsys recorded the program, but its QdstrmImporter made no report of that"
    root = Path(place_of("nsys")).resolve().parent.parent
    for importer in sorted(root.glob("host-*/QdstrmImporter")):
        ended = run_until([str(importer), "--version"], 10.0, os.environ)
        if ended.code:
            return f"{note}: {' '.join(ended.text.strip().splitlines()[-3:])}"
    return f"{note}; `nsys --version` and that of the importer should be one"


def nsys_table(texts: Sequence[str], places: Mapping[str, str]) -> Table:
    """The reports cuda_gpu_kern_sum as comma-separated values, with words in front."""
    sums: dict[str, list[float]] = {}
    for text in texts:
        begin = text.find("Time (%)")
        for row in csv.DictReader(io.StringIO(text[begin:] if begin >= 0 else "")):
            if not row.get("Name"):
                continue
            total, calls = _number(row["Total Time (ns)"]), _number(row["Instances"])
            old = sums.setdefault(row["Name"], [0.0, 0.0])
            old[0], old[1] = old[0] + (total or 0.0), old[1] + (calls or 0.0)
    every = sum(total for total, _ in sums.values()) or 1.0
    longest = sorted(sums.items(), key=lambda item: -item[1][0])
    rows = tuple((name[:60], places.get(name, ""), int(calls), total / 1e6, 100 * total / every,
                  total / max(calls, 1) / 1e6) for name, (total, calls) in longest)  # fmt: skip
    return Table(("kernel", "where", "launches", "ms", "%", "ms each"), rows)


# --- perf ----------------------------------------------------------------------------------------
def _perf(asked: Asked, folder: Path) -> Found:
    """Samples of the program's threads, which kernels' lines they were in."""
    data = folder / "perf.data"
    command = ["perf", "record", "-q", "-k", "CLOCK_MONOTONIC", "-F", "997", "-o", str(data)]
    ended, why = _called([*command, "--", *asked.command("--jitdump", str(folder))], "perf",
                         asked.seconds)  # fmt: skip
    if why:
        return Found(note=why)
    read, why = _called(["perf", "script", "-i", str(data), "-F", "tid,ip,sym"], "perf script")
    if why:
        return Found(note=why)
    table = perf_table(read.text, _lines_at(folder))
    title = "perf: where threads were, of 997 samples a second"
    return Found(((title, table),), _cut("perf", asked, ended))


def _lines_at(folder: Path) -> Callable[[int], tuple[str, str] | None]:
    """The loop and the line of an address, by what the program wrote of its kernels."""
    known: list[tuple[int, int, str, list[tuple[int, str]]]] = []
    for file in folder.glob("jit-*.json"):
        known += [(a, b, name, [(x, y) for x, y in lines])
                  for a, b, name, lines in json.loads(file.read_text())]  # fmt: skip

    def at(address: int) -> tuple[str, str] | None:
        for begin, end, name, lines in known:
            if begin <= address < end:
                below = [place for start, place in lines if start <= address]
                return name, below[-1] if below else ""
        return None

    return at


_SAMPLE = re.compile(r"^\s*(\d+)\s+([0-9a-f]+)(?:\s+(.*))?$")


def perf_table(text: str, at: Callable[[int], tuple[str, str] | None]) -> Table:
    """``perf script -F tid,ip,sym``: a line a sample. Lines of kernels come first, then the
    functions in which the program was most."""
    counts = collections.Counter[tuple[str, str]]()
    kernels: set[tuple[str, str]] = set()
    threads: dict[tuple[str, str], set[str]] = {}
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample is None:
            continue
        thread, address, symbol = sample.groups()
        known = at(int(address, 16))
        key = known or ((symbol or "[unknown]").strip()[:48], "")
        kernels |= {key} if known else set()
        counts[key] += 1
        threads.setdefault(key, set()).add(thread)
    every = sum(counts.values()) or 1
    often = counts.most_common()
    listed = [x for x in often if x[0] in kernels][:15]
    listed += [x for x in often if x[0] not in kernels][:5]
    rows = tuple((name, Path(place).name, count, 100 * count / every, len(threads[name, place]))
                 for (name, place), count in listed)  # fmt: skip
    return Table(("function", "where", "samples", "%", "threads"), rows)

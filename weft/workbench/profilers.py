"""Programs that profile others: NVIDIA's ncu and nsys, and Linux's perf. They run the program once
more, and what they say of kernels is read back."""

from __future__ import annotations

import collections
import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.values import frozen
from weft.workbench.report import Table

_CHILD = ("-m", "weft.workbench.marked")


@frozen
class Asked:
    """The program with its arguments, and the ranges that count (see ``Profiler.recorded``).
    ``places``: file and line of GPU functions and loops, by their names."""

    program: tuple[str, ...]
    name: str
    skip: int
    places: Mapping[str, str]

    def command(self, *options: str) -> list[str]:
        """What runs the program with its marks."""
        ranges = ["--range", self.name, "--skip", str(self.skip)] if self.name else []
        return [sys.executable, *_CHILD, *ranges, *options, *self.program]


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
    if shutil.which(tool) is None:
        return Found(note=f"{tool} is not installed: {_GET[tool]}")
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        return run(asked, Path(folder))


def _called(command: Sequence[str], what: str, lines: bool = True) -> tuple[str, str]:
    """Standard output, and why it failed ("" where it did not). Kernels have source lines."""
    environment = {**os.environ, **({"WEFT_LINES": "1"} if lines else {})}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if not done.returncode:
        return done.stdout, ""
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
    why = " ".join(said)
    if "ERR_NVGPUCTRPERM" in done.stderr + done.stdout:
        why = f"this user may not read the GPU's counters: {_GET['ncu'].rpartition('). ')[2]}"
    return done.stdout, f"{what} ended with {done.returncode}: {why}"


# --- ncu -----------------------------------------------------------------------------------------
_TIME, _BYTES = "gpu__time_duration.sum", "dram__bytes.sum"
_OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
_PEAK = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
_STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
_SECTIONS = ("WarpStateStats", "SourceCounters")
_SCALE = {"nsecond": 1e-6, "ns": 1e-6, "usecond": 1e-3, "us": 1e-3, "msecond": 1.0, "ms": 1.0,
          "second": 1e3, "s": 1e3,
          "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}  # fmt: skip


def _ncu(asked: Asked, folder: Path) -> Found:
    """Each kernel a few times per size of its grid, behind the first two launches of it."""
    file = folder / "report"
    command = ["ncu", "-o", str(file), "--metrics", ",".join([_TIME, _BYTES, _OCCUPANCY, _PEAK]),
               *(word for section in _SECTIONS for word in ("--section", section)),
               "--filter-mode", "per-launch-config", "--launch-skip", "0" if asked.name else "2",
               "--launch-count", "2", "--target-processes", "all", "--import-source", "yes",
               *(["--profile-from-start", "off"] if asked.name else [])]  # fmt: skip
    _, why = _called([*command, *asked.command()], "ncu")
    saved = file.with_suffix(".ncu-rep")
    if not saved.exists():
        return Found(note=why or "ncu saw no kernel")
    read = ["ncu", "--import", str(saved), "--csv", "--page"]
    raw, why = _called([*read, "raw"], "ncu --page raw")
    lines, _ = _called([*read, "source", "--print-source", "cuda,sass"], "ncu --page source")
    if why:
        return Found(note=why)
    waiting = waits(lines)
    tables = [("ncu: medians of launches in the steady state",
               ncu_table(raw, waiting, asked.places))]  # fmt: skip
    if waiting:
        tables.append(("ncu: on which source lines warps waited, and for what",
                       waits_table(waiting)))  # fmt: skip
    return Found(tuple(tables))


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
                  and (value := median(found, name)) is not None]  # fmt: skip
        waits = max(stalls)[1].replace("_", " ") if stalls else ""
        made.append((kernel[:60], places.get(kernel, ""), len(found), time, rate,
                     median(found, _PEAK), median(found, _OCCUPANCY), waits,
                     hot.get(kernel, "")))  # fmt: skip
    return Table(columns, tuple(sorted(made, key=lambda row: -(row[3] or 0.0) * row[2])))


_SAMPLES = ("Warp Stall Sampling (All Samples)", "# Samples")  # the first that there is
_REASON = re.compile(r"stall_(\w+)")
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
    return Table(columns, tuple(rows))


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


# --- nsys ----------------------------------------------------------------------------------------
def _nsys(asked: Asked, folder: Path) -> Found:
    file = folder / "report.nsys-rep"
    command = ["nsys", "profile", "-o", str(file), "--force-overwrite", "true", "--trace",
               "cuda,nvtx,osrt", *(["--capture-range", "cudaProfilerApi", "--capture-range-end",
                                    "repeat-shutdown:10000"] if asked.name else [])]  # fmt: skip
    _, why = _called([*command, *asked.command()], "nsys", lines=False)
    files = sorted(folder.glob("report*.nsys-rep"))
    if not files:
        return Found(note=why or "nsys wrote nothing")
    texts: list[str] = []
    for saved in files:
        text, why = _called(["nsys", "stats", "--report", "cuda_gpu_kern_sum", "--format", "csv",
                             "--output", "-", "--force-export", "true", str(saved)],
                            "nsys stats", lines=False)  # fmt: skip
        if why:
            return Found(note=why)
        texts.append(text)
    return Found((("nsys: kernels", nsys_table(texts, asked.places)),))


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
    _, why = _called([*command, "--", *asked.command("--jitdump", str(folder))], "perf")
    if why:
        return Found(note=why)
    text, why = _called(["perf", "script", "-i", str(data), "-F", "tid,ip,sym"], "perf script")
    if why:
        return Found(note=why)
    table = perf_table(text, _lines_at(folder))
    return Found((("perf: where threads were, of 997 samples a second", table),))


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

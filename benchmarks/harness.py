"""Taking turns: the subjects' data classes, the providers' processes, tables, files.

A subject is one computation at some sizes. A provider of it is a function from a case to a call
without arguments that does the work and returns the result. Names of providers are ``peer`` or
``peer, variant``; all variants of a peer share its process.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

OUT = Path("out")
PACKAGES = ("torch", "numba", "taichi", "quadrants", "warp-lang", "llvmlite", "numpy")


@dataclass(frozen=True)
class Case:
    """A size. ``sizes`` is whatever the subject's functions want to know."""

    name: str
    sizes: Mapping[str, Any]


@dataclass(frozen=True)
class Subject:
    """A computation, its sizes, who provides it, and its result in float64.

    ``tolerance`` is the largest accepted difference over the largest value of the result.
    """

    name: str
    title: str
    cases: tuple[Case, ...]
    providers: Mapping[str, Callable[[Case], Callable[[], Any]]]
    reference: Callable[[Case], torch.Tensor]
    tolerance: float = 1e-5
    unit: str = "ms"


@dataclass
class Row:
    """One figure. ``value`` is in ``unit``; ``first_ms`` is the first call with its compilation.
    ``compared``: tables say how it stands to the fastest of its column."""

    subject: str
    title: str
    case: str
    provider: str
    unit: str = "ms"
    value: float = 0.0
    best: float = 0.0
    samples: int = 0
    first_ms: float = 0.0
    error: float = 0.0
    failure: str = ""
    compared: bool = True


class Process:
    """One peer's worker. Started when first asked; its stderr is kept for the day it dies."""

    def __init__(self, threads: int) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `close`
        self.child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=environment(threads),
        )

    def ask(self, *request: Any) -> dict[str, Any]:
        """Send ``[method, *arguments]``; return the answer, or how the process died."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        try:
            self.child.stdin.write(json.dumps(request) + "\n")
            self.child.stdin.flush()
            answer = self.child.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if answer:
            return json.loads(answer)
        self.log.seek(0)
        sys.stderr.write(self.log.read()[-2000:])
        return {"failure": f"its process ended with status {self.child.wait()}"}

    def running(self) -> bool:
        return self.child.poll() is None

    def close(self) -> None:
        assert self.child.stdin is not None
        if self.running():
            self.child.stdin.close()
            self.child.wait()
        self.log.close()


def environment(threads: int) -> dict[str, str]:
    """The environment of every measured process: the same number of threads for all libraries."""
    count = str(threads)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "BENCH_THREADS")
    return {**os.environ, **dict.fromkeys(names, count)}


class Processes:
    """The workers by peer."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.by_peer: dict[str, Process] = {}

    def of(self, provider: str) -> Process:
        """The process of the provider's peer, a new one where the old one died."""
        peer = provider.split(",")[0]
        process = self.by_peer.get(peer)
        if process is None or not process.running():
            if process is not None:
                process.close()
            process = self.by_peer[peer] = Process(self.threads)
        return process

    def close(self) -> None:
        for process in self.by_peer.values():
            process.close()


def measure(
    module: str, subject: Subject, case: Case, processes: Processes, rounds: int, seconds: float
) -> list[Row]:
    """Time all providers of one case in turn."""
    rows: dict[str, Row] = {}
    samples: dict[str, list[float]] = {}
    scale = {"ms": 1.0, "µs": 1e3}[subject.unit]
    for provider in subject.providers:
        row = rows[provider] = Row(subject.name, subject.title, case.name, provider, subject.unit)
        answer = processes.of(provider).ask("prepare", module, subject.name, case.name, provider)
        row.failure = answer.get("failure", "")
        if not row.failure:
            row.first_ms, row.error = answer["first_ms"], answer["error"]
            samples[provider] = []
    for _ in range(rounds):
        for provider, taken in samples.items():
            answer = processes.of(provider).ask("measure", provider, seconds)
            taken += [ms * scale for ms in answer.get("samples", [])]
            rows[provider].failure = rows[provider].failure or answer.get("failure", "")
    for provider, taken in samples.items():
        processes.of(provider).ask("drop")
        if taken:
            row = rows[provider]
            row.value, row.best, row.samples = statistics.median(taken), min(taken), len(taken)
    return list(rows.values())


def tables(rows: Sequence[Row]) -> str:
    """GitHub-flavoured tables, one a subject: medians, and how they stand to the fastest."""
    lines: list[str] = []
    for title in dict.fromkeys(row.title for row in rows):
        mine = [row for row in rows if row.title == title]
        cases = list(dict.fromkeys(row.case for row in mine))
        unit = mine[0].unit
        lines += [f"\n### {title} ({unit})\n", f"| | {' | '.join(cases)} |"]
        lines.append(f"| --- |{' ---: |' * len(cases)}")
        fastest = {
            case: min((r.value for r in mine if r.case == case and not r.failure), default=0.0)
            for case in cases
        }
        for provider in dict.fromkeys(row.provider for row in mine):
            cells = []
            for case in cases:
                row = next((r for r in mine if (r.provider, r.case) == (provider, case)), None)
                cells.append(cell(row, fastest[case]))
            lines.append(f"| {provider} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(row: Row | None, fastest: float) -> str:
    """One figure with its ratio to the column's fastest, or why there is none."""
    if row is None:
        return ""
    if row.failure:
        return row.failure.replace("|", "/")
    text = f"{row.value:.3g}" if row.value < 1000 else f"{row.value:,.0f}"
    if not row.compared:
        return text
    return f"**{text}**" if row.value == fastest else f"{text} ({row.value / fastest:.3g}x)"


@cache
def machine() -> dict[str, Any]:
    """What was measured on, and with which versions."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
        "load_at_start": os.getloadavg()[0],
        "time": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def processor() -> str:
    """The processor's name, where the system tells it."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def write(rows: Sequence[Row], threads: int) -> None:
    """Write ``out/bench.json`` and ``out/bench.md``."""
    OUT.mkdir(exist_ok=True)
    about = {**machine(), "threads": threads}
    document = {"machine": about, "rows": [asdict(row) for row in rows]}
    (OUT / "bench.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    versions = ", ".join(f"{name} {v}" for name, v in about["versions"].items())
    head = (
        f"# Benchmarks\n\n{about['processor']}, {about['cores']} cores, {threads} threads; Python "
        f"{about['python']}; {versions}. Load when the run began: {about['load_at_start']:.1f}. "
        f"Medians, providers in turn; in brackets the ratio to the fastest of the column.\n"
    )
    (OUT / "bench.md").write_text(head + tables(rows) + "\n")


def parser(name: str) -> argparse.ArgumentParser:
    """Options that every benchmark has."""
    result = argparse.ArgumentParser(prog=f"python -m {name}")
    result.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    result.add_argument("--threads", type=int, default=2, help="threads of every provider")
    result.add_argument("--only", default="", help="providers that contain this, weft always")
    return result


def run(
    module: str, subjects: Sequence[Subject], *, quick: bool, threads: int, only: str = ""
) -> list[Row]:
    """Measure the subjects of ``benchmarks.<module>``, printing each table when it is there."""
    rows: list[Row] = []
    processes = Processes(threads)
    rounds, seconds = (3, 0.05) if quick else (7, 0.25)
    try:
        for subject in subjects:
            subject = chosen(subject, only)
            mine: list[Row] = []
            for case in subject.cases:
                mine += measure(module, subject, case, processes, rounds, seconds)
            print(tables(mine), flush=True)
            rows += mine
    finally:
        processes.close()
    return rows


def chosen(subject: Subject, only: str) -> Subject:
    """The subject with the providers that ``--only`` asks for."""
    if not only:
        return subject
    kept = {
        name: provider
        for name, provider in subject.providers.items()
        if only in name or name.startswith("weft")
    }
    return Subject(**{**vars(subject), "providers": kept})


def main(module: str, subjects: Sequence[Subject]) -> None:
    """``python -m benchmarks.<module>``: measure and print; files are written by the whole run."""
    options = parser(f"benchmarks.{module}").parse_args()
    machine()
    run(module, subjects, quick=options.quick, threads=options.threads, only=options.only)

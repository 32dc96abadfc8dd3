"""What a person waits for: import, the first call with nothing cached, and from the disk cache.

Every figure comes from new processes. torch is imported before the clock starts: every user of
these tools has done that. The kernel is the causal convolution at a tiny size, from a file
of its own for each tool (`benchmarks.first`). "import" is the tool's own import, "first call" is
the import of that file (decorator, ``init``) and the first call together.
"""

import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch

from benchmarks.harness import Row, environment, parser, tables

TOOLS = {
    "weft": "weft",
    "torch.compile": "torch",
    "numba": "numba",
    "taichi": "taichi",
    "quadrants": "quadrants",
    "warp": "warp",
}
MOMENTS = ("import after torch", "first call, nothing cached", "first call, from disk")
CACHES = ("WEFT_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "NUMBA_CACHE_DIR", "BENCH_CACHE")


def child(tool: str) -> None:
    """In a new process: print the milliseconds of the import and of the first call as JSON."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # banners go to stderr
    torch.set_num_threads(int(os.environ["BENCH_THREADS"]))
    w, k, out = torch.rand(4, 16), torch.rand(2, 4, 16), torch.full((2, 4, 16), float("nan"))
    begin = time.perf_counter()
    importlib.import_module(tool)
    imported = time.perf_counter()
    conv = importlib.import_module(f"benchmarks.first.{tool}_conv").conv
    conv(w, k, 0.1, out)
    done = time.perf_counter()
    exact = torch.stack([(w[:, 15 - t :] * k[..., : t + 1]).sum(-1) for t in range(16)], dim=2)
    torch.testing.assert_close(out, exact + 0.1)
    json.dump({"import": (imported - begin) * 1e3, "first": (done - imported) * 1e3}, answer)


def ask(tool: str, folder: str, threads: int) -> dict[str, float] | str:
    """`child` in a new process, caching in ``folder``: its figures, or why there are none."""
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.first_call", "--child", tool],
        env={**environment(threads), **dict.fromkeys(CACHES, folder)},
        capture_output=True,
        text=True,
    )
    if result.returncode == 0:
        return json.loads(result.stdout)
    if f"No module named '{tool}'" in result.stderr:
        return "not installed"
    if "InvalidCxxCompiler" in result.stderr:
        return "no C++ compiler"
    return (result.stderr.strip().splitlines() or ["no message"])[-1][:100]


def of_tool(name: str, tool: str, repeats: int, threads: int) -> list[Row]:
    """The three figures of one tool: each repeat fills an empty cache and then uses it."""
    taken: dict[str, list[float]] = {moment: [] for moment in MOMENTS}
    failure = ""
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            for moment in MOMENTS[1:]:
                answer = ask(tool, folder, threads)
                if isinstance(answer, str):
                    failure = answer
                    break
                taken[moment].append(answer["first"])
                taken[MOMENTS[0]].append(answer["import"])
        if failure:
            break
    rows = []
    for moment, samples in taken.items():
        row = Row("first_call", "new processes", moment, name, failure=failure)
        if samples:
            row.value, row.best = statistics.median(samples), min(samples)
            row.samples = len(samples)
        if moment == MOMENTS[0] and tool == "torch":
            row.failure = "none: it is torch"
        rows.append(row)
    return rows


def run(*, quick: bool, threads: int, only: str = "") -> list[Row]:
    """Measure all tools, print the table, return its rows."""
    rows: list[Row] = []
    for name, tool in TOOLS.items():
        if only in name or name == "weft":
            rows += of_tool(name, tool, 1 if quick else 5, threads)
    print(tables(rows), flush=True)
    return rows


def main() -> None:
    """``python -m benchmarks.first_call``."""
    options = parser("benchmarks.first_call").parse_args()
    run(quick=options.quick, threads=options.threads, only=options.only)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2])
    else:
        main()

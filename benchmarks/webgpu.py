"""Loops on WebGPU beside the same loops on CPUs and, where there is one, on a CUDA device.

    python -m benchmarks.webgpu [--small] [--schedules] [--only NAME ...] [--timeline]

One process, one table: milliseconds of a call; that of WebGPU with tensors of the CPU (copies in
and out) and with tensors that live on the device (calls are queued, and waited for together); the
first call, from source to result (in the device's memory), in a process that has compiled before (a
gradient, too: that of a call that has run), and of that: weft's compiler, and in other threads wgpu
reading the text, and wgpu and the driver making pipelines of it; and the largest difference from
the CPU's result, over the largest value.
``--timeline`` says instead when each part of first calls begins and ends, and in which thread.
"""

import argparse
import logging
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

import weft
from benchmarks.brick import wall
from benchmarks.matmul import matmul
from benchmarks.stencil import stencil
from examples.bilateral import bilateral
from examples.causal_conv import causal_conv
from examples.softmax import softmax
from examples.wkv import wkv
from weft import timing, webgpu


@weft.kernel
def histogram(x: torch.Tensor, counts: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        weft.atomic_add(counts[x[i]], 1)


@weft.kernel
def touch(x: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        x[i] = 1.0


@weft.kernel
def halved(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = 0.5 * x[i]
    return out


@dataclass(frozen=True)
class Subject:
    """``arguments``: of the kernel, on the CPU; ``result``: the argument with the result, None
    where it is returned. ``backward``: the gradient, of a call that has run."""

    name: str
    kernel: weft.Kernel
    arguments: tuple[object, ...]
    result: int | None = None
    backward: bool = False

    def on(self, kernel: weft.Kernel, arguments: Sequence[object]) -> Callable[[], torch.Tensor]:
        """What is timed, which gives the result: the call, or the gradient of one that has run."""
        if not self.backward:
            place = self.result

            def call() -> torch.Tensor:
                found = kernel(*arguments)
                return found if place is None else arguments[place]  # type: ignore[return-value]

            return call
        *arguments, upstream = arguments
        assert isinstance(upstream, torch.Tensor)
        wanted = [v for v in arguments if isinstance(v, torch.Tensor) and v.requires_grad]
        result = kernel(*arguments)
        weft.sync()
        return lambda: torch.autograd.grad(result, wanted, upstream, retain_graph=True)[-1]


def subjects(small: bool) -> list[Subject]:
    torch.manual_seed(0)
    r, z = torch.randn, torch.zeros
    n = 256 if small else 1024
    side = 128 if small else 512
    conv = (r(32, 256), r(2, 32, 256)) if small else (r(768, 768), r(8, 768, 768))
    graded = tuple(v.clone().requires_grad_() for v in conv)
    sizes = (2, 256, 64) if small else (8, 1024, 768)
    space, tone = torch.tensor(2.0), torch.tensor(0.3)
    counted = torch.randint(0, 64, (1_000_000 if small else 10_000_000,), dtype=torch.int32)
    return [
        Subject("brick wall", wall, (r(144, 288), z(1080, 1728), 144, 36, 96), 1),
        Subject("larger wall", wall, (r(144, 288), z(4 * n, 4 * n), 144, 36, 96), 1),
        Subject("stencil", stencil, (r(4 * n, 4 * n), z(4 * n, 4 * n)), 1),
        Subject("causal conv", causal_conv, (*conv, 0.1)),
        Subject("its gradient", causal_conv, (*graded, 0.1, r(conv[1].shape)), backward=True),
        Subject("softmax", softmax, (r(512, n),)),
        Subject("matmul", matmul, (r(n, n), r(n, n), z(n, n)), 2),
        Subject("histogram", histogram, (counted, z(64, dtype=torch.int32)), 1),
        Subject("bilateral", bilateral, (torch.rand(side, side, 3), space, tone, 3)),
        Subject("wkv", wkv, (-torch.rand(sizes[2]), r(sizes[2]), r(sizes), r(sizes))),
    ]


def moved(subject: Subject, to: Callable[[torch.Tensor], torch.Tensor]) -> list[object]:
    """The arguments elsewhere; the result anew."""
    found: list[object] = []
    for v in subject.arguments:
        if isinstance(v, torch.Tensor):
            made = to(v.detach())
            found.append(made.requires_grad_(v.requires_grad))
        else:
            found.append(v)
    return found


def timed(call: Callable[[], object], wait: Callable[[], object], budget: float) -> float:
    """Milliseconds of a call among others: those that are queued are waited for together."""
    one = 0.0
    for count in (1, 8):  # waiting takes as long as many calls: few of them tell little
        begin = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        one = (time.perf_counter() - begin) / count
        if one > budget / 4:
            break
    count = max(1, min(1000, int(budget / 4 / max(one, 1e-6))))
    found = []
    for _ in range(3):
        begin = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        found.append((time.perf_counter() - begin) / count)
    return 1e3 * statistics.median(found)


def row(subject: Subject, budget: float) -> list[str]:
    call = subject.on(subject.kernel.on("webgpu"), moved(subject, webgpu.buffer))
    begin = time.perf_counter()
    with timing.record() as recording:
        result = call()
        weft.sync()
    first = 1e3 * (time.perf_counter() - begin)
    result = result.as_subclass(torch.Tensor).clone()
    module, driver = (recording.stages.get(name, 0.0) for name in ("module", "pipeline"))
    ours = sum(ms for name, ms in recording.stages.items() if name not in OTHERS)
    plain = moved(subject, torch.clone)
    on_cpu = subject.on(subject.kernel, plain)
    expected = on_cpu().detach()
    error = (result.double() - expected.double()).abs().max() / expected.abs().max().clamp(min=1)
    nothing = lambda: None  # noqa: E731

    figures = [timed(on_cpu, nothing, budget)]
    if torch.cuda.is_available():
        cuda = subject.on(subject.kernel, moved(subject, lambda v: v.cuda()))
        figures.append(timed(cuda, torch.cuda.synchronize, budget))
    else:
        figures.append(float("nan"))
    copied = subject.on(subject.kernel.on("webgpu"), plain)
    figures.append(timed(copied, nothing, budget))
    figures.append(timed(call, weft.sync, budget))
    ratio = figures[3] / figures[1]
    words = [f"{f:.3f}" if f < 10 else f"{f:.1f}" for f in figures]
    parts = [f"{part:.0f}" for part in (first, ours, module, driver)]
    return [subject.name, *words, f"{ratio:.2f}", *parts, f"{error:.1g}"]


def timeline(subject: Subject) -> str:
    """What a first call does when, in milliseconds: each stage of a compilation, in the thread
    where it runs; what stands between is calls, autograd and the derivation of gradients."""
    call = subject.on(subject.kernel.on("webgpu"), moved(subject, webgpu.buffer))
    begin = time.perf_counter()
    with timing.record() as recording:
        result = call()
        asked = time.perf_counter()
        result.as_subclass(torch.Tensor).clone()
    end = time.perf_counter()
    threads = {threading.get_ident(): 0}
    lines = [f"{subject.name}: asked for after {1e3 * (asked - begin):.1f} ms, there after "
             f"{1e3 * (end - begin):.1f}"]  # fmt: skip
    for name, first, last, thread in sorted(recording.spans, key=lambda span: span[1]):
        if last - first > 3e-4:
            number = threads.setdefault(thread, len(threads))
            lines.append(f"  {1e3 * (first - begin):7.1f} {1e3 * (last - begin):7.1f}  "
                         f"{'.' * 12 * number}{name} {1e3 * (last - first):.1f}")  # fmt: skip
    return "\n".join(lines)


def dispatches() -> str:
    """The time of a warm call, of 1,000 that nobody waits for."""
    kernel, x = touch.on("webgpu"), webgpu.buffer(torch.zeros(256))
    for _ in range(100):
        kernel(x)
    weft.sync()
    found = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(1000):
            kernel(x)
        queued = time.perf_counter()
        weft.sync()
        found.append((queued - begin, time.perf_counter() - queued))
    queued, drained = min(found)
    return (
        f"a warm dispatch: {1e3 * queued:.1f} us, of 1,000 queued without waiting; "
        f"{1e3 * drained:.1f} ms until they had run"
    )


OTHERS = ("module", "pipeline", "wait", "upload", "read")
HEAD = [
    "kernel", "CPU", "CUDA", "WebGPU, copies", "resident", "/ CUDA",
    "first ms", "weft", "wgpu", "driver", "difference",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Loops on WebGPU beside CPUs and CUDA.")
    parser.add_argument("--small", action="store_true", help="sizes for drivers without a GPU")
    parser.add_argument("--budget", type=float, default=1.0, help="seconds of a figure")
    parser.add_argument("--schedules", action="store_true", help="tell what loops run by")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--timeline", action="store_true", help="what first calls do when")
    given = parser.parse_args()
    if given.schedules:
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        logging.getLogger("weft.schedule").setLevel(logging.DEBUG)
    os.environ.setdefault("WEFT_CACHE", "0")  # first calls compile
    begin = time.perf_counter()
    touch.on("webgpu")(torch.zeros(3))
    print(f"{webgpu.adapter()}; the first kernel {time.perf_counter() - begin:.1f} s", flush=True)
    # What gradients need, and torch for its first operation on a tensor that lives there, is
    # imported.
    halved.on("webgpu")(webgpu.buffer(torch.ones(3)).requires_grad_()).sum().backward()
    rows = [HEAD]
    chosen = [s for s in subjects(given.small) if not given.only or s.name in given.only]
    if given.timeline:
        print(*map(timeline, chosen), sep="\n")
        return
    for subject in chosen:
        try:
            rows.append(row(subject, given.budget))
        except (weft.WeftError, RuntimeError) as error:
            rows.append([subject.name, f"{type(error).__name__}: {error}"[:150]])
        print(".", end="", flush=True)
    print()
    print(dispatches())
    widths = [max(len(r[k]) for r in rows if len(r) > 2) for k in range(len(HEAD))]
    for each in rows:
        print("  ".join(word.rjust(widths[k]) if k else word.ljust(widths[0])
                        for k, word in enumerate(each)))  # fmt: skip


if __name__ == "__main__":
    main()

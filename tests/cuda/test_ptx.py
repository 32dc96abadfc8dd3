"""PTX for every architecture: it compiles here and NVIDIA's assembler takes it; no GPU is
needed."""

from __future__ import annotations

import math
import re
import struct
from typing import Any

import pytest
import torch

import weft
from benchmarks import recurrences
from benchmarks.rows import column_sums
from examples import (
    bilateral,
    brick_wall,
    causal_conv,
    gallery,
    grid_sample,
    layer_norm,
    softmax,
    spring,
    wkv,
)
from tests.fuzz.check import function
from weft import compiler
from weft.autodiff.activity import read_and_written
from weft.autodiff.columns import by_columns
from weft.autodiff.state import state_of
from weft.codegen import cuda, libdevice, ptx
from weft.codegen.launching import UnsupportedArchitectureError, architecture
from weft.schedule.choose import candidate
from weft.schedule.language import (
    Align,
    Bind,
    CopyAhead,
    Cover,
    IndexWidth,
    KeepRow,
    Prefetch,
    RegisterWindow,
    SharedArrays,
    Stage,
    UnrollJam,
    only,
    several,
)
from weft.tools import cross

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")

needs_ptxas = pytest.mark.skipif(
    ptx.ptxas() is None, reason="ptxas is not found: install CUDA, triton or nvidia-cuda-nvcc"
)
needs_libdevice = pytest.mark.skipif(
    not any(place.is_file() for place in libdevice.candidates()),
    reason="libdevice is not found: install CUDA, triton or nvidia-nvvm",
)


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


CALLS: dict[str, tuple[Any, ...]] = {
    "axpy": (gallery.axpy, 2.0, empty(9), empty(9)),
    "stencil": (gallery.stencil, empty(9, 8)),
    "matmul": (gallery.matmul, empty(9, 8), empty(8, 7)),
    "histogram": (gallery.histogram, empty(9), 16, 0.0, 1.0),
    "mandelbrot": (gallery.mandelbrot, empty(9), empty(8), 30),
    "newton_sqrt": (gallery.newton_sqrt, empty(9), 1e-6),
    "resize": (gallery.resize, empty(9, 8, 3), 5, 6),
    "running_sum": (gallery.running_sum, empty(9, 8)),
    "transpose": (gallery.transpose, empty(9, 8)),
    "total": (gallery.total, empty(9)),
    "largest": (gallery.largest, empty(9, dtype=torch.float64)),
    "leaky_relu_": (gallery.leaky_relu_, empty(9, 8, dtype=torch.bfloat16), 0.1),
    "collatz": (gallery.collatz, 57),
    "gray": (gallery.gray, empty(9, 8, 3, dtype=torch.uint8)),
    "brick_wall": (brick_wall.brick_wall, empty(3, 4, dtype=torch.int32), 20, 28, 2, 1, 5),
}
# Also compiled backward.
DIFFERENTIABLE: dict[str, tuple[Any, ...]] = {
    "causal_conv": (causal_conv.causal_conv, empty(3, 17), empty(2, 3, 17), 0.25),
    "softmax": (softmax.softmax, empty(9, 8)),
    "layer_norm": (layer_norm.layer_norm, empty(9, 8), empty(8), empty(8), 1e-5),
    "wkv": (wkv.wkv, empty(5), empty(5), empty(2, 3, 5), empty(2, 3, 5)),
    "grid_sample": (grid_sample.grid_sample, empty(2, 3, 9, 8), empty(2, 5, 6, 2)),
    "bilateral": (bilateral.bilateral, empty(9, 8, 3), empty(), empty(), 2),
    "swing": (spring.swing, empty(3, 4), empty(5), empty(4), 20, 0.1),
}
CALLS |= DIFFERENTIABLE
SLOW = {("causal_conv", "sm_90")}  # 10 s: the most schedules, and the longest texts
GALLERY = [
    pytest.param(name, arch, marks=[pytest.mark.slow] if (name, arch) in SLOW else [])
    for name in CALLS
    for arch in ARCHITECTURES
]
# The loops of their gradients.
DERIVED = {
    "causal_conv": 2, "softmax": 1, "layer_norm": 3, "wkv": 3, "grid_sample": 1, "bilateral": 2,
    "swing": 3,
}  # fmt: skip


@needs_ptxas
@needs_libdevice
@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "arch"), GALLERY)
def test_ptxas_takes_the_gallery(name: str, arch: str) -> None:
    kernel, *args = CALLS[name]
    code = weft.compile_for(arch, kernel, *args, every_schedule=arch == "sm_90")
    for loop in code:
        for (schedule, _), use in loop.usage().items():
            jammed = only(schedule, UnrollJam) is not None
            again = jammed and only(schedule, Cover) is None
            ahead = only(schedule, Prefetch) is not None  # 32 words and the next 32
            kept = only(schedule, KeepRow) or only(schedule, RegisterWindow)
            assert use.registers <= (128 if again or ahead or kept else 96)
            # Addresses of 64 bits with strides, and several sums in step: ptxas would rather
            # spill a few words than use more registers; and more of them where the threads of a
            # grid that is too small for the sizes go on to other iterations in step.
            # (And before a loop of staged rows by eight turns at a time: so causal_conv takes .360
            # ms on an H200, and .362 by four, which spill nothing.)
            small = only(schedule, IndexWidth) is not None and not jammed
            window = only(schedule, RegisterWindow)
            eight = window is not None and bool(window.staged) and window.turns == 8
            most = 0 if small else 160 if again else 120 if eight else 40
            assert use.spill_loads + use.spill_stores <= most


SHORT = (("softmax", 0),)


@needs_ptxas
@needs_libdevice
@pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param(name, k, marks=() if (name, k) in SHORT else pytest.mark.slow)
        for name, many in DERIVED.items() for k in range(many)
    ],
)  # fmt: skip
def test_ptxas_takes_the_gradients_of_the_gallery(name: str, number: int) -> None:
    kernel, *args = DIFFERENTIABLE[name]
    (forward,) = cross.lowered_loops(kernel, *args)
    derived = cross.gradient_loops(forward)
    assert len(derived) == DERIVED[name]
    loop = cross.compiled(derived[number], "sm_90", kernel.options, every_schedule=True)
    for (schedule, _), use in loop.usage().items():
        ahead = only(schedule, Prefetch) is not None
        narrow = 255 if ahead else 128
        assert use.registers <= (narrow if only(schedule, IndexWidth) else 192)
        # Where clamped subscripts make eight sums, or threads share a row, ptxas would rather
        # spill than have fewer threads at once.
        jammed = only(schedule, UnrollJam) is not None
        again = jammed and only(schedule, Cover) is None
        most = 512 if name == "bilateral" else 160 if again else 128
        assert use.spill_loads + use.spill_stores <= most


def test_the_loops_of_a_gradient_follow_those_that_they_are_of() -> None:
    kernel, *args = DIFFERENTIABLE["causal_conv"]
    code = weft.compile_for("sm_90", kernel, *args, backward=True)
    names = ["causal_conv_0", "causal_conv_0_adjoint_d_w", "causal_conv_0_adjoint_d_k"]
    assert [loop.name for loop in code] == names
    assert all(len(loop.codes) == 1 for loop in code)


def test_loops_whose_turns_have_an_array_of_their_own() -> None:
    """Whether ``ptxas`` may unroll them was asked of all their values' types."""

    @weft.kernel
    def picked(x, at, out):
        for i in range(x.shape[0]):
            s = 0.0
            for t in range(x.shape[1]):
                own = weft.zeros((3,), weft.f32)
                own[at[i]] = x[i, t]
                s += own[0]
            out[i] = s

    at = torch.zeros(5, dtype=torch.int32)
    (loop,) = weft.compile_for("sm_90", picked, torch.zeros(5, 7), at, torch.zeros(5))
    assert ".entry " in loop.ptx


@needs_ptxas
@pytest.mark.parametrize(("many", "version"), [(8, "7.8"), (120, "8.1")])
def test_loops_of_many_tensors(many: int, version: str) -> None:
    """Their arguments are more than the 4,352 bytes that PTX took before 8.1."""
    names = [f"a{k}" for k in range(many)]
    text = (
        f"def kernel({', '.join(names)}, out):\n    for i, j in weft.ndrange(*out.shape):\n"
        f"        out[i, j] = {' + '.join(f'{name}[i, j]' for name in names)}\n"
    )
    args = [empty(4, 3).t() for _ in range(many + 1)]
    (loop,) = weft.compile_for("sm_90", weft.kernel(function(text)), *args)
    assert all(f"\n.version {version}\n" in code.ptx for code in loop.codes)
    assert all(use.registers for use in loop.usage().values())


@needs_ptxas
def test_what_a_thread_has_sixty_four_of_stays_in_registers() -> None:
    """Beside places of rows in memory nothing is left for vectors of them."""
    kernel, *args = DIFFERENTIABLE["causal_conv"]
    text = "unroll_jam(b, 8); unroll_jam(t, 8); register_window(u, 4)"
    made = weft.kernel(schedule={"cuda": text})(kernel.function)
    (loop,) = weft.compile_for("sm_90", made, *args)
    ((schedule, _), use), = loop.usage().items()  # fmt: skip
    assert several(schedule, Align) == [Align("w", 16), Align("k", 16)]
    assert use.spill_loads == use.spill_stores == 0


@needs_ptxas
@needs_libdevice
def test_a_state_stays_in_registers_while_its_rows_are_staged() -> None:
    (loop,) = weft.compile_for("sm_90", recurrences.rwkv7, *[empty(2, 9, 3, 64)] * 6, 64)
    ((schedule, _), use), = loop.usage().items()  # fmt: skip
    assert only(schedule, Stage) == Stage("t", 4, 64)
    assert use.registers <= 160
    assert use.shared == 2 * 4 * 5 * 64 * 4
    assert use.stack == use.spill_loads == use.spill_stores == 0
    assert (
        loop.ptx.count("ld.shared.v4") == 5 * 5 * 64 // 4
    )  # of four turns, and of one that is left
    assert loop.ptx.count("ex2.approx") == 2 * 2 * 4  # of an element in each turn, and at the end


@needs_ptxas
@needs_libdevice
@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.sampled(3)
def test_ptxas_takes_the_loops_with_tangents(name: str) -> None:
    kernel, *args = DIFFERENTIABLE[name]
    code = weft.compile_for("sm_90", kernel, *args, jvp=True)
    assert any(loop.name.endswith("_tangent") for loop in code)
    for loop in code:
        for use in loop.usage().values():
            assert use.registers <= 128
            assert use.spill_loads + use.spill_stores <= 64


@weft.kernel
def mathematics(x, y, out):
    for i in range(x.shape[0]):
        out[0, i] = weft.math.exp(x[i]) + weft.math.log(x[i]) * weft.math.sin(x[i])
        out[1, i] = weft.math.tanh(x[i]) + weft.math.pow(x[i], y[i]) + weft.rsqrt(x[i])
        out[2, i] = x[i] % y[i] + x[i] // y[i] + max(x[i], y[i])
        out[3, i] = weft.math.atan2(x[i], y[i]) + weft.math.floor(x[i]) + abs(y[i])


@needs_ptxas
@needs_libdevice
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.sampled(5)
def test_mathematics_in_every_float(arch: str) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x, out = empty(9, dtype=dtype), empty(4, 9, dtype=dtype)
        for loop in weft.compile_for(arch, mathematics, x, x, out):
            assert loop.usage()


@weft.kernel
def atomics(x, where, out, low, high):
    for i in range(x.shape[0]):
        out[where[i]] += x[i]
        weft.atomic_min(low[where[i]], x[i])
        weft.atomic_max(high[where[i]], x[i])


@needs_ptxas
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.sampled(3)
def test_atomics_in_every_type(arch: str) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8,
                  torch.int8, torch.int16, torch.int32, torch.int64):  # fmt: skip
        x, where = empty(9, dtype=dtype), empty(9, dtype=torch.int64)
        code = weft.compile_for(arch, atomics, x, where, x, x, x, every_schedule=arch == "sm_80")
        for loop in code:
            assert loop.usage()


def global_accesses(text: str) -> list[str]:
    return re.findall(r"(?:ld|st|red|atom)\.\S*global\S*", text)


def test_reads_are_read_only_and_wide() -> None:
    text = weft.compile_for("sm_90", gallery.axpy, 2.0, empty(9), empty(9)).ptx
    assert global_accesses(text).count("ld.global.nc.v4.b32") == 2
    assert "st.global.v4.b32" in text


def test_products_are_fused_unless_mathematics_is_strict() -> None:
    args = 2.0, empty(9), empty(9)
    assert "fma.rn.f32" in weft.compile_for("sm_90", gallery.axpy, *args).ptx
    strict = weft.kernel(strict_math=True)(gallery.axpy.function)
    assert "fma.rn.f32" not in weft.compile_for("sm_90", strict, *args).ptx


@weft.kernel
def products_less_themselves(x, y):
    for i in range(x.shape[0]):
        p = x[i] * y[i]
        x[i] = p - p
        q = x[i] * 2.5
        y[i] = -q + q


def test_no_product_is_fused_with_itself() -> None:
    """Infinite times what rounding leaves of ``p - p`` is infinite; times 0 it is NaN."""
    text = weft.compile_for("sm_90", products_less_themselves, empty(9), empty(9)).ptx
    assert "mul" in text
    assert "fma" not in text


def test_float_atomics_are_native() -> None:
    for dtype, word in (
        (torch.float32, "add.f32"),
        (torch.float64, "add.f64"),
        (torch.int32, "add."),
    ):
        x, where = empty(9, dtype=dtype), empty(9, dtype=torch.int64)

        @weft.kernel
        def scatter(x, where, out):
            for i in range(x.shape[0]):
                out[where[i]] += x[i]

        found = global_accesses(weft.compile_for("sm_90", scatter, x, where, x).ptx)
        assert any(word in a and a.startswith(("red", "atom")) for a in found), found


def test_neighbouring_threads_are_neighbours_in_memory() -> None:
    @weft.kernel
    def backwards(x, out):
        for j, i in weft.ndrange(x.shape[1], x.shape[0]):
            out[i, j] = 2 * x[i, j]

    (loop,) = weft.compile_for("sm_90", backwards, empty(9, 8), empty(9, 8))
    binds = several(loop.codes[0].schedule, Bind)
    assert binds == [Bind("j", "x"), Bind("i", "y")]


def test_no_division_finds_the_indices() -> None:
    @weft.kernel
    def three(x, out):
        for i, j, k in x:
            out[i, j, k] = 2 * x[i, j, k]

    text = weft.compile_for("sm_90", three, empty(9, 8, 7), empty(9, 8, 7)).ptx
    assert "div." not in text
    assert "rem." not in text


def test_architectures() -> None:
    assert architecture((9, 0)) == architecture("90") == architecture("sm_90a") == "sm_90"
    assert architecture((8, 8)) == "sm_87"
    assert architecture((99, 0)) == "sm_121", "a GPU that is here"
    with pytest.raises(UnsupportedArchitectureError, match="sm_61 is too old"):
        architecture("sm_61")
    for name in ("hopper", "sm_9000", "sm_91", ""):
        with pytest.raises(UnsupportedArchitectureError, match=f"^'{name}' is no .* sm_89, sm_90,"):
            architecture(name)


@weft.kernel
def extrema_of_negations(a, b, out, n: int):
    for i in out:
        out[i] = min(min(a[i], -b[i]), 0) + 100 * max(max(-a[i], -b[i]), n - a[i])


def test_no_negation_meets_extrema() -> None:
    """ptxas gives wrong numbers for them: tests/cuda/test_device.py has the values."""
    a = empty(9, dtype=torch.int32)
    text = weft.compile_for("sm_90", extrema_of_negations, a, a, a, 3).ptx
    assert "min.s32" in text
    assert "neg.s32" not in text
    kept = "\tneg.s32 \t%r2, %r1;\n"
    assert ptx.complemented(kept) == kept
    whole = "\tneg.s16 \t%rs2, %rs1;\n\tsub.s32 \t%r2, 0, %r1;\n\tmax.s32 \t%r3, %r2, %r1;\n"
    assert ptx.complemented(whole) == (
        "\tnot.b16 \t%rs2, %rs1;\n\tadd.s16 \t%rs2, %rs2, 1;\n"
        "\tnot.b32 \t%r2, %r1;\n\tadd.s32 \t%r2, %r2, 1;\n\tmax.s32 \t%r3, %r2, %r1;\n"
    )


@weft.kernel
def magnitudes(x, out):
    for i in out:
        out[i] = int(abs(x[i])) % 3


def test_no_magnitude_of_16_bits_is_left_to_the_assembler() -> None:
    """tests/cuda/test_device.py has the values."""
    text = weft.compile_for("sm_90", magnitudes, empty(9, dtype=torch.int16), empty(9)).ptx
    assert "abs.s16" not in text
    assert "shr.s16" in text
    if ptx.ptxas() is not None:
        assert ptx.cubin(text, "sm_90")
    assert ptx.wrapping("\tabs.s16 \t%rs2, %rs1;\n\tabs.s32 \t%r2, %r1;\n") == (
        "\t{ .reg .b16 %sign, %other;\n\tshr.s16 %sign, %rs1, 15;\n\txor.b16 %other, %rs1, %sign;\n"
        "\tsub.s16 %rs2, %other, %sign; }\n\tabs.s32 \t%r2, %r1;\n"
    )


@weft.kernel(strict_math=True)
def above_negative_numbers(x, out):
    for i in range(x.shape[0]):
        out[i, 0] = 1.0 if abs(x[i]) > -0.5 else 2.0
        out[i, 1] = 1.0 if abs(x[i]) >= 0.0 else 2.0
        out[i, 2] = 1.0 if -abs(x[i]) < 0.5 else 2.0
        out[i, 3] = 1.0 if -abs(x[i]) <= 0.0 else 2.0
        out[i, 4] = 1.0 if 2.0 ** x[i] > -0.5 else 2.0
        out[i, 5] = 1.0 if 2.0 ** x[i] >= 0.0 else 2.0
        out[i, 6] = 1.0 if abs(x[i]) > 0.0 else 2.0
        limit = 0.5
        out[i, 7] = 1.0 if limit > -abs(x[i]) else 2.0


def test_what_is_never_negative_is_asked_whether_it_is_a_number() -> None:
    """ptxas takes such a comparison for true, of NaN, too: tests/cuda/test_device.py has the
    values."""
    text = weft.compile_for("sm_90", above_negative_numbers, empty(9), empty(9, 8)).ptx
    asked = [line for line in text.splitlines() if "setp." in line and ".f32" in line]
    assert any("setp.num" in line for line in asked)
    (power,) = [line for line in asked if "BF000000" in line]  # -0.5
    assert "setp.gt" in power  # of many steps, which ptxas does not know the sign of


@pytest.mark.parametrize(
    ("relation", "register", "constant", "asked"),
    [
        ("gt", 2, -0.3125, True), ("ge", 2, 0.0, True), ("ge", 2, -0.0, True),
        ("gt", 2, -math.inf, True), ("gt", 2, 0.0, False), ("gt", 2, -0.0, False),
        ("gt", 2, 1.0, False), ("lt", 2, -1.0, False), ("gt", 2, math.nan, False),
        ("lt", 3, 1.0, True), ("le", 3, 0.0, True), ("lt", 3, 0.0, False),
        ("lt", 3, -1.0, False), ("gt", 3, -1.0, False), ("gt", 4, -1.0, True),
        ("gt", 5, -1.0, False),
    ],
)  # fmt: skip
def test_comparisons_that_hold_of_all_numbers(
    relation: str, register: int, constant: float, asked: bool
) -> None:
    """Of |x|, its negation and 2 ** x; not of another register, nor of another constant."""
    before = ("\tabs.f32 \t%r2, %r1;\n\tneg.f32 \t%r3, %r2;\n\tex2.approx.f32 \t%r4, %r1;\n"
              "\tadd.rn.f32 \t%r5, %r1, %r2;\n")  # fmt: skip
    bits = struct.pack(">f", constant).hex().upper()
    text = f"{before}\tsetp.{relation}.f32 \t%p1, %r{register}, 0f{bits};\n"
    number = f"{before}\tsetp.num.f32 \t%p1, %r{register}, %r{register};\n"
    assert ptx.ordered(text) == (number if asked else text)
    other = text + ".visible .entry f(\n)\n{\n\tsetp.gt.f32 \t%p1, %r2, 0fBF800000;\n"
    assert ptx.ordered(other).endswith("%r2, 0fBF800000;\n")  # of another function


@needs_ptxas
@needs_libdevice
@pytest.mark.slow
def test_the_gradient_of_a_state_stays_in_registers() -> None:
    """Of what rows share, too: the sums over them of eight turns, while rows are staged."""
    args = [empty(2, 9, 3, 64)] * 6
    (loop,) = cross.lowered_loops(recurrences.rwkv7, *args, 64)
    wanted, written = read_and_written(loop)
    state = state_of(loop, written)
    assert state is not None
    made = by_columns(loop, wanted, written, rows=64, checkpoints=[state.loop], chunk=8)
    assert made is not None
    steps = [cross.compiled(s, "sm_90", recurrences.rwkv7.options, False) for s in made.steps]
    # Where chunks begin, among staged turns and among those that are left; and behind the last one.
    assert steps[0].ptx.count("st.global.v4") == 3 * 64 // 4
    for gpu_loop in steps:
        ((schedule, _), use), = gpu_loop.usage().items()  # fmt: skip
        assert len(several(schedule, Stage)) == 1
        assert use.spill_loads == use.spill_stores == 0
        assert use.registers * 64 * 4 <= 65536  # four blocks at once
    assert only(schedule, SharedArrays) is not None
    assert only(schedule, CopyAhead) == CopyAhead("i_", 8)  # the state where chunks begin
    assert use.stack < 4 * 64  # what rows keep is in shared memory


def test_what_is_left_of_a_sum_is_unrolled() -> None:
    """LLVM says of what is left of its unrolled loops that it stays a loop: each turn would wait
    for what it loads."""
    assert "nounroll" not in weft.compile_for("sm_90", column_sums, empty(9, 40_000)).ptx
    assert "nounroll" in weft.compile_for("sm_90", recurrences.decayed, empty(9, 40_000), 0.5).ptx


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_launches_of_one_loop_overlap_where_the_gpu_can(arch: str) -> None:
    """What the blocks of the second one read before the first is done would be old."""
    (loop,) = cross.lowered_loops(column_sums, empty(800, 12345))
    optimized = compiler.optimize(loop, column_sums.options)
    split = [text for text in cuda.analyse(optimized).candidates if "split_reduction" in text]
    texts = [cuda.compile_cuda(optimized, candidate(text).schedule, arch).ptx for text in split]
    assert texts
    for text in texts:
        _, first, then = re.split(r"^\.visible \.entry ", text, flags=re.MULTILINE)
        able = arch != "sm_80"
        assert ("{\n\tgriddepcontrol.launch_dependents;" in first) is able
        assert ("{\n\tgriddepcontrol.wait;" in then) is able
        assert text.count("griddepcontrol") == 2 * able
        assert ("ld.global.nc" in then) is not able  # the first writes it meanwhile
    if ptx.ptxas() is not None:
        ptx.cubin(texts[0], arch)


def test_a_loop_of_one_launch_waits_for_none() -> None:
    text = str(cross.compile_for("sm_90", gallery.axpy, 2.0, empty(9), empty(9)).loops[0].ptx)
    assert "griddepcontrol" not in text

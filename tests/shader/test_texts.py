"""The texts of shaders, which need no device."""

from __future__ import annotations

import re

import pytest
import torch

import weft
from examples.causal_conv import causal_conv
from tests.shader.test_scheduled import smooth
from weft import compiler
from weft.codegen.shader import emit
from weft.ir.core import Function
from weft.ir.parse import parse_function
from weft.schedule.choose import candidate
from weft.schedule.language import BlockDim, only
from weft.tools.cross import gradient_loops, lowered_loops


@weft.kernel
def total(x):
    s = 0.0
    for i in range(x.shape[0]):
        s += x[i] * x[i]
    return s


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, device="meta", dtype=dtype)


def test_kernels_are_compiled_for_shading_languages_anywhere() -> None:
    wgsl = weft.compile_for("wgsl", total, meta(9))
    ((name, code),) = wgsl.loops
    assert (name, wgsl.language, code.dialect) == ("total_0", "wgsl", "wgsl")
    # One form with indices of 32 bits, one with 64; of each, what blocks do and what is left.
    assert [form.wide for form in code.forms] == [False, True]
    assert [len(form.stages) for form in code.forms] == [2, 2]
    assert "var<workgroup>" in str(wgsl)
    assert "i64" not in code.forms[0].stages[0].text
    msl = str(weft.compile_for("msl", total, meta(9), backward=True))
    assert msl.count("kernel void entry(") == 6  # the gradient has one stage
    assert "// total_0_adjoint\n" in msl


def test_inspect_has_the_shaders_of_any_kernel() -> None:
    stages = total.inspect(torch.randn(5))
    assert "@compute @workgroup_size(256, 1, 1)" in stages["wgsl"]
    assert "threadgroup_barrier" in stages.text("msl")
    assert "wgsl" not in total.inspect(torch.randn(5)).text()  # where nobody asks


def test_a_text_has_what_is_used_and_functions_once() -> None:
    @weft.kernel
    def grown(x, out):
        for i, j in weft.ndrange(x.shape[0] - 3, x.shape[1]):
            s = 0.0
            for k in range(4):
                s += weft.exp(x[i + k, j]) * weft.exp(x[i + k, j] + 1.0)
            out[i, j] = s + weft.exp(s)

    shape = meta(9, 9), meta(9, 9)
    for form in weft.compile_for("wgsl", grown, *shape).loops[0][1].forms:
        text = form.stages[0].text
        assert text.count("fn exp_f32(") == 1 < text.count("= exp_f32(")
        for name, _ in re.findall(r"let (\w+): (\w+) = ", text):
            assert len(re.findall(rf"\b{name}\b", text)) > 1, f"nobody uses {name}:\n{text}"
        main = text[text.index("@compute") :]
        sums = re.findall(r"let \w+: i32 = (.*);", main)
        assert all(not value.endswith("+ i32(0))") for value in sums)
    msl = str(weft.compile_for("msl", grown, *shape))
    assert msl.count("static f32 exp_f32(f32 a) {") == msl.count("kernel void entry(")


def by(function: Function, word: str) -> list[str]:
    """The lines of the shader by the first candidate with ``word``."""
    facts = emit.analyse(function, "wgsl")
    schedule = candidate(next(c for c in facts.candidates if word in c)).schedule
    threads = only(schedule, BlockDim)
    x, y, *_ = (*threads.sides, 1) if threads else (32, 4)
    made = emit.form(function, schedule, (x, y, 1), 0, "wgsl", watch=False)
    return made.stages[0].text.splitlines()


def optimized(kernel: weft.Kernel, *args: object) -> Function:
    (loop,) = lowered_loops(kernel, *args)
    return compiler.optimize(loop, kernel.options)


def test_a_driver_has_few_lines_to_compile() -> None:
    function = optimized(causal_conv, meta(768, 768), meta(8, 768, 768), 0.1)
    lines = by(function, "whole(b, 4); whole(t, 128)")
    assert any("var<workgroup>" in line for line in lines)
    assert len(lines) < 1000  # 5,654, where tiles are as on CUDA, and all is printed


def test_so_do_those_of_gradients() -> None:
    """What a gradient's tile asks, copies and loads: of the loop that is left and of the edges no
    more than that."""
    (loop,) = lowered_loops(causal_conv, meta(768, 768), meta(8, 768, 768), 0.1)
    for step in gradient_loops(loop):
        function = compiler.optimize(step, causal_conv.options)
        jammed = "i1" if step.name.endswith("d_w") else "i2"
        lines = by(function, f"whole(i0, 4); whole({jammed}, 128)")
        assert len(lines) < 360, step.name  # 504 and 364, at first
        begin = next(k for k, line in enumerate(lines) if "(i32(8) + " in line)
        turns = lines[begin : next(k for k in range(begin, len(lines)) if "_ = " in lines[k][:9]
                                   or lines[k].strip() == "}")]  # fmt: skip
        loads = [line for line in turns if "= v_1[" in line]
        assert len(loads) == 4, "two vectors of each row"
        assert all(": vec4<f32> =" in line for line in loads)
        buffers = [line for line in lines if re.search(r"vec4<f32> = a\d\[", line)]
        assert len(buffers) == (3 if step.name.endswith("d_w") else 2), "rows are copied in vectors"
        kept = [line for line in lines if re.search(r"^ *v_1\[.* = four_\d+_;$", line)]
        assert len(kept) == len(buffers), "and not taken apart"


def test_sizes_and_rows_are_read_once() -> None:
    text = "\n".join(by(optimized(smooth, meta(8, 128), meta(8, 128)), "index_width(32); cover"))
    sizes = re.findall(r"let (n\d+_): i32 = i32\((params\[\d+u\]\.\w)\);", text)
    assert len(sizes) >= 2
    for name, word in sizes:
        assert text.count(word) == 1 < len(re.findall(rf"\b{name}\b", text))
    rows = re.findall(r"let row_\d+_: i32 = ", text)
    assert len(rows) == 1, "three elements of one row, and one of each of the others"


def test_places_in_vectors_are_known() -> None:
    lines = by(optimized(smooth, meta(8, 128), meta(8, 128)), "vectorize")
    loads = [line.rpartition("= ")[2] for line in lines if "= a0[" in line]
    assert [load.rpartition("]")[2] for load in loads[:5]] == [";", ";", ";", ".w;", ".x;"]


def test_what_shaders_do_not_have_is_refused_by_name() -> None:
    @weft.kernel
    def wide(x, h):
        for i in range(x.shape[0]):
            h[0] += x[i]

    with pytest.raises(TypeError, match=r"no atomic operations of 64 bits") as caught:
        weft.compile_for("wgsl", wide, meta(9), meta(1, dtype=torch.float64))
    assert "accumulate into a tensor of 32 bits" in str(caught.value)

    with pytest.raises(TypeError, match="shaders do not compute with f8e5m2") as caught:
        weft.compile_for("wgsl", total, meta(9, dtype=torch.float8_e5m2))
    assert "pass the tensor as float16" in str(caught.value)

    @weft.kernel
    def zeros(x):
        for i in range(x.shape[0]):
            x[i] = 0.0

    with pytest.raises(TypeError, match="Metal has no float64"):
        weft.compile_for("msl", zeros, meta(9, dtype=torch.float64))
    with pytest.raises(TypeError, match="Metal has no float64") as caught:
        weft.compile_for("msl", total, meta(9, dtype=torch.float64))
    assert "pass tensors of float32" in str(caught.value)

    @weft.kernel
    def gammas(x):
        for i in range(x.shape[0]):
            x[i] = weft.math.lgamma(x[i])

    for dialect in ("wgsl", "msl"):  # the line is the kernel's, not one of weft's own formulas
        with pytest.raises(TypeError, match="no `log` of float64, in which this") as caught:
            weft.compile_for(dialect, gammas, meta(9))
        assert "x[i] = weft.math.lgamma(x[i])" in str(caught.value)


def test_devices_are_asked_for_by_name() -> None:
    with pytest.raises(ValueError, match="'cuda' is no device that a kernel may be asked"):
        total.on("cuda")
    assert total.on("webgpu").on("cpu")(torch.ones(3)) == 3


def test_drivers_are_not_to_unroll_what_remains() -> None:
    """NVIDIA's takes a third less for causal conv, whose remainders are nine loops."""
    wgsl = str(weft.compile_for("wgsl", causal_conv, meta(768, 768), meta(8, 768, 768), 0.1))
    steps = re.findall(r"for \(; \w+ < [^;]+; \w+ = \w+ \+ (.*)\) \{", wgsl)
    assert any("params[0u].w" in step for step in steps)  # which is 0
    assert "i32(1)" in steps  # and what is worth it
    msl = str(weft.compile_for("msl", causal_conv, meta(768, 768), meta(8, 768, 768), 0.1))
    assert "params[3u]" not in msl


CONSTANTS = """
func.func @constants(%x: memref<?xi32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = "weft.dim"(%x) {axis = 0} : (memref<?xi32>) -> index
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {
    %two = arith.addi %c1, %c1 : index
    %three = arith.addi %two, %c1 : index
    %narrow = arith.index_cast %three : index to i32
    memref.store %narrow, %x[%i] : memref<?xi32>
    scf.reduce
  }
  func.return
}
"""


def test_what_is_computed_of_constants_is_a_constant() -> None:
    """naga refuses to convert `i64(3)` to i32."""
    function = parse_function(CONSTANTS)
    for form in emit.compile_shader(function, "wgsl").forms:
        assert "= i32(3);" in form.stages[0].text
        assert "i64(3)" not in form.stages[0].text


@weft.kernel
def chosen(x, at, w, out):
    for i, j in weft.ndrange(x.shape[0], 4):
        s = 0.0
        for k in range(x.shape[1]):
            if at[i, k] > 0:
                s += x[i, k]
            out[i, j, k] = s + w[j]


def test_loads_stand_where_a_driver_need_not_wait_for_each() -> None:
    """Not in branches, and not in a loop where all its turns load the same: a driver does not know
    that this is no other name of what the loop writes."""
    given = meta(9, 9), meta(9, 9, dtype=torch.int32), meta(4), meta(9, 4, 9)
    for form in weft.compile_for("wgsl", chosen, *given).loops[0][1].forms:
        before, inside = form.stages[0].text.split("for (;")[-2:]
        assert before.count(" = a2[") == 1
        assert "a2[" not in inside
        assert "if (" not in inside[: inside.index("a3[")]
        assert re.search(r"= a1\[select\(i\d\d\(0\), ", inside)
    metal = str(weft.compile_for("msl", chosen, *given))  # where a tensor may have no element
    assert "[select(" not in metal


@weft.kernel
def filtered(x, w, out):
    for b, c in weft.ndrange(x.shape[0], x.shape[2]):
        s = 0.0
        for t in range(x.shape[1]):
            s = w[0, c] * x[b, t, c] + w[1, c] * weft.sin(s * w[2, c]) + w[3, c] * weft.cos(s)
            out[b, t, c] = s + w[4, c]


def test_elements_that_copies_of_a_turn_load_are_loaded_once() -> None:
    lines = by(optimized(filtered, meta(8, 768, 768), meta(5, 768), meta(8, 768, 768)), "prefetch")
    loops = [k for k, line in enumerate(lines) if "for (;" in line]
    weights = [k for k, line in enumerate(lines) if "= a0[" in line]
    assert len(weights) == 10  # five before the loop of four turns each, and before the rest
    assert not any(loops[0] < k < loops[0] + 50 for k in weights)


ARRAY = """
func.func @array(%x: memref<?xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = "weft.dim"(%x) {axis = 0} : (memref<?xf32>) -> index
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {
    %inside = arith.cmpi slt, %i, %n : index
    scf.if %inside {
      %s = memref.alloca() : memref<2xf32>
      %v = memref.load %s[%c1] : memref<2xf32>
      memref.store %v, %x[%i] : memref<?xf32>
      scf.yield
    } else {
      scf.yield
    }
    scf.reduce
  }
  func.return
}
"""


def test_branches_that_make_an_array_stay() -> None:
    for form in emit.compile_shader(parse_function(ARRAY), "wgsl").forms:
        assert re.search(r"if \(\w+\) \{\n *var \w+: array<f32, 2>;", form.stages[0].text)


@weft.kernel
def normed(x, out):
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s += x[i, j] * x[i, j]
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] / s


@weft.kernel
def normed_in_place(x):
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s += x[i, j] * x[i, j]
        for j in range(x.shape[1]):
            x[i, j] /= s


def test_threads_wait_for_buffers_only_where_one_may_load_what_another_stored() -> None:
    """That is a wait for the whole device's memory."""
    apart = by(optimized(normed, meta(9, 999), meta(9, 999)), "cooperate")
    in_place = by(optimized(normed_in_place, meta(9, 999)), "cooperate")
    for lines, waits in ((apart, False), (in_place, True)):
        words = [line.strip() for line in lines]
        assert "workgroupBarrier();" in words
        assert ("storageBarrier();" in words) is waits

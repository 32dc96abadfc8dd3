"""Operators whose kernel is machine code."""

import functools
import gc
import itertools
import logging
import math
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import weft
from tests import processes
from weft.errors import GradientError, WeftError
from weft.pytorch.boxed import BoxedKernel
from weft.pytorch.changing import CHANGING
from weft.pytorch.namespace import namespace_of
from weft.runtime import stable, tuned
from weft.runtime.overlap import OverlapWarning

pytestmark = pytest.mark.skipif(bool(stable.missing()), reason=stable.missing())


numbers = itertools.count()
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def make_add() -> Any:
    # Kernels of one text share an operator, in one namespace.
    @weft.kernel(namespace=f"weft_boxed_{next(numbers)}")
    def boxed_add(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
        for i in range(x.shape[0]):
            out[i] = x[i] + y[i]

    return boxed_add


@weft.kernel
def scaled_beyond(x: torch.Tensor, n: int, s: float, up: bool, out: torch.Tensor) -> None:
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        if up:
            out[i, j] = x[i, j] * s + n
        else:
            out[i, j] = n


@weft.kernel
def moved(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        out[i] = x[i] + 1


def learned(kernel: Any, *args: Any) -> BoxedKernel:
    """The machine code of the kernel's operator after two calls."""
    for _ in range(2):
        kernel.op(*args)
    (code,) = [code for code in kernel.launchers[0].boxed if not code.listed]
    assert code._known
    return code


def by_python(code: BoxedKernel, call: Callable[[], Any]) -> int:
    """How often ``call`` goes on to Python."""
    counted = 0
    plain = code.call

    def call_counted(stack: int, which: int) -> int | None:
        nonlocal counted
        counted += 1
        return plain(stack, which)

    code.call = call_counted  # type: ignore[method-assign]
    try:
        call()
    finally:
        del code.call
    return counted


def vectors(n: int = 16) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(n), torch.randn(n), torch.full((n,), torch.nan)


def test_calls_run_no_python() -> None:
    add, frames = make_add(), list[str]()
    x, y, out = vectors()
    code = learned(add, x, y, out)
    out.fill_(torch.nan)
    version = out._version

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            frames.append(frame.f_code.co_filename)

    op = add.op.overloadpacket
    sys.setprofile(profile)
    op(x, y, out)
    sys.setprofile(None)
    assert torch.equal(out, x + y)
    assert out._version == version + 1
    # torch's packet, and what gives Python its errors back.
    assert [Path(name).name for name in frames] == ["_ops.py", "boxed.py"]
    larger = vectors(1000)
    assert by_python(code, lambda: op(*larger)) == 0
    assert torch.equal(larger[2], larger[0] + larger[1])


def test_numbers_and_layouts() -> None:
    x, out = torch.randn(3, 4), torch.empty(3, 4)
    code = learned(scaled_beyond, x, 2, 0.5, True, out)
    wide, turned = torch.full((3, 8), torch.nan)[:, :4], torch.full((4, 3), torch.nan).t()
    for place in (wide, turned):
        learned(scaled_beyond, x, 2, 0.5, True, place)
    assert len(code._known) == 3
    for place in (wide, turned, out):
        place.fill_(torch.nan)
        assert by_python(code, lambda p=place: scaled_beyond.op(x, -7, 1.5, True, p)) == 0
        torch.testing.assert_close(place, x * 1.5 - 7)
        scaled_beyond.op(x, 1 << 40, 1.5, False, place)
        assert place.eq(1 << 40).all()


def strange(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> dict[str, tuple[Any, ...]]:
    empty = x.clone()
    empty.untyped_storage().resize_(0)
    return {
        "dtype": (x.double(), y.double(), out), "complex": (x.to(torch.complex64), y, out),
        "rank": (x[None], y, out), "expanded": (x, y, torch.zeros(1).expand(16)),
        "gradient": (x.clone().requires_grad_(), y, out), "no memory": (empty, y, out),
        "zeros": (x, y, torch._efficientzerotensor(16)),
        "negated": (torch._neg_view(x), y, out), "missing": (x, y), "number": (x, 2.0, out),
        "stride": (x.repeat(2)[::2], y, out), "empty": (x[:0], y[:0], out[:0]),
        "meta": (x.to("meta"), y.to("meta"), out.to("meta")),
    }  # fmt: skip


def outcome(op: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    out = args[-1]
    try:
        op(*args)
    except (WeftError, RuntimeError) as error:
        return type(error), str(error).replace(op._schema.name, "")  # in another namespace
    return out.shape, out.dtype, out.tolist() if out.device.type == "cpu" else None


@pytest.mark.parametrize("kind", strange(*vectors()))
def test_what_is_not_covered_is_as_in_python(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    args = vectors()
    native, plain = make_add(), make_add()
    learned(native, *args)
    with monkeypatch.context() as patch:
        patch.setattr(stable, "missing", lambda: "switched off")
        op = plain.op
    for _ in range(2):
        op(*args)
    assert not plain.launchers[0].boxed
    found = outcome(native.op, strange(*args)[kind])
    assert found == outcome(op, strange(*args)[kind])
    if found[0] is RuntimeError:  # torch's own, about the schema or ZeroTensors
        assert kind in ("missing", "number", "zeros")


def test_memory_that_is_shared() -> None:
    x, _, out = vectors()
    learned(moved, x, out)
    whole = torch.zeros(18)
    with pytest.warns(OverlapWarning, match="share memory"):
        moved.op(whole[:16], whole[2:])
    assert whole.tolist() == [k // 2 for k in range(18)]


class Watch(TorchDispatchMode):
    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.error = error

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func._schema.name)
        if self.error is not None:
            raise self.error
        return func(*args, **(kwargs or {}))


def test_modes_and_transforms() -> None:
    add = make_add()
    x, y, out = vectors()
    learned(add, x, y, out)
    with Watch() as mode:
        add.op(x, y, out)
    assert mode.seen == [add.op._schema.name]
    with pytest.raises(KeyError, match="mine"), Watch(KeyError("mine")):
        add.op(x, y, out)
    with FakeTensorMode() as fakes:
        args = tuple(map(fakes.from_tensor, (x, y, out)))
        assert add.op(*args) is None
    assert add.op(*args) is None  # fake tensors outside of their mode
    with forward_ad.dual_level(), pytest.raises(GradientError, match="`x` has a tangent"):
        add.op(forward_ad.make_dual(x, y), y, out)
    with pytest.raises(WeftError, match="`x` requires grad"):
        torch.func.grad(lambda x: (add.op(x, y, torch.zeros(16)), x.sum())[1])(x)
    with torch.no_grad():
        add.op(x.clone().requires_grad_(), y, out)
    assert torch.equal(out, x + y)
    with torch.inference_mode():
        made = torch.zeros(16)
        learned(add, x, y, made)
        assert torch.equal(made, x + y)


@pytest.mark.filterwarnings("ignore")  # torch.compile's own
def test_one_graph_for_many_numbers() -> None:
    learned(scaled_beyond, torch.randn(3, 4), 2, 0.5, True, torch.empty(3, 4))
    graphs = 0

    def backend(graph: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    @torch.compile(fullgraph=True, dynamic=True, backend=backend)
    def call(x: torch.Tensor, n: int) -> torch.Tensor:
        out = torch.empty_like(x)
        torch.ops.weft.scaled_beyond(x, n, 2.0, True, out)
        return out

    for n in (5, 6, 7):
        x = torch.randn(n, n + 2)
        torch.testing.assert_close(call(x, n), x * 2 + n)
    assert graphs == 1


def test_a_compiled_graph_calls_machine_code() -> None:
    add = make_add()
    args = vectors()
    code = learned(add, *args)

    @torch.compile(fullgraph=True, backend="eager")
    def call(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        add(x, y, out)
        return out * 2

    call(*args)
    assert by_python(code, lambda: call(*args)) == 0
    torch.testing.assert_close(call(*args), (args[0] + args[1]) * 2)


def plus(x: float) -> float:
    return x + 1


def test_what_was_compiled_in_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    @weft.kernel(namespace=f"weft_boxed_{next(numbers)}")
    def through(x: torch.Tensor, out: torch.Tensor) -> None:
        for i in range(x.shape[0]):
            out[i] = plus(x[i])

    x, _, out = vectors()
    code = learned(through, x, out)
    assert by_python(code, lambda: through.op(x, out)) == 0
    op = through.op  # a new one would be made for the new text
    monkeypatch.setitem(globals(), "plus", lambda x: x + 2)
    for _ in range(9):
        out.fill_(torch.nan)
        op(x, out)
        assert torch.equal(out, x + 2)
    assert by_python(code, lambda: op(x, out)) == 0


def test_threads() -> None:
    add = make_add()
    op, failed = add.op, list[str]()

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for n in range(1, 60):
            x, y = torch.randn(2, n, generator=generator)
            out = torch.full((n,), torch.nan)
            op(x, y, out)
            if not torch.equal(out, x + y):
                failed.append(f"{seed}, {n}")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    (code,) = add.launchers[0].boxed
    assert code._known


def test_the_interpreter_is_free_meanwhile() -> None:
    @weft.kernel
    def waits(flag: torch.Tensor) -> None:
        for _ in range(1):
            n = 0
            while flag[0] == 0 and n < 2_000_000_000:
                n += 1
            flag[1] = n

    flag = torch.ones(2, dtype=torch.int64)
    learned(waits, flag)
    flag[0] = 0
    thread = threading.Thread(target=waits.op, args=(flag,))
    thread.start()
    flag[0] = 1
    thread.join(20)
    assert not thread.is_alive()


def test_an_operator_that_is_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    add = make_add()
    monkeypatch.setattr(namespace_of(add._namespace), "recent", deque(maxlen=0))
    code = weakref.ref(learned(add, *vectors()))
    name = add.op._schema.name
    assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutogradCPU")
    del add
    gc.collect()
    assert code() is None
    assert not torch._C._dispatch_has_kernel(name)


def test_schedules_are_heeded() -> None:
    add = make_add()
    args = vectors()
    code = learned(add, *args)
    (_, kernel), *_ = code._kernels
    kept: list[int] = []
    for _ in range(4):
        code.forget()
        assert not code._known
        for _ in range(100):  # of which some are looked at
            add.op(*args)
        assert code._known
        kept.append(len(kernel._kept))
    assert kept == [2] * 4  # records for no form, and for this one
    add.schedule("cpu", "")
    assert not code._known
    for _ in range(1000):
        add.op(*args)
    assert code._known


def test_a_torch_without_the_functions(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    there = {**stable.functions(), "aoti_torch_library_impl": 0}
    monkeypatch.setattr(stable, "functions", lambda: there)
    why = stable.missing.__wrapped__()
    assert why == f"torch {torch.__version__} has no aoti_torch_library_impl"
    monkeypatch.setattr(stable, "missing", lambda: why)
    add, (x, y, out) = make_add(), vectors()
    with caplog.at_level(logging.DEBUG, "weft.launch"):
        for _ in range(3):
            add.op(x, y, out)
    assert torch.equal(out, x + y)
    name = add.op._schema.name.partition("::")[2]
    assert f"{name}: the operator's kernels are in Python: {why}" in caplog.messages
    assert not torch._C._dispatch_has_kernel_for_dispatch_key(add.op._schema.name, "CPU")


PROGRAM = """import sys, torch, weft
@weft.kernel
def in_process(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        out[i] = x[i] + 1
x, out = torch.arange(3.0), torch.zeros(3)
for _ in range(3):
    in_process.op(x, out)
(code,) = in_process.launchers[0].boxed
print(out.tolist(), len(code._known), 'weft.runtime.jit' in sys.modules)
"""


def test_the_disk_cache_has_the_code(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "WEFT_CACHE_DIR": str(tmp_path), "WEFT_CACHE": "1"}
    for compiled in (True, False):
        found = processes.run(program, environment, tmp_path)
        assert found.stdout == f"[1.0, 2.0, 3.0] 1 {compiled}\n", found.stderr


def test_handles_are_given_back() -> None:
    add = make_add()
    args = vectors()
    learned(add, *args)

    def users() -> list[int]:
        gc.collect()
        return [torch._C._storage_Use_Count(v.untyped_storage()._cdata) for v in args]

    before = users()
    for _ in range(3):
        add.op(*args)
        add.op(torch._neg_view(args[0]), *args[1:])
        with pytest.raises(WeftError, match="it is expanded"):
            add.op(*args[:2], args[2][:1].expand(16))
    assert users() == before


def test_a_parameter_is_a_tensor() -> None:
    add = make_add()
    x, y, out = vectors()
    weight = torch.nn.Parameter(x, requires_grad=False)
    code = learned(add, weight, y, out)
    assert by_python(code, lambda: add.op(weight, y, out)) == 0
    assert torch.equal(out, x + y)


@weft.kernel
def row_sums(x: torch.Tensor, n: int, s: float) -> Any:
    rows, cols = x.shape
    out = torch.zeros_like(x)
    total = 0.5
    for i, j in weft.ndrange(rows, cols):
        out[i, j] += x[i, j] * s + n
        total += x[i, j]
    return out, total


def test_numbers_that_loops_reduce_into() -> None:
    x = torch.randn(5, 7)
    code = learned(row_sums, x, 2, 0.5)
    x = torch.randn(3, 4)
    made: list[Any] = []
    assert by_python(code, lambda: made.extend(row_sums.op(x, -3, 1.5))) == 0
    torch.testing.assert_close(made[0], x * 1.5 - 3)
    torch.testing.assert_close(made[1], x.sum() + 0.5)
    assert made[1].shape == ()


def test_symbolic_numbers_stay_symbolic() -> None:
    """An operator with numbers has an overload for such as are none."""
    x, out = torch.randn(3, 4), torch.empty(3, 4)
    learned(scaled_beyond, x, 2, 0.5, True, out)
    name = scaled_beyond.op._schema.name
    assert "SymInt n" in str(scaled_beyond.op._schema)
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"{name}.int", "AutogradCPU")
    with Watch() as mode:
        scaled_beyond.op(x, 2, 0.5, True, out)
    assert mode.seen == [name]
    assert scaled_beyond.op(x.to("meta"), 2, 0.5, True, out.to("meta")) is None
    with pytest.raises(WeftError, match="`x` requires grad"):
        scaled_beyond.op(x.clone().requires_grad_(), 2, 0.5, True, out)
    for other in (x.to_sparse(), torch._neg_view(x), x.double()):
        with pytest.raises((WeftError, RuntimeError)) if other.is_sparse else nullcontext():
            scaled_beyond.op(other, 3, 0.5, True, out)
            torch.testing.assert_close(out, other.to(out.dtype) * 0.5 + 3)


@pytest.mark.cuda
@needs_gpu
def test_calls_on_a_device_run_no_python() -> None:
    assert stable.devices() == ("CPU", "CUDA")
    add = make_add()
    args = [v.cuda() for v in vectors(1000)]
    code = learned(add, *args)
    args[2].fill_(torch.nan)
    side = torch.cuda.Stream()
    for stream in (torch.cuda.current_stream(), side):
        with torch.cuda.stream(stream):
            version = args[2]._version
            assert by_python(code, lambda: add.op(*args)) == 0
            assert args[2]._version == version + 1
            assert torch.equal(args[2], args[0] + args[1])
    others = [v.cuda() for v in vectors(999)]
    assert by_python(code, lambda: add.op(*others)) == 1  # of another size
    whole = torch.randn(1001, device="cuda")[1:]  # not as aligned
    for x in (whole, args[0]):
        add.op(x, args[1], args[2])
        assert torch.equal(args[2], x + args[1])
    with pytest.raises(WeftError, match="device"):
        add.op(args[0].cpu(), *args[1:])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add.op(*args)
    args[0].fill_(3)
    graph.replay()
    assert torch.equal(args[2], args[0] + args[1])


@pytest.mark.cuda
@needs_gpu
def test_what_is_made_on_a_device() -> None:
    for shape in ((5, 7), (300, 700)):
        x = torch.randn(shape, device="cuda")
        row_sums.op(x, 2, 0.5)
        code = learned(row_sums, x, 2, 0.5)
        made: list[Any] = []
        # A schedule may depend on whole numbers.
        assert by_python(code, lambda x=x: made.extend(row_sums.op(x, 2, 1.5))) == 0  # noqa: B023
        torch.testing.assert_close(made[0], x * 1.5 + 2)
        torch.testing.assert_close(made[1], x.sum() + 0.5, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(row_sums.op(x, -3, 1.5)[0], x * 1.5 - 3)


def test_tuned_schedules_of_other_loops_leave_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with such records is read by a process that serves a model."""
    other = tuned.Record("schedule", "other", "digest", "machine", "sizes", "", 2.0, 1.0)
    monkeypatch.setattr(tuned.records, "_files", {Path("shipped.json"): [other]})

    @weft.kernel
    def beside_tuned(x: torch.Tensor, out: torch.Tensor) -> None:
        for i in range(x.shape[0]):
            out[i] = x[i] + 1

    x, out = torch.randn(16), torch.empty(16)
    code = learned(beside_tuned, x, out)
    assert by_python(code, lambda: beside_tuned.op(x, out)) == 0
    torch.testing.assert_close(out, x + 1)


def test_a_float_that_changes_is_an_argument_of_the_machine_code() -> None:
    @weft.kernel(fuse=False)
    def grown(x: torch.Tensor, s: float) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * s
        return out

    x = torch.randn(9)
    compiled = torch.compile(grown, fullgraph=True, dynamic=True, backend="aot_eager")
    for s in (0.5, 0.25, 1.5, 2.5, 3.5):
        torch.testing.assert_close(compiled(x, s), x * s)
    (code,) = (code for code in grown.launchers[0].boxed if CHANGING in code.types)
    assert by_python(code, lambda: torch.testing.assert_close(compiled(x, 7.5), x * 7.5)) == 0
    number = torch.tensor(3.0, dtype=torch.float64)
    packet = getattr(torch.ops.weft, code.name)
    assert by_python(code, lambda: packet(x, number)) == 0
    assert by_python(code, lambda: packet(x, number.float())) > 0
    assert by_python(code, lambda: packet(x.requires_grad_(), number)) > 0


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_tensors_are_pairs_of_floats_in_machine_code(dtype: torch.dtype) -> None:
    @weft.kernel
    def rotated(x: torch.Tensor, r: torch.Tensor, s: float) -> torch.Tensor:
        out = torch.zeros_like(x)
        for i, j in weft.ndrange(x.shape[0], x.shape[1]):
            out[i, j] += x[i, j].conjugate() * r[i, j] + s
        return out

    @weft.kernel
    def absolute(out: torch.Tensor, x: torch.Tensor) -> None:
        for i, j in weft.ndrange(x.shape[0], x.shape[1]):
            out[i, j] = abs(x[i, j])

    real = torch.zeros((), dtype=dtype).real.dtype

    def check(n: int, m: int, dim: int) -> None:
        x = torch.randn(n, 2 * m, dtype=dtype)[:, ::2]
        x = x.contiguous() if dim == 0 else x
        r, out = torch.randn(n, m, dtype=real), torch.full((n, m), math.nan, dtype=real)
        if dim == 0:
            torch.testing.assert_close(rotated.op(x, r, 0.5), x.conj() * r + 0.5)
            torch.testing.assert_close(rotated.op(x.conj().resolve_conj(), r, 0.5), x * r + 0.5)
        absolute.op(out, x)
        torch.testing.assert_close(out, x.abs())

    for dim in (0, 1):
        for _ in range(4):
            check(3, 5, dim)
    for kernel in (rotated, absolute):
        (code,) = (code for code in kernel.op.family.boxed.values() if not code.listed)
        for n, m in ((17, 3), (1, 1), (4, 0)):
            for dim in (0, 1) if kernel is absolute else (0,):
                assert by_python(code, functools.partial(check, n, m, dim)) == 0
    x = torch.randn(3, 5, dtype=dtype, requires_grad=True)
    r = torch.randn(3, 5, dtype=real)
    for mode in (torch.no_grad(), torch.inference_mode()):  # lazily conjugated
        with mode:
            torch.testing.assert_close(rotated.op(x.conj(), r, 0.5), x * r + 0.5)
    given = rotated.op(x, r, 0.5).abs().sum(), (x.conj() * r + 0.5).abs().sum()
    torch.testing.assert_close(*(torch.autograd.grad(y, x) for y in given))

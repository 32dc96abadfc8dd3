"""Tests of kernels run a second time where there is a CUDA device, with their tensors on it. No
test may take long."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import os
import resource
import time
import weakref
import zlib
from collections.abc import Generator, Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch.torch_version import TorchVersion

from tests import long

# How long an example takes depends on what else runs on the machine.
settings.register_profile("weft", deadline=None)
settings.load_profile("weft")

# Modules whose tests make their tensors without a word about the device (those that do not are
# marked ``cpu``). The tests of the language run again in ``tests/cuda/test_language.py``, where the
# emulator takes part, and the examples in ``tests/cuda/test_device.py``.
ANYWHERE = (
    "tests/autodiff/test_beside_torch.py",
    "tests/autodiff/test_checkpoints.py",
    "tests/autodiff/test_extremum.py",
    "tests/autodiff/test_gradients.py",
    "tests/autodiff/test_inputs.py",
    "tests/autodiff/test_jvp.py",
    "tests/autodiff/test_modes.py",
    "tests/autodiff/test_names.py",
    "tests/autodiff/test_overwritten.py",
    "tests/autodiff/test_sums.py",
    "tests/autodiff/test_torch.py",
    "tests/autodiff/test_traps.py",
    "tests/frontend/test_arg_extremes.py",
    "tests/frontend/test_constant_tables.py",
    "tests/frontend/test_float8.py",
    "tests/frontend/test_found.py",
    "tests/frontend/test_from_end.py",
    "tests/frontend/test_functions.py",
    "tests/frontend/test_hints.py",
    "tests/frontend/test_host_part.py",
    "tests/frontend/test_host_vectors.py",
    "tests/frontend/test_ndarray.py",
    "tests/frontend/test_overwrites.py",
    "tests/frontend/test_parameter_totals.py",
    "tests/lang/test_elimination.py",
    "tests/lang/test_formulas.py",
    "tests/lang/test_linalg.py",
    "tests/lang/test_vectors.py",
    "tests/pytorch/test_in_place.py",
    "tests/pytorch/test_operator.py",
    "tests/pytorch/test_transforms.py",
    "tests/runtime/test_captured.py",
    "tests/runtime/test_debug_races.py",
    "tests/runtime/test_fastpath.py",
    "tests/runtime/test_kernel.py",
    "tests/runtime/test_overlap.py",
)
# Of these, those that run on WebGPU, too: their kernels are called, and not looked at.
ON_WEBGPU = tuple(
    path for path in ANYWHERE
    if (not path.startswith(("tests/runtime/", "tests/pytorch/"))
        and not path.endswith(("test_modes.py", "test_torch.py", "test_checkpoints.py")))
    or path.endswith("_races.py")
)  # fmt: skip
# Those that run on "mps", in float32. (Inductor has no floats of 8 bits there.)
ON_MPS = (
    *(path for path in ON_WEBGPU
      if not path.endswith(("test_jvp.py", "test_float8.py", "_races.py"))),
    "tests/runtime/test_kernel.py",
    "tests/runtime/test_overlap.py",
)  # fmt: skip


# Of the thread that runs a test and of processes that it waited for: not the time that passes,
# which depends on what else runs on the machine.
# Machines without AVX-512 are older ones: all takes twice as long.
MOST_SECONDS = 20.0 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 40.0


def _spent() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + children.ru_utime + children.ru_stime


_probes = [0.0]  # what Inductor has spent to ask what the processor can do


def _count_probes() -> None:
    """Inductor before PyTorch 2.13 imports torch in ten new processes for that, 20 s, in the first
    test that compiles, whatever it compiles."""
    if TorchVersion(torch.__version__) >= "2.13":
        return
    from torch._inductor.cpu_vec_isa import VecISA  # which is not imported otherwise

    check = VecISA.check_build

    def counted(self: VecISA, code: str) -> bool:
        begin = _spent()
        try:
            return check(self, code)
        finally:
            _probes[0] += _spent() - begin

    VecISA.check_build = counted


_count_probes()


def pytest_runtest_setup() -> None:
    """Continuous integration has half an hour, on slow machines, too: ``.ci/run`` says until when
    tests begin. All of them took 16 to 24 minutes on two quiet cores."""
    if time.time() > float(os.environ.get("WEFT_TESTS_UNTIL", "inf")):
        pytest.skip("the machine is slow: continuous integration has no more time")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A test that takes longer than ``MOST_SECONDS`` fails, unless it is marked ``slow``, or draws
    more random programs than ``make test`` does."""
    begin = _spent() - _probes[0]
    try:
        result = yield
    except (AssertionError, TypeError, ValueError, RuntimeError) as error:
        here = item.path.as_posix().endswith(ANYWHERE)
        there = any(item.get_closest_marker(name) for name in ("webgpu", "mps"))
        if not (here and there and refused(error)):
            raise
        pytest.skip(f"{error}")
    spent = _spent() - _probes[0] - begin
    named = item.get_closest_marker("long")  # these are slow, and may not take longer than others
    exempt = (item.get_closest_marker("slow") and not named) or "WEFT_FUZZ_EXAMPLES" in os.environ
    if spent > MOST_SECONDS and not exempt:
        pytest.fail(
            f"took {spent:.1f} s of the processor, more than {MOST_SECONDS:.0f}: make it smaller, "
            "or several tests, or mark it `slow`"
        )
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Cases that no sample has, and tests that take long (``long.py``), are ``slow``."""
    sample(items)
    known, there = long.named(), long.functions(item.nodeid for item in items)
    if not config.option.file_or_dir and (gone := long.functions(known) - there):
        raise pytest.UsageError(f"make tests/long.txt anew (tests/long.py): no {', '.join(gone)}")
    for item in items:
        if item.nodeid in known:
            item.add_marker(pytest.mark.long)
            item.add_marker(pytest.mark.slow)


def sample(items: list[pytest.Item]) -> None:
    """Of a test that is ``sampled(n)``, all cases are ``slow`` but one in n, chosen by their names;
    and, where there are several sets of parameters, the first with each value of each."""
    functions: dict[str, list[Any]] = {}
    for item in items:
        if item.get_closest_marker("sampled") is not None:
            if not hasattr(item, "callspec"):
                raise pytest.UsageError(f"{item.nodeid} is `sampled` and has no cases")
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in functions.values():
        values = [{n: id(v) for n, v in case.callspec.params.items()} for case in cases]
        columns = [[each[name] for each in values] for name in values[0]]
        axes = [c for c in columns if 1 < len({*c}) < len(c)]  # of which others have a say
        seen: set[tuple[int, int]] = set()
        for k, case in enumerate(cases):
            own = {(number, axis[k]) for number, axis in enumerate(axes)}
            (one_in,) = case.get_closest_marker("sampled").args
            if own <= seen and zlib.crc32(case.name.encode()) % one_in:
                case.add_marker(pytest.mark.slow)
            seen |= own


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What torch and nine thousand tests are made of stays: looking for garbage among it took a
    twentieth of the time."""
    _look_no_more()
    gc.set_threshold(50_000, 20, 100)


def _look_no_more() -> None:
    """Garbage is looked for once more, then among new objects only."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What a file's kernels and graphs are made of stays, too. What LLVM freed is given back:
    processes grew to 1.3 GB otherwise."""
    if nextitem is not None and nextitem.path == item.path:
        return
    _look_no_more()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # where the C library is GNU's
    if trim is not None:
        trim(0)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    path = metafunc.definition.path.relative_to(metafunc.config.rootpath).as_posix()
    if path not in ANYWHERE or metafunc.definition.get_closest_marker("cpu") is not None:
        return
    places: list[Any] = ["cpu"]
    if torch.cuda.is_available():
        places.append(pytest.param("cuda", marks=pytest.mark.cuda))
    if path in ON_WEBGPU and importlib.util.find_spec("wgpu") is not None:
        places.append(pytest.param("webgpu", marks=(pytest.mark.webgpu, pytest.mark.slow)))
    if path in ON_MPS:
        places.append(pytest.param("mps", marks=(pytest.mark.mps, pytest.mark.slow)))
    metafunc.parametrize("device", places, indirect=True)


def refused(error: BaseException) -> bool:
    """Whether it says what shaders or the device do not have, or that the driver ends loops."""
    from weft.codegen.shader.dialects import UnsupportedInShaderError

    if type(error).__module__ == "torch._dynamo.exc":  # what stands for kernels is not for Dynamo
        return True
    told = ("ends them too early", "a shader has a buffer for each", "does not fit into a buffer",
            "the MPS framework doesn't support it",
            "Cannot have both MPS and cuda")  # autograd's engine, built for CUDA  # fmt: skip
    return isinstance(error, UnsupportedInShaderError) or any(t in str(error) for t in told)


def adapter() -> None:
    """Skips a test where there is no device for WebGPU."""
    from weft.runtime import webgpu

    try:
        webgpu.device()
    except webgpu.WebGpuError as error:
        pytest.skip(str(error))


@contextlib.contextmanager
def on_webgpu() -> Iterator[None]:
    """Kernels that are called run on WebGPU."""
    from weft.kernel import Kernel

    adapter()
    call, there = Kernel.__call__, weakref.WeakKeyDictionary[Kernel, Kernel]()

    def called(kernel: Kernel, *args: Any, **kwargs: Any) -> Any:
        if not kernel.options.on:
            if kernel not in there:
                there[kernel] = kernel.on("webgpu")
            kernel = there[kernel]
        return call(kernel, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kernel, "__call__", called)
        yield


@pytest.fixture(autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where tensors are made that do not say where."""
    place = getattr(request, "param", "cpu")
    if place == "webgpu":
        with on_webgpu():
            yield place
        return
    if place == "cpu":
        yield place
        return
    if place == "mps":
        from tests.shader.mps import mps

        with mps(), torch.device(place):
            yield place
        return
    with torch.device(place):
        assert torch.empty(()).device.type == place
        yield place
    torch.cuda.synchronize()

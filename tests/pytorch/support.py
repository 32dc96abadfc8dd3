"""What PyTorch can do with a kernel: each row is carried out and checked.

``python -m tests.pytorch.support [cuda]`` writes a column of the table in ``docs/support.md``.
"""

from __future__ import annotations

import copy
import io
import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import weft
from weft.errors import WeftError

PAGE = Path(__file__).parents[2] / "docs" / "support.md"
HEAD = "| | CPU | CUDA |\n| --- | --- | --- |\n"
DEVICES = ("cpu", "cuda")


@weft.kernel
def loop(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * x[i] * w[i]
    return out


@weft.kernel
def hosted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x.sin() * w
    out = torch.empty_like(y)
    for i in range(y.shape[0]):
        out[i] = y[i] * y[i]
    return out


@weft.kernel
def into(out: torch.Tensor, x: torch.Tensor):
    for i in range(x.shape[0]):
        out[i] += x[i] * x[i]


BOTH = ((loop, lambda x, w: x * x * w), (hosted, lambda x, w: (x.sin() * w) ** 2))


@weft.kernel
def of_list(parts: list[torch.Tensor]) -> torch.Tensor:
    x, w = parts[0], parts[1]
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * x[i] * w[i]
    return out


class Layer(torch.nn.Module):
    def __init__(self, kernel: Callable[..., torch.Tensor], device: str) -> None:
        super().__init__()
        self.kernel = kernel
        self.w = torch.nn.Parameter(drawn(device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel(x, self.w)


def drawn(device: str, n: int = 5, grad: bool = False) -> torch.Tensor:
    return torch.rand(n, dtype=torch.float64).add(0.5).to(device).requires_grad_(grad)


def pair(device: str, grad: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    return drawn(device, grad=grad), drawn(device, grad=grad)


def same(a: object, b: object) -> None:
    torch.testing.assert_close(a, b)


def grads(f: Callable[..., torch.Tensor], *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
    out = f(*args)
    return out.detach(), *torch.autograd.grad((out * out).sum(), args)


# --- the rows ------------------------------------------------------------------------------------
def calls(device: str) -> None:
    for kernel, expected in BOTH:
        args = pair(device)
        same(kernel(*args), expected(*args))


def gradient(device: str) -> None:
    for kernel, _ in BOTH:
        assert gradcheck(kernel, pair(device, True))


def second(device: str) -> None:
    for kernel, _ in BOTH:
        assert gradgradcheck(kernel, pair(device, True))


def batched_gradient(device: str) -> None:
    x, w = pair(device, True)
    for kernel, expected in BOTH:
        same(*(torch.autograd.grad(f(x, w), (x, w), torch.eye(5).to(x), is_grads_batched=True)
               for f in (kernel, expected)))  # fmt: skip


def forward_mode(device: str) -> None:
    for kernel, _ in BOTH:
        assert gradcheck(kernel, pair(device, True), check_forward_ad=True)


def forward_over_reverse(device: str) -> None:
    for kernel, _ in BOTH:
        assert gradgradcheck(kernel, pair(device, True), check_fwd_over_rev=True)


def in_place(device: str) -> None:
    x = drawn(device, grad=True)
    out = torch.zeros_like(x)
    into(out, x)
    same(torch.autograd.grad(out.sum(), x)[0], (2 * x).detach())


def compiled(device: str) -> None:
    for kernel, expected in BOTH:
        torch._dynamo.reset()
        f = torch.compile(kernel, fullgraph=True, backend="aot_eager")
        args = pair(device, True)
        same(grads(f, *args), grads(expected, *args))


def compiled_in_place(device: str) -> None:
    torch._dynamo.reset()
    x, out = pair(device)
    expected = out + x * x
    torch.compile(into, fullgraph=True, backend="aot_eager")(out, x)
    same(out, expected)


def compiled_in_place_gradient(device: str) -> None:
    torch._dynamo.reset()
    x = drawn(device, grad=True)
    out = torch.zeros_like(x.detach())
    torch.compile(into, fullgraph=True, backend="aot_eager")(out, x)
    same(torch.autograd.grad(out.sum(), x)[0], (2 * x).detach())


def sizes(device: str) -> None:
    for kernel, expected in BOTH:
        torch._dynamo.reset()
        counter = torch._dynamo.testing.CompileCounter()
        f = torch.compile(kernel, fullgraph=True, backend=counter, dynamic=True)
        for n in range(3, 9):
            args = drawn(device, n), drawn(device, n)
            same(f(*args), expected(*args))
        assert counter.frame_count == 1


def exported(device: str, strict: bool = False) -> None:
    for kernel, _ in BOTH:
        model, x = Layer(kernel, device), drawn(device)
        program = torch.export.export(model, (x,), strict=strict)
        same(program.run_decompositions().module()(x), model(x))


def strictly(device: str) -> None:
    exported(device, strict=True)


def proxies(device: str) -> None:
    for kernel, expected in BOTH:
        args = pair(device)
        same(make_fx(lambda *a, k=kernel: k(*a), tracing_mode="symbolic")(*args)(*args),
             expected(*args))  # fmt: skip


def jit_trace(device: str) -> None:
    args = pair(device)
    traced = torch.jit.trace(lambda x, w: loop(x, w), args, check_trace=False)
    same(traced(*args), loop(*args))


def checked(device: str) -> None:
    for kernel, _ in BOTH:
        opcheck(kernel.op, pair(device, True))


def transform(name: str) -> Callable[[str], None]:
    def row(device: str) -> None:
        (x, w), f = pair(device), getattr(torch.func, name)
        number = name in ("grad", "hessian")
        for kernel, expected in BOTH:
            found = [f(lambda x, k=k: k(x, w).sum() if number else k(x, w))(x)
                     for k in (kernel, expected)]  # fmt: skip
            same(*found)

    return row


def vjp(device: str) -> None:
    for kernel, expected in BOTH:
        args = pair(device)
        same(torch.func.vjp(kernel, *args)[1](args[0]), torch.func.vjp(expected, *args)[1](args[0]))


def jvp(device: str) -> None:
    for kernel, expected in BOTH:
        args = pair(device)
        same(torch.func.jvp(kernel, args, args), torch.func.jvp(expected, args, args))


def vmap(device: str) -> None:
    x, w = drawn(device, 10).view(5, 2), drawn(device)
    for kernel, expected in BOTH:
        for dims in ((1, None), (None, 1)):
            args = (x, w) if dims[1] is None else (w, x)
            same(torch.vmap(kernel, dims)(*args), torch.vmap(expected, dims)(*args))
        both = [torch.vmap(torch.vmap(f, (0, None), 1), (None, 0))(x.T, x.T)
                for f in (kernel, expected)]  # fmt: skip
        same(*both)


def of_samples(device: str) -> None:
    x, w = drawn(device, 10).view(2, 5), drawn(device)
    for kernel, expected in BOTH:
        same(*(torch.vmap(torch.func.grad(lambda w, x, f=f: (f(x, w) ** 2).sum()), (None, 0))(w, x)
               for f in (kernel, expected)))  # fmt: skip


def batched_in_place(device: str) -> None:
    x, out = (drawn(device, 10).view(2, 5) for _ in range(2))
    expected = out + x * x
    torch.vmap(into, out_dims=None)(out, x)
    same(out, expected)


def functional_call(device: str) -> None:
    layer, (x, w) = Layer(hosted, device), pair(device)
    same(torch.func.functional_call(layer, {"w": w}, (x,)), hosted(x, w))


def compiled_transform(device: str) -> None:
    torch._dynamo.reset()
    x, w = pair(device)
    for kernel, expected in BOTH:
        f = torch.func.grad(lambda x, k=kernel: k(x, w).sum())
        same(torch.compile(f, fullgraph=True, backend="aot_eager")(x),
             torch.func.grad(lambda x, e=expected: e(x, w).sum())(x))  # fmt: skip


def compiled_vmap(device: str) -> None:
    x, w = drawn(device, 10).view(2, 5), drawn(device)
    for kernel, expected in BOTH:
        torch._dynamo.reset()
        for f in (lambda f: torch.vmap(f, (0, None)),
                  lambda f: torch.vmap(torch.func.grad(lambda x, w: f(x, w).sum()), (0, None)),
                  lambda f: torch.func.jacrev(lambda x, w: f(x[0], w))):  # fmt: skip
            same(torch.compile(f(kernel), fullgraph=True, backend="aot_eager")(x, w),
                 f(expected)(x, w))  # fmt: skip


def compiled_second(device: str) -> None:
    x, w = pair(device)
    for which, f in ((0, torch.func.hessian),
                     (1, lambda f: torch.func.jacrev(torch.func.jacfwd(f)))):  # fmt: skip
        torch._dynamo.reset()
        found, whole = (f(lambda x, k=k: k(x, w).sum()) for k in BOTH[which])
        same(torch.compile(found, fullgraph=True, backend="aot_eager")(x), whole(x))


def compiled_of_several(device: str) -> None:
    x, w = pair(device)
    for kernel, expected in BOTH:
        torch._dynamo.reset()
        found, wanted = (torch.func.jacfwd(f, argnums=(0, 1)) for f in (kernel, expected))
        same(torch.compile(found, fullgraph=True, backend="aot_eager")(x, w), wanted(x, w))


def compiled_third(device: str) -> None:
    torch._dynamo.reset()
    x, w = pair(device)
    grad, jvp = torch.func.grad, torch.func.jvp

    def third(k: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return grad(lambda x: jvp(grad(lambda x: (k(x, w) ** 2).sum()), (x,), (w,))[1].sum())

    same(torch.compile(third(loop), fullgraph=True, backend="aot_eager")(x), third(BOTH[0][1])(x))


def transforms_in_place(device: str) -> None:
    x, _ = pair(device)

    def loss(add: Callable[..., object]) -> Callable[[torch.Tensor], torch.Tensor]:
        def f(x: torch.Tensor) -> torch.Tensor:
            out = x.sin()
            add(out, x)
            return (out * out).sum()

        return f

    found, expected = loss(into), loss(lambda out, x: out.add_(x * x))
    func = torch.func
    for t in (func.grad, func.hessian, lambda f: lambda x: func.jvp(f, (x,), (x,)),
              lambda f: lambda x: func.vmap(func.grad(f))(x.expand(2, -1)),
              lambda f: lambda x: func.linearize(f, x)[1](x)):  # fmt: skip
        same(t(found)(x), t(expected)(x))
    torch._dynamo.reset()
    compiled = torch.compile(func.grad(found), fullgraph=True, backend="aot_eager")
    same(compiled(x), func.grad(expected)(x))


def forward_over_forward(device: str) -> None:
    x, w = pair(device)
    for kernel, expected in BOTH:
        found, wanted = (torch.func.jacfwd(torch.func.jacfwd(f)) for f in (kernel, expected))
        same(found(x, w), wanted(x, w))
    torch._dynamo.reset()
    same(torch.compile(found, fullgraph=True, backend="aot_eager")(x, w), wanted(x, w))


def compiled_autograd(device: str) -> None:
    for kernel, expected in BOTH:
        torch._dynamo.reset()
        for _ in range(2):
            x, w = pair(device, True)
            with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
                kernel(x, w).sum().backward()
            same((x.grad, w.grad), torch.autograd.grad(expected(x, w).sum(), (x, w)))


def compiled_step(device: str) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def kept(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    for kernel, expected in BOTH:
        torch._dynamo.reset()

        def step(x: torch.Tensor, w: torch.Tensor, kernel: Callable[..., torch.Tensor] = kernel):
            kernel(x, w).sum().backward()

        x, w = pair(device, True)
        with torch._dynamo.config.patch(compiled_autograd=True):
            torch.compile(step, backend=aot_autograd(fw_compiler=kept))(x, w)
        same((x.grad, w.grad), torch.autograd.grad(expected(x, w).sum(), (x, w)))
        assert any("_backward" in node.name for graph in graphs for node in graph.graph.nodes)
        graphs.clear()


def checkpoints(device: str) -> None:
    for kernel, expected in BOTH:
        for reentrant in (False, True):
            args = pair(device, True)
            checkpoint(kernel, *args, use_reentrant=reentrant).sum().backward()
            same(tuple(a.grad for a in args), torch.autograd.grad(expected(*args).sum(), args))


def hooks(device: str) -> None:
    for kernel, expected in BOTH:
        for context in (save_on_cpu, lambda: saved_tensors_hooks(torch.clone, torch.clone)):
            args = pair(device, True)
            with context():
                out = kernel(*args)
            same(torch.autograd.grad(out.sum(), args),
                 torch.autograd.grad(expected(*args).sum(), args))  # fmt: skip


def anomaly(device: str) -> None:
    args = pair(device, True)
    with torch.autograd.detect_anomaly(check_nan=True):
        grads(hosted, *args)


def autocast(device: str) -> None:
    x, w = (t.float() for t in pair(device))
    with torch.autocast(device, torch.bfloat16):
        assert loop(x, w).dtype == loop.op(x, w).dtype == torch.float32


def autocast_policy(device: str) -> None:
    x, w = (t.float() for t in pair(device))
    kernel = weft.kernel(autocast=("x",))(loop.function)
    with torch.autocast(device, torch.bfloat16):
        same(kernel(x, w), (x.bfloat16().float() ** 2 * w).bfloat16())


def fakes(device: str) -> None:
    with FakeTensorMode():
        x, w = torch.empty(5, device=device), torch.empty(5, device=device)
        assert loop(x, w).shape == hosted(x, w).shape == (5,)
    x = torch.empty(5, device="meta", requires_grad=True)
    assert torch.autograd.grad(hosted(x, x).sum(), x)[0].is_meta


def profiled(device: str) -> None:
    with torch.profiler.profile() as profile:
        loop(*pair(device, True)).sum().backward()
    assert {"weft::loop", "loop_0Backward"} <= {e.key for e in profile.key_averages()}


def flops(device: str) -> None:
    with FlopCounterMode(display=False) as counter:
        out = loop(*pair(device, True))
        assert counter.get_total_flops() == 10
        out.sum().backward()
        assert counter.get_total_flops() > 20


def copies(device: str) -> None:
    layer, x = Layer(hosted, device), drawn(device)
    stored = io.BytesIO()
    torch.save(layer, stored)
    stored.seek(0)
    same(copy.deepcopy(layer)(x), layer(x))
    same(torch.load(stored, weights_only=False)(x), layer(x))


def complex_numbers(device: str) -> None:
    x, w = (torch.randn(5, dtype=torch.complex128).to(device).requires_grad_() for _ in range(2))
    same(loop(x, w), x * x * w)
    assert gradcheck(loop, (x, w), check_forward_ad=True)
    compiled = torch.compile(loop, fullgraph=True)
    same(*(torch.autograd.grad(f(x, w).abs().sum(), (x, w)) for f in (compiled, loop)))


def jagged(device: str) -> None:
    parts = [drawn(device, 2), drawn(device, 3)]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    out = loop(x, x)
    same(torch.cat(out.unbind()), torch.cat(parts) ** 3)
    out.values().sum().backward()
    same(x.grad.values(), 3 * torch.cat(parts) ** 2)  # type: ignore[union-attr]


def lists(device: str) -> None:
    parts = [drawn(device), drawn(device)]
    expected = torch.func.grad(lambda p: (p[0] * p[0] * p[1]).sum())(parts)
    same(torch.func.grad(lambda p: of_list(p).sum())(parts), expected)
    leaves = [p.clone().requires_grad_() for p in parts]
    for f in (of_list, torch.compile(of_list, fullgraph=True, backend="aot_eager")):
        same(torch.autograd.grad(f(leaves).sum(), leaves), tuple(expected))


def jagged_sum(device: str) -> None:
    @weft.kernel
    def sums(x: torch.Tensor) -> torch.Tensor:
        s = 0.0
        for i in range(x.shape[0]):
            s += x[i]
        return s

    sums(torch.nested.nested_tensor([drawn(device, 2), drawn(device, 3)], layout=torch.jagged))


def library(device: str) -> None:
    """Builds one from the kernel, and one from a program (that they run: test_shared_library)."""
    args = tuple(t.float() for t in pair(device))
    program = torch.export.export(Layer(hosted, device).float(), args[:1])
    with tempfile.TemporaryDirectory() as folder:
        for name, build in (("k.so", lambda p: loop.export(p, args)),
                            ("p.so", lambda p: weft.export_library(p, program))):  # fmt: skip
            build(Path(folder) / name)
            assert (Path(folder) / name).stat().st_size > 1000


def dtensors(device: str) -> None:
    """Over a mesh of one process (test_dtensor.py has 2 and 4)."""
    from torch.distributed.device_mesh import init_device_mesh  # which few processes need
    from torch.distributed.tensor import Shard, distribute_tensor

    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, rank=0, world_size=1, store=dist.HashStore())
    try:
        mesh = init_device_mesh(device, (1,))
        for kernel, expected in BOTH:
            plain = pair(device, True)
            args = [distribute_tensor(t.detach(), mesh, [Shard(0)]).requires_grad_() for t in plain]
            for f in (kernel, torch.compile(kernel, fullgraph=True, backend="aot_eager")):
                out = f(*args)
                assert out.placements == (Shard(0),)
                found = torch.autograd.grad(out.sum(), args)
                same(
                    [t.full_tensor() for t in (out, *found)],
                    [expected(*plain), *torch.autograd.grad(expected(*plain).sum(), plain)],
                )
    finally:
        dist.destroy_process_group()


def sparse(device: str) -> None:
    x = torch.ones(5, device=device).to_sparse()
    loop(x, x)


ROWS: dict[str, Callable[[str], str | None]] = {
    "a call": calls,
    "gradient": gradient,
    "gradient of a gradient": second,
    "gradient of a kernel that writes to an argument": in_place,
    "`is_grads_batched=True`": batched_gradient,
    "forward mode": forward_mode,
    "forward over reverse mode": forward_over_reverse,
    "`torch.compile(fullgraph=True)`, forward and backward": compiled,
    "the same, one graph for many sizes": sizes,
    "the same, writing to an argument": compiled_in_place,
    "the same, writing to an argument, backward": compiled_in_place_gradient,
    "the same of `torch.func.grad`": compiled_transform,
    "the same of `torch.vmap`, of it over `grad`, of `jacrev`": compiled_vmap,
    "the same of `torch.func.hessian`, of `jacrev(jacfwd)`": compiled_second,
    "the same of `torch.func.jacfwd`, of several arguments": compiled_of_several,
    "the same of `grad(jvp(grad))`": compiled_third,
    "`torch.export`": exported,
    "`torch.export(strict=True)`": strictly,
    "`make_fx`, symbolic": proxies,
    "`torch.jit.trace`": jit_trace,
    "`torch.library.opcheck`": checked,
    **{f"`torch.func.{name}`": transform(name) for name in ("grad", "jacrev", "jacfwd", "hessian")},
    "`jacfwd(jacfwd)`, compiled too": forward_over_forward,
    "`torch.func`, writing to an argument": transforms_in_place,
    "`torch.func.vjp`": vjp,
    "`torch.func.jvp`": jvp,
    "`torch.func.functional_call`": functional_call,
    "`torch.vmap`, nested too": vmap,
    "`torch.vmap` of `torch.func.grad`: a gradient for each sample": of_samples,
    "`torch.vmap`, writing to a batch": batched_in_place,
    "compiled autograd": compiled_autograd,
    "the same of a compiled step, the operator in its graph": compiled_step,
    "`torch.utils.checkpoint`": checkpoints,
    "`saved_tensors_hooks`, `save_on_cpu`": hooks,
    "anomaly mode": anomaly,
    "autocast": autocast,
    "autocast, with a policy": autocast_policy,
    "fake and meta tensors": fakes,
    "the profiler": profiled,
    "`FlopCounterMode`, forward and backward": flops,
    "copies of modules, `torch.save`": copies,
    "complex tensors": complex_numbers,
    "jagged tensors": jagged,
    "jagged tensors, a sum over each component": jagged_sum,
    "lists of tensors, and gradients for them": lists,
    "DTensors, forward and backward, compiled too": dtensors,
    "`kernel.export`, `weft.export_library`": library,
    "sparse tensors": sparse,
}


def outcome(row: str, device: str) -> str:
    """What happens: "works", or the message of an error of weft's. Others are raised."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ROWS[row](device) or "works"
        except Exception as error:
            found: BaseException | None = error
            while found is not None and not isinstance(found, WeftError):
                found = found.__cause__ or found.__context__
            if found is None:
                raise
            # The digits of an operator's name are of the source and the interpreter.
            message = re.sub(r"(`weft\.\w+)_[0-9a-f]{8}\b", r"\1", found.message)
            return f"refused: {message}".replace("|", "\\|")


def table() -> dict[str, list[str]]:
    """The page's cells by row."""
    lines = PAGE.read_text().split(HEAD)[1].split("\n\n")[0].splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines]
    return {row: found for row, *found in cells}


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    text = PAGE.read_text()
    known = table()
    before, rest = text.split(HEAD)
    after = rest.split("\n\n", 1)[1] if "\n\n" in rest else ""
    lines = []
    for row in ROWS:
        cells = known.get(row, ["not run"] * 2)
        try:
            cells[DEVICES.index(device)] = outcome(row, device)
        except Exception as error:
            print(f"{row}: {type(error).__name__}: {error}", file=sys.stderr)
        lines.append(f"| {row} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    PAGE.write_text(f"{before}{HEAD}" + "\n".join(lines) + (f"\n\n{after}" if after else "\n"))


if __name__ == "__main__":
    main()

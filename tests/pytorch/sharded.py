"""A program of several ranks: kernels with DTensors, forward and backward, against one process.

``python sharded.py RANKS [cuda]``, or with these in the environment's ``RANKS``: ranks are forked
from a process that has imported everything.
Prints a line for each check that failed; the last line says how many there were.
"""

from __future__ import annotations

import copy
import functools
import math
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import weft
import weft.pytorch.dtensor  # here, so that ranks need not import it
from weft.errors import GradientError
from weft.pytorch.releases import ROWWISE

R, S = Replicate(), Shard
SUM = Partial("sum")


@weft.kernel
def softmax(x: torch.Tensor) -> torch.Tensor:
    rows, cols = x.shape
    out = torch.empty_like(x)
    for i in range(rows):
        top = -math.inf
        for j in range(cols):
            top = max(top, x[i, j])
        s = 0.0
        for j in range(cols):
            s += weft.exp(x[i, j] - top)
        for j in range(cols):
            out[i, j] = weft.exp(x[i, j] - top) / s
    return out


@weft.kernel
def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = a.new_empty(a.shape[0], b.shape[1])
    for i, j in weft.ndrange(a.shape[0], b.shape[1]):
        s = 0.0
        for k in range(a.shape[1]):
            s += a[i, k] * b[k, j]
        out[i, j] = s
    return out


@weft.kernel
def squares(x: torch.Tensor) -> torch.Tensor:
    s = 0.0
    for i in range(x.shape[0]):
        s += x[i] * x[i]
    return s


@weft.kernel
def largest(x: torch.Tensor) -> torch.Tensor:
    s = -math.inf
    for i in range(x.shape[0]):
        s = max(s, x[i])
    return s


@weft.kernel
def columns(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(x.shape[1], dtype=x.dtype, device=x.device)
    for j in range(x.shape[1]):
        for i in range(x.shape[0]):
            out[j] += x[i, j]
    return out


@weft.kernel
def scaled_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Two loops, with a tensor between them."""
    norm = x.new_zeros(x.shape[0])
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            norm[i] += x[i, j] * x[i, j]
    out = torch.empty_like(x)
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        out[i, j] = x[i, j] * w[j] / weft.sqrt(norm[i] + 1.0)
    return out


@weft.kernel
def ramp(x: torch.Tensor) -> torch.Tensor:
    """The index is a number."""
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * i
    return out


@weft.kernel
def taken(w: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    out = w.new_empty(k.shape[0], w.shape[1])
    for i, j in weft.ndrange(k.shape[0], w.shape[1]):
        out[i, j] = w[k[i], j]
    return out


@weft.kernel
def doubled_(x: torch.Tensor, w: torch.Tensor) -> None:
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        x[i, j] = 2 * x[i, j] + w[j]


@weft.kernel
def normed_(x: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s += x[i, j]
        for j in range(x.shape[1]):
            x[i, j] = x[i, j] / s


@weft.kernel
def second_difference(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(1, x.shape[0] - 1):
        out[i] = x[i - 1] - 2 * x[i] + x[i + 1]
    return out


@weft.kernel
def smoothed(x: torch.Tensor) -> torch.Tensor:
    """Neighbours, each edge being its own."""
    out = torch.empty_like(x)
    n = x.shape[1]
    for b, i in weft.ndrange(x.shape[0], n):
        out[b, i] = x[b, max(i - 2, 0)] + 3 * x[b, i] + x[b, min(i + 1, n - 1)]
    return out


@weft.kernel
def causal_conv(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for b, t in weft.ndrange(x.shape[0], x.shape[1]):
        s = 0.0
        for k in range(min(w.shape[0], t + 1)):
            s += x[b, t - k] * w[k]
        out[b, t] = s
    return out


@weft.kernel
def blurred(x: torch.Tensor) -> torch.Tensor:
    """Corners, too."""
    out = torch.zeros_like(x)
    n, m = x.shape
    for i, j in weft.ndrange(n, m):
        s = 0.0
        for k in range(max(i - 1, 0), min(i + 2, n)):
            for l in range(max(j - 1, 0), min(j + 2, m)):  # noqa: E741
                s += x[k, l]
        out[i, j] = s
    return out


class Checks:
    """The checks of one rank on one mesh."""

    def __init__(self, rank: int, device: str, mesh: Any) -> None:
        self.rank, self.device, self.mesh = rank, device, mesh
        self.failed: list[str] = []
        self.count = 0

    def check(self, name: str, run: Callable[[], None]) -> None:
        self.count += 1
        try:
            run()
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = " ".join(str(error).split())[:300]
            self.failed.append(f"{name}: {type(error).__name__} {text} ({where.name})")

    def tensor(self, *shape: int) -> torch.Tensor:
        """The same on every rank."""
        return torch.randn(*shape, device=self.device)

    def same(self, kernel: Any, args: list[Any], places: list[Any], out: Any, grads: Any) -> None:
        """A call with DTensors gives what a call of plain tensors gives; where its result is, and
        where gradients are."""

        def run() -> None:
            cut: list[Any] = []
            plain: list[Any] = []
            for value, place in zip(args, places, strict=True):
                float_ = value.is_floating_point()
                # A leaf: of one that is a Partial, say, torch makes a Replicate.
                cut.append(distribute_tensor(value, self.mesh, place).requires_grad_(float_))
                plain.append(value.clone().requires_grad_(float_))
            result, expected = kernel(*cut), kernel(*plain)
            torch.testing.assert_close(result.full_tensor(), expected)
            if out is not None:
                assert list(result.placements) == out, f"result is {result.placements}"
            grad = torch.randn_like(expected)
            result.backward(distribute_tensor(grad, self.mesh, [R] * self.mesh.ndim))
            expected.backward(grad)
            for k, (value, own) in enumerate(zip(plain, cut, strict=True)):
                if value.grad is not None:
                    torch.testing.assert_close(own.grad.full_tensor(), value.grad)
                    if grads is not None:
                        found = list(own.grad.placements)
                        assert found == grads[k], f"gradient {k} is {found}"

        self.check(f"{kernel.__name__} of {[tuple(a.shape) for a in args]} {places}", run)

    def in_place(self, kernel: Any, args: list[Any], places: list[Any], error: str = "") -> None:
        def run() -> None:
            cut = [distribute_tensor(v, self.mesh, p) for v, p in zip(args, places, strict=True)]
            plain = [v.clone() for v in args]
            try:
                kernel(*cut)
            except weft.KernelValueError as refused:
                if not error or error not in str(refused):
                    raise
                return
            assert not error
            kernel(*plain)
            assert list(cut[0].placements) == places[0]
            torch.testing.assert_close(cut[0].full_tensor(), plain[0])

        self.check(f"{kernel.__name__} in place {places}", run)


def on_a_line(checks: Checks) -> None:
    """Rules on a mesh of one dimension."""
    t, same = checks.tensor, checks.same
    few = checks.mesh.size() > 2
    for n in (11, 8) if few else (9,):  # of 11 rows, a rank of four has 2, and of 8 none has 3
        same(second_difference, [t(n)], [[S(0)]], [S(0)], [[S(0)]])
        # Gradients are made of rows at both sides, as many as both halos together.
        same(smoothed, [t(2, n)], [[S(1)]], [S(1)], [[R if few else S(1)]])
        place, part = ([R], [R]) if few else ([S(1)], [SUM])
        same(causal_conv, [t(2, n), t(4)], [[S(1)], [R]], place, [place, part])
    for n in (9,) if few else (8, 7, 1):
        # What is too small to be cut is gathered: before the derivative, by torch 2.11 at once.
        small = n == 1
        row, part = (None, None) if small else ([S(0)], [SUM])
        grads, both = (None, None) if small else ([[S(0)]], [[S(0)], [SUM]])
        same(softmax, [t(n, 5)], [[S(0)]], row, grads)
        same(matmul, [t(n, 5), t(5, 3)], [[S(0)], [R]], row, both)
        same(squares, [t(n)], [[S(0)]], part, grads)
        same(scaled_norm, [t(n, 4), t(4)], [[S(0)], [R]], row, both)
        same(columns, [t(n, 4)], [[S(0)]], part, grads)
    if few:
        return
    same(softmax, [t(6, 8)], [[S(1)]], [R], [[R]])
    same(matmul, [t(6, 8), t(8, 3)], [[S(1)], [S(0)]], [SUM], [[S(1)], [S(0)]])
    same(matmul, [t(6, 5), t(5, 8)], [[R], [S(1)]], [S(1)], [[SUM], [S(1)]])
    same(largest, [t(8)], [[S(0)]], [Partial("max")], [[R]])
    same(columns, [t(5, 8)], [[S(1)]], [S(0)], [[S(1)]])
    same(ramp, [t(8)], [[S(0)]], [R], [[R]])
    index = torch.randint(0, 5, (8,), device=checks.device)
    same(taken, [t(5, 3), index], [[R], [S(0)]], [S(0)], [[SUM]])
    same(taken, [t(5, 8), index], [[S(1)], [R]], [S(1)], [[S(1)]])
    checks.in_place(doubled_, [t(8, 5), t(5)], [[S(0)], [R]])
    checks.in_place(doubled_, [t(7, 5), t(5)], [[S(0)], [S(0)]])  # which is gathered
    checks.in_place(doubled_, [t(5, 8), t(8)], [[S(1)], [R]])
    checks.in_place(normed_, [t(8, 5)], [[S(0)]])
    checks.in_place(normed_, [t(5, 8)], [[S(1)]], "`x` is S(1) and written in place")


def compiled(checks: Checks) -> None:
    """The same rules in graphs; rows of neighbours are gathered there."""
    t = checks.tensor

    def same(kernel: Any, *rest: Any) -> None:
        torch._dynamo.reset()
        graph = torch.compile(kernel, fullgraph=True, backend="aot_eager")
        checks.same(graph, *rest)

    same(matmul, [t(6, 8), t(8, 3)], [[S(1)], [S(0)]], [SUM], [[S(1)], [S(0)]])
    same(squares, [t(7)], [[S(0)]], [SUM], [[S(0)]])
    same(second_difference, [t(9)], [[S(0)]], None, None)
    checks.check("a second derivative", functools.partial(second_derivative, checks))


def second_derivative(checks: Checks) -> None:
    x = distribute_tensor(checks.tensor(8), checks.mesh, [S(0)]).requires_grad_()
    (first,) = torch.autograd.grad(squares(x).full_tensor().sin(), x, create_graph=True)
    said = "second derivatives of `squares` are not there for DTensors"
    with pytest.raises(GradientError, match=said):
        first.full_tensor().sum().backward()
    (first,) = torch.autograd.grad(
        second_difference(x).full_tensor().sin().sum(), x, create_graph=True
    )
    with pytest.raises(GradientError, match=said.replace("squares", "second_difference")):
        first.full_tensor().sum().backward()


def on_a_square(checks: Checks) -> None:
    """Rules on a mesh of two dimensions."""
    t, same = checks.tensor, checks.same
    same(softmax, [t(8, 6)], [[S(0), S(0)]], [S(0), S(0)], [[S(0), S(0)]])
    same(
        matmul, [t(6, 4), t(4, 8)], [[S(0), R], [R, S(1)]], [S(0), S(1)], [[S(0), SUM], [SUM, S(1)]]
    )
    same(matmul, [t(6, 4), t(4, 8)], [[S(0), S(1)], [R, S(0)]], [S(0), SUM],
         [[S(0), S(1)], [SUM, S(0)]])  # fmt: skip
    same(columns, [t(7, 6)], [[S(0), S(1)]], [SUM, S(0)], [[S(0), S(1)]])
    same(blurred, [t(6, 7)], [[S(0), S(1)]], [S(0), S(1)], [[S(0), S(1)]])
    same(blurred, [t(2, 7)], [[S(0), S(1)]], [S(0), S(1)], [[R, S(1)]])
    same(smoothed, [t(4, 9)], [[S(0), S(1)]], [S(0), S(1)], None)
    same(second_difference, [t(9)], [[S(0), S(0)]], None, None)
    checks.in_place(doubled_, [t(8, 6), t(6)], [[S(0), S(1)], [R, S(0)]])


class Layer(nn.Module):
    """A linear map of weft's."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return matmul(x, self.weight)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 6)
        self.mixed = Layer(6, 6)
        self.scale = nn.Parameter(torch.randn(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = softmax(self.first(x))
        return scaled_norm(self.mixed(self.second(hidden)), self.scale)


def trained(model: nn.Module, x: torch.Tensor, factor: int = 1) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = (model(x) ** 2).sum() * factor
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def models(checks: Checks) -> None:
    """DDP, FSDP2 and tensor parallel, training steps against one process."""
    mesh, ranks = checks.mesh, checks.mesh.size()
    model = Model().to(checks.device)
    x = checks.tensor(4 * ranks, 6)

    def whole(value: Any) -> torch.Tensor:
        return value.full_tensor() if isinstance(value, DTensor) else value

    def compare(found: nn.Module, expected: nn.Module) -> None:
        pairs = zip(found.named_parameters(), expected.parameters(), strict=True)
        for (name, value), other in pairs:
            torch.testing.assert_close(whole(value.data), other.data, msg=name)

    def ddp() -> None:
        for compiled in (False, True):
            single, replicated = copy.deepcopy(model), copy.deepcopy(model)
            run = DistributedDataParallel(replicated)
            if compiled:
                run = torch.compile(run, backend="aot_eager")
            trained(run, x.chunk(ranks)[mesh.get_local_rank()], ranks)  # averaged, as below
            trained(single, x)
            compare(replicated, single)

    def fsdp() -> None:
        single, sharded = copy.deepcopy(model), copy.deepcopy(model)
        fully_shard(sharded.mixed, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        # Gradients are averaged over ranks, each of which has a part of the loss's sum.
        trained(sharded, x.chunk(ranks)[mesh.get_local_rank()], ranks)
        trained(single, x)
        compare(sharded, single)

    def tensor_parallel() -> None:
        single, parallel = copy.deepcopy(model), copy.deepcopy(model)
        for name in ("mixed",):  # weft's layer, whose weight is cut along its columns
            layer = getattr(parallel, name)
            layer.weight = nn.Parameter(distribute_tensor(layer.weight.data, mesh, [S(1)]))
        parallel.scale = nn.Parameter(distribute_tensor(parallel.scale.data, mesh, [R]))
        plan = {"first": ColwiseParallel(output_layouts=S(0), use_local_output=False),
                "second": RowwiseParallel(input_layouts=S(0), output_layouts=R,
                                          use_local_output=False)}  # fmt: skip
        parallelize_module(parallel, mesh, plan)
        losses = trained(parallel, distribute_tensor(x, mesh, [R]))
        for found, expected in zip(losses, trained(single, x), strict=True):
            torch.testing.assert_close(whole(found), expected)
        compare(parallel, single)

    checks.check("DDP", ddp)
    checks.check("FSDP2", fsdp)
    if not ROWWISE.missing:
        checks.check("tensor parallel", tensor_parallel)


def work(rank: int, ranks: int, device: str, store: str, queue: Any) -> None:
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    found = []
    line = Checks(rank, device, init_device_mesh(device, (ranks,)))
    on_a_line(line)
    models(line)
    if ranks == 2:
        compiled(line)
    found.append(line)
    if ranks == 4:
        square = Checks(rank, device, init_device_mesh(device, (2, 2), mesh_dim_names=("a", "b")))
        on_a_square(square)
        found.append(square)
    queue.put((rank, sum(c.count for c in found), [f for c in found for f in c.failed]))
    dist.destroy_process_group()


def compile_all() -> None:
    """Has ranks that are forked find compiled code."""
    torch.set_num_threads(1)
    x = torch.randn(3, 3, requires_grad=True)
    line, index = torch.randn(3, requires_grad=True), torch.zeros(3, dtype=torch.int64)
    given = {matmul: (x, x), scaled_norm: (x, line), taken: (x, index)}
    for kernel in (softmax, matmul, columns, scaled_norm, taken):
        kernel(*given.get(kernel, (x,))).sum().backward()
    for kernel in (smoothed, blurred):
        kernel(x).sum().backward()
    causal_conv(x, line).sum().backward()
    for kernel in (squares, largest, ramp, second_difference):
        kernel(line).sum().backward()
    doubled_(x.data, line.data)
    normed_(x.data)


def main() -> None:
    given = [*os.environ.get("RANKS", "").split(), *sys.argv[1:]]
    ranks, device = int(given[0]), (given[1:] or ["cpu"])[0]
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a backward asks for GPUs, and is forked then
        compile_all()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        args = ranks, device, os.path.join(folder, "store"), queue
        processes = [context.Process(target=work, args=(rank, *args)) for rank in range(ranks)]
        for process in processes:
            process.start()
        results = sorted(queue.get(timeout=120) for _ in processes)
        for process in processes:
            process.join(20)
    for rank, _, failed in results:
        for text in failed:
            print(f"rank {rank}: {text}")
    print(f"{results[0][1]} checks, {sum(len(f) for _, _, f in results)} failed")


if __name__ == "__main__":
    main()

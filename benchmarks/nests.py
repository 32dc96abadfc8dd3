"""The same loops as nests of ``range`` and as a box with a local sum: what is written should not
decide how it runs."""

from collections.abc import Callable

import torch

import weft
from benchmarks.calls import Call, calling, poisoned
from benchmarks.harness import Case, Subject, main


@weft.kernel
def product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    rows, inner = a.shape
    for i in range(rows):
        for j in range(b.shape[1]):
            out[i, j] = 0.0
            for k in range(inner):
                out[i, j] += a[i, k] * b[k, j]


@weft.kernel
def product_box(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    for i, j in out:
        s = 0.0
        for k in range(a.shape[1]):
            s += a[i, k] * b[k, j]
        out[i, j] = s


@weft.kernel
def convolution(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> None:
    rows, cols = out.shape
    for i in range(rows):
        for j in range(cols):
            out[i, j] = 0.0
            for p in range(w.shape[0]):
                for q in range(w.shape[1]):
                    out[i, j] += x[i + p, j + q] * w[p, q]


@weft.kernel
def convolution_box(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> None:
    for i, j in out:
        s = 0.0
        for p in range(w.shape[0]):
            for q in range(w.shape[1]):
                s += x[i + p, j + q] * w[p, q]
        out[i, j] = s


@weft.kernel
def stencil(x: torch.Tensor, out: torch.Tensor) -> None:
    rows, cols = out.shape
    for i in range(rows):
        for j in range(cols):
            inside = x[i, j + 1] + x[i + 2, j + 1] + x[i + 1, j] + x[i + 1, j + 2]
            out[i, j] = 0.2 * (x[i + 1, j + 1] + inside)


@weft.kernel
def stencil_box(x: torch.Tensor, out: torch.Tensor) -> None:
    for i, j in out:
        inside = x[i, j + 1] + x[i + 2, j + 1] + x[i + 1, j] + x[i + 1, j + 2]
        out[i, j] = 0.2 * (x[i + 1, j + 1] + inside)


@weft.kernel
def covariance(x: torch.Tensor, out: torch.Tensor) -> None:
    count, n = x.shape
    for i in range(n):
        for j in range(i, n):
            out[i, j] = 0.0
            for k in range(count):
                out[i, j] += x[k, i] * x[k, j]
            out[i, j] /= count - 1.0
            out[j, i] = out[i, j]


@weft.kernel
def covariance_box(x: torch.Tensor, out: torch.Tensor) -> None:
    """Both halves: twice the work."""
    count = x.shape[0]
    for i, j in out:
        s = 0.0
        for k in range(count):
            s += x[k, i] * x[k, j]
        out[i, j] = s / (count - 1.0)


def inputs(name: str, n: int) -> tuple[torch.Tensor, ...]:
    """Random arguments, and a place for the result of ``n`` x ``n`` numbers."""
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "product": [(n, n), (n, n)], "convolution": [(n + 6, n + 6), (7, 7)],
        "stencil": [(n + 2, n + 2)], "covariance": [(n, n)],
    }  # fmt: skip
    given = [torch.randn(shape, generator=generator) for shape in shapes[name]]
    return *given, poisoned(n, n)


KERNELS: dict[str, tuple[Callable[..., None], Callable[..., None]]] = {
    "product": (product, product_box), "convolution": (convolution, convolution_box),
    "stencil": (stencil, stencil_box), "covariance": (covariance, covariance_box),
}  # fmt: skip


def reference(name: str, n: int) -> torch.Tensor:
    x, *more = (t.double() for t in inputs(name, n)[:-1])
    match name:
        case "product":
            return x @ more[0]
        case "convolution":
            return torch.nn.functional.conv2d(x[None, None], more[0][None, None])[0, 0]
        case "stencil":
            sides = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]
            return 0.2 * (x[1:-1, 1:-1] + sides)
        case _:
            return x.T @ x / (n - 1.0)


def _subject(name: str, n: int) -> Subject:
    def provider(form: int) -> Callable[[Case], Call]:
        return lambda case: calling(KERNELS[name][form], *inputs(name, case.sizes["n"]))

    return Subject(
        f"nest_{name}",
        f"{name}, nested ranges against a box",
        (Case(f"{n}²", {"n": n}),),
        {"weft": provider(0), "weft, box": provider(1)},
        lambda case: reference(name, case.sizes["n"]),
    )


SIZES = {"product": 512, "convolution": 1024, "stencil": 4096, "covariance": 512}
SUBJECTS = tuple(_subject(name, n) for name, n in SIZES.items())


if __name__ == "__main__":
    main("nests", SUBJECTS)

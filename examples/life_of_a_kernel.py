"""What "Life of a Taichi Kernel" says of its kernel, seen on that kernel in weft.

Registered without compiling; compiled at the first call; reused at the second; compiled again for
another template argument. Run it with ``WEFT_LOGS=specialize`` to see the reasons as they happen.
"""

import torch

import weft as ti


@ti.kernel
def add(field: ti.template(), delta: ti.i32):
    for i in field:
        field[i] += delta


def show(what: str) -> None:
    """Print what was done and the kernel's instantiations so far."""
    print(f"{what}: {len(add.specializations)} instantiation(s)")
    for specialization in add.specializations:
        print(f"    {specialization}")


def main() -> None:
    """Call `add` as the document does, printing ``add.specializations`` after each call."""
    x = ti.field(dtype=ti.f32, shape=128)
    y = ti.field(dtype=ti.f32, shape=16)
    show("registered")

    add(x, 42)
    show("add(x, 42)   the first call compiles")
    add(x, 1)
    show("add(x, 1)    the same signature, reused")
    add(y, 42)
    show("add(y, 42)   another template argument, a new instantiation")

    assert (x.to_numpy() == 43).all()
    assert (y.to_numpy() == 42).all()
    y.from_torch(torch.arange(16, dtype=torch.float32))
    add(y, 1)
    assert y.to_torch().tolist() == list(range(1, 17))
    show("y.from_torch(...), add(y, 1)   reused")


if __name__ == "__main__":
    main()

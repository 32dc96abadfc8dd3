"""Calls of kernels with every kind of tensor that torch makes, each in a process of its own.

``python -m tests.pytorch.tensors`` prints a line of JSON for each: the name, how the kernel was
called, and what came. (A mistake ends the process, hence this program for test_tensors.py.)
"""

import functools
import json
import os
import warnings

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.masked import masked_tensor
from torch.testing._internal.two_tensor import TwoTensor

import weft


@weft.kernel
def twice(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = 2 * x[i]
    return out


@weft.kernel
def double_(x: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        x[i] = 2 * x[i]


@weft.kernel
def another(x: torch.Tensor) -> torch.Tensor:
    for i in range(x.shape[0]):
        x[i] += 1
    return x.clone()


class Plain(torch.Tensor):
    """A subclass that changes nothing."""


class Overriding(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in (twice, double_):
            return f"{func.__name__} of {types[0].__name__}"
        return super().__torch_function__(func, types, args, kwargs or {})


class Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in (twice, double_):
            return NotImplemented
        return super().__torch_function__(func, types, args, kwargs or {})


def ones() -> torch.Tensor:
    return torch.ones(4)


@functools.cache
def escaped(transform) -> torch.Tensor:
    """Made before processes are forked: PyTorch 2.10's backward may end those that are."""
    kept = []
    transform(lambda x: (kept.append(x), x.sum())[1])(torch.ones(3, 4))
    return kept[0]


def inference() -> torch.Tensor:
    with torch.inference_mode():
        return ones()


def freed() -> torch.Tensor:
    x = ones()
    x.untyped_storage().resize_(0)
    return x


MAKE = {
    "zero": lambda: torch._efficientzerotensor(4),
    "conjugate": lambda: torch.ones(4, dtype=torch.complex64).conj(),
    "negative": lambda: torch.ones(4, dtype=torch.complex64).conj().imag,
    "negative, contiguous": lambda: torch._neg_view(ones()),
    "nested": lambda: torch.nested.nested_tensor([ones(), ones()]),
    "jagged": lambda: torch.nested.nested_tensor([ones(), ones()], layout=torch.jagged),
    "coo": lambda: ones().to_sparse(),
    "csr": lambda: torch.ones(4, 4).to_sparse_csr(),
    "bsr": lambda: torch.ones(4, 4).to_sparse_bsr((2, 2)),
    "mkldnn": lambda: ones().to_mkldnn(),
    "quantized": lambda: torch.quantize_per_tensor(ones(), 0.1, 0, torch.qint8),
    "meta": lambda: ones().to("meta"),
    "functional": lambda: torch._to_functional_tensor(ones()),
    "batched": lambda: torch._add_batch_dim(torch.ones(3, 4), 0, 1),
    "escaped from vmap": lambda: escaped(torch.vmap),
    "escaped from grad": lambda: escaped(torch.func.grad),
    "masked": lambda: masked_tensor(ones(), torch.tensor([True, False, True, True])),
    "subclass": lambda: ones().as_subclass(Plain),
    "overriding": lambda: ones().as_subclass(Overriding),
    "refusing": lambda: ones().as_subclass(Refusing),
    "two": lambda: TwoTensor(ones(), ones()),
    "freed": freed,
    "fake": lambda: FakeTensorMode().from_tensor(ones()),
    "buffer": lambda: torch.nn.Buffer(ones()),
    "parameter": lambda: torch.nn.Parameter(ones(), requires_grad=False),
    "shared": lambda: torch._lazy_clone(ones()),
    "inference": inference,
    "empty": lambda: torch.ones(0),
}


def called(name: str, kernel) -> object:
    x = MAKE[name]()
    try:
        out = kernel(x)
    except weft.errors.CompileError as error:
        return [type(error).__name__, error.message, error.help]
    except Exception as error:  # which is torch's
        return [type(error).__name__, str(error)]
    out = x if out is None else out
    if not isinstance(out, torch.Tensor):
        return out
    if out.is_nested:
        return f"{type(out).__name__} {[part.tolist() for part in out.unbind()]}"
    known = type(out) is not TwoTensor and not out.is_meta and not isinstance(out, FakeTensor)
    return f"{type(out).__name__} {out.tolist() if known else [*out.shape]}"


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    another(ones())  # what it imports is imported once
    another.op(ones())
    another(FakeTensorMode().from_tensor(ones()))
    escaped(torch.func.grad)
    for how in ("first", "later"):
        for name in MAKE:
            for kernel in (twice, double_):
                child = os.fork()
                if not child:
                    print(
                        json.dumps([name, kernel.__name__, how, called(name, kernel)]), flush=True
                    )
                    os._exit(0)
                os.waitpid(child, 0)
        for kernel in (twice, double_):
            for _ in range(8):  # machine code then stands before it
                kernel(ones())


if __name__ == "__main__":
    main()

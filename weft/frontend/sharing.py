"""Which attributes, methods and functions give what shares memory with what they are given."""

from __future__ import annotations

import functools
import operator

from weft.frontend.callees import ITERATING

# Attributes of a tensor that share no memory with it.
PLAIN_ATTRIBUTES = frozenset(
    {"shape", "dtype", "device", "ndim", "layout", "is_cuda", "is_cpu", "itemsize", "nbytes",
     "requires_grad", "type"}
)  # fmt: skip
# Methods of a tensor whose result may share its memory. Every other one allocates.
VIEWS = frozenset(
    {"view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "squeeze", "unsqueeze",
     "transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "t", "expand",
     "expand_as", "narrow", "select", "diagonal", "unfold", "as_strided", "detach", "contiguous",
     "to", "type", "type_as", "float", "double", "half", "bfloat16", "int", "long", "short", "char",
     "byte", "bool", "cpu", "cuda", "split", "chunk", "unbind", "tensor_split", "hsplit", "vsplit",
     "ravel", "real", "imag", "conj", "numpy", "data", "requires_grad_", "broadcast_to",
     "atleast_1d", "atleast_2d", "atleast_3d", "as_subclass", "alias", "view_as_real",
     "view_as_complex", "broadcast_tensors", "asarray", "as_tensor", "from_numpy", "adjoint",
     "positive", "resolve_conj", "resolve_neg", "to_torch", "get", "pop", "values", "items", "copy",
     "popitem", "popleft", "setdefault", "__getitem__"}
)  # fmt: skip

# Functions whose result may be, or hold, an object that they were given.
HANDING_ON = (vars, getattr, next, functools.reduce, operator.getitem, *ITERATING)


def is_in_place(name: str) -> bool:
    """Whether a method of a tensor is called as those are that write to it, and give it."""
    return name.endswith("_") and not name.endswith("__")

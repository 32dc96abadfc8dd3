"""What older releases of PyTorch lack, or do wrong, where weft cannot make up for it. Inductor's
hooks have a table of their own, in ``fusible``."""

from __future__ import annotations

import torch
from torch.torch_version import TorchVersion

from weft.values import frozen


@frozen
class Ability:
    """``since``: the first release that has it. ``costs``: what that means before."""

    what: str
    since: str
    costs: str

    @property
    def missing(self) -> bool:
        return TorchVersion(torch.__version__) < self.since


# AOTInductor of 2.11 cannot be told for which processor code is, and what that of 2.10 gives an
# operator for a dtype is the number of another one.
PACKAGES = Ability(
    "libraries of host parts", "2.13",
    "kernel.export and weft.export_library refuse kernels whose host part does more than compute "
    "sizes and make tensors",
)  # fmt: skip
# A method has the attributes of its function, and Dynamo takes what is in them for it, unbound.
METHODS = Ability(
    "recompilations of each kernel that is a method", "2.11",
    "such kernels, given to torch.compile by themselves, have one limit of recompilations together",
)  # fmt: skip
STRICT_EXPORT = Ability(
    "kernels that are attributes of modules in torch.export(strict=True)", "2.13",
    "such a module is exported with strict=False only",
)  # fmt: skip
COMPILED_JACFWD = Ability(
    "compiled torch.func.jacfwd of several arguments", "2.13",
    "an error of Dynamo, for PyTorch's own functions, too; of one argument it is compiled",
)  # fmt: skip
# It writes a blendv of floats.
WRITTEN_VIEWS = Ability(
    "gradients of kernels that write to views, by Inductor's C++", "2.13",
    "that is no C++ for some views, an error of the compiler: backend=\"aot_eager\" compiles them",
)  # fmt: skip
NUMBERS = Ability(
    "floats that change in compiled torch.func.grad", "2.11",
    "each new one compiles anew, in PyTorch's own functions, too",
)  # fmt: skip
ROWWISE = Ability(
    "gradients through RowwiseParallel", "2.11",
    "they are wrong, those of PyTorch's own operations, too: no tensor parallel training",
)  # fmt: skip
# The ``detach_`` that ends ``torch.tensor(0)`` has a fake one of an operator forget its number.
CONSTANTS = Ability(
    "host parts whose branches depend on numbers of weft's dtypes, in torch.compile", "2.11",
    "such branches are refused, as those that depend on what is in a tensor are",
)  # fmt: skip
ABILITIES = (
    PACKAGES, METHODS, STRICT_EXPORT, COMPILED_JACFWD, WRITTEN_VIEWS, NUMBERS, ROWWISE, CONSTANTS,
)  # fmt: skip

"""LLVM's passes over a module."""

from __future__ import annotations

import llvmlite.binding as llvm
from llvmlite.binding import ffi


def optimize(
    module: llvm.ModuleRef,
    machine: llvm.TargetMachine,
    options: llvm.PipelineTuningOptions,
    *,
    simplified: bool = False,
) -> None:
    """Runs the pipeline of ``options`` for ``machine`` over ``module``; where it is ``simplified``,
    only the simplifications of single functions.

    llvmlite never frees a pass manager (up to 0.50: in its classes' order of bases the empty
    ``_dispose`` comes first), and what a run leaves in one takes 30 kB and more: freed here.
    """
    builder = llvm.create_pass_builder(machine, options)
    if simplified:
        passes = builder.getFunctionPassManager()
        for function in module.functions:
            if not function.is_declaration:
                passes.run(function, builder)
        ffi.lib.LLVMPY_DisposeNewFunctionPassManger(passes)
    else:
        passes = builder.getModulePassManager()
        passes.run(module, builder)
        ffi.lib.LLVMPY_DisposeNewModulePassManger(passes)
    passes.detach()


def inlined(module: llvm.ModuleRef) -> llvm.ModuleRef:
    """``module``, in which functions that are always inlined are, and nothing else is changed."""
    target = llvm.Target.from_triple(module.triple).create_target_machine()
    builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options())
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.run(module, builder)
    ffi.lib.LLVMPY_DisposeNewModulePassManger(passes)
    passes.detach()
    return module

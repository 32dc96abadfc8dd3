"""Code generation: from the IR to LLVM IR text, and from that to machine code."""

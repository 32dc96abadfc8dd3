"""Schedules: how a loop is run on a machine, as values. IR to IR; no torch, no LLVM."""

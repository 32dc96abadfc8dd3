"""Kernels to read, run and copy. Each module has ``main()``: ``python -m examples.brick_wall``."""

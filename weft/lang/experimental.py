"""Names that Taichi has as ``ti.experimental``."""

from weft.lang.loops import func as real_func  # functions are always inlined

__all__ = ["real_func"]

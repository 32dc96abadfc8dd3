"""Index sets: which iteration touches which element, and the questions asked of that.

``access`` extracts every access of a function, ``relation`` hands accesses to isl, ``races``,
``bounds`` and ``passes.relax_atomics`` ask. Everything common is settled by ``disjoint`` and the
symbolic ranges of ``expression``; isl (islpy, 50 ms to import) is imported when these do not
suffice.

Assumed throughout: integer arithmetic of subscripts does not wrap, and two different memref
arguments do not overlap (the launcher looks after those that do).
"""

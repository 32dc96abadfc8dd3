"""Golden replay: hashes of what the compiler makes of many kernels, stage by stage.

``python -m tests.golden`` (``make replay``) compares them with ``record.txt``; the tests do, too.
A change of the compiler's insides shows no difference; a change of what it makes shows which
kernels it touched, and its commit records anew (``make replay ARGS=record``) and says why.
"""

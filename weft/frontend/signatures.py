"""What each function and method of the language takes. Arguments are counted and put in order
before a handler sees them.

A parameter is written as its names, the first for messages: ``"x input"``; ``=`` at the end says
that it may be left out; ``-`` as the second name, that it has no keyword; ``*``, any number more. A
parameter after ``*`` is given by keyword, and read by the handler itself.
"""

from __future__ import annotations

from weft.errors import KernelTypeError
from weft.frontend.kinds import Operand, Static
from weft.lang import names
from weft.source import Span

_X, _Y = "x input", "y other"
FUNCTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(names.UNARY, (_X,)),
    **dict.fromkeys(names.BINARY, (_X, _Y)),
    **dict.fromkeys(names.CASTS, ("x - =",)),
    **dict.fromkeys(("conj", "angle", "phase", "sgn", "real", "imag"), (_X,)),
    **dict.fromkeys((f"c_{name}" for name in names.CMATH), ("z -",)),
    **dict.fromkeys(("floor", "ceil", "round", "trunc"), (_X, "dtype =")),
    **dict.fromkeys(("raw_div", "raw_mod", "bit_shr"), (_X, _Y)),
    **dict.fromkeys(("zero", "one", "clz", "frexp"), (_X,)), "bit_cast": (_X, "dtype"),
    "complex": ("real", "imag ="), "polar": ("r abs -", "phi angle -"),
    "log": (_X, "base - ="), "round_int": ("x number", "ndigits ="),
    "pow": ("x input base", "y exponent exp"), "atan2": ("y input", "x other"),
    "divmod": ("a -", "b -"), "fma": ("a", "b", "c"), "select": ("condition", _X + " a", _Y + " b"),
    "clamp": (_X, "low min =", "high max ="),
    **dict.fromkeys(("min", "max"), ("a -", "*", "key =", "default =")),
    "minimum": (_X, _Y + " =", "*"), "maximum": (_X, _Y + " =", "*"),
    "range": ("n -", "stop - =", "step - ="), "ndrange": ("*",), "grouped": ("over",),
    "serial": ("over",), "static": ("value -", "*"), "sync": (),
    "needs": ("condition", "message"), "whole": (_X,), "widened": (_X,), "narrowed": (_X, _Y),
    "loop_config": ("*", "block_dim =", "serialize =", "parallelize =", "block_dim_adaptive =",
                    "bit_vectorize ="),
    "random": ("dtype dt =",), "randn": ("dtype dt =",), "randint": ("low", "high"),
    "func": ("function -",), "static_assert": ("condition -", "message - ="),
    "static_print": ("*", "sep =", "end ="), "loop_unique": ("value", "covers ="),
    "stop_grad": ("value -",),
    "len": ("x -",), "sum": ("x -", "start ="), "any": ("x -",), "all": ("x -",),
    "tuple": ("x - =",), "list": ("x - =",), "set": ("x - =",),
    "enumerate": ("iterable", "start ="),
    "zip": ("*", "strict ="), "reversed": ("x -",),
    "sorted": ("x -", "*", "key =", "reverse ="), "array": ("size", "*", "dtype ="),
    "Vector": ("values arr", "dt =", "dtype ="), "Matrix": ("rows arr", "dt =", "dtype ="),
    "Vector.zero": ("dtype dt", "n"), "Vector.one": ("dtype dt", "n"),
    "Matrix.zero": ("dtype dt", "n", "m"), "Matrix.one": ("dtype dt", "n", "m"),
    "Vector.unit": ("n", "axis", "dtype dt ="),
    "Matrix.rows": ("rows",), "Matrix.cols": ("columns cols",), "Matrix.diag": ("dim", "val"),
    "Matrix.identity": ("dtype dt", "n"), "eye": ("n",), "zeros": ("shape", "dtype dt =", "most ="),
    "dot": ("a", "b"), "cross": ("a", "b"), "distance": ("a", "b"), "length": ("v",),
    "normalize": ("v",), "cast": ("value", "dtype"), "determinant": ("m",), "inverse": ("m",),
}  # fmt: skip
METHODS: dict[str, tuple[str, ...]] = {
    "cast": ("dtype",), "to": ("dtype",), "type": ("dtype",), "norm": ("eps =",),
    "norm_inv": ("eps =",), "fill": ("value",),
    "normalized": ("eps =",), "dot": ("other",), "cross": ("other",), "outer_product": ("other",),
    "size": ("dim =",),
    **dict.fromkeys(
        ("norm_sqr", "sum", "min", "max", "any", "all", "transpose", "trace", "determinant",
         "inverse", "to_list", "item", "dim", "ndimension", "numel", "conj", "conjugate",
         "conj_physical", "angle", "sgn"), (),
    ),
}  # fmt: skip


def bind(
    takes: tuple[str, ...], function: str, given: list[Operand], named: dict[str, Operand],
    span: Span,
) -> list[Operand]:  # fmt: skip
    """The arguments of a call in the order of the parameters ``takes``; None, as a compile-time
    value, for one that is left out before others. Raises ``KernelTypeError``."""
    places = takes[: takes.index("*")] if "*" in takes else takes
    result: list[Operand | None] = [*given]
    known = {name: k for k, p in enumerate(places) for name in p.split() if name not in "-="}
    extra = {p.split()[0] for p in takes[len(places) + 1 :]}

    def wrong(what: str) -> KernelTypeError:
        return KernelTypeError(f"`{function}` {what}", span, help=f"write {_call(function, takes)}")

    for name, value in named.items():
        if name in extra:
            continue
        k = known.get(name, -1)
        if k < 0 or "-" in places[k].split():
            raise wrong(f"takes no argument `{name}` in a device loop")
        result += [None] * (k + 1 - len(result))
        if result[k] is not None:
            raise wrong(f"is given `{name}` twice")
        result[k] = value
    result += [None] * (sum("=" not in p.split() for p in places) - len(result))
    lacking = any(
        value is None and "=" not in p.split() for p, value in zip(places, result, strict=False)
    )
    if lacking or (len(result) > len(places) and "*" not in takes):
        count = len(given) + len(named)
        are = "is" if count == 1 else "are"
        raise wrong(f"takes {_count(takes)}, and {count} {are} given")
    return [Static(None) if value is None else value for value in result]


def argument(arguments: list[Operand], k: int) -> Operand | None:
    """Argument ``k``, None where it is left out."""
    x = arguments[k] if k < len(arguments) else None
    return None if isinstance(x, Static) and x.value is None else x


def _call(function: str, takes: tuple[str, ...]) -> str:
    """How the function is called, for messages."""
    shown = [p.split()[0] for p in takes if p != "*"]
    if "*" in takes:
        shown = [*shown[: takes.index("*")], "..."]
    return f"{function}({', '.join(shown)})"


def _count(takes: tuple[str, ...]) -> str:
    places = takes[: takes.index("*")] if "*" in takes else takes
    least, most = sum("=" not in p.split() for p in places), len(places)
    if "*" in takes:
        return f"at least {least} argument{'' if least == 1 else 's'}"
    if least == most:
        return "no argument" if not most else f"{most} argument{'' if most == 1 else 's'}"
    return f"{least} {'or' if most == least + 1 else 'to'} {most} arguments"

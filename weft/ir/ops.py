"""The one table of operations.

Each row gives an operation's name, what its operands and results are, and what a pass may do with
it. Printer, parser, verifier, builder, interpreter and code generators are driven by this table;
``tests/ir/test_totality.py`` holds that each of them has a rule for each row.

Signatures are written with these words (``T`` is one and the same type throughout a row):
    T:int  any integer type, ``index`` and ``i1`` included     T:float  ``f32`` or ``f64``
    i1, index                                        exactly that type
    any    any scalar type                           memref  a memref
    ...    any number more of the word before it
"""

from __future__ import annotations

from weft.values import frozen


@frozen
class OpDef:
    name: str
    operands: str  # space-separated words, see above
    results: str  # likewise; "?" where the types are given when the operation is built
    attrs: tuple[str, ...] = ()
    regions: int = 0
    pure: bool = True  # no effect, does not read memory: may be moved, merged and removed
    commutative: bool = False
    terminator: bool = False
    doc: str = ""


OPS: dict[str, OpDef] = {}

# Of integers, in which a divisor may be 0.
DIVISIONS = ("arith.floordivsi", "arith.divui", "arith.remsi", "arith.remui")

# Functions that take about as long as an addition; the others take many times longer.
_QUICK = {
    "math.absf", "math.absi", "math.ceil", "math.copysign", "math.ctpop", "math.detach",
    "math.floor", "math.fma", "math.isinf", "math.isnan", "math.roundeven", "math.trunc",
}  # fmt: skip


def is_slow(name: str) -> bool:
    """Whether an operation is one of the functions that take many times longer than an addition."""
    return name.startswith("math.") and name not in _QUICK


# What loads from or writes to memory, and which operand the memref is.
MEMREF_AT = {"memref.load": 0, "memref.store": 1, "memref.atomic_rmw": 1, "memref.atomic_cas": 2}


def _row(name: str, operands: str, results: str, doc: str = "", **traits: object) -> None:
    OPS[name] = OpDef(name, operands, results, doc=doc, **traits)  # type: ignore[arg-type]


# Predicates, MLIR's spelling. Floats: o.. is false when an operand is NaN, u.. is true.
CMPI = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
CMPF = (
    "oeq", "one", "olt", "ole", "ogt", "oge", "ord",
    "ueq", "une", "ult", "ule", "ugt", "uge", "uno",
)  # fmt: skip

# Combiners of scf.parallel reductions and of memref.atomic_rmw: the arith operation of that name.
COMBINERS = (
    "addf", "mulf", "maximumf", "minimumf",
    "addi", "muli", "maxsi", "minsi", "maxui", "minui", "andi", "ori", "xori",
)  # fmt: skip

_row("arith.constant", "", "?", attrs=("value",), doc="A literal: bool, int or float by its type.")

for _name, _doc, _comm in (
    ("addi", "a + b, wrapping", True),
    ("subi", "a - b, wrapping", False),
    ("muli", "a * b, wrapping", True),
    ("floordivsi", "Python's a // b, signed; 0 where b is 0", False),
    ("divui", "a // b, unsigned; 0 where b is 0", False),
    ("remsi", "C's a % b, signed: the sign of a", False),
    ("remui", "a % b, unsigned", False),
    ("andi", "a & b", True),
    ("ori", "a | b", True),
    ("xori", "a ^ b", True),
    ("shli", "a << b", False),
    ("shrsi", "a >> b, arithmetic", False),
    ("shrui", "a >> b, logical", False),
    ("minsi", "signed minimum", True),
    ("maxsi", "signed maximum", True),
    ("minui", "unsigned minimum", True),
    ("maxui", "unsigned maximum", True),
):
    _row(f"arith.{_name}", "T:int T:int", "T", _doc, commutative=_comm)

for _name, _doc, _comm in (
    ("addf", "a + b", True),
    ("subf", "a - b", False),
    ("mulf", "a * b", True),
    ("divf", "a / b", False),
    ("remf", "C's fmod(a, b): the sign of a", False),
    ("maximumf", "maximum; NaN if either is NaN (torch.maximum)", True),
    ("minimumf", "minimum; NaN if either is NaN (torch.minimum)", True),
    ("maxnumf", "maximum; the other one if one is NaN (torch.fmax)", True),
    ("minnumf", "minimum; the other one if one is NaN (torch.fmin)", True),
):
    _row(f"arith.{_name}", "T:float T:float", "T", _doc, commutative=_comm)
_row("arith.negf", "T:float", "T", "-a")

_row("arith.cmpi", "T:int T:int", "i1", "integer comparison", attrs=("predicate",))
_row("arith.cmpf", "T:float T:float", "i1", "float comparison", attrs=("predicate",))
_row("arith.select", "i1 T T", "T", "a if condition else b; both are evaluated")
_row(
    "arith.table", "T:int", "?",
    "the element with that number of `values`, which are constants; the last one where there is "
    "none",
    attrs=("values",),
)  # fmt: skip

_row("arith.extsi", "T:int", "?", "widen, keeping the sign")
_row("arith.extui", "T:int", "?", "widen with zeros (also from i1: 0 or 1)")
_row("arith.trunci", "T:int", "?", "keep the low bits")
_row("arith.index_cast", "T:int", "?", "between index and iN: sign-extends or keeps the low bits")
_row("arith.sitofp", "T:int", "?", "signed integer (not index) to f32 or f64")
_row("arith.uitofp", "T:int", "?", "unsigned integer (also i1) to f32 or f64")
_row("arith.fptosi", "T:float", "?", "to a signed integer, towards zero, saturating; NaN gives 0")
_row(
    "arith.fptoui", "T:float", "?", "to an unsigned integer, towards zero, saturating; NaN gives 0"
)
_row("arith.extf", "any", "?", "widen a float (one of 8 or 16 bits to f32, f32 to f64)")
_row("arith.truncf", "any", "?", "narrow a float, to nearest even")
_row("arith.bitcast", "any", "?", "the same bits as another type of that width")

for _name in (
    "absf", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "cbrt",
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "erf", "erfc", "sigmoid", "floor", "ceil", "trunc", "roundeven",
):  # fmt: skip
    _row(f"math.{_name}", "T:float", "T", f"{_name}(a)")
for _name in ("powf", "atan2", "hypot", "copysign"):
    _row(f"math.{_name}", "T:float T:float", "T", f"{_name}(a, b)")
_row("math.fma", "T:float T:float T:float", "T", "a * b + c, rounded once")
_row("math.detach", "T:float", "T", "a, as a constant: its derivative is 0")
_row("math.absi", "T:int", "T", "|a|, wrapping")
_row("math.isnan", "T:float", "i1", "true where a is NaN")
_row("math.isinf", "T:float", "i1", "true where a is an infinity")
_row("math.ctpop", "T:int", "T", "number of one bits")
_row(
    "math.philox", "T:int T:int T:int", "?",
    "(key, iteration, number), each an i64: a random word (i32), the same for the same three",
)  # fmt: skip

_row("memref.load", "memref index...", "?", "the element; its type is the memref's", pure=False)
_row("memref.store", "any memref index...", "", "writes the element", pure=False)
_row(
    "memref.atomic_rmw", "any memref index...", "?",
    "element = combine(element, value), gives the element before. The value has the element's "
    "compute type. `atomic` is false where no two iterations can meet.",
    attrs=("kind", "atomic"), pure=False,
)  # fmt: skip
_row(
    "memref.atomic_cas", "any any memref index...", "?",
    "(expected, desired): writes desired where the element equals expected, gives the element "
    "before",
    pure=False,
)  # fmt: skip
_row("memref.dim", "memref", "index", "the extent of one dimension", attrs=("axis",))
_row(
    "memref.alloca", "index...", "?",
    "An array, contents undefined: of static shape, or with a size for each dimension. In the "
    "memory space \"shared\" the threads of a block have one together.",
    pure=False,
)  # fmt: skip

_row("memref.flatten", "memref", "?", "the elements of a contiguous memref in one row")

_row(
    "scf.parallel", "index... any...", "?",
    "Iterations in any order or at once. Operands: `dims` lower bounds, `dims` upper bounds, "
    "`dims` steps (positive), one initial value for each reduction. Block arguments: the indices. "
    "Ends with scf.reduce, whose operands are what the iteration contributes (the combiner's "
    "identity if nothing). Result k is the combination by `kinds[k]` of the initial value and all "
    "contributions. One in a scheduled function may have `vector` = (rows, copies, lanes): its one "
    "or two indices have as many iterations as rows and copies say, which code generation writes "
    "at once, as vectors of lanes (or fewer, `masked`; from the last to the first, `reverse`).",
    attrs=("dims", "kinds"), regions=1, pure=False,
)  # fmt: skip
_row("scf.reduce", "any...", "", "ends scf.parallel", terminator=True, pure=False)
_row(
    "scf.for", "index index index any...", "?",
    "(lower, upper, step, initial values). Block arguments: the index, the carried values. Ends "
    "with scf.yield of the next carried values. Step is positive. Results: the last carried "
    "values. With `independent` the iterations are those of a parallel loop: none meets another.",
    regions=1, pure=False,
)  # fmt: skip
_row("scf.if", "i1", "?", "then and else regions, each ends with scf.yield", regions=2, pure=False)
_row(
    "scf.while", "any...", "?",
    "Region 0 takes the carried values and ends with scf.condition(go on?, values); region 1 takes "
    "these values and ends with scf.yield of the next carried ones. Results: the values of the "
    "last scf.condition.",
    regions=2, pure=False,
)  # fmt: skip
_row("scf.condition", "i1 any...", "", "ends region 0 of scf.while", terminator=True, pure=False)
_row(
    "scf.yield", "any...", "",
    "ends the regions of for, if and region 1 of while",
    terminator=True, pure=False,
)  # fmt: skip
_row("func.return", "", "", "ends a function", terminator=True, pure=False)

# What each thread of a grid knows, and how those of a block wait for each other: only where the
# function's attribute `group` says that it runs so (see `launched` in README.md).
DIMENSIONS = ("x", "y", "z", "linear")
for _name, _doc in (
    ("thread_id", "the thread's place in its block; linear: its number there, x counting first"),
    ("block_id", "the block's place in the grid; linear: its number there"),
    ("block_dim", "how many threads a block has"),
    ("grid_dim", "how many blocks the grid has"),
):
    _row(f"gpu.{_name}", "", "?", f"{_doc} (along `dimension`), an i32", attrs=("dimension",))
_row(
    "gpu.barrier", "", "",
    "Waits for the block's other threads, and sees what they wrote; with a `width`, for the other "
    "lanes of as many neighbours, or for those of one of several blocks that are as one.",
    attrs=("width",), pure=False,
)  # fmt: skip
_row(
    "gpu.copies_wait", "", "",
    "Waits until what the thread has stored with the attribute `copies` is there: such a store, of "
    "what a load has given, may be carried out later than others, and nothing reads what it stores "
    "in between.",
    pure=False,
)  # fmt: skip
SHUFFLES = ("xor", "up", "down", "idx")
_row(
    "gpu.shuffle", "T any", "T",
    "(value, n): the value of another lane among `width` neighbours: of that whose place is this "
    "one's xor n, or n before or further on (its own where there is none), or n.",
    attrs=("mode", "width"), pure=False,
)  # fmt: skip

_row(
    "weft.assert", "i1 any...", "",
    "stops the kernel with `message` if false",
    attrs=("message",), pure=False,
)  # fmt: skip
_row(
    "weft.bounds", "index index", "",
    "(subscript, extent): stops the kernel unless 0 <= subscript < extent (debug mode)",
    attrs=("tensor", "axis"), pure=False,
)  # fmt: skip
_row(
    "weft.check_race", "memref index...", "",
    "(memref, iteration, subscripts, then first value, step and count of each parallel index): "
    "stops the kernel where this iteration and another may not both do with the element what they "
    "do (debug mode). An element has `words` words for what iterations note: those of one `kind` "
    "in the places `own`, the first one there and another one behind it. What stands at the places "
    "`against` may not be met. `grouped`: the loop's indices are a vector.",
    attrs=("kind", "words", "own", "against", "grouped"), pure=False,
)  # fmt: skip
_row(
    "weft.chunks", "index index any", "?",
    "(total, row, wished): how many iterations a chunk of a loop of `total` has, and the number of "
    "chunks, where there should be `wished` (an f64) of them and long ones are whole rows of `row` "
    "iterations (see chunks.py)",
)  # fmt: skip
_row(
    "weft.copies", "index memref...", "?",
    "(count, arrays), in front of chunks: if `count` is more than one, memory for so many copies "
    "of each contiguous array, contents undefined. Gives the count, 0 if there is no memory, and "
    "all copies of each array, to be taken by weft.copy_of",
    pure=False,
)  # fmt: skip
_row(
    "weft.copy_of", "memref index memref", "?",
    "(copies, k, array): copy k of the array, or the array itself where there are no copies",
)  # fmt: skip
_row(
    "weft.rows_follow", "index index memref...", "i1",
    "(trips of a loop over the axis before the last `behind`, their product with those of the "
    "loops behind it, memrefs): true only if each row of that many elements begins where the one "
    "before ends: the loop around may then be counted as one with this one. It may be false "
    "always: the interpreter, which holds subscripts in their ranges, says so",
    attrs=("behind",),
)  # fmt: skip
_row(
    "weft.to_line", "memref index...", "index",
    "how many elements it is from the one at these subscripts, which may be none of the memref's, "
    "to where a line of memory begins",
)  # fmt: skip
_row(
    "weft.prefetch", "memref index...", "",
    "asks for the element at these subscripts, which may be none of the memref's, to be in the "
    "caches soon: it changes nothing",
    pure=False,
)  # fmt: skip
_row(
    "weft.threads", "", "index",
    "how many threads share the iterations of the outermost loop, at least 1: what a function "
    "computes does not depend on it",
)  # fmt: skip
_row(
    "weft.rare", "", "i1",
    "whether the loop over chunks that is marked as rare can run: it may be compiled for that",
    pure=False,
)  # fmt: skip
_row(
    "weft.print", "any...", "",
    "prints; `parts` is a tuple of strings, with None where the next operand's value stands",
    attrs=("parts",), pure=False,
)  # fmt: skip

"""Random kernels of lists of tensors, of lists that grow, and of vectors that loops accumulate
into: their results, stores and gradients against the plain Python.

Branches depend on sizes and integers, so that both ways take the same ones.
"""

from __future__ import annotations

from random import Random

import torch

import weft
from tests.fuzz.check import function, shaped


def place(random: Random) -> str:
    """A member of ``xs``, or of what is nested in ``ps``: by a constant, or at run time."""
    at = random.choice(
        ("0", "1", "-1", "i % 3", "(i + j) % 3", "m[i]", "(2 * m[j]) % 3", "i % 3 - 3", "-1 - m[j]")
    )
    if random.random() < 0.3:
        return f"ps[{random.choice(('0', 'i % 2', 'm[i] % 2'))}][{random.randrange(2)}]"
    return f"xs[{at}]"


def element(random: Random) -> str:
    match random.randrange(9):
        case 0:
            return f"{place(random)}.sum()"
        case 1:
            return f"{place(random)}[{random.choice(('1:', ':n', '::2'))}].sum()"
        case 2:
            return f"len({place(random)})"
        case 3:
            return "sum(x[i] for x in xs)"
        case 4:
            return f"d['{random.choice('ab')}'][{random.choice('ij')}]"
        case _:
            return f"{place(random)}[{random.choice(('i', 'j', '0', 'n - 1 - i'))}]"


def value(random: Random, depth: int = 2) -> str:
    if not depth or random.random() < 0.3:
        return random.choice((element(random), element(random), "0.5", "c", "s", "(len(a) + 0.5)"))
    return f"({value(random, depth - 1)} {random.choice('+-*')} {value(random, depth - 1)}) * 0.5"


def statements(random: Random, indent: str, depth: int) -> list[str]:
    lines: list[str] = []
    for _ in range(random.randint(1, 3)):
        match random.randrange(9 if depth else 6):
            case 0 | 1:
                lines.append(f"{indent}s = {value(random)} * 0.5")
            case 2:
                lines.append(f"{indent}if len(a) < 60:")
                method = random.choice(
                    ("append(", "insert(0, ", "insert(-1, ", "extend([1, 2] + [")
                )
                end = "])" if "[" in method else ")"
                lines.append(f"{indent}    a.{method}{value(random)}{end}")
            case 3:
                lines.append(f"{indent}if {random.choice(('a', 'len(a) > 0'))}:")
                lines.append(f"{indent}    s = s + a.pop({random.choice(('', '0', '-1'))})")
            case 4:
                lines.append(f"{indent}for x in {random.choice(('xs', 'xs[1:]', 'reversed(xs)'))}:")
                lines.append(f"{indent}    s = s * 0.5 + x[{random.choice('ij')}]")
            case 5:
                # `s += ...` would change items that are `s`, which Python's tensor is.
                done = random.choice(("a.sort()", "a.reverse()", "s = s + len(a)"))
                lines.append(f"{indent}{done}")
                over = random.choice(("a", "a[1:]", "a[::-1]", "sorted(a)", "[v * 2 for v in a]"))
                lines.append(f"{indent}for v in {over}:")
                lines.append(f"{indent}    s = (s + v) * 0.5")
            case 6:
                lines.append(f"{indent}for j in range({random.choice(('n', 'min(i + 1, 3)'))}):")
                lines += statements(random, indent + "    ", depth - 1)
            case 7:
                lines.append(
                    f"{indent}if {random.choice(('i % 2 == 0', 'm[i] > 0', 'len(a) > 1'))}:"
                )
                lines += statements(random, indent + "    ", depth - 1)
            case _:
                lines.append(f"{indent}ws[{random.choice(('i % 2', 'm[i] % 2', '0'))}][i] "
                             f"{random.choice(('=', '+='))} {value(random)}")  # fmt: skip
    return lines


def text(random: Random) -> str:
    made = random.choice(("[]", "[0.5]", "weft.zeros(i % 3, weft.f64, most=64)"))
    lines = ["def kernel(xs, ps, d, m, n: int, c: float):",
             "    ws = [torch.zeros(n, dtype=xs[0].dtype), torch.zeros(n, dtype=xs[0].dtype)]",
             "    t = weft.Vector([0.0, 1.0])", "    for i in range(n):",
             "        s, j = 0.0, 0", f"        a = {made}",
             "        if n < 0:", "            a.append(0.5)"]  # fmt: skip
    lines += statements(random, " " * 8, 2)
    lines.append(f"        ws[i % 2][i] += s + {value(random)}")
    lines.append("        t += weft.Vector([s, 0.5 * s])")
    return "\n".join([*lines, "    return ws[0], ws[1], t[0], t[1]", ""])


def check(random: Random) -> None:
    """Draws a kernel and runs it both ways, with gradients; AssertionError where they differ."""
    drawn = text(random)
    plain = function(drawn)
    n = random.choice((1, 2, 5))
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    values = [torch.randn(n, dtype=torch.float64, generator=generator) for _ in range(9)]
    m = torch.randint(0, 3, (n,), generator=generator)
    found = []
    for call in (plain, weft.kernel(plain)):
        leaves = [shaped(random, v).requires_grad_() for v in values]
        xs, ps = leaves[:3], (tuple(leaves[3:5]), tuple(leaves[5:7]))
        outs = call(xs, ps, dict(zip("ab", leaves[7:], strict=True)), m, n, 0.75)
        outs = [torch.as_tensor(o, dtype=torch.float64) for o in outs]
        total = sum(((k + 1) * o).sum() for k, o in enumerate(outs))
        grads = [None] * 9
        if isinstance(total, torch.Tensor) and total.requires_grad:
            grads = torch.autograd.grad(total, leaves, allow_unused=True)
        filled = [torch.zeros_like(v) if g is None else g
                  for g, v in zip(grads, values, strict=True)]  # fmt: skip
        found.append([*(o.detach() for o in outs), *filled])
    for wanted, made in zip(*found, strict=True):
        close = (wanted - made).abs() <= 1e-9 * (1 + wanted.abs().max())
        assert close.all(), f"{drawn}\n{wanted}\n{made}\n{values}, {m}"

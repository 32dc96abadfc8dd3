"""Random loops whose rows carry a state, of which elements meet in sums alone."""

from __future__ import annotations

from random import Random

_FACTORS = ("k[b, t, j]", "w[b, t, j]", "e[b, j]", "x[b, t, i]", "u[b, t, i, j]", "c[t]", "z[i]",
            "0.3", "h[j]", "g[j]")  # fmt: skip
_SUMS = ("p", "q")


def state_kernel(random: Random) -> str:
    """The source of ``kernel(x, k, w, e, u, c, z)``: (B, T, I), twice (B, T, N), (B, N),
    (B, T, I, N), (T,) and (I,), with N = 8, to two tensors (B, T, I)."""

    def term(known: tuple[str, ...]) -> str:
        a, b = (random.choice((*_FACTORS, *known, *known)) for _ in range(2))
        return random.choice((f"{a} * {b}", f"weft.math.sin({a}) * {b}", f"{a} - 0.5 * {b}",
                              f"weft.math.tanh({a} + {b})"))  # fmt: skip

    lines = ["def kernel(x, k, w, e, u, c, z):", " out = torch.empty_like(x)",
             " more = torch.empty_like(x)",
             " for b, i in weft.ndrange(x.shape[0], x.shape[2]):",
             "  h = weft.zeros((8,), weft.f64)", "  g = weft.zeros((8,), weft.f64)",
             *(["  for j in range(8):", "   g[j] = 0.25"] if random.random() < 0.3 else []),
             "  for t in range(x.shape[1]):"]  # fmt: skip
    known: tuple[str, ...] = ()
    for name in _SUMS:
        before = known
        lines += [f"   {name} = {random.choice(('0.0', '0.5', 'z[i]', *known))}",
                  "   for j in range(8):"]  # fmt: skip
        for _ in range(random.randint(1, 3)):
            lines.append(f"    {random.choice('hg')}[j] = 0.3 * ({term(before)}) + 0.1 * h[j]")
        lines.append(f"    {name} += {term(before)}")
        known = (*known, name)
        if random.random() < 0.3:
            lines.append(f"   {name} = weft.math.sin({name}) * x[b, t, i]")
    lines.append(f"   out[b, t, i] = {random.choice(('q', 'q * c[t]', 'p + q', 'p * x[b, t, i]'))}")
    lines.append(f"   more[b, t, i] = {random.choice(('p', '0.5', 'q * p', 'k[b, t, 0]'))}")
    return "\n".join([*lines, " return out, more", ""])

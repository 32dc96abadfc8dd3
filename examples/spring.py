"""A chain of masses and springs whose stiffness and friction are found from how it swings.

    wall ~~~ o ~~~ o ~~~ o ~~~ o ~~~ wall

A thousand time steps are one iteration of the parallel loop (one for each experiment), and the
gradient goes back through all of them. Time is discretised by the semi-implicit Euler method:
speeds from the old places, then places from the new speeds.
"""

import torch
import torch.nn.functional as F

import weft
from examples.beside import Case, report
from examples.photograph import OUT

MASSES, TRIALS, STEPS, DT = 4, 16, 1000, 0.01


@weft.kernel
def swing(
    start: torch.Tensor, stiffness: torch.Tensor, friction: torch.Tensor, steps: int, dt: float
) -> torch.Tensor:
    """``start`` (trials, MASSES): displacements, at rest; ``stiffness`` (MASSES + 1,) of the
    springs; ``friction`` (MASSES,); masses are 1. Gives displacements (trials, steps, MASSES)."""
    trials = start.shape[0]
    path = start.new_empty(trials, steps, MASSES)
    for n in range(trials):
        x = weft.zeros(MASSES + 2, start.dtype)  # the walls are at both ends
        v = weft.zeros(MASSES + 2, start.dtype)
        for i in range(MASSES):
            x[i + 1] = start[n, i]
        for t in range(steps):
            for i in range(1, MASSES + 1):
                pull = stiffness[i] * (x[i + 1] - x[i]) - stiffness[i - 1] * (x[i] - x[i - 1])
                v[i] += dt * (pull - friction[i - 1] * v[i])
            for i in range(1, MASSES + 1):
                x[i] += dt * v[i]
                path[n, t, i - 1] = x[i]
    return path


def torch_swing(
    start: torch.Tensor, stiffness: torch.Tensor, friction: torch.Tensor, steps: int, dt: float
) -> torch.Tensor:
    """The same in PyTorch, a step of time at once."""
    x, v, path = start, torch.zeros_like(start), []
    for _ in range(steps):
        pull = torch.diff(stiffness * torch.diff(F.pad(x, (1, 1))))
        v = v + dt * (pull - friction * v)
        x = x + dt * v
        path.append(x)
    return torch.stack(path, 1)


def inputs(trials: int, steps: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, float]:
    """Displacements, and the chain that is to be found."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(trials, MASSES, generator=generator)
    stiffness = 5 + 10 * torch.rand(MASSES + 1, generator=generator)
    return start, stiffness, 0.2 + 0.5 * torch.rand(MASSES, generator=generator), steps, DT


def fit(steps: int, rounds: int) -> tuple[list[float], list[torch.Tensor], torch.Tensor]:
    """Finds the chain, from a wrong one, by ``rounds`` steps of Adam.

    Gives the losses (mean squared distance), the paths before and after, and the true ones.
    """
    start, stiffness, friction, _, dt = inputs(TRIALS, steps)
    truth = swing(start, stiffness, friction, steps, dt)
    found = [torch.full_like(stiffness, 8.0).log(), torch.full_like(friction, 0.1).log()]
    for parameter in found:
        parameter.requires_grad_()
    optimizer = torch.optim.Adam(found, lr=0.05)
    losses, paths = [], []
    for _ in range(rounds):
        optimizer.zero_grad()
        path = swing(start, *(p.exp() for p in found), steps, dt)
        loss = F.mse_loss(path, truth)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        paths = [*paths[:1], path.detach()]
    print(f"stiffness found {[round(x, 2) for x in found[0].exp().tolist()]}")
    print(f"          true  {[round(x, 2) for x in stiffness.tolist()]}")
    return losses, paths, truth


def plot(losses: list[float], paths: list[torch.Tensor], truth: torch.Tensor) -> None:
    """The loss, and how the first mass of the first experiment swings, to ``out/spring.png``."""
    from matplotlib.figure import Figure  # slow, and not needed before

    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1, 2])
    left.semilogy(losses)
    left.set(xlabel="round", ylabel="mean squared distance", title="loss")
    seconds = DT * torch.arange(truth.shape[1])
    for name, path, style in (
        ("measured", truth, "k"), ("before", paths[0], "C1:"), ("after", paths[1], "C0--")
    ):  # fmt: skip
        right.plot(seconds, path[0, :, 0], style, label=name)
    right.set(xlabel="seconds", ylabel="displacement", title="first mass, first experiment")
    right.legend()
    OUT.mkdir(exist_ok=True)
    figure.savefig(OUT / "spring.png", dpi=100)
    print(f"look at {OUT / 'spring.png'}")


def main() -> None:
    """Check and time it; find a chain from its swings; write a picture."""
    size = f"{TRIALS} trials, {STEPS} steps"
    report("springs", [Case(size, swing, torch_swing, inputs(TRIALS, STEPS))], rounds=3)
    losses, paths, truth = fit(STEPS, rounds=150)
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.2e} in {len(losses)} rounds")
    assert losses[-1] < losses[0] / 100
    plot(losses, paths, truth)


if __name__ == "__main__":
    main()

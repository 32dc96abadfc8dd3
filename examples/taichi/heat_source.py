"""Where was it hot? The temperatures of a plate are measured once it has cooled; gradients through
all steps of the cooling find those from which it began.

The plate follows the heat equation, u' = div(k grad u), with isolated edges, in explicit steps of
finite differences: the flux between two cells goes by the harmonic mean of their conductivities
(S. V. Patankar, "Numerical Heat Transfer and Fluid Flow", 1980, section 4.2-3). Steps are stable
while k dt / dx^2 is at most a quarter. Going back in time is ill-posed: a smoothness term keeps
what is found from swinging.
"""

import numpy as np

import weft as ti


@ti.data_oriented
class Plate:
    """``n`` x ``n`` cells and ``steps`` steps in time of length 1. ``u[t, i, j]``: temperatures."""

    def __init__(self, n: int, steps: int, smoothness: float = 1e-3, real=ti.f32):
        self.n, self.steps, self.smoothness = n, steps, smoothness
        self.begin = ti.field(real, shape=(n, n), needs_grad=True)  # what is to be found
        self.conductivity = ti.field(real, shape=(n, n), needs_grad=True)
        self.u = ti.field(real, shape=(steps + 1, n, n), needs_grad=True)
        self.measured = ti.field(real, shape=(n, n))
        self.loss = ti.field(real, shape=(), needs_grad=True)
        self.speed = ti.field(real, shape=(n, n))  # of the descent
        self.material()

    @ti.kernel
    def material(self):
        """A plate with a bar that conducts badly."""
        for i, j in self.conductivity:
            bar = self.n // 2 <= j < self.n // 2 + ti.max(self.n // 16, 1) and i > self.n // 4
            self.conductivity[i, j] = ti.select(bar, 0.02, 0.24)

    @ti.kernel
    def spots(self, count: ti.i32):
        """Round spots, of another heat each."""
        for i, j in self.begin:
            heat = 0.0
            for k in range(count):
                x = (0.25 + 0.5 * ((k * 5) % 7) / 7.0) * self.n
                y = (0.2 + 0.6 * ((k * 3) % 5) / 5.0) * self.n
                far = (i - x) ** 2 + (j - y) ** 2
                heat += (1.0 + 0.3 * k) * ti.exp(-far / (0.003 * self.n**2))
            self.begin[i, j] = heat

    @ti.func
    def flux(self, t, i, j, di, dj):
        """What flows from the neighbour into a cell; nothing over the edge."""
        p, q = i + di, j + dj
        flow = 0.0
        if 0 <= p < self.n and 0 <= q < self.n:
            a, b = self.conductivity[i, j], self.conductivity[p, q]
            flow = 2.0 * a * b / (a + b) * (self.u[t, p, q] - self.u[t, i, j])
        return flow

    @ti.kernel
    def start(self):
        for i, j in self.begin:
            self.u[0, i, j] = self.begin[i, j]

    @ti.kernel
    def step(self, t: ti.i32):
        for i, j in self.begin:
            flow = 0.0
            for di, dj in ti.static(((1, 0), (-1, 0), (0, 1), (0, -1))):
                flow += self.flux(t, i, j, di, dj)
            self.u[t + 1, i, j] = self.u[t, i, j] + flow

    @ti.kernel
    def compare(self):
        for i, j in self.begin:
            off = self.u[self.steps, i, j] - self.measured[i, j]
            rough = 0.0
            if i + 1 < self.n:
                rough += (self.begin[i + 1, j] - self.begin[i, j]) ** 2
            if j + 1 < self.n:
                rough += (self.begin[i, j + 1] - self.begin[i, j]) ** 2
            self.loss[None] += off**2 + self.smoothness * rough

    def cool(self) -> None:
        self.start()
        for t in range(self.steps):
            self.step(t)

    def gradient(self) -> float:
        """The loss; ``begin.grad`` and ``conductivity.grad`` are its gradients then."""
        with ti.ad.Tape(loss=self.loss):
            self.cool()
            self.compare()
        return float(self.loss[None])

    @ti.kernel
    def descend(self, rate: ti.f32, inertia: ti.f32):
        for i, j in self.begin:
            self.speed[i, j] = inertia * self.speed[i, j] - rate * self.begin.grad[i, j]
            self.begin[i, j] = ti.max(self.begin[i, j] + self.speed[i, j], 0.0)

    def find(self, rounds: int, rate: float = 0.4, inertia: float = 0.9) -> list[float]:
        """Finds ``begin`` from ``measured``, beginning with what was measured. Gives the losses."""
        self.begin.copy_from(self.measured)
        self.speed.fill(0)
        losses = []
        for _ in range(rounds):
            losses.append(self.gradient())
            self.descend(rate, inertia)
        return losses

    def experiment(self) -> np.ndarray:
        """Measures a plate that cools from its spots, which it gives."""
        self.spots(5)
        self.cool()
        self.measured.from_numpy(self.u.to_numpy()[self.steps])
        return self.begin.to_numpy()


def main() -> None:
    """48 x 48 cells after 40 steps."""
    ti.init(arch=ti.cpu)
    plate = Plate(48, 40)
    truth = plate.experiment()
    losses = plate.find(150)
    found, measured = plate.begin.to_numpy(), plate.measured.to_numpy()
    before, after = (np.abs(a - truth).mean() for a in (measured, found))
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.5f}")
    print(f"mean distance from the truth: measured {before:.4f}, found {after:.4f}")

    from examples.photograph import save_png  # needs pillow

    row = np.concatenate([truth, measured, found], 1) / truth.max()
    image = (255 * np.stack([row, row**2, row**4], 2)).clip(0, 255).astype(np.uint8)
    print(f"look at {save_png(image.repeat(4, 0).repeat(4, 1), 'heat_source.png')}")


if __name__ == "__main__":
    main()

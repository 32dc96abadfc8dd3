"""A column of water falls in a tank: smoothed particle hydrodynamics in two dimensions.

Densities, the stiff equation of state and the artificial viscosity are those of J. J. Monaghan,
"Simulating free surface flows with SPH", J. Comput. Phys. 110 (1994) 399-406; the cubic spline is
that of his review of 1992. Lengths are in metres, times in seconds. A uniform grid with cells as
wide as the spline's support finds the neighbours of a particle.
"""

import math

import numpy as np

import weft as ti

WIDTH, HEIGHT = 2.0, 1.0  # of the tank
DENSITY, GRAVITY = 1000.0, 9.81
EXPONENT = 7.0
VISCOSITY = 0.08  # Monaghan's alpha
RESTITUTION = 0.3  # of a wall
WALL = 0.2  # of the square of the speed of sound, over the spline's length
CROWD = 64  # particles that a cell can take


@ti.data_oriented
class DamBreak:
    """``columns`` x ``rows`` particles, ``spacing`` metres apart, at the left wall."""

    def __init__(self, columns: int, rows: int, spacing: float, real=ti.f32):
        self.columns, self.rows, self.spacing = columns, rows, spacing
        self.count = columns * rows
        self.h = 1.3 * spacing  # the spline ends at 2 h
        self.mass = DENSITY * spacing**2
        self.sound = 10.0 * math.sqrt(2.0 * GRAVITY * rows * spacing)  # keeps density within 1 %
        self.stiffness = DENSITY * self.sound**2 / EXPONENT
        self.dt = 0.2 * self.h / self.sound
        self.cells = (math.ceil(WIDTH / (2 * self.h)), math.ceil(HEIGHT / (2 * self.h)))

        self.x = ti.Vector.field(2, real, shape=self.count)
        self.v = ti.Vector.field(2, real, shape=self.count)
        self.force = ti.Vector.field(2, real, shape=self.count)  # acceleration
        self.density = ti.field(real, shape=self.count)
        self.pressure = ti.field(real, shape=self.count)
        self.members = ti.field(ti.i32, shape=self.cells)
        self.member = ti.field(ti.i32, shape=(*self.cells, CROWD))
        self.place()

    @ti.kernel
    def place(self):
        for i, j in ti.ndrange(self.columns, self.rows):
            k = i * self.rows + j
            shift = 0.02 * ((7 * i + 13 * j) % 5 - 2)  # no lattice: it would stand too long
            self.x[k] = ti.Vector([i + 0.5 + shift, j + 0.5 - shift]) * self.spacing
            self.v[k] = ti.Vector([0.0, 0.0])

    @ti.func
    def spline(self, r):
        """The cubic spline, whose integral over the plane is 1."""
        q = r / self.h
        scale = 10.0 / (7.0 * math.pi * self.h**2)
        value = 0.0
        if q < 1.0:
            value = 1.0 - 1.5 * q**2 + 0.75 * q**3
        elif q < 2.0:
            value = 0.25 * (2.0 - q) ** 3
        return scale * value

    @ti.func
    def slope(self, d, r):
        """The gradient of the spline at the distance vector d, of length r > 0."""
        q = r / self.h
        scale = 10.0 / (7.0 * math.pi * self.h**3)
        value = 0.0
        if q < 1.0:
            value = -3.0 * q + 2.25 * q**2
        elif q < 2.0:
            value = -0.75 * (2.0 - q) ** 2
        return scale * value / r * d

    @ti.func
    def wall(self, distance):
        """How a wall accelerates a particle that is nearer than two others are."""
        near = ti.max(1.0 - distance / self.spacing, 0.0)
        return WALL * self.sound**2 / self.h * near**2

    @ti.func
    def cell(self, p):
        last = ti.Vector([self.cells[0] - 1, self.cells[1] - 1])
        return ti.max(0, ti.min(last, ti.floor(p / (2.0 * self.h), ti.i32)))

    @ti.kernel
    def sort(self):
        for c in ti.grouped(self.members):
            self.members[c] = 0
        for k in self.x:
            c = self.cell(self.x[k])
            slot = ti.atomic_add(self.members[c], 1)
            if slot < CROWD:
                self.member[c[0], c[1], slot] = k

    @ti.kernel
    def densities(self):
        for k in self.x:
            p = self.x[k]
            c = self.cell(p)
            sum = 0.0
            for i in range(ti.max(c[0] - 1, 0), ti.min(c[0] + 2, self.cells[0])):
                for j in range(ti.max(c[1] - 1, 0), ti.min(c[1] + 2, self.cells[1])):
                    for slot in range(ti.min(self.members[i, j], CROWD)):
                        other = self.member[i, j, slot]
                        sum += self.mass * self.spline((p - self.x[other]).norm())
            self.density[k] = sum
            squeezed = (sum / DENSITY) ** EXPONENT - 1.0
            self.pressure[k] = ti.max(self.stiffness * squeezed, 0.0)  # water does not pull

    @ti.kernel
    def forces(self):
        for k in self.x:
            p, v = self.x[k], self.v[k]
            c = self.cell(p)
            own = self.pressure[k] / self.density[k] ** 2
            a = ti.Vector([0.0, -GRAVITY])
            for i in range(ti.max(c[0] - 1, 0), ti.min(c[0] + 2, self.cells[0])):
                for j in range(ti.max(c[1] - 1, 0), ti.min(c[1] + 2, self.cells[1])):
                    for slot in range(ti.min(self.members[i, j], CROWD)):
                        other = self.member[i, j, slot]
                        d = p - self.x[other]
                        r = d.norm()
                        if other == k or r >= 2.0 * self.h or r < 1e-6 * self.h:
                            continue
                        push = own + self.pressure[other] / self.density[other] ** 2
                        approach = (v - self.v[other]).dot(d)
                        if approach < 0.0:
                            mu = self.h * approach / (r * r + 0.01 * self.h**2)
                            mean = 0.5 * (self.density[k] + self.density[other])
                            push -= VISCOSITY * self.sound * mu / mean
                        a -= self.mass * push * self.slope(d, r)
            for axis in ti.static(range(2)):
                size = ti.static((WIDTH, HEIGHT)[axis])
                a[axis] += self.wall(p[axis]) - self.wall(size - p[axis])
            self.force[k] = a

    @ti.kernel
    def move(self):
        for k in self.x:
            v = self.v[k] + self.dt * self.force[k]
            p = self.x[k] + self.dt * v
            for axis in ti.static(range(2)):
                size = ti.static((WIDTH, HEIGHT)[axis])
                if p[axis] < 0.0 or p[axis] > size:
                    p[axis] = ti.math.clamp(p[axis], 0.0, size)
                    v[axis] *= -RESTITUTION
            self.x[k] = p
            self.v[k] = v

    def step(self) -> None:
        self.sort()
        self.densities()
        self.forces()
        self.move()

    def picture(self, scale: int = 320) -> np.ndarray:
        """Particles as squares, bluer the slower: bytes of red, green and blue."""
        image = np.full((int(HEIGHT * scale), int(WIDTH * scale), 3), 244, np.uint8)
        radius = max(1, int(0.5 * self.spacing * scale))
        places, speed = self.x.to_numpy() * scale, np.linalg.norm(self.v.to_numpy(), axis=1)
        for (x, y), fast in zip(places, speed / max(speed.max(), 1e-9), strict=True):
            row, col = int(image.shape[0] - y), int(x)
            image[max(row - radius, 0) : row + radius, max(col - radius, 0) : col + radius] = (
                30 + 190 * fast, 90 + 120 * fast, 200)  # fmt: skip
        return image


def main() -> None:
    """Half a second of a column of water."""
    ti.init(arch=ti.cpu)
    water = DamBreak(30, 45, 0.0167)
    steps = round(0.5 / water.dt)
    for _ in range(steps):
        water.step()
    reach = water.x.to_numpy()[:, 0].max()
    print(f"{water.count} particles, {steps} steps: the water is {reach:.2f} m from the wall")

    from examples.photograph import save_png  # needs pillow

    print(f"look at {save_png(water.picture(), 'dam_break.png')}")


if __name__ == "__main__":
    main()

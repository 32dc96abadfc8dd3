"""Light in a box: a path tracer with diffuse walls, a mirror and a glass ball.

Paths start at the camera and pick directions by the cosine of their angle, which cancels Lambert's
factor (J. T. Kajiya, "The rendering equation", SIGGRAPH 1986). From the fourth reflection on,
Russian roulette ends the dark ones. The share of light that glass reflects is C. Schlick's
approximation (Computer Graphics Forum 13, 1994). The box is the unit cube, seen through its front.
"""

import math

import numpy as np

import weft as ti

vec3 = ti.types.vector(3, ti.f32)
DIFFUSE, MIRROR, GLASS = 0, 1, 2
REFRACTION = 1.5  # of glass
SURE = 4  # reflections before the roulette
EYE = 1.3  # how far in front of the box the camera is
FAR = 1e9
NEAR = 1e-4  # what is nearer is where the ray begins


@ti.dataclass
class Hit:
    distance: ti.f32
    normal: vec3  # against the ray
    colour: vec3
    emission: vec3
    material: ti.i32
    inside: ti.i32


@ti.data_oriented
class Box:
    """A picture of ``width`` x ``height`` pixels of a box with two balls. Walls are left, right,
    floor, ceiling, back and front, which the camera looks through."""

    def __init__(self, width: int, height: int, depth: int = 16, roulette: bool = True):
        self.width, self.height, self.depth, self.roulette = width, height, depth, roulette
        self.sum = ti.Vector.field(3, ti.f32, shape=(width, height))
        self.walls = ti.Vector.field(3, ti.f32, shape=6)
        self.glow = ti.Vector.field(3, ti.f32, shape=6)  # what a wall emits
        self.lamp = ti.Vector.field(3, ti.f32, shape=())  # a square of the ceiling
        self.centre = ti.Vector.field(3, ti.f32, shape=2)
        self.radius = ti.field(ti.f32, shape=2)
        self.kind = ti.field(ti.i32, shape=2)
        self.passes = 0
        grey, red, green = [0.73] * 3, [0.65, 0.06, 0.05], [0.12, 0.46, 0.10]
        for k, colour in enumerate((red, green, grey, grey, grey, grey)):
            self.walls[k] = colour
        self.lamp[None] = [17.0, 12.5, 7.5]
        for k, (place, radius, kind) in enumerate(
            (([0.28, 0.2, 0.72], 0.2, MIRROR), ([0.7, 0.16, 0.38], 0.16, GLASS))
        ):
            self.centre[k], self.radius[k], self.kind[k] = place, radius, kind

    @ti.func
    def wall(self, origin, ray, hit: ti.template()):
        """The wall that a ray from within the box meets."""
        for axis in ti.static(range(3)):
            if ray[axis] != 0.0:
                side = ti.select(ray[axis] > 0.0, 1, 0)
                distance = (side - origin[axis]) / ray[axis]
                if NEAR < distance < hit.distance:
                    which = 2 * axis + side
                    if ti.static(axis == 2):
                        which = 5 - side  # the back is at depth 1
                    hit.distance = distance
                    hit.normal = vec3(0.0)
                    hit.normal[axis] = 1.0 - 2.0 * side
                    hit.colour = self.walls[which]
                    hit.emission = self.glow[which]
                    if which == 3:
                        place = origin + distance * ray
                        if ti.abs(place.x - 0.5) < 0.15 and ti.abs(place.z - 0.5) < 0.15:
                            hit.emission += self.lamp[None]
                    hit.material = DIFFUSE
                    hit.inside = 0

    @ti.func
    def ball(self, k, origin, ray, hit: ti.template()):
        middle = origin - self.centre[k]
        b = middle.dot(ray)
        under = b * b - middle.norm_sqr() + self.radius[k] ** 2
        if under > 0.0:
            root = ti.sqrt(under)
            distance = -b - root
            inside = 0
            if distance < NEAR:
                distance = -b + root
                inside = 1
            if NEAR < distance < hit.distance:
                normal = (middle + distance * ray) / self.radius[k]
                hit.distance = distance
                hit.normal = ti.select(inside == 1, -normal, normal)
                hit.colour = vec3(1.0) * 0.98
                hit.emission = vec3(0.0)
                hit.material = self.kind[k]
                hit.inside = inside

    @ti.func
    def first(self, origin, ray):
        hit = Hit(distance=FAR)
        self.wall(origin, ray, hit)
        for k in range(2):
            self.ball(k, origin, ray, hit)
        return hit

    @ti.func
    def scattered(self, normal):
        """A direction around ``normal``, by the cosine of the angle: a point of the sphere around
        the normal's end."""
        up = 2.0 * ti.random(ti.f32) - 1.0
        angle = 2.0 * math.pi * ti.random(ti.f32)
        flat = ti.sqrt(ti.max(1.0 - up * up, 0.0))
        there = normal + vec3(flat * ti.cos(angle), flat * ti.sin(angle), up)
        return ti.select(there.norm_sqr() > 1e-8, there.normalized(1e-12), normal)

    @ti.func
    def through(self, ray, hit):
        """Where glass sends a ray: reflected or refracted, by chance."""
        ratio = ti.select(hit.inside == 1, REFRACTION, 1.0 / REFRACTION)
        cosine = -ray.dot(hit.normal)
        left = 1.0 - ratio**2 * (1.0 - cosine**2)
        there = ray + 2.0 * cosine * hit.normal
        if left > 0.0:
            head_on = ((1.0 - REFRACTION) / (1.0 + REFRACTION)) ** 2
            outer = ti.select(hit.inside == 1, ti.sqrt(left), cosine)
            if ti.random(ti.f32) > head_on + (1.0 - head_on) * (1.0 - outer) ** 5:
                there = ratio * ray + (ratio * cosine - ti.sqrt(left)) * hit.normal
        return there.normalized()

    @ti.func
    def radiance(self, start, direction):
        origin, ray = start, direction
        light, share = vec3(0.0), vec3(1.0)
        for bounce in range(self.depth):
            hit = self.first(origin, ray)
            if hit.distance >= FAR:
                break
            light += share * hit.emission
            share *= hit.colour
            if self.roulette and bounce >= SURE:
                alive = ti.min(share.max(), 0.95)
                if ti.random(ti.f32) >= alive:
                    break
                share /= alive
            origin += hit.distance * ray
            if hit.material == DIFFUSE:
                ray = self.scattered(hit.normal)
            elif hit.material == MIRROR:
                ray -= 2.0 * ray.dot(hit.normal) * hit.normal
            else:
                ray = self.through(ray, hit)
        return light

    @ti.kernel
    def render(self):
        for i, j in self.sum:
            u = (i + ti.random(ti.f32)) / self.width - 0.5
            v = (j + ti.random(ti.f32)) / self.height - 0.5
            ray = vec3(u, v, EYE).normalized()
            enters = vec3(0.5 + u, 0.5 + v, NEAR)  # through the front, which is no wall from there
            self.sum[i, j] += self.radiance(enters, ray)

    def run(self, passes: int) -> None:
        for _ in range(passes):
            self.render()
        self.passes += passes

    def mean(self) -> np.ndarray:
        """The light of each pixel, (width, height, 3), from the lower left."""
        return self.sum.to_numpy() / self.passes

    def picture(self) -> np.ndarray:
        """Bytes of red, green and blue, rows from above; exposed and encoded for screens."""
        light = np.flipud(self.mean().transpose(1, 0, 2))
        return (255 * (1.0 - np.exp(-1.4 * light)) ** (1 / 2.2)).astype(np.uint8)


def main() -> None:
    """200 paths a pixel."""
    ti.init(arch=ti.cpu, random_seed=1)
    box = Box(320, 320)
    box.run(200)
    print(f"{box.passes} paths a pixel, mean light {box.mean().mean():.3f}")

    from examples.photograph import save_png  # needs pillow

    print(f"look at {save_png(box.picture(), 'path_tracer.png')}")


if __name__ == "__main__":
    main()

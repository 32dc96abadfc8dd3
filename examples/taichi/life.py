"""Conway's Game of Life on a torus. A cell's colour says how many generations it has lived.

A dead cell with three live neighbours comes to life; a live one with two or three lives on.
"""

import numpy as np

import weft as ti

PATTERNS = {
    "glider": [".#.", "..#", "###"],
    "r-pentomino": [".##", "##.", ".#."],
    "acorn": [".#.....", "...#...", "##..###"],
    "glider gun": [
        "........................#...........",
        "......................#.#...........",
        "............##......##............##",
        "...........#...#....##............##",
        "##........#.....#...##..............",
        "##........#...#.##....#.#...........",
        "..........#.....#.......#...........",
        "...........#...#....................",
        "............##......................",
    ],
}
OLD = 24  # generations from which on a cell's colour stays


@ti.data_oriented
class Life:
    """A torus of ``rows`` x ``cols`` cells. ``age[i, j]``: generations a live cell has lived, from
    1 on; 0 where there is none."""

    def __init__(self, rows: int, cols: int):
        self.rows, self.cols = rows, cols
        self.age = ti.field(ti.i32, shape=(rows, cols))
        self.next = ti.field(ti.i32, shape=(rows, cols))
        self.trail = ti.field(ti.f32, shape=(rows, cols))  # 1 where there is life, then it fades
        self.image = ti.Vector.field(3, ti.f32, shape=(rows, cols))
        self.population = ti.field(ti.i32, shape=())

    def put(self, name: str, row: int, col: int) -> None:
        """Puts a pattern's upper left corner to (row, col)."""
        for i, line in enumerate(PATTERNS[name]):
            for j, cell in enumerate(line):
                if cell == "#":
                    self.age[(row + i) % self.rows, (col + j) % self.cols] = 1

    @ti.kernel
    def scatter(self, share: ti.f32):
        """Life at random places, about ``share`` of all."""
        for i, j in self.age:
            self.age[i, j] = ti.cast(ti.random(ti.f32) < share, ti.i32)

    @ti.func
    def neighbours(self, i, j):
        alive = 0
        for di, dj in ti.static(ti.ndrange((-1, 2), (-1, 2))):
            if self.age[(i + di) % self.rows, (j + dj) % self.cols] > 0:
                alive += ti.static(int(di != 0 or dj != 0))  # not the cell itself
        return alive

    @ti.kernel
    def generation(self):
        for i, j in self.age:
            alive = self.neighbours(i, j)
            age = self.age[i, j]
            lives = alive == 3 or (alive == 2 and age > 0)
            self.next[i, j] = ti.select(lives, age + 1, 0)
        for i, j in self.age:
            self.age[i, j] = self.next[i, j]

    @ti.kernel
    def census(self) -> ti.i32:
        alive = 0
        for i, j in self.age:
            if self.age[i, j] > 0:
                alive += 1
        return alive

    @ti.kernel
    def paint(self):
        young = ti.Vector([1.0, 0.9, 0.35])
        old = ti.Vector([0.15, 0.45, 0.95])
        ground = ti.Vector([0.02, 0.03, 0.05])
        for i, j in self.age:
            age = self.age[i, j]
            self.trail[i, j] = ti.select(age > 0, 1.0, 0.93 * self.trail[i, j])
            if age > 0:
                share = ti.min(age - 1, OLD) / OLD
                self.image[i, j] = (1.0 - share) * young + share * old
            else:
                faded = self.trail[i, j] ** 2
                self.image[i, j] = ground + faded * ti.Vector([0.25, 0.08, 0.22])

    def run(self, generations: int) -> None:
        for _ in range(generations):
            self.generation()
            self.paint()
        self.population[None] = self.census()

    def picture(self) -> np.ndarray:
        """Red, green and blue as bytes, (rows, cols, 3)."""
        return (255 * self.image.to_numpy()).clip(0, 255).astype(np.uint8)


def main() -> None:
    """A gun, an acorn and chance, after 300 generations."""
    ti.init(arch=ti.cpu, random_seed=1)
    world = Life(240, 320)
    world.scatter(0.08)
    world.put("glider gun", 20, 20)
    world.put("acorn", 160, 200)
    world.put("r-pentomino", 80, 240)
    world.run(300)
    print(f"{world.population[None]} cells are alive")

    from examples.photograph import save_png  # needs pillow

    print(f"look at {save_png(world.picture(), 'life.png')}")


if __name__ == "__main__":
    main()

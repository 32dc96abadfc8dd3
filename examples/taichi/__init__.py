"""Programs in Taichi's vocabulary: Taichi runs them, too, where their import says ``taichi``.

| | |
| --- | --- |
| `dam_break` | a column of water that falls: smoothed particles, a grid of neighbours |
| `heat_source` | where was it hot? initial temperatures from final ones, by gradients of a tape |
| `life` | the Game of Life on a torus, cells coloured by their age |
| `path_tracer` | light in a box with a mirror and a glass ball |

``python -m examples.taichi.dam_break`` computes and writes a picture to ``out/``. Each module has a
class with fields and kernels; a size and a number type make one.
"""

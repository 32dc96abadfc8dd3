"""Kernels to read, run and copy. Each module has ``main()``: ``python -m examples.brick_wall``.

| module | what |
| --- | --- |
| ``brick_wall``, ``causal_conv``, ``demo`` | the kernels of "Accelerate PyTorch with Taichi" |
| ``life_of_a_kernel`` | the kernels of "Life of a Taichi Kernel" |
| ``gallery`` | small kernels, forward only |
| ``softmax``, ``layer_norm`` | rows, and the gradients of all inputs |
| ``wkv`` | RWKV's recurrence: values carried through a run-time loop |
| ``language_model`` | a character model with wkv as its mixing layer, trained in half a minute |
| ``grid_sample`` | subscripts that depend on data |
| ``bilateral`` | a filter on a photograph, whose widths are learnt |
| ``spring`` | masses and springs, found from their swings through a thousand time steps |
| ``taichi.dam_break`` and others | whole programs in Taichi's vocabulary |

``photograph`` and ``beside`` are what these have in common.
"""

"""A real photograph to work on, and PNG files to look at.

The photograph is the portrait of Rear Admiral Grace Hopper (public domain, US Navy) that matplotlib
ships for its own examples, so that nothing has to be downloaded or kept in this repository.
"""

from pathlib import Path
from typing import Any

import matplotlib.cbook
import numpy as np
import torch
from PIL import Image

OUT = Path("out")


def photograph() -> torch.Tensor:
    """The portrait: uint8 of shape (600, 512, 3), red green blue."""
    path = matplotlib.cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)
    with Image.open(path) as image:
        return torch.from_numpy(np.array(image.convert("RGB")))


def save_png(image: torch.Tensor | np.ndarray[Any, Any], name: str) -> Path:
    """Write ``image`` (uint8, shape (height, width, 3)) to ``out/<name>`` and return the path."""
    OUT.mkdir(exist_ok=True)
    path = OUT / name
    Image.fromarray(np.asarray(image)).save(path)
    return path


def pack(image: torch.Tensor) -> torch.Tensor:
    """One int32 a pixel from uint8 (height, width, 3): the bytes red, green, blue, 255."""
    alpha = torch.full_like(image[..., :1], 255)
    return torch.cat([image, alpha], dim=2).view(torch.int32).squeeze(2)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """The inverse of `pack`: uint8 of shape (height, width, 3)."""
    return packed.contiguous().view(torch.uint8).view(*packed.shape, 4)[..., :3].contiguous()

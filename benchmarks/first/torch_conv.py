"""``torch.compile`` of conv1d; the cache's place is ``TORCHINDUCTOR_CACHE_DIR``."""

import torch
import torch.nn.functional as F


@torch.compile
def conv(w: torch.Tensor, k: torch.Tensor, eps: float, out: torch.Tensor) -> None:
    channels, length = w.shape
    padded = F.pad(k, (length - 1, 0))
    out.copy_(eps + F.conv1d(padded, w.unsqueeze(1), groups=channels))

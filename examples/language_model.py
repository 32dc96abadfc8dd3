"""A small character language model that mixes time with RWKV's wkv, trained on Python's own help.

Two blocks of RWKV-4 (time-mix and channel-mix, each after a layer norm); the time-mix calls the
loop of ``examples.wkv``, whose gradient is derived. ``python -m examples.language_model`` compares
the gradients of all parameters with the same model over PyTorch's wkv, trains, and writes some
text.
"""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.beside import milliseconds, relative_error
from examples.wkv import torch_wkv, wkv

CHANNELS, LAYERS, TIME, BATCH, ROUNDS = 96, 2, 64, 16, 300
Wkv = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def text() -> str:
    """Python's help topics, as ``help("LOOPING")`` prints them: 0.5 million characters."""
    from pydoc_data.topics import topics  # one large dict

    return "\n".join(topics.values())


def shifted(x: Tensor, weight: Tensor) -> Tensor:
    """Each channel as a mixture of now (``weight``) and the step before, of ``x`` (B, T, C)."""
    before = F.pad(x, (0, 0, 1, -1))
    return before + weight * (x - before)


class TimeMix(nn.Module):
    """RWKV's counterpart of attention. ``mix`` is the function that computes wkv."""

    def __init__(self, channels: int, mix: Wkv) -> None:
        super().__init__()
        self.mix = mix
        self.weights = nn.Parameter(torch.rand(3, channels))
        self.decay = nn.Parameter(torch.linspace(-5, 2, channels))
        self.bonus = nn.Parameter(torch.zeros(channels))
        self.key, self.value, self.gate, self.out = (
            nn.Linear(channels, channels, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        key, value, gate = (shifted(x, weight) for weight in self.weights)
        mean = self.mix(-self.decay.exp(), self.bonus, self.key(key), self.value(value))
        return self.out(self.gate(gate).sigmoid() * mean)


class ChannelMix(nn.Module):
    """RWKV's counterpart of the feed-forward layer."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.rand(2, channels))
        self.key = nn.Linear(channels, 3 * channels, bias=False)
        self.value = nn.Linear(3 * channels, channels, bias=False)
        self.gate = nn.Linear(channels, channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        key, gate = (shifted(x, weight) for weight in self.weights)
        return self.gate(gate).sigmoid() * self.value(self.key(key).relu().square())


class LanguageModel(nn.Module):
    """Characters (B, T) to logits of the next ones (B, T, ``characters``)."""

    def __init__(self, characters: int, channels: int, layers: int, mix: Wkv) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, channels)
        self.mixes = nn.ModuleList()
        for _ in range(layers):
            self.mixes += [TimeMix(channels, mix), ChannelMix(channels)]
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(2 * layers + 1))
        self.head = nn.Linear(channels, characters)

    def forward(self, characters: Tensor) -> Tensor:
        x = self.embedding(characters)
        for norm, mix in zip(self.norms, self.mixes, strict=False):
            x = x + mix(norm(x))
        return self.head(self.norms[-1](x))

    def loss(self, characters: Tensor) -> Tensor:
        """Mean cross-entropy, in nats, of each character after the first of (B, T)."""
        logits = self(characters[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), characters[:, 1:].flatten())


def model_of(characters: int, mix: Wkv) -> LanguageModel:
    """A model of the size of this example with the same parameters each time."""
    torch.manual_seed(0)
    return LanguageModel(characters, CHANNELS, LAYERS, mix)


def gradients(model: LanguageModel, batch: Tensor) -> dict[str, Tensor]:
    """The gradient of the loss with respect to every parameter, by name."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(model.loss(batch), parameters), strict=True))


def compare(characters: int, batch: Tensor) -> dict[str, tuple[float, float]]:
    """For every parameter, how far the gradients with weft's wkv and with PyTorch's are from those
    with PyTorch's in float64."""
    exact = gradients(model_of(characters, torch_wkv).double(), batch)
    mine = gradients(model_of(characters, wkv), batch)
    theirs = gradients(model_of(characters, torch_wkv), batch)
    return {
        name: (relative_error(mine[name], g), relative_error(theirs[name], g))
        for name, g in exact.items()
    }


def train(model: LanguageModel, data: Tensor, rounds: int) -> list[float]:
    """Adam on random pieces of ``data``; gives the losses."""
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, rounds)
    generator = torch.Generator().manual_seed(1)
    losses = []
    begin = time.perf_counter()
    for step in range(rounds):
        starts = torch.randint(len(data) - TIME - 1, (BATCH, 1), generator=generator)
        loss = model.loss(data[starts + torch.arange(TIME + 1)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % (rounds // 6) == 0 or step == rounds - 1:
            print(f"round {step:4}: loss {loss.item():.3f}, {time.perf_counter() - begin:.1f} s")
    return losses


@torch.no_grad()
def write(model: LanguageModel, start: Tensor, count: int) -> Tensor:
    """``count`` more characters after ``start``, drawn as the model finds them likely."""
    generator = torch.Generator().manual_seed(2)
    found = start
    for _ in range(count):
        likely = (model(found[None, -TIME:])[0, -1] / 0.7).softmax(0)
        found = torch.cat([found, torch.multinomial(likely, 1, generator=generator)])
    return found


def main() -> None:
    """Compare the gradients, time a step, train, and write."""
    corpus = text()
    alphabet = sorted(set(corpus))
    number = {character: k for k, character in enumerate(alphabet)}
    data = torch.tensor([number[character] for character in corpus])
    batch = data[: BATCH * (TIME + 1)].view(BATCH, TIME + 1)

    errors = compare(len(alphabet), batch)
    mine, theirs = max(a for a, _ in errors.values()), max(b for _, b in errors.values())
    print(f"gradients of {len(errors)} parameters, largest distance from PyTorch in float64:")
    print(f"  with weft's wkv {mine:.0e}, with PyTorch's {theirs:.0e}")
    assert mine < 1e-3, errors
    for name, mix in (("weft's", wkv), ("PyTorch's", torch_wkv)):
        model = model_of(len(alphabet), mix)
        times = [milliseconds(lambda m=model: m.loss(batch).backward()) for _ in range(4)]
        print(f"  forward and backward with {name} wkv: {min(times):.3g} ms")

    print(f"{len(corpus)} characters, {len(alphabet)} different; B={BATCH} T={TIME} C={CHANNELS}")
    model = model_of(len(alphabet), wkv)
    losses = train(model, data, ROUNDS)
    assert sum(losses[-10:]) / 10 < 0.7 * losses[0]
    written = write(model, data[:TIME], 300)[TIME:]
    print("".join(alphabet[k] for k in written.tolist()))


if __name__ == "__main__":
    main()

"""The three networks in PyTorch: they say what is right."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fault_corpus.data import CHARACTERS, LENGTH


class Normalised(nn.Module):
    """What the grey levels of an image become first: mean and deviation belong to the network."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((1, channels, 1, 1), 0.45))
        self.register_buffer("deviation", torch.full((1, channels, 1, 1), 0.3))

    def forward(self, image: Tensor) -> Tensor:
        """Return normalised images, same shape."""
        return (image - self.mean) / self.deviation


class LeNet(nn.Module):
    """Two convolutions with padding and without, average pools, two dense layers: image (N, 1, 16, 16) to (N, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.normalise = Normalised(1)
        self.c1 = nn.Conv2d(1, 6, 5, padding=2)
        self.s2 = nn.AvgPool2d(2)
        self.c3 = nn.Conv2d(6, 16, 3)
        self.s4 = nn.AvgPool2d(2)
        self.f5 = nn.Linear(144, 64)
        self.f6 = nn.Linear(64, 64)
        self.output = nn.Linear(64, 10)

    def forward(self, image: Tensor) -> Tensor:
        """Return logits."""
        maps = self.s2(torch.relu(self.c1(self.normalise(image))))
        maps = self.s4(torch.relu(self.c3(maps)))
        features = torch.relu(self.f5(torch.flatten(maps, 1)))
        logits: Tensor = self.output(torch.relu(self.f6(features)))
        return logits


class Block(nn.Module):
    """A basic block of a ResNet, with a convolution on its skip where the size changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.down = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, maps: Tensor) -> Tensor:
        """Return new maps."""
        found = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(maps)))))
        return torch.relu(found + self.down(maps))


class Residual(nn.Module):
    """A small ResNet with an auxiliary head: image (N, 3, 16, 16) to logits and aux, each (N, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.normalise = Normalised(3)
        self.stem = nn.Conv2d(3, 12, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(12)
        self.one = Block(12, 12, 1)
        self.two = Block(12, 24, 2)
        self.three = Block(24, 24, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(24, 10)
        self.aux = nn.Linear(24, 10)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits, and those of the auxiliary head."""
        maps = self.two(self.one(torch.relu(self.bn(self.stem(self.normalise(image))))))
        aux = self.aux(torch.flatten(self.pool(maps), 1))
        features = self.drop(torch.flatten(self.pool(self.three(maps)), 1))
        logits: Tensor = self.fc(features)
        return logits, aux


class Attention(nn.Module):
    """Self-attention with four heads; padding is not looked at."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.width = width

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        """Return what each place found elsewhere; `hidden` is added to the scores."""
        q, k, v = (part(x).reshape(-1, LENGTH, 4, self.width // 4).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = torch.matmul(q, k.transpose(2, 3)) * (self.width // 4) ** -0.5 + hidden
        mixed = torch.matmul(torch.softmax(scores, dim=-1), v)
        found: Tensor = self.out(mixed.transpose(1, 2).reshape(-1, LENGTH, self.width))
        return found


class Layer(nn.Module):
    """One layer of a transformer, normalised before each part."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.gelu = nn.GELU()
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        """Return new features."""
        x = x + self.attention(self.norm1(x), hidden)
        more: Tensor = x + self.drop(self.down(self.gelu(self.up(self.norm2(x)))))
        return more


class Transformer(nn.Module):
    """Which kind of text it is: ids (N, 32), 0 for padding, to logits (N, 3)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(CHARACTERS, width)
        self.places = nn.Parameter(torch.randn(LENGTH, width) * 0.1)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 3)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits."""
        shown = (ids != 0).to(torch.float32)
        hidden = (1.0 - shown)[:, None, None, :] * -10000.0
        x = self.words(ids) + self.places
        for layer in self.layers:
            x = layer(x, hidden)
        x = self.norm(x) * shown[:, :, None]
        logits: Tensor = self.head(x.sum(dim=1) / shown.sum(dim=1, keepdim=True))
        return logits

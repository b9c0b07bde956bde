"""LeNet-5 after LeCun et al., "Gradient-based learning applied to document recognition" (1998).

Layers carry the paper's names: c for a convolution, s for a subsampling, f for a fully connected layer, and the
number of its place. Two things are of today: ReLU instead of a scaled tanh, and plain averages as subsampling.
"""

from __future__ import annotations

import torch
from torch import nn


class LeNet(nn.Module):
    """Tell handwritten digits apart: images of shape (N, 1, 28, 28) in, logits of shape (N, 10) out."""

    def __init__(self) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(1, 6, kernel_size=5, padding=2)
        self.s2 = nn.AvgPool2d(2)
        self.c3 = nn.Conv2d(6, 16, kernel_size=5)
        self.s4 = nn.AvgPool2d(2)
        self.c5 = nn.Conv2d(16, 120, kernel_size=5)
        self.f6 = nn.Linear(120, 84)
        self.output = nn.Linear(84, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """
        Return the logits of each digit.

        Args:
            image: Normalised grey images, float32, shape (N, 1, 28, 28); `train.normalise` makes them.

        Returns:
            Logits, float32, shape (N, 10); the largest is the digit.
        """
        maps = self.s2(torch.relu(self.c1(image)))
        maps = self.s4(torch.relu(self.c3(maps)))
        features = torch.flatten(torch.relu(self.c5(maps)), 1)
        logits: torch.Tensor = self.output(torch.relu(self.f6(features)))
        return logits


def lenet() -> LeNet:
    """Return an untrained LeNet; `modelreg register --reference model.py:lenet` loads the weights into it."""
    return LeNet()

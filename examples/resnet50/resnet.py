"""ResNets in plain PyTorch, after He et al., "Deep Residual Learning for Image Recognition" (2015).

Parameters carry torchvision's names and the arithmetic is torchvision's (the stride of a bottleneck is in its 3x3
convolution), so that state dicts published for torchvision load and give the same logits. Only the ReLUs do not work
in place: what a hook sees stays as it was.
"""

from __future__ import annotations

import torch
from torch import nn

CLASSES = 1000


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut; the block of ResNet-18."""

    expansion = 1

    def __init__(self, inplanes: int, planes: int, *, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = downsample

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Return maps of shape (N, planes, H / stride, W / stride)."""
        shortcut = maps if self.downsample is None else self.downsample(maps)
        branch = self.relu(self.bn1(self.conv1(maps)))
        branch = self.bn2(self.conv2(branch))
        added: torch.Tensor = self.relu(branch + shortcut)
        return added


class Bottleneck(nn.Module):
    """A 1x1, a 3x3 and a 1x1 convolution beside a shortcut; the block of ResNet-50."""

    expansion = 4

    def __init__(self, inplanes: int, planes: int, *, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, planes * self.expansion, kernel_size=1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes * self.expansion)
        self.relu = nn.ReLU()
        self.downsample = downsample

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Return maps of shape (N, 4 * planes, H / stride, W / stride)."""
        shortcut = maps if self.downsample is None else self.downsample(maps)
        branch = self.relu(self.bn1(self.conv1(maps)))
        branch = self.relu(self.bn2(self.conv2(branch)))
        branch = self.bn3(self.conv3(branch))
        added: torch.Tensor = self.relu(branch + shortcut)
        return added


class ResNet(nn.Module):
    """Tell 1,000 classes apart: images of shape (N, 3, H, W) in, logits of shape (N, 1000) out."""

    def __init__(self, block: type[BasicBlock | Bottleneck], depths: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        widths = [64, *(planes * block.expansion for planes in (64, 128, 256, 512))]
        self.layer1 = _stage(block, widths[0], 64, depths[0], stride=1)
        self.layer2 = _stage(block, widths[1], 128, depths[1], stride=2)
        self.layer3 = _stage(block, widths[2], 256, depths[2], stride=2)
        self.layer4 = _stage(block, widths[3], 512, depths[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(widths[4], CLASSES)

    def features(self, image: torch.Tensor) -> torch.Tensor:
        """Return what the last layer goes by, float32, shape (N, 512 or 2048)."""
        maps = self.maxpool(self.relu(self.bn1(self.conv1(image))))
        maps = self.layer4(self.layer3(self.layer2(self.layer1(maps))))
        return torch.flatten(self.avgpool(maps), 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """
        Return the logits of each class.

        Args:
            image: Normalised RGB images, float32, shape (N, 3, H, W), sides of 33 pixels or more; `images.normalise`
                makes them.

        Returns:
            Logits, float32, shape (N, 1000).
        """
        logits: torch.Tensor = self.fc(self.features(image))
        return logits


def _stage(
    block: type[BasicBlock | Bottleneck], inplanes: int, planes: int, depth: int, *, stride: int
) -> nn.Sequential:
    """Return the blocks of one size; the first changes size and width, and its shortcut with it."""
    width = planes * block.expansion
    shortcut = None
    if stride != 1 or inplanes != width:
        shortcut = nn.Sequential(nn.Conv2d(inplanes, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width))
    first = block(inplanes, planes, stride=stride, downsample=shortcut)
    return nn.Sequential(first, *(block(width, planes, stride=1, downsample=None) for _ in range(depth - 1)))


def resnet18() -> ResNet:
    """Return a ResNet-18 without weights; `modelreg register --reference resnet.py:resnet18` loads some into it."""
    return ResNet(BasicBlock, (2, 2, 2, 2))


def resnet50() -> ResNet:
    """Return a ResNet-50 without weights; `modelreg register --reference resnet.py:resnet50` loads some into it."""
    return ResNet(Bottleneck, (3, 4, 6, 3))

"""What networks to compare on are built of (beyond.py, further.py)."""

import torch
import torchvision
from torch import nn

vision = torchvision.models
image = lambda size=224: [torch.randn(1, 3, size, size)]


class Residual(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return x + self.layers(x)


class Turn(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2)


def encoder(width, heads, layers):
    return nn.Sequential(*[nn.TransformerEncoderLayer(width, heads, 4 * width, activation="gelu",
                                                      batch_first=True, norm_first=True)
                           for _ in range(layers)])


def conv_silu(i, o, kernel=1, stride=1):
    return nn.Sequential(nn.Conv2d(i, o, kernel, stride, kernel // 2, bias=False),
                         nn.BatchNorm2d(o), nn.SiLU())


class Recurrent(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


class Unlabelled(nn.Module):
    """A segmentation network's result without its name."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network(x)["out"]


def untrained(make):
    return Unlabelled(make(weights=None, weights_backbone=None))

"""The networks of bench/training.py, as torch modules, and how they are trained.

    build/peers/bin/python bench/peers/training_networks.py FOLDER [NAME…]

writes FOLDER/NAME/model.onnx with seeded weights, and a batch: NPY files of every input and of
`target`. The ONNX initializers have the names of the module's parameters, so that both sides start
from the same values; `heddle.network` in the model's metadata is the name.

To add one: write a function that returns a `Network` and put it into `NETWORKS`.
"""

import dataclasses
import io
import math
import pathlib
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


@dataclasses.dataclass
class Network:
    module: nn.Module
    inputs: dict  # name -> batch
    target: torch.Tensor  # classes
    optimizer: str = "adamw"
    rate: float = 1e-4


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x):
        n, tokens, width = x.shape
        q, k, v = (f(x).view(n, tokens, self.heads, width // self.heads).transpose(1, 2)
                   for f in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(n, tokens, width))


class Block(nn.Module):
    """A transformer's layer, normalised behind (BERT) or before (ViT) its halves."""

    def __init__(self, width, heads, inner, before):
        super().__init__()
        self.before = before
        self.attention = Attention(width, heads)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        if self.before:
            x = x + self.attention(self.norm1(x))
            return x + self.down(F.gelu(self.up(self.norm2(x))))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    def __init__(self, layers, width, heads, words, tokens, classes):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(tokens, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(Block(width, heads, 4 * width, False) for _ in range(layers))
        self.pooler, self.classifier = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, ids):
        x = self.norm(self.words(ids) + self.places.weight)
        for layer in self.layers:
            x = layer(x)
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


class Vit(nn.Module):
    def __init__(self, layers, width, heads, size, patch, classes):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, width))
        self.layers = nn.ModuleList(Block(width, heads, 4 * width, True) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


class Residual(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.short = None
        if stride != 1 or before != after:
            self.short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False),
                                       nn.BatchNorm2d(after))

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + (x if self.short is None else self.short(x)))


class Resnet18(nn.Module):
    """For images of 32×32: the first convolution is 3×3, nothing is pooled before the blocks."""

    def __init__(self, classes):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
        widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
        self.blocks = nn.Sequential(*(Residual(a, b, 1 if a == b else 2)
                                      for a, b in zip(widths, widths[1:])))
        self.head = nn.Linear(512, classes)

    def forward(self, image):
        x = self.blocks(F.relu(self.norm(self.conv(image))))
        return self.head(x.mean((2, 3)))


class GraphConvolutions(nn.Module):
    """Kipf & Welling 2017 on a list of edges: messages are gathered, weighted and added up."""

    def __init__(self, features, hidden, classes):
        super().__init__()
        self.layer1, self.layer2 = nn.Linear(features, hidden), nn.Linear(hidden, classes)

    @staticmethod
    def spread(x, source, sink, weight):
        messages = x[source] * weight[:, None]
        return torch.zeros_like(x).scatter_add(0, sink[:, None].expand_as(messages), messages)

    def forward(self, x, source, sink, weight):
        x = F.relu(self.spread(self.layer1(x), source, sink, weight))
        return self.spread(self.layer2(x), source, sink, weight)


def images(count, size):
    return {"image": torch.randn(count, 3, size, size)}


def classes(count, of):
    return torch.randint(0, of, (count,))


def bert_mini(batch=8, tokens=128):
    return Network(Bert(4, 256, 4, 30522, tokens, 8),
                   {"ids": torch.randint(0, 30522, (batch, tokens))}, classes(batch, 8))


def vit_tiny(batch=4):
    return Network(Vit(12, 192, 3, 224, 16, 100), images(batch, 224), classes(batch, 100))


def resnet18(batch=16):
    return Network(Resnet18(10), images(batch, 32), classes(batch, 10), "momentum", 1e-3)


def gcn(nodes=8192, edges=65536, features=256, hidden=128, of=16):
    inputs = {"x": torch.randn(nodes, features), "source": classes(edges, nodes),
              "sink": classes(edges, nodes), "weight": torch.rand(edges) / math.sqrt(edges / nodes)}
    return Network(GraphConvolutions(features, hidden, of), inputs, classes(nodes, of), "adam", 1e-3)


def mlp(batch=256):
    module = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(),
                           nn.Linear(1024, 10))
    return Network(module, {"x": torch.randn(batch, 784)}, classes(batch, 10), "adamw")


class Bottleneck(nn.Module):
    def __init__(self, before, inner, stride):
        super().__init__()
        after = 4 * inner
        sizes = [(before, inner, 1, 1), (inner, inner, 3, stride), (inner, after, 1, 1)]
        self.convs = nn.ModuleList(nn.Conv2d(a, b, k, s, k // 2, bias=False) for a, b, k, s in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _, b, _, _ in sizes)
        self.short = None
        if stride != 1 or before != after:
            self.short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False),
                                       nn.BatchNorm2d(after))

    def forward(self, x):
        y = x
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms)):
            y = norm(conv(y))
            y = F.relu(y) if i < 2 else y
        return F.relu(y + (x if self.short is None else self.short(x)))


class Resnet50(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        blocks, before = [], 64
        for inner, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for i in range(count):
                blocks.append(Bottleneck(before, inner, stride if i == 0 else 1))
                before = 4 * inner
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(before, classes)

    def forward(self, image):
        x = F.max_pool2d(F.relu(self.norm(self.conv(image))), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3)))


def bert_base(batch=16, tokens=512):
    return Network(Bert(12, 768, 12, 30522, tokens, 8),
                   {"ids": torch.randint(0, 30522, (batch, tokens))}, classes(batch, 8))


def vit_b16(batch=32):
    return Network(Vit(12, 768, 12, 224, 16, 1000), images(batch, 224), classes(batch, 1000))


def resnet50(batch=64):
    return Network(Resnet50(1000), images(batch, 224), classes(batch, 1000), "momentum", 1e-3)


NETWORKS = {"bert-mini": bert_mini, "vit-tiny": vit_tiny, "resnet18": resnet18, "gcn": gcn, "mlp": mlp,
            "bert-base": bert_base, "vit-b16": vit_b16, "resnet50": resnet50}


def make(name):
    torch.manual_seed(0)
    network = NETWORKS[name]()
    with torch.no_grad():  # equal ones would be merged by the exporter
        for parameter in network.module.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    return network


def write(name, folder):
    import onnx

    network = make(name)
    buffer = io.BytesIO()
    torch.onnx.export(network.module, tuple(network.inputs.values()), buffer, dynamo=False,
                      opset_version=17, input_names=list(network.inputs), output_names=["scores"],
                      training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
    model = onnx.load_from_string(buffer.getvalue())
    onnx.helper.set_model_props(model, {"heddle.network": name})
    folder = pathlib.Path(folder, name)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    for port, value in {**network.inputs, "target": network.target}.items():
        np.save(folder / f"{port}.npy", value.numpy())


if __name__ == "__main__":
    for chosen in sys.argv[2:] or NETWORKS:
        write(chosen, sys.argv[1])

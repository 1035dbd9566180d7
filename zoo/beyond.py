"""Exports networks that no schedule was searched for, to compare on: `python zoo/beyond.py DIR`.

With PyTorch and torchvision (`bench/setup_peers.sh`): torchvision's own, and what is built like
networks in use: a decoder with grouped queries, a diffusion U-Net, Whisper's encoder, YOLOv8's
blocks, wav2vec's features, and so on (and further.py).  Weights are random, of seed 0.  Writes
DIR/NAME/model.onnx, where it is missing.
"""

import pathlib
import sys
import warnings

import torch
from torch import nn
from torch.nn import functional as F

import further
from blocks import Recurrent, Residual, Turn, conv_silu, encoder, image, untrained, vision


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class DecoderLayer(nn.Module):
    """Grouped queries, rotary positions, SwiGLU; with `past`, one step on keys and values."""

    def __init__(self, width=512, heads=8, groups=2, hidden=1408):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        line = lambda i, o: nn.Linear(i, o, bias=False)
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.q, self.o = line(width, width), line(width, width)
        self.k, self.v = line(width, groups * self.size), line(width, groups * self.size)
        self.gate, self.up, self.down = line(width, hidden), line(width, hidden), line(hidden, width)

    def rotated(self, x, first):
        half = self.size // 2
        angle = torch.arange(first, first + x.shape[2]).float()[:, None] * torch.pow(
            10000.0, -torch.arange(0, self.size, 2).float() / self.size)
        cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def split(self, x, heads):
        return x.view(x.shape[0], x.shape[1], heads, self.size).transpose(1, 2)

    def forward(self, x, past=None):
        y = self.norm1(x)
        first = past.shape[3] if past is not None else 0
        q = self.rotated(self.split(self.q(y), self.heads), first)
        k = self.rotated(self.split(self.k(y), self.groups), first)
        v = self.split(self.v(y), self.groups)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        repeat = lambda t: t[:, :, None].expand(
            -1, -1, self.heads // self.groups, -1, -1).reshape(
                t.shape[0], self.heads, t.shape[2], self.size)
        scores = q @ repeat(k).transpose(-1, -2) / self.size**0.5
        if past is None:
            scores = scores + torch.full(scores.shape[-2:], float("-inf")).triu(1)
        heads = torch.softmax(scores, -1) @ repeat(v)
        x = x + self.o(heads.transpose(1, 2).reshape(x.shape))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)), k, v


class Decoder(nn.Module):
    def __init__(self, layers, **sizes):
        super().__init__()
        self.layers = nn.ModuleList([DecoderLayer(**sizes) for _ in range(layers)])

    def forward(self, x, past=None):
        kept = []
        for i, layer in enumerate(self.layers):
            x, k, v = layer(x, past[i] if past is not None else None)
            kept += [k, v]
        return (x, *kept) if past is not None else x


class DiffusionBlock(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, i), nn.GroupNorm(32, o)
        self.conv1, self.conv2 = nn.Conv2d(i, o, 3, padding=1), nn.Conv2d(o, o, 3, padding=1)
        self.time = nn.Linear(320, o)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class ImageAttention(nn.Module):
    def __init__(self, channels, heads=8):
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(32, channels)
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x):
        b, c, h, w = x.shape
        y = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = [z.view(b, h * w, self.heads, -1).transpose(1, 2) for z in self.qkv(y).chunk(3, -1)]
        y = torch.softmax(q @ k.transpose(-1, -2) * (c // self.heads)**-0.5, -1) @ v
        return x + self.out(y.transpose(1, 2).reshape(b, h * w, c)).transpose(1, 2).view(b, c, h, w)


class DiffusionUNet(nn.Module):
    def __init__(self):
        super().__init__()
        conv = lambda i, o, **how: nn.Conv2d(i, o, 3, padding=1, **how)
        self.begin, self.down, self.up, self.end = (conv(4, 160), conv(160, 320, stride=2),
                                                    conv(320, 160), conv(160, 4))
        self.blocks = nn.ModuleList([DiffusionBlock(160, 160), DiffusionBlock(320, 320),
                                     DiffusionBlock(320, 160)])
        self.attend = nn.ModuleList([ImageAttention(160), ImageAttention(320)])

    def forward(self, x, t):
        high = self.attend[0](self.blocks[0](self.begin(x), t))
        low = self.attend[1](self.blocks[1](self.down(high), t))
        low = self.up(F.interpolate(low, scale_factor=2.0, mode="nearest"))
        return self.end(F.silu(self.blocks[2](torch.cat([low, high], 1), t)))


class WhisperEncoder(nn.Module):
    def __init__(self, width=384):
        super().__init__()
        self.convs = nn.Sequential(nn.Conv1d(80, width, 3, padding=1), nn.GELU(),
                                   nn.Conv1d(width, width, 3, stride=2, padding=1), nn.GELU())
        self.places, self.layers = nn.Parameter(torch.randn(500, width)), encoder(width, 6, 2)

    def forward(self, x):
        return self.layers(self.convs(x).transpose(1, 2) + self.places)


class C2f(nn.Module):
    def __init__(self, width, count):
        super().__init__()
        half = width // 2
        self.begin, self.end = conv_silu(width, width), conv_silu((2 + count) * half, width)
        self.inner = nn.ModuleList([Residual(conv_silu(half, half, 3), conv_silu(half, half, 3))
                                    for _ in range(count)])

    def forward(self, x):
        parts = list(self.begin(x).chunk(2, 1))
        for layer in self.inner:
            parts.append(layer(parts[-1]))
        return self.end(torch.cat(parts, 1))


def yolo():
    layers = [conv_silu(3, 16, 3, 2)]
    for width, count in ((32, 1), (64, 2), (128, 2), (256, 1)):
        layers += [conv_silu(width // 2, width, 3, 2), C2f(width, count)]
    return nn.Sequential(*layers)


def wav2vec():
    layers, channels = [], 1
    for i, (kernel, stride) in enumerate([(10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2)]):
        layers += [nn.Conv1d(channels, 256, kernel, stride)]
        layers += [nn.GroupNorm(256, 256)] if i == 0 else []
        layers, channels = layers + [nn.GELU()], 256
    return nn.Sequential(*layers)


def large_filters(channels=96):
    layers = [nn.Conv2d(3, channels, 4, 4)]
    for kernel in (31, 13):
        layers.append(Residual(nn.BatchNorm2d(channels), nn.Conv2d(channels, channels, 1), nn.ReLU(),
                               nn.Conv2d(channels, channels, kernel, padding=kernel // 2,
                                         groups=channels), nn.ReLU(),
                               nn.Conv2d(channels, channels, 1)))
    return nn.Sequential(*layers)


def separable_speech(channels=256):
    layers = [nn.Conv1d(64, channels, 33, stride=2, padding=16), nn.ReLU()]
    for kernel in (33, 39, 51, 63, 75):
        layers.append(Residual(nn.Conv1d(channels, channels, kernel, padding=kernel // 2,
                                         groups=channels), nn.Conv1d(channels, channels, 1),
                               nn.BatchNorm1d(channels), nn.ReLU()))
    return nn.Sequential(*layers)


def super_resolution(width=48):
    blocks = [Residual(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
                       nn.Conv2d(width, width, 3, padding=1)) for _ in range(6)]
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *blocks,
                         nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2),
                         nn.Conv2d(width, 3, 3, padding=1))


def video():
    return nn.Sequential(nn.Conv3d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool3d((1, 2, 2)),
                         nn.Conv3d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2),
                         nn.Conv3d(64, 128, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool3d(1))


def mixer(width=256, places=196):
    layers = [nn.Conv2d(3, width, 16, 16), nn.Flatten(2)]
    body = [nn.Sequential(Residual(nn.LayerNorm(width),
                                   Turn(), nn.Linear(places, 384), nn.GELU(),
                                   nn.Linear(384, places), Turn()),
                          Residual(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                                   nn.Linear(4 * width, width))) for _ in range(4)]
    return nn.Sequential(*layers, Turn(), *body)


rand = torch.randn
NETWORKS = {
    "resnet18": lambda: (vision.resnet18(), image()),
    "resnext50": lambda: (vision.resnext50_32x4d(), image()),
    "regnet-800m": lambda: (vision.regnet_y_800mf(), image()),
    "mobilenetv3": lambda: (vision.mobilenet_v3_large(), image()),
    "efficientnetv2-s": lambda: (vision.efficientnet_v2_s(), image()),
    "convnext-tiny": lambda: (vision.convnext_tiny(), image()),
    "maxvit-tiny": lambda: (vision.maxvit_t(), image()),
    "swinv2-tiny": lambda: (vision.swin_v2_t(), image(256)),
    "deeplabv3": lambda: (untrained(vision.segmentation.deeplabv3_mobilenet_v3_large), image()),
    "bert-512": lambda: (encoder(768, 12, 2), [rand(1, 512, 768)]),
    "bert-2048": lambda: (encoder(768, 12, 1), [rand(1, 2048, 768)]),
    "bert-batch8": lambda: (encoder(384, 6, 3), [rand(8, 64, 384)]),
    "llama-128": lambda: (Decoder(4), [rand(1, 128, 512)]),
    "llama-512": lambda: (Decoder(2), [rand(1, 512, 512)]),
    "llama-2048": lambda: (Decoder(1), [rand(1, 2048, 512)]),
    "llama-step": lambda: (Decoder(4), [rand(1, 1, 512), rand(4, 2, 1, 2, 255, 64)]),
    "diffusion-unet": lambda: (DiffusionUNet(), [rand(1, 4, 32, 32), rand(1, 320)]),
    "whisper": lambda: (WhisperEncoder(), [rand(1, 80, 1000)]),
    "wav2vec": lambda: (wav2vec(), [rand(1, 1, 16000)]),
    "yolov8-backbone": lambda: (yolo(), image(320)),
    "large-filters": lambda: (large_filters(), image()),
    "separable-speech": lambda: (separable_speech(), [rand(1, 64, 600)]),
    "super-resolution": lambda: (super_resolution(), image(96)),
    "video": lambda: (video(), [rand(1, 3, 8, 56, 56)]),
    "gru": lambda: (Recurrent(nn.GRU(256, 256, 2, batch_first=True)), [rand(1, 50, 256)]),
    "lstm-batch16": lambda: (Recurrent(nn.LSTM(64, 128, batch_first=True)), [rand(16, 50, 64)]),
    "mixer": lambda: (mixer(), image()),
    "mlp-batch256": lambda: (nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.LayerNorm(1024),
                                           nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)),
                             [rand(256, 512)]),
    **further.NETWORKS,
}


def main(folder, names):
    torch.backends.mha.set_fastpath_enabled(False)
    warnings.simplefilter("ignore")
    if unknown := set(names) - set(NETWORKS):
        raise SystemExit(f"zoo/beyond.py: no network {', '.join(sorted(unknown))}, "
                         f"want {', '.join(NETWORKS)}")
    for name in names or NETWORKS:
        path = pathlib.Path(folder, name)
        if (path / "model.onnx").exists():
            continue
        torch.manual_seed(0)
        network, inputs = NETWORKS[name]()
        path.mkdir(parents=True, exist_ok=True)
        with torch.no_grad():
            torch.onnx.export(network.eval(), tuple(inputs), path / "model.onnx", opset_version=17,
                              dynamo=False, input_names=[f"x{i}" for i in range(len(inputs))])
        print(path / "model.onnx", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

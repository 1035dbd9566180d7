"""Further networks beyond the zoo (beyond.py): of speech, images, volumes, points and tables."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from blocks import Recurrent, Residual, Turn, conv_silu, encoder, image, untrained, vision


class Upsample(nn.Module):
    def forward(self, x):
        return F.interpolate(x, scale_factor=2.0, mode="nearest")


class VolumeUNet(nn.Module):
    """Two levels of a 3-D U-Net with instance norms."""

    def __init__(self, width=16):
        super().__init__()
        conv = lambda i, o: [nn.Conv3d(i, o, 3, padding=1), nn.InstanceNorm3d(o, affine=True),
                             nn.LeakyReLU(0.01)]
        block = lambda i, o: nn.Sequential(*conv(i, o), *conv(o, o))
        self.pool, self.out = nn.MaxPool3d(2), nn.Conv3d(width, 3, 1)
        self.down = nn.ModuleList([block(1, width), block(width, 2 * width),
                                   block(2 * width, 4 * width)])
        self.up = nn.ModuleList([nn.ConvTranspose3d(4 * width, 2 * width, 2, 2),
                                 nn.ConvTranspose3d(2 * width, width, 2, 2)])
        self.join = nn.ModuleList([block(4 * width, 2 * width), block(2 * width, width)])

    def forward(self, x):
        high = self.down[0](x)
        middle = self.down[1](self.pool(high))
        y = self.up[0](self.down[2](self.pool(middle)))
        y = self.up[1](self.join[0](torch.cat([y, middle], 1)))
        return self.out(self.join[1](torch.cat([y, high], 1)))


class ConformerLayer(nn.Module):
    def __init__(self, width=256, heads=4, kernel=31):
        super().__init__()
        feed = lambda: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(),
                                     nn.Linear(4 * width, width))
        self.before, self.after, self.end = feed(), feed(), nn.LayerNorm(width)
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.convs = nn.Sequential(
            nn.LayerNorm(width), Turn(), nn.Conv1d(width, 2 * width, 1), nn.GLU(1),
            nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width),
            nn.BatchNorm1d(width), nn.SiLU(), nn.Conv1d(width, width, 1), Turn())

    def forward(self, x):
        x = x + 0.5 * self.before(x)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.convs(x)
        return self.end(x + 0.5 * self.after(x))


class Ghost(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        layer = lambda i, **how: nn.Sequential(nn.Conv2d(i, o // 2, **how), nn.BatchNorm2d(o // 2),
                                               nn.ReLU())
        self.primary = layer(i, kernel_size=1)
        self.cheap = layer(o // 2, kernel_size=3, padding=1, groups=o // 2)

    def forward(self, x):
        y = self.primary(x)
        return torch.cat([y, self.cheap(y)], 1)


def ghost():
    layers, channels = [nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU()], 16
    for width, count in ((24, 2), (40, 2), (80, 4), (160, 3)):
        layers += [nn.Conv2d(channels, width, 3, 2, 1, groups=math.gcd(channels, width)),
                   nn.BatchNorm2d(width)]
        layers += [Residual(Ghost(width, 4 * width), Ghost(4 * width, width))
                   for _ in range(count)]
        channels = width
    return nn.Sequential(*layers)


class MobileViTBlock(nn.Module):
    def __init__(self, channels=96, width=144, layers=2):
        super().__init__()
        self.width = width
        self.local = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.SiLU(),
                                   nn.Conv2d(channels, width, 1))
        self.layers, self.back = encoder(width, 4, layers), conv_silu(width, channels)
        self.join = conv_silu(2 * channels, channels, 3)

    def forward(self, x):
        b, _, h, w = x.shape
        patches = h * w // 4  # of two by two places
        y = self.local(x).reshape(b * self.width, h // 2, 2, w // 2, 2).permute(0, 1, 3, 2, 4)
        y = y.reshape(b, self.width, patches, 4).permute(0, 3, 2, 1)
        y = self.layers(y.reshape(b * 4, patches, self.width))
        y = y.reshape(b, 4, patches, self.width).permute(0, 3, 2, 1)
        y = y.reshape(b * self.width, h // 2, w // 2, 2, 2).permute(0, 1, 3, 2, 4)
        return self.join(torch.cat([x, self.back(y.reshape(b, self.width, h, w))], 1))


class QueryDecoder(nn.Module):
    """DETR's: a hundred queries of an image's features."""

    def __init__(self, width=256):
        super().__init__()
        layer = nn.TransformerDecoderLayer(width, 8, 2048, batch_first=True)
        self.decoder, self.classes = nn.TransformerDecoder(layer, 3), nn.Linear(width, 92)
        self.queries = nn.Parameter(torch.randn(1, 100, width))

    def forward(self, memory):
        return self.classes(self.decoder(self.queries, memory))


class GatedConv(nn.Module):
    """WaveNet's causal layer."""

    def __init__(self, channels, dilation):
        super().__init__()
        self.dilation = dilation
        self.filter = nn.Conv1d(channels, 2 * channels, 3, dilation=dilation)
        self.out = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        a, b = self.filter(F.pad(x, (2 * self.dilation, 0))).chunk(2, 1)
        return x + self.out(torch.tanh(a) * torch.sigmoid(b))


class DenseBlock(nn.Module):
    """ESRGAN's."""

    def __init__(self, width=32, growth=16):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(width + i * growth, growth if i < 4 else width, 3,
                                              padding=1) for i in range(5)])

    def forward(self, x):
        parts = [x]
        for conv in self.convs[:4]:
            parts.append(F.leaky_relu(conv(torch.cat(parts, 1)), 0.2))
        return x + 0.2 * self.convs[4](torch.cat(parts, 1))


def esrgan(width=32):
    conv = lambda i, o: nn.Conv2d(i, o, 3, padding=1)
    larger = [Upsample(), conv(width, width), nn.LeakyReLU(0.2)]
    return nn.Sequential(conv(3, width), *[DenseBlock(width) for _ in range(4)], *larger, *larger,
                         conv(width, 3))


class ChannelNorm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x):
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Halves(nn.Module):
    def forward(self, x):
        a, b = x.chunk(2, 1)
        return a * b


class ChannelAttention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        return x * self.conv(x.mean((2, 3), keepdim=True))


def nafnet(width=32):
    def block(c):
        return nn.Sequential(
            Residual(ChannelNorm(c), nn.Conv2d(c, 2 * c, 1),
                     nn.Conv2d(2 * c, 2 * c, 3, padding=1, groups=2 * c), Halves(),
                     ChannelAttention(c), nn.Conv2d(c, c, 1)),
            Residual(ChannelNorm(c), nn.Conv2d(c, 2 * c, 1), Halves(), nn.Conv2d(c, c, 1)))

    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), block(width),
                         nn.Conv2d(width, 2 * width, 2, 2), block(2 * width), block(2 * width),
                         nn.Conv2d(2 * width, 4 * width, 1), nn.PixelShuffle(2), block(width),
                         nn.Conv2d(width, 3, 3, padding=1))


class DilatedBlock(nn.Module):
    """HiFi-GAN's."""

    def __init__(self, channels, kernel):
        super().__init__()
        conv = lambda dilation: nn.Conv1d(channels, channels, kernel, dilation=dilation,
                                          padding=dilation * (kernel - 1) // 2)
        self.layers = nn.Sequential(*[Residual(nn.LeakyReLU(0.1), conv(d), nn.LeakyReLU(0.1),
                                               conv(1)) for d in (1, 3, 5)])

    def forward(self, x):
        return self.layers(x)


class Mean(nn.Module):
    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x):
        return sum(part(x) for part in self.parts) / len(self.parts)


def hifigan(channels=128):
    layers = [nn.Conv1d(80, channels, 7, padding=3)]
    for rate in (8, 8, 2):
        half = channels // 2
        layers += [nn.LeakyReLU(0.1),
                   nn.ConvTranspose1d(channels, half, 2 * rate, rate, padding=rate // 2),
                   Mean(DilatedBlock(half, 3), DilatedBlock(half, 7))]
        channels = half
    return nn.Sequential(*layers, nn.LeakyReLU(), nn.Conv1d(channels, 1, 7, padding=3), nn.Tanh())


class PoolMixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = nn.AvgPool2d(3, 1, 1, count_include_pad=False)

    def forward(self, x):
        return self.pool(x) - x


def poolformer():
    layers, channels = [nn.Conv2d(3, 64, 7, 4, 2)], 64
    for width, count in ((64, 2), (128, 2), (320, 4), (512, 2)):
        layers += [nn.Conv2d(channels, width, 3, 2, 1)] if width != channels else []
        for _ in range(count):
            layers += [Residual(nn.GroupNorm(1, width), PoolMixer()),
                       Residual(nn.GroupNorm(1, width), nn.Conv2d(width, 4 * width, 1), nn.GELU(),
                                nn.Conv2d(4 * width, width, 1))]
        channels = width
    return nn.Sequential(*layers)


class RadianceField(nn.Module):
    """NeRF's: points to colours and densities."""

    def __init__(self, width=256):
        super().__init__()
        layer = lambda i: [nn.Linear(i, width), nn.ReLU()]
        self.begin = nn.Sequential(*layer(63), *layer(width), *layer(width), *layer(width))
        self.end = nn.Sequential(*layer(width + 63), *layer(width), nn.Linear(width, 4))

    def forward(self, x):
        waves = [f(x * 2.0**i) for i in range(10) for f in (torch.sin, torch.cos)]
        places = torch.cat([x, *waves], -1)
        return self.end(torch.cat([self.begin(places), places], -1))


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        layers = lambda *widths: nn.Sequential(*[
            nn.Sequential(nn.Conv1d(i, o, 1), nn.BatchNorm1d(o), nn.ReLU())
            for i, o in zip(widths, widths[1:])])
        self.begin, self.all = layers(3, 64, 64), layers(64, 64, 128, 1024)
        self.end = nn.Sequential(layers(1088, 512, 256, 128), nn.Conv1d(128, 13, 1))

    def forward(self, x):
        points = self.begin(x)
        shape = self.all(points).max(2, keepdim=True)[0]
        return self.end(torch.cat([points, shape.expand(-1, -1, x.shape[2])], 1))


class TextReader(nn.Module):
    """Convolutions and an LSTM in both directions over a line of text (CRNN)."""

    def __init__(self):
        super().__init__()
        conv = lambda i, o: [nn.Conv2d(i, o, 3, padding=1), nn.ReLU()]
        self.convs = nn.Sequential(*conv(1, 64), nn.MaxPool2d(2), *conv(64, 128), nn.MaxPool2d(2),
                                   *conv(128, 256), *conv(256, 256), nn.MaxPool2d((2, 1)),
                                   *conv(256, 512), nn.MaxPool2d((2, 1)),
                                   nn.Conv2d(512, 512, (2, 1)))
        self.lstm = Recurrent(nn.LSTM(512, 256, bidirectional=True, batch_first=True))
        self.letters = nn.Linear(512, 37)

    def forward(self, x):
        return self.letters(self.lstm(self.convs(x).squeeze(2).transpose(1, 2)))


class TwoResolutions(nn.Module):
    """HRNet's exchange."""

    def __init__(self, width=32):
        super().__init__()
        conv = lambda c: [nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c)]
        block = lambda c: [Residual(*conv(c), nn.ReLU(), *conv(c)), nn.ReLU()]
        self.high = nn.Sequential(*block(width), *block(width))
        self.low = nn.Sequential(*block(2 * width), *block(2 * width))
        self.up = nn.Sequential(nn.Conv2d(2 * width, width, 1), Upsample())
        self.down = nn.Conv2d(width, 2 * width, 3, 2, 1)

    def forward(self, x):
        high, low = self.high(x[0]), self.low(x[1])
        return F.relu(high + self.up(low)), F.relu(low + self.down(high))


class HRNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(),
                                  nn.Conv2d(width, width, 3, 2, 1), nn.ReLU())
        self.low, self.out = nn.Conv2d(width, 2 * width, 3, 2, 1), nn.Conv2d(3 * width, 17, 1)
        self.body = nn.Sequential(*[TwoResolutions(width) for _ in range(3)])

    def forward(self, x):
        high = self.stem(x)
        high, low = self.body((high, self.low(high)))
        low = F.interpolate(low, scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.out(torch.cat([high, low], 1))


class TableTransformer(nn.Module):
    """A token for each column of a table (FT-Transformer)."""

    def __init__(self, columns=24, width=96):
        super().__init__()
        self.weight, self.bias = [nn.Parameter(torch.randn(columns, width)) for _ in range(2)]
        self.layers, self.out = encoder(width, 8, 2), nn.Linear(width, 1)

    def forward(self, x):
        return self.out(self.layers(x[..., None] * self.weight + self.bias)[:, 0])


def image_decoder(channels=128):
    """A diffusion model's, from latents to an image."""
    conv = lambda i, o: nn.Conv2d(i, o, 3, padding=1)
    norm = lambda c: [nn.GroupNorm(32, c), nn.SiLU()]
    return nn.Sequential(conv(4, channels), Residual(*norm(channels), conv(channels, channels),
                                                     *norm(channels), conv(channels, channels)),
                         Upsample(), conv(channels, channels), *norm(channels), conv(channels, 64),
                         Upsample(), conv(64, 64), *norm(64), conv(64, 3))


rand = torch.randn
NETWORKS = {
    "vgg16": lambda: (vision.vgg16_bn(), image()),
    "googlenet": lambda: (vision.googlenet(init_weights=False, aux_logits=False), image()),
    "regnet-3g": lambda: (vision.regnet_y_3_2gf(), image()),
    "lraspp": lambda: (untrained(vision.segmentation.lraspp_mobilenet_v3_large), image(256)),
    "r2plus1d": lambda: (vision.video.r2plus1d_18(), [rand(1, 3, 8, 56, 56)]),
    "s3d": lambda: (vision.video.s3d(), [rand(1, 3, 16, 224, 224)]),
    "volume-unet": lambda: (VolumeUNet(), [rand(1, 1, 32, 64, 64)]),
    "conformer": lambda: (nn.Sequential(*[ConformerLayer() for _ in range(4)]),
                          [rand(1, 200, 256)]),
    "ghostnet": lambda: (ghost(), image()),
    "mobilevit": lambda: (nn.Sequential(conv_silu(3, 16, 3, 2), conv_silu(16, 32, 3, 2),
                                        conv_silu(32, 64, 3, 2), conv_silu(64, 96),
                                        MobileViTBlock(), MobileViTBlock()), image(256)),
    "detr-decoder": lambda: (QueryDecoder(), [rand(1, 625, 256)]),
    "wavenet": lambda: (nn.Sequential(nn.Conv1d(1, 64, 1), *[GatedConv(64, 2**(i % 8))
                                                             for i in range(16)],
                                      nn.ReLU(), nn.Conv1d(64, 256, 1)), [rand(1, 1, 4000)]),
    "esrgan": lambda: (esrgan(), image(64)),
    "nafnet": lambda: (nafnet(), image(128)),
    "hifigan": lambda: (hifigan(), [rand(1, 80, 64)]),
    "poolformer": lambda: (poolformer(), image()),
    "nerf": lambda: (RadianceField(), [rand(4096, 3)]),
    "pointnet": lambda: (PointNet(), [rand(1, 3, 2048)]),
    "crnn": lambda: (TextReader(), [rand(1, 1, 32, 128)]),
    "hrnet": lambda: (HRNet(), image(256)),
    "table-transformer": lambda: (TableTransformer(), [rand(64, 24)]),
    "image-decoder": lambda: (image_decoder(), [rand(1, 4, 32, 32)]),
}

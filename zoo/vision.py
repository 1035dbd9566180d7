"""Detectors, segmenters and generators of the zoo that no package holds in an exportable form."""

import torch
from torch import nn


class ConvNorm(nn.Sequential):
    """Convolution, batch norm, activation."""

    def __init__(self, cin, cout, kernel=1, stride=1, groups=1, act=nn.SiLU):
        super().__init__(nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups,
                                   bias=False),
                         nn.BatchNorm2d(cout), act())


class Depthwise(nn.Sequential):
    def __init__(self, cin, cout, kernel=3, stride=1):
        super().__init__(ConvNorm(cin, cin, kernel, stride, groups=cin), ConvNorm(cin, cout))


class Bottleneck(nn.Module):
    def __init__(self, channels, shortcut, second):
        super().__init__()
        self.body = nn.Sequential(ConvNorm(channels, channels), second(channels, channels))
        self.shortcut = shortcut

    def forward(self, x):
        return x + self.body(x) if self.shortcut else self.body(x)


class CrossStage(nn.Module):
    """Half of the channels pass `count` bottlenecks, the other half goes past them."""

    def __init__(self, cin, cout, count, shortcut=True, second=Depthwise):
        super().__init__()
        half = cout // 2
        self.first, self.past = ConvNorm(cin, half), ConvNorm(cin, half)
        self.body = nn.Sequential(*[Bottleneck(half, shortcut, second) for _ in range(count)])
        self.last = ConvNorm(2 * half, cout)

    def forward(self, x):
        return self.last(torch.cat([self.body(self.first(x)), self.past(x)], 1))


class SpatialPyramid(nn.Module):
    def __init__(self, cin, cout, act=nn.SiLU):
        super().__init__()
        self.first = ConvNorm(cin, cin // 2, act=act)
        self.pools = nn.ModuleList([nn.MaxPool2d(k, 1, k // 2) for k in (5, 9, 13)])
        self.last = ConvNorm(2 * cin, cout, act=act)

    def forward(self, x):
        x = self.first(x)
        return self.last(torch.cat([x] + [pool(x) for pool in self.pools], 1))


class Focus(nn.Module):
    def __init__(self, cout):
        super().__init__()
        self.conv = ConvNorm(12, cout, 3)

    def forward(self, x):
        return self.conv(torch.cat([x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2],
                                    x[..., 1::2, 1::2]], 1))


class YoloxHead(nn.Module):
    def __init__(self, cin, width, classes):
        super().__init__()
        self.stem = ConvNorm(cin, width)
        self.classes = nn.Sequential(Depthwise(width, width), Depthwise(width, width),
                                     nn.Conv2d(width, classes, 1))
        self.boxes = nn.Sequential(Depthwise(width, width), Depthwise(width, width))
        self.box, self.object = nn.Conv2d(width, 4, 1), nn.Conv2d(width, 1, 1)

    def forward(self, x):
        x = self.stem(x)
        boxes = self.boxes(x)
        return torch.cat([self.box(boxes), self.object(boxes).sigmoid(),
                          self.classes(x).sigmoid()], 1).flatten(2)


class YoloxNano(nn.Module):
    """YOLOX-nano (Ge et al. 2021): depthwise CSPDarknet, path aggregation, decoupled heads; the
    boxes are decoded on the grid."""

    def __init__(self, size, classes=80):
        super().__init__()
        w = [16, 32, 64, 128, 256]
        self.stem = Focus(w[0])
        self.dark2 = nn.Sequential(Depthwise(w[0], w[1], 3, 2), CrossStage(w[1], w[1], 1))
        self.dark3 = nn.Sequential(Depthwise(w[1], w[2], 3, 2), CrossStage(w[2], w[2], 3))
        self.dark4 = nn.Sequential(Depthwise(w[2], w[3], 3, 2), CrossStage(w[3], w[3], 3))
        self.dark5 = nn.Sequential(Depthwise(w[3], w[4], 3, 2), SpatialPyramid(w[4], w[4]),
                                   CrossStage(w[4], w[4], 1, False))
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.lateral5, self.fuse4 = ConvNorm(256, 128), CrossStage(256, 128, 1, False)
        self.lateral4, self.fuse3 = ConvNorm(128, 64), CrossStage(128, 64, 1, False)
        self.down3, self.out4 = Depthwise(64, 64, 3, 2), CrossStage(128, 128, 1, False)
        self.down4, self.out5 = Depthwise(128, 128, 3, 2), CrossStage(256, 256, 1, False)
        self.heads = nn.ModuleList([YoloxHead(c, 64, classes) for c in (64, 128, 256)])
        grids, strides = [], []
        for stride in (8, 16, 32):
            n = size // stride
            y, x = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
            grids.append(torch.stack([x, y], -1).reshape(-1, 2).float())
            strides.append(torch.full((n * n, 1), float(stride)))
        self.register_buffer("grid", torch.cat(grids)[None], persistent=False)
        self.register_buffer("stride", torch.cat(strides)[None], persistent=False)

    def forward(self, image):
        c3 = self.dark3(self.dark2(self.stem(image)))
        c4 = self.dark4(c3)
        p5 = self.lateral5(self.dark5(c4))
        p4 = self.lateral4(self.fuse4(torch.cat([self.up(p5), c4], 1)))
        n3 = self.fuse3(torch.cat([self.up(p4), c3], 1))
        n4 = self.out4(torch.cat([self.down3(n3), p4], 1))
        n5 = self.out5(torch.cat([self.down4(n4), p5], 1))
        out = torch.cat([h(x) for h, x in zip(self.heads, (n3, n4, n5))], 2).permute(0, 2, 1)
        return torch.cat([(out[..., :2] + self.grid) * self.stride,
                          out[..., 2:4].exp() * self.stride, out[..., 4:]], -1)


class MishConv(ConvNorm):
    def __init__(self, cin, cout, kernel=1, stride=1):
        super().__init__(cin, cout, kernel, stride, act=nn.Mish)


class LeakyConv(ConvNorm):
    def __init__(self, cin, cout, kernel=1, stride=1):
        super().__init__(cin, cout, kernel, stride, act=lambda: nn.LeakyReLU(0.1))


class DarkBlock(nn.Module):
    def __init__(self, channels, hidden):
        super().__init__()
        self.body = nn.Sequential(MishConv(channels, hidden), MishConv(hidden, channels, 3))

    def forward(self, x):
        return x + self.body(x)


class DarkStage(nn.Module):
    def __init__(self, cin, cout, count):
        super().__init__()
        inner = cout if count == 1 else cout // 2
        self.down = MishConv(cin, cout, 3, 2)
        self.past, self.first = MishConv(cout, inner), MishConv(cout, inner)
        self.body = nn.Sequential(*[DarkBlock(inner, cin if count == 1 else inner)
                                    for _ in range(count)], MishConv(inner, inner))
        self.last = MishConv(2 * inner, cout)

    def forward(self, x):
        x = self.down(x)
        return self.last(torch.cat([self.body(self.first(x)), self.past(x)], 1))


def five(cin, mid):
    return nn.Sequential(LeakyConv(cin, mid), LeakyConv(mid, 2 * mid, 3), LeakyConv(2 * mid, mid),
                         LeakyConv(mid, 2 * mid, 3), LeakyConv(2 * mid, mid))


class Yolov4(nn.Module):
    """YOLOv4 (Bochkovskiy et al. 2020): CSPDarknet53 with Mish, spatial pyramid pooling, path
    aggregation; the three raw prediction maps."""

    def __init__(self, classes=80):
        super().__init__()
        self.stem = MishConv(3, 32, 3)
        self.stages = nn.ModuleList([DarkStage(32, 64, 1), DarkStage(64, 128, 2),
                                     DarkStage(128, 256, 8), DarkStage(256, 512, 8),
                                     DarkStage(512, 1024, 4)])
        self.before = nn.Sequential(LeakyConv(1024, 512), LeakyConv(512, 1024, 3),
                                    LeakyConv(1024, 512))
        self.pools = nn.ModuleList([nn.MaxPool2d(k, 1, k // 2) for k in (13, 9, 5)])
        self.after = nn.Sequential(LeakyConv(2048, 512), LeakyConv(512, 1024, 3),
                                   LeakyConv(1024, 512))
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.to4, self.lateral4, self.fuse4 = LeakyConv(512, 256), LeakyConv(512, 256), five(512, 256)
        self.to3, self.lateral3, self.fuse3 = LeakyConv(256, 128), LeakyConv(256, 128), five(256, 128)
        self.down3, self.out4 = LeakyConv(128, 256, 3, 2), five(512, 256)
        self.down4, self.out5 = LeakyConv(256, 512, 3, 2), five(1024, 512)
        self.heads = nn.ModuleList([nn.Sequential(LeakyConv(c, 2 * c, 3),
                                                  nn.Conv2d(2 * c, 3 * (5 + classes), 1))
                                    for c in (128, 256, 512)])

    def forward(self, image):
        x, levels = self.stem(image), []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        x = self.before(x)
        p5 = self.after(torch.cat([pool(x) for pool in self.pools] + [x], 1))
        p4 = self.fuse4(torch.cat([self.lateral4(levels[3]), self.up(self.to4(p5))], 1))
        p3 = self.fuse3(torch.cat([self.lateral3(levels[2]), self.up(self.to3(p4))], 1))
        n4 = self.out4(torch.cat([self.down3(p3), p4], 1))
        n5 = self.out5(torch.cat([self.down4(n4), p5], 1))
        return tuple(head(x) for head, x in zip(self.heads, (p3, n4, n5)))


class UNet(nn.Module):
    """U-Net (Ronneberger et al. 2015) with padded convolutions and batch norm, half its width."""

    def __init__(self, classes=2, width=32, depth=4):
        super().__init__()
        relu = lambda a, b: nn.Sequential(ConvNorm(a, b, 3, act=nn.ReLU), ConvNorm(b, b, 3, act=nn.ReLU))
        sizes = [width << i for i in range(depth + 1)]
        self.down = nn.ModuleList([relu(a, b) for a, b in zip([3] + sizes, sizes)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(2 * s, s, 2, 2) for s in sizes[-2::-1]])
        self.fuse = nn.ModuleList([relu(2 * s, s) for s in sizes[-2::-1]])
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, image):
        x, kept = image, []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else nn.functional.max_pool2d(x, 2))
            kept.append(x)
        for up, fuse, skip in zip(self.up, self.fuse, kept[-2::-1]):
            x = fuse(torch.cat([skip, up(x)], 1))
        return self.last(x)


def dcgan_generator(latent=100, width=64):
    """The generator of Radford et al. 2016, 64² pixels."""
    layers, cin = [], latent
    for i, cout in enumerate((8 * width, 4 * width, 2 * width, width)):
        layers += [nn.ConvTranspose2d(cin, cout, 4, 1 if i == 0 else 2, 0 if i == 0 else 1,
                                      bias=False), nn.BatchNorm2d(cout), nn.ReLU()]
        cin = cout
    return nn.Sequential(*layers, nn.ConvTranspose2d(cin, 3, 4, 2, 1, bias=False), nn.Tanh())

"""The networks of the zoo, as torch modules.  Used by export.py alone.

To add one: write a function that returns a `Network` and put it into `NETWORKS`; run
`export.py NAME`; list it in README.md.
"""

import dataclasses

import torch
from torch import nn


@dataclasses.dataclass
class Network:
    module: nn.Module
    inputs: dict  # name -> example tensor; the names become the graph's
    outputs: list  # names of the graph's outputs
    specs: dict  # input name -> how materialise.py makes it, see make_input there


def image_network(module, size, outputs, spec=None):
    return Network(module, {"image": torch.randn(1, 3, size, size)}, outputs,
                   {"image": spec or {"kind": "normal"}})


def timm_classifier(name):
    import timm

    timm.layers.set_fused_attn(False)  # attention as the matmuls and softmax that it is
    return image_network(timm.create_model(name, pretrained=False, exportable=True), 224, ["logits"])


class SentenceEncoder(nn.Module):
    """BERT with the mean pooling and unit norm that sentence-transformers puts behind MiniLM."""

    def __init__(self, bert):
        super().__init__()
        self.bert = bert

    def forward(self, input_ids, attention_mask, token_type_ids):
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask,
                           token_type_ids=token_type_ids).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return hidden, nn.functional.normalize(mean, p=2.0, dim=1)


class TextEncoder(nn.Module):
    def __init__(self, bert):
        super().__init__()
        self.bert = bert

    def forward(self, input_ids, attention_mask, token_type_ids):
        out = self.bert(input_ids=input_ids, attention_mask=attention_mask,
                        token_type_ids=token_type_ids)
        return out.last_hidden_state, out.pooler_output


def bert(tokens, wrapper, outputs, pooling, **config):
    from transformers import BertConfig, BertModel

    config = BertConfig(attn_implementation="eager", **config)
    module = wrapper(BertModel(config, add_pooling_layer=pooling))
    ids = torch.randint(0, config.vocab_size, (1, tokens))
    return Network(
        module,
        {"input_ids": ids, "attention_mask": torch.ones_like(ids),
         "token_type_ids": torch.zeros_like(ids)},
        outputs,
        {"input_ids": {"kind": "tokens", "below": config.vocab_size},
         "attention_mask": {"kind": "mask", "padding": tokens // 8},
         "token_type_ids": {"kind": "segments", "first": tokens // 2}})


def bert_base():
    return bert(128, TextEncoder, ["last_hidden_state", "pooler_output"], True)


def minilm_l6():
    return bert(128, SentenceEncoder, ["last_hidden_state", "sentence_embedding"], False,
                hidden_size=384, num_hidden_layers=6, num_attention_heads=12,
                intermediate_size=1536)


class Logits(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, image):
        return self.module(pixel_values=image).logits


def segformer_b0():
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(num_labels=150, decoder_hidden_size=256)  # the defaults are B0
    return image_network(Logits(SegformerForSemanticSegmentation(config)), 512, ["logits"])


class StyleConv(nn.Module):
    """[nearest upsample], reflection pad, convolution, [instance norm, ReLU]."""

    def __init__(self, cin, cout, kernel, stride=1, upsample=1, norm=True, relu=True):
        super().__init__()
        self.upsample = upsample
        self.pad = nn.ReflectionPad2d(kernel // 2)
        self.conv = nn.Conv2d(cin, cout, kernel, stride)
        self.norm = nn.InstanceNorm2d(cout, affine=True) if norm else None
        self.relu = relu

    def forward(self, x):
        if self.upsample > 1:
            x = nn.functional.interpolate(x, scale_factor=self.upsample, mode="nearest")
        x = self.conv(self.pad(x))
        if self.norm is not None:
            x = self.norm(x)
        return torch.relu(x) if self.relu else x


class StyleResidual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = StyleConv(channels, channels, 3)
        self.second = StyleConv(channels, channels, 3, relu=False)

    def forward(self, x):
        return x + self.second(self.first(x))


def candy():
    """The image transformation network of Johnson et al. 2016 with instance norm and resize
    convolutions, as in the ONNX model zoo's 'candy'."""
    net = nn.Sequential(
        StyleConv(3, 32, 9), StyleConv(32, 64, 3, stride=2), StyleConv(64, 128, 3, stride=2),
        *[StyleResidual(128) for _ in range(5)],
        StyleConv(128, 64, 3, upsample=2), StyleConv(64, 32, 3, upsample=2),
        StyleConv(32, 3, 9, norm=False, relu=False))
    return image_network(net, 224, ["styled"], {"kind": "uniform", "low": 0.0, "high": 255.0})


def mlp():
    net = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(),
                        nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    return Network(net, {"x": torch.randn(1, 784)}, ["logits"], {"x": {"kind": "normal"}})


NETWORKS = {
    "resnet50": lambda: timm_classifier("resnet50"),
    "mobilenetv2": lambda: timm_classifier("mobilenetv2_100"),
    "bert-base": bert_base,
    "minilm-l6": minilm_l6,
    "vit-b16": lambda: timm_classifier("vit_base_patch16_224"),
    "segformer-b0": segformer_b0,
    "candy": candy,
    "mlp": mlp,
}

"""The networks of the zoo, as torch modules.  Used by export.py alone.

To add one: write a function that returns a `Network` and put it into `NETWORKS`; run
`export.py NAME`; list it in README.md.
"""

import dataclasses

import torch
from torch import nn

import text
import vision


@dataclasses.dataclass
class Network:
    module: nn.Module
    inputs: dict  # name -> example tensor; the names become the graph's
    outputs: list  # names of the graph's outputs
    specs: dict  # input name -> how materialise.py makes it, see make_input there


def image_network(module, size, outputs, spec=None):
    return Network(module, {"image": torch.randn(1, 3, size, size)}, outputs,
                   {"image": spec or {"kind": "normal"}})


def timm_classifier(name, size=224):
    import timm

    timm.layers.set_fused_attn(False)  # attention as the matmuls and softmax that it is
    return image_network(timm.create_model(name, pretrained=False, exportable=True), size,
                         ["logits"])


def torchvision_classifier(name):
    import torchvision

    return image_network(getattr(torchvision.models, name)(weights=None), 224, ["logits"])


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


def bert_large():
    return bert(128, TextEncoder, ["last_hidden_state", "pooler_output"], True, hidden_size=1024,
                num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)


class ClipText(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        out = self.model(input_ids=input_ids)
        return out.last_hidden_state, out.text_embeds


def clip_text():
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    # ViT-B/32's; token 49407 ends a text.
    config = CLIPTextConfig(attn_implementation="eager", eos_token_id=49407)
    tokens = 77
    return Network(ClipText(CLIPTextModelWithProjection(config)),
                   {"input_ids": torch.randint(0, 49406, (1, tokens))},
                   ["last_hidden_state", "text_embeds"],
                   {"input_ids": {"kind": "tokens", "below": 49406}})


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


def gpt2(past, steps, words=50257, **config):
    layers, heads, width = 12, 12, 64
    net = text.Gpt2(past, words, hidden=heads * width, layers=layers, heads=heads, **config)
    names = [f"{kind}_{i}" for i in range(layers) for kind in ("key", "value")]
    cache = {f"past_{n}": torch.randn(1, heads, past, width) for n in names} if past else {}
    return Network(net, {"input_ids": torch.randint(0, words, (1, steps)), **cache},
                   ["logits"] + [f"present_{n}" for n in names],
                   {"input_ids": {"kind": "tokens", "below": words},
                    **{n: {"kind": "normal"} for n in cache}})


def t5(decoder, width=512, layers=6, heads=8):
    from transformers import T5Config, T5Model

    model = T5Model(T5Config(vocab_size=32128, d_model=width, d_kv=64, d_ff=4 * width,
                             num_layers=layers, num_heads=heads, attn_implementation="eager"))
    tokens, steps = 128, 32
    mask = {"attention_mask": torch.ones(1, tokens, dtype=torch.int64)}
    padding = {"attention_mask": {"kind": "mask", "padding": 16}}
    ids = {"kind": "tokens", "below": 32128}
    if decoder:
        return Network(text.T5Decoder(model),
                       {"decoder_ids": torch.randint(0, 32128, (1, steps)),
                        "encoder_hidden": torch.randn(1, tokens, width), **mask}, ["logits"],
                       {"decoder_ids": ids, "encoder_hidden": {"kind": "normal"}, **padding})
    return Network(text.T5Encoder(model),
                   {"input_ids": torch.randint(0, 32128, (1, tokens)), **mask},
                   ["encoder_hidden"], {"input_ids": ids, **padding})


def dlrm():
    return Network(text.Dlrm(), {"dense": torch.rand(16, 13),
                                 "sparse": torch.randint(0, 10000, (16, 26))}, ["click"],
                   {"dense": {"kind": "uniform", "low": 0.0, "high": 1.0},
                    "sparse": {"kind": "tokens", "below": 10000}})


def lstm_tagger():
    return Network(text.Tagger(), {"words": torch.randint(0, 20000, (1, 24))}, ["tags"],
                   {"words": {"kind": "tokens", "below": 20000}})


def dcgan():
    return Network(vision.dcgan_generator(), {"z": torch.randn(1, 100, 1, 1)}, ["image"],
                   {"z": {"kind": "normal"}})


NETWORKS = {
    "resnet50": lambda: timm_classifier("resnet50"),
    "mobilenetv2": lambda: timm_classifier("mobilenetv2_100"),
    "bert-base": bert_base,
    "minilm-l6": minilm_l6,
    "vit-b16": lambda: timm_classifier("vit_base_patch16_224"),
    "segformer-b0": segformer_b0,
    "candy": candy,
    "mlp": mlp,
    "efficientnet-b0": lambda: timm_classifier("efficientnet_b0"),
    "efficientvit-b1": lambda: timm_classifier("efficientvit_b1"),
    "densenet121": lambda: timm_classifier("densenet121"),
    "inception-v3": lambda: timm_classifier("inception_v3", 299),
    "swin-t": lambda: timm_classifier("swin_tiny_patch4_window7_224"),
    "squeezenet": lambda: torchvision_classifier("squeezenet1_1"),
    "shufflenetv2": lambda: torchvision_classifier("shufflenet_v2_x1_0"),
    "yolox-nano": lambda: image_network(vision.YoloxNano(416), 416, ["predictions"]),
    "yolov4": lambda: image_network(vision.Yolov4(), 416, ["small", "medium", "large"]),
    "unet": lambda: image_network(vision.UNet(), 256, ["masks"]),
    "dcgan": dcgan,
    "gpt2-prefill": lambda: gpt2(0, 64),
    "gpt2-decode": lambda: gpt2(64, 1),
    "t5-encoder": lambda: t5(False),
    "t5-decoder": lambda: t5(True),
    "dlrm": dlrm,
    "lstm-tagger": lstm_tagger,
}

# Compared on GPUs alone: export.py puts them into large/, where nothing but large.py looks.
LARGE = {
    "bert-large": bert_large,
    "clip-text": clip_text,
    "t5-base-encoder": lambda: t5(False, 768, 12, 12),
    "t5-base-decoder": lambda: t5(True, 768, 12, 12),
    "opt-125m-decode": lambda: gpt2(64, 1, 50272, activation=nn.ReLU(), positions=2050, offset=2),
}

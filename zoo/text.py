"""Language and recommendation networks of the zoo in plain torch."""

import math

import torch
from torch import nn


class Gpt2Block(nn.Module):
    def __init__(self, hidden, heads, activation):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.fc, self.out = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.activation = activation

    def forward(self, x, past_key, past_value):
        batch, steps, hidden = x.shape
        split = lambda t: t.view(batch, steps, self.heads, hidden // self.heads).transpose(1, 2)
        q, k, v = (split(t) for t in self.qkv(self.norm1(x)).split(hidden, 2))
        if past_key is not None:
            k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
        scores = q @ k.transpose(2, 3) / math.sqrt(hidden // self.heads)
        if steps > 1:
            hidden_from = torch.ones(steps, k.shape[2], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden_from, float("-inf"))
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, steps, hidden)
        x = x + self.proj(y)
        return x + self.out(self.activation(self.fc(self.norm2(x)))), k, v


class Gpt2(nn.Module):
    """GPT-2 small (Radford et al. 2019). Prefill: tokens → logits of the last position and the
    cache. Decode: one token and the cache → the same. OPT (Zhang et al. 2022) is the same with ReLU
    and positions from 2."""

    def __init__(self, past, vocabulary=50257, hidden=768, layers=12, heads=12,
                 activation=nn.GELU(approximate="tanh"), positions=1024, offset=0):
        super().__init__()
        self.past, self.offset = past, offset
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(positions, hidden)
        self.blocks = nn.ModuleList([Gpt2Block(hidden, heads, activation) for _ in range(layers)])
        self.norm = nn.LayerNorm(hidden)

    def forward(self, ids, *cache):
        first = self.past + self.offset
        steps = torch.arange(first, first + ids.shape[1])
        x = self.tokens(ids) + self.positions(steps)
        present = []
        for i, block in enumerate(self.blocks):
            key, value = (cache[2 * i], cache[2 * i + 1]) if self.past else (None, None)
            x, key, value = block(x, key, value)
            present += [key, value]
        return (self.norm(x[:, -1:]) @ self.tokens.weight.T, *present)


class Dlrm(nn.Module):
    """DLRM (Naumov et al. 2019): 13 dense features, 26 categories, pairwise dot interaction."""

    def __init__(self, categories=26, rows=10000, width=64):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(rows, width) for _ in range(categories)])
        mlp = lambda *sizes: nn.Sequential(*[layer for a, b in zip(sizes, sizes[1:])
                                             for layer in (nn.Linear(a, b), nn.ReLU())])
        self.bottom = mlp(13, 512, 256, width)
        self.top = nn.Sequential(mlp(width + (categories + 1) * categories // 2, 512, 256),
                                 nn.Linear(256, 1), nn.Sigmoid())
        i, j = torch.tril_indices(categories + 1, categories + 1, -1)
        self.register_buffer("pairs", i * (categories + 1) + j, persistent=False)

    def forward(self, dense, sparse):
        x = self.bottom(dense)
        rows = torch.stack([x] + [t(sparse[:, i]) for i, t in enumerate(self.tables)], 1)
        dots = (rows @ rows.transpose(1, 2)).flatten(1)
        # Divided by √width: dot products of untrained embeddings have that spread.
        dots = dots.index_select(1, self.pairs) / math.sqrt(rows.shape[2])
        return self.top(torch.cat([x, dots], 1))


class Tagger(nn.Module):
    """A tag for each word (Huang et al. 2015): embeddings, two bidirectional LSTM layers, a linear
    layer; without the CRF on top."""

    def __init__(self, vocabulary=20000, width=100, hidden=100, tags=17):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, num_layers=2, bidirectional=True, batch_first=True)
        self.tags = nn.Linear(2 * hidden, tags)

    def forward(self, words):
        return self.tags(self.lstm(self.words(words))[0])


class T5Encoder(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.encoder = model.encoder

    def forward(self, input_ids, attention_mask):
        return self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


class T5Decoder(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.decoder, self.head = model.decoder, nn.Linear(model.config.d_model, 32128, bias=False)

    def forward(self, decoder_ids, encoder_hidden, attention_mask):
        hidden = self.decoder(input_ids=decoder_ids, encoder_hidden_states=encoder_hidden,
                              encoder_attention_mask=attention_mask, use_cache=False)
        return self.head(hidden.last_hidden_state)

"""Typical uses of `torch.nn` modules: recurrent layers, attention, embedding bags."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Tagger(nn.Module):
    """A bidirectional LSTM over ids [B, T]: tags [B, T, 5] and its last states."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 12)
        self.lstm = nn.LSTM(12, 10, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(20, 5)

    def forward(self, ids: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        out, states = self.lstm(self.embedding(ids))
        return self.head(F.relu(out)), states


class Forecaster(nn.Module):
    """A GRU over [B, T, 4] between linear layers with norms: [B, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Linear(4, 12), nn.LayerNorm(12), nn.GELU())
        self.gru = nn.GRU(12, 16, batch_first=True)
        self.mean, self.spread = nn.Linear(16, 3), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        last = self.gru(self.enter(x))[0][:, -1]
        return self.mean(last), F.softplus(self.spread(last))


class Unrolled(nn.Module):
    """An LSTM cell in a Python loop over [B, 4, 6], with attention over its states: [B, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(6, 10)
        self.query, self.head = nn.Linear(10, 10), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = (x.new_zeros(x.shape[0], 10), x.new_zeros(x.shape[0], 10))
        kept = []
        for step in x.unbind(1):
            state = self.cell(step, state)
            kept.append(state[0])
        memory = torch.stack(kept, dim=1)
        weights = torch.softmax(memory @ self.query(state[0])[:, :, None], dim=1)
        return self.head(torch.cat([(weights * memory).sum(1), state[0]], dim=-1))


class Translator(nn.Module):
    """`nn.Transformer` with its causal mask and a padding mask: ids [B, S], [B, T] to logits [B, T, 40]."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(40, 16), nn.Embedding(40, 16)
        self.transformer = nn.Transformer(16, 2, 2, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 40)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        padding = torch.zeros(source.shape).masked_fill(source == 0, float("-inf"))
        out = self.transformer(
            self.source(source),
            self.target(target),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return self.head(out)


class Encoder(nn.Module):
    """`nn.TransformerEncoder`, norm first, with a padding mask: [B, T, 16] to [B, 4]."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(16), enable_nested_tensor=False)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        out = self.encoder(x, src_key_padding_mask=padding)
        return self.head(out.masked_fill(padding[..., None], 0.0).sum(1) / (~padding).sum(1, keepdim=True))


class Attends(nn.Module):
    """`nn.MultiheadAttention` with other widths for keys and values, returning its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.MultiheadAttention(16, 4, batch_first=True)
        self.cross = nn.MultiheadAttention(16, 2, kdim=10, vdim=12, batch_first=True, add_bias_kv=True)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(x + self.own(x, x, x, need_weights=False)[0])
        out, weights = self.cross(x, keys, values)
        return x + out, weights


class Recommender(nn.Module):
    """DLRM (Naumov et al. 2019): numbers [B, 6] and ids [B, 3] to a probability [B]."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, width), nn.ReLU())
        self.tables = nn.ModuleList([nn.EmbeddingBag(30, width, mode="sum") for _ in range(3)])
        self.top = nn.Sequential(nn.Linear(width + 6, 16), nn.ReLU(), nn.Linear(16, 1))
        self.register_buffer("pairs", torch.tril_indices(4, 4, -1))

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        rows = torch.stack([dense, *(t(ids[:, i : i + 1]) for i, t in enumerate(self.tables))], dim=1)
        products = torch.bmm(rows, rows.transpose(1, 2))
        flat = products[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat([dense, flat], dim=1))).squeeze(-1)


class Autoencoder(nn.Module):
    """A convolutional variational autoencoder with noise as an input: images [B, 1, 16, 16] and [B, 6]."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 4, 2, 1), nn.BatchNorm2d(8), nn.LeakyReLU(0.1),
            nn.Conv2d(8, 16, 4, 2, 1), nn.InstanceNorm2d(16, affine=True), nn.ELU(), nn.Flatten(),
        )  # fmt: skip
        self.mean, self.spread = nn.Linear(256, 6), nn.Linear(256, 6)
        self.decoder = nn.Sequential(
            nn.Linear(6, 256), nn.Unflatten(1, (16, 4, 4)), nn.GroupNorm(2, 16), nn.Mish(),
            nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.BatchNorm2d(8), nn.SiLU(),
            nn.ConvTranspose2d(8, 1, 3, 2, 1, output_padding=1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, image: Tensor, noise: Tensor) -> dict[str, Tensor]:
        found = self.encoder(image)
        mean, spread = self.mean(found), self.spread(found)
        code = mean + noise * torch.exp(0.5 * spread)
        divergence = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum(1)
        return {"image": self.decoder(code), "divergence": divergence}

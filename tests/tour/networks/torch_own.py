"""What torch itself has, put together as its own tutorials do."""

from __future__ import annotations

import torch
from torch import nn

from tests.tour.network import Built, Network, several


def _encoder(batch_first: bool, norm_first: bool = False) -> Built:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=batch_first, norm_first=norm_first)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), torch.randn(2, 10, 32) if batch_first else torch.randn(10, 2, 32)


def _transformer(batch_first: bool) -> Built:
    model = nn.Transformer(32, 4, 2, 2, 64, batch_first=batch_first)
    model.encoder.enable_nested_tensor = False
    shapes = ((2, 10, 32), (2, 7, 32)) if batch_first else ((10, 2, 32), (7, 2, 32))
    return model, tuple(torch.randn(shape) for shape in shapes)


class Tagger(nn.Module):
    """Tags for each word: embedding, recurrent layers, a linear head; time-first or batch-first."""

    def __init__(self, kind: type[nn.RNNBase], batch_first: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.rnn = kind(16, 24, num_layers=2, batch_first=batch_first)
        self.head = nn.Linear(24, 5)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Scores of the tags, in the order of axes that the words have."""
        features, _ = self.rnn(self.embedding(words))
        return self.head(features)


def _tagger(kind: type[nn.RNNBase], batch_first: bool) -> Built:
    return Tagger(kind, batch_first), torch.randint(50, (2, 9) if batch_first else (9, 2))


def _volume() -> Built:
    model = nn.Sequential(
        nn.Conv3d(1, 8, 3, padding=1),
        nn.BatchNorm3d(8),
        nn.ReLU(),
        nn.MaxPool3d(2),
        nn.Conv3d(8, 16, 3, padding=1),
        nn.BatchNorm3d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )
    return model, torch.randn(2, 1, 8, 8, 8)


def _mlp() -> Built:
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3)), torch.randn(8, 12)


NETWORKS: list[Network] = several(
    "torch",
    "torch's own",
    [
        ("transformerencoder-batch-first", lambda: _encoder(True)),
        ("transformerencoder-norm-first", lambda: _encoder(True, norm_first=True)),
        ("transformerencoder-time-first", lambda: _encoder(False)),
        ("transformer-batch-first", lambda: _transformer(True)),
        ("transformer-time-first", lambda: _transformer(False)),
        ("lstm-tagger", lambda: _tagger(nn.LSTM, True)),
        ("lstm-tagger-time-first", lambda: _tagger(nn.LSTM, False)),
        ("gru-tagger-time-first", lambda: _tagger(nn.GRU, False)),
        ("conv3d-chain", _volume),
        ("mlp-chain", _mlp),
    ],
)

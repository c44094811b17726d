"""Realistic inputs for the real models, made with numpy: drawn text, a speech-like signal, file bytes, token ids."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float32]
Feeds = dict[str, npt.NDArray[Any]]

# 5x7 letters, one row per word, the highest of five bits on the left.
_GLYPHS = {
    "A": (14, 17, 17, 31, 17, 17, 17), "B": (30, 17, 17, 30, 17, 17, 30), "C": (14, 17, 16, 16, 16, 17, 14),
    "D": (30, 17, 17, 17, 17, 17, 30), "E": (31, 16, 16, 30, 16, 16, 31), "F": (31, 16, 16, 30, 16, 16, 16),
    "G": (14, 17, 16, 23, 17, 17, 14), "H": (17, 17, 17, 31, 17, 17, 17), "I": (14, 4, 4, 4, 4, 4, 14),
    "L": (16, 16, 16, 16, 16, 16, 31), "M": (17, 27, 21, 21, 17, 17, 17), "N": (17, 25, 25, 21, 19, 19, 17),
    "O": (14, 17, 17, 17, 17, 17, 14), "P": (30, 17, 17, 30, 16, 16, 16), "R": (30, 17, 17, 30, 20, 18, 17),
    "S": (15, 16, 16, 14, 1, 1, 30), "T": (31, 4, 4, 4, 4, 4, 4), "U": (17, 17, 17, 17, 17, 17, 14),
    "V": (17, 17, 17, 17, 17, 10, 4), "W": (17, 17, 17, 21, 21, 21, 10), "X": (17, 17, 10, 4, 10, 17, 17),
    "Y": (17, 17, 10, 4, 4, 4, 4), "2": (14, 17, 1, 6, 8, 16, 31), "3": (30, 1, 1, 14, 1, 1, 30),
    "4": (2, 6, 10, 18, 31, 2, 2), "5": (31, 16, 30, 1, 1, 17, 14), "7": (31, 1, 2, 4, 4, 4, 4), " ": (0,) * 7,
}
WORDS = ("HELLO", "WORLD", "TILE", "GRAPH", "PAPER", "MODEL", "SERVER", "2345", "NORTH", "SOUTH")


def draw_text(text: str, scale: int) -> Float:
    """The text as ink in [0, 1], [7 · scale, 6 · scale · len(text)], edges smoothed as a scan would."""
    columns = [np.array([[row >> (4 - c) & 1 for c in range(5)] + [0] for row in _GLYPHS[ch]]) for ch in text]
    ink = np.kron(np.concatenate(columns, 1), np.ones((scale, scale))).astype(np.float32)
    kernel = np.array([1, 4, 6, 4, 1], np.float32) / 16
    for axis in (0, 1):
        ink = np.apply_along_axis(lambda line: np.convolve(line, kernel, "same"), axis, ink)
    return ink.astype(np.float32)


def _paste(page: Float, ink: Float, top: int, left: int) -> None:
    """Draws black ink on a light page [H, W] in place; what does not fit is cut."""
    area = page[top:top + ink.shape[0], left:left + ink.shape[1]]
    area *= 1.0 - 0.9 * ink[:area.shape[0], :area.shape[1]]


def _image(page: Float, rng: np.random.Generator) -> Float:
    """Grey page in [0, 1] to a network's input [3, H, W]: slight tint and noise, mean 0.5, deviation 0.5."""
    tint = np.array([1.0, 0.98, 0.95], np.float32)[:, None, None]
    noise = rng.standard_normal((3, *page.shape), dtype=np.float32) * 0.01
    return ((np.clip(page[None] * tint + noise, 0, 1) - 0.5) / 0.5).astype(np.float32)


def text_page(rng: np.random.Generator, height: int, width: int) -> Float:
    """A page of short lines, [3, height, width], for text detection."""
    page = np.full((height, width), 0.93, np.float32)
    scale = max(2, height // 160)
    top = 4 * scale
    while top + 7 * scale < height:
        line = " ".join(WORDS[i] for i in rng.integers(0, len(WORDS), 3))
        _paste(page, draw_text(line, scale), top, int(rng.integers(scale, 8 * scale)))
        top += 16 * scale
    return _image(page, rng)


def text_line(rng: np.random.Generator, text: str, width: int, height: int = 48) -> Float:
    """One line of text as the recogniser and the direction classifier get it, [3, height, width]."""
    page = np.full((height, width), 0.93, np.float32)
    ink = draw_text(text, max(1, min(5, (width - 16) // (6 * max(1, len(text))))))
    _paste(page, ink, (height - ink.shape[0]) // 2, 8)
    return _image(page, rng)


def text_lines(rng: np.random.Generator, count: int, width: int) -> Float:
    """[count, 3, 48, width]; the first line says HELLO."""
    words = ["HELLO", *(WORDS[i] for i in rng.integers(0, len(WORDS), count - 1))]
    return np.stack([text_line(rng, w, width) for w in words])


def speech(rng: np.random.Generator, samples: int, rate: int = 16000) -> Float:
    """A voice-like signal in [-1, 1]: a gliding harmonic source through three formants, loud and quiet by turns, with
    breath noise."""
    t = np.arange(samples) / rate
    pitch = 120 + 20 * np.sin(2 * math.pi * 2.1 * t) + float(rng.uniform(-10, 10))
    phase = 2 * math.pi * np.cumsum(pitch) / rate
    signal = np.zeros(samples)
    for k in range(1, 40):
        frequency = k * 120.0
        formants = sum(gain / (1 + ((frequency - centre) / width) ** 2)
                       for centre, width, gain in ((700, 110, 1.0), (1220, 120, 0.6), (2600, 160, 0.3)))
        signal += formants * np.sin(k * phase)
    envelope = np.clip(np.sin(2 * math.pi * 3.0 * t + 0.6), 0.05, 1)
    signal = signal * envelope + rng.standard_normal(samples) * 0.01
    return np.asarray(0.3 * signal / max(1e-6, float(np.abs(signal).max())), np.float32)


def speech_frames(rng: np.random.Generator, count: int, size: int = 512, context: int = 64) -> Float:
    """Consecutive frames, each with the end of the one before in front, as silero-vad takes them: [count, context +
    size]."""
    signal = np.concatenate([np.zeros(context, np.float32), speech(rng, 4096 + count * size)[4096:]])
    return np.stack([signal[i * size:i * size + context + size] for i in range(count)])


def file_features(path: Path, begin: int = 1024, end: int = 1024, padding: int = 256) -> npt.NDArray[np.int32]:
    """magika's features of a file, int32[begin + end]: its first and last bytes without outer white space, padded."""
    data = path.read_bytes().strip()
    head, tail = data[:begin], data[-end:]
    return np.array([*head, *[padding] * (begin - len(head)), *[padding] * (end - len(tail)), *tail], np.int32)


def token_ids(rng: np.random.Generator, batch: int, seq: int, *, types: bool) -> Feeds:
    """BERT-like ids [batch, seq]: [CLS] … [SEP], then padding in every row but the first."""
    ids = rng.integers(1000, 30000, (batch, seq))
    real = np.array([seq if i == 0 else max(2, seq - 7 * i % seq) for i in range(batch)])[:, None]
    column = np.arange(seq)[None]
    ids = np.where(column == 0, 101, np.where(column == real - 1, 102, np.where(column < real, ids, 0)))
    feeds: Feeds = {"input_ids": ids.astype(np.int64), "attention_mask": (column < real).astype(np.int64)}
    if types:
        feeds["token_type_ids"] = np.zeros((batch, seq), np.int64)
    return feeds

"""Finding the real models, and the numpy-made inputs."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from models import zoo_inputs as z
from models.zoo import survey, zoo


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_a_missing_wheel_is_counted_and_named(monkeypatch: pytest.MonkeyPatch,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    real = metadata.distribution

    def without_magika(name: str) -> metadata.Distribution:
        if name == "magika":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "distribution", without_magika)
    found, skipped = survey()
    assert "magika" in {s.name for s in skipped}
    assert "magika" not in {m.name for m in found}
    assert len(found) + len(skipped) == 12
    zoo()
    said = capsys.readouterr().err
    assert "magika is not installed" in said
    assert f"{len(skipped)} of 12 models skipped" in said


def test_a_wheel_without_the_file_is_named_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Empty:
        version = "9"

        def locate_file(self, name: str) -> Path:
            return tmp_path / name

    monkeypatch.setattr(metadata, "distribution", lambda name: Empty())
    found, skipped = survey()
    assert not found
    assert all("9 has no " in s.reason for s in skipped)


def test_the_pins_of_the_requirements_file_are_those_of_the_extra() -> None:
    import tomllib

    root = Path(__file__).resolve().parents[3]
    extra = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]["zoo"]
    lines = (root / "models" / "zoo-requirements.txt").read_text().splitlines()
    pins = [line.replace('"', "'") for line in lines if line and not line.startswith("#")]
    assert sorted(pins) == sorted(extra)


def test_text_is_dark_on_light_and_differs_between_words() -> None:
    hello, world = (z.text_line(_rng(), word, 200) for word in ("HELLO", "WORLD"))
    assert hello.shape == (3, 48, 200)
    assert hello.max() > 0.7
    assert hello.min() < -0.7
    assert np.abs(hello - world).max() > 1


def test_frames_overlap_by_their_context() -> None:
    frames = z.speech_frames(_rng(), 4)
    assert frames.shape == (4, 576)
    np.testing.assert_array_equal(frames[1:, :64], frames[:-1, -64:])
    assert 0.01 < np.abs(frames).max() <= 0.31


def test_file_features_are_the_ends_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"  ab\n")
    features = z.file_features(tmp_path / "short", begin=4, end=3)
    assert features.tolist() == [97, 98, 256, 256, 256, 97, 98]
    (tmp_path / "long").write_bytes(bytes(range(65, 91)))
    features = z.file_features(tmp_path / "long", begin=4, end=3)
    assert features.tolist() == [65, 66, 67, 68, 88, 89, 90]


@pytest.mark.parametrize("seq", [2, 5, 17, 128])
def test_token_rows_begin_and_end_with_the_special_tokens(seq: int) -> None:
    feeds = z.token_ids(_rng(), 5, seq, types=True)
    ids, mask = feeds["input_ids"], feeds["attention_mask"]
    lengths = mask.sum(1)
    assert lengths[0] == seq
    assert (lengths >= 2).all()
    assert (ids[:, 0] == 101).all()
    assert (ids[np.arange(5), lengths - 1] == 102).all()
    assert (ids[mask == 0] == 0).all()
    assert (ids[mask == 1] > 0).all()

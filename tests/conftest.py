"""Fixtures that several test folders share."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tilegraph.codegen import isa

# No test is timed: on a busy machine a deadline fails what is right.
settings.register_profile("tilegraph", deadline=None)
settings.load_profile("tilegraph")

ROOT = Path(__file__).resolve().parent.parent
ARCHIVE = ROOT.parent / "shared" / "corpus" / "corpus.tar.xz"
_skipped: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--isa", help="the instruction set that kernels' tests take for the host's, such as armv8-a")


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module is imported: they ask for the host's instruction set by the name that is set here."""
    wanted = config.getoption("--isa")
    if wanted:
        found = isa.Isa.parse(wanted)
        isa.host = lambda: found


def unpack_corpus(archive: Path = ARCHIVE, build: Path = ROOT / "build") -> Path:
    """The folder of the unpacked corpus under `build`; unpacked once, whole or not at all, by whoever comes first."""
    stamp = archive.stat()
    target = build / f"corpus-{stamp.st_size}"
    if target.is_dir():
        return target
    build.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="corpus-", dir=build))
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
        (inner,) = [p for p in scratch.iterdir() if p.is_dir()]
        try:
            os.rename(inner, target)
        except OSError:
            if not target.is_dir():  # another process was faster, or something is wrong
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


@pytest.fixture(scope="session")
def corpus(request: pytest.FixtureRequest) -> Path:
    """The folder with NAME.onnx, NAME.npz and CATALOG.csv of the model corpus; skips, loudly, without the archive."""
    if not ARCHIVE.is_file():
        _skipped.add(request.node.name)
        pytest.skip(f"the model corpus {ARCHIVE} is not on this machine")
    return unpack_corpus()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and "the model corpus" in str(report.longrepr):
        _skipped.add(report.nodeid)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None] | None:
    if _skipped:
        terminalreporter.write_sep("=", "the model corpus is missing", red=True, bold=True)
        terminalreporter.write_line(f"{len(_skipped)} tests that need {ARCHIVE} did not run")
    return None

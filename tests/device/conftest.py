"""Says what did not run: no test here passes unseen where the emulator is absent."""

from __future__ import annotations

import pytest

from tests.device.emulator import missing

_LEFT_OUT = "AArch64 is not emulated here"
_skipped: list[str] = []


@pytest.fixture(autouse=True)
def device() -> None:
    if lacking := missing():
        pytest.skip(f"{_LEFT_OUT}, missing {lacking}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and _LEFT_OUT in str(report.longrepr):
        _skipped.append(report.nodeid)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _skipped:
        terminalreporter.write_sep("=", "kernels for AArch64 were not run", red=True, bold=True)
        terminalreporter.write_line(f"{len(_skipped)} tests left out, missing {missing()}")

from pathlib import Path

import pytest
from verify_pairs import Pairs


@pytest.fixture
def make(tmp_path: Path) -> Pairs:
    return Pairs(tmp_path)

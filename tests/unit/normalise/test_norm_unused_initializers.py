"""Unused initializers go."""

from __future__ import annotations

import numpy as np
from norm_check import SPECIAL, loaded, run

from tilegraph.rewrites.normalise import (
    UnusedInitializers,
)

X = {"x": SPECIAL}


def test_unused_initializers_go_others_stay() -> None:
    model = loaded("""g (float[8] x, float[8] given) => (float[8] y, float[8] out) {
        y = Add(x, used)  z = Neg(x) }""".replace("z = Neg(x)", ""), used=np.ones(8, np.float32),
                   unused=np.ones(8, np.float32), given=np.ones(8, np.float32), out=np.ones(8, np.float32))
    run(UnusedInitializers(), model, modified=True)
    assert set(model.graph.initializers) == {"used", "given", "out"}

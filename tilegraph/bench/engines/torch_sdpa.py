"""PyTorch's scaled_dot_product_attention on inputs `q, k, v` [B, H, S, D].

The peer's path is an .npz file that says what is visible: `causal` (bool), and perhaps `visible` ([S, S] of bool, made
once, before the clock runs); `grouped` (bool) says that several heads of q share one of k and v. With an input
`documents` [B, S], rows see keys of their own document; that mask depends on the input, so each run makes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilegraph.bench.engines import Array, chosen, contiguous


def load(peer: dict[str, Any]) -> None:
    import torch  # noqa: F401


def create(peer: dict[str, Any], threads: int) -> Attention:
    """Raises OSError or ValueError for a file that is not such a description."""
    import torch

    torch.set_num_threads(threads)
    with np.load(peer["path"], allow_pickle=False) as told:
        visible = torch.from_numpy(told["visible"]) if "visible" in told.files else None
        return Attention(bool(told["causal"]), visible, bool(told["grouped"]))


class Attention:
    def __init__(self, causal: bool, visible: Any, grouped: bool) -> None:
        self._causal, self._visible, self._grouped = causal, visible, grouped
        self._tensors: dict[str, Any] = {}
        self._out: Any = None

    def bind(self, feeds: dict[str, Array]) -> str:
        import torch

        wanted = ["q", "k", "v", *(["documents"] if "documents" in feeds else [])]
        self._tensors = {n: torch.from_numpy(contiguous(a)) for n, a in chosen(wanted, feeds).items()}
        self.run()
        return "plain"

    def run(self) -> None:
        import torch

        t, mask = self._tensors, self._visible
        with torch.inference_mode():
            if "documents" in t:
                mask = (t["documents"][:, :, None] == t["documents"][:, None, :])[:, None]
            self._out = torch.nn.functional.scaled_dot_product_attention(
                t["q"], t["k"], t["v"], attn_mask=mask, is_causal=self._causal, enable_gqa=self._grouped)

    def outputs(self) -> list[Array]:
        return [np.asarray(self._out.numpy())]

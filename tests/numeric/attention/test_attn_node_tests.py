"""ONNX's own node tests of attention operators, whole: optimized with every attention taken, saved, served.

The expected outputs are those that ONNX gives. FlexAttention must run in all of its tests: ONNX Runtime has no kernel.
"""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx.backend.test.case.node import collect_testcases

import tilegraph
from tilegraph.compiler import optimize

FLEX = ("", "_causal_mask", "_diff_head_sizes", "_double", "_fp16", "_gqa", "_prob_mod", "_relative_positional",
        "_scaled", "_score_mod", "_soft_cap")
# name: attentions that must be taken
ATTENTION = (
    "23_boolmask_fullymasked_row_nan_robustness", "3d_causal", "3d_diff_heads_sizes_attn_mask", "3d_gqa_softcap",
    "3d_gqa_with_past_and_present", "3d_local_window", "3d_transpose_verification", "3d_with_past_and_present",
    "4d_attn_mask_3d_causal", "4d_attn_mask_4d", "4d_attn_mask_bool_4d", "4d_causal_nonpad_attn_mask_composition",
    "4d_causal_nonpad_batch_prefill", "4d_causal_nonpad_continued_prefill",
    "4d_causal_nonpad_negative_offset_structural_empty", "4d_causal_with_past_and_present",
    "4d_diff_heads_mask4d_padded_kv", "4d_diff_heads_with_past_and_present_mask4d", "4d_gqa_causal_nonpad_decode",
    "4d_scaled", "4d_softcap_neginf_mask", "4d_softcap_neginf_mask_poison", "bidirectional_window",
    "causal_boolmask_nan_robustness", "local_window_ext_cache_rank2_mask", "local_window_rank1_boolean_mask",
    "local_window_with_past")


@cache
def _tests() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {t.name: t for t in collect_testcases(None)}


def _run(name: str, folder: Path) -> int:
    """Checks the outputs and says how many attentions were taken."""
    test = _tests()[name]
    made = optimize(test.model.SerializeToString(), offload="all")
    made.save(folder / "m")
    tilegraph.register()
    session = ort.InferenceSession(str(folder / "m" / "model.onnx"),
                                   providers=[tilegraph.EP_NAME, "CPUExecutionProvider"])
    for given, wanted in test.data_sets:
        feeds = dict(zip((i.name for i in test.model.graph.input), given, strict=True))
        for want, got in zip(wanted, session.run(None, feeds), strict=True):
            assert got.dtype == want.dtype
            assert got.shape == want.shape
            bound = 8 * float(np.finfo(want.dtype).eps) * max(float(np.abs(want).max(initial=0)), 1.0)
            np.testing.assert_allclose(got, want, rtol=0, atol=bound)
    return sum(a["taken"] for a in made.summary.attentions)


@pytest.mark.parametrize("form", FLEX)
def test_flex_attention_runs(form: str, tmp_path: Path) -> None:
    taken = _run(f"test_flexattention{form}", tmp_path)
    assert taken == (form not in ("_double", "_prob_mod"))


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_taken_and_right(name: str, tmp_path: Path) -> None:
    assert _run(f"test_attention_{name}", tmp_path) == 1

"""A fixed spread of the density table: what the report says of masks is what ONNX Runtime computes."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.conformance.density import CLOSE, row
from tilegraph.compiler import optimize
from tilegraph.errors import InputError
from tilegraph.explain import explain

# Padding, causal and windows that a run decides, tables, documents, decomposed masks, several kinds in one model.
MODELS = ("bert-dy18-sdpa-dyn", "bart-dy18-eager-static", "mistral-dy18-sdpa-dyn", "gpt2-dy18-eager-dyn-pad",
          "llama-ts17-eager-dyn", "custom_doc_lengths-dy18-dyn", "custom_strided_mod_where-dy18-dyn",
          "custom_chunk_div_where-ts17-dyn", "custom_soft_clamp-dy18-static", "custom_input_bool_sdpa-ts17-dyn",
          "keras_encoder-tf14", "custom_rand25_per_head-ts17-static")


@pytest.mark.parametrize("name", MODELS)
def test_measured_densities(name: str, corpus: Path) -> None:
    with open(corpus / "CATALOG.csv", newline="") as file:
        (entry,) = [e for e in csv.DictReader(file) if e["name"] == name]
    found = row(corpus, entry)
    assert found.found == found.stated
    assert found.seen is not None
    assert found.measured == pytest.approx(found.seen, abs=CLOSE)
    assert found.seen < 0.9
    if not found.inputs:  # then it is known without them, but for the lengths
        assert found.density is not None
        assert found.density < 0.9


def test_explain_measures_on_given_inputs(corpus: Path, tmp_path: Path) -> None:
    path = corpus / "bert-dy18-sdpa-static-nomask.onnx"
    assert [a["measured"] for a in explain(path, offload="all").report["attentions"]] == [None, None]
    found = explain(path, offload="all", inputs=path.with_suffix(".npz"))
    assert [a["measured"] for a in found.report["attentions"]] == [1.0, 1.0]
    with pytest.raises(InputError, match="no array for input 'input_ids'"):
        explain(path, inputs={})
    with pytest.raises(InputError, match=r"give the \.onnx file"):
        explain(tmp_path, inputs=path.with_suffix(".npz"))


def test_masks_stay_outside_where_computing_them_inside_would_not_win(corpus: Path) -> None:
    path = corpus / "custom_strided_mod_where-dy18-dyn.onnx"
    for offload, kind in (("all", "positions"), ("auto", "mask")):
        made = optimize(path, offload=offload, dry_run=True)
        assert [(a["taken"], a["kind"]) for a in made.summary.attentions] == [(True, kind)]

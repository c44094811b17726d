"""An optimized folder in `bench`: it runs on the plugin provider and is timed against its original."""

from __future__ import annotations

from pathlib import Path

import onnx

from models.chains import CHAINS
from tilegraph.bench import bench
from tilegraph.compiler import optimize
from tilegraph.spec.artifact import EP_NAME


def test_a_folder_is_timed_on_the_plugin_against_its_original(tmp_path: Path) -> None:
    chain = CHAINS["tanh_gelu_pow"]
    original = chain.path(small=True, cache=tmp_path)
    folder = optimize(original, target="cpu", offload="all").save(tmp_path / "m.tilegraph", force=True)
    assert any(n.op_type == "EPContext" for n in onnx.load(folder / "model.onnx").graph.node)
    result = bench([original, folder, folder / "model.onnx"], runs=2, inputs=chain.inputs(small=True))
    assert [m.provider for m in result.models] == ["CPUExecutionProvider", EP_NAME, EP_NAME]
    assert all(m.median_s > 0 and m.create_s > 0 for m in result.models)
    assert result.models[0].ratio == 1.0

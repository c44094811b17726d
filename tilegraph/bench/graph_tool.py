"""Runs one graph tool of others on a model: `python -m tilegraph.bench.graph_tool TOOL MODEL OUTPUT`.

A process of its own, because a tool may crash, take all memory, or live in another interpreter. Each tool runs as its
documentation shows for a CPU, on the model as it is: no fixed input sizes that the file does not have.
"""

from __future__ import annotations

import sys


def onnxsim(model: str, output: str) -> None:
    import onnx
    import onnxsim as tool

    simplified, _ = tool.simplify(onnx.load(model))
    onnx.save(simplified, output)


def onnxscript(model: str, output: str) -> None:
    """Its general optimizer and then the fusions for ONNX Runtime, as onnxscript's own exporter does it."""
    import onnx_ir
    import onnxscript.optimizer
    from onnxscript.rewriter.ort_fusions import optimize_for_ort

    loaded = onnx_ir.external_data.load_to_model(onnx_ir.load(model))  # the output lies elsewhere
    onnxscript.optimizer.optimize(loaded)
    optimized, _ = optimize_for_ort(loaded)
    onnx_ir.save(optimized, output)


def transformers(model: str, output: str) -> None:
    from onnxruntime.transformers import optimizer

    # Its default type of model; it finds heads and hidden size itself (0). Other types want them given, or are for
    # exporters of long ago.
    optimizer.optimize_model(model, model_type="bert", num_heads=0, hidden_size=0).save_model_to_file(output)


TOOLS = {"onnxsim": onnxsim, "onnxscript": onnxscript, "transformers": transformers}

if __name__ == "__main__":
    TOOLS[sys.argv[1]](sys.argv[2], sys.argv[3])

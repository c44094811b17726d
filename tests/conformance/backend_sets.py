"""ONNX's own sets of whole models, as the onnx package brings them: simple, pytorch-converted, pytorch-operator, light.

The light models are real networks whose weights are computed by a few nodes (ConstantOfShape and the like). What
PyTorch wrote at opset 6, below what the project knows, is lifted to 13 by onnx's converter first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper, version_converter
from onnx.backend.test.loader import DATA_DIR

DATA = Path(DATA_DIR)
LIFTED = Path(__file__).resolve().parents[2] / "build" / "conformance" / f"sets-{onnx.__version__}"
SETS = ("simple", "pytorch-converted", "pytorch-operator", "light")


def names(group: str) -> list[str]:
    if group == "light":
        return sorted(p.stem.removeprefix("light_") for p in (DATA / group).glob("*.onnx"))
    return sorted(p.parent.name.removeprefix("test_") for p in (DATA / group).glob("*/model.onnx"))


def open_set(group: str, name: str) -> tuple[Path, list[dict[str, Any]]]:
    """The model's file and its sets of inputs; light models get random ones of one image."""
    if group == "light":
        from models.inputs import inputs_for

        path = DATA / group / f"light_{name}.onnx"
        return path, [inputs_for(path)]
    folder = DATA / group / f"test_{name}"
    path = folder / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    if any(o.domain == "" and o.version < 7 for o in model.opset_import):
        model = version_converter.convert_version(model, 13)
        path = LIFTED / group / f"{name}.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(model.SerializeToString())
    weights = {t.name for t in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in weights]
    sets = [{value.name: _read(value, given / f"input_{k}.pb") for k, value in enumerate(inputs)}
            for given in sorted(folder.glob("test_data_set_*"))]
    return path, sets


def _read(value: onnx.ValueInfoProto, path: Path) -> Any:
    """A tensor, or a sequence as a list, or an optional."""
    kind = value.type.WhichOneof("value")
    proto: Any = {"tensor_type": onnx.TensorProto, "sequence_type": onnx.SequenceProto,
                  "optional_type": onnx.OptionalProto}[kind or ""]()
    proto.ParseFromString(path.read_bytes())
    if kind == "tensor_type":
        return numpy_helper.to_array(proto)
    return numpy_helper.to_list(proto) if kind == "sequence_type" else numpy_helper.to_optional(proto)

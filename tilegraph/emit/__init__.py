"""From the partitioned model to what ONNX Runtime serves: EPContext nodes, the manifest, and the folder."""

from tilegraph.emit.folder import read_folder, write_folder
from tilegraph.emit.rewire import EmitPartition, emit

__all__ = ["EmitPartition", "emit", "read_folder", "write_folder"]

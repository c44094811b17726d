"""Random EPContext attributes and manifests against the provider: each is refused with a reason, or serves.

    python -m tests.ep.attack [--examples 400] [--seed 0] [--sanitize]

`--sanitize` runs it on the build with the address and undefined-behaviour sanitizers. It runs in a process of its own,
because what it looks for would end the process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from onnx import helper

from tests.ep.soak import ROOT, sanitizer_environment

sys.path.insert(0, str(Path(__file__).parent))
import ep_support as ep

NAMES = ("source", "partition_name", "embed_mode", "main_context", "ep_cache_context", "notes", "hardware_architecture",
         "ep_sdk_version", "onnx_model_filename", "max_size", "other")
TEXT = st.sampled_from(["", "p", "q", "..", "../kernels.cpu.so", "/etc/passwd", "/dev/zero", "/dev/stdin",
                        "model.onnx", "manifest.json", "kernels.cpu.so", "a/../../b", "\0", "kernels.cpu.so\0x",
                        "é" * 40, "A" * 70000, "{}", "[]", "[" * 3000,
                        '{"manifest": {}}', '{"library_sha256": 1}', "====", "AAAA"]) \
    | st.text(max_size=30)
NUMBER = st.sampled_from([0, 1, -1, 2, 63, 64, 65, 2**31, 2**31 - 1, 2**32, 2**63 - 1, -2**63, 2**62]) \
    | st.integers(-9, 9)
JSON = st.recursive(st.none() | st.booleans() | NUMBER | st.floats() | TEXT,
                    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12)
EXPRESSION = st.recursive(NUMBER | st.sampled_from(["n", "m", ""]), lambda inner: st.tuples(
    st.sampled_from(["+", "*", "//", "%", "min", "max", "?"]), inner, inner).map(list), max_leaves=10)


def places(data: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else []
    return [p for k, v in items for p in ((*prefix, k), *places(v, (*prefix, k)))]


def put(data: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        data = data[key]
    data[path[-1]] = value


class Attack:
    """Draws one folder after the other and opens it; `counts` says how each ended."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.library, self.folder, self.counts = library, folder, Counter[str]()
        size = ep.Dim.symbol("n") * 4
        calls = [ep.call("add_one", [ep.source(0), ep.arena(64)], [size], size, grain=3, align=2, scratch=70),
                 replace(ep.call("add_one", [ep.arena(64), ep.result(0)], [size], size), name="a node that may fail")]
        program = ep.program([ep.tensor("x", "float", "n", 4)], [ep.tensor("y", "float", "n", 4)], calls,
                             arena_bytes=size * 4 + 64)
        self.programs = {"p": replace(program, equal=((size, ep.Dim.max(size, 0)),))}

    def one(self, data: st.DataObject) -> None:
        import tilegraph.runtime as runtime

        changed = False

        def edit(manifest: dict[str, Any]) -> None:
            nonlocal changed
            for _ in range(data.draw(st.integers(0, 3))):
                value = data.draw(JSON | EXPRESSION)
                if not isinstance(value, float) or value == value:
                    put(manifest, data.draw(st.sampled_from(places(manifest))), value)
                    changed = True

        def spoil(model: onnx.ModelProto) -> None:
            for node in model.graph.node:
                for name in data.draw(st.lists(st.sampled_from(NAMES), max_size=2, unique=True)):
                    kept = [a for a in node.attribute if a.name != name]
                    value = data.draw(st.none() | TEXT | NUMBER | st.binary(max_size=20) | st.floats(width=32)
                                      | st.lists(NUMBER, min_size=1, max_size=3)
                                      | st.lists(TEXT, min_size=1, max_size=3))
                    del node.attribute[:]
                    node.attribute.extend(kept)
                    if value is not None:
                        node.attribute.append(helper.make_attribute(name, value))

        artifact = ep.Artifact(self.library, self.programs, embed=data.draw(st.booleans()), edit_manifest=edit,
                               edit_model=spoil)
        path = artifact.write(self.folder)
        try:
            session = runtime.session(path, threads=1, options={"max_tasks": "4"})
        except Exception as error:
            text = str(error)
            # "not compatible", "Failed to load" and the like: ONNX Runtime's own refusals of odd nodes.
            assert text.strip()
            self.counts["refused by the provider" if "TileGraph" in text or "manifest" in text or "kernels" in text
                        else "refused by ONNX Runtime"] += 1
            return
        if changed:
            # Kernels believe the manifest, whose hash the model holds: what is served is not run.
            self.counts["served"] += 1
            return
        session.run(None, {"x": np.zeros((3, 4), np.float32)})
        self.counts["ran"] += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--examples", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sanitize", action="store_true")
    options = parser.parse_args()
    if options.sanitize:
        arguments = [a for a in sys.argv[1:] if a != "--sanitize"]
        return subprocess.run([sys.executable, "-m", "tests.ep.attack", *arguments], cwd=ROOT,
                              env=sanitizer_environment(), check=False).returncode
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        attack = Attack(ep.compile_c(ep.ADD_ONE, Path(folder) / "k.so"), Path(folder) / "m")

        @seed(options.seed)
        @settings(max_examples=options.examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(st.data())
        def run(data: st.DataObject) -> None:
            attack.one(data)

        run()
    print(json.dumps(attack.counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())

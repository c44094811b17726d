"""Registration in processes of their own: this one has the provider already."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tilegraph.runtime as runtime
from tilegraph.errors import UsageError
from tilegraph.spec.artifact import EP_NAME


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True,
                          text=True, check=False)


def test_twice_and_from_many_threads() -> None:
    done = python("""
import threading, onnxruntime, tilegraph.runtime as rt
threads = [threading.Thread(target=rt.register) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
rt.register()
print(sum(d.ep_name == rt.EP_NAME for d in onnxruntime.get_ep_devices()))
""")
    assert done.stdout.strip() == "1", done.stderr


def test_after_somebody_else_registered_it() -> None:
    done = python("""
import onnxruntime, tilegraph.runtime as rt
onnxruntime.register_execution_provider_library("mine", str(rt.ep_library_path()))
rt.register()
print(sum(d.ep_name == rt.EP_NAME for d in onnxruntime.get_ep_devices()))
""")
    assert done.stdout.strip() == "1", done.stderr


def test_importing_needs_no_onnxruntime() -> None:
    done = python("import sys, tilegraph.runtime as rt; rt.ep_library_path(); print('onnxruntime' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr


def test_unregistering_unloads_cleanly(tmp_path: Path, add_one: Path) -> None:
    import ep_support as ep
    path = ep.Artifact(add_one, {"p": ep.add_one_program(3)}).write(tmp_path / "m")
    done = python(f"""
import numpy, onnxruntime, tilegraph.runtime as rt
for _ in range(2):
    onnxruntime.register_execution_provider_library("mine", str(rt.ep_library_path()))
    s = onnxruntime.InferenceSession({str(path)!r}, providers=[rt.EP_NAME, "CPUExecutionProvider"])
    print(s.run(None, {{"x": numpy.zeros(3, numpy.float32)}})[0][0])
    del s
    onnxruntime.unregister_execution_provider_library("mine")
""")
    assert done.stdout.split() == ["1.0", "1.0"], done.stderr


def test_a_library_that_is_not_a_plugin(add_one: Path) -> None:
    done = python("import tilegraph.runtime as rt; rt.register()", TILEGRAPH_EP_LIBRARY=str(add_one))
    assert "EnvironmentProblem" in done.stderr
    assert str(add_one) in done.stderr


def test_session_arguments(tmp_path: Path, add_one: Path) -> None:
    import ep_support as ep
    import onnxruntime as ort
    path = ep.Artifact(add_one, {"p": ep.add_one_program(3)}).write(tmp_path / "m")
    settings = ort.SessionOptions()
    session = runtime.session(path.parent, threads=2, options={"max_tasks": 3}, sess_options=settings)
    assert settings.intra_op_num_threads == 2
    assert session.get_providers() == [EP_NAME, "CPUExecutionProvider"]
    with pytest.raises(UsageError, match="threads is 0: it must be at least 1"):
        runtime.session(path, threads=0)

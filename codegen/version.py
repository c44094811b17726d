"""What every cache key holds, without importing TVM, which takes a second."""

from __future__ import annotations

from importlib.metadata import version

TVM_VERSION = version("apache-tvm")

GENERATOR = "row-9"  # change it when the code that codegen/rowkernel.py emits changes

"""TVM's version without importing TVM, which takes a second."""

from __future__ import annotations

from importlib.metadata import version

TVM_VERSION = version("apache-tvm")

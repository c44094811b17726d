"""Test and benchmark models: builders, the fused chains, real models from wheels, the demo and the benchmark suite.

Not installed with tilegraph; run from the repository root.
"""

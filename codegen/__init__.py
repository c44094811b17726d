"""Kernels: from regions to TIR to one linked library per model."""

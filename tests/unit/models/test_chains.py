"""The chains without running them: valid, at the shapes that the required ratios are about."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from models.chains import CHAINS, SMALL, Shapes, chains

REQUIRED = {"erf_gelu_bias": 3.0, "tanh_gelu_pow": 5.0, "tanh_gelu_mul": 5.0, "layernorm_decomp": 1.7,
            "bias_res_layernorm": 8.0, "rmsnorm_llama": 1.4, "rope_qk": 4.0, "swiglu": 1.8, "mask_build": 5.0}


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("name", list(CHAINS))
def test_every_chain_is_valid_and_its_inputs_fit(name: str, small: bool) -> None:
    model = CHAINS[name].model(small=small)
    onnx.checker.check_model(model, full_check=True)
    feeds = CHAINS[name].inputs(3, small=small)
    for value in model.graph.input:
        shape = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        assert feeds[value.name].shape == shape
        assert feeds[value.name].dtype == np.float32
        assert np.isfinite(feeds[value.name]).all()


def test_the_required_ratios_are_the_projects() -> None:
    for name, least in REQUIRED.items():
        assert CHAINS[name].must_hold == least


def test_full_shapes_are_those_of_the_measurements() -> None:
    shapes = Shapes()
    assert (shapes.seq, shapes.hidden, shapes.ffn, shapes.heads, shapes.head) == (512, 768, 3072, 12, 64)
    assert SMALL.seq < 32


def test_inputs_are_seeded() -> None:
    for chain in chains():
        first, again, other = (chain.inputs(seed, small=True) for seed in (1, 1, 2))
        for name, value in first.items():
            np.testing.assert_array_equal(value, again[name])
        if chain.name != "mask_build":  # its mask has few possible lengths
            assert any((first[name] != other[name]).any() for name in first)


def test_masks_hide_something_and_keep_something() -> None:
    for seed in range(5):
        mask = CHAINS["mask_build"].inputs(seed)["i0"]
        assert 0 < mask.sum() < mask.size
        additive = CHAINS["softmax_scale_mask"].inputs(seed)["i1"]
        assert additive.min() < -1000
        assert additive.max() == 0

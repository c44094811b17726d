"""Winograd's transforms for windows of 3 elements: sums of three products as products of transformed elements.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015: m results are A^T ((G g) * (B^T d)) of m + 2
elements d and 3 weights g, a product for each point at which polynomials are evaluated.

F(2, 3) has the points 0, 1, -1 and infinity. F(4, 3) has 0, +-NEAR, +-FAR and infinity. With 1 and 2, as in the paper,
the largest error of 256 channels is 2.1e-5 for results of standard deviation 1; with 5/8 and 3/2 it is 5.5e-6. All of
these and what is computed of them here are exact in float32 but for G.
"""

from __future__ import annotations

NEAR, FAR = 0.625, 1.5
_A, _B = NEAR ** 2, FAR ** 2

SUM, PRODUCT = _A + _B, _A * _B  # (x^2 - NEAR^2)(x^2 - FAR^2) = x^4 - SUM x^2 + PRODUCT

Matrix = tuple[tuple[float, ...], ...]

# By m, the results of a tile in a line. B^T is [m + 2, m + 2], G [m + 2, 3], A^T [m, m + 2].
SOURCE: dict[int, Matrix] = {
    2: ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
    4: ((PRODUCT, 0, -SUM, 0, 1, 0),
        (0, -NEAR * _B, -_B, NEAR, 1, 0), (0, NEAR * _B, -_B, -NEAR, 1, 0),
        (0, -FAR * _A, -_A, FAR, 1, 0), (0, FAR * _A, -_A, -FAR, 1, 0),
        (0, PRODUCT, 0, -SUM, 0, 1)),
}
_N, _F = 2 * _A * (_A - _B), 2 * _B * (_B - _A)
WEIGHTS: dict[int, Matrix] = {
    2: ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)),
    4: ((1 / PRODUCT, 0, 0),
        (1 / _N, NEAR / _N, _A / _N), (1 / _N, -NEAR / _N, _A / _N),
        (1 / _F, FAR / _F, _B / _F), (1 / _F, -FAR / _F, _B / _F),
        (0, 0, 1)),
}
RESULT: dict[int, Matrix] = {
    2: ((1, 1, 1, 0), (0, 1, -1, -1)),
    4: ((1, 1, 1, 1, 1, 0),
        (0, NEAR, -NEAR, FAR, -FAR, 0),
        (0, _A, _A, _B, _B, 0),
        (0, NEAR ** 3, -NEAR ** 3, FAR ** 3, -FAR ** 3, 1)),
}

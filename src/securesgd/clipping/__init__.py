"""The per-example clipping engine: `engine` sums clipped gradients by a fast path over hooks, or by a slow path.

Import `ClippingEngine` from `engine`; `rules/` has one rule per kind of layer, and `validate_model` refuses models.
"""

"""Per-example gradients by kind of layer: one file per kind, and `table` says which rule is for which layer.

To add a layer, write a function that returns a `forms.Kept` or `forms.Deferred` and add one row to `table`.
"""

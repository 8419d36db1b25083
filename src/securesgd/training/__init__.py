"""DP-SGD: the loop in which every step is accounted for before it runs, its settings and its state.

Import `train` from `loop` and `TrainingSettings` from `settings`; users get both from `securesgd` itself.
"""

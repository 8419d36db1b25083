"""What every run needs: secret randomness and exact Gaussian noise, processes, files (atomic, append-only, tables).

Modules here may import `errors`, `validate` and `theory` only. Those about files and the machine do not load torch.
"""

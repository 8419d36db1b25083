"""Certificates: what Monte-Carlo votes of a noisy network prove about each prediction, in memory and in a run folder.

Import `certify` from `certify`, `Certificates` and `CertifySettings` from `record`; `summary` works without torch.
"""

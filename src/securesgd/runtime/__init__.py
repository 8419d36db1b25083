"""What every computation of a run stands on: randomness (a cryptographic key stream, Gaussian noise by proof).

It may import `errors` and `theory` only; nothing here knows models, data or the files of a run.
"""

"""Methods to compare with that are not DP-SGD: AdLM as published, without endorsing its guarantee.

`adlm.budget` has its settings, `adlm.network` and `adlm.preparation` are what a run uses.
"""

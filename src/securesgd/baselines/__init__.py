"""Methods to compare with that are not DP-SGD: AdLM as published, without endorsing its guarantee.

`adlm.preparation` and `adlm.network` are what a run uses; everything else is private to the baseline.
"""

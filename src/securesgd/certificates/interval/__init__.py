"""Radii proven by bounds of the network itself: no noise, no votes, no failure probability.

Import `interval_radii` and `proven_at` from `radius`; `boxes` and `linear_bounds` hold the bounds and their theorems.
"""

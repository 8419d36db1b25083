"""Radii in l2 for networks of fixed wavelets and one linear layer: no noise, no votes, no failure probability.

Import `lipschitz_radius` from `radius`; `transform_bounds` bounds the wavelets, `linear_head` reads the network.
"""

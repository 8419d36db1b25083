"""The noisy network that carries a certificate, how its noise is shared out, the built-in networks, and votes.

`noisy.NoisyNetwork` and `networks.network` are for use from outside; `redistribution` works without torch. The
certificates use `split_network` and `validate_network`.
"""

"""Audits: an empirical lower bound of the epsilon of our own training, from one run with canaries.

`record` (what audit.json says, in rows) does not load torch. The layers up to `securesgd.attacks` may be imported here.

canaries, sabotage      examples that leave a trace of their own; broken engines that an audit must catch
guesses                 from releases and losses to guesses, without a look at the coins
game, claim             one training run with canaries; the bounds that its guesses prove, against the claim
record                  audit.json, its verdict and its rows
"""

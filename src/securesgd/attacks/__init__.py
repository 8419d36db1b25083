"""Attacks on models that may be noisy, a harness that measures them without trusting them, and tests of certificates.

`settings` (the table of attacks) and `robust_accuracy` (accuracies from rows) do not load torch. The layers
up to `securesgd.certificates` may be imported here. In the order of the work:

settings, ball, losses, objective           an attack by name; where it may go, what it climbs, averaged gradients
projected_gradient, square, craft           one loop for fgsm, ifgsm, mim, madry and apgd; black box; one call for all
harness, robust_accuracy, sanity_checks     own clipping and votes; accuracies with intervals; warnings about attacks
cells, evaluate                             attacks.csv and attacks.json; the attacks of a run
falsify                                     counter-examples to certificates
"""

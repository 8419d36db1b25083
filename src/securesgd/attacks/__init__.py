"""Attacks on models that may be noisy, and a harness that believes none of them.

ball, losses, objective     where an attack may go, what it climbs, and the gradient averaged over noise draws
step_rules, projected_gradient, square      the loop behind fgsm, ifgsm, mim, madry and apgd; the black-box search
settings, craft             the attacks by name; one call for all of them
harness, suspicion          measures with its own clipping and votes; says when an attack is not to be trusted
ball_search                 looks for a counter-example inside a certified ball
"""

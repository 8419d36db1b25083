"""AdLM, the Adaptive Laplace Mechanism (Phan et al., ICDM 2017), as published: a baseline, its guarantee not endorsed.

    budget       the settings of `[adlm]`, noise scales and each pixel's share of the budget: pure mathematics
    relevance    layer-wise relevance propagation, epsilon rule
    network      a network with AdLM's input noise and loss
    preparation  relevance, shares and the noise of the loss, before the first step

docs/reference/adlm.md says why nothing is guaranteed and where this differs from the authors' code.
"""

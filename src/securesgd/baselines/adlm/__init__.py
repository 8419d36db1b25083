"""AdLM, the Adaptive Laplace Mechanism (Phan et al., ICDM 2017), as published: a baseline, its guarantee not endorsed.

    settings     budget shares and the rest of `[adlm]` in a configuration
    budget       noise scales and the redistribution beta, pure mathematics
    relevance    layer-wise relevance propagation, epsilon rule
    network      a network with AdLM's input noise and loss
    preparation  what is done before the first step: relevance, beta, the noise of the loss

docs/adlm.md says why nothing is guaranteed and where this differs from the authors' code.
"""

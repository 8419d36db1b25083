"""Figure 3: certified accuracy of HGM_PixelDP and PixelDP against the attack size, MNIST, under the four attacks.

The paper's protocol: noise in the first hidden layer, r and certificate as published, attacks on the network without
its noise. The sound one: the same models with the tight certificate under attacks that average over the noise, and one
more with r learned and noise at the input. Pixels are in [0, 1].

The construction attack size is 0.02; attacks have the sizes at which certificates go from nearly all images to none.
The paper's (up to 0.6) are out of reach of its own theorems: noise that large leaves nothing of the image.
"""

__all__ = ["FIGURE"]

from functools import partial

from securesgd.reproduce.attack_figure import AttackFigure
from securesgd.reproduce.attack_plots import certified_panels
from securesgd.reproduce.lines import pixeldp_lines

FIGURE = AttackFigure(
    lines=pixeldp_lines(attack_size=0.02, learned="learned-from-prior", learned_epsilon=4.0),
    common={
        "dataset": "mnist", "learning_rate": 0.05, "copies": 1, "attack_steps": 10,
        "budgets": "0.005 0.01 0.02 0.05 0.1",
    },
    profiles={
        # Reduced: the network, the training (the authors have 40,000 steps and more), images, draws, seeds.
        "quick": {"network": "tanh-cnn", "batch_size": 256, "steps": 1200, "examples": 150, "votes": 300, "eot": 10,
                  "certify_draws": 1000},
        "paper": {"network": "mnist-cnn", "batch_size": 128, "steps": 9400, "examples": 1000, "votes": 1000, "eot": 20,
                  "certify_draws": 10_000},
    },
    panels=partial(certified_panels, robust_epsilon=4.0, stated={"pixeldp": (0.0417, 5.89e-3)}),
    MINUTES={"quick": 11, "paper": 90},
)  # fmt: skip

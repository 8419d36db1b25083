"""Ways to obtain r, the vector that says where the noise of the first layer goes."""

from securesgd.redistribution.gradient_scores import from_gradients
from securesgd.redistribution.independent import prior, random, uniform
from securesgd.redistribution.record import Redistribution

__all__ = ["Redistribution", "from_gradients", "prior", "random", "uniform"]

import itertools

import torch

from securesgd.runtime.randomness import seeded_generator


def test_every_part_of_the_place_changes_the_numbers():
    places = list(itertools.product((0, 1, 2**40), ("attack", "votes"), (0, 1)))
    first = [float(torch.rand((), generator=seeded_generator(*place))) for place in places]
    assert len(set(first)) == len(places)
    assert first == [float(torch.rand((), generator=seeded_generator(*place))) for place in places]

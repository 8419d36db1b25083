import pytest
import torch
from torch import nn

from securesgd.errors import InvalidInputError
from securesgd.models.networks import NETWORKS, network


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [("mnist-cnn", (1, 28, 28), 857_738), ("cifar-cnn", (3, 32, 32), 2_284_170), ("tanh-cnn", (1, 28, 28), 26_010)],
)
def test_shapes_and_sizes(name: str, shape: tuple[int, int, int], parameters: int) -> None:
    model = network(name, shape, 10)
    assert model(torch.rand(2, *shape)).shape == (2, 10)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_kernels_and_maps_are_the_papers() -> None:
    def convolutions(name: str, shape: tuple[int, int, int]) -> list[tuple[int, int]]:
        return [(m.kernel_size[0], m.out_channels) for m in network(name, shape, 10) if isinstance(m, nn.Conv2d)]

    assert convolutions("mnist-cnn", (1, 28, 28)) == [(5, 32), (5, 64)]
    assert convolutions("cifar-cnn", (3, 32, 32)) == [(3, 128), (5, 128), (5, 256)]
    assert convolutions("tanh-cnn", (1, 28, 28)) == [(8, 16), (4, 32)]


@pytest.mark.parametrize("name", NETWORKS)
def test_examples_are_treated_one_by_one(name: str) -> None:
    shape = (3, 32, 32)
    model, x = network(name, shape, 7).double(), torch.rand(3, *shape, dtype=torch.float64)
    together = model(x)
    torch.testing.assert_close(together, torch.cat([model(x[i : i + 1]) for i in range(3)]))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_last_hidden_layer_has_the_width_asked_for(name: str) -> None:
    widths = [m.out_features for m in network(name, (1, 28, 28), 10, hidden=25) if isinstance(m, nn.Linear)]
    assert widths == [25, 10]
    own = [m.out_features for m in network(name, (1, 28, 28), 10) if isinstance(m, nn.Linear)]
    assert own == [{"cifar-cnn": 256, "mnist-cnn": 256}.get(name, 32), 10]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_seed_decides_the_weights(name: str) -> None:
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        states.append(torch.cat([p.flatten() for p in network(name, (1, 28, 28), 10).parameters()]))
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="did you mean 'mnist-cnn'"):
        network("mnist-cn", (1, 28, 28), 10)
    with pytest.raises(InvalidInputError, match="input_shape"):
        network("mnist-cnn", (28, 28), 10)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="too small"):
        network("tanh-cnn", (1, 4, 4), 10)
    with pytest.raises(InvalidInputError, match="classes is 1"):
        network("mnist-cnn", (1, 28, 28), 1)
    with pytest.raises(InvalidInputError, match="hidden is 0"):
        network("mnist-cnn", (1, 28, 28), 10, hidden=0)

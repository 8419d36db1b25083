import pytest
import torch
from torch import nn

from securesgd.errors import InvalidInputError
from securesgd.models.networks import NETWORKS, network


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("mnist-cnn", (1, 28, 28), 857_738),
        ("cifar-cnn", (3, 32, 32), 2_284_170),
        ("tanh-cnn", (1, 28, 28), 26_010),
        ("scatter-linear", (1, 28, 28), 39_700),
        ("scatter-linear", (3, 32, 32), 155_530),
        ("scatter-cnn", (1, 28, 28), 19_210),
        ("scatter-cnn", (3, 32, 32), 187_210),
    ],
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


def test_a_linear_network_has_no_hidden_layer() -> None:
    with pytest.raises(InvalidInputError, match="no hidden layer"):
        network("linear", (30,), 2, hidden=5)
    assert network("linear", (30,), 2)(torch.zeros(4, 30)).shape == (4, 2)


@pytest.mark.parametrize("name", [name for name in NETWORKS if not name.endswith("linear")])
def test_the_last_hidden_layer_has_the_width_asked_for(name: str) -> None:
    widths = [m.out_features for m in network(name, (1, 28, 28), 10, hidden=25) if isinstance(m, nn.Linear)]
    assert widths == [25, 10]
    own = [m.out_features for m in network(name, (1, 28, 28), 10) if isinstance(m, nn.Linear)]
    wide, narrow = ("cifar-cnn", "mnist-cnn"), ("interval-cnn", "scatter-cnn", "wavelet-cnn")
    assert own == ([256, 10] if name in wide else [10] if name in narrow else [32, 10])


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


class OwnNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def sized_network(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(input_shape[0], classes)


def three_arguments(a: int, b: int, c: int) -> nn.Module:
    return nn.Linear(1, 1)


def no_module() -> int:
    return 3


def failing_network() -> nn.Module:
    raise RuntimeError("first line\nsecond line")


MADE = nn.Linear(4, 3)
HERE = "tests.models.test_networks"


def test_a_network_from_outside_by_its_import_path() -> None:
    sized = network(f"{HERE}:sized_network", (4,), 3)
    assert isinstance(sized, nn.Linear)
    assert (sized.in_features, sized.out_features) == (4, 3)
    assert type(network(f"{HERE}:OwnNetwork", (4,), 3)).__name__ == "OwnNetwork"


def test_a_row_of_the_table_is_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NETWORKS, "mine", lambda shape, classes: nn.Linear(shape[0], classes))
    assert isinstance(network("mine", (3, 8, 8), 10), nn.Linear)
    with pytest.raises(InvalidInputError, match=r"did you mean 'mine'\?"):
        network("mne", (3, 8, 8), 10)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("three_arguments", r"takes neither \(input_shape, classes\) nor no arguments"),
        ("no_module", "made a int; valid: a torch.nn.Module"),
        ("failing_network", "cannot be made: RuntimeError first line"),
        ("MADE", "is a module; valid: a function"),
        ("nothing", "has no function nothing"),
    ],
)
def test_what_makes_no_network_is_refused_in_one_line(name: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        network(f"{HERE}:{name}", (4,), 3)
    assert "\n" not in str(caught.value)

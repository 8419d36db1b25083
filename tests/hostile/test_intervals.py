"""Attempts to make a guarantee of interval bounds false: what hides from the reader, and what changes after it read."""

import copy

import numpy as np
import pytest
import torch
from torch import fx, nn
from torch.nn import functional

import securesgd as ss
from securesgd.certificates.interval.radius import interval_radii, proven_at
from securesgd.certificates.intervals import certify_by_intervals
from securesgd.certificates.record import CertifySettings
from securesgd.certificates.stored_certificates import certificate_rows
from securesgd.certificates.stored_proofs import _require_proven_rows
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.models.interval_network import IntervalNetwork

SIZE = 64  # random inputs of this size have sums far below the 60 at which these networks turn


def linear(weight, bias):
    layer = nn.Linear(len(weight[0]), len(weight))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))
    return layer


class Turning(nn.Module):
    """h = 60 − Σx goes through `between` to two scores; h < 0 only where no random input is."""

    def __init__(self, between):
        super().__init__()
        self.first, self.last = linear([[-1.0] * SIZE], [60.0]), linear([[1.0], [0.0]], [0.0, -2.0])
        self.activation, self.between = nn.ReLU(inplace=True), between

    def forward(self, x):
        return self.last(self.between(self, self.first(x)))


def statement(net, h):
    functional.relu_(h)
    return h


def view(net, h):
    net.activation(h.view(-1, 1))
    return h


@fx.wrap
def relu(h):
    return torch.where(h < 0, -h, h)


class Wrapped(Turning):
    def forward(self, x):
        return self.last(relu(self.first(x)))


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(SIZE, 2)
        self.last = linear([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [0.0, 0.0, -(2.0**20)])  # makes differences look small

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.last(self.first(x))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(SIZE, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.first(x) * torch.where(self.calls > 20, -1.0, 1.0)


class AlwaysDropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.first = nn.Dropout(1e-6), nn.Linear(SIZE, 2)

    def train(self, mode=True):
        super().train(mode)
        self.drop.train()
        return self

    def forward(self, x):
        return self.first(self.drop(x))


class DividedByZero(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(SIZE, 2)

    def forward(self, x):
        return self.first(x / 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Turning(statement), "relu_ overwrites a value"),
        (lambda: Turning(lambda net, h: h + net.activation(h)), "overwrites a value"),
        (lambda: Turning(view), "overwrites a value"),
        (lambda: Turning(lambda net, h: h + functional.leaky_relu(h, 0.1, True)), "overwrites a value"),
        (lambda: nn.Sequential(nn.Hardtanh(0.2, 0.8, inplace=True), nn.Linear(SIZE, 2)), "overwrites a value"),
        (lambda: nn.Sequential(nn.Identity(), nn.ReLU(inplace=True), nn.Linear(SIZE, 2)), "overwrites a value"),
        (lambda: Wrapped(None), "relu of tests.hostile"),
        (Autocast, "autocast"),
        (Counting, "buffer calls"),
        (AlwaysDropping, "drop .Dropout. has no sound"),
        (DividedByZero, "by zero"),
    ],
)
def test_what_a_forward_hides_is_refused(make, message):
    with pytest.raises(InvalidInputError, match=message):
        interval_radii(make().eval(), torch.full((1, SIZE), 0.99))


def test_an_activation_in_place_is_read_where_nobody_else_sees_it():
    net = Turning(lambda net, h: net.activation(functional.relu_(h).view(-1, 1))).eval()
    assert interval_radii(net, torch.full((1, SIZE), 0.5)).interval[0] > 0.4


def test_convolutions_in_bfloat16_are_refused():
    settings = torch.backends.mkldnn.conv
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    try:
        with pytest.raises(InvalidInputError, match="fp32_precision"):
            interval_radii(nn.Linear(4, 2), torch.rand(1, 4))
    finally:
        settings.fp32_precision = before


def boxed():
    torch.manual_seed(0)
    return IntervalNetwork(nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)), (8,), steps=10)


def replace_layer(model):
    model.network[2] = nn.Linear(6, 3)


def replace_weight(model):
    model.network[0].weight = nn.Parameter(torch.randn(6, 8))


def assign_weights(model):
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)


@pytest.mark.parametrize("change", [replace_layer, replace_weight, assign_weights])
def test_boxes_of_replaced_weights_are_refused(change):
    model = boxed()
    change(model)
    with pytest.raises(InvalidInputError, match="replaced"):
        model.train()(torch.rand(2, 8))


def test_a_copy_has_boxes_of_its_own_weights():
    model = copy.deepcopy(boxed()).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    x = torch.rand(2, 8, dtype=torch.float64)
    torch.testing.assert_close(model.train()(x)[:, 0], model.eval()(x))


def test_a_last_layer_that_is_used_twice_is_refused():
    layer = nn.Linear(2, 2)
    with pytest.raises(InvalidInputError, match="used before"):
        IntervalNetwork(nn.Sequential(layer, nn.ReLU(), layer), (2,), steps=10)


class Third(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = linear([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])

    def forward(self, x):
        return self.first(x) / 3


def test_the_class_is_the_networks_own_where_a_factor_would_round_otherwise():
    net, larger = Third().eval(), torch.rand(2000, generator=torch.Generator().manual_seed(0))
    x = torch.stack([torch.nextafter(larger, torch.zeros(())), larger], dim=1)  # x/3 ties where x·(1/3) does not
    with torch.no_grad():
        expected = net(x).argmax(1).numpy()
    assert (interval_radii(net, x, bounds="interval", tolerance=0.5).prediction == expected).all()


@pytest.mark.parametrize("asked", [False, True])
def test_a_stored_radius_raised_by_less_than_a_billionth_is_refused(asked, tmp_path):
    torch.manual_seed(0)
    model, x = nn.Linear(SIZE, 2).eval(), torch.rand(1, SIZE)
    top = interval_radii(model, x, tolerance=1e-6).interval[0]
    low, high = 0.0, 2 * top
    while np.nextafter(low, 1) < high:  # the largest number that is proven
        middle = (low + high) / 2
        low, high = (middle, high) if proven_at(model, x, [int(model(x).argmax())], middle)[0] else (low, middle)
    settings = CertifySettings(radius=low if asked else None)
    certificate = certify_by_intervals(model, x, settings.for_model(model), np.arange(1))
    rows = certificate_rows(certificate, model(x).argmax(1), "")
    record = {"settings": settings.for_model(model).json()}
    _require_proven_rows(tmp_path, rows, record, model, x)
    rows[0]["radius_tight"] = rows[0]["radius_interval"] = float(high)
    with pytest.raises(DamagedFileError, match="changed"):
        _require_proven_rows(tmp_path, rows, record, model, x)


def _settings(**changes):
    return {"epsilon": 8.0, "delta": 1e-4, "batch_size": 32, "steps": 6, "noise_seed": 3, "checkpoint_steps": 2,
            "block_steps": 2} | changes  # fmt: skip


def _trained(out, on_step=None, resume=False, **changes):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4))
    model = IntervalNetwork(plain, (1, 8, 8), train_radius=0.1, **changes)
    generator = torch.Generator().manual_seed(1)
    data = torch.rand(200, 1, 8, 8, generator=generator), torch.randint(4, (200,), generator=generator)
    return ss.train(model, data, out=out, on_step=on_step, resume=resume, **_settings())


def test_a_run_that_was_interrupted_ends_with_the_same_bits(tmp_path):
    """The radius of the box is a matter of the step, and a resumed run must not begin its ramp again."""
    whole = _trained(tmp_path / "whole")

    def fails(report):
        if report.step == 5:
            raise OSError("the power is out")

    with pytest.raises(OSError, match="power"):
        _trained(tmp_path / "parts", on_step=fails)
    parts = _trained(tmp_path / "parts", resume=True)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, parts.model.state_dict()[name]), name
    assert int(parts.model.steps_done) == 6


def test_a_run_with_boxes_of_any_range_is_loaded_again(tmp_path):
    run = _trained(tmp_path / "a", clip_box=False)
    again = ss.load_run(
        tmp_path / "a", network=nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4))
    )
    assert again.model.settings.clip_box is False
    x = torch.rand(1, 8, 8)
    assert again.predict(x) == run.predict(x)


def test_weights_changed_in_memory_are_not_served(tmp_path):
    run = _trained(tmp_path / "a")
    with torch.no_grad():
        run.model.network[1].weight.neg_()
    with pytest.raises(InvalidInputError, match="weights in memory"):
        run.predict(torch.rand(1, 8, 8))

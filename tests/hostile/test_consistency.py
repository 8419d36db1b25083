"""Attempts to break what a loss that couples the copies of one example promises: sensitivity, epsilon and noise."""

import math
import shlex
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import securesgd as ss
from securesgd.clipping.engine import ClippingEngine
from securesgd.config import run_config
from securesgd.errors import InvalidInputError
from securesgd.models.networks import network
from securesgd.models.noisy import NoisyNetwork
from securesgd.reproduce.attack_grid import training_settings
from securesgd.reproduce.figures import FIG3_GRID, FIG5_GRID
from securesgd.runtime.tables import read_rows
from securesgd.training.consistency import consistent_cross_entropy, joint_loss
from securesgd.training.private_training import PrivateTraining
from securesgd.training.settings import TrainingSettings
from securesgd.training.step_loss import per_example_cross_entropy
from tests.bfloat16 import needs_bfloat16

COPIES, COUNT = 3, 7
RESULTS = Path(__file__).parents[2] / "results"
SETTINGS = {
    "delta": 1e-5, "noise_multiplier": 1.0, "batch_size": 10, "steps": 6, "copies": 2, "checkpoint_steps": 1,
    "block_steps": 2,
}  # fmt: skip


class Log(nn.Module):
    """NaN for what is negative, −inf for 0."""

    def forward(self, x):
        return x.log()


MODELS = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3)),
    "norms": lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)),
    "not finite": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.ReLU(), Log()),
    "one class": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 1)),
}


def made(name, dtype=torch.float64):
    torch.manual_seed(3)
    return MODELS[name]().to(dtype)


def batch(count=COUNT, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, COPIES, 1, 4, 4, generator=generator, dtype=dtype)
    return inputs, torch.randint(3, (count,), generator=generator)


def joint(strength, copies=COPIES):
    return partial(consistent_cross_entropy, copies=copies, consistency=strength)


def vector(sums):
    return torch.cat([g.flatten().double() for g in sums.gradients.values()])


ATTACKS = {
    "far apart": lambda x: torch.cat([-1e4 * x[:1], 1e4 * x[1:]]),
    "one copy is not finite": lambda x: torch.cat([x[:1] * math.inf, x[1:]]),
    "near overflow": lambda x: torch.full_like(x, 3e38),
    "nearly equal": lambda x: x[:1] + 1e-7 * x,
}


@pytest.mark.filterwarnings("ignore:clipping runs the examples one by one")  # where float32 has no digits left
@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=needs_bfloat16)])
@pytest.mark.parametrize("name", MODELS)
def test_no_copies_move_the_sum_by_more_than_the_sensitivity(name, precision):
    """Against the null record in its place, in pieces that do not divide the batch; other examples keep their bits."""
    model, (inputs, targets) = made(name, torch.float32), batch(dtype=torch.float32)
    targets = torch.zeros_like(targets) if name == "one class" else targets
    for place, (attack, strength) in enumerate(zip(ATTACKS.values(), (1e30, 5.0, 1e-30, 1e8), strict=True)):
        engine = ClippingEngine(model, 1e-3, precision)
        attacked, null = inputs.clone(), inputs.clone()
        attacked[place], null[place] = attack(inputs[place]), math.nan
        run = partial(engine.clipped_sum, targets=targets, loss=joint(strength), copies=COPIES, copies_given=True)
        after, before = run(attacked, micro_batch=2 + place), run(null, micro_batch=2 + place)
        assert (vector(after) - vector(before)).norm() <= engine.sensitivity
        others = torch.arange(COUNT) != place
        assert torch.equal(after.norms[others].nan_to_num(-1), before.norms[others].nan_to_num(-1))
        assert torch.equal(after.losses[others].nan_to_num(-1), before.losses[others].nan_to_num(-1))


@pytest.mark.parametrize("pieces", [1, 2, 4, 100])
def test_pieces_shares_and_single_examples_add_up_to_the_whole(pieces):
    """Of torchrun, too, which gives each process every second example."""
    model, (inputs, targets) = made("norms"), batch()
    engine = ClippingEngine(model, 0.05)
    run = partial(engine.clipped_sum, loss=joint(40.0), copies=COPIES, copies_given=True)
    whole = run(inputs, targets)
    assert (whole.norms > 0.05).any()
    shares = [run(inputs[rank::2], targets[rank::2], micro_batch=pieces) for rank in (0, 1)]
    alone = [run(inputs[i : i + 1], targets[i : i + 1]) for i in range(COUNT)]
    nobody = run(inputs[:0], targets[:0], micro_batch=pieces)
    assert not vector(nobody).any()
    for parts in (shares, alone, [run(inputs, targets, micro_batch=pieces), nobody]):
        torch.testing.assert_close(sum(vector(part) for part in parts), vector(whole), rtol=1e-9, atol=1e-12)
    assert engine.slow_reason is None


def test_a_loss_that_couples_copies_of_two_examples_is_refused():
    """With another number of copies than the model has: rows of one example are those of two for the loss."""
    inputs, targets = batch(4)
    for copies in (2, 6, 12):
        engine = ClippingEngine(made("norms"), 1.0)
        with pytest.raises(InvalidInputError, match="depends on other examples"):
            engine.clipped_sum(inputs, targets, joint(5.0, copies), COPIES, copies_given=True)


def test_the_loss_of_a_run_couples_as_many_copies_as_its_steps_have():
    """The code of a loss is searched for mixing once, whatever its numbers: these two must never differ."""
    settings = TrainingSettings(**SETTINGS | {"copies": 4, "consistency": 5.0})
    assert joint_loss(per_example_cross_entropy, settings).keywords == {"copies": 4, "consistency": 5.0}
    with pytest.raises(AttributeError):
        settings.copies = 2


# In a run


def noisy_network():
    torch.manual_seed(0)
    return NoisyNetwork(network("linear", (1, 8, 8), 4), (1, 8, 8), norm="l2", radius_per_std=0.3)


def images():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(40, 1, 8, 8, generator=generator), torch.randint(4, (40,), generator=generator)


def two_steps(folder, strength, loss, resume=False, **changes):
    settings = TrainingSettings(**SETTINGS | {"consistency": strength} | changes)
    training = PrivateTraining(noisy_network(), images(), settings, folder, loss=loss, resume=resume)
    for given in training.batches():
        training.step(given)
        if training.step_number % 2 == 0:
            break
    training.close()
    return training.epsilon


@pytest.mark.parametrize("loss", [per_example_cross_entropy, None], ids=["fixed loop", "own loop"])
def test_epsilon_is_the_same_and_no_other_strength_sees_the_same_noise(tmp_path, loss):
    plain, paid = two_steps(tmp_path / "a", 0.0, loss), two_steps(tmp_path / "b", 5.0, loss)
    assert plain == paid
    for folder, strengths in (("a", [5.0]), ("b", [0.0, 4.0, math.nextafter(5, 6)])):
        for strength in strengths:
            with pytest.raises(InvalidInputError, match="are not those"):
                two_steps(tmp_path / folder, strength, loss, resume=True)
    with pytest.raises(InvalidInputError, match="are not those"):
        two_steps(tmp_path / "b", 5.0, loss, resume=True, copies=3)
    assert two_steps(tmp_path / "b", 5.0, loss, resume=True) == two_steps(tmp_path / "a", 0.0, loss, resume=True) > paid


def test_an_edited_configuration_does_not_let_a_run_go_on_with_another_strength(tmp_path):
    settings = {"delta": 1e-5, "noise_multiplier": 1.0, "batch_size": 10, "steps": 4, "copies": 2}

    def stop(report):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ss.train(noisy_network(), images(), out=tmp_path / "a", on_step=stop, consistency=5.0, **settings)
    config = tmp_path / "a" / "config.toml"
    config.write_text(config.read_text().replace("consistency = 5.0", "consistency = 4.0"))
    with pytest.raises(InvalidInputError):
        ss.train(noisy_network(), images(), out=tmp_path / "a", resume=True, consistency=4.0, **settings)


def test_a_seed_has_other_noise_with_another_strength(tmp_path):
    released = []
    for strength in (0.0, 5.0, 6.0):
        settings = SETTINGS | {"steps": 1, "noise_multiplier": 1e6, "noise_seed": 3, "consistency": strength}
        model = noisy_network()
        training = PrivateTraining(
            model, images(), TrainingSettings(**settings), tmp_path / f"{strength}", loss=per_example_cross_entropy
        )
        for given in training.batches():
            training.step(given)
        training.close()
        released.append(torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad]).numpy())
    assert np.abs(np.corrcoef(released) - np.eye(3)).max() < 0.5


@pytest.mark.parametrize("bad", [True, "5", math.nan, math.inf, -1e-9, None, 1e31, [1.0]])
def test_what_is_no_strength_is_refused(bad):
    with pytest.raises(InvalidInputError, match="consistency is "):
        TrainingSettings(**SETTINGS | {"consistency": bad})


# Presets


@pytest.mark.parametrize("dataset", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_the_strength_of_a_preset_gives_way_to_one_copy_and_one_that_is_given_does_not(dataset, norm, tmp_path):
    preset = run_config(dataset, "secure-sgd", norm=norm)
    assert preset.training.consistency > 0
    one = run_config(dataset, "secure-sgd", norm=norm, copies=1)
    assert one == run_config(dataset, "secure-sgd", norm=norm, copies=1, consistency=0.0)
    assert run_config(dataset, "secure-sgd", norm=norm, copies=2).training.consistency == preset.training.consistency
    with pytest.raises(InvalidInputError, match="consistency is 5, but copies is 1; valid: copies >= 2"):
        run_config(dataset, "secure-sgd", norm=norm, copies=1, consistency=5.0)
    file = tmp_path / "config.toml"
    file.write_text("[training]\ncopies = 1\n")
    assert run_config(dataset, "secure-sgd", file, norm=norm) == one
    assert run_config(dataset, "secure-sgd", file, norm=norm, copies=4, consistency=1.0).training.consistency == 1.0
    assert not run_config(dataset, "dpsgd").training.consistency


@pytest.mark.parametrize("dataset", ["mnist", "fashion-mnist"])
def test_the_configuration_of_a_run_of_an_earlier_version_is_what_it_was(dataset, tmp_path):
    """Its file has all settings but those of later versions, of which the preset knows nothing then."""
    former = run_config(dataset, "secure-sgd", norm="l2", consistency=0.0, kept_copies=False, steps=77)
    file = tmp_path / "config.toml"
    newer = ("consistency", "kept_copies", "augmentation", "precision")
    lines = [line for line in former.to_toml().splitlines() if not line.startswith(newer)]
    file.write_text("\n".join(lines))
    assert run_config(file=file) == former
    assert run_config(file=file, consistency=3.0).training.consistency == 3.0
    file.write_text(former.to_toml().replace("consistency = 0.0", "consistency = 1.5"))
    assert run_config(file=file).training.consistency == 1.5
    file.write_text(
        "\n".join(line for line in lines if not line.startswith("ema_decay"))
    )  # one's own, of some settings
    assert run_config(file=file).training.consistency > 0


def commands_of_one_copy():
    for path in sorted(RESULTS.glob("*/rows.csv")):
        commands = {row["command"] for row in read_rows(path) if "--set copies=1" in (row.get("command") or "")}
        yield from ((path.parent.name, command) for command in sorted(commands))


def test_commands_in_the_results_still_say_what_they_said():
    """They were written before the presets had a strength."""
    found = set()
    for experiment, command in commands_of_one_copy():
        words = shlex.split(command)
        dataset, method = (words[words.index(f"--{name}") + 1] for name in ("dataset", "method"))
        named = (word.split("=", 1) for word in words if "=" in word)
        values = {name: float(v) if "." in v else int(v) if v.isdigit() else v for name, v in named}
        config = run_config(dataset, method, **values)
        assert (config.training.copies, config.training.consistency) == (1, 0.0)
        found.add(experiment)
    assert found >= {"paper-network", "redistribution"}


def test_the_figures_of_mnist_can_still_be_drawn():
    grids, profiles = (FIG3_GRID, FIG5_GRID), ("quick", "standard")
    cells = [cell for grid in grids for profile in profiles for cell in grid.cells(profile)]
    assert {cell["copies"] for cell in cells} >= {1}
    for cell in cells:
        config = run_config(cell["dataset"], cell["method"], **training_settings(cell))
        assert not config.training.consistency or cell["copies"] is None

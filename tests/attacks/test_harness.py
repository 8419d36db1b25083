"""The harness believes nothing: attacks that lie, cheat or return nonsense are measured as what they are."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from securesgd.attacks import harness
from securesgd.attacks.ball import sizes
from securesgd.attacks.craft import craft
from securesgd.attacks.harness import attack_examples, clean_votes, clip_to_budget
from securesgd.attacks.robust_accuracy import COLUMNS
from securesgd.attacks.settings import attack_settings
from securesgd.models.predict import vote_counts

QUICK = {"steps": 4, "eot": 8, "restarts": 1}
INDICES = np.arange(60)


@pytest.fixture
def few(images):
    return images[0][:60], images[1][:60]


def cheating(change):
    """Return an attack that does its work and then changes its images."""

    def attack(model, inputs, labels, settings, **rest):
        crafted = craft(model, inputs, labels, settings, **rest)
        return replace(crafted, images=change(crafted.images, inputs), broken_by=["fgsm"] * len(inputs))

    return attack


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_an_attack_that_leaves_the_budget_gains_nothing(plain, few, norm, monkeypatch):
    settings = attack_settings("ifgsm", {"linf": 0.02, "l2": 0.1}[norm], norm=norm, **QUICK)
    monkeypatch.setattr(harness, "craft", cheating(lambda made, clean: clean + 20 * (made - clean)))
    examples = attack_examples(plain, *few, INDICES, settings)
    assert examples.outside > 0.8 * examples.attacked
    assert bool((sizes(examples.images - few[0], norm) <= settings.budget + 1e-6).all())
    assert bool(((examples.images >= 0) & (examples.images <= 1)).all())
    assert [row["size"] for row in examples.rows] == pytest.approx(sizes(examples.images - few[0], norm).tolist())
    broken = sum(row["success"] for row in examples.rows)
    assert broken < 20  # with the change it claimed, nearly all would fall


def test_pixels_out_of_range_and_nonsense_are_put_right(few):
    inputs = few[0][:4]
    claimed = inputs.clone()
    claimed[0, 0, 0, 0] = torch.nan
    claimed[1] = -5
    claimed[2] = torch.inf
    images, outside = clip_to_budget(claimed, inputs, attack_settings("fgsm", 0.1))
    assert outside == 3
    assert torch.equal(images[0], inputs[0])
    assert torch.equal(images[2], inputs[2])
    torch.testing.assert_close(images[1], (inputs[1] - 0.1).clamp(0, 1))
    assert torch.equal(images[3], inputs[3])


def test_success_is_measured_not_told(plain, few, monkeypatch):
    monkeypatch.setattr(harness, "craft", cheating(lambda _, clean: clean))  # claims to have won with clean images
    examples = attack_examples(plain, *few, INDICES, attack_settings("fgsm", 0.3))
    for row in examples.rows:
        assert row["prediction"] == row["clean_prediction"]
        assert row["success"] == (row["prediction"] != row["label"])
        assert row["size"] == 0


def test_votes_are_fresh_and_those_of_the_attacked_image(noisy, few):
    settings = attack_settings("mim", 0.15, **QUICK)
    examples = attack_examples(noisy, *few, INDICES, settings, draws=300)
    own = vote_counts(noisy, examples.images, 3000, torch.Generator().manual_seed(77))
    for row, votes in zip(examples.rows, own, strict=True):
        share = float(votes[row["label"]]) / 3000
        spread = (share * (1 - share) * (1 / 300 + 1 / 3000)) ** 0.5
        assert abs(row["label_votes"] / 300 - share) < 5 * spread + 0.02
    again = attack_examples(noisy, *few, INDICES, settings, draws=300)
    assert examples.rows == again.rows  # the same examples in the same part: the same numbers
    assert not torch.equal(
        clean_votes(noisy, few[0], INDICES, 300, seed=0), clean_votes(noisy, few[0], INDICES, 300, seed=1)
    )


def test_examples_wrong_without_attack_stay_wrong(plain, few):
    labels = few[1].clone()
    labels[:10] = (labels[:10] + 1) % 10  # ten labels the model does not give
    sound = attack_examples(plain, few[0], labels, INDICES, attack_settings("ifgsm", 0.3, **QUICK))
    assert sound.attacked <= 50
    assert torch.equal(sound.images[:10], few[0][:10])
    assert all(row["success"] and row["size"] == 0 for row in sound.rows[:10])
    published = attack_settings("ifgsm", 0.3, protocol="as-published")
    assert attack_examples(plain, few[0], labels, INDICES, published).attacked == 60


def test_a_targeted_attack_succeeds_at_its_target_only(plain, few):
    settings = attack_settings("madry", 0.4, target="3", steps=15, restarts=1)
    examples = attack_examples(plain, *few, INDICES, settings)
    for row in examples.rows:
        if row["target"] == "":
            assert row["label"] == 3 or row["clean_prediction"] != row["label"]
            assert not row["success"]
        else:
            assert (row["target"], row["success"]) == (3, row["prediction"] == 3)
    assert sum(row["success"] for row in examples.rows) > 40


def test_certificates_are_asked_at_both_images(noisy, few):
    requests = []

    def certifier(images, indices, place):
        requests.append((place, images.clone(), indices))
        classes = vote_counts(noisy, images, 300, torch.Generator().manual_seed(1)).argmax(1).numpy()
        classes[0] = (classes[0] + 1) % 10  # of another class than the votes
        return {"prediction": classes, "tight": np.full(len(images), 0.2), "as-published": np.full(len(images), 0.3)}

    examples = attack_examples(
        noisy, *few, INDICES, attack_settings("fgsm", 0.1, eot=8), draws=300, certifier=certifier
    )
    (clean, before, every), (attacked, after, some) = requests
    assert (clean, attacked) == ("clean", "attacked")
    assert torch.equal(before, few[0])
    assert torch.equal(after, examples.images[torch.from_numpy(some)])
    assert np.array_equal(every, INDICES)
    assert len(some) == examples.attacked
    assert (examples.rows[0]["clean_radius"], examples.rows[0]["clean_radius_published"]) == (0, 0)
    assert sum(row["clean_radius"] == 0.2 for row in examples.rows) > 50
    assert sum(row["radius_published"] == 0.3 for row in examples.rows) > 40


def test_rows_have_the_columns_of_the_file(plain, few):
    examples = attack_examples(plain, *few, INDICES, attack_settings("fgsm", 0.1))
    assert ("cell", *examples.rows[0]) == COLUMNS
    assert examples.rows[0]["draws"] == 1
    assert examples.rows[0]["clean_radius"] == ""

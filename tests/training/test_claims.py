"""What a run may claim: its adjacency, its key, and an attacker who has two runs with one seed."""

import json

import pytest
import torch

from securesgd.errors import InvalidInputError
from securesgd.privacy import Ledger, replayed_statement
from securesgd.runtime.randomness import Randomness
from securesgd.training.loop import train

from .conftest import small_data, small_model, small_settings


def first_step(folder, examples, seed):
    """Return the update of one full-batch step on the first `examples` examples, as anybody can read it."""
    model = small_model()
    model[2].p = 0.0
    inputs, targets = small_data()
    before = [p.detach().clone() for p in model.parameters()]
    settings = small_settings(
        sampling_rate=1.0, batch_size=12, steps=1, learning_rate=1.0, noise_multiplier=4.0, noise_seed=seed
    )
    train(model, (inputs[:examples], targets[:examples]), settings, folder)
    return torch.cat([(a - b).flatten() for a, b in zip(before, model.parameters(), strict=True)]) * 12


def cosine_with_last_example(difference):
    """Return the cosine between the difference of two updates and the clipped gradient of example 59."""
    model = small_model().eval()
    inputs, targets = small_data()
    loss = torch.nn.functional.cross_entropy(model(inputs[59:]), targets[59:])
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    return torch.nn.functional.cosine_similarity(difference, gradient, dim=0).item()


def test_one_seed_in_two_runs_does_not_show_their_difference(tmp_path, monkeypatch):
    """With a key that depends on the seed alone the difference of two runs *is* the example; that key is kept here."""
    differences, real = [], Randomness.from_seed
    for name in ("now", "seed alone"):
        if name == "seed alone":
            monkeypatch.setattr(Randomness, "from_seed", lambda seed, _: real(seed, ""))
        with_it, without = (first_step(tmp_path / f"{name}{n}", n, seed=7) for n in (60, 59))
        differences.append(abs(cosine_with_last_example(with_it - without)))
    assert differences[1] > 0.99
    assert differences[0] < 0.5  # two draws of noise, 4√2 times as long as the gradient


def test_seeded_runs_share_their_noise_only_if_nothing_differs(tmp_path, monkeypatch):
    contexts = []
    real = Randomness.from_seed
    monkeypatch.setattr(Randomness, "from_seed", lambda s, context: contexts.append(context) or real(s, context))
    variants = [
        (small_model(), small_data(), {}),
        (small_model(), small_data(), {}),
        (small_model(seed=1), small_data(), {}),
        (small_model(), small_data(seed=1), {}),
        (small_model(), small_data(), {"learning_rate": 0.7}),
    ]
    for i, (model, data, changes) in enumerate(variants):
        train(model, data, small_settings(steps=1, **changes), tmp_path / str(i))
    assert contexts[0] == contexts[1]
    assert len(set(contexts)) == 4


@pytest.mark.parametrize(
    ("changes", "adjacency", "size", "rate"),
    [
        ({}, "zero-out", 60, 12 / 60),
        ({"population": 80}, "add-or-remove-one", 80, 12 / 80),
        ({"sampling_rate": 0.25}, "add-or-remove-one", None, 0.25),
    ],
)
def test_the_adjacency_follows_from_what_sets_the_sampling_rate(tmp_path, changes, adjacency, size, rate):
    settings = small_settings(noise_seed=None, **changes)
    statement = train(small_model(), small_data(), settings, tmp_path / "run").statement
    assert statement.adjacency == adjacency
    assert statement == replayed_statement(tmp_path / "run" / "ledger.jsonl")
    said = (
        "contributes nothing, the number of examples being public" if adjacency == "zero-out" else "adding or removing"
    )
    assert said in statement.in_words
    with Ledger.open(tmp_path / "run" / "ledger.jsonl") as ledger:
        assert ledger.header.dataset_size == size
        assert {event.sampling_rate for event in ledger.events} == {rate}
    if adjacency == "add-or-remove-one":  # then the number of examples is not public: 60 must not be in a file
        numbers = json.loads((tmp_path / "run" / "ledger.jsonl").read_text().splitlines()[0])
        assert 60 not in numbers.values()


def test_a_private_number_of_examples_is_not_shown_by_a_refusal(tmp_path):
    """Fewer examples than the batch: refused where the number is public, trained where it is not."""
    inputs, targets = small_data()
    few = inputs[:10], targets[:10]
    with pytest.raises(InvalidInputError, match="batch_size is 12 but there are 10 examples"):
        train(small_model(), few, small_settings(), tmp_path / "a")
    assert not (tmp_path / "a").exists()
    train(small_model(), few, small_settings(population=60), tmp_path / "b")


def test_the_statement_says_what_exact_noise_costs(tmp_path):
    statement = train(small_model(), small_data(), small_settings(noise_seed=None), tmp_path / "run").statement
    noise = statement.noise
    assert noise.coordinates == sum(p.numel() for p in small_model().parameters())
    assert noise.clipping_norm < noise.sensitivity < noise.bound < 1.01 * noise.clipping_norm
    assert "adds 0 to epsilon, 0 to delta and 0." in statement.in_words
    assert statement.json()["noise"]["seeded"] is False

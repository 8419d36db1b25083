"""The attacks beside an independent implementation, on networks without noise."""

import foolbox
import pytest
import torch

from securesgd.attacks.craft import craft
from securesgd.attacks.settings import attack_settings
from securesgd.data.load import load_data
from tests.attacks.conftest import fitted

# The last point instead of the best, and no early stop: what foolbox does.
AS_FOOLBOX = {"keep_best": False, "early_stop": False}
F = foolbox.attacks
# budgets that leave some images standing, so that two attacks can differ
BUDGETS = {"linf": 0.1, "l2": 0.6}


def others(model, attack, inputs, labels, budget):
    return attack(foolbox.PyTorchModel(model, bounds=(0, 1)), inputs, labels, epsilons=budget)[1]


def success(model, images, labels):
    with torch.no_grad():
        return float((model(images).argmax(1) != labels).float().mean())


@pytest.mark.parametrize(
    ("attack", "norm", "reference"),
    [
        ("fgsm", "linf", F.LinfFastGradientAttack()),
        ("fgsm", "l2", F.L2FastGradientAttack()),
        ("ifgsm", "linf", F.LinfBasicIterativeAttack(rel_stepsize=0.1, steps=10)),
        ("ifgsm", "l2", F.L2BasicIterativeAttack(rel_stepsize=0.1, steps=10)),
    ],
    ids=["fgsm-linf", "fgsm-l2", "ifgsm-linf", "ifgsm-l2"],
)
def test_fgsm_and_ifgsm_equal_foolbox(plain, images, attack, norm, reference):
    settings = attack_settings(attack, BUDGETS[norm], norm=norm, **AS_FOOLBOX)
    ours = craft(plain, *images, settings).images
    theirs = others(plain, reference, *images, BUDGETS[norm])
    assert (ours - images[0]).abs().max() > 0.9 * BUDGETS["linf"]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_mim_succeeds_as_often_as_foolbox(plain, digits, norm):
    inputs, labels = digits.test_inputs, digits.test_targets
    kind = {"linf": F.LinfMomentumIterativeFastGradientMethod, "l2": F.L2MomentumIterativeFastGradientMethod}[norm]
    theirs = others(plain, kind(rel_stepsize=0.1, steps=10), inputs, labels, BUDGETS[norm])
    ours = craft(plain, inputs, labels, attack_settings("mim", BUDGETS[norm], norm=norm, **AS_FOOLBOX)).images
    assert 0.2 < success(plain, theirs, labels) < 0.98
    assert success(plain, ours, labels) >= success(plain, theirs, labels) - 0.01
    if norm == "linf":  # the paper's form; in l2 foolbox leaves out the paper's l1 normalisation of each gradient
        assert success(plain, ours, labels) <= success(plain, theirs, labels) + 0.01


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_pgd_succeeds_as_often_as_foolbox(plain, digits, norm):
    # Random starts differ, so a few hundred images would differ by more than a point by chance.
    inputs = torch.cat([digits.test_inputs, digits.train_inputs])
    labels = torch.cat([digits.test_targets, digits.train_targets])
    kind = {"linf": F.LinfProjectedGradientDescentAttack, "l2": F.L2ProjectedGradientDescentAttack}[norm]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = others(plain, kind(rel_stepsize=0.1, steps=25, random_start=True), inputs, labels, BUDGETS[norm])
    same = attack_settings("madry", BUDGETS[norm], norm=norm, steps=25, restarts=1, **AS_FOOLBOX)
    ours = craft(plain, inputs, labels, same).images
    assert same.step_share / same.steps == pytest.approx(0.1)
    assert 0.2 < success(plain, theirs, labels) < 0.98
    assert success(plain, ours, labels) == pytest.approx(success(plain, theirs, labels), abs=0.01)


class MomentumOfThePaper(F.LinfMomentumIterativeFastGradientMethod):
    """foolbox adds up signs of gradients; Dong et al. 2018, Eq. 6, adds up gradients divided by their l1 norm."""

    def normalize(self, gradients, *, x, bounds):
        return gradients / foolbox.devutils.atleast_kd(gradients.flatten(1).abs().mean(axis=1), gradients.ndim)


def test_mim_equals_foolbox_with_the_paper_s_normalisation(plain, images):
    theirs = others(plain, MomentumOfThePaper(rel_stepsize=0.1, steps=10), *images, 0.1)
    ours = craft(plain, *images, attack_settings("mim", 0.1, **AS_FOOLBOX)).images
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_mnist_undefended_and_beside_foolbox():
    from securesgd.models.networks import network

    data = load_data("mnist")
    torch.manual_seed(0)
    model = fitted(network("mnist-cnn", data.input_shape, data.classes), data.train_inputs, data.train_targets, 300)
    inputs, labels = data.test_inputs[:1000], data.test_targets[:1000]
    assert success(model, inputs, labels) < 0.05
    for attack in ("ifgsm", "mim", "madry", "apgd-ce", "apgd-dlr"):
        assert success(model, craft(model, inputs, labels, attack_settings(attack, 0.3)).images, labels) > 0.95, attack
    references = {
        "ifgsm": F.LinfBasicIterativeAttack(rel_stepsize=0.1, steps=10),
        "mim": F.LinfMomentumIterativeFastGradientMethod(rel_stepsize=0.1, steps=10),
        "madry": F.LinfProjectedGradientDescentAttack(rel_stepsize=0.25, steps=10),
    }
    for attack, reference in references.items():
        theirs = success(model, others(model, reference, inputs, labels, 0.1), labels)
        settings = attack_settings(attack, 0.1, restarts=1, **AS_FOOLBOX)
        ours = success(model, craft(model, inputs, labels, settings).images, labels)
        assert ours >= theirs - 0.01, attack
        if attack != "mim":  # where foolbox's momentum is weaker than the paper's
            assert ours <= theirs + 0.01, attack

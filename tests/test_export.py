"""An exported run votes as torch does, proves no more than the package, and is refused in one line where it cannot."""

import hashlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import securesgd as ss
from securesgd.certificates.votes import NoiseSource, NoiseStream, Votes, stream_number
from securesgd.models.split_network import SplitNetwork
from securesgd.theory import clopper_pearson_lower

onnxruntime = pytest.importorskip("onnxruntime")

ROOT = Path(__file__).parents[1]
VOTER = ROOT / "examples" / "onnx_voter.py"
IMAGES, DRAWS, SELECTION = 100, 192, 32
QUICK = {"noise_multiplier": 1.0, "delta": 1e-4, "batch_size": 256, "accountant": "rdp", "noise_seed": 3}


def _voter():
    spec = importlib.util.spec_from_file_location("onnx_voter", VOTER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


voter = _voter()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8)

    def forward(self, x):
        return torch.nn.functional.silu(x + self.norm(self.layer(x)))


def residual_network(input_shape=(1, 8, 8), classes=10):
    pooled = nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, classes)
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GELU(), Block(), *pooled)


def train_own(folder, build, steps=20, **changes):
    """A short private run on digits, always the same; with noise in the network if `changes` say where."""
    torch.manual_seed(0)
    network = build()
    model = ss.NoisyNetwork(network, (1, 8, 8), radius_per_std=0.02, **changes) if changes else network
    data, optimizer = ss.load_data("digits"), lambda parameters: torch.optim.AdamW(parameters, lr=0.01)
    return ss.train(model, data, out=folder, network="own:network", optimizer=optimizer, steps=steps, **QUICK)


NETWORKS = {
    "input": lambda: ss.network("digits-cnn", (1, 8, 8), 10),
    "first-layer": lambda: ss.network("digits-cnn", (1, 8, 8), 10),
    "own": residual_network,
}


@pytest.fixture(scope="module", params=["input", "own", pytest.param("first-layer", marks=pytest.mark.slow)])
def exported(request, tmp_path_factory):
    """A noisy run, its ONNX session and its recipe."""
    folder = tmp_path_factory.mktemp("noisy")
    place = "input" if request.param == "input" else "first-layer"
    run = train_own(folder / "run", NETWORKS[request.param], redistribution="learned", place=place)
    assert run.export(folder / "model.onnx") == folder / "model.onnx"
    return run, *voter.load(str(folder / "model.onnx")), folder / "model.onnx"


def images_of(run):
    return run.data.test_inputs[:IMAGES]


def _stream(model, purpose, index):
    shape, kind = tuple(model.noisy.noise.std.shape), model.noisy.noise.std.dtype
    return NoiseStream(NoiseSource.from_seed(0), purpose, int(stream_number(index)), shape, kind)


class PackageNoise:
    """The draws of a certification by the package, in the place of the voter's generator."""

    def __init__(self, model, index):
        self._streams = iter([_stream(model, "selection", index), _stream(model, "counted", index)])

    def standard_normal(self, shape, dtype):
        normals = next(self._streams).draws(0, shape[0]).numpy()
        assert (normals.shape, normals.dtype) == (shape, dtype)
        return normals


def test_the_votes_are_those_of_torch(exported):
    """Exactly, image by image, unless a draw has two best logits equal up to rounding; hardly any image has one."""
    run, session, _, _ = exported
    network, images = SplitNetwork(run.model), images_of(run)
    votes = Votes(network, images, np.arange(IMAGES), source=NoiseSource.from_seed(0), purpose="counted")
    expected = votes.draw(np.arange(IMAGES), DRAWS)
    unclear, several = np.zeros(IMAGES, int), 0
    counts = np.zeros_like(expected)
    for index in range(IMAGES):
        normals = _stream(run.model, "counted", index).draws(0, DRAWS)
        counts[index] = voter.count_votes(session, images[index].numpy(), normals.numpy())
        with torch.inference_mode():
            logits = network.outputs(network.clean(images[index : index + 1]) + network.spread(normals)).numpy()
        (other,) = session.run(None, {"x": images[index : index + 1].numpy(), "normals": normals.numpy()})
        size = np.abs(logits).max()
        np.testing.assert_allclose(other, logits, rtol=0, atol=1e-5 * size)
        best = np.sort(logits, axis=1)
        unclear[index] = (best[:, -1] - best[:, -2] < 1e-5 * size).sum()
        several += (counts[index] > 0).sum() > 1
    assert (unclear == 0).sum() >= IMAGES - 3
    assert (counts.sum(1) == DRAWS).all()
    assert several > IMAGES / 4, "the noise hardly matters, so equal votes say little"
    np.testing.assert_array_equal(counts[unclear == 0], expected[unclear == 0])
    assert (np.abs(counts - expected).sum(1) <= 2 * unclear).all()


def test_the_radius_is_the_certificate_of_the_same_votes_and_never_more(exported):
    run, session, recipe, _ = exported
    vote = recipe["certificate"] | {"draws": DRAWS, "selection_draws": SELECTION}
    settings = ss.CertifySettings(seed=0, draws=DRAWS, selection_draws=SELECTION, others="rest", norm=vote["norm"])
    certificates = ss.certify(run.model, images_of(run), settings)
    assert vote["sensitivity"] == pytest.approx(certificates.sensitivity.upper, rel=1e-9)
    proven = 0
    for index, image in enumerate(images_of(run)):
        noise = PackageNoise(run.model, index)
        top, p, radius = voter.predict(session, recipe | {"certificate": vote}, image.numpy(), noise)
        tight = certificates.radius["tight"][index]
        assert top == certificates.prediction[index]
        assert p <= certificates.p_lower[index]
        assert p == pytest.approx(certificates.p_lower[index], rel=1e-8)
        assert radius <= tight
        # The recipe's rounding is for every input of this size, the package's for this very one.
        more = vote["rounding_at_zero"] + vote["rounding_per_unit"] * float(image.abs().max())
        more -= certificates.rounding[index]
        assert 0 <= more < 1e-3
        assert radius == pytest.approx(max(0.0, tight - more / vote["sensitivity"]), rel=1e-6, abs=1e-9)
        proven += radius > 0
    assert proven > IMAGES / 10


def test_the_metadata_say_what_the_file_is(exported):
    run, session, recipe, path = exported
    assert recipe["weights_sha256"] == hashlib.sha256((run.path / "model.safetensors").read_bytes()).hexdigest()
    assert recipe["privacy"]["in_words"] == run.privacy.in_words
    assert (recipe["class_names"], recipe["input_shape"]) == ([str(n) for n in range(10)], [1, 8, 8])
    assert tuple(recipe["input_range"]) == run.input_range
    assert recipe["certificate"]["place"] == run.model.place
    assert [x.name for x in session.get_inputs()] == ["x", "normals"]
    content = path.read_bytes()
    for place in (str(ROOT), str(run.path.parent), sys.prefix, ".py"):
        assert place.encode() not in content, "a file that is passed on names no place on this machine"


def test_the_voter_as_a_user_starts_it(exported, tmp_path):
    run, _, _, path = exported
    settings = ss.CertifySettings(seed=0, draws=DRAWS, selection_draws=SELECTION, others="rest")
    certificates = ss.certify(run.model, images_of(run), settings)
    np.save(tmp_path / "x.npy", images_of(run)[int(certificates.radius["tight"].argmax())].numpy())
    np.save(tmp_path / "far.npy", 255 * np.ones((1, 8, 8)))
    np.save(tmp_path / "flat.npy", np.ones(64))
    result = subprocess.run(
        [sys.executable, VOTER, path, tmp_path / "x.npy"], capture_output=True, text=True, check=True
    )
    first = result.stdout.splitlines()[0]
    assert first.startswith(f"class {certificates.prediction[certificates.radius['tight'].argmax()]}, p >= 0.")
    assert " in linf" in first
    assert "fresh noise of 1000 draws" in result.stdout
    assert run.privacy.in_words in result.stdout
    for name, words in (("far", "values from 255 to 255; valid: [0.0, 1.0]"), ("flat", "shape [64]; valid:")):
        with pytest.raises(SystemExit) as end:
            voter.predict(*exported[1:3], np.load(tmp_path / f"{name}.npy"), np.random.default_rng())
        assert words in str(end.value)


@pytest.mark.parametrize("draws", [1, 7, 100, 1000, 20_000])
def test_the_bound_is_clopper_and_pearsons_rounded_down(draws):
    for votes in sorted({0, 1, draws // 2, round(0.9 * draws), draws - 1, draws}):
        for failure_prob in (1e-6, 0.001, 0.05):
            exact, bound = (
                clopper_pearson_lower(votes, draws, failure_prob),
                voter.lower_bound(votes, draws, failure_prob),
            )
            assert bound <= exact
            assert bound == pytest.approx(exact, rel=1e-8)

"""The exported file: its layer, its norm, its bytes, models without noise, and what is refused in one line."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import securesgd as ss
from securesgd.export import METADATA
from tests.command_line import run_here
from tests.test_export import DRAWS, ROOT, VOTER, images_of, train_own, voter

onnxruntime = pytest.importorskip("onnxruntime")


def _train(folder, method, *settings):
    options = [word for setting in settings for word in ("--set", setting)]
    result = run_here("train", "--dataset", "digits", "--method", method, "--out", folder, *options)
    assert result.returncode == 0, result.stderr
    return ss.load_run(folder)


def one_layer_network():
    return nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())


@pytest.fixture(scope="module")
def one_layer(tmp_path_factory):
    """A network that is nothing but its noisy layer, so that its logits are the layer's output."""
    folder = tmp_path_factory.mktemp("layer")
    run = train_own(folder / "run", one_layer_network, steps=3, redistribution="learned", place="first-layer")
    return run, *voter.load(str(run.export(folder / "model.onnx"))), folder / "model.onnx"


def test_the_layer_in_onnxruntime_is_within_the_rounding_of_the_recipe(one_layer):
    run, session, recipe, _ = one_layer
    images, vote = images_of(run), recipe["certificate"]
    std = run.model.noisy.noise.std.double().numpy()
    scale = run.model.noisy.scale.values.detach().double().numpy()
    exact = run.model.layer_in_double(images).numpy() * scale.ravel()
    none = np.zeros((1, *vote["noise_shape"]), np.float32)
    allowed = run.model.rounding(images)
    for index, image in enumerate(images.numpy()):
        (layer,) = session.run(None, {"x": image[None], "normals": none})
        moved = np.linalg.norm((layer[0] - exact[index]) / std.ravel())
        stated = vote["rounding_at_zero"] + vote["rounding_per_unit"] * np.abs(image).max()
        assert moved <= allowed[index] <= stated <= 4 * allowed.max()
        one = np.ones_like(none)
        (with_noise,) = session.run(None, {"x": image[None], "normals": one})
        np.testing.assert_allclose(with_noise - layer, std.reshape(1, -1), rtol=1e-3)


def test_another_process_counts_the_same_votes_with_neither_torch_nor_the_package(one_layer, tmp_path):
    run, session, recipe, path = one_layer
    code = f"""
import json, sys
sys.path.insert(0, {str(VOTER.parent)!r})
import numpy as np, onnx_voter as voter
session, recipe = voter.load({str(path)!r})
image = np.load({str(tmp_path / "x.npy")!r})
noise = np.random.default_rng(5).standard_normal((500, *recipe["certificate"]["noise_shape"]), np.float32)
votes = voter.count_votes(session, image, noise).tolist()
print(json.dumps([votes, sorted({{"torch", "scipy", "securesgd"}} & set(sys.modules))]))
"""
    image = images_of(run)[0].numpy()
    np.save(tmp_path / "x.npy", image)
    noise = np.random.default_rng(5).standard_normal((500, *recipe["certificate"]["noise_shape"]), np.float32)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(result.stdout) == [voter.count_votes(session, image, noise).tolist(), []]


def test_other_noise_gives_other_votes_and_fresh_noise_is_what_it_takes(one_layer):
    run, session, recipe, _ = one_layer
    vote, images = recipe["certificate"], images_of(run).numpy()
    shape = (DRAWS, *vote["noise_shape"])
    normals = [np.random.default_rng(seed).standard_normal(shape, np.float32) for seed in (1, 2)]
    votes = [[voter.count_votes(session, image, noise) for image in images[:20]] for noise in normals]
    assert not np.array_equal(*votes)
    assert vote["noise"].startswith("independent standard normals, fresh for every prediction")


def test_another_norm_has_its_own_sensitivity(one_layer, tmp_path):
    run = one_layer[0]
    _, recipe = voter.load(str(run.export(tmp_path / "l2.onnx", norm="l2")))
    assert recipe["certificate"]["norm"] == "l2"
    assert recipe["certificate"]["sensitivity"] == pytest.approx(run.model.sensitivity("l2").upper, rel=1e-9)
    with pytest.raises(ss.InvalidInputError, match="unknown norm 'l3'"):
        run.export(tmp_path / "l3.onnx", norm="l3")


METHODS = ["dp-ibp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ibp", "dpsgd", "sgd", "adlm"))]


@pytest.mark.parametrize("method", METHODS)
def test_a_model_without_noise_has_the_same_classes_and_no_recipe_for_a_radius(method, tmp_path):
    private = ("accountant=rdp",) if method in ("dp-ibp", "dpsgd") else ()
    run = _train(tmp_path / "run", method, "steps=20", "batch_size=256", *private)
    result = run_here("export", tmp_path / "run", "--onnx", tmp_path / "model.onnx")
    assert (result.returncode, result.stderr) == (0, "")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"x": images_of(run).numpy()})
    with torch.inference_mode():
        expected = run.model(images_of(run)).numpy()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    np.testing.assert_array_equal(logits.argmax(1), expected.argmax(1))
    certificate = json.loads(session.get_modelmeta().custom_metadata_map[METADATA])["certificate"]
    assert certificate["family"] == "interval"
    assert "sensitivity" not in certificate
    with pytest.raises(SystemExit, match="Not computable from this file"):
        voter.load(str(tmp_path / "model.onnx"))
    with pytest.raises(ss.InvalidInputError, match=r"norm is 'l2', but .* has a model without noise"):
        run.export(tmp_path / "l2.onnx", norm="l2")


class Unsupported(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


class Branch(nn.Module):
    def forward(self, x):
        return x if x.isfinite().all() else torch.zeros_like(x)


class OneByOne(nn.Module):
    def forward(self, x):
        return torch.stack([row * 2 for row in x])


@pytest.mark.parametrize(
    ("kind", "words"),
    [(Unsupported, "bessel_j0"), (Branch, "data-dependent"), (OneByOne, "rows|ONNX")],
)
def test_a_network_that_cannot_be_exported_is_refused_in_one_line(kind, words, tmp_path, capfd):
    run = train_own(tmp_path / "run", lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10), kind()), steps=1)
    capfd.readouterr()
    with pytest.raises(ss.InvalidInputError, match=words) as error:
        run.export(tmp_path / "model.onnx")
    assert "\n" not in str(error.value)
    assert "; valid: " in str(error.value)
    assert len(str(error.value)) < 400
    assert capfd.readouterr() == ("", "")
    assert not (tmp_path / "model.onnx").exists()


def test_an_existing_file_stays(one_layer, tmp_path):
    run = one_layer[0]
    (tmp_path / "model.onnx").write_text("mine")
    (tmp_path / "link.onnx").symlink_to(tmp_path / "nowhere")
    for name in ("model.onnx", "link.onnx"):
        with pytest.raises(ss.InvalidInputError, match=f"{name} exists and is not overwritten"):
            run.export(tmp_path / name)
    assert (tmp_path / "model.onnx").read_text() == "mine"
    result = run_here("export", run.path, "--onnx", tmp_path / "model.onnx")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_package_is_named_with_its_extra(name, one_layer, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ss.InvalidInputError, match=rf'^{name} is not installed; run pip install "securesgd\[export\]"$'
    ):
        one_layer[0].export(tmp_path / "model.onnx")


def test_weights_that_are_not_the_folders_are_not_exported(one_layer, tmp_path):
    run = ss.load_run(one_layer[0].path, network=one_layer_network)
    with torch.no_grad():
        run.model.noisy.layer.bias += 1
    with pytest.raises(ss.InvalidInputError, match="the weights in memory are not those of"):
        run.export(tmp_path / "model.onnx")


@pytest.mark.slow
def test_another_process_writes_the_same_bytes(one_layer, tmp_path):
    run, _, _, path = one_layer
    code = f"""
import securesgd as ss
from tests.test_export_file import one_layer_network
ss.load_run({str(run.path)!r}, network=one_layer_network).export({str(tmp_path / "again.onnx")!r})
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (tmp_path / "again.onnx").read_bytes() == path.read_bytes()

"""Guarantees broken on purpose: each change to the source must turn the named tests red.

A copy of the package is changed by one line and the tests run against the copy. A mutation whose text no longer occurs in
the source fails too, so the table cannot rot.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

MUTATIONS = {
    # mathematics
    "halved sigma": ("theory/gaussian.py", "return like_input(_up(c))", "return like_input(_up(c / 2))", "theory/test_gaussian.py"),
    "sigma rounded down": ("theory/gaussian.py", "return x + 8 * _ULP * np.abs(x)", "return x - 1e-11 * np.abs(x)", "theory/test_gaussian.py -k oracle"),
    "condition 1 dropped": ("theory/gaussian.py", "np.maximum(1.0, np.sqrt(2 * np.maximum(s, 0.0)))", "np.sqrt(2 * np.maximum(s, 0.0))", "theory/test_gaussian.py"),
    "sensitivity without its proof": ("theory/spectral.py", "if _has_cholesky(dense):", "if True:", "theory/test_sensitivity.py"),
    "per-map sensitivity": ("theory/sensitivity.py", '"rows": float(np.sqrt(np.sum((whitening * rows) ** 2)) * _UP)', '"rows": published_sensitivity(layer, 1 / whitening**2 / np.sum(1 / whitening**2))', "theory/test_sensitivity.py"),
    "symbol of one phase only": ("theory/spectral.py", "shift, phase = offset // stride, offset % stride", "shift, phase = offset // stride, 0 * offset", "theory/test_sensitivity.py"),
    "failure probability ignored": ("theory/confidence.py", "betaincinv(np.maximum(k, 1), n - k + 1, alpha)", "betaincinv(np.maximum(k, 1), n - k + 1, 0.25)", "theory/test_confidence.py"),
    "no union over classes": ("theory/confidence.py", "np.log(2 * mean.shape[-1] / alpha)", "np.log(2 / alpha)", "theory/test_confidence.py"),
    "anytime bound with half the threshold": ("theory/confidence.py", "threshold = -np.log(alpha) + 1e-9", "threshold = -0.5 * np.log(alpha)", "theory/test_confidence.py"),
    "radius too large by a tenth": ("theory/certificates.py", "radius = (upper - lower) / 2 - ", "radius = (upper - lower) / 1.8 - ", "theory/test_certificates.py"),
    "divided by epsilon twice": ("theory/certificates.py", "lambda e, d: 1 / noise_multiplier(e, d, mechanism)", "lambda e, d: e / noise_multiplier(e, d, mechanism)", "theory/test_certificates.py"),
    "mechanism without r": ("mechanism.py", "noise = generator.standard_normal(std.size) * std", "noise = generator.standard_normal(std.size) * self.sigma", "test_mechanism.py"),
    # clipping
    "no clipping": ("training/clipping.py", "return (self.max_grad_norm / squares.sqrt()).clamp(max=1.0)", "return torch.ones_like(squares)", "training/test_clipping.py"),
    "clip the batch mean": ("training/clipping.py", "return (self.max_grad_norm / squares.sqrt()).clamp(max=1.0)", "return (self.max_grad_norm / squares.mean().sqrt()).clamp(max=1.0).expand_as(squares)", "training/test_clipping.py"),
    "biases not in the norm": ("training/bookkeeping.py", "for _, gradient in self._found:", 'for _, gradient in [f for f in self._found if not f[0].endswith("bias")]:', "training/test_clipping.py"),
    "each layer clipped by itself": ("training/bookkeeping.py", "sums[name] = gradient.weighted_sum(factors)", "sums[name] = gradient.weighted_sum((1 / gradient.squared_norms().sqrt()).clamp(max=1).to(factors.dtype))", "training/test_clipping.py"),
    "copies clipped before averaging": ("training/bookkeeping.py", "average = torch.full_like(losses, 1 / self.copies)", "average = torch.ones_like(losses)", "training/test_clipping_noise.py"),
    # noise, sampling and the loop
    "noise reused at every step": ("training/randomness.py", "place = (_PURPOSES.index(purpose), step)", "place = (_PURPOSES.index(purpose), 0)", "training/test_randomness.py"),
    "half the noise": ("training/randomness.py", "tensor.add_(piece.to(tensor.device, tensor.dtype), alpha=std)", "tensor.add_(piece.to(tensor.device, tensor.dtype), alpha=std / 2)", "training/test_loop.py -k variance"),
    "fixed batch size": ("training/randomness.py", 'return np.flatnonzero(self.generator("sampling", step).random(count) < rate)', 'return self.generator("sampling", step).choice(count, int(count * rate), replace=False)', "training/test_randomness.py"),
    "divided by the realised batch": ("training/loop.py", "torch._foreach_div_(gradients, settings.batch_size)", "torch._foreach_div_(gradients, max(1, len(sample)))", "training/test_loop.py -k expected"),
    "noise per rank": ("training/loop.py", "        processes.add_up([*sums.gradients.values()])\n", "        self.randomness.add_noise([*sums.gradients.values()], self.record['noise_multiplier'] * settings.max_grad_norm, step)\n        processes.add_up([*sums.gradients.values()])\n", "training/test_processes.py"),
    "not paid in advance": ("training/paid_run.py", "self.ledger.reserve(self._steps(stop - step), first_step=step, stream=self.stream)", "self.ledger.reserve(self._steps(1), first_step=step, stream=self.stream)", "training/test_loop.py"),
    "undercount after resume": ("privacy/ledger.py", "self._records = list(records)", "self._records = list(records)[:-1]", "training/test_loop.py"),
    "same noise for another question": ("training/paid_run.py", "if not same:", "if False:", "training/test_loop.py"),
    "loss not compared on resume": ("training/question.py", "            loss,\n            self.examples,", "            self.examples,", "training/test_loop.py -k resume"),
    "shortened ledger of a finished run": ("training/loop.py", 'ledger.require_head(*weights.record["ledger"])', "pass", "training/test_loop.py -k shortened"),
    "interlude with other randomness": ("training/loop.py", "    torch.manual_seed(int(generator.integers(2**63)))\n", "", "training/test_loop.py -k interlude"),
    "score norm in single precision": ("redistribution/gradient_scores.py", "gradient.detach().double().abs()", "gradient.detach().abs()", "redistribution/test_redistribution.py"),
    "secret kept": ("training/run_folder.py", "self.secret.unlink(missing_ok=True)", "pass", "training/test_loop.py"),
    "checkpoint checksum not checked": ("training/checkpoint.py", 'if metadata.get("sha256") != _digest(tensors, record):', "if False:", "training/test_checkpoint.py"),
    # the noisy layer
    "one noise for the whole batch": ("models/noisy.py", "torch.randn(x.shape, generator", "torch.randn(x.shape[1:], generator", "models/test_noisy.py"),
    "noise without r": ("models/noisy.py", "GaussianNoise(torch.ones_like(values) if learned else values)", "GaussianNoise(torch.full_like(values, float(values.mean())))", "models/test_noisy.py"),
    "connection around the noise": ("models/noisy.py", "if around is not None or not all(torch.equal(output.detach(), other) for other in others):", "if False:", "models/test_noisy.py"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_guarantee_is_noticed(name, tmp_path):
    file, text, replacement, tests = MUTATIONS[name]
    copy = tmp_path / "src" / "securesgd"
    shutil.copytree(ROOT / "src" / "securesgd", copy, ignore=shutil.ignore_patterns("__pycache__"))
    source = (copy / file).read_text()
    assert source.count(text) == 1, f"{file} has {source.count(text)} times: {text}"
    (copy / file).write_text(source.replace(text, replacement))
    path, *selection = tests.split()
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", str(ROOT / "tests" / path), *selection],
        env=os.environ | {"PYTHONPATH": str(copy.parent), "CI": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1, result.stdout[-2000:]
    assert "AssertionError" in result.stdout or "DID NOT RAISE" in result.stdout or "Error" in result.stdout


def test_every_mutation_names_text_that_is_there():
    for name, (file, text, _, tests) in MUTATIONS.items():
        assert (ROOT / "src" / "securesgd" / file).read_text().count(text) == 1, name
        assert (ROOT / "tests" / tests.split()[0]).exists(), name

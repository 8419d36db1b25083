"""Predict with a proven radius from an exported run: numpy and onnxruntime, no torch, no securesgd.

    securesgd export runs/a --onnx model.onnx
    python examples/onnx_voter.py model.onnx input.npy

input.npy holds one input, preprocessed as the metadata say. The noise must be fresh: it is drawn anew from the system's
randomness here, after the input is known. Under noise that somebody can predict, the radius proves nothing.
"""

import json
import math
import sys
from statistics import NormalDist

import numpy as np
import onnxruntime

DOWN = 1 - 1e-9  # more than all rounding of the bound and the radius


def load(path):
    """Return the session, in full precision on the CPU, and the recipe of the vote."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    recipe = json.loads(session.get_modelmeta().custom_metadata_map["securesgd"])
    if recipe["format"] != 1:
        raise SystemExit(f"{path} has format {recipe['format']}; valid: 1")
    if recipe["certificate"]["family"] != "smoothing":
        raise SystemExit(f"{path}: {recipe['certificate']['radius']}")
    return session, recipe


def count_votes(session, x, normals):
    """Return how many draws each class wins; of equal logits the first one wins."""
    parts = np.array_split(normals, math.ceil(len(normals) / 100))
    logits = np.concatenate([session.run(["logits"], {"x": x[None], "normals": part})[0] for part in parts])
    return np.bincount(logits.argmax(1), minlength=logits.shape[1])


def lower_bound(votes, draws, failure_prob):
    """Return Clopper and Pearson's p, rounded down: if p were the truth, so many votes would have this probability."""
    k = np.arange(votes, draws + 1)
    choices = np.array([math.lgamma(draws + 1) - math.lgamma(i + 1) - math.lgamma(draws - i + 1) for i in k])
    low, high = 0.0, votes / draws
    for _ in range(60):
        p = (low + high) / 2
        likely = p > 0 and np.exp(choices + k * math.log(p) + (draws - k) * math.log1p(-p)).sum() > failure_prob
        low, high = (low, p) if likely else (p, high)
    return low * DOWN


def proven_radius(p, x, vote):
    """Return the radius in vote["norm"] that p proves by the tight rule, all other classes together having 1 - p."""
    rounding = vote["rounding_at_zero"] + vote["rounding_per_unit"] * float(np.abs(x.astype(np.float64)).max())
    return max(0.0, (NormalDist().inv_cdf(p) if p > 0.5 else 0.0) - rounding) / vote["sensitivity"] * DOWN


def predict(session, recipe, x, generator):
    """Return the class, the bound and the radius; the class is without meaning where the radius is 0."""
    vote, low_high = recipe["certificate"], recipe["input_range"] or (-math.inf, math.inf)
    kind = {"tensor(float)": np.float32, "tensor(double)": np.float64}[session.get_inputs()[0].type]
    if list(x.shape) != recipe["input_shape"] or not np.isfinite(x).all():
        raise SystemExit(f"the input has shape {list(x.shape)}; valid: finite numbers, {recipe['input_shape']}")
    if x.min() < low_high[0] or x.max() > low_high[1]:
        raise SystemExit(f"the input has values from {x.min():g} to {x.max():g}; valid: {low_high}")

    def votes(draws):
        return count_votes(session, x.astype(kind), generator.standard_normal((draws, *vote["noise_shape"]), kind))

    top = int(votes(vote["selection_draws"]).argmax())  # chosen by draws that are not counted
    p = lower_bound(votes(vote["draws"])[top], vote["draws"], vote["failure_prob"])
    return top, p, proven_radius(p, x, vote)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    session, recipe = load(sys.argv[1])
    top, p, radius = predict(session, recipe, np.load(sys.argv[2]), np.random.default_rng())  # fresh: no seed
    vote, down = recipe["certificate"], lambda value: math.floor(value * 1e6) / 1e6
    if radius == 0:
        raise SystemExit(f"abstained: {vote['draws']} draws of noise do not prove a class (p >= {down(p)})")
    name = dict(enumerate(recipe["class_names"])).get(top, top)
    print(f"class {name}, p >= {down(p)}, radius {down(radius)} in {vote['norm']}")
    print(f"except with probability {vote['failure_prob']} over the fresh noise of {vote['draws']} draws")
    print(f"training data: {recipe['privacy']['in_words']}")

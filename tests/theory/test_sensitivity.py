"""Sensitivities: brute force at small size, worked examples, each bound above the truth, the paper's rule below."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from securesgd.errors import InvalidInputError
from securesgd.theory import NORMS, Convolution, expand_channels, published_sensitivity, sensitivity, uniform
from securesgd.theory.linear_maps import as_linear_map
from securesgd.theory.sensitivity import _l2, _linf
from securesgd.theory.spectral import dominating_shift, symbol_norm

rng = np.random.default_rng(0)


def true_sensitivity(matrix, norm, r):
    whitened = matrix / np.sqrt(len(r) * r)[:, None]
    if norm == "l1":
        return np.linalg.norm(whitened, axis=0).max()
    if norm == "l2":
        return np.linalg.norm(whitened, 2)
    signs = np.array(list(itertools.product([1.0], *[[-1.0, 1.0]] * (matrix.shape[1] - 1)))).T
    return np.linalg.norm(whitened @ signs, axis=0).max()


def random_r(size, spread):
    r = np.exp(spread * rng.standard_normal(size))
    return r / r.sum()


def torch_matrix(c):
    """The convolution's matrix, column by column, by torch itself."""
    eye = torch.eye(c.input_size, dtype=torch.float64).reshape(-1, *c.input_shape)
    out = torch.nn.functional.conv2d(eye, torch.from_numpy(c.kernel), None, c.stride, c.padding, c.dilation, c.groups)
    return out.reshape(c.input_size, -1).T.numpy()


CONVOLUTIONS = [
    Convolution(rng.standard_normal((3, 1, 2, 2)), (1, 3, 4), padding=1),
    Convolution(rng.standard_normal((4, 1, 2, 3)), (2, 2, 3), padding=(0, 1), groups=2),
    Convolution(rng.standard_normal((2, 1, 3, 3)), (1, 3, 4), padding=2, stride=2),
    Convolution(rng.standard_normal((2, 3, 2, 1)), (3, 2, 2), stride=(1, 2)),
    Convolution(rng.standard_normal((3, 1, 2, 2)), (1, 4, 3), dilation=2, padding=1),
    Convolution(rng.standard_normal((2, 2, 2, 2)), (2, 2, 3), stride=(2, 3), padding=(1, 0)),
]
LARGER = [
    Convolution(rng.standard_normal((6, 3, 5, 5)), (3, 11, 9), padding=2),
    Convolution(rng.standard_normal((6, 2, 3, 5)), (4, 13, 10), padding=(1, 0), stride=(2, 3), groups=2),
    Convolution(rng.standard_normal((5, 2, 4, 3)), (2, 12, 12), padding=3, stride=3, dilation=2),
]


@pytest.mark.parametrize("c", CONVOLUTIONS + LARGER)
def test_convolution_is_torch_convolution(c):
    matrix = torch_matrix(c)
    weights = rng.random(c.output_size)
    x, y = rng.standard_normal((c.input_size, 2)), rng.standard_normal((c.output_size, 2))
    assert c.sparse().toarray() == pytest.approx(matrix)
    assert c.apply(x) == pytest.approx(matrix @ x)
    assert c.apply_transposed(y) == pytest.approx(matrix.T @ y)
    assert c.row_sums() == pytest.approx(np.abs(matrix).sum(axis=1))
    assert c.weighted_column_sums(2, weights) == pytest.approx(weights @ matrix**2)
    assert c.nonzeros >= np.count_nonzero(matrix)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("spread", [0, 0.5, 2])
def test_brute_force_dense_and_convolution(norm, spread):
    queries = [rng.standard_normal(shape) for shape in ((1, 1), (5, 3), (3, 11), (20, 14), (14, 14))]
    queries += [np.abs(rng.standard_normal((6, 9))), np.eye(12), np.ones((4, 8))]
    for query in queries + CONVOLUTIONS:
        matrix = torch_matrix(query) if isinstance(query, Convolution) else query
        r = random_r(len(matrix), spread)
        truth = true_sensitivity(matrix, norm, r)
        for limit in (4096, 0):  # the tight methods, then only the closed forms
            result = sensitivity(query, norm, r, gram_limit=limit)
            assert result.lower <= truth <= result.upper
            assert result.upper >= result.lower > 0
            size = {"l1": 1, "l2": 2, "linf": np.inf}[norm]
            assert np.linalg.norm(result.direction, size) == pytest.approx(1)
        if norm != "linf":
            assert sensitivity(query, norm, r).upper == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize("c", LARGER)
def test_every_single_bound_is_above_the_lower_one(c):
    """Not only the winner: a bound that is too low would win, so each is checked by itself."""
    r = random_r(c.output_size, 0.7)
    whitening = 1 / np.sqrt(c.output_size * r)
    matrix = torch_matrix(c) * whitening[:, None]
    spectral = np.linalg.norm(matrix, 2)
    lower = sensitivity(c, "linf", r).lower
    for limit in (4096, 0):
        l2, linf = _l2(c, whitening, limit)[0], _linf(c, whitening, limit)[0]
        assert {"schur", "frobenius"} < set(l2)
        assert min(l2.values()) >= spectral
        assert min(linf.values()) >= lower
    channel = random_r(c.output_shape[0], 1)
    scale = 1 / np.sqrt(channel * channel.size)
    per_channel = np.repeat(scale, c.output_size // channel.size)[:, None] * torch_matrix(c)
    truth = np.linalg.norm(per_channel, 2)
    assert truth <= symbol_norm(c, scale) <= truth * 1.6


def example(shape, image, padding, seed=0, positive=False):
    torch.manual_seed(seed)
    kernel = torch.randn(*shape).double().numpy() * 0.1
    return Convolution(np.abs(kernel) if positive else kernel, image, padding=padding)


def test_worked_example_mnist():
    """Random 32×1×5×5 on 28×28: lower 92.69, this bound 95.32, rows 300.6, paper 446.8, one map 73.6."""
    c = example((32, 1, 5, 5), (1, 28, 28), 2)
    result = sensitivity(c, "linf")
    assert result.method == "sdp"
    assert result.upper == pytest.approx(95.32, abs=0.05)
    assert result.lower >= 92.68
    assert result.upper / result.lower <= 1.06
    assert result.seconds < 10
    bounds = _linf(c, np.ones(c.output_size), 0)[0]
    assert bounds["rows"] == pytest.approx(300.6, abs=0.05)
    assert bounds["paper"] == pytest.approx(446.8, abs=0.05)
    assert published_sensitivity(c) == pytest.approx(73.6, abs=0.06)


@pytest.mark.slow  # large images below are as hard and quicker
def test_worked_example_cifar10():
    result = sensitivity(example((128, 3, 3, 3), (3, 32, 32), 1), "linf")
    assert result.upper / result.lower <= 1.06
    assert result.seconds < 90


@pytest.mark.parametrize("positive", [False, True])
def test_one_feature_map_is_below_the_truth(positive):
    """The paper's rule for convolutions is unsound: an attained change of the output exceeds it."""
    c = example((32, 1, 5, 5), (1, 28, 28), 2, positive=positive)
    attained = sensitivity(c, "linf")
    assert np.linalg.norm(c.apply(attained.direction[:, None])) >= attained.lower
    assert published_sensitivity(c) < attained.lower / (4 if positive else 1)


@pytest.mark.parametrize("side", [96, pytest.param(224, marks=pytest.mark.slow)])
def test_large_image_is_fast_and_proven(side):
    """Beyond the size at which the Gram matrix is formed: bounds by the symbol of the convolution."""
    c = Convolution(rng.uniform(-0.1, 0.1, (64, 3, 7, 7)), (3, side, side), stride=2, padding=3)
    for norm, slack in (("l1", 1.001), ("l2", 1.3), ("linf", 1.6)):
        result = sensitivity(c, norm)
        assert result.lower <= result.upper <= slack * result.lower
        assert result.seconds < 60


def test_identity_layer_with_sparse_matrix():
    r = random_r(400, 1)
    result = sensitivity(sp.eye_array(400), "linf", r)
    assert result.upper == pytest.approx(np.sqrt(np.sum(1 / (400 * r))), rel=1e-6)


def test_r_changes_the_answer_and_scaling_is_linear():
    matrix = rng.standard_normal((6, 5))
    for norm in NORMS:
        base = sensitivity(matrix, norm).upper
        assert sensitivity(3 * matrix, norm).upper == pytest.approx(3 * base, rel=1e-4)
        assert sensitivity(matrix, norm, random_r(6, 1)).upper != pytest.approx(base, rel=1e-3)
    assert sensitivity(np.zeros((3, 2)), "linf").upper == 0
    assert sensitivity(np.zeros((3, 2)), "l2").upper == 0


def test_dominating_shift_is_never_too_small():
    """Random symmetric matrices with a diagonal that is too small by a known amount."""
    for n in (1, 2, 5, 40):
        factor = rng.standard_normal((n, n))
        gram = factor @ factor.T
        diagonal = np.full(n, 0.9 * np.linalg.eigvalsh(gram)[-1])
        shift, _ = dominating_shift(diagonal, sp.csr_array(gram), 1e-12)
        assert np.linalg.eigvalsh(np.diag(diagonal + shift) - gram)[0] >= -1e-9
        assert shift >= 0.09 * np.linalg.eigvalsh(gram)[-1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sensitivity(np.ones((2, 2)), "l3"), "unknown norm 'l3'"),
        (lambda: sensitivity(np.ones(3), "l2"), "must be a matrix"),
        (lambda: sensitivity([[1, np.nan]], "l2"), "matrix is nan; valid: a"),
        (lambda: sensitivity(np.ones((2, 2)), "l2", [0.5, 0.25, 0.25]), "one entry per component"),
        (lambda: sensitivity(np.ones((2, 2)), "l2", [1.0, 0.0]), "every r_k must be > 0"),
        (lambda: Convolution(np.ones((2, 2, 3, 3)), (1, 8, 8)), "needs 2 input channels"),
        (lambda: Convolution(np.ones((2, 1, 9, 9)), (1, 8, 8)), "does not fit the input"),
        (
            lambda: Convolution(np.ones((2, 1, 3, 3)), (1, 8, 8), stride=0),
            "stride is .*; valid: an integer from 1 to",
        ),
        (lambda: Convolution(np.ones((2, 9)), (1, 8, 8)), "kernel must have shape"),
    ],
)
def test_bad_input_is_one_clear_line(call, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_per_channel_r_through_expansion():
    c = CONVOLUTIONS[0]
    positions = c.output_size // 3
    per_unit = expand_channels(uniform(3), positions)
    assert sensitivity(c, "l2", per_unit).upper == pytest.approx(sensitivity(c, "l2").upper, rel=1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_very_small_and_very_large_weights_keep_their_proof(norm):
    """Squares of entries beyond 1e±154 under- or overflow; the bound must scale as if they did not."""
    matrix = np.random.default_rng(0).standard_normal((5, 4))
    base = sensitivity(matrix, norm).upper
    for exponent in (-900, -560, -80, 80, 500, 1000):
        assert sensitivity(np.ldexp(matrix, exponent), norm).upper == pytest.approx(float(np.ldexp(base, exponent)))
    tiny = sensitivity(np.ldexp(matrix, -1065), norm)
    assert tiny.upper > 0
    r = np.array([0.5, 0.5 - 1e-300, 1e-300])
    assert sensitivity(np.array([[0.0], [0.0], [1e-163]]), norm, r).upper == pytest.approx(1e-13 / np.sqrt(3), rel=1e-6)


def test_paper_bound_does_not_rely_on_an_exact_sum():
    r = np.array([0.5, 0.3, 0.2]) * (1 + 9e-7)
    bounds = _linf(as_linear_map(3 * r[:, None]), 1 / np.sqrt(3 * r), 4096)[0]
    assert bounds["paper"] >= np.sqrt(np.sum((3 * r) ** 2 / (3 * r)))


def test_a_kernel_that_reads_padding_only_is_the_zero_map():
    c = Convolution(np.ones((1, 1, 1, 1)), (1, 1, 1), padding=5, stride=11)
    assert c.sparse().nnz == 0
    assert sensitivity(c, "linf").upper == 0

"""Exact rounded Gaussians: equal to arbitrary precision, right law, whole tail, the same on any number of threads."""

import mpmath
import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm

from securesgd.errors import InvalidInputError
from securesgd.runtime import rounded_gaussian as module
from securesgd.runtime.key_stream import KeyStream
from securesgd.runtime.rounded_gaussian import BLOCK, LARGEST_SCALE, TOLERANCE, rounded_gaussian

KEY = bytes(range(16))


class GivenWords(KeyStream):
    """A stream that starts with chosen words and goes on with those of a key."""

    def __init__(self, words, key=KEY):
        super().__init__(key)
        self.given = np.array(words, dtype=np.uint64)

    def words(self, count):
        now, self.given = self.given[:count], self.given[count:]
        return np.concatenate([now, super().words(count - len(now))])


def reference(radius_word, angle_word, more, scale):
    """Return the pair by point evaluation with 383 bits of U and V: slow, obvious, right but for a chance of 2⁻³⁰⁰."""
    u, v, bits = int(radius_word) & (2**63 - 1), int(np.uint64(angle_word).astype(np.int64)), 63
    for _ in range(5):
        next_u, next_v = (int(w) for w in more.words(2))
        u, v, bits = u << 64 | next_u, v << 64 | next_v, bits + 64
    with mpmath.workprec(500):
        radius = scale * mpmath.sqrt(-2 * mpmath.log(mpmath.ldexp(mpmath.mpf(u), -bits)))
        angle = mpmath.pi * mpmath.ldexp(mpmath.mpf(v), -bits)
        return [float(mpmath.nint(radius * f(angle))) for f in (mpmath.cos, mpmath.sin)]


@pytest.mark.parametrize("scale", [1.0, 2.0**19 * 1.1, LARGEST_SCALE])
def test_equal_to_arbitrary_precision(scale):
    """At the largest scale one value in 64 is near a half-integer: a wrong tolerance would round dozens wrongly."""
    pairs = 1500 if scale == LARGEST_SCALE else 300
    noise = rounded_gaussian(KeyStream(KEY), 2 * pairs, scale).view(2, pairs)
    words = KeyStream(KEY).words(2 * pairs).reshape(2, pairs)
    for i in range(pairs):
        more = KeyStream(KEY).child(f"more bits 0 {i}")
        assert noise[:, i].tolist() == reference(*words[:, i], more, scale), i


def test_doubtful_roundings_are_decided_by_the_bits_that_follow():
    """Radii near 5.5, where fewest bits of U are known: by float64 alone about five of these values round wrongly."""
    pairs, scale = 4000, LARGEST_SCALE
    words = np.concatenate([2.0 ** np.linspace(41.3, 41.8, pairs), KeyStream(KEY).words(pairs)]).astype(np.uint64)
    noise = rounded_gaussian(GivenWords(words), 2 * pairs, scale).view(2, pairs)
    for i in range(pairs):
        more = KeyStream(KEY).child(f"more bits 0 {i}")
        assert noise[:, i].tolist() == reference(words[i], words[pairs + i], more, scale), i


def test_the_transform_is_within_its_tolerance():
    """Float64 against 60 digits on the radii for which the bound is claimed, their ends included."""
    ends = [2.0**-63 * 2.0 ** np.arange(41.3, 63, 0.5), 1 - 2.0 ** -np.arange(2, 20.9, 0.5)]
    u = np.concatenate([*ends, np.random.default_rng(0).random(400)])
    words = np.array([int(x * 2.0**63) for x in u], dtype=np.int64)
    angles = KeyStream(KEY).words(len(words)).view(np.int64)
    radius = torch.from_numpy(words).double().mul_(2.0**-63).log_().mul_(-2.0).sqrt_()
    inside = (radius >= module.RADII[0]) & (radius <= module.RADII[1])
    assert inside.sum() > 450
    angle = torch.from_numpy(angles).double().mul_(torch.pi * 2.0**-63)
    worst = 0.0
    with mpmath.workprec(200):
        for i in inside.nonzero().flatten().tolist():
            # the bits that follow may be all zeros or all ones
            for more in (0, 1):
                r = mpmath.sqrt(-2 * mpmath.log(mpmath.ldexp(mpmath.mpf(int(words[i]) + more), -63)))
                theta = mpmath.pi * mpmath.ldexp(mpmath.mpf(int(angles[i]) + more), -63)
                computed = (radius[i] * angle[i].cos()).item(), (radius[i] * angle[i].sin()).item()
                exact = r * mpmath.cos(theta), r * mpmath.sin(theta)
                worst = max(worst, *(abs(float(c - e)) for c, e in zip(computed, exact, strict=True)))
    assert worst < 0.6 * TOLERANCE


@pytest.mark.parametrize("scale", [0.3, 1.0, 40.0])
def test_frequencies_are_those_of_the_rounded_normal(scale):
    count = 400_000
    noise = rounded_gaussian(KeyStream(KEY), count, scale).numpy()
    edges = np.arange(np.floor(-3.5 * scale), np.ceil(3.5 * scale) + 1)
    inner = norm.cdf((edges + 0.5) / scale) - norm.cdf((edges - 0.5) / scale)
    below, above = norm.cdf((edges[0] - 0.5) / scale), norm.sf((edges[-1] + 0.5) / scale)
    expected = count * np.concatenate([[below], inner, [above]])
    observed = [np.sum(noise < edges[0]), *(np.sum(noise == n) for n in edges), np.sum(noise > edges[-1])]

    def accepts(expected):
        full = expected > 5
        statistic = ((np.array(observed) - expected)[full] ** 2 / expected[full]).sum()
        return statistic < chi2.ppf(1 - 1e-7, full.sum())

    assert accepts(expected)
    wider = norm.cdf((edges + 0.5) / (1.02 * scale)) - norm.cdf((edges - 0.5) / (1.02 * scale))
    assert not accepts(np.concatenate([[expected[0]], count * wider, [expected[-1]]]))


def test_the_tail_is_whole():
    """Words that 32 or 64 bits cannot refine still give values, further out than any normal of the old noise (6.76)."""
    scale = 1000.0
    for small, at_least in ((1, 9.2), (0, 9.2), (2**20, 7.6)):
        for trial in range(20):
            key = bytes([trial]) * 16
            far, _ = rounded_gaussian(GivenWords([small, 0], key), 2, scale).tolist()
            assert far >= at_least * scale
            more = KeyStream(key).child("more bits 0 0")
            assert far == reference(small, 0, more, scale)[0]


def test_entries_are_independent_and_streams_fresh():
    first = rounded_gaussian(KeyStream(KEY), 3 * BLOCK + 5, 1000.0).numpy()
    again = rounded_gaussian(KeyStream(KEY), 3 * BLOCK + 5, 1000.0).numpy()
    assert len(first) == 3 * BLOCK + 5
    assert np.array_equal(first, again)
    other = rounded_gaussian(KeyStream(bytes(16)), 3 * BLOCK + 5, 1000.0).numpy()
    limit = 5 / np.sqrt(first.size)
    pairs = [other, np.roll(first, 1), np.roll(first, BLOCK // 2), np.roll(first, BLOCK)]
    for shifted in pairs:
        assert abs(np.corrcoef(first, shifted)[0, 1]) < limit
        assert abs(np.corrcoef(first**2, shifted**2)[0, 1]) < limit


def test_threads_and_scales_change_nothing():
    scales = torch.full((2 * BLOCK + 3,), 500.0, dtype=torch.float64)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = rounded_gaussian(KeyStream(KEY), len(scales), 500.0)
        torch.set_num_threads(2)
        assert torch.equal(one, rounded_gaussian(KeyStream(KEY), len(scales), 500.0))
        assert torch.equal(one, rounded_gaussian(KeyStream(KEY), len(scales), scales))
    finally:
        torch.set_num_threads(threads)
    scales[7] = 5e6
    wide = rounded_gaussian(KeyStream(KEY), len(scales), scales)
    assert wide[7] == pytest.approx(one[7].item() * 1e4, abs=1e4)
    assert torch.equal(wide[8:], one[8:])


def test_scale_out_of_range():
    for scale in (0.0, -1.0, float("nan"), float("inf"), 2 * LARGEST_SCALE, torch.tensor([1.0, 0.0])):
        with pytest.raises(InvalidInputError, match="scale is"):
            rounded_gaussian(KeyStream(KEY), 2, scale)


def test_key_stream_is_aes_in_counter_mode():
    """The first blocks against the test vector of NIST SP 800-38A, F.1.1 style: encryption of a counter from zero."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    block = Cipher(algorithms.AES(KEY), modes.ECB()).encryptor()
    expected = b"".join(block.update(i.to_bytes(16)) for i in range(40))
    stream = KeyStream(KEY)
    pieces = np.concatenate([stream.words(2 * n) for n in (1, 3, 16, 20)])
    assert pieces.tobytes() == expected
    assert len(KeyStream(KEY).words(200_001)) == 200_001
    assert not np.array_equal(stream.child("a").words(4), stream.child("b").words(4))
    assert np.array_equal(stream.child("a").words(4), KeyStream(KEY).child("a").words(4))
    assert not np.array_equal(KeyStream.secret().words(4), KeyStream.secret().words(4))
    with pytest.raises(ValueError, match="16"):
        KeyStream(b"short")

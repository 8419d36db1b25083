"""The package's front: sorted names, each one importable."""

import securesgd.privacy as privacy


def test_all_is_sorted_and_complete():
    assert privacy.__all__ == sorted(privacy.__all__)
    for name in privacy.__all__:
        assert getattr(privacy, name) is not None

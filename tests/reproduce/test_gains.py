import pytest

from securesgd.reproduce.gains import attack_gains


def rows(gain=0.1):
    return [
        {
            "protocol": protocol, "method": method, "seed": seed, "attack": attack, "budget": budget,
            "attacked": 0.5 - budget + 0.01 * seed + (gain + 0.02 * (seed - 0.5)) * (method == "ours"),
            "certified_clean": 0.0, "certified_attacked": 0.1 * (method == "ours"),
        }
        for protocol in ("sound", "as-published")
        for method in ("ours", "other")
        for seed in (0, 1)
        for attack in ("fgsm", "mim")
        for budget in (0.1, 0.2)
    ]  # fmt: skip


def test_gains_over_all_attacks_and_each():
    table = attack_gains(rows(), "ours")
    assert len(table) == 2 * (3 + 1 + 3)  # no attack has a part in the certificate of the clean image
    first = table[0]
    assert (first["protocol"], first["attack"], first["against"], first["value"]) == (
        "sound",
        "all",
        "other",
        "attacked",
    )
    assert (first["points"], first["seeds"]) == (4, 2)
    assert first["gain"] == pytest.approx(0.1)
    assert first["p_value"] == pytest.approx(0.0635, abs=1e-4)  # gains of 0.09 and 0.11, two seeds
    assert [row["attack"] for row in table[:3]] == ["all", "fgsm", "mim"]
    assert table[1]["points"] == 2
    same = [row for row in table if row["value"] == "certified_clean"]
    assert {(row["p_value"], row["attack"], row["points"]) for row in same} == {(1.0, "all", 2)}
    assert {row["relative_gain"] for row in same} == {None}
    assert len({tuple(row) for row in table}) == 1  # the same columns everywhere: it can be a file

"""A ledger that was changed, cut or forged is noticed, and left as it is."""

import json

import pytest

from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.privacy import (
    Ledger,
    epsilon_spent,
    replayed_statement,
)
from securesgd.runtime.hash_chain import seal_line, verify_chain

from .conftest import RELEASE, block


def tampered(lines):
    """Every way to tamper with whole lines, as (what, new lines)."""
    for index in range(len(lines)):
        text = lines[index]
        for old, new in (
            (b'"steps":50', b'"steps":5'),
            (b'"epsilon":', b'"epsilon":0'),
            (b"1e-05", b"1e-04"),
        ):
            if old in text:
                yield f"edit {index}", [*lines[:index], text.replace(old, new), *lines[index + 1 :]]
        if index < len(lines) - 1:
            yield f"delete {index}", lines[:index] + lines[index + 1 :]
            yield f"swap {index}", [*lines[:index], lines[index + 1], text, *lines[index + 2 :]]
            yield f"cut {index}", [*lines[:index], text[:40], *lines[index + 1 :]]
        yield f"double {index}", [*lines[:index], text, *lines[index:]]


def test_tampering_is_found_at_every_line_and_the_file_is_left_alone(written):
    lines = written.read_bytes().splitlines(keepends=True)
    cases = list(tampered(lines))
    assert len(cases) > 20
    for what, changed in cases:
        written.write_bytes(b"".join(changed))
        for read in (Ledger.open, replayed_statement):
            with pytest.raises(DamagedFileError, match=r"line \d+: ") as caught:
                read(written)
            assert "\n" not in str(caught.value), what
        assert written.read_bytes() == b"".join(changed)
    written.write_bytes(b"".join(lines))
    Ledger.open(written).close()  # no lock was left behind


def test_lines_cut_off_the_end_are_found_with_the_head_a_checkpoint_keeps(written):
    with Ledger.open(written) as ledger:
        head = ledger.head
        ledger.require_head(*head)
        ledger.require_head(0, json.loads(written.read_text().splitlines()[0])["digest"])
    written.write_bytes(b"".join(written.read_bytes().splitlines(keepends=True)[:-1]))
    with Ledger.open(written) as ledger, pytest.raises(DamagedFileError, match=r"line 5: .* cut off"):
        ledger.require_head(*head)


def test_a_torn_end_is_set_aside_and_overwritten_by_the_next_record(written):
    whole = written.read_bytes()
    with Ledger.open(written) as ledger:
        ledger.reserve(block(50), first_step=150, stream="run")
    longer = written.read_bytes()
    for size in range(len(whole) + 1, len(longer) - 1, 7):
        written.write_bytes(longer[:size])
        with Ledger.open(written) as ledger:
            assert written.read_bytes() == longer[:size]  # opening never writes
            assert ledger.steps_charged == 150
            ledger.reserve(block(50), first_step=150, stream="run")
        assert written.read_bytes() == longer
    written.write_bytes(longer[:-1])  # a whole line that lost its newline counts
    with Ledger.open(written) as ledger:
        assert ledger.steps_charged == 200
        ledger.record(RELEASE)
    assert len(verify_chain(written.read_bytes(), written).bodies) == 7


NOISE = {"clipping_norm": 1.0, "sensitivity": 1.0, "grid": 0.25, "bound": 1.5, "coordinates": 4, "seeded": False}
NOISE |= {"generator": "AES-128-CTR"}


def resealed(bodies):
    lines, digest = [], ""
    for index, body in enumerate(bodies):
        line, digest = seal_line(index, body, digest)
        lines.append(line)
    return b"".join(lines)


@pytest.mark.parametrize(
    ("index", "change", "shows"),
    [
        (0, {"format_version": 1}, "line 1: format_version is 1"),
        (0, {"noise": 3}, "line 1: noise is 3"),
        (0, {"noise": {"grid": 1.0}}, "line 1: missing or unknown keys"),
        (0, {"noise": NOISE | {"bound": 0.5}}, "must not decrease"),
        (0, {"format": "other"}, "line 1: format is 'other'"),
        (0, {"surprise": 1}, "line 1: missing or unknown keys: surprise"),
        (0, {"delta": 0}, "line 1: delta is 0"),
        (0, {"adjacency": "replace-one"}, "line 1: adjacency is 'replace-one'"),
        (1, {"event": {"kind": "telepathy"}}, "line 2: event kind is 'telepathy'"),
        (1, {"block": {"stream": "run", "first_step": 0}}, "line 2: block is"),
        (2, {"block": {"stream": "run"}}, "line 3: missing or unknown keys: first_step"),
        (2, {"block": {"stream": "run", "first_step": -1}}, "line 3: first_step is -1"),
        (2, {"epsilon": -1}, "line 3: epsilon is -1"),
        (4, {"epsilon": 0.01}, "line 5: states epsilon 0.01, but the events cost"),
    ],
)
def test_well_sealed_nonsense_is_refused(written, index, change, shows):
    bodies = list(verify_chain(written.read_bytes(), written).bodies)
    bodies[index] = bodies[index] | change
    written.write_bytes(resealed(bodies))
    before = written.read_bytes()
    with pytest.raises(DamagedFileError) as caught:
        Ledger.open(written)
    assert shows in str(caught.value)
    assert written.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"\n", b"hello\n", b"{}\n", b'{"index":0,"for', b"\x89PNG\r\n\x1a\n\0"])
def test_foreign_files_are_refused_untouched(path, content):
    path.write_bytes(content)
    for read in (Ledger.open, replayed_statement):
        with pytest.raises(DamagedFileError, match="line 1: "):
            read(path)
    with pytest.raises(InvalidInputError, match="exists"):
        Ledger.create(path, delta=1e-5)
    assert path.read_bytes() == content


def test_a_ledger_of_another_accountant_release_is_recomputed_not_refused(written):
    bodies = list(verify_chain(written.read_bytes(), written).bodies)
    bodies[0] = bodies[0] | {"accountant_version": "dp-accounting 0.0.1"}
    bodies[4] = bodies[4] | {"epsilon": 0.5}
    written.write_bytes(resealed(bodies))
    assert replayed_statement(written).epsilon == epsilon_spent([RELEASE, block(150)], 1e-5, "rdp")

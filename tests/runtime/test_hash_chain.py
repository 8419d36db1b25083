"""The chain of lines: any change is found, a torn end is told from damage."""

from pathlib import Path

import pytest

from securesgd.errors import DamagedFileError
from securesgd.runtime.hash_chain import seal_line, verify_chain

PATH = Path("ledger.jsonl")


def written(count=5):
    lines, digest = [], ""
    for index in range(count):
        line, digest = seal_line(index, {"value": index * 1.5, "label": f"line {index}"}, digest)
        lines.append(line)
    return lines


def test_what_was_written_is_read():
    chain = verify_chain(b"".join(written()), PATH)
    assert [body["value"] for body in chain.bodies] == [0, 1.5, 3, 4.5, 6]
    assert (chain.has_final_newline, chain.torn_end, chain.size) == (True, False, len(b"".join(written())))
    assert len(set(chain.digests)) == 5


def test_every_changed_byte_is_found():
    lines = written(3)
    data = b"".join(lines)
    # The very last byte is the newline of the last line: without it the line is whole and counts.
    for position in range(len(data) - 1):
        for new in (data[position] ^ 1, ord("\n"), ord("9")):
            if new == data[position]:
                continue
            changed = data[:position] + bytes([new]) + data[position + 1 :]
            with pytest.raises(DamagedFileError, match=r"ledger.jsonl, line \d+: .*left untouched") as caught:
                verify_chain(changed, PATH)
            assert "\n" not in str(caught.value)


def test_a_truncated_end_never_yields_a_line_that_was_not_written():
    lines = written(3)
    data = b"".join(lines)
    ends = [len(b"".join(lines[:count])) for count in range(4)]
    for size in range(len(data) + 1):
        chain = verify_chain(data[:size], PATH)
        whole = sum(end <= size + 1 for end in ends[1:])  # a line without its newline counts
        assert len(chain.bodies) == whole
        assert chain.torn_end == (size not in ends and size + 1 not in ends)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda lines: lines[:2] + lines[3:], 3),
        (lambda lines: lines[1:], 1),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], 2),
        (lambda lines: [*lines[:3], lines[2], *lines[3:]], 4),
        (lambda lines: [*lines[:2], lines[2][:30], *lines[3:]], 3),
        (lambda lines: [*lines[:2], b"\n", *lines[2:]], 3),
        (lambda lines: [*lines, b"\n"], 6),
        (lambda lines: [*lines, b"hello"], 6),
        (lambda lines: [*lines, b'{"index":7,"va'], 6),
        (lambda lines: [lines[0].replace(b"\n", b"\r\n"), *lines[1:]], 1),
    ],
)
def test_lines_deleted_moved_doubled_or_cut_are_found(change, line):
    with pytest.raises(DamagedFileError, match=f"line {line}:"):
        verify_chain(b"".join(change(written())), PATH)


@pytest.mark.parametrize("tail", [b"{", b'{"index":5', b'{"index":5,"value":7.5,"lab', b'{"index":5,\0\0\0', b"\0\0"])
def test_a_torn_end_is_set_aside(tail):
    data = b"".join(written())
    chain = verify_chain(data + tail, PATH)
    assert len(chain.bodies) == 5
    assert (chain.torn_end, chain.has_final_newline, chain.size) == (True, True, len(data))


def test_a_line_from_another_chain_is_found_even_with_the_right_index():
    other, digest = [], "different start"
    for index in range(5):
        line, digest = seal_line(index, {"value": index * 1.5, "label": f"line {index}"}, digest)
        other.append(line)
    lines = written()
    with pytest.raises(DamagedFileError, match="line 3: does not match its digest"):
        verify_chain(b"".join([*lines[:2], other[2], *lines[3:]]), PATH)

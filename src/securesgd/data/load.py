"""A data set as tensors: by name, from a .npz file, or from a folder of images."""

__all__ = ["LoadedData", "from_datasets", "load"]

from os import PathLike
from pathlib import Path

from securesgd.data.catalog import CATALOG, DataSet
from securesgd.data.digits import digits_arrays
from securesgd.data.download import Progress
from securesgd.data.fetch import fetch
from securesgd.data.image_folder import image_folder_arrays
from securesgd.data.loaded import LoadedData, loaded_data
from securesgd.data.npz import npz_arrays
from securesgd.data.places import presence
from securesgd.data.stored import stored_arrays
from securesgd.data.torch_datasets import from_datasets
from securesgd.errors import DataUnavailableError, InvalidInputError, nearest


def load(
    name_or_path: str | PathLike[str] | DataSet,
    *,
    holdout: int = 0,
    seed: int = 0,
    folder: Path | None = None,
    download: bool = False,
    progress: Progress | None = None,
) -> LoadedData:
    """Return a data set with pixels in [0, 1].

    A name of the catalog (as text; a Path is always a path) is looked for in `folder`, or in $SECURESGD_DATA and the
    user's cache, and fetched only if `download`. A path is a .npz file with x_train, y_train, x_test, y_test, or a
    folder with train/<class>/ and test/<class>/ images. `holdout` training examples, drawn with `seed`, are set apart
    for validation; the same arguments give the same split.
    Raises: InvalidInputError for an unknown name (nearest suggested) or data that is not valid; DamagedFileError for
    files cut short or different from the catalog's; DataUnavailableError for a named set that is not on this machine.
    """
    if isinstance(name_or_path, str) and name_or_path in CATALOG:
        name_or_path = CATALOG[name_or_path]
    if isinstance(name_or_path, DataSet):
        name = name_or_path.name
        if name_or_path.layout == "embedded":
            arrays, split = digits_arrays(name_or_path), "fixed permutation of scikit-learn's digits"
        else:
            place = _found(name_or_path, folder, download, progress)
            arrays, split = stored_arrays(name_or_path, place), "published train and test sets"
    else:
        path = Path(name_or_path).expanduser()
        name = str(name_or_path)
        if path.suffix == ".npz":
            arrays, split = npz_arrays(path), "train and test of the .npz file"
        elif path.is_dir():
            arrays, split = image_folder_arrays(path), "train/ and test/ of the folder"
        else:
            raise InvalidInputError(
                f"unknown data set {name!r}: {nearest(name, CATALOG)}, a .npz file or a folder of images"
            )
    return loaded_data(arrays, name=name, split=split, holdout=holdout, seed=seed)


def _found(dataset: DataSet, folder: Path | None, download: bool, progress: Progress | None) -> Path:
    if download:
        return fetch(dataset, folder, progress)
    there = presence(dataset, folder)
    if there.folder is None:
        raise DataUnavailableError(
            f"{dataset.name} is not on this machine: run `securesgd data fetch {dataset.name}`, or set SECURESGD_DATA "
            "to the folder that holds it"
        )
    return there.folder

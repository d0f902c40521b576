"""The digits are what their datasheet says; a changed file is named."""

import gzip

import numpy as np
import pytest

from components.datasets.digits import MNIST_FILE, mnist_5k, small_digits


def write(folder, rows):
    with gzip.open(folder / MNIST_FILE, "wt") as file:
        file.writelines(",".join(map(str, row)) + "\n" for row in rows)


def test_small_digits_are_the_ones_of_the_datasheet():
    x, y = small_digits()
    assert x.shape == (1797, 64) and x.dtype == np.float32 and y.dtype == np.int64
    assert x.min() == 0 and x.max() == 1 and np.all(x * 16 == np.rint(x * 16))
    counts = np.bincount(y)
    assert counts.size == 10 and (counts.min(), counts.max()) == (174, 183)


def test_mnist_file_is_read_and_scaled(tmp_path):
    rows = np.zeros((5000, 785), dtype=int)
    rows[:, -1] = np.arange(5000) // 500
    rows[7, 3] = 255
    write(tmp_path, rows)
    x, y = mnist_5k(tmp_path)
    assert x.shape == (5000, 784) and x[7, 3] == 1 and x.sum() == 1
    assert np.array_equal(np.bincount(y), [500] * 10)


def test_changed_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError):
        mnist_5k(tmp_path)
    write(tmp_path, [[0] * 785])
    with pytest.raises(ValueError, match=r"5000 rows of 784 pixels and a class, found shape \(1, 785\)"):
        mnist_5k(tmp_path)
    write(tmp_path, np.zeros((5000, 785), dtype=int))
    with pytest.raises(ValueError, match="500 images of each class"):
        mnist_5k(tmp_path)

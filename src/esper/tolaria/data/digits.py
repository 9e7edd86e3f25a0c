"""The 1,797 handwritten digits that come with the package: 8 x 8 pixels from 0 to 16, ten classes. NOTICE says where they are from."""

from __future__ import annotations

import hashlib
import io
import zipfile
from importlib import resources

import numpy as np
import torch

from esper.leyline.errors import DataError
from esper.tolaria.data.formats import Images
from esper.tolaria.data.splits import stratified

DIGITS_SHA256 = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
"""SHA-256 of the pixels followed by the labels, one byte each."""
TEST_SIZE = 360


def read_digits() -> Images:
    """The digits as uint8 images (N, 1, 8, 8), 1,437 for train and val and 360 for test, with the classes in proportion."""
    raw = resources.files("esper.tolaria.data").joinpath("digits.npz").read_bytes()
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
            x, y = arrays["x"], arrays["y"]
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise DataError(f"esper/tolaria/data/digits.npz is damaged ({error}); install the package again") from error
    if hashlib.sha256(x.tobytes() + y.tobytes()).hexdigest() != DIGITS_SHA256:
        raise DataError("esper/tolaria/data/digits.npz holds other digits than the package came with; install the package again")
    test, rest = (part.numpy() for part in stratified(torch.from_numpy(y.astype(np.int64)), TEST_SIZE, "digits", "test"))
    x = x[:, None]
    return Images(x_train=x[rest], y_train=y[rest], x_test=x[test], y_test=y[test], origin="the embedded digits")

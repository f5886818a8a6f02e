"""The figure of test samples, from arrays and a table of predictions."""

import numpy as np
import pandas as pd
import pytest

from lit_fed.pictures.samples import samples_figure


def figure(images, num_classes=3, **columns):
    return samples_figure(images, pd.DataFrame({"client": ["ann", "3"], **columns}), num_classes)


def texts(found):
    return [(axes.get_title(), axes.get_xlabel()) for axes in found.axes]


def grey(size=4):
    return np.linspace(0, 1, 2 * size * size, dtype=np.float32).reshape(2, 1, size, size)


def test_classes_are_words_below_the_input():
    found = figure(grey(), label=["cat", "dog"], prediction=["cat", "a_class_with_a_long_name"])
    assert texts(found) == [
        ("ann", "truth: cat\npredicted: cat"), ("client 3", "truth: dog\npredicted: a_class_with_a_lo…")
    ]  # fmt: skip
    np.testing.assert_array_equal(found.axes[1].images[0].get_array(), grey()[1, 0])
    assert found.axes[0].images[0].get_clim() == (0, 1)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"label": [1.5, 2.0], "prediction": [1.25, 2.123456]}, ["truth: 1.5\npredicted: 1.25", "2.12"]),
        (
            {"label_wet": [1, 0], "label_dry": [1, 0], "prediction_wet": [1, 0], "prediction_dry": [0, 0]},
            ["truth: wet, dry\npredicted: wet", "truth: none\npredicted: none"],
        ),
        (
            {"label_0": [1.5, 1.0], "label_1": [0.5, 1.0], "prediction_0": [1.0, 0.0], "prediction_1": [2.0, 0.0]},
            ["truth: 1.5, 0.5\npredicted: 1, 2", "truth: 1, 1\npredicted: 0, 0"],
        ),
    ],
)
def test_numbers_and_several_labels(columns, said):
    for (_, below), part in zip(texts(figure(grey(), **columns)), said, strict=True):
        assert part in below


def test_masks_stand_below_the_input():
    masks = [np.array([[0, 1], [2, 255]]), np.zeros((2, 2), int)]
    found = figure(np.ones((2, 3, 2, 2), np.float32), label=masks, prediction=masks[::-1])
    assert len(found.axes) == 6
    truth, prediction = (found.axes[place].images[0].get_array() for place in (2, 4))
    assert truth.mask.tolist() == [[False, False], [False, True]]
    assert truth.filled(-1).tolist() == [[0, 1], [2, -1]]
    assert prediction.tolist() == [[0, 0], [0, 0]]
    assert [axes.get_ylabel() for axes in found.axes[::2]] == ["input", "truth", "prediction"]

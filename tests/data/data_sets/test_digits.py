import numpy as np

from lit_fed.data.data_sets.digits import Digits


def test_digits():
    samples = Digits().load()
    assert samples.x.shape == (1797, 1, 8, 8)
    assert samples.x.dtype == np.float32
    assert (samples.x.min(), samples.x.max()) == (0, 1)
    assert samples.y.dtype == np.int64
    assert sorted(set(samples.y.tolist())) == list(range(Digits.num_classes))
    assert samples.owner is None

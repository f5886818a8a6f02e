import hashlib
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from lit_fed.data.data_sets.synthetic import Synthetic, synthetic_clients, synthetic_parameters
from lit_fed.errors import ConfigError

# SHA-256 of x_train, y_train, x_test, y_test (float32 and int64) as the published generator writes them.
PUBLISHED = {
    0: (
        "a1e414d43c04cbaeaee18f06087275fc2b513687a614aea1195a71335e152dfd",
        "a21c79ce1bf4603b5cb2786708d472d2f569523c8a4daca4fa83f0ae4017617e",
        "844d500206d3aca377063ef94acb0d2ddec13aac66228d7533af4d0093c61f72",
        "a15c0116d529d3330f40b6ec80502e7ec5ecfed292da2adcc51469e75688bd1c",
    ),
    1: (
        "7fbf3cccc3e2bc942ff6dba32aae23ee1b1861a6f7d60287a480b7db95d8a246",
        "6b72cd80ac79a84e68444a14524595aea1032e9918f0d0b49f5d4ad1514cf8af",
        "516dfdbaeae70db17fc5ffde9254500a566ce49c3e182be4815a6859de9fce24",
        "a1247d718e88a0e2baffb71e50bd7b465119d2a0a2513468b89c851c37e14845",
    ),
    299: (
        "e7061478f4de555f104be9823ffc233751eba802a5010244cbefd9c6733b042b",
        "bf96aacadd0629cda076d548ea24fa05445d58a751bf6991ab554391283ef10d",
        "de688a5bdd0a9805420c95f2e3bc15ddcc3fee8eda48cc5dd1abba5e036febf9",
        "57f2a9b32134700422785a418fc60eaf47e5a5d79812df0900fa19408b5bccac",
    ),
}
SMALL = Synthetic(num_clients=6, dimension=8, test_size=40, noise=0.0)


def digests(client):
    return tuple(hashlib.sha256(array.tobytes()).hexdigest() for array in client)


def nth_client(config, client_id):
    return next(islice(synthetic_clients(config), client_id, None))


@pytest.mark.parametrize("client_id", [0, 1])
def test_published_data(client_id):
    assert digests(nth_client(Synthetic(), client_id)) == PUBLISHED[client_id]


def test_published_data_of_the_last_client():
    assert digests(nth_client(Synthetic(), 299)) == PUBLISHED[299]


def test_published_sizes_are_those_of_the_paper():
    sizes = synthetic_parameters(Synthetic()).sizes
    assert sizes.sum() + 300 * 5000 == 1_570_507
    assert (sizes.min(), np.median(sizes), sizes.max()) == (50, 119, 1000)


def test_load_holds_what_the_clients_generate():
    seen, unseen = SMALL.load()
    assert unseen is None
    assert seen.train.x.dtype == torch.float32
    assert seen.train.y.dtype == torch.int64
    for client_id, client in enumerate(synthetic_clients(SMALL)):
        train, test = seen.train.client(client_id), seen.test.client(client_id)
        for stored, generated in zip((train.x, train.y, test.x, test.y), client, strict=True):
            np.testing.assert_array_equal(stored.numpy(), generated)


def test_load_describes_the_clients():
    seen, _ = SMALL.load()
    parameters = synthetic_parameters(SMALL)
    assert seen.names == ["0", "1", "2", "3", "4", "5"]
    assert seen.groups.tolist() == parameters.mixtures.argmax(axis=1).tolist()
    assert seen.train.sizes.tolist() == parameters.sizes.tolist()
    assert seen.test.sizes.tolist() == [40] * 6
    assert seen.val.sizes.tolist() == [0] * 6
    np.testing.assert_allclose(parameters.mixtures.sum(axis=1), 1)


def test_corrected_labels_come_from_the_components():
    config = replace(SMALL, variant="corrected", one_hot_mixtures=True)
    parameters = synthetic_parameters(config)
    for mixture, client in zip(parameters.mixtures, synthetic_clients(config), strict=True):
        component = parameters.components[mixture.argmax()]
        np.testing.assert_array_equal(client.y_test, (client.x_test @ component > 0).astype(int))


def test_corrected_labels_follow_the_mixture():
    config = replace(SMALL, variant="corrected", test_size=400)
    parameters = synthetic_parameters(config)
    client = nth_client(config, 0)
    answers = client.x_test @ parameters.components.T > 0
    assert (answers == client.y_test[:, None]).any(axis=1).all()


def test_both_variants_share_their_inputs_and_differ_in_labels():
    published, corrected = nth_client(SMALL, 2), nth_client(replace(SMALL, variant="corrected"), 2)
    np.testing.assert_array_equal(published.x_test, corrected.x_test)
    assert (published.y_test != corrected.y_test).any()
    assert published.y_test.mean() < corrected.y_test.mean()


def test_seed_decides():
    assert digests(nth_client(SMALL, 1)) == digests(nth_client(SMALL, 1))
    assert digests(nth_client(SMALL, 1)) != digests(nth_client(replace(SMALL, seed=2), 1))


def test_generation_leaves_the_global_stream_alone():
    before = np.random.get_state()[1].tolist()
    nth_client(SMALL, 0)
    assert np.random.get_state()[1].tolist() == before


def test_fixed_size():
    sizes = synthetic_parameters(replace(SMALL, samples_per_client=7)).sizes
    assert sizes.tolist() == [7] * 6


ON_DEMAND = replace(SMALL, variant="corrected", on_demand=True)


def test_on_demand_shares_the_parameters():
    drawn, held = (replace(ON_DEMAND, on_demand=one).load()[0] for one in (True, False))
    assert drawn.train.sizes.tolist() == held.train.sizes.tolist()
    assert drawn.test.sizes.tolist() == [40] * 6
    assert drawn.val.num_samples == 0
    assert (drawn.names, drawn.groups.tolist()) == (held.names, held.groups.tolist())


def test_on_demand_samples_come_from_streams_of_the_client():
    seen, _ = ON_DEMAND.load()
    alone, together = seen.train.select(torch.tensor([4])), seen.train.select(torch.arange(6))
    other, _ = replace(ON_DEMAND, num_clients=6, test_size=7).load()
    for split in (together, other.train.select(torch.tensor([4, 2]))):
        assert torch.equal(split.client(4).x, alone.client(4).x)
        assert torch.equal(split.client(4).y, alone.client(4).y)
    test = seen.test.select(torch.tensor([4])).client(4)
    assert test.x.shape == (40, 8)
    assert not torch.equal(test.x[:40], alone.x[:40])
    assert not torch.equal(alone.client(4).x[:50], together.client(3).x[:50])
    assert together.x.dtype == torch.float32
    assert float(together.x.abs().max()) <= 1


def test_on_demand_labels_come_from_the_components():
    config = replace(ON_DEMAND, one_hot_mixtures=True)
    parameters, held = synthetic_parameters(config), config.load()[0].test.select(torch.arange(6))
    for client_id, mixture in enumerate(parameters.mixtures):
        client, component = held.client(client_id), parameters.components[mixture.argmax()]
        np.testing.assert_array_equal(client.y, (client.x.double().numpy() @ component > 0).astype(int))


def test_on_demand_takes_the_corrected_variant():
    with pytest.raises(ConfigError, match=r"variant = 'published'.*choose variant 'corrected'"):
        replace(ON_DEMAND, variant="published")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_clients", 0),
        ("num_components", 0),
        ("dimension", 0),
        ("test_size", 0),
        ("samples_per_client", 0),
        ("alpha", 0.0),
        ("alpha", float("nan")),
        ("noise", -1.0),
        ("seed", -1),
        ("variant", "wrong"),
    ],
)
def test_out_of_range_fields_are_named(field, value):
    with pytest.raises(ConfigError, match=rf"--data.dataset.{field} is {value}; give"):
        Synthetic(**{field: value})

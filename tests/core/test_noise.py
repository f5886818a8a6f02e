"""Noise that protects: normal, the same for the same secret, other bits for everything else, and hard to find out."""

import copy
import pickle

import pytest
import torch

from lit_fed.core.noise import protecting_normals
from lit_fed.core.seeds import Secret

SECRET = Secret.of_seed(0)


def drawn(count=50, client=2, secret=SECRET, round_idx=1, purpose="noise", step=None):
    step = None if step is None else torch.tensor(step)
    return protecting_normals(secret, round_idx, torch.tensor(client), purpose, count, step)


def test_normal_numbers():
    numbers = drawn(200_001)
    assert numbers.shape == (200_001,)
    assert numbers.dtype == torch.float64
    moments = [float((numbers**power).mean()) for power in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.06)
    assert float((numbers[:-1] * numbers[1:]).mean()) == pytest.approx(0, abs=0.01)
    assert numbers.abs().max() > 4
    assert len(drawn(0)) == 0


def test_a_published_vector():
    """AES-128-CTR under a key and counter of blake2b, Box and Muller's transform: by other code than ours."""
    import hashlib
    import math

    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    derived = hashlib.blake2b(b'["noise", 1, 2, 0]', key=SECRET.key).digest()[:32]
    encryptor = Cipher(algorithms.AES(derived[:16]), modes.ECB()).encryptor()
    counter = int.from_bytes(derived[16:], "big")
    stream = b"".join(encryptor.update(((counter + block) % 2**128).to_bytes(16, "big")) for block in range(2))
    words = [int.from_bytes(stream[start : start + 8], "little") >> 11 for start in range(0, 32, 8)]
    radius = [math.sqrt(-2 * math.log((word + 1) * 2.0**-53)) for word in words[:2]]
    angle = [2 * math.pi * word * 2.0**-53 for word in words[2:]]
    wanted = [r * math.cos(a) for r, a in zip(radius, angle, strict=True)]
    wanted += [r * math.sin(a) for r, a in zip(radius, angle, strict=True)]
    assert drawn(4).tolist() == pytest.approx(wanted, abs=1e-14)
    assert drawn(3).tolist() == drawn(4).tolist()[:3]


def test_everything_that_names_a_stream_gives_other_numbers():
    others = [
        drawn(client=3),
        drawn(round_idx=2),
        drawn(purpose="other"),
        drawn(step=1),
        drawn(secret=Secret.of_seed(1)),
    ]
    assert torch.equal(drawn(), drawn())
    every = torch.stack([drawn(), *others])
    assert every.unique().numel() == every.numel()


def test_many_clients_and_steps_at_once():
    ids, steps = torch.tensor([2, 2, 3, 3]), torch.tensor([0.0, 1.0, 0.0, 1.0])
    rows = torch.func.vmap(lambda client, step: protecting_normals(SECRET, 1, client, "noise", 400, step))(ids, steps)
    assert torch.equal(rows[1], drawn(400, step=1))
    alone = torch.func.vmap(lambda client: protecting_normals(SECRET, 1, client, "noise", 400))(ids)
    assert torch.equal(alone[1], rows[0]), "step 0 where none is named"
    step_alone = torch.func.vmap(lambda step: protecting_normals(SECRET, 1, torch.tensor(2), "noise", 400, step))(steps)
    assert torch.equal(step_alone[:2], rows[:2])


def test_no_two_of_many_messages_have_the_same_noise():
    """With keys of 32 bits three of 300,000 messages did."""
    ids = torch.arange(300_000)
    first = torch.func.vmap(lambda client: protecting_normals(SECRET, 0, client, "noise", 1))(ids)
    assert first.unique().numel() == len(ids)


def test_a_secret_is_neither_printed_nor_pickled():
    secret = Secret.fresh()
    assert secret.key not in pickle.dumps(secret)
    assert pickle.loads(pickle.dumps(secret)).key != secret.key
    assert copy.deepcopy(secret).key == secret.key
    assert str(secret) == repr(secret) == "Secret(hidden)"
    assert Secret.fresh().key != secret.key
    assert secret.for_("one").key != secret.for_("other").key
    assert secret.seed("one") != secret.seed("other") < 2**128

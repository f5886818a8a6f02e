"""FedBN around an algorithm."""

from lit_fed.wrappers.personal.parts import PersonalParts


def local_norm(algorithm):
    """The algorithm with `--model.batch_norm local`."""
    return PersonalParts(algorithm, ("norm",))

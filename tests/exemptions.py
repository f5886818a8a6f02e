"""Conformance checks that an algorithm cannot satisfy by its nature, with the reason; the name is that of the test."""

ROWS = "the server has a row for each client, in their order"
CLASSES = "it needs classes"
LINEAR = "it trains linear classifiers"
ONE_OUTPUT = "its model is linear with one output"
DIGITS = "its messages are float64, so a sum in another order differs in the last bits"
NUMBERS = "its weights are no whole numbers, so a sum in another order differs in the last bits"

EXEMPT: dict[str, dict[str, str]] = {
    "AFL": {"client_order": ROWS, "ranks": NUMBERS},
    "AttentiveMessagePassing": {"client_order": ROWS},
    "ClusteredFL": {"client_order": "clusters are numbered as they appear"},
    "CQGGADMM": {"client_order": "who is whose neighbour depends on the clients' numbers"},
    "FedAS": {"regression": CLASSES, "ranks": NUMBERS},
    "FedeRiCo": {"client_order": "the start, the coins and the ties of a client depend on its number"},
    "FedFOMO": {"client_order": "the held-out samples, the coins and the ties of a client depend on its number"},
    "FedGen": {
        "regression": CLASSES,
        "sequences": "it generates the features of a sample, not of positions",
        "client_order": "features are drawn by the client's number",
    },
    "FedLC": {"regression": "it calibrates logits of classes"},
    "FedNova": {"sequential_is_vectorized_with_kept_optimizers": "it refuses kept optimizers and Adam"},
    "FedNTD": {"regression": CLASSES},
    "FedPAC": {"client_order": ROWS, "regression": CLASSES},
    "FedProto": {"regression": CLASSES},
    "FedRoD": {"regression": CLASSES},
    "FedU": {"client_order": ROWS},
    "GADMM": {"client_order": "the chain follows the clients' numbers"},
    "Gossiping": {"client_order": "who is whose neighbour depends on the clients' numbers"},
    "GPFL": {"regression": CLASSES},
    "KNNPer": {
        "regression": "it predicts the classes of neighbours",
        "sequences": "it has no positions",
    },
    "FedBuff": {"client_order": "who comes in when follows the clients' numbers"},
    "MixedEffects": {"mlp": ONE_OUTPUT, "multiclass": ONE_OUTPUT, "sequences": ONE_OUTPUT, "ranks": DIGITS},
    "MOCHA": {"client_order": ROWS, "mlp": LINEAR, "regression": LINEAR, "sequences": LINEAR},
    "PartialPooling": {"ranks": DIGITS},
    "PFedFDA": {"regression": CLASSES},
    "PFedHN": {"client_order": "each client has an embedding of its own, drawn by its number"},
    "SharingADMM": {
        "client_order": "party 0 holds the labels",
        "mlp": ONE_OUTPUT,
        "multiclass": ONE_OUTPUT,
        "sequences": ONE_OUTPUT,
    },
    "UCFL": {"client_order": ROWS},
}
"""By the name of the class; a subclass inherits what its bases are exempt from."""


def exempt(cls: type) -> dict[str, str]:
    """The checks that a class cannot satisfy, with the reasons; normalisation that its clients cannot keep is one."""
    found = {check: why for base in reversed(cls.__mro__) for check, why in EXEMPT.get(base.__name__, {}).items()}
    reason = cls().incompatible.get("local_norm")
    return found if reason is None else found | {"local_batch_norm": reason}

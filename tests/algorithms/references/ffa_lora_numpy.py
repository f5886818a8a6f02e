"""FFA-LoRA in NumPy on the network of `fedsa_lora_numpy`, written from the paper alone."""

from references.fedsa_lora_numpy import average, sgd


def ffa_lora_round(frozen, model, clients, batches, lr):
    """One round with all clients: B and the output layer on average, under the unchanged A."""
    done = [sgd(frozen, model, *data, rows, lr, "BVc") for data, rows in zip(clients, batches, strict=True)]
    return model | average(done, "BVc", clients)

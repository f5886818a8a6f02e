"""FedGen over logistic regression, whose features are its inputs, in NumPy: written from the paper."""

import numpy as np


def features(generator, noise, labels):
    """G_w(z | y), [B, D], of a hidden layer and a linear one: ((weight, bias), (weight, bias))."""
    (first, shift), (last, offset) = generator
    hidden = np.maximum(np.hstack([noise, np.eye(2)[labels]]) @ first.T + shift, 0)
    return hidden @ last.T + offset


def generator_loss(generator, noise, labels, models, shares, diversity):
    """J(w): the ensemble's loss on generated features, and the term against alike ones.

    Args:
        generator: see `features`.
        noise: [B, E].
        labels: [B].
        models: [w, b] of each client, [K, D + 1].
        shares: of each client in the losses by label, [K, 2]; None: the loss of the mean logits.
        diversity: weight of that term.
    """
    z = features(generator, noise, labels)
    logits = np.hstack([z, np.ones((len(z), 1))]) @ models.T
    sign = np.where(labels == 1, -1, 1)
    if shares is None:
        loss = np.logaddexp(0, sign * logits.mean(1)).mean()
    else:
        loss = (np.logaddexp(0, sign[:, None] * logits) * shares.T[labels]).sum(1).mean()
    apart = ((noise[:, None] - noise[None]) ** 2).mean(2)
    differ = np.abs(z[:, None] - z[None]).mean(2)
    return loss + diversity * np.exp(-(apart * differ).mean())


def generator_slope(generator, *about):
    """∇J(w) by central differences, as the generator."""
    found = []
    for layer in generator:
        found.append([])
        for leaf in layer:
            slope = np.zeros_like(leaf)
            for place in np.ndindex(*leaf.shape):
                kept, ends = leaf[place], []
                for step in (1e-6, -1e-6):
                    leaf[place] = kept + step
                    ends.append(generator_loss(generator, *about))
                leaf[place] = kept
                slope[place] = (ends[0] - ends[1]) / 2e-6
            found[-1].append(slope)
    return found


def client_steps(model, x, y, generated, generated_labels, lr, steps, weight, stride):
    """Full-batch steps on ℓ(x, y) + weight·ℓ(ẑ, ŷ), each on as many generated features as samples, from a stride on."""
    for step in range(steps):
        place = (step * stride + np.arange(len(y))) % len(generated)
        slope = _slope(model, x, y) + weight * _slope(model, generated[place], generated_labels[place])
        model = model - lr * slope
    return model


def _slope(model, x, y):
    inputs = np.hstack([x, np.ones((len(x), 1))])
    return inputs.T @ (1 / (1 + np.exp(-inputs @ model)) - y) / len(y)

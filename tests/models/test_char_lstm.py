import pytest
import torch
from torch import nn

from lit_fed.core.targets import Sequences
from lit_fed.core.task import Task
from lit_fed.core.types import Batch
from lit_fed.errors import ConfigError
from lit_fed.models import CharLSTM


def small(input_shape=(5,), num_outputs=7):
    return CharLSTM(input_shape, num_outputs, embedding_size=3, hidden_size=4, num_layers=2)


@pytest.mark.parametrize("length", [1, 5])
def test_outputs_have_a_position_axis(length):
    assert small((length,))(torch.randint(7, (2, length))).shape == (2, length, 7)


def test_size_for_shakespeare():
    first, second = 4 * 256 * (8 + 256 + 2), 4 * 256 * (256 + 256 + 2)
    expected = 100 * 8 + first + second + 256 * 100 + 100
    assert sum(leaf.numel() for leaf in CharLSTM((80,), 100).parameters()) == expected == 825_220


def test_an_output_sees_its_own_token_and_those_before():
    network, x = small().eval(), torch.tensor([[1, 2, 3, 4, 5]])
    changed = network(torch.tensor([[1, 2, 6, 4, 5]])) - network(x)
    assert (changed.abs().amax(2)[0] > 0).tolist() == [False, False, True, True, True]


def test_outputs_are_those_of_the_recurrence():
    """Gates in the order input, forget, cell, output, as nn.LSTM keeps them."""
    network, x = small().double(), torch.tensor([[3, 0, 6]])
    inputs = network.embedding.weight[x[0]]
    leaves = dict(network.lstm.named_parameters())
    for layer in range(2):
        w, r, b, c = (leaves[f"{name}_l{layer}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        hidden = cell = torch.zeros(4, dtype=torch.float64)
        states = []
        for one in inputs:
            enter, forget, new, leave = (w @ one + b + r @ hidden + c).split(4)
            cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
            hidden = leave.sigmoid() * cell.tanh()
            states.append(hidden)
        inputs = torch.stack(states)
    expected = inputs @ network.classifier.weight.T + network.classifier.bias
    torch.testing.assert_close(network(x)[0], expected, rtol=0, atol=1e-12)


def test_losses_are_averaged_over_positions():
    task = Task.create(small, Sequences(7), dtype=torch.float64)
    models, x, y = task.init(2, 0), torch.randint(7, (3, 5)), torch.randint(7, (3, 5))
    outputs = task.outputs(models, x)
    assert outputs.shape == (3, 2, 5, 7)
    expected = -outputs.log_softmax(-1).gather(3, y[:, None, :, None].expand(3, 2, 5, 1)).mean((2, 3))
    torch.testing.assert_close(task.losses(outputs, y), expected, rtol=0, atol=1e-12)
    loss, gradient, _ = task.value_and_grad(models, Batch(x, y, torch.arange(3), torch.ones(3)))
    torch.testing.assert_close(loss, expected.mean(0), rtol=0, atol=1e-12)
    assert gradient["lstm.weight_hh_l1"].shape == (2, 16, 4)


@pytest.mark.parametrize("input_shape", [(), (5, 7), (1, 28, 28)])
def test_samples_that_are_no_texts_are_refused(input_shape):
    with pytest.raises(ConfigError, match=r"CharLSTM reads texts \[length\], .*; choose another --model.network"):
        small(input_shape)


@pytest.mark.parametrize("option", ["embedding_size", "hidden_size", "num_layers"])
def test_layers_without_units_are_refused(option):
    with pytest.raises(ConfigError, match=rf"--model\.network\.{option} is 0; give a whole number >= 1"):
        CharLSTM((5,), 7, **{option: 0})


def test_tokens_that_are_no_whole_numbers_are_refused():
    with pytest.raises(ConfigError, match=r"reads tokens, the samples hold torch\.float32; store them as int64"):
        small()(torch.rand(2, 5))


def test_tokens_outside_the_vocabulary_are_refused():
    with pytest.raises(ConfigError, match=r"a token is outside 0 … 6; correct it, or set the data set's num_classes"):
        small()(torch.tensor([[0, 1, 7, 2, 3]]))


def test_there_is_no_dropout():
    assert small().lstm.dropout == 0
    assert not any(isinstance(layer, nn.Dropout) for layer in small().modules())

"""LSTM for next-character prediction."""

from __future__ import annotations

from torch import Tensor, nn

from lit_fed.errors import ConfigError
from lit_fed.models.base import Network, check_sizes

__all__ = ["CharLSTM"]


class CharLSTM(Network):
    """Stacked LSTM that predicts the next character at every position.

    McMahan et al. "Communication-Efficient Learning of Deep Networks from Decentralized Data". 2017.
    https://arxiv.org/abs/1602.05629; the sizes are those of LEAF, https://arxiv.org/abs/1812.01097, and of FedEM,
    https://arxiv.org/abs/2108.10252, on Shakespeare: 825,220 parameters for 100 characters.

    Args:
        input_shape: number of tokens of one text.
        num_outputs: K, the size of the vocabulary; tokens are 0 to K - 1.
        embedding_size: length of a token's vector.
        hidden_size: units of each LSTM layer.
        num_layers: LSTM layers.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_outputs: int,
        embedding_size: int = 8,
        hidden_size: int = 256,
        num_layers: int = 2,
    ) -> None:
        super().__init__()
        if len(input_shape) != 1:
            raise ConfigError(
                f"CharLSTM reads texts [length], the samples are {list(input_shape)}; choose another --model.network, "
                "such as MLP"
            )
        check_sizes(embedding_size=embedding_size, hidden_size=hidden_size, num_layers=num_layers)
        self.embedding = nn.Embedding(num_outputs, embedding_size)
        self.lstm = nn.LSTM(embedding_size, hidden_size, num_layers, batch_first=True)
        self.classifier = nn.Linear(hidden_size, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [B, L, K] of tokens [B, L], int64.

        Raises:
            ConfigError: if tokens are not integers, or (on a CPU) outside the vocabulary.
        """
        if x.is_floating_point():
            raise ConfigError(
                f"CharLSTM reads tokens, the samples hold {x.dtype}; store them as int64 (uint8 is taken for pixels)"
            )
        try:
            embedded = self.embedding(x)
        except IndexError as error:
            raise ConfigError(
                f"a token is outside 0 … {self.embedding.num_embeddings - 1}; correct it, or set the data set's "
                "num_classes"
            ) from error
        hidden, _ = self.lstm(embedded)
        return self.classifier(hidden)  # type: ignore[no-any-return]

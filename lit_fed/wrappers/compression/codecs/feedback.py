"""Error feedback: what a codec has not told yet is told later, EF14 and EF21.

EF14: Stich, Cordonnier, Jaggi. "Sparsified SGD with Memory". NeurIPS 2018. https://arxiv.org/abs/1809.07599
EF21: Richtárik, Sokolov, Fatkhullin. "EF21: A New, Simpler, Theoretically Better, and Practically Faster Error
Feedback". NeurIPS 2021. https://arxiv.org/abs/2106.05203
"""

from collections.abc import Callable

from torch import Tensor

from lit_fed.wrappers.compression.codecs.base import Encoded

__all__ = ["ef14", "ef21"]


def ef14(encode: Callable[[Tensor], Encoded], error: Tensor, news: Tensor) -> tuple[Encoded, Tensor]:
    """What has not been told so far is told along: a = e + Δ is encoded, and e becomes a − Q(a).

    All that was decoded and the last e together are all news.

    Args:
        encode: Q.
        error: e, of the shape of the news; 0 at first.
        news: Δ.

    Returns:
        What is sent, and the new e.
    """
    wanted = error + news
    sent = encode(wanted)
    return sent, wanted - sent.decoded


def ef21(encode: Callable[[Tensor], Encoded], known: Tensor, news: Tensor) -> tuple[Encoded, Tensor]:
    """What the server knows of a client's news moves towards them: g becomes g + Q(Δ − g).

    Args:
        encode: Q.
        known: g, of the shape of the news; 0 at first.
        news: Δ.

    Returns:
        What is sent, and the new g, which the server takes for the news.
    """
    sent = encode(news - known)
    return sent, known + sent.decoded

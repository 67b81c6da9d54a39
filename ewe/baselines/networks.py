"""Small networks over hashed words, trained by steps as any model is: torch's own modules behind one embedding.

Word vectors are learned with the rest, or start from a text file of ready ones (`--option vectors=FILE`, word2vec's or
GloVe's text form). The table has 2**16 rows by default: twice a WordPiece vocabulary's 30,522, so that frequent words
seldom share one, while AdamW, which visits every row at every step, stays quick (at w=128 some 8M weights).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad, relu, scaled_dot_product_attention
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ewe import progress, words
from ewe.batches import Plan, Split
from ewe.config import Sizes
from ewe.elements import TEXT_WORDS
from ewe.errors import DataError, UsageError

ROWS = 1024  # texts whose words are counted together


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """What every network here has."""

    labels: int
    width: int
    """of a word's vector"""
    dropout: float = 0.1
    """of the text's vector"""
    buckets: int = 2**16
    """rows of the word table; words that share one are one word"""
    longest: int = TEXT_WORDS
    """words read of each text, 512 at most"""
    vectors: str = ""
    """text file of word vectors to start from, a word and its `width` numbers a line"""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        for each in fields(self):
            if isinstance(value := getattr(self, each.name), int) and value < (2 if each.name == "buckets" else 1):
                raise UsageError(f"{each.name} cannot be {value}.")
        if self.longest > TEXT_WORDS:
            raise UsageError(f"Of a text {TEXT_WORDS} words are kept; longest cannot be {self.longest}.")

    @classmethod
    def of(cls, sizes: Sizes, **options: Any) -> Self:
        """The configuration for these sizes; `options` are other fields."""
        names = {each.name for each in fields(Sizes)} & {each.name for each in fields(cls)}
        return cls(**{name: getattr(sizes, name) for name in names} | options)


class Network(nn.Module):
    """Hashed words int (B, n) -> word vectors (B, n, w) -> a text's vector -> logits (B, L); subclasses tell how.

    A text's vector is scaled to mean 0 and variance 1 before the head: means of hundreds of words are short and hardly
    differ, and otherwise took ten times the learning rate of the other models to tell apart. An empty text is one word
    of zeros.
    """

    config_class: type[NetworkConfig] = NetworkConfig
    reads = "words"

    def __init__(self, config: Any, features: int = 0) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.buckets, config.width, padding_idx=0)
        with torch.no_grad():
            self.embedding.weight.mul_(config.width**-0.5)  # vectors of length 1, more or less
        self.norm = scaled(features or config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(features or config.width, config.labels)

    def forward(self, ids: Tensor) -> Tensor:  # noqa: D102  the class says it
        return self.classify(ids[:, : self.config.longest])

    def classify(self, ids: Tensor) -> Tensor:
        """Hashed words, or what is hashed of them, int (B, n) -> logits (B, L)."""
        index = words.buckets(ids, self.config.buckets)
        mask = index > 0
        mask[:, 0] = True
        logits: Tensor = self.head(self.dropout(self.norm(self.pool(self.look_up(index), mask))))
        return logits

    def look_up(self, index: Tensor) -> Tensor:
        """Buckets (B, n) -> word vectors (B, n, w)."""
        vectors: Tensor = self.embedding(index)
        return vectors

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        """Word vectors (B, n, w), of which mask (B, n) tells the words -> the text's vector (B, features)."""
        return mean(x, mask)

    def prepare(self, split: Split, rows: NDArray[np.int64], seed: int) -> None:  # noqa: ARG002
        """Once before the first step: take over the file of word vectors, where there is one."""
        if self.config.vectors:
            read_vectors(Path(self.config.vectors), self.embedding.weight.data)


def scaled(width: int) -> nn.LayerNorm:
    """What scales a vector, without parameters."""
    return nn.LayerNorm(width, eps=1e-12, elementwise_affine=False)


def mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over the words: (B, n, w), (B, n) -> (B, w)."""
    shares = mask / mask.sum(1, keepdim=True)
    return (shares[:, None].to(x.dtype) @ x)[:, 0]


def read_vectors(path: Path, table: Tensor) -> None:
    """Put a file's word vectors into a table (buckets, w); the first, most frequent word of a bucket stays.

    Raises:
        UsageError: there is no such file.
        DataError: its vectors are not of w numbers.
    """
    width, taken = table.shape[1], {0}
    try:
        file = path.open(encoding="utf-8", errors="replace")
    except OSError:
        raise UsageError(f"There is no file of word vectors {path}.") from None
    with file:
        for number, line in enumerate(file):
            word, *numbers = line.rstrip().rsplit(" ", width)
            if number == 0 and len(numbers) == 1 < width:
                continue  # word2vec's first line: how many words, how many numbers each
            if len(numbers) != width or (number < 2 and " " in word):
                raise DataError(f"{path} holds no vectors of {width} numbers; choose the --width that it has.")
            ids = words.buckets(words.encode([word]), len(table))
            if ids.shape == (1, 1) and (index := int(ids[0, 0])) not in taken:  # else it is no one word of ours
                taken.add(index)
                table[index] = torch.tensor([float(each) for each in numbers])


class Average(Network):
    """The mean of the word vectors."""


@dataclass(frozen=True, kw_only=True)
class SifConfig(NetworkConfig):
    """How much frequent words count."""

    a: float = 0.001
    """smoothing: a word of frequency a counts half"""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        super().__post_init__()
        if not self.a > 0:
            raise UsageError(f"a cannot be {self.a}.")


class Sif(Network):
    """The mean of the word vectors, each weighed by a / (a + p_w), p_w being the word's frequency in training."""

    config_class = SifConfig
    weights: Tensor

    def __init__(self, config: SifConfig) -> None:
        super().__init__(config)
        self.register_buffer("weights", torch.ones(config.buckets))

    def prepare(self, split: Split, rows: NDArray[np.int64], seed: int) -> None:
        """Count the words of the training rows."""
        super().prepare(split, rows, seed)
        counts = torch.zeros(self.config.buckets, dtype=torch.int64)
        for batch in split.batches(rows, ROWS):
            index = words.buckets(batch.ids[:, : self.config.longest], self.config.buckets)
            counts += index[index > 0].bincount(minlength=len(counts))
        p = counts / counts.sum().clamp(min=1)
        self.weights.copy_(self.config.a / (self.config.a + p))

    def look_up(self, index: Tensor) -> Tensor:  # noqa: D102
        return super().look_up(index) * self.weights[index][..., None]


@dataclass(frozen=True, kw_only=True)
class DanConfig(NetworkConfig):
    """How deep."""

    depth: int = 2
    """hidden layers"""


class Dan(Network):
    """Deep Averaging Network: the mean of word vectors, of which training leaves some out, through hidden layers."""

    config_class = DanConfig

    def __init__(self, config: DanConfig) -> None:
        super().__init__(config)
        w, layers = config.width, range(config.depth)
        self.hidden = nn.Sequential(scaled(w), *(part for _ in layers for part in (nn.Linear(w, w), nn.Tanh())))

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:  # noqa: D102
        if self.training:
            kept = mask & (torch.rand(mask.shape, device=mask.device) >= self.config.dropout)
            mask = kept.where(kept.any(1, keepdim=True), mask)
        text: Tensor = self.hidden(mean(x, mask))
        return text


@dataclass(frozen=True, kw_only=True)
class FastTextConfig(NetworkConfig):
    """How long the n-grams are."""

    buckets: int = 2**18
    """rows of the table; n-grams are many, so more than for words alone"""
    ngrams: int = 2
    """words of the longest n-gram"""


class FastText(Network):
    """The mean of the vectors of hashed words and n-grams, as fastText hashes them: h(w1 ... wn) = h(w1 ...) M + wn."""

    config_class = FastTextConfig

    def forward(self, ids: Tensor) -> Tensor:  # noqa: D102
        grams = [ids[:, : self.config.longest].long()]
        for n in range(1, self.config.ngrams):
            longer = (grams[-1][:, :-1] * 116_049_371 + grams[0][:, n:]) & (2**63 - 1)
            grams.append(longer * (grams[0][:, n:] > 0))
        return self.classify(torch.cat(grams, 1))


class AttentionPooling(Network):
    """softmax(K q / sqrt d)^T V with keys and values of the words, and one query that is learned."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config)
        self.key = nn.Linear(config.width, config.width, bias=False)
        self.value = nn.Linear(config.width, config.width, bias=False)
        self.query = nn.Parameter(torch.randn(config.width))

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:  # noqa: D102
        query = self.query.to(x.dtype).expand(len(x), 1, -1)
        return scaled_dot_product_attention(query, self.key(x), self.value(x), mask[:, None])[:, 0]


class SelfAttention(Network):
    """h_i = sum_j softmax_j(x_i x_j / sqrt d) x_j, without parameters of its own, and their mean."""

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:  # noqa: D102
        return mean(scaled_dot_product_attention(x, x, x, mask[:, None]), mask)


@dataclass(frozen=True, kw_only=True)
class CnnConfig(NetworkConfig):
    """How wide the windows are."""

    k: int = 4
    """words of the widest window; there are windows of 1 to k"""


class Cnn(Network):
    """Convolutions over 1 to k words, `width` filters each; of each filter the highest answer in the text."""

    config_class = CnnConfig

    def __init__(self, config: CnnConfig) -> None:
        super().__init__(config, features=config.k * config.width)
        self.windows = nn.ModuleList(
            nn.Conv1d(config.width, config.width, k, padding=k - 1) for k in range(1, config.k + 1)
        )

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:  # noqa: D102
        x = x.transpose(1, 2)
        # answer t comes from words t - k + 1 to t: it counts where the first of them is no padding
        behind = [~pad(mask, (k, 0), value=True)[:, None] for k in range(len(self.windows))]
        answers = (window(x).masked_fill(b, -torch.inf) for window, b in zip(self.windows, behind, strict=True))
        return relu(torch.cat([answer.amax(2) for answer in answers], 1))


@dataclass(frozen=True, kw_only=True)
class BiLstmConfig(NetworkConfig):
    """How deep."""

    depth: int = 1
    """layers"""


class BiLstm(Network):
    """An LSTM in each direction, half the width each, and the mean of their states."""

    config_class = BiLstmConfig

    def __init__(self, config: BiLstmConfig) -> None:
        half = -(-config.width // 2)
        super().__init__(config, features=2 * half)
        inner = config.dropout if config.depth > 1 else 0.0
        self.lstm = nn.LSTM(config.width, half, config.depth, batch_first=True, bidirectional=True, dropout=inner)

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:  # noqa: D102
        packed = pack_padded_sequence(x, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])
        return mean(states, mask)


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(NetworkConfig):
    """How deep, and with how many heads."""

    layers: int
    heads: int
    """of attention; where nothing is asked for, one in 64 of the width, as BERT has"""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        super().__post_init__()
        if self.width % self.heads:
            raise UsageError(f"--width {self.width} must be a multiple of --heads {self.heads}.")

    @classmethod
    def of(cls, sizes: Sizes, **options: Any) -> Self:
        """The configuration for these sizes; `options` are other fields."""
        return super().of(sizes, **{"heads": sizes.heads or max(1, sizes.width // 64), **options})


class Transformer(Network):
    """torch's encoder layers over words and their positions, and the mean of what they give."""

    config_class = TransformerConfig

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.positions = nn.Parameter(torch.randn(config.longest, config.width) * config.width**-0.5)
        layer = nn.TransformerEncoderLayer(
            config.width, config.heads, 4 * config.width, config.dropout, "gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:  # noqa: D102
        placed = self.dropout(x + self.positions[: x.shape[1]])
        return mean(self.encoder(placed, src_key_padding_mask=~mask), mask)


@dataclass(frozen=True, kw_only=True)
class AutoencoderConfig(NetworkConfig):
    """How long the autoencoder learns before the head does."""

    buckets: int = 2**14
    """of the bag of words that it gives back"""
    steps: int = 1000
    """of 64 texts"""


class Autoencoder(Network):
    """A linear head on the bottleneck of an autoencoder that has learned to give back a text's bag of words.

    Mean of word vectors -> half the width (the bottleneck) -> width -> a distribution over the buckets, whose
    cross-entropy with the text's own is minimised, without any label, before the first step; then only the head learns.
    """

    config_class = AutoencoderConfig

    def __init__(self, config: AutoencoderConfig) -> None:
        bottleneck = -(-config.width // 2)
        super().__init__(config, features=bottleneck)
        self.encoder = nn.Sequential(scaled(config.width), nn.Linear(config.width, bottleneck), nn.Tanh())
        for frozen in self.features():
            frozen.requires_grad_(False)  # noqa: FBT003

    def features(self) -> Iterator[nn.Parameter]:
        """The weights that learn without labels."""
        yield from self.embedding.parameters()
        yield from self.encoder.parameters()

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:  # noqa: D102
        text: Tensor = self.encoder(mean(x, mask))
        return text

    def prepare(self, split: Split, rows: NDArray[np.int64], seed: int) -> None:
        """Let the autoencoder learn from the training rows' words."""
        super().prepare(split, rows, seed)
        width, buckets, steps = self.config.width, self.config.buckets, self.config.steps
        device = self.embedding.weight.device
        decoder = nn.Sequential(nn.Linear(-(-width // 2), width), nn.Tanh(), nn.Linear(width, buckets)).to(device)
        learning = [each.requires_grad_() for each in (*self.features(), *decoder.parameters())]
        optimizer = torch.optim.Adam(learning, lr=3e-3)
        plan = Plan(rows, 64, 1, steps, seed)
        with progress.bar("autoencode", steps, "steps") as advance:
            for step in range(steps):
                ids = split.batch(plan.rows(step)).ids[:, : self.config.longest]
                index = words.buckets(ids.to(device), buckets).long()
                mask = index > 0
                mask[:, 0] = True
                log_p = decoder(self.pool(self.look_up(index), mask)).log_softmax(1).gather(1, index)
                loss = -mean(log_p[..., None], mask).mean()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()  # behind the last step, too: steps of the head's must not meet it
                advance()
        for frozen in self.features():
            frozen.requires_grad_(False)  # noqa: FBT003

"""Text -> one row of ids: WordPiece tokens as BERT reads them, code points as CANINE does.

Both rows start with [CLS], end a text with [SEP] and go on with zeros; u counts all of them, as it does for
letters (ewe/elements.py). `tokenizers` does WordPiece and is imported only where a vocabulary is made or opened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ewe.elements import Bytes, Counts, Places, buffers, check, frozen, measure
from ewe.errors import DataError, UsageError
from ewe.kernel import kernel
from ewe.store import read_json

PAD = 0
CODE_POINTS = 0x110000  # in Unicode
CANINE_CLS, CANINE_SEP = 0xE000, 0xE001  # of Unicode's private use, as CANINE has them

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # ids 0 to 4 of a vocabulary that is learned here
PREFIX = "##"  # of a piece that does not start a word
VOCABULARY_FILE = "tokenizer.json"  # the file of a vocabulary, in tensors and run
MOST_IDS = 1 << 16  # tokens are stored as uint16
LEAST_IDS = 100
ALPHABET = 1000  # different letters at most; rarer ones become [UNK], as in BERT
LEAST_COUNT = 2  # of a piece in the sample
MOST_KEPT = 1 << 22  # letters of words whose tokens are remembered: some 100 MB with them


# -- WordPiece --------------------------------------------------------------------------------------------------------


class WordPiece:
    """A WordPiece vocabulary with BERT's normalizer and pre-tokenizer.

    What stands in a text is text: a literal `[SEP]` in it is brackets and letters, never the special token.

    Attributes:
        size: how many ids there are.

    Args:
        vocabulary: piece -> id; holds SPECIAL, [PAD] as 0.
        normalizer: options of `tokenizers.normalizers.BertNormalizer`; uncased unless said otherwise.
        model: options of `tokenizers.models.WordPiece`.

    Raises:
        ValueError: a special token is missing, [PAD] is not 0, or an id is too large for uint16.
    """

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        normalizer: Mapping[str, Any] | None = None,
        model: Mapping[str, Any] | None = None,
    ) -> None:
        from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

        missing = [token for token in SPECIAL if token not in vocabulary]
        if missing:
            raise ValueError(f"has no {missing[0]}")
        if vocabulary["[PAD]"] != PAD:
            raise ValueError(f"has [PAD] as {vocabulary['[PAD]']}, not 0")
        self.size = max(vocabulary.values()) + 1
        if self.size > MOST_IDS:
            raise ValueError(f"has ids up to {self.size - 1:,}, more than uint16 holds")
        self._cls, self._sep, self._unk = (vocabulary[token] for token in ("[CLS]", "[SEP]", "[UNK]"))
        self._known: dict[str, list[int]] = {}
        self._kept = 0
        self._tokenizer = Tokenizer(models.WordPiece(dict(vocabulary), **{"unk_token": "[UNK]", **(model or {})}))
        self._tokenizer.normalizer = normalizers.BertNormalizer(**(normalizer or {}))
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self._tokenizer.post_processor = processors.BertProcessing(("[SEP]", self._sep), ("[CLS]", self._cls))
        self._tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
        self._tokenizer.encode_special_tokens = True

    @classmethod
    def train(cls, texts: Sequence[str], size: int = 30_522) -> Self:
        """Learn an uncased vocabulary; the same texts give the same one, whatever their order.

        By itself the trainer of `tokenizers` does not: it numbers continuing letters in the order of a hash table
        with a random seed, and breaks ties by these numbers. Letters named beforehand keep their order.

        Args:
            texts: without surrogates.
            size: ids at most; there are fewer where the texts do not hold as many pieces.

        Raises:
            UsageError: a size below 100 or beyond uint16.
        """
        from tokenizers import Tokenizer, models, trainers

        check_size(size)
        empty = cls({token: number for number, token in enumerate(SPECIAL)})._tokenizer
        letters = _letters(empty, texts, min(ALPHABET, size // 4))
        inner = [PREFIX + letter for letter in letters if len(_words(empty, f"a{letter}a")) == 1]
        trainer = trainers.WordPieceTrainer(
            vocab_size=size,
            min_frequency=LEAST_COUNT,
            special_tokens=[*SPECIAL, *letters, *inner],
            initial_alphabet=letters,
            limit_alphabet=len(letters),
            continuing_subword_prefix=PREFIX,
            show_progress=False,
        )
        learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106 - a token of text, not a password
        learner.normalizer, learner.pre_tokenizer = empty.normalizer, empty.pre_tokenizer
        learner.train_from_iterator(texts, trainer)
        return cls(learner.get_vocab())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Open a vocabulary: a BERT tokenizer's tokenizer.json, or a vocab.txt with a piece a line (then uncased).

        Raises:
            DataError: the file is missing or broken, or not such a vocabulary.
        """
        try:
            return cls(**_parse_json(path)) if path.suffix == ".json" else cls(_parse_lines(path))
        except ValueError as error:
            raise DataError(f"{path} {error}; give a BERT tokenizer's tokenizer.json or vocab.txt.") from None

    def to_json(self) -> str:
        """The text of a tokenizer.json, which Hugging Face's fast tokenizers open too."""
        text: str = self._tokenizer.to_str(pretty=True)
        return text + "\n"

    def encode(self, texts: Sequence[str], u: int = 128) -> npt.NDArray[np.uint16]:
        """Encode texts as ids uint16 (N, u): [CLS], at most u - 2 tokens, [SEP], zeros.

        Raises:
            UsageError: u < 3.
            TypeError: `texts` is one string.
        """
        check(u)
        out = np.empty((len(texts), u), np.uint16)
        self.encode_buffers(*buffers(texts), out)
        return out

    def encode_buffers(
        self, data: Bytes, offsets: Places, out: npt.NDArray[np.uint16], lengths: Places | None = None
    ) -> Counts:
        """Encode the texts in an Arrow string array's buffers, as `elements.encode_buffers` does.

        Args:
            data: valid UTF-8 of all texts.
            offsets: int64 (N+1), where each text starts.
            out: uint16 (N, u); all of it is written.
            lengths: int64 (N), filled as there; None where nobody asks.

        Returns:
            Counts; `materials_cut` are words that became [UNK].
        """
        N, u = out.shape
        if lengths is not None:
            lengths[:] = measure(data, offsets)
        ends = np.empty(N, np.int64)
        _prefixes(frozen(data), frozen(offsets), u - 1, ends)  # one token more than fits tells what is cut
        out.fill(PAD)
        materials = rows_cut = 0
        for row, ids in zip(out, self._tokens(slices(data, offsets[:-1], ends)), strict=True):
            kept = min(len(ids), u - 2)
            row[: kept + 2] = [self._cls, *ids[:kept], self._sep]
            materials += kept
            rows_cut += len(ids) > kept
        return Counts(materials, int((out == self._unk).sum()), rows_cut)

    def _tokens(self, texts: list[str]) -> Iterator[list[int]]:
        """The ids of each text; a word's are asked for once, as nothing about them depends on its neighbours."""
        rows = [text.split(" ") for text in texts]
        if self._kept > MOST_KEPT:
            self._known, self._kept = {}, 0
        known = self._known  # other threads may add to it, or start another
        new = [word for word in set(chain.from_iterable(rows)) if word not in known]
        encoded = self._tokenizer.encode_batch_fast(new, add_special_tokens=False)
        known.update(zip(new, (each.ids for each in encoded), strict=True))
        self._kept += sum(map(len, new))
        return (list(chain.from_iterable(map(known.__getitem__, words))) for words in rows)


def check_size(size: int) -> None:
    """Raise UsageError unless a vocabulary of so many ids can be learned."""
    if not LEAST_IDS <= size <= MOST_IDS:
        raise UsageError(f"A vocabulary of {size:,} ids cannot be; ask for {LEAST_IDS} to {MOST_IDS:,}.")


def slices(data: Bytes, starts: Places, ends: Places) -> list[str]:
    """Python strings of stretches of UTF-8."""
    view = data.data
    return [str(view[start:end], "utf-8") for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


@kernel
def _prefixes(data: Bytes, offsets: Places, words: int, ends: Places) -> None:
    """Where each text's first so many words end; all of it where it has fewer.

    Only words that BERT's normalizer cannot merge or remove count: between blanks, tabs and line ends, with a
    printable ASCII character in them. Each is at least one token, so what stands behind changes none of the first.
    """
    for n in range(ends.size):
        i, end = offsets[n], offsets[n + 1]
        count = 0
        inside = False
        while i < end:
            byte = data[i]
            if byte == 0x20 or byte == 0x09 or byte == 0x0A or byte == 0x0D:
                count += inside
                inside = False
                if count == words:
                    break
            elif 0x21 <= byte <= 0x7E:
                inside = True
            i += 1
        ends[n] = i


def _words(tokenizer: Any, text: str) -> list[str]:
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))]


def _letters(tokenizer: Any, texts: Sequence[str], most: int) -> list[str]:
    """The most frequent letters of normalized texts, in Unicode's order; of equal ones the lower code point."""
    counts = np.zeros(CODE_POINTS, np.int64)
    for start in range(0, len(texts), 1024):
        points = np.frombuffer("".join(texts[start : start + 1024]).encode("utf-32-le"), np.uint32)
        counts += np.bincount(points, minlength=CODE_POINTS)
    letters: Counter[str] = Counter()
    for point in np.flatnonzero(counts).tolist():  # normalizing goes letter by letter
        for letter in "".join(_words(tokenizer, chr(point))):
            letters[letter] += int(counts[point])
    return sorted(sorted(letters, key=lambda letter: (-letters[letter], letter))[:most])


def _parse_lines(path: Path) -> dict[str, int]:
    with path.open(encoding="utf-8", newline="\n") as lines:
        return {line.rstrip("\r\n"): number for number, line in enumerate(lines)}


BERT = {"model": "WordPiece", "normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer"}  # types in its JSON
OPTIONS = {  # that a tokenizer.json may set otherwise than BERT
    "model": ("continuing_subword_prefix", "max_input_chars_per_word"),
    "normalizer": ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase"),
}


def _parse_json(path: Path) -> dict[str, Any]:
    """The arguments of WordPiece in a tokenizer.json."""
    found = read_json(path)
    try:
        kinds = {part: found[part]["type"] for part in BERT}
        vocabulary = {str(piece): int(number) for piece, number in found["model"].get("vocab", {}).items()}
        own = [token["content"] for token in found["added_tokens"] if token["content"] not in SPECIAL]
    except (AttributeError, KeyError, TypeError):
        raise ValueError("is no whole tokenizer") from None
    if kinds != BERT:
        raise ValueError(f"is no BERT tokenizer but one of {', '.join(map(str, kinds.values()))}")
    if own:
        raise ValueError(f"adds {own[0]!r} to its vocabulary")
    chosen = {part: {name: found[part][name] for name in OPTIONS[part] if name in found[part]} for part in OPTIONS}
    return {"vocabulary": vocabulary, **chosen}


# -- code points ------------------------------------------------------------------------------------------------------


def codepoints(texts: Sequence[str], u: int = 128) -> npt.NDArray[np.uint32]:
    """Encode texts as CANINE's ids, uint32 (N, u): 0xE000, at most u - 2 code points, 0xE001, zeros.

    U+0000 is dropped and a lone surrogate becomes U+FFFD, as in letters.

    Raises:
        UsageError: u < 3.
        TypeError: `texts` is one string.
    """
    check(u)
    out = np.empty((len(texts), u), np.uint32)
    encode_codepoints(*buffers(texts), out)
    return out


def encode_codepoints(
    data: Bytes, offsets: Places, out: npt.NDArray[np.uint32], lengths: Places | None = None
) -> Counts:
    """Encode the texts in an Arrow string array's buffers, as `elements.encode_buffers` does.

    Args:
        data: valid UTF-8 of all texts, without surrogates.
        offsets: int64 (N+1), where each text starts.
        out: uint32 (N, u); all of it is written.
        lengths: int64 (N), filled as there; None where nobody asks.
    """
    if lengths is not None:
        lengths[:] = measure(data, offsets)
    return Counts(*_codepoints(frozen(data), frozen(offsets), out))


@kernel
def _codepoints(data: Bytes, offsets: Places, out: npt.NDArray[np.uint32]) -> tuple[int, int, int]:
    N, u = out.shape
    materials = rows_cut = 0
    for n in range(N):
        i, end = offsets[n], offsets[n + 1]
        out[n] = PAD
        out[n, 0] = CANINE_CLS
        m = 0
        while i < end and m < u - 2:
            lead = np.uint32(data[i])
            width = 1 + (lead >= 0xC0) + (lead >= 0xE0) + (lead >= 0xF0)
            point = lead if width == 1 else lead & np.uint32(0x7F >> width)
            for k in range(1, width):
                point = point << np.uint32(6) | np.uint32(data[i + k] & 0x3F)
            if point:
                m += 1
                out[n, m] = point
            i += width
        out[n, m + 1] = CANINE_SEP
        materials += m
        while i < end and data[i] == 0:
            i += 1
        rows_cut += i < end
    return materials, 0, rows_cut

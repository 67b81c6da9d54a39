"""Made-up patent English: words by rule, clauses, and claims laid out as the publications table lays them out.

Topics stand for subclasses. Their words are built so that a reader of letters can learn them and a single word tells
nothing: a topic is a line of a plane of 8 x 8 points, a root is a point of it.

    root (block b, x, y) = FIRST[8b+x] + MIDDLE[8b+y] + LAST[8b + (x xor y)]      `ba` + `lo` + `na`
    topic (block, 0, m) = the roots with x = m;  (block, 1, m): y = m;  (block, 2, m): x xor y = 7-m

So the words of a topic share one syllable, every root belongs to three topics, and two topics share at most one root.

Claim 1 tells the order. Its preamble is about the topic listed first, its body about the later ones, and it ends with
what the invention is used in place of, a topic that is no label. Each of them has about as many words: what a bag of
words sees is the same whichever comes first. Later claims mix them all.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ewe.kernel import kernel

TOPICS = 48
SIDE = 8  # of a plane
BLOCK = 3 * SIDE  # topics of neighbouring frequency, so that none of a root's three topics outweighs the others by far


def _split(words: str) -> list[str]:
    return words.split()


FIRST = _split("ba ce di fo gu ha jo ke li mu no pa re si tu vo")
MIDDLE = _split("lo ma ne pi ru sa te vi xo za bi co du fe ga hu")
LAST = _split("na re li to mu da ce si vo pu bi gi ko xa za fe")
NOUNS = _split("r tor ne ment")
ADJECTIVES = _split("l ted ric")
GERUNDS = _split("ting zing")
# which of a root's endings stand at the 16 places of a table's row: the earlier, the more often
_PLACES = ([0, 1] * 4 + [0, 2] * 2 + [1, 2, 3, 3], [0, 1] * 5 + [0, 2] * 3, [0, 0, 0, 1] * 4)

ORDINARY = (  # of any field: nouns, adjectives, gerunds; all begin with a consonant, to go with `a`
    _split(
        "member portion unit signal surface body system value side layer part set material mixture circuit housing "
        "support region plate source controller module path structure position section data range time process step "
        "direction base cover frame channel state medium sheet message network device user block line cavity"
    ),
    _split(
        "lower first second respective predetermined separate common corresponding movable flexible rigid selected "
        "lateral planar main rear front remote digital thermal vertical hollow liquid transparent secondary"
    ),
    _split(
        "receiving providing moving forming storing determining supporting connecting sending heating holding "
        "measuring selecting mixing detecting changing cooling pressing"
    ),
)
_ONSETS = _split("br cl dr fl gl pr sk sl sn sp st str thr tr tw wr")
_CODAS = _split("nd ck lt mp rk ss sh ft")
_TAILS = (("", "er", "et", "age"), ("y", "ed", "ish", "ous"), ("ing", "ling", "ering", "izing"))

_LOCANTS = _split("1 2 3 4 5 6 2,4 3,5 2,6")
_SUBSTITUENTS = _split("methyl chloro fluoro ethoxy hydroxy amino trifluoromethyl cyclopropyl")
_RINGS = _split("phenyl pyridin-3-yl pyrimidin-4-yl thiazol-2-yl quinolin-6-yl benzofuran-5-yl morpholinyl")
_CORES = _split("propanamide benzamide piperidine-1-carboxylate pyrrolidin-2-one ethanol acetonitrile indazole")

KINDS = (  # as claim 1 opens, and as later claims and titles say it
    ("A method", "method"),
    ("An apparatus", "apparatus"),
    ("A system", "system"),
    ("A device", "device"),
    ("A process", "process"),
    ("An assembly", "assembly"),
    ("A composition", "composition"),
    ("An article", "article"),
)
PREAMBLES = (  # "" thrice: a fifth of the texts have none
    "",
    "",
    "",
    "What is claimed is:",
    "What is claimed is:",
    "What is claimed is:",
    "What is claimed is:",
    "What is claimed is:",
    "The invention claimed is:",
    "The invention claimed is:",
    "We claim:",
    "I claim:",
    "What is claimed:",
    "Claims:",
    "What is claimed as new and desired to be protected by Letters Patent of the United States is:",
    "Having thus described the invention, what is claimed is:",
)

PLAIN, ENTITY, FOREIGN, CHEMICAL = range(4)  # what a clause holds
CLAUSES = (  # N, A, G: a noun, an adjective, a gerund, of a topic or ordinary; C: a chemical name
    # Neither the first nor the last word is a topic's: with a `;` at it, it would tell in which part it stands.
    (
        "a {A} {N} coupled to a {N} of {N}s therein",
        "some {N}s configured for {G} a {A} {N} thereof",
        "a plurality of {N}s between {A} {N}s and {N}s thereof",
        "means for {G} a {A} {N} by {N}s thereof",
        "a {N} having {A} {N}s and a {N} {G} {N}s therein",
        "by {G} a {A} {N} with {N}s and {N}s thereof",
        "a {A} {N} on a {N} {G} {N}s therein",
        "a {N} in contact with {A} {N}s and {N}s thereof",
        "said {N} {G} {A} {N}s from a {N} thereto",
        "first {N}s and second {N}s {G} a {A} {N} thereby",
    ),
    (
        "the {N}&#39;s {A} {N} &lt; 10 {N}s thereof",
        "a {N} &amp; {N}s {G} a {A} {N} thereby",
        "a &#x201c;{A}&#x201d; {N} {G} a {N} therein",
        "the {N}s &gt; 5% of a {A} {N} by {N}s thereof",
    ),
    (
        "a {A} {N} of 40 μm and {N}s {G} {N}s therein",
        "by {G} a {A} {N} at 85 °C with {N}s thereof",
        "an α-{N} and β-{N}s of a {A} {N} therein",
        "a Schrödinger {N} {G} {A} {N}s thereof",
        "some {N}s of ≥ 3 × 10⁵ {N}s for {G} a {A} {N} thereby",
    ),
    (
        "some {A} {N}s of {C} and {N}s therein",
        "by {G} {C} with {A} {N}s and a {N} thereof",
        "a {N} and {N}s dissolved in {C} before {G} {N}s thereby",
    ),
)
TITLE = "for {G} {A} {N} and {N}"
DESIGN = "The ornamental design for a {A} {N} {N}, as shown and described."
_FIXED = (  # what else a claim is made of, in the order of the names below
    " \n     \n         \n       ",
    " for ",
    ", ",
    "; ",
    ";",
    ", comprising: ",
    ", comprising:",
    ", used in place of ",
    "The ",
    " of claim ",
    " of  claim ",
    " according to claim ",
    ", wherein ",
    " , wherein ",
    ". ",
    " . ",
    ".",
)
LADDER, FOR, COMMA, THEN, THEN_GLUED, COMPRISING, COMPRISING_GLUED, INSTEAD, THE = range(9)
OF_CLAIM, OF_CLAIM_SPACED, ACCORDING, WHEREIN, WHEREIN_SPACED, NUMBER, NUMBER_SPACED, STOP = range(9, 17)

SPACED, GLUED, ENTITIES, NON_ASCII, CHEMISTRY = 1, 2, 4, 8, 16  # styles of a text, as bits

# Words of claim 1 by part; a model with u=128 reads 126 of them.
PREAMBLE_WORDS, BODY_WORDS, INSTEAD_WORDS = 30, 66, 34
TOPIC_WORDS = 12  # of each topic in claim 1, or fewer where the body's topics are many
DENSITY = 0.45  # of later claims' nouns, adjectives and gerunds, the share that is a topic's
SCENE = 60  # draws that fall on a text's own topics, whichever their number (2 to 5) alike often ...
BACKGROUND = 12  # ... beside so many that fall on any topic


class Plan(NamedTuple):
    """What N texts are about and how they are laid out."""

    seed: NDArray[np.uint64]
    """(N,) of the text: equal seeds (and otherwise equal plans) give equal texts."""
    edit_seed: NDArray[np.uint64]
    """(N,) of the edits."""
    edits: NDArray[np.uint16]
    """(N,) words in 65,536 that are replaced."""
    topics: NDArray[np.int8]
    """(N, 5) first, later..., instead: as many as there are, any number after them."""
    later: NDArray[np.uint8]
    """(N,) how many later topics, first apart."""
    again: NDArray[np.bool_]
    """(N,) whether the first topic is a later one, too."""
    claims: NDArray[np.uint16]
    """(N,) how many; 0: no text; DESIGN_CLAIM: a design's single one."""
    words: NDArray[np.uint16]
    """(N,) of a later claim, about."""
    style: NDArray[np.uint8]
    """(N,) bits of SPACED ... CHEMISTRY."""
    preamble: NDArray[np.uint8]
    """(N,) index into PREAMBLES."""
    kind: NDArray[np.uint8]
    """(N,) index into KINDS."""


DESIGN_CLAIM = np.iinfo(np.uint16).max


class Language(NamedTuple):
    """Words and clauses as tables that the kernels read."""

    letters: NDArray[np.uint8]
    """Every word and fragment, UTF-8, end to end."""
    starts: NDArray[np.int64]
    """Where the i-th begins; it ends where the next begins."""
    topical: NDArray[np.uint16]
    """(TOPICS, 3, 128) nouns, adjectives, gerunds of each topic: draw one of the 128."""
    ordinary: NDArray[np.uint16]
    """(3, 4096) those of any field, Zipf-distributed."""
    compounds: NDArray[np.uint16]
    """(64,) chemical names."""
    pieces: NDArray[np.uint16]
    """Fragments of all clauses, in order."""
    slots: NDArray[np.int8]
    """What follows each: 0 noun, 1 adjective, 2 gerund, 3 chemical name, -1 the clause's end."""
    clauses: NDArray[np.int64]
    """Where each clause begins in pieces."""
    clause_words: NDArray[np.int64]
    """Words of each clause."""
    groups: NDArray[np.int64]
    """(4+1,) where the clauses of PLAIN ... CHEMICAL begin; then the title's and the design's."""
    fixed: NDArray[np.uint16]
    """_FIXED, in order."""
    kinds: NDArray[np.uint16]
    """(len(KINDS), 2)"""
    preambles: NDArray[np.uint16]
    slot_share: float
    """Nouns, adjectives and gerunds among the words of plain clauses."""


def roots(topic: int) -> list[str]:
    """The eight roots of a topic's words."""
    block, line = divmod(topic, BLOCK)
    m, kind = divmod(line, 3)
    offset = SIDE * block
    return [
        FIRST[offset + x] + MIDDLE[offset + y] + LAST[offset + (x ^ y)]
        for x in range(SIDE)
        for y in range(SIDE)
        if m == (x, y, SIDE - 1 - (x ^ y))[kind]  # turned round: of a root's topics, two are never both rare
    ]


def zipf(n: int, size: int, shift: float = 1.0) -> NDArray[np.int64]:
    """`size` ranks below n, sorted, the r-th as often as 1 / (r + shift) says: draw one of them for a Zipf variable."""
    share = np.cumsum(1 / (np.arange(n) + shift))
    return np.searchsorted(share / share[-1], (np.arange(size) + 0.5) / size)


def chemical_names() -> list[str]:
    """64 names in the manner of IUPAC's; the longest has some 140 letters."""
    names = []
    for i in range(64):
        parts = [
            f"{_LOCANTS[(i + j) % 9]}-[{_LOCANTS[(i * 3 + j) % 6]}-({_SUBSTITUENTS[(i + 3 * j) % 8]})"
            f"{_RINGS[(2 * i + j) % 7]}]-"
            for j in range(1 + (i % 4 == 0) + 2 * (i % 16 == 0))
        ]
        names.append("".join(parts) + f"{_SUBSTITUENTS[i // 8]}{_CORES[i % 7]}")
    return names


@cache
def language() -> Language:
    """The language; the same for every seed."""
    texts: list[str] = []
    ids: dict[str, int] = {}

    def word(text: str) -> int:
        if text not in ids:
            ids[text] = len(texts)
            texts.append(text)
        return ids[text]

    endings = (NOUNS, ADJECTIVES, GERUNDS)
    topical = [
        [
            [word(root + ends[place]) for root in roots(topic) for place in places]
            for ends, places in zip(endings, _PLACES, strict=True)
        ]
        for topic in range(TOPICS)
    ]
    made_up = [
        [onset + vowel + coda + tail for tail in tails for coda in _CODAS for vowel in "aeiou" for onset in _ONSETS]
        for tails in _TAILS
    ]
    ordinary = [
        [word((known + made)[rank]) for rank in zipf(len(known + made), 4096)]
        for known, made in zip(ORDINARY, made_up, strict=True)
    ]
    pieces: list[int] = []
    slots: list[int] = []
    clauses: list[int] = []
    for clause in [*(clause for group in CLAUSES for clause in group), TITLE, DESIGN]:
        clauses.append(len(pieces))
        *parts, last = re.split(r"\{(.)\}", clause)
        pieces += [word(part) for part in [*parts[::2], last]]
        slots += ["NAGC".index(slot) for slot in parts[1::2]] + [-1]
    compounds = [word(name) for name in chemical_names()]
    fixed = [word(text) for text in _FIXED]
    kinds = [[word(opening), word(kind)] for opening, kind in KINDS]
    preambles = [word(preamble) for preamble in PREAMBLES]
    plain = CLAUSES[PLAIN]
    encoded = [text.encode() for text in texts]
    return Language(
        letters=np.frombuffer(b"".join(encoded), np.uint8),
        starts=np.cumsum([0, *map(len, encoded)], dtype=np.int64),
        topical=np.array(topical, np.uint16),
        ordinary=np.array(ordinary, np.uint16),
        compounds=np.array(compounds, np.uint16),
        pieces=np.array(pieces, np.uint16),
        slots=np.array(slots, np.int8),
        clauses=np.array(clauses, np.int64),
        clause_words=np.array([len(clause.split()) for group in CLAUSES for clause in group], np.int64),
        groups=np.cumsum([0, *map(len, CLAUSES)], dtype=np.int64),
        fixed=np.array(fixed, np.uint16),
        kinds=np.array(kinds, np.uint16),
        preambles=np.array(preambles, np.uint16),
        slot_share=sum(clause.count("{") for clause in plain) / sum(len(clause.split()) for clause in plain),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Kernels. Random numbers are SplitMix64's: the same on every machine, and a text depends on its seeds alone.


GOLDEN, MIX1, MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_GOLDEN, _MIX1, _MIX2 = np.uint64(GOLDEN), np.uint64(MIX1), np.uint64(MIX2)
_TEXT, _EDIT = 0, 1  # the two random states of a text
_ROOM = 1 << 16  # bytes; no claim is as long


def write_claims(plan: Plan) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The claims of N texts.

    Returns:
        Their UTF-8, end to end, and (N+1,) where each starts.
    """
    N = len(plan.claims)
    out = np.empty(N * 8_000 + 4 * _ROOM, np.uint8)
    offsets = np.zeros(N + 1, np.int64)
    row = 0
    while (row := _write_claims(language(), plan, row, out, offsets)) < N:
        out = np.concatenate([out, np.empty_like(out)])
    return out[: offsets[N]], offsets


def write_titles(plan: Plan) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The titles of N texts, as `write_claims` returns claims; a third of them in capitals."""
    N = len(plan.claims)
    out = np.empty(N * 400, np.uint8)
    offsets = np.zeros(N + 1, np.int64)
    _write_titles(language(), plan, out, offsets)
    return out[: offsets[N]], offsets


@kernel
def _draw(state: NDArray[np.uint64], which: int) -> int:
    """63 random bits."""
    state[which] += _GOLDEN
    z = state[which]
    z = (z ^ (z >> np.uint64(30))) * _MIX1
    z = (z ^ (z >> np.uint64(27))) * _MIX2
    return np.int64((z ^ (z >> np.uint64(31))) >> np.uint64(1))  # type: ignore[return-value]


@kernel
def _put(language: Language, word: int, out: NDArray[np.uint8], w: int) -> int:
    for i in range(language.starts[word], language.starts[word + 1]):
        out[np.uintp(w)] = language.letters[np.uintp(i)]  # unsigned: no test for a negative index
        w += 1
    return w


@kernel
def _put_number(n: int, out: NDArray[np.uint8], w: int) -> int:
    digits = 1 + (n > 9) + (n > 99)
    for i in range(digits - 1, -1, -1):
        out[w + i] = ord("0") + n % 10
        n //= 10
    return w + digits


@kernel
def _put_clause(
    language: Language,
    clause: int,
    density: float,
    topics: NDArray[np.int8],
    edits: int,
    state: NDArray[np.uint64],
    out: NDArray[np.uint8],
    w: int,
) -> int:
    """Write one clause, whose slots hold words of one of `topics` with probability `density`, else ordinary ones."""
    piece = language.clauses[clause]
    while True:
        w = _put(language, language.pieces[piece], out, w)
        slot = language.slots[piece]
        piece += 1
        if slot < 0:
            return w
        r = _draw(state, _TEXT)
        if slot == 3:
            word = language.compounds[r & 63]
        elif r & 0xFFFF < density * 0x10000:
            word = language.topical[topics[(r >> 16 & 0xFFFF) % len(topics)], slot, r >> 32 & 127]
        else:
            word = language.ordinary[slot, r >> 32 & 4095]
        if edits:
            r = _draw(state, _EDIT)
            if r & 0xFFFF < edits:
                word = language.ordinary[slot % 3, r >> 16 & 4095]
        w = _put(language, word, out, w)


@kernel
def _choose_clause(language: Language, style: int, state: NDArray[np.uint64]) -> int:
    r = _draw(state, _TEXT)
    group = PLAIN
    luck = r % 10
    if luck == 0 and style & NON_ASCII:
        group = FOREIGN
    elif luck == 1 and style & ENTITIES:
        group = ENTITY
    elif luck == 2 and style & CHEMISTRY:
        group = CHEMICAL
    first = language.groups[group]
    return int(first + (r >> 16) % (language.groups[group + 1] - first))


@kernel
def _put_clauses(
    language: Language,
    plan: Plan,
    row: int,
    density: float,
    topics: NDArray[np.int8],
    joint: int,
    words: int,
    until: int,
    state: NDArray[np.uint64],
    out: NDArray[np.uint8],
    w: int,
) -> tuple[int, int]:
    """Write one or more clauses, with `joint` between them, until there are `until` words; returns words and end."""
    while True:
        clause = _choose_clause(language, plan.style[row], state)
        w = _put_clause(language, clause, density, topics, plan.edits[row], state, out, w)
        words += language.clause_words[clause]
        if words >= until:
            return words, w
        w = _put(language, language.fixed[joint], out, w)


@kernel
def _put_claim_1(
    language: Language, plan: Plan, row: int, state: NDArray[np.uint64], out: NDArray[np.uint8], w: int
) -> int:
    """Write claim 1: the first topic, the later ones, the one it is used in place of, alike in their share of words."""
    topics = plan.topics[row]
    later, again = plan.later[row], plan.again[row]
    weight = later + 0.5 * again  # the first topic's words are halved between preamble and body
    share = language.slot_share
    each = min(TOPIC_WORDS, BODY_WORDS * share / max(weight, 0.5))
    glued = plan.style[row] & GLUED
    joint = THEN_GLUED if glued else THEN

    w = _put(language, language.fixed[FOR], out, _put(language, language.kinds[plan.kind[row], 0], out, w))
    density = each * (0.5 if again else 1.0) / (PREAMBLE_WORDS * share)
    until = PREAMBLE_WORDS - 4 + _draw(state, _TEXT) % 5
    words, w = _put_clauses(language, plan, row, density, topics[:1], joint, 3, until, state, out, w)

    w = _put(language, language.fixed[COMPRISING_GLUED if glued else COMPRISING], out, w)
    density = each * weight / (BODY_WORDS * share)
    until = words
    body = later + again
    place = _draw(state, _TEXT) % max(body, 1)  # of the first topic among the later ones
    for i in range(max(body, 1)):
        own = again and i == place
        topic = 0 if own else i + 1 - (again and i > place)
        if i > 0:
            w = _put(language, language.fixed[joint], out, w)
        until += int(BODY_WORDS * (0.5 if own else 1.0) / max(weight, 1.0))
        words, w = _put_clauses(
            language, plan, row, density, topics[topic : topic + 1], joint, words, until, state, out, w
        )

    w = _put(language, language.fixed[INSTEAD], out, w)
    density = each / (INSTEAD_WORDS * share)
    until = PREAMBLE_WORDS + BODY_WORDS + INSTEAD_WORDS
    topics = topics[later + 1 : later + 2]
    _, w = _put_clauses(language, plan, row, density, topics, joint, words + 4, until, state, out, w)
    return w


@kernel
def _put_later_claim(
    language: Language,
    plan: Plan,
    row: int,
    number: int,
    scene: NDArray[np.int8],
    state: NDArray[np.uint64],
    out: NDArray[np.uint8],
    w: int,
) -> int:
    """Write claim 2 or a later one: most refer to an earlier one, some stand alone."""
    fixed = language.fixed
    spaced = plan.style[row] & SPACED
    kind = language.kinds[plan.kind[row]]
    r = _draw(state, _TEXT)
    until = int(plan.words[row] * (50 + (r >> 8) % 101) // 100)
    if r & 15 == 0:
        w = _put(language, fixed[FOR], out, _put(language, kind[0], out, w))
        until *= 2
    else:
        w = _put(language, kind[1], out, _put(language, fixed[THE], out, w))
        refers = OF_CLAIM_SPACED if spaced else ACCORDING if r & 0x30 == 0 else OF_CLAIM
        w = _put(language, fixed[refers], out, w)
        w = _put_number(1 if r & 0x40 else 1 + (r >> 32) % (number - 1), out, w)
        w = _put(language, fixed[WHEREIN_SPACED if spaced else WHEREIN], out, w)
    _, w = _put_clauses(language, plan, row, DENSITY, scene, COMMA, 6, until, state, out, w)
    return w


@kernel
def _write_claims(
    language: Language, plan: Plan, start: int, out: NDArray[np.uint8], offsets: NDArray[np.int64]
) -> int:
    """Write the texts from `start` on; returns the first that `out` has no room for, or N."""
    fixed = language.fixed
    state = np.empty(2, np.uint64)
    scene = np.empty(SCENE + BACKGROUND, np.int8)
    for row in range(start, len(plan.claims)):
        w = offsets[row]
        state[_TEXT], state[_EDIT] = plan.seed[row], plan.edit_seed[row]
        if w + _ROOM > len(out):
            return row
        design = plan.claims[row] == DESIGN_CLAIM
        if design:
            last = language.groups[len(language.groups) - 1] + 1
            w = _put_clause(language, last, 0.5, plan.topics[row, :1], 0, state, out, w)
        topics = plan.topics[row, : plan.later[row] + 2]
        for i in range(SCENE):
            scene[i] = topics[i % len(topics)]
        for i in range(SCENE, len(scene)):
            scene[i] = _draw(state, _TEXT) % TOPICS
        for number in range(1, 1 if design else plan.claims[row] + 1):
            if w + _ROOM > len(out):
                return row
            preamble = language.preambles[plan.preamble[row]]
            if number > 1 or language.starts[preamble] < language.starts[preamble + 1]:
                if number == 1:
                    w = _put(language, preamble, out, w)
                w = _put(language, fixed[LADDER], out, w)
            w = _put_number(number, out, w)
            w = _put(language, fixed[NUMBER_SPACED if plan.style[row] & SPACED else NUMBER], out, w)
            if number == 1:
                w = _put_claim_1(language, plan, row, state, out, w)
            else:
                w = _put_later_claim(language, plan, row, number, scene, state, out, w)
            w = _put(language, fixed[STOP], out, w)
        offsets[row + 1] = w
    return len(plan.claims)


@kernel
def _write_titles(language: Language, plan: Plan, out: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
    state = np.empty(2, np.uint64)
    title = language.groups[len(language.groups) - 1]
    w = 0
    for row in range(len(plan.claims)):
        state[_TEXT] = ~plan.seed[row]
        w = _put(language, language.kinds[plan.kind[row], 1], out, w)
        out[w] = ord(" ")
        w = _put_clause(language, title, 0.6, plan.topics[row, :1], 0, state, out, w + 1)
        for i in range(offsets[row], w if plan.seed[row] % np.uint64(3) == 0 else offsets[row] + 1):
            if ord("a") <= out[i] <= ord("z"):
                out[i] -= 32
        offsets[row + 1] = w

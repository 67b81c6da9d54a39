"""The elementwise embedding against the paper's formula, letter by letter, and against nn.Embedding."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ewe.embedding import ALPHABET, ElementwiseEmbedding, TokenEmbedding, attention_mask, sum_by_index, sum_by_products

cuda = pytest.param(
    "cuda",
    marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA card")],
)


def draw_ids(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 249, shape, dtype=np.uint8))


def by_hand(embedding: ElementwiseEmbedding, ids: torch.Tensor) -> torch.Tensor:
    """e(i) letter by letter, as section 3.2 of the paper writes it, p = i*v + j."""
    rows = []
    for text in ids.tolist():
        words = []
        for i, word in enumerate(text):
            letters = []
            for j, letter in enumerate(word):
                element = embedding.elements[letter]
                if embedding.letters is not None:
                    element = element + embedding.letters[i * embedding.v + j]
                letters.append(element)
            e = torch.cat(letters)
            words.append(e if embedding.words is None else e + embedding.words[i])
        rows.append(torch.stack(words))
    return torch.stack(rows)


@pytest.mark.parametrize("focus", [True, False])
@pytest.mark.parametrize("n", [5, 7])
def test_equals_the_papers_formula(focus: bool, n: int):
    embedding = ElementwiseEmbedding(u=7, v=4, c=3, focus=focus)
    ids = draw_ids((2, n, 4))
    torch.testing.assert_close(embedding(ids), by_hand(embedding, ids))
    assert embedding(ids).shape == (2, n, 12)


def test_every_letter_has_its_own_position():
    u, v = 128, 16
    positions = {i * v + j for i in range(u) for j in range(v)}
    printed = {(i * j) + j for i in range(u) for j in range(v)}
    assert len(positions) == 2048
    assert len(printed) == 915  # why the printed formula is not what is built


def test_table_1_embedding_sizes():
    embedding = ElementwiseEmbedding(u=128, v=16, c=48)
    sizes = {name: p.numel() for name, p in embedding.named_parameters()}
    assert sizes == {"elements": 12_288, "letters": 98_304, "words": 98_304}
    assert [name for name, _ in ElementwiseEmbedding(128, 16, 48, focus=False).named_parameters()] == ["elements"]


@settings(deadline=None)
@given(st.integers(1, 3), st.integers(1, 6), st.integers(1, 5), st.integers(1, 4), st.integers(0, 99))
def test_gradients_equal_nn_embedding(batch: int, u: int, v: int, c: int, seed: int):
    embedding = ElementwiseEmbedding(u, v, c)
    peer = nn.Embedding(256, c, padding_idx=0)
    with torch.no_grad():
        peer.weight.copy_(embedding.elements)
    ids = draw_ids((batch, u, v), seed) // 40  # few distinct letters, many duplicates, much padding
    weights = torch.randn(batch, u, v * c, generator=torch.Generator().manual_seed(seed))
    (embedding(ids) * weights).sum().backward()
    (peer(ids.long()).flatten(-2) * weights).sum().backward()
    torch.testing.assert_close(embedding.elements.grad, peer.weight.grad)
    torch.testing.assert_close(embedding.words.grad, weights.sum(0))
    torch.testing.assert_close(embedding.letters.grad.view(u, v * c), weights.sum(0))


@pytest.mark.parametrize("device", ["cpu", cuda])
def test_gradient_of_a_whole_batch(device: str):
    embedding = ElementwiseEmbedding(128, 16, 8, focus=False).to(device)
    ids = draw_ids((32, 128, 16)).to(device)
    gradient = torch.randn(32, 128, 128, device=device)
    embedding(ids).backward(gradient)
    slow = np.zeros((256, 8))
    np.add.at(slow, ids.cpu().numpy().reshape(-1), gradient.cpu().numpy().reshape(-1, 8))
    slow[0] = 0
    np.testing.assert_allclose(embedding.elements.grad.cpu(), slow, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", [sum_by_index, sum_by_products])
def test_both_ways_to_sum_by_id_are_the_sum(way):
    ids, grad = draw_ids((3, 40)), torch.randn(3, 40, 5, dtype=torch.float64)
    expected = torch.zeros(ALPHABET, 5, dtype=torch.float64)
    for text in range(3):
        for i in range(40):
            expected[int(ids[text, i])] += grad[text, i]

    torch.testing.assert_close(way(ids, grad), expected)


def test_padding_stays_zero_through_training():
    embedding = ElementwiseEmbedding(4, 4, 2)
    optimizer = torch.optim.AdamW(embedding.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        embedding(draw_ids((2, 4, 4)) % 3).square().sum().backward()
        optimizer.step()
    assert not embedding.elements[0].any()
    assert embedding.elements[1].any()


def test_fold_changes_nothing():
    embedding = ElementwiseEmbedding(6, 4, 3)
    ids = draw_ids((3, 5, 4))
    before = embedding(ids)
    assert torch.equal(embedding.fold()(ids), before)
    assert torch.equal(embedding.fold()(ids), before)
    assert {name for name, _ in embedding.named_parameters()} == {"elements", "words"}
    plain = ElementwiseEmbedding(6, 4, 3, focus=False)
    assert torch.equal(plain(ids), plain.fold()(ids))


def test_uint8_and_int64_ids_are_the_same():
    embedding = ElementwiseEmbedding(6, 4, 3)
    ids = draw_ids((2, 6, 4))
    assert torch.equal(embedding(ids), embedding(ids.long()))


def test_attention_mask_is_the_first_letter():
    ids = torch.tensor([[[1, 0], [70, 0], [0, 0]], [[1, 0], [0, 5], [0, 0]]], dtype=torch.uint8)
    assert attention_mask(ids).tolist() == [[True, True, False], [True, False, False]]


def grams_by_hand(embedding: ElementwiseEmbedding, ids: torch.Tensor) -> torch.Tensor:
    """Section 6.2, element by element: softmax over what the v-gram that starts here holds beside padding."""
    texts = []
    for text in ids.flatten(1).tolist():
        rows = []
        for j, letter in enumerate(text):
            window = [x for x in text[j : j + embedding.v] if x]
            if letter == 0:
                rows.append(torch.zeros(embedding.c, dtype=embedding.elements.dtype))
                continue
            e = embedding.elements[window]
            rows.append(torch.softmax(e @ embedding.s, 0) @ e)
        texts.append(torch.stack(rows))
    return torch.stack(texts).view(*ids.shape[:2], -1)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 8), st.integers(0, 99))
def test_gradient_equals_a_slow_loop(batch: int, n: int, v: int, seed: int):
    embedding = ElementwiseEmbedding(5, v, 3, focus=False, gradient=True).double()
    with torch.no_grad():
        embedding.elements[1:] *= 100
        embedding.s *= 100
    ids = torch.from_numpy(np.random.default_rng(seed).choice([0, 1, 70, 99, 248], (batch, n, v)).astype(np.uint8))
    weights = torch.randn(batch, n, v * 3, dtype=torch.double, generator=torch.Generator().manual_seed(seed))
    slow = grams_by_hand(embedding, ids)
    torch.testing.assert_close(embedding(ids), slow)
    if ids.any():
        expected = torch.autograd.grad((slow * weights).sum(), [embedding.elements, embedding.s])
        expected[0][0] = 0
        found = torch.autograd.grad((embedding(ids) * weights).sum(), [embedding.elements, embedding.s])
        torch.testing.assert_close(found, expected)


def test_gradient_of_large_scores_is_finite_and_a_choice():
    embedding = ElementwiseEmbedding(4, 8, 2, focus=False, gradient=True)
    with torch.no_grad():
        embedding.s[:] = torch.tensor([1e4, 0])
        embedding.elements[1:] = torch.arange(1, 256)[:, None] / 10.0
        embedding.elements[1:, 1] = 1
    ids = draw_ids((2, 4, 8)) % 200 + 1
    found = embedding(ids)
    found.sum().backward()
    assert all(p.grad.isfinite().all() for p in embedding.parameters())
    assert found.isfinite().all()
    largest = ids[:, 0].max(-1).values / 10  # the first v-gram is the first material
    torch.testing.assert_close(found[:, 0, 0], largest)


@pytest.mark.parametrize("device", ["cpu", cuda])
def test_gradient_ignores_the_padding_behind(device: str):
    embedding = ElementwiseEmbedding(6, 4, 3, gradient=True).to(device)
    ids = draw_ids((2, 6, 4)).to(device) + 1
    ids[:, 4:] = 0
    torch.testing.assert_close(embedding(ids)[:, :4], embedding(ids[:, :4]))
    assert {name: p.numel() for name, p in embedding.named_parameters() if name == "s"} == {"s": 3}


def test_folded_weights_load_as_such():
    embedding, other = ElementwiseEmbedding(6, 4, 3), ElementwiseEmbedding(6, 4, 3)
    ids = draw_ids((2, 6, 4))
    before = embedding(ids)
    other.load_state_dict(embedding.fold().state_dict())
    assert other.letters is None
    assert torch.equal(other(ids), before)
    with pytest.raises(RuntimeError, match="letters"):  # a table without its sums is still an error
        ElementwiseEmbedding(6, 4, 3).load_state_dict({"elements": embedding.elements})


@pytest.mark.parametrize("shape", [(2, 7, 4), (2, 6, 5)])
def test_ids_that_do_not_fit(shape: tuple[int, ...]):
    with pytest.raises(ValueError, match=f"{shape[1]} materials of {shape[2]} elements do not fit .*u=6 and v=4"):
        ElementwiseEmbedding(6, 4, 3)(draw_ids(shape))


def test_tokens():
    embedding = TokenEmbedding(vocabulary=11, positions=6, w=4)
    ids = torch.tensor([[3, 10, 0], [0, 0, 0]])
    found = embedding(ids)
    torch.testing.assert_close(found[0, 1], embedding.tokens[10] + embedding.positions[1] + embedding.types[0])
    torch.testing.assert_close(found[1], embedding.positions[:3] + embedding.types[0])
    found.sum().backward()
    assert not embedding.tokens.grad[0].any()
    assert torch.equal(embedding(ids.to(torch.uint8)), found)
    with pytest.raises(ValueError, match="7 tokens are more than the embedding's 6 positions"):
        embedding(torch.ones(1, 7, dtype=torch.long))


def test_the_backward_repeats_to_the_bit_however_many_threads():
    """Large enough for torch to share the sum out; its index_put_ would then add in no fixed order."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        embedding = ElementwiseEmbedding(128, 16, 8)
        ids = torch.randint(0, 249, (32, 128, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        weights = torch.randn(32, 128, 128, generator=torch.Generator().manual_seed(1))
        grads = []
        for _ in range(5):
            embedding.zero_grad()
            (embedding(ids) * weights).sum().backward()
            grads.append(embedding.elements.grad.clone())
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(grad, grads[0]) for grad in grads)

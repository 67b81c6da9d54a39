"""ByT5 and its merge against Hugging Face's encoder and tokenizer, and against loops over rows and segments."""

import json
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import ByT5Tokenizer, T5Config, T5EncoderModel, T5ForConditionalGeneration

from ewe import elements
from ewe.byt5 import MERGES, ByT5, ByT5Config, byte_tokens, keep, merge, noise, significance
from ewe.config import Sizes
from ewe.errors import DataError, UsageError

SIZES = Sizes(u=8, v=6, vocabulary=256, labels=5, layers=3, width=16, heads=2, dropout=0.0)
TEXTS = ["a pump comprising a valve and", "  two  spaces ", "é∂ß of letters", "x", ""]
cuda = pytest.param(
    "cuda",
    marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA card")],
)


def encode(texts: list[str], u: int = 8, v: int = 6) -> Tensor:
    return torch.from_numpy(elements.encode(texts, u, v, "bytes"))


def draw(seed: int = 0, **options: object) -> ByT5:
    """A model with every parameter drawn anew, so that no norm is the identity and the two tables differ."""
    torch.manual_seed(seed)
    model = ByT5(ByT5Config.of(SIZES, **options))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.eval()


# -- bytes ------------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=8), min_size=1, max_size=4))
def test_tokens_equal_those_of_hugging_faces_tokenizer(texts: list[str]):
    tokens, mask = byte_tokens(encode(texts, u=14, v=3))  # room for 36 bytes
    for row, text in enumerate(texts):
        kept = tokens[row, mask[row]].tolist()
        assert kept == [byte + 3 for byte in text.encode()] + [1]
        assert not tokens[row, len(kept) :].any()
    plain = "A device (10), as in claim 1."
    tokens, mask = byte_tokens(encode([plain], u=14, v=3))
    assert tokens[0, mask[0]].tolist() == ByT5Tokenizer()(plain).input_ids


# -- the merge --------------------------------------------------------------------------------------------------------


def loop(x: Tensor, kept: list[int], drop: bool) -> Tensor:
    """One row's n bytes and its </s> (n+1, w), merged a segment at a time."""
    n = len(x) - 1
    if drop:
        return torch.stack([x[i] for i in [*kept, n]])
    segments: list[list[int]] = []
    for i in range(n):
        if i in kept or not segments:
            segments.append([])
        segments[-1].append(i)
    return torch.stack([sum(x[i] for i in segment) / len(segment) for segment in [*segments, [n]]])


@settings(deadline=None)
@given(st.data())
def test_merge_equals_a_loop_over_segments(data: st.DataObject):
    drop = data.draw(st.booleans())
    lengths = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=4))
    kept = [sorted(data.draw(st.sets(st.integers(0, n - 1), max_size=n))) if n else [] for n in lengths]
    n, width = max(lengths) + 2, max(map(len, kept)) + 2 + data.draw(st.integers(0, 2))
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(len(lengths), n, 3)))
    mask, starts = torch.zeros(len(lengths), n, dtype=torch.bool), torch.zeros(len(lengths), n, dtype=torch.bool)
    for row, length in enumerate(lengths):
        mask[row, : length + 1] = True
        starts[row, [*kept[row], length, *([] if drop else [0])]] = True

    merged, left = merge(x, mask, starts, width, drop)

    assert merged.shape == (len(lengths), width, 3)
    for row, length in enumerate(lengths):
        theirs = loop(x[row, : length + 1], kept[row], drop)
        assert left[row].tolist() == [i < len(theirs) for i in range(width)]
        torch.testing.assert_close(merged[row, : len(theirs)], theirs)
        assert not merged[row, len(theirs) :].any()


@pytest.mark.parametrize("drop", [False, True])
def test_the_merges_gradient(drop: bool):
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    starts = torch.tensor([[1, 0, 1, 0, 0, 1], [1, 0, 0, 1, 0, 0]]).bool()
    x = torch.randn(2, 6, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: merge(x, mask, starts, 4, drop)[0], x)


def test_significance_equals_its_formula():
    random = np.random.default_rng(0)
    weights = torch.from_numpy(random.random((2, 3, 5, 5)))
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    ours = significance(weights, mask)
    for row, L in enumerate((5, 3)):
        for c in range(5):
            mean = sum(weights[row, h, i, c] for h in range(3) for i in range(L)) / (3 * L)
            assert ours[row, c].item() == pytest.approx(float(mean))


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 4), max_size=30), min_size=1, max_size=4),
    st.floats(0.01, 0.99),
)
def test_keep_equals_sorting(rows: list[list[int]], ratio: float):
    n = max(map(len, rows)) + 1
    scores, letters = torch.full((len(rows), n), 9.0), torch.zeros(len(rows), n, dtype=torch.bool)
    for row, values in enumerate(rows):
        scores[row, : len(values)] = torch.tensor(values).float()
        letters[row, : len(values)] = True
    kept = keep(scores, letters, ratio)
    for row, values in enumerate(rows):
        best = sorted(range(len(values)), key=lambda i: (-values[i], i))[: max(1, int(len(values) * ratio))]
        assert kept[row].nonzero()[:, 0].tolist() == sorted(best)


def test_noise_is_a_rows_own_and_even():
    tokens, mask = byte_tokens(encode([f"claim {i} of some patent" for i in range(400)]))
    drawn = noise(tokens, mask)
    assert torch.equal(noise(tokens[7:9, :30], mask[7:9, :30])[:, :22], drawn[7:9, :22])
    assert drawn.min() >= 0
    first = drawn[:, :20].argmax(1).bincount(minlength=20)  # each place should win some 20 times of 400
    assert first.min() >= 5
    assert first.max() <= 40


# -- the whole encoder ------------------------------------------------------------------------------------------------


def hugging_face(model: ByT5, first: int, last: int) -> T5EncoderModel:
    """Hugging Face's encoder of blocks first..last-1 with the same weights."""
    config = model.config
    parent = T5EncoderModel(
        T5Config(
            vocab_size=384,
            d_model=config.width,
            d_kv=config.head,
            d_ff=config.ffn,
            num_layers=last - first,
            num_heads=config.heads,
            feed_forward_proj="gated-gelu",
            attn_implementation="eager",
        )
    ).eval()
    weights = {}
    for name, tensor in model.encoder.state_dict().items():
        if name.startswith("block."):
            _, block, rest = name.split(".", 2)
            if first <= int(block) < last and not (rest.endswith("attention_bias.weight") and int(block) != first):
                weights[f"block.{int(block) - first}.{rest}"] = tensor
        else:
            weights[name] = tensor
    parent.encoder.load_state_dict(weights)
    return parent


def by_hand(model: ByT5, text: str) -> Tensor:
    """One text through Hugging Face's encoder, merged by a loop in between: last hidden states (m, w)."""
    config = model.config
    tokens = torch.tensor([[byte + 3 for byte in text.encode()] + [1]])
    L = tokens.shape[1] - 1
    if config.merge == "none":
        return hugging_face(model, 0, config.layers)(tokens).last_hidden_state[0]
    lower = hugging_face(model, 0, config.after)(tokens, output_attentions=True, output_hidden_states=True)
    captured: list[Tensor] = []
    parent = hugging_face(model, 0, config.after)
    parent.encoder.final_layer_norm.register_forward_pre_hook(lambda _, inputs: captured.append(inputs[0]))
    parent(tokens)
    if config.merge == "spaces":
        kept = [i for i, byte in enumerate(text.encode()) if byte == 32]
    else:
        if config.merge == "random":
            scores = noise(tokens, torch.ones_like(tokens, dtype=torch.bool))[0, :L].tolist()
        else:
            scores = lower.attentions[-1][0].mean(0).mean(0)[:L].tolist()
        best = sorted(range(L), key=lambda i: -scores[i])[: max(1, int(L * config.ratio))]
        kept = sorted(best)
    merged = loop(captured[0][0], kept, config.merge == "extraction")
    return hugging_face(model, config.after, config.layers)(inputs_embeds=merged[None]).last_hidden_state[0]


@pytest.mark.parametrize("after", [1, 2])
@pytest.mark.parametrize("name", MERGES)
def test_equals_hugging_face_with_a_merge_by_hand(name: str, after: int):
    model = draw(merge=name, **({"after": after, "ratio": 0.3} if MERGES[name] == ("after", "ratio") else {}))
    with torch.no_grad():
        x, mask = model.encode(encode(TEXTS))
        logits = model(encode(TEXTS))
        for row, text in enumerate(TEXTS):
            theirs = by_hand(model, text)
            assert mask[row].sum() == len(theirs)
            torch.testing.assert_close(x[row, : len(theirs)], theirs, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(logits[row], model.head(theirs.mean(0)), rtol=1e-4, atol=1e-4)


def test_gradients_equal_hugging_face():
    model = draw()
    tokens, mask = byte_tokens(encode(TEXTS))
    parent = hugging_face(model, 0, 3)
    model.encode(encode(TEXTS))[0].square().mul(mask[:, :, None]).sum().backward()
    hidden = parent(tokens, attention_mask=mask.long()).last_hidden_state
    hidden.square().mul(mask[:, :, None]).sum().backward()
    theirs = dict(parent.encoder.named_parameters())
    for name, parameter in model.encoder.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("device", ["cpu", cuda])
@pytest.mark.parametrize("name", MERGES)
def test_padding_and_neighbours_are_invisible_and_all_learns(name: str, device: str):
    model = draw(merge=name).to(device)
    ids = encode(TEXTS).to(device)
    logits = model(ids)
    assert logits.isfinite().all()
    with torch.no_grad():
        torch.testing.assert_close(model(ids[1:4, :5]), logits[1:4], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(model(ids[3:4]), logits[3:4], rtol=1e-4, atol=1e-4)
    logits.square().sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_random_segments_repeat_by_seed_in_training_and_always_in_use():
    model = draw(merge="random", after=1)
    ids = encode([*TEXTS[:3], TEXTS[0]])
    used = model(ids)
    assert torch.equal(used[0], used[3])
    model.train()
    torch.manual_seed(3)
    one, two = model(ids), model(ids)
    torch.manual_seed(3)
    assert torch.equal(model(ids), one)
    assert not torch.equal(one, two)
    assert torch.equal(model.eval()(ids), used)


@pytest.mark.parametrize("name", MERGES)
def test_mixed_precision_stays_near(name: str):
    """Up to the top k, which rounding may change: where all bytes start segments, nothing depends on it."""
    model = draw(merge=name)
    model.config = replace(model.config, ratio=1.0)
    with torch.no_grad():
        exact = model(encode(TEXTS))
        with torch.autocast("cpu", torch.bfloat16):
            near = model(encode(TEXTS))
    torch.testing.assert_close(near.float(), exact, rtol=0.1, atol=0.1 * exact.abs().max().item())


@pytest.mark.parametrize("name", MERGES)
def test_saved_weights_give_the_same_logits(name: str, tmp_path: Path):
    model = draw(merge=name)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    again = ByT5(model.config).eval()
    again.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(again(encode(TEXTS)), model(encode(TEXTS)))


def test_the_merge_shortens_what_follows():
    seen: list[int] = []
    for name, most in (("none", 42), ("attention", 16), ("random", 16), ("extraction", 16), ("spaces", 8)):
        model = draw(merge=name)
        model.encoder.block[2].layer[1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[1]))
        model(encode(TEXTS))
        assert seen.pop() <= most
    assert not seen


@pytest.mark.parametrize("name", MERGES)
def test_it_learns_where_a_word_stands(name: str):
    words = ["valve", "rotor", "laser"]
    texts = [f"a {words[i]} with a {words[j]}" for i in range(3) for j in range(3) for _ in range(2)]
    goal = torch.eye(3)[[i for i in range(3) for j in range(3) for _ in range(2)]]
    torch.manual_seed(0)
    model = ByT5(ByT5Config.of(Sizes(8, 6, 256, 3, layers=2, width=32, heads=2, dropout=0.0), merge=name))
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    for _ in range(60):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(encode(texts)), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = (model.eval()(encode(texts)) > 0).eq(goal.bool()).float().mean()
    assert found > (0.8 if name in ("random", "extraction") else 0.95)


@pytest.mark.parametrize("device", ["cpu", cuda])
@pytest.mark.parametrize("name", MERGES)
def test_a_step_repeats_to_the_bit_from_the_same_generator(name: str, device: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    model = ByT5(ByT5Config.of(replace(SIZES, dropout=0.1), merge=name)).train().to(device)
    ids, found = encode(TEXTS).to(device), []
    torch.use_deterministic_algorithms(mode=True)
    try:
        for _ in range(2):
            torch.manual_seed(2)
            model.zero_grad()
            model(ids).square().sum().backward()
            found.append([parameter.grad.clone() for parameter in model.parameters()])
    finally:
        torch.use_deterministic_algorithms(mode=False)
    assert all(map(torch.equal, *found))


# -- shapes and checkpoints -------------------------------------------------------------------------------------------


def test_eighteen_layers_of_1536_are_byt5_base():
    config = ByT5Config.of(Sizes(128, 16, 256, 1328, layers=18, width=1536), merge="attention")
    assert config == ByT5Config(merge="attention")
    with torch.device("meta"):
        model = ByT5(config)
    base = 384 * 1536 + 18 * (4 * 1536 * 768 + 3 * 1536 * 3968 + 2 * 1536) + 1536 + 32 * 12
    assert sum(p.numel() for p in model.encoder.parameters()) == base + 32 * 12
    assert model.table_sizes() == {"tokens": 384 * 1536}
    assert {name for name, tensor in model.named_parameters() if tensor.shape == (32, 12)} == {
        f"encoder.block.{block}.layer.0.SelfAttention.relative_attention_bias.weight" for block in (0, 2)
    }


def save(folder: Path, whole: bool, **changes: object) -> T5EncoderModel:
    """A checkpoint as Hugging Face writes it: the encoder, or encoder and decoder."""
    shape = {
        "vocab_size": 384,
        "d_model": 24,
        "d_kv": 8,
        "d_ff": 40,
        "num_layers": 3,
        "num_heads": 2,
        "feed_forward_proj": "gated-gelu",
    }
    torch.manual_seed(5)
    model = (T5ForConditionalGeneration if whole else T5EncoderModel)(T5Config(**(shape | changes)))
    model.save_pretrained(folder)
    return model.eval()


@pytest.mark.parametrize("whole", [False, True])
def test_starts_from_a_checkpoint(tmp_path: Path, whole: bool):
    theirs = save(tmp_path, whole).encoder
    model = ByT5(ByT5Config.of(SIZES, merge="none", pretrained=str(tmp_path))).eval()
    model.prepare(None, None, 0)
    tokens, mask = byte_tokens(encode(TEXTS))
    with torch.no_grad():
        hidden = theirs(tokens, attention_mask=mask.long()).last_hidden_state
        torch.testing.assert_close(model.encode(encode(TEXTS))[0][mask], hidden[mask], rtol=1e-4, atol=1e-4)

    merged = ByT5(ByT5Config.of(SIZES, merge="attention", pretrained=str(tmp_path)))
    merged.prepare(None, None, 0)
    first, later = (merged._attention(block).relative_attention_bias.weight for block in (0, 2))
    assert torch.equal(first, theirs.block[0].layer[0].SelfAttention.relative_attention_bias.weight)
    assert torch.equal(first, later)
    assert first.data_ptr() != later.data_ptr()


def test_a_checkpoint_that_cannot_be(tmp_path: Path):
    with pytest.raises(UsageError, match=r"config\.json"):
        ByT5Config.of(SIZES, pretrained=str(tmp_path))
    save(tmp_path / "words", whole=False, vocab_size=500)
    with pytest.raises(UsageError, match="vocab_size is 500, not 384"):
        ByT5Config.of(SIZES, pretrained=str(tmp_path / "words"))
    save(tmp_path / "half", whole=False)
    config = ByT5Config.of(SIZES, pretrained=str(tmp_path / "half"))
    with pytest.raises(UsageError, match="layers is decided by"):
        ByT5Config.of(SIZES, pretrained=str(tmp_path / "half"), layers=2)
    weights = load_file(tmp_path / "half" / "model.safetensors")
    lost = weights.pop("encoder.block.1.layer.0.SelfAttention.q.weight")
    save_file(weights, tmp_path / "half" / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match=r"lacks the weights encoder\.block\.1\.layer\.0\.SelfAttention\.q"):
        ByT5(config).prepare(None, None, 0)
    weights |= {"encoder.block.1.layer.0.SelfAttention.q.weight": lost[:, 1:].contiguous()}
    save_file(weights, tmp_path / "half" / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match="copy the checkpoint again"):
        ByT5(config).prepare(None, None, 0)
    (tmp_path / "half" / "config.json").write_text(json.dumps({"model_type": "bert", "hidden_size": 8}))
    with pytest.raises(UsageError, match="is no ByT5"):
        ByT5Config.of(SIZES, pretrained=str(tmp_path / "half"))
    (tmp_path / "half" / "model.safetensors").unlink()
    with pytest.raises(DataError, match="copy the checkpoint again"):
        ByT5(config).prepare(None, None, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"merge": "words"}, "choose from none, attention"),
        ({"merge": "attention", "after": 3}, "after=3 must leave a block"),
        ({"merge": "attention", "after": 0}, "after=0 must leave a block"),
        ({"merge": "random", "ratio": 1.0}, "ratio=1.0 must be between 0 and 1"),
        ({"merge": "spaces", "ratio": 0.1}, "ratio means nothing where merge is spaces"),
        ({"after": 1}, "after means nothing where merge is none"),
        ({"heads": 20}, "too narrow for --heads 20"),
    ],
)
def test_options_that_cannot_be(options: dict[str, object], message: str):
    sizes = {name: options.pop(name) for name in ("heads",) if name in options}
    with pytest.raises(UsageError, match=message):
        ByT5Config.of(Sizes(8, 6, 256, 5, layers=3, width=16, **sizes), **options)

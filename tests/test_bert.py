"""The encoder against Hugging Face's BertModel on the same weights, and the paper's sizes."""

import numpy as np
import pytest
import torch
from transformers import BertConfig as HFConfig
from transformers import BertModel

from ewe.bert import BertConfig, EweBert, OrigBert, OrigBertConfig
from ewe.config import Sizes
from ewe.errors import UsageError

SMALL_ORIG = OrigBertConfig(vocabulary=50, positions=16, width=24, layers=3, heads=4, ffn=40, labels=10)
SMALL = BertConfig(u=12, v=4, c=6, layers=3, heads=4, ffn=40, labels=10)
cuda = pytest.param(
    "cuda",
    marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA card")],
)


def draw_ids(batch: int, n: int, v: int, used: list[int], seed: int = 0) -> torch.Tensor:
    """Random ids with `used` materials in each row, zeros behind."""
    ids = torch.from_numpy(np.random.default_rng(seed).integers(1, 249, (batch, n, v), dtype=np.uint8))
    for row, length in enumerate(used):
        ids[row, length:] = 0
    return ids


def noisy(model: torch.nn.Module) -> torch.nn.Module:
    """The model with every parameter drawn, so that no bias is 0 and no LayerNorm is the identity."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        next(iter(model.embedding.parameters()))[0] = 0  # the elements' or tokens' padding
    return model


def hugging_face(model: EweBert | OrigBert) -> BertModel:
    """BertModel with the same weights; EweBert's own positions and types are zero, as embeddings come from outside."""
    config = model.config
    parent = BertModel(
        HFConfig(
            vocab_size=getattr(config, "vocabulary", 1),
            hidden_size=config.w,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            intermediate_size=config.ffn,
            max_position_embeddings=getattr(config, "positions", getattr(config, "u", 0)),
            layer_norm_eps=1e-12,
        )
    ).eval()
    names = {
        "embeddings.LayerNorm": model.norm,
        "pooler.dense": model.pooler,
    }
    for i, layer in enumerate(model.encoder.layers):
        at = f"encoder.layer.{i}."
        names |= {
            at + "attention.output.dense": layer.attention.out,
            at + "attention.output.LayerNorm": layer.norm1,
            at + "intermediate.dense": layer.up,
            at + "output.dense": layer.down,
            at + "output.LayerNorm": layer.norm2,
        }
    with torch.no_grad():
        for name, module in names.items():
            for tensor in ("weight", "bias"):
                parent.get_submodule(name).get_parameter(tensor).copy_(getattr(module, tensor))
        for i, layer in enumerate(model.encoder.layers):
            for tensor in ("weight", "bias"):
                parts = getattr(layer.attention.qkv, tensor).chunk(3)
                for name, part in zip(("query", "key", "value"), parts, strict=True):
                    module = parent.get_submodule(f"encoder.layer.{i}.attention.self.{name}")
                    module.get_parameter(tensor).copy_(part)
        for table, ours in (("word", "tokens"), ("position", "positions"), ("token_type", "types")):
            weight = parent.embeddings.get_submodule(f"{table}_embeddings").weight
            weight.copy_(getattr(model.embedding, ours)) if isinstance(model, OrigBert) else weight.zero_()
    return parent


@pytest.mark.parametrize("used", [[12, 12], [12, 3], [1, 9]])
def test_equals_hugging_face(used: list[int]):
    model = noisy(EweBert(SMALL)).eval()
    parent = hugging_face(model)
    ids = draw_ids(2, 12, 4, used)
    with torch.no_grad():
        theirs = parent(inputs_embeds=model.embedding(ids), attention_mask=(ids[..., 0] != 0).long())
        logits = model.head(theirs.pooler_output)
        ours = model.encoder(model.norm(model.embedding(ids)), ids[..., 0] != 0)
        torch.testing.assert_close(model(ids), logits, rtol=1e-5, atol=1e-5)
        for row, length in enumerate(used):
            torch.testing.assert_close(ours[row, :length], theirs.last_hidden_state[row, :length], rtol=1e-5, atol=1e-5)


def test_gradients_equal_hugging_face():
    model = noisy(EweBert(SMALL)).eval()  # no dropout, yet gradients
    parent = hugging_face(model)
    ids = draw_ids(2, 12, 4, [12, 7])
    model(ids).square().sum().backward()
    ours = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    theirs = parent(inputs_embeds=model.embedding(ids), attention_mask=(ids[..., 0] != 0).long())
    model.head(theirs.pooler_output).square().sum().backward()
    for name in ("embedding.elements", "embedding.letters", "embedding.words", "head.weight"):
        torch.testing.assert_close(ours[name], model.get_parameter(name).grad, rtol=1e-4, atol=1e-5)
    for i, layer in enumerate(model.encoder.layers):
        at = parent.encoder.layer[i]
        qkv = [at.attention.self.get_submodule(name).weight.grad for name in ("query", "key", "value")]
        name = f"encoder.layers.{i}."
        torch.testing.assert_close(ours[name + "attention.qkv.weight"], torch.cat(qkv), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours[name + "up.weight"], at.intermediate.dense.weight.grad, rtol=1e-4, atol=1e-5)
        assert layer.up.weight.grad is None


def test_queries_of_the_first_materials_alone_give_the_same():
    model = noisy(EweBert(SMALL)).eval()
    x, mask = torch.randn(3, 12, 24), torch.rand(3, 12) < 0.7
    mask[:, 0] = True
    with torch.no_grad():
        whole = model.encoder(x, mask)
        torch.testing.assert_close(model.encoder(x, mask, queries=1), whole[:, :1], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(model.encoder(x, mask, queries=5), whole[:, :5], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", cuda])
def test_padding_is_invisible_and_never_nan(device: str):
    model = noisy(EweBert(SMALL)).eval().to(device)
    ids = draw_ids(3, 12, 4, [5, 2, 0]).to(device)
    with torch.no_grad():
        logits = model(ids)
        assert logits.isfinite().all()
        torch.testing.assert_close(model(ids[:, :5]), logits, rtol=1e-5, atol=1e-5)
        ids[0, 5:, 1:] = 9  # letters behind a first id of 0 are padding too
        torch.testing.assert_close(model(ids), logits, rtol=1e-5, atol=1e-5)


def test_table_1_parameters():
    with torch.device("meta"):
        model = EweBert(BertConfig())
        without = EweBert(BertConfig(focus=False))
    assert sum(p.numel() for p in model.parameters()) == 86_876_720
    assert model.embedding.table_sizes() == {"elements": 12_288, "focus": 196_608}
    assert without.embedding.table_sizes() == {"elements": 12_288, "focus": 0}
    assert sum(p.numel() for p in without.parameters()) == 86_876_720 - 196_608


def test_the_start_is_as_the_table_says():
    torch.manual_seed(0)
    model = EweBert(BertConfig(layers=1, labels=50))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            assert parameter.unique().tolist() == [1.0 if name.endswith("weight") else 0.0], name
        elif name.endswith("bias"):
            assert not parameter.any(), name
        else:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.05), name
            assert abs(parameter.mean().item()) < 0.001, name


def test_dropout_acts_in_training_alone():
    model = noisy(EweBert(SMALL))
    ids = draw_ids(2, 12, 4, [12, 12])
    assert not torch.equal(model(ids), model(ids))
    model.eval()
    assert torch.equal(model(ids), model(ids))


@pytest.mark.parametrize("used", [[12, 12], [12, 3], [1, 9]])
def test_orig_equals_hugging_face(used: list[int]):
    model = noisy(OrigBert(SMALL_ORIG)).eval()
    parent = hugging_face(model)
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in parent.parameters()) + 25 * 10
    ids = draw_ids(2, 12, 1, used)[..., 0].long() % 50
    for row, length in enumerate(used):
        ids[row, :length].clamp_(min=1)
    logits = model.head(parent(ids, attention_mask=(ids != 0).long()).pooler_output)
    torch.testing.assert_close(model(ids), logits, rtol=1e-5, atol=1e-5)
    theirs = torch.autograd.grad(logits.square().sum(), list(parent.embeddings.parameters()))
    model(ids).square().sum().backward()
    for name, gradient in zip(("tokens", "positions", "types"), theirs[:3], strict=True):
        torch.testing.assert_close(getattr(model.embedding, name).grad, gradient, rtol=1e-4, atol=1e-5)


def test_orig_without_text_gives_numbers():
    model = noisy(OrigBert(SMALL_ORIG)).eval()
    assert model(torch.zeros(2, 5, dtype=torch.long)).isfinite().all()


def test_table_1_parameters_of_the_parent():
    with torch.device("meta"):
        model = OrigBert(OrigBertConfig())
    assert sum(p.numel() for p in model.parameters()) == 110_503_472
    assert model.embedding.table_sizes() == {"tokens": 23_440_896}


def test_gradient_variant():
    config = BertConfig.of(Sizes(u=128, v=8, vocabulary=256, labels=1328, focus=False), gradient=True)
    assert (config.c, config.heads, config.focus, config.gradient) == (96, 8, False, True)
    with torch.device("meta"):
        model = EweBert(config)
    assert model.embedding.table_sizes() == {"elements": 24_576, "focus": 0, "gradient": 96}
    assert sum(p.numel() for p in model.embedding.parameters()) == 24_576 + 96
    small = noisy(EweBert(BertConfig(u=12, v=4, c=6, layers=1, heads=4, labels=10, gradient=True, focus=False))).eval()
    ids = draw_ids(2, 12, 4, [5, 0])
    torch.testing.assert_close(small(ids), small(ids[:, :5]), rtol=1e-5, atol=1e-5)
    small(ids).sum().backward()
    assert small.embedding.s.grad.any()


def test_shapes_of_sizes():
    sizes = Sizes(u=600, v=1, vocabulary=99, labels=7, width=768)
    assert OrigBertConfig.of(sizes) == OrigBertConfig(vocabulary=99, positions=600, labels=7)
    assert OrigBertConfig.of(Sizes(u=9, v=1, vocabulary=99, labels=7, width=32)).heads == 1
    assert OrigBertConfig.of(Sizes(u=9, v=1, vocabulary=99, labels=7, width=32, heads=2), positions=20).positions == 20
    with pytest.raises(UsageError, match="--width 100 must be a multiple of --heads 3"):
        OrigBertConfig.of(Sizes(u=9, v=1, vocabulary=99, labels=7, width=100, heads=3))
    with pytest.raises(UsageError, match="positions=8 is less than the tensors' 9 tokens"):
        OrigBertConfig.of(Sizes(u=9, v=1, vocabulary=99, labels=7), positions=8)
    with pytest.raises(UsageError, match="--width 30 must be a multiple of the tensors' 4 letters and of --heads 4"):
        BertConfig.of(Sizes(u=9, v=4, vocabulary=256, labels=7, width=30))
    with pytest.raises(UsageError, match="--heads 5"):
        BertConfig.of(Sizes(u=9, v=4, vocabulary=256, labels=7, width=32, heads=5))

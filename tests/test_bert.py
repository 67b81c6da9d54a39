"""The encoder against Hugging Face's BertModel on the same weights, and the paper's sizes."""

import numpy as np
import pytest
import torch
from transformers import BertConfig as HFConfig
from transformers import BertModel

from ewe.bert import BertConfig, EweBert

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
        model.embedding.elements[0] = 0
    return model


def hugging_face(model: EweBert) -> BertModel:
    """BertModel with the same weights; its own positions and types are zero, so embeddings come from outside."""
    config = model.config
    parent = BertModel(
        HFConfig(
            vocab_size=1,
            hidden_size=config.w,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            intermediate_size=config.ffn,
            max_position_embeddings=config.u,
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
        parent.embeddings.position_embeddings.weight.zero_()
        parent.embeddings.token_type_embeddings.weight.zero_()
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
    assert sum(p.numel() for p in model.embedding.parameters()) == 12_288 + 196_608
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

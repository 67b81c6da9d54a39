"""Parents of `transformers`: their sizes, equality with the library on the same weights, and its Trainer."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

from torch import nn  # noqa: E402

import ewe  # noqa: E402
from ewe import huggingface  # noqa: E402
from ewe.config import Sizes  # noqa: E402
from ewe.embedding import ElementwiseEmbedding, attention_mask  # noqa: E402
from ewe.errors import UsageError  # noqa: E402
from ewe.huggingface import (  # noqa: E402
    AlbertEwe,
    AlbertEweConfig,
    AlbertOrig,
    AlbertOrigConfig,
    CanineEwe,
    CanineEweConfig,
    CanineOrig,
    CanineOrigConfig,
    Elementwise,
)

SMALL = {"width": 32, "layers": 2, "heads": 4, "ffn": 48, "labels": 5, "init_std": 0.1}
SYSTEMS: list[Any] = [
    AlbertEwe(AlbertEweConfig(**SMALL, u=12, v=4, c=3)),
    AlbertOrig(AlbertOrigConfig(**SMALL, vocabulary=50, embedding=8, positions=12)),
    CanineEwe(CanineEweConfig(**SMALL, u=12, v=4, window=8)),
    CanineOrig(CanineOrigConfig(**SMALL, buckets=64, hashes=4, window=8)),
]
systems = pytest.mark.parametrize("model", SYSTEMS, ids=lambda model: type(model).__name__)


def count(parameters: Any) -> int:
    return sum(p.numel() for p in parameters)


def tables_of(model: nn.Module) -> list[nn.Parameter]:
    return [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]


def draw(model: Any, used: list[int], n: int = 12) -> torch.Tensor:
    """Ids of the model's kind with `used` positions in each row, zeros behind."""
    generator = torch.Generator().manual_seed(0)
    shape = (len(used), n, 4) if model.reads == "letters" else (len(used), n)
    ids = torch.randint(1, 50, shape, generator=generator)
    for row, length in enumerate(used):
        ids[row, length:] = 0
    return ids.to(torch.uint8) if model.reads == "letters" else ids


@pytest.mark.parametrize(
    ("network", "total", "embedding"),
    [
        (AlbertEwe, 8_833_840, {"elements": 2_048, "focus": 32_768}),
        (AlbertOrig, 12_704_816, {"tokens": 3_840_000}),
        (CanineEwe, 108_134_960, {"elements": 12_288, "focus": 196_608}),
        (CanineOrig, 133_104_176, {"tables": 25_178_112}),
    ],
)
def test_table_1_parameters(network: Any, total: int, embedding: dict[str, int]):
    with torch.device("meta"):
        model = network(network.config_class())
    assert count(model.parameters()) == total
    source = model if network is AlbertOrig else getattr(model, "embedding", None)
    tables = source.table_sizes() if source else {"tables": count(tables_of(model))}
    assert tables == embedding
    idle = 11_808_768 if network in (CanineEwe, CanineOrig) else 0
    assert count(p for p in model.parameters() if not p.requires_grad) == idle


def test_the_papers_shapes_from_sizes():
    sizes = Sizes(u=128, v=16, vocabulary=256, labels=1328)
    assert AlbertEweConfig.of(sizes) == AlbertEweConfig()
    assert CanineEweConfig.of(sizes) == CanineEweConfig()
    assert AlbertOrigConfig.of(Sizes(u=128, v=1, vocabulary=30_000, labels=1328)) == AlbertOrigConfig()
    assert CanineOrigConfig.of(Sizes(u=2048, v=1, vocabulary=0, labels=1328), rate=8) == CanineOrigConfig(rate=8)
    assert AlbertEweConfig.of(Sizes(u=8, v=4, vocabulary=256, labels=3, width=32, focus=False), c=2).ffn == 128


@pytest.mark.parametrize(
    ("config", "sizes", "options", "says"),
    [
        (AlbertEweConfig, {"u": 128, "v": 16, "width": 100}, {}, "--width 100 must be a multiple of --heads 16"),
        (AlbertOrigConfig, {"u": 600, "v": 1}, {}, "positions=600"),
        (CanineEweConfig, {"u": 126, "v": 16}, {}, "CANINE takes 4 positions as one: .* not 126"),
        (CanineEweConfig, {"u": 128, "v": 16}, {"rate": 0}, "another rate"),
        (CanineEweConfig, {"u": 128, "v": 10, "heads": 12}, {}, "--width 768 must be a multiple of the tensors' 10"),
        (CanineOrigConfig, {"u": 128, "v": 1, "width": 36}, {}, "CANINE's 8 hash functions"),
        (CanineOrigConfig, {"u": 16_388, "v": 1}, {}, "buckets=16388"),
    ],
)
def test_sizes_that_do_not_fit(config: Any, sizes: dict[str, int], options: dict[str, int], says: str):
    with pytest.raises(UsageError, match=says):
        config.of(Sizes(vocabulary=256, labels=3, **sizes), **options)


@systems
@pytest.mark.parametrize("used", [[12, 12], [12, 3], [1, 9]])
def test_equals_the_library(model: Any, used: list[int]):
    model.eval()
    name, kind = type(model).__name__, model.reads
    library = getattr(transformers, f"{name[:6]}ForSequenceClassification")
    config = model.parent.config
    ids = draw(model, used)
    given = {"attention_mask": ((ids[..., 0] if kind == "letters" else ids) != 0).long()}
    if kind == "letters":  # the library's own model, whole, with tables that add nothing
        config = type(config)(**config.to_dict() | {"max_position_embeddings": 12, "num_hash_buckets": 12})
        parent = library(config).eval()
        missing, unexpected = parent.load_state_dict(model.parent.state_dict(), strict=False)
        assert not unexpected
        assert all("embeddings" in name for name in missing)
        for table in missing:
            nn.init.zeros_(parent.get_parameter(table))
        theirs = parent(inputs_embeds=model.embedding(ids), **given).logits
    else:
        parent = library(config).eval()
        parent.load_state_dict(model.parent.state_dict())
        theirs = parent(ids, **given).logits
    torch.testing.assert_close(model(ids), theirs, rtol=1e-5, atol=1e-5)
    weights = [p for p in model.parent.parameters() if p.requires_grad]
    peers = dict(parent.named_parameters())
    found = torch.autograd.grad(model(ids).square().sum(), weights)
    expected = torch.autograd.grad(
        theirs.square().sum(), [peers[n] for n, p in model.parent.named_parameters() if p.requires_grad]
    )
    for ours, other in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-5)


@systems
def test_padding_is_invisible_and_never_nan(model: Any):
    model.eval()
    ids = draw(model, [5, 2, 0])
    logits = model(ids)
    assert logits.isfinite().all()
    for n in range(5, 12):
        torch.testing.assert_close(model(ids[:, :n]), logits, rtol=1e-5, atol=1e-5)


@systems
def test_every_parameter_that_is_trained_has_a_gradient(model: Any):
    model.train()
    model.zero_grad()
    model(draw(model, [12, 12])).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
    assert model.head.bias.shape == (5,)


@systems
def test_a_model_loads_as_it_was_saved(model: Any, tmp_path: Path):
    model.eval()
    ids = draw(model, [12, 3])
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(loaded(ids), model(ids))
    assert loaded.config == model.config
    with torch.device("meta"):  # as a run is opened
        empty = type(model)(model.config)
    empty.load_state_dict(model.state_dict(), assign=True)
    assert torch.equal(empty.to("cpu").eval()(ids), model(ids))


def tiny_bert(width: int, labels: int = 3) -> Any:
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=1,
            hidden_size=width,
            num_hidden_layers=1,
            num_attention_heads=4,
            intermediate_size=32,
            num_labels=labels,
            initializer_range=0.2,
            problem_type="multi_label_classification",
        )
    )


def test_bert_is_one_more_parent():
    from ewe.bert import BertConfig, EweBert

    with torch.device("meta"):
        config = transformers.BertConfig(vocab_size=1, num_labels=1328)
        parent = transformers.BertForSequenceClassification(config)
        model = Elementwise(parent, ElementwiseEmbedding(128, 16, 48))
        ours = EweBert(BertConfig())
    assert count(model.parameters()) == count(ours.parameters()) == 86_876_720
    small = Elementwise(tiny_bert(16), ElementwiseEmbedding(8, 4, 4)).eval()
    ids = torch.randint(1, 249, (2, 8, 4), dtype=torch.uint8)
    ids[0, 3:] = 0
    given = small(ids, attention_mask=attention_mask(ids), labels=torch.ones(2, 3))
    torch.testing.assert_close(small(ids).logits, given.logits)
    torch.testing.assert_close(
        given.loss, nn.functional.binary_cross_entropy_with_logits(given.logits, torch.ones(2, 3))
    )


def test_a_parent_with_its_tables_elsewhere_is_named():
    parent = transformers.T5EncoderModel(transformers.T5Config(vocab_size=1, d_model=8, num_layers=1, num_heads=2))
    with pytest.raises(ValueError, match="T5EncoderModel keeps its tables elsewhere"):
        Elementwise(parent, ElementwiseEmbedding(8, 4, 2))


def test_another_parent_in_ten_lines():
    lines = re.findall(r"^    (.*)$", huggingface.__doc__ or "", re.MULTILINE)
    assert len(lines) <= 10
    found: dict[str, Any] = {}
    exec("\n".join(lines), found)  # noqa: S102
    assert found["words"].shape == (1, 32, 64)


def test_a_stock_transformer_encoder():
    torch.manual_seed(0)
    tokenizer = ewe.Tokenizer(u=8, v=4)
    embedding = ElementwiseEmbedding(u=8, v=4, c=4)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    encoder, head = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(16, 1)
    batch = tokenizer(["one two", "two one"], return_tensors="pt")
    target = torch.tensor([[0.0], [1.0]])
    norm = nn.LayerNorm(16)
    modules = nn.ModuleList([embedding, norm, encoder, head])
    optimizer = torch.optim.AdamW(modules.parameters(), 1e-2)
    for _ in range(60):
        words = encoder(norm(embedding(batch["input_ids"])), src_key_padding_mask=batch["attention_mask"] == 0)
        loss = nn.functional.binary_cross_entropy_with_logits(head(words[:, 0]), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1  # the order of words alone tells the two apart


@pytest.mark.parametrize("collate", ["default", "padding"])
def test_the_trainer(tmp_path: Path, collate: str):
    pytest.importorskip("accelerate")
    transformers.set_seed(0)
    tokenizer = ewe.Tokenizer(u=8, v=4)
    texts = ["a lever", "a gear and a lever", "a pump"] * 4
    labels = [[float(word in text) for word in ("lever", "gear", "pump")] for text in texts]
    rows = [
        {**tokenizer(text, padding="max_length" if collate == "default" else False), "labels": label}
        for text, label in zip(texts, labels, strict=True)
    ]
    model = Elementwise(tiny_bert(16), ElementwiseEmbedding(u=8, v=4, c=4))
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=60,
            per_device_train_batch_size=6,
            learning_rate=1e-2,
            use_cpu=True,
            dataloader_pin_memory=False,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
        ),
        train_dataset=rows,
        eval_dataset=rows,
        processing_class=tokenizer,
        data_collator=transformers.DataCollatorWithPadding(tokenizer) if collate == "padding" else None,
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    found = trainer.predict(rows)
    assert found.metrics["test_loss"] < before / 2
    assert ((found.predictions > 0) == (torch.tensor(labels) > 0.5).numpy()).all()
    trainer.save_model(str(tmp_path / "saved"))
    assert ewe.Tokenizer.from_pretrained(tmp_path / "saved").u == 8
    assert (tmp_path / "saved" / "model.safetensors").exists()

"""Saved and loaded as the Hub does it: the same logits, from safetensors and JSON."""

import builtins
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ewe import hub
from ewe.bert import BertConfig, EweBert, OrigBert, OrigBertConfig
from ewe.errors import UsageError

CONFIG = BertConfig(u=6, v=4, c=4, layers=1, heads=4, ffn=16, labels=5, gradient=True)
MODELS = [
    (EweBert, CONFIG),
    (EweBert, BertConfig(u=6, v=4, c=4, layers=1, heads=4, ffn=16, labels=5, focus=False)),
    (OrigBert, OrigBertConfig(vocabulary=20, positions=6, width=8, layers=1, heads=2, ffn=16, labels=5)),
]


@pytest.mark.parametrize(("network", "config"), MODELS)
@pytest.mark.parametrize("fold", [False, True])
def test_a_model_loads_as_it_was_saved(tmp_path: Path, network: Any, config: Any, fold: bool):
    model = network(config).eval()
    ids = torch.randint(1, 20, (3, 6, 4) if network.reads == "letters" else (3, 6))
    before = model(ids)
    if fold and network.reads == "letters":
        model.embedding.fold()
    model.save_pretrained(tmp_path / "model")
    loaded = network.from_pretrained(tmp_path / "model")
    assert torch.equal(loaded(ids), before)
    assert loaded.config == config
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"config.json", "model.safetensors", "README.md"}
    assert "ewe-patents" in (tmp_path / "model" / "README.md").read_text()


def test_weights_that_do_not_belong_are_refused(tmp_path: Path):
    EweBert(CONFIG).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"layers": 2}))
    with pytest.raises(RuntimeError, match="Missing key"):
        EweBert.from_pretrained(tmp_path)


def test_without_huggingface_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    real = builtins.__import__

    def blocked(name: str, *rest: Any) -> Any:
        if name.startswith("huggingface_hub"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", blocked)
    spec = importlib.util.spec_from_file_location("hub_alone", hub.__file__)
    assert spec is not None
    assert spec.loader is not None
    alone = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "hub_alone", alone)
    spec.loader.exec_module(alone)

    class Network(torch.nn.Module, alone.Hub):
        pass

    with pytest.raises(UsageError, match="pip install huggingface_hub"):
        Network().save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="pip install huggingface_hub"):
        Network.from_pretrained(tmp_path)

"""Models in the Hub's conventions: `save_pretrained`, `from_pretrained`, `push_to_hub`; safetensors and JSON alone.

They come from huggingface_hub's mixin, where it is installed; training, evaluation and prediction do without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from ewe.errors import UsageError

if TYPE_CHECKING:

    class _Mixin:
        def __init_subclass__(cls, **card: Any) -> None: ...
        def save_pretrained(self, save_directory: Any, **options: Any) -> Any: ...
        def push_to_hub(self, repo_id: str, **options: Any) -> Any: ...
        @classmethod
        def from_pretrained(cls, pretrained_model_name_or_path: Any, **options: Any) -> Any: ...
        @classmethod
        def _from_pretrained(cls, *, config: Any, strict: bool, **options: Any) -> Any: ...

else:
    try:
        from huggingface_hub import PyTorchModelHubMixin as _Mixin
    except ImportError:

        class _Mixin:
            def __init_subclass__(cls, **_card: Any) -> None:
                super().__init_subclass__()

            def _lacking(self_or_cls, *_: Any, **__: Any) -> NoReturn:  # noqa: N805
                raise UsageError("Saving and loading models as the Hub does needs: pip install huggingface_hub")

            save_pretrained = push_to_hub = _lacking
            from_pretrained = classmethod(_lacking)


class Hub(
    _Mixin,
    library_name="ewe-patents",
    license="apache-2.0",
    paper_url="https://arxiv.org/abs/2302.13475",
    pipeline_tag="text-classification",
    tags=["patents"],
):
    """What a model inherits beside nn.Module; its `config_class` is a dataclass of JSON values."""

    config_class: type[Any]

    @classmethod
    def _from_pretrained(cls, *, config: dict[str, Any], strict: bool = True, **options: Any) -> Any:
        """Build the model that config.json tells, and load its weights: every one of them, unless not strict."""
        return super()._from_pretrained(config=cls.config_class(**config), strict=strict, **options)

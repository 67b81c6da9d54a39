"""Pages: one file of HTML each, in the style that all share and without network; equal facts make equal bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jinja2


def render(template: str, filters: Mapping[str, Callable[..., Any]], facts: Mapping[str, Any]) -> str:
    """The text of a page.

    Args:
        template: a file of the package that extends page.html.jinja.
        filters: what the template calls, by name.
        facts: what it names; jinja2.UndefinedError where one is missing.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ewe", ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.filters |= filters
    return environment.get_template(template).render(facts)

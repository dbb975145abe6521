"""ReasoningVariants: one chat template with its options set for each effort."""

import json
from collections.abc import Callable
from typing import Generic, TypeVar

from continuo.engine.text.chat_template.reasoning_probe import EffortSetting
from continuo.engine.text.chat_template.renderer import TemplateRenderer

T = TypeVar("T")


class ReasoningVariants(Generic[T]):
    """A template's variants: one `T`, made of a renderer, for each set of reasoning options."""

    def __init__(self, renderer: TemplateRenderer, base: T) -> None:
        """`renderer`: the template without reasoning options; `base`: what was made of it."""
        self._renderer = renderer
        self._variants = {"{}": (renderer, base)}
        """Renderer and variant, by the options as JSON."""

    @property
    def renderers(self) -> list[TemplateRenderer]:
        """Renderers of all variants that were made so far, the base included."""
        return [renderer for renderer, _ in [*self._variants.values()]]

    @property
    def reasons(self) -> bool:
        """Whether the model reasons, as far as its template shows."""
        switch = self._renderer.reasoning_switch
        has_switch = bool(switch.on) or switch.off is not None or switch.takes_effort
        return self._renderer.mentions_reasoning or has_switch

    def can_set(self, effort: EffortSetting) -> bool:
        """Whether the template can set an effort. Any effort will do for a model that does not
        reason, as far as its template shows."""
        if effort in ("default", "off"):
            return True
        options = self._renderer.reasoning_switch.options_for(effort)
        return not self.reasons if options is None else self._renderer.accepts_options(options)

    def get(self, effort: EffortSetting, create: Callable[[TemplateRenderer], T]) -> T:
        """Return the variant for an effort; the same object each time. `create` makes it of its
        renderer."""
        options = self._renderer.reasoning_switch.options_for(effort) or {}
        key = json.dumps(options, sort_keys=True)
        made = self._variants.get(key)
        if made is None:
            renderer = self._renderer.with_options(options)
            # Another thread may make the same variant meanwhile.
            made = self._variants.setdefault(key, (renderer, create(renderer)))
        return made[1]

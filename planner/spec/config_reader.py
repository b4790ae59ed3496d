"""One value at a time out of a config.json: goes in, our name of a field; comes out, a checked value. Is it usable?

Every refusal is a PlannerError in one line that ends in the JSON path of the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from planner.errors import PlannerError

MOST = 100_000_000
"""No width, vocabulary or count of a real model is larger."""


class ConfigReader:
    """The fields of one config with the keys, aliases and defaults of its family."""

    def __init__(
        self, fields: Mapping[str, Any], keys: Mapping[str, Iterable[str]], defaults: Mapping[str, Any], path: str
    ) -> None:
        self._fields = fields
        self._keys = {name: tuple(spellings) for name, spellings in keys.items()}
        self._defaults = defaults
        self._path = path

    def key(self, name: str) -> str:
        """The key transformers uses for our name."""
        return self._keys[name][0]

    def given(self, name: str) -> bool:
        """Whether the config itself says it."""
        return any(self._fields.get(key) is not None for key in self._keys[name])

    def count(self, name: str, *, default: int | None = None, most: int = MOST) -> int:
        """A positive whole number; `default` for an explicit null, or where neither config nor family says it."""
        for key in self._keys[name]:
            if self._fields.get(key) is not None:
                return self._whole(key, self._fields[key], most)
            if key in self._fields and default is not None:
                return default
        value = self._defaults.get(self.key(name), default)
        if value is None:
            raise PlannerError(f"`{self.key(name)}` is missing @ {self._path}", hint="give the model's own config.json")
        return int(value)

    def plain_count(self, key: str, *, default: int) -> int:
        """A positive whole number under that very key."""
        value = self._fields.get(key)
        return self._defaults.get(key, default) if value is None else self._whole(key, value, MOST)

    def flag(self, name: str) -> bool:
        """A yes or no by our name."""
        return self.switch(self.key(name))

    def switch(self, key: str | bool, *, default: bool = False) -> bool:  # noqa: FBT001 (a family's fixed yes or no)
        """A yes or no under that very key, or a fixed one."""
        if isinstance(key, bool):
            return key
        value = self._fields.get(key)
        if value is None:
            return bool(self._defaults.get(key, default))
        if not isinstance(value, bool):
            self.refuse_key(key, value, "true or false")
        return value

    def text(self, name: str) -> str:
        """A text by our name, else the family's default."""
        for key in self._keys[name]:
            value = self._fields.get(key)
            if value is not None:
                if not isinstance(value, str):
                    self.refuse_key(key, value, "a text")
                return value
        return str(self._defaults[self.key(name)])

    def share(self, key: str) -> float:
        """A number from 0 to 1 under that very key; 0 where nobody says it."""
        value = self._fields.get(key)
        value = self._defaults.get(key, 0.0) if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            self.refuse_key(key, value, "a number from 0 to 1")
        return float(value)

    def optional_number(self, key: str) -> float | int | None:
        """A positive number under that very key, or None; an explicit null means none."""
        value = self._fields[key] if key in self._fields else self._defaults.get(key)
        if value is None or value == 0:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            self.refuse_key(key, value, "a positive number")
        return value

    def indices(self, key: str) -> frozenset[int]:
        """A list of whole numbers under that very key; empty where nobody says it."""
        value = self._fields.get(key)
        if value is None:
            return frozenset()
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            self.refuse_key(key, value, "a list of layer numbers")
        return frozenset(value)

    def kept(self, extra: Iterable[str], switches: Iterable[str]) -> dict[str, Any]:
        """The fields that define the architecture, defaults included, under the keys that transformers knows."""
        kept: dict[str, Any] = dict(self._defaults)
        for key, *aliases in self._keys.values():
            given = [spelling for spelling in (key, *aliases) if spelling in self._fields]
            chosen = next(
                (spelling for spelling in given if self._fields[spelling] is not None), next(iter(given), None)
            )
            if chosen is not None:
                kept[key] = self._fields[chosen]
        others = (key for key in (*extra, *switches) if key in self._fields)
        return kept | {key: self._fields[key] for key in others}

    def refuse(self, name: str, value: object, wanted: str) -> NoReturn:
        """Raise PlannerError for the value of our name."""
        key = next((k for k in self._keys[name] if self._fields.get(k) is not None), self.key(name))
        self.refuse_key(key, value, wanted)

    def refuse_key(self, key: str, value: object, wanted: str) -> NoReturn:
        """Raise PlannerError for the value under that key."""
        shown = repr(value) if len(repr(value)) <= 40 else repr(value)[:37] + "..."
        raise PlannerError(
            f"`{key}` is `{shown}`, not {wanted} @ {self._path}.{key}",
            hint="correct the config.json, or give the model's own",
        )

    def _whole(self, key: str, value: object, most: int) -> int:
        if type(value) is not int or not 1 <= value <= most:
            self.refuse_key(key, value, f"a whole number from 1 to {most}")
        return value

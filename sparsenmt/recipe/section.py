"""The base of all sections of a recipe."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer


class Section(BaseModel):
    """A part of the recipe: immutable, unknown keys forbidden."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    younger: ClassVar[frozenset[str]] = frozenset()
    """Keys that are younger than records on disk: values and hashes hold them only where they are not the default."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Write one line in a notebook, in place of all keys and values."""
        printer.text(f"{type(self).__name__}({', '.join(type(self).model_fields)})")

    @model_serializer(mode="wrap")
    def serialized(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The section as plain values."""
        values: dict[str, Any] = handler(self)
        for name in self.younger & values.keys():
            if getattr(self, name) == type(self).model_fields[name].default:
                del values[name]
        return values

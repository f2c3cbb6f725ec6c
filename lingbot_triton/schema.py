"""What comes from outside is checked against a schema, which also renders its documentation.

Session options, settings and placements are pydantic models. This module holds what they share:
strict types (a float field takes an int, nothing else mixes), frozen instances, and one sentence
for a person in place of pydantic's report.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, core_schema
from typing_extensions import Self

KINDS = {"integer": "int", "number": "float", "boolean": "bool", "string": "str"}
"""JSON schema's types by the names that error messages use."""
JsonSchema = dict[str, Any]


@dataclass(frozen=True)
class OneOf:
    """Annotation of a string that is one of a few words; `Literal`, but a plain str to callers."""

    words: tuple[str, ...]

    def __init__(self, *words: str) -> None:
        object.__setattr__(self, "words", words)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.literal_schema(list(self.words))


class Schema(BaseModel):
    """Base of checked values. Each instance is valid; making one raises `ERROR` otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    ERROR: ClassVar[type[Exception]] = ValueError
    NOUN: ClassVar[str] = "field"
    LABEL: ClassVar[str] = "{name}"
    RANGE: ClassVar[str] = "is {value}; it must be {low} to {high}"
    TYPE: ClassVar[str] = "must be of type {kind}, not {value}"

    def __init__(self, /, **values: Any) -> None:
        unknown = sorted(set(values) - set(type(self).model_fields))
        if unknown:  # before pydantic, which cannot take every string as a name
            known = ", ".join(type(self).model_fields)
            raise self.ERROR(
                f"unknown {self.NOUN} {shorten(unknown[0])}; known {self.NOUN}s: {known}"
            )
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise self.ERROR(self.sentence(error.errors(include_url=False)[0])) from None

    def replace(self, /, **changes: Any) -> Self:
        """The same with some fields changed, checked again."""
        return type(self)(**{**dict(self), **changes})

    @classmethod
    @cache
    def properties(cls) -> dict[str, JsonSchema]:
        """The JSON schema of each field; that of an optional one is its other alternative's."""
        properties: dict[str, JsonSchema] = cls.model_json_schema()["properties"]
        for schema in properties.values():
            for alternative in schema.pop("anyOf", ()):
                if alternative["type"] != "null":
                    schema.update(alternative)
        return properties

    @classmethod
    def sentence(cls, error: ErrorDetails) -> str:
        """What is wrong: the field, its value, what is accepted."""
        kind = error["type"]
        if kind == "value_error":
            return str(error["ctx"]["error"])
        name, *item = error["loc"]
        schema = cls.properties()[str(name)]
        if kind in ("missing", "too_long", "tuple_type"):
            return cls._fill(f"must be a list of {schema['maxItems']} numbers", name, error, schema)
        if item:
            schema = schema["prefixItems"][item[0]]
        too_large = kind == "float_type" and type(error["input"]) is int
        if kind == "finite_number" or too_large:
            return cls._fill("must be a finite number", name, error, schema)
        if kind.endswith("_type"):
            return cls._fill(cls.TYPE, name, error, schema)
        label = f"{name} {schema['title']}" if item else name
        return cls._fill(cls._accepted(schema), label, error, schema)

    @classmethod
    def _accepted(cls, schema: JsonSchema) -> str:
        if "enum" in schema:
            return "is {value}; it must be one of " + ", ".join(schema["enum"])
        if "exclusiveMinimum" in schema:
            return "is {value}; it must be above {above} and below {below}"
        if "maximum" not in schema:
            return "is {value}; it must be at least {low}"
        return cls.RANGE

    @classmethod
    def _fill(cls, words: str, name: str | int, error: ErrorDetails, schema: JsonSchema) -> str:
        return f"{cls.LABEL} {words}".format(
            name=name,
            value=shorten(error["input"]),
            kind=KINDS.get(schema.get("type", "")),
            low=schema.get("minimum"),
            high=schema.get("maximum"),
            above=schema.get("exclusiveMinimum"),
            below=schema.get("exclusiveMaximum"),
        )


def shorten(value: Any) -> str:
    """A client's own value, as much of it as a message may repeat."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

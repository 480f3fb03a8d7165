"""Reports as JSON documents, each with its own JSON Schema."""

import json
from typing import Protocol, TypeVar

import msgspec


class Document(Protocol):
    """A report that names its schema: "tfbuild.report/1"."""

    @property
    def schema(self) -> str: ...


T = TypeVar("T", bound=Document)


def to_json(report: Document) -> str:
    """Return the report as one JSON document."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def from_json(text: str | bytes, kind: type[T], schema: str, noun: str) -> T:
    """Return the report in a document; raise ValueError if it is not a `noun`, or of another schema."""
    try:
        report = msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"not {noun}: {error}") from error
    if report.schema != schema:
        raise ValueError(f"a report of schema {report.schema!r}, not {schema!r}")
    return report


def json_schema(kind: type[Document], schema: str) -> str:
    """Return the JSON Schema of reports of a kind."""
    header = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": schema}
    return json.dumps(header | msgspec.json.schema(kind), indent=2, sort_keys=True) + "\n"

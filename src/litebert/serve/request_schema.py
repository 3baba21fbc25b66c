"""Bodies of requests."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from litebert.serve.validation_messages import single_rule

ModelName = Field(
    default=None, max_length=200, description="A name of /v1/models; by default the first model that can answer."
)
PredictInput = Annotated[
    str | list[str] | dict[str, JsonValue],
    single_rule("must be a text, a list of texts, or an object of the task's fields"),
]
EmbeddingInput = Annotated[
    str | list[str] | list[int] | list[list[int]],
    single_rule("must be a text, a list of texts, a list of token ids, or a list of such lists"),
]
EXAMPLE_TEXTS: list[JsonValue] = ["Rain fell on the roof.", "The baker opened at five."]
EXAMPLE_LABELS: list[JsonValue] = [
    {"text": "Rain fell on the roof.", "label": "weather"}, {"text": "Thunder every morning.", "label": "weather"},
    {"text": "Butter and three eggs.", "label": "food"}, {"text": "Two sandwiches, please.", "label": "food"},
]  # fmt: skip
MAX_TOP = 100
MAX_PASSES = 1000


def example(**fields: JsonValue) -> ConfigDict:
    """The example in /docs; it names no model, so that it works on every server."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


class StrictRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class PredictRequest(StrictRequest):
    model_config = example(inputs=["The [MASK] opened at five."])

    inputs: list[PredictInput] = Field(
        min_length=1, description="Records as `litebert predict` reads them: a text, a pair, or an object."
    )
    passes: int | None = Field(
        default=None, ge=1, le=MAX_PASSES, description="Number of passes to run; by default all."
    )
    top: int | None = Field(default=None, ge=1, le=MAX_TOP, description="Number of candidates per mask.")


class FillRequest(StrictRequest):
    model_config = example(text="The [MASK] opened at five.", top=3)

    text: str = Field(min_length=1, description="A text with [MASK] in place of each missing word.")
    top: int = Field(default=5, ge=1, le=MAX_TOP)
    model: str | None = ModelName


class QuestionRequest(StrictRequest):
    model_config = example(question="When did the baker open?", context="The baker opened at five.")

    question: str = Field(min_length=1)
    context: str = Field(min_length=1)
    model: str | None = ModelName


class TextsRequest(StrictRequest):
    """One text, or a list of them."""

    model_config = example(texts=EXAMPLE_TEXTS)

    text: str | None = Field(default=None, min_length=1)
    texts: list[str] | None = Field(default=None, min_length=1)
    model: str | None = ModelName

    @model_validator(mode="after")
    def _exactly_one(self) -> TextsRequest:
        if (self.text is None) == (self.texts is None):
            raise ValueError("give text, or texts, a list, and not both")
        return self

    @property
    def all_texts(self) -> list[str]:
        return [self.text] if self.text is not None else list(self.texts or ())


class SimilarityRequest(StrictRequest):
    """All pairs of `texts`, or all pairs of a text of `a` and one of `b`."""

    model_config = example(texts=EXAMPLE_TEXTS)

    texts: list[str] | None = Field(default=None, min_length=1)
    a: list[str] | None = Field(default=None, min_length=1)
    b: list[str] | None = Field(default=None, min_length=1)
    model: str | None = ModelName

    @model_validator(mode="after")
    def _texts_or_pairs(self) -> SimilarityRequest:
        if (self.texts is None) == (self.a is None) or (self.a is None) != (self.b is None):
            raise ValueError("give texts, or a and b")
        return self


class CompatibleRequest(BaseModel):
    """A request in another server's format: unknown fields are ignored, as its clients may send more."""

    model_config = ConfigDict(extra="ignore", strict=True)


class EmbeddingsRequest(CompatibleRequest):
    """In the format of OpenAI."""

    model_config = example(input=EXAMPLE_TEXTS)

    input: EmbeddingInput
    model: str | None = ModelName
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, ge=1, le=1 << 16)
    user: str | None = None


class RerankRequest(StrictRequest):
    model_config = example(query="weather", documents=EXAMPLE_TEXTS)

    query: str = Field(min_length=1)
    documents: list[str] = Field(min_length=1)
    model: str | None = ModelName
    top_n: int | None = Field(default=None, ge=1, le=1 << 16)
    return_documents: bool = False


class TeiEmbedRequest(CompatibleRequest):
    """In the format of text-embeddings-inference."""

    model_config = example(inputs=EXAMPLE_TEXTS)

    inputs: EmbeddingInput
    normalize: bool = True
    truncate: bool | None = Field(
        default=None, description="false: refuse texts that are too long; otherwise they are truncated."
    )
    dimensions: int | None = Field(default=None, ge=1, le=1 << 16)


class TeiRerankRequest(CompatibleRequest):
    """In the format of text-embeddings-inference."""

    model_config = example(query="weather", texts=EXAMPLE_TEXTS)

    query: str = Field(min_length=1)
    texts: list[str] = Field(min_length=1)
    return_text: bool = False


class TeiTokenizeRequest(CompatibleRequest):
    """In the format of text-embeddings-inference."""

    model_config = example(inputs=EXAMPLE_TEXTS)

    inputs: Annotated[str | list[str], single_rule("must be a text, or a list of texts")]
    add_special_tokens: bool = True


class Example(StrictRequest):
    text: str = Field(min_length=1)
    label: str = Field(min_length=1, max_length=200)


class TeachRequest(StrictRequest):
    model_config = example(examples=EXAMPLE_LABELS)

    examples: list[Example] = Field(min_length=1)
    model: str | None = ModelName
    label_names: bool | None = Field(
        default=None, description="Use the names of the classes as examples; null: only if that helps."
    )


class MoreExamples(StrictRequest):
    model_config = example(examples=EXAMPLE_LABELS[:1])

    examples: list[Example] = Field(min_length=1)


class TextRequest(StrictRequest):
    model_config = example(text=EXAMPLE_TEXTS[0])

    text: str = Field(min_length=1)


class InsideRequest(StrictRequest):
    model_config = example(text=EXAMPLE_TEXTS[0])

    text: str = Field(min_length=1)
    model: str | None = ModelName


class TextListRequest(StrictRequest):
    model_config = example(texts=EXAMPLE_TEXTS)

    texts: list[str] = Field(min_length=1)
    model: str | None = ModelName


class SearchRequest(StrictRequest):
    model_config = example(query="weather", top=1)

    query: str | None = Field(default=None, min_length=1)
    queries: list[str] | None = Field(default=None, min_length=1)
    top: int = Field(default=10, ge=1, le=1000)

    @model_validator(mode="after")
    def _exactly_one(self) -> SearchRequest:
        if (self.query is None) == (self.queries is None):
            raise ValueError("give query, or queries, a list, and not both")
        return self

    @property
    def all_queries(self) -> list[str]:
        return [self.query] if self.query is not None else list(self.queries or ())

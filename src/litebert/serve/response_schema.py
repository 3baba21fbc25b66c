"""Bodies of responses."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class StrictResponse(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorDetail(StrictResponse):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(StrictResponse):
    """An error in the OpenAI format."""

    error: ErrorDetail


class PredictResponse(StrictResponse):
    model: str
    task: str
    answers: list[dict[str, Any] | None] = Field(description="Records as `litebert predict` writes them.")


class MaskFilling(StrictResponse):
    token: str
    probability: float
    text: str = Field(description="The whole text with this mask filled.")


class FillMaskResponse(StrictResponse):
    model: str
    masks: list[list[MaskFilling]] = Field(description="For each mask the most likely fillings, best first.")
    text: str = Field(description="The text with the best filling of every mask.")
    log_probability: float
    truth_log_probability: float | None


class AnswerSpan(StrictResponse):
    text: str
    start: int
    end: int
    probability: float


class QuestionResponse(AnswerSpan):
    model: str
    no_answer_probability: float
    candidates: list[AnswerSpan]


class SimilarityResponse(StrictResponse):
    model: str
    scores: list[list[float]]


class EmbeddingItem(StrictResponse):
    object: str
    index: int
    embedding: list[float] | str = Field(description="Numbers, or base64 of little-endian float32.")


class EmbeddingsResponse(StrictResponse):
    object: str
    data: list[EmbeddingItem]
    model: str
    usage: dict[str, int]


class RerankResult(StrictResponse):
    index: int
    relevance_score: float
    document: dict[str, str] | None = None


class RerankResponse(StrictResponse):
    model: str
    results: list[RerankResult]
    usage: dict[str, int]


class TeiRerankResult(StrictResponse):
    index: int
    score: float
    text: str | None = None


class TeiToken(StrictResponse):
    id: int
    text: str
    special: bool
    start: int | None = Field(description="Index of its first character in the text.")
    stop: int | None = Field(description="Index after its last character.")


class TeiInfo(StrictResponse):
    model_id: str
    model_dtype: str
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_client_batch_size: int
    auto_truncate: bool
    version: str


class AnswerAtDepth(StrictResponse):
    depth: int
    answer: dict[str, Any]


class InsideResponse(StrictResponse):
    model: str
    tokens: list[str]
    depths: int
    heads: int
    attention: list[list[list[list[float]]]] = Field(
        description="Attention weights by pass, head, query token and key token."
    )
    by_depth: list[AnswerAtDepth] = Field(description="The answer after each pass.")


class Misclassification(StrictResponse):
    text: str
    label: str
    taken_for: str


class AdaptResponse(StrictResponse):
    id: str
    model: str = Field(description="Model name for /predict and /classify.")
    classes: list[str]
    examples: int
    accuracy_left_out: float | None = Field(description="Leave-one-out accuracy.")
    margin: float | None = Field(description="Half-width of its 95 % confidence interval.")
    chance: float = Field(description="Accuracy of the majority baseline.")
    with_twice: float | None = Field(description="Estimated accuracy with twice as many examples.")
    label_names: bool
    hints: list[str]
    mistakes: list[Misclassification]
    seconds: float
    expires_in_s: float = Field(description="Seconds after its last use.")


class NearestExample(StrictResponse):
    text: str
    label: str
    weight: float = Field(description="Its contribution to the score of the class; may be negative.")
    is_name: bool = Field(description="Whether it is the name of a class, used as an example.")


class ExplainResponse(StrictResponse):
    label: str
    probability: float
    probabilities: dict[str, float]
    unknown: float
    is_unknown: bool
    nearest: list[NearestExample]


class DeleteResponse(StrictResponse):
    id: str
    deleted: bool


class UploadResponse(StrictResponse):
    id: str
    texts: int
    model: str
    expires_in_s: float


class SearchHit(StrictResponse):
    index: int
    text: str
    score: float


class SearchResponse(StrictResponse):
    id: str
    results: list[list[SearchHit]]


class RunRecord(StrictResponse):
    name: str
    updated: float
    command: str | None
    finished: bool


class RunList(StrictResponse):
    runs: list[RunRecord]


class RunCurves(StrictResponse):
    name: str
    curves: dict[str, list[list[float]]] = Field(description="Points (step, value) by metric, at most 500 each.")


class ModelRecord(StrictResponse):
    id: str
    object: str
    created: int
    owned_by: str
    task: str | None
    labels: list[str]
    max_length: int
    passes: int
    dimensions: int
    int8: bool
    adapted: bool
    endpoints: list[str]


class ModelList(StrictResponse):
    object: str
    data: list[ModelRecord]

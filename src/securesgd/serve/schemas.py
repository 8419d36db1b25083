"""The shapes of bodies and answers, as JSON schemas of /openapi.json."""

__all__ = ["ATTACK", "BODY", "DESCRIPTION", "ERROR", "PREDICTION"]

from typing import Any

from securesgd.serve.inputs import IMAGE_TYPES, JSON_TYPE

Schema = dict[str, Any]


def _of(kind: str, words: str = "", *, null: bool = False) -> Schema:
    return {"type": [kind, "null"] if null else kind} | ({"description": words} if words else {})


def _object(properties: dict[str, Schema], *, null: bool = False) -> Schema:
    return {"type": ["object", "null"] if null else "object", "properties": properties, "required": list(properties)}


def _list(items: Schema, words: str = "", *, null: bool = False) -> Schema:
    return _of("array", words, null=null) | {"items": items}


_NUMBERS = {"type": ["object", "null"], "additionalProperties": {"type": "number"}}
_VOTES = _list(
    _object({"class": _of("string"), "votes": _of("number")}), "What each class got of the draws; empty without noise."
)
_IMAGE: Schema = {"schema": {"type": "string", "format": "binary"}}

ERROR = _object({"error": _of("string", "One line: what was wrong, and what would be valid.")})
BODY: Schema = {
    "required": True,
    "content": {
        **dict.fromkeys(IMAGE_TYPES, _IMAGE),
        JSON_TYPE: {
            "schema": {
                "oneOf": [
                    _object({"pixels": _list({}, "Nested lists of numbers in the shape of the model's inputs.")}),
                    _object({"row": _of("object", "Of a table: a value for each column, without the class.")}),
                ]
            }
        },
    },
}
DESCRIPTION = _object(
    {
        "kind": {"enum": ["image", "table", "numbers"]},
        "class_names": _list(_of("string")),
        "input_shape": _list(_of("integer")),
        "input_range": _list(_of("number"), null=True),
        "columns": _list(_of("object"), "Of a table: name and minimum, maximum or categories.", null=True),
        "target": _of("string", "Of a table: the column that is predicted.", null=True),
        "method": _of("string"),
        "statement": _object(
            {
                "guaranteed": _of("boolean"),
                "in_short": _of("string", "The privacy of the training data in one sentence."),
                "in_words": _of("string", "The same in full."),
            }
        ),
        "family": {"enum": ["smoothing", "interval"]},
        "norm": {"enum": ["linf", "l2", "l1"]},
        "draws": _of("integer"),
        "failure_prob": _of("number"),
        "body_bytes": _of("integer", "The largest body."),
    }
)
PREDICTION = _object(
    {
        "class": _of("string", "None if abstained.", null=True),
        "label": _of("integer", "The number of the class.", null=True),
        "abstained": _of("boolean", "The draws do not prove any class."),
        "radius": _of("number", "No smaller change of the input, in `norm`, makes the class another one."),
        "norm": {"enum": ["linf", "l2", "l1"]},
        "family": {"enum": ["smoothing", "interval"]},
        "draws": _of("integer"),
        "failure_prob": _of(
            "number", "Bound on the probability that this answer is wrong about the model; 0: certain."
        ),
        "votes": _VOTES,
        "column_radii": _NUMBERS | {"description": "Of a table: the radius in the unit of each numeric column."},
        "resized_from": _list(_of("integer"), "Width and height of an image that was resized.", null=True),
        "picture": _of("string", "The input as the model saw it: a PNG as a data URI, if asked for.", null=True),
        "in_words": _of("string"),
    }
)
_ATTACKED = {
    "budget": _of("number", "The largest change allowed."),
    "times_radius": _of("number", "The budget over the proven radius.", null=True),
    "changed": _of("boolean", "Fresh draws prove another class."),
    "class": _of("string", null=True),
    "abstained": _of("boolean"),
    "votes": _VOTES,
    "picture": _of("string", "A PNG as a data URI, rounded to whole grey levels.", null=True),
    "row": _of("object", "Of a table: the changed row.", null=True),
}
ATTACK = _object(
    {"before": PREDICTION, "inside": _object(_ATTACKED, null=True), "outside": _object(_ATTACKED)},
)

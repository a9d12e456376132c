"""Schemas of the Prometheus operator's resources, limited to the fields that the chart uses. Other fields are errors.

The source is the documentation of its API, monitoring.coreos.com/v1.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
DURATION: Schema = {"type": "string", "pattern": r"^(0|(([0-9]+)(y|w|d|h|m|s|ms))+)$"}


def closed(*required: str, **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def resource(kind: str, spec: Schema) -> Schema:
    metadata = closed("name", "labels", name={"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"}, labels=TEXTS)
    return closed(
        "apiVersion",
        "kind",
        "metadata",
        "spec",
        apiVersion={"const": "monitoring.coreos.com/v1"},
        kind={"const": kind},
        metadata=metadata,
        spec=spec,
    )


KEY = closed("name", "key", name=TEXT, key=TEXT)
SECRET_OR_CONFIG = {**closed(secret=KEY, configMap=KEY), "minProperties": 1, "maxProperties": 1}
TLS = closed(
    ca=SECRET_OR_CONFIG, cert=SECRET_OR_CONFIG, keySecret=KEY, serverName=TEXT, insecureSkipVerify={"type": "boolean"}
)
RELABELING = closed(
    "action", action={"enum": ["replace", "keep", "drop"]}, targetLabel=TEXT, replacement={"type": "string"}
)
ENDPOINT = closed(
    "port",
    port=TEXT,
    path={"type": "string", "pattern": "^/"},
    interval=DURATION,
    scheme={"enum": ["http", "https"]},
    tlsConfig=TLS,
    authorization=closed("credentials", type={"const": "Bearer"}, credentials=KEY),
    relabelings={"type": "array", "items": RELABELING},
)
RULE = closed(
    "alert", "expr", alert=TEXT, expr=TEXT, **{"for": DURATION}, labels=TEXTS, annotations=TEXTS
)

SCHEMAS = {
    "ServiceMonitor": resource(
        "ServiceMonitor",
        closed(
            "selector",
            "endpoints",
            selector=closed("matchLabels", matchLabels=TEXTS),
            endpoints={"type": "array", "items": ENDPOINT, "minItems": 1},
        ),
    ),
    "PrometheusRule": resource(
        "PrometheusRule",
        closed(
            "groups",
            groups={
                "type": "array",
                "minItems": 1,
                "items": closed("name", "rules", name=TEXT, rules={"type": "array", "items": RULE, "minItems": 1}),
            },
        ),
    ),
}

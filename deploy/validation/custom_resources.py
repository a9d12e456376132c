"""Schemas of the custom resources of the chart. Fields that a schema does not have are errors.

Prometheus operator: the fields that the chart uses, from the documentation of its API, monitoring.coreos.com/v1.
KEDA: the schema of its CustomResourceDefinition, and the parameters of its Prometheus scaler; see schemas/ for the source.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

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

def without_other_fields(schema: Any) -> Any:
    """Returns an OpenAPI schema whose objects with listed fields have no others. A cluster would drop them silently."""
    if isinstance(schema, list):
        return [without_other_fields(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: without_other_fields(value) for key, value in schema.items()}
    return {**schema, "additionalProperties": False} if isinstance(schema.get("properties"), dict) else schema


# Parameters of a trigger of type prometheus, all of them strings, from pkg/scalers/prometheus_scaler.go of the same commit.
KEDA_PROMETHEUS = closed(
    "serverAddress",
    "query",
    "threshold",
    serverAddress={"type": "string", "pattern": "^https?://"},
    query=TEXT,
    queryParameters=TEXT,
    threshold={"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?$"},
    activationThreshold={"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?$"},
    namespace=TEXT,
    customHeaders=TEXT,
    ignoreNullValues={"enum": ["true", "false"]},
    unsafeSsl={"enum": ["true", "false"]},
    awsRegion=TEXT,
    timeout=TEXT,
    identityOwner=TEXT,
)


def scaled_object() -> Schema:
    schema = without_other_fields(yaml.safe_load((Path(__file__).parent / "schemas/keda.sh_scaledobjects.yaml").read_text()))
    fields = schema["properties"]
    fields["apiVersion"], fields["kind"] = {"const": "keda.sh/v1alpha1"}, {"const": "ScaledObject"}
    trigger = fields["spec"]["properties"]["triggers"]["items"]["properties"]
    # The CustomResourceDefinition leaves these to the operator.
    trigger["type"], trigger["metadata"] = {"const": "prometheus"}, KEDA_PROMETHEUS
    trigger["metricType"] = {"enum": ["AverageValue", "Value"]}
    return schema


SCHEMAS = {
    "ScaledObject": scaled_object(),
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

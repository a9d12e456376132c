#!/usr/bin/env python3
"""Generates forebay.json, the Grafana dashboard. Run `python3 deploy/grafana/dashboard.py` and commit both files.

The dashboard of a server shows its own current state; this one shows all servers over time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TARGET = Path(__file__).with_name("forebay.json")
COLUMNS = 24
SERVERS = 'job="forebay", instance=~"$instance"'
DATASETS = f'{SERVERS}, dataset=~"$dataset"'
SOURCE = {"type": "prometheus", "uid": "$datasource"}
# Activities of a session, in the order of the stack, with colours close to those of the server's dashboard.
BUCKETS = {
    "compute": "green",
    "compute_or_network": "semi-dark-green",
    "network": "blue",
    "gather": "purple",
    "decode": "orange",
    "storage": "red",
    "queued": "yellow",
}
WAITING = f'{DATASETS}, activity=~"network|gather|decode|storage|queued"'
RUNBOOKS = "https://github.com/forebay/forebay/blob/main/docs/how-to/alerts.md"

Panel = dict[str, Any]


def rate(metric: str, selector: str = SERVERS) -> str:
    return f"rate({metric}{{{selector}}}[$__rate_interval])"


def total(metric: str, by: str, selector: str = SERVERS) -> str:
    return f"sum by ({by}) ({rate(metric, selector)})"


def quantile(q: float, metric: str, by: str, selector: str = SERVERS) -> str:
    return f"histogram_quantile({q}, sum by ({by}, le) ({rate(metric + '_bucket', selector)}))"


def panel(kind: str, title: str, about: str, queries: dict[str, str], unit: str, width: int, height: int) -> Panel:
    """Returns a panel; `queries` maps legends to expressions."""
    targets = [
        {"refId": chr(ord("A") + number), "datasource": SOURCE, "expr": expression, "legendFormat": name, "range": True}
        for number, (name, expression) in enumerate(queries.items())
    ]
    return {
        "type": kind,
        "title": title,
        "description": about,
        "datasource": SOURCE,
        "gridPos": {"w": width, "h": height},
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {},
    }


def lines(title: str, about: str, queries: dict[str, str], unit: str, width: int = 8, stack: bool = False) -> Panel:
    made = panel("timeseries", title, about, queries, unit, width, 8)
    made["fieldConfig"]["defaults"]["custom"] = {
        "lineWidth": 1,
        "fillOpacity": 60 if stack else 8,
        "showPoints": "never",
        "stacking": {"mode": "normal" if stack else "none", "group": "A"},
    }
    made["options"] = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return made


def number(title: str, about: str, expression: str, unit: str, steps: list[tuple[float | None, str]]) -> Panel:
    """Returns a panel of the last value, with a colour from each threshold on."""
    made = panel("stat", title, about, {"": expression}, unit, 4, 4)
    made["targets"][0] |= {"range": False, "instant": True}
    made["fieldConfig"]["defaults"]["thresholds"] = {
        "mode": "absolute",
        "steps": [{"value": value, "color": color} for value, color in steps],
    }
    made["options"] = {"colorMode": "value", "graphMode": "none", "reduceOptions": {"calcs": ["lastNotNull"]}}
    return made


def coloured(made: Panel, colours: dict[str, str]) -> Panel:
    made["fieldConfig"]["overrides"] = [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
        }
        for name, colour in colours.items()
    ]
    return made


def bottleneck() -> Panel:
    """Returns a panel with the name of the bottleneck."""
    expression = f"forebay_bottleneck{{{SERVERS}}} == 1"
    made = number("Bottleneck", "Current bottleneck of the sessions of each server.", expression, "none", [(None, "text")])
    made["targets"][0]["legendFormat"] = "{{bottleneck}}"
    made["options"]["textMode"] = "name"
    return made


def share(part: str, whole: str) -> str:
    return f"sum({part}) / sum({whole})"


SECONDS = "forebay_session_seconds_total"
GPU_SECONDS = "forebay_trainer_gpu_seconds_total"
GOOD_BELOW = [(None, "green"), (0.05, "yellow"), (0.2, "red")]
GOOD_ABOVE = [(None, "red"), (0.8, "yellow"), (0.95, "green")]

ROWS: dict[str, list[Panel]] = {
    "Training": [
        bottleneck(),
        number(
            "Compute share",
            "Fraction of the time that trainers compute; includes the network for clients that do not report.",
            share(rate(SECONDS, f'{DATASETS}, activity=~"compute|compute_or_network"'), rate(SECONDS, DATASETS)),
            "percentunit",
            GOOD_ABOVE,
        ),
        number(
            "Waiting",
            "Fraction of the time that trainers wait for data. Alert ForebayInputBound fires above 20%.",
            share(rate(SECONDS, WAITING), rate(SECONDS, DATASETS)),
            "percentunit",
            GOOD_BELOW,
        ),
        number("Sessions", "Sessions with an open stream.", f"sum(forebay_sessions{{{DATASETS}}})", "none", [(None, "text")]),
        number(
            "GPU utilization",
            "Mean GPU utilization reported by clients.",
            share(rate(GPU_SECONDS, f'{DATASETS}, state="busy"'), rate(GPU_SECONDS, DATASETS)),
            "percentunit",
            [(None, "red"), (0.5, "yellow"), (0.8, "green")],
        ),
        number(
            "Cost of waiting per hour",
            "Cost of GPUs while trainers wait; requires --gpu-hour-cost.",
            f"sum({rate('forebay_idle_gpu_cost_total')}) * 3600",
            "none",
            [(None, "text")],
        ),
        coloured(
            lines(
                "Time of sessions",
                "Seconds of sessions per second, by activity. The height is the number of sessions.",
                {"{{activity}}": total(SECONDS, "activity", DATASETS)},
                "none",
                16,
                stack=True,
            ),
            BUCKETS,
        ),
        lines(
            "Time reported by trainers",
            "Time that clients report for waiting, computing and copying.",
            {"{{activity}}": total("forebay_trainer_seconds_total", "activity", DATASETS)},
            "none",
            stack=True,
        ),
        lines(
            "Waiting by dataset",
            "Fraction of the time that trainers wait for data.",
            {"{{dataset}}": f"{total(SECONDS, 'dataset', WAITING)} / {total(SECONDS, 'dataset', DATASETS)}"},
            "percentunit",
        ),
        lines(
            "Label skew",
            "Sessions whose mean label varies between batches by more than chance explains.",
            {"{{dataset}}": f"sum by (dataset) (forebay_label_skewed_sessions{{{DATASETS}}})"},
            "none",
        ),
        lines(
            "Events",
            "Operational events by kind.",
            {"{{kind}}": f"sum by (kind) (increase(forebay_events_total{{{SERVERS}}}[$__rate_interval]))"},
            "none",
        ),
    ],
    "Pipeline": [
        lines(
            "Throughput",
            "Bytes per second produced by each stage.",
            {"{{stage}}": total("forebay_stage_bytes_total", "stage")},
            "Bps",
        ),
        lines(
            "Work in progress",
            "Mean number of concurrent operations of each stage.",
            {"{{stage}}": total("forebay_stage_seconds_total", "stage")},
            "none",
        ),
        lines(
            "Queue depth of the stages",
            "Operations waiting for each stage. The queue of the bottleneck grows.",
            {"{{stage}}": f"sum by (stage) (forebay_stage_queue_depth{{{SERVERS}}})"},
            "none",
        ),
        lines("Rows", "Rows of produced batches.", {"{{instance}}": total("forebay_batch_rows_total", "instance")}, "rowsps"),
        lines(
            "Time to gather a batch",
            "99th percentile and median.",
            {
                "p99": quantile(0.99, "forebay_gather_duration_seconds", "job"),
                "p50": quantile(0.5, "forebay_gather_duration_seconds", "job"),
            },
            "s",
        ),
        lines(
            "Time to decode a block",
            "99th percentile and median.",
            {
                "p99": quantile(0.99, "forebay_decode_duration_seconds", "job"),
                "p50": quantile(0.5, "forebay_decode_duration_seconds", "job"),
            },
            "s",
        ),
    ],
    "Cache": [
        lines(
            "Byte hit ratio",
            "Bytes found in each tier per bytes read.",
            {
                "{{tier}}": f"{total('forebay_cache_hit_bytes_total', 'tier')} / ({total('forebay_cache_hit_bytes_total', 'tier')}"
                f" + {total('forebay_cache_miss_bytes_total', 'tier')})"
            },
            "percentunit",
        ),
        lines(
            "Fill level",
            "Resident bytes per capacity. A full tier is normal; evictions show whether it is too small.",
            {
                "{{instance}} {{tier}}": f"forebay_cache_resident_bytes{{{SERVERS}}}"
                f" / (forebay_cache_capacity_bytes{{{SERVERS}}} > 0)"
            },
            "percentunit",
        ),
        lines(
            "Time saved",
            "Seconds of reading and decoding saved per second.",
            {"{{tier}}": total("forebay_cache_saved_seconds_total", "tier")},
            "none",
        ),
        lines("Evictions", "Values evicted to free space.", {"{{tier}}": total("forebay_cache_evictions_total", "tier")}, "ops"),
        lines(
            "Rejected inserts",
            "Values that a tier did not store, by reason.",
            {"{{tier}} {{reason}}": total("forebay_cache_insert_rejections_total", "tier, reason")},
            "ops",
        ),
        lines(
            "Errors",
            "Errors of the disk tier, and damaged footers and indexes.",
            {
                "{{tier}} {{kind}}": total("forebay_cache_errors_total", "tier, kind"),
                "footers": f"sum({rate('forebay_storage_corrupt_footers_total')})",
                "indexes": f"sum({rate('forebay_lookup_corrupt_indexes_total')})",
            },
            "ops",
        ),
    ],
    "Storage": [
        lines(
            "Requests",
            "Requests by operation and outcome.",
            {"{{operation}} {{outcome}}": total("forebay_storage_requests_total", "operation, outcome")},
            "reqps",
        ),
        lines(
            "Duration of requests",
            "90th percentile and median.",
            {
                "{{operation}} p90": quantile(0.9, "forebay_storage_request_duration_seconds", "operation"),
                "{{operation}} p50": quantile(0.5, "forebay_storage_request_duration_seconds", "operation"),
            },
            "s",
        ),
        lines(
            "Read amplification",
            "Bytes read per byte requested. Includes gaps between ranges and repeated reads.",
            {"": f"sum({rate('forebay_storage_read_bytes_total')}) / sum({rate('forebay_storage_requested_bytes_total')})"},
            "none",
        ),
        lines("Retries", "Repeated or resumed requests to object stores.", {"{{instance}}": total("forebay_storage_retries_total", "instance")}, "ops"),
        lines(
            "Age of snapshots",
            "Time since each snapshot was last verified against the store.",
            {"{{dataset}}": f"max by (dataset) (forebay_dataset_snapshot_age_seconds{{{DATASETS}}})"},
            "s",
        ),
        lines(
            "Open datasets",
            "1 if the dataset is open, by server.",
            {"{{instance}} {{dataset}}": f"forebay_dataset_open{{{DATASETS}}}"},
            "none",
        ),
    ],
    "Lookups and queues": [
        lines(
            "Requests of queues",
            "Completed requests by outcome.",
            {"{{queue}} {{outcome}}": total("forebay_queue_requests_total", "queue, outcome")},
            "reqps",
        ),
        lines(
            "Latency of queues",
            "99th percentile of the time in the queue, of gathering features, and of the worker.",
            {
                "{{queue}} wait": quantile(0.99, "forebay_queue_wait_seconds", "queue"),
                "{{queue}} gather": quantile(0.99, "forebay_queue_gather_seconds", "queue"),
                "{{queue}} worker": quantile(0.99, "forebay_queue_worker_seconds", "queue"),
            },
            "s",
        ),
        lines(
            "Batches by close reason",
            "Condition that closed each batch.",
            {"{{queue}} {{close_reason}}": total("forebay_queue_batches_total", "queue, close_reason")},
            "ops",
        ),
        lines(
            "Rows per batch",
            "Mean number of rows per batch.",
            {"{{queue}}": f"{total('forebay_queue_batch_rows_sum', 'queue')} / {total('forebay_queue_batch_rows_count', 'queue')}"},
            "none",
        ),
        lines(
            "Workers and pending requests",
            "Connected workers, and requests without an answer.",
            {
                "{{queue}} workers": f"sum by (queue) (forebay_queue_workers{{{SERVERS}}})",
                "{{queue}} overdue workers": f"sum by (queue) (forebay_queue_overdue_workers{{{SERVERS}}})",
                "{{queue}} requests": f"sum by (queue) (forebay_queue_requests{{{SERVERS}}})",
            },
            "none",
        ),
        lines(
            "Lookups",
            "99th percentile and median of the duration of lookups.",
            {
                "p99": quantile(0.99, "forebay_lookup_duration_seconds", "job"),
                "p50": quantile(0.5, "forebay_lookup_duration_seconds", "job"),
            },
            "s",
        ),
    ],
    "Calls": [
        lines(
            "gRPC",
            "Completed calls. A stream counts as one call.",
            {"{{method}} {{code}}": total("forebay_grpc_calls_total", "method, code")},
            "reqps",
        ),
        lines(
            "Duration of gRPC calls",
            "99th percentile.",
            {"{{method}}": quantile(0.99, "forebay_grpc_call_duration_seconds", "method")},
            "s",
        ),
        lines(
            "HTTP",
            "Answered requests by route and status code.",
            {"{{route}} {{code}}": total("forebay_http_requests_total", "route, code")},
            "reqps",
        ),
        lines(
            "Duration of HTTP requests",
            "99th percentile.",
            {"{{route}}": quantile(0.99, "forebay_http_request_duration_seconds", "route")},
            "s",
        ),
        lines(
            "Authentication errors",
            "Failed TLS handshakes, and failed reloads of certificates and tokens.",
            {
                "TLS {{instance}}": total("forebay_tls_errors_total", "instance"),
                "reload {{instance}}": total("forebay_reload_errors_total", "instance"),
            },
            "ops",
        ),
        lines(
            "Refused connections",
            "Connections closed because one client address or all clients have too many.",
            {"{{limit}} {{instance}}": total("forebay_connections_refused_total", "limit, instance")},
            "ops",
        ),
        lines("Streams", "Open batch streams.", {"{{instance}}": f"forebay_streams{{{SERVERS}}}"}, "none"),
    ],
    "Cluster": [
        lines(
            "Servers",
            "Number of servers that the trainers demand at the target load of 0.8, and number of running servers.",
            {
                "demanded": f"sum(forebay_wanted_servers{{{SERVERS}}}) / 0.8",
                "up": f"sum(up{{{SERVERS}}})",
            },
            "none",
            width=12,
        ),
        lines(
            "Members",
            "Members by state, as each server sees them.",
            {"{{state}} {{instance}}": f"forebay_members{{{SERVERS}}}"},
            "none",
            width=12,
        ),
    ],
    "Process": [
        lines(
            "Memory",
            "Resident memory, and the capacity of the memory cache.",
            {
                "{{instance}}": f"process_resident_memory_bytes{{{SERVERS}}}",
                "{{instance}} budget": f'forebay_cache_capacity_bytes{{{SERVERS}, tier="memory"}}',
            },
            "bytes",
        ),
        lines("CPU", "Cores in use.", {"{{instance}}": total("process_cpu_seconds_total", "instance")}, "none"),
        lines(
            "Delay of the I/O threads",
            "99th percentile of the delay of due tasks.",
            {"{{instance}}": quantile(0.99, "forebay_event_loop_delay_seconds", "instance")},
            "s",
        ),
        lines(
            "Open files",
            "Open file descriptors per limit.",
            {"{{instance}}": f"process_open_fds{{{SERVERS}}} / process_max_fds{{{SERVERS}}}"},
            "percentunit",
        ),
        lines("Threads", "Threads of the process.", {"{{instance}}": f"process_threads{{{SERVERS}}}"}, "none"),
        lines(
            "Uptime",
            "Time since the start of the process.",
            {"{{instance}}": f"time() - process_start_time_seconds{{{SERVERS}}}"},
            "s",
        ),
    ],
}


def variable(name: str, label: str, metric: str) -> dict[str, Any]:
    """Returns a variable with all values of a label, and `All`."""
    query = f'label_values({metric}{{job="forebay"}}, {name})'
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def laid_out(rows: dict[str, list[Panel]]) -> list[Panel]:
    """Places panels from left to right under the title of their row."""
    placed: list[Panel] = []
    top = 0
    for title, panels in rows.items():
        place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        placed.append({"type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []})
        top, left, height = top + 1, 0, 0
        for each in panels:
            place = each["gridPos"]
            if left + place["w"] > COLUMNS:
                top, left, height = top + height, 0, 0
            place |= {"x": left, "y": top}
            left, height = left + place["w"], max(height, place["h"])
            placed.append(each)
        top += height
    return [{"id": number, **each} for number, each in enumerate(placed, start=1)]


def dashboard() -> dict[str, Any]:
    return {
        "uid": "forebay",
        "title": "Forebay",
        "description": "Training, storage, cache, queues and calls of Forebay. Generated by deploy/grafana/dashboard.py.",
        "tags": ["forebay"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [
                {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                variable("instance", "Server", "forebay_build_info"),
                variable("dataset", "Dataset", "forebay_dataset_open"),
            ]
        },
        "annotations": {
            "list": [
                {
                    "name": "Alerts",
                    "enable": True,
                    "iconColor": "red",
                    "datasource": SOURCE,
                    "expr": 'ALERTS{job="forebay", alertstate="firing"}',
                    "titleFormat": "{{alertname}}",
                    "textFormat": "{{instance}} {{dataset}} {{queue}}",
                }
            ]
        },
        "links": [{"title": "Runbooks", "type": "link", "targetBlank": True, "url": RUNBOOKS}],
        "panels": laid_out(ROWS),
    }


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text())

"""The state of a training dataset, as `TrainingDataset.state_dict` returns it."""

from __future__ import annotations

from typing import Any, Mapping

STATE_VERSION = 1

# Request fields that may differ between a state and the dataset that loads it. The global batch has to be the same.
PER_RUN = ("rank", "world_size", "batch_size", "lanes", "job_name", "label_column", "content_hash")
# Request fields that hold a place in the job. A state has its own fields for it.
CURSOR = ("epoch", "epochs", "start_step", "steps", "lane")

# States of earlier versions have these names.
_RENAMED = {"batch_rows": "max_pack_rows", "hash": "content_hash", "job": "job_name", "label": "label_column"}
_RENAMED_WITHIN = {
    "dedupe": {"fill": "null_value"},
    "mix": {"share": "fraction"},
    "shuffle": {"in_order": "keep_block_order"},
    "tensors": {"fill": "null_value", "max_len": "max_list_length"},
}


def with_current_names(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the request of a state with the current names of all fields."""
    return {_RENAMED.get(name, name): _renamed(_RENAMED_WITHIN.get(name, {}), value) for name, value in request.items()}


def _renamed(names: Mapping[str, str], value: Any) -> Any:
    if not names:
        return value
    if isinstance(value, Mapping):
        return {names.get(name, name): inner for name, inner in value.items()}
    return [_renamed(names, inner) for inner in value]

"""Sets of values that filters refer to by name, as in `filter="id IN (:ids)"`."""

from __future__ import annotations

from typing import Any, Mapping

from forebay import _forebay, sending
from forebay.cluster import Cluster, WrappedCluster
from forebay.errors import RequestError


class ValueSets:
    """Sets of a request, by name. They can be pickled. They are sent to servers that do not have them."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Creates sets from arrays, lists or Python sets.

        Raises:
            RequestError: `values` is not a dict, or the values of a name have a null, NaN or a type that cannot be sorted.
        """
        if not isinstance(values, Mapping):
            raise RequestError(f"values has type {type(values).__name__}, expected a dict of arrays, such as {{'ids': [1, 2]}}")
        self._sets = {name: _set_of(name, given) for name, given in values.items()}

    def __getstate__(self) -> dict[str, bytes]:
        return {name: values.encoded for name, values in self._sets.items()}

    def __setstate__(self, state: dict[str, bytes]) -> None:
        self._sets = {name: _forebay.ValueSet.from_encoded(encoded) for name, encoded in state.items()}

    def named(self) -> list[dict[str, Any]]:
        """Returns the field `values` of a request."""
        return [{"name": name, "sha256": values.sha256, "count": len(values)} for name, values in self._sets.items()]

    def native(self) -> list[_forebay.ValueSet]:
        """Returns the native sets."""
        return list(self._sets.values())


class ClusterWithValues(WrappedCluster):
    """A cluster whose trainings refer to sets of values."""

    def __init__(self, cluster: Cluster, values: ValueSets) -> None:
        super().__init__(cluster)
        self._values = values

    def __getstate__(self) -> dict[str, Any]:
        return {"cluster": self._cluster, "values": self._values}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["cluster"], state["values"])  # type: ignore[misc]

    def values(self) -> list[_forebay.ValueSet]:
        """Returns the sets of values."""
        return self._values.native()


def _set_of(name: str, values: Any) -> _forebay.ValueSet:
    """Returns the set of an array, a list or a Python set."""
    column = list(values) if isinstance(values, (set, frozenset)) else values
    names = _columns_of(values)
    if names is not None and len(names) != 1:
        found = ", ".join(map(repr, names[:8])) or "none"
        raise RequestError(f"values '{name}' has {len(names)} columns ({found}), expected one, such as frame['id']")
    try:
        return _forebay.ValueSet(sending.keys({name: column}))
    except RequestError as error:
        raise RequestError(f"values '{name}': {error}") from None


def _columns_of(values: Any) -> list[Any] | None:
    """Returns the names of the columns of a table, a record batch or a data frame; None for an array."""
    for attribute in ("column_names", "columns"):
        names = getattr(values, attribute, None)
        if names is not None and not callable(names) and not isinstance(values, Mapping):
            return list(names)
    schema = getattr(values, "schema", None)
    return list(getattr(schema, "names", None) or []) if hasattr(schema, "names") else None

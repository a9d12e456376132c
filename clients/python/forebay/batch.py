"""Batches of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from forebay import _forebay
from forebay.batch_dict import BatchDict, register_pytree
from forebay.column import Column
from forebay.conversion import Missing, Strings
from forebay.html import described
from forebay.jax_copies import to_jax_device

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa


class Batch:
    """One batch of rows, with columns and tensors by name: `batch["x"]` returns a `Column`.

    `len(batch)` is the number of rows, including padding. `name in batch` tests for a column. Batches support the Arrow
    PyCapsule interface, so that libraries such as polars and DuckDB import them without a copy.
    """

    __slots__ = ("_batch", "_is_pinned", "_state_after")

    def __init__(
        self,
        batch: _forebay.Batch,
        state_after: Callable[[Batch], dict[str, Any]] | None = None,
        is_pinned: bool = False,
    ) -> None:
        self._batch, self._state_after, self._is_pinned = batch, state_after, is_pinned

    @property
    def state(self) -> dict[str, Any]:
        """State of the training dataset after this batch, as `state_dict` returns it. It is exact if a loader reads ahead.

        Raises:
            AttributeError: The batch is not of a training dataset.
        """
        if self._state_after is None:
            raise AttributeError("the batch is not of a training dataset, and has no state")
        return self._state_after(self)

    @property
    def epoch(self) -> int:
        """Epoch of the batch, from 0."""
        return self._batch.epoch

    @property
    def step(self) -> int:
        """Step of the batch within its epoch, from 0."""
        return self._batch.step

    @property
    def position(self) -> int:
        """Position of the first row, group or pack of the batch in the epoch's global order, from 0."""
        return self._batch.position

    @property
    def group_offsets(self) -> Column | None:
        """First row of each group in the batch, followed by the end of the last group: int32, in host memory.

        None without `group_by`.
        """
        offsets = self._batch.group_offsets
        return None if offsets is None else Column(offsets)

    @property
    def mixed_positions(self) -> list[int]:
        """Number of rows of each further dataset that precede this batch, over all its epochs. Empty without `mix`."""
        return self._batch.mixed_positions

    @property
    def nbytes(self) -> int:
        """Size of the batch in bytes."""
        return self._batch.nbytes

    @property
    def device(self) -> str:
        """Device of the batch's memory: `"cpu"`, or a CUDA device such as `"cuda:0"`."""
        number = self._cuda()
        return "cpu" if number is None else f"cuda:{number}"

    @property
    def num_rows(self) -> int:
        """Number of rows, including padding."""
        return len(self._batch)

    def _ipython_key_completions_(self) -> list[str]:
        # Notebooks complete batch["...
        return self.keys()

    def keys(self) -> list[str]:
        """Returns the names of the columns and tensors, in order."""
        return self._batch.names

    def __len__(self) -> int:
        """Number of rows, including padding."""
        return len(self._batch)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._batch

    def __getitem__(self, name: str) -> Column:
        """Returns a column or tensor.

        Raises:
            KeyError: There is no such column.
            TypeError: The name is no string, as in `x, y = batch`, which would unpack a sequence.
        """
        if not isinstance(name, str):
            raise TypeError(f"a batch has columns by name, not by {name!r}: use batch[NAME] with one of {', '.join(self.keys())}")
        return Column(self._batch.column(name), self._cuda(), self._is_pinned)

    def _cuda(self) -> int | None:
        """Returns the number of the CUDA device of the batch, or None for the host."""
        kind, number = self._batch.device
        return None if kind == 1 else number

    def __repr__(self) -> str:
        return repr(self._batch)

    def _repr_html_(self) -> str:
        return described(repr(self), {name: self[name].type for name in self.keys()})

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        return self._batch.__arrow_c_array__(requested_schema)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._batch.__arrow_c_stream__(requested_schema)

    def record_stream(self, stream: Any) -> None:
        """Allows work of another CUDA stream on arrays of this batch. Call it before that work starts.

        The stream waits for the copy of the batch. The memory of the batch is reused only after the work that the stream has
        received when the batch is released. The stream must not be destroyed before that. Without effect on the host.

        Args:
            stream: A `torch.cuda.Stream`, a `cupy.cuda.Stream`, or the handle of a CUDA stream.

        Raises:
            DeviceError: The stream captures a graph, or the driver fails.
        """
        handle = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
        # The handle of the default stream is 0, for which DLPack has 1.
        self._batch.record_stream(int(handle) or 1)

    def expand(self, name: str, output: str = "numpy") -> Any:
        """Returns a de-duplicated tensor with one row per row of the batch, equal to the tensor without `dedupe`.

        Args:
            name: Name of a tensor in `dedupe`.
            output: Type of the array: `"numpy"`, `"torch"` or `"jax"`.

        Returns:
            A new array on the device of the batch.

        Raises:
            KeyError: There is no such tensor, or it is not de-duplicated.
            ValueError: `output` is not one of the three.
        """
        rows, index = self[name], self[f"{name}_index"]
        if output == "numpy":
            return np.take(rows.to_numpy(), index.to_numpy(), axis=0)
        if output == "torch":
            return rows.to_torch().index_select(0, index.to_torch())
        if output == "jax":
            import jax.numpy as jnp

            return jnp.take(rows.to_jax(), index.to_jax(), axis=0)
        raise ValueError(f"output is {output!r}, expected numpy, torch or jax")

    def to_numpy(self, *, strings: Strings = "list", missing: Missing = "keep") -> BatchDict:
        """Returns all columns as NumPy arrays or lists by name.

        Args:
            strings: Type of text and bytes, as in `Column.to_numpy`.
            missing: Representation of nulls, as in `Column.to_numpy`. With `"mask"`, each column that may have nulls is followed by
                `NAME_mask`, an array of bool that is False for each null; see `Column.mask`.

        Returns:
            A dict that also has `epoch`, `step`, `position` and `num_rows`.

        Raises:
            ValueError: An option has another value, or there is a column with the name of a mask.
            RequestError: The batch is on a device.
        """
        return self._dict(missing, lambda column: column.to_numpy(strings=strings, missing=missing), lambda mask: mask)

    def to_torch(
        self, device: Any = None, non_blocking: bool = True, *, strings: Strings = "list", missing: Missing = "keep"
    ) -> BatchDict:
        """Returns all columns as PyTorch tensors or lists by name.

        Args:
            device: Device to copy tensors to. Default: that of the batch.
            non_blocking: With `device`, passed to `torch.Tensor.to`. Copies from page-locked memory always wait, see `Column.to_torch`.
            strings: Type of text and bytes, as in `Column.to_numpy`.
            missing: Representation of nulls, as in `to_numpy`.

        Returns:
            A dict that also has `epoch`, `step`, `position` and `num_rows`. For the values, see `Column.to_torch`.

        Raises:
            ValueError: An option has another value, or there is a column with the name of a mask.
        """
        import torch

        options: dict[str, Any] = {"strings": strings, "missing": missing}
        number = self._cuda()
        of_masks = device if device is not None or number is None else f"cuda:{number}"
        return self._dict(
            missing,
            lambda column: column.to_torch(device, non_blocking, **options),
            lambda mask: torch.from_numpy(mask).to(of_masks, non_blocking=non_blocking),
        )

    def to_jax(self, *, strings: Strings = "list", missing: Missing = "keep") -> BatchDict:
        """Returns all columns as JAX arrays or lists by name.

        Args:
            strings: Type of text and bytes, as in `Column.to_numpy`.
            missing: Representation of nulls, as in `to_numpy`.

        Returns:
            A dict that also has `epoch`, `step`, `position` and `num_rows`, and is a pytree. For the values, see
            `Column.to_jax`.

        Raises:
            ValueError: An option has another value, or there is a column with the name of a mask.
        """
        import jax.numpy as jnp

        number = self._cuda()
        return self._dict(
            missing,
            lambda column: column.to_jax(strings=strings, missing=missing),
            lambda mask: jnp.asarray(mask) if number is None else to_jax_device(jnp.asarray(mask), number),
        )

    def _dict(self, missing: Missing, convert: Callable[[Column], Any], of_mask: Callable[[np.ndarray], Any]) -> BatchDict:
        """Returns the columns by `convert`, with their masks by `of_mask` if nulls are masked."""
        register_pytree()
        made = BatchDict()
        made.epoch, made.step, made.position, made.num_rows = self.epoch, self.step, self.position, self.num_rows
        for name in self.keys():
            column = self[name]
            made[name] = convert(column)
            if not (isinstance(missing, str) and missing == "mask" and column.nullable):
                continue
            if f"{name}_mask" in self:
                raise ValueError(f"missing is 'mask', but '{name}_mask', the name of the mask of '{name}', is a column")
            made[f"{name}_mask"] = of_mask(column._mask(made[name]))
        return made

    def to_arrow(self) -> pa.RecordBatch:
        """Returns the batch as a pyarrow record batch, without a copy.

        Raises:
            RequestError: The batch is on a device.
        """
        import pyarrow as pa

        return pa.record_batch(self._batch)

    def to_pandas(self) -> pd.DataFrame:
        """Returns the batch as a pandas data frame, converted by pyarrow. A tensor is a column of arrays.

        Raises:
            ImportError: pandas or pyarrow is not installed.
            RequestError: The batch is on a device.
        """
        try:
            import pandas  # noqa: F401
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise ImportError(f"to_pandas requires pandas and pyarrow, and {error.name} is not installed") from error
        return self.to_arrow().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """Returns the batch as a polars data frame, without a copy of numbers.

        Raises:
            ImportError: polars is not installed.
            RequestError: The batch is on a device.
        """
        try:
            import polars as pl
        except ImportError as error:
            raise ImportError("to_polars requires polars, which is not installed") from error
        return pl.DataFrame(self)

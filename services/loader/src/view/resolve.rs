//! Resolution of the columns, tensors, filter and groups of a request.

use std::sync::Arc;

use forebay_proto::v1;
use forebay_sql::Expression;
use forebay_storage::Snapshot;

use super::{
    View, ViewUse,
    builder::{Builder, expression_error},
    expressions::Expressions,
    row_selection::RowSelection,
};
use crate::Error;

/// Column of a lookup that marks the rows that exist.
const FOUND: &str = "found";

impl View {
    /// Resolves `select`, `filter`, `columns`, `tensors`, `dedupe`, `group_by` and `remainder` of a request.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] for duplicate names, unknown names (with similar ones), types that cannot form a
    /// tensor, invalid expressions, and nulls without a null value if the footers show them.
    pub fn resolve(snapshot: &Snapshot, train: &v1::Train) -> Result<Self, Error> {
        Self::resolve_for(ViewUse::Stream, snapshot, train, &Expressions::default())
    }

    /// Resolves the view of a request for the given use. See [`Self::resolve`].
    pub(crate) fn resolve_for(
        used: ViewUse,
        snapshot: &Snapshot,
        train: &v1::Train,
        compiled: &Expressions,
    ) -> Result<Self, Error> {
        let v1::Train { select, columns, tensors, dedupe, .. } = train;
        let filter = filter(snapshot, &train.filter, compiled)?;
        let alike = used != ViewUse::Stream;
        let mut builder = Builder::new(snapshot, (select, compiled), filter.is_some(), alike)?;
        if !train.group_by.is_empty() {
            builder.group_by(&train.group_by)?;
        }
        if columns.is_empty() && tensors.is_empty() && dedupe.is_empty() {
            let all = if select.is_empty() { builder.known.len() } else { select.len() };
            for index in 0..all {
                builder.plain(index)?;
            }
        }
        for name in columns {
            let index = builder.find("columns", name)?;
            builder.plain(index)?;
        }
        for request in tensors {
            builder.tensor(request)?;
        }
        for request in dedupe {
            builder.dedupe(request)?;
        }
        if train.remainder() == v1::Remainder::Pad {
            builder.valid(train.max_pack_rows > 0)?;
        }
        if used == ViewUse::Lookup {
            builder.real(FOUND)?;
        }
        builder.build(filter)
    }
}

/// Parses the filter of a request. Returns `None` if it is empty.
fn filter(snapshot: &Snapshot, text: &str, compiled: &Expressions) -> Result<Option<Arc<Expression>>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    let filter = compiled.filter(text, snapshot);
    filter.map(Some).map_err(|error| expression_error("filter", error, snapshot.schema()))
}

/// Filter and keys of a request, to evaluate on every row before rows can be ordered.
pub(crate) fn resolve_row_selection(
    snapshot: &Snapshot,
    train: &v1::Train,
    compiled: &Expressions,
) -> Result<RowSelection, Error> {
    let filter = filter(snapshot, &train.filter, compiled)?;
    if train.group_by.is_empty() {
        return Ok(RowSelection { filter, ..RowSelection::default() });
    }
    let mut builder = Builder::new(snapshot, (&train.select, compiled), filter.is_some(), false)?;
    builder.group_by(&train.group_by)?;
    Ok(RowSelection { filter, keys: builder.into_columns(), lengths: train.max_pack_rows > 0 })
}

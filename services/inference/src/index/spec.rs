//! Key columns of an indexed dataset.

use documented::DocumentedFields;
use forebay_loader::{Error, Identity, find_column};
use forebay_storage::Reader;
use serde::{Deserialize, Serialize};

/// Version of the file format, part of every identity.
pub(super) const VERSION: u32 = 4;

/// Key columns of a dataset, and the rule that selects one of several rows with the same key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields)]
pub struct KeySpec {
    /// Names of the key columns. Required.
    pub key: Vec<String>,
    /// Name of the column whose greatest value selects the row of a key; null is the least value. Equal values select the last
    /// row. Default: none, the last row of a key is selected.
    #[serde(default)]
    pub order_by: Option<String>,
}

impl KeySpec {
    /// Returns the columns to read, and the position of `order_by` among them.
    pub(super) fn columns(&self, reader: &Reader) -> Result<(Vec<usize>, Option<usize>), Error> {
        let schema = reader.snapshot().schema();
        let mut columns =
            self.key.iter().map(|name| find_column("key", name, schema)).collect::<Result<Vec<_>, _>>()?;
        if let Some(twice) = columns.iter().enumerate().find(|(at, column)| columns[..*at].contains(column)) {
            let reason = format!("'{}' is named twice", schema.field(*twice.1).name());
            return Err(Error::invalid("key", reason));
        }
        let Some(order) = &self.order_by else { return Ok((columns, None)) };
        let order = find_column("order_by", order, schema)?;
        if let Some(place) = columns.iter().position(|column| *column == order) {
            return Ok((columns, Some(place)));
        }
        columns.push(order);
        let place = columns.len() - 1;
        Ok((columns, Some(place)))
    }

    /// Returns the name under which the index of a snapshot by this key is saved.
    pub(super) fn identity(&self, reader: &Reader) -> u128 {
        let key = Identity::new("index", VERSION).text(reader.snapshot().id()).list(self.key.len());
        let key = self.key.iter().fold(key, |identity, column| identity.text(column));
        let order_by = self.order_by.iter();
        order_by.clone().fold(key.list(order_by.len()), |identity, column| identity.text(column)).hash()
    }
}

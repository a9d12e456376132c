//! Key columns of an indexed dataset.

use forebay_loader::{Error, Identity, find_column};
use forebay_storage::Reader;

/// Version of the file format, part of every identity.
pub(super) const VERSION: u32 = 5;

/// Key columns of a dataset, and the rule that selects one of several rows with the same key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySpec {
    /// Names of the key columns.
    pub key: Vec<String>,
    /// Name of the column that selects one of several rows with the same key: the row with the greatest value, or the last of
    /// several such rows. Null is the least value. Without it, the last row of a key is selected.
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
        let snapshot = reader.snapshot().id();
        match reader.pins() {
            Some(pins) => self.identity_for(&format!("{snapshot}-{pins:016x}")),
            None => self.identity_for(snapshot),
        }
    }

    fn identity_for(&self, snapshot: &str) -> u128 {
        let key = Identity::new("index", VERSION).text(snapshot).list(self.key.len());
        let key = self.key.iter().fold(key, |identity, column| identity.text(column));
        let order_by = self.order_by.iter();
        order_by.clone().fold(key.list(order_by.len()), |identity, column| identity.text(column)).hash()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_key_index_file_is_frozen() {
        let name = |key: &[&str], order_by: Option<&str>| {
            let key = key.iter().map(|&name| name.to_owned()).collect();
            let spec = KeySpec { key, order_by: order_by.map(str::to_owned) };
            spec.identity_for("cb7fbc3cbe1bdbaa854e5d683b95c2bd")
        };
        let (plain, ordered) = (name(&["user"], None), name(&["user", "day"], Some("time")));
        assert_eq!(
            format!("version {VERSION}: {plain:032x} {ordered:032x}"),
            "version 5: d5e602bd913adcf51b54757d915b2bbd 4a44fd64234fc7f61bbce24205d86ea3",
            "another name requires another VERSION"
        );
    }
}

//! Comparison of the next snapshot with the current one, before it answers lookups.

use std::{collections::BTreeMap, sync::Arc};

use arrow_array::{
    Array, ArrayRef, GenericListArray, OffsetSizeTrait, RecordBatch, cast::AsArray, types::Float64Type,
};
use arrow_cast::CastOptions;
use arrow_schema::DataType;
use documented::DocumentedFields;
use forebay_loader::{Error, LookupRows, WireBatch};
use serde::{Deserialize, Serialize};

use crate::{index::KeyIndex, keys::EncodedKeys};

/// Rules that a new snapshot must pass before it answers lookups. The server samples keys of the current snapshot, looks them up in both
/// snapshots, and compares the rows. The first snapshot is not compared.
///
/// The rules are checked for each view that is loaded from both snapshots. Infinite values and NaN count as null.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Canary {
    /// Maximum number of sampled keys of the current snapshot, which are looked up in both snapshots, 1 to 1,048,576. Default: 10,000.
    pub keys: usize,
    /// Greatest fraction of these keys that the new snapshot may lack, 0 to 1. Default: 0.01.
    pub max_missing: f64,
    /// Greatest increase of the fraction of nulls of a column, 0 to 1. Default: 0.05.
    pub max_null_increase: f64,
    /// Greatest difference of the means of a column, in pooled standard deviations (Cohen's d), above 0. Each position of a tensor
    /// counts as a column. Default: 1.
    pub max_mean_difference: f64,
}

impl Default for Canary {
    fn default() -> Self {
        Self { keys: 10_000, max_missing: 0.01, max_null_increase: 0.05, max_mean_difference: 1.0 }
    }
}

impl Canary {
    /// Maximum of `keys`.
    const MAX_KEYS: usize = 1 << 20;
    /// Number of keys that are looked up at once.
    const CHUNK: usize = 256;

    /// Checks the settings.
    ///
    /// # Errors
    /// The first invalid setting with its value and what was expected.
    pub fn validate(&self) -> Result<(), String> {
        let Self { keys, max_missing, max_null_increase, max_mean_difference } = *self;
        if !(1..=Self::MAX_KEYS).contains(&keys) {
            return Err(format!("keys is {keys}, expected 1 to {}", Self::MAX_KEYS));
        }
        for (name, fraction) in [("max_missing", max_missing), ("max_null_increase", max_null_increase)] {
            if !(0.0..=1.0).contains(&fraction) {
                return Err(format!("{name} is {fraction}, expected 0 to 1"));
            }
        }
        if max_mean_difference.is_nan() || max_mean_difference <= 0.0 {
            return Err(format!("max_mean_difference is {max_mean_difference}, expected more than 0"));
        }
        Ok(())
    }

    /// Compares a sample of the keys of `current` with `next`. `views` are the rows of each view in both snapshots.
    ///
    /// Returns the first rule that the next snapshot breaks.
    ///
    /// # Errors
    /// If rows cannot be gathered.
    pub(super) fn compare(
        &self,
        current: &KeyIndex,
        next: &KeyIndex,
        views: &[(Arc<LookupRows>, Arc<LookupRows>)],
    ) -> Result<Option<String>, Error> {
        if current.key() != next.key() {
            return Ok(Some("the type of the key has changed".to_owned()));
        }
        let keys = current.sample(self.keys);
        let (before, after) = (current.rows(&keys), next.rows(&keys));
        if let Some(reason) = self.missing(&keys, after.iter().filter(|row| row.is_none()).count()) {
            return Ok(Some(reason));
        }
        let pairs: Vec<_> = before.into_iter().zip(after).filter(|(_, after)| after.is_some()).collect();
        for (current, next) in views {
            let (mut was, mut is, mut kept) = (Columns::default(), Columns::default(), (0, 0));
            for pairs in pairs.chunks(Self::CHUNK) {
                let (before, after): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
                let (found, still) = (was.add(current, &before)?, is.add(next, &after)?);
                let count = |exist: &[bool]| exist.iter().filter(|exists| **exists).count();
                kept = (kept.0 + count(&found), kept.1 + count(&still));
            }
            // A filter may select other rows of the new snapshot, but not much fewer.
            let reason =
                self.missing(&keys, kept.0.saturating_sub(kept.1)).or_else(|| self.differing(&was, &is));
            if reason.is_some() {
                return Ok(reason);
            }
        }
        Ok(None)
    }

    fn missing(&self, keys: &EncodedKeys, missing: usize) -> Option<String> {
        let fraction = missing as f64 / keys.len().max(1) as f64;
        (fraction > self.max_missing).then(|| {
            format!(
                "of {} keys of the current snapshot, {missing} are missing ({:.2}%, max_missing is {:.2}%)",
                keys.len(),
                100.0 * fraction,
                100.0 * self.max_missing
            )
        })
    }

    fn differing(&self, was: &Columns, is: &Columns) -> Option<String> {
        for (name, was) in &was.columns {
            let Some(is) = is.columns.get(name) else {
                return Some(format!("column {name} is missing"));
            };
            let increase = is.null_fraction() - was.null_fraction();
            if increase > self.max_null_increase {
                return Some(format!(
                    "column {name}: {:.2}% of the values are null, before {:.2}% (max_null_increase is {:.2}%)",
                    100.0 * is.null_fraction(),
                    100.0 * was.null_fraction(),
                    100.0 * self.max_null_increase
                ));
            }
            let difference = was.mean_difference(is);
            if difference > self.max_mean_difference {
                return Some(format!(
                    "column {name}: the mean is {:.4}, before {:.4}; they differ by {difference:.2} standard deviations \
                     (max_mean_difference is {})",
                    is.mean, was.mean, self.max_mean_difference
                ));
            }
        }
        None
    }
}

/// Statistics of the columns of one view in one snapshot.
#[derive(Default)]
struct Columns {
    columns: BTreeMap<String, Column>,
}

/// Statistics of one column.
#[derive(Debug, Default, Clone, Copy)]
struct Column {
    values: u64,
    nulls: u64,
    /// Mean of the values that are not null.
    mean: f64,
    /// Sum of the squared differences from the mean.
    squares: f64,
}

impl Columns {
    /// Adds the rows with these row numbers. Returns whether each of them exists. A row that is larger than `max_answer_bytes` counts as
    /// missing.
    fn add(&mut self, rows: &LookupRows, numbers: &[Option<u64>]) -> Result<Vec<bool>, Error> {
        match rows.gather(numbers.iter().copied()) {
            Ok(batch) => {
                let schema = rows.view().schema();
                let batch = WireBatch::decode(schema, &batch.header, &batch.body.into_bytes())?;
                self.add_batch(&batch)
            }
            Err(Error::TooLarge { .. }) if numbers.len() > 1 => {
                let (first, second) = numbers.split_at(numbers.len() / 2);
                let mut exist = self.add(rows, first)?;
                exist.extend(self.add(rows, second)?);
                Ok(exist)
            }
            Err(Error::TooLarge { .. }) => Ok(vec![false]),
            Err(error) => Err(error),
        }
    }

    /// Adds the rows of an answer. Returns whether each of them exists.
    fn add_batch(&mut self, batch: &RecordBatch) -> Result<Vec<bool>, Error> {
        let schema = batch.schema();
        let (Some((found, columns)), fields) = (batch.columns().split_last(), schema.fields()) else {
            return Err(Error::Internal("a lookup has no column".to_owned()));
        };
        let exist: Vec<bool> = numbers(found)?.map(|found| found == Some(1.0)).collect();
        for (field, column) in fields.iter().zip(columns) {
            self.add_column(&format!("'{}'", field.name()), column, &|row| exist[row])?;
        }
        Ok(exist)
    }

    /// Adds the values of a column. `is_selected` tells whether the row of a value counts.
    fn add_column(
        &mut self,
        name: &str,
        values: &ArrayRef,
        is_selected: &dyn Fn(usize) -> bool,
    ) -> Result<(), Error> {
        match values.data_type() {
            DataType::FixedSizeList(_, length) => {
                let list = values.as_fixed_size_list();
                let length = usize::try_from(*length).unwrap_or(0).max(1);
                let mut columns = vec![Column::default(); length];
                for (place, value) in numbers(list.values())?.enumerate() {
                    let row = place / length;
                    if is_selected(row) {
                        columns[place % length].add(value.filter(|_| list.is_valid(row)));
                    }
                }
                for (place, column) in columns.into_iter().enumerate() {
                    self.merge(format!("{name}[{place}]"), column);
                }
            }
            DataType::List(_) => self.add_lists(name, values.as_list::<i32>(), is_selected)?,
            DataType::LargeList(_) => self.add_lists(name, values.as_list::<i64>(), is_selected)?,
            _ => self.add_values(name.to_owned(), numbers(values)?.enumerate(), is_selected),
        }
        Ok(())
    }

    /// Adds the lengths and the items of lists.
    fn add_lists<O: OffsetSizeTrait>(
        &mut self,
        name: &str,
        lists: &GenericListArray<O>,
        is_selected: &dyn Fn(usize) -> bool,
    ) -> Result<(), Error> {
        let lengths: Vec<usize> = lists.offsets().lengths().collect();
        let valid = |(row, length): (usize, &usize)| (row, lists.is_valid(row).then_some(*length as f64));
        self.add_values(format!("length of {name}"), lengths.iter().enumerate().map(valid), is_selected);
        let items = lists.values().slice(lists.offsets()[0].as_usize(), lengths.iter().sum());
        let rows = lengths.iter().enumerate().flat_map(|(row, length)| std::iter::repeat_n(row, *length));
        self.add_values(name.to_owned(), rows.zip(numbers(&items)?), is_selected);
        Ok(())
    }

    fn add_values(
        &mut self,
        name: String,
        values: impl Iterator<Item = (usize, Option<f64>)>,
        is_selected: &dyn Fn(usize) -> bool,
    ) {
        let mut column = Column::default();
        values.filter(|(row, _)| is_selected(*row)).for_each(|(_, value)| column.add(value));
        self.merge(name, column);
    }

    fn merge(&mut self, name: String, column: Column) {
        self.columns.entry(name).or_default().merge(column);
    }
}

impl Column {
    /// Adds a value by the method of Welford, "Note on a Method for Calculating Corrected Sums of Squares and Products", 1962.
    fn add(&mut self, value: Option<f64>) {
        let Some(value) = value.filter(|value| value.is_finite()) else {
            self.nulls += 1;
            return;
        };
        // The squares of greater values would overflow.
        let value = value.clamp(-1e100, 1e100);
        self.values += 1;
        let from_mean = value - self.mean;
        self.mean += from_mean / self.values as f64;
        self.squares += from_mean * (value - self.mean);
    }

    /// Adds the values of another part of the column, as Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for
    /// Computing Sample Variances", 1979.
    fn merge(&mut self, other: Self) {
        let values = self.values + other.values;
        if other.values > 0 {
            let (own, others, all) = (self.values as f64, other.values as f64, values as f64);
            let difference = other.mean - self.mean;
            self.mean += difference * others / all;
            self.squares += other.squares + difference * difference * own * others / all;
        }
        (self.values, self.nulls) = (values, self.nulls + other.nulls);
    }

    fn null_fraction(&self) -> f64 {
        self.nulls as f64 / (self.values + self.nulls).max(1) as f64
    }

    fn variance(&self) -> f64 {
        self.squares / self.values.max(1) as f64
    }

    /// Difference of the means in pooled standard deviations; 0 if one of them has no values.
    fn mean_difference(&self, other: &Self) -> f64 {
        let difference = (self.mean - other.mean).abs();
        if self.values == 0 || other.values == 0 || difference == 0.0 {
            return 0.0;
        }
        difference / f64::midpoint(self.variance(), other.variance()).sqrt()
    }
}

/// The values of a column as numbers. Values that are not null and have no numeric form are 0.
fn numbers(values: &ArrayRef) -> Result<impl Iterator<Item = Option<f64>>, Error> {
    let is_numeric = values.data_type().is_numeric() || *values.data_type() == DataType::Boolean;
    let values = if is_numeric {
        forebay_loader::cast(values, &DataType::Float64, &CastOptions::default())
            .map_err(|error| Error::Internal(format!("canary: {error}")))?
    } else {
        let zeros = (0..values.len()).map(|row| values.is_valid(row).then_some(0.0));
        Arc::new(arrow_array::Float64Array::from_iter(zeros)) as ArrayRef
    };
    let values = values.as_primitive::<Float64Type>().clone();
    Ok((0..values.len()).map(move |row| values.is_valid(row).then(|| values.value(row))))
}

#[cfg(test)]
mod tests {
    use arrow_array::{
        FixedSizeListArray, Float32Array, ListArray, StringArray, UInt8Array, types::Float32Type,
    };
    use arrow_schema::Field;

    use super::*;

    fn columns(values: &[Option<f32>], tensor: &[f32], found: &[u8]) -> Columns {
        let item = Arc::new(Field::new("item", DataType::Float32, false));
        let tensor = FixedSizeListArray::new(item, 2, Arc::new(Float32Array::from(tensor.to_vec())), None);
        let lists = values.iter().map(|value| value.map(|value| vec![Some(value); value as usize]));
        let batch = RecordBatch::try_from_iter([
            ("x", Arc::new(Float32Array::from(values.to_vec())) as ArrayRef),
            ("t", Arc::new(tensor)),
            ("s", Arc::new(StringArray::from_iter(values.iter().map(|value| value.map(|_| "a"))))),
            ("l", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(lists))),
            ("found", Arc::new(UInt8Array::from(found.to_vec()))),
        ]);
        let mut columns = Columns::default();
        let exist = columns.add_batch(&batch.unwrap()).unwrap();
        assert_eq!(exist, found.iter().map(|found| *found == 1).collect::<Vec<_>>());
        columns
    }

    fn merged(values: &[f32]) -> Column {
        let mut merged = Column::default();
        for part in values.chunks(2) {
            let mut column = Column::default();
            part.iter().for_each(|value| column.add(Some(f64::from(*value))));
            merged.merge(column);
        }
        merged
    }

    #[test]
    fn infinite_and_enormous_values_do_not_hide_a_difference() {
        let usual = merged(&[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(merged(&[f32::INFINITY, f32::NEG_INFINITY, f32::INFINITY, 1.0]).null_fraction(), 0.75);
        let mut enormous = merged(&[1.0, 2.0]);
        for value in [1e300, 2e300, -1e308, f64::MAX] {
            enormous.add(Some(value));
        }
        assert!(enormous.mean.is_finite() && enormous.variance().is_finite(), "{enormous:?}");
        assert!(usual.mean_difference(&enormous) > 0.1, "{}", usual.mean_difference(&enormous));
    }

    #[test]
    fn a_column_that_becomes_null_or_is_missing_is_noticed() {
        let item = Arc::new(Field::new("item", DataType::Float32, true));
        let embedding = |is_null: bool| {
            let values = Arc::new(Float32Array::from(vec![1.0; 4]));
            let nulls =
                is_null.then(|| arrow_array::BooleanArray::from(vec![false, false]).values().clone().into());
            let list = FixedSizeListArray::new(Arc::clone(&item), 2, values, nulls);
            let found = Arc::new(UInt8Array::from(vec![1, 1])) as ArrayRef;
            let batch = RecordBatch::try_from_iter([("e", Arc::new(list) as ArrayRef), ("found", found)]);
            let mut columns = Columns::default();
            columns.add_batch(&batch.unwrap()).unwrap();
            columns
        };
        let canary = Canary::default();
        let reason = canary.differing(&embedding(false), &embedding(true)).unwrap();
        assert!(reason.starts_with("column 'e'[0]: 100.00% of the values are null"), "{reason}");
        let reason = canary.differing(&embedding(false), &Columns::default()).unwrap();
        assert_eq!(reason, "column 'e'[0] is missing");
    }

    #[test]
    fn statistics_are_those_of_the_rows_that_exist() {
        let columns = columns(
            &[Some(1.0), Some(3.0), None, Some(99.0), Some(f32::NAN)],
            &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 99.0, 99.0, 7.0, 8.0],
            &[1, 1, 1, 0, 1],
        );
        let statistics = |name: &str| {
            let column = columns.columns[name];
            (column.values, column.nulls, column.mean, column.variance())
        };
        assert_eq!(statistics("'x'"), (2, 2, 2.0, 1.0));
        assert_eq!(statistics("'t'[0]"), (4, 0, 4.0, 5.0));
        assert_eq!(statistics("'t'[1]"), (4, 0, 5.0, 5.0));
        assert_eq!(statistics("'s'"), (3, 1, 0.0, 0.0));
        assert_eq!(statistics("'l'"), (4, 0, 2.5, 0.75));
        assert_eq!(statistics("length of 'l'").2, 4.0 / 3.0);
    }

    #[test]
    fn parts_of_a_column_have_the_statistics_of_the_whole() {
        let values: Vec<f64> = (0..1000).map(|value| f64::from(value * value % 97)).collect();
        let whole = values.iter().fold(Column::default(), |mut column, value| {
            column.add(Some(*value));
            column
        });
        let mut merged = Column::default();
        for part in values.chunks(17) {
            let mut column = Column::default();
            part.iter().for_each(|value| column.add(Some(*value)));
            merged.merge(column);
        }
        assert!(
            (whole.mean - merged.mean).abs() < 1e-9 && (whole.variance() - merged.variance()).abs() < 1e-9
        );
    }

    #[test]
    fn the_first_broken_rule_is_named_with_its_limit() {
        let canary = Canary { max_null_increase: 0.3, ..Canary::default() };
        let values =
            |values: &[Option<f32>]| columns(values, &vec![0.0; 2 * values.len()], &vec![1; values.len()]);
        let was = values(&[Some(1.0), Some(2.0), Some(3.0), Some(2.0)]);
        for (is, expected) in [
            (values(&[Some(1.0), Some(2.0), Some(3.0), None]), None),
            (
                values(&[Some(1.0), None, Some(3.0), None]),
                Some("column 's': 50.00% of the values are null, before 0.00% (max_null_increase is 30.00%)"),
            ),
            (values(&[Some(f32::NAN); 4]), Some("column 'x': 100.00% of the values are null")),
            (values(&[Some(2.0), Some(3.0), Some(4.0), Some(1.0)]), None),
            (
                values(&[Some(0.0); 4]),
                Some(
                    "column 'x': the mean is 0.0000, before 2.0000; they differ by 4.00 standard deviations",
                ),
            ),
        ] {
            let reason = canary.differing(&was, &is);
            match expected {
                None => assert_eq!(reason, None),
                Some(expected) => {
                    assert!(reason.clone().unwrap_or_default().contains(expected), "{reason:?}");
                }
            }
        }
        let constant = values(&[Some(1.0); 4]);
        assert_eq!(canary.differing(&constant, &constant), None);
        assert!(canary.differing(&constant, &values(&[Some(1.5); 4])).unwrap().contains("inf standard"));
    }

    #[test]
    fn invalid_settings_are_rejected_with_what_was_expected() {
        for (canary, expected) in [
            (Canary { keys: 0, ..Canary::default() }, "keys is 0, expected 1 to 1048576"),
            (Canary { max_missing: 1.5, ..Canary::default() }, "max_missing is 1.5, expected 0 to 1"),
            (Canary { max_null_increase: f64::NAN, ..Canary::default() }, "max_null_increase is NaN"),
            (
                Canary { max_mean_difference: 0.0, ..Canary::default() },
                "max_mean_difference is 0, expected more",
            ),
        ] {
            assert!(canary.validate().unwrap_err().contains(expected));
        }
        Canary::default().validate().unwrap();
    }
}

//! Columns as Python objects: every Arrow type that a server delivers, at any depth.

use arrow_array::{
    Array, ArrayRef, OffsetSizeTrait,
    cast::AsArray,
    types::{
        ArrowPrimitiveType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DecimalType,
        Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
        IntervalDayTimeType, IntervalMonthDayNanoType, IntervalYearMonthType, UInt8Type, UInt16Type,
        UInt32Type, UInt64Type,
    },
};
use arrow_schema::{DataType, IntervalUnit};
use arrow_select::take::take;
use pyo3::{
    IntoPyObjectExt,
    exceptions::PyValueError,
    prelude::*,
    types::{PyBytes, PyDict, PyList, PyString, PyTuple},
};

use crate::times::Times;

type Objects<'py> = Vec<Bound<'py, PyAny>>;

/// Converts `array` to one Python object per row: `None` for a null, a dict for a struct, a list for a list, a list of
/// pairs for a map.
///
/// # Errors
/// `ValueError` for unions and run-end encoded arrays.
pub(crate) fn objects<'py>(py: Python<'py>, array: &dyn Array) -> PyResult<Objects<'py>> {
    macro_rules! numbers {
        ($type:ty) => {
            each(py, array, |row| array.as_primitive::<$type>().value(row).into_bound_py_any(py))
        };
    }
    match array.data_type() {
        DataType::Null => each(py, array, |_| Ok(py.None().into_bound(py))),
        DataType::Boolean => each(py, array, |row| array.as_boolean().value(row).into_bound_py_any(py)),
        DataType::Int8 => numbers!(Int8Type),
        DataType::Int16 => numbers!(Int16Type),
        DataType::Int32 => numbers!(Int32Type),
        DataType::Int64 => numbers!(Int64Type),
        DataType::UInt8 => numbers!(UInt8Type),
        DataType::UInt16 => numbers!(UInt16Type),
        DataType::UInt32 => numbers!(UInt32Type),
        DataType::UInt64 => numbers!(UInt64Type),
        DataType::Float16 => {
            let values = array.as_primitive::<Float16Type>();
            each(py, array, |row| values.value(row).to_f64().into_bound_py_any(py))
        }
        DataType::Float32 => numbers!(Float32Type),
        DataType::Float64 => numbers!(Float64Type),
        DataType::Decimal32(..) => decimals::<Decimal32Type>(py, array),
        DataType::Decimal64(..) => decimals::<Decimal64Type>(py, array),
        DataType::Decimal128(..) => decimals::<Decimal128Type>(py, array),
        DataType::Decimal256(..) => decimals::<Decimal256Type>(py, array),
        DataType::Utf8 => each(py, array, |row| Ok(text(py, array.as_string::<i32>().value(row)))),
        DataType::LargeUtf8 => each(py, array, |row| Ok(text(py, array.as_string::<i64>().value(row)))),
        DataType::Utf8View => each(py, array, |row| Ok(text(py, array.as_string_view().value(row)))),
        DataType::Binary => each(py, array, |row| Ok(bytes(py, array.as_binary::<i32>().value(row)))),
        DataType::LargeBinary => each(py, array, |row| Ok(bytes(py, array.as_binary::<i64>().value(row)))),
        DataType::BinaryView => each(py, array, |row| Ok(bytes(py, array.as_binary_view().value(row)))),
        DataType::FixedSizeBinary(_) => {
            each(py, array, |row| Ok(bytes(py, array.as_fixed_size_binary().value(row))))
        }
        DataType::Date32
        | DataType::Date64
        | DataType::Time32(_)
        | DataType::Time64(_)
        | DataType::Timestamp(..)
        | DataType::Duration(_) => times(py, array),
        DataType::Interval(unit) => intervals(py, array, *unit),
        DataType::List(_) => {
            let lists = array.as_list::<i32>();
            listed(py, array, lists.values(), lists.offsets())
        }
        DataType::LargeList(_) => {
            let lists = array.as_list::<i64>();
            listed(py, array, lists.values(), lists.offsets())
        }
        DataType::FixedSizeList(_, length) => {
            let (items, length) = (objects(py, array.as_fixed_size_list().values())?, *length as usize);
            each(py, array, |row| PyList::new(py, &items[row * length..][..length]).map(Bound::into_any))
        }
        DataType::Map(..) => {
            let maps = array.as_map();
            let pairs = objects(py, maps.keys())?.into_iter().zip(objects(py, maps.values())?);
            let pairs = pairs.map(|(key, value)| PyTuple::new(py, [key, value]));
            let pairs = pairs.collect::<PyResult<Vec<_>>>()?;
            let bounds = maps.offsets();
            each(py, array, |row| {
                PyList::new(py, &pairs[bounds[row] as usize..bounds[row + 1] as usize]).map(Bound::into_any)
            })
        }
        DataType::Struct(fields) => {
            let columns = array.as_struct().columns().iter().map(|column| objects(py, column));
            let columns = columns.collect::<PyResult<Vec<_>>>()?;
            let names: Vec<_> = fields.iter().map(|field| PyString::new(py, field.name())).collect();
            each(py, array, |row| {
                let dict = PyDict::new(py);
                for (name, column) in names.iter().zip(&columns) {
                    dict.set_item(name, &column[row])?;
                }
                Ok(dict.into_any())
            })
        }
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let taken = take(dictionary.values(), dictionary.keys(), None);
            objects(py, &taken.map_err(|error| PyValueError::new_err(error.to_string()))?)
        }
        other => Err(PyValueError::new_err(format!("type {other} has no Python equivalent"))),
    }
}

/// Returns the object of each row by `object`, and `None` for each null.
fn each<'py>(
    py: Python<'py>,
    array: &dyn Array,
    mut object: impl FnMut(usize) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Objects<'py>> {
    (0..array.len())
        .map(|row| if array.is_null(row) { Ok(py.None().into_bound(py)) } else { object(row) })
        .collect()
}

fn text<'py>(py: Python<'py>, value: &str) -> Bound<'py, PyAny> {
    PyString::new(py, value).into_any()
}

fn bytes<'py>(py: Python<'py>, value: &[u8]) -> Bound<'py, PyAny> {
    PyBytes::new(py, value).into_any()
}

fn decimals<'py, T: DecimalType + ArrowPrimitiveType>(
    py: Python<'py>,
    array: &dyn Array,
) -> PyResult<Objects<'py>> {
    let (class, values) = (py.import("decimal")?.getattr("Decimal")?, array.as_primitive::<T>());
    each(py, array, |row| class.call1((values.value_as_string(row),)))
}

fn times<'py>(py: Python<'py>, array: &dyn Array) -> PyResult<Objects<'py>> {
    let times = Times::new(py, array.data_type())?;
    let Some(values) = crate::numbers::whole(array) else { return Ok(Vec::new()) };
    each(py, array, |row| times.object(values.value(row)))
}

/// Converts intervals to tuples of months, days and nanoseconds.
fn intervals<'py>(py: Python<'py>, array: &dyn Array, unit: IntervalUnit) -> PyResult<Objects<'py>> {
    const NANOSECONDS: i64 = 1_000_000;
    each(py, array, |row| {
        let parts: (i32, i32, i64) = match unit {
            IntervalUnit::YearMonth => (array.as_primitive::<IntervalYearMonthType>().value(row), 0, 0),
            IntervalUnit::DayTime => {
                let value = array.as_primitive::<IntervalDayTimeType>().value(row);
                (0, value.days, i64::from(value.milliseconds) * NANOSECONDS)
            }
            IntervalUnit::MonthDayNano => {
                let value = array.as_primitive::<IntervalMonthDayNanoType>().value(row);
                (value.months, value.days, value.nanoseconds)
            }
        };
        parts.into_bound_py_any(py)
    })
}

/// Converts lists by their items and the offsets of their items.
fn listed<'py, O: OffsetSizeTrait>(
    py: Python<'py>,
    array: &dyn Array,
    items: &ArrayRef,
    offsets: &[O],
) -> PyResult<Objects<'py>> {
    let (first, last) = (offsets[0].as_usize(), offsets[array.len()].as_usize());
    let items = objects(py, &items.slice(first, last - first))?;
    each(py, array, |row| {
        let (start, end) = (offsets[row].as_usize() - first, offsets[row + 1].as_usize() - first);
        PyList::new(py, &items[start..end]).map(Bound::into_any)
    })
}

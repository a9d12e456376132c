//! Tensors of the Open Inference Protocol from and to Arrow arrays.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, FixedSizeListArray, LargeStringArray, PrimitiveArray,
    types::ArrowPrimitiveType,
};
use arrow_schema::{DataType, Field, Schema};
use bytes::{BufMut, Bytes, BytesMut};
use forebay_proto::{
    inference::{
        InferTensorContents, model_infer_request::InferInputTensor, model_infer_response::InferOutputTensor,
        model_metadata_response::TensorMetadata,
    },
    v1::PackedColumn,
};

use crate::Error;

/// Decodes an input: one value per row, or several for a column of type `expected` that is a list.
///
/// # Errors
/// Invalid, with the name of the input, for another shape, for an unknown datatype, and if there are more or fewer values.
pub(super) fn column(
    input: &InferInputTensor,
    raw: Option<&Bytes>,
    expected: &DataType,
) -> Result<ArrayRef, Error> {
    let name = &input.name;
    let invalid = |detail: String| Error::invalid(format!("inputs: '{name}': {detail}"));
    let (item_type, length) = match expected {
        DataType::FixedSizeList(item, length) => (item.data_type(), Some(*length)),
        other => (other, None),
    };
    let rows = match (input.shape.as_slice(), length) {
        ([rows] | [rows, 1], None) => usize::try_from(*rows).ok(),
        ([rows, found], Some(length)) if *found == i64::from(length) => usize::try_from(*rows).ok(),
        _ => None,
    };
    let rows = rows.ok_or_else(|| {
        let wanted = length.map_or("[ROWS] or [ROWS, 1]".to_owned(), |length| format!("[ROWS, {length}]"));
        invalid(format!("has the shape {:?}, expected {wanted}", input.shape))
    })?;
    let count = rows.saturating_mul(usize::try_from(length.unwrap_or(1)).unwrap_or(usize::MAX));
    let contents = input.contents.as_ref();
    if raw.is_some() && contents.is_some() {
        return Err(invalid("has both `contents` and `raw_input_contents`, expected one of them".to_owned()));
    }
    let blank = InferTensorContents::default();
    let values = Values { contents: contents.unwrap_or(&blank), raw };
    let array = match input.datatype.as_str() {
        "INT8" => values.small::<arrow_array::types::Int8Type, _>(|contents| &contents.int_contents),
        "INT16" => values.small::<arrow_array::types::Int16Type, _>(|contents| &contents.int_contents),
        "INT32" => values.small::<arrow_array::types::Int32Type, _>(|contents| &contents.int_contents),
        "INT64" => values.small::<arrow_array::types::Int64Type, _>(|contents| &contents.int64_contents),
        "UINT8" => values.small::<arrow_array::types::UInt8Type, _>(|contents| &contents.uint_contents),
        "UINT16" => values.small::<arrow_array::types::UInt16Type, _>(|contents| &contents.uint_contents),
        "UINT32" => values.small::<arrow_array::types::UInt32Type, _>(|contents| &contents.uint_contents),
        "UINT64" => values.small::<arrow_array::types::UInt64Type, _>(|contents| &contents.uint64_contents),
        "FP16" if raw.is_some() => {
            values.plain::<arrow_array::types::Float16Type, _>(|_| &[], |_: &f32| None)
        }
        "FP32" => values.plain::<arrow_array::types::Float32Type, _>(
            |contents| &contents.fp32_contents,
            |value| Some(*value),
        ),
        "FP64" => values.plain::<arrow_array::types::Float64Type, _>(
            |contents| &contents.fp64_contents,
            |value| Some(*value),
        ),
        "BOOL" => values.bools(),
        "BYTES" => values.bytes(item_type),
        other => {
            return Err(invalid(format!(
                "has the datatype '{other}', expected BOOL, BYTES, FP16 (only raw), FP32, FP64, or INT or UINT with 8, 16, 32 or 64 \
                 bits"
            )));
        }
    };
    let array = array.map_err(&invalid)?;
    if array.len() != count {
        return Err(invalid(format!("has {} values, expected {count} as in its shape", array.len())));
    }
    let Some(length) = length else { return Ok(array) };
    let item = Arc::new(Field::new("item", array.data_type().clone(), false));
    let list = FixedSizeListArray::try_new_with_length(item, length, array, None, rows);
    list.map(|list| Arc::new(list) as ArrayRef).map_err(|error| invalid(error.to_string()))
}

/// Values of an input: in the field of its datatype, or in raw form.
struct Values<'a> {
    contents: &'a InferTensorContents,
    raw: Option<&'a Bytes>,
}

impl<'a> Values<'a> {
    /// Integers, which the protocol has in a field of wider ones.
    fn small<T, W>(&self, field: impl Fn(&'a InferTensorContents) -> &'a Vec<W>) -> Result<ArrayRef, String>
    where
        T: ArrowPrimitiveType,
        T::Native: TryFrom<W>,
        W: Copy + std::fmt::Display + 'a,
    {
        self.plain::<T, W>(|contents| field(contents).as_slice(), |value| T::Native::try_from(*value).ok())
    }

    /// Values of a fixed width; `narrow` returns `None` for values that the type cannot represent.
    fn plain<T, W>(
        &self,
        field: impl Fn(&'a InferTensorContents) -> &'a [W],
        narrow: impl Fn(&W) -> Option<T::Native>,
    ) -> Result<ArrayRef, String>
    where
        T: ArrowPrimitiveType,
        W: std::fmt::Display + 'a,
    {
        if let Some(raw) = self.raw {
            let width = size_of::<T::Native>();
            if raw.len() % width != 0 {
                return Err(format!("has {} raw bytes, expected a multiple of {width}", raw.len()));
            }
            let buffer = arrow_buffer::Buffer::from_vec(raw.to_vec());
            let values = arrow_buffer::ScalarBuffer::<T::Native>::from(aligned(&buffer, width));
            return Ok(Arc::new(PrimitiveArray::<T>::new(values, None)));
        }
        let narrow = |value: &W| {
            narrow(value).ok_or_else(|| format!("has the value {value}, which exceeds its datatype"))
        };
        let values = field(self.contents).iter().map(narrow).collect::<Result<Vec<_>, _>>()?;
        Ok(Arc::new(PrimitiveArray::<T>::from_iter_values(values)))
    }

    fn bools(&self) -> Result<ArrayRef, String> {
        let values: Vec<bool> = match self.raw {
            Some(raw) => raw.iter().map(|byte| *byte != 0).collect(),
            None => self.contents.bool_contents.clone(),
        };
        Ok(Arc::new(BooleanArray::from(values)))
    }

    /// Strings, or binary values if the column has these.
    fn bytes(&self, expected: &DataType) -> Result<ArrayRef, String> {
        let values: Vec<Bytes> = match self.raw {
            Some(raw) => split(raw)?,
            None => self.contents.bytes_contents.clone(),
        };
        if matches!(expected, DataType::Binary | DataType::LargeBinary | DataType::BinaryView) {
            return Ok(Arc::new(BinaryArray::from_iter_values(values)));
        }
        let text = |value: &Bytes| {
            String::from_utf8(value.to_vec()).map_err(|_| "has a value that is not UTF-8".to_owned())
        };
        let values = values.iter().map(text).collect::<Result<Vec<_>, _>>()?;
        Ok(Arc::new(LargeStringArray::from_iter_values(values)))
    }
}

/// Copies little-endian values of `width` bytes into an aligned buffer.
fn aligned(buffer: &arrow_buffer::Buffer, width: usize) -> arrow_buffer::Buffer {
    let mut copy = arrow_buffer::MutableBuffer::with_capacity(buffer.len());
    match cfg!(target_endian = "big") {
        true => buffer.chunks(width).for_each(|value| copy.extend(value.iter().rev().copied())),
        false => copy.extend_from_slice(buffer.as_slice()),
    }
    copy.into()
}

/// Splits the raw form of BYTES: each value follows its length, a little-endian `u32`.
fn split(raw: &Bytes) -> Result<Vec<Bytes>, String> {
    let (mut rest, mut values) = (raw.clone(), Vec::new());
    while !rest.is_empty() {
        let truncated = || "ends in the middle of a raw value".to_owned();
        let length = rest.first_chunk::<4>().ok_or_else(truncated)?;
        let length = u32::from_le_bytes(*length) as usize;
        drop(rest.split_to(4));
        if length > rest.len() {
            return Err(truncated());
        }
        values.push(rest.split_to(length));
    }
    Ok(values)
}

/// Encodes the columns of a reply: in raw form, or each in the field of its datatype.
///
/// # Errors
/// A precondition error, with the name of the column, for nulls and for types that the protocol does not have.
pub(super) fn outputs(
    columns: Vec<PackedColumn>,
    schema: &Schema,
    is_raw: bool,
) -> Result<(Vec<InferOutputTensor>, Vec<Bytes>), Error> {
    let (mut outputs, mut raws) = (Vec::new(), Vec::new());
    for column in columns {
        let unfit = |detail: &str| {
            Error::unsupported(format!(
                "the worker's column '{}' {detail}; ask for other `outputs`",
                column.name
            ))
        };
        if !column.valid.is_empty() {
            return Err(unfit("has nulls, which the protocol does not have"));
        }
        let is_bool = schema.field_with_name(&column.name).is_ok_and(|field| is_bool(field.data_type()));
        let datatype = if is_bool { Some("BOOL") } else { datatype(&column.dtype) };
        let datatype = datatype.ok_or_else(|| unfit("has a type that the protocol does not have"))?;
        // A half-precision value has no field.
        let is_raw = is_raw || datatype == "FP16";
        let shape = column.shape.iter().map(|count| i64::try_from(*count).unwrap_or(i64::MAX)).collect();
        let contents = (!is_raw).then(|| contents(datatype, &column));
        let (name, datatype) = (column.name.clone(), datatype.to_owned());
        outputs.push(InferOutputTensor { name, datatype, shape, contents, ..InferOutputTensor::default() });
        raws.push(raw(column));
    }
    if outputs.iter().any(|output| output.contents.is_none()) {
        // The raw form is for all outputs or for none.
        outputs.iter_mut().for_each(|output| output.contents = None);
        return Ok((outputs, raws));
    }
    Ok((outputs, Vec::new()))
}

fn is_bool(data_type: &DataType) -> bool {
    match data_type {
        DataType::FixedSizeList(item, _) => is_bool(item.data_type()),
        other => *other == DataType::Boolean,
    }
}

fn raw(column: PackedColumn) -> Bytes {
    if column.values.is_empty() {
        return column.data;
    }
    let mut raw = BytesMut::new();
    for value in column.values {
        raw.put_u32_le(u32::try_from(value.len()).unwrap_or(u32::MAX));
        raw.put(value);
    }
    raw.freeze()
}

fn contents(datatype: &str, column: &PackedColumn) -> InferTensorContents {
    let mut contents = InferTensorContents::default();
    let data = &column.data;
    match datatype {
        "BOOL" => contents.bool_contents = data.iter().map(|value| *value != 0).collect(),
        "INT8" => contents.int_contents = data.iter().map(|value| i32::from(value.cast_signed())).collect(),
        "INT16" => contents.int_contents = values(data, i16::from_le_bytes).map(i32::from).collect(),
        "INT32" => contents.int_contents = values(data, i32::from_le_bytes).collect(),
        "INT64" => contents.int64_contents = values(data, i64::from_le_bytes).collect(),
        "UINT8" => contents.uint_contents = data.iter().map(|value| u32::from(*value)).collect(),
        "UINT16" => contents.uint_contents = values(data, u16::from_le_bytes).map(u32::from).collect(),
        "UINT32" => contents.uint_contents = values(data, u32::from_le_bytes).collect(),
        "UINT64" => contents.uint64_contents = values(data, u64::from_le_bytes).collect(),
        "FP32" => contents.fp32_contents = values(data, f32::from_le_bytes).collect(),
        "FP64" => contents.fp64_contents = values(data, f64::from_le_bytes).collect(),
        _ => contents.bytes_contents = column.values.clone(),
    }
    contents
}

fn values<const WIDTH: usize, T>(data: &Bytes, of: fn([u8; WIDTH]) -> T) -> impl Iterator<Item = T> {
    data.as_chunks::<WIDTH>().0.iter().map(move |value| of(*value))
}

/// Datatype of a packed column.
fn datatype(dtype: &str) -> Option<&'static str> {
    Some(match dtype {
        "int8" => "INT8",
        "int16" => "INT16",
        "int32" => "INT32",
        "int64" => "INT64",
        "uint8" => "UINT8",
        "uint16" => "UINT16",
        "uint32" => "UINT32",
        "uint64" => "UINT64",
        "float16" => "FP16",
        "float32" => "FP32",
        "float64" => "FP64",
        "string" | "binary" => "BYTES",
        _ => return None,
    })
}

fn arrow_datatype(data_type: &DataType) -> Option<&'static str> {
    match data_type {
        DataType::Boolean => Some("BOOL"),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Some("BYTES"),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => Some("BYTES"),
        number if number.is_numeric() => datatype(&number.to_string().to_lowercase()),
        _ => None,
    }
}

/// Description of a column; `None` for types that the protocol does not have.
pub(super) fn metadata(field: &Field) -> Option<TensorMetadata> {
    let (item, shape) = match field.data_type() {
        DataType::FixedSizeList(item, width) => (item.data_type(), vec![-1, i64::from(*width)]),
        other => (other, vec![-1]),
    };
    Some(TensorMetadata { name: field.name().clone(), datatype: arrow_datatype(item)?.to_owned(), shape })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(datatype: &str, shape: &[i64], contents: Option<InferTensorContents>) -> InferInputTensor {
        InferInputTensor {
            name: "key".into(),
            datatype: datatype.into(),
            shape: shape.to_vec(),
            contents,
            ..InferInputTensor::default()
        }
    }

    #[test]
    fn raw_and_typed_values_decode_to_the_same_keys() {
        let contents = InferTensorContents { int_contents: vec![-1, 7], ..InferTensorContents::default() };
        let typed = column(&input("INT16", &[2, 1], Some(contents)), None, &DataType::Int64).unwrap();
        let raw = Bytes::from_static(&[0xff, 0xff, 7, 0]);
        let decoded = column(&input("INT16", &[2], None), Some(&raw), &DataType::Int64).unwrap();
        assert_eq!(&typed, &decoded);
        let bytes_contents = vec!["a".into(), "".into()];
        let contents = InferTensorContents { bytes_contents, ..InferTensorContents::default() };
        let typed = column(&input("BYTES", &[2], Some(contents)), None, &DataType::Utf8).unwrap();
        let raw = Bytes::from_static(&[1, 0, 0, 0, b'a', 0, 0, 0, 0]);
        let decoded = column(&input("BYTES", &[2], None), Some(&raw), &DataType::Utf8).unwrap();
        assert_eq!(&typed, &decoded);
    }

    #[test]
    fn malformed_inputs_are_rejected_with_their_name_and_what_was_expected() {
        let int = |values: &[i32]| {
            Some(InferTensorContents { int_contents: values.to_vec(), ..InferTensorContents::default() })
        };
        let raw = Bytes::from_static(&[1, 0, 0]);
        let huge = Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 1]);
        for (input, raw, expected) in [
            (input("INT32", &[2], int(&[1])), None, "has 1 values, expected 2"),
            (input("INT32", &[-1], int(&[1])), None, "shape [-1], expected [ROWS]"),
            (input("INT32", &[1, 2], int(&[1, 2])), None, "shape [1, 2]"),
            (input("INT8", &[1], int(&[300])), None, "the value 300, which exceeds"),
            (input("FP16", &[1], None), None, "datatype 'FP16', expected BOOL, BYTES, FP16 (only raw)"),
            (input("INT32", &[1], None), Some(&raw), "3 raw bytes, expected a multiple of 4"),
            (input("INT32", &[1], int(&[1])), Some(&raw), "both `contents` and `raw_input_contents`"),
            (input("BYTES", &[1], None), Some(&raw), "middle of a raw value"),
            (input("BYTES", &[1], None), Some(&huge), "middle of a raw value"),
            (input("INT64", &[i64::MAX], None), Some(&Bytes::new()), "has 0 values"),
        ] {
            let error = column(&input, raw, &DataType::Int64).unwrap_err();
            let message = error.message();
            assert!(message.starts_with("inputs: 'key': ") && message.contains(expected), "{message}");
        }
    }

    #[test]
    fn outputs_are_the_same_in_both_forms() {
        let column = |dtype: &str, data: &'static [u8], shape: &[u64]| PackedColumn {
            name: dtype.into(),
            dtype: dtype.into(),
            data: Bytes::from_static(data),
            shape: shape.to_vec(),
            ..PackedColumn::default()
        };
        let columns = vec![
            column("float32", &[0, 0, 0x80, 0x3f, 0, 0, 0, 0x40], &[1, 2]),
            PackedColumn { values: vec!["ab".into()], ..column("string", &[], &[1]) },
        ];
        let (typed, raws) = outputs(columns.clone(), &Schema::empty(), false).unwrap();
        assert!(raws.is_empty());
        assert_eq!((typed[0].datatype.as_str(), typed[0].shape.as_slice()), ("FP32", [1, 2].as_slice()));
        assert_eq!(typed[0].contents.as_ref().unwrap().fp32_contents, [1.0, 2.0]);
        assert_eq!(typed[1].contents.as_ref().unwrap().bytes_contents, [Bytes::from_static(b"ab")]);
        let (raw, raws) = outputs(columns, &Schema::empty(), true).unwrap();
        assert!(raw.iter().all(|output| output.contents.is_none()));
        assert_eq!(
            raws,
            [
                Bytes::from_static(&[0, 0, 0x80, 0x3f, 0, 0, 0, 0x40]),
                Bytes::from_static(&[2, 0, 0, 0, b'a', b'b'])
            ]
        );
        let half = outputs(vec![column("float16", &[0, 0x3c], &[1])], &Schema::empty(), false).unwrap();
        assert_eq!((half.0[0].contents.is_none(), half.1.len()), (true, 1), "there is no field for it");
        let times = outputs(vec![column("timestamp[us]", &[0; 8], &[1])], &Schema::empty(), true);
        assert!(times.unwrap_err().message().contains("'timestamp[us]' has a type"));
    }
}

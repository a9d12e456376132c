use arrow_array::{
    Array, ArrayRef, BooleanArray, Decimal128Array, FixedSizeListArray, Int32Array, Int64Array, ListArray,
    MapArray, NullArray, RunArray, StringArray, StringViewArray, StructArray, builder, types::Int32Type,
};
use arrow_buffer::OffsetBuffer;
use arrow_flight::SchemaAsIpc;
use arrow_ipc::{
    MetadataVersion,
    writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions},
};
use arrow_schema::{DataType, Field};

use super::{hostile::*, *};
use crate::callers::{Caller, Callers};

const MAX_ROWS: usize = 1000;

fn reader(wanted: Wanted, callers: &Callers) -> BatchReader {
    BatchReader::new("keys", wanted, MAX_ROWS, Account::new(callers, Caller::Local), true)
}

fn callers() -> Callers {
    Callers::new(Arc::default())
}

fn named(names: &[&str]) -> Wanted {
    Wanted::Named(names.iter().map(|name| (*name).to_owned()).collect())
}

fn schema(fields: Vec<Field>) -> FlightData {
    SchemaAsIpc::new(&arrow_schema::Schema::new(fields), &IpcWriteOptions::default()).into()
}

fn column(name: &str, data_type: DataType) -> Field {
    Field::new(name, data_type, true)
}

/// Reads a schema and a batch.
fn read(wanted: Wanted, fields: Vec<Field>, batch: &FlightData) -> Result<RecordBatch, String> {
    let callers = callers();
    let mut reader = reader(wanted, &callers);
    reader.read_here(&schema(fields)).map_err(|error| error.message().to_owned())?;
    match reader.read_here(batch) {
        Ok(Received::Batch(Ok(rows))) => Ok(rows.rows),
        Ok(Received::Batch(Err(error))) | Err(error) => Err(error.message().to_owned()),
        Ok(Received::Nothing) => Err("nothing".to_owned()),
    }
}

/// The messages of a batch.
fn messages(rows: &RecordBatch, options: &IpcWriteOptions) -> Vec<FlightData> {
    let (generator, mut tracker) = (IpcDataGenerator::default(), DictionaryTracker::new(false));
    let schema = generator.schema_to_bytes_with_dictionary_tracker(&rows.schema(), &mut tracker, options);
    let (dictionaries, batch) =
        generator.encode(rows, &mut tracker, options, &mut IpcWriteContext::default()).unwrap();
    [schema].into_iter().chain(dictionaries).chain([batch]).map(FlightData::from).collect()
}

fn last(reader: &mut BatchReader, messages: &[FlightData]) -> Result<RecordBatch, String> {
    let mut read = Err("nothing".to_owned());
    for message in messages {
        if let Received::Batch(batch) =
            reader.read_here(message).map_err(|error| error.message().to_owned())?
        {
            read = batch.map(|rows| rows.rows).map_err(|error| error.message().to_owned());
        }
    }
    read
}

#[test]
fn buffers_that_share_bytes_are_rejected() {
    let fields = || (0..2000).map(|number| column(&number.to_string(), DataType::Int64)).collect::<Vec<_>>();
    let (nodes, buffers) = (vec![(512, 0); 2000], [(0, 0), (8, 4096)].repeat(2000));
    let error = read(Wanted::All, fields(), &batch(512, &nodes, &buffers, vec![1; 4104])).unwrap_err();
    assert_eq!(
        error,
        "keys: two buffers share the bytes from 8 to 4104 of the body, expected each buffer to have its own"
    );
    // One byte is enough, in any order.
    let two = vec![column("a", DataType::Int64), column("b", DataType::Int64)];
    let crossed = batch(1, &[(1, 0), (1, 0)], &[(0, 0), (8, 8), (0, 0), (0, 9)], vec![0; 16]);
    assert!(read(Wanted::All, two, &crossed).unwrap_err().contains("share the bytes from 8 to 9"));
}

#[test]
fn buffers_begin_at_multiples_of_8_inside_of_the_body() {
    let read = |place| {
        let message = batch(1, &[(1, 0)], &[(0, 0), place], vec![0; 16]);
        read(Wanted::All, vec![column("a", DataType::Int64)], &message)
    };
    assert!(read((4, 8)).unwrap_err().contains("begins at byte 4 of the body, expected a multiple of 8"));
    for outside in [(16, 8), (8, 9), (-8, 8), (0, -8), (i64::MAX - 7, 8), (8, i64::MAX)] {
        assert!(read(outside).unwrap_err().contains("a buffer is outside of the message"), "{outside:?}");
    }
    read((8, 8)).unwrap();
}

#[test]
fn gaps_unpadded_lengths_first_offsets_above_0_and_empty_buffers_anywhere_are_read() {
    let mut body = vec![0; 100];
    body[16..19].copy_from_slice(b"abc");
    body[40..48].copy_from_slice(&[0, 0, 0, 0, 3, 0, 0, 0]);
    body[64..72].copy_from_slice(&7_i64.to_le_bytes());
    let fields = vec![column("text", DataType::Utf8), column("number", DataType::Int64)];
    let buffers = [(-1, 0), (40, 8), (16, 3), (i64::MAX, 0), (64, 8)];
    let rows = read(Wanted::All, fields, &batch(1, &[(1, 0), (1, 0)], &buffers, body)).unwrap();
    let expected: [ArrayRef; 2] =
        [Arc::new(StringArray::from(vec!["abc"])), Arc::new(Int64Array::from(vec![7]))];
    assert_eq!(rows.columns(), expected);
}

#[test]
fn lengths_and_numbers_of_nulls_must_be_possible() {
    for node in [(-1, 0), (1, 2), (1, -1)] {
        let message = batch(1, &[node], &[(0, 0), (0, 8)], vec![0; 8]);
        let error = read(Wanted::All, vec![column("a", DataType::Int64)], &message).unwrap_err();
        assert!(error.contains("a length is negative") || error.contains("of them null"), "{error}");
    }
    for rows in [-1, 1001] {
        let message = batch(rows, &[(rows, 0)], &[(0, 0), (0, 8)], vec![0; 8]);
        let error = read(Wanted::All, vec![column("a", DataType::Int64)], &message).unwrap_err();
        assert_eq!(error, format!("keys: {rows} at once, expected at most 1000"));
    }
}

#[test]
fn types_whose_values_need_no_bytes_have_at_most_as_many_values_as_a_batch_may_have_rows() {
    let huge = 1 << 40;
    let run_ends = Arc::new(Field::new("run_ends", DataType::Int32, false));
    let ends = || Arc::clone(&run_ends);
    let nothing = || Arc::new(column("item", DataType::Null));
    for (data_type, nodes, buffers) in [
        (DataType::Null, vec![(huge, huge)], vec![]),
        (DataType::FixedSizeBinary(0), vec![(huge, 0)], vec![(0, 0); 2]),
        (DataType::Struct(vec![nothing()].into()), vec![(huge, 0), (huge, huge)], vec![(0, 0)]),
        (DataType::Struct(Vec::<Field>::new().into()), vec![(huge, 0)], vec![(0, 0)]),
        (DataType::FixedSizeList(nothing(), 3), vec![(1, 0), (huge, huge)], vec![(0, 0)]),
        (DataType::List(nothing()), vec![(1, 0), (huge, huge)], vec![(0, 0), (0, 8)]),
        (
            DataType::List(Arc::new(Field::new_list("item", nothing(), true))),
            vec![(1, 0), (1, 0), (huge, huge)],
            vec![(0, 0), (0, 8), (0, 0), (8, 8)],
        ),
        (
            DataType::RunEndEncoded(ends(), Arc::new(column("values", DataType::Int8))),
            vec![(huge, 0), (1, 0), (1, 0)],
            vec![(0, 0), (0, 4), (0, 0), (8, 1)],
        ),
    ] {
        let message = batch(1, &nodes, &buffers, vec![0; 16]);
        let error = read(Wanted::All, vec![column("a", data_type.clone())], &message).unwrap_err();
        assert!(error.contains("which need no bytes; expected at most 1000"), "{data_type}: {error}");
    }
}

/// A batch of `count` views of the same `length` bytes.
fn shared_views(count: i64, length: u32) -> FlightData {
    let view = [&length.to_le_bytes()[..], b"aaaa", &[0; 8]].concat();
    let mut body = view.repeat(count as usize);
    let start = body.len() as i64;
    body.extend(std::iter::repeat_n(b'a', length as usize));
    let buffers = [(0, 0), (0, start), (start, length.into())];
    batch_with(count, &[(count, 0)], &buffers, &[1], body)
}

#[test]
fn views_may_share_bytes_up_to_a_limit() {
    let fields = || vec![column("a", DataType::Utf8View)];
    let rows = read(Wanted::All, fields(), &shared_views(1000, 16_000)).unwrap();
    let expected = StringViewArray::from_iter_values((0..1000).map(|_| "a".repeat(16_000)));
    assert_eq!(rows.column(0).as_ref(), &expected);
    let error = read(Wanted::All, fields(), &shared_views(1000, 20_000)).unwrap_err();
    assert_eq!(
        error,
        "keys: the values of views have 20000000 bytes, expected at most 16777216; send them as Utf8 or Binary"
    );
    // A large message may have as many bytes in views as in its body.
    read(Wanted::All, fields(), &shared_views(1, 17 << 20)).unwrap();
}

#[test]
fn a_batch_that_takes_more_than_its_message_is_charged_until_it_is_dropped() {
    let callers = callers();
    let held = || callers.usage().totals[Resource::IncomingBytes as usize].1;
    let mut reader = reader(Wanted::All, &callers);
    reader.read_here(&schema(vec![column("a", DataType::Utf8View)])).unwrap();
    let Ok(Received::Batch(Ok(rows))) = reader.read_here(&shared_views(1000, 16_000)) else {
        panic!("no rows")
    };
    assert!((16_000_000..17_000_000).contains(&held()), "{}", held());
    drop(rows);
    assert_eq!(held(), 0);
}

#[test]
fn columns_that_no_request_names_are_neither_copied_nor_decoded() {
    let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let nested = DataType::Struct(vec![column("x", DataType::Utf8View), column("y", DataType::Null)].into());
    let fields = vec![
        column("nested", nested),
        column("id", DataType::Int64),
        column("text", DataType::Utf8),
        column("more", DataType::Utf8),
        column("category", dictionary),
    ];
    // The other columns are malformed: they have too few bytes, are not UTF-8, and refer to values that do not exist.
    let nodes = [(9, 0), (1 << 40, 0), (7, 7), (1, 0), (1, 0), (1, 0), (1, 0)];
    let buffers = [
        [(0, 0); 3].as_slice(),
        &[(0, 0); 3],
        &[(0, 0), (8, 8)],
        &[(0, 0), (16, 8), (24, 1)],
        &[(0, 0); 3],
        &[(0, 0), (32, 4)],
    ]
    .concat();
    let mut body = vec![0xff; 40];
    body[8..16].copy_from_slice(&7_i64.to_le_bytes());
    let message = batch_with(1, &nodes, &buffers, &[3], body);
    let rows = read(named(&["id"]), fields.clone(), &message).unwrap();
    assert_eq!(rows.num_columns(), 1);
    assert_eq!(rows.column(0).as_ref(), &Int64Array::from(vec![7]));
    let error = read(named(&["id", "other"]), fields, &message).unwrap_err();
    assert_eq!(
        error,
        "keys: there is no column 'other' among [\"id\", \"nested\", \"text\", \"more\", \"category\"]"
    );
}

#[test]
fn a_column_that_a_request_names_is_there_once() {
    let fields = vec![column("id", DataType::Int64), column("id", DataType::Int64)];
    let error = read(named(&["id"]), fields, &batch(0, &[], &[], vec![])).unwrap_err();
    assert_eq!(error, "keys: there are several columns 'id', expected one");
}

#[test]
fn a_column_of_a_request_has_few_fields() {
    let fields: Vec<Field> = (0..100).map(|number| column(&number.to_string(), DataType::Int8)).collect();
    let fields = vec![column("id", DataType::Struct(fields.into()))];
    let error = read(named(&["id"]), fields, &batch(0, &[], &[], vec![])).unwrap_err();
    assert_eq!(error, "keys: column 'id' has 101 fields, expected at most 64");
}

/// A batch with a column of every kind of type.
fn every_kind() -> RecordBatch {
    let item = |data_type| Arc::new(Field::new("item", data_type, true));
    let numbers = || Arc::new(Int32Array::from(vec![Some(1), None, Some(3), Some(4), Some(5), Some(6)]));
    let lists = ListArray::new(
        item(DataType::Int32),
        OffsetBuffer::from_lengths([1, 0, 5]),
        numbers(),
        Some(vec![true, false, true].into()),
    );
    let vectors = FixedSizeListArray::new(item(DataType::Int32), 2, numbers(), None);
    let structs = StructArray::from(vec![
        (
            item(DataType::Boolean),
            Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])) as ArrayRef,
        ),
        (Arc::new(column("list", lists.data_type().clone())), Arc::new(lists.clone()) as ArrayRef),
    ]);
    let mut maps =
        builder::MapBuilder::new(None, builder::StringBuilder::new(), builder::Int64Builder::new());
    for row in 0..3 {
        maps.keys().append_value("key");
        maps.values().append_value(row);
        maps.append(row != 1).unwrap();
    }
    let maps: MapArray = maps.finish();
    let long = "a value that is longer than a view";
    let ends = Int32Array::from(vec![2, 3]);
    let runs = RunArray::<Int32Type>::try_new(&ends, &StringArray::from(vec!["a", "b"])).unwrap();
    let decimals = Decimal128Array::from(vec![Some(1), None, Some(-3)]);
    RecordBatch::try_from_iter([
        ("text", Arc::new(StringArray::from(vec![Some("a"), None, Some(long)])) as ArrayRef),
        ("views", Arc::new(StringViewArray::from(vec![Some("a"), None, Some(long)])) as _),
        ("null", Arc::new(NullArray::new(3)) as _),
        ("decimal", Arc::new(decimals) as _),
        ("lists", Arc::new(lists) as _),
        ("vectors", Arc::new(vectors) as _),
        ("structs", Arc::new(structs) as _),
        ("maps", Arc::new(maps) as _),
        ("runs", Arc::new(runs) as _),
        ("id", Arc::new(Int64Array::from(vec![Some(1), None, Some(3)])) as _),
    ])
    .unwrap()
}

#[test]
fn batches_of_arrow_are_read_as_they_were_written_whole_and_sliced() {
    let rows = every_kind();
    let runs = rows.schema().index_of("runs").unwrap();
    let others: Vec<usize> = (0..rows.num_columns()).filter(|at| *at != runs).collect();
    let options = |alignment, version| IpcWriteOptions::try_new(alignment, false, version).unwrap();
    for (options, has_runs) in [
        (options(8, MetadataVersion::V5), true),
        (options(64, MetadataVersion::V5), true),
        // Run-end encoded arrays are newer than version 4.
        (options(8, MetadataVersion::V4), false),
    ] {
        for (start, length) in [(0, 3), (1, 2), (2, 1), (0, 0)] {
            // The writer cannot slice run-end encoded arrays.
            let whole = if has_runs && length == 3 { rows.clone() } else { rows.project(&others).unwrap() };
            let part = whole.slice(start, length);
            let messages = messages(&part, &options);
            let callers = callers();
            assert_eq!(last(&mut reader(Wanted::All, &callers), &messages).unwrap(), part);
            for name in part.schema().fields().iter().map(|field| field.name().as_str()) {
                let read = last(&mut reader(named(&[name]), &callers), &messages).unwrap();
                assert_eq!(read.columns(), [part.column_by_name(name).unwrap().clone()], "{name}");
            }
        }
    }
}

#[test]
fn decoded_buffers_are_aligned_for_every_type() {
    // Only the number before it is at a multiple of 16.
    let fields = vec![column("id", DataType::Int64), column("decimal", DataType::Decimal128(10, 2))];
    let message = batch(1, &[(1, 0), (1, 0)], &[(0, 0), (0, 8), (0, 0), (8, 16)], vec![1; 24]);
    let rows = read(Wanted::All, fields, &message).unwrap();
    for column in rows.columns() {
        for buffer in column.to_data().buffers() {
            assert_eq!(buffer.as_ptr().addr() % 64, 0);
        }
    }
}

#[test]
fn values_of_dictionaries_are_skipped_if_no_column_needs_them() {
    let category: arrow_array::DictionaryArray<Int32Type> = ["a", "b", "a"].into_iter().collect();
    let rows = RecordBatch::try_from_iter([
        ("category", Arc::new(category) as ArrayRef),
        ("id", Arc::new(Int64Array::from(vec![1, 2, 3])) as _),
    ])
    .unwrap();
    let messages = messages(&rows, &IpcWriteOptions::default());
    let callers = callers();
    let read = last(&mut reader(named(&["id"]), &callers), &messages).unwrap();
    assert_eq!(read.columns(), [rows.column(1).clone()]);
    for wanted in [Wanted::All, named(&["category"])] {
        let error = last(&mut reader(wanted, &callers), &messages).unwrap_err();
        assert_eq!(error, "keys: dictionary-encoded batches are not supported; send the values");
    }
}

#[test]
fn no_hostile_stream_takes_more_than_a_few_times_its_bytes() {
    for (name, messages) in family() {
        let callers = callers();
        let mut reader = reader(Wanted::All, &callers);
        let mut is_read = false;
        for message in &messages {
            match reader.read_here(message) {
                Ok(Received::Batch(Ok(rows))) => {
                    let bytes: usize =
                        rows.rows.columns().iter().map(arrow_array::Array::get_buffer_memory_size).sum();
                    assert!(bytes <= message.data_body.len() + (64 << 10), "{name}: {bytes}");
                    is_read = true;
                }
                Ok(Received::Nothing) => {}
                Err(error) | Ok(Received::Batch(Err(error))) => {
                    assert_eq!(error.grpc_code(), tonic::Code::InvalidArgument, "{name}: {error}");
                }
            }
        }
        // All others are rejected.
        assert_eq!(is_read, name == "tiny batches", "{name}");
    }
}

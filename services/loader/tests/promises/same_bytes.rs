//! A ticket determines the bytes: for every type, encoding and codec, and whatever else was decoded before or at the same time.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, FixedSizeListArray, Float32Array, Float64Array, Int32Array, Int64Array,
    ListArray, MapArray, RecordBatch, StringArray, StructArray,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, Fields};
use forebay_loader::{Config, DiskWrites, Loader};
use forebay_proto::v1::{Shuffle, Train, shuffle};
use forebay_storage::Reader;
use parquet::{
    arrow::ArrowSchemaConverter,
    basic::{BrotliLevel, Compression, Encoding, GzipLevel, Type, ZstdLevel},
    file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion},
};
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::fixture::{digests, everything::everything, job, loader, numbered, open, reader_with, store_with};

const AMPLE: u64 = 1 << 30;
/// Columns of [`Values`], then those of the fixture with every type, whose names begin with `e_`.
const COLUMNS: [&str; 29] = [
    "id",
    "float",
    "text",
    "required",
    "deep",
    "structs",
    "pair",
    "map",
    "long",
    "flag",
    "list",
    "maybe_list",
    "e_bool",
    "e_i8",
    "e_u16",
    "e_f16",
    "e_f64",
    "e_full",
    "e_time",
    "e_decimal",
    "e_fixed",
    "e_text",
    "e_large",
    "e_binary",
    "e_list",
    "e_vector",
    "e_struct",
    "e_map",
    "e_null",
];

/// Values of a dataset, a pure function of a seed.
struct Values {
    seed: u64,
    rows: usize,
}

impl Values {
    fn number(&self, column: u64, row: usize) -> u64 {
        xxh3_64_with_seed(&(row as u64).to_le_bytes(), self.seed ^ (column << 32))
    }

    fn numbers(&self, column: u64) -> impl Iterator<Item = u64> {
        (0..self.rows).map(move |row| self.number(column, row))
    }

    fn nulls(&self, column: u64) -> NullBuffer {
        self.numbers(column).map(|number| number % 3 != 0).collect()
    }

    fn integers(&self, column: u64) -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(self.numbers(column).map(|number| number as i64)))
    }

    fn texts(&self, column: u64) -> ArrayRef {
        Arc::new(StringArray::from_iter_values(
            self.numbers(column).map(|number| "x".repeat(number as usize % 9)),
        ))
    }

    fn floats(&self, column: u64) -> Float64Array {
        let float = |number: u64| match number % 6 {
            0 => 0x7ff8_0000_0000_0000,
            1 => 0xfff8_0000_0000_0000,
            2 => 0x7ff8_0000_0000_0000 | (number >> 20),
            3 => 0xfff8_0000_0000_0000 | (number >> 20),
            4 => (-0.0_f64).to_bits(),
            _ => (number as f64).to_bits(),
        };
        Float64Array::from_iter_values(self.numbers(column).map(|number| f64::from_bits(float(number))))
    }

    fn offsets(&self, column: u64) -> OffsetBuffer<i32> {
        OffsetBuffer::from_lengths(self.numbers(column).map(|number| number as usize % 4))
    }

    fn items(&self, offsets: &OffsetBuffer<i32>) -> Self {
        Self { seed: !self.seed, rows: offsets[offsets.len() - 1] as usize }
    }

    fn batch(&self) -> RecordBatch {
        let field = |name: &str, of: DataType, nullable| Arc::new(Field::new(name, of, nullable));
        let leaves: Fields = vec![
            field("number", DataType::Int64, false),
            field("maybe", DataType::Float64, true),
            field("text", DataType::Utf8, false),
        ]
        .into();
        let leaf = |of: &Self, column: u64, nulls: Option<NullBuffer>| -> StructArray {
            let maybe = Float64Array::new(of.floats(column).values().clone(), Some(of.nulls(column + 1)));
            let columns = vec![of.integers(column + 2), Arc::new(maybe) as ArrayRef, of.texts(column + 3)];
            StructArray::new(leaves.clone(), columns, nulls)
        };
        let leaf_type = DataType::Struct(leaves.clone());

        let item = field("item", DataType::Int64, false);
        let offsets = self.offsets(20);
        let list =
            ListArray::new(Arc::clone(&item), offsets.clone(), self.items(&offsets).integers(21), None);
        let deep: Fields = vec![
            field("inner", leaf_type.clone(), true),
            field("list", DataType::List(Arc::clone(&item)), false),
        ]
        .into();
        let columns =
            vec![Arc::new(leaf(self, 30, Some(self.nulls(35)))) as ArrayRef, Arc::new(list.clone())];
        let deep = StructArray::new(deep, columns, Some(self.nulls(36)));

        let struct_offsets = self.offsets(40);
        let entries = self.items(&struct_offsets);
        let nulls = entries.nulls(46);
        let structs = ListArray::new(
            field("item", leaf_type, true),
            struct_offsets,
            Arc::new(leaf(&entries, 41, Some(nulls))),
            Some(self.nulls(47)),
        );
        let pair = Float32Array::from_iter_values((0..2 * self.rows).map(|item| item as f32 - 7.5));
        let item_32 = field("item", DataType::Float32, false);
        let pair = FixedSizeListArray::new(item_32, 2, Arc::new(pair), Some(self.nulls(50)));

        let map_offsets = self.offsets(60);
        let entries = self.items(&map_offsets);
        let keys: Fields =
            vec![field("keys", DataType::Int64, false), field("values", DataType::Utf8, true)].into();
        let columns = vec![
            Arc::new(Int64Array::from_iter_values(0..entries.rows as i64)) as ArrayRef,
            entries.texts(61),
        ];
        let entries = StructArray::new(keys.clone(), columns, None);
        let entry = field("entries", DataType::Struct(keys), false);
        let map = MapArray::new(entry, map_offsets, entries, Some(self.nulls(62)), false);

        // One value of many rows, long enough that few rows are decoded at once.
        let long = "long ".repeat(8 << 10);
        let long = self.numbers(70).map(|number| if number % 5 == 0 { &long[..] } else { "" });
        let maybe = NullBuffer::union(Some(&self.nulls(80)), None);
        let maybe_list = ListArray::new(item, list.offsets().clone(), Arc::clone(list.values()), maybe);
        let text = StringArray::from_iter(self.numbers(12).map(|number| match number % 4 {
            0 => None,
            short => Some("ab".repeat(short as usize)),
        }));
        let flag = BooleanArray::from_iter(self.numbers(13).map(|number| match number % 3 {
            0 => None,
            one => Some(one == 1),
        }));
        let float = Float64Array::new(self.floats(11).values().clone(), Some(self.nulls(10)));
        let columns: [ArrayRef; 12] = [
            Arc::new(Int32Array::from_iter_values(0..self.rows as i32)),
            Arc::new(float),
            Arc::new(text),
            Arc::new(leaf(self, 14, Some(self.nulls(18)))),
            Arc::new(deep),
            Arc::new(structs),
            Arc::new(pair),
            Arc::new(map),
            Arc::new(StringArray::from_iter_values(long)),
            Arc::new(flag),
            Arc::new(list),
            Arc::new(maybe_list),
        ];
        let nulls = self.nulls(90);
        let everything = everything(self.rows, |row| nulls.is_null(row));
        let names = everything
            .schema()
            .fields()
            .iter()
            .map(|field| format!("e_{}", field.name()))
            .collect::<Vec<_>>();
        assert_eq!(names, COLUMNS[columns.len()..]);
        let columns = columns.into_iter().chain(everything.columns().iter().cloned());
        let nullable = |name: &str| !matches!(name, "id" | "long" | "list" | "e_full");
        let columns = COLUMNS.iter().zip(columns).map(|(name, column)| (*name, column, nullable(name)));
        RecordBatch::try_from_iter_with_nullable(columns).unwrap()
    }
}

/// Encodings of the values of a file that has no dictionary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encodings {
    Plain,
    /// Differences of integers, and of lengths of strings.
    Delta,
    /// Differences of integers, and common prefixes of strings.
    DeltaPrefix,
    ByteStreamSplit,
}

impl Encodings {
    const ALL: [Self; 4] = [Self::Plain, Self::Delta, Self::DeltaPrefix, Self::ByteStreamSplit];

    /// Encoding of a column of this physical type; `None` for the default.
    fn of(self, physical: Type) -> Option<Encoding> {
        use Type::{BYTE_ARRAY, DOUBLE, FIXED_LEN_BYTE_ARRAY, FLOAT, INT32, INT64};
        match (self, physical) {
            (Self::Delta | Self::DeltaPrefix, INT32 | INT64) => Some(Encoding::DELTA_BINARY_PACKED),
            (Self::Delta, BYTE_ARRAY) => Some(Encoding::DELTA_LENGTH_BYTE_ARRAY),
            (Self::DeltaPrefix, BYTE_ARRAY | FIXED_LEN_BYTE_ARRAY) => Some(Encoding::DELTA_BYTE_ARRAY),
            (Self::ByteStreamSplit, INT32 | INT64 | FLOAT | DOUBLE | FIXED_LEN_BYTE_ARRAY) => {
                Some(Encoding::BYTE_STREAM_SPLIT)
            }
            _ => None,
        }
    }

    /// Sets the encoding of each column of `batch`.
    fn set(self, mut properties: WriterPropertiesBuilder, batch: &RecordBatch) -> WriterPropertiesBuilder {
        let schema = ArrowSchemaConverter::new().convert(&batch.schema()).unwrap();
        for column in schema.columns() {
            if let Some(encoding) = self.of(column.physical_type()) {
                properties = properties.set_column_encoding(column.path().clone(), encoding);
            }
        }
        properties
    }
}

/// Properties of a dataset, and a request for a part of it.
#[derive(Debug, Clone)]
struct Case {
    seed: u64,
    rows: usize,
    row_group_rows: usize,
    codec: Compression,
    dictionary: bool,
    encoding: Encodings,
    version_2: bool,
    columns: Vec<&'static str>,
    select: Vec<&'static str>,
    filter: &'static str,
    neighbours: Vec<&'static str>,
}

fn case() -> impl Strategy<Value = Case> {
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::ZSTD(ZstdLevel::default()),
        Compression::GZIP(GzipLevel::default()),
        Compression::BROTLI(BrotliLevel::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
    ];
    let selects = [
        "CASE WHEN id % 3 = 0 THEN required END AS hidden",
        "required.number AS number",
        "deep['inner']['text'] AS inner_text",
        "COALESCE(float, -1e0) AS filled",
        "float - float AS nothing",
        "list_pad(list, 5, -1) AS padded",
        "hash_bucket(float, 10) AS bucket",
        "CASE WHEN flag AND 100 / (id % 7) > 20 THEN text ELSE 'none' END AS guarded",
    ];
    let filters = [
        "",
        "float = CAST('NaN' AS DOUBLE)",
        "required.number > 0",
        "id % 7 <> 0 AND 100 / (id % 7) > 20",
        "flag OR float > 0",
        "deep IS NOT NULL",
    ];
    let columns = || prop::sample::subsequence(COLUMNS.to_vec(), 1..=4);
    (
        any::<u64>(),
        20..200_usize,
        prop::sample::select(vec![40_usize, 128, 1000]),
        prop::sample::select(codecs.to_vec()),
        (any::<(bool, bool)>(), prop::sample::select(Encodings::ALL.to_vec())),
        columns(),
        prop::sample::subsequence(selects.to_vec(), 0..=3),
        prop::sample::select(filters.to_vec()),
        columns(),
    )
        .prop_map(|(seed, rows, row_group_rows, codec, written, columns, select, filter, neighbours)| {
            let (flags, encoding) = written;
            Case {
                seed,
                rows,
                row_group_rows,
                codec,
                dictionary: flags.0,
                encoding,
                version_2: flags.1,
                columns,
                select,
                filter,
                neighbours,
            }
        })
}

impl Case {
    fn request(&self, columns: &[&str], select: &[&str]) -> Train {
        let names = select.iter().filter_map(|text| text.rsplit(' ').next());
        let shuffle = match self.seed % 2 {
            0 => Shuffle { none: Some(shuffle::None {}), ..Shuffle::default() },
            _ => Shuffle::default(),
        };
        Train {
            dataset: "d".into(),
            batch_size: 37,
            filter: self.filter.into(),
            columns: columns.iter().copied().chain(names).map(str::to_owned).collect(),
            select: select.iter().map(ToString::to_string).collect(),
            shuffle: Some(shuffle),
            ..Train::default()
        }
    }

    async fn reader(&self) -> Reader {
        let version = if self.version_2 { WriterVersion::PARQUET_2_0 } else { WriterVersion::PARQUET_1_0 };
        let properties = WriterProperties::builder()
            .set_max_row_group_row_count(Some(self.row_group_rows))
            .set_data_page_row_count_limit(17)
            .set_write_batch_size(8)
            .set_compression(self.codec)
            .set_dictionary_enabled(self.dictionary)
            .set_writer_version(version);
        let batch = Values { seed: self.seed, rows: self.rows }.batch();
        let properties = self.encoding.set(properties, &batch).build();
        let limits =
            forebay_storage::Config { max_block_bytes: 4 << 20, ..forebay_storage::Config::default() };
        reader_with(store_with(&[batch], properties).await, limits).await
    }
}

async fn hashes(loader: &Loader, train: &Train, reader: &Reader) -> Result<Vec<u64>, String> {
    digests(loader.batches(job(train, reader), 0, 0)).await.map_err(|error| error.to_string())
}

async fn check(case: Case) {
    let reader = case.reader().await;
    let request = case.request(&case.columns, &case.select);
    let chunks = |decode_rows: usize| Config { decode_rows, ..Config::default() };
    let expected = hashes(&loader(AMPLE, 1, chunks(8192)), &request, &reader).await;
    if case.select.is_empty() {
        assert!(expected.is_ok(), "{expected:?}");
    }
    for decode_rows in [1, 7, 64] {
        let loader = loader(AMPLE, 2, chunks(decode_rows));
        if !case.filter.is_empty() {
            let counted = loader.count(&request, &reader, |_| {}).await.unwrap().unwrap();
            let whole = crate::fixture::loader(1 << 20, 1, chunks(8192));
            let whole = whole.count(&request, &reader, |_| {}).await.unwrap().unwrap();
            assert_eq!(counted.rows(), whole.rows(), "{decode_rows} rows decoded at once");
        }
        let found = hashes(&loader, &request, &reader).await;
        assert_eq!(found, expected, "{decode_rows} rows decoded at once");
    }
    // What another view left in memory and on disk, and what a restart finds.
    let folder = tempfile::TempDir::new().unwrap();
    for decode_rows in [8192, 16] {
        let config = Config { disk_writes: DiskWrites::Always, ..chunks(decode_rows) };
        let cached = open(folder.path(), AMPLE, AMPLE, &config);
        let neighbours = case.request(&case.neighbours, &[]);
        // It fails if the long values exceed the limit of a block.
        let _ = hashes(&cached, &neighbours, &reader).await;
        for history in ["after another view", "again"] {
            assert_eq!(hashes(&cached, &request, &reader).await, expected, "{history}, {decode_rows}");
        }
        drop(cached);
        let restarted = open(folder.path(), AMPLE, AMPLE, &config);
        assert_eq!(hashes(&restarted, &request, &reader).await, expected, "restarted, {decode_rows}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn one_ticket_has_one_hash_for_all_chunks_neighbours_histories_and_threads(case in case()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.unwrap().block_on(check(case));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_guards_selected_columns_and_keys_with_and_without_a_disk() {
    let case = Case {
        seed: 0,
        rows: 300,
        row_group_rows: 128,
        codec: Compression::UNCOMPRESSED,
        dictionary: false,
        encoding: Encodings::Plain,
        version_2: false,
        columns: vec!["id"],
        select: vec!["100 / (id % 7) AS ratio"],
        filter: "id % 7 <> 0",
        neighbours: vec!["id"],
    };
    let reader = case.reader().await;
    let request = case.request(&case.columns, &case.select);
    let expected = hashes(&loader(AMPLE, 1, Config::default()), &request, &reader).await.unwrap();
    assert!(!expected.is_empty());
    let folder = tempfile::TempDir::new().unwrap();
    let config = Config { disk_writes: DiskWrites::Always, ..Config::default() };
    for _ in 0..2 {
        let cached = open(folder.path(), AMPLE, AMPLE, &config);
        assert_eq!(hashes(&cached, &request, &reader).await.unwrap(), expected);
    }
    let grouped = Train { group_by: vec!["ratio".into()], ..request.clone() };
    let counted =
        loader(AMPLE, 1, Config::default()).count(&grouped, &reader, |_| {}).await.unwrap().unwrap();
    assert_eq!(counted.rows().iter().sum::<u32>(), 300 - 43);
    // Without the filter there is no value for the row.
    let unguarded = Train { filter: String::new(), ..request };
    let error = hashes(&loader(AMPLE, 1, Config::default()), &unguarded, &reader).await.unwrap_err();
    assert!(error.contains("'ratio'") && error.contains("Divide by zero"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_block_that_no_group_of_a_window_has_do_not_fail_its_batches() {
    // Group 1 has the last rows of the first block and the first rows of the second one. Row 1900 has no value; it is in group 2.
    let files = [numbered(0..1000), numbered(1000..2000)];
    let store = store_with(&files, WriterProperties::builder().build()).await;
    let reader = reader_with(store, forebay_storage::Config::default()).await;
    let request = Train {
        select: vec!["id / 700 AS g".into(), "100 / (id - 1900) AS y".into()],
        columns: vec!["y".into()],
        group_by: vec!["g".into()],
        batch_size: 1,
        shuffle: Some(Shuffle { none: Some(shuffle::None {}), ..Shuffle::default() }),
        ..Train::default()
    };
    let mut outcomes = Vec::new();
    for disk_writes in [DiskWrites::Needed, DiskWrites::Always] {
        for decode_rows in [64, 512, 4096] {
            let folder = tempfile::TempDir::new().unwrap();
            let loader =
                open(folder.path(), AMPLE, AMPLE, &Config { disk_writes, decode_rows, ..Config::default() });
            let mut batches = loader.batches(job(&request, &reader), 0, 0);
            let mut rows = Vec::new();
            let error = loop {
                match batches.next().await.unwrap() {
                    Ok((meta, _)) => rows.push(meta.rows),
                    Err(error) => break error.to_string(),
                }
            };
            assert!(error.contains("Divide by zero"), "{error}");
            outcomes.push((disk_writes, decode_rows, rows));
        }
    }
    for (disk_writes, decode_rows, rows) in outcomes {
        assert_eq!(rows, [700, 700], "{disk_writes:?}, {decode_rows} rows per chunk");
    }
}

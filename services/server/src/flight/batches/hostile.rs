//! Messages that are small but would take much memory or time to decode. The load tests send them to a server.

use arrow_flight::FlightData;
use arrow_ipc::{
    BodyCompression, BodyCompressionArgs, Buffer, DictionaryBatch, DictionaryBatchArgs, Field, FieldArgs,
    FieldNode, Int, IntArgs, List, ListArgs, Message, MessageArgs, MessageHeader, MetadataVersion,
    RecordBatch, RecordBatchArgs, Schema, SchemaArgs, Type,
};
use bytes::Bytes;
use flatbuffers::{FlatBufferBuilder, UnionWIPOffset, WIPOffset};

/// Number of columns, and bytes of their shared buffer, of the batches with shared buffers.
const SHARED: (usize, usize) = (10_000, 8 << 20);

/// Names of hostile streams, and the messages of each. The first column of every schema is `id`.
pub(crate) fn family() -> Vec<(&'static str, Vec<FlightData>)> {
    let header = |header| FlightData::new().with_data_header(header);
    let (columns, bytes) = SHARED;
    let rows = (bytes / 8) as i64;
    let numbers = [(0, 0), (0, bytes as i64)].repeat(columns);
    let texts = [(0, 0), (bytes as i64, 8), (0, bytes as i64)].repeat(columns);
    let mut body = vec![b'a'; bytes + 8];
    let nodes = |length: i64, nulls: i64| vec![(length, nulls); columns];
    let offsets = [0_i32.to_le_bytes(), (bytes as i32).to_le_bytes()].concat();
    body[bytes..].copy_from_slice(&offsets);
    let views = [&(1_u32 << 20).to_le_bytes()[..], b"aaaa", &[0; 8]].concat().repeat(10_000);
    let view_bytes = views.len() as i64;
    let views = [views, vec![b'a'; 1 << 20]].concat();
    vec![
        (
            "shared numbers",
            vec![plain(Type::Int, columns), batch(rows, &nodes(rows, 0), &numbers, body.clone())],
        ),
        ("shared texts", vec![plain(Type::Utf8, columns), batch(1, &nodes(1, 0), &texts, body)]),
        (
            "shared views",
            vec![
                plain(Type::Utf8View, 1),
                batch_with(
                    10_000,
                    &[(10_000, 0)],
                    &[(0, 0), (0, view_bytes), (view_bytes, 1 << 20)],
                    &[1],
                    views,
                ),
            ],
        ),
        (
            "nulls without end",
            vec![plain(Type::Null, columns), batch(1, &nodes(1 << 40, 1 << 40), &[], vec![])],
        ),
        ("shared name", vec![header(aliased_names(15_000, 64 << 10))]),
        ("shared children", vec![header(aliased_children(60))]),
        ("compressed", vec![plain(Type::Int, 1), compressed(1 << 40)]),
        ("dictionaries", vec![plain(Type::Int, 1), header(dictionary(7))]),
        ("tiny batches", {
            let tiny = batch(0, &nodes(0, 0), &[(0, 0); 2].repeat(columns), vec![]);
            [vec![plain(Type::Int, columns)], vec![tiny; 40]].concat()
        }),
    ]
}

/// A schema of `count` columns of one type without children. The first one is `id`, the others have no names.
pub(crate) fn plain(type_type: Type, count: usize) -> FlightData {
    let mut builder = FlatBufferBuilder::new();
    let fields: Vec<_> = (0..count)
        .map(|number| {
            let name = (number == 0).then(|| builder.create_string("id"));
            // The table of a type without parameters is empty, as that of a list.
            let type_ = match type_type {
                Type::Int => {
                    Int::create(&mut builder, &IntArgs { bitWidth: 64, is_signed: true }).as_union_value()
                }
                _ => List::create(&mut builder, &ListArgs {}).as_union_value(),
            };
            let children = Some(builder.create_vector::<WIPOffset<Field<'_>>>(&[]));
            let field = FieldArgs { name, type_type, type_: Some(type_), children, ..FieldArgs::default() };
            Field::create(&mut builder, &field)
        })
        .collect();
    FlightData::new().with_data_header(schema(builder, &fields))
}

/// A batch of one compressed buffer that claims to have `length` bytes.
fn compressed(length: i64) -> FlightData {
    let mut builder = FlatBufferBuilder::new();
    let compression = BodyCompression::create(&mut builder, &BodyCompressionArgs::default());
    let body = [&length.to_le_bytes()[..], &[0; 8]].concat();
    let args = RecordBatchArgs {
        length: 1,
        nodes: Some(builder.create_vector(&[FieldNode::new(1, 0)])),
        buffers: Some(builder.create_vector(&[Buffer::new(0, 0), Buffer::new(0, body.len() as i64)])),
        compression: Some(compression),
        variadicBufferCounts: None,
    };
    let batch = RecordBatch::create(&mut builder, &args).as_union_value();
    let header = message(builder, MessageHeader::RecordBatch, batch, body.len() as i64);
    FlightData::new().with_data_header(header).with_data_body(body)
}

/// The values of dictionary `id`.
fn dictionary(id: i64) -> Bytes {
    let mut builder = FlatBufferBuilder::new();
    let data = Some(RecordBatch::create(&mut builder, &RecordBatchArgs::default()));
    let args = DictionaryBatchArgs { id, data, isDelta: false };
    let batch = DictionaryBatch::create(&mut builder, &args).as_union_value();
    message(builder, MessageHeader::DictionaryBatch, batch, 0)
}

/// A schema of `count` columns that share one field, whose name has `bytes` bytes.
pub(crate) fn aliased_names(count: usize, bytes: usize) -> Bytes {
    let mut builder = FlatBufferBuilder::new();
    let name = builder.create_string(&"x".repeat(bytes));
    let int = Int::create(&mut builder, &IntArgs { bitWidth: 64, is_signed: true }).as_union_value();
    let field =
        FieldArgs { name: Some(name), type_type: Type::Int, type_: Some(int), ..FieldArgs::default() };
    let field = Field::create(&mut builder, &field);
    schema(builder, &vec![field; count])
}

/// A schema of one column whose lists share their children: each level has two of the next one, for `depth` levels.
pub(crate) fn aliased_children(depth: usize) -> Bytes {
    let mut builder = FlatBufferBuilder::new();
    let int = Int::create(&mut builder, &IntArgs { bitWidth: 64, is_signed: true }).as_union_value();
    let leaf = FieldArgs { type_type: Type::Int, type_: Some(int), ..FieldArgs::default() };
    let mut field = Field::create(&mut builder, &leaf);
    for _ in 0..depth {
        let children = Some(builder.create_vector(&[field, field]));
        let list = List::create(&mut builder, &ListArgs {}).as_union_value();
        let args =
            FieldArgs { type_type: Type::Struct_, type_: Some(list), children, ..FieldArgs::default() };
        field = Field::create(&mut builder, &args);
    }
    schema(builder, &[field])
}

fn schema<'a>(mut builder: FlatBufferBuilder<'a>, fields: &[WIPOffset<Field<'a>>]) -> Bytes {
    let fields = Some(builder.create_vector(fields));
    let schema = Schema::create(&mut builder, &SchemaArgs { fields, ..SchemaArgs::default() });
    message(builder, MessageHeader::Schema, schema.as_union_value(), 0)
}

/// A batch of `rows` rows with these nodes, as (length, nulls), and buffers, as (offset, length).
pub(crate) fn batch(rows: i64, nodes: &[(i64, i64)], buffers: &[(i64, i64)], body: Vec<u8>) -> FlightData {
    batch_with(rows, nodes, buffers, &[], body)
}

/// As [`batch`], with numbers of buffers of views.
pub(crate) fn batch_with(
    rows: i64,
    nodes: &[(i64, i64)],
    buffers: &[(i64, i64)],
    variadic: &[i64],
    body: Vec<u8>,
) -> FlightData {
    let mut builder = FlatBufferBuilder::new();
    let nodes: Vec<_> = nodes.iter().map(|(length, nulls)| FieldNode::new(*length, *nulls)).collect();
    let buffers: Vec<_> = buffers.iter().map(|(offset, length)| Buffer::new(*offset, *length)).collect();
    let args = RecordBatchArgs {
        length: rows,
        nodes: Some(builder.create_vector(&nodes)),
        buffers: Some(builder.create_vector(&buffers)),
        compression: None,
        variadicBufferCounts: (!variadic.is_empty()).then(|| builder.create_vector(variadic)),
    };
    let batch = RecordBatch::create(&mut builder, &args).as_union_value();
    let header = message(builder, MessageHeader::RecordBatch, batch, body.len() as i64);
    FlightData::new().with_data_header(header).with_data_body(body)
}

fn message(
    mut builder: FlatBufferBuilder<'_>,
    header_type: MessageHeader,
    header: WIPOffset<UnionWIPOffset>,
    body_length: i64,
) -> Bytes {
    let args = MessageArgs {
        version: MetadataVersion::V5,
        header_type,
        header: Some(header),
        bodyLength: body_length,
        custom_metadata: None,
    };
    let message = Message::create(&mut builder, &args);
    builder.finish_minimal(message);
    builder.finished_data().to_vec().into()
}

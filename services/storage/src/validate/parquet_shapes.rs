//! Thrift shapes of the Parquet metadata that the decoder reads, from `parquet.thrift`.
//!
//! <https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift>

use crate::validate::thrift::{Shape, Shape::Struct};

const TIME: Shape =
    Struct(&[(1, Shape::BOOL), (2, Struct(&[(1, Shape::EMPTY), (2, Shape::EMPTY), (3, Shape::EMPTY)]))]);

const LOGICAL_TYPE: Shape = Struct(&[
    (1, Shape::EMPTY),
    (2, Shape::EMPTY),
    (3, Shape::EMPTY),
    (4, Shape::EMPTY),
    (5, Struct(&[(1, Shape::INT), (2, Shape::INT)])),
    (6, Shape::EMPTY),
    (7, TIME),
    (8, TIME),
    (10, Struct(&[(1, Shape::BYTE), (2, Shape::BOOL)])),
    (11, Shape::EMPTY),
    (12, Shape::EMPTY),
    (13, Shape::EMPTY),
    (14, Shape::EMPTY),
    (15, Shape::EMPTY),
    (16, Struct(&[(1, Shape::BYTE)])),
    (17, Struct(&[(1, Shape::BINARY)])),
    (18, Struct(&[(1, Shape::BINARY), (2, Shape::INT)])),
]);

const SCHEMA_ELEMENT: Shape = Struct(&[
    (1, Shape::INT),
    (2, Shape::INT),
    (3, Shape::INT),
    (4, Shape::BINARY),
    (NUM_CHILDREN, Shape::INT),
    (6, Shape::INT),
    (7, Shape::INT),
    (8, Shape::INT),
    (9, Shape::INT),
    (10, LOGICAL_TYPE),
]);

const KEY_VALUE: Shape = Struct(&[(1, Shape::BINARY), (2, Shape::BINARY)]);

const STATISTICS: Shape = Struct(&[
    (1, Shape::BINARY),
    (2, Shape::BINARY),
    (3, Shape::INT),
    (4, Shape::INT),
    (5, Shape::BINARY),
    (6, Shape::BINARY),
    (7, Shape::BOOL),
    (8, Shape::BOOL),
]);

const BOUNDING_BOX: Shape = Struct(&[
    (1, Shape::DOUBLE),
    (2, Shape::DOUBLE),
    (3, Shape::DOUBLE),
    (4, Shape::DOUBLE),
    (5, Shape::DOUBLE),
    (6, Shape::DOUBLE),
    (7, Shape::DOUBLE),
    (8, Shape::DOUBLE),
]);

const COLUMN_METADATA: Shape = Struct(&[
    (1, Shape::INT),
    (2, Shape::List(&Shape::INT)),
    (3, Shape::List(&Shape::BINARY)),
    (4, Shape::INT),
    (5, Shape::INT),
    (6, Shape::INT),
    (7, Shape::INT),
    (8, Shape::List(&KEY_VALUE)),
    (9, Shape::INT),
    (10, Shape::INT),
    (11, Shape::INT),
    (12, STATISTICS),
    (13, Shape::List(&Struct(&[(1, Shape::INT), (2, Shape::INT), (3, Shape::INT)]))),
    (14, Shape::INT),
    (15, Shape::INT),
    (16, Struct(&[(1, Shape::INT), (2, Shape::List(&Shape::INT)), (3, Shape::List(&Shape::INT))])),
    (17, Struct(&[(1, BOUNDING_BOX), (2, Shape::List(&Shape::INT))])),
]);

const COLUMN_CHUNK: Shape = Struct(&[
    (1, Shape::BINARY),
    (2, Shape::INT),
    (3, COLUMN_METADATA),
    (4, Shape::INT),
    (5, Shape::INT),
    (6, Shape::INT),
    (7, Shape::INT),
    (COLUMN_CRYPTO, Shape::EMPTY),
    (9, Shape::BINARY),
]);

const ROW_GROUP: Shape = Struct(&[
    (COLUMNS, Shape::List(&COLUMN_CHUNK)),
    (2, Shape::INT),
    (3, Shape::INT),
    (4, Shape::List(&Struct(&[(1, Shape::INT), (2, Shape::BOOL), (3, Shape::BOOL)]))),
    (5, Shape::INT),
    (6, Shape::INT),
    (7, Shape::INT),
]);

const COLUMN_ORDER: Shape = Struct(&[(1, Shape::EMPTY), (2, Shape::EMPTY)]);

/// `FileMetaData`: the footer.
pub(crate) const FILE_METADATA: Shape = Struct(&[
    (1, Shape::INT),
    (SCHEMA, Shape::List(&SCHEMA_ELEMENT)),
    (3, Shape::INT),
    (ROW_GROUPS, Shape::List(&ROW_GROUP)),
    (5, Shape::List(&KEY_VALUE)),
    (6, Shape::BINARY),
    (7, Shape::List(&COLUMN_ORDER)),
    (ENCRYPTION, Shape::EMPTY),
    (9, Shape::BINARY),
]);

/// `FileMetaData.schema`.
pub(crate) const SCHEMA: i16 = 2;
/// `FileMetaData.row_groups`.
pub(crate) const ROW_GROUPS: i16 = 4;
/// `FileMetaData.encryption_algorithm`.
pub(crate) const ENCRYPTION: i16 = 8;
/// `SchemaElement.num_children`.
pub(crate) const NUM_CHILDREN: i16 = 5;
/// `RowGroup.columns`.
pub(crate) const COLUMNS: i16 = 1;
/// `ColumnChunk.crypto_metadata`.
pub(crate) const COLUMN_CRYPTO: i16 = 8;

/// `PageHeader`, without the statistics, which are not used.
pub(crate) const PAGE_HEADER: Shape = Struct(&[
    (1, Shape::INT),
    (2, Shape::INT),
    (3, Shape::INT),
    (4, Shape::INT),
    (5, Struct(&[(1, Shape::INT), (2, Shape::INT), (3, Shape::INT), (4, Shape::INT)])),
    (6, Shape::EMPTY),
    (7, Struct(&[(1, Shape::INT), (2, Shape::INT), (3, Shape::BOOL)])),
    (
        8,
        Struct(&[
            (1, Shape::INT),
            (2, Shape::INT),
            (3, Shape::INT),
            (4, Shape::INT),
            (5, Shape::INT),
            (6, Shape::INT),
            (7, Shape::BOOL),
        ]),
    ),
]);

/// `ColumnIndex`: statistics of each page of a column chunk.
pub(crate) const COLUMN_INDEX: Shape = Struct(&[
    (1, Shape::List(&Shape::BOOL)),
    (2, Shape::List(&Shape::BINARY)),
    (3, Shape::List(&Shape::BINARY)),
    (4, Shape::INT),
    (5, Shape::List(&Shape::INT)),
    (6, Shape::List(&Shape::INT)),
    (7, Shape::List(&Shape::INT)),
]);

/// `OffsetIndex`: position of each page of a column chunk.
pub(crate) const OFFSET_INDEX: Shape = Struct(&[
    (1, Shape::List(&Struct(&[(1, Shape::INT), (2, Shape::INT), (3, Shape::INT)]))),
    (2, Shape::List(&Shape::INT)),
]);

/// `BloomFilterHeader`, which precedes the bits of a filter.
pub(crate) const BLOOM_FILTER_HEADER: Shape =
    Struct(&[(1, Shape::INT), (2, Shape::EMPTY), (3, Shape::EMPTY), (4, Shape::EMPTY)]);

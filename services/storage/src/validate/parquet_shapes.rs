//! Thrift shapes of the Parquet metadata that the decoder reads, from `parquet.thrift`. Fields are listed by their ids, from 1.
//!
//! <https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift>

use crate::validate::thrift::{
    BINARY, BOOL, BYTE, DOUBLE, EMPTY, INT,
    Shape::{self, Any, List, Struct},
};

const INTS: Shape = List(&INT);
const BINARIES: Shape = List(&BINARY);

const DECIMAL: Shape = Struct(&[INT, INT]);
const TIME: Shape = Struct(&[BOOL, Struct(&[EMPTY, EMPTY, EMPTY])]);
const INTEGER: Shape = Struct(&[BYTE, BOOL]);
const VARIANT: Shape = Struct(&[BYTE]);
const GEOMETRY: Shape = Struct(&[BINARY]);
const GEOGRAPHY: Shape = Struct(&[BINARY, INT]);

const LOGICAL_TYPE: Shape = Struct(&[
    EMPTY, EMPTY, EMPTY, EMPTY, DECIMAL, EMPTY, TIME, TIME, Any, INTEGER, EMPTY, EMPTY, EMPTY, EMPTY, EMPTY,
    VARIANT, GEOMETRY, GEOGRAPHY,
]);

const SCHEMA_ELEMENT: Shape = Struct(&[INT, INT, INT, BINARY, INT, INT, INT, INT, INT, LOGICAL_TYPE]);

const KEY_VALUE: Shape = Struct(&[BINARY, BINARY]);
const KEY_VALUES: Shape = List(&KEY_VALUE);

const STATISTICS: Shape = Struct(&[BINARY, BINARY, INT, INT, BINARY, BINARY, BOOL, BOOL]);
const ENCODINGS: Shape = List(&Struct(&[INT, INT, INT]));
const SIZES: Shape = Struct(&[INT, INTS, INTS]);
const BOUNDING_BOX: Shape = Struct(&[DOUBLE, DOUBLE, DOUBLE, DOUBLE, DOUBLE, DOUBLE, DOUBLE, DOUBLE]);
const GEOSPATIAL: Shape = Struct(&[BOUNDING_BOX, INTS]);

const COLUMN_METADATA: Shape = Struct(&[
    INT, INTS, BINARIES, INT, INT, INT, INT, KEY_VALUES, INT, INT, INT, STATISTICS, ENCODINGS, INT, INT,
    SIZES, GEOSPATIAL,
]);

const COLUMN_CHUNK: Shape = Struct(&[BINARY, INT, COLUMN_METADATA, INT, INT, INT, INT, EMPTY, BINARY]);

const SORTING: Shape = List(&Struct(&[INT, BOOL, BOOL]));
const ROW_GROUP: Shape = Struct(&[List(&COLUMN_CHUNK), INT, INT, SORTING, INT, INT, INT]);

const COLUMN_ORDER: Shape = Struct(&[EMPTY, EMPTY]);

/// `FileMetaData`: the footer.
pub(crate) const FILE_METADATA: Shape = Struct(&[
    INT,
    List(&SCHEMA_ELEMENT),
    INT,
    List(&ROW_GROUP),
    KEY_VALUES,
    BINARY,
    List(&COLUMN_ORDER),
    EMPTY,
    BINARY,
]);

/// `FileMetaData.schema`.
pub(crate) const SCHEMA: i16 = 2;
/// `FileMetaData.row_groups`.
pub(crate) const ROW_GROUPS: i16 = 4;
/// `FileMetaData.key_value_metadata`.
pub(crate) const KEY_VALUE_METADATA: i16 = 5;
/// `FileMetaData.created_by`.
pub(crate) const CREATED_BY: i16 = 6;
/// `FileMetaData.encryption_algorithm`.
pub(crate) const ENCRYPTION: i16 = 8;
/// `SchemaElement.name`.
pub(crate) const NAME: i16 = 4;
/// `SchemaElement.num_children`.
pub(crate) const NUM_CHILDREN: i16 = 5;
/// `RowGroup.columns`.
pub(crate) const COLUMNS: i16 = 1;
/// `ColumnChunk.meta_data`.
pub(crate) const COLUMN_METADATA_OF_CHUNK: i16 = 3;
/// `ColumnMetaData.codec`.
pub(crate) const CODEC: i16 = 4;
/// `ColumnChunk.crypto_metadata`.
pub(crate) const COLUMN_CRYPTO: i16 = 8;

const DATA_PAGE: Shape = Struct(&[INT, INT, INT, INT]);
const DICTIONARY_PAGE: Shape = Struct(&[INT, INT, BOOL]);
const DATA_PAGE_V2: Shape = Struct(&[INT, INT, INT, INT, INT, INT, BOOL]);

/// `PageHeader`, without the statistics, which are not used.
pub(crate) const PAGE_HEADER: Shape =
    Struct(&[INT, INT, INT, INT, DATA_PAGE, EMPTY, DICTIONARY_PAGE, DATA_PAGE_V2]);

/// `ColumnIndex`: statistics of each page of a column chunk.
pub(crate) const COLUMN_INDEX: Shape = Struct(&[List(&BOOL), BINARIES, BINARIES, INT, INTS, INTS, INTS]);

/// `OffsetIndex`: position of each page of a column chunk.
pub(crate) const OFFSET_INDEX: Shape = Struct(&[List(&Struct(&[INT, INT, INT])), INTS]);

/// `BloomFilterHeader`, which precedes the bits of a filter.
pub(crate) const BLOOM_FILTER_HEADER: Shape = Struct(&[INT, EMPTY, EMPTY, EMPTY]);

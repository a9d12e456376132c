//! Names of sections on disk.

use arrow_schema::Field;
use forebay_sql::{COMPUTED_BY, Identity};

/// Version of the format of sections on disk and of their names.
const SECTION_VERSION: u32 = 4;
/// Versions of the libraries that decode Parquet. A test compares them with `Cargo.lock`.
const DECODED_BY: &str = "arrow 59.3.2, parquet 59.3.2";

/// Everything that determines the bytes of a section, except its column and its block.
pub(super) struct SectionNames {
    decoded_by: &'static str,
    computed_by: &'static str,
    decode_rows: usize,
}

impl SectionNames {
    /// Names of the sections that this version writes, in chunks of `decode_rows` rows.
    pub(super) fn new(decode_rows: usize) -> Self {
        Self { decoded_by: DECODED_BY, computed_by: COMPUTED_BY, decode_rows }
    }

    /// Name of a stored column's section: a hash of everything that determines its bytes except the block.
    pub(super) fn stored(&self, field: &Field) -> u128 {
        Identity::new("stored column", SECTION_VERSION)
            .text(field.name())
            .data_type(field.data_type())
            .text(self.decoded_by)
            .number(self.decode_rows as u64)
            .hash()
    }

    /// Name of a computed column's section. The identity of the expression includes the types of its inputs.
    pub(super) fn computed(&self, expression: u128) -> u128 {
        Identity::new("computed column", SECTION_VERSION)
            .part(expression)
            .text(self.decoded_by)
            .text(self.computed_by)
            .number(self.decode_rows as u64)
            .hash()
    }
}

#[cfg(test)]
mod tests {
    use arrow_schema::DataType;

    use super::*;

    /// Versions that no upgrade changes. An upgrade changes `DECODED_BY` or `COMPUTED_BY`, and no golden name.
    const NAMES: SectionNames = SectionNames {
        decoded_by: "arrow 1.2.3, parquet 1.2.4",
        computed_by: "arrow 1.2.3, datafusion 1.2.5",
        decode_rows: 8192,
    };

    #[test]
    fn the_name_of_a_section_on_disk_is_frozen() {
        let stored = NAMES.stored(&Field::new("delay", DataType::Float32, true));
        let computed = NAMES.computed(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        assert_eq!(
            format!("version {SECTION_VERSION}: {stored:032x} {computed:032x}"),
            "version 4: fde5fdf115a3bc664839c2a0733be04e bd41654a385cbb719f681b4bb3721603",
            "another name requires another SECTION_VERSION"
        );
    }

    #[test]
    fn an_upgrade_of_a_library_or_another_chunk_size_changes_the_names() {
        let field = Field::new("delay", DataType::Float32, true);
        let decoded = SectionNames { decoded_by: "arrow 1.2.4, parquet 1.2.4", ..NAMES };
        let computed = SectionNames { computed_by: "arrow 1.2.3, datafusion 1.2.6", ..NAMES };
        let chunks = SectionNames { decode_rows: 4096, ..NAMES };
        for names in [&decoded, &chunks] {
            assert_ne!(names.stored(&field), NAMES.stored(&field));
        }
        for names in [&decoded, &computed, &chunks] {
            assert_ne!(names.computed(7), NAMES.computed(7));
        }
    }

    #[test]
    fn the_versions_of_the_libraries_in_names_are_those_of_the_lock_file() {
        let lock = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock");
        let lock = std::fs::read_to_string(lock).unwrap();
        let version = |name: &str| {
            let start = lock.find(&format!("name = \"{name}\"\n")).unwrap();
            lock[start..].split('"').nth(3).unwrap().to_owned()
        };
        let expected = format!("arrow {}, parquet {}", version("arrow-array"), version("parquet"));
        assert_eq!(DECODED_BY, expected, "update DECODED_BY, which invalidates decoded columns on disk");
        let names = SectionNames::new(1);
        assert_eq!((names.decoded_by, names.computed_by), (DECODED_BY, COMPUTED_BY));
    }
}

//! Names of sections on disk.

use arrow_schema::Field;
use forebay_sql::{COMPUTED_BY, Identity};

/// Version of the format of sections on disk and of their names.
const SECTION_VERSION: u32 = 5;
/// Versions of the libraries that decode Parquet. A test compares them with `Cargo.lock`.
const DECODED_BY: &str = "arrow 59.3.2, parquet 59.3.2";

/// Everything that determines the values of a section, except its column and its block. A section holds its values in chunks,
/// whose sizes are no part of the name: columns with other chunks are split at the same rows when they are read.
pub(super) struct SectionNames {
    decoded_by: &'static str,
    computed_by: &'static str,
}

impl SectionNames {
    /// Names of the sections that this version writes.
    pub(super) fn new() -> Self {
        Self { decoded_by: DECODED_BY, computed_by: COMPUTED_BY }
    }

    /// Name of a stored column's section: a hash of everything that determines its values except the block.
    pub(super) fn stored(&self, field: &Field) -> u128 {
        Identity::new("stored column", SECTION_VERSION)
            .text(field.name())
            .data_type(field.data_type())
            .text(self.decoded_by)
            .hash()
    }

    /// Name of a computed column's section. The identity of the expression includes the types of its inputs.
    pub(super) fn computed(&self, expression: u128) -> u128 {
        Identity::new("computed column", SECTION_VERSION)
            .part(expression)
            .text(self.decoded_by)
            .text(self.computed_by)
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
    };

    #[test]
    fn the_name_of_a_section_on_disk_is_frozen() {
        let stored = NAMES.stored(&Field::new("delay", DataType::Float32, true));
        let computed = NAMES.computed(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        assert_eq!(
            format!("version {SECTION_VERSION}: {stored:032x} {computed:032x}"),
            "version 5: 42887af534245be2c980feddf88c90be c63cf369e16e49b27ac3edc7b7690606",
            "another name requires another SECTION_VERSION"
        );
    }

    #[test]
    fn an_upgrade_of_a_library_changes_the_names() {
        let field = Field::new("delay", DataType::Float32, true);
        let decoded = SectionNames { decoded_by: "arrow 1.2.4, parquet 1.2.4", ..NAMES };
        let computed = SectionNames { computed_by: "arrow 1.2.3, datafusion 1.2.6", ..NAMES };
        assert_ne!(decoded.stored(&field), NAMES.stored(&field));
        for names in [&decoded, &computed] {
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
        let names = SectionNames::new();
        assert_eq!((names.decoded_by, names.computed_by), (DECODED_BY, COMPUTED_BY));
    }
}

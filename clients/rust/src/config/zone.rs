//! Zones of clients.

use tonic::metadata::{Ascii, MetadataValue};

use crate::Error;

/// Maximum length of a zone.
const MAX_ZONE_BYTES: usize = 64;

/// Returns the value of the header for `zone`.
///
/// # Errors
/// [`Error::Request`] if a server would reject the zone.
pub(crate) fn zone_header(zone: &str) -> Result<MetadataValue<Ascii>, Error> {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_plain = (1..=MAX_ZONE_BYTES).contains(&zone.len()) && zone.bytes().all(is_legal);
    let value = zone.parse().ok().filter(|_| is_plain);
    value.ok_or_else(|| {
        Error::Request(format!(
            "zone: '{}' is not a zone, expected 1 to {MAX_ZONE_BYTES} letters, digits, '-', '_' and '.'",
            zone.escape_debug()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_consists_of_letters_digits_and_a_few_signs() {
        assert_eq!(zone_header("eu-central-1a").unwrap(), "eu-central-1a");
        for zone in ["", "a b", "a/b", "a\nb", "zürich"] {
            assert!(zone_header(zone).unwrap_err().to_string().starts_with("zone: '"), "{zone}");
        }
    }
}

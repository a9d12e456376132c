//! Keys of caches that several callers share.

use ring::digest::{SHA256, digest};

/// Key of what `bytes` describes: the first 128 bits of their SHA-256.
///
/// Callers choose the expressions in such bytes, and writers of data the paths and ETags. Other bytes with the same XXH3 can
/// be constructed, so that a cache would return the values of another file or request.
pub fn cache_key(bytes: &[u8]) -> u128 {
    let hash = digest(&SHA256, bytes);
    let (first, _) = hash.as_ref().split_first_chunk::<16>().expect("SHA-256 has 32 bytes");
    u128::from_le_bytes(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_start_of_the_sha_256() {
        // The first test vector of FIPS 180-2.
        let expected = u128::from_str_radix("ba7816bf8f01cfea414140de5dae2223", 16).unwrap();
        assert_eq!(cache_key(b"abc"), expected.swap_bytes());
    }
}

//! Decompressed size of LZ4 frames, computed without decompressing them.
//!
//! <https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md>

const MAGIC: [u8; 4] = 0x184D_2204_u32.to_le_bytes();
/// Magic of frames that consist of blocks only.
const LEGACY_MAGIC: [u8; 4] = 0x184C_2102_u32.to_le_bytes();

/// Version 01 in the upper bits of the flags.
const VERSION_MASK: u8 = 0b1100_0000;
const VERSION: u8 = 0b0100_0000;
const BLOCK_CHECKSUMS: u8 = 0b0001_0000;
const CONTENT_SIZE: u8 = 0b0000_1000;
const DICTIONARY_ID: u8 = 0b0000_0001;

/// Bit of the size of a block that is stored as it is.
const STORED: u32 = 1 << 31;

/// Maximum expansion of one byte of an LZ4 block.
const RATIO: u64 = 255;

/// Size in bytes to which a decoder decompresses the first frame of a page. 0 if the page does not begin with a frame.
///
/// The decoder stops at an incomplete block. Therefore only the blocks before it count.
pub(super) fn decompressed_bytes(page: &[u8]) -> u64 {
    let Some((mut rest, has_checksums)) = blocks(page) else { return 0 };
    let mut total = 0_u64;
    while let Some((block, is_stored, after)) = next_block(rest) {
        let length = block.len() as u64;
        let upper_bound = || length.saturating_mul(RATIO);
        let bytes = if is_stored { length } else { block_bytes(block).unwrap_or_else(upper_bound) };
        total = total.saturating_add(bytes);
        let checksum = if has_checksums { 4 } else { 0 };
        rest = after.get(checksum..).unwrap_or_default();
    }
    total
}

/// Returns the bytes after the header of a frame, and whether every block has a checksum.
fn blocks(page: &[u8]) -> Option<(&[u8], bool)> {
    let (magic, rest) = page.split_first_chunk::<4>()?;
    if *magic == LEGACY_MAGIC {
        return Some((rest, false));
    }
    // The flags, the maximum size of a block, two optional fields and a checksum.
    let (flags, _) = rest.split_first()?;
    if *magic != MAGIC || flags & VERSION_MASK != VERSION {
        return None;
    }
    let content_size = if flags & CONTENT_SIZE != 0 { 8 } else { 0 };
    let dictionary_id = if flags & DICTIONARY_ID != 0 { 4 } else { 0 };
    Some((rest.get(3 + content_size + dictionary_id..)?, flags & BLOCK_CHECKSUMS != 0))
}

/// Returns a block, whether it is stored as it is, and the bytes after it. `None` at the end of the frame.
fn next_block(bytes: &[u8]) -> Option<(&[u8], bool, &[u8])> {
    let (size, rest) = bytes.split_first_chunk::<4>()?;
    let size = u32::from_le_bytes(*size);
    if size == 0 {
        return None;
    }
    let (block, after) = rest.split_at_checked((size & !STORED) as usize)?;
    Some((block, size & STORED != 0, after))
}

/// Decompressed size in bytes of a compressed block; `None` if it is malformed.
fn block_bytes(mut block: &[u8]) -> Option<u64> {
    let mut total = 0;
    loop {
        let (token, rest) = block.split_first()?;
        block = rest;
        let literals = length(token >> 4, &mut block)?;
        total += literals;
        block = block.get(usize::try_from(literals).ok()?..)?;
        if block.is_empty() {
            return Some(total);
        }
        // The distance of the bytes that are repeated.
        block = block.get(2..)?;
        total += 4 + length(token & 0x0f, &mut block)?;
    }
}

/// Reads a length that begins with 4 bits of the token.
fn length(first: u8, block: &mut &[u8]) -> Option<u64> {
    let mut total = u64::from(first);
    let mut has_more = first == 15;
    while has_more {
        let (byte, rest) = block.split_first()?;
        *block = rest;
        total += u64::from(*byte);
        has_more = *byte == u8::MAX;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block of `1 + 4 + 15 + 255 * long + 7 + 2` bytes.
    fn block(long: usize) -> Vec<u8> {
        [&[0x1f, 0, 1, 0][..], &vec![255; long], &[7, 0x20, 8, 9]].concat()
    }

    fn frame(flags: u8, fields: &[u8], blocks: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = [&MAGIC[..], &[flags, 0x40], fields, &[0]].concat();
        for block in blocks {
            bytes.extend(u32::try_from(block.len()).unwrap().to_le_bytes());
            bytes.extend(block);
            if flags & BLOCK_CHECKSUMS != 0 {
                bytes.extend([0; 4]);
            }
        }
        bytes.extend([0; 4]);
        bytes
    }

    #[test]
    fn blocks_are_summed() {
        assert_eq!(block_bytes(&block(0)), Some(29));
        let (none, fields) = ([], [0; 12]);
        assert_eq!(decompressed_bytes(&frame(VERSION, &none, &[block(0), block(3)])), 2 * 29 + 3 * 255);
        let flags = VERSION | BLOCK_CHECKSUMS | CONTENT_SIZE | DICTIONARY_ID;
        assert_eq!(decompressed_bytes(&frame(flags, &fields, &[block(0), block(3)])), 2 * 29 + 3 * 255);
    }

    #[test]
    fn legacy_frames_and_stored_blocks_are_counted() {
        let block = block(1);
        let size = u32::try_from(block.len()).unwrap();
        let legacy = [&LEGACY_MAGIC[..], &size.to_le_bytes(), &block].concat();
        assert_eq!(decompressed_bytes(&legacy), 29 + 255);
        let stored = [&LEGACY_MAGIC[..], &(size | STORED).to_le_bytes(), &block].concat();
        assert_eq!(decompressed_bytes(&stored), u64::from(size));
    }

    #[test]
    fn a_malformed_block_counts_as_its_largest_expansion() {
        let mut malformed = block(2);
        malformed.truncate(6);
        assert_eq!(block_bytes(&malformed), None);
        assert_eq!(decompressed_bytes(&frame(VERSION, &[], &[malformed])), 6 * RATIO);
    }

    #[test]
    fn bytes_after_an_incomplete_block_do_not_count() {
        let bytes = frame(VERSION, &[], &[block(0), block(3)]);
        assert_eq!(decompressed_bytes(&bytes[..bytes.len() - 6]), 29);
        for length in 0..11 {
            assert_eq!(decompressed_bytes(&bytes[..length]), 0);
        }
        assert_eq!(decompressed_bytes(&[7; 100]), 0);
    }
}

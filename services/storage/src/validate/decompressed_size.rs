//! Check of the decompressed size of pages, for codecs whose decoder has no output limit.
//!
//! With such a codec a small page can decompress to any size.

use std::io::{self, Read};

use parquet::basic::Compression;

mod lz4_frame;

/// Maximum expansion of one byte of deflate data.
const DEFLATE_RATIO: u64 = 1032;

/// True if a page decompresses to at most `expected` bytes, or is so short that it cannot exceed `tolerated` bytes.
///
/// Where the length of the page is not sufficient to decide, the page is decompressed and discarded: every brotli page
/// and large gzip pages. The decoder of `LZ4` also accepts LZ4 frames, whose size follows from their structure. Other
/// codecs decompress into a buffer of the expected size.
pub(crate) fn fits(codec: Compression, compressed: &[u8], expected: u64, tolerated: u64) -> bool {
    match codec {
        Compression::BROTLI(_) => ends_within(brotli::Decompressor::new(compressed, 4096), expected),
        Compression::GZIP(_) if compressed.len() as u64 > tolerated / DEFLATE_RATIO => {
            ends_within(flate2::read::MultiGzDecoder::new(compressed), expected)
        }
        Compression::LZ4 => lz4_frame::decompressed_bytes(compressed) <= expected,
        _ => true,
    }
}

/// True if a page is a brotli stream with a large window. Its decoder allocates the window, up to 1 GiB, before it decodes.
///
/// RFC 7932 has windows of at most 16 MiB, and reserves the code that introduces larger ones: 1000 in the first four bits,
/// the lowest first, and 100 in the next three.
pub(crate) fn has_large_window(codec: Compression, compressed: &[u8]) -> bool {
    matches!(codec, Compression::BROTLI(_)) && compressed.first().is_some_and(|first| first & 0x7f == 0x11)
}

/// True if the stream ends within `expected` bytes. A decompression error also counts as an end; the decoder reports
/// it.
fn ends_within(mut decompressed: impl Read, expected: u64) -> bool {
    let mut counted = decompressed.by_ref().take(expected.saturating_add(1));
    io::copy(&mut counted, &mut io::sink()).is_err() || counted.limit() > 0
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use parquet::basic::{BrotliLevel, GzipLevel};

    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn a_page_that_exceeds_its_claimed_size_is_detected() {
        let zeros = vec![0; 8 * MIB];
        let mut brotli = Vec::new();
        brotli::CompressorWriter::new(&mut brotli, 4096, 9, 22).write_all(&zeros).unwrap();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        gzip.write_all(&zeros).unwrap();
        let gzip = gzip.finish().unwrap();

        let full = zeros.len() as u64;
        let codecs = [
            (Compression::BROTLI(BrotliLevel::default()), brotli),
            (Compression::GZIP(GzipLevel::default()), gzip),
        ];
        for (codec, compressed) in codecs {
            assert!(compressed.len() < 16 << 10);
            assert!(fits(codec, &compressed, full, 0), "{codec}");
            assert!(!fits(codec, &compressed, full - 1, 0), "{codec}");
        }
    }

    #[test]
    fn only_brotli_pages_can_have_a_large_window() {
        let brotli = Compression::BROTLI(BrotliLevel::default());
        for quality in 0..=11 {
            for window in 10..=24 {
                let mut page = Vec::new();
                brotli::CompressorWriter::new(&mut page, 4096, quality, window).write_all(b"page").unwrap();
                assert!(!has_large_window(brotli, &page), "{quality}, {window}: {page:?}");
            }
        }
        let params = brotli::enc::BrotliEncoderParams { large_window: true, lgwin: 26, ..Default::default() };
        let mut page = Vec::new();
        brotli::BrotliCompress(&mut &b"page"[..], &mut page, &params).unwrap();
        assert!(has_large_window(brotli, &page), "{page:?}");
        assert!(!has_large_window(Compression::SNAPPY, &page) && !has_large_window(brotli, &[]));
    }

    #[test]
    fn small_gzip_pages_are_not_decompressed_twice() {
        assert!(fits(Compression::GZIP(GzipLevel::default()), &[0; 100], 0, 1 << 20));
        assert!(fits(Compression::SNAPPY, &[0; 100], 0, 0));
    }

    #[test]
    fn lz4_pages_of_other_formats_are_not_frames() {
        // The Hadoop format: sizes before and after compression, and a block of one literal.
        let hadoop = [0, 0, 0, 1, 0, 0, 0, 2, 0x10, 7];
        assert!(fits(Compression::LZ4, &hadoop, 1, 0));
        assert!(fits(Compression::LZ4, &hadoop[8..], 1, 0));
    }
}

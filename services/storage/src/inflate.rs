//! Codecs whose decoder stops only when its input does: a small page can be made to fill the memory.

use std::io::{self, Read};

use parquet::basic::Compression;

/// Most bytes that a byte of deflate can become.
const DEFLATE_RATIO: u64 = 1032;

/// Whether a page becomes no more than `expected` bytes, or at worst `tolerated`. Where that is not plain
/// from its length it is decompressed and thrown away: every page of brotli, the very largest of gzip.
/// The other codecs write into room of the expected size.
pub(crate) fn fits(codec: Compression, compressed: &[u8], expected: u64, tolerated: u64) -> bool {
    match codec {
        Compression::BROTLI(_) => ends_within(brotli::Decompressor::new(compressed, 4096), expected),
        Compression::GZIP(_) if compressed.len() as u64 > tolerated / DEFLATE_RATIO => {
            ends_within(flate2::read::MultiGzDecoder::new(compressed), expected)
        }
        _ => true,
    }
}

/// An error is an end, too: it is the decoder's to tell.
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
    fn a_page_that_swells_is_noticed() {
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
    fn small_pages_of_gzip_are_taken_as_they_are() {
        assert!(fits(Compression::GZIP(GzipLevel::default()), &[0; 100], 0, 1 << 20));
        assert!(fits(Compression::SNAPPY, &[0; 100], 0, 0));
    }
}

//! Where the messages of a gRPC stream begin and end.

/// Size of the prefix of a message: a flag, and the length.
pub(super) const PREFIX_BYTES: usize = 5;

/// Reader of the prefixes of the messages of a stream, which arrives in frames of any size.
#[derive(Debug, Default)]
pub(super) struct Framing {
    prefix: [u8; PREFIX_BYTES],
    /// Number of bytes of `prefix` that were read.
    prefix_bytes: usize,
    /// Number of bytes of the current message that were not read.
    missing: u64,
}

impl Framing {
    /// Reads `frame` from the byte `at` on, until the prefix of a message is complete, and returns the length of this message. Returns
    /// `None` at the end of the frame. `at` is then the first byte that was not read.
    pub(super) fn begin_next(&mut self, frame: &[u8], at: &mut usize) -> Option<u64> {
        while let Some(rest) = frame.get(*at..).filter(|rest| !rest.is_empty()) {
            if self.missing > 0 {
                let some = rest.len().min(usize::try_from(self.missing).unwrap_or(usize::MAX));
                self.missing -= some as u64;
                *at += some;
                continue;
            }
            let some = rest.len().min(PREFIX_BYTES - self.prefix_bytes);
            self.prefix[self.prefix_bytes..][..some].copy_from_slice(&rest[..some]);
            self.prefix_bytes += some;
            *at += some;
            if self.prefix_bytes == PREFIX_BYTES {
                let [_, length @ ..] = self.prefix;
                self.prefix_bytes = 0;
                self.missing = u32::from_be_bytes(length).into();
                return Some(self.missing);
            }
        }
        None
    }

    /// True if the prefix of a message was read, and the message is incomplete.
    pub(super) fn is_in_message(&self) -> bool {
        self.missing > 0
    }

    /// True if all messages that have begun are complete.
    pub(super) fn is_between_messages(&self) -> bool {
        self.missing == 0 && self.prefix_bytes == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_however_the_stream_is_split() {
        let stream: Vec<u8> = [3usize, 0, 300, 1]
            .iter()
            .flat_map(|length| {
                let prefix = [&[0][..], &u32::try_from(*length).unwrap().to_be_bytes()].concat();
                prefix.into_iter().chain(vec![7; *length])
            })
            .collect();
        for size in 1..=stream.len() {
            let (mut framing, mut found, mut complete) = (Framing::default(), Vec::new(), 0);
            for frame in stream.chunks(size) {
                let mut at = 0;
                while let Some(length) = framing.begin_next(frame, &mut at) {
                    found.push(length);
                }
                assert_eq!(at, frame.len());
                complete += usize::from(framing.is_between_messages());
            }
            assert_eq!(found, [3, 0, 300, 1], "in frames of {size} bytes");
            assert!(framing.is_between_messages() && !framing.is_in_message() && complete >= 1);
        }
    }
}

//! What a thread gets of the processors.

use std::{fs::File, io, os::unix::fs::FileExt, time::Duration};

/// How often a thread is to be looked at.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// At so many looks a thread must want a processor until what it got is judged.
const LOOKS: u32 = 10;
/// A thread that got less than one part in so many of the time that it wanted starves.
const STARVED_PART: u32 = 10;

/// What a thread gets of the time that it wants a processor. Each look at which it runs, or would if it were let, stands for
/// an interval of wanting one, however much it slept between them.
pub(super) struct Share {
    /// Its line of proc_pid_stat(5).
    stat: File,
    /// The time that it had run when it was last judged.
    ran: Duration,
    /// Those since then at which it wanted a processor.
    looks: u32,
}

struct Look {
    /// Whether it runs, or would if it were let.
    is_runnable: bool,
    /// The time that it has run.
    ran: Duration,
}

impl Share {
    pub(super) fn of_this_thread() -> Result<Self, io::Error> {
        let stat = File::open("/proc/thread-self/stat")?;
        let Look { ran, .. } = look(&stat)?;
        Ok(Self { stat, ran, looks: 0 })
    }

    /// Looks at the thread, [`LOOK_INTERVAL`] or more after the last time. `rivals` of its kind share a processor.
    pub(super) fn is_starved(&mut self, rivals: u32) -> bool {
        // One that can't be looked at has ended.
        look(&self.stat).is_ok_and(|look| self.judge(&look, rivals))
    }

    fn judge(&mut self, look: &Look, rivals: u32) -> bool {
        self.looks += u32::from(look.is_runnable);
        if self.looks < LOOKS {
            return false;
        }
        let ran = look.ran.saturating_sub(self.ran);
        (self.ran, self.looks) = (look.ran, 0);
        ran.saturating_mul(STARVED_PART).saturating_mul(rivals) < LOOK_INTERVAL * LOOKS
    }
}

fn look(stat: &File) -> Result<Look, io::Error> {
    let mut line = [0; 1024];
    let length = stat.read_at(&mut line, 0)?;
    let unexpected =
        || io::Error::new(io::ErrorKind::InvalidData, "/proc/thread-self/stat is of another form");
    parse(&line[..length]).ok_or_else(unexpected)
}

/// `None` when it is not such a line.
fn parse(line: &[u8]) -> Option<Look> {
    // The name may hold spaces and parentheses; behind it comes the third field.
    let (_, fields) = std::str::from_utf8(line).ok()?.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let is_runnable = fields.next()? == "R";
    // In user mode, and in the kernel.
    let mut ticks = fields.skip(10).map_while(|field| field.parse::<u64>().ok());
    let ran = ticks.next()?.saturating_add(ticks.next()?);
    let ticks_a_second = rustix::param::clock_ticks_per_second().max(1);
    Some(Look { is_runnable, ran: Duration::from_millis(ran.saturating_mul(1000) / ticks_a_second) })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::Instant;

    use proptest::prelude::*;

    use super::*;

    /// How often it is starved in these looks: whether it wanted a processor at each, and the milliseconds that it ran until then.
    fn starved(rivals: u32, looks: impl IntoIterator<Item = (bool, u64)>) -> usize {
        let mut share =
            Share { stat: File::open("/dev/null").expect("a file"), ran: Duration::ZERO, looks: 0 };
        let mut ran = Duration::ZERO;
        let mut is_starved = |(is_runnable, millis)| {
            ran += Duration::from_millis(millis);
            share.judge(&Look { is_runnable, ran }, rivals)
        };
        looks.into_iter().filter(|look| is_starved(*look)).count()
    }

    #[test]
    fn a_thread_that_gets_less_than_a_tenth_of_the_time_that_it_wants_is_starved() {
        assert_eq!(starved(1, [(true, 9); 9]), 0);
        assert_eq!(starved(1, [(true, 9); 10]), 1);
        assert_eq!(starved(1, [(true, 0); 30]), 3);
        assert_eq!(starved(1, [(true, 10); 1000]), 0);
        // It sleeps more than it works; of the time that it wants it still gets nothing.
        assert_eq!(starved(1, (0..40).map(|look| (look % 4 == 0, 0))), 1);
    }

    #[test]
    fn a_thread_that_works_at_times_and_gets_what_it_wants_is_not_starved() {
        assert_eq!(starved(1, (0..1000).map(|look| (look % 5 == 0, 20))), 0);
        assert_eq!(starved(1, [(false, 0); 1000]), 0);
    }

    #[test]
    fn threads_that_share_a_processor_do_not_starve_each_other() {
        assert_eq!(starved(16, [(true, 6); 1000]), 0);
        assert_eq!(starved(16, [(true, 0); 10]), 1);
    }

    #[test]
    fn a_line_of_the_kernel_is_understood() {
        let line = b"214 (a) (b c) R 1 3 4 0 -1 4194560 5 6 7 8 120 30 9 9 20 0 5 0 77 1 2";
        let Look { is_runnable, ran } = parse(line).unwrap();
        assert!(is_runnable);
        assert_eq!(ran * rustix::param::clock_ticks_per_second() as u32, Duration::from_secs(150));
        assert!(!parse(b"1 (forebay-cpu-0) S 1 3 4 0 -1 0 5 6 7 8 1 1").unwrap().is_runnable);
        assert!(parse(b"1 (forebay-cpu-0) S 1 3 4 0 -1 0 5 6 7 8 1").is_none());
    }

    #[test]
    fn a_thread_sees_itself_run() {
        let share = Share::of_this_thread().unwrap();
        let begun = Instant::now();
        while look(&share.stat).unwrap().ran < share.ran + Duration::from_millis(50) {}
        assert!(begun.elapsed() >= Duration::from_millis(30));
        assert!(look(&share.stat).unwrap().is_runnable);
    }

    proptest! {
        #[test]
        fn a_line_of_any_form_is_refused_or_read(line in proptest::collection::vec(any::<u8>(), 0..200), behind in "[ R0-9]{0,200}") {
            parse(&line);
            parse(format!("1 (a) b){behind}").as_bytes());
        }
    }
}

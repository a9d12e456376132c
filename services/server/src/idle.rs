//! The end of a server without clients.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::connections::Places;

/// Maximum interval at which open connections are counted.
const MAX_INTERVAL: Duration = Duration::from_secs(1);

/// Waits until no connection was open for `timeout`. A connection that is opened and closed between two checks counts, too.
pub(crate) async fn idle(connections: &Places, timeout: Duration) {
    let mut ticks = interval((timeout / 4).clamp(Duration::from_millis(1), MAX_INTERVAL));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut since, mut opened) = (Instant::now(), connections.total());
    loop {
        ticks.tick().await;
        if connections.open() > 0 || connections.total() != opened {
            (since, opened) = (Instant::now(), connections.total());
        }
        if since.elapsed() >= timeout {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;
    use crate::connections::Config;

    const SECOND: Duration = Duration::from_secs(1);

    fn places() -> Places {
        Places::new(Config::new(&crate::Limits::default(), false))
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_without_a_connection_is_idle_after_the_timeout() {
        let (places, begin) = (places(), Instant::now());
        idle(&places, 60 * SECOND).await;
        assert!((60 * SECOND..62 * SECOND).contains(&begin.elapsed()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_with_an_open_connection_is_never_idle() {
        let places = places();
        let open = places.take(None).unwrap();
        assert!(timeout(3600 * SECOND, idle(&places, 60 * SECOND)).await.is_err());
        drop(open);
        assert!(timeout(50 * SECOND, idle(&places, 60 * SECOND)).await.is_err());
        idle(&places, 60 * SECOND).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_connection_begins_the_timeout_anew() {
        let (places, begin) = (places(), Instant::now());
        let short = async {
            for _ in 0..10 {
                advance(50 * SECOND).await;
                tokio::task::yield_now().await;
                drop(places.take(None).unwrap());
            }
        };
        tokio::join!(idle(&places, 60 * SECOND), short);
        assert!(begin.elapsed() >= 560 * SECOND, "{:?}", begin.elapsed());
    }
}

//! Earlier names of settings, which are rejected with the current name.

use toml::{Table, Value};

/// Path of each renamed setting and its current name. `*` stands for the name of a queue.
const RENAMED: [(&str, &str); 15] = [
    ("file_threads", "blocking_threads"),
    ("online_threads", "lookup_threads"),
    ("reload_interval", "credentials_reload_interval"),
    ("limits.max_explains", "max_concurrent_explains"),
    ("limits.max_live", "max_live_subscribers"),
    ("loader.delays", "fault_injection"),
    ("loader.idle_bytes", "buffer_pool_bytes"),
    ("loader.read_ahead_bytes", "window_prefetch_bytes"),
    ("loader.stall_timeout", "slow_consumer_timeout"),
    ("queues.*.batching.idle", "eager_dispatch"),
    ("queues.*.batching.max_queue_delay", "max_batch_delay"),
    ("queues.*.batching.max_queue_time", "max_predicted_wait"),
    ("queues.*.batching.slo", "default_timeout"),
    ("queues.*.features.max_age", "max_age_seconds"),
    ("queues.*.features.with", "joins"),
];

/// Returns a message with the current name of every renamed setting in the text of a file; `None` if there is none.
pub(super) fn message(text: &str) -> Option<String> {
    let mut found = Vec::new();
    collect(&toml::from_str(text).ok()?, "", "", &mut found);
    (!found.is_empty()).then(|| found.join("; "))
}

/// Adds the renamed settings in `table` to `found`. `parents` is the path of `table`, and `pattern` is the same path with `*` in
/// place of the name of a queue. Both end with a dot unless they are empty.
fn collect(table: &Table, parents: &str, pattern: &str, found: &mut Vec<String>) {
    for (name, value) in table {
        let earlier = path_in(pattern, name);
        if let Some(current) = current_name(&earlier) {
            found.push(format!("unknown setting '{parents}{name}': it was renamed to '{parents}{current}'"));
        }
        if let Value::Table(inner) = value {
            collect(inner, &format!("{parents}{name}."), &format!("{earlier}."), found);
        }
    }
}

fn path_in(pattern: &str, name: &str) -> String {
    format!("{pattern}{}", if pattern == "queues." { "*" } else { name })
}

fn current_name(path: &str) -> Option<&'static str> {
    RENAMED.iter().find(|(earlier, _)| *earlier == path).map(|(_, current)| *current)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;

    /// Every setting of commit 39b7b77.
    const STORED: &str = include_str!("../../tests/acceptance/compatibility/39b7b77/forebay.toml");

    #[test]
    fn each_renamed_setting_of_a_stored_file_is_rejected_with_its_current_name() {
        let error = Settings::parse(STORED).unwrap_err().to_string();
        for (path, current) in RENAMED {
            let path = path.replace('*', "ctr");
            let parents = path.rsplit_once('.').map_or(String::new(), |(parents, _)| format!("{parents}."));
            let expected = format!("unknown setting '{path}': it was renamed to '{parents}{current}'");
            assert!(error.contains(&expected), "'{expected}' is not in: {error}");
        }
        assert_eq!(error.split("; ").count(), RENAMED.len(), "{error}");
    }

    #[test]
    fn a_stored_file_with_current_names_is_accepted_with_its_values() {
        let table = with_current_names(toml::from_str(STORED).unwrap(), "");
        let settings = Settings::parse(&toml::to_string(&table).unwrap()).unwrap();
        settings.check().unwrap();
        assert_eq!((settings.blocking_threads, settings.lookup_threads), (12, 2));
        assert_eq!(settings.loader.buffer_pool_bytes, Some(100_000_000));
        assert_eq!(settings.queues["ctr"].batching.default_timeout.as_millis(), 50);
        assert_eq!(settings.queues["ctr"].features.joins[0].dataset, "items");
    }

    #[test]
    fn other_unknown_settings_are_named() {
        let error = Settings::parse("[loader]\nidle = 1").unwrap_err().to_string();
        assert!(error.contains("unknown field `idle`"), "{error}");
        assert!(Settings::parse("[storage]\nidle_bytes = 1").is_ok());
    }

    /// Returns the table with the current name of every setting.
    fn with_current_names(table: Table, pattern: &str) -> Table {
        let rename = |(name, value): (String, Value)| {
            let path = path_in(pattern, &name);
            let value = match value {
                Value::Table(inner) => Value::Table(with_current_names(inner, &format!("{path}."))),
                other => other,
            };
            (current_name(&path).map_or(name, str::to_owned), value)
        };
        table.into_iter().map(rename).collect()
    }
}

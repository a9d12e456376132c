//! The settings of a running server, compared with those that a caller expects.

use forebay_storage::shown_url;
use serde_json::Value;

use super::Settings;
use crate::Error;

/// Settings of a running server as JSON.
pub(crate) struct RunningSettings {
    values: Value,
}

impl RunningSettings {
    /// # Errors
    /// If the settings have no JSON form.
    pub(crate) fn new(settings: &Settings) -> anyhow::Result<Self> {
        Ok(Self { values: serde_json::to_value(settings)? })
    }

    /// Compares the fields of `expected`, a JSON object of fields of `forebay.toml`, with the running server. Returns the names of
    /// those that differ with both values; `None` if there are none. An empty text expects nothing.
    ///
    /// # Errors
    /// If a field is unknown or malformed.
    pub(crate) fn different(&self, expected: &str) -> Result<Option<String>, Error> {
        if expected.is_empty() {
            return Ok(None);
        }
        let malformed = |error: serde_json::Error| Error::invalid(format!("settings: {error}"));
        let given: serde_json::Map<String, Value> = serde_json::from_str(expected).map_err(malformed)?;
        for (name, value) in &given {
            let alone = Value::Object([(name.clone(), value.clone())].into_iter().collect());
            if let Err(error) = serde_json::from_value::<Settings>(alone) {
                // The type of sizes does not say what it expects.
                let reason =
                    error.to_string().replace("expected parsable string", "expected a size such as 8GiB");
                let name = if reason.contains(&format!("`{name}`")) { "settings" } else { name.as_str() };
                return Err(Error::invalid(shown_url(&format!("{name}: {reason}"))));
            }
        }
        // Equal values may be written differently, such as 1GiB and 1073741824.
        let parsed: Settings = serde_json::from_str(expected).map_err(malformed)?;
        let parsed = serde_json::to_value(&parsed).map_err(malformed)?;
        let differs = given.keys().filter(|name| parsed[name.as_str()] != self.values[name.as_str()]);
        let described: Vec<_> = differs.map(|name| self.described(name, &given[name])).collect();
        Ok((!described.is_empty()).then(|| described.join(", ")))
    }

    fn described(&self, name: &str, expected: &Value) -> String {
        let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), shown_url);
        let running = match &self.values[name] {
            Value::Null => "not set".to_owned(),
            running => shown(running),
        };
        format!("{name} is {running}, expected {}", shown(expected))
    }
}

#[cfg(test)]
mod tests {
    use bytesize::ByteSize;

    use super::*;

    fn running() -> RunningSettings {
        let settings = Settings { cache_memory: ByteSize::gib(1), cpu_threads: 3, ..Settings::default() };
        RunningSettings::new(&settings).unwrap()
    }

    #[test]
    fn equal_settings_do_not_differ_however_they_are_written() {
        for expected in
            ["", "{}", r#"{"cache_memory": "1GiB", "cpu_threads": 3}"#, r#"{"cache_memory": 1073741824}"#]
        {
            assert_eq!(running().different(expected).unwrap(), None, "{expected}");
        }
    }

    #[test]
    fn different_settings_are_named_with_both_values() {
        let different = running()
            .different(r#"{"cache_memory": "2GiB", "cpu_threads": 3, "state": "/s"}"#)
            .unwrap()
            .unwrap();
        assert_eq!(different, "cache_memory is 1073741824, expected 2GiB, state is not set, expected /s");
        let secret = running().different(r#"{"state": "s3://SECRET@b/s?SECRET"}"#).unwrap().unwrap();
        assert_eq!(secret, "state is not set, expected s3://(not shown)@b/s?(not shown)");
    }

    #[test]
    fn unknown_and_malformed_settings_are_errors() {
        for (expected, message) in [
            (r#"{"cache_memry": 1}"#, "unknown field `cache_memry`"),
            (r#"{"cpu_threads": "many"}"#, "cpu_threads: invalid type"),
            (
                r#"{"cpu_threads": 2, "cache_memory": "lots"}"#,
                r#"cache_memory: invalid value: string "lots", expected a size such as 8GiB"#,
            ),
            ("[]", "settings: "),
        ] {
            assert!(running().different(expected).unwrap_err().message().contains(message), "{expected}");
        }
    }
}

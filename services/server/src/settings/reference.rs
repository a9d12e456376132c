//! `docs/reference/settings.md`, rendered from the doc comments of the settings and checked against their defaults.

use std::{fmt::Write as _, path::Path, time::Duration};

use documented::DocumentedFields;
use toml::Value;

use super::*;

/// A table of `forebay.toml`.
struct Table {
    /// Name in `forebay.toml`; empty for the top level.
    name: &'static str,
    about: &'static str,
    names: &'static [&'static str],
    docs: &'static [&'static str],
    /// Defaults by field; optional fields without a default are absent. `None` if the table has required fields.
    defaults: Option<Value>,
}

/// A field's doc comment, split into its description and its default.
struct Field {
    name: &'static str,
    description: String,
    default: Option<String>,
}

fn table<T: DocumentedFields>(
    name: &'static str,
    about: &'static str,
    defaults: Option<&impl Serialize>,
) -> Table {
    let defaults = defaults.map(|defaults| Value::try_from(defaults).unwrap());
    Table { name, about, names: T::FIELD_NAMES, docs: T::FIELD_DOCS, defaults }
}

fn tables() -> Vec<Table> {
    let settings = Settings::default();
    let queue = crate::QueueSpec::default();
    let none = None::<&()>;
    vec![
        table::<Settings>("", "Top-level settings.", Some(&settings)),
        table::<Tls>("tls", "TLS certificates.", none),
        table::<Limits>("limits", "Limits on what clients can request.", Some(&settings.limits)),
        table::<forebay_loader::Config>("loader", "The training path.", Some(&settings.loader)),
        table::<forebay_loader::FaultInjection>(
            "loader.fault_injection",
            "Delays that are added to test dashboards and alerts.",
            Some(&settings.loader.fault_injection),
        ),
        table::<forebay_storage::Config>("storage", "Reading and decoding.", Some(&settings.storage)),
        table::<crate::settings::OnlineSpec>("online.NAME", "A dataset that serves lookups.", none),
        table::<forebay_inference::Canary>(
            "online.NAME.canary",
            "Rules for a new snapshot of a dataset that serves lookups.",
            Some(&forebay_inference::Canary::default()),
        ),
        table::<forebay_inference::Config>("lookups", "Limits of lookups.", Some(&settings.lookups)),
        table::<crate::QueueSpec>("queues.NAME", "A batch queue.", none),
        table::<forebay_inference::queue::QueueConfig>(
            "queues.NAME.batching",
            "Batching of a queue. These settings can be changed at run time.",
            Some(&queue.batching),
        ),
        table::<crate::MembershipSettings>(
            "membership",
            "The members of a cluster: how servers are found, when they leave, and when they redirect streams.",
            Some(&settings.membership),
        ),
        table::<crate::TraceSettings>("traces", "Export of traces.", Some(&settings.traces)),
    ]
}

impl Table {
    fn fields(&self) -> impl Iterator<Item = Field> {
        self.names.iter().zip(self.docs).map(|(name, docs)| {
            let text = docs.split_whitespace().collect::<Vec<_>>().join(" ");
            let (description, default) = match text.split_once(" Default: ") {
                Some((description, default)) => {
                    (description.to_owned(), Some(default.trim_end_matches('.').to_owned()))
                }
                None => (text, None),
            };
            Field { name, description, default }
        })
    }

    /// Title of the section that describes the table in the field `name`.
    fn nested(&self, name: &str) -> Option<&'static str> {
        let prefix = if self.name.is_empty() { String::new() } else { format!("{}.", self.name) };
        let exact = format!("{prefix}{name}");
        let by_name = format!("{prefix}{name}.NAME");
        tables().iter().map(|table| table.name).find(|other| *other == exact || *other == by_name)
    }
}

fn render() -> String {
    let mut text = String::from(
        "# Settings\n\n\
         Fields of `forebay.toml` (`forebay serve --config FILE`). Flags and environment variables, listed in [cli.md](cli.md), \
         override the file. `forebay serve --print-config` prints the resolved settings.\n\n\
         Sizes are numbers of bytes or strings such as `\"8GiB\"` where noted; times are strings such as `\"30s\"`.\n\n\
         This page is generated from the source: `FOREBAY_BLESS=1 cargo test -p forebay reference` writes it.\n",
    );
    for table in tables() {
        let title =
            if table.name.is_empty() { "Top level".to_owned() } else { format!("`[{}]`", table.name) };
        write!(
            text,
            "\n## {title}\n\n{}\n\n| setting | default | description |\n|---|---|---|\n",
            table.about
        )
        .unwrap();
        for Field { name, description, default } in table.fields() {
            let default = match (default, table.nested(name)) {
                (Some(default), None) => default,
                (default, Some(nested)) => {
                    let anchor = nested.replace('.', "").to_lowercase();
                    let link = format!("[`[{nested}]`](#{anchor})");
                    default.map_or(link.clone(), |default| format!("{default}; {link}"))
                }
                (None, None) => "-".to_owned(),
            };
            writeln!(text, "| `{name}` | {default} | {} |", description.replace('|', "\\|")).unwrap();
        }
    }
    text
}

/// Parses the default in a doc comment as a number of bytes, rows or nanoseconds. Returns `None` if it is not a number.
fn number(default: &str) -> Option<f64> {
    let (digits, unit) = default.split_once(' ').unwrap_or((default, ""));
    let number: f64 = digits.replace(',', "").parse().ok()?;
    let factor = match unit {
        "" => 1.0,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    Some(number * factor)
}

fn value(default: &Value) -> Option<f64> {
    match default {
        Value::Integer(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        Value::String(text) => {
            humantime::parse_duration(text).ok().map(|time: Duration| time.as_nanos() as f64)
        }
        Value::Boolean(_) | Value::Datetime(_) | Value::Array(_) | Value::Table(_) => None,
    }
}

#[test]
fn settings_reference_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/settings.md");
    crate::cli::reference::check(&path, &render());
}

#[test]
fn every_setting_documents_its_default_and_the_default_is_true() {
    for table in tables() {
        for Field { name, default, .. } in table.fields() {
            let field = format!("{}.{name}", table.name);
            if table.nested(name).is_some()
                || field == "queues.NAME.features"
                || default.is_none() && table.defaults.is_none()
            {
                continue;
            }
            let documented = default.unwrap_or_else(|| panic!("{field} documents no default"));
            let Some(actual) = table.defaults.as_ref() else { continue };
            let actual = actual.get(name);
            if let Some(documented) = number(&documented) {
                let actual = actual.unwrap_or_else(|| panic!("{field} has no default"));
                assert_eq!(value(actual), Some(documented), "{field}");
            } else if let Some(Value::Boolean(actual)) = actual {
                assert_eq!(actual.to_string(), documented, "{field}");
            }
        }
    }
}

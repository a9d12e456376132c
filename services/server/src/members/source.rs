//! The setting `members`: the sources of the member list.

use std::{fmt, path::PathBuf};

use anyhow::{Context, bail, ensure};
use forebay_storage::shown_url;

use super::host_port;

/// One entry of the setting `members`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// A server: `HOST:PORT`.
    Server(Address),
    /// All addresses of a name: `dns:NAME:PORT`, such as a headless Service of Kubernetes.
    Dns { name: String, port: u16 },
    /// Addresses in a file: `file:PATH`.
    File(PathBuf),
}

/// Address in the member list.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Address {
    /// `HOST:PORT`.
    pub(super) text: String,
    /// Host name that the certificate of the server must contain: the host, or the name that was looked up in DNS.
    pub(super) host: String,
}

impl Address {
    /// Parses `HOST:PORT`.
    ///
    /// # Errors
    /// If it is malformed.
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        let (host, _) = host_port::split(text)?;
        Ok(Self { text: text.to_owned(), host: host.to_owned() })
    }
}

/// Parses the setting `members`: entries separated by commas.
///
/// # Errors
/// The first malformed entry, with what was expected.
pub(super) fn parse(setting: &str) -> anyhow::Result<Vec<Source>> {
    let entries = setting.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let sources = entries.map(entry).collect::<anyhow::Result<Vec<_>>>()?;
    ensure!(!sources.is_empty(), "is empty, expected HOST:PORT, dns:NAME:PORT or file:PATH");
    Ok(sources)
}

fn entry(text: &str) -> anyhow::Result<Source> {
    if let Some(path) = text.strip_prefix("file:") {
        ensure!(!path.is_empty(), "'{text}': expected file:PATH");
        return Ok(Source::File(path.into()));
    }
    if let Some(name) = text.strip_prefix("dns:") {
        let (name, port) = host_port::split(name).context("expected dns:NAME:PORT")?;
        host_port::check_host(name)
            .with_context(|| format!("'{}': expected dns:NAME:PORT", shown_url(text)))?;
        return Ok(Source::Dns { name: name.to_owned(), port });
    }
    if let Some((scheme, _)) = text.split_once("://") {
        let (scheme, shown) = (shown_url(scheme), shown_url(text));
        bail!("'{shown}': expected HOST:PORT without {scheme}://, dns:NAME:PORT or file:PATH");
    }
    Ok(Source::Server(Address::parse(text).context("expected HOST:PORT, dns:NAME:PORT or file:PATH")?))
}

/// Parses the contents of a file of `file:PATH`: addresses separated by commas or line breaks. A line that begins with `#` is a
/// comment.
///
/// # Errors
/// The first malformed address, with its line.
pub(super) fn parse_file(contents: &str) -> anyhow::Result<Vec<Address>> {
    let lines = contents.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with('#'));
    let entries =
        lines.flat_map(|(number, line)| line.split(',').map(move |entry| (number + 1, entry.trim())));
    let addresses = entries.filter(|(_, entry)| !entry.is_empty());
    addresses.map(|(line, entry)| Address::parse(entry).with_context(|| format!("line {line}"))).collect()
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(address) => f.write_str(&address.text),
            Self::Dns { name, port } => write!(f, "dns:{name}:{port}"),
            Self::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_source_is_read_and_written_the_same() {
        let setting = "a:1, [::1]:2,dns:forebay-members.ml.svc:8815 ,file:/run/forebay/members";
        let sources = parse(setting).unwrap();
        let written: Vec<String> = sources.iter().map(Source::to_string).collect();
        assert_eq!(
            written,
            ["a:1", "[::1]:2", "dns:forebay-members.ml.svc:8815", "file:/run/forebay/members"]
        );
        assert_eq!(parse(&written.join(",")).unwrap(), sources);
    }

    #[test]
    fn malformed_sources_are_named() {
        for (setting, expected) in [
            ("", "is empty"),
            (" , ", "is empty"),
            ("a:1,b", "'b': expected HOST:PORT"),
            ("file:", "expected file:PATH"),
            ("dns:name", "'name': expected HOST:PORT"),
            ("dns:a b:1", "expected dns:NAME:PORT"),
            ("grpc://a:1", "without grpc://"),
        ] {
            let error = format!("{:#}", parse(setting).unwrap_err());
            assert!(error.contains(expected), "{setting}: {error}");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        for setting in
            ["http://u:SECRET@h", "a:1,u:SECRET@h:1", "dns:u:SECRET@h:1", "dns:http://u:SECRET@h:1"]
        {
            let error = format!("{:#}", parse(setting).unwrap_err());
            assert!(error.contains("(not shown)") && !error.contains("SECRET"), "{error}");
        }
        let error = format!("{:#}", parse_file("a:1\nhttp://u:SECRET@h").unwrap_err());
        assert!(error.contains("line 2") && !error.contains("SECRET"), "{error}");
    }

    #[test]
    fn a_file_has_addresses_by_line_or_comma_and_comments() {
        let addresses = parse_file("# written by srun\na:1\n\n b:2, c:3,\n  # end\n").unwrap();
        let texts: Vec<&str> = addresses.iter().map(|address| &*address.text).collect();
        assert_eq!(texts, ["a:1", "b:2", "c:3"]);
        assert_eq!(parse_file("").unwrap(), []);
        let error = format!("{:#}", parse_file("a:1\nb:x").unwrap_err());
        assert!(error.contains("line 2") && error.contains("'b:x'"), "{error}");
    }
}

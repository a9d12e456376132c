//! URLs without the parts that may be secret: users, passwords, queries and fragments.

use std::fmt;

use crate::Error;

/// Text in place of a part that may be secret.
const HIDDEN: &str = "(not shown)";
/// Form of [`HIDDEN`] without white space.
const HIDDEN_WORD: &str = "\0";
/// Schemes that make a text a URL, even with too few slashes. Such a text is a mistake, not a path.
const SCHEMES: [&str; 11] =
    ["file", "s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "http", "https"];
/// Schemes with a bucket or container in place of a host, which has no port.
const WITHOUT_PORT: [&str; 8] = ["s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss"];
/// Schemes in which the container can precede the account, as in `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net`.
const WITH_CONTAINER: [&str; 3] = ["az", "abfs", "abfss"];
/// Suffixes of hosts before which a URL can have `CONTAINER@ACCOUNT`.
const ACCOUNT_HOSTS: [&str; 4] = [
    ".dfs.core.windows.net",
    ".blob.core.windows.net",
    ".dfs.fabric.microsoft.com",
    ".blob.fabric.microsoft.com",
];
/// Characters after a URL in a message.
const QUOTES: [char; 10] = ['\'', '"', '`', ')', ']', '>', ':', ';', ',', '.'];
/// Maximum length of the name of a container.
const MAX_CONTAINER: usize = 63;

/// Returns a URL, or a text that contains some, with `(not shown)` in place of users, passwords, queries and fragments. Paths stay the
/// same. Logs, errors, events and the API contain no other form of a URL that was not [checked](check_url).
pub fn shown_url(text: &str) -> String {
    Parts::of(text).map_or_else(|| text.to_owned(), |parts| parts.to_string())
}

/// Returns a message with the [shown](shown_url) form of each URL in it. A URL ends at white space.
pub fn shown_text(text: &str) -> String {
    let shown = |word: &str| {
        let url = word.trim_end_matches(|c: char| c.is_whitespace() || QUOTES.contains(&c));
        let (url, rest) = word.split_at(url.len());
        format!("{}{rest}", shown_url(url))
    };
    // A part that is not shown already is one word.
    let words = text.replace(HIDDEN, HIDDEN_WORD);
    let shown: String = words.split_inclusive(char::is_whitespace).map(shown).collect();
    shown.replace(HIDDEN_WORD, HIDDEN)
}

/// Checks that a path or URL has no part that may be secret. [`Location::parse`](crate::Location::parse) does this check, too.
///
/// # Errors
/// [`Error::Invalid`] with the [shown](shown_url) form of the URL.
pub fn check_url(url: &str) -> Result<(), Error> {
    let Some(parts) = Parts::of(url) else { return Ok(()) };
    let detail = if !parts.is_whole() {
        // A path can contain a URL; the parser of URLs finds another scheme in other texts.
        if url.starts_with('/') && !parts.has_user() {
            return Ok(());
        }
        "expected a path, or a URL that begins with its scheme"
    } else if parts.user.is_some() {
        "a user or password in the URL is not supported; use the environment"
    } else if parts.query.is_some() {
        "a query (?...), such as that of a presigned or SAS URL, is not supported; use credentials in the environment, and write a ? \
         in a name as %3F"
    } else if parts.fragment.is_some() {
        "a fragment (#...) is not supported; write a # in a name as %23"
    } else if parts.has_user() {
        "the path contains another URL with a user or password; expected one URL, with credentials in the environment"
    } else if !parts.start.ends_with("//") {
        "expected a path, or a URL with :// after its scheme"
    } else {
        return Ok(());
    };
    Err(Error::Invalid { url: parts.to_string(), detail: detail.to_owned() })
}

/// Returns the user and the password of a URL, also of one that is not well-formed.
pub(super) fn user_of(url: &str) -> Option<&str> {
    Parts::of(url)?.user
}

/// Parts of a text with a URL. It need not be well-formed.
struct Parts<'a> {
    /// Text before the user or the host: the scheme, its slashes, and other text before the URL.
    start: &'a str,
    /// User and password.
    user: Option<&'a str>,
    /// Host and path.
    place: &'a str,
    query: Option<&'a str>,
    fragment: Option<&'a str>,
    /// Length of the text before the URL.
    before: usize,
}

impl<'a> Parts<'a> {
    /// Returns the parts of a text; `None` for a path.
    fn of(text: &'a str) -> Option<Self> {
        let (before, scheme) = scheme(text)?;
        let start = if scheme.is_empty() { before } else { before + scheme.len() + 1 };
        let scheme = scheme.to_ascii_lowercase();
        let is_web = scheme.starts_with("http");
        // `https:///host` has the host that `https://host` has.
        let max_slashes = if is_web { usize::MAX } else { 2 };
        let is_slash = |c: &char| *c == '/' || (*c == '\\' && (is_web || scheme == "file"));
        let slashes = text[start..].chars().take(max_slashes).take_while(is_slash).count();
        let (start, rest) = text.split_at(start + slashes);
        let user = user(&scheme, rest);
        let rest = user.map_or(rest, |user| &rest[user.len() + 1..]);
        let (rest, fragment) = optional(rest, '#');
        let (place, query) = optional(rest, '?');
        Some(Self { start, user, place, query, fragment, before })
    }

    /// True if nothing but white space and control characters precedes the URL in the text.
    fn is_whole(&self) -> bool {
        self.start[..self.before].trim_start_matches(is_blank).is_empty()
    }

    /// Returns the next URL, which the path contains.
    fn next(&self) -> Option<Self> {
        if self.place.contains("://") { Self::of(self.place) } else { None }
    }

    /// True if this URL or one in its path has a user or a password.
    fn has_user(&self) -> bool {
        self.user.is_some() || self.next().is_some_and(|next| next.has_user())
    }
}

impl fmt::Display for Parts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, user, place, query, fragment, .. } = self;
        let part = |part: &Option<&str>| if part.is_some() { HIDDEN } else { "" };
        let sign = |part: &Option<&str>, sign: &'static str| if part.is_some() { sign } else { "" };
        write!(f, "{start}{}{}", part(user), sign(user, "@"))?;
        match self.next() {
            Some(next) => write!(f, "{next}")?,
            None => f.write_str(place)?,
        }
        write!(f, "{}{}{}{}", sign(query, "?"), part(query), sign(fragment, "#"), part(fragment))
    }
}

/// Returns where the URL in a text begins, and its scheme; `None` for a path. The scheme is empty if only a user shows that the text is a
/// URL.
fn scheme(text: &str) -> Option<(usize, &str)> {
    let blank = text.len() - text.trim_start_matches(is_blank).len();
    let trimmed = &text[blank..];
    if let Some((scheme, _)) = trimmed.split_once(':')
        && SCHEMES.iter().any(|known| scheme.eq_ignore_ascii_case(known))
    {
        return Some((blank, scheme));
    }
    if let Some((before, _)) = text.split_once("://") {
        let is_of_scheme = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
        let begin = before.trim_end_matches(is_of_scheme).len();
        // Without a scheme, the URL begins with its slashes.
        let without = (before.len() + 1, "");
        return Some(if begin < before.len() { (begin, &before[begin..]) } else { without });
    }
    let host = trimmed.split('/').next().unwrap_or_default();
    let (user, _) = host.rsplit_once('@')?;
    (user.contains(':') && !user.starts_with('.')).then_some((blank, ""))
}

/// Returns the user of a URL after its scheme and slashes, also if a character of the password is not encoded.
fn user<'a>(scheme: &str, rest: &'a str) -> Option<&'a str> {
    let end = rest.find(['/', '\\', '?', '#']).unwrap_or(rest.len());
    let authority = &rest[..end];
    if let Some((user, host)) = authority.rsplit_once('@') {
        let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '$');
        let is_container = WITH_CONTAINER.contains(&scheme)
            && ACCOUNT_HOSTS.iter().any(|end| host.ends_with(end))
            && (1..=MAX_CONTAINER).contains(&user.len())
            && user.chars().all(is_legal);
        return (!is_container).then_some(user);
    }
    let after = authority.rsplit_once(']').map_or(authority, |(_, after)| after);
    let (_, port) = after.split_once(':')?;
    let is_port = port.parse::<u16>().is_ok();
    if is_port && !WITHOUT_PORT.contains(&scheme) {
        return None;
    }
    // The password ends at the last @ of all that it can be part of.
    rest.rsplit_once('@').map(|(user, _)| user)
}

fn optional(text: &str, sign: char) -> (&str, Option<&str>) {
    text.split_once(sign).map_or((text, None), |(before, after)| (before, Some(after)))
}

/// True for characters that parsers of URLs ignore before a URL.
fn is_blank(c: char) -> bool {
    c.is_whitespace() || c.is_control()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_secret_is_not_shown_and_the_url_is_refused() {
        for (url, shown) in [
            ("https://h/f.parquet?X-Amz-Signature=SECRET", "https://h/f.parquet?(not shown)"),
            ("az://c/p?sv=1&sig=SECRET", "az://c/p?(not shown)"),
            ("s3://b/p?Signature=SECRET#SECRET", "s3://b/p?(not shown)#(not shown)"),
            ("gs://b/p#SECRET?SECRET", "gs://b/p#(not shown)"),
            ("file:///f.parquet?SECRET", "file:///f.parquet?(not shown)"),
            ("https://h/f?", "https://h/f?(not shown)"),
            ("s3://SECRET@bucket/x", "s3://(not shown)@bucket/x"),
            ("s3://KEY%3ASECRET@bucket/x", "s3://(not shown)@bucket/x"),
            ("S3A://KEY:SECRET@bucket/x", "S3A://(not shown)@bucket/x"),
            ("s3://KEY:/SEC/RET@bucket/x", "s3://(not shown)@bucket/x"),
            ("s3://KEY:1/SECRET@bucket/x", "s3://(not shown)@bucket/x"),
            ("file://user:SECRET@host/x", "file://(not shown)@host/x"),
            ("ftp://user:SECRET@host/x", "ftp://(not shown)@host/x"),
            ("https://user:SECRET@host:99999999/x", "https://(not shown)@host:99999999/x"),
            ("https://user:99999999/SECRET@host/x", "https://(not shown)@host/x"),
            ("url:s3://KEY:SECRET@bucket/x", "url:s3://(not shown)@bucket/x"),
            ("data/x s3://SECRET@bucket/x", "data/x s3://(not shown)@bucket/x"),
            ("https://user:SECRET@host/a@b", "https://(not shown)@host/a@b"),
            ("https://user:SEC/RET@host/a", "https://(not shown)@host/a"),
            ("https://user:SEC?RET@host/a", "https://(not shown)@host/a"),
            ("https://user:SEC#RET@host/a?x", "https://(not shown)@host/a?(not shown)"),
            ("https:/user:SECRET@host/x", "https:/(not shown)@host/x"),
            ("https:\\\\user:SECRET@host/x", "https:\\\\(not shown)@host/x"),
            ("https:///SECRET@host/x", "https:///(not shown)@host/x"),
            ("s3:SECRET@bucket", "s3:(not shown)@bucket"),
            (" https://user:SECRET@host/a", " https://(not shown)@host/a"),
            ("user:SECRET@host/x", "(not shown)@host/x"),
            ("abfss://c:SECRET@a.dfs.core.windows.net/x", "abfss://(not shown)@a.dfs.core.windows.net/x"),
            ("abfss://SECRET@host/x", "abfss://(not shown)@host/x"),
            ("s3://SECRET@a.dfs.core.windows.net/x", "s3://(not shown)@a.dfs.core.windows.net/x"),
        ] {
            assert_eq!(shown_url(url), shown);
            let Err(error) = check_url(url) else { panic!("{url} is accepted") };
            let error = error.to_string();
            assert!(error.contains(shown) && !error.contains("SECRET"), "{error}");
        }
        let spelled = check_url("https:/host/x").unwrap_err().to_string();
        assert!(spelled.contains("https:/host/x") && spelled.contains("with :// after"), "{spelled}");
    }

    #[test]
    fn paths_and_other_urls_are_shown_as_they_are() {
        for url in [
            "/data/a@b?c#d",
            "data/a:b@c",
            "./a:b@c",
            "a@b",
            "s3://bucket/day=1@2/x",
            "s3://",
            "https://host:9000/a@b",
            "https://[::1]:9000/a@b",
            "https://[::1]/a@b",
            "https://host/a%3Fb%23c",
            "file:///data/a@b",
            "abfss://container@account.dfs.core.windows.net/x@y",
            "az://My_Workspace@onelake.dfs.fabric.microsoft.com/x",
        ] {
            assert_eq!(shown_url(url), url);
            check_url(url).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    #[test]
    fn a_url_inside_of_a_text_is_shown_without_secrets() {
        for (text, shown) in [
            ("clicks https://u:SECRET@h/x", "clicks https://(not shown)@h/x"),
            ("clicks:s3://SECRET@b/x?SECRET", "clicks:s3://(not shown)@b/x?(not shown)"),
        ] {
            assert_eq!(shown_url(text), shown);
        }
        check_url("/data/x://y?z").expect("it is a path");
    }

    #[test]
    fn each_url_of_a_text_is_shown_without_secrets_and_the_text_is_refused() {
        for (text, shown) in [
            ("s3://b/x,s3://u:SECRET@b/y", "s3://b/x,s3://(not shown)@b/y"),
            ("https://h/a https://u:SECRET@h/b", "https://h/a https://(not shown)@h/b"),
            ("file:///a,https://u:SECRET@h/b", "file:///a,https://(not shown)@h/b"),
            ("/a,https://u:SECRET@h/b", "/a,https://(not shown)@h/b"),
            ("http://h:80/x,http://SECRET@h/b?SECRET", "http://h:80/x,http://(not shown)@h/b?(not shown)"),
            ("https://u:SECRET@h,https://v:SECRET@i", "https://(not shown)@h,https://(not shown)@i"),
            ("s3://a/b,s3://c/d,s3://SECRET@e/f", "s3://a/b,s3://c/d,s3://(not shown)@e/f"),
            ("s3://a,s3://SECRET@e/f", "s3://(not shown)@e/f"),
            ("https://h/a?SECRET https://u:SECRET@h/b", "https://h/a?(not shown)"),
        ] {
            assert_eq!(shown_url(text), shown);
            let Err(error) = check_url(text) else { panic!("{text} is accepted") };
            let error = error.to_string();
            assert!(error.contains(shown) && !error.contains("SECRET"), "{error}");
        }
        check_url("s3://bucket/copy/of/https://host/x").expect("it has no secret");
    }

    #[test]
    fn each_url_of_a_message_is_shown_without_secrets() {
        for (text, shown) in [
            (
                "error: invalid value 'http://u:SECRET@h:1' for '--http <HOST:PORT>': expected HOST:PORT\n\nTry '--help'.",
                "error: invalid value 'http://(not shown)@h:1' for '--http <HOST:PORT>': expected HOST:PORT\n\nTry '--help'.",
            ),
            ("'dns:u:SECRET@h:1': expected HOST:PORT", "(not shown)@h:1': expected HOST:PORT"),
            ("can't read https://h/?SECRET: no file", "can't read https://h/?(not shown): no file"),
            ("see https://h/x#a (or a@b)", "see https://h/x#(not shown) (or a@b)"),
            ("what? s3://b/x", "what? s3://b/x"),
        ] {
            assert_eq!(shown_text(text), shown);
            assert_eq!(shown_text(shown), shown);
        }
    }
}

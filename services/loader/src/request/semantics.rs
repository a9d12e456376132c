//! Version of the semantics of SQL expressions in requests and tickets.

use forebay_proto::v1;
use forebay_sql::SEMANTICS;

use crate::Error;

/// Version since which tickets contain the version. Tickets without it are from an earlier one.
const FIRST_RECORDED: u64 = 4;
/// Maximum length of an expression in an error, in characters.
const MAX_QUOTED: usize = 200;

/// Returns the version of the semantics that a resolved request contains: `None` if it has no expressions.
///
/// # Errors
/// [`Error::Invalid`] with an expression of the request, if the request was resolved with another version.
pub(super) fn of(train: &v1::Train) -> Result<Option<u64>, Error> {
    let Some((field, expression)) = first_expression(train) else { return Ok(None) };
    let current = u64::from(SEMANTICS);
    let is_ticket = train.plan_version > 0 && train.lane.is_some();
    let version = match train.semantics {
        None if is_ticket => format!("a version before {FIRST_RECORDED}"),
        None => return Ok(Some(current)),
        Some(version) if version == current => return Ok(Some(current)),
        Some(version) => format!("version {version}"),
    };
    let expression: String = expression.chars().take(MAX_QUOTED).collect();
    Err(Error::invalid(
        "semantics",
        format!(
            "{field} '{expression}' was resolved with {version} of the semantics of expressions. This server has version \
             {current}, in which the expression can have other values; start the training again without the ticket or checkpoint"
        ),
    ))
}

/// The first expression of a request that is not a column name, with its field.
fn first_expression(train: &v1::Train) -> Option<(String, &str)> {
    let filters = std::iter::once(("filter".to_owned(), train.filter.as_str()));
    let selected = train.select.iter().map(|text| ("select".to_owned(), text.as_str()));
    let mixed = train.mix.iter().map(|mixed| (format!("filter of {}", mixed.dataset), mixed.filter.as_str()));
    filters
        .chain(mixed)
        .filter(|(_, text)| !text.is_empty())
        .chain(selected.filter(|(_, text)| !is_name(text)))
        .next()
}

/// True for a column name without an expression, quoted or not.
fn is_name(text: &str) -> bool {
    let text = text.trim();
    let quoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    let is_plain = || text.chars().all(|char| char.is_alphanumeric() || char == '_');
    quoted.map_or_else(is_plain, |name| !name.contains('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filtered(semantics: Option<u64>) -> v1::Train {
        v1::Train { filter: "price = 71.04".into(), plan_version: 1, semantics, ..v1::Train::default() }
    }

    #[test]
    fn requests_without_expressions_have_no_version() {
        let select = vec!["price".to_owned(), "\"my column\"".to_owned()];
        assert_eq!(of(&v1::Train { select, ..v1::Train::default() }).unwrap(), None);
    }

    #[test]
    fn requests_with_expressions_get_the_current_version() {
        let computed = v1::Train { select: vec!["price + 1 AS p".into()], ..v1::Train::default() };
        let mixed = v1::Mixed { filter: "x > 1".into(), ..v1::Mixed::default() };
        let mixed = v1::Train { mix: vec![mixed], ..v1::Train::default() };
        for train in [filtered(None), filtered(Some(SEMANTICS.into())), computed, mixed] {
            assert_eq!(of(&train).unwrap(), Some(SEMANTICS.into()), "{train:?}");
        }
    }

    #[test]
    fn tickets_and_checkpoints_of_another_version_are_refused_with_the_expression_and_both_versions() {
        let before = v1::Train { lane: Some(0), ..filtered(None) };
        for (train, version) in [
            (filtered(Some(u64::from(SEMANTICS) + 1)), format!("version {}", SEMANTICS + 1)),
            (filtered(Some(3)), "version 3".to_owned()),
            (before, "a version before 4".to_owned()),
        ] {
            let error = of(&train).unwrap_err().to_string();
            for part in ["filter 'price = 71.04'", &version, &format!("has version {SEMANTICS}")] {
                assert!(error.contains(part), "{error}");
            }
        }
    }
}

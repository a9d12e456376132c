//! Secrets in requests to a store, which its answers can repeat: temporary credentials, and the contents of files that change.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use object_store::{
    ClientOptions, Result,
    client::{HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService},
};
use parking_lot::Mutex;
use url::form_urlencoded;

use super::secret::Secret;

/// Number of secrets of each place that are kept. A request with the one before the latest can still be answered.
const KEPT: usize = 2;
/// Headers with a secret, besides `authorization`.
const HEADERS: [&str; 4] =
    ["x-amz-security-token", "x-amz-s3session-token", "x-aws-ec2-metadata-token", "x-identity-header"];
/// Schemes of the header `authorization` that have a signature in place of a secret.
const SIGNATURES: [&str; 2] = ["AWS4-HMAC-SHA256", "SharedKey"];
/// Fields of queries and forms with a secret.
const FIELDS: [&str; 6] =
    ["WebIdentityToken", "assertion", "client_assertion", "client_secret", "refresh_token", "subject_token"];
/// Content type of a form.
const FORM: &[u8] = b"application/x-www-form-urlencoded";

/// Secrets of the latest requests to one store, by their place in the request. Cheap to clone; clones are of the same store.
#[derive(Clone, Default)]
pub(super) struct Sent(Arc<Mutex<BTreeMap<String, Vec<Arc<Secret>>>>>);

impl Sent {
    pub(super) fn secrets(&self) -> Vec<Arc<Secret>> {
        self.0.lock().values().flatten().cloned().collect()
    }

    fn note(&self, place: &str, text: &str) {
        if !Secret::is_redacted(text) {
            return;
        }
        let mut places = self.0.lock();
        if let Some(kept) = places.get_mut(place) {
            if kept.iter().any(|secret| secret.is(text)) {
                return;
            }
            kept.truncate(KEPT - 1);
        }
        let secret = Arc::new(Secret::new(place.to_owned(), text.to_owned()));
        places.entry(place.to_owned()).or_default().insert(0, secret);
    }

    /// Notes the secrets of a request.
    pub(super) fn note_request(&self, request: &HttpRequest) {
        // The value of a header need not be ASCII.
        let header = |name: &str| Some(String::from_utf8_lossy(request.headers().get(name)?.as_bytes()));
        for name in HEADERS {
            if let Some(value) = header(name) {
                self.note(name, &value);
            }
        }
        if let Some(value) = header(AUTHORIZATION.as_str()) {
            let scheme = value.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("Bearer"));
            if !SIGNATURES.iter().any(|scheme| value.starts_with(scheme)) {
                self.note(AUTHORIZATION.as_str(), scheme.map_or(value.as_ref(), |(_, token)| token));
            }
        }
        let query = request.uri().query().unwrap_or_default();
        let is_form =
            request.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(FORM));
        let form = request.body().as_bytes().filter(|_| is_form).map_or(&[][..], |bytes| &bytes[..]);
        for (name, value) in form_urlencoded::parse(query.as_bytes()).chain(form_urlencoded::parse(form)) {
            if FIELDS.contains(&name.as_ref()) {
                self.note(&name, &value);
            }
        }
    }
}

/// HTTP connector whose clients note the secrets that they send.
pub(super) struct NotingConnector<C> {
    pub(super) inner: C,
    pub(super) sent: Sent,
}

impl<C> std::fmt::Debug for NotingConnector<C> {
    /// Without the secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NotingConnector")
    }
}

impl<C: HttpConnector> HttpConnector for NotingConnector<C> {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        let inner = self.inner.connect(options)?;
        Ok(HttpClient::new(NotingService { inner, sent: self.sent.clone() }))
    }
}

struct NotingService {
    inner: HttpClient,
    sent: Sent,
}

impl std::fmt::Debug for NotingService {
    /// Without the secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NotingService")
    }
}

#[async_trait]
impl HttpService for NotingService {
    async fn call(&self, request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        self.sent.note_request(&request);
        self.inner.execute(request).await
    }
}

#[cfg(test)]
mod tests {
    use object_store::client::HttpRequestBody;

    use super::*;

    fn with_header(name: &'static str, value: &str) -> HttpRequest {
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        request.headers_mut().insert(name, value.parse().unwrap());
        request
    }

    /// Returns the secrets that were sent, by place and latest first.
    fn noted(sent: &Sent) -> Vec<(String, String)> {
        let text = |secret: &Arc<Secret>| String::from_utf8(secret.verbatim.clone()).unwrap();
        sent.secrets().iter().map(|secret| (secret.name.clone(), text(secret))).collect()
    }

    #[test]
    fn a_secret_that_is_not_ascii_is_noted() {
        let sent = Sent::default();
        sent.note_request(&with_header("x-amz-security-token", "t\u{f6}ken-secret"));
        assert_eq!(noted(&sent), [("x-amz-security-token".to_owned(), "t\u{f6}ken-secret".to_owned())]);
    }

    #[test]
    fn secrets_of_requests_are_noted_and_signatures_are_not() {
        let sent = Sent::default();
        let mut form = HttpRequest::new("a=b&client_assertion=form%2Fsecret".to_owned().into());
        form.headers_mut().insert(CONTENT_TYPE, "application/x-www-form-urlencoded".parse().unwrap());
        let mut query = HttpRequest::new(HttpRequestBody::empty());
        *query.uri_mut() = "https://sts/?Version=2011-06-15&WebIdentityToken=query-secret".parse().unwrap();
        for request in [
            with_header("x-amz-security-token", "token/abc="),
            with_header("x-aws-ec2-metadata-token", "imds-secret"),
            with_header("authorization", "Bearer bearer-secret"),
            with_header("authorization", "raw-secret"),
            with_header("authorization", "AWS4-HMAC-SHA256 Credential=AKIA/20261128/r, Signature=abcdef"),
            with_header("authorization", "SharedKey account:signature"),
            form,
            query,
        ] {
            sent.note_request(&request);
        }
        let expected = [
            ("WebIdentityToken", "query-secret"),
            ("authorization", "raw-secret"),
            ("authorization", "bearer-secret"),
            ("client_assertion", "form/secret"),
            ("x-amz-security-token", "token/abc="),
            ("x-aws-ec2-metadata-token", "imds-secret"),
        ];
        assert_eq!(noted(&sent), expected.map(|(place, text)| (place.to_owned(), text.to_owned())));
    }

    #[test]
    fn the_latest_two_secrets_of_a_place_are_kept() {
        let sent = Sent::default();
        for number in [0, 1, 1, 2, 3, 3, 2, 3] {
            sent.note_request(&with_header("authorization", &format!("Bearer rotated-{number}")));
        }
        let texts: Vec<String> = noted(&sent).into_iter().map(|(_, text)| text).collect();
        assert_eq!(texts, ["rotated-3", "rotated-2"]);
    }
}

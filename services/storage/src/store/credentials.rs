//! Credentials and settings of a caller for an object store, in place of those in the environment of this process.

use std::{collections::BTreeMap, fmt};

use ring::digest::{Context, SHA256};

/// First bytes of the text that [`Credentials::proof`] hashes.
const PROOF_DOMAIN: &[u8] = b"forebay credentials 1\n";

/// Variables that the clients of the stores read from the environment themselves, also if they are empty.
const READ_BY_CLIENTS: [&str; 4] =
    ["AZURITE_BLOB_STORAGE_URL", "GCE_METADATA_HOST", "GCE_METADATA_IP", "GCE_METADATA_ROOT"];

/// Variables of a caller's environment for an object store, such as `AWS_ACCESS_KEY_ID`. Their values are never printed. An empty variable
/// counts as not set, as it does for boto3, because templates of deployments leave variables empty.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    variables: BTreeMap<String, String>,
}

impl Credentials {
    /// Credentials of these variables.
    pub fn new(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        Self { variables: variables.into_iter().collect() }
    }

    /// True if there are no variables.
    pub fn is_empty(&self) -> bool {
        self.variables.is_empty()
    }

    /// Returns the hash that only a process with all variables can compute. The Python package computes the same one.
    pub fn proof(&self) -> [u8; 32] {
        let mut hash = Context::new(&SHA256);
        hash.update(PROOF_DOMAIN);
        for text in self.variables.iter().flat_map(|(name, value)| [name, value]) {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
        let mut proof = [0; 32];
        proof.copy_from_slice(hash.finish().as_ref());
        proof
    }

    /// Variables of the environment of this process whose names begin with `prefix`, and those of `others`.
    pub(crate) fn of_environment(prefix: &str, others: &[&str]) -> Self {
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            let is_meant = name.starts_with(prefix) || others.contains(&name.as_str());
            is_meant.then_some(())?;
            Some((name, value.into_string().ok()?))
        });
        Self { variables: variables.collect() }
    }

    /// Variables that are set, with their values.
    fn set(&self) -> impl Iterator<Item = (&str, &str)> {
        let variables = self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        variables.filter(|(name, value)| !value.is_empty() || READ_BY_CLIENTS.contains(name))
    }

    /// Returns a variable.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.set().find(|(set, _)| *set == name).map(|(_, value)| value)
    }

    /// Adds what a file sets, as the variable of the same meaning.
    pub(crate) fn add(&mut self, name: &str, value: String) {
        self.variables.insert(name.to_owned(), value);
    }

    /// Returns the variables that a builder knows, whose names begin with `prefix`, and those of `others`.
    pub(crate) fn known<K: std::str::FromStr>(&self, prefix: &str, others: &[&str]) -> Vec<(&str, &str)> {
        let is_known = |name: &str| {
            let is_key = name.starts_with(prefix) && name.to_ascii_lowercase().parse::<K>().is_ok();
            is_key || others.contains(&name)
        };
        self.set().filter(|(name, _)| is_known(name)).collect()
    }

    /// Sets each variable that begins with `prefix` and that a builder knows.
    pub(crate) fn configure<B, K: std::str::FromStr>(
        &self,
        builder: B,
        prefix: &str,
        set: impl Fn(B, K, String) -> B,
    ) -> B {
        let known = self.set().filter(|(name, _)| name.starts_with(prefix));
        let known =
            known.filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse::<K>().ok()?, value)));
        known.fold(builder, |builder, (key, value)| set(builder, key, value.to_owned()))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({} hidden)", self.variables.len())
    }
}

#[cfg(test)]
mod tests {
    use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};

    use super::*;

    fn credentials(settings: &[(&str, &str)]) -> Credentials {
        Credentials::new(settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn a_proof_depends_on_every_variable_and_is_that_of_the_python_package() {
        let given = credentials(&[("AWS_SECRET_ACCESS_KEY", "secret"), ("AWS_ACCESS_KEY_ID", "id")]);
        assert_eq!(hex(given.proof()), "1768e1c431e978c73c77de3520fe5dc6e31b998688c5e1bcc58650782ec9c140");
        assert_eq!(
            given.proof(),
            credentials(&[("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret")]).proof()
        );
        for other in [
            credentials(&[("AWS_SECRET_ACCESS_KEY", "secret")]),
            credentials(&[("AWS_SECRET_ACCESS_KEY", "other"), ("AWS_ACCESS_KEY_ID", "id")]),
            credentials(&[("AWS_SECRET_ACCESS_KEY", "secret"), ("AWS_ACCESS_KEY_IDi", "d")]),
        ] {
            assert_ne!(given.proof(), other.proof());
        }
    }

    #[test]
    fn an_empty_variable_counts_as_not_set() {
        let given = credentials(&[("AWS_ENDPOINT", ""), ("AWS_REGION", "eu-central-1")]);
        assert_eq!((given.get("AWS_ENDPOINT"), given.get("AWS_REGION")), (None, Some("eu-central-1")));
        assert_eq!(given.known::<AmazonS3ConfigKey>("AWS_", &[]), [("AWS_REGION", "eu-central-1")]);
        assert_eq!(credentials(&[("GCE_METADATA_HOST", "")]).get("GCE_METADATA_HOST"), Some(""));
        let builder = given.configure(AmazonS3Builder::new(), "AWS_", AmazonS3Builder::with_config);
        assert_eq!(builder.get_config_value(&AmazonS3ConfigKey::Endpoint), None);
        assert_eq!(builder.get_config_value(&AmazonS3ConfigKey::Region).as_deref(), Some("eu-central-1"));
    }

    #[test]
    fn values_are_not_printed() {
        let printed = format!("{:?}", credentials(&[("AWS_SECRET_ACCESS_KEY", "hunter2")]));
        assert_eq!(printed, "Credentials(1 hidden)");
    }

    fn hex(bytes: [u8; 32]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

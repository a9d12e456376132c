//! Profiles of the AWS command line: access keys, region and endpoint in `~/.aws/credentials` and `~/.aws/config`.
//!
//! `AWS_PROFILE` selects a profile; otherwise it is `default`. The files can have other names in `AWS_SHARED_CREDENTIALS_FILE` and
//! `AWS_CONFIG_FILE`. Variables of the environment such as `AWS_ACCESS_KEY_ID` precede a profile.

use std::{collections::HashMap, path::PathBuf};

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};

/// Maximum size of a file of profiles, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Settings of one profile.
type Profile = HashMap<String, String>;

/// Adds the settings of the selected profile to a builder, as far as the environment does not have them. `variable` returns a variable of the
/// environment.
///
/// # Errors
/// A description if `AWS_PROFILE` names a missing profile, or one whose credentials are of a kind that is not supported.
pub(crate) fn apply(
    builder: AmazonS3Builder,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<AmazonS3Builder, String> {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    let named = variable("AWS_PROFILE").or_else(|| variable("AWS_DEFAULT_PROFILE"));
    let name = named.as_deref().unwrap_or("default");
    let home = variable("HOME").map(PathBuf::from);
    let file = |setting: &str, usual: &str| {
        let given = variable(setting).map(PathBuf::from);
        given.or_else(|| Some(home.as_ref()?.join(".aws").join(usual)))
    };
    let files = [
        (file("AWS_CONFIG_FILE", "config"), format!("profile {name}")),
        (file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), name.to_owned()),
    ];
    let (mut profile, mut is_found) = (Profile::new(), false);
    for (path, section) in &files {
        let Some(text) = path.as_ref().and_then(read) else { continue };
        // In both files the section of the default profile may lack the prefix.
        for section in [section.as_str(), "default"].into_iter().take(if name == "default" { 2 } else { 1 }) {
            if let Some(found) = section_of(&text, section) {
                is_found = true;
                profile.extend(found);
            }
        }
    }
    if named.is_some() && !is_found {
        let searched = files.iter().filter_map(|(path, _)| path.as_ref());
        let searched: Vec<String> = searched.map(|path| path.display().to_string()).collect();
        return Err(format!("there is no AWS profile '{name}' in {}", searched.join(" and ")));
    }

    profile.retain(|_, value| !value.is_empty());
    let mut builder = builder;
    let is_missing =
        |builder: &AmazonS3Builder, key: AmazonS3ConfigKey| builder.get_config_value(&key).is_none();
    if is_missing(&builder, AmazonS3ConfigKey::AccessKeyId) {
        match (profile.remove("aws_access_key_id"), profile.remove("aws_secret_access_key")) {
            (Some(id), Some(secret)) => {
                builder = builder.with_access_key_id(id).with_secret_access_key(secret);
                if let Some(token) = profile.remove("aws_session_token") {
                    builder = builder.with_token(token);
                }
            }
            _ if named.is_some() => {
                let other = ["sso_session", "sso_start_url", "credential_process", "role_arn"];
                if let Some(other) = other.into_iter().find(|key| profile.contains_key(*key)) {
                    return Err(format!(
                        "the AWS profile '{name}' has {other}, which is not supported; export its credentials with `aws configure \
                         export-credentials --profile {name} --format env`"
                    ));
                }
            }
            _ => {}
        }
    }
    if is_missing(&builder, AmazonS3ConfigKey::Region)
        && is_missing(&builder, AmazonS3ConfigKey::DefaultRegion)
        && let Some(region) = profile.remove("region")
    {
        builder = builder.with_region(region);
    }
    if is_missing(&builder, AmazonS3ConfigKey::Endpoint)
        && let Some(endpoint) = profile.remove("endpoint_url")
    {
        builder = builder.with_endpoint(endpoint);
    }
    Ok(builder)
}

fn read(path: &PathBuf) -> Option<String> {
    let is_small = std::fs::metadata(path).is_ok_and(|found| found.len() <= MAX_FILE_BYTES);
    if is_small { std::fs::read_to_string(path).ok() } else { None }
}

/// Settings of a section; `None` if there is no such section. Nested settings, which are indented, are ignored.
fn section_of(text: &str, section: &str) -> Option<Profile> {
    let (mut is_inside, mut found) = (false, None);
    for line in text.lines() {
        let is_nested = line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            is_inside = name.split_whitespace().eq(section.split_whitespace());
            if is_inside {
                found.get_or_insert_with(Profile::new);
            }
        } else if is_inside
            && !is_nested
            && let (Some(found), Some((key, value))) = (&mut found, line.split_once('='))
        {
            found.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const CREDENTIALS: &str = "[default]\naws_access_key_id = ID\naws_secret_access_key=SECRET\n\
                               # a comment\n[other]\naws_access_key_id = OTHER\naws_secret_access_key = S\n\
                               aws_session_token = T\n";
    const CONFIG: &str = "[default]\nregion = eu-central-1\n[profile other]\nregion = eu-west-1\n\
                          endpoint_url = https://store.example\ns3 =\n    region = ignored\n\
                          [profile sso]\nsso_session = company\n";

    fn applied(variables: &[(&str, &str)]) -> Result<[Option<String>; 5], String> {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join(".aws")).unwrap();
        fs::write(home.path().join(".aws/credentials"), CREDENTIALS).unwrap();
        fs::write(home.path().join(".aws/config"), CONFIG).unwrap();
        let mut builder = AmazonS3Builder::new();
        for (name, value) in variables {
            if let Ok(key) = name.to_ascii_lowercase().parse() {
                builder = builder.with_config(key, *value);
            }
        }
        let variable = |name: &str| match name {
            "HOME" => Some(home.path().to_str().unwrap().to_owned()),
            name => variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned()),
        };
        let builder = apply(builder, variable)?;
        use AmazonS3ConfigKey::{AccessKeyId, Endpoint, Region, SecretAccessKey, Token};
        Ok([AccessKeyId, SecretAccessKey, Token, Region, Endpoint].map(|key| builder.get_config_value(&key)))
    }

    fn texts(values: [&str; 5]) -> [Option<String>; 5] {
        values.map(|value| (!value.is_empty()).then(|| value.to_owned()))
    }

    #[test]
    fn the_default_profile_is_read_and_another_one_if_it_is_selected() {
        assert_eq!(applied(&[]).unwrap(), texts(["ID", "SECRET", "", "eu-central-1", ""]));
        let other = texts(["OTHER", "S", "T", "eu-west-1", "https://store.example"]);
        assert_eq!(applied(&[("AWS_PROFILE", "other")]).unwrap(), other);
    }

    #[test]
    fn variables_of_the_environment_precede_a_profile() {
        let keys = [("AWS_ACCESS_KEY_ID", "E"), ("AWS_SECRET_ACCESS_KEY", "F"), ("AWS_PROFILE", "other")];
        assert_eq!(applied(&keys).unwrap(), texts(["E", "F", "", "eu-west-1", "https://store.example"]));
        assert_eq!(applied(&[("AWS_REGION", "us-east-2")]).unwrap()[3].as_deref(), Some("us-east-2"));
    }

    #[test]
    fn a_profile_that_is_missing_or_has_other_credentials_is_an_error_that_names_it() {
        let missing = applied(&[("AWS_PROFILE", "absent")]).unwrap_err();
        assert!(missing.contains("'absent'") && missing.contains(".aws/credentials"), "{missing}");
        let sso = applied(&[("AWS_PROFILE", "sso")]).unwrap_err();
        assert!(sso.contains("sso_session") && sso.contains("export-credentials"), "{sso}");
    }
}

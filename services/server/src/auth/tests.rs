use std::time::Duration;

use http::HeaderValue;
use tonic::Code;

use super::*;

fn sha256(token: &str) -> String {
    hex::encode(tokens::digest_of(token.as_bytes()))
}

fn file(folder: &tempfile::TempDir, text: &str) -> std::path::PathBuf {
    let path = folder.path().join("tokens.toml");
    std::fs::write(&path, text).unwrap();
    path
}

fn headers(value: &str) -> HeaderMap {
    HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap())])
}

fn authenticator(text: &str) -> (tempfile::TempDir, Authenticator) {
    let folder = tempfile::tempdir().unwrap();
    let authenticator = Authenticator::new(Some(&file(&folder, text)), false).unwrap();
    (folder, authenticator)
}

#[test]
fn without_a_token_file_every_caller_reads_everything() {
    let access = Authenticator::new(None, false).unwrap().authenticate(&HeaderMap::new()).unwrap();
    assert!(access.may_read("anything") && access.check_all_datasets().is_ok());
}

#[test]
fn without_a_token_file_changes_are_rejected_unless_the_server_is_insecure() {
    let caller =
        |insecure| Authenticator::new(None, insecure).unwrap().authenticate(&HeaderMap::new()).unwrap();
    let refused = caller(false).check_admin().unwrap_err();
    assert_eq!(refused.grpc_code(), Code::PermissionDenied);
    for word in ["--tokens", "admin = true", "--insecure"] {
        assert!(refused.message().contains(word), "{word} is not in {refused}");
    }
    assert!(!refused.message().contains("HTTP"), "changes are rejected over Flight, too: {refused}");
    assert!(caller(true).check_admin().is_ok());
}

#[test]
fn a_token_may_call_the_actions_of_the_token_file_and_all_by_default() {
    let text = |actions: &str| {
        format!(
            "[some]\nsha256 = \"{}\"\ndatasets = [\"*\"]\n{actions}\n[all]\nsha256 = \"{}\"\ndatasets = [\"*\"]",
            sha256("some"),
            sha256("all")
        )
    };
    let (_folder, authenticator) = authenticator(&text("actions = [\"report\", \"refresh\"]"));
    let access = |token: &str| authenticator.authenticate(&headers(&format!("Bearer {token}"))).unwrap();
    for action in forebay_proto::ACTIONS {
        assert!(access("all").check_action(action).is_ok());
        let is_listed = ["report", "refresh"].contains(&action);
        assert_eq!(access("some").check_action(action).is_ok(), is_listed, "{action}");
    }
    let refused = access("some").check_action("warm").unwrap_err();
    assert_eq!(refused.grpc_code(), Code::PermissionDenied);
    assert!(refused.message().contains("token 'some' may not call action 'warm'"), "{refused}");
    let folder = tempfile::tempdir().unwrap();
    let unknown = Authenticator::new(Some(&file(&folder, &text("actions = [\"refresch\"]"))), false);
    let error = format!("{:#}", unknown.err().unwrap());
    assert!(
        error
            .contains("token 'some': actions: there is no action 'refresch', expected some of refresh, warm"),
        "{error}"
    );
}

#[test]
fn a_token_has_the_weight_of_the_token_file_and_1_by_default() {
    let text = |weight: &str| {
        format!(
            "[heavy]\nsha256 = \"{}\"\ndatasets = [\"*\"]\n{weight}\n[light]\nsha256 = \"{}\"\ndatasets = [\"*\"]",
            sha256("h"),
            sha256("l")
        )
    };
    let (_folder, authenticator) = authenticator(&text("weight = 3"));
    let tenant =
        |token: &str| authenticator.authenticate(&headers(&format!("Bearer {token}"))).unwrap().tenant();
    assert_eq!((tenant("h").weight().get(), tenant("l").weight().get()), (3, 1));
    assert_ne!(tenant("h").id(), tenant("l").id());
    for weight in [0, 1001] {
        let error = tokens::Tokens::parse(text(&format!("weight = {weight}")).as_bytes()).err().unwrap();
        assert_eq!(error.to_string(), format!("token 'heavy': weight is {weight}; expected 1 to 1000"));
    }
}

#[test]
fn changes_require_an_admin_token_even_if_the_server_is_insecure() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "[ops]\nsha256 = \"{}\"\ndatasets = [\"users\"]\nadmin = true\n\
         [reader]\nsha256 = \"{}\"\ndatasets = [\"*\"]",
        sha256("of-ops"),
        sha256("of-reader"),
    );
    let authenticator = Authenticator::new(Some(&file(&folder, &text)), true).unwrap();
    let ops = authenticator.authenticate(&headers("Bearer of-ops")).unwrap();
    assert!(ops.check_admin().is_ok() && !ops.may_read("payments"));
    assert_eq!(ops.name().as_deref(), Some("ops"));
    let refused =
        authenticator.authenticate(&headers("Bearer of-reader")).unwrap().check_admin().unwrap_err();
    assert_eq!(refused.grpc_code(), Code::PermissionDenied);
    assert!(refused.message().contains("'reader' may not change anything"), "{refused}");
    let another = sha256("of-another");
    file(&folder, &format!("[another]\nsha256 = \"{another}\"\ndatasets = [\"*\"]"));
    authenticator.tokens().unwrap().reload().unwrap();
    assert_eq!(ops.check_known().unwrap_err().grpc_code(), Code::Unauthenticated);
    assert_eq!(ops.check_admin().unwrap_err().grpc_code(), Code::Unauthenticated);
}

#[test]
fn a_worker_serves_only_the_queues_of_its_token() {
    let (_folder, authenticator) = authenticator(&format!(
        "[worker]\nsha256 = \"{}\"\ndatasets = [\"users\"]\nserves = [\"rank*\"]\n\
         [reader]\nsha256 = \"{}\"\ndatasets = [\"*\"]",
        sha256("of-worker"),
        sha256("of-reader"),
    ));
    let worker = authenticator.authenticate(&headers("Bearer of-worker")).unwrap();
    assert!(worker.check_worker("ranker").is_ok());
    assert_eq!(worker.check_worker("scorer").unwrap_err().grpc_code(), Code::PermissionDenied);
    let reader = authenticator.authenticate(&headers("Bearer of-reader")).unwrap();
    let refused = reader.check_worker("ranker").unwrap_err();
    assert!(refused.message().contains("'reader' may not serve queue 'ranker'"), "{refused}");
}

#[test]
fn a_token_reads_only_the_datasets_it_lists() {
    let (_folder, authenticator) = authenticator(&format!(
        "[ctr]\nsha256 = \"{}\"\ndatasets = [\"flights\", \"clicks-*\"]\n\
         [ops]\nsha256 = \"{}\"\ndatasets = [\"*\"]\nexpires = 2999-01-01T00:00:00+02:00",
        sha256("of-ctr"),
        sha256("of-ops").to_uppercase(),
    ));
    let ctr = authenticator.authenticate(&headers("Bearer of-ctr")).unwrap();
    for (dataset, readable) in [
        ("flights", true),
        ("clicks-", true),
        ("clicks-2026", true),
        ("flights2", false),
        ("*", false),
        ("", false),
    ] {
        assert_eq!(ctr.may_read(dataset), readable, "{dataset}");
    }
    let refused = ctr.check("payments").unwrap_err();
    assert_eq!(refused.grpc_code(), Code::PermissionDenied);
    assert!(refused.message().contains("'ctr'") && refused.message().contains("'payments'"));
    assert_eq!(ctr.check_all_datasets().unwrap_err().grpc_code(), Code::PermissionDenied);
    let ops = authenticator.authenticate(&headers("bearer  of-ops ")).unwrap();
    assert!(ops.may_read("payments") && ops.check_all_datasets().is_ok());
}

#[test]
fn missing_unknown_expired_and_malformed_tokens_are_rejected() {
    let (_folder, authenticator) = authenticator(&format!(
        "[old]\nsha256 = \"{}\"\ndatasets = [\"*\"]\nexpires = 2020-01-01T00:00:00Z",
        sha256("of-old"),
    ));
    let refused = |headers: &HeaderMap| {
        let status = authenticator.authenticate(headers).err().unwrap();
        assert_eq!(status.grpc_code(), Code::Unauthenticated);
        status.message().to_owned()
    };
    assert!(refused(&HeaderMap::new()).contains("authorization: Bearer"));
    assert!(refused(&headers("Bearer of-old")).contains("'old' expired at 2020-01-01"));
    for value in [
        "Bearer of-unknown",
        "Bearer",
        "Bearer ",
        "of-old",
        "Basic !",
        "Basic b2Ytb2xk",
        "Basic OmE6",
        "Basic Og==",
        "Digest x",
    ] {
        refused(&headers(value));
    }
}

#[test]
fn a_browser_sends_the_token_as_its_password() {
    let (_folder, authenticator) =
        authenticator(&format!("[a]\nsha256 = \"{}\"\ndatasets = [\"*\"]", sha256("of:a")));
    // anyone:of:a
    authenticator.authenticate(&headers("Basic YW55b25lOm9mOmE=")).unwrap();
}

#[test]
fn a_removed_token_is_rejected_at_once_and_an_invalid_file_changes_nothing() {
    let ctr = format!("[ctr]\nsha256 = \"{}\"\ndatasets = [\"*\"]", sha256("of-ctr"));
    let (folder, authenticator) = authenticator(&ctr);
    let access = authenticator.authenticate(&headers("Bearer of-ctr")).unwrap();
    let tokens = authenticator.tokens().unwrap();
    assert!(!tokens.reload().unwrap(), "nothing changed");

    file(&folder, "[ctr]\nsha256 = \"12\"\ndatasets = [\"*\"]");
    let error = format!("{:#}", tokens.reload().unwrap_err());
    assert!(error.contains("tokens.toml") && error.contains("64 hexadecimal digits"), "{error}");
    assert!(access.may_read("flights"), "the previous file still applies");

    for wrong in [
        "weight = \"a-token\"",
        "datasets = a-token",
        "a-token-without-value",
        "sha256 = [\"a \\\" a-token\"]",
    ] {
        file(&folder, &format!("[ctr]\n{wrong}\n"));
        let error = format!("{:#}", tokens.reload().unwrap_err());
        assert!(error.contains("tokens.toml") && error.contains("line 2: "), "{error}");
        assert!(!error.contains("a-token"), "a token in the wrong place is not repeated: {error}");
    }

    for nothing in ["", "# no token yet\n"] {
        file(&folder, nothing);
        let error = format!("{:#}", tokens.reload().unwrap_err());
        assert!(error.contains("tokens.toml") && error.contains("there is no token"), "{error}");
        assert!(access.may_read("flights"), "the previous file still applies");
    }

    file(&folder, &ctr.replace(&sha256("of-ctr"), &sha256("of-another")));
    assert!(tokens.reload().unwrap());
    assert_eq!(access.check("flights").unwrap_err().grpc_code(), Code::Unauthenticated);
    file(&folder, &ctr);
    tokens.reload().unwrap();
    assert!(access.may_read("flights"));
}

#[test]
fn a_file_that_is_being_written_is_not_used() {
    let tokens_of = |names: &[&str]| -> String {
        let token = |name: &&str| {
            format!("[{name}]\nsha256 = \"{}\"\ndatasets = [\"*\"]\n", sha256(&format!("of-{name}")))
        };
        names.iter().map(token).collect()
    };
    let (folder, authenticator) = authenticator(&tokens_of(&["first", "second"]));
    let tokens = authenticator.tokens().unwrap();
    let access = authenticator.authenticate(&headers("Bearer of-second")).unwrap();
    // The first half is a valid file. The writer continues as soon as the reader waits.
    let path = file(&folder, &tokens_of(&["first"]));
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                number += 1;
                std::fs::write(&path, format!("{}# {number}\n", tokens_of(&["first"]))).unwrap();
            }
        });
        assert!(!tokens.reload().unwrap_or(false), "the file changes all the time");
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(access.may_read("flights"), "the previous file still applies");
    file(&folder, &tokens_of(&["second"]));
    assert!(tokens.reload().unwrap());
    assert!(access.may_read("flights"));
}

#[tokio::test(start_paused = true)]
async fn changed_files_are_reloaded() {
    let another = format!("[another]\nsha256 = \"{}\"\ndatasets = [\"*\"]", sha256("of-another"));
    let (folder, authenticator) = authenticator(&another);
    let tokens = authenticator.tokens().unwrap();
    let watch = tokio::spawn(Arc::clone(&tokens).watch(Duration::from_secs(10), |_| ()));
    file(&folder, &format!("[ctr]\nsha256 = \"{}\"\ndatasets = [\"*\"]", sha256("of-ctr")));
    while authenticator.authenticate(&headers("Bearer of-ctr")).is_err() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    watch.abort();
}

#[test]
fn an_invalid_token_file_is_an_error_that_names_the_token() {
    let one = sha256("x");
    for (text, word) in [
        (format!("[a]\nsha256 = \"{one}\"\ndatasets = []"), "'a': datasets is empty"),
        (format!("[a]\nsha256 = \"{one}\"\ndatasets = [\"*\"]\nexpires = 2026-01-01"), "'a': expires"),
        (format!("[a]\nsha256 = \"{one}\"\ndatasets = [\"*\"]\nrole = \"x\""), "role"),
        (format!("[a]\nsha256 = \"{}\"\ndatasets = [\"*\"]", "zz".repeat(32)), "'a': sha256"),
        (format!("[a]\nsha256 = \"{}\"\ndatasets = [\"*\"]", sha256("")), "empty string"),
        (
            format!("[a]\nsha256=\"{one}\"\ndatasets=[\"*\"]\n[b]\nsha256=\"{one}\"\ndatasets=[\"*\"]"),
            "'a' and 'b'",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let error = format!("{:#}", Authenticator::new(Some(&file(&folder, &text)), false).err().unwrap());
        assert!(error.contains(word), "{word} is not in {error}");
    }
}

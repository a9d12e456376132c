use super::*;

#[test]
fn an_unknown_field_is_refused_by_name() {
    let error = toml::from_str::<Settings>("grcp = \"127.0.0.1:1\"").unwrap_err().to_string();
    assert!(error.contains("grcp"), "{error}");
}

#[test]
fn no_error_contains_a_secret_of_a_url() {
    const SECRETS: [(&str, &str); 7] = [
        ("[datasets]\na = \"https://u:SECRET@h/x", "line 2, column"),
        (
            "cpu_threads = 1\ndatasets = \"https://u:SECRET@h/x\"",
            "invalid type: string \"https://(not shown)@h/x\"",
        ),
        (
            "[datasets]\na = \"https://h/x?sig=SECRET\"",
            "dataset 'a': invalid location https://h/x?(not shown)",
        ),
        ("[datasets]\n\"https://u:SECRET@h/x\" = \"/x\"", "dataset name 'https://(not shown)@h/x'"),
        ("state = \"s3://SECRET@b/x\"", "state: invalid location s3://(not shown)@b/x"),
        (
            "[traces]\nendpoint = \"http://u:SECRET@h:1\"",
            "traces.endpoint: invalid location http://(not shown)@h:1",
        ),
        ("[traces]\nendpoint = \"grpc://u:SECRET@h:1\"", "traces.endpoint is 'grpc://(not shown)@h:1'"),
    ];
    for (text, expected) in SECRETS {
        let error = Settings::parse(text).and_then(|settings| settings.check()).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains(expected) && !error.contains("SECRET"), "{error}");
    }
    for (flag, expected) in [
        ("https://u:SECRET@h/x", "--dataset https://(not shown)@h/x: expected NAME=URL"),
        ("https://u:SECRET@h/x?a=b", "dataset name 'https://(not shown)@h/x?(not shown)'"),
    ] {
        let mut settings = Settings::default();
        let added = settings.add_datasets(&[flag.to_owned()]).and_then(|()| settings.check());
        let error = format!("{:#}", added.unwrap_err());
        assert!(error.contains(expected) && !error.contains("SECRET"), "{error}");
    }
}

#[test]
fn what_is_printed_reads_back_the_same() {
    let mut settings = Settings { refresh_interval: Some(Duration::from_secs(90)), ..Settings::default() };
    settings.add_datasets(&["a.b-c_1=s3://bucket/x=1".to_owned()]).unwrap();
    let text = toml::to_string(&settings).unwrap();
    assert_eq!(toml::from_str::<Settings>(&text).unwrap(), settings);
    settings.check().unwrap();
}

#[test]
fn cpu_threads_have_normal_scheduling_unless_idle_is_set() {
    assert_eq!(Settings::default().cpu_scheduling, Scheduling::Normal);
    let settings: Settings = toml::from_str("cpu_scheduling = \"idle\"").unwrap();
    assert_eq!(settings.cpu_scheduling, Scheduling::Idle);
}

#[test]
fn sizes_and_times_are_read_with_their_units() {
    let text = "cache_memory = \"64MiB\"\ngrace_period = \"5s\"\n[loader]\nslow_consumer_timeout = \"250ms\"";
    let settings: Settings = toml::from_str(text).unwrap();
    assert_eq!(settings.cache_memory.0, 64 << 20);
    assert_eq!(settings.grace_period, Duration::from_secs(5));
    assert_eq!(settings.loader.slow_consumer_timeout, Duration::from_millis(250));
}

#[test]
fn invalid_settings_are_rejected_before_anything_is_opened() {
    for text in [
        "[datasets]\n\"a b\" = \"x\"",
        "[datasets]\na = \"\"",
        "cpu_threads = 0",
        "cache_memory = 1",
        "credentials_reload_interval = \"0s\"",
        "network_bandwidth = 0",
        "[loader]\nmax_batch_bytes = 3000000000",
        "cache_memory = \"16EiB\"",
        "cache_disk = \"8EiB\"",
        "lookup_memory = \"9EiB\"",
        "[datasets]\na = \"x\"\n[online.a]\nkey = [\"k\", \"l\", \"k\"]",
    ] {
        assert!(toml::from_str::<Settings>(text).unwrap().check().is_err(), "{text}");
    }
    let mut settings = Settings::default();
    let mut add = |datasets: &[&str]| {
        let datasets: Vec<String> = datasets.iter().map(|dataset| (*dataset).to_owned()).collect();
        settings.add_datasets(&datasets)
    };
    assert!(add(&["nourl"]).is_err());
    assert!(add(&["a=x", "a=y"]).is_err());
    add(&["a=x"]).unwrap();
    add(&["a=y"]).unwrap();
    assert_eq!(settings.datasets["a"], "y", "a flag overrides the file");
}

#[test]
fn a_member_needs_a_name_a_port_and_a_token_if_the_others_require_one() {
    let check = |more: &str| {
        let text = format!("members = \"a:1,b:1\"\n{more}");
        toml::from_str::<Settings>(&text).unwrap().check().map_err(|error| format!("{error:#}"))
    };
    assert!(check("").unwrap_err().contains("expected --advertise HOST:PORT"));
    check("advertise = \"a:1\"").unwrap();
    let unix = check("advertise = \"a:1\"\ngrpc = \"unix:/run/forebay.sock\"").unwrap_err();
    assert!(unix.contains("expected HOST:PORT as --grpc"), "{unix}");
    let tokens = "advertise = \"a:1\"\ntokens = \"t\"";
    assert!(check(tokens).unwrap_err().contains("--membership-token"));
    check(&format!("{tokens}\n[membership]\ntoken = \"m\"")).unwrap();
}

#[test]
fn non_loopback_addresses_require_tls_and_tokens_or_insecure() {
    let tls = "[tls]\ncertificate = \"c\"\nkey = \"k\"";
    for (flag, address) in [("--grpc", "grpc = \"0.0.0.0:8815\""), ("--http", "http = \"[::]:8816\"")] {
        let check = |more: &str| toml::from_str::<Settings>(&format!("{address}\n{more}")).unwrap().check();
        let missing = |more: &str| check(more).unwrap_err().to_string();
        let nothing = missing("");
        for word in [flag, "--tls-certificate", "--tls-key", "--tokens", "--insecure"] {
            assert!(nothing.contains(word), "{word} is not in {nothing}");
        }
        assert!(!missing(tls).contains("--tls-key"));
        assert!(!missing("tokens = \"t\"").contains("--tokens"));
        check(&format!("tokens = \"t\"\n{tls}")).unwrap();
        check("insecure = true").unwrap();
    }
    let local = "grpc = \"unix:/run/forebay.sock\"\nhttp = \"127.0.0.1:1\"";
    toml::from_str::<Settings>(local).unwrap().check().unwrap();
}

use super::*;

const SMALL: &str = r#"
    name = "small"
    about = "a test"
    batch_size = 10
    compute_ms = 0.5
    [data.columns]
    rows = 100
    files = 1
    row_group_rows = 10
    float32 = 2
    int32 = 0
"#;

#[test]
fn every_built_in_scenario_parses_and_has_its_name() {
    for &(name, _) in BUILT_IN {
        let scenario = Scenario::named(name).expect(name);
        assert_eq!(scenario.name, name);
    }
}

#[test]
fn an_unknown_field_is_rejected_by_name() {
    for text in [format!("colour = 1\n{SMALL}"), format!("{SMALL}\ncolour = 1")] {
        let error = format!("{:#}", Scenario::parse(&text).expect_err("a field that does not exist"));
        assert!(error.contains("colour"), "{error}");
    }
}

#[test]
fn zero_sizes_and_invalid_names_are_rejected() {
    for (right, wrong) in [
        ("batch_size = 10", "batch_size = 0"),
        ("compute_ms = 0.5", "compute_ms = 0.0"),
        ("name = \"small\"", "name = \"a/b\""),
    ] {
        Scenario::parse(&SMALL.replace(right, wrong)).expect_err(wrong);
    }
}

#[test]
fn compute_time_is_inversely_proportional_to_the_share() {
    let scenario = Scenario::parse(SMALL).expect("well formed");
    assert_eq!(scenario.compute(1.0), Duration::from_micros(500));
    assert_eq!(scenario.compute(0.5), Duration::from_millis(1));
    assert_eq!(scenario.compute(2.0), Duration::from_micros(250));
}

#[test]
fn the_request_of_a_scenario_reaches_the_command() {
    let scenario = Scenario::named("tensor").expect("built in");
    let train = scenario.train(3, 2);
    assert_eq!((train.dataset.as_str(), train.epoch, train.epochs()), ("tensor", 3, 2));
    assert_eq!(train.tensors, scenario.request.tensors);
    assert_eq!(train.batch_size, 16_384);
}

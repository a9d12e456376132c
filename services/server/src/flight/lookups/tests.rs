use super::*;

fn integers(name: &str, keys: &[i64]) -> KeyColumn {
    KeyColumn { name: name.into(), integers: keys.into(), strings: Vec::new() }
}

fn strings(name: &str, keys: &[&str]) -> KeyColumn {
    KeyColumn {
        name: name.into(),
        integers: Vec::new(),
        strings: keys.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn columns_of_keys_are_a_batch_of_them() {
    let batch = key_batch(vec![integers("a", &[1, i64::MIN]), strings("b", &["", "x"])], 2).unwrap();
    assert_eq!(batch.num_rows(), 2);
    assert_eq!(batch["a"].as_ref(), &Int64Array::from(vec![1, i64::MIN]) as &dyn arrow_array::Array);
    assert_eq!(batch["b"].as_ref(), &LargeStringArray::from(vec!["", "x"]) as &dyn arrow_array::Array);
}

#[test]
fn what_is_no_batch_of_keys_is_refused_by_name() {
    let both = KeyColumn { strings: vec!["x".into()], ..integers("a", &[1]) };
    for (columns, words) in [
        (vec![], "are missing"),
        (vec![integers("a", &[])], "column 'a' has none"),
        (vec![integers("a", &[1, 2, 3])], "3 at once, expected at most 2"),
        (vec![strings("a", &["x", "y", "z"])], "3 at once, expected at most 2"),
        (vec![integers("", &[1])], "a column has no name"),
        (vec![integers("a", &[1]), integers("a", &[1])], "column 'a' is given twice"),
        (vec![both], "column 'a' has both"),
        (vec![integers("a", &[1, 2]), integers("b", &[1])], "column 'b' has 1, others have 2"),
        (vec![integers("a", &[]), integers("b", &[1])], "column 'a' has 0, others have 1"),
    ] {
        let status = key_batch(columns, 2).unwrap_err();
        assert_eq!(status.grpc_code(), tonic::Code::InvalidArgument);
        assert!(status.message().starts_with("keys: ") && status.message().contains(words), "{status}");
    }
}

use super::*;

fn field(data_type: DataType, nullable: bool) -> Field {
    Field::new("f", data_type, nullable)
}

fn dictionary(values: DataType) -> DataType {
    DataType::Dictionary(Box::new(DataType::Int8), Box::new(values))
}

#[test]
fn dictionaries_and_views_are_delivered_as_plain_values_at_any_depth() {
    let inner = DataType::Struct(
        vec![field(DataType::BinaryView, true), Field::new("g", dictionary(DataType::Utf8View), false)]
            .into(),
    );
    let expected =
        DataType::Struct(vec![field(DataType::Binary, true), Field::new("g", DataType::Utf8, false)].into());
    let list = |item| DataType::LargeList(Arc::new(field(item, false)));
    assert_eq!(delivered_type(&list(inner)), list(expected));
    assert_eq!(delivered_type(&dictionary(DataType::Int64)), DataType::Int64);
    assert_eq!(delivered_type(&DataType::Date32), DataType::Date32);
}

#[test]
fn merged_fields_are_nullable_if_either_is() {
    let list = |name: &str, nullable| {
        field(DataType::List(Arc::new(Field::new(name, DataType::Int32, nullable))), nullable)
    };
    assert_eq!(merge(&list("item", false), &list("element", true)), Some(list("item", true)));
    assert_eq!(merge(&list("item", true), &list("item", false)), Some(list("item", true)));
}

#[test]
fn other_types_and_other_inner_names_do_not_merge() {
    let of = |name: &str| field(DataType::Struct(vec![Field::new(name, DataType::Int32, true)].into()), true);
    assert_eq!(merge(&of("a"), &of("b")), None);
    assert_eq!(merge(&field(DataType::Int32, true), &field(DataType::Int64, true)), None);
    let size = |size| field(DataType::FixedSizeList(Arc::new(field(DataType::Int8, true)), size), true);
    assert_eq!(merge(&size(1), &size(2)), None);
}

#[test]
fn unsupported_types_are_found_at_any_depth() {
    let run = Arc::new(Field::new("run_ends", DataType::Int32, false));
    let encoded = DataType::RunEndEncoded(run, Arc::new(field(DataType::Utf8, true)));
    let list = DataType::List(Arc::new(field(encoded.clone(), true)));
    assert_eq!(undeliverable(&list), Some(&encoded));
    assert_eq!(undeliverable(&DataType::Utf8), None);
}

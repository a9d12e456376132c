use std::sync::Arc;

use super::*;

fn field(data_type: DataType) -> Field {
    Field::new("item", data_type, true)
}

fn fixed_list(item: DataType, length: i32) -> DataType {
    DataType::FixedSizeList(Arc::new(field(item)), length)
}

#[test]
fn a_row_has_one_fixed_size_list_unless_another_list_contains_it() {
    let bytes = 8 * 4 + 1;
    let leaves = FixedLists::of_leaves(&field(fixed_list(DataType::Float32, 8)));
    let [flat] = leaves.as_slice() else { panic!("expected one leaf column") };
    assert_eq!((flat.row_bytes, flat.is_repeated), (bytes, false));
    // The list is null, has no items, has a null item, and has an item.
    assert_eq!(flat.level_bytes, [0; 4]);

    let list = DataType::List(Arc::new(field(fixed_list(DataType::Float32, 8))));
    let leaves = FixedLists::of_leaves(&field(list));
    let [nested] = leaves.as_slice() else { panic!("expected one leaf column") };
    assert_eq!((nested.row_bytes, nested.is_repeated), (0, true));
    assert_eq!(nested.level_bytes, [0, 0, bytes, bytes, 0, 0]);
}

#[test]
fn a_list_of_structs_is_counted_at_its_first_leaf_column() {
    let fields = ["a", "b"].map(|name| Field::new(name, DataType::Int64, false));
    let structs = fixed_list(DataType::Struct(fields.into_iter().collect()), 8);
    let leaves = FixedLists::of_leaves(&field(structs));
    let [first, second] = leaves.as_slice() else { panic!("expected two leaf columns") };
    // With validity bits of the structs and of the items.
    let bytes = 8 * 16 + 1 + 1;
    assert_eq!((first.row_bytes, &first.level_bytes[..]), (bytes, &[0; 4][..]));
    assert_eq!((second.row_bytes, &second.level_bytes[..]), (0, &[0; 4][..]));
}

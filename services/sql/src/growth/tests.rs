use arrow_array::{FixedSizeListArray, Int32Array, LargeListArray, ListArray, MapArray, StructArray};
use arrow_schema::Field;

use super::*;
use crate::Expression;

fn schema() -> Schema {
    let list = |item| DataType::List(Arc::new(Field::new_list_field(item, true)));
    Schema::new(vec![
        Field::new("x", DataType::Int64, true),
        Field::new("t", DataType::Utf8, true),
        Field::new("l", list(DataType::Int32), true),
        Field::new("b", list(DataType::Boolean), true),
    ])
}

/// Two sizes of an expression: that of its result, and the sum over all its parts. Each has a fixed number of bytes per row, and for each
/// input column a factor by which the bytes of the column are multiplied.
fn sizes(text: &str) -> [(u64, Vec<(usize, u64)>); 2] {
    let schema = schema();
    let expression = Expression::column(&format!("{text} AS y"), &schema).unwrap();
    let columns = DFSchema::try_from(schema.clone()).unwrap();
    let Sizes { result, work } = Sizes::of(&expression.logical, &columns, &schema).unwrap();
    [result, work].map(|growth| (growth.row_bytes, growth.columns.into_iter().collect()))
}

#[test]
fn an_estimate_adds_up_the_bytes_per_row_and_the_factors_of_each_column() {
    // A text literal takes 8 bytes for its offsets, plus the bytes of the text.
    for (text, result, work) in [
        ("x", (0, vec![(0, 1)]), (0, vec![(0, 1)])),
        ("x + 1", (8, vec![]), (16, vec![(0, 1)])),
        ("x > 1", (1, vec![]), (9, vec![(0, 1)])),
        ("CAST(x AS VARCHAR)", (40, vec![(0, 1)]), (40, vec![(0, 2)])),
        ("upper(t)", (8, vec![(1, 1)]), (8, vec![(1, 2)])),
        ("concat(t, t)", (8 + 2 * 40, vec![(1, 2)]), (8 + 2 * 40, vec![(1, 4)])),
        ("t || 'abc'", (11 + 80, vec![(1, 1)]), (2 * 11 + 80, vec![(1, 2)])),
        ("concat_ws(',', t, t)", (9 + 8 + 2 * 40, vec![(1, 2)]), (2 * 9 + 88, vec![(1, 4)])),
        ("concat_ws(',', t, t, t, t)", (3 * 9 + 8 + 4 * 40, vec![(1, 4)]), (4 * 9 + 168, vec![(1, 8)])),
        ("concat_ws(t, 'a', 'b', 'c')", (3 * 9 + 8 + 3 * 40, vec![(1, 2)]), (6 * 9 + 128, vec![(1, 3)])),
        ("t LIKE '%abc%'", (1, vec![]), (1 + 13, vec![(1, 1)])),
        ("t LIKE 'a%bc_'", (1, vec![]), (1 + 13, vec![(1, 1 + 2 * 10 + 5)])),
        ("t ILIKE 'abc'", (1, vec![]), (1 + 11, vec![(1, 1 + 3 * 3)])),
        ("translate(t, 'a', 'b')", (4 * 18 + 8, vec![(1, 4)]), (5 * 18 + 8, vec![(1, 5)])),
        ("CAST(l AS DOUBLE[])", (40, vec![(2, 2)]), (40, vec![(2, 3)])),
        ("CAST(l AS BOOLEAN[])", (40, vec![(2, 1)]), (40, vec![(2, 2)])),
        ("CAST(b AS DOUBLE[])", (40, vec![(3, 64)]), (40, vec![(3, 65)])),
        ("CAST(b AS VARCHAR[])", (40, vec![(3, 320)]), (40, vec![(3, 321)])),
        ("list_pad(l, 10, 0)", (10 * 4 + 8, vec![(2, 1)]), (8 + 4 + 48, vec![(2, 2)])),
        ("list_truncate(l, 3)", (8, vec![(2, 1)]), (8 + 8, vec![(2, 2)])),
        (
            "CASE WHEN x > 1 THEN t ELSE 'abc' END",
            (1 + 11 + 8 + 3 * 40, vec![(1, 1)]),
            (9 + 11 + 140, vec![(0, 1), (1, 2)]),
        ),
        ("CAST(list_pad(l, 10, 0) AS DOUBLE[])", (2 * 48 + 40, vec![(2, 2)]), (60 + 136, vec![(2, 4)])),
    ] {
        assert_eq!(sizes(text), [result, work], "{text}");
    }
}

#[test]
fn a_batch_is_split_until_each_part_is_small_or_has_one_row() {
    let numbers: ArrayRef = Arc::new(arrow_array::Int64Array::from_iter_values(0..8));
    let batch = RecordBatch::try_from_iter([("x", numbers)]).unwrap();
    for (max_rows, expected) in [(8, vec![8]), (3, vec![2; 4]), (0, vec![1; 8])] {
        let parts = slices(batch.clone(), &|part| part.num_rows() <= max_rows);
        assert_eq!(parts.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), expected);
        assert_eq!(arrow_select::concat::concat_batches(&batch.schema(), &parts).unwrap(), batch);
    }
}

#[test]
fn a_slice_of_an_array_has_the_size_of_a_copy_of_its_rows() {
    let numbers = Int32Array::from_iter_values(0..300);
    let item = |data_type: DataType| Arc::new(Field::new_list_field(data_type, true));
    let int = item(DataType::Int32);
    let list = ListArray::new(
        int.clone(),
        OffsetBuffer::from_repeated_length(3, 100),
        Arc::new(numbers.clone()),
        None,
    );
    let large = LargeListArray::new(
        int.clone(),
        OffsetBuffer::from_repeated_length(3, 100),
        Arc::new(numbers.clone()),
        None,
    );
    let fixed = FixedSizeListArray::new(int, 3, Arc::new(numbers.clone()), None);
    let lists = FixedSizeListArray::new(item(list.data_type().clone()), 2, Arc::new(list.clone()), None);
    let of_lists =
        StructArray::from(vec![(item(list.data_type().clone()), Arc::new(list.clone()) as ArrayRef)]);
    let entries = StructArray::from(vec![
        (Arc::new(Field::new("keys", DataType::Int32, false)), Arc::new(numbers.clone()) as ArrayRef),
        (Arc::new(Field::new("values", DataType::Int32, true)), Arc::new(numbers) as ArrayRef),
    ]);
    let field = Arc::new(Field::new("entries", entries.data_type().clone(), false));
    let map = MapArray::new(field, OffsetBuffer::from_repeated_length(3, 100), entries, None, false);
    // Each value has a validity bit, numbers and offsets have 4 bytes each, large offsets 8. The 10 rows have 30 numbers.
    let items = 4 + 30 * 4;
    for (array, rows, expected) in [
        (Arc::new(list) as ArrayRef, 10, 2 + 11 * 4 + items),
        (Arc::new(large), 10, 2 + 11 * 8 + items),
        (Arc::new(fixed), 10, 2 + items),
        (Arc::new(lists), 5, 1 + 2 + 11 * 4 + items),
        (Arc::new(of_lists), 10, 2 + 2 + 11 * 4 + items),
        (Arc::new(map), 10, 2 + 11 * 4 + 4 + 2 * items),
    ] {
        let part = array.slice(20, rows);
        assert_eq!(array_bytes(&part), expected, "{}", array.data_type());
        let alone = arrow_select::concat::concat(&[&part, &part.slice(0, 0)]).unwrap();
        assert_eq!(array_bytes(&alone), expected, "{}", array.data_type());
    }
}

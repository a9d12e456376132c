//! INT96 timestamps inside and outside of the range of nanoseconds.

use arrow_array::{cast::AsArray, types::TimestampNanosecondType};

use super::{pages::RawPage, *};

/// Day 0 of Unix time in INT96.
const EPOCH: i64 = 2_440_588;
/// Day of the last nanosecond that a timestamp holds, 2262-04-11, and the nanosecond of that day.
const LAST: (i64, u64) = (106_751, 85_636_854_775_807);
/// Day of the first nanosecond that a timestamp holds, 1677-09-21, and the nanosecond of that day.
const FIRST: (i64, u64) = (-106_752, 763_145_224_192);

/// INT96 value of a day since 1970 and a nanosecond of the day.
fn int96((day, nanosecond): (i64, u64)) -> Vec<u8> {
    let day = u32::try_from(day + EPOCH).unwrap();
    [&nanosecond.to_le_bytes()[..], &day.to_le_bytes()].concat()
}

fn in_column(pages: Vec<RawPage>) -> Vec<u8> {
    pages::file("message m { required int96 t; }", pages::gzipped(), vec![pages])
}

fn plain(value: (i64, u64)) -> Vec<u8> {
    in_column(vec![pages::data(1, Encoding::PLAIN, &int96(value))])
}

fn in_dictionary(value: (i64, u64)) -> Vec<u8> {
    let indices = [vec![1], pages::run(1, 0)].concat();
    in_column(vec![pages::dictionary(1, &int96(value)), pages::data(1, Encoding::RLE_DICTIONARY, &indices)])
}

fn in_list(value: (i64, u64)) -> Vec<u8> {
    let schema = "message m { required group t (LIST) { repeated group list { required int96 item; } } }";
    let values = [int96((0, 0)), int96(value)].concat();
    pages::file(schema, pages::gzipped(), vec![vec![pages::list(2, Encoding::PLAIN, &values)]])
}

#[test]
fn the_first_and_last_nanosecond_are_read() {
    for (value, expected) in
        [(FIRST, i64::MIN), (LAST, i64::MAX), ((0, 5), 5), ((-1, 5), 5 - 86_400_000_000_000)]
    {
        for file in [plain(value), in_dictionary(value)] {
            let read = read(&file).unwrap();
            assert_eq!(read.column(0).as_primitive::<TimestampNanosecondType>().values(), &[expected]);
        }
    }
    assert_eq!(read(&in_list(LAST)).unwrap().num_rows(), 1);
}

#[test]
fn timestamps_beyond_nanoseconds_are_an_error_that_names_file_column_and_time() {
    let end_of_time = (2_932_896, 0);
    for (value, time) in [
        ((LAST.0, LAST.1 + 1), "2262-04-11T23:47:16.854775808"),
        ((FIRST.0, FIRST.1 - 1), "1677-09-21T00:12:43.145224191"),
        (end_of_time, "9999-12-31T00:00:00"),
        ((105_000_000, 0), "105000000 days after 1970-01-01"),
    ] {
        for (file, column) in
            [(plain(value), "t"), (in_dictionary(value), "t"), (in_list(value), "t.list.item")]
        {
            let error = read(&file).unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
            let message = error.to_string();
            let place = format!("a.parquet (row group 0, column {column}) is not supported");
            assert!(message.contains(&place) && message.contains(time), "{message}");
            assert!(message.contains("timestamp[ns]"), "{message}");
        }
    }
}

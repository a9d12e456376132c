// Records `arrow-js.arrows`, see record.py: `npm install apache-arrow && node record.mjs`.
import { writeFileSync } from "node:fs";
import * as arrow from "apache-arrow";

const rows = 50;
const of = (value) => Array.from({ length: rows }, (_, row) => value(row));
const table = new arrow.Table({
    text: arrow.vectorFromArray(of((row) => (row % 3 ? `row ${row}` : null)), new arrow.Utf8()),
    category: arrow.vectorFromArray(of((row) => (row % 2 ? "odd" : "even"))),
    id: arrow.vectorFromArray(of((row) => BigInt(row * 7)), new arrow.Int64()),
    list: arrow.vectorFromArray(
        of((row) => (row % 5 ? Array.from({ length: row % 4 }, (_, item) => item) : null)),
        new arrow.List(new arrow.Field("item", new arrow.Int32(), true)),
    ),
    flag: arrow.vectorFromArray(of((row) => row % 2 === 0)),
    number: arrow.vectorFromArray(of((row) => row / 2), new arrow.Float64()),
});
writeFileSync(new URL("arrow-js.arrows", import.meta.url), arrow.tableToIPC(table, "stream"));

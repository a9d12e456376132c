"""Computes the mean delay per origin with polars, which imports batches without a copy.

    python summary_polars.py grpc://127.0.0.1:8815
"""

import sys

import polars as pl

import forebay

ds = forebay.connect(sys.argv[1]).train("flights", batch_size=262_144, columns=["origin", "delay"])
parts = [
    pl.DataFrame(batch).group_by("origin").agg(pl.col("delay").sum().alias("sum"), pl.len().alias("rows")) for batch in ds
]
total = pl.concat(parts).group_by("origin").agg(pl.col("sum").sum(), pl.col("rows").sum())
worst = total.with_columns(mean=pl.col("sum") / pl.col("rows")).sort("mean", descending=True).head(3)
print(f"{total['rows'].sum()} rows; most delayed: {', '.join(worst['origin'].to_list())}")

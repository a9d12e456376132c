"""Migration from Petastorm: the equivalent of `make_batch_reader` and its `DataLoader`.

    python from_petastorm.py grpc://127.0.0.1:8815

Before:

    with make_batch_reader("file:///data/flights", schema_fields=["delay", "distance"], num_epochs=2,
                           cur_shard=rank, shard_count=world_size, shuffle_row_groups=True) as reader:
        for batch in petastorm.pytorch.DataLoader(reader, batch_size=16_384, shuffling_queue_capacity=100_000):
            step(batch["delay"], batch["distance"])

After: the URL is configured on the server. A shuffle window of whole row groups replaces the shuffling queue and does not
depend on the number of workers. Ranks share each global batch, so all of them have the same number of steps.
"""

import sys

import forebay

rank, world_size = 0, 2
ds = forebay.connect(sys.argv[1]).train(
    "flights",
    batch_size=16_384,
    columns=["delay", "distance"],
    shuffle={"window_rows": 100_000},
    rank=rank,
    world_size=world_size,
    epochs=2,
    output="numpy",
)
steps = 0
for epoch in range(2):
    for batch in ds:
        assert len(batch["delay"]) == len(batch["distance"]) == 16_384
        steps += 1
print(f"{steps} steps")

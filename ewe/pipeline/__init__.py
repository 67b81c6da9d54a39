"""The data's way, from a SQL query to tensors.

    table --fetch--> raw/ --relabel--> dataset/ --encode--> tensors/

    sample    a made-up publications table
    fetch     an engine (local) and a window of grant dates -> raw/, a shard a month
    relabel   the first 20 claims joined, flagged codes -> First-/Later- labels -> dataset/
    encode    dataset/, or any labelled text -> tensors/, memory-mapped bytes

    schema holds every file's columns; split assigns grant dates to splits; stats counts Table 2.

Each step is a plain function on a frame; reading and writing happen at the edges only.
"""

if __name__ == "pipeline":  # the link at the repository's root, there for readers
    raise ImportError("pipeline at the root is a link; import ewe.pipeline.")

"""The data's way, from a SQL query to tensors.

    table --fetch--> raw/ --relabel--> dataset/ --encode--> tensors/

    sample    a made-up publications table
    fetch     an engine (local, bigquery, uspto, patentsview) and a window of grant dates -> raw/, a shard a month
    relabel   the first 20 claims joined, flagged codes -> First-/Later- labels -> dataset/
    dedup     near-copies, and the test rows that leak from train -> dataset/duplicates/
    release   the card, Croissant, data dictionary, citation, checksums and the report, beside the dataset's Parquet
    encode    dataset/, or any labelled text -> tensors/, memory-mapped bytes, tokens or code points
    diff      two raw/ or dataset/ folders, compared by label

    schema holds every file's columns; split assigns grant dates to splits; stats counts Table 2.

Each step is a plain function of paths (`relabel_folder(raw, dataset)`) that reads a bounded batch at a time.
"""

if __name__ == "pipeline":  # the link at the repository's root, there for readers
    raise ImportError("pipeline at the root is a link; import ewe.pipeline.")

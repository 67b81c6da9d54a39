"""GoogleSQL, one file a query, with bound @parameters; the same text runs on BigQuery and on the embedded engine."""

if __name__ == "sql":  # the link at the repository's root, there for readers
    raise ImportError("sql at the root is a link; import ewe.sql.")

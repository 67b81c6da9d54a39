"""GoogleSQL, one file a query, with bound @parameters; the same text runs on BigQuery and on the embedded engine."""

"""`assay serve`: the page. It renders the documents and reads the index that the commands have, and decides nothing."""

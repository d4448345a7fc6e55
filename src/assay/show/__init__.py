"""show: values → text, tables, plots."""

"""Interfaces to the operating system, each in one module. The package imports only `errors` from Assay."""

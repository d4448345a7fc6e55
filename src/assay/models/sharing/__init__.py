"""The plug-in `models-sharing`: `assay model cache push` and `pull`."""

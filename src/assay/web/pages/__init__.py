"""Pages, with a module for each subject; `study_page.py` builds a study's content without the server's libraries."""

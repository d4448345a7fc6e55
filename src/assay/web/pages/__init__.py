"""Pages, a module for each subject; of a study `study_page.py` builds the content without the server's libraries."""

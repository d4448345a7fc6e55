"""A module for each subject: it builds what a page shows, reads an address into a value, and fills a template.

The page of a study has two: `study_page.py` builds its contents, without the server's libraries, for `rows.py` too.
"""

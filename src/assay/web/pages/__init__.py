"""Pages, a module for each subject: it reads the address into a value, builds the content, and fills a template.

The page of a study has two: `study_page.py` builds the content without the server's libraries, also for `rows.py`.
"""

"""`study.py` reads an address into a value, asks for what is shown and fills a template; `study_page.py` is what is
shown, without the server's libraries: the same for each subject."""

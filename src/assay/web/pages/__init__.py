"""One module for each subject: it reads the address into a value, asks the layers below, and fills a template."""

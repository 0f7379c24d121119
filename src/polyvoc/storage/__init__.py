"""Files, SQLite and remote stores: everything that reads or writes bytes.

`files` writes files and folders whole or not at all, with checksums; `sqlite` opens one database file with clear errors; `stores`
reads addresses (S3, web, archives) through fsspec; `folders` lists photographs and sees whether a file has changed.
"""

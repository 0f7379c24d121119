"""Files, SQLite and remote stores: everything that reads or writes bytes.

`files` writes files and folders atomically, with checksums; `sqlite` opens one database file; `stores` reads addresses (S3,
web, archives) through fsspec; `folders` lists and reads photographs and detects whether a file has changed.
"""

"""What is written of rows with all extensions: the schema and the tables."""

import row_documents

from pytest_flashinfer_perf.files import read_json


def test_the_schema_and_the_tables_are_those_of_the_type():
    """Both are written by `python tools/row_documents.py`."""
    assert row_documents.schema() == read_json(row_documents.FILE)
    text = row_documents.PAGE.read_text()
    assert row_documents.page(text) == text

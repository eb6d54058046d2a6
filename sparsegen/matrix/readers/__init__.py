"""One module for each kind of matrix file: from bytes to arrays whose indices are not checked yet.

A reader compares what a header declares with what the file holds before anything is allocated for it, and
never unpickles; `sparsegen.matrix.formats.as_csr` then checks every index.
"""

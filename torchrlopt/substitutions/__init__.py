"""The substitution library: text files reviewed by people, parsed and indexed by the core.

`library/*.txt` are written by hand, one subject per file; the product loads them with `load_library`. The
comment line `# composite` above a substitution marks it as a bundle of others: a human shortcut that a search
may be required to find step by step. `proof/` checks substitutions layer by layer, proves them with Z3 from
its axioms and records how each was checked; the product needs none of it. `docs/adding.md` describes how to
add a substitution.
"""

from torchrlopt.substitutions.load import (
    FIRES,
    file_text,
    fires,
    is_composite,
    library_files,
    library_text,
    library_without,
    load_library,
)

__all__ = [
    "FIRES",
    "file_text",
    "fires",
    "is_composite",
    "library_files",
    "library_text",
    "library_without",
    "load_library",
]

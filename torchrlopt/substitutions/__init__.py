"""The substitution library: text files that a person reviews, parsed and indexed by the core.

`library/*.txt` are what people wrote, one subject a file, `generated/*.txt` what the generator found;
`load_library` is what the product uses. The comment line `# composite` above a substitution says that it
bundles what others do step by step: a person's insight, which a search may be asked to find by itself.
`proof/` checks substitutions layer by layer, proves them with Z3 from its axioms and keeps how each was
checked; the product needs none of it. `docs/adding.md` says how one is added.
"""

from torchrlopt.substitutions.load import (
    FIRES,
    file_text,
    fires,
    foundation_text,
    generated_folder,
    hand_written_text,
    is_composite,
    library_files,
    library_text,
    load_library,
)

__all__ = [
    "FIRES",
    "file_text",
    "fires",
    "foundation_text",
    "generated_folder",
    "hand_written_text",
    "is_composite",
    "library_files",
    "library_text",
    "load_library",
]

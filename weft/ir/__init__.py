"""The intermediate representation: structured, typed, SSA. See README.md in this folder."""

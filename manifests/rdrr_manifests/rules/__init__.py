"""The rules, one function each, as tables; all of them run and every fault is reported.

Three levels: `structure` needs the manifest alone, `files` the store that holds the package,
`deep` every byte of it. docs/SPEC.md lists the rules with their reasons.
"""

from rdrr_manifests.rules.check import Examination, examine
from rdrr_manifests.rules.subject import Finding, Rule, Subject
from rdrr_manifests.rules.table import STRUCTURE

__all__ = ["STRUCTURE", "Examination", "Finding", "Rule", "Subject", "examine"]
